//! Loading the state of one operator for the key groups of one task.
//!
//! Owns: which blocks are read, from where, and whose watermark each group goes on from (T6).

use std::collections::BTreeSet;
use std::ops::Range;

use arrow::record_batch::RecordBatch;
use streamforge_core::event_time::Watermark;
use streamforge_core::ids::TaskId;
use streamforge_core::key_group::{Assignment, KeyGroup};
use streamforge_core::manifest::{BlockRef, Manifest, OperatorState, PartRef};
use streamforge_engine::operator::RestoredState;
use streamforge_engine::state::RestoredPart;
use streamforge_store::ObjectStore;
use tracing::warn;

use crate::Error;
use crate::local::LocalCopies;
use crate::part::{block_bytes, decode_block};

/// Where parts are read.
#[derive(Clone, Copy, Debug)]
pub struct Parts<'a> {
    /// Has all of them.
    pub store: &'a dyn ObjectStore,
    /// Has some; `None`: no copies are kept here.
    pub local: Option<&'a LocalCopies>,
}

impl<'a> Parts<'a> {
    /// The store alone.
    pub fn stored(store: &'a dyn ObjectStore) -> Self {
        Self { store, local: None }
    }
}

/// The state of an operator that `task` begins with, under `assignment`.
pub async fn load_operator(
    from: Parts<'_>,
    manifest: &Manifest,
    state: &OperatorState,
    task: TaskId,
    assignment: &Assignment,
) -> Result<RestoredState, Error> {
    let mine = assignment.groups_of(task.subtask).into_iter().collect();
    load_groups(from, manifest, state, &mine).await
}

/// The state of an operator in these key groups.
pub async fn load_groups(
    from: Parts<'_>,
    manifest: &Manifest,
    state: &OperatorState,
    wanted: &BTreeSet<KeyGroup>,
) -> Result<RestoredState, Error> {
    let groups: Vec<(KeyGroup, Watermark)> = wanted
        .iter()
        .map(|group| (*group, watermark_of(manifest, state, *group)))
        .collect();
    let watermark = groups.iter().map(|(_, w)| *w).max().unwrap_or_default();
    let mut parts = Vec::new();
    for part in &state.parts {
        if let Some(part) = load_part(from, part, wanted).await? {
            parts.push(part);
        }
    }
    Ok(RestoredState {
        groups,
        watermark,
        parts,
    })
}

/// Watermark of the task that kept this group.
///
/// Only the subtask counts: an edit of the document may have given the operator's stage another
/// number, and a watermark that is not found would begin at the start of time (T6).
fn watermark_of(manifest: &Manifest, state: &OperatorState, group: KeyGroup) -> Watermark {
    let Some(subtask) = manifest.assignment.owner(group) else {
        return Watermark::NONE;
    };
    state
        .watermarks
        .iter()
        .find(|(kept, _)| kept.subtask == subtask)
        .map_or(Watermark::NONE, |(_, watermark)| *watermark)
}

/// One part's rows in these groups; `None` if it has none there.
async fn load_part(
    from: Parts<'_>,
    part: &PartRef,
    wanted: &BTreeSet<KeyGroup>,
) -> Result<Option<RestoredPart>, Error> {
    let blocks: Vec<_> = part
        .blocks
        .iter()
        .filter(|block| wanted.contains(&block.group))
        .copied()
        .collect();
    let (Some(first), Some(last)) = (
        blocks.iter().map(|b| b.offset).min(),
        blocks
            .iter()
            .map(|b| b.offset.saturating_add(b.length))
            .max(),
    ) else {
        return Ok(None);
    };
    let range = first..last;
    let held = from
        .local
        .and_then(|it| Some((it, it.read(&part.key, &range)?)));
    let mut rows = None;
    if let Some((local, bytes)) = held {
        match decode(part, &blocks, first, &bytes) {
            Ok(decoded) => {
                local.on_read(true, bytes.len() as u64);
                rows = Some(decoded);
            }
            Err(error) => {
                warn!("{error} in the local copy; reading the store");
                local.forget(&part.key);
            }
        }
    }
    let rows = match rows {
        Some(rows) => rows,
        None => load_stored(from, part, &blocks, range).await?,
    };
    let stored = PartRef {
        blocks,
        ..part.clone()
    };
    Ok(Some(RestoredPart {
        kind: part.kind.clone(),
        stored,
        blocks: rows,
    }))
}

/// Blocks lie in order of their groups and a task's groups mostly in runs: one read spans them.
async fn load_stored(
    from: Parts<'_>,
    part: &PartRef,
    blocks: &[BlockRef],
    range: Range<u64>,
) -> Result<Vec<(KeyGroup, RecordBatch)>, Error> {
    let first = range.start;
    let read = from.store.get_range(&part.key, range).await;
    let bytes = read.map_err(|source| Error::Store {
        action: "read",
        key: part.key.clone(),
        source,
    })?;
    let rows = decode(part, blocks, first, &bytes)?;
    if let Some(local) = from.local {
        local.on_read(false, bytes.len() as u64);
        local.keep(&part.key, first, &bytes);
    }
    Ok(rows)
}

/// The rows of these blocks, each checked; `bytes` begin at `first` of the part.
fn decode(
    part: &PartRef,
    blocks: &[BlockRef],
    first: u64,
    bytes: &[u8],
) -> Result<Vec<(KeyGroup, RecordBatch)>, Error> {
    let row = |block: &BlockRef| {
        let mut within = *block;
        within.offset -= first;
        let slice = block_bytes(bytes, &within).unwrap_or_default();
        Ok((block.group, decode_block(&part.key, block, slice)?))
    };
    blocks.iter().map(row).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::pin::pin;
    use std::sync::Arc;
    use std::task::{Context, Poll, Waker};

    use arrow::array::Int64Array;
    use arrow::datatypes::{DataType, Field, Schema};
    use streamforge_core::ids::{CheckpointId, Epoch, Generation, JobId, StageIdx, SubtaskIdx};
    use streamforge_core::manifest::CheckpointKind;
    use streamforge_engine::state::PartRows;
    use streamforge_store::{Condition, MemoryStore, Put};

    use super::*;
    use crate::part::encode_part;

    fn manifest(assignment: Assignment) -> Manifest {
        Manifest {
            job: JobId("j".to_owned()),
            generation: Generation::ZERO,
            epoch: Epoch::ZERO,
            id: CheckpointId::ZERO,
            kind: CheckpointKind::Ordinary,
            plan: String::new(),
            parallelism: 2,
            max_parallelism: assignment.groups_n(),
            assignment,
            time_ms: 0,
            duration_ms: 0,
            tasks: Vec::new(),
            sources: BTreeMap::new(),
            operators: BTreeMap::new(),
            staged: Vec::new(),
            ledger: BTreeMap::new(),
            late_log: Vec::new(),
            handed_to: None,
            departed: Default::default(),
        }
    }

    /// Subtask 0 kept groups 0 and 1 up to 80, subtask 1 kept 2 and 3 up to 95.
    fn kept() -> (Manifest, OperatorState) {
        let kept = |subtask, w| {
            let task = TaskId {
                stage: StageIdx(7),
                subtask: SubtaskIdx(subtask),
            };
            (task, Watermark(w))
        };
        let state = OperatorState {
            watermarks: vec![kept(0, 80), kept(1, 95)],
            parts: Vec::new(),
        };
        (manifest(Assignment::even(4, 2)), state)
    }

    #[test]
    fn watermark_of_a_group_is_its_last_owners_whatever_stage_that_was_t6() {
        let (manifest, state) = kept();

        let found = [0, 1, 2, 3].map(|group| watermark_of(&manifest, &state, KeyGroup(group)).0);

        assert_eq!(found, [80, 80, 95, 95]);
    }

    /// What a future that never waits comes to.
    fn now<T>(future: impl Future<Output = T>) -> T {
        let mut context = Context::from_waker(Waker::noop());
        match pin!(future).poll(&mut context) {
            Poll::Ready(value) => value,
            Poll::Pending => panic!("a store in memory never waits"),
        }
    }

    fn stored_part() -> (PartRows, bytes::Bytes, PartRef) {
        let column = Arc::new(Int64Array::from(vec![1, 2, 3]));
        let schema = Schema::new(vec![Field::new("k", DataType::Int64, false)]);
        let rows = PartRows {
            rows: RecordBatch::try_new(Arc::new(schema), vec![column]).unwrap(),
            groups: vec![(KeyGroup(0), 0..1), (KeyGroup(1), 1..3)],
        };
        let key = "parts/g1-e1-c1-t0-0-1".to_owned();
        let (object, part) = encode_part(key, "slices", &rows).unwrap();
        (rows, object, part)
    }

    #[test]
    fn copies_are_read_first_and_damaged_ones_cost_a_read_of_the_store_c8() {
        let folder = tempfile::tempdir().unwrap();
        let copies = LocalCopies::open(folder.path()).unwrap();
        let store = MemoryStore::new();
        let (rows, object, part) = stored_part();
        let put = now(store.put(&part.key, object.clone(), Condition::None));
        assert!(matches!(put, Ok(Put::Done(_))));
        let from = Parts {
            store: &store,
            local: Some(&copies),
        };
        let wanted = BTreeSet::from([KeyGroup(1)]);
        let load = || {
            let part = now(load_part(from, &part, &wanted)).unwrap().unwrap();
            assert_eq!(part.blocks, [(KeyGroup(1), rows.rows.slice(1, 2))]);
            let reads = copies.reads();
            (reads.here_n, reads.store_n)
        };

        assert_eq!(load(), (0, 1), "nothing was here");
        assert_eq!(load(), (1, 1), "what was read once is kept");
        copies.forget(&part.key);
        let mut bad = object.to_vec();
        let last = usize::try_from(part.blocks[1].offset).unwrap() + 9;
        bad[last] ^= 1;
        copies.keep(&part.key, 0, &bad);
        assert_eq!(load(), (1, 2), "a damaged copy is not believed");
        copies.forget(&part.key);
        copies.keep(&part.key, 0, &object);
        now(store.delete(std::slice::from_ref(&part.key))).unwrap();
        assert_eq!(load(), (2, 2), "the store was not asked");
    }

    #[test]
    fn task_begins_at_the_highest_watermark_of_its_groups_t6() {
        let (manifest, state) = kept();
        let task = TaskId {
            stage: StageIdx(1),
            subtask: SubtaskIdx(0),
        };
        let (store, alone) = (MemoryStore::new(), Assignment::even(4, 1));

        let loaded = load_operator(Parts::stored(&store), &manifest, &state, task, &alone);

        let restored = now(loaded).unwrap();
        assert_eq!(restored.watermark, Watermark(95));
        let groups = restored.groups.iter().map(|(group, w)| (group.0, w.0));
        assert!(groups.eq([(0, 80), (1, 80), (2, 95), (3, 95)]));
    }
}
