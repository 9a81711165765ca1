//! A third subtask comes, or the second goes, at a barrier (K3).

use streamforge_core::messages::{Deployment, HandOver, Place, TaskManagerId};

use super::*;
use crate::operator::RestoredState;
use crate::task::route::by_key_group;

fn set(numbers: &[u32]) -> BTreeSet<SubtaskIdx> {
    numbers.iter().copied().map(SubtaskIdx).collect()
}

/// From subtasks 0 and 1 to these; split `s1` goes to `reader`.
fn plan(after: &[u32], reader: u32) -> Arc<HandOver> {
    let before = Assignment::even(8, 2);
    let place = |idx: &u32| {
        let place = Place {
            task_manager: TaskManagerId::local(),
            exchange: String::new(),
        };
        (SubtaskIdx(*idx), place)
    };
    let uid = OperatorUid("in".to_owned());
    Arc::new(HandOver {
        deployment: Deployment {
            graph: graph(),
            parallelism: 2,
            assignment: before.dealt_to(&set(after)),
            restore: None,
            first_id: CheckpointId::ZERO,
            placement: after.iter().map(place).collect(),
            born: Generation::ZERO,
            slots: BTreeMap::new(),
        },
        joining: set(after).difference(&set(&[0, 1])).copied().collect(),
        leaving: set(&[0, 1]).difference(&set(after)).copied().collect(),
        splits: BTreeMap::from([(uid, BTreeMap::from([(split(1), SubtaskIdx(reader))]))]),
    })
}

impl Job {
    fn prepare(&mut self, plan: &Arc<HandOver>) {
        for core in self.tasks.values_mut() {
            // Every task of the second stage has two channels so far, those of the first have none.
            let first = core.channels().count();
            core.prepare(Arc::clone(plan), first, false);
        }
        for subtask in &plan.joining {
            for stage in 0..2 {
                let id = task(stage, subtask.0);
                let of = TaskPlan {
                    graph: &plan.deployment.graph,
                    id,
                    subtasks: plan.deployment.placement.keys().copied().collect(),
                    assignment: &plan.deployment.assignment,
                };
                let mut core = TaskCore::new(&of, vec![operator(stage, &mut self.logs)]);
                core.join_at_barrier(Arc::clone(plan));
                core.start().unwrap();
                self.tasks.insert(id, core);
            }
        }
    }

    fn barrier(&mut self, subtask: u32) {
        let barrier = Barrier {
            id: CheckpointId::from_stored(7),
            kind: CheckpointKind::HandOver,
            begun_by: Generation::ZERO,
        };
        self.core(task(0, subtask)).on_checkpoint(barrier).unwrap();
    }

    /// The split `s1`, where it was at the barrier, and what each task of the second stage gained.
    fn all_receive(&mut self, watermark: i64) {
        let at = SplitState {
            split: split(1),
            progress: SplitProgress::At("1".to_owned()),
            watermark: Watermark(watermark),
            description: String::new(),
            weight: 1,
        };
        let ids: Vec<TaskId> = self.tasks.keys().copied().collect();
        for id in ids {
            let core = self.core(id);
            if core.awaits_splits().is_some() {
                let mine = core.splits_after(std::slice::from_ref(&at));
                core.receive_splits(mine).unwrap();
            }
            if core.awaits_groups() {
                core.receive(vec![(0, RestoredState::default())]).unwrap();
            }
        }
        self.settle();
    }

    /// What was read by each receiver: rows only.
    fn rows_of(&self, subtask: usize) -> Vec<i64> {
        let log = self.log(subtask);
        let is_rows = |line: &&String| line.starts_with(|c: char| c.is_ascii_digit());
        let rows = log.iter().filter(is_rows);
        let words = rows.flat_map(|line| line.split_whitespace());
        words.map(|word| word.parse().unwrap()).collect()
    }
}

/// Which of these times belong to whom.
fn owned(times: &[i64], assignment: &Assignment, by: u32) -> Vec<i64> {
    let column: ArrayRef = Arc::new(Int64Array::from(times.to_vec()));
    let rows = RecordBatch::try_new(crate::types::schema(&columns()), vec![column]).unwrap();
    let parts = by_key_group(StreamBatch::plain(rows), &[0], assignment).unwrap();
    let mine = parts.into_iter().find(|(to, _)| to.0 == by);
    let values = mine.map(|(_, batch)| {
        let column = batch.rows.column(0).as_any();
        column
            .downcast_ref::<Int64Array>()
            .unwrap()
            .values()
            .to_vec()
    });
    values.unwrap_or_default()
}

/// Two sources that have sent up to 10, then the barrier of a hand-over to these.
fn handed_over(after: &[u32], reader: u32) -> (Job, Arc<HandOver>) {
    let mut job = Job::new([0, 0]);
    job.settle();
    job.rows(0, &[10]);
    job.rows(1, &[10]);
    job.settle();
    let plan = plan(after, reader);
    job.prepare(&plan);
    job.settle();
    (job, plan)
}

#[test]
fn rows_before_the_barrier_go_by_the_old_table_and_those_behind_it_by_the_new_k3_attack_22() {
    let (mut job, plan) = handed_over(&[0, 1, 2], 2);
    let table = &plan.deployment.assignment;
    let before: Vec<i64> = (20..40).collect();
    job.rows(0, &before);
    job.settle();
    let behind: Vec<i64> = (40..60).collect();
    for subtask in [0, 1, 2] {
        job.barrier(subtask);
    }
    job.settle();
    job.rows(0, &behind);
    job.settle();

    let old = Assignment::even(8, 2);
    for subtask in [0, 1] {
        let mut expected = owned(&[10, 10], &old, subtask);
        expected.extend(owned(&before, &old, subtask));
        expected.extend(owned(&behind, table, subtask));
        assert_eq!(job.rows_of(subtask as usize), expected);
    }
    assert!(!owned(&behind, table, 2).is_empty());
    assert!(job.rows_of(2).is_empty(), "its groups are awaited");
    job.all_receive(10);
    assert_eq!(job.rows_of(2), owned(&behind, table, 2));
    assert_eq!(job.acks.iter().filter(|(_, id)| id.get() == 7).count(), 6);
}

#[test]
fn watermark_stands_still_while_a_group_is_awaited_and_then_follows_the_held_rows_t1_t6_attack_23()
{
    let (mut job, plan) = handed_over(&[0, 1, 2], 1);
    for subtask in [0, 1, 2] {
        job.barrier(subtask);
    }
    job.settle();
    let behind: Vec<i64> = (40..60).collect();
    job.rows(0, &behind);
    job.rows(1, &behind);
    job.settle();
    // Subtask 2 of the sources got no split: it holds nothing, once it knows.
    job.core(task(0, 2)).receive_splits(Vec::new()).unwrap();
    job.settle();
    assert_eq!(
        job.watermark(0),
        Watermark(59),
        "whoever awaits nothing goes on"
    );
    assert_eq!(job.watermark(2), Watermark::NONE, "nothing is received yet");

    job.all_receive(10);
    let log = job.log(2);
    let received = log.iter().position(|line| line.starts_with("receives"));
    let rows = log.iter().position(|line| line.starts_with(['4', '5']));
    let risen = log.iter().rposition(|line| line.starts_with("W "));

    assert!(received < rows && rows < risen, "{log:?}");
    let held = owned(&behind, &plan.deployment.assignment, 2);
    assert_eq!(job.rows_of(2).len(), 2 * held.len());
}

#[test]
fn backlog_of_a_split_that_moves_is_not_late_at_its_new_reader_t6_attack_36() {
    // s0 is at 100, s1 lags at 10 and goes to the reader of s0.
    let mut job = Job::new([0, 0]);
    job.settle();
    job.rows(0, &[100]);
    job.rows(1, &[10]);
    job.settle();
    assert_eq!(job.watermark(0), Watermark(10));
    let plan = plan(&[0], 0);
    job.prepare(&plan);
    job.barrier(0);
    job.barrier(1);
    job.settle();
    assert!(job.core(task(0, 0)).awaits_splits().is_some());
    assert_eq!(
        job.watermark(0),
        Watermark(10),
        "the lagging split still counts"
    );

    let (s0, s1) = (100, 10);
    let state = |n: u32, w| SplitState {
        split: split(n),
        progress: SplitProgress::At("1".to_owned()),
        watermark: Watermark(w),
        description: String::new(),
        weight: 1,
    };
    let all = [state(0, s0), state(1, s1)];
    let core = job.core(task(0, 0));
    let mine = core.splits_after(&all);
    assert_eq!(mine.len(), 2);
    core.receive_splits(mine).unwrap();
    job.settle();
    job.all_receive(10);

    assert_eq!(job.watermark(0), Watermark(10));
    let source = &job.tasks[&task(0, 0)].nodes[0];
    assert_eq!(
        source.watermark,
        Watermark(10),
        "its own watermark began anew"
    );
}

/// All subtasks go to another machine. Split `s1` was idle at 40 while windows fired up to 100: what comes of it
/// now is late for those, as it would have been before.
#[test]
fn who_reads_on_for_subtasks_that_all_left_judges_rows_by_what_has_fired_t6_attack_37() {
    let mut job = Job::new([0, 0]);
    job.settle();
    job.rows(0, &[100]);
    job.rows(1, &[40]);
    job.settle();
    job.idle(1);
    assert_eq!([job.watermark(0), job.watermark(1)], [Watermark(100); 2]);
    let mut plan = (*plan(&[2], 2)).clone();
    let dealt = plan.splits.values_mut().next().unwrap();
    dealt.insert(split(0), SubtaskIdx(2));
    let plan = Arc::new(plan);
    job.prepare(&plan);
    for subtask in [0, 1, 2] {
        job.barrier(subtask);
    }
    job.settle();

    let state = |n: u32, w| SplitState {
        split: split(n),
        progress: SplitProgress::At("1".to_owned()),
        watermark: Watermark(w),
        description: String::new(),
        weight: 1,
    };
    let reader = job.core(task(0, 2));
    let mine = reader.splits_after(&[state(0, 100), state(1, 40)]);
    assert_eq!(mine.len(), 2);
    reader.receive_splits(mine).unwrap();
    job.settle();
    let gained = RestoredState {
        watermark: Watermark(100),
        ..RestoredState::default()
    };
    job.core(task(1, 2)).receive(vec![(0, gained)]).unwrap();
    job.settle();

    assert_eq!(job.watermark(2), Watermark(100));
    let reader = &job.tasks[&task(0, 2)];
    assert!(reader.takes_rows());
    let judges_by = reader.nodes[0].watermark.max(reader.nodes[0].floor);
    assert_eq!(
        judges_by,
        Watermark(100),
        "60 is late for a window up to 70"
    );
}

#[test]
fn groups_given_away_leave_and_their_owner_answers_joins_to_the_end_k3_t6() {
    let (mut job, _) = handed_over(&[0], 0);
    job.barrier(0);
    job.barrier(1);
    job.settle();

    assert!(job.tasks[&task(1, 1)].has_left());
    assert!(job.tasks[&task(0, 0)].takes_rows(), "all have answered");
    job.all_receive(10);
    job.rows(0, &[50, 51, 52, 53]);
    job.settle();
    let rows = |idx: usize| job.rows_of(idx).into_iter().filter(|t| *t >= 50).count();
    assert_eq!((rows(0), rows(1)), (4, 0));
}

/// Everybody else may have told already: then who leaves goes, and its answer never comes.
#[test]
fn hand_over_is_told_as_done_once_those_that_leave_have_answered_k3_t6() {
    let (mut job, _) = handed_over(&[0], 0);
    let (sender, id) = (task(0, 0), CheckpointId::from_stored(7));
    job.barrier(0);
    job.core(sender).on_received(id);
    job.perform(sender);
    let is_told = |job: &Job| {
        let mut told = job.told.iter();
        told.any(|(task, effect)| {
            *task == sender && matches!(effect, Effect::Received(of) if *of == id)
        })
    };
    assert!(!is_told(&job));

    job.barrier(1);
    job.settle();

    assert!(is_told(&job));
    job.core(sender).on_received(id);
    job.told.clear();
    job.perform(sender);
    assert!(is_told(&job), "whoever asks again is told again");
}

#[test]
fn owner_that_stays_lets_go_of_moved_groups_right_behind_its_snapshot_k3() {
    let (mut job, plan) = handed_over(&[0, 1, 2], 2);
    for subtask in [0, 1, 2] {
        job.barrier(subtask);
    }
    job.settle();

    let kept = plan.deployment.assignment.groups_of(SubtaskIdx(1)).len();
    let log = job.log(1);
    let snapshot = log.iter().position(|line| line == "snapshot 7").unwrap();
    assert_eq!(log[snapshot + 1], format!("keeps {kept}"));
}

#[test]
fn withdrawn_hand_over_leaves_no_channel_that_is_waited_for_k3() {
    let (mut job, _) = handed_over(&[0, 1, 2], 2);
    job.tasks.retain(|id, _| id.subtask.0 < 2);
    for core in job.tasks.values_mut() {
        core.withdraw();
    }
    job.checkpoint(0, 8);
    job.checkpoint(1, 8);
    job.settle();

    let acks = job.acks.iter().filter(|(_, id)| id.get() == 8);
    assert_eq!(acks.count(), 4);
}

#[test]
fn barrier_of_a_hand_over_that_a_task_knows_nothing_of_is_declined() {
    let mut job = Job::new([0, 0]);
    job.settle();
    job.barrier(0);
    job.settle();

    assert_eq!(job.declined, [(task(0, 0), CheckpointId::from_stored(7))]);
}

#[test]
fn co_that_dies_while_tasks_align_for_a_hand_over_lets_no_row_through_attack_24() {
    let (mut job, plan) = handed_over(&[0, 1, 2], 2);
    job.barrier(0);
    job.settle();
    // Subtask 1 of the sources never hears of it; its receivers are told that nobody is left.
    for core in job.tasks.values_mut() {
        core.on_orphaned(Generation::ZERO);
    }
    job.settle();

    assert!(!job.core(task(0, 0)).takes_rows(), "nobody answers it");
    let behind: Vec<i64> = (40..60).collect();
    assert!(!owned(&behind, &plan.deployment.assignment, 2).is_empty());
    assert!(job.rows_of(2).is_empty());
}
