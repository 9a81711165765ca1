//! Loading the state of one operator for the key groups of one task.
//!
//! Owns: which blocks are read, and whose watermark each group goes on from (T6).

use std::collections::BTreeSet;

use streamforge_core::event_time::Watermark;
use streamforge_core::ids::TaskId;
use streamforge_core::key_group::{Assignment, KeyGroup};
use streamforge_core::manifest::{Manifest, OperatorState, PartRef};
use streamforge_engine::operator::RestoredState;
use streamforge_engine::state::RestoredPart;
use streamforge_store::ObjectStore;

use crate::Error;
use crate::part::{block_bytes, decode_block};

/// The state of an operator that `task` begins with, under `assignment`.
pub async fn load_operator(
    store: &dyn ObjectStore,
    manifest: &Manifest,
    state: &OperatorState,
    task: TaskId,
    assignment: &Assignment,
) -> Result<RestoredState, Error> {
    let mine = assignment.groups_of(task.subtask).into_iter().collect();
    load_groups(store, manifest, state, &mine).await
}

/// The state of an operator in these key groups.
pub async fn load_groups(
    store: &dyn ObjectStore,
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
        if let Some(part) = load_part(store, part, wanted).await? {
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
    store: &dyn ObjectStore,
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
    // Blocks lie in order of their groups and a task's groups mostly in runs: one read spans them.
    let bytes = store
        .get_range(&part.key, first..last)
        .await
        .map_err(|source| Error::Store {
            action: "read",
            key: part.key.clone(),
            source,
        })?;
    let mut rows = Vec::with_capacity(blocks.len());
    for block in &blocks {
        let mut within = *block;
        within.offset -= first;
        let slice = block_bytes(&bytes, &within).unwrap_or_default();
        rows.push((block.group, decode_block(&part.key, block, slice)?));
    }
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use streamforge_core::ids::{CheckpointId, Epoch, Generation, JobId, StageIdx, SubtaskIdx};
    use streamforge_core::manifest::CheckpointKind;
    use streamforge_store::MemoryStore;

    use super::*;

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

    #[test]
    fn task_begins_at_the_highest_watermark_of_its_groups_t6() {
        let (manifest, state) = kept();
        let task = TaskId {
            stage: StageIdx(1),
            subtask: SubtaskIdx(0),
        };
        let (store, alone) = (MemoryStore::new(), Assignment::even(4, 1));

        let loaded = load_operator(&store, &manifest, &state, task, &alone);

        // Without parts there is nothing to wait for.
        let mut context = Context::from_waker(Waker::noop());
        let Poll::Ready(Ok(restored)) = pin!(loaded).poll(&mut context) else {
            panic!("it has to do with the store");
        };
        assert_eq!(restored.watermark, Watermark(95));
        let groups = restored.groups.iter().map(|(group, w)| (group.0, w.0));
        assert!(groups.eq([(0, 80), (1, 80), (2, 95), (3, 95)]));
    }
}
