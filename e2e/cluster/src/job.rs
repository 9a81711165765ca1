//! Jobs whose result can be computed again.
//!
//! Owns: their documents, in the cluster's words and in this machine's (services have other addresses
//! here), killing their pods, and the comparison of a result with the oracle.

use std::collections::BTreeSet;
use std::thread::sleep;
use std::time::Duration;

use serde_json::Value;
use streamforge_process::{Random, Workspace};

use crate::kubectl::{apply, eventually, get};
use crate::namespace::{KEYS, Namespace, variable};

/// Waits until the job has finished, and compares its result with the oracle's: `streamforge verify` with
/// the document that was applied.
pub fn finish(namespace: &Namespace, job: &str, document: &str, limit_s: u64) {
    eventually("the job finishes", limit_s, || {
        let phase = namespace.phase(job);
        assert_ne!(phase, "Failed", "{:#}", namespace.status(job));
        (phase == "Finished").then_some(())
    });
    verify(namespace, job, document);
}

/// Compares the result of a job that has finished with the oracle's.
pub fn verify(namespace: &Namespace, job: &str, document: &str) {
    // In a cluster each job has a folder of its own below the one that its document names.
    let uri = checkpoint_folder(document);
    let id = &namespace.status(job)["jobId"];
    let own = format!("{uri}/{}", id.as_str().expect("a job that ran has an id"));
    workspace(&document.replace(&uri, &own)).verify();
}

/// Kills so many pods of a job that has two, while it runs: each one that was not killed before.
pub fn kill_pods(namespace: &Namespace, job: &str, kills_n: usize, seed: u64) {
    let (mut random, mut killed) = (Random::seeded(seed), BTreeSet::new());
    for _ in 0..kills_n {
        // Not to wait for anything: a kill may come at any moment.
        sleep(Duration::from_millis(2_000 + random.below(3_000)));
        let pod = format!("{job}-tm-{}", random.below(2));
        let uid = eventually(&pod, 60, || {
            let found = get(namespace.name(), "pod", &pod)?;
            // It may go in between by itself, and then it was not killed.
            let kill = ["delete", "pod", &pod, "--force", "--grace-period=0"];
            let said = namespace.kubectl(&[&kill[..], &["--ignore-not-found"]].concat());
            let uid = found["metadata"]["uid"].as_str().map(str::to_owned);
            uid.filter(|_| !said.trim().is_empty())
        });
        killed.insert(uid);
    }
    assert_eq!(killed.len(), kills_n, "a pod was killed twice");
    assert_ne!(namespace.phase(job), "Finished", "it has too few rows");
}

/// The condition of this type; null if a status has none.
pub fn condition(status: &Value, kind: &str) -> Value {
    let conditions = status["conditions"].as_array().into_iter().flatten();
    let mut conditions = conditions.filter(|it| it["type"] == kind);
    conditions.next().cloned().unwrap_or_default()
}

/// What `checkpoint.storage.uri` says.
fn checkpoint_folder(document: &str) -> String {
    let (_, after) = document
        .split_once("storage: {uri: \"")
        .expect("it has a store");
    let (uri, _) = after.split_once('"').expect("the quote ends");
    uri.to_owned()
}

/// A workspace on this machine with a document of the cluster: the services have other addresses here.
pub fn workspace(document: &str) -> Workspace {
    let mut document = document.to_owned();
    for (there, here) in [
        ("POD_S3_ENDPOINT", "S3_ENDPOINT"),
        ("POD_KAFKA_BOOTSTRAP", "KAFKA_BOOTSTRAP"),
    ] {
        if std::env::var_os(there).is_some() {
            document = document.replace(&variable(there), &variable(here));
        }
    }
    let workspace = Workspace::new(&document).at(&["--secrets", "secrets"]);
    for (key, name) in [
        ("accessKeyId", "AWS_ACCESS_KEY_ID"),
        ("secretAccessKey", "AWS_SECRET_ACCESS_KEY"),
    ] {
        workspace.write(&format!("secrets/{KEYS}/{key}"), variable(name));
    }
    workspace
}

/// The `s3:` block of a document.
pub fn s3_settings() -> String {
    let endpoint = variable("POD_S3_ENDPOINT");
    format!("{{endpoint: \"{endpoint}\", region: us-east-1, credentialsSecret: {{name: {KEYS}}}}}")
}

/// A folder of the bucket that belongs to this namespace.
pub fn bucket_folder(namespace: &Namespace) -> String {
    format!("s3://{}/{}", variable("S3_BUCKET"), namespace.name())
}

/// Windows over generated clicks, into the bucket.
pub struct ClicksJob<'a> {
    /// Where it runs.
    pub namespace: &'a Namespace,
    /// Its name.
    pub name: &'a str,
    /// How many rows; none for a job without an end.
    pub rows: Option<u64>,
    /// Rows per second.
    pub rate: u64,
    /// Subtasks.
    pub parallelism: u32,
    /// Subtasks per pod.
    pub slots: u32,
    /// More of `spec`, with its indentation of two.
    pub more: &'a str,
}

impl ClicksJob<'_> {
    /// Applies it.
    pub fn apply(&self) {
        apply(self.namespace.name(), &self.document()).expect("the document is taken");
    }

    /// Waits for the end, and compares the result with what a batch over all rows gives.
    pub fn finish(&self, limit_s: u64) {
        finish(self.namespace, self.name, &self.document(), limit_s);
    }

    /// What is applied.
    pub fn document(&self) -> String {
        let Self {
            name,
            rate,
            parallelism,
            slots,
            more,
            ..
        } = self;
        let rows = self
            .rows
            .map_or_else(String::new, |n| format!("rows: {n}, "));
        let folder = format!("{}/{name}", bucket_folder(self.namespace));
        let s3 = s3_settings();
        format!(
            r#"
apiVersion: streamforge.io/v1alpha1
kind: StreamJob
metadata: {{name: {name}}}
spec:
  parallelism: {parallelism}
  sources:
    - name: clicks
      generator: {{clicks: {{{rows}users: 500, skew: 1.1, outOfOrderness: 3s, lateFraction: 0.01, badFraction: 0.001, seed: 7}}}}
      eventTime: {{column: ts, maxOutOfOrderness: 3s}}
      rateLimit: {{rowsPerSecond: {rate}}}
  transforms:
    - name: per_user
      from: clicks
      aggregate:
        groupBy: [user_id]
        window: {{tumbling: {{size: 1s}}}}
        select: ["count(*) AS clicks", "sum(amount) AS spend"]
  sinks:
    - {{name: results, from: per_user, file: {{path: "{folder}/results/", s3: {s3}}}, format: {{json: {{}}}}}}
    - {{name: late, from: per_user.late, file: {{path: "{folder}/late/", s3: {s3}}}, format: {{json: {{}}}}}}
  checkpoint: {{interval: 500ms, storage: {{uri: "{folder}/store", s3: {s3}}}}}
  taskManager: {{slots: {slots}}}
{more}"#
        )
    }
}
