//! What kubectl says: a test of words wants all of them.
//!
//! Owns: one call of kubectl with its output, its warnings and how it ended.

use std::io::Write as _;
use std::process::{Command, Stdio};

/// One call.
#[derive(Debug)]
pub struct Said {
    /// It succeeded.
    pub ok: bool,
    /// What it printed.
    pub out: String,
    /// Warnings and errors.
    pub err: String,
}

impl Said {
    /// The warnings of the API server.
    pub fn warnings(&self) -> Vec<&str> {
        let lines = self.err.lines();
        lines
            .filter_map(|line| line.strip_prefix("Warning: "))
            .collect()
    }
}

/// Calls kubectl with an input.
pub fn said(arguments: &[&str], input: &str) -> Said {
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
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Said {
        ok: output.status.success(),
        out: text(&output.stdout),
        err: text(&output.stderr),
    }
}
