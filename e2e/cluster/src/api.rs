//! The API server, asked without a kubectl per question: waiting for many jobs at once would be mostly starting kubectls.
//!
//! Owns: `kubectl proxy`, and calls through it with a person's rights. Decides nothing.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use crate::http;

/// `kubectl proxy`, which ends with its owner.
pub struct KubectlProxy {
    child: Child,
    /// Where it listens.
    pub address: String,
}

impl KubectlProxy {
    /// Starts one with a kubeconfig, or with the one that KUBECONFIG names.
    pub fn start(kubeconfig: Option<&str>) -> Self {
        let mut command = Command::new("kubectl");
        if let Some(file) = kubeconfig {
            command.arg(format!("--kubeconfig={file}"));
        }
        let mut child = command
            .args(["proxy", "--port=0"])
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("kubectl is in PATH: run the tests by `make e2e`");
        let mut line = String::new();
        let stdout = child.stdout.take().expect("it is piped");
        BufReader::new(stdout)
            .read_line(&mut line)
            .expect("it says where it listens");
        let address = line.rsplit(' ').next().unwrap_or_default().trim();
        assert!(address.contains(':'), "kubectl proxy said: {line}");
        Self {
            address: address.to_owned(),
            child,
        }
    }
}

impl Drop for KubectlProxy {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The API server with a person's rights.
pub struct Api(KubectlProxy);

impl Api {
    /// With the kubeconfig that KUBECONFIG names.
    pub fn open() -> Self {
        Self(KubectlProxy::start(None))
    }

    /// One call; the code and what was answered.
    pub fn call(&self, method: &str, target: &str, kind: &str, body: &[u8]) -> (u16, Value) {
        let headers = [
            ("content-type".to_owned(), kind.to_owned()),
            ("accept".to_owned(), "application/json".to_owned()),
        ];
        let answer = http::call(&self.0.address, method, target, &headers, body);
        let answer = answer.unwrap_or_else(|error| panic!("{method} {target}: {error}"));
        let value = serde_json::from_slice(&answer.body).unwrap_or_default();
        (answer.status, value)
    }

    /// An object or a list, if it is there.
    pub fn read(&self, target: &str) -> Option<Value> {
        match self.call("GET", target, "application/json", b"") {
            (200, value) => Some(value),
            (404, _) => None,
            (code, value) => panic!("GET {target}: {code} {value}"),
        }
    }

    /// The same, or nothing if the API server does not answer.
    pub fn try_read(&self, target: &str) -> Option<Value> {
        let answer = http::call(&self.0.address, "GET", target, &[], b"").ok()?;
        serde_json::from_slice(&answer.body).ok()
    }

    /// Lines as they come. Chunks are not told apart: their lengths are lines, too.
    pub fn stream(&self, target: &str) -> Option<impl BufRead + use<>> {
        let (head, reader) = http::send(&self.0.address, "GET", target, &[], b"").ok()?;
        (head.status() == 200).then_some(reader)
    }

    /// The objects of a list.
    pub fn list(&self, target: &str) -> Vec<Value> {
        match self.read(target).map(|mut list| list["items"].take()) {
            Some(Value::Array(items)) => items,
            _ => Vec::new(),
        }
    }

    /// Applies what a person declares, all of it: a field that is not there any more goes.
    ///
    /// # Errors
    /// What the API server said when it refused it.
    pub fn declare(&self, target: &str, yaml: &str) -> Result<(), String> {
        let target = format!("{target}?fieldManager=person&force=true");
        let kind = "application/apply-patch+yaml";
        match self.call("PATCH", &target, kind, yaml.as_bytes()) {
            (200 | 201, _) => Ok(()),
            (code, said) => Err(format!("{code}: {said}")),
        }
    }

    /// Changes an object, which has to be there.
    pub fn merge(&self, target: &str, patch: &Value) {
        let kind = "application/merge-patch+json";
        let (code, said) = self.call("PATCH", target, kind, patch.to_string().as_bytes());
        assert_eq!(code, 200, "PATCH {target}: {said}");
    }

    /// Asks for an object to be deleted, if it is there.
    pub fn delete(&self, target: &str) {
        let (code, said) = self.call("DELETE", target, "application/json", b"");
        assert!(
            matches!(code, 200 | 202 | 404),
            "DELETE {target}: {code} {said}"
        );
    }
}
