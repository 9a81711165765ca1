//! Whether a document can go on from a stored state.
//!
//! Owns: which edits break what, and what is left of a manifest when the state that they break is
//! dropped. State follows the uid: a node keeps it as long as its uid and the fields that give the state
//! its meaning stay. Everything else may change between two runs.

use std::collections::{BTreeMap, BTreeSet};

use streamforge_core::ids::OperatorUid;
use streamforge_core::job_graph::{
    AggregateCall, AggregateSpec, JobGraph, Operator, OperatorKind, SinkSpec,
};
use streamforge_core::manifest::{CheckpointKind, Manifest, SplitProgress};
use streamforge_core::sink_place::SinkPlace;

/// What does not fit, one sentence each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mismatches {
    /// By the operator or source whose state or input it is.
    pub state: BTreeMap<OperatorUid, Vec<String>>,
    /// Of output that is staged: rows that were promised, and may not be dropped.
    pub staged: Vec<String>,
}

impl Mismatches {
    /// Whether the document can take all of it over.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.state.is_empty() && self.staged.is_empty()
    }

    /// All of them.
    #[must_use]
    pub fn into_sentences(self) -> Vec<String> {
        let state = self.state.into_values().flatten();
        state.chain(self.staged).collect()
    }

    fn add(&mut self, uid: &OperatorUid, found: Vec<String>) {
        if !found.is_empty() {
            self.state.entry(uid.clone()).or_default().extend(found);
        }
    }
}

/// What does not fit; nothing: the document can take the state over.
#[must_use]
pub fn mismatches(stored: &JobGraph, wanted: &JobGraph, manifest: &Manifest) -> Mismatches {
    let mut all = Mismatches::default();
    for uid in manifest.operators.keys() {
        let mut found = Vec::new();
        state_mismatch(stored, wanted, uid, &mut found);
        all.add(uid, found);
    }
    for (uid, splits) in &manifest.sources {
        let mut found = Vec::new();
        let progress = splits.iter().map(|split| &split.progress);
        source_mismatch(stored, wanted, &uid.0, progress, &mut found);
        all.add(uid, found);
    }
    output_mismatches(stored, wanted, manifest, &mut all.staged);
    all
}

/// The manifest without the state and the positions of these. What they counted stays in its ledger: it
/// has happened.
#[must_use]
pub(crate) fn without<'a>(
    mut manifest: Manifest,
    dropped: impl IntoIterator<Item = &'a OperatorUid>,
) -> Manifest {
    for uid in dropped {
        manifest.operators.remove(uid);
        manifest.sources.remove(uid);
    }
    manifest
}

/// Output that is committed and not visible is published by the sink that staged it: from where it lies,
/// to where it belongs.
fn output_mismatches(
    stored: &JobGraph,
    wanted: &JobGraph,
    manifest: &Manifest,
    found: &mut Vec<String>,
) {
    let staged = manifest.staged.iter();
    let staged: BTreeSet<&str> = staged
        .filter(|slot| !slot.intervals.is_empty())
        .map(|slot| slot.slot.sink.0.as_str())
        .collect();
    let written = stored
        .operators()
        .map(|(_, operator)| operator.uid.0.as_str());
    let uids: BTreeSet<&str> = staged.iter().copied().chain(written).collect();
    for uid in uids {
        let (before, after) = (sink(stored, uid), sink(wanted, uid));
        let left_staged = || strands_staged(before, after);
        let left_open = || before.and_then(|before| strands_open(before, after));
        let stranded = staged.contains(uid).then(left_staged).flatten();
        let stranded = match stranded {
            None if leaves_files_open(manifest.kind) => left_open(),
            stranded => stranded,
        };
        if let Some(what) = stranded {
            found.push(format!(
                "the sink with uid {uid:?} {what}; put it back for one start, stop the job, then change it"
            ));
        }
    }
}

/// What an edit does to a sink whose staged intervals would then not be published.
fn strands_staged(before: Option<&SinkSpec>, after: Option<&SinkSpec>) -> Option<String> {
    let Some(after) = after else {
        return Some("is gone, but output staged for it is not published yet".to_owned());
    };
    match (before.and_then(SinkPlace::of), SinkPlace::of(after)) {
        // A kind that nothing is known of, before and now.
        (None, None) => None,
        (Some(_), None) => Some(
            "would no longer publish, but output staged for it is not published yet".to_owned(),
        ),
        // The folder may have been moved with all that is in it: its publisher sees that.
        (Some(SinkPlace::Folder(_)), Some(SinkPlace::Folder(_))) => None,
        (Some(before), Some(after)) if before != after => Some(format!(
            "would publish to {after}, but output staged for {before} is not published yet"
        )),
        _ => None,
    }
}

/// What an edit does to a sink whose committed rows may lie in files that its `rollover` has left open.
fn strands_open(before: &SinkSpec, after: Option<&SinkSpec>) -> Option<String> {
    let folder = SinkPlace::holding(before)?;
    let change = match after.map(SinkPlace::of) {
        None => "is gone".to_owned(),
        Some(None) => "would no longer publish".to_owned(),
        Some(Some(SinkPlace::Folder(after))) if after == folder => return None,
        Some(Some(after)) => format!("would publish to {after}"),
    };
    Some(format!(
        "{change}, but the job did not stop by itself, and committed rows may lie in folder {folder:?} in files \
         that `rollover` keeps open"
    ))
}

/// Whether files with a `rollover` stay open over such a checkpoint. Before `Initial` of a restored job
/// what was kept back is made visible.
fn leaves_files_open(kind: CheckpointKind) -> bool {
    use CheckpointKind::{Final, HandOver, Initial, Ordinary, Savepoint, Stop};
    match kind {
        Ordinary | HandOver => true,
        Initial | Savepoint | Stop | Final => false,
    }
}

fn sink<'g>(graph: &'g JobGraph, uid: &str) -> Option<&'g SinkSpec> {
    match operator(graph, uid).map(|operator| &operator.kind) {
        Some(OperatorKind::Sink(spec)) => Some(spec),
        _ => None,
    }
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
        (before, None) => {
            let renamed = before.and_then(|before| renamed_aggregate(stored, wanted, before));
            found.push(format!(
                "the aggregate with uid {uid:?} is gone, and its state would be dropped{cure}",
                uid = uid.0,
                cure = of_renamed(renamed, &uid.0)
            ));
        }
        (Some(before), Some(after)) => aggregate_mismatch(before, after, found),
        (None, Some(_)) => {} // a state without a plan: nothing to compare with
    }
}

/// What to write if a node that is new is this one by another name.
fn of_renamed(renamed: Option<&Operator>, uid: &str) -> String {
    renamed.map_or_else(String::new, |renamed| {
        let name = &renamed.node;
        format!("; if {name:?} is the same by another name, give that one `uid: {uid}`")
    })
}

/// The only node of `wanted` that is none of `stored` and is like this.
fn only_new<'g>(
    stored: &JobGraph,
    wanted: &'g JobGraph,
    is_like: impl Fn(&OperatorKind) -> bool,
) -> Option<&'g Operator> {
    let all = wanted.operators().map(|(_, operator)| operator);
    let mut new = all
        .filter(|it| is_like(&it.kind))
        .filter(|it| operator(stored, &it.uid.0).is_none());
    let first = new.next();
    first.filter(|_| new.next().is_none())
}

fn renamed_aggregate<'g>(
    stored: &JobGraph,
    wanted: &'g JobGraph,
    before: &Operator,
) -> Option<&'g Operator> {
    let OperatorKind::WindowFinal(old) = &before.kind else {
        return None;
    };
    only_new(stored, wanted, |kind| match kind {
        OperatorKind::WindowFinal(new) => changed_fields(old, new).is_empty(),
        _ => false,
    })
}

fn renamed_source<'g>(stored: &JobGraph, wanted: &'g JobGraph, uid: &str) -> Option<&'g Operator> {
    let OperatorKind::Source(old) = &operator(stored, uid)?.kind else {
        return None;
    };
    only_new(stored, wanted, |kind| match kind {
        OperatorKind::Source(new) => new.connector == old.connector,
        _ => false,
    })
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
            let cure = of_renamed(renamed_source(stored, wanted, uid), uid);
            found.push(format!(
                "the source with uid {uid:?} is gone, and the rest of its input would never be read{cure}"
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
    // Which windows have fired, and which rows are done with, is not stored: it follows from the watermark
    // and these two.
    if old.allowed_lateness_us != new.allowed_lateness_us {
        changed.push("allowedLateness");
    }
    if old.emit != new.emit {
        changed.push("emit");
    }
    changed
}
