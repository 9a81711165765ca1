//! What the pods of a test logged, those too that are gone.
//!
//! Owns: following each container from its start to its end, and which lines are warnings or errors. Whether a line
//! was to be expected is a test's to say.

use std::collections::BTreeSet;
use std::io::BufRead as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{JoinHandle, sleep, spawn};
use std::time::Duration;

use serde_json::Value;

use crate::api::Api;

/// How often it is looked for new containers.
const LOOK_EVERY: Duration = Duration::from_millis(300);

/// How long the last lines may take.
const DRAIN: Duration = Duration::from_millis(700);

/// Follows logs until it is dropped.
pub struct Logs {
    shared: Arc<Shared>,
    looking: Option<JoinHandle<()>>,
}

/// Pods whose logs are followed.
#[derive(Clone)]
pub struct Of {
    /// Their namespace.
    pub namespace: String,
    /// Their component.
    pub component: &'static str,
}

struct Shared {
    api: Api,
    since: String,
    has_ended: AtomicBool,
    /// Containers whose logs are followed, or were.
    known: Mutex<BTreeSet<String>>,
    /// Lines, each behind the name of its pod.
    trouble: Mutex<Vec<String>>,
}

impl Logs {
    /// Follows these pods, from this time on.
    pub fn follow(of: Vec<Of>, since: &str) -> Self {
        let shared = Arc::new(Shared {
            api: Api::open(),
            since: since.to_owned(),
            has_ended: AtomicBool::new(false),
            known: Mutex::default(),
            trouble: Mutex::default(),
        });
        let theirs = Arc::clone(&shared);
        let looking = spawn(move || {
            while !theirs.has_ended.load(Ordering::SeqCst) {
                for of in &of {
                    look(&theirs, of);
                }
                sleep(LOOK_EVERY);
            }
        });
        Self {
            shared,
            looking: Some(looking),
        }
    }

    /// Warnings and errors until now.
    pub fn trouble(&self) -> Vec<String> {
        sleep(DRAIN);
        lock(&self.shared.trouble).clone()
    }
}

impl Drop for Logs {
    fn drop(&mut self) {
        self.shared.has_ended.store(true, Ordering::SeqCst);
        if let Some(looking) = self.looking.take() {
            drop(looking.join());
        }
    }
}

/// Whether a line of a log, in either format, is a warning or an error.
pub fn is_trouble(line: &str) -> bool {
    ["WARN", "ERROR"].iter().any(|level| {
        line.split_whitespace().take(4).any(|word| word == *level)
            || line.contains(&format!("\"level\":\"{level}\""))
    }) || line.contains("panicked at")
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Follows containers that have started since the last look.
fn look(shared: &Arc<Shared>, of: &Of) {
    let Of {
        namespace,
        component,
    } = of;
    let pods = format!("/api/v1/namespaces/{namespace}/pods");
    let label = format!("labelSelector=app.kubernetes.io%2Fcomponent%3D{component}");
    // An API server that is away for a test has no pods to show.
    let Some(list) = shared.api.try_read(&format!("{pods}?{label}")) else {
        return;
    };
    for pod in list["items"].as_array().into_iter().flatten() {
        let container = &pod["status"]["containerStatuses"][0];
        let id = container["containerID"].as_str().unwrap_or_default();
        if id.is_empty()
            || container["state"]["waiting"].is_object()
            || !lock(&shared.known).insert(id.to_owned())
        {
            continue;
        }
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let (pod, container) = (text(&pod["metadata"]["name"]), text(&container["name"]));
        let target = format!(
            "{pods}/{pod}/log?container={container}&follow=true&sinceTime={}",
            shared.since
        );
        let (shared, id) = (Arc::clone(shared), id.to_owned());
        spawn(move || {
            let Some(mut lines) = shared.api.stream(&target) else {
                // A kubelet that does not answer now may do so at the next look.
                lock(&shared.known).remove(&id);
                return;
            };
            let mut line = String::new();
            while lines.read_line(&mut line).is_ok_and(|n| n > 0) {
                if is_trouble(&line) {
                    lock(&shared.trouble).push(format!("{pod}: {}", line.trim_end()));
                }
                line.clear();
            }
        });
    }
}
