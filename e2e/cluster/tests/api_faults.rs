//! The API server refuses, forgets, is slow or tells old news. What comes of a job's life is what comes of an
//! undisturbed one.
//!
//! `make api-faults` goes through all kinds of trouble; in `make e2e` it is the mixed one.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread::{self, sleep};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use streamforge_e2e_cluster::{
    Answer, Ends, Fate, Request, Trial, difference, live, refusal, undisturbed,
};
use streamforge_process::Random;

/// Lives at the same time.
const AT_ONCE: usize = 3;

/// Most warnings that trouble may make an operator log per minute: more is no help to anybody.
const WARNINGS_MAX: usize = 120;

/// What an operator may say of it; the last ones when it cannot begin, and before it ends.
const ANNOUNCED: [&str; 8] = [
    // Told after a minute of broken watches, which a life takes on a slow machine.
    "watch fails again and again",
    "pass failed",
    "pass over a savepoint failed",
    "lease not",
    "coordinator ended, starting it again",
    "list objects of kind",
    "read secret",
    "make secret",
];

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Trouble {
    /// Every third write meets a conflict.
    Conflicts,
    /// Watches are told that their version is too old.
    Expired,
    /// Every third request comes too soon.
    TooMany,
    /// Every third request meets a server that fails.
    Failing,
    /// Connections of watches break.
    Cut,
    /// Every third write is done, and nobody says so.
    AnswersLost,
    /// Every third request is lost.
    RequestsLost,
    /// Answers take their time.
    Slow,
    /// Watches are seconds behind.
    Stale,
    /// Events may not be written.
    EventsForbidden,
    /// Children may not be written, now and then for seconds: a webhook of somebody else's refuses them.
    Denied,
    /// All of it.
    Mixed,
}

const ALL: [Trouble; 12] = [
    Trouble::Mixed,
    Trouble::Stale,
    Trouble::Conflicts,
    Trouble::Expired,
    Trouble::TooMany,
    Trouble::Failing,
    Trouble::Cut,
    Trouble::AnswersLost,
    Trouble::RequestsLost,
    Trouble::Slow,
    Trouble::EventsForbidden,
    Trouble::Denied,
];

/// What a job is made of.
const CHILDREN: [&str; 7] = [
    "/configmaps",
    "/secrets",
    "/serviceaccounts",
    "/services",
    "apps/statefulsets",
    "networking.k8s.io/networkpolicies",
    "policy/poddisruptionbudgets",
];

/// For how long a webhook refuses, and after how long it refuses again.
const DENIED: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(12));

/// As many of them as `make e2e` has time for.
const FEW: usize = 1;

impl Trouble {
    fn fate(self, request: &Request, random: &Mutex<Random>) -> Fate {
        let below = |limit| {
            let mut random = random.lock().unwrap_or_else(PoisonError::into_inner);
            random.below(limit)
        };
        let is_watch = request.verb == "watch";
        let strikes = |share| below(share) == 0;
        match self {
            Self::Conflicts if request.is_write() && strikes(3) => {
                let message =
                    "the object has been modified; please apply your changes to the latest version";
                Fate::Answer(refusal(409, "Conflict", message))
            }
            Self::Expired if is_watch => Fate::Expire(Duration::from_millis(1_000 + below(2_000))),
            Self::TooMany if strikes(3) => {
                let mut refusal = refusal(429, "TooManyRequests", "please try again later");
                refusal
                    .headers
                    .push(("retry-after".to_owned(), "1".to_owned()));
                Fate::Answer(refusal)
            }
            Self::Failing if strikes(3) => Fate::Answer(failing(below(2))),
            Self::Cut if is_watch => Fate::Cut(Duration::from_millis(500 + below(2_000))),
            Self::AnswersLost if request.is_write() && strikes(3) => {
                Fate::LoseAnswer(Box::new(|| {}))
            }
            Self::RequestsLost if strikes(3) => Fate::Lose,
            Self::Slow => {
                sleep(Duration::from_millis(below(800)));
                Fate::Pass
            }
            Self::Stale if is_watch => Fate::Late(Duration::from_secs(3)),
            Self::EventsForbidden if request.is_event() => {
                let message = "events.events.k8s.io is forbidden: exceeded quota";
                Fate::Answer(refusal(403, "Forbidden", message))
            }
            Self::Denied if denies(request) => Fate::Answer(denial(below(2))),
            Self::Mixed => {
                if !strikes(3) {
                    return Fate::Pass;
                }
                let one = usize::try_from(below(ALL.len() as u64 - 1)).unwrap_or_default();
                ALL[1 + one].fate(request, random)
            }
            _ => Fate::Pass,
        }
    }
}

/// Whether a webhook refuses this just now.
fn denies(request: &Request) -> bool {
    let (denied, again) = DENIED;
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = now.expect("the clock is past 1970").as_secs() % again.as_secs();
    let is_child = CHILDREN.contains(&&*request.resource);
    is_child && request.is_write() && now < denied.as_secs()
}

/// A webhook chooses the code.
fn denial(n: u64) -> Answer {
    let message = "admission webhook \"policy.example.com\" denied the request: not at this time";
    match n {
        0 => refusal(403, "Forbidden", message),
        _ => refusal(422, "Invalid", message),
    }
}

fn failing(n: u64) -> Answer {
    match n {
        0 => refusal(500, "InternalError", "etcdserver: request timed out"),
        _ => refusal(503, "ServiceUnavailable", "apiserver is shutting down"),
    }
}

fn troubled_life(trouble: Trouble) -> (Ends, String) {
    let began = Instant::now();
    let trial = Trial::new("fault");
    let random = Mutex::new(Random::seeded(1));
    trial
        .operator
        .proxy
        .set(move |request| trouble.fate(request, &random));
    // One that cannot begin ends, and is started again, as the kubelet does.
    trial.operator.start();
    let process = trial.operator.process();
    let mut starts_n = 1;
    while !trial.operator.log().contains("\"message\":\"leading\"") {
        assert!(
            began.elapsed() < Duration::from_secs(60),
            "{}",
            trial.operator.log()
        );
        if !process.is_running() {
            starts_n += 1;
            process.start();
        }
        sleep(Duration::from_millis(200));
    }
    let ends = live(&trial, &mut ());
    assert!(process.is_running(), "it ended: {}", trial.operator.log());
    trial.operator.check(&ANNOUNCED);
    let warnings: Vec<String> = trial.operator.trouble(&[]);
    let minutes = began.elapsed().as_secs_f64() / 60.0;
    let different: BTreeSet<&str> = warnings.iter().filter_map(|line| message(line)).collect();
    let limit = (WARNINGS_MAX as f64 * minutes.max(1.0)) as usize;
    assert!(
        warnings.len() < limit,
        "{} warnings: {different:#?}",
        warnings.len()
    );
    let line = format!(
        "| {trouble:?} | {:.0} s | {starts_n} | {} | {} |",
        began.elapsed().as_secs_f64(),
        trial.operator.proxy.lines().len(),
        warnings.len()
    );
    (ends, line)
}

fn message(line: &str) -> Option<&str> {
    let (_, after) = line.split_once("\"message\":\"")?;
    after.split('"').next()
}

fn number(name: &str, default: usize) -> usize {
    let given = std::env::var(name).ok();
    given.and_then(|it| it.parse().ok()).unwrap_or(default)
}

#[test]
fn trouble_of_the_api_server_changes_nothing() {
    let all_n = number("API_FAULTS", FEW);
    let only = std::env::var("API_FAULTS_ONLY").unwrap_or_default();
    let chosen = ALL.iter().take(all_n).copied();
    let chosen: Vec<Trouble> = chosen
        .filter(|it| format!("{it:?}").contains(&only))
        .collect();
    let next = AtomicUsize::new(0);
    let lives = Mutex::new(Vec::new());
    let work = || {
        while let Some(trouble) = chosen.get(next.fetch_add(1, Ordering::SeqCst)) {
            let (ends, line) = troubled_life(*trouble);
            println!("{line}");
            lives
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push((*trouble, ends));
        }
    };
    let undisturbed = thread::scope(|scope| {
        for _ in 1..number("API_FAULTS_AT_ONCE", AT_ONCE) {
            scope.spawn(work);
        }
        let undisturbed = undisturbed();
        work();
        undisturbed
    });
    for (trouble, ends) in lives.into_inner().unwrap_or_else(PoisonError::into_inner) {
        let different = difference(&undisturbed, &ends);
        assert!(
            different.is_none(),
            "{trouble:?} ended differently: {different:?}"
        );
    }
}
