//! Tests of [`TaskCore`]: two source tasks, two receivers, queues between them by hand.

mod handing_over;
mod joining;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex};

use arrow::array::{ArrayRef, Int64Array};
use streamforge_core::data_type::DataType;
use streamforge_core::ids::{Generation, StageIdx};
use streamforge_core::job_graph::{
    Column, Connector, Edge, Exchange, Input, JobGraph, OnBadRecord, Operator as OperatorSpec,
    OperatorKind, SourceSpec, Stage,
};
use streamforge_core::key_group::{Assignment, KeyGroup};
use streamforge_core::manifest::{CheckpointKind, SplitProgress};

use super::*;
use crate::evaluate::Evaluator;
use crate::operator::Outputs;
use crate::operators::source::EventTimeEvaluator;
use crate::state::StatePart;

type Log = Arc<Mutex<Vec<String>>>;

/// Writes down what reaches it.
struct Recorder(Log);

impl Operator for Recorder {
    fn on_batch(&mut self, _: usize, batch: StreamBatch, _: &mut Outputs) -> Result<(), Error> {
        let times = batch.event_time.expect("the source gives event time");
        let line = times
            .values()
            .iter()
            .map(|t| format!("{t} "))
            .collect::<String>();
        self.0.lock().unwrap().push(line.trim().to_owned());
        Ok(())
    }

    fn on_watermark(&mut self, w: Watermark, _: &mut Outputs) -> Result<Watermark, Error> {
        self.0.lock().unwrap().push(format!("W {w}"));
        Ok(w)
    }

    fn release(&mut self, kept: &BTreeSet<KeyGroup>, _: &[Arc<StatePart>]) -> Result<(), Error> {
        self.0.lock().unwrap().push(format!("keeps {}", kept.len()));
        Ok(())
    }

    fn receive(&mut self, state: RestoredState, _: &mut Outputs) -> Result<(), Error> {
        let n = state.groups.len();
        self.0.lock().unwrap().push(format!("receives {n}"));
        Ok(())
    }

    fn snapshot(&mut self, id: CheckpointId) -> Result<Option<OperatorSnapshot>, Error> {
        self.0.lock().unwrap().push(format!("snapshot {id}"));
        Ok(Some(OperatorSnapshot {
            keyed: true,
            ..OperatorSnapshot::default()
        }))
    }

    fn counters(&self) -> Counters {
        Counters::default()
    }
}

fn columns() -> Vec<Column> {
    vec![Column {
        name: "ts".to_owned(),
        data_type: DataType::BigInt,
        nullable: false,
    }]
}

fn graph() -> JobGraph {
    let source = SourceSpec {
        connector: Connector {
            kind: "test".to_owned(),
            config: serde_json::Value::Null,
        },
        format: None,
        columns: Vec::new(),
        event_time: None,
        on_bad_record: OnBadRecord::Divert,
        rate_limit: None,
        bounded: false,
        origin: false,
    };
    let operator = |uid: &str, kind, inputs| OperatorSpec {
        uid: OperatorUid(uid.to_owned()),
        node: uid.to_owned(),
        kind,
        inputs,
        output: columns(),
        updating: false,
    };
    JobGraph {
        format_version: 1,
        name: "test".to_owned(),
        max_parallelism: 8,
        bounded: false,
        stages: vec![
            Stage {
                operators: vec![operator("in", OperatorKind::Source(source), vec![])],
            },
            Stage {
                operators: vec![operator("out", OperatorKind::Union, vec![Input::Edge(0)])],
            },
        ],
        edges: vec![Edge {
            from_stage: StageIdx(0),
            from_operator: 0,
            port: Port::Main,
            to_stage: StageIdx(1),
            to_operator: 0,
            exchange: Exchange::KeyGroup { columns: vec![0] },
        }],
    }
}

fn column_ts() -> Evaluator {
    let expr = Arc::new(datafusion_physical_expr::expressions::Column::new("ts", 0));
    Evaluator {
        sql: "ts".to_owned(),
        expr,
    }
}

struct Job {
    tasks: BTreeMap<TaskId, TaskCore>,
    queues: BTreeMap<(TaskId, usize), VecDeque<Element>>,
    /// Who begins its checkpoints.
    coordinator: Generation,
    logs: Vec<Log>,
    acks: Vec<(TaskId, CheckpointId)>,
    declined: Vec<(TaskId, CheckpointId)>,
    /// What the shell would be told about readers.
    told: Vec<(TaskId, Effect)>,
    /// Answers on their way to the senders, withheld until delivered.
    answers: VecDeque<(TaskId, usize, SubtaskIdx, Watermark)>,
}

fn task(stage: u32, subtask: u32) -> TaskId {
    TaskId {
        stage: StageIdx(stage),
        subtask: SubtaskIdx(subtask),
    }
}

fn split(subtask: u32) -> SplitId {
    SplitId(format!("s{subtask}"))
}

/// The one operator of a stage.
fn operator(stage: u32, logs: &mut Vec<Log>) -> Chained {
    if stage == 0 {
        let times = EventTimeEvaluator {
            expr: column_ts(),
            max_out_of_orderness_us: 0,
            idle_timeout_ms: Some(100),
        };
        let named = Named {
            uid: "in".to_owned(),
            node: "in".to_owned(),
        };
        Chained::Source(SourceOperator::new(
            named,
            Some(times),
            OnBadRecord::Divert,
            false,
        ))
    } else {
        let log = Log::default();
        logs.push(Arc::clone(&log));
        Chained::Operator(Box::new(Recorder(log)))
    }
}

impl Job {
    fn new(restored: [i64; 2]) -> Self {
        let graph = graph();
        let assignment = Assignment::even(8, 2);
        let mut tasks = BTreeMap::new();
        let mut logs = Vec::new();
        for stage in 0..2 {
            for subtask in 0..2 {
                let id = task(stage, subtask);
                let plan = TaskPlan {
                    graph: &graph,
                    id,
                    subtasks: vec![SubtaskIdx(0), SubtaskIdx(1)],
                    assignment: &assignment,
                };
                let chained = operator(stage, &mut logs);
                let mut core = TaskCore::new(&plan, vec![chained]);
                if stage == 0 {
                    let state = SplitState {
                        split: split(subtask),
                        progress: SplitProgress::At("0".to_owned()),
                        watermark: Watermark::NONE,
                        description: String::new(),
                        weight: 1,
                    };
                    core.add_splits(0, vec![state]);
                } else if restored[subtask as usize] != 0 {
                    let watermark = Watermark(restored[subtask as usize]);
                    core.restore(
                        0,
                        RestoredState {
                            watermark,
                            ..RestoredState::default()
                        },
                    )
                    .unwrap();
                }
                tasks.insert(id, core);
            }
        }
        let mut job = Self {
            tasks,
            queues: BTreeMap::new(),
            coordinator: Generation::from_stored(1),
            logs,
            acks: Vec::new(),
            declined: Vec::new(),
            told: Vec::new(),
            answers: VecDeque::new(),
        };
        for core in job.tasks.values_mut() {
            core.start().unwrap();
        }
        job
    }

    fn core(&mut self, id: TaskId) -> &mut TaskCore {
        self.tasks.get_mut(&id).unwrap()
    }

    fn perform(&mut self, id: TaskId) {
        for effect in self.core(id).take_effects() {
            match effect {
                Effect::Send { to, element, .. } => {
                    let receiver = task(1, to.0);
                    let mut channels = self.tasks[&receiver].channels();
                    let channel = channels.position(|channel| channel.sender == id.subtask);
                    let key = (receiver, channel.expect("it has one from there"));
                    self.queues.entry(key).or_default().push_back(element);
                }
                Effect::Answer { channel, watermark } => {
                    let sender = task(0, channel.sender.0);
                    self.answers
                        .push_back((sender, channel.edge, id.subtask, watermark));
                }
                Effect::Snapshot(snapshot) => self.acks.push((id, snapshot.barrier.id)),
                Effect::Declined { id: checkpoint, .. } => self.declined.push((id, checkpoint)),
                Effect::Write { .. } | Effect::Ended => {}
                Effect::Release => self.core(id).release().unwrap(),
                Effect::Reopen { .. }
                | Effect::CloseReader
                | Effect::Left
                | Effect::Received(_) => {
                    self.told.push((id, effect));
                }
            }
        }
    }

    fn deliver_answers(&mut self) {
        while let Some((sender, edge, receiver, watermark)) = self.answers.pop_front() {
            self.core(sender)
                .on_answer(edge, receiver, watermark)
                .unwrap();
        }
    }

    /// Delivers whatever may be delivered until nothing moves.
    fn settle(&mut self) {
        loop {
            let ids: Vec<TaskId> = self.tasks.keys().copied().collect();
            ids.iter().for_each(|id| self.perform(*id));
            self.deliver_answers();
            let ready = self
                .queues
                .iter()
                .find(|((id, channel), queue)| !queue.is_empty() && self.tasks[id].takes(*channel));
            let Some((&(id, channel), _)) = ready else {
                if self.tasks.values().all(|core| core.effects.is_empty()) {
                    return;
                }
                continue;
            };
            let element = self
                .queues
                .get_mut(&(id, channel))
                .unwrap()
                .pop_front()
                .unwrap();
            self.core(id).on_element(channel, element).unwrap();
        }
    }

    fn rows(&mut self, subtask: u32, times: &[i64]) {
        let column: ArrayRef = Arc::new(Int64Array::from(times.to_vec()));
        let batch = SourceBatch {
            split: split(subtask),
            rows: RecordBatch::try_new(crate::types::schema(&columns()), vec![column]).unwrap(),
            origin: None,
            bad: BadRows::default(),
            bad_n: 0,
            unknown_fields: 0,
            progress: SplitProgress::At("1".to_owned()),
        };
        let core = self.core(task(0, subtask));
        if !core.wake(0, &split(subtask)).unwrap() {
            self.settle();
        }
        assert!(self.core(task(0, subtask)).takes_rows(), "joined");
        self.core(task(0, subtask))
            .on_source_batch(0, batch)
            .unwrap();
    }

    fn idle(&mut self, subtask: u32) {
        let core = self.core(task(0, subtask));
        for now_ms in [1_000, 1_100] {
            core.set_now_ms(now_ms);
            core.on_nothing_new(0, &split(subtask)).unwrap();
        }
        self.settle();
    }

    fn log(&self, subtask: usize) -> Vec<String> {
        self.logs[subtask].lock().unwrap().clone()
    }

    fn checkpoint(&mut self, subtask: u32, id: u64) {
        let id = CheckpointId::from_stored(id);
        let barrier = Barrier {
            id,
            kind: CheckpointKind::Ordinary,
            begun_by: self.coordinator,
        };
        self.core(task(0, subtask)).on_checkpoint(barrier).unwrap();
    }

    fn watermark(&self, subtask: u32) -> Watermark {
        self.tasks[&task(1, subtask)].nodes[0].watermark
    }
}

#[test]
fn bytes_are_counted_where_they_leave_and_where_they_come_in() {
    let mut job = Job::new([0, 0]);
    job.settle();

    job.rows(0, &[50, 60, 70]);
    job.settle();

    let traffic = |id: TaskId, uid: &str| job.tasks[&id].traffic()[&OperatorUid(uid.to_owned())];
    let bytes_n = 3 * 8;
    assert_eq!(traffic(task(0, 0), "in").bytes_out, bytes_n);
    let came_in = [0, 1].map(|subtask| traffic(task(1, subtask), "out").bytes_in);
    assert_eq!(came_in.iter().sum::<u64>(), bytes_n);
}

#[test]
fn receiver_watermark_is_the_minimum_over_both_senders_t1() {
    let mut job = Job::new([0, 0]);
    job.settle();

    job.rows(0, &[50]);
    job.settle();
    assert_eq!(
        job.watermark(0),
        Watermark::NONE,
        "the other sender has not promised anything"
    );
    job.rows(1, &[30]);
    job.settle();

    assert_eq!([job.watermark(0), job.watermark(1)], [Watermark(30); 2]);
}

#[test]
fn nothing_is_sent_before_all_receivers_answered_t6() {
    let mut job = Job::new([95, 80]);
    let ids: Vec<TaskId> = job.tasks.keys().copied().collect();
    ids.iter().for_each(|id| job.perform(*id));

    assert!(!job.core(task(0, 0)).takes_rows());
    job.settle();
    assert!(job.core(task(0, 0)).takes_rows());

    // Both senders were raised to the highest watermark among the receivers, so none falls behind it.
    assert_eq!([job.watermark(0), job.watermark(1)], [Watermark(95); 2]);
    assert_eq!(
        job.log(1),
        ["W 80us", "W 95us"],
        "the one behind jumps, and fires what it owes"
    );
}

#[test]
fn idle_sender_is_left_out_and_comes_back_at_the_receivers_watermark_t2() {
    let mut job = Job::new([0, 0]);
    job.settle();
    job.rows(0, &[100]);
    job.rows(1, &[40]);
    job.settle();
    assert_eq!(job.watermark(0), Watermark(40));

    job.idle(1);
    assert_eq!(job.watermark(0), Watermark(100));
    job.rows(1, &[60]);
    job.settle();

    let sender = &job.tasks[&task(0, 1)].nodes[0];
    assert_eq!(
        sender.watermark.max(sender.floor),
        Watermark(100),
        "60 is judged against 100"
    );
    assert_eq!(job.watermark(0), Watermark(100), "T1: it never goes back");
    job.rows(0, &[200]);
    job.settle();
    assert_eq!(
        job.watermark(0),
        Watermark(100),
        "the sender that came back holds it again"
    );
}

#[test]
fn files_that_end_together_leave_the_watermark_of_the_one_with_rows_t2() {
    // One file per subtask, that of subtask 1 without a good row; in either order of their ends.
    for order in [[0, 1], [1, 0]] {
        let mut job = Job::new([0, 0]);
        job.settle();
        job.rows(0, &[100]);
        job.settle();
        assert_eq!(job.watermark(0), Watermark::NONE, "the other holds it");

        for subtask in order {
            let ended = job.core(task(0, subtask));
            ended.on_split_ended(0, &split(subtask)).unwrap();
            job.settle();
        }

        let both = [job.watermark(0), job.watermark(1)];
        assert_eq!(both, [Watermark(100); 2], "{order:?}");
    }
}

#[test]
fn files_of_one_subtask_that_end_together_leave_the_watermark_of_the_one_with_rows_t2() {
    let mut job = Job::new([0, 0]);
    job.settle();
    let bare = SplitState {
        split: SplitId("bare".to_owned()),
        progress: SplitProgress::At("0".to_owned()),
        watermark: Watermark::NONE,
        description: String::new(),
        weight: 1,
    };
    let reader = job.core(task(0, 0));
    reader.on_discovered(0, bare.clone()).unwrap();
    job.rows(0, &[100]);
    job.core(task(0, 1)).on_split_ended(0, &split(1)).unwrap();
    job.settle();
    assert_eq!(job.watermark(0), Watermark::NONE, "the bare file holds it");

    for ended in [split(0), bare.split] {
        job.core(task(0, 0)).on_split_ended(0, &ended).unwrap();
        job.settle();
    }

    let both = [job.watermark(0), job.watermark(1)];
    assert_eq!(both, [Watermark(100); 2]);
}

#[test]
fn rows_behind_a_barrier_wait_until_all_inputs_delivered_it_a1() {
    let mut job = Job::new([0, 0]);
    job.settle();
    job.checkpoint(0, 1);
    job.rows(0, &[7, 8, 9, 10, 11, 12]);
    job.settle();
    assert!(
        job.log(0).is_empty() && job.log(1).is_empty(),
        "{:?}",
        job.logs
    );

    job.rows(1, &[1]);
    job.checkpoint(1, 1);
    job.settle();

    for subtask in 0..2 {
        let log = job.log(subtask);
        let snapshot = log.iter().position(|line| line == "snapshot 1").unwrap();
        let before = log[..snapshot]
            .iter()
            .any(|line| line.contains('7') || line.contains("12"));
        assert!(
            !before,
            "a row behind the barrier is not in the snapshot: {log:?}"
        );
        assert!(log.len() > snapshot + 1, "it comes afterwards: {log:?}");
    }
    assert_eq!(job.acks.len(), 4);
}

#[test]
fn abort_releases_a_blocked_input_and_drops_nothing_a2() {
    let mut job = Job::new([0, 0]);
    job.settle();
    job.checkpoint(0, 1);
    job.rows(0, &[7, 8, 9, 10]);
    job.settle();

    for subtask in 0..2 {
        job.core(task(1, subtask))
            .on_abort(CheckpointId::from_stored(1));
    }
    job.settle();

    let seen = [job.log(0), job.log(1)].concat().join(" ");
    for row in ["7", "8", "9", "10"] {
        assert!(seen.contains(row), "{seen}");
    }
    assert_eq!(job.declined.len(), 2);
    job.checkpoint(1, 1);
    job.settle();
    assert!(
        !job.acks.iter().any(|(id, _)| id.stage == StageIdx(1)),
        "1 is void"
    );
    job.checkpoint(0, 2);
    job.checkpoint(1, 2);
    job.settle();
    let two = CheckpointId::from_stored(2);
    assert_eq!(
        job.acks
            .iter()
            .filter(|(id, n)| id.stage == StageIdx(1) && *n == two)
            .count(),
        2
    );
}

#[test]
fn ended_tasks_go_on_answering_barriers_c11() {
    let mut job = Job::new([0, 0]);
    job.settle();
    job.core(task(0, 0)).on_source_ended(0).unwrap();
    job.settle();
    assert!(job.core(task(0, 0)).is_ended());
    assert!(!job.core(task(1, 0)).is_ended(), "the other source goes on");

    job.checkpoint(0, 1);
    job.checkpoint(1, 1);
    job.settle();
    assert_eq!(job.acks.len(), 4, "the ended task takes part");

    job.core(task(0, 1)).on_source_ended(0).unwrap();
    job.settle();
    assert!(job.tasks.values().all(TaskCore::is_ended));
}

/// Attack 26, with a barrier that is still on its way, behind rows for example, when the sessions break: tasks go on
/// without a coordinator. The next one's barriers, which come by another way than its word, are taken at once.
#[test]
fn barrier_that_comes_after_its_coordinator_has_gone_keeps_no_input_waiting_a2_f1() {
    let mut job = Job::new([0, 0]);
    job.settle();
    job.checkpoint(0, 7);
    for core in job.tasks.values_mut() {
        core.on_orphaned(job.coordinator);
    }
    job.settle();

    for time in [50, 60] {
        job.rows(0, &[time]);
        job.rows(1, &[time]);
        job.settle();
    }

    assert_eq!([job.watermark(0), job.watermark(1)], [Watermark(60); 2]);
    job.coordinator = Generation::from_stored(job.coordinator.get() + 1);
    let void_to = CheckpointId::from_stored(8);
    for subtask in [0, 1] {
        job.core(task(0, subtask)).on_abort(void_to);
        job.checkpoint(subtask, 9);
    }
    job.settle();
    for subtask in [0, 1] {
        job.core(task(1, subtask)).on_abort(void_to);
    }
    let ninth = CheckpointId::from_stored(9);
    assert_eq!(job.acks.iter().filter(|(_, id)| *id == ninth).count(), 4);
    assert_eq!(job.declined, []);
}

/// A coordinator dies after its stop's barrier; whoever adopts the task did not ask for a stop.
#[test]
fn source_reads_on_when_its_stop_is_given_up_f1_c11() {
    let stop = |id| Barrier {
        id: CheckpointId::from_stored(id),
        kind: CheckpointKind::Stop,
        begun_by: Generation::ZERO,
    };
    let mut job = Job::new([0, 0]);
    job.settle();
    let source = job.core(task(0, 0));
    source.on_checkpoint(stop(3)).unwrap();
    assert!(!source.reads());
    source.on_abort(CheckpointId::from_stored(2));
    assert!(!source.reads(), "another attempt was given up");

    source.on_abort(CheckpointId::from_stored(4));

    assert!(source.reads());
    source.on_checkpoint(stop(4)).unwrap();
    assert!(source.reads(), "it was given up before it came");
    source.on_checkpoint(stop(5)).unwrap();
    assert!(!source.reads());
}
