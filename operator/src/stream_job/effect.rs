//! What an edit would do to a job that runs, in words.
//!
//! Owns: the sentences that the webhook warns with before an edit is made. They are told of what
//! [`super::judge`] found, and of nothing else. Pure. Start at: [`effects`].

use std::collections::BTreeSet;

use kube::ResourceExt as _;
use streamforge_core::job_graph::{JobGraph, OperatorKind};
use streamforge_crds::v1alpha1::{DroppedState, StreamJob, UpgradeMode};

use super::build::{KeptPods, pod};
use super::change::{Change, InPlace, Scale, Upgrade};
use super::judge::Judged;
use super::pass::{ACCEPT_LOST_MARKER, PAUSE, REWIND_TO};
use super::validate::Desired;
use crate::one_line::one_line;
use crate::record::{Record, State};
use crate::settings::Settings;

/// Names that a sentence lists; more are counted.
const NAMES_MAX: usize = 6;

/// Bytes of a name or value that a sentence shows.
const NAME_BYTES_MAX: usize = 60;

/// An edit of a job that is on record.
#[derive(Clone, Copy, Debug)]
pub struct Edit<'a> {
    /// The resource as it would be.
    pub job: &'a StreamJob,
    /// What was found of it.
    pub judged: &'a Judged,
    /// What is on record.
    pub record: &'a Record,
    /// The pods as they were built.
    pub kept: Option<&'a KeptPods>,
    /// What building needs.
    pub settings: &'a Settings,
}

/// What the edit would do, one sentence each; none: nothing that anybody would notice.
#[must_use]
pub fn effects(edit: &Edit<'_>) -> Vec<String> {
    let Some(Ok(current)) = &edit.judged.current else {
        return Vec::new();
    };
    let mut found = Vec::new();
    let change = edit.judged.change.as_ref().unwrap_or(&Change::None);
    let suspend = edit.job.spec.suspend;
    match &edit.record.state {
        State::Finished { .. } if *change != Change::None => found.push(
            "the job has finished, and no edit runs it again: delete it and create it anew"
                .to_owned(),
        ),
        State::Finished { .. } => {}
        State::Suspended if suspend => {
            found.extend(of_state(edit, current, change));
            if *change != Change::None {
                found.push("the job is suspended: this is taken when it is resumed".to_owned());
            }
        }
        State::Suspended => {
            let pods = pods(edit, current);
            found.push(format!("starts the job where it stopped, in {pods}"));
            found.extend(of_state(edit, current, change));
        }
        State::Failed { .. } => {
            if *change != Change::None {
                found.push("the job has failed, and is tried again with this document".to_owned());
            }
            found.extend(of_state(edit, current, change));
        }
        State::Active if suspend => {
            let pods = plural(current.replicas(), "pod");
            found.push(format!(
                "stops the job with a savepoint and removes its {pods}; its state stays"
            ));
            found.extend(of_state(edit, current, change));
        }
        State::Active => found.extend(of_active(edit, current, change)),
    }
    found.extend(of_annotations(edit));
    found
}

/// Annotations that ask for something and have not been obeyed yet.
fn of_annotations(edit: &Edit<'_>) -> Vec<String> {
    let annotations = edit.job.annotations();
    let mut found = Vec::new();
    if let Some(id) = annotations.get(REWIND_TO)
        && edit.record.done.rewind_to.as_ref() != Some(id)
    {
        let id = shown(id);
        found.push(format!(
            "goes back to checkpoint {id}: rows that were published after it come again"
        ));
    }
    if let Some(sinks) = annotations.get(ACCEPT_LOST_MARKER)
        && !edit.record.done.accept_lost_marker.is(Some(sinks))
    {
        let sinks = shown(sinks);
        found.push(format!(
            "if a marker of {sinks} is gone, rows are published that may be there already"
        ));
    }
    if annotations.contains_key(PAUSE) && (!found.is_empty() || has_change(edit)) {
        found.push(format!(
            "the annotation {PAUSE} is set: nothing of this is done while it is"
        ));
    }
    found
}

fn has_change(edit: &Edit<'_>) -> bool {
    !matches!(edit.judged.change, None | Some(Change::None))
}

/// A job that runs, or is about to.
fn of_active(edit: &Edit<'_>, current: &Desired, change: &Change) -> Vec<String> {
    match change {
        Change::None => Vec::new(),
        Change::InPlace(in_place) => of_in_place(edit, current, in_place),
        Change::Upgrade(upgrade) => vec![of_upgrade(edit, current, upgrade)],
    }
}

fn of_in_place(edit: &Edit<'_>, current: &Desired, in_place: &InPlace) -> Vec<String> {
    let mut found = Vec::new();
    if let Some(Scale { from, to }) = in_place.scale {
        let pods = pods(edit, current);
        found.push(format!(
            "hands key groups over from {from} to {to} subtasks, in {pods}, while rows flow; \
             all state is kept"
        ));
    }
    if in_place.pods {
        let pods = plural(current.replicas(), "pod");
        found.push(format!(
            "restarts {pods}, one after the other, each hands its key groups over first; \
             all state is kept"
        ));
    }
    if !in_place.policies.is_empty() {
        found.push("another coordinator takes the running tasks over; nothing restarts".to_owned());
    }
    found
}

/// Stop and start, in one sentence: what happens to the pods, then to the state.
fn of_upgrade(edit: &Edit<'_>, current: &Desired, upgrade: &Upgrade) -> String {
    let number = plural(current.replicas(), "pod");
    let pods = if replaces_pods(edit) {
        format!("restarts {number}")
    } else {
        format!("keeps its {number}")
    };
    if !edit.record.ran {
        return format!("starts the job anew with this document, {pods}; there is no state yet");
    }
    let how = match mode(edit) {
        UpgradeMode::Stateful => "stops the job with a savepoint and starts it from there",
        UpgradeMode::Stateless => "stops the job and begins anew, without its positions",
    };
    let state = of_upgraded_state(edit, current, upgrade).join(", ");
    format!("{how}, {pods}, {state}")
        .trim_end_matches([',', ' '])
        .to_owned()
}

/// Of a job that does not run: what its next start does to the state.
fn of_state(edit: &Edit<'_>, current: &Desired, change: &Change) -> Option<String> {
    let Change::Upgrade(upgrade) = change else {
        return None;
    };
    let words = of_upgraded_state(edit, current, upgrade);
    (edit.record.ran && !words.is_empty()).then(|| words.join(", "))
}

fn of_upgraded_state(edit: &Edit<'_>, current: &Desired, upgrade: &Upgrade) -> Vec<String> {
    let graph = &current.document.graph;
    let aggregates = uids(graph, |kind| matches!(kind, OperatorKind::WindowFinal(_)));
    let sources = uids(graph, |kind| matches!(kind, OperatorKind::Source(_)));
    if mode(edit) == UpgradeMode::Stateless {
        let dropped: Vec<&str> = aggregates.into_iter().collect();
        return of_names("drops the state of", &dropped)
            .into_iter()
            .collect();
    }
    if upgrade.key_groups.is_some() {
        let write = "begin without state: set upgrade.mode: Stateless";
        return vec![format!("no state fits another maxParallelism: {write}")];
    }
    let dropped: BTreeSet<&str> = upgrade.dropped.iter().map(|it| it.uid.as_str()).collect();
    let kept: Vec<&str> = aggregates.difference(&dropped).copied().collect();
    let lost: Vec<&str> = aggregates.intersection(&dropped).copied().collect();
    let unread: Vec<&str> = sources.intersection(&dropped).copied().collect();
    let mut words: Vec<String> = [
        of_names("keeps the state of", &kept),
        of_names("drops the state of", &lost),
        of_names("never reads the rest of", &unread),
    ]
    .into_iter()
    .flatten()
    .collect();
    let policy = edit.job.spec.upgrade.clone().unwrap_or_default();
    if policy.dropped_state == DroppedState::Refuse
        && !upgrade.dropped.is_empty()
        && let Some(last) = words.last_mut()
    {
        last.push_str(": set upgrade.droppedState: Allow");
    }
    words
}

fn uids(graph: &JobGraph, is_wanted: impl Fn(&OperatorKind) -> bool) -> BTreeSet<&str> {
    let operators = graph.operators().map(|(_, operator)| operator);
    operators
        .filter(|operator| is_wanted(&operator.kind))
        .map(|operator| operator.uid.0.as_str())
        .collect()
}

fn of_names(what: &str, names: &[&str]) -> Option<String> {
    let mut listed: Vec<String> = names
        .iter()
        .take(NAMES_MAX)
        .map(|name| shown(name))
        .collect();
    let more = names.len().saturating_sub(NAMES_MAX);
    if more > 0 {
        listed.push(format!("{more} more"));
    }
    (!names.is_empty()).then(|| format!("{what} {}", listed.join(", ")))
}

/// A text of the document's, in a line and not too long.
fn shown(text: &str) -> String {
    let plain = one_line(text);
    match plain.char_indices().find(|(at, _)| *at >= NAME_BYTES_MAX) {
        Some((at, _)) => format!("{}…", &plain[..at]),
        None => plain.into_owned(),
    }
}

fn mode(edit: &Edit<'_>) -> UpgradeMode {
    edit.job
        .spec
        .upgrade
        .as_ref()
        .map_or(UpgradeMode::Stateful, |policy| policy.mode)
}

fn replaces_pods(edit: &Edit<'_>) -> bool {
    let (Ok(desired), Some(kept)) = (&edit.judged.desired, edit.kept) else {
        return false;
    };
    kept.hash != pod::pods_hash(desired, edit.settings)
}

/// How many there will be.
fn pods(edit: &Edit<'_>, current: &Desired) -> String {
    let desired = edit.judged.desired.as_ref().unwrap_or(current);
    plural(desired.replicas(), "pod")
}

fn plural(n: i32, what: &str) -> String {
    match n {
        1 => format!("{n} {what}"),
        _ => format!("{n} {what}s"),
    }
}

#[cfg(test)]
mod tests;
