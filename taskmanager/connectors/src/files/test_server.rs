//! For tests: the real S3 server that `e2e/services/s3` starts.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use super::config::{S3, SecretName};

/// The server, and a folder in its bucket of one test's own.
pub struct Server {
    /// The bucket.
    pub bucket: String,
    /// A folder in it, without slashes at its ends.
    pub folder: String,
    endpoint: Option<String>,
    secrets: Option<TempDir>,
}

impl Server {
    /// Starts the server if need be.
    pub fn up(folder: &str) -> Self {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../e2e/services/s3");
        let output = Command::new(script)
            .arg("up")
            .output()
            .expect("the script is there");
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let value = |name: &str| {
            said.lines()
                .find_map(|line| Some(line.strip_prefix(name)?.strip_prefix('=')?.to_owned()))
        };
        let keys = value("AWS_ACCESS_KEY_ID").zip(value("AWS_SECRET_ACCESS_KEY"));
        let secrets = keys.map(|(id, secret)| {
            let folder = tempfile::tempdir().unwrap();
            fs::create_dir(folder.path().join("keys")).unwrap();
            fs::write(folder.path().join("keys/accessKeyId"), id).unwrap();
            fs::write(folder.path().join("keys/secretAccessKey"), secret).unwrap();
            folder
        });
        let unique = xxhash_rust::xxh3::xxh3_64(
            format!("{:?} {}", std::time::SystemTime::now(), std::process::id()).as_bytes(),
        );
        Self {
            bucket: value("S3_BUCKET").unwrap(),
            folder: format!("{folder}-{unique:016x}"),
            endpoint: value("S3_ENDPOINT"),
            secrets,
        }
    }

    /// The path of that folder, with a slash at its end.
    pub fn path(&self) -> String {
        format!("s3://{}/{}/", self.bucket, self.folder)
    }

    /// The way there.
    pub fn s3(&self) -> S3 {
        let name = || "keys".to_owned();
        let secret = self.secrets.as_ref().map(|_| SecretName { name: name() });
        S3 {
            endpoint: self.endpoint.clone(),
            region: None,
            path_style: true,
            credentials_secret: secret,
        }
    }

    /// The folder of secrets.
    pub fn secrets(&self) -> Option<PathBuf> {
        self.secrets.as_ref().map(|it| it.path().to_owned())
    }
}
