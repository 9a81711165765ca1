//! The real server these tests run against: started by `e2e/services/s3`, or the one that
//! `S3_ENDPOINT` names.

use std::path::{Path, PathBuf};
use std::process::Command;

use streamforge_core::s3::{S3Access, S3Place};
use tempfile::TempDir;

use super::super::retry::nonce;
use super::super::{Limits, S3Store};

/// How to use the server.
#[derive(Debug)]
pub struct Server {
    pub endpoint: String,
    pub bucket: String,
    /// Keys of the server; `None`: the environment has them.
    secrets: Option<TempDir>,
}

pub const SECRET: &str = "store-keys";

impl Server {
    /// Starts it if need be.
    pub fn get() -> Self {
        Self::with("s3", &[])
    }

    /// Starts the server of this script, with more variables.
    pub fn with(script: &str, variables: &[(&str, &str)]) -> Self {
        let path = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../e2e/services")
            .join(script);
        let mut command = Command::new(&path);
        command.arg("up").envs(variables.iter().copied());
        let output = command.output().expect("the script is there");
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(
            output.status.success(),
            "{}: {said}{}",
            path.display(),
            String::from_utf8_lossy(&output.stderr)
        );
        let value = |name: &str| {
            said.lines()
                .find_map(|line| line.strip_prefix(&format!("{name}=")).map(str::to_owned))
        };
        let keys = value("AWS_ACCESS_KEY_ID").zip(value("AWS_SECRET_ACCESS_KEY"));
        Self {
            endpoint: value("S3_ENDPOINT").expect("the script names it"),
            bucket: value("S3_BUCKET").expect("the script names it"),
            secrets: keys.map(|(id, secret)| secret_folder(&id, &secret)),
        }
    }

    /// The folder of secrets.
    pub fn secrets(&self) -> Option<&Path> {
        self.secrets.as_ref().map(TempDir::path)
    }

    /// A place of this test's own.
    pub fn place(&self) -> S3Place {
        self.place_at(&self.endpoint)
    }

    /// The same behind another address.
    pub fn place_at(&self, endpoint: &str) -> S3Place {
        S3Place {
            bucket: self.bucket.clone(),
            prefix: format!("test-{}", nonce().expect("the system has random numbers")),
            access: S3Access {
                endpoint: Some(endpoint.to_owned()),
                credentials_secret: self.secrets.is_some().then(|| SECRET.to_owned()),
                ..S3Access::default()
            },
        }
    }

    /// A client of a place, without the proof of opening.
    pub async fn connect(&self, place: &S3Place, limits: Limits) -> S3Store {
        S3Store::connect(place, self.secrets(), limits)
            .await
            .expect("the credentials are there")
    }
}

/// A folder of secrets with these keys under [`SECRET`].
pub fn secret_folder(id: &str, secret: &str) -> TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let inside: PathBuf = folder.path().join(SECRET);
    std::fs::create_dir(&inside).expect("it is new");
    std::fs::write(inside.join("accessKeyId"), id).expect("it is writable");
    std::fs::write(inside.join("secretAccessKey"), format!("{secret}\n")).expect("it is writable");
    folder
}
