//! What is done of answers of an API server that refuses.

use std::sync::{Arc, Mutex};

use http_body_util::BodyExt as _;
use hyper::{Request as HttpRequest, Response};
use kube::client::Body;

use super::*;
use crate::stream_job::testing::job;

fn refusal(code: u16, message: &str, causes: &[&str]) -> Value {
    let causes = causes.iter().map(|message| json!({"message": message}));
    json!({
        "kind": "Status", "status": "Failure", "code": code, "message": message,
        "details": {"causes": causes.collect::<Vec<_>>()},
    })
}

fn set() -> StatefulSet {
    let metadata = json!({"metadata": {"name": "clicks-tm", "namespace": "team"}});
    serde_json::from_value(metadata).unwrap()
}

const UNCHANGEABLE: &str =
    "updates to statefulset spec for fields other than 'replicas' are forbidden";

const WRONG: &str = "spec.template.spec.tolerations[0].operator: Unsupported value";

/// Refused for what it says, taken, or neither.
#[tokio::test]
async fn set_is_refused_for_what_it_says_and_for_nothing_else() {
    let (yes, no, unknown) = (Some(true), Some(false), None);
    for (code, message, causes, is_refused) in [
        (200, "", &[][..], no),
        (422, WRONG, &[WRONG], yes),
        (422, UNCHANGEABLE, &[UNCHANGEABLE], no),
        (422, "both", &[WRONG, UNCHANGEABLE], yes),
        (
            400,
            "admission webhook \"a\" denied the request: no",
            &[],
            yes,
        ),
        (
            403,
            "admission webhook \"a\" denied the request: no",
            &[],
            yes,
        ),
        (
            400,
            "admission webhook \"a\" does not support dry run",
            &[],
            no,
        ),
        (403, "cannot patch resource \"statefulsets\"", &[], unknown),
        (403, "exceeded quota: sets", &[], unknown),
        (404, "namespaces \"team\" not found", &[], unknown),
        (409, "conflict", &[], unknown),
        (429, "too many requests", &[], unknown),
        (500, "failed calling webhook", &[], unknown),
    ] {
        let service = tower::service_fn(move |request: HttpRequest<Body>| {
            let query = request.uri().query().unwrap_or_default();
            assert!(query.contains("dryRun=All"), "{query}");
            let answer = match code {
                200 => serde_json::to_value(set()).unwrap(),
                _ => refusal(code, message, causes),
            };
            let answer = Body::from(answer.to_string().into_bytes());
            std::future::ready(Response::builder().status(code).body(answer))
        });
        let client = Client::new(service, "team");

        let asked = dry_run(&client, &set()).await.ok();

        assert_eq!(asked.map(|it| it.is_some()), is_refused, "{code} {message}");
    }
}
/// The set as the API server has it; none: it is gone.
type There = Arc<Mutex<Option<Value>>>;

/// An API server that lets nobody change its set, and lets go of one that is deleted when the test says so.
fn server(there: &There) -> (Client, Arc<Mutex<Vec<(String, Value)>>>) {
    let asked = Arc::<Mutex<Vec<(String, Value)>>>::default();
    let (log, there) = (Arc::clone(&asked), Arc::clone(there));
    let service = tower::service_fn(move |request: HttpRequest<Body>| {
        let (log, there) = (Arc::clone(&log), Arc::clone(&there));
        async move {
            let method = request.method().to_string();
            let body = request.into_body().collect().await.unwrap().to_bytes();
            let body: Value = serde_json::from_slice(&body).unwrap_or_default();
            let mut there = there.lock().unwrap();
            let (code, answer) = match (&*method, &mut *there) {
                ("PATCH", Some(_)) => (422, refusal(422, UNCHANGEABLE, &[UNCHANGEABLE])),
                ("PATCH", None) => (200, body.clone()),
                (_, None) => (404, refusal(404, "not found", &[])),
                ("DELETE", Some(set)) => {
                    set["metadata"]["deletionTimestamp"] = json!("2026-11-30T10:00:00Z");
                    (200, set.clone())
                }
                (_, Some(set)) => (200, set.clone()),
            };
            log.lock().unwrap().push((method, body));
            let answer = Body::from(answer.to_string().into_bytes());
            Response::builder().status(code).body(answer)
        }
    });
    (Client::new(service, "team"), asked)
}

fn there(job: &str) -> There {
    Arc::new(Mutex::new(Some(json!({"metadata": {
        "name": "clicks-tm", "namespace": "team", "uid": "uid-7",
        "ownerReferences": [{"kind": "StreamJob", "name": job, "uid": "a", "apiVersion": "b"}],
    }}))))
}

#[tokio::test]
async fn set_that_cannot_be_changed_is_orphaned_by_its_uid_and_made_when_it_is_gone() {
    let there = there("clicks");
    let (client, asked) = server(&there);
    let applied = async || apply_set(&client, &set(), &job()).await.unwrap();

    // Its pods are let go of: as long as it is there it is not made, and it is deleted once.
    for _ in 0..3 {
        assert_eq!(applied().await, None);
    }
    *there.lock().unwrap() = None;
    assert_eq!(applied().await.unwrap().name_any(), "clicks-tm");

    let asked = asked.lock().unwrap();
    let deletes: Vec<&Value> = asked
        .iter()
        .filter(|(method, _)| method == "DELETE")
        .map(|(_, body)| body)
        .collect();
    assert_eq!(deletes.len(), 1);
    assert_eq!(deletes[0]["propagationPolicy"], "Orphan");
    assert_eq!(deletes[0]["preconditions"]["uid"], "uid-7");
}

#[tokio::test]
async fn set_of_somebody_else_is_never_deleted() {
    let (client, asked) = server(&there("other"));

    let refused = apply_set(&client, &set(), &job()).await;

    assert!(matches!(refused, Err(kube::Error::Api(status)) if status.code == 422));
    let asked = asked.lock().unwrap();
    assert!(asked.iter().all(|(method, _)| method != "DELETE"));
}

/// What could not be made again is not deleted.
#[test]
fn wrong_template_is_told_from_a_field_that_cannot_be_changed() {
    for (code, causes, is_it) in [
        (422, &[UNCHANGEABLE][..], true),
        (422, &[][..], true),
        (422, &[WRONG, UNCHANGEABLE], false),
        (422, &[WRONG], false),
        (403, &[UNCHANGEABLE], false),
    ] {
        let status = refusal(code, UNCHANGEABLE, causes);
        let status: Status = serde_json::from_value(status).unwrap();
        assert_eq!(is_unchangeable(&status), is_it, "{code} {causes:?}");
    }
}
