//! The contract of a synchronous operator.
//!
//! Owns: what a task calls and what an operator may answer. No async, no clock, no I/O: an operator
//! decides, the task's shell acts. Implementations: `operators/`.

use std::collections::BTreeSet;
use std::sync::Arc;

use arrow::record_batch::RecordBatch;
use streamforge_core::event_time::Watermark;
use streamforge_core::ids::CheckpointId;
use streamforge_core::job_graph::Port;
use streamforge_core::key_group::KeyGroup;
use streamforge_core::manifest::Counters;

use crate::batch::StreamBatch;
use crate::error::Error;
use crate::state::{RestoredPart, StatePart};

/// What an operator sends on, in order.
#[derive(Debug, Default)]
pub struct Outputs {
    sent: Vec<(Port, StreamBatch)>,
    bad_is_read: bool,
    late_is_read: bool,
}

impl Outputs {
    /// For an operator whose side outputs are read or not.
    pub fn new(bad_is_read: bool, late_is_read: bool) -> Self {
        Self {
            sent: Vec::new(),
            bad_is_read,
            late_is_read,
        }
    }

    /// Sends `batch` on `port`; empty batches and side outputs that nobody reads are dropped.
    pub fn push(&mut self, port: Port, batch: StreamBatch) {
        if !batch.is_empty() && self.is_read(port) {
            self.sent.push((port, batch));
        }
    }

    /// Whether anybody reads `port`; if not, its rows need only be counted.
    pub fn is_read(&self, port: Port) -> bool {
        match port {
            Port::Main => true,
            Port::Bad => self.bad_is_read,
            Port::Late => self.late_is_read,
        }
    }

    /// Everything sent since the last call.
    pub fn take(&mut self) -> Vec<(Port, StreamBatch)> {
        std::mem::take(&mut self.sent)
    }
}

/// An operator's part of a snapshot.
#[derive(Debug, Default)]
pub struct OperatorSnapshot {
    /// Whether it keeps keyed state; if so its watermark and parts are in every checkpoint.
    pub keyed: bool,
    /// Its own watermark.
    pub watermark: Watermark,
    /// *All* its live parts; those not stored yet are uploaded for this checkpoint.
    pub parts: Vec<Arc<StatePart>>,
}

/// What a restored operator begins with.
#[derive(Debug, Default)]
pub struct RestoredState {
    /// Key groups that this task owns, ascending, each with the watermark of the task that kept it
    /// (T6: a group whose keeper was behind still owes what the highest watermark releases).
    pub groups: Vec<(KeyGroup, Watermark)>,
    /// Highest watermark among them (T6).
    pub watermark: Watermark,
    /// The parts' rows in these groups.
    pub parts: Vec<RestoredPart>,
}

/// One operator of one task.
///
/// # Contract
/// * `on_batch` is given rows in the order of each input; between inputs there is no order.
/// * `on_watermark` is called with rising values of the minimum over the live inputs (T1, T2), and
///   once with [`Watermark::END`]. What it releases goes out before the watermark it returns (T5).
/// * The returned watermark may be lower than a promise it could make (rows are held for
///   efficiency); [`Operator::flush`] sends them and returns the full promise.
/// * `snapshot` is called right after `flush`, is O(1) in the number of keys, and later calls do not
///   change what it returned.
/// * The same input gives the same output, byte for byte, whatever the machine.
pub trait Operator: Send {
    /// Takes a batch of input `input` (index into the operator's inputs).
    fn on_batch(
        &mut self,
        input: usize,
        batch: StreamBatch,
        out: &mut Outputs,
    ) -> Result<(), Error>;

    /// Its watermark rose; returns the one to send on.
    fn on_watermark(
        &mut self,
        watermark: Watermark,
        out: &mut Outputs,
    ) -> Result<Watermark, Error> {
        let _ = out;
        Ok(watermark)
    }

    /// Sends what is held for efficiency; returns the watermark that holds then, if it was held too.
    fn flush(&mut self, out: &mut Outputs) -> Result<Option<Watermark>, Error> {
        let _ = out;
        Ok(None)
    }

    /// Freezes its state for this checkpoint. `None`: it cannot now, the task declines.
    fn snapshot(&mut self, id: CheckpointId) -> Result<Option<OperatorSnapshot>, Error> {
        let _ = id;
        Ok(Some(OperatorSnapshot::default()))
    }

    /// Loads state, before anything else is called. The task then calls `on_watermark` with the
    /// state's highest watermark before anything else, and sends on what that returns (T6).
    fn restore(&mut self, state: RestoredState) -> Result<(), Error> {
        let _ = state;
        Ok(())
    }

    /// Its key groups are `kept` from the barrier on that was snapshotted last, as these parts; the others
    /// are another task's. The task then calls `on_watermark` with what it had before.
    fn release(
        &mut self,
        kept: &BTreeSet<KeyGroup>,
        parts: &[Arc<StatePart>],
    ) -> Result<(), Error> {
        let _ = (kept, parts);
        Ok(())
    }

    /// Takes over key groups of other tasks, as they were at a barrier. The task has called
    /// `on_watermark` with the highest watermark among them before (T6).
    fn receive(&mut self, state: RestoredState, out: &mut Outputs) -> Result<(), Error> {
        let _ = (state, out);
        Ok(())
    }

    /// Its watermark begins anew, lower perhaps: its source reads other splits from now on (T6).
    /// Called right after `flush`.
    fn begin_anew(&mut self) {}

    /// Bytes of keyed state held.
    fn state_size(&self) -> usize {
        0
    }

    /// Late log entries since the last call, see [`late_log_schema`].
    fn take_late_log(&mut self) -> Vec<RecordBatch> {
        Vec::new()
    }

    /// Rows by fate since the task began (T3).
    fn counters(&self) -> Counters;
}

/// Columns of the late log: one row per (record, missed window).
pub fn late_log_schema() -> arrow::datatypes::SchemaRef {
    use arrow::datatypes::{DataType, Field, Schema};
    Arc::new(Schema::new(vec![
        Field::new("source", DataType::Utf8, true),
        Field::new("position", DataType::Utf8, true),
        Field::new("window_start", DataType::Int64, false),
        Field::new("window_end", DataType::Int64, false),
        Field::new("watermark", DataType::Int64, false),
    ]))
}
