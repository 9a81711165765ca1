//! What is done of answers of an API server that refuses.

use hyper::{Request as HttpRequest, Response};
use kube::client::Body;

use super::*;

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
