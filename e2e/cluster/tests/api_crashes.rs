//! Each write of a job's life is interrupted: the operator dies before the API server has it, or before
//! it hears that the API server has it. What comes of it is what comes of an undisturbed life.
//!
//! A life dies once in each of its steps, at the n-th write of that step. `make api-crashes` goes through every
//! n; `make e2e` has time for the fifth alone (`API_CRASHES_FIRST`, `API_CRASHES_LAST`).

use std::panic::catch_unwind;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::Instant;

use streamforge_e2e_cluster::{
    COORDINATOR_GONE, Ends, Fate, Meddler, Step, Trial, difference, live, undisturbed,
};

/// Lives at the same time.
const AT_ONCE: usize = 3;

/// Where a life is interrupted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Crash {
    /// At which write of each step; the first is 1.
    write: usize,
    /// The API server has it.
    after: bool,
}

/// Kills the operator once per step.
struct Killer<'a> {
    trial: &'a Trial,
    crash: Crash,
    /// The write at which it died, until it is started again.
    struck: Arc<Mutex<Option<String>>>,
    /// Writes that were interrupted.
    told: Vec<String>,
}

impl Killer<'_> {
    fn start_again(&mut self, step: Step) {
        let Some(write) = lock(&self.struck).take() else {
            return;
        };
        self.trial.operator.proxy.clear();
        self.trial.operator.start();
        self.told.push(format!("{step:?}: {write}"));
    }
}

impl Meddler for Killer<'_> {
    fn before(&mut self, _: Step) {
        strike(self.trial, self.crash, &self.struck);
    }

    fn meanwhile(&mut self, step: Step) {
        self.start_again(step);
    }

    fn after(&mut self, step: Step) {
        self.trial.operator.proxy.clear();
        // It may have been struck since the last look.
        self.start_again(step);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Lets the operator die at a write.
fn strike(trial: &Trial, crash: Crash, struck: &Arc<Mutex<Option<String>>>) {
    let (process, struck) = (trial.operator.process(), Arc::clone(struck));
    let writes_n = AtomicUsize::new(0);
    let death = Arc::new(OnceLock::new());
    trial.operator.proxy.set(move |request| {
        if !request.is_write() || request.is_lease() {
            return Fate::Pass;
        }
        let write_n = writes_n.fetch_add(1, Ordering::SeqCst) + 1;
        if write_n < crash.write {
            return Fate::Pass;
        }
        if write_n > crash.write {
            // This was on its way when it died, and not a moment before: it would tell of it.
            let () = death.wait();
            return Fate::Lose;
        }
        let (process, struck) = (Arc::clone(&process), Arc::clone(&struck));
        let (write, death) = (request.to_string(), Arc::clone(&death));
        let kill = move || {
            process.kill();
            let _first = death.set(());
            *lock(&struck) = Some(write);
        };
        if crash.after {
            return Fate::LoseAnswer(Box::new(kill));
        }
        kill();
        Fate::Lose
    });
}

fn number(name: &str, default: usize) -> usize {
    let given = std::env::var(name).ok();
    given.and_then(|it| it.parse().ok()).unwrap_or(default)
}

fn interrupted_life(crash: Crash) -> (Ends, Vec<String>) {
    let trial = Trial::started("crash");
    trial.namespace.announce(&COORDINATOR_GONE);
    let mut killer = Killer {
        trial: &trial,
        crash,
        struck: Arc::default(),
        told: Vec::new(),
    };
    let ends = live(&trial, &mut killer);
    trial.operator.check(&[]);
    (ends, killer.told)
}

#[test]
fn operator_that_dies_at_any_write_changes_nothing() {
    let (every, first, last) = (
        number("API_CRASHES_EVERY", 1),
        number("API_CRASHES_FIRST", 1),
        number("API_CRASHES_LAST", 1_000),
    );
    let next = AtomicUsize::new(0);
    // No step has so many writes.
    let deepest = AtomicUsize::new(last);
    let wrong = Mutex::new(Vec::new());
    let lives = Mutex::new(Vec::new());
    let work = || {
        loop {
            let i = next.fetch_add(1, Ordering::SeqCst);
            let crash = Crash {
                write: first + i / 2 * every,
                after: i % 2 == 1,
            };
            if crash.write > deepest.load(Ordering::SeqCst) {
                return;
            }
            let began = Instant::now();
            let place = if crash.after { "after" } else { "before" };
            // One that goes wrong is no reason not to look at the others.
            let lived = catch_unwind(|| interrupted_life(crash));
            let Ok((ends, told)) = lived else {
                println!("| {} | {place} | | WRONG |", crash.write);
                lock(&wrong).push(format!("{crash:?}: above"));
                continue;
            };
            println!(
                "| {} | {place} | {:.0} s | {} |",
                crash.write,
                began.elapsed().as_secs_f64(),
                told.join(", ")
            );
            if told.is_empty() {
                deepest.fetch_min(crash.write, Ordering::SeqCst);
            }
            lock(&lives).push((crash, ends));
        }
    };
    let undisturbed = thread::scope(|scope| {
        for _ in 1..number("API_CRASHES_AT_ONCE", AT_ONCE) {
            scope.spawn(work);
        }
        let undisturbed = undisturbed();
        work();
        undisturbed
    });
    let mut wrong = lock(&wrong);
    for (crash, ends) in &*lock(&lives) {
        if let Some((step, what)) = difference(&undisturbed, ends) {
            wrong.push(format!("{crash:?}: {step:?} ended differently: {what}"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}
