//! One attempt of a job in a task manager: its tasks, and what is between them.
//!
//! Owns: loading tasks, delivering elements, performing effects and uploads, in the order of
//! `taskmanager/src/{attempt,task,upload}.rs`. Start at: [`Attempt::prepare`], [`Attempt::step`].

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use streamforge_core::event_time::Watermark;
use streamforge_core::ids::{CheckpointId, OperatorUid, SlotId, SubtaskIdx, TaskId};
use streamforge_core::job_graph::OperatorKind;
use streamforge_core::manifest::{PartRef, SplitProgress, SplitState};
use streamforge_core::messages::{Deployment, Event, Stamp, TaskSnapshot};
use streamforge_core::object_key::{LATE, PARTS, Writer as ObjectWriter};
use streamforge_engine::error::{Error, Recovery};
use streamforge_engine::staged::Staged;
use streamforge_engine::state::StatePart;
use streamforge_engine::task::{Channel, Effect, Element, TaskCore, TaskPlan};
use streamforge_state::late_log::encode_late_log;
use streamforge_state::part::encode_part;
use streamforge_state::restore::{Parts, load_operator};
use streamforge_store::{Condition, MemoryStore, Put};

use crate::job::Input;
use crate::operators::build;
use crate::outside::Outside;
use crate::rng::Rng;
use crate::task::{Control, Reader, Task, Upload, Writer};

/// Batches that a reader's receivers may be behind.
const LANE_BATCHES_MAX: usize = 4;

/// Snapshots that wait for a task's uploader; with more the task waits.
const UPLOADS_MAX: usize = 3;

/// Events that a step leads to.
pub type Outcome = Vec<Event>;

/// Splits of each source.
pub type Splits = BTreeMap<OperatorUid, Vec<SplitState>>;

/// See the module.
pub struct Attempt {
    /// Which.
    pub stamp: Stamp,
    deployment: Deployment,
    tasks: BTreeMap<TaskId, Task>,
    /// Staged and not known as published.
    pub staged: Arc<Staged>,
    running: bool,
}

/// The memory store's futures are ready at once.
pub(crate) fn now<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("the memory store never waits"),
    }
}

fn loads(source: &streamforge_state::Error) -> (String, bool) {
    let retry = matches!(source, streamforge_state::Error::Store { .. });
    (format!("restore: {source}"), retry)
}

fn failed(task: TaskId, error: &Error) -> Event {
    let retry = error.recovery() == Recovery::Restart;
    Event::Failed {
        task: Some(task),
        cause: error.to_string(),
        retry,
    }
}

impl Attempt {
    /// Builds every task and loads its state; reads nothing. An error says whether another attempt
    /// may do better.
    pub fn prepare(
        stamp: Stamp,
        deployment: Deployment,
        store: &MemoryStore,
        input: &Arc<Input>,
        unbounded: bool,
    ) -> Result<(Self, Splits), (String, bool)> {
        let staged = Arc::new(Staged::default());
        let mut tasks = BTreeMap::new();
        for id in deployment.graph.tasks(deployment.parallelism) {
            let task = load_task(id, &stamp, &deployment, store, input, unbounded)?;
            let slots = task
                .writers
                .values()
                .map(|writer| writer.slot.clone())
                .collect();
            staged.register(id, slots);
            tasks.insert(id, task);
        }
        let mut splits = Splits::new();
        if deployment.restore.is_none() {
            for it in &input.splits {
                splits
                    .entry(it.source.clone())
                    .or_default()
                    .push(SplitState {
                        split: it.split.clone(),
                        progress: SplitProgress::At("0".to_owned()),
                        watermark: Watermark::NONE,
                        description: String::new(),
                        weight: it.records.len() as u64,
                    });
            }
        }
        Ok((
            Self {
                stamp,
                deployment,
                tasks,
                staged,
                running: false,
            },
            splits,
        ))
    }

    /// Gives readers their splits and begins.
    pub fn start(
        &mut self,
        splits: BTreeMap<OperatorUid, BTreeMap<SubtaskIdx, Vec<SplitState>>>,
        outside: &mut Outside,
    ) -> Outcome {
        let mut events = Vec::new();
        let ids: Vec<TaskId> = self.tasks.keys().copied().collect();
        for id in ids {
            let uid = self.source_of(id);
            let Some(task) = self.tasks.get_mut(&id) else {
                continue;
            };
            if let (Some(reader), Some(uid)) = (&mut task.reader, uid) {
                let mine = splits.get(&uid).and_then(|by| by.get(&id.subtask));
                let mine = mine.cloned().unwrap_or_default();
                task.core.add_splits(reader.operator, mine.clone());
                reader.assign(mine);
            }
            if let Err(error) = task.core.start() {
                task.dead = true;
                events.push(failed(id, &error));
            }
            events.extend(self.perform(id, outside));
        }
        self.running = true;
        events
    }

    fn source_of(&self, id: TaskId) -> Option<OperatorUid> {
        let stage = self.deployment.graph.stages.get(id.stage.0 as usize)?;
        let source = stage
            .operators
            .iter()
            .find(|it| matches!(it.kind, OperatorKind::Source(_)))?;
        Some(source.uid.clone())
    }

    /// Says something to every source task.
    pub fn tell_sources(&mut self, control: Control) {
        let sources = self.tasks.values_mut().filter(|task| task.is_source());
        sources.for_each(|task| task.control.push_back(control));
    }

    /// Says something to every task.
    pub fn tell_all(&mut self, control: Control) {
        self.tasks
            .values_mut()
            .for_each(|task| task.control.push_back(control));
    }

    /// Takes a barrier that the coordinator just asked for away from one source.
    pub fn drop_a_barrier(&mut self) -> bool {
        let asks = |control: &Control| matches!(control, Control::Checkpoint(_));
        let mut sources = self
            .tasks
            .values_mut()
            .filter(|task| task.control.iter().any(asks));
        let Some(first) = sources.next() else {
            return false;
        };
        first.control.retain(|control| !asks(control));
        true
    }

    /// One task does one small thing, or its uploader does.
    pub fn step(
        &mut self,
        rng: &mut Rng,
        now_ms: u64,
        store: &MemoryStore,
        outside: &mut Outside,
        calm: bool,
    ) -> Outcome {
        let ids: Vec<TaskId> = self.tasks.keys().copied().collect();
        let Some(id) = ids.get(rng.pick(ids.len())).copied() else {
            return Vec::new();
        };
        let room = self.has_room(id);
        let Some(task) = self.tasks.get_mut(&id) else {
            return Vec::new();
        };
        if task.dead {
            return Vec::new();
        }
        if !calm && rng.one_in(4_000) {
            task.dead = true;
            let cause = "a bug".to_owned();
            return vec![Event::Failed {
                task: Some(id),
                cause,
                retry: true,
            }];
        }
        let blocked = task.uploads.len() >= UPLOADS_MAX;
        if !task.uploads.is_empty() && (blocked || rng.one_in(8)) {
            return vec![upload(task, &self.stamp, store, &self.staged)];
        }
        if !self.running {
            return Vec::new();
        }
        if let Err(error) = task.step(rng, now_ms, room) {
            task.dead = true;
            return vec![failed(id, &error)];
        }
        self.perform(id, outside)
    }

    /// Whether a reader may go on: none of its receivers is far behind.
    fn has_room(&self, id: TaskId) -> bool {
        let edges = self.deployment.graph.edges.iter();
        let receivers = edges
            .filter(|edge| edge.from_stage == id.stage)
            .map(|edge| edge.to_stage);
        let mut queues = receivers
            .flat_map(|stage| self.tasks.iter().filter(move |(to, _)| to.stage == stage))
            .flat_map(|(_, task)| &task.queues);
        queues.all(|queue| {
            queue
                .iter()
                .filter(|it| matches!(it, Element::Batch(_)))
                .count()
                < LANE_BATCHES_MAX
        })
    }

    /// Performs what a core asked for, in order.
    fn perform(&mut self, id: TaskId, outside: &mut Outside) -> Outcome {
        let mut events = Vec::new();
        loop {
            let Some(task) = self.tasks.get_mut(&id) else {
                return events;
            };
            let effects = task.core.take_effects();
            if effects.is_empty() {
                return events;
            }
            for effect in effects {
                self.perform_one(id, effect, outside, &mut events);
            }
        }
    }

    fn perform_one(
        &mut self,
        id: TaskId,
        effect: Effect,
        outside: &mut Outside,
        events: &mut Outcome,
    ) {
        match effect {
            Effect::Send { edge, to, element } => self.send(id, edge, to, element),
            Effect::Answer {
                channel: Channel { edge, sender },
                watermark,
            } => {
                let Some(spec) = self.deployment.graph.edges.get(edge) else {
                    return;
                };
                let sender = TaskId {
                    stage: spec.from_stage,
                    subtask: sender,
                };
                if let Some(sender) = self.tasks.get_mut(&sender) {
                    let receiver = id.subtask;
                    sender.control.push_back(Control::Answer {
                        edge,
                        receiver,
                        watermark,
                    });
                }
            }
            Effect::Write { operator, batch } => {
                if let Some(task) = self.tasks.get_mut(&id) {
                    task.write(operator, &batch, outside);
                }
            }
            Effect::Snapshot(snapshot) => {
                if let Some(task) = self.tasks.get_mut(&id) {
                    task.snapshot(*snapshot, outside);
                }
            }
            Effect::Declined {
                id: checkpoint,
                reason,
            } => {
                events.push(Event::Declined {
                    task: id,
                    id: checkpoint,
                    reason,
                });
            }
            // In a simulation nobody hands anything over.
            Effect::Release | Effect::Reopen { .. } | Effect::CloseReader | Effect::Left => {}
            Effect::Ended => events.push(Event::Ended { task: id }),
        }
    }

    fn send(&mut self, from: TaskId, edge: usize, to: SubtaskIdx, element: Element) {
        let Some(spec) = self.deployment.graph.edges.get(edge) else {
            return;
        };
        let receiver = TaskId {
            stage: spec.to_stage,
            subtask: to,
        };
        let Some(receiver) = self.tasks.get_mut(&receiver) else {
            return;
        };
        let channel = Channel {
            edge,
            sender: from.subtask,
        };
        let at = receiver.core.channels().position(|other| other == channel);
        let queue = at.and_then(|at| receiver.queues.get_mut(at));
        queue
            .expect("every edge has its channels")
            .push_back(element);
    }
}

fn load_task(
    id: TaskId,
    stamp: &Stamp,
    deployment: &Deployment,
    store: &MemoryStore,
    input: &Arc<Input>,
    unbounded: bool,
) -> Result<Task, (String, bool)> {
    let Deployment {
        graph,
        parallelism,
        assignment,
        restore,
        first_id,
        ..
    } = deployment;
    let plan = TaskPlan {
        graph,
        id,
        subtasks: (0..*parallelism).map(SubtaskIdx).collect(),
        assignment,
    };
    let stage = graph.stages.get(id.stage.0 as usize);
    let specs = stage
        .map(|stage| stage.operators.as_slice())
        .unwrap_or_default();
    let chained = specs
        .iter()
        .map(|operator| build(graph, id.stage, operator).expect("the shapes' plans compile"));
    let mut core = TaskCore::new(&plan, chained.collect());
    let (mut reader, mut writers) = (None, BTreeMap::new());
    for (idx, operator) in specs.iter().enumerate() {
        if let Some((manifest, state)) = restore
            .as_ref()
            .and_then(|manifest| Some((manifest, manifest.operators.get(&operator.uid)?)))
        {
            let state = now(load_operator(
                Parts::stored(store),
                manifest,
                state,
                id,
                assignment,
            ));
            let state = state.map_err(|error| loads(&error))?;
            core.restore(idx, state)
                .map_err(|error| (error.to_string(), false))?;
        }
        match &operator.kind {
            OperatorKind::Source(_) => {
                reader = Some(Reader::new(idx, &operator.output, input, unbounded));
            }
            OperatorKind::Sink(_) => {
                let slot = SlotId {
                    sink: operator.uid.clone(),
                    slot: id.subtask.0,
                };
                let Stamp {
                    generation, epoch, ..
                } = *stamp;
                let names = ObjectWriter {
                    generation,
                    epoch,
                    checkpoint: *first_id,
                };
                writers.insert(idx, Writer::new(slot, names, id));
            }
            _ => {}
        }
    }
    Ok(Task::new(core, reader, writers))
}

/// The uploader works off the oldest snapshot.
fn upload(task: &mut Task, stamp: &Stamp, store: &MemoryStore, staged: &Staged) -> Event {
    let (id, upload) = (task.core.id(), task.uploads.pop_front());
    let Upload {
        snapshot,
        staged: intervals,
    } = upload.expect("the caller saw one");
    let checkpoint = snapshot.barrier.id;
    // Staged output is remembered first: even if this checkpoint fails, the next one carries it
    // under the id of the barrier that closed it (C3).
    for (slot, interval) in intervals {
        staged.add(slot, interval);
    }
    let mut uploader = Uploader { task, stamp, store };
    let stored = uploader.store_all(snapshot.late_log, snapshot.operators, checkpoint);
    match stored {
        Err(reason) => Event::Declined {
            task: id,
            id: checkpoint,
            reason,
        },
        Ok(operators) => Event::Ack(Box::new(TaskSnapshot {
            task: id,
            id: checkpoint,
            splits: snapshot.splits,
            operators,
            staged: staged.of_subtask(id, checkpoint),
            counters: snapshot.counters,
            late_log: task.late_log.clone(),
            freeze_us: 0,
            bytes: 0,
        })),
    }
}

struct Uploader<'a> {
    task: &'a mut Task,
    stamp: &'a Stamp,
    store: &'a MemoryStore,
}

type Stored = BTreeMap<OperatorUid, (Watermark, Vec<PartRef>)>;

impl Uploader<'_> {
    fn store_all(
        &mut self,
        late_log: Vec<(OperatorUid, arrow::array::RecordBatch)>,
        operators: Vec<(OperatorUid, streamforge_engine::operator::OperatorSnapshot)>,
        checkpoint: CheckpointId,
    ) -> Result<Stored, String> {
        // What an attempt could not write, the next one does (T3).
        self.task.late_rows.extend(late_log);
        while let Some((operator, rows)) = self.task.late_rows.front().cloned() {
            let key = self.name(LATE, checkpoint);
            let (object, stored) =
                encode_late_log(key, &operator, &rows).map_err(|error| error.to_string())?;
            self.write(&stored.key, object)?;
            self.task.late_log.push(stored);
            self.task.late_rows.pop_front();
        }
        let mut all = Stored::new();
        for (operator, snapshot) in operators {
            let mut stored = Vec::new();
            for part in snapshot.parts {
                let part = self.store_part(&part)?;
                if !part.blocks.is_empty() {
                    stored.push(part);
                }
            }
            all.insert(operator, (snapshot.watermark, stored));
        }
        Ok(all)
    }

    fn name(&mut self, folder: &str, checkpoint: CheckpointId) -> String {
        self.task.objects_n += 1;
        let Stamp {
            generation, epoch, ..
        } = *self.stamp;
        let writer = ObjectWriter {
            generation,
            epoch,
            checkpoint,
        };
        writer.task_key(folder, self.task.core.id(), self.task.objects_n)
    }

    fn store_part(&mut self, part: &Arc<StatePart>) -> Result<PartRef, String> {
        if let Some(stored) = part.stored() {
            return Ok(stored.clone());
        }
        let key = self.name(PARTS, part.sealed_by);
        let rows = part.rows()?;
        let (object, stored) =
            encode_part(key, part.kind, &rows).map_err(|error| error.to_string())?;
        if !stored.blocks.is_empty() {
            self.write(&stored.key, object)?;
        }
        part.set_stored(stored.clone());
        Ok(stored)
    }

    fn write(&self, key: &str, object: Bytes) -> Result<(), String> {
        let put = self
            .store
            .put_now(key, object.clone(), Condition::CreateIfAbsent);
        match put.map_err(|error| error.to_string())? {
            Put::Done(_) => Ok(()),
            Put::ConditionFailed => match self.store.get_now(key) {
                Ok(Some(there)) if there.bytes == object => Ok(()),
                _ => panic!("{key} exists with other contents (C4)"),
            },
        }
    }
}
