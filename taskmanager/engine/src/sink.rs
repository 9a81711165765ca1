//! The contract of a sink.
//!
//! Owns: the two halves of exactly-once output. A [`SinkWriter`] writes, in the task; what it wrote
//! between two barriers is a *staged interval*, durable and not visible. A [`Publisher`] makes listed
//! intervals visible after the commit, idempotently, in or out of the task.

use std::pin::Pin;

use async_trait::async_trait;
use streamforge_core::ids::{CheckpointId, SlotId};
use streamforge_core::manifest::StagedInterval;

use crate::batch::{BadRows, StreamBatch};
use crate::error::Error;

/// An interval on its way to being durable. `None`: no rows, nothing to publish. An error loses rows
/// that were written, so it ends the attempt.
pub type Staging = Pin<Box<dyn Future<Output = Result<Option<StagedInterval>, Error>> + Send>>;

/// Writes the rows of one subtask.
///
/// # Contract
/// * `stage` closes the interval without waiting for disk or network: the task stands still for it.
///   Rows written after it belong to the next interval, also while the answer is still on its way.
/// * Once the answer is there, all rows written before `stage` are durable and, for an exactly-once
///   sink, visible to nobody until published.
/// * Names of staged things carry the id given when it was opened, or that of the last `stage` (C4).
/// * An at-least-once sink answers `None` once all its rows are delivered.
#[async_trait]
pub trait SinkWriter: Send {
    /// Writes rows; returns those that can never be written, with reasons.
    async fn write(&mut self, batch: StreamBatch) -> Result<BadRows, Error>;

    /// Closes the interval that ends at this barrier.
    fn stage(&mut self, id: CheckpointId) -> Result<Staging, Error>;

    /// The next `stage` closes everything open: the job is over for this writer (end, or a stop), or
    /// all it wrote is to be visible (a savepoint).
    fn close_at_next_stage(&mut self);
}

/// A slot that a publisher is to take over, as it begins.
#[derive(Clone, Debug)]
pub struct SlotTakeOver {
    /// Which slot.
    pub slot: SlotId,
    /// What the restored manifest lists of it, oldest first.
    pub listed: Vec<StagedInterval>,
    /// The restored manifest's id; [`CheckpointId::ZERO`]: there is none.
    pub newest: CheckpointId,
}

/// Makes staged intervals visible.
///
/// # Contract
/// * Publishing an interval that is visible already is `Ok` and changes nothing.
/// * A crash at any point leaves the interval publishable.
#[async_trait]
pub trait Publisher: Send + Sync {
    /// Makes one listed interval visible, all of it.
    async fn publish(&self, slot: &SlotId, interval: &StagedInterval) -> Result<(), Error>;

    /// Before the first row is read: fences whoever published these slots before (X2, X4) and sees
    /// that what was published is known (X3).
    async fn take_over(&self, _slots: &[SlotTakeOver]) -> Result<(), Error> {
        Ok(())
    }

    /// At a restore: removes what dead attempts staged and no manifest lists. `listed` is every
    /// interval of this sink in the manifest restored.
    async fn discard_unlisted(&self, listed: &[StagedInterval]) -> Result<(), Error>;
}
