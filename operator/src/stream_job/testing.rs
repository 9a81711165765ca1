//! Jobs for tests, and an operator whose API server is a function.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex};

use clap::Parser as _;
use hyper::{Request, Response};
use k8s_openapi::jiff::Timestamp;
use kube::Client;
use kube::client::Body;
use prometheus::Registry;
use serde_json::{Value, json};
use streamforge_crds::v1alpha1::StreamJob;
use streamforge_host::sessions::Listener;

use crate::args::Args;
use crate::certificates::Authority;
use crate::controller::Context;
use crate::fleet::Fleet;
use crate::metrics::Metrics;
use crate::seal::Seal;
use crate::settings::{Settings, SharedStore};

/// The uid of [`job`].
pub(crate) const UID: &str = "0b5e31ee-5a52-4b0a-9b8f-0d3c0c2f7a11";

/// As the API server has it: Kafka to a bucket, four subtasks in two pods.
pub(crate) fn job() -> StreamJob {
    serde_json::from_value(written()).unwrap()
}

/// The same as JSON.
pub(crate) fn written() -> Value {
    json!({
        "apiVersion": "streamforge.io/v1alpha1",
        "kind": "StreamJob",
        "metadata": {"name": "clicks", "namespace": "team", "uid": UID, "generation": 3},
        "spec": {
            "parallelism": 4,
            "sources": [{
                "name": "clicks",
                "kafka": {
                    "bootstrapServers": "kafka:9092", "topics": ["clicks"],
                    "security": {
                        "protocol": "SaslSsl", "mechanism": "ScramSha512",
                        "credentialsSecret": {"name": "kafka"}, "caSecret": {"name": "kafka-ca"},
                    },
                },
                "format": {"json": {}},
                "schema": [
                    {"name": "user_id", "type": "TEXT"},
                    {"name": "amount", "type": "BIGINT"},
                    {"name": "ts", "type": "TIMESTAMP"},
                ],
                "eventTime": {"column": "ts", "maxOutOfOrderness": "5s"},
            }],
            "transforms": [
                {"name": "valid", "from": "clicks", "filter": "amount > 0"},
                {"name": "per_user", "from": "valid", "aggregate": {
                    "groupBy": ["user_id"],
                    "window": {"tumbling": {"size": "1m"}},
                    "select": ["count(*) AS clicks"],
                }},
            ],
            "sinks": [{
                "name": "out", "from": "per_user",
                "file": {"path": "s3://results/clicks", "s3": {"credentialsSecret": {"name": "results"}}},
                "format": {"json": {}},
            }],
            "checkpoint": {"storage": {
                "uri": "s3://state/jobs", "s3": {"credentialsSecret": {"name": "store"}},
            }},
        },
    })
}

/// The job with a value at a place of its spec; null removes what is there.
pub(crate) fn with(job: &StreamJob, pointer: &str, value: Value) -> StreamJob {
    let mut written = serde_json::to_value(job).unwrap();
    put(&mut written, &format!("/spec{pointer}"), value);
    serde_json::from_value(written).unwrap_or_else(|error| panic!("{pointer}: {error}"))
}

/// The job with another value at a place of its metadata.
pub(crate) fn with_metadata(job: &StreamJob, pointer: &str, value: Value) -> StreamJob {
    let mut written = serde_json::to_value(job).unwrap();
    put(&mut written, &format!("/metadata{pointer}"), value);
    serde_json::from_value(written).unwrap()
}

fn put(root: &mut Value, pointer: &str, value: Value) {
    let (parent, key) = pointer.rsplit_once('/').unwrap();
    let mut at = root;
    for step in parent.split('/').skip(1) {
        at = match at {
            Value::Array(items) => &mut items[step.parse::<usize>().unwrap()],
            other => {
                if other.is_null() {
                    *other = json!({});
                }
                other
                    .as_object_mut()
                    .unwrap()
                    .entry(step)
                    .or_insert(json!({}))
            }
        };
    }
    match (at, value) {
        (Value::Array(items), value) => {
            let idx: usize = key.parse().unwrap();
            if idx == items.len() {
                items.push(value);
            } else {
                items[idx] = value;
            }
        }
        (at, Value::Null) => drop(at.as_object_mut().unwrap().remove(key)),
        (at, value) => drop(at.as_object_mut().unwrap().insert(key.to_owned(), value)),
    }
}

/// Settings with a store that is shared with the namespace `shared`.
pub(crate) fn settings() -> Settings {
    let stores = r#"[{"uri": "s3://state", "namespaces": ["shared"]}]"#;
    Settings {
        coordinator: "streamforge-coordinator.streamforge-system.svc:7100".to_owned(),
        task_manager_image: "localhost/streamforge-taskmanager:0.1.0".to_owned(),
        shared_stores: SharedStore::parse_list(stores).unwrap(),
        seal: Seal::of(b"the authority's key"),
    }
}

/// What an API server was asked: method and path, without a query.
#[derive(Clone, Default)]
pub(crate) struct Asked(Arc<Mutex<Vec<String>>>);

impl Asked {
    /// All, in its order.
    pub(crate) fn all(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }

    /// How often this was asked.
    pub(crate) fn count(&self, wanted: &str) -> usize {
        let asked = self.0.lock().unwrap();
        asked.iter().filter(|asked| *asked == wanted).count()
    }
}

/// An API server that has what `answer` says of method and path, and nothing else.
pub(crate) fn api_server(
    answer: impl Fn(&str) -> Option<Value> + Send + Sync + 'static,
) -> (Client, Asked) {
    let (asked, answer) = (Asked::default(), Arc::new(answer));
    let notes = asked.clone();
    let service = tower::service_fn(move |request: Request<Body>| {
        let what = format!("{} {}", request.method(), request.uri().path());
        notes.0.lock().unwrap().push(what.clone());
        let absent = json!({
            "apiVersion": "v1", "kind": "Status", "status": "Failure", "reason": "NotFound",
            "message": what, "code": 404,
        });
        let (status, body) = match answer(&what) {
            Some(found) => (200, found),
            None => (404, absent),
        };
        let response = Response::builder().status(status);
        let response = response.body(Body::from(body.to_string().into_bytes()));
        std::future::ready(response)
    });
    (Client::new(service, "team"), asked)
}

/// An operator with this API server.
pub(crate) fn context(client: Client, work_dir: &Path) -> Arc<Context> {
    let _installed_before = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let work_dir = work_dir.to_str().unwrap();
    let args = Args::parse_from([
        "operator",
        "--task-manager-image",
        "tm:1",
        "--work-dir",
        work_dir,
    ]);
    let listener = Listener::start(SocketAddr::from(([127, 0, 0, 1], 0)), None).unwrap();
    Context::new(
        client,
        settings(),
        &args,
        Fleet::new(listener),
        Authority::create(Timestamp::now()).unwrap(),
        Metrics::new(&Registry::new()).unwrap(),
    )
}
