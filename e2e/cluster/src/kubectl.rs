//! kubectl, and waiting for what it shows.
//!
//! Owns: how it is called. Decides nothing.

use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::said::said;

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

/// Applies objects that name their own namespaces. By the API server: kubectl reads an object, and is refused when
/// another test has written it before kubectl does.
///
/// # Errors
/// What the API server said when it refused them.
pub fn apply_all(text: &str) -> Result<String, String> {
    let by_server = ["--server-side", "--force-conflicts", "--field-manager=e2e"];
    with_input(&[&["apply", "-f", "-"][..], &by_server].concat(), text)
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
    let said = said(arguments, input);
    if said.ok { Ok(said.out) } else { Err(said.err) }
}
