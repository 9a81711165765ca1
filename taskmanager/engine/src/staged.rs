//! Output that is staged and not known as published, of all tasks of an attempt.
//!
//! Owns: what every acknowledgement lists of it, and which sinks have so much of it that they must
//! take no more rows.
//!
//! Invariant C3: every acknowledgement lists *all* of its slots' unpublished intervals, each under the
//! id of the barrier that closed it. Invariant B1: a sink whose committed output cannot be published
//! is full at [`INTERVALS_MAX`] or [`BYTES_MAX`]. Only committed intervals count: they go away without
//! a further checkpoint, so a full sink never waits for a barrier that waits for it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use streamforge_core::ids::{CheckpointId, OperatorUid, SlotId, TaskId};
use streamforge_core::manifest::StagedInterval;

/// Committed intervals of one sink that may wait to be published.
pub const INTERVALS_MAX: usize = 1_000;

/// Committed bytes of one sink that may wait to be published.
pub const BYTES_MAX: u64 = 1 << 30;

/// See the module.
#[derive(Debug, Default)]
pub struct Staged {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The slots that a task writes.
    tasks: BTreeMap<TaskId, Vec<SlotId>>,
    /// Staged in this attempt.
    own: BTreeMap<SlotId, Vec<StagedInterval>>,
    /// Listed by the manifest that was restored; the coordinator lists them on by itself.
    inherited: BTreeMap<SlotId, Vec<StagedInterval>>,
    /// The newest committed checkpoint: what is staged up to it is listed.
    committed: CheckpointId,
    full: BTreeSet<OperatorUid>,
}

impl State {
    fn judge(&mut self) {
        let committed = self.committed;
        let own = self.own.iter();
        let own = own.flat_map(|(slot, all)| all.iter().map(move |it| (slot, it)));
        let own = own.filter(|(_, interval)| interval.id <= committed);
        let inherited = self.inherited.iter();
        let inherited = inherited.flat_map(|(slot, all)| all.iter().map(move |it| (slot, it)));
        let mut waiting: BTreeMap<&OperatorUid, (BTreeSet<CheckpointId>, u64)> = BTreeMap::new();
        for (slot, interval) in own.chain(inherited) {
            let (intervals, bytes) = waiting.entry(&slot.sink).or_default();
            intervals.insert(interval.id);
            *bytes += interval.objects.iter().map(|it| it.bytes).sum::<u64>();
        }
        let full = waiting.into_iter().filter(|(_, (intervals, bytes))| {
            intervals.len() > INTERVALS_MAX || *bytes > BYTES_MAX
        });
        self.full = full.map(|(sink, _)| sink.clone()).collect();
    }
}

impl Staged {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Every critical section leaves it whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Says which slots a task writes.
    pub fn register(&self, task: TaskId, slots: Vec<SlotId>) {
        self.lock().tasks.insert(task, slots);
    }

    /// What the restored manifest lists of a slot that is published from here.
    pub fn inherit(&self, slot: SlotId, listed: Vec<StagedInterval>) {
        let mut state = self.lock();
        state.inherited.insert(slot, listed);
        state.judge();
    }

    /// A task's sink staged an interval.
    pub fn add(&self, slot: SlotId, interval: StagedInterval) {
        self.lock().own.entry(slot).or_default().push(interval);
    }

    /// A checkpoint is committed.
    pub fn on_committed(&self, id: CheckpointId) {
        let mut state = self.lock();
        if state.committed < id {
            state.committed = id;
            state.judge();
        }
    }

    /// An interval is visible.
    pub fn on_published(&self, slot: &SlotId, interval: CheckpointId) {
        let mut guard = self.lock();
        let state = &mut *guard;
        for slots in [&mut state.own, &mut state.inherited] {
            if let Some(intervals) = slots.get_mut(slot) {
                intervals.retain(|staged| staged.id != interval);
            }
        }
        if state.full.contains(&slot.sink) {
            state.judge();
        }
    }

    /// Slots of this sink with output that is not published yet.
    pub fn unpublished_slots(&self, sink: &OperatorUid) -> BTreeSet<SlotId> {
        let state = self.lock();
        let all = state.own.iter().chain(&state.inherited);
        let waiting = all.filter(|(slot, intervals)| slot.sink == *sink && !intervals.is_empty());
        waiting.map(|(slot, _)| slot.clone()).collect()
    }

    /// Whether a sink must take no more rows until some of its output is published (B1).
    pub fn is_full(&self, sink: &OperatorUid) -> bool {
        self.lock().full.contains(sink)
    }

    /// A task's unpublished intervals up to and with this checkpoint, oldest first.
    pub fn of_subtask(&self, task: TaskId, id: CheckpointId) -> Vec<(SlotId, StagedInterval)> {
        let state = self.lock();
        let mut all = Vec::new();
        for slot in state.tasks.get(&task).into_iter().flatten() {
            let intervals = state.own.get(slot).into_iter().flatten();
            let mine = intervals.filter(|interval| interval.id <= id);
            all.extend(mine.map(|interval| (slot.clone(), interval.clone())));
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use streamforge_core::ids::{StageIdx, SubtaskIdx};
    use streamforge_core::manifest::StagedObject;

    use super::*;

    const TASK: TaskId = TaskId {
        stage: StageIdx(0),
        subtask: SubtaskIdx(0),
    };

    fn slot(sink: &str) -> SlotId {
        SlotId {
            sink: OperatorUid(sink.to_owned()),
            slot: 0,
        }
    }

    fn id(number: u64) -> CheckpointId {
        CheckpointId::from_stored(number)
    }

    fn interval(number: u64, bytes: u64) -> StagedInterval {
        let object = StagedObject {
            staged: "s".to_owned(),
            published: "p".to_owned(),
            bytes,
            rows: 1,
            detail: String::new(),
        };
        StagedInterval {
            id: id(number),
            objects: vec![object],
        }
    }

    fn of_one_task() -> Staged {
        let staged = Staged::default();
        staged.register(TASK, vec![slot("a")]);
        staged
    }

    #[test]
    fn sink_is_full_above_a_thousand_committed_intervals_b1_c3() {
        let staged = of_one_task();
        for number in 1..=1_001 {
            staged.add(slot("a"), interval(number, 1));
        }
        staged.on_committed(id(1_000));
        assert!(!staged.is_full(&slot("a").sink));

        staged.on_committed(id(1_001));
        assert!(staged.is_full(&slot("a").sink));
        assert!(!staged.is_full(&slot("b").sink));

        staged.on_published(&slot("a"), id(1));
        assert!(!staged.is_full(&slot("a").sink));
    }

    #[test]
    fn sink_is_full_above_a_gib_committed_b1_c3() {
        let staged = of_one_task();
        staged.add(slot("a"), interval(1, BYTES_MAX));
        staged.add(slot("a"), interval(2, 1));
        staged.on_committed(id(1));
        assert!(!staged.is_full(&slot("a").sink));
        staged.on_committed(id(2));
        assert!(staged.is_full(&slot("a").sink));
    }

    /// An uncommitted interval goes away by a checkpoint only, and that may wait for this sink.
    #[test]
    fn what_no_checkpoint_committed_does_not_fill_a_sink_b1() {
        let staged = of_one_task();
        staged.add(slot("a"), interval(2, BYTES_MAX + 1));
        staged.on_committed(id(1));
        assert!(!staged.is_full(&slot("a").sink));
    }

    #[test]
    fn inherited_intervals_fill_a_sink_and_are_not_reported_as_new_c3() {
        let staged = of_one_task();
        staged.inherit(slot("a"), vec![interval(1, BYTES_MAX + 1)]);
        assert!(staged.is_full(&slot("a").sink));
        assert_eq!(staged.of_subtask(TASK, id(9)), []);

        staged.on_published(&slot("a"), id(1));
        assert!(!staged.is_full(&slot("a").sink));
    }

    #[test]
    fn acknowledgement_lists_all_unpublished_up_to_its_barrier_c3() {
        let staged = of_one_task();
        for number in 1..=3 {
            staged.add(slot("a"), interval(number, 1));
        }
        staged.on_published(&slot("a"), id(1));
        let listed = staged.of_subtask(TASK, id(2));
        assert_eq!(listed, [(slot("a"), interval(2, 1))]);
    }
}
