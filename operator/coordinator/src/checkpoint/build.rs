//! From acknowledgements to a manifest.
//!
//! Owns: the union, and what must hold of it. A task whose part contradicts another's or forgets
//! something fails the attempt instead of committing a loss.

use std::collections::{BTreeMap, BTreeSet};

use streamforge_core::ids::{CheckpointId, OperatorUid, SplitId, TaskId};
use streamforge_core::manifest::{
    CheckpointKind, Departed, Head, Manifest, ObjectRef, OperatorState, SplitProgress, SplitState,
};
use streamforge_core::messages::{HandOver, TaskSnapshot};

use crate::attempt::{Attempt, ledger};
use crate::publish::Publisher;

pub(super) struct Header<'a> {
    pub head: &'a Head,
    pub id: CheckpointId,
    pub kind: CheckpointKind,
    pub max_parallelism: u32,
    /// Whether the plan, or one before it, has no end.
    pub is_endless: bool,
    pub time_ms: u64,
    pub duration_ms: u64,
}

impl Header<'_> {
    fn manifest(&self) -> Manifest {
        Manifest {
            job: self.head.job.clone(),
            generation: self.head.generation,
            epoch: self.head.epoch,
            id: self.id,
            kind: self.kind,
            plan: self.head.plan.clone(),
            parallelism: self.head.parallelism,
            max_parallelism: self.max_parallelism,
            assignment: self.head.assignment.clone(),
            time_ms: self.time_ms,
            duration_ms: self.duration_ms,
            tasks: Vec::new(),
            sources: BTreeMap::new(),
            operators: BTreeMap::new(),
            staged: Vec::new(),
            ledger: BTreeMap::new(),
            late_log: Vec::new(),
            ran_endless: self.is_endless,
            handed_to: None,
            departed: Departed::default(),
        }
    }
}

/// Manifest 0, or the like of it when a document brings a new source: what was restored, and the
/// resolved splits (C10).
pub(super) fn initial(header: &Header<'_>, attempt: &Attempt, publisher: &Publisher) -> Manifest {
    let restored = attempt.restored.as_ref();
    let mut manifest = header.manifest();
    manifest.sources = attempt.sources.clone();
    manifest.staged = publisher.list([]);
    if let Some(restored) = restored {
        manifest.operators = restored.operators.clone();
        manifest.ledger = restored.ledger.clone();
        manifest.late_log = restored.late_log.clone();
        // State is laid out by the table of those who wrote it, until a checkpoint rewrites it.
        manifest.assignment = restored.assignment.clone();
        manifest.parallelism = restored.parallelism;
    }
    manifest
}

/// Everything the job is at this barrier, from the parts of all expected tasks (C1).
pub(super) fn union(
    header: &Header<'_>,
    attempt: &Attempt,
    acks: &BTreeMap<TaskId, TaskSnapshot>,
    publisher: &Publisher,
) -> Result<Manifest, String> {
    let mut manifest = header.manifest();
    manifest.tasks = acks.keys().copied().collect();
    manifest.sources = sources(attempt, acks)?;
    if header.kind == CheckpointKind::Final
        && let Some((source, split)) = open_split(&manifest.sources)
    {
        return Err(format!(
            "all tasks ended, but split {split} of {source} is not at its end"
        ));
    }
    manifest.operators = operators(acks);
    if let Some(restored) = &attempt.restored
        && let Some(lost) = restored
            .operators
            .keys()
            .find(|uid| !manifest.operators.contains_key(*uid))
    {
        return Err(format!("no task reported the restored state of {lost}"));
    }
    manifest.staged = publisher.list(acks.values().flat_map(|ack| ack.staged.iter().cloned()));
    let restored = attempt.restored.as_ref();
    manifest.ledger = ledger(
        restored.map(|manifest| &manifest.ledger),
        acks.values()
            .map(|ack| &ack.counters)
            .chain([&attempt.departed.counters]),
    );
    manifest.late_log = late_log(attempt, acks);
    manifest.departed = attempt.departed.clone();
    if let (CheckpointKind::HandOver, Some(hand_over)) = (header.kind, &attempt.hand_over) {
        let plan = &hand_over.plan;
        if let Some((source, split)) = left_behind(plan, acks) {
            return Err(format!(
                "split {split} of {source} was found after the splits were dealt, by a task that leaves"
            ));
        }
        manifest.handed_to = Some(plan.deployment.assignment.clone());
        for (task, ack) in acks {
            if plan.leaving.contains(&task.subtask) {
                let departed = &mut manifest.departed;
                departed.counters = ledger(Some(&departed.counters), [&ack.counters]);
                departed.late_log.extend(ack.late_log.iter().cloned());
            }
        }
    }
    Ok(manifest)
}

/// Every split once. Ended ones are carried from manifest to manifest and never open again (C11).
fn sources(
    attempt: &Attempt,
    acks: &BTreeMap<TaskId, TaskSnapshot>,
) -> Result<BTreeMap<OperatorUid, Vec<SplitState>>, String> {
    let mut found: BTreeMap<&OperatorUid, BTreeMap<&SplitId, &SplitState>> = BTreeMap::new();
    for (source, splits) in acks.values().flat_map(|ack| &ack.splits) {
        for split in splits {
            if found
                .entry(source)
                .or_default()
                .insert(&split.split, split)
                .is_some()
            {
                return Err(format!(
                    "two tasks reported split {} of {source}",
                    split.split
                ));
            }
        }
    }
    for (source, known) in &attempt.sources {
        let found = found.entry(source).or_default();
        for before in known {
            let now = found.get(&before.split).map(|now| &now.progress);
            match (&before.progress, now) {
                (SplitProgress::End, None) => drop(found.insert(&before.split, before)),
                (SplitProgress::End, Some(SplitProgress::At(_))) => {
                    return Err(format!(
                        "split {} of {source} was ended and is read again",
                        before.split
                    ));
                }
                (SplitProgress::At(_), None) => {
                    return Err(format!(
                        "no task reported split {} of {source}",
                        before.split
                    ));
                }
                (_, Some(_)) => {}
            }
        }
    }
    let owned = |(source, splits): (&OperatorUid, BTreeMap<&SplitId, &SplitState>)| {
        (source.clone(), splits.into_values().cloned().collect())
    };
    Ok(found.into_iter().map(owned).collect())
}

/// An open split whose reader leaves and that nobody is dealt: no later checkpoint could be complete.
fn left_behind<'a>(
    plan: &HandOver,
    acks: &'a BTreeMap<TaskId, TaskSnapshot>,
) -> Option<(&'a OperatorUid, &'a SplitId)> {
    let leaving = acks.iter();
    let leaving = leaving.filter(|(task, _)| plan.leaving.contains(&task.subtask));
    let sources = leaving.flat_map(|(_, ack)| &ack.splits);
    let mut splits = sources.flat_map(|(source, all)| all.iter().map(move |it| (source, it)));
    let is_dealt = |source: &OperatorUid, split: &SplitId| {
        let deal = plan.splits.get(source);
        deal.is_some_and(|deal| deal.contains_key(split))
    };
    let found = splits.find(|(source, split)| {
        split.progress != SplitProgress::End && !is_dealt(source, &split.split)
    });
    found.map(|(source, split)| (source, &split.split))
}

fn open_split(
    sources: &BTreeMap<OperatorUid, Vec<SplitState>>,
) -> Option<(&OperatorUid, &SplitId)> {
    let all = sources
        .iter()
        .flat_map(|(source, splits)| splits.iter().map(move |it| (source, it)));
    let mut open = all.filter(|(_, split)| split.progress != SplitProgress::End);
    open.next().map(|(source, split)| (source, &split.split))
}

fn operators(acks: &BTreeMap<TaskId, TaskSnapshot>) -> BTreeMap<OperatorUid, OperatorState> {
    let mut operators: BTreeMap<OperatorUid, OperatorState> = BTreeMap::new();
    for (task, ack) in acks {
        for (uid, (watermark, parts)) in &ack.operators {
            let state = operators.entry(uid.clone()).or_default();
            state.watermarks.push((*task, *watermark));
            // A part restored by several tasks, each for its own groups, is still one object.
            for part in parts {
                match state.parts.iter_mut().find(|known| known.key == part.key) {
                    None => state.parts.push(part.clone()),
                    Some(known) => {
                        let listed: BTreeSet<_> = known.blocks.iter().map(|it| it.group).collect();
                        let new = part.blocks.iter().filter(|it| !listed.contains(&it.group));
                        known.blocks.extend(new.copied());
                        known.blocks.sort_by_key(|block| block.group);
                    }
                }
            }
        }
    }
    operators
}

fn late_log(attempt: &Attempt, acks: &BTreeMap<TaskId, TaskSnapshot>) -> Vec<ObjectRef> {
    let restored = attempt
        .restored
        .iter()
        .flat_map(|manifest| &manifest.late_log);
    restored
        .chain(&attempt.departed.late_log)
        .chain(acks.values().flat_map(|ack| &ack.late_log))
        .cloned()
        .collect()
}
