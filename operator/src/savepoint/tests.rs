//! Passes over savepoints.

use kube::runtime::reflector;
use kube::runtime::watcher::Event;

use super::*;
use crate::heard::Unreadable;
use crate::stream_job::keep::{Kept, Packed};
use crate::stream_job::pass::Memory;
use crate::stream_job::testing::{UID, api_server, context, job, with_metadata};

#[test]
fn savepoint_whose_job_is_gone_is_looked_at_seldom_once_it_has_waited_for_long() {
    let waits = [0, 40, 60, 600, 3_600, 1_000_000].map(|seconds| {
        let wait = look_again(SignedDuration::from_secs(seconds));
        wait.as_secs()
    });
    assert_eq!(waits, [10, 10, 15, 150, 300, 300]);
}

#[test]
fn savepoint_whose_job_has_no_room_for_it_asks_less_and_less_often() {
    let waits = [0, 3, 8, 40, 240, 1_000_000].map(|seconds| {
        let wait = ask_again(SignedDuration::from_secs(seconds));
        wait.as_secs()
    });
    assert_eq!(waits, [1, 1, 2, 10, 60, 60]);
}

fn savepoint(name: &str, phase: &str) -> Savepoint {
    serde_json::from_value(json!({
        "apiVersion": "streamforge.io/v1alpha1", "kind": "Savepoint",
        "metadata": {"name": "nightly", "namespace": "team", "uid": "5a7e"},
        "spec": {"job": name}, "status": {"phase": phase},
    }))
    .unwrap()
}

fn known(job: StreamJob) -> Store<Heard<StreamJob>> {
    let (store, mut writer) = reflector::store();
    writer.apply_watcher_event(&Event::Apply(job.into()));
    store
}

#[tokio::test]
async fn savepoint_that_waits_asks_the_api_server_for_nothing_that_is_known() {
    let folder = tempfile::tempdir().unwrap();
    let (client, asked) = api_server(|what| what.starts_with("PATCH").then(|| json!({})));
    let context = context(client, folder.path());
    let document = serde_json::to_value(&job().spec).unwrap();
    let kept = Kept {
        record: Some(Record::new(UID, document, 3)),
        ..Kept::default()
    };
    let memory = Memory {
        kept: Packed::of(&kept),
        ..Memory::default()
    };
    context.remember(UID, memory);
    let (jobs, resource) = (known(job()), savepoint("clicks", "Pending"));

    let heard = Arc::new(Heard::from(resource.clone()));
    let action = reconcile(heard, Arc::clone(&context), jobs.clone()).await;
    let pass = Pass {
        resource: &resource,
        context: &context,
        jobs: &jobs,
    };
    let place = pass.place(&job()).await.unwrap().unwrap();

    assert_eq!(action.unwrap(), Action::requeue(LOOK_AGAIN_LATER));
    assert!(place.prefix.ends_with("/nightly-5a7e"), "{}", place.prefix);
    assert_eq!(asked.all(), [format!("PATCH {RESOURCE}/status")]);
}

const RESOURCE: &str = "/apis/streamforge.io/v1alpha1/namespaces/team/savepoints/nightly";

#[tokio::test]
async fn savepoint_that_cannot_be_read_says_so_unless_it_is_over() {
    let folder = tempfile::tempdir().unwrap();
    for (phase, status, written_n) in [
        ("Pending", false, 1),
        ("Completed", false, 0),
        ("Pending", true, 0),
    ] {
        let (client, asked) = api_server(|what| what.starts_with("PATCH").then(|| json!({})));
        let context = context(client, folder.path());
        let problems = vec![Problem::new("spec", "unknown field", "edit it")];
        let heard = Heard {
            object: savepoint("clicks", phase),
            unreadable: Some(Arc::new(Unreadable { problems, status })),
        };

        let _action = reconcile(Arc::new(heard), context, known(job()))
            .await
            .unwrap();

        assert_eq!(asked.count(&format!("PATCH {RESOURCE}/status")), written_n);
    }
}

#[test]
fn savepoint_waits_for_the_job_that_it_names_until_it_is_over() {
    assert!(waits_for(&savepoint("clicks", "Pending"), &job()));
    assert!(!waits_for(&savepoint("visits", "Pending"), &job()));
    assert!(!waits_for(&savepoint("clicks", "Completed"), &job()));
    let elsewhere = with_metadata(&job(), "/namespace", json!("other"));
    assert!(!waits_for(&savepoint("clicks", "Pending"), &elsewhere));
}

/// The savepoint as it is when somebody has deleted it, long ago by the clock of this machine.
fn deleted(policy: &str) -> Savepoint {
    let mut resource = savepoint("clicks", "InProgress");
    let long_ago = Timestamp::now() - SignedDuration::from_mins(20);
    let place = json!({
        "bucket": "results", "prefix": "jobs/uid/savepoints/nightly-5a7e",
        "access": {"path_style": true, "credentials_secret": "store"},
    });
    let written = json!({
        "name": "nightly", "namespace": "team", "uid": "5a7e", "deletionTimestamp": long_ago.to_string(),
        "finalizers": ["streamforge.io/savepoint"],
        "annotations": {PLACE: place.to_string()},
    });
    resource.metadata = serde_json::from_value(written).unwrap();
    resource.spec.deletion_policy = serde_json::from_value(json!(policy)).unwrap();
    resource
}

#[tokio::test(flavor = "multi_thread")]
async fn deletion_waits_for_a_copy_that_is_made_whatever_the_clock_says() {
    let folder = tempfile::tempdir().unwrap();
    let (client, asked) = api_server(|what| what.starts_with("PATCH").then(|| json!({})));
    let context = context(client, folder.path());
    context.fleet.start(crate::fleet::tests::start(&job()));
    let coordinator = context.fleet.get(UID).unwrap();
    let mut status = coordinator.status.clone();
    let leads = status.wait_for(|status| status.phase == streamforge_host::Phase::Deploying);
    drop(leads.await.unwrap());
    let copy = "nightly-5a7e".to_owned();
    let ordered = coordinator
        .orders
        .ask(|answer| Ask::Savepoint(copy, false, answer));
    ordered.await.unwrap().unwrap();

    let resource = Arc::new(Heard::from(deleted("Delete")));
    let action = reconcile(resource, Arc::clone(&context), known(job()))
        .await
        .unwrap();

    assert_eq!(action, Action::requeue(LOOK_AGAIN));
    assert_eq!(asked.all(), [""; 0]);
    context.fleet.end().await;
}

/// An API server that never tells the keys of the store stands for a store that never answers.
#[tokio::test(flavor = "multi_thread")]
async fn silent_store_of_a_deleted_savepoint_holds_up_no_pass() {
    let folder = tempfile::tempdir().unwrap();
    let service = tower::service_fn(|_: hyper::Request<kube::client::Body>| {
        std::future::pending::<Result<hyper::Response<kube::client::Body>, std::io::Error>>()
    });
    let context = context(kube::Client::new(service, "team"), folder.path());

    for _ in 0..2 {
        let resource = Arc::new(Heard::from(deleted("Delete")));
        let pass = reconcile(resource, Arc::clone(&context), known(job()));
        let passed = tokio::time::timeout(Duration::from_secs(20), pass).await;
        let action = passed.expect("it waits for no store").unwrap();
        assert_eq!(action, Action::requeue(LOOK_AGAIN));
    }
    assert_eq!(
        context.endings.clearing("5a7e"),
        crate::ending::Clearing::UnderWay
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn savepoint_whose_store_refuses_goes_and_leaves_its_copy() {
    let folder = tempfile::tempdir().unwrap();
    let (client, asked) = api_server(|what| what.starts_with("PATCH").then(|| json!({})));
    let context = context(client, folder.path());
    let passes = async {
        loop {
            let resource = Arc::new(Heard::from(deleted("Delete")));
            let action = reconcile(resource, Arc::clone(&context), known(job())).await;
            if action.unwrap() == Action::await_change() {
                return;
            }
            tokio::task::yield_now().await;
        }
    };
    let in_time = tokio::time::timeout(Duration::from_secs(20), passes).await;

    in_time.expect("its finalizer is taken away");
    assert_eq!(asked.count(&format!("PATCH {RESOURCE}")), 1);
    assert_eq!(
        context.endings.clearing("5a7e"),
        crate::ending::Clearing::None,
        "it is forgotten"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn savepoint_of_a_job_that_is_gone_fails_and_is_not_made_of_another_one_of_its_name() {
    let again = with_metadata(&job(), "/uid", json!("another"));
    for jobs in [known(again), reflector::store().0] {
        let folder = tempfile::tempdir().unwrap();
        let written = Arc::new(std::sync::Mutex::new(Vec::new()));
        let log = Arc::clone(&written);
        let service = tower::service_fn(move |request: hyper::Request<kube::client::Body>| {
            let log = Arc::clone(&log);
            async move {
                let (head, body) = request.into_parts();
                let is_status = head.uri.path().ends_with("/savepoints/nightly/status");
                let body = body.collect_bytes().await.unwrap();
                if is_status {
                    log.lock()
                        .unwrap()
                        .push(serde_json::from_slice::<Value>(&body).unwrap());
                }
                let answer = if is_status { "{}" } else { "no" };
                let response = hyper::Response::builder().status(if is_status { 200 } else { 403 });
                response.body(kube::client::Body::from(answer.as_bytes().to_vec()))
            }
        });
        let context = context(kube::Client::new(service, "team"), folder.path());
        let mut resource = deleted("Retain");
        resource.metadata.deletion_timestamp = None;
        resource.metadata.finalizers = None;
        let annotations = resource.metadata.annotations.as_mut().unwrap();
        annotations.insert(JOB.to_owned(), UID.to_owned());
        let resource = Arc::new(Heard::from(resource));

        let passes = async {
            while written.lock().unwrap().is_empty() {
                let pass = reconcile(Arc::clone(&resource), Arc::clone(&context), jobs.clone());
                pass.await.unwrap();
                tokio::task::yield_now().await;
            }
        };
        let in_time = tokio::time::timeout(Duration::from_secs(20), passes).await;
        in_time.expect("it says what became of it");

        let status = written.lock().unwrap()[0]["status"].clone();
        assert_eq!(status["phase"], "Failed");
        let reason = "its job is gone: StreamJob clicks was deleted before the savepoint was whole";
        assert_eq!(status["reason"], reason);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn savepoint_notes_of_which_job_it_is_before_it_is_begun() {
    let folder = tempfile::tempdir().unwrap();
    let (client, asked) = api_server(|what| what.starts_with("PATCH").then(|| json!({})));
    let context = context(client, folder.path());
    let resource = savepoint("clicks", "Pending");
    let jobs = known(job());
    let pass = Pass {
        resource: &resource,
        context: &context,
        jobs: &jobs,
    };
    let place: S3Place = serde_json::from_value(json!({
        "bucket": "results", "prefix": "jobs/uid/savepoints/nightly-5a7e", "access": {"path_style": true},
    }))
    .unwrap();
    pass.keep_place(&job(), &place).await.unwrap();
    assert_eq!(asked.all(), [format!("PATCH {RESOURCE}")]);

    // What is noted is not noted again.
    let mut noted = resource.clone();
    noted.metadata.annotations = Some(
        [
            (PLACE.to_owned(), serde_json::to_string(&place).unwrap()),
            (JOB.to_owned(), UID.to_owned()),
        ]
        .into(),
    );
    let pass = Pass {
        resource: &noted,
        ..pass
    };
    pass.keep_place(&job(), &place).await.unwrap();
    assert_eq!(asked.all().len(), 1);
}
