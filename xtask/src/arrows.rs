//! Who may import whom.
//!
//! Owns: the table of allowed edges between our crates and the places where heavy third-party
//! crates may appear. Reads `cargo metadata`; direct edges only, since a dependency of a
//! dependency is not ours to choose. Never changes a file.
//! Start at: [`check`]. The reasons stand in ARCHITECTURE.md, "Who may import whom".
//!
//! Invariant: pure crates (core, plan, coordinator, engine) have no edge to anything that brings a
//! clock, a thread pool or a socket.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context, Result};
use cargo_metadata::{DependencyKind, MetadataCommand, Package};

use crate::repo::{self, Finding};

/// Our crates, without the prefix `streamforge-`, and what each may import. An edge that is
/// missing here is forbidden, and so is a line for a crate that does not exist.
const OURS: &[(&str, &[&str])] = &[
    ("core", &[]),
    ("crds", &["core"]),
    ("plan", &["core", "crds"]),
    ("store", &["core"]),
    ("coordinator", &["core"]),
    ("engine", &["core"]),
    ("state", &["core", "engine", "store"]),
    ("connectors", &["core", "engine", "store"]),
    ("proto", &["core"]),
    (
        "host",
        &["core", "crds", "plan", "proto", "store", "coordinator"],
    ),
    // Hosts one coordinator per job; the only product crate that calls the API server.
    (
        "operator",
        &["core", "crds", "plan", "proto", "store", "host"],
    ),
    (
        "taskmanager",
        &[
            "core",
            "crds",
            "plan",
            "proto",
            "store",
            "engine",
            "state",
            "connectors",
        ],
    ),
    // Hosts the coordinator and the task manager in one process.
    (
        "cli",
        &[
            "core",
            "crds",
            "plan",
            "proto",
            "store",
            "host",
            "taskmanager",
        ],
    ),
    (
        "bench",
        &[
            "core",
            "plan",
            "proto",
            "store",
            "engine",
            "state",
            "connectors",
            "taskmanager",
        ],
    ),
    (
        "golden",
        &["core", "crds", "plan", "engine", "state", "connectors"],
    ),
    (
        "sim",
        &[
            "core",
            "plan",
            "store",
            "coordinator",
            "host",
            "engine",
            "state",
            "connectors",
        ],
    ),
    // Starts the binary as a process and sees only what a user sees.
    ("process", &[]),
    // Drives the connector alone, and the binary; its own readers and writers are others' clients.
    (
        "e2e-kafka",
        &["core", "engine", "store", "connectors", "process"],
    ),
    // Sees the cluster by kubectl, as a user does.
    ("e2e-cluster", &["process"]),
    // Generates files from the types and the list of functions.
    ("xtask", &["crds", "plan"]),
];

/// Third-party crates (a trailing `*` stands for any ending) and the only crates of ours that may
/// name them directly.
const ONLY_IN: &[(&str, &[&str])] = &[
    ("kube*", &["crds", "operator", "cli"]),
    ("k8s-openapi", &["crds", "operator", "cli"]),
    ("tonic*", &["proto", "host", "taskmanager", "cli", "bench"]),
    ("datafusion*", &["plan", "engine", "cli"]),
    ("aws-sdk-s3", &["store"]),
    ("rdkafka*", &["connectors", "e2e-kafka", "bench"]),
    ("rocksdb", &["state"]),
    ("mimalloc", &["cli", "taskmanager", "operator", "bench"]),
    (
        "clap*",
        &["cli", "taskmanager", "operator", "xtask", "bench"],
    ),
    (
        "anyhow",
        &[
            "cli",
            "taskmanager",
            "operator",
            "xtask",
            "golden",
            "sim",
            "process",
            "bench",
        ],
    ),
];

/// Third-party crates and the crates of ours that must never name them, tests included: what is
/// pure today would quietly stop being so.
const NEVER_IN: &[(&str, &[&str])] = &[
    ("tokio*", &["core", "plan", "coordinator", "engine", "crds"]),
    (
        "tracing*",
        &["core", "plan", "coordinator", "engine", "crds"],
    ),
    ("rand*", &["core", "plan", "coordinator", "engine"]),
    ("rustix", &["core", "plan", "coordinator", "engine"]),
];

/// Lines of `core`: the crate that everybody imports stays small.
const CORE_LINES_MAX: usize = 3_000;

/// Compares the workspace with the tables.
pub fn check(root: &Path) -> Result<()> {
    let metadata = MetadataCommand::new()
        .manifest_path(root.join("Cargo.toml"))
        .no_deps()
        .exec()
        .context("run cargo metadata")?;
    let packages: Vec<&Package> = metadata.workspace_packages();
    let mut findings = Vec::new();
    for package in &packages {
        of_package(package, &mut findings);
    }
    every_line_has_a_crate(&packages, &mut findings);
    core_stays_small(root, &mut findings)?;
    repo::report("arrows", findings)
}

fn short(name: &str) -> &str {
    name.strip_prefix("streamforge-").unwrap_or(name)
}

fn is_ours(name: &str) -> bool {
    name.starts_with("streamforge-")
}

fn matches(pattern: &str, name: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(start) => name.starts_with(start),
        None => pattern == name,
    }
}

fn of_package(package: &Package, findings: &mut Vec<Finding>) {
    let from = short(package.name.as_str());
    let Some((_, allowed)) = OURS.iter().find(|(name, _)| *name == from) else {
        findings.push(Finding::on(
            from,
            "new crate: give it a line in xtask/src/arrows.rs",
        ));
        return;
    };
    for dependency in &package.dependencies {
        let kind = match dependency.kind {
            DependencyKind::Development => " (tests)",
            _ => "",
        };
        let to = dependency.name.as_str();
        if let Some(complaint) = complaint(from, to, allowed) {
            findings.push(Finding::on(from, format!("-> {to}{kind}: {complaint}")));
        }
    }
}

/// Why the edge is forbidden, or nothing.
fn complaint(from: &str, to: &str, allowed: &[&str]) -> Option<String> {
    if is_ours(to) {
        let free = allowed.contains(&short(to));
        return (!free).then(|| "not in the table of xtask/src/arrows.rs".to_owned());
    }
    if let Some((_, only)) = ONLY_IN.iter().find(|(pattern, _)| matches(pattern, to))
        && !only.contains(&from)
    {
        return Some(format!("only in {}", only.join(", ")));
    }
    let never = NEVER_IN.iter().find(|(pattern, _)| matches(pattern, to))?;
    never
        .1
        .contains(&from)
        .then(|| "never here: the crate is pure".to_owned())
}

fn every_line_has_a_crate(packages: &[&Package], findings: &mut Vec<Finding>) {
    let names: BTreeSet<&str> = packages.iter().map(|p| short(p.name.as_str())).collect();
    for (name, _) in OURS {
        if !names.contains(name) {
            findings.push(Finding::on(
                name,
                "has a line in xtask/src/arrows.rs but no crate",
            ));
        }
    }
}

fn core_stays_small(root: &Path, findings: &mut Vec<Finding>) -> Result<()> {
    let lines_n: usize = repo::files(root)?
        .iter()
        .filter(|f| f.path.starts_with("core/src/") && !f.path.ends_with("tests.rs"))
        .map(|f| {
            f.text
                .split("#[cfg(test)]\nmod tests {")
                .next()
                .unwrap_or_default()
                .lines()
                .count()
        })
        .sum();
    if lines_n > CORE_LINES_MAX {
        let what = format!(
            "{lines_n} lines, at most {CORE_LINES_MAX}: a word enters when two crates need it"
        );
        findings.push(Finding::on("core", what));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allowed(from: &str) -> &'static [&'static str] {
        OURS.iter().find(|(name, _)| *name == from).unwrap().1
    }

    #[test]
    fn edge_outside_the_table_is_refused() {
        assert_eq!(complaint("plan", "streamforge-core", allowed("plan")), None);
        assert!(complaint("core", "streamforge-plan", allowed("core")).is_some());
    }

    #[test]
    fn pure_crates_never_name_tokio() {
        assert_eq!(complaint("store", "tokio", allowed("store")), None);
        assert!(complaint("engine", "tokio", allowed("engine")).is_some());
        assert!(complaint("coordinator", "tokio-util", allowed("coordinator")).is_some());
    }

    #[test]
    fn datafusion_stays_in_plan_and_engine_and_verify() {
        assert_eq!(
            complaint("engine", "datafusion-expr", allowed("engine")),
            None
        );
        assert!(complaint("state", "datafusion-common", allowed("state")).is_some());
    }
}
