//! kubectl, and waiting for what it shows.
//!
//! Owns: how it is called. Decides nothing.

use std::io::Write as _;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::Value;

/// How often something is looked at that is waited for.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Runs kubectl; its output, or what it said when it failed.
///
/// # Errors
/// When kubectl ends with another code than 0.
pub fn try_kubectl(arguments: &[&str]) -> Result<String, String> {
    with_input(arguments, "")
}

/// Runs kubectl, which has to succeed.
pub fn kubectl(arguments: &[&str]) -> String {
    try_kubectl(arguments).unwrap_or_else(|said| panic!("kubectl {arguments:?}: {said}"))
}

/// Applies objects as a user does.
///
/// # Errors
/// What the API server said when it refused them.
pub fn apply(namespace: &str, yaml: &str) -> Result<String, String> {
    with_input(&["apply", "-n", namespace, "-f", "-"], yaml)
}

/// One object, or nothing when it is not there.
pub fn get(namespace: &str, kind: &str, name: &str) -> Option<Value> {
    let text = kubectl(&[
        "get",
        "-n",
        namespace,
        kind,
        name,
        "-o",
        "json",
        "--ignore-not-found",
    ]);
    (!text.trim().is_empty()).then(|| serde_json::from_str(&text).expect("kubectl prints JSON"))
}

/// Looks until there is something; panics with `what` when the time is over.
pub fn eventually<T>(what: &str, limit_s: u64, mut look: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(
            began.elapsed() < Duration::from_secs(limit_s),
            "{what}: not within {limit_s} s"
        );
        sleep(LOOK_EVERY);
    }
}

fn with_input(arguments: &[&str], input: &str) -> Result<String, String> {
    let mut child = Command::new("kubectl")
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("kubectl is in PATH: run the tests by `make e2e`");
    let mut stdin = child.stdin.take().expect("it is piped");
    // kubectl may end without reading it.
    let _ = stdin.write_all(input.as_bytes());
    drop(stdin);
    let output = child.wait_with_output().expect("kubectl ends");
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    } else {
        Err(String::from_utf8_lossy(&output.stderr).into_owned())
    }
}
