//! Output that is staged and not known as published, of all tasks of an attempt.
//!
//! Invariant C3: every acknowledgement lists *all* of its slots' unpublished intervals, each under the
//! id of the barrier that closed it.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use streamforge_core::ids::{CheckpointId, SlotId, TaskId};
use streamforge_core::manifest::StagedInterval;

/// See the module.
#[derive(Debug, Default)]
pub struct Staged {
    slots: Mutex<BTreeMap<SlotId, Vec<StagedInterval>>>,
    tasks: Mutex<BTreeMap<TaskId, Vec<SlotId>>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Staged {
    /// Says which slots a task writes.
    pub fn register(&self, task: TaskId, slots: Vec<SlotId>) {
        lock(&self.tasks).insert(task, slots);
    }

    /// A task's sink staged an interval.
    pub fn add(&self, slot: SlotId, interval: StagedInterval) {
        lock(&self.slots).entry(slot).or_default().push(interval);
    }

    /// An interval is visible.
    pub fn on_published(&self, slot: &SlotId, interval: CheckpointId) {
        if let Some(intervals) = lock(&self.slots).get_mut(slot) {
            intervals.retain(|staged| staged.id != interval);
        }
    }

    /// A task's unpublished intervals up to and with this checkpoint, oldest first.
    pub fn of_subtask(&self, task: TaskId, id: CheckpointId) -> Vec<(SlotId, StagedInterval)> {
        let slots_of_task = lock(&self.tasks).get(&task).cloned().unwrap_or_default();
        let slots = lock(&self.slots);
        let mut all = Vec::new();
        for slot in slots_of_task {
            let intervals = slots.get(&slot).into_iter().flatten();
            let mine = intervals.filter(|interval| interval.id <= id);
            all.extend(mine.map(|interval| (slot.clone(), interval.clone())));
        }
        all
    }
}
