//! A bucket of the real S3 server that `e2e/services/s3` starts.
//!
//! Owns: where it is, and its keys as a job's secret; and a server of a test's own, whose keys can be replaced.

use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::{Workspace, free_address};

/// The secret with the keys.
const SECRET: &str = "store-keys";

/// What `e2e/services/s3 up` says.
#[derive(Clone, Debug)]
pub struct Bucket {
    endpoint: String,
    name: String,
    keys: Option<(String, String)>,
}

fn script() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../services/s3")
}

/// A server of a test's own. It is stopped and wiped when this is dropped.
#[derive(Debug)]
pub struct OwnServer {
    folder: TempDir,
    port: u16,
}

impl OwnServer {
    /// One that does not run yet.
    pub fn new() -> Self {
        Self {
            folder: tempfile::tempdir().expect("a temporary folder can be made"),
            port: free_address().port(),
        }
    }

    fn command(&self) -> Command {
        let mut command = Command::new(script());
        command
            .env("S3_RUN", self.folder.path().join("s3"))
            .env("S3_PORT", self.port.to_string());
        command
    }

    /// Starts it for whoever has these keys. Those of before are refused from now on.
    pub fn start(&self, access: &str, secret: &str) -> Bucket {
        self.stop();
        let mut up = self.command();
        up.env("S3_ACCESS_KEY", access).env("S3_SECRET_KEY", secret);
        Bucket::of(up.arg("up"))
    }

    fn stop(&self) {
        let stopped = self.command().arg("down").status();
        assert!(stopped.is_ok_and(|it| it.success()), "it is stopped");
    }
}

impl Default for OwnServer {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for OwnServer {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Bucket {
    /// Starts the server if it does not run.
    pub fn up() -> Self {
        Self::of(Command::new(script()).arg("up"))
    }

    fn of(up: &mut Command) -> Self {
        let output = up.output().expect("the script is there");
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{error}");
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let value = |name: &str| {
            said.lines()
                .find_map(|line| Some(line.strip_prefix(name)?.strip_prefix('=')?.to_owned()))
        };
        Self {
            endpoint: value("S3_ENDPOINT").expect("the script names it"),
            name: value("S3_BUCKET").expect("the script names it"),
            keys: value("AWS_ACCESS_KEY_ID").zip(value("AWS_SECRET_ACCESS_KEY")),
        }
    }

    /// URL of the server.
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// Name of the secret of [`Self::hand_keys_to`]; none when the environment says who we are.
    pub fn secret(&self) -> Option<&'static str> {
        self.keys.as_ref().map(|_| SECRET)
    }

    /// The same bucket, reached at another URL.
    pub fn at(&self, endpoint: &str) -> Self {
        Self {
            endpoint: endpoint.to_owned(),
            ..self.clone()
        }
    }

    /// The `s3:` block of a document, with the secret of [`Self::hand_keys_to`].
    pub fn settings(&self) -> String {
        let secret = self.secret().map_or_else(String::new, |name| {
            format!(", credentialsSecret: {{name: {name}}}")
        });
        format!("{{endpoint: \"{}\"{secret}}}", self.endpoint)
    }

    /// A folder of this process's own.
    pub fn folder(&self, test: &str) -> String {
        let (name, unique) = (&self.name, std::process::id());
        format!("s3://{name}/test-process/{test}-{unique}")
    }

    /// Writes the keys into `secrets/` of a workspace.
    pub fn hand_keys_to(&self, workspace: &Workspace) {
        if let Some((id, secret)) = &self.keys {
            workspace.write(&format!("secrets/{SECRET}/accessKeyId"), id);
            workspace.write(&format!("secrets/{SECRET}/secretAccessKey"), secret);
        }
    }

    /// A job over clicks with store and output in a folder here: windows to Parquet, late rows to NDJSON.
    /// `rows` is `rows: N, `, or nothing for a job without an end.
    pub fn clicks(&self, base: &str, rows: &str, rate: u32) -> Workspace {
        self.rolling_clicks(base, rows, rate, "")
    }

    /// As [`Self::clicks`], with files of `rollover`, or of one checkpoint each where that is empty.
    pub fn rolling_clicks(&self, base: &str, rows: &str, rate: u32, rollover: &str) -> Workspace {
        let mut s3 = self.settings();
        let storage = s3.clone();
        if !rollover.is_empty() {
            s3.push_str(&format!(", rollover: {rollover}"));
        }
        let workspace = Workspace::new(&format!(
            r#"
apiVersion: streamforge.io/v1alpha1
kind: StreamJob
metadata: {{name: clicks}}
spec:
  parallelism: 2
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
    - {{name: results, from: per_user, file: {{path: "{base}/out/results/", s3: {s3}}}, format: {{parquet: {{}}}}}}
    - {{name: late, from: per_user.late, file: {{path: "{base}/out/late/", s3: {s3}}}, format: {{json: {{}}}}}}
  checkpoint: {{interval: 200ms, storage: {{uri: "{base}/store", s3: {storage}}}}}
"#
        ))
        .at(&["--secrets", "secrets"]);
        self.hand_keys_to(&workspace);
        workspace
    }
}
