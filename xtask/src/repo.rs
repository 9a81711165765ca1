//! The files of the repository, as git sees them.
//!
//! Owns: finding the root and listing tracked and new files (ignored ones never). Reads only.
//! Start at: [`files`].

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

/// One text file of the repository.
pub struct File {
    /// Path relative to the root, with `/`.
    pub path: String,
    /// Its text.
    pub text: String,
}

/// One complaint: where, and what to do about it.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Finding {
    /// `path` or `path:line`.
    pub place: String,
    /// What is wrong and what to write instead.
    pub what: String,
}

impl Finding {
    /// A finding about a line (1-based) of a file.
    pub fn at(path: &str, line: usize, what: impl Into<String>) -> Self {
        Self {
            place: format!("{path}:{line}"),
            what: what.into(),
        }
    }

    /// A finding about a whole file or crate.
    pub fn on(path: &str, what: impl Into<String>) -> Self {
        Self {
            place: path.to_owned(),
            what: what.into(),
        }
    }
}

/// The root of the work tree. Asked of git, not compiled in: the binary is shared by clones.
pub fn root() -> Result<PathBuf> {
    let shown = Command::new("git")
        .args(["rev-parse", "--show-toplevel"])
        .output();
    let shown = shown.context("run git rev-parse")?;
    let root = PathBuf::from(String::from_utf8_lossy(&shown.stdout).trim());
    if !root.join("xtask/Cargo.toml").is_file() {
        bail!("run it inside the repository");
    }
    Ok(root)
}

/// Every tracked or new text file, sorted by path. Binary files (a NUL byte, or not UTF-8) are
/// left out: no rule of ours reads them.
pub fn files(root: &Path) -> Result<Vec<File>> {
    let listed = Command::new("git")
        .args([
            "ls-files",
            "-z",
            "--cached",
            "--others",
            "--exclude-standard",
        ])
        .current_dir(root)
        .output()
        .context("run git ls-files")?;
    if !listed.status.success() {
        bail!(
            "git ls-files: {}",
            String::from_utf8_lossy(&listed.stderr).trim()
        );
    }
    let mut paths: Vec<&str> = std::str::from_utf8(&listed.stdout)
        .context("a file name is not UTF-8")?
        .split('\0')
        .filter(|p| !p.is_empty())
        .collect();
    paths.sort_unstable();
    paths.dedup();
    let mut files = Vec::with_capacity(paths.len());
    for path in paths {
        let full = root.join(path);
        // Deleted but still in the index, or a link to a folder: nothing to read.
        if !full.is_file() {
            continue;
        }
        let bytes = std::fs::read(&full).with_context(|| format!("read {path}"))?;
        if bytes.contains(&0) {
            continue;
        }
        if let Ok(text) = String::from_utf8(bytes) {
            files.push(File {
                path: path.to_owned(),
                text,
            });
        }
    }
    Ok(files)
}

/// Prints the findings and fails when there are any.
pub fn report(check: &str, mut findings: Vec<Finding>) -> Result<()> {
    findings.sort();
    for f in &findings {
        eprintln!("{}: {}", f.place, f.what);
    }
    match findings.len() {
        0 => {
            eprintln!("{check}: ok");
            Ok(())
        }
        n => bail!("{check}: {n} to mend"),
    }
}
