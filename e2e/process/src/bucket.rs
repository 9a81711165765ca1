//! A bucket of the real S3 server that `e2e/services/s3` starts.
//!
//! Owns: where it is, and its keys as a job's secret.

use std::path::Path;
use std::process::Command;

use crate::Workspace;

/// What `e2e/services/s3 up` says.
#[derive(Clone, Debug)]
pub struct Bucket {
    endpoint: String,
    name: String,
    keys: Option<(String, String)>,
}

impl Bucket {
    /// Starts the server if it does not run.
    pub fn up() -> Self {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../services/s3");
        let output = Command::new(script).arg("up").output();
        let output = output.expect("the script is there");
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

    /// The `s3:` block of a document, with the secret of [`Self::hand_keys_to`].
    pub fn settings(&self) -> String {
        let keys = self.keys.as_ref();
        let secret = keys.map_or("", |_| ", credentialsSecret: {name: store-keys}");
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
            workspace.write("secrets/store-keys/accessKeyId", id);
            workspace.write("secrets/store-keys/secretAccessKey", secret);
        }
    }
}
