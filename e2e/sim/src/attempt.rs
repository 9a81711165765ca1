//! What one task manager runs of an attempt of the job: some of its tasks, and what is between them.
//!
//! Owns: loading tasks, delivering elements, performing effects, in the order of
//! `taskmanager/src/{attempt,task}.rs`. What goes to tasks elsewhere leaves as frames of [`crate::net`].
//! Start at: [`Attempt::prepare`], [`Attempt::step`]; hand-overs are in `attempt/hand_over.rs`.

mod hand_over;
mod wiring;

use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

use streamforge_connectors::registry::kafka_source;
use streamforge_core::event_time::Watermark;
use streamforge_core::ids::{
    CheckpointId, Generation, OperatorUid, SlotId, StageIdx, SubtaskIdx, TaskId,
};
use streamforge_core::job_graph::{Operator, OperatorKind};
use streamforge_core::manifest::{SplitProgress, SplitState, StagedInterval};
use streamforge_core::messages::{
    Deployment, Event, HandOver, RunningAttempt, Stamp, TaskManagerId,
};
use streamforge_core::object_key::Writer as ObjectWriter;
use streamforge_engine::error::{Error, Recovery};
use streamforge_engine::outbox::Outbox;
use streamforge_engine::sink::SlotTakeOver;
use streamforge_engine::staged::Staged;
use streamforge_engine::task::{Channel, Effect, TaskCore, TaskPlan};
use streamforge_state::restore::{Parts, load_operator};
use streamforge_store::MemoryStore;

use crate::net::{What, Wire};
use crate::operators::build;
use crate::outside::Outside;
use crate::publish::{KafkaSlots, Trouble};
use crate::reader::{Reader, Sources};
use crate::rng::Rng;
use crate::task::{Control, Task, Writer};
use crate::upload::upload;

/// Batches that a sender of rows may be ahead of a receiver.
const LANE_BATCHES_MAX: usize = 4;

/// Snapshots that wait for a task's uploader; with more the task waits.
const UPLOADS_MAX: usize = 3;

/// Events that a step leads to.
pub type Outcome = Vec<Event>;

/// Splits of each source.
pub type Splits = BTreeMap<OperatorUid, Vec<SplitState>>;

/// Source -> subtask -> splits, as a start says it.
pub type Dealt = BTreeMap<OperatorUid, BTreeMap<SubtaskIdx, Vec<SplitState>>>;

/// Where an attempt runs.
pub struct Site<'a> {
    /// Which task manager.
    pub me: &'a TaskManagerId,
    /// Its client of the store.
    pub store: &'a MemoryStore,
    /// What there is to be read.
    pub sources: &'a Sources,
    /// Where sinks write.
    pub outside: &'a mut Outside,
}

/// See the module.
pub struct Attempt {
    me: TaskManagerId,
    /// What it says, and what of it must be known later.
    pub outbox: Outbox,
    /// Under which it was prepared here; for names of objects.
    born: Stamp,
    deployment: Deployment,
    tasks: BTreeMap<TaskId, Task>,
    /// Who runs which subtask, those included that left or did not come.
    places: BTreeMap<SubtaskIdx, TaskManagerId>,
    /// Staged and not known as published.
    pub staged: Arc<Staged>,
    /// Publishes the slots whose rows go to a topic.
    pub topic: Arc<Mutex<KafkaSlots>>,
    running: bool,
    hand_over: Option<Arc<HandOver>>,
    handed_at: Option<CheckpointId>,
    /// Subtasks that left, and still answer.
    left: BTreeSet<SubtaskIdx>,
    /// Batches sent elsewhere and not taken there: edge, sender, receiver.
    unpaid: BTreeMap<(usize, SubtaskIdx, SubtaskIdx), usize>,
    /// On their way to other task managers.
    pub frames: Vec<(Wire, What)>,
}

/// The memory store's futures are ready at once.
pub(crate) fn now<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("the memory store never waits"),
    }
}

fn loads(source: &streamforge_state::Error) -> Trouble {
    let cause = format!("restore: {source}");
    match source {
        streamforge_state::Error::Store { .. } => Trouble::Again(cause),
        _ => Trouble::Refused(cause),
    }
}

fn failed(task: TaskId, error: &Error) -> Event {
    let retry = error.recovery() == Recovery::Restart;
    Event::Failed {
        task: Some(task),
        cause: error.with_causes(),
        retry,
    }
}

fn operators_of(deployment: &Deployment, stage: StageIdx) -> &[Operator] {
    let stage = deployment.graph.stages.get(stage.0 as usize);
    stage
        .map(|stage| stage.operators.as_slice())
        .unwrap_or_default()
}

impl Attempt {
    /// Builds every task that runs here and loads its state; reads nothing.
    pub fn prepare(
        site: &mut Site<'_>,
        stamp: &Stamp,
        deployment: Deployment,
    ) -> Result<(Self, Splits), Trouble> {
        let mut attempt = Self::idle(site.me, stamp, deployment);
        let deployment = &attempt.deployment;
        let is_first = deployment.is_first(site.me);
        let splits = if is_first {
            list_new_sources(site.sources, deployment)?
        } else {
            Splits::new()
        };
        attempt.open_publishers(site, is_first)?;
        let subtasks = attempt.deployment.subtasks_of(site.me);
        let ids: Vec<TaskId> = attempt.deployment.graph.tasks_of(subtasks).collect();
        for id in ids {
            let task = attempt.load_task(site, id)?;
            attempt.add_task(id, task);
        }
        Ok((attempt, splits))
    }

    /// An attempt without a task here.
    fn idle(me: &TaskManagerId, stamp: &Stamp, deployment: Deployment) -> Self {
        let places = deployment.placement.iter();
        let places = places.map(|(idx, place)| (*idx, place.task_manager.clone()));
        Self {
            me: me.clone(),
            outbox: Outbox::new(stamp.clone()),
            born: stamp.clone(),
            places: places.collect(),
            deployment,
            tasks: BTreeMap::new(),
            staged: Arc::new(Staged::default()),
            topic: Arc::new(Mutex::new(KafkaSlots::new(stamp))),
            running: false,
            hand_over: None,
            handed_at: None,
            left: BTreeSet::new(),
            unpaid: BTreeMap::new(),
            frames: Vec::new(),
        }
    }

    /// X4: every listed slot has an owner; what nobody lists is removed by the first one.
    fn open_publishers(&self, site: &mut Site<'_>, is_first: bool) -> Result<(), Trouble> {
        let Deployment { graph, restore, .. } = &self.deployment;
        let sinks = graph.operators();
        for (_, sink) in sinks.filter(|(_, it)| matches!(it.kind, OperatorKind::Sink(_))) {
            let slots = restore.iter().flat_map(|manifest| &manifest.staged);
            let listed: Vec<StagedInterval> = slots
                .filter(|slot| slot.slot.sink == sink.uid)
                .flat_map(|slot| slot.intervals.iter().cloned())
                .collect();
            if is_first {
                let ours = (self.born.generation, self.born.epoch);
                site.outside.discard_unlisted(&sink.uid, &listed, ours);
            }
            let slots = SlotTakeOver::of(&self.deployment, site.me, &sink.uid);
            self.take_over(site, &sink.uid, &slots)?;
            for wanted in slots {
                self.staged.inherit(wanted.slot, wanted.listed);
            }
        }
        Ok(())
    }

    /// Fences whoever published these slots before (X2); files need no fence.
    fn take_over(
        &self,
        site: &mut Site<'_>,
        sink: &OperatorUid,
        slots: &[SlotTakeOver],
    ) -> Result<(), Trouble> {
        let is_topic = site.outside.is_topic(sink);
        let Some(broker) = site.outside.broker.as_mut().filter(|_| is_topic) else {
            return Ok(());
        };
        let topic = self.topic.lock();
        topic
            .unwrap_or_else(PoisonError::into_inner)
            .take_over(broker, slots)
    }

    fn add_task(&mut self, id: TaskId, task: Task) {
        let writers = task.writers.values();
        let slots = writers.map(|writer| writer.slot.clone()).collect();
        self.staged.register(id, slots);
        self.tasks.insert(id, task);
    }

    /// Gives readers their splits and begins.
    pub fn start(&mut self, splits: &Dealt, outside: &mut Outside) -> Outcome {
        if std::mem::replace(&mut self.running, true) {
            return Vec::new();
        }
        let mut events = Vec::new();
        let ids: Vec<TaskId> = self.tasks.keys().copied().collect();
        for id in ids {
            let Some(task) = self.tasks.get_mut(&id) else {
                continue;
            };
            if let (Some(reader), Some(uid)) = (&mut task.reader, &task.source) {
                let dealt = splits.get(uid);
                let known = match restored_splits(&self.deployment, uid) {
                    Some(splits) => splits.clone(),
                    None => dealt
                        .iter()
                        .flat_map(|by| by.values())
                        .flatten()
                        .cloned()
                        .collect(),
                };
                let mine = dealt.and_then(|by| by.get(&id.subtask));
                let mine = mine.cloned().unwrap_or_default();
                let place = self.deployment.rank_of(id.subtask);
                task.core.add_splits(reader.operator, mine.clone());
                reader.open(place, known, mine);
            }
            events.extend(self.begin(id, outside));
        }
        events
    }

    /// A task's first moment.
    fn begin(&mut self, id: TaskId, outside: &mut Outside) -> Outcome {
        let Some(task) = self.tasks.get_mut(&id) else {
            return Vec::new();
        };
        if let Err(error) = task.core.start() {
            task.dead = true;
            return vec![failed(id, &error)];
        }
        self.perform(id, outside)
    }

    /// By whose command it runs.
    pub fn stamp(&self) -> Stamp {
        self.outbox.stamp()
    }

    /// How its channels are named.
    pub fn born(&self) -> (streamforge_core::ids::Epoch, Generation) {
        let generation = match self.deployment.born {
            Generation::ZERO => self.born.generation,
            born => born,
        };
        (self.born.epoch, generation)
    }

    /// What a coordinator that comes later must know of it (F1).
    pub fn running(&self) -> RunningAttempt {
        RunningAttempt {
            stamp: self.outbox.stamp(),
            deployment: self.deployment.clone(),
            started: self.running,
            ended: self.outbox.ended(),
            failed: self.outbox.failed(),
            prepared: self.hand_over.as_ref().map(|it| Box::new((**it).clone())),
        }
    }

    /// The subtasks that run here.
    pub fn subtasks(&self) -> impl Iterator<Item = SubtaskIdx> {
        self.tasks.keys().map(|id| id.subtask)
    }

    /// Says something to every source task.
    pub fn tell_sources(&mut self, control: &Control) {
        let reads = |id: &TaskId| !self.left.contains(&id.subtask);
        let tasks = self.tasks.iter_mut().filter(|(id, _)| reads(id));
        let sources = tasks.filter(|(_, task)| task.is_source());
        sources.for_each(|(_, task)| task.control.push_back(control.clone()));
    }

    /// Says something to every task.
    pub fn tell_all(&mut self, control: &Control) {
        self.tasks
            .values_mut()
            .for_each(|task| task.control.push_back(control.clone()));
    }

    /// Whether some subtask's work is another's, and all of its tasks know.
    pub fn has_left(&self) -> bool {
        let leaving = self.hand_over.iter().flat_map(|it| &it.leaving);
        let mut theirs = leaving.filter_map(|subtask| {
            let tasks = self.tasks.iter();
            let mut theirs = tasks.filter(|(id, _)| id.subtask == *subtask).peekable();
            theirs.peek()?;
            Some(theirs.all(|(_, task)| task.core.has_left()))
        });
        theirs.any(|has_left| has_left)
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
    /// With `holds` their threads stand still, and only uploads go on.
    pub fn step(
        &mut self,
        rng: &mut Rng,
        (now_ms, calm, holds): (u64, bool, bool),
        site: &mut Site<'_>,
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
        if !calm && rng.one_in(8_000) {
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
            return vec![upload(
                task,
                &self.born,
                (site.store, &mut site.outside.book),
                &self.staged,
            )];
        }
        if !self.running || holds {
            return Vec::new();
        }
        if let Err(error) = task.step(rng, now_ms, room) {
            task.dead = true;
            return vec![failed(id, &error)];
        }
        let taken = std::mem::take(&mut task.taken);
        for channel in taken {
            self.pay(id, channel);
        }
        self.perform(id, site.outside)
    }

    /// Whether a reader may go on: none of its receivers is far behind.
    fn has_room(&self, id: TaskId) -> bool {
        let edges = self.deployment.graph.edges.iter().enumerate();
        let mut edges = edges.filter(|(_, edge)| edge.from_stage == id.stage);
        edges.all(|(idx, edge)| {
            let channel = Channel {
                edge: idx,
                sender: id.subtask,
            };
            let here = self
                .tasks
                .iter()
                .filter(|(to, _)| to.stage == edge.to_stage);
            let mut here = here.map(|(_, task)| task.batches_n(channel));
            let elsewhere = self.unpaid.iter();
            let mut elsewhere = elsewhere
                .filter(|((edge, sender, _), _)| *edge == idx && *sender == id.subtask)
                .map(|(_, n)| *n);
            here.all(|n| n < LANE_BATCHES_MAX) && elsewhere.all(|n| n < LANE_BATCHES_MAX)
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
            if effects.is_empty() || task.dead {
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
            Effect::Send { edge, to, element } => return self.send(id, edge, to, element),
            Effect::Answer { channel, watermark } => return self.answer(id, channel, watermark),
            _ => {}
        }
        let Some(task) = self.tasks.get_mut(&id) else {
            return;
        };
        match effect {
            Effect::Send { .. } | Effect::Answer { .. } => {}
            Effect::Write { operator, batch } => task.write(operator, &batch, outside),
            Effect::Snapshot(snapshot) => task.snapshot(*snapshot, outside),
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
            Effect::Received(of) => events.push(Event::Received { task: id, id: of }),
            Effect::Release => {
                if let Err(error) = task.core.release() {
                    task.dead = true;
                    events.push(failed(id, &error));
                }
            }
            Effect::Reopen { splits } => task.reopen(splits),
            Effect::CloseReader => {
                if let Some(reader) = &mut task.reader {
                    reader.close();
                }
            }
            Effect::Left => task.leave(),
            Effect::Ended => events.push(Event::Ended { task: id }),
        }
    }

    fn core(&self, id: TaskId) -> TaskCore {
        let Deployment {
            graph, assignment, ..
        } = self.deployment_of(id.subtask);
        let plan = TaskPlan {
            graph,
            id,
            subtasks: self
                .deployment_of(id.subtask)
                .placement
                .keys()
                .copied()
                .collect(),
            assignment,
        };
        let specs = operators_of(&self.deployment, id.stage).iter();
        let chained = specs
            .map(|operator| build(graph, id.stage, operator).expect("the shapes' plans compile"));
        TaskCore::new(&plan, chained.collect())
    }

    fn load_task(&self, site: &Site<'_>, id: TaskId) -> Result<Task, Trouble> {
        let mut core = self.core(id);
        let Deployment {
            assignment,
            restore,
            ..
        } = &self.deployment;
        for (idx, operator) in operators_of(&self.deployment, id.stage).iter().enumerate() {
            let Some(manifest) = restore else { continue };
            let Some(state) = manifest.operators.get(&operator.uid) else {
                continue;
            };
            let state = now(load_operator(
                Parts::stored(site.store),
                manifest,
                state,
                id,
                assignment,
            ));
            let state = state.map_err(|error| loads(&error))?;
            let groups = assignment.groups_of(id.subtask).into_iter().collect();
            let book = &site.outside.book;
            book.check(manifest, &operator.uid, &groups, &state);
            core.restore(idx, state)
                .map_err(|error| Trouble::Refused(error.to_string()))?;
        }
        Ok(self.shell(site, id, core))
    }

    /// What is around a core.
    fn shell(&self, site: &Site<'_>, id: TaskId, core: TaskCore) -> Task {
        let (mut reader, mut writers) = (None, BTreeMap::new());
        for (idx, operator) in operators_of(&self.deployment, id.stage).iter().enumerate() {
            match &operator.kind {
                OperatorKind::Source(source) => {
                    let owner = (self.born.epoch, id.subtask);
                    let opened = Reader::new(idx, operator, source, site.sources, owner);
                    reader = Some((operator.uid.clone(), opened));
                }
                OperatorKind::Sink(_) => {
                    let slot = SlotId {
                        sink: operator.uid.clone(),
                        slot: id.subtask.0,
                    };
                    let names = ObjectWriter {
                        generation: self.born.generation,
                        epoch: self.born.epoch,
                        checkpoint: self.deployment.first_id,
                    };
                    writers.insert(idx, Writer::new(slot, names, id));
                }
                _ => {}
            }
        }
        Task::new(core, reader, writers)
    }
}

/// The splits of a source as they are restored; `None`: it is new.
fn restored_splits<'a>(
    deployment: &'a Deployment,
    source: &OperatorUid,
) -> Option<&'a Vec<SplitState>> {
    deployment.restore.as_ref()?.sources.get(source)
}

/// Those of sources that the restored manifest does not know.
fn list_new_sources(sources: &Sources, deployment: &Deployment) -> Result<Splits, Trouble> {
    let is_new = |uid: &OperatorUid| restored_splits(deployment, uid).is_none();
    let mut splits = Splits::new();
    if let Some(kafka) = &sources.kafka {
        for (_, operator) in deployment.graph.operators() {
            if let OperatorKind::Source(source) = &operator.kind
                && is_new(&operator.uid)
            {
                let spec = kafka_source(operator, source, None);
                let spec = spec.map_err(|error| Trouble::Refused(error.to_string()))?;
                let listed = kafka.list(&spec.config);
                let listed = listed.map_err(|error| Trouble::Again(error.to_string()))?;
                splits.insert(operator.uid.clone(), listed);
            }
        }
        return Ok(splits);
    }
    let rows = sources.input.splits.iter();
    for it in rows.filter(|it| is_new(&it.source)) {
        let state = SplitState {
            split: it.split.clone(),
            progress: SplitProgress::At("0".to_owned()),
            watermark: Watermark::NONE,
            description: String::new(),
            weight: it.records.len() as u64,
        };
        splits.entry(it.source.clone()).or_default().push(state);
    }
    Ok(splits)
}
