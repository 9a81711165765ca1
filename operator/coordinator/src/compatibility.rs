//! Whether a document can go on from a stored state.
//!
//! Owns: which edits break what. State follows the uid: a node keeps it as long as its uid and the
//! fields that give the state its meaning stay. Everything else may change between two runs.

use std::collections::BTreeMap;

use streamforge_core::ids::OperatorUid;
use streamforge_core::job_graph::{AggregateCall, AggregateSpec, JobGraph, Operator, OperatorKind};
use streamforge_core::manifest::{Manifest, SplitProgress};

/// What does not fit, one sentence each; empty: the document can take the state over.
#[must_use]
pub fn mismatches(stored: &JobGraph, wanted: &JobGraph, manifest: &Manifest) -> Vec<String> {
    let mut found = Vec::new();
    for uid in manifest.operators.keys() {
        state_mismatch(stored, wanted, uid, &mut found);
    }
    for (uid, splits) in &manifest.sources {
        source_mismatch(
            stored,
            wanted,
            &uid.0,
            splits.iter().map(|split| &split.progress),
            &mut found,
        );
    }
    for slot in manifest
        .staged
        .iter()
        .filter(|slot| !slot.intervals.is_empty())
    {
        let sink = &slot.slot.sink.0;
        let after = operator(wanted, sink);
        if !matches!(after.map(|after| &after.kind), Some(OperatorKind::Sink(_))) {
            let sentence = format!(
                "the sink with uid {sink:?} is gone, but output staged for it is not published yet; \
                 start once with it, then remove it"
            );
            if !found.contains(&sentence) {
                found.push(sentence);
            }
        }
    }
    found
}

/// What would not fit if every aggregate had state and no source were at its end, by the operator whose
/// state or input it is: what an edit does can be said before it is made.
#[must_use]
pub fn foreseen(stored: &JobGraph, wanted: &JobGraph) -> BTreeMap<OperatorUid, Vec<String>> {
    let mut by_operator = BTreeMap::new();
    for (_, before) in stored.operators() {
        let mut found = Vec::new();
        match &before.kind {
            OperatorKind::WindowFinal(_) => state_mismatch(stored, wanted, &before.uid, &mut found),
            OperatorKind::Source(_) => {
                let unread = [SplitProgress::At(String::new())];
                source_mismatch(stored, wanted, &before.uid.0, unread.iter(), &mut found);
            }
            _ => {}
        }
        if !found.is_empty() {
            by_operator.insert(before.uid.clone(), found);
        }
    }
    by_operator
}

fn state_mismatch(
    stored: &JobGraph,
    wanted: &JobGraph,
    uid: &OperatorUid,
    found: &mut Vec<String>,
) {
    match (operator(stored, &uid.0), operator(wanted, &uid.0)) {
        (_, None) => found.push(format!(
            "the aggregate with uid {uid:?} is gone, and its state would be dropped",
            uid = uid.0
        )),
        (Some(before), Some(after)) => aggregate_mismatch(before, after, found),
        (None, Some(_)) => {} // a state without a plan: nothing to compare with
    }
}

fn operator<'g>(graph: &'g JobGraph, uid: &str) -> Option<&'g Operator> {
    graph
        .operators()
        .map(|(_, operator)| operator)
        .find(|operator| operator.uid.0 == uid)
}

fn source_mismatch<'a>(
    stored: &JobGraph,
    wanted: &JobGraph,
    uid: &str,
    mut progress: impl Iterator<Item = &'a SplitProgress>,
    found: &mut Vec<String>,
) {
    let after = operator(wanted, uid).map(|after| &after.kind);
    let Some(OperatorKind::Source(after)) = after else {
        // A source read to its end has given all it had.
        if !progress.all(|progress| *progress == SplitProgress::End) {
            found.push(format!(
                "the source with uid {uid:?} is gone, and the rest of its input would never be read"
            ));
        }
        return;
    };
    let before = operator(stored, uid).map(|before| &before.kind);
    if let Some(OperatorKind::Source(before)) = before
        && before.connector.kind != after.connector.kind
    {
        found.push(format!(
            "source {uid:?} read from {:?} and now reads from {:?}: its positions mean nothing there",
            before.connector.kind, after.connector.kind
        ));
    }
}

fn aggregate_mismatch(before: &Operator, after: &Operator, found: &mut Vec<String>) {
    use OperatorKind::{WindowFinal, WindowPartial};
    let (WindowFinal(old) | WindowPartial(old)) = &before.kind else {
        return;
    };
    let (WindowFinal(new) | WindowPartial(new)) = &after.kind else {
        found.push(format!(
            "{:?} was an aggregate and no longer is one",
            before.uid.0
        ));
        return;
    };
    let changed = changed_fields(old, new);
    if !changed.is_empty() {
        found.push(format!(
            "{} of aggregate {:?} changed, which gives its state another meaning",
            changed.join(" and "),
            before.uid.0
        ));
    }
}

fn changed_fields(old: &AggregateSpec, new: &AggregateSpec) -> Vec<&'static str> {
    let key = |spec: &AggregateSpec| -> Vec<_> {
        spec.keys
            .iter()
            .map(|key| (key.expr.sql.clone(), key.expr.data_type.clone()))
            .collect()
    };
    let calls = |spec: &AggregateSpec| -> Vec<AggregateCall> {
        // What a column is called is not part of the state.
        let unnamed = |call: &AggregateCall| AggregateCall {
            name: String::new(),
            ..call.clone()
        };
        spec.calls.iter().map(unnamed).collect()
    };
    let mut changed = Vec::new();
    if key(old) != key(new) {
        changed.push("groupBy");
    }
    if old.window != new.window {
        changed.push("window");
    }
    if calls(old) != calls(new) {
        changed.push("select");
    }
    if old.emit != new.emit {
        changed.push("emit");
    }
    changed
}
