//! What an edit of a running job asks for.
//!
//! Owns: which field of a document needs what: nothing, another coordinator, other pods, other
//! subtasks, or another attempt. Pure. Start at: [`change`].

use serde_json::{Value, json};
use streamforge_crds::v1alpha1::{DroppedState, StreamJobSpec, Upgrade as Policy, UpgradeMode};
use streamforge_host::compatibility;

use super::build::{Deployed, pod};
use super::document::Document;
use super::validate::{Desired, Problem};
use crate::settings::Settings;

/// What has to be done so that what is desired runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Nothing: what is desired runs.
    None,
    /// The attempt goes on.
    InPlace(InPlace),
    /// Stop with a savepoint, apply everything, start from the savepoint.
    Upgrade(Upgrade),
}

/// What is done while rows flow. At least one of them is to be done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InPlace {
    /// Key groups are handed over to more or fewer subtasks.
    pub scale: Option<Scale>,
    /// Fields that only the coordinator looks at: another one takes the attempt over.
    pub policies: Vec<&'static str>,
    /// Pods are replaced, one after the other; each hands its key groups over first.
    pub pods: bool,
}

/// Another number of subtasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scale {
    /// There are.
    pub from: u32,
    /// There are to be.
    pub to: u32,
}

/// Why the attempt cannot go on, and what becomes of its state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Upgrade {
    /// What differs, for people.
    pub why: Vec<String>,
    /// State, and input that is not read yet, that the new document has no place for.
    pub dropped: Vec<Dropped>,
    /// The checkpoints come to another place: the new attempt begins with a savepoint of the old one.
    pub moves_store: bool,
    /// Another number of key groups: no state can be taken over.
    pub key_groups: Option<Scale>,
}

/// What an upgrade would drop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dropped {
    /// The uid of the node whose it is.
    pub uid: String,
    /// Why.
    pub reason: String,
}

impl Upgrade {
    /// Why the edit is refused, if it is: state is dropped only when somebody says so.
    #[must_use]
    pub fn refusal(&self, policy: &Policy) -> Vec<Problem> {
        if policy.mode == UpgradeMode::Stateless {
            return Vec::new();
        }
        let mut problems = Vec::new();
        if let Some(Scale { from, to }) = self.key_groups {
            let message = format!("it cannot change from {from} to {to} while there is state");
            let cure =
                format!("write {from}, or `upgrade: {{mode: Stateless}}` to begin without state");
            problems.push(Problem::new("spec.maxParallelism", message, cure));
        }
        if policy.dropped_state == DroppedState::Refuse {
            problems.extend(self.dropped.iter().map(|dropped| {
                let cure = "take that back, or write `upgrade: {droppedState: Allow}`";
                Problem::new("spec", dropped.reason.clone(), cure)
            }));
        }
        problems
    }
}

/// What has to be done so that `desired` runs where `deployed` does.
#[must_use]
pub fn change(deployed: &Deployed, desired: &Desired, settings: &Settings) -> Change {
    let (old, new) = (&deployed.document, &desired.document);
    if old.attempt_hash() != new.attempt_hash() {
        return Change::Upgrade(upgrade(old, new));
    }
    let pods_hash = pod::pods_hash(desired, settings);
    let in_place = InPlace {
        scale: scale(old.spec.parallelism, new.spec.parallelism),
        policies: policies(&old.spec, &new.spec),
        pods: deployed
            .pods
            .as_ref()
            .is_some_and(|pods| pods.hash != pods_hash),
    };
    if in_place == InPlace::default() {
        return Change::None;
    }
    Change::InPlace(in_place)
}

fn scale(from: u32, to: u32) -> Option<Scale> {
    (from != to).then_some(Scale { from, to })
}

fn policies(old: &StreamJobSpec, new: &StreamJobSpec) -> Vec<&'static str> {
    let (old, new) = (coordinator_fields(old), coordinator_fields(new));
    let pairs = old.into_iter().zip(new);
    pairs
        .filter(|((_, old), (_, new))| old != new)
        .map(|((path, _), _)| path)
        .collect()
}

/// What only a coordinator is told.
pub(super) fn coordinator_fields(spec: &StreamJobSpec) -> [(&'static str, Value); 8] {
    let checkpoint = &spec.checkpoint;
    [
        ("spec.checkpoint.interval", json!(checkpoint.interval)),
        ("spec.checkpoint.timeout", json!(checkpoint.timeout)),
        ("spec.checkpoint.minPause", json!(checkpoint.min_pause)),
        ("spec.checkpoint.retain", json!(checkpoint.retain)),
        (
            "spec.checkpoint.tolerateFailures",
            json!(checkpoint.tolerate_failures),
        ),
        ("spec.state.memoryLimit", json!(spec.state.memory_limit)),
        ("spec.restart", json!(spec.restart)),
        (
            "spec.failureDetection",
            json!(spec.failure_detection.clone().unwrap_or_default()),
        ),
    ]
}

fn upgrade(old: &Document, new: &Document) -> Upgrade {
    let dropped = compatibility::foreseen(&old.graph, &new.graph);
    let dropped = dropped.into_iter().flat_map(|(uid, reasons)| {
        let of = move |reason| Dropped {
            uid: uid.0.clone(),
            reason,
        };
        reasons.into_iter().map(of)
    });
    Upgrade {
        why: differences(&old.spec, &new.spec),
        dropped: dropped.collect(),
        moves_store: place(&old.spec) != place(&new.spec),
        key_groups: scale(old.spec.max_parallelism, new.spec.max_parallelism),
    }
}

/// Bucket, prefix and server: where the checkpoints are, however they are reached.
fn place(spec: &StreamJobSpec) -> Option<(String, String, Option<String>)> {
    let storage = spec.checkpoint.storage.as_ref()?;
    let place = streamforge_plan::s3_place(&storage.uri, storage.s3.as_ref()).ok()?;
    Some((place.bucket, place.prefix, place.access.endpoint))
}

/// What differs between two documents, node by node.
fn differences(old: &StreamJobSpec, new: &StreamJobSpec) -> Vec<String> {
    let mut found = Vec::new();
    for (kind, old, new) in [
        ("source", json!(old.sources), json!(new.sources)),
        ("transform", json!(old.transforms), json!(new.transforms)),
        ("sink", json!(old.sinks), json!(new.sinks)),
    ] {
        node_differences(kind, &old, &new, &mut found);
    }
    if old.max_parallelism != new.max_parallelism {
        found.push("changes maxParallelism".to_owned());
    }
    if old.checkpoint.storage != new.checkpoint.storage {
        found.push("changes checkpoint.storage".to_owned());
    }
    found
}

fn node_differences(kind: &str, old: &Value, new: &Value, found: &mut Vec<String>) {
    let nodes = |list: &'_ Value| list.as_array().cloned().unwrap_or_default();
    let (old, new) = (nodes(old), nodes(new));
    let same = |list: &[Value], node: &Value| {
        list.iter()
            .find(|other| other.get("name") == node.get("name"))
            .cloned()
    };
    let name = |node: &Value| {
        node.get("name")
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_owned()
    };
    for node in &new {
        match same(&old, node) {
            None => found.push(format!("adds the {kind} `{}`", name(node))),
            Some(before) if before != *node => {
                found.push(format!("changes the {kind} `{}`", name(node)));
            }
            Some(_) => {}
        }
    }
    for node in &old {
        if same(&new, node).is_none() {
            found.push(format!("removes the {kind} `{}`", name(node)));
        }
    }
}

#[cfg(test)]
mod tests;
