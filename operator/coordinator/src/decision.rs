//! What the coordinator decides, and what it tells people.

use std::fmt;

use streamforge_core::causes::with_causes;
use streamforge_core::ids::{CheckpointId, Epoch, Generation, OperatorUid};
use streamforge_core::manifest::CheckpointKind;
use streamforge_core::messages::{Command, Stamp, TaskManagerId};

use crate::error::Error;
use crate::store_request::{RequestId, StoreRequest};

/// One thing the shell must do, in the order given.
#[derive(Debug, PartialEq)]
#[must_use]
pub enum Decision {
    /// Ask the store; answer with [`crate::Input::Store`] and the same id. Requests of different
    /// ids may run side by side.
    Store(RequestId, StoreRequest),
    /// Tell a task manager. When it cannot be told, answer with [`crate::Input::SessionLost`].
    Send(TaskManagerId, Stamp, Command),
    /// This task manager asked to end, and may: nothing depends on it any more.
    Release(TaskManagerId),
    /// This task manager counts as lost, and may live: end its session, so that it registers anew.
    Disconnect(TaskManagerId),
    /// Tell people; nothing depends on it.
    Report(Report),
    /// It is over: nothing will be decided any more.
    End(Outcome),
}

/// How a run ended.
#[derive(Debug, PartialEq)]
pub enum Outcome {
    /// All input is read and all output is published.
    Finished {
        /// True: it was so before; nothing ran.
        before: bool,
    },
    /// Stopped before its end; the next start goes on.
    Stopped {
        /// From here; `None`: from the beginning, no row was ever read.
        checkpoint: Option<CheckpointId>,
        /// Staged intervals that the next start will publish.
        unpublished_n: usize,
        /// Why that checkpoint is not the place where it stopped, when it is not.
        note: Option<String>,
        /// Why there is no savepoint, if it was to stop with one and did without.
        savepoint_failed: Option<String>,
    },
    /// It cannot go on.
    Failed(Error),
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Finished { before: false } => f.write_str("finished"),
            Self::Finished { before: true } => f.write_str("finished before"),
            Self::Stopped {
                checkpoint: Some(id),
                ..
            } => write!(f, "stopped with checkpoint {id}"),
            Self::Stopped {
                checkpoint: None, ..
            } => f.write_str("stopped before its first row"),
            Self::Failed(error) => write!(f, "failed: {}", with_causes(error)),
        }
    }
}

/// News for people, in the order they happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Report {
    /// This coordinator is the one that may write (C5), and the attempt is its first.
    TookOver {
        /// Its term.
        generation: Generation,
        /// The attempt.
        epoch: Epoch,
        /// What is restored; `None`: a first start.
        restored: Option<CheckpointId>,
    },
    /// This coordinator goes on with an attempt that an earlier one began; no task stopped (F1).
    Adopted {
        /// Its term.
        generation: Generation,
        /// The attempt.
        epoch: Epoch,
    },
    /// The attempt that the head names was not taken over; another one begins.
    NotAdopted {
        /// Why, for people.
        reason: String,
    },
    /// The job waits for task managers.
    WaitsForSlots {
        /// Subtasks that they can run.
        slots_n: u32,
        /// Subtasks there are.
        wanted_n: u32,
    },
    /// A task manager came.
    TaskManagerCame {
        /// Which.
        task_manager: TaskManagerId,
        /// Subtasks that it can run.
        slots_n: u32,
    },
    /// A task manager is gone.
    TaskManagerLost {
        /// Which.
        task_manager: TaskManagerId,
        /// How it was noticed.
        cause: String,
    },
    /// A task manager that was let go has gone.
    TaskManagerLeft {
        /// Which.
        task_manager: TaskManagerId,
    },
    /// A person asked for another parallelism.
    Scaling {
        /// This one.
        to: u32,
    },
    /// Subtasks come or go while the attempt goes on (K3).
    HandingOver {
        /// Subtasks there are.
        from: usize,
        /// Subtasks there will be.
        to: usize,
    },
    /// Records were deleted before they were read, and passed over as the document allows.
    RecordsSkipped {
        /// Of which source.
        source: OperatorUid,
        /// How many more than before.
        n: u64,
    },
    /// They came or went.
    HandedOver {
        /// Subtasks there are.
        to: usize,
        /// From the proposal to the last task that has what it gained.
        took_ms: u64,
    },
    /// They will not, for now; nothing has ended.
    HandOverWithdrawn {
        /// Why.
        reason: String,
    },
    /// A restore from below the newest checkpoint, as asked: rows published after it come again.
    Rewound {
        /// The newest there was.
        from: CheckpointId,
        /// Where the job goes on.
        to: CheckpointId,
    },
    /// What the document has no place for was left out of what is restored, as it was allowed.
    StateDropped {
        /// One sentence each.
        what: Vec<String>,
    },
    /// The job began with a savepoint, which is copied to its own store.
    Restored {
        /// Where the savepoint is.
        from: String,
        /// The checkpoint that it was.
        savepoint: CheckpointId,
        /// The job's own first checkpoint, which has all of it.
        to: CheckpointId,
    },
    /// The job goes on with its own state: it does not begin with the savepoint that was named.
    RestoreFromUnused {
        /// Where the savepoint is.
        place: String,
    },
    /// A savepoint is whole.
    SavepointCompleted {
        /// Its name.
        name: String,
        /// The checkpoint that it is.
        id: CheckpointId,
        /// Bytes of state.
        bytes_n: u64,
        /// Since it was asked for.
        took_ms: u64,
    },
    /// A savepoint was given up.
    SavepointFailed {
        /// Its name.
        name: String,
        /// Why.
        reason: String,
    },
    /// Rows flow.
    Running {
        /// In this attempt.
        epoch: Epoch,
    },
    /// A checkpoint is committed.
    CheckpointCompleted {
        /// Which.
        id: CheckpointId,
        /// Why it was taken.
        kind: CheckpointKind,
        /// From barrier to last acknowledgement.
        duration_ms: u64,
        /// Bytes uploaded for it.
        bytes_n: u64,
        /// Longest time any task stood still for it.
        freeze_us: u64,
    },
    /// A checkpoint attempt was given up. The job goes on.
    CheckpointFailed {
        /// Which.
        id: CheckpointId,
        /// Why.
        reason: String,
        /// How many in a row.
        in_a_row: u32,
    },
    /// Output could not be made visible; it is tried again.
    PublishFailed {
        /// Slot and interval.
        what: String,
        /// Why.
        reason: String,
        /// How many in a row of this slot.
        in_a_row: u32,
    },
    /// The store does not do what is asked; it is asked again.
    StoreTrouble {
        /// What was asked.
        request: &'static str,
        /// What it said.
        reason: String,
        /// How often it has been asked.
        attempts_n: u32,
    },
    /// The attempt is over.
    AttemptFailed {
        /// Which.
        epoch: Epoch,
        /// Why.
        cause: String,
        /// When the next one begins, from now.
        again_in_ms: u64,
    },
    /// The job is stopping.
    Stopping,
}

impl Report {
    /// One try that failed and is repeated at once: nobody is warned before it fails again.
    #[must_use]
    pub fn may_pass(&self) -> bool {
        matches!(
            self,
            Report::PublishFailed { in_a_row: 1, .. } | Report::StoreTrouble { attempts_n: 1, .. }
        )
    }
}
