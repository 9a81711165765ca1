//! A namespace of a test's own.
//!
//! Owns: making it with the label `restricted` and the store's keys, showing what went wrong in it, and
//! removing it. `E2E_KEEP=1` leaves it for a look.

use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::Value;

use crate::kubectl::{apply, get, kubectl, try_kubectl};

/// The secret with the store's keys, in every namespace of a test.
pub const KEYS: &str = "store-keys";

/// Where the operator is.
pub fn operator_namespace() -> String {
    variable("STREAMFORGE_NAMESPACE")
}

/// What `e2e/cluster/with` says.
pub fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set: run the tests by `make e2e`"))
}

/// A namespace in which pods must be restricted.
pub struct Namespace {
    name: String,
    /// When it was made, by the API server's clock.
    since: String,
}

impl Namespace {
    /// Makes one whose name begins with that of the test.
    pub fn create(test: &str) -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let unique = now.expect("the clock is past 1970").as_millis();
        let name = format!("{test}-{unique:x}");
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
        let since = since.expect("every object has it").to_owned();
        Self { name, since }
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

    /// Asserts that no task manager and no operator has logged a warning or an error since the namespace was
    /// made, except lines with one of these texts.
    pub fn check_logs(&self, announced: &[&str]) {
        let since = format!("--since-time={}", self.since);
        let operator = operator_namespace();
        for (namespace, component) in [(&self.name, "task-manager"), (&operator, "operator")] {
            let label = format!("app.kubernetes.io/component={component}");
            let logs = kubectl(&[
                "logs",
                "-n",
                namespace,
                "-l",
                &label,
                &since,
                "--tail=-1",
                "--prefix",
                "--ignore-errors",
            ]);
            let trouble: Vec<&str> = logs
                .lines()
                .filter(|line| {
                    is_trouble(line) && !announced.iter().any(|text| line.contains(text))
                })
                .collect();
            assert!(trouble.is_empty(), "{}", trouble.join("\n"));
        }
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

/// Whether a line of a log, in either format, is a warning or an error.
fn is_trouble(line: &str) -> bool {
    ["WARN", "ERROR"].iter().any(|level| {
        line.split_whitespace().take(4).any(|word| word == *level)
            || line.contains(&format!("\"level\":\"{level}\""))
    })
}

impl Drop for Namespace {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.show();
        }
        if std::env::var_os("E2E_KEEP").is_none() {
            let _ = try_kubectl(&["delete", "namespace", &self.name, "--wait=false"]);
        }
    }
}
