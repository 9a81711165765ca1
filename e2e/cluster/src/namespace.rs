//! A namespace of a test's own.
//!
//! Owns: making it with the label `restricted` and the store's keys, showing what went wrong in it, and
//! removing it. A warning or an error in a log that the test did not announce fails the test. `E2E_KEEP=1` leaves the
//! namespace for a look.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::Value;

use crate::kubectl::{apply, get, kubectl, try_kubectl};
use crate::logs::{Logs, Of};

/// The secret with the store's keys, in every namespace of a test.
pub const KEYS: &str = "store-keys";

/// What a task manager says when its coordinator is gone, and when the next one has begun another attempt.
pub const COORDINATOR_GONE: [&str; 3] = [
    "session with the coordinator is over",
    "head not read in time",
    "the head names a newer attempt: ending",
];

/// What a coordinator says of task managers that die, and what they say themselves: an attempt that ends takes the
/// sessions of the others along.
pub const TASK_MANAGERS_DIE: [&str; 5] = [
    "session with the coordinator is over",
    "task manager lost",
    "attempt failed",
    "checkpoint failed",
    "hand-over withdrawn",
];

/// Where the operator is.
pub fn operator_namespace() -> String {
    variable("STREAMFORGE_NAMESPACE")
}

/// The Lease of the operators: who leads, and since when.
pub fn lease() -> Value {
    let lease = get(&operator_namespace(), "lease", "streamforge-operator");
    lease.expect("an operator has led")["spec"].take()
}

/// The pod of the operator that leads; nothing if it is gone, or nobody leads.
pub fn leading_pod() -> Option<Value> {
    let lease = lease();
    let holder = lease["holderIdentity"].as_str()?;
    get(&operator_namespace(), "pod", holder)
}

/// What `e2e/cluster/with` says.
pub fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set: run the tests by `make e2e`"))
}

/// A namespace in which pods must be restricted.
pub struct Namespace {
    name: String,
    logs: Logs,
    announced: Mutex<Vec<&'static str>>,
}

impl Namespace {
    /// Makes one whose name begins with that of the test.
    pub fn create(test: &str) -> Self {
        // Several may be made at the same time, by several processes in the same millisecond.
        static MADE_N: AtomicU32 = AtomicU32::new(0);
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let ms = now.expect("the clock is past 1970").as_millis() & 0xfff_ffff;
        let unique = format!("{ms:07x}-{:06x}", std::process::id());
        let n = MADE_N.fetch_add(1, Ordering::Relaxed);
        let name = format!("{test}-{unique}-{n}");
        let (id, secret) = (
            variable("AWS_ACCESS_KEY_ID"),
            variable("AWS_SECRET_ACCESS_KEY"),
        );
        let yaml = format!(
            r#"
apiVersion: v1
kind: Namespace
metadata:
  name: {name}
  labels: {{pod-security.kubernetes.io/enforce: restricted, streamforge.io/e2e: "true"}}
---
apiVersion: v1
kind: Secret
metadata: {{name: {KEYS}, namespace: {name}}}
stringData: {{accessKeyId: "{id}", secretAccessKey: "{secret}"}}
"#
        );
        apply(&name, &yaml).expect("a namespace can be made");
        let made = get("default", "namespace", &name).expect("it was made");
        let since = made["metadata"]["creationTimestamp"].as_str();
        let since = since.expect("every object has it");
        let of = |namespace: &str, component| Of {
            namespace: namespace.to_owned(),
            component,
        };
        let pods = vec![
            of(&name, "task-manager"),
            of(&operator_namespace(), "operator"),
        ];
        Self {
            logs: Logs::follow(pods, since),
            announced: Mutex::default(),
            name,
        }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Runs kubectl in it.
    pub fn kubectl(&self, arguments: &[&str]) -> String {
        kubectl(&[&["-n", self.name.as_str()], arguments].concat())
    }

    /// A StreamJob.
    pub fn job(&self, name: &str) -> Option<Value> {
        get(&self.name, "streamjob", name)
    }

    /// The phase of a job; empty before it has one.
    pub fn phase(&self, job: &str) -> String {
        self.status(job)["phase"]
            .as_str()
            .unwrap_or_default()
            .to_owned()
    }

    /// The status of a job.
    pub fn status(&self, job: &str) -> Value {
        self.job(job).expect("the job is there")["status"].take()
    }

    /// The pods of task managers, by name.
    pub fn pods(&self) -> Vec<Value> {
        let label = "app.kubernetes.io/component=task-manager";
        let text = self.kubectl(&["get", "pods", "-l", label, "-o", "json"]);
        let mut list: Value = serde_json::from_str(&text).expect("kubectl prints JSON");
        match list["items"].take() {
            Value::Array(pods) => pods,
            _ => Vec::new(),
        }
    }

    /// The unique ids of the pods, in the order of their names.
    pub fn pod_uids(&self) -> Vec<String> {
        let uid = |pod: &Value| {
            pod["metadata"]["uid"]
                .as_str()
                .unwrap_or_default()
                .to_owned()
        };
        self.pods().iter().map(uid).collect()
    }

    fn announced(&self) -> MutexGuard<'_, Vec<&'static str>> {
        self.announced
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets task managers and operators log warnings and errors with one of these texts; any other one fails the test.
    pub fn announce(&self, texts: &[&'static str]) {
        self.announced().extend(texts);
    }

    /// Warnings and errors that were not announced: of task managers of this namespace, and of operators, but for what
    /// they say of other namespaces.
    fn trouble(&self) -> Vec<String> {
        let names_one = |line: &String| {
            let marks = ["\"namespace\":\"", "\"object.ref\":\""];
            marks.iter().any(|mark| line.contains(mark))
        };
        let is_ours = |line: &&String| line.contains(&self.name) || !names_one(line);
        let announced = self.announced();
        let lines = self.logs.trouble();
        let lines = lines.iter().filter(is_ours);
        lines
            .filter(|line| !announced.iter().any(|text| line.contains(text)))
            .cloned()
            .collect()
    }

    fn show(&self) {
        let operator = operator_namespace();
        for arguments in [
            [
                "get",
                "streamjobs,statefulsets,pods",
                "-o",
                "wide",
                "-n",
                &self.name,
            ]
            .as_slice(),
            &["describe", "streamjobs", "-n", &self.name],
            &[
                "get",
                "events",
                "--sort-by=.lastTimestamp",
                "-n",
                &self.name,
            ],
            &[
                "logs",
                "-l",
                "app.kubernetes.io/component=task-manager",
                "--tail=30",
                "--prefix",
                "-n",
                &self.name,
            ],
            &[
                "logs",
                "-l",
                "app.kubernetes.io/component=operator",
                "--tail=60",
                "--prefix",
                "-n",
                &operator,
            ],
        ] {
            let said = try_kubectl(arguments).unwrap_or_else(|error| error);
            eprintln!("--- kubectl {}\n{said}", arguments.join(" "));
        }
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let mut trouble = Vec::new();
        if std::thread::panicking() {
            self.show();
        } else {
            trouble = self.trouble();
        }
        if std::env::var_os("E2E_KEEP").is_none() {
            let _ = try_kubectl(&["delete", "namespace", &self.name, "--wait=false"]);
        }
        assert!(trouble.is_empty(), "not announced:\n{}", trouble.join("\n"));
    }
}
