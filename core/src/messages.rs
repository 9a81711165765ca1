//! What coordinator and task managers say to each other.
//!
//! Owns: the messages as plain data; in one process they travel by channel, later by gRPC. Every
//! message is stamped with generation and epoch, and a receiver refuses a lower generation whatever
//! its epoch (C5).
//!
//! A job's attempt: `Deploy` -> `Prepared` -> (manifest 0 if there is none, C10) -> `Start` ->
//! `Checkpoint` / `Ack` ... -> `Publish` / `Published` ... -> `Ended` from every task -> a final
//! checkpoint -> `Cancel`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::event_time::Watermark;
use crate::ids::{CheckpointId, Epoch, Generation, JobId, OperatorUid, SlotId, SubtaskIdx, TaskId};
use crate::job_graph::JobGraph;
use crate::key_group::Assignment;
use crate::manifest::{
    CheckpointKind, Counters, Manifest, ObjectRef, PartRef, SplitState, StagedInterval,
};

/// Who speaks, in which attempt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stamp {
    /// Whose history.
    pub job: JobId,
    /// Term of the coordinator.
    pub generation: Generation,
    /// Attempt of the job.
    pub epoch: Epoch,
}

/// The newest coordinator and attempt that a task manager has heard of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Newest {
    generation: Generation,
    epoch: Epoch,
}

impl Newest {
    /// C5: a lower generation is refused whatever its epoch; then a lower epoch.
    pub fn admits(&mut self, stamp: &Stamp) -> bool {
        let admitted = (stamp.generation, stamp.epoch) >= (self.generation, self.epoch);
        if admitted {
            (self.generation, self.epoch) = (stamp.generation, stamp.epoch);
        }
        admitted
    }
}

/// From the coordinator to a task manager.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Command {
    /// End whatever runs, load this, answer `Prepared`; read nothing yet.
    Deploy(Box<Deployment>),
    /// Begin to read. The splits of each source by subtask; ended splits are not among them.
    Start {
        /// Source -> subtask -> splits.
        splits: BTreeMap<OperatorUid, BTreeMap<SubtaskIdx, Vec<SplitState>>>,
    },
    /// Every source task: record positions, send this barrier.
    Checkpoint {
        /// Its id.
        id: CheckpointId,
        /// After a Stop barrier sources read nothing more.
        kind: CheckpointKind,
    },
    /// This attempt is given up: release inputs, drop nothing (A2).
    Abort {
        /// Its id; later barriers of it are ignored.
        id: CheckpointId,
    },
    /// The checkpoint is committed; of these slots publish these intervals, in this order (X1).
    Publish {
        /// The committed manifest.
        manifest: CheckpointId,
        /// What to publish.
        slots: Vec<(SlotId, StagedInterval)>,
    },
    /// A checkpoint is committed: parts and intervals up to it need not be reported as new.
    Committed {
        /// Its id.
        id: CheckpointId,
    },
    /// End all tasks of this attempt.
    Cancel,
}

/// What a task manager is to run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Deployment {
    /// The plan.
    pub graph: JobGraph,
    /// Subtasks per stage.
    pub parallelism: u32,
    /// Key group -> subtask.
    pub assignment: Assignment,
    /// What to restore; `None`: a first start, list the splits.
    pub restore: Option<Manifest>,
    /// Objects written before the first barrier carry this id (C4).
    pub first_id: CheckpointId,
}

/// From a task manager to the coordinator.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Event {
    /// All tasks are loaded. On a first start with every source's splits, resolved.
    Prepared {
        /// Source -> splits; empty after a restore, whose manifest has them.
        splits: BTreeMap<OperatorUid, Vec<SplitState>>,
    },
    /// A task's part of a checkpoint is durable.
    Ack(Box<TaskSnapshot>),
    /// A task gave the attempt up, or could not take it.
    Declined {
        /// Which task.
        task: TaskId,
        /// Which attempt.
        id: CheckpointId,
        /// Why, for people.
        reason: String,
    },
    /// A slot's interval is visible, or was already.
    Published {
        /// Which slot.
        slot: SlotId,
        /// Which interval.
        interval: CheckpointId,
    },
    /// A slot's interval could not be made visible; it stays listed and is tried again.
    PublishFailed {
        /// Which slot.
        slot: SlotId,
        /// Which interval.
        interval: CheckpointId,
        /// Why, for people.
        reason: String,
    },
    /// A task has read, fired and staged all; it stays and answers barriers with END (C11).
    Ended {
        /// Which task.
        task: TaskId,
    },
    /// A task, or loading one, failed; the attempt is over.
    Failed {
        /// Which, if it was one.
        task: Option<TaskId>,
        /// Why, for people.
        cause: String,
        /// Whether another attempt may do better (a user's mistake does not go away).
        retry: bool,
    },
    /// How the tasks do; for people and status, several times a second.
    Progress(Box<Progress>),
}

/// One task's part of a checkpoint.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TaskSnapshot {
    /// Which task.
    pub task: TaskId,
    /// Which checkpoint.
    pub id: CheckpointId,
    /// Every split this task holds or has read to its end in this attempt.
    pub splits: BTreeMap<OperatorUid, Vec<SplitState>>,
    /// Watermark and *all* live parts of each operator with keyed state.
    pub operators: BTreeMap<OperatorUid, (Watermark, Vec<PartRef>)>,
    /// *All* staged intervals not known as published, oldest first.
    pub staged: Vec<(SlotId, StagedInterval)>,
    /// Counters since `Deploy`.
    pub counters: BTreeMap<OperatorUid, Counters>,
    /// All late log objects since `Deploy`.
    pub late_log: Vec<ObjectRef>,
    /// Longest time the task stood still for it, in microseconds.
    pub freeze_us: u64,
    /// Bytes uploaded for it.
    pub bytes: u64,
}

/// How the tasks do.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Progress {
    /// Counters since `Deploy`, all tasks added up.
    pub counters: BTreeMap<OperatorUid, Counters>,
    /// Lowest watermark of each operator over its tasks.
    pub watermarks: BTreeMap<OperatorUid, Watermark>,
    /// Per source: which split holds the watermark, and why, for people.
    pub held_back_by: BTreeMap<OperatorUid, String>,
    /// Per source: units read and units in all (0: unbounded), in the connector's unit.
    pub read: BTreeMap<OperatorUid, (u64, u64)>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stamp(generation: u64, epoch: u64) -> Stamp {
        Stamp {
            job: JobId("j".to_owned()),
            generation: Generation::from_stored(generation),
            epoch: Epoch::from_stored(epoch),
        }
    }

    #[test]
    fn lower_generation_is_refused_whatever_its_epoch_c5() {
        let mut newest = Newest::default();

        assert!(newest.admits(&stamp(2, 5)));
        assert!(
            !newest.admits(&stamp(1, 6)),
            "an older coordinator's newer epoch"
        );
        assert!(!newest.admits(&stamp(2, 4)));
        assert!(newest.admits(&stamp(2, 5)), "the same speaks again");
        assert!(newest.admits(&stamp(3, 6)));
        assert!(!newest.admits(&stamp(2, 9)));
    }
}
