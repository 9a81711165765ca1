//! From a deployment to tasks that are ready to run.
//!
//! Owns: building operators, loading their state, opening sinks, and wiring: which channel leads to
//! an inbox here and which to another task manager. Reads nothing of any source.

use std::collections::{BTreeMap, VecDeque};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures::future::try_join_all;
use streamforge_connectors::files::sink::WriterName;
use streamforge_connectors::registry as connectors;
use streamforge_core::ids::{OperatorUid, SlotId, StageIdx, SubtaskIdx, TaskId};
use streamforge_core::job_graph::{Delivery, Operator, OperatorKind, SourceSpec};
use streamforge_core::messages::{Deployment, Event, HandOver, Stamp};
use streamforge_engine::staged::Staged;
use streamforge_engine::task::{Channel, TaskCore, TaskPlan};
use streamforge_state::restore::{Parts, load_operator};
use tokio::runtime::Handle;
use tokio::sync::mpsc;

use super::publishing::TOLD_EVERY;
use super::{Error, panics};
use crate::budget::StateBudget;
use crate::clock::Clock;
use crate::exchange::{AttemptExchange, ChannelName, Outlet, Uplink, Upstream};
use crate::inbox::Inbox;
use crate::manager::Context;
use crate::pace::Pace;
use crate::progress::TaskProgress;
use crate::registry;
use crate::task::{Reader, ReaderOpening, Route, TaskShell, Writer};
use crate::upload::{Upload, Uploader};

/// Checkpoints of one task that may wait for its uploader.
const UPLOADS_MAX: usize = 2;

/// Answers to senders elsewhere, by receiving task and channel.
pub(super) type Uplinks = BTreeMap<(TaskId, usize, SubtaskIdx), Arc<Uplink>>;

pub(super) struct Building<'a> {
    pub context: &'a Context,
    pub stamp: &'a Stamp,
    pub deployment: &'a Deployment,
    /// Of the tasks that run here.
    pub inboxes: &'a BTreeMap<TaskId, Arc<Inbox>>,
    /// Lanes of running tasks for channels that were added to those they began with.
    pub added: &'a BTreeMap<(TaskId, usize, SubtaskIdx), usize>,
    pub uplinks: &'a Uplinks,
    pub staged: &'a Arc<Staged>,
    pub events: &'a mpsc::Sender<Event>,
    pub clock: Clock,
    pub budget: Arc<StateBudget>,
    /// The hand-over at whose barrier the tasks begin; `None`: they begin with what is restored.
    pub joins: Option<&'a Arc<HandOver>>,
}

/// The tasks of these subtasks.
pub(super) fn task_ids(deployment: &Deployment, subtasks: &[SubtaskIdx]) -> Vec<TaskId> {
    let stages_n = u32::try_from(deployment.graph.stages.len()).unwrap_or(u32::MAX);
    let of = |stage| {
        let stage = StageIdx(stage);
        let task = move |subtask: &SubtaskIdx| TaskId {
            stage,
            subtask: *subtask,
        };
        subtasks.iter().map(task)
    };
    (0..stages_n).flat_map(of).collect()
}

pub(super) fn task_plan(deployment: &Deployment, id: TaskId) -> TaskPlan<'_> {
    TaskPlan {
        graph: &deployment.graph,
        id,
        subtasks: deployment.placement.keys().copied().collect(),
        assignment: &deployment.assignment,
    }
}

pub(super) fn channel_name(channel: Channel, receiver: SubtaskIdx) -> ChannelName {
    ChannelName {
        edge: u32::try_from(channel.edge).unwrap_or(u32::MAX),
        sender: channel.sender,
        receiver,
    }
}

/// Lets the tasks of other task managers send to these here; `all` are all that run here.
pub(super) fn accept_channels(
    deployment: &Deployment,
    inboxes: &BTreeMap<TaskId, Arc<Inbox>>,
    all: &BTreeMap<TaskId, Arc<Inbox>>,
    exchange: &AttemptExchange,
) -> Uplinks {
    let mut uplinks = Uplinks::new();
    for (id, inbox) in inboxes {
        let channels = registry::channels_by_operator(&task_plan(deployment, *id));
        for (lane, channel) in channels.into_iter().enumerate() {
            let edge = deployment.graph.edges.get(channel.edge);
            let sender = edge.map(|edge| TaskId {
                stage: edge.from_stage,
                subtask: channel.sender,
            });
            let elsewhere = sender.filter(|sender| !all.contains_key(sender));
            let place = elsewhere.and_then(|sender| deployment.placement.get(&sender.subtask));
            let Some(place) = place else { continue };
            let name = channel_name(channel, id.subtask);
            let from = &place.task_manager.name;
            let uplink = exchange.accept(name, from, Arc::clone(inbox), lane);
            uplinks.insert((*id, channel.edge, channel.sender), uplink);
        }
    }
    uplinks
}

/// A channel to a task elsewhere that is still to be opened.
pub(super) struct Unopened {
    pub edge: usize,
    pub to: SubtaskIdx,
    pub name: ChannelName,
    pub address: String,
}

/// Channels from a task here to tasks elsewhere.
pub(super) fn unopened(
    deployment: &Deployment,
    inboxes: &BTreeMap<TaskId, Arc<Inbox>>,
    id: TaskId,
) -> Vec<Unopened> {
    let mut found = Vec::new();
    let edges = deployment.graph.edges.iter().enumerate();
    for (idx, edge) in edges.filter(|(_, edge)| edge.from_stage == id.stage) {
        for subtask in task_plan(deployment, id).senders(idx) {
            let receiver = TaskId {
                stage: edge.to_stage,
                subtask,
            };
            let place = deployment.placement.get(&subtask);
            let Some(place) = place.filter(|_| !inboxes.contains_key(&receiver)) else {
                continue;
            };
            let channel = Channel {
                edge: idx,
                sender: id.subtask,
            };
            found.push(Unopened {
                edge: idx,
                to: subtask,
                name: channel_name(channel, subtask),
                address: place.exchange.clone(),
            });
        }
    }
    found
}

/// Connects all sinks at once; one whose outside system is away connects when it has rows.
pub(super) async fn open_sinks(shells: &mut [TaskShell]) -> Result<(), Error> {
    let writers = shells.iter_mut().flat_map(|it| it.writers.values_mut());
    try_join_all(writers.map(Writer::open)).await?;
    Ok(())
}

impl Building<'_> {
    fn plan(&self, id: TaskId) -> TaskPlan<'_> {
        task_plan(self.deployment, id)
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
        if let Some(hand_over) = self.joins {
            core.join_at_barrier(Arc::clone(hand_over));
            return Ok(core);
        }
        let Some(manifest) = &self.deployment.restore else {
            return Ok(core);
        };
        for (idx, operator) in operators.iter().enumerate() {
            let Some(state) = manifest.operators.get(&operator.uid) else {
                continue;
            };
            let read = AtomicU64::new(0);
            let from = Parts {
                read: Some(&read),
                ..self.context.parts()
            };
            let assignment = &self.deployment.assignment;
            let loading = load_operator(from, manifest, state, id, assignment);
            let state = self.telling(loading, &read).await;
            let state = state.map_err(|source| Error::Restore {
                operator: operator.uid.0.clone(),
                source,
            })?;
            core.restore(idx, state)?;
            self.tell_that_it_gets_on().await;
        }
        Ok(core)
    }

    /// The coordinator waits as long as it hears this.
    async fn tell_that_it_gets_on(&self) {
        let _gone = self.events.send(Event::Progress(Box::default())).await;
    }

    /// Loads, and tells meanwhile that it gets on, as long as bytes are read.
    async fn telling<T>(&self, loading: impl Future<Output = T>, read: &AtomicU64) -> T {
        let mut loading = pin!(loading);
        let mut told = 0;
        loop {
            match tokio::time::timeout(TOLD_EVERY, &mut loading).await {
                Ok(loaded) => return loaded,
                Err(_) if read.load(Ordering::Relaxed) == told => {}
                Err(_) => {
                    told = read.load(Ordering::Relaxed);
                    self.tell_that_it_gets_on().await;
                }
            }
        }
    }

    fn pace(&self, rows_per_second: Option<u64>) -> Option<Pace> {
        let subtasks_n = u32::try_from(self.deployment.placement.len()).unwrap_or(u32::MAX);
        rows_per_second.map(|limit| Pace::share(limit, subtasks_n))
    }

    /// It is opened when all are built.
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
            generation: self.stamp.generation,
            epoch: self.stamp.epoch,
            first_id: self.deployment.first_id,
        };
        let writer = connectors::open_writer(
            spec,
            name,
            &self.context.surroundings(),
            self.context.terminal,
        )?;
        Ok(Some(Writer {
            slot,
            writer,
            is_open: false,
            rate_limit: spec.rate_limit,
            pace: self.pace(spec.rate_limit),
            waits_for: (spec.kept_delivery() == Delivery::AtLeastOnce)
                .then(|| Arc::clone(&self.context.sight)),
        }))
    }

    /// Starts the task's uploader; it ends when the sender is dropped.
    fn uploads(&self, id: TaskId) -> mpsc::Sender<Upload> {
        let (uploads, waiting) = mpsc::channel(UPLOADS_MAX);
        let uploader = Uploader {
            task: id,
            stamp: self.stamp.clone(),
            store: Arc::clone(&self.context.store),
            local: self.context.local.clone(),
            staged: Arc::clone(self.staged),
            events: self.events.clone(),
            objects_n: 0,
            late_log: Vec::new(),
            late_rows: VecDeque::new(),
        };
        let events = self.events.clone();
        tokio::spawn(panics::told(uploader.run(waiting), Some(id), events));
        uploads
    }

    pub(super) async fn shell(&self, id: TaskId) -> Result<TaskShell, Error> {
        let core = self.core(id).await?;
        let stage = self.deployment.graph.stages.get(id.stage.0 as usize);
        let operators = stage
            .map(|stage| stage.operators.as_slice())
            .unwrap_or_default();
        let (mut source, mut writers) = (None::<OperatorUid>, BTreeMap::new());
        let mut reader = None;
        for (idx, operator) in operators.iter().enumerate() {
            if let OperatorKind::Source(spec) = &operator.kind {
                source = Some(operator.uid.clone());
                reader = Some(self.reader(idx, operator, spec));
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
            reading: reader.is_some(),
            reader,
            handed_over_us: 0,
            hand_over: self.joins.map(Arc::clone),
            writers,
            staged: Arc::clone(self.staged),
            was_full: false,
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

    /// It is opened when it is known which splits there are.
    fn reader(&self, operator: usize, source: &Operator, spec: &SourceSpec) -> Reader {
        Reader {
            operator,
            reader: None,
            pace: self.pace(spec.rate_limit),
            opening: ReaderOpening {
                source: source.clone(),
                spec: spec.clone(),
                job: self.stamp.job.clone(),
                surroundings: self.context.surroundings(),
            },
        }
    }

    /// Channels to tasks here; those to tasks elsewhere are opened at the start.
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
                let added = self.added.get(&(receiver, idx, id.subtask)).copied();
                let channels = registry::channels_by_operator(&self.plan(receiver));
                let channel = added.or_else(|| {
                    let mut channels = channels.iter();
                    channels.position(|c| c.edge == idx && c.sender == id.subtask)
                });
                if let (Some(lane), Some(inbox)) = (channel, self.inboxes.get(&receiver)) {
                    route.insert(subtask, Outlet::Local(Arc::clone(inbox), lane));
                }
            }
            routes.insert(idx, route);
        }
        routes
    }

    fn senders(&self, id: TaskId) -> BTreeMap<(usize, SubtaskIdx), Upstream> {
        let mut senders = BTreeMap::new();
        for channel in self.plan(id).channels() {
            let Some(edge) = self.deployment.graph.edges.get(channel.edge) else {
                continue;
            };
            let sender = TaskId {
                stage: edge.from_stage,
                subtask: channel.sender,
            };
            let uplink = self.uplinks.get(&(id, channel.edge, channel.sender));
            let upstream = match (self.inboxes.get(&sender), uplink) {
                (Some(inbox), _) => Upstream::Local(Arc::clone(inbox)),
                (None, Some(uplink)) => Upstream::Remote(Arc::clone(uplink)),
                (None, None) => continue,
            };
            senders.insert((channel.edge, channel.sender), upstream);
        }
        senders
    }
}
