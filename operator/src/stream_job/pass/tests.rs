//! Passes against an API server that answers what a test wants.

mod pods;

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Mutex;
use std::time::Instant;

use clap::Parser as _;
use http_body_util::BodyExt as _;
use hyper::{Request, Response};
use kube::Client;
use kube::client::Body;
use prometheus::Registry;
use serde_json::Value;
use streamforge_crds::v1alpha1::OnDelete;
use streamforge_host::sessions::Listener;

use super::*;
use crate::args::Args;
use crate::certificates::Authority;
use crate::controller::again;
use crate::fleet::Fleet;
use crate::heard::Ours as _;
use crate::metrics::Metrics;
use crate::step::Unsaved;
use crate::stream_job::keep::Kept;
use crate::stream_job::testing::{UID, job, settings, with_metadata, written};
use crate::watch::Item;

/// What was asked of the API server: method, path, body.
type Asked = Arc<Mutex<Vec<(String, String, Value)>>>;

/// Finds nothing, takes every write, and the status of a job only if `takes_status`.
fn server(takes_status: bool) -> (Client, Asked) {
    server_with(takes_status, "")
}

/// The same, with one object at this end of a path that is somebody else's.
fn server_with(takes_status: bool, theirs: &'static str) -> (Client, Asked) {
    server_that(move |method, path| {
        let is_status = path.ends_with("/streamjobs/clicks/status");
        match method {
            "GET" if !theirs.is_empty() && path.ends_with(theirs) => {
                Some((200, json!({"metadata": {"name": "clicks-tm"}})))
            }
            "PATCH" if is_status && !takes_status => Some((403, failure(403, "Forbidden"))),
            _ => None,
        }
    })
}

/// What a dry run is noted as.
const DRY_RUN: &str = "DRY-RUN";

/// Answers as `answer` says to method and path; else it finds nothing and takes every write.
fn server_that(
    answer: impl Fn(&str, &str) -> Option<(u16, Value)> + Send + Sync + 'static,
) -> (Client, Asked) {
    let asked = Asked::default();
    let (log, answer) = (Arc::clone(&asked), Arc::new(answer));
    let service = tower::service_fn(move |request: Request<Body>| {
        let (log, answer) = (Arc::clone(&log), Arc::clone(&answer));
        async move {
            let (head, body) = request.into_parts();
            let body = body.collect().await.expect("it is in memory").to_bytes();
            let body: Value = serde_json::from_slice(&body).unwrap_or_default();
            let is_dry = head.uri.query().unwrap_or_default().contains("dryRun=All");
            let method = if is_dry {
                DRY_RUN
            } else {
                head.method.as_str()
            }
            .to_owned();
            let path = head.uri.path().to_owned();
            let is_status = path.ends_with("/streamjobs/clicks/status");
            let (code, answer) = match answer(&method, &path) {
                Some(answer) => answer,
                None if method == "GET" => (404, failure(404, "NotFound")),
                None if is_status => (200, serde_json::to_value(job()).unwrap()),
                None => (200, body.clone()),
            };
            log.lock().unwrap().push((method, path, body));
            let answer = Body::from(answer.to_string().into_bytes());
            Ok::<_, Infallible>(Response::builder().status(code).body(answer).unwrap())
        }
    });
    (Client::new(service, "team"), asked)
}

fn failure(code: u16, reason: &str) -> Value {
    json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code,
        "reason": reason, "message": "no"})
}

fn context(client: Client) -> Arc<Context> {
    let _installed_before = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let args = Args::parse_from(["operator", "--task-manager-image", "image:1"]);
    let listener = Listener::start(SocketAddr::from(([127, 0, 0, 1], 0)), None).unwrap();
    let authority = Authority::create(Timestamp::now()).unwrap();
    let metrics = Metrics::new(&Registry::new()).unwrap();
    let fleet = Fleet::new(listener);
    Context::new(client, settings(), &args, fleet, authority, metrics)
}

fn with_finalizer() -> StreamJob {
    with_metadata(&job(), "/finalizers", json!(["streamforge.io/checkpoints"]))
}

#[tokio::test(flavor = "multi_thread")]
async fn status_that_is_refused_is_tried_again_less_and_less_often() {
    let (client, _) = server(false);
    let context = context(client);
    let paused = with_metadata(&with_finalizer(), "/annotations", json!({(PAUSE): ""}));
    let mut waits = Vec::new();

    for _ in 0..4 {
        let paused = Heard::from(paused.clone());
        let error = over(&paused, &context).await.expect_err("it is refused");
        waits.push(again(Arc::new(paused), &error, Arc::clone(&context)));
    }

    let seconds = [1, 2, 4, 8].map(|seconds| Action::requeue(Duration::from_secs(seconds)));
    assert_eq!(waits, seconds);
}

/// A new operator finds an object of a child's name that somebody made while the old one lived.
#[tokio::test(flavor = "multi_thread")]
async fn job_that_runs_is_coordinated_although_a_childs_name_is_taken() {
    let (client, asked) = server_with(true, "/poddisruptionbudgets/clicks-tm");
    let context = context(client);
    let job = with_finalizer();
    let spec = serde_json::to_value(&job.spec).unwrap();
    let kept = Kept {
        record: Some(Record::new(UID, spec, 3)),
        ..Kept::default()
    };
    let memory = Memory {
        kept: Packed::of(&kept),
        ..Memory::default()
    };
    context.remember(UID, memory);

    // Its store is being opened: the Secret of it is asked for.
    let secret = "/api/v1/namespaces/team/secrets/store";
    let is_opening = || {
        let asked = asked.lock().unwrap();
        asked.iter().any(|(_, path, _)| path == secret)
    };
    let passes = async {
        while !is_opening() {
            let error = over(&job.clone().into(), &context)
                .await
                .expect_err("it is told");
            assert!(
                matches!(error, Error::NotOurs { .. } | Error::Store(_)),
                "{error:?}"
            );
            tokio::task::yield_now().await;
        }
    };
    let in_time = tokio::time::timeout(Duration::from_secs(10), passes).await;
    in_time.expect("its coordinator is started");
}

#[tokio::test(flavor = "multi_thread")]
async fn paused_job_tells_its_pods_and_keeps_its_certificate() {
    let (client, asked) = server(true);
    let context = context(client);
    let paused = with_metadata(&with_finalizer(), "/annotations", json!({(PAUSE): ""}));
    let spec = serde_json::to_value(&paused.spec).unwrap();
    let kept = Kept {
        record: Some(Record::new(UID, spec, 3)),
        ..Kept::default()
    };
    let memory = Memory {
        kept: Packed::of(&kept),
        ..Memory::default()
    };
    context.remember(UID, memory);

    over(&paused.into(), &context).await.unwrap();

    let asked = asked.lock().unwrap();
    let writes: Vec<_> = asked
        .iter()
        .filter(|(method, path, _)| method != "GET" && !path.ends_with("/events"))
        .collect();
    let written: Vec<&str> = writes
        .iter()
        .filter_map(|(_, path, _)| path.split("/team/").nth(1))
        .collect();
    assert_eq!(written, ["secrets/clicks-tls", "streamjobs/clicks/status"]);
    let pods = &writes[1].2["status"]["taskManagers"];
    assert_eq!(*pods, json!({"desired": 2, "ready": 0}));
}

/// The job with an edit that an API server admitted once and nobody can read.
fn unreadable() -> Heard<StreamJob> {
    let mut written = written();
    written["metadata"]["finalizers"] = json!(["streamforge.io/checkpoints"]);
    written["spec"]["checkpoint"]["interval"] = json!("");
    let Item::Unread(unread) = Item::<StreamJob>::read(&written.to_string()) else {
        unreachable!("an empty text is no duration");
    };
    StreamJob::rest(&unread).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn job_that_cannot_be_read_is_not_valid_and_what_is_on_record_of_it_goes_on() {
    for has_run in [true, false] {
        let (client, asked) = server(true);
        let context = context(client);
        let record = has_run.then(|| {
            let document = serde_json::to_value(&job().spec).unwrap();
            Record::new(UID, document, 2)
        });
        let kept = Kept {
            record,
            ..Kept::default()
        };
        let memory = Memory {
            kept: Packed::of(&kept),
            ..Memory::default()
        };
        context.remember(UID, memory);

        // Its store is away.
        let _passed = over(&unreadable(), &context).await;

        let asked = asked.lock().unwrap();
        let wrote = |end: &str| {
            let mut writes = asked.iter().filter(|(method, ..)| method != "GET");
            writes
                .find(|(_, path, _)| path.ends_with(end))
                .map(|(.., body)| body.clone())
        };
        let status = wrote("/streamjobs/clicks/status").unwrap();
        let conditions = status["status"]["conditions"].as_array().unwrap().clone();
        let valid = conditions.iter().find(|it| it["type"] == "Valid").unwrap();
        assert_eq!(valid["status"], "False");
        let message = valid["message"].as_str().unwrap();
        assert!(
            message.contains("spec.checkpoint.interval: `` is not a duration"),
            "{message}"
        );
        assert_eq!(wrote("/statefulsets/clicks-tm").is_some(), has_run);
        let replicas = wrote("/statefulsets/clicks-tm").map(|it| it["spec"]["replicas"].clone());
        assert_eq!(replicas, has_run.then(|| json!(2)));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn status_that_cannot_be_read_is_not_written_over() {
    let (client, asked) = server(true);
    let context = context(client);
    let mut unreadable = unreadable();
    unreadable.unreadable = unreadable.unreadable.map(|of| {
        let status = true;
        Arc::new(Unreadable {
            status,
            ..(*of).clone()
        })
    });

    let _passed = over(&unreadable, &context).await;

    let asked = asked.lock().unwrap();
    let mut writes = asked.iter().filter(|(method, ..)| method != "GET");
    assert!(writes.all(|(_, path, _)| !path.ends_with("/status")));
}

/// An API server's answer holds what cannot be read.
#[tokio::test(flavor = "multi_thread")]
async fn job_that_cannot_be_read_can_be_deleted() {
    let asked = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&asked);
    let service = tower::service_fn(move |request: Request<Body>| {
        let (method, path) = (request.method().clone(), request.uri().path().to_owned());
        let (code, answer) = match path.rsplit('/').next() {
            Some("pods") => (200, r#"{"metadata": {}, "items": []}"#.to_owned()),
            Some("clicks") => (200, r#"{"a":"#.repeat(500) + "1" + &"}".repeat(500)),
            _ => (404, failure(404, "NotFound").to_string()),
        };
        log.lock().unwrap().push(format!("{method} {path}"));
        let answer = Response::builder()
            .status(code)
            .body(Body::from(answer.into_bytes()));
        std::future::ready(answer)
    });
    let context = context(Client::new(service, "team"));
    let mut job = unreadable();
    let deleted = with_metadata(
        &job.object,
        "/deletionTimestamp",
        json!("2026-01-31T12:00:00Z"),
    );
    job.object.metadata = deleted.metadata;
    job.object.spec.checkpoint.on_delete = OnDelete::Retain;

    assert_eq!(over(&job, &context).await.unwrap(), Action::await_change());

    let finalizer = "PATCH /apis/streamforge.io/v1alpha1/namespaces/team/streamjobs/clicks";
    assert!(asked.lock().unwrap().iter().any(|asked| asked == finalizer));
}

#[test]
fn stop_that_came_to_nothing_is_put_off_twice_as_long_each_time() {
    let mut memory = Memory::default();
    for seconds in [10, 20, 40, 80, 160, 300, 300] {
        // The coordinator that ended is looked at several times.
        memory.on_stop_failed("savepoint a: disk full");
        memory.on_stop_failed("savepoint a: disk full");

        let left = memory.until_stop().expect("it waits");
        let limit = Duration::from_secs(seconds);
        assert!(
            left <= limit && left + Duration::from_secs(1) > limit,
            "{left:?}"
        );
        // The next one is ordered.
        memory.stop_at = None;
    }
    assert_eq!(
        memory.stop_failed.as_deref(),
        Some("savepoint a: disk full")
    );
    memory.forget_stops();
    assert_eq!((memory.until_stop(), memory.stop_failed), (None, None));
}

#[test]
fn stop_that_comes_to_nothing_is_counted_once_until_the_next_or_until_nobody_wants_it() {
    let mut memory = Memory::default();
    let failed = Some(Unsaved {
        reason: "no acknowledgement".to_owned(),
        ..Unsaved::default()
    });
    let stopped = |failed| Run::Ended {
        how: Ended::Stopped { failed },
        is_current: true,
        tried: SignedDuration::ZERO,
        stops_failed_n: 0,
    };
    // The coordinator that ended is looked at several times.
    memory.on_run(true, &stopped(failed.clone()));
    memory.on_run(true, &stopped(failed.clone()));
    memory.on_run(true, &Run::None);
    assert_eq!(memory.stops_failed_n, 1);
    memory.stop_at = None; // the next one is ordered
    memory.on_run(true, &stopped(failed.clone()));
    assert_eq!(memory.stops_failed_n, 2);

    memory.on_run(false, &stopped(failed));
    assert_eq!(memory.stops_failed_n, 0);
    memory.on_run(true, &stopped(None));
    assert_eq!(memory.stops_failed_n, 0);
}

#[test]
fn coordinator_that_cannot_be_started_for_its_time_counts_as_a_stop_that_came_to_nothing() {
    let broken = || Run::Ended {
        how: Ended::Broken("the store is away".to_owned()),
        is_current: true,
        tried: SignedDuration::ZERO,
        stops_failed_n: 0,
    };
    let stopped = || Run::Ended {
        how: Ended::Stopped {
            failed: Some(Unsaved::default()),
        },
        is_current: true,
        tried: SignedDuration::ZERO,
        stops_failed_n: 0,
    };
    for run in [broken, stopped] {
        let mut memory = Memory {
            start_at: Some(Instant::now() + Duration::from_secs(60)),
            ..Memory::default()
        };
        memory.on_run(true, &run());
        assert_eq!(memory.stops_failed_n, 1);
        assert!(memory.start_at <= Some(Instant::now()), "it is tried now");

        // However often it is tried within ten seconds, and however long nobody tries.
        memory.broken_n = 7;
        memory.on_run(true, &run());
        assert_eq!(memory.stops_failed_n, 1);
        (memory.broken_n, memory.stop_at) = (1, Some(Instant::now()));
        memory.on_run(true, &run());
        assert_eq!(memory.stops_failed_n, 1);

        memory.broken_n = 2;
        memory.on_run(true, &run());
        assert_eq!(memory.stops_failed_n, 2);
    }

    let mut memory = Memory::default();
    memory.on_run(false, &broken());
    assert_eq!(memory.stops_failed_n, 0, "nobody wants it to stop");
}

#[test]
fn time_of_coordinators_that_break_begins_anew_when_rows_have_flowed() {
    let mut memory = Memory {
        broken_since: Instant::now().checked_sub(Duration::from_secs(3_600)),
        broken_n: 1,
        ..Memory::default()
    };
    assert!(memory.tried() >= Duration::from_secs(3_600));
    memory.broken_n = 0;
    assert_eq!(memory.tried(), Duration::ZERO);
}

/// Somebody labels a job that is over, in the moment in which its time is over.
#[tokio::test(flavor = "multi_thread")]
async fn job_that_was_changed_when_it_was_to_be_deleted_is_looked_at_again_and_that_is_no_failure()
{
    for code in [200, 409, 403] {
        let asked = Asked::default();
        let log = Arc::clone(&asked);
        let service = tower::service_fn(move |request: Request<Body>| {
            let (method, path) = (
                request.method().to_string(),
                request.uri().path().to_owned(),
            );
            let (code, answer) = match &*method {
                "DELETE" if path.ends_with("/streamjobs/clicks") => (code, failure(code, "No")),
                "GET" => (404, failure(404, "NotFound")),
                _ => (200, json!({"metadata": {"name": "clicks"}})),
            };
            log.lock().unwrap().push((method, path, Value::Null));
            let answer = Body::from(answer.to_string().into_bytes());
            std::future::ready(Response::builder().status(code).body(answer))
        });
        let context = context(Client::new(service, "team"));
        let job =
            crate::stream_job::testing::with(&with_finalizer(), "/ttlAfterFinished", json!("1s"));
        let spec = serde_json::to_value(&job.spec).unwrap();
        let record = Record {
            state: State::Finished {
                at: Timestamp::now() - SignedDuration::from_mins(1),
            },
            ..Record::new(UID, spec, 3)
        };
        let kept = Kept {
            record: Some(record),
            ..Kept::default()
        };
        let memory = Memory {
            kept: Packed::of(&kept),
            ..Memory::default()
        };
        context.remember(UID, memory);

        let heard = Heard::from(job);
        let pass = Pass::begin(&heard, &context).await.unwrap();
        let waited = pass.wait().await;

        let deletes = |(method, ..): &&(String, String, Value)| method == "DELETE";
        assert_eq!(asked.lock().unwrap().iter().filter(deletes).count(), 1);
        match code {
            409 => assert_eq!(waited.unwrap(), LOOK_AGAIN_SOON),
            403 => assert!(waited.is_err()),
            _ => assert_eq!(waited.unwrap(), LOOK_AGAIN),
        }
    }
}
