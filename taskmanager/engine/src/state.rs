//! Immutable pieces of keyed state.
//!
//! Owns: the life of a part from the barrier that sealed it (a swapped-out table, not converted yet)
//! over its rows (sorted by key group) to its stored object. Conversion happens once, on whichever
//! thread asks first: the uploader's, or the task's when a window must fire before. Writing and
//! reading the object is `streamforge-state`'s.

use std::ops::Range;
use std::sync::{Arc, Mutex, OnceLock};

use arrow::record_batch::RecordBatch;
use streamforge_core::ids::CheckpointId;
use streamforge_core::key_group::KeyGroup;
use streamforge_core::manifest::PartRef;

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
        }
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
