//! How a job does, as one value that a shell can show.

use std::collections::BTreeMap;
use std::fmt;

use streamforge_core::event_time::Watermark;
use streamforge_core::ids::{CheckpointId, Epoch, Generation, OperatorUid};
use streamforge_core::manifest::{CheckpointKind, Counters};
use streamforge_core::messages::Lag;

/// What a job is doing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Phase {
    /// Reading the store, taking over.
    #[default]
    Starting,
    /// Tasks are being loaded.
    Deploying,
    /// Rows flow.
    Running,
    /// The attempt failed; waiting for the next.
    Recovering,
    /// Taking the last checkpoint and publishing, before the end of input.
    Stopping,
    /// All input is read; taking the final checkpoint and publishing.
    Finishing,
    /// Over.
    Ended,
}

/// How a job does.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Status {
    /// What it is doing.
    pub phase: Phase,
    /// Term of the coordinator.
    pub generation: Generation,
    /// Attempt.
    pub epoch: Epoch,
    /// Subtasks per stage.
    pub parallelism: u32,
    /// Subtasks that are wanted.
    pub wanted: u32,
    /// What a hand-over of key groups is doing, for people.
    pub hand_over: Option<String>,
    /// Task managers with a session.
    pub task_managers_n: usize,
    /// Names of those that give their work away, or have, and take none.
    pub drained: Vec<String>,
    /// What the job waits for before it can begin, for people.
    pub waits_for: Option<String>,
    /// What a stop that was asked for waits for, for people.
    pub stop_waits_for: Option<String>,
    /// Failed attempts since the coordinator started.
    pub restarts_n: u32,
    /// Why the last attempt failed.
    pub last_failure: Option<Failure>,
    /// Checkpoints.
    pub checkpoint: CheckpointStatus,
    /// Staged intervals that wait to be published.
    pub unpublished_n: usize,
    /// Cumulative counters since the job's first row, by operator.
    pub ledger: BTreeMap<OperatorUid, Counters>,
    /// Lowest watermark of each operator.
    pub watermarks: BTreeMap<OperatorUid, Watermark>,
    /// Per source, what holds its watermark.
    pub held_back_by: BTreeMap<OperatorUid, String>,
    /// Per source: units read and units in all (0: unbounded), of this attempt.
    pub read: BTreeMap<OperatorUid, (u64, u64)>,
    /// Per source that knows it, how far it is behind what is there.
    pub lag: BTreeMap<OperatorUid, Lag>,
    /// Per source that cannot be read: why, for people.
    pub unreachable: BTreeMap<OperatorUid, String>,
}

/// Why an attempt failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// When, in milliseconds since the epoch.
    pub time_ms: u64,
    /// Name of the task manager that was lost or whose task failed, if it was one's alone.
    pub task_manager: Option<String>,
    /// Why.
    pub reason: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(name) = &self.task_manager {
            write!(f, "task manager {name}: ")?;
        }
        f.write_str(&self.reason)
    }
}

/// How the checkpoints of a job do.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CheckpointStatus {
    /// The attempt that is under way, and since when.
    pub in_flight: Option<(CheckpointId, u64)>,
    /// The newest committed one, this coordinator's or the restored.
    pub last_completed: Option<CompletedCheckpoint>,
    /// The newest given-up one.
    pub last_failed: Option<FailedCheckpoint>,
    /// By this coordinator.
    pub completed_n: u64,
    /// By this coordinator.
    pub failed_n: u64,
    /// Why the checkpoint counts as stale (more than `tolerateFailures` failures in a row).
    pub stale: Option<String>,
}

/// A committed checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompletedCheckpoint {
    /// Which.
    pub id: CheckpointId,
    /// Why it was taken.
    pub kind: CheckpointKind,
    /// When it was committed, in milliseconds since the epoch.
    pub time_ms: u64,
    /// From barrier to last acknowledgement.
    pub duration_ms: u64,
    /// Bytes uploaded for it.
    pub bytes_n: u64,
    /// Longest time any task stood still for it.
    pub freeze_us: u64,
}

/// A given-up checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailedCheckpoint {
    /// Which.
    pub id: CheckpointId,
    /// When, in milliseconds since the epoch.
    pub time_ms: u64,
    /// Why.
    pub reason: String,
}
