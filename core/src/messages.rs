//! What coordinator and task managers say to each other.
//!
//! Owns: the messages as plain data; in one process they travel by channel, between processes by
//! gRPC. Every message is stamped with job, generation and epoch, and a receiver refuses a lower
//! generation whatever its epoch (C5).
//!
//! A job's attempt: `Deploy` -> `Prepared` from every task manager -> (manifest 0 if there is none,
//! C10) -> `Start` -> `Checkpoint` / `Ack` ... -> `Publish` / `Published` ... -> `Ended` from every
//! task -> a final checkpoint -> `Cancel`. A coordinator that finds an attempt running says `Adopt`
//! instead of `Deploy` and goes on with checkpoints (F1).
//!
//! A hand-over within an attempt (K3): `Prepare` -> `HandOverPrepared` from every task manager ->
//! `Checkpoint` of kind `HandOver` / `Ack` from old and new tasks -> `Receive` -> (commit) ->
//! `Committed`, `Received` from every task. Before the checkpoint it can be withdrawn.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::event_time::Watermark;
use crate::ids::{
    CheckpointId, Epoch, Generation, JobId, OperatorUid, SlotId, SplitId, SubtaskIdx, TaskId,
};
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

/// The newest coordinator and attempt that a task manager has heard of: the one place where a
/// command's stamp is compared.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Newest {
    /// Of this job; `None`: of none yet.
    job: Option<JobId>,
    generation: Generation,
    epoch: Epoch,
}

impl Newest {
    /// C5: another job's is refused; a lower generation is, whatever its epoch; then a lower epoch.
    pub fn admits(&mut self, stamp: &Stamp) -> bool {
        let same_job = self.job.as_ref().is_none_or(|job| *job == stamp.job);
        let admitted = same_job && (stamp.generation, stamp.epoch) >= (self.generation, self.epoch);
        if admitted {
            (self.generation, self.epoch) = (stamp.generation, stamp.epoch);
            self.job.get_or_insert_with(|| stamp.job.clone());
        }
        admitted
    }

    /// What was admitted last; `None`: nothing was.
    pub fn stamp(&self) -> Option<Stamp> {
        self.job.clone().map(|job| Stamp {
            job,
            generation: self.generation,
            epoch: self.epoch,
        })
    }
}

/// A task manager's process. The name stays when it is started anew, the nonce does not: a second
/// process of one name is another sender, and what the first was doing is lost.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct TaskManagerId {
    /// Stable: a pod's, or what a person chose.
    pub name: String,
    /// Random, drawn when the process starts.
    pub nonce: u64,
}

impl TaskManagerId {
    /// The one in the coordinator's own process.
    pub fn local() -> Self {
        Self {
            name: "local".to_owned(),
            nonce: 0,
        }
    }
}

impl std::fmt::Display for TaskManagerId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}#{:08x}", self.name, self.nonce & 0xffff_ffff)
    }
}

/// What a task manager says of itself when a session begins.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Registration {
    /// Subtasks it can run; one is a task of every stage.
    pub slots: u32,
    /// Where other task managers reach its tasks.
    pub exchange: String,
    /// What it runs, should an earlier coordinator have given it work.
    pub runs: Option<Box<RunningAttempt>>,
}

/// An attempt that outlived the coordinator that began it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunningAttempt {
    /// Which attempt, by whose command.
    pub stamp: Stamp,
    /// As it was given.
    pub deployment: Deployment,
    /// Whether rows flow: only then can it be adopted.
    pub started: bool,
    /// Tasks of this task manager that have ended.
    pub ended: Vec<TaskId>,
    /// Why it has failed, if it has.
    pub failed: Option<String>,
    /// A hand-over that was prepared and is not known as committed.
    pub prepared: Option<Box<HandOver>>,
}

/// Where one subtask of every stage runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// In this process.
    pub task_manager: TaskManagerId,
    /// Whose tasks are reached here.
    pub exchange: String,
}

/// From the coordinator to a task manager.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Command {
    /// End whatever runs, load this, answer `Prepared`; read nothing yet.
    Deploy(Box<Deployment>),
    /// Go on with what runs, for this coordinator: its generation is higher, the epoch the same.
    Adopt {
        /// No checkpoint up to this one will be completed: release inputs that wait for one (A2).
        void_to: CheckpointId,
    },
    /// Begin to read. The splits of each source by subtask, those of all subtasks; ended splits are
    /// not among them.
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
    /// Open what a hand-over needs; go on as before until its barrier. Answer `HandOverPrepared`.
    Prepare(Box<HandOver>),
    /// The hand-over that was prepared will not be.
    Withdraw,
    /// All tasks have acknowledged the hand-over's checkpoint: load what is gained by it, go on.
    Receive(Box<Manifest>),
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
    /// Where each subtask runs: a task manager builds its own and sends to the others. Numbers may
    /// be missing: those of subtasks that left are not used again in an epoch.
    pub placement: BTreeMap<SubtaskIdx, Place>,
    /// Term of the coordinator that began the attempt: its channels are named by it.
    #[serde(default)]
    pub born: Generation,
    /// Who publishes which slots, those of subtasks that are no more included (X4). In an attempt a
    /// slot never changes hands.
    #[serde(default)]
    pub slots: BTreeMap<u32, TaskManagerId>,
}

/// A change of owners at the barrier of one checkpoint (K3).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HandOver {
    /// The attempt as it is from that barrier on.
    pub deployment: Deployment,
    /// Subtasks that begin with it.
    pub joining: BTreeSet<SubtaskIdx>,
    /// Subtasks that end with it.
    pub leaving: BTreeSet<SubtaskIdx>,
    /// Who reads which split from then on; others stay where they are.
    pub splits: BTreeMap<OperatorUid, BTreeMap<SplitId, SubtaskIdx>>,
}

impl Deployment {
    /// The subtasks there are.
    pub fn subtasks(&self) -> BTreeSet<SubtaskIdx> {
        self.placement.keys().copied().collect()
    }

    /// A subtask's place among those there are, and how many these are.
    pub fn rank_of(&self, subtask: SubtaskIdx) -> (u32, u32) {
        let n = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        let before = self.placement.range(..subtask);
        (n(before.count()), n(self.placement.len()))
    }

    /// Who publishes a slot: its number may be from a time with more subtasks (X4).
    pub fn publisher_of(&self, slot: u32) -> Option<&TaskManagerId> {
        if let Some(owner) = self.slots.get(&slot) {
            return Some(owner);
        }
        let nth = usize::try_from(slot)
            .ok()?
            .checked_rem(self.placement.len())?;
        let mut places = self.placement.values();
        places.nth(nth).map(|place| &place.task_manager)
    }

    /// The subtasks that this task manager runs.
    pub fn subtasks_of(&self, task_manager: &TaskManagerId) -> Vec<SubtaskIdx> {
        let mine = |(idx, place): (&SubtaskIdx, &Place)| {
            (place.task_manager == *task_manager).then_some(*idx)
        };
        self.placement.iter().filter_map(mine).collect()
    }

    /// Whether this task manager is the one that does what must be done once per attempt: list a
    /// source's splits, clear away what dead attempts staged.
    pub fn is_first(&self, task_manager: &TaskManagerId) -> bool {
        let first = self.placement.values().next();
        first.is_some_and(|place| place.task_manager == *task_manager)
    }
}

/// From a task manager to the coordinator.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Event {
    /// All its tasks are loaded. On a first start, from the first one, with every source's splits,
    /// resolved.
    Prepared {
        /// Source -> splits; empty after a restore, whose manifest has them, and from all others.
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
    /// Whatever this attempt publishes to belongs to a newer one already (X2): it publishes nothing
    /// any more. Who is the newer one stands in the head.
    TakenOver {
        /// How that is known, for people.
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
    /// A channel between two task managers broke; the attempt is over (B2).
    ChannelBroke {
        /// The subtask that sends.
        sender: SubtaskIdx,
        /// The subtask that receives.
        receiver: SubtaskIdx,
        /// Why, for people.
        cause: String,
    },
    /// What a hand-over needs is open here.
    HandOverPrepared,
    /// What a hand-over needs cannot be opened here; the attempt goes on without it.
    HandOverRefused {
        /// Why, for people.
        reason: String,
    },
    /// A task has what it gained by a hand-over, and goes on.
    Received {
        /// Which task.
        task: TaskId,
        /// The hand-over's checkpoint.
        id: CheckpointId,
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

/// How far a source is behind what is there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lag {
    /// Records that are there and not read.
    pub records_n: u64,
    /// When the last record read was written, in milliseconds since the epoch; `None`: it is not
    /// behind, or does not know.
    pub read_up_to_ms: Option<i64>,
}

impl Lag {
    /// Adds other tasks' lag: records add up, and whoever is furthest behind counts.
    pub fn add(&mut self, other: &Self) {
        self.records_n = self.records_n.saturating_add(other.records_n);
        let both = [self.read_up_to_ms, other.read_up_to_ms];
        self.read_up_to_ms = both.into_iter().flatten().min();
    }
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
    /// Per source of which all that read it know it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub lag: BTreeMap<OperatorUid, Lag>,
    /// Per source that cannot be read: why, for people.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub unreachable: BTreeMap<OperatorUid, String>,
    /// Per source, records that were deleted before they were read and passed over as the document allows;
    /// since `Deploy`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub skipped_n: BTreeMap<OperatorUid, u64>,
}

impl Progress {
    /// All together. The lag of a source is known if everybody who reads it knows theirs.
    pub fn sum<'a>(parts: impl Iterator<Item = &'a Progress> + Clone) -> Self {
        let mut sum = Progress::default();
        parts.clone().for_each(|part| sum.add(part));
        for part in parts {
            let says = |uid: &OperatorUid| part.lag.contains_key(uid);
            sum.lag
                .retain(|uid, _| says(uid) || !part.read.contains_key(uid));
        }
        sum
    }

    /// Adds other tasks' progress: counts add up, the lowest watermark holds.
    pub fn add(&mut self, other: &Progress) {
        for (uid, counters) in &other.counters {
            self.counters.entry(uid.clone()).or_default().add(counters);
        }
        for (uid, split) in &other.held_back_by {
            let of = |it: &Progress| it.watermarks.get(uid).copied().unwrap_or_default();
            if !self.held_back_by.contains_key(uid) || of(other) < of(self) {
                self.held_back_by.insert(uid.clone(), split.clone());
            }
        }
        for (uid, watermark) in &other.watermarks {
            let lowest = self.watermarks.entry(uid.clone()).or_insert(*watermark);
            *lowest = (*lowest).min(*watermark);
        }
        for (uid, (read, all)) in &other.read {
            let sum = self.read.entry(uid.clone()).or_default();
            sum.0 += read;
            sum.1 += all;
        }
        for (uid, lag) in &other.lag {
            self.lag.entry(uid.clone()).or_default().add(lag);
        }
        for (uid, why) in &other.unreachable {
            let told = self.unreachable.entry(uid.clone());
            told.or_insert_with(|| why.clone());
        }
        for (uid, skipped_n) in &other.skipped_n {
            *self.skipped_n.entry(uid.clone()).or_default() += skipped_n;
        }
    }
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
        assert_eq!(newest.stamp(), Some(stamp(3, 6)));
    }

    #[test]
    fn another_jobs_command_is_refused_whatever_its_numbers_c5() {
        let mut newest = Newest::default();
        assert!(newest.admits(&stamp(1, 1)));
        let job = JobId("other".to_owned());

        assert!(!newest.admits(&Stamp { job, ..stamp(9, 9) }));
        assert!(newest.admits(&stamp(1, 1)));
    }

    fn progress(watermark: i64, split: &str) -> Progress {
        let uid = OperatorUid("in".to_owned());
        Progress {
            counters: BTreeMap::from([(
                uid.clone(),
                Counters {
                    rows_in: 1,
                    ..Counters::default()
                },
            )]),
            watermarks: BTreeMap::from([(uid.clone(), Watermark(watermark))]),
            held_back_by: BTreeMap::from([(uid.clone(), split.to_owned())]),
            read: BTreeMap::from([(uid.clone(), (2, 3))]),
            lag: BTreeMap::from([(
                uid.clone(),
                Lag {
                    records_n: 7,
                    read_up_to_ms: Some(watermark),
                },
            )]),
            unreachable: BTreeMap::new(),
            skipped_n: BTreeMap::from([(uid, 4)]),
        }
    }

    #[test]
    fn progress_adds_counts_and_shows_the_split_that_is_furthest_behind() {
        for (first, second) in [(5, 7), (7, 5)] {
            let parts = [first, second].map(|it| progress(it, &it.to_string()));
            let sum = Progress::sum(parts.iter());

            let uid = OperatorUid("in".to_owned());
            assert_eq!(sum.counters[&uid].rows_in, 2);
            assert_eq!(sum.watermarks[&uid], Watermark(5));
            assert_eq!(sum.held_back_by[&uid], "5");
            assert_eq!(sum.read[&uid], (4, 6));
            assert_eq!(sum.skipped_n[&uid], 8);
            let lag = sum.lag[&uid];
            assert_eq!((lag.records_n, lag.read_up_to_ms), (14, Some(5)));
        }
    }

    /// KF-K10: what the others know is not all there is.
    #[test]
    fn kf_k10_lag_is_unknown_if_one_of_its_readers_does_not_know_it() {
        let uid = OperatorUid("in".to_owned());
        let mut silent = progress(3, "away");
        silent.lag.clear();
        silent.unreachable = BTreeMap::from([(uid.clone(), "no answer".to_owned())]);
        let elsewhere = Progress {
            counters: silent.counters.clone(),
            ..Progress::default()
        };
        let (one, two) = (progress(5, "one"), progress(7, "two"));

        for parts in [[&one, &silent, &two], [&silent, &one, &two]] {
            let sum = Progress::sum(parts.into_iter());
            assert_eq!(sum.lag, BTreeMap::new());
            assert_eq!(sum.unreachable[&uid], "no answer");
        }
        let sum = Progress::sum([&one, &elsewhere, &two].into_iter());
        assert_eq!(sum.lag[&uid].records_n, 14, "who does not read it");
    }
}
