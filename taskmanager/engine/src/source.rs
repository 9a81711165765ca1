//! The contract of a source.
//!
//! Owns: what a reader of an outside system tells its task. Watermarks, idleness and checkpoints are
//! the task's; a reader only reads, in order within each split, and says how far it is.

use arrow::record_batch::RecordBatch;
use async_trait::async_trait;
use streamforge_core::ids::SplitId;
use streamforge_core::manifest::{SplitProgress, SplitState};

use crate::batch::{BadRows, Origin};
use crate::error::Error;

/// What a reader has to say.
#[derive(Debug)]
pub enum SourceEvent {
    /// Rows of one split.
    Batch(SourceBatch),
    /// One split is read to its end.
    SplitEnded(SplitId),
    /// The split was asked and has nothing now (Kafka: end of partition; a watched folder: listed).
    /// Repeated on every ask; the task counts how long.
    NothingNew(SplitId),
    /// A split that appeared while running; this reader owns it from now on.
    Discovered(SplitState),
    /// No split of this reader has anything now; ask again after a pause or when woken.
    Waiting,
    /// The same, of a reader that has paused already: ask again at once.
    Quiet,
    /// All its splits are read to their ends and no more will come.
    Ended,
}

/// Rows of one split, decoded.
#[derive(Debug)]
pub struct SourceBatch {
    /// Which split.
    pub split: SplitId,
    /// The operator's output columns; only good rows.
    pub rows: RecordBatch,
    /// Where each row was read, if the job needs it.
    pub origin: Option<Origin>,
    /// Records that could not be decoded.
    pub bad: BadRows,
    /// Number of bad records, also when nobody reads them and `bad` is empty.
    pub bad_n: u64,
    /// Fields that the schema does not know.
    pub unknown_fields: u64,
    /// How far the split is read once these rows are taken.
    pub progress: SplitProgress,
}

/// How the outside system of a reader does.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Health {
    /// What keeps the reader from reading, in words: an unreachable broker, an open transaction.
    pub trouble: Option<String>,
    /// The trouble is that the outside system does not answer or refuses.
    pub is_unreachable: bool,
    /// Records that are there and not read yet, where it is known.
    pub lag_records: Option<u64>,
    /// When the oldest of the newest records read was written, per split the newest, in milliseconds
    /// since the epoch by the outside system's clock. `None`: nothing was read yet, or it does not say.
    pub read_up_to_ms: Option<i64>,
    /// Records that were deleted before they were read, and passed over because the document says so;
    /// since the reader was opened.
    pub skipped_n: u64,
}

/// Lists a source's splits, each once per job, before anything of them is read.
#[async_trait]
pub trait SplitEnumerator: Send {
    /// All splits at their start positions; for a bounded source all there will ever be.
    async fn list(&mut self) -> Result<Vec<SplitState>, Error>;

    /// What the document asks for and a restored job does not know, at its start positions, when nothing
    /// else would find it; a refusal if it no longer asks for something that is not read to its end.
    async fn list_new(&mut self, _known: &[SplitState]) -> Result<Vec<SplitState>, Error> {
        Ok(Vec::new())
    }
}

/// A reader of some splits of a source, in one subtask.
///
/// # Contract
/// * Rows of a split come in its order, each once; `progress` of a batch covers exactly the rows up
///   to it, and a reader opened at that progress goes on right after them.
/// * `next` is cancel safe: a dropped call loses nothing.
/// * A split that changed since its state was taken (shrunk, replaced) is an error that names it.
#[async_trait]
pub trait SourceReader: Send {
    /// Takes these splits at their progress. Called once, before `next`.
    async fn assign(&mut self, splits: Vec<SplitState>) -> Result<(), Error>;

    /// The next thing to say.
    async fn next(&mut self) -> Result<SourceEvent, Error>;

    /// So many rows at a time are enough: its task may take so few that larger batches would come in gusts.
    /// A wish, for readers that can.
    fn prefer_rows(&mut self, _rows: usize) {}

    /// Units read and units in all its splits (0: unbounded), for people.
    fn read_units(&self) -> (u64, u64);

    /// What people call a split.
    fn name_of(&self, split: &SplitId) -> String {
        split.to_string()
    }

    /// How the outside system does, for people and metrics.
    fn health(&self) -> Health {
        Health::default()
    }
}
