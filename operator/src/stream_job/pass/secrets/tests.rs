use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use http_body_util::BodyExt as _;
use hyper::{Request, Response};
use kube::Client;
use kube::client::Body;
use serde_json::Value;
use streamforge_crds::v1alpha1::StreamJob;
use streamforge_host::{Error as Why, Failure, Outcome, Phase, Status};

use super::*;
use crate::controller::Context;
use crate::fleet::tests::put;
use crate::record::Record;
use crate::stream_job::keep::Kept;
use crate::stream_job::pass::{Memory, Packed};
use crate::stream_job::testing::{UID, context, job, with_metadata};

/// What was asked of the API server: method, path, body.
type Asked = Arc<Mutex<Vec<(String, String, Value)>>>;

/// Has the Secret of the store, whose keys were changed at eleven, and takes every write.
fn server() -> (Client, Asked) {
    let asked = Asked::default();
    let log = Arc::clone(&asked);
    let service = tower::service_fn(move |request: Request<Body>| {
        let log = Arc::clone(&log);
        async move {
            let (head, body) = request.into_parts();
            let body = body.collect().await.expect("it is in memory").to_bytes();
            let body: Value = serde_json::from_slice(&body).unwrap_or_default();
            let (method, path) = (head.method.to_string(), head.uri.path().to_owned());
            let (code, answer) = match &*method {
                "GET" if path.ends_with("/secrets/store") => (200, store_secret()),
                "GET" => (
                    404,
                    json!({
                        "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 404, "reason": "NotFound",
                        "message": "no",
                    }),
                ),
                _ => (200, body.clone()),
            };
            log.lock().unwrap().push((method, path, body));
            let answer = Body::from(answer.to_string().into_bytes());
            Ok::<_, Infallible>(Response::builder().status(code).body(answer).unwrap())
        }
    });
    (Client::new(service, "team"), asked)
}

fn store_secret() -> Value {
    json!({
        "apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata",
        "metadata": {
            "name": "store", "namespace": "team", "resourceVersion": "7", "creationTimestamp": "2026-01-31T09:00:00Z",
            "managedFields": [{
                "manager": "kubectl", "operation": "Update", "apiVersion": "v1", "time": "2026-01-31T11:00:00Z",
                "fieldsType": "FieldsV1", "fieldsV1": {"f:data": {"f:accessKeyId": {}}},
            }],
        },
    })
}

/// It runs since ten.
fn running_job() -> StreamJob {
    let job = with_metadata(&job(), "/finalizers", json!(["streamforge.io/checkpoints"]));
    with_metadata(&job, "/creationTimestamp", json!("2026-01-31T10:00:00Z"))
}

fn put_pod(context: &Context, name: &str, began: &str) {
    let pod = json!({"metadata": {
        "name": name, "namespace": "team", "labels": {"streamforge.io/job": "clicks"},
        "creationTimestamp": format!("2026-01-31T{began}Z"),
    }});
    context
        .children
        .put_pod(serde_json::from_value(pod).unwrap());
}

fn failed_at(time: &str, phase: Phase) -> Status {
    let at: Timestamp = format!("2026-01-31T{time}Z").parse().unwrap();
    Status {
        phase,
        restarts_n: 1,
        last_failure: Some(Failure {
            time_ms: at.as_millisecond().unsigned_abs(),
            task_manager: None,
            reason: "the credentials are refused".to_owned(),
        }),
        ..Status::default()
    }
}

/// What was written: patches of pods, and the reasons of events.
fn written(asked: &Asked) -> Vec<(String, Value)> {
    let mut asked = asked.lock().unwrap();
    let all = std::mem::take(&mut *asked);
    let writes = all.into_iter().filter(|(method, ..)| method != "GET");
    let writes = writes.map(|(_, path, body)| {
        let path = path.rsplit_once("/team/").map(|(_, it)| it.to_owned());
        let body = match body.get("reason") {
            Some(reason) => reason.clone(),
            None => body["metadata"]["annotations"].clone(),
        };
        (path.unwrap_or_default(), body)
    });
    writes.collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_older_than_a_secret_are_annotated_while_attempts_fail_and_hear_it_once() {
    let (client, asked) = server();
    let folder = tempfile::tempdir().unwrap();
    let (context, job) = (context(client, folder.path()), running_job());
    put_pod(&context, "clicks-tm-0", "10:00:00");
    put_pod(&context, "clicks-tm-1", "11:00:30");
    let heard = job.clone().into();
    let mut pass = Pass::begin(&heard, &context).await.unwrap();
    let current = pass.desired.clone().unwrap();

    put(
        &context.fleet,
        &job,
        (1, failed_at("10:59:00", Phase::Running), None),
    );
    pass.look_at_secrets(&current).await.unwrap();
    assert_eq!(written(&asked), [], "it does well");

    put(
        &context.fleet,
        &job,
        (1, failed_at("10:59:00", Phase::Recovering), None),
    );
    pass.look_at_secrets(&current).await.unwrap();
    assert_eq!(
        written(&asked),
        [
            (
                "pods/clicks-tm-0".to_owned(),
                json!({"streamforge.io/secrets": "store=7"})
            ),
            ("events".to_owned(), json!("SecretChanged")),
        ]
    );
    // The watch has not told of the annotation yet: it is not looked at again at once.
    pass.look_at_secrets(&current).await.unwrap();
    assert!(asked.lock().unwrap().is_empty());
    assert!(pass.look_within <= LOOK_EVERY);
}

#[tokio::test(flavor = "multi_thread")]
async fn job_is_not_given_up_for_what_fails_within_two_minutes_of_a_change_of_its_secret() {
    let budget = || Why::RestartBudget {
        failures_n: 11,
        cause: "the credentials are refused".to_owned(),
    };
    for (failed, why, is_given_up) in [
        ("11:00:40", budget(), false),
        ("11:02:40", budget(), true),
        ("11:00:40", Why::HeadVanished, true),
    ] {
        let (client, asked) = server();
        let folder = tempfile::tempdir().unwrap();
        let (context, job) = (context(client, folder.path()), running_job());
        let record = Record::new(UID, serde_json::to_value(&job.spec).unwrap(), 3);
        let kept = Kept {
            record: Some(record),
            ..Kept::default()
        };
        let memory = Memory {
            kept: Packed::of(&kept),
            ..Memory::default()
        };
        context.remember(UID, memory);
        let heard = job.clone().into();
        let mut pass = Pass::begin(&heard, &context).await.unwrap();
        let current = pass.desired.clone().unwrap();
        let status = failed_at(failed, Phase::Ended);
        let revision = pass.revision(&current);
        let outcome = Some(Outcome::Failed(why));
        put(&context.fleet, &job, (revision, status, outcome));

        pass.take_steps().await.unwrap();

        let state = pass.record.as_ref().map(|record| &record.state);
        let is_failed = matches!(state, Some(State::Failed { .. }));
        assert_eq!(is_failed, is_given_up, "{failed}");
        // It is begun anew after a while, and people are told once.
        assert_eq!(pass.memory.broken_n, u32::from(!is_given_up));
        pass.take_steps().await.unwrap();
        let told = written(&asked);
        let told = told.iter().filter(|(_, what)| *what == "TriedAgain");
        assert_eq!(told.count(), usize::from(!is_given_up));
    }
}
