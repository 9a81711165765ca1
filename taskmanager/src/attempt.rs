//! One attempt of a job in this task manager.
//!
//! Owns: building tasks from a plan, loading their state, their threads, and ending them all. A task
//! that fails or panics ends the attempt: the coordinator hears of it and decides.
//! Start at: [`Attempt::prepare`], then [`Attempt::start`].

use std::collections::{BTreeMap, VecDeque};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::thread::JoinHandle;

use streamforge_connectors::files::sink::WriterName;
use streamforge_connectors::registry as connectors;
use streamforge_core::ids::{OperatorUid, SlotId, StageIdx, SubtaskIdx, TaskId};
use streamforge_core::job_graph::{Operator, OperatorKind};
use streamforge_core::manifest::{SplitState, StagedInterval};
use streamforge_core::messages::{Deployment, Event, Progress, Stamp};
use streamforge_engine::error::Recovery;
use streamforge_engine::sink::Publisher;
use streamforge_engine::staged::Staged;
use streamforge_engine::task::{TaskCore, TaskPlan};
use streamforge_state::restore::load_operator;
use tokio::runtime::Handle;
use tokio::sync::{Mutex, mpsc};

use crate::budget::StateBudget;
use crate::clock::Clock;
use crate::inbox::{Control, Inbox};
use crate::manager::Context;
use crate::pace::Pace;
use crate::progress::{TaskProgress, combine};
use crate::registry;
use crate::task::{Reader, Route, TaskShell, Writer};
use crate::upload::{Upload, Uploader, failed};

/// Checkpoints of one task that may wait for its uploader.
const UPLOADS_MAX: usize = 2;

/// Events that a task may be ahead of the coordinator.
const EVENTS_MAX: usize = 64;

/// Why an attempt cannot begin.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An expression that was planned does not compile here: another version made the plan.
    #[error("compile expressions of `{operator}`")]
    Compile {
        /// Operator.
        operator: String,
        /// Why.
        source: streamforge_plan::Error,
    },
    /// The engine refused.
    #[error(transparent)]
    Engine(#[from] streamforge_engine::error::Error),
    /// State could not be loaded.
    #[error("restore `{operator}`")]
    Restore {
        /// Operator.
        operator: String,
        /// Why.
        source: streamforge_state::Error,
    },
}

impl Error {
    /// Whether another attempt may do better.
    pub fn may_succeed_later(&self) -> bool {
        match self {
            Error::Compile { .. } => false,
            Error::Engine(error) => error.recovery() == Recovery::Restart,
            Error::Restore { source, .. } => {
                matches!(source, streamforge_state::Error::Store { .. })
            }
        }
    }
}

/// Splits of each source.
pub type Splits = BTreeMap<OperatorUid, Vec<SplitState>>;

/// A loaded attempt and what its sources listed.
pub struct Prepared {
    /// Ready to start.
    pub attempt: Attempt,
    /// Source -> splits, on a first start.
    pub splits: Splits,
}

/// See the module.
pub struct Attempt {
    stamp: Stamp,
    shells: Vec<TaskShell>,
    inboxes: BTreeMap<TaskId, Arc<Inbox>>,
    source_tasks: Vec<TaskId>,
    progress: Vec<Arc<TaskProgress>>,
    threads: Vec<JoinHandle<()>>,
    publishing: Publishing,
    events: mpsc::Sender<Event>,
}

/// Makes intervals visible, one at a time.
#[derive(Clone)]
pub struct Publishing {
    publishers: Arc<BTreeMap<OperatorUid, Box<dyn Publisher>>>,
    staged: Arc<Staged>,
    events: mpsc::Sender<Event>,
    order: Arc<Mutex<()>>,
}

impl Publishing {
    /// Publishes one interval and says how it went.
    pub async fn publish(&self, slot: SlotId, interval: StagedInterval) {
        let _in_order = self.order.lock().await;
        let Some(publisher) = self.publishers.get(&slot.sink) else {
            return;
        };
        let event = match publisher.publish(&slot, &interval).await {
            Ok(()) => {
                self.staged.on_published(&slot, interval.id);
                Event::Published {
                    slot,
                    interval: interval.id,
                }
            }
            Err(error) => Event::PublishFailed {
                slot,
                interval: interval.id,
                reason: error.with_causes(),
            },
        };
        let _ = self.events.send(event).await;
    }
}

struct Building<'a> {
    context: &'a Context,
    stamp: &'a Stamp,
    deployment: &'a Deployment,
    /// What the sources listed, on a first start.
    listed: &'a Splits,
    inboxes: &'a BTreeMap<TaskId, Arc<Inbox>>,
    staged: &'a Arc<Staged>,
    events: &'a mpsc::Sender<Event>,
    clock: Clock,
    budget: Arc<StateBudget>,
}

fn task_ids(deployment: &Deployment) -> Vec<TaskId> {
    let stages_n = u32::try_from(deployment.graph.stages.len()).unwrap_or(u32::MAX);
    let subtasks = 0..deployment.parallelism;
    (0..stages_n)
        .flat_map(|stage| {
            let stage = StageIdx(stage);
            subtasks.clone().map(move |idx| TaskId {
                stage,
                subtask: SubtaskIdx(idx),
            })
        })
        .collect()
}

impl Building<'_> {
    fn plan(&self, id: TaskId) -> TaskPlan<'_> {
        let Deployment {
            graph,
            parallelism,
            assignment,
            ..
        } = self.deployment;
        TaskPlan {
            graph,
            id,
            parallelism: *parallelism,
            assignment,
        }
    }

    /// Every split of a source that this attempt begins with, those of all readers and the ended
    /// ones: a reader that looks for new splits takes none of them.
    fn known(&self, source: &OperatorUid) -> Vec<SplitState> {
        let splits = match &self.deployment.restore {
            Some(manifest) => manifest.sources.get(source),
            None => self.listed.get(source),
        };
        splits.cloned().unwrap_or_default()
    }

    async fn core(&self, id: TaskId) -> Result<TaskCore, Error> {
        let plan = self.plan(id);
        let stage = self.deployment.graph.stages.get(id.stage.0 as usize);
        let operators = stage
            .map(|stage| stage.operators.as_slice())
            .unwrap_or_default();
        let chained = operators
            .iter()
            .map(|operator| registry::build(operator, &self.deployment.graph, id))
            .collect::<Result<Vec<_>, _>>()?;
        let mut core = TaskCore::new(&plan, chained);
        let Some(manifest) = &self.deployment.restore else {
            return Ok(core);
        };
        for (idx, operator) in operators.iter().enumerate() {
            let Some(state) = manifest.operators.get(&operator.uid) else {
                continue;
            };
            let assignment = &self.deployment.assignment;
            let state = load_operator(&*self.context.store, manifest, state, id, assignment)
                .await
                .map_err(|source| Error::Restore {
                    operator: operator.uid.0.clone(),
                    source,
                })?;
            core.restore(idx, state)?;
        }
        Ok(core)
    }

    fn pace(&self, rows_per_second: Option<u64>) -> Option<Pace> {
        rows_per_second.map(|limit| Pace::share(limit, self.deployment.parallelism))
    }

    fn reader(&self, id: TaskId, idx: usize, source: &Operator) -> Result<Option<Reader>, Error> {
        let OperatorKind::Source(spec) = &source.kind else {
            return Ok(None);
        };
        let known = self.known(&source.uid);
        let reader = registry::open_reader(source, spec, &self.plan(id), known)?;
        let pace = self.pace(spec.rate_limit);
        Ok(Some(Reader {
            operator: idx,
            reader,
            pace,
        }))
    }

    fn writer(&self, id: TaskId, sink: &Operator) -> Result<Option<Writer>, Error> {
        let OperatorKind::Sink(spec) = &sink.kind else {
            return Ok(None);
        };
        let slot = SlotId {
            sink: sink.uid.clone(),
            slot: id.subtask.0,
        };
        let name = WriterName {
            job: self.stamp.job.clone(),
            slot: slot.clone(),
            epoch: self.stamp.epoch,
            first_id: self.deployment.first_id,
        };
        let writer = connectors::open_writer(spec, name, self.context.terminal)?;
        Ok(Some(Writer {
            slot,
            writer,
            pace: self.pace(spec.rate_limit),
        }))
    }

    /// Starts the task's uploader; it ends when the sender is dropped.
    fn uploads(&self, id: TaskId) -> mpsc::Sender<Upload> {
        let (uploads, waiting) = mpsc::channel(UPLOADS_MAX);
        let uploader = Uploader {
            task: id,
            stamp: self.stamp.clone(),
            store: Arc::clone(&self.context.store),
            staged: Arc::clone(self.staged),
            events: self.events.clone(),
            objects_n: 0,
            late_log: Vec::new(),
            late_rows: VecDeque::new(),
        };
        tokio::spawn(uploader.run(waiting));
        uploads
    }

    async fn shell(&self, id: TaskId) -> Result<TaskShell, Error> {
        let core = self.core(id).await?;
        let stage = self.deployment.graph.stages.get(id.stage.0 as usize);
        let operators = stage
            .map(|stage| stage.operators.as_slice())
            .unwrap_or_default();
        let (mut source, mut reader, mut writers) = (None, None, BTreeMap::new());
        for (idx, operator) in operators.iter().enumerate() {
            if let Some(opened) = self.reader(id, idx, operator)? {
                (source, reader) = (Some(operator.uid.clone()), Some(opened));
            }
            if let Some(opened) = self.writer(id, operator)? {
                writers.insert(idx, opened);
            }
        }
        let slots = writers.values().map(|writer| writer.slot.clone()).collect();
        self.staged.register(id, slots);
        let inbox = self.inboxes.get(&id).map(Arc::clone);
        Ok(TaskShell {
            core,
            inbox: inbox.unwrap_or_else(|| Arc::new(Inbox::new(0))),
            routes: self.routes(id),
            senders: self.senders(id),
            reader,
            writers,
            uploads: self.uploads(id),
            events: self.events.clone(),
            progress: Arc::new(TaskProgress::new(source)),
            budget: Arc::clone(&self.budget),
            held: 0,
            runtime: Handle::current(),
            clock: self.clock,
            step_began_us: 0,
        })
    }

    fn routes(&self, id: TaskId) -> BTreeMap<usize, Route> {
        let edges = self.deployment.graph.edges.iter().enumerate();
        let mut routes = BTreeMap::new();
        for (idx, edge) in edges.filter(|(_, edge)| edge.from_stage == id.stage) {
            let mut route = Route::new();
            for subtask in self.plan(id).senders(idx) {
                let receiver = TaskId {
                    stage: edge.to_stage,
                    subtask,
                };
                let channels = registry::channels_by_operator(&self.plan(receiver));
                let channel = channels
                    .iter()
                    .position(|c| c.edge == idx && c.sender == id.subtask);
                if let (Some(channel), Some(inbox)) = (channel, self.inboxes.get(&receiver)) {
                    route.insert(subtask, (Arc::clone(inbox), channel));
                }
            }
            routes.insert(idx, route);
        }
        routes
    }

    fn senders(&self, id: TaskId) -> BTreeMap<(usize, SubtaskIdx), Arc<Inbox>> {
        let mut senders = BTreeMap::new();
        for channel in self.plan(id).channels() {
            let Some(edge) = self.deployment.graph.edges.get(channel.edge) else {
                continue;
            };
            let sender = TaskId {
                stage: edge.from_stage,
                subtask: channel.sender,
            };
            if let Some(inbox) = self.inboxes.get(&sender) {
                senders.insert((channel.edge, channel.sender), Arc::clone(inbox));
            }
        }
        senders
    }
}

impl Attempt {
    /// Builds every task and loads its state; reads nothing.
    pub async fn prepare(
        context: &Context,
        stamp: Stamp,
        deployment: Deployment,
        to_coordinator: mpsc::Sender<(Stamp, Event)>,
    ) -> Result<Prepared, Error> {
        let (events, stamped) = mpsc::channel(EVENTS_MAX);
        tokio::spawn(stamp_events(stamp.clone(), stamped, to_coordinator));
        let ids = task_ids(&deployment);
        let plan = |id| TaskPlan {
            graph: &deployment.graph,
            id,
            parallelism: deployment.parallelism,
            assignment: &deployment.assignment,
        };
        let inboxes: BTreeMap<TaskId, Arc<Inbox>> = ids
            .iter()
            .map(|id| (*id, Arc::new(Inbox::new(plan(*id).channels().len()))))
            .collect();
        let staged = Arc::new(Staged::default());
        let splits = if deployment.restore.is_none() {
            list_splits(&deployment).await?
        } else {
            Splits::new()
        };
        let building = Building {
            context,
            stamp: &stamp,
            deployment: &deployment,
            listed: &splits,
            inboxes: &inboxes,
            staged: &staged,
            events: &events,
            clock: Clock::start(),
            budget: Arc::new(StateBudget::new(context.memory_limit)),
        };
        let publishers = open_publishers(&building).await?;
        let mut shells = Vec::with_capacity(ids.len());
        for id in &ids {
            shells.push(building.shell(*id).await?);
        }
        let source_tasks: Vec<TaskId> = shells
            .iter()
            .filter(|shell| shell.reader.is_some())
            .map(|shell| shell.core.id())
            .collect();
        let progress = shells
            .iter()
            .map(|shell| Arc::clone(&shell.progress))
            .collect();
        let publishing = Publishing {
            publishers: Arc::new(publishers),
            staged,
            events: events.clone(),
            order: Arc::new(Mutex::new(())),
        };
        let threads = Vec::new();
        let attempt = Self {
            stamp,
            shells,
            inboxes,
            source_tasks,
            progress,
            threads,
            publishing,
            events,
        };
        Ok(Prepared { attempt, splits })
    }

    /// Gives readers their splits and begins.
    pub async fn start(
        &mut self,
        splits: BTreeMap<OperatorUid, BTreeMap<SubtaskIdx, Vec<SplitState>>>,
    ) {
        let mut ready = Vec::new();
        for mut shell in std::mem::take(&mut self.shells) {
            let source = shell.progress.source().cloned();
            if let (Some(reader), Some(uid)) = (&mut shell.reader, source) {
                let mine = splits
                    .get(&uid)
                    .and_then(|by| by.get(&shell.core.id().subtask));
                let mine = mine.cloned().unwrap_or_default();
                shell.core.add_splits(reader.operator, mine.clone());
                if let Err(error) = reader.reader.assign(mine).await {
                    let failed = failed(Some(shell.core.id()), &error);
                    let _ = self.events.send(failed).await;
                    return;
                }
            }
            ready.push(shell);
        }
        for shell in ready {
            match spawn_task(shell, self.events.clone()) {
                Ok(thread) => self.threads.push(thread),
                Err(cause) => {
                    let cause = format!("start a thread: {cause}");
                    let event = Event::Failed {
                        task: None,
                        cause,
                        retry: true,
                    };
                    let _ = self.events.send(event).await;
                }
            }
        }
    }

    /// Which attempt.
    pub fn stamp(&self) -> &Stamp {
        &self.stamp
    }

    /// Whether its tasks run.
    pub fn is_running(&self) -> bool {
        !self.threads.is_empty()
    }

    /// How its tasks do.
    pub fn progress(&self) -> Progress {
        combine(self.progress.iter().map(AsRef::as_ref))
    }

    /// The publishing half.
    pub fn publishing(&self) -> Publishing {
        self.publishing.clone()
    }

    /// Says something to every source task.
    pub fn tell_sources(&self, control: Control) {
        for id in &self.source_tasks {
            if let Some(inbox) = self.inboxes.get(id) {
                inbox.control(control);
            }
        }
    }

    /// Says something to every task.
    pub fn tell_all(&self, control: Control) {
        self.inboxes
            .values()
            .for_each(|inbox| inbox.control(control));
    }

    /// Ends all tasks and waits for their threads.
    pub async fn end(self) {
        self.inboxes.values().for_each(|inbox| inbox.cancel());
        let Attempt {
            threads,
            shells,
            events,
            publishing,
            ..
        } = self;
        drop((shells, events, publishing));
        let joined = tokio::task::spawn_blocking(move || {
            // A task that panicked has said so already.
            threads.into_iter().for_each(|thread| drop(thread.join()));
        });
        let _ = joined.await;
    }
}

async fn stamp_events(
    stamp: Stamp,
    mut events: mpsc::Receiver<Event>,
    to_coordinator: mpsc::Sender<(Stamp, Event)>,
) {
    while let Some(event) = events.recv().await {
        if to_coordinator.send((stamp.clone(), event)).await.is_err() {
            return;
        }
    }
}

async fn open_publishers(
    building: &Building<'_>,
) -> Result<BTreeMap<OperatorUid, Box<dyn Publisher>>, Error> {
    let mut publishers = BTreeMap::new();
    for (_, operator) in building.deployment.graph.operators() {
        let OperatorKind::Sink(spec) = &operator.kind else {
            continue;
        };
        let publisher = connectors::open_publisher(spec, &operator.uid, &building.stamp.job)?;
        let Some(publisher) = publisher else { continue };
        let staged = building
            .deployment
            .restore
            .iter()
            .flat_map(|manifest| &manifest.staged);
        let listed: Vec<StagedInterval> = staged
            .filter(|slot| slot.slot.sink == operator.uid)
            .flat_map(|slot| slot.intervals.iter().cloned())
            .collect();
        publisher.discard_unlisted(&listed).await?;
        publishers.insert(operator.uid.clone(), publisher);
    }
    Ok(publishers)
}

async fn list_splits(deployment: &Deployment) -> Result<Splits, Error> {
    let mut splits = Splits::new();
    for (_, operator) in deployment.graph.operators() {
        if let OperatorKind::Source(spec) = &operator.kind {
            let mut enumerator = connectors::open_enumerator(operator, spec)?;
            splits.insert(operator.uid.clone(), enumerator.list().await?);
        }
    }
    Ok(splits)
}

fn spawn_task(shell: TaskShell, events: mpsc::Sender<Event>) -> std::io::Result<JoinHandle<()>> {
    let id = shell.core.id();
    std::thread::Builder::new()
        .name(format!("task-{id}"))
        .spawn(move || {
            let outcome = std::panic::catch_unwind(AssertUnwindSafe(|| shell.run()));
            let event = match outcome {
                Ok(Ok(())) => return,
                Ok(Err(error)) => failed(Some(id), &error),
                Err(panic) => {
                    let cause = panic
                        .downcast_ref::<String>()
                        .map(String::as_str)
                        .or_else(|| panic.downcast_ref::<&str>().copied())
                        .unwrap_or("no message");
                    let cause = format!("task {id} panicked: {cause}");
                    Event::Failed {
                        task: Some(id),
                        cause,
                        retry: true,
                    }
                }
            };
            let _ = events.blocking_send(event);
        })
}
