//! A job whose result can be computed again.
//!
//! Owns: its document, in the cluster's words and in this machine's (the store has another address
//! here), and the comparison of its result with the oracle.

use streamforge_process::Workspace;

use crate::kubectl::{apply, eventually};
use crate::namespace::{KEYS, Namespace, variable};

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
    /// What is applied.
    pub fn document(&self) -> String {
        self.at(&variable("POD_S3_ENDPOINT"))
    }

    /// Applies it.
    pub fn apply(&self) {
        apply(self.namespace.name(), &self.document()).expect("the document is taken");
    }

    /// Waits for the end, and compares the result with what a batch over all rows gives.
    pub fn finish(&self, limit_s: u64) {
        eventually("the job finishes", limit_s, || {
            let phase = self.namespace.phase(self.name);
            assert_ne!(
                phase,
                "Failed",
                "{:#}",
                self.namespace.job(self.name).expect("it is there")["status"]
            );
            (phase == "Finished").then_some(())
        });
        self.verify();
    }

    /// Compares the result of the finished job with the oracle's.
    pub fn verify(&self) {
        let endpoint = variable("S3_ENDPOINT");
        let here = Workspace::new(&self.at(&endpoint)).at(&["--secrets", "secrets"]);
        here.write(
            &format!("secrets/{KEYS}/accessKeyId"),
            variable("AWS_ACCESS_KEY_ID"),
        );
        here.write(
            &format!("secrets/{KEYS}/secretAccessKey"),
            variable("AWS_SECRET_ACCESS_KEY"),
        );
        here.verify();
    }

    /// The folder in the bucket for everything of this job.
    pub fn folder(&self) -> String {
        format!(
            "s3://{}/{}/{}",
            variable("S3_BUCKET"),
            self.namespace.name(),
            self.name
        )
    }

    fn at(&self, endpoint: &str) -> String {
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
        let (folder, endpoint) = (self.folder(), endpoint.trim_end_matches('/'));
        let s3 = format!(
            "{{endpoint: \"{endpoint}\", region: us-east-1, credentialsSecret: {{name: {KEYS}}}}}"
        );
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
