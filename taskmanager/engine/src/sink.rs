//! The contract of a sink.
//!
//! Owns: the two halves of exactly-once output. A [`SinkWriter`] writes, in the task; what it wrote
//! between two barriers is a *staged interval*, durable and not visible. A [`Publisher`] makes listed
//! intervals visible after the commit, idempotently, in or out of the task.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::Pin;

use async_trait::async_trait;
use streamforge_core::ids::{CheckpointId, OperatorUid, SlotId};
use streamforge_core::manifest::StagedInterval;
use streamforge_core::messages::{Deployment, TaskManagerId};

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
/// * A `write` that waits does so as a future: it is dropped when the attempt ends meanwhile, and nothing
///   is asked of the writer after that.
#[async_trait]
pub trait SinkWriter: Send {
    /// Makes connections, before anything waits for them: the first row need not. What keeps it from
    /// that and may pass is told, in words; then rows wait, and it is called again. Cancel safe.
    async fn open(&mut self) -> Result<Option<String>, Error> {
        Ok(None)
    }

    /// Writes rows, once it is open; returns those that can never be written, with reasons.
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

impl SlotTakeOver {
    /// The slots of a sink that this task manager publishes: those of its subtasks, and of the listed
    /// ones its share; every listed one has an owner (X4).
    pub fn of(deployment: &Deployment, me: &TaskManagerId, sink: &OperatorUid) -> Vec<Self> {
        let is_mine = |slot: &SlotId| deployment.publisher_of(slot.slot) == Some(me);
        let restore = deployment.restore.as_ref();
        let newest = restore.map_or(CheckpointId::ZERO, |manifest| manifest.id);
        let own = deployment.placement.keys().map(|subtask| SlotId {
            sink: sink.clone(),
            slot: subtask.0,
        });
        let mut slots: BTreeMap<SlotId, Vec<StagedInterval>> =
            own.map(|slot| (slot, Vec::new())).collect();
        let listed = restore.iter().flat_map(|manifest| &manifest.staged);
        for state in listed.filter(|state| state.slot.sink == *sink) {
            slots.insert(state.slot.clone(), state.intervals.clone());
        }
        let take_over = |(slot, listed)| Self {
            slot,
            listed,
            newest,
        };
        let mine = slots.into_iter().filter(|(slot, _)| is_mine(slot));
        mine.map(take_over).collect()
    }
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

    /// What a take-over or a discard waits for, in words, for people. After a failure: it is tried again, or
    /// none, and the attempt fails.
    fn trouble(&self) -> Option<String> {
        None
    }

    /// The attempt is over: nothing is begun any more. The next one may be taking the slots over already, and
    /// whoever begins behind it throws it out. What was not published stays listed (C3).
    fn stop(&self) {}

    /// Only these slots are needed: what is kept for others may go (X4). Should one of those be
    /// published again, it begins anew.
    async fn retire_others(&self, _needed: &BTreeSet<SlotId>) {}

    /// At a restore: removes what dead attempts staged and no manifest lists. `listed` is every
    /// interval of this sink in the manifest restored.
    async fn discard_unlisted(&self, listed: &[StagedInterval]) -> Result<(), Error>;
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use streamforge_core::ids::{Epoch, Generation, JobId, SubtaskIdx};
    use streamforge_core::job_graph::JobGraph;
    use streamforge_core::key_group::Assignment;
    use streamforge_core::manifest::{CheckpointKind, Departed, Manifest, SlotState};
    use streamforge_core::messages::Place;

    use super::*;

    fn task_manager(name: &str) -> TaskManagerId {
        let name = name.to_owned();
        TaskManagerId { name, nonce: 1 }
    }

    fn sink() -> OperatorUid {
        OperatorUid("out".to_owned())
    }

    fn listed(slot: u32) -> SlotState {
        let id = CheckpointId::from_stored(7);
        let objects = Vec::new();
        SlotState {
            slot: SlotId { sink: sink(), slot },
            intervals: vec![StagedInterval { id, objects }],
        }
    }

    fn restored(assignment: Assignment) -> Manifest {
        Manifest {
            job: JobId("j".to_owned()),
            generation: Generation::ZERO,
            epoch: Epoch::ZERO,
            id: CheckpointId::from_stored(9),
            kind: CheckpointKind::Ordinary,
            plan: String::new(),
            parallelism: 5,
            max_parallelism: 8,
            assignment,
            time_ms: 0,
            duration_ms: 0,
            tasks: Vec::new(),
            sources: BTreeMap::new(),
            operators: BTreeMap::new(),
            staged: vec![listed(1), listed(4)],
            ledger: BTreeMap::new(),
            late_log: Vec::new(),
            ran_endless: false,
            handed_to: None,
            departed: Departed::default(),
        }
    }

    /// Two subtasks are left of five, on `a` and `b`; slots 1 and 4 have output.
    fn deployment() -> Deployment {
        let place = |name: &str| Place {
            task_manager: task_manager(name),
            exchange: String::new(),
        };
        let assignment = Assignment::even(8, 2);
        let graph = JobGraph {
            format_version: 1,
            name: String::new(),
            max_parallelism: 8,
            bounded: false,
            stages: Vec::new(),
            edges: Vec::new(),
        };
        Deployment {
            graph,
            parallelism: 2,
            restore: Some(restored(assignment.clone())),
            assignment,
            first_id: CheckpointId::ZERO,
            placement: BTreeMap::from([(SubtaskIdx(0), place("a")), (SubtaskIdx(1), place("b"))]),
            born: Generation::ZERO,
            slots: BTreeMap::new(),
        }
    }

    #[test]
    fn every_listed_slot_has_one_who_takes_it_over_x4() {
        let deployment = deployment();
        let of = |name: &str| SlotTakeOver::of(&deployment, &task_manager(name), &sink());
        let (a, b) = (of("a"), of("b"));

        let slots = |of: &[SlotTakeOver]| of.iter().map(|it| it.slot.slot).collect::<Vec<_>>();
        let all: BTreeSet<u32> = slots(&a).into_iter().chain(slots(&b)).collect();
        assert_eq!(all, BTreeSet::from([0, 1, 4]));
        assert_eq!(slots(&a).len() + slots(&b).len(), 3, "each has one owner");
        let mut listed = a.iter().chain(&b).filter(|it| !it.listed.is_empty());
        assert!(listed.all(|it| [1, 4].contains(&it.slot.slot)));
    }
}
