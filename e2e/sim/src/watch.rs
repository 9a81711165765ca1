//! What must hold at every swap of the head.
//!
//! Owns: the invariants of the stored history: C1 (expected tasks), C4 and C5 (numbers only grow),
//! C6 (nothing that is retained is missing), C7, C11, K1 (one owner per key group), T3 (the ledger,
//! per node and per edge, and against the positions). Checks by panicking.

use std::collections::{BTreeMap, BTreeSet};

use streamforge_coordinator::expected_objects;
use streamforge_core::frame;
use streamforge_core::ids::{CheckpointId, Epoch, OperatorUid, SplitId, TaskId};
use streamforge_core::job_graph::{Input as OperatorInput, JobGraph, OperatorKind, Port};
use streamforge_core::manifest::{
    self, CheckpointKind, HEAD_KEY, Head, Manifest, SplitProgress, SplitState,
};
use streamforge_core::object_key::{PARTS, writer_of};
use streamforge_store::{ETag, MemoryStore};

use crate::input::Input;

/// The newest head seen.
#[derive(Debug, Default)]
pub struct HeadWatch {
    /// As it was.
    pub head: Option<Head>,
    /// The manifest it names.
    pub newest: Option<Manifest>,
    /// The manifest of a stop whose publish the newest one records (X3).
    pub recorded: Option<Manifest>,
    version: Option<ETag>,
    /// The last hand-over: parts up to its barrier may be another's now (K3).
    handed: Option<(Epoch, CheckpointId)>,
    /// Objects that each manifest needs; a manifest never changes.
    needed: BTreeMap<String, Vec<String>>,
}

impl HeadWatch {
    /// Looks at the head; returns a manifest that it names for the first time.
    pub fn look(
        &mut self,
        store: &MemoryStore,
        graph: &JobGraph,
        input: &Input,
    ) -> Option<&Manifest> {
        let object = store.get_now(HEAD_KEY).ok().flatten()?;
        if self.version.as_ref() == Some(&object.etag) {
            return None;
        }
        self.version = Some(object.etag);
        let head: Head = manifest::decode(frame::HEAD, &object.bytes).expect("the head is whole");
        if let Some(before) = &self.head {
            check_step(before, &head);
        }
        for retained in &head.retained {
            self.check_retained(store, &retained.key);
        }
        let named = head.newest.as_ref().map(|newest| newest.key.clone());
        let before = self.head.as_ref().and_then(|head| head.newest.as_ref());
        let is_new = before.map(|newest| &newest.key) != named.as_ref();
        self.head = Some(head);
        if !is_new {
            return None;
        }
        let manifest = read_manifest(store, &named?);
        check_manifest(&manifest, graph, input, self.handed);
        check_splits(self.newest.as_ref(), &manifest);
        self.recorded = self
            .newest
            .take()
            .filter(|before| is_record(before, &manifest));
        if manifest.kind == CheckpointKind::HandOver {
            self.handed = Some((manifest.epoch, manifest.id));
        }
        self.newest = Some(manifest);
        self.newest.as_ref()
    }

    /// C6: the manifest and all that it needs are there.
    fn check_retained(&mut self, store: &MemoryStore, manifest: &str) {
        let needed = self.needed.entry(manifest.to_owned()).or_insert_with(|| {
            let objects = expected_objects(&read_manifest(store, manifest)).into_iter();
            objects
                .map(|object| object.key)
                .chain([manifest.to_owned()])
                .collect()
        });
        for key in needed {
            let there = store.get_now(key).ok().flatten();
            assert!(
                there.is_some(),
                "{key} is gone, but {manifest} is retained (C6)"
            );
        }
    }

    /// The job is done.
    pub fn is_finished(&self) -> bool {
        self.head.as_ref().is_some_and(|head| head.finished)
    }
}

/// A stop has one checkpoint; a second manifest of it records what was published, and is of the same
/// moment in everything else (X3).
fn is_record(before: &Manifest, manifest: &Manifest) -> bool {
    let of = |it: &Manifest| (it.kind, it.generation, it.epoch);
    if before.kind != CheckpointKind::Stop || of(before) != of(manifest) {
        return false;
    }
    let same = Manifest {
        id: before.id,
        time_ms: before.time_ms,
        staged: before.staged.clone(),
        ..manifest.clone()
    };
    assert_eq!(same, *before, "{}: another moment (X3)", manifest.id);
    let id = manifest.id;
    assert!(manifest.staged.is_empty(), "{id} records nothing (X3)");
    true
}

fn read_manifest(store: &MemoryStore, key: &str) -> Manifest {
    let object = store.get_now(key).ok().flatten();
    let object = object.unwrap_or_else(|| panic!("{key} is retained, but not there (C6)"));
    manifest::decode(frame::MANIFEST, &object.bytes).expect("a manifest is whole")
}

fn check_step(before: &Head, head: &Head) {
    assert!(
        head.generation >= before.generation,
        "a generation went back (C5)"
    );
    assert!(head.epoch >= before.epoch, "an epoch went back (C5)");
    assert!(
        head.ids_reserved_to >= before.ids_reserved_to,
        "a reservation went back (C4)"
    );
    assert!(
        head.assignment.version >= before.assignment.version,
        "a table went back (K2)"
    );
    let id = |head: &Head| head.newest.as_ref().map(|newest| newest.id);
    assert!(id(head) >= id(before), "the newest manifest went back (C7)");
    assert!(!before.finished, "a finished job was taken up again (C11)");
}

fn check_manifest(
    manifest: &Manifest,
    graph: &JobGraph,
    input: &Input,
    handed: Option<(Epoch, CheckpointId)>,
) {
    let id = manifest.id;
    if manifest.kind != CheckpointKind::Initial {
        let listed: BTreeSet<TaskId> = manifest.tasks.iter().copied().collect();
        // Those that leave at this barrier, and those that join.
        let mut subtasks = manifest.assignment.subtasks();
        subtasks.extend(manifest.handed_to.iter().flat_map(|table| table.subtasks()));
        let expected: BTreeSet<TaskId> = graph.tasks_of(subtasks).collect();
        assert_eq!(listed, expected, "{id}: not the expected tasks (C1)");
    }
    for slot in &manifest.staged {
        let ascending = slot.intervals.is_sorted_by(|a, b| a.id < b.id);
        assert!(
            ascending,
            "{id}: intervals of {} are not in order (C3)",
            slot.slot
        );
    }
    check_owners(manifest, handed);
    check_ledger(manifest, graph, input);
}

/// At most one live owner per key group: of the parts written in this attempt since owners changed
/// last, each block was written by the task that owns its group; and no block is listed twice.
fn check_owners(manifest: &Manifest, handed: Option<(Epoch, CheckpointId)>) {
    let handed = handed.filter(|(epoch, _)| *epoch == manifest.epoch);
    for (uid, state) in &manifest.operators {
        let mut seen = BTreeSet::new();
        for part in &state.parts {
            let writer = writer_of(&part.key).expect("parts are named by their writer");
            let ours = writer.epoch == manifest.epoch
                && handed.is_none_or(|(_, handed)| writer.checkpoint > handed);
            for block in &part.blocks {
                let first = seen.insert((part.key.clone(), block.group));
                assert!(
                    first,
                    "group {:?} of {} is listed twice",
                    block.group, part.key
                );
                let owner = manifest.assignment.owner(block.group);
                let owner = owner.map(|owner| owner.0.to_string());
                // What came with a savepoint is of no task.
                let writer = subtask_of(&part.key);
                assert!(
                    !ours || writer.is_none() || owner == writer,
                    "{uid}: {} holds group {:?} of another owner (K1)",
                    part.key,
                    block.group
                );
            }
        }
    }
}

/// The subtask in `parts/g1-e2-c3-t4.5-6`.
fn subtask_of(key: &str) -> Option<String> {
    let (_, name) = key.strip_prefix(PARTS)?.split_once("-t")?;
    let (task, _) = name.split_once('-')?;
    task.split_once('.').map(|(_, subtask)| subtask.to_owned())
}

/// A split that is known is known for ever, once, and is read on only (C7, C11).
fn check_splits(before: Option<&Manifest>, manifest: &Manifest) {
    let id = manifest.id;
    let at = |state: &SplitState| match &state.progress {
        SplitProgress::At(position) => position.parse().expect("positions are numbers"),
        SplitProgress::End => u64::MAX,
    };
    for (uid, states) in &manifest.sources {
        let mut now: BTreeMap<&SplitId, u64> = BTreeMap::new();
        for state in states {
            let again = now.insert(&state.split, at(state));
            assert!(again.is_none(), "{id}: {} is there twice (O4)", state.split);
        }
        let before = before.and_then(|before| before.sources.get(uid));
        for state in before.into_iter().flatten() {
            let (split, read) = (&state.split, at(state));
            assert!(
                now.get(split).is_some_and(|now| *now >= read),
                "{id}: {split} was read to {read} and is at {:?} (C7, C11)",
                now.get(split)
            );
        }
    }
}

/// T3: every record in exactly one place; per edge what goes out comes in; and a source's rows are
/// those before its positions.
fn check_ledger(manifest: &Manifest, graph: &JobGraph, input: &Input) {
    let id = manifest.id;
    let of = |uid: &OperatorUid| manifest.ledger.get(uid).copied().unwrap_or_default();
    for (uid, counters) in &manifest.ledger {
        assert!(
            counters.balances(),
            "{id}: the ledger of {uid} does not balance: {counters:?} (T3)"
        );
    }
    for (uid, splits) in &manifest.sources {
        let read = splits.iter().map(|split| input.read_n(split)).sum::<u64>();
        let rows_in = of(uid).rows_in;
        assert_eq!(
            rows_in, read,
            "{id}: {uid} counted other rows than it read (T3)"
        );
    }
    let place: BTreeMap<(u32, usize), &OperatorUid> = graph
        .operators()
        .map(|(stage, operator)| (stage.0, &operator.uid))
        .scan(BTreeMap::<u32, usize>::new(), |next, (stage, uid)| {
            let idx = next.entry(stage).or_default();
            *idx += 1;
            Some(((stage, *idx - 1), uid))
        })
        .collect();
    for (stage, operator) in graph.operators() {
        let senders = operator.inputs.iter().map(|from| match from {
            OperatorInput::Chained { operator, port } => (place.get(&(stage.0, *operator)), *port),
            OperatorInput::Edge(edge) => {
                let edge = graph.edges.get(*edge).expect("an edge");
                (
                    place.get(&(edge.from_stage.0, edge.from_operator)),
                    edge.port,
                )
            }
        });
        let senders: Vec<_> = senders.collect();
        let all_main = senders.iter().all(|(_, port)| *port == Port::Main);
        if matches!(operator.kind, OperatorKind::Source(_)) || !all_main {
            continue;
        }
        let out: u64 = senders
            .iter()
            .filter_map(|(uid, _)| *uid)
            .map(|uid| of(uid).out)
            .sum();
        let rows_in = of(&operator.uid).rows_in;
        assert_eq!(
            rows_in, out,
            "{id}: an edge into {} lost or doubled rows (T3)",
            operator.uid
        );
    }
}
