//! Loading the state of one operator for the key groups of one task.
//!
//! Owns: which blocks are read, from where, and whose watermark each group goes on from (T6).

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use arrow::record_batch::RecordBatch;
use bytes::{Bytes, BytesMut};
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

/// Read at once at most: a large part takes long, and whoever waits for it sees meanwhile that it gets on.
const PIECE_BYTES: u64 = 64 << 20;

/// Where parts are read.
#[derive(Clone, Copy, Debug)]
pub struct Parts<'a> {
    /// Has all of them.
    pub store: &'a dyn ObjectStore,
    /// Has some; `None`: no copies are kept here.
    pub local: Option<&'a LocalCopies>,
    /// Counts bytes as they are read, for whoever wants to know whether loading gets on.
    pub read: Option<&'a AtomicU64>,
}

impl<'a> Parts<'a> {
    /// The store alone.
    pub fn stored(store: &'a dyn ObjectStore) -> Self {
        Self {
            store,
            local: None,
            read: None,
        }
    }

    fn on_read(&self, bytes: &Bytes) {
        if let Some(read) = self.read {
            read.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        }
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
                from.on_read(&bytes);
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
    let read = read_in_pieces(from, &part.key, range, PIECE_BYTES).await;
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

async fn read_in_pieces(
    from: Parts<'_>,
    key: &str,
    range: Range<u64>,
    piece: u64,
) -> Result<Bytes, streamforge_store::Error> {
    let length = range.end.saturating_sub(range.start);
    let mut all = BytesMut::new();
    let mut at = range.start;
    loop {
        let to = at.saturating_add(piece).min(range.end);
        let bytes = from.store.get_range(key, at..to).await?;
        from.on_read(&bytes);
        if to == range.end && all.is_empty() {
            return Ok(bytes); // mostly it is one
        }
        all.reserve(usize::try_from(length).unwrap_or_default() - all.len());
        all.extend_from_slice(&bytes);
        if to == range.end {
            return Ok(all.freeze());
        }
        at = to;
    }
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
mod tests;
