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
    let mine = assignment.groups_of(task.subtask);
    let groups: Vec<(KeyGroup, Watermark)> = mine
        .iter()
        .map(|group| (*group, watermark_of(manifest, state, task, *group)))
        .collect();
    let watermark = groups.iter().map(|(_, w)| *w).max().unwrap_or_default();
    let wanted: BTreeSet<KeyGroup> = mine.into_iter().collect();
    let mut parts = Vec::new();
    for part in &state.parts {
        if let Some(part) = load_part(store, part, &wanted).await? {
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
fn watermark_of(
    manifest: &Manifest,
    state: &OperatorState,
    task: TaskId,
    group: KeyGroup,
) -> Watermark {
    let Some(subtask) = manifest.assignment.owner(group) else {
        return Watermark::NONE;
    };
    let keeper = TaskId {
        stage: task.stage,
        subtask,
    };
    state
        .watermarks
        .iter()
        .find(|(task, _)| *task == keeper)
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
