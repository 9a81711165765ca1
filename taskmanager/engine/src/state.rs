//! Immutable pieces of keyed state.
//!
//! Owns: the life of a part from the barrier that sealed it (a swapped-out table, not converted yet)
//! over its rows (sorted by key group) to its stored object. Conversion happens once, on whichever
//! thread asks first: the uploader's, or the task's when a window must fire before. Writing and
//! reading the object is `streamforge-state`'s.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::{Arc, Mutex, OnceLock};

use arrow::compute::concat_batches;
use arrow::record_batch::RecordBatch;
use streamforge_core::ids::CheckpointId;
use streamforge_core::key_group::KeyGroup;
use streamforge_core::manifest::{BlockRef, PartRef};

/// Rows of a part, sorted by key group.
#[derive(Clone, Debug)]
pub struct PartRows {
    /// Columns in the operator's words. The schema's metadata names aggregates, argument types and
    /// layout versions (G3); a restore refuses what it does not know.
    pub rows: RecordBatch,
    /// Where each key group's rows are, ascending, without empty ones.
    pub groups: Vec<(KeyGroup, Range<usize>)>,
}

/// Turns a sealed table into rows; called at most once.
pub type Convert = Box<dyn FnOnce() -> Result<PartRows, String> + Send>;

/// One immutable piece of an operator's state.
pub struct StatePart {
    /// What its rows are, in the operator's words.
    pub kind: &'static str,
    /// Barrier that sealed it, kept even if that checkpoint fails (C3).
    pub sealed_by: CheckpointId,
    /// Distinguishes parts of one task and barrier.
    pub sequence: u64,
    convert: Mutex<Option<Convert>>,
    rows: OnceLock<Result<Arc<PartRows>, String>>,
    stored: OnceLock<PartRef>,
    /// The part of which this one is what some key groups have, until it is known where that is stored.
    whole: Mutex<Option<Arc<StatePart>>>,
}

impl std::fmt::Debug for StatePart {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StatePart")
            .field("kind", &self.kind)
            .field("sealed_by", &self.sealed_by)
            .field("sequence", &self.sequence)
            .field("stored", &self.stored.get())
            .finish_non_exhaustive()
    }
}

impl StatePart {
    /// A part whose rows are made when first asked for.
    pub fn sealed(
        kind: &'static str,
        sealed_by: CheckpointId,
        sequence: u64,
        convert: Convert,
    ) -> Self {
        Self {
            kind,
            sealed_by,
            sequence,
            convert: Mutex::new(Some(convert)),
            rows: OnceLock::new(),
            stored: OnceLock::new(),
            whole: Mutex::new(None),
        }
    }

    /// What these key groups have of a part; stored where that one is. `None`: nothing.
    pub fn kept(whole: &Arc<Self>, groups: &BTreeSet<KeyGroup>) -> Result<Option<Self>, String> {
        let all = whole.rows()?;
        let mut pieces = Vec::new();
        let mut kept = Vec::new();
        let mut n = 0;
        for (group, range) in all.groups.iter().filter(|(it, _)| groups.contains(it)) {
            kept.push((*group, n..n + range.len()));
            n += range.len();
            match pieces.last_mut() {
                Some(Range { end, .. }) if *end == range.start => *end = range.end,
                _ => pieces.push(range.clone()),
            }
        }
        if kept.is_empty() {
            return Ok(None);
        }
        let slice = |piece: &Range<usize>| all.rows.slice(piece.start, piece.len());
        let pieces: Vec<RecordBatch> = pieces.iter().map(slice).collect();
        let rows = match pieces.as_slice() {
            [one] => one.clone(),
            pieces => concat_batches(&all.rows.schema(), pieces).map_err(|e| e.to_string())?,
        };
        let rows = PartRows { rows, groups: kept };
        let part = Self::sealed(
            whole.kind,
            whole.sealed_by,
            whole.sequence,
            Box::new(|| Ok(rows)),
        );
        if let Ok(mut of) = part.whole.lock() {
            *of = Some(Arc::clone(whole));
        }
        // Converted: it may be merged with others like any part.
        part.rows()?;
        let _known = part.stored();
        Ok(Some(part))
    }

    /// A part read back from the store; `stored` lists only the blocks that this task owns.
    pub fn restored(
        kind: &'static str,
        rows: PartRows,
        stored: PartRef,
        sealed_by: CheckpointId,
    ) -> Self {
        let part = Self::sealed(kind, sealed_by, 0, Box::new(|| Ok(rows)));
        let _ = part.stored.set(stored);
        part
    }

    /// Its rows, converting them if nobody has yet.
    pub fn rows(&self) -> Result<Arc<PartRows>, String> {
        self.rows
            .get_or_init(|| {
                let convert = self
                    .convert
                    .lock()
                    .map_err(|_| "the conversion of this part panicked".to_owned())?
                    .take();
                match convert {
                    Some(convert) => convert().map(Arc::new),
                    None => Err("the conversion of this part panicked".to_owned()),
                }
            })
            .clone()
    }

    /// Whether its rows are there already.
    pub fn is_converted(&self) -> bool {
        self.rows.get().is_some()
    }

    /// Its object, once uploaded.
    pub fn stored(&self) -> Option<&PartRef> {
        if self.stored.get().is_none()
            && let Ok(mut whole) = self.whole.lock()
            && let Some(stored) = whole.as_ref().and_then(|whole| whole.stored())
            && let Some(Ok(rows)) = self.rows.get()
        {
            let is_ours = |block: &&BlockRef| rows.groups.iter().any(|(it, _)| *it == block.group);
            let blocks = stored.blocks.iter().filter(is_ours).copied().collect();
            let stored = PartRef {
                blocks,
                ..stored.clone()
            };
            let _first = self.stored.set(stored);
            *whole = None;
        }
        self.stored.get()
    }

    /// Remembers its object; the first call wins.
    pub fn set_stored(&self, stored: PartRef) {
        let _ = self.stored.set(stored);
    }
}

/// A stored part's rows in the key groups of one task.
#[derive(Debug)]
pub struct RestoredPart {
    /// What its rows are.
    pub kind: String,
    /// The object, with only the blocks that were read.
    pub stored: PartRef,
    /// Rows per key group, ascending.
    pub blocks: Vec<(KeyGroup, RecordBatch)>,
}
