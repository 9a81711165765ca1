//! What a hand-over of key groups opens and closes in a task manager (K3).
//!
//! Owns: before its barrier, the tasks that join here, the channels between them and all others, and
//! first markers of their slots; nothing of this is seen by a running task before the barrier. After
//! it, loading what tasks gain. A task manager that runs nothing yet begins with an attempt without
//! tasks. Start at: [`open`], then [`receive`].

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use futures::future::try_join_all;
use streamforge_connectors::registry as connectors;
use streamforge_core::causes::with_causes;
use streamforge_core::ids::{CheckpointId, SlotId, SubtaskIdx, TaskId};
use streamforge_core::job_graph::OperatorKind;
use streamforge_core::key_group::KeyGroup;
use streamforge_core::manifest::{CheckpointKind, Manifest};
use streamforge_core::messages::{Event, HandOver, Stamp};
use streamforge_engine::barrier::Barrier;
use streamforge_engine::operator::RestoredState;
use streamforge_engine::sink::SlotTakeOver;
use streamforge_engine::staged::Staged;
use streamforge_engine::task::joined_channels;
use streamforge_state::restore::load_groups;
use tokio::sync::mpsc;

use super::building::{
    Building, Uplinks, accept_channels, channel_name, open_sinks, task_ids, task_plan, unopened,
};
use super::outbox;
use super::publishing::open_publishers;
use super::{Attempt, Error, Idle, Publishing, caught, exchange_of, operators_of, spawn_tasks};
use crate::budget::StateBudget;
use crate::clock::Clock;
use crate::exchange::{AttemptExchange, Outlet, Upstream};
use crate::inbox::{Control, Inbox, Receipt, Widening};
use crate::manager::Context;
use crate::progress::TaskProgress;
use crate::registry;
use crate::task::TaskShell;

/// What there is already.
pub(super) struct Base {
    pub context: Context,
    pub stamp: Stamp,
    pub inboxes: BTreeMap<TaskId, Arc<Inbox>>,
    pub exchange: Option<Arc<AttemptExchange>>,
    pub publishing: Publishing,
    pub events: mpsc::Sender<Event>,
    pub clock: Clock,
    pub budget: Arc<StateBudget>,
}

/// All that a hand-over needs here, before its barrier.
pub struct Opened {
    pub(super) hand_over: Arc<HandOver>,
    pub(super) shells: Vec<TaskShell>,
    pub(super) inboxes: BTreeMap<TaskId, Arc<Inbox>>,
    pub(super) widenings: Vec<(Arc<Inbox>, Arc<Widening>)>,
    pub(super) exchange: Option<Arc<AttemptExchange>>,
}

impl Attempt {
    /// An attempt that runs elsewhere, and of which tasks will join here (K3).
    pub async fn join(
        context: &Context,
        stamp: Stamp,
        hand_over: &Arc<HandOver>,
        to_coordinator: mpsc::Sender<(Stamp, Event)>,
    ) -> Result<Self, Error> {
        let (outbox, events) = outbox::begin(&stamp, to_coordinator);
        let deployment = &hand_over.deployment;
        let exchange = exchange_of(context, &stamp, deployment, &events)?;
        let staged = Arc::new(Staged::default());
        let clock = Clock::start();
        let budget = Arc::new(StateBudget::new(Arc::clone(&context.terms)));
        let building = Building {
            context,
            stamp: &stamp,
            deployment,
            inboxes: &BTreeMap::new(),
            added: &BTreeMap::new(),
            uplinks: &Uplinks::new(),
            staged: &staged,
            events: &events,
            clock,
            budget: Arc::clone(&budget),
            joins: Some(hand_over),
        };
        let publishers = open_publishers(&building).await?;
        let publishing = Publishing::new(publishers, staged, events.clone());
        let idle = Idle {
            outbox,
            exchange,
            publishing,
            events,
            clock,
            budget,
        };
        // Until its barrier none of those that join is there, and some may never be: channels between
        // them that break then end nothing.
        let mut until_then = deployment.clone();
        until_then
            .placement
            .retain(|subtask, _| !hand_over.joining.contains(subtask));
        Ok(Self::idle(context, until_then, idle))
    }

    /// Opens what a hand-over needs here; the future may be awaited elsewhere.
    pub fn open_hand_over(
        &mut self,
        hand_over: Arc<HandOver>,
    ) -> impl Future<Output = Result<Opened, Error>> + Send + use<> {
        self.withdraw();
        let changes = hand_over.joining.iter().chain(&hand_over.leaving);
        self.outbox.unsettle(changes.copied());
        let base = Base {
            context: self.context.clone(),
            stamp: self.outbox.stamp(),
            inboxes: self.inboxes.clone(),
            exchange: self.exchange.clone(),
            publishing: self.publishing.clone(),
            events: self.events.clone(),
            clock: self.clock,
            budget: Arc::clone(&self.budget),
        };
        open(base, hand_over)
    }

    /// It is open: running tasks get to know of it, and those that join wait for its barrier.
    pub fn prepare_hand_over(&mut self, opened: Opened) {
        let Opened {
            hand_over,
            shells,
            inboxes,
            widenings,
            exchange,
        } = opened;
        self.exchange = exchange;
        self.inboxes.extend(inboxes);
        for (inbox, widening) in widenings {
            inbox.control(Control::Prepare(widening));
        }
        for shell in &shells {
            let (id, progress) = (shell.core.id(), Arc::clone(&shell.progress));
            if progress.source().is_some() {
                self.source_tasks.push(id);
            }
            self.progress.push((id, progress));
        }
        self.hand_over = Some(hand_over);
        let (threads_of, events) = (Arc::clone(&self.threads), self.events.clone());
        tokio::spawn(async move { spawn_tasks(shells, &threads_of, &events).await });
    }

    /// The hand-over that was prepared will not be. Whatever is open to tasks that would have joined
    /// stays, unused. It may be that it was not open yet.
    pub fn withdraw(&mut self) {
        if let Some(hand_over) = self.hand_over.take() {
            let joined = self.forget(&hand_over.joining);
            joined.iter().for_each(|inbox| inbox.cancel());
            self.tell_all(&Control::Withdraw);
        }
        self.settle();
    }

    /// Its subtasks are here to stay.
    fn settle(&self) {
        let broken = self.outbox.settle(&self.deployment.subtasks());
        self.say(broken);
    }

    /// These subtasks are no more; returns their inboxes.
    fn forget(&mut self, subtasks: &BTreeSet<SubtaskIdx>) -> Vec<Arc<Inbox>> {
        let gone = |id: &TaskId| subtasks.contains(&id.subtask);
        let theirs = self.inboxes.iter().filter(|(id, _)| gone(id));
        let theirs = theirs.map(|(_, inbox)| Arc::clone(inbox)).collect();
        self.inboxes.retain(|id, _| !gone(id));
        self.source_tasks.retain(|id| !gone(id));
        let (departed, left) = std::mem::take(&mut self.progress)
            .into_iter()
            .partition(|(id, _)| gone(id));
        self.progress = left;
        let departed: Vec<(TaskId, Arc<TaskProgress>)> = departed;
        self.departed.extend(departed.into_iter().map(|(_, it)| it));
        theirs
    }

    /// The barrier of this checkpoint is about to be sent.
    pub fn on_checkpoint(&mut self, barrier: Barrier) {
        if barrier.kind == CheckpointKind::HandOver {
            self.handed_at = Some(barrier.id);
        }
        self.tell_sources(&Control::Checkpoint(barrier));
    }

    /// All tasks have passed the hand-over's barrier.
    pub fn receive(&self, manifest: Manifest) {
        let hand_over = match &self.hand_over {
            Some(hand_over) => Arc::clone(hand_over),
            // It is known as committed here, and said once more by a coordinator that came later.
            None => Arc::new(HandOver {
                deployment: (*self.deployment).clone(),
                joining: BTreeSet::new(),
                leaving: BTreeSet::new(),
                splits: BTreeMap::new(),
            }),
        };
        let staying = self.inboxes.iter();
        let placement = &hand_over.deployment.placement;
        let staying = staying.filter(|(id, _)| placement.contains_key(&id.subtask));
        let inboxes = staying
            .map(|(id, inbox)| (*id, Arc::clone(inbox)))
            .collect();
        tokio::spawn(receive(
            self.context.clone(),
            inboxes,
            self.events.clone(),
            Arc::new(manifest),
            hand_over,
        ));
    }

    /// A checkpoint is committed; if it is that of the hand-over, the attempt is what that says. Tasks
    /// that left go on answering those who join them behind that barrier until the next checkpoint is
    /// committed: whoever has passed its barrier has its answers (T6).
    pub fn on_committed(&mut self, id: CheckpointId) {
        if self.handed_at.is_some_and(|handed_at| handed_at < id) {
            self.left.drain(..).for_each(|inbox| inbox.cancel());
        }
        if self.handed_at == Some(id)
            && let Some(hand_over) = self.hand_over.take()
        {
            let left = self.forget(&hand_over.leaving);
            self.left.extend(left);
            self.deployment = Arc::new(hand_over.deployment.clone());
            self.settle();
        }
        self.publishing.retire_all_but(&self.deployment.subtasks());
    }
}

/// Lanes that were added to the inboxes of running tasks, by receiver, edge and sender.
type Added = BTreeMap<(TaskId, usize, SubtaskIdx), usize>;

/// Number of the first added lane of a task, and the ways back to those that send there.
type Widened = (usize, Vec<((usize, SubtaskIdx), Upstream)>);

/// Opens all of it, or nothing that matters.
pub(super) async fn open(base: Base, hand_over: Arc<HandOver>) -> Result<Opened, Error> {
    let deployment = &hand_over.deployment;
    let mut joining = deployment.subtasks_of(&base.context.me);
    joining.retain(|subtask| hand_over.joining.contains(subtask));
    let ids = task_ids(deployment, &joining);
    let inbox = |id: &TaskId| {
        let channels_n = task_plan(deployment, *id).channels().len();
        (*id, Arc::new(Inbox::new(channels_n)))
    };
    let new: BTreeMap<TaskId, Arc<Inbox>> = ids.iter().map(inbox).collect();
    let mut all = base.inboxes.clone();
    all.retain(|id, _| deployment.placement.contains_key(&id.subtask));
    let running: Vec<TaskId> = all.keys().copied().collect();
    all.extend(new.iter().map(|(id, inbox)| (*id, Arc::clone(inbox))));
    let exchange = match &base.exchange {
        Some(exchange) => Some(Arc::clone(exchange)),
        None => exchange_of(&base.context, &base.stamp, deployment, &base.events)?,
    };
    let uplinks = exchange.as_ref().map_or_else(Uplinks::new, |exchange| {
        accept_channels(deployment, &new, &all, exchange)
    });
    let mut added = Added::new();
    let mut widened = BTreeMap::new();
    for id in &running {
        let found = widen_inbox(*id, &hand_over, &all, exchange.as_deref(), &mut added)?;
        widened.insert(*id, found);
    }
    take_slots(&base, &hand_over, &joining).await?;
    let building = Building {
        context: &base.context,
        stamp: &base.stamp,
        deployment,
        inboxes: &all,
        added: &added,
        uplinks: &uplinks,
        staged: &base.publishing.staged,
        events: &base.events,
        clock: base.clock,
        budget: Arc::clone(&base.budget),
        joins: Some(&hand_over),
    };
    let way = Way {
        hand_over: &hand_over,
        all: &all,
        exchange: exchange.as_deref(),
    };
    let mut shells = Vec::with_capacity(ids.len());
    for id in &ids {
        let mut shell = building.shell(*id).await?;
        for (edge, to, outlet) in way.open_channels(*id, |_| true).await? {
            shell.routes.entry(edge).or_default().insert(to, outlet);
        }
        shells.push(shell);
    }
    open_sinks(&mut shells).await?;
    let mut widenings = way.widenings(&new, widened).await?;
    // Those that leave hear of it, too.
    let leaving = base.inboxes.iter();
    let leaving = leaving.filter(|(id, _)| hand_over.leaving.contains(&id.subtask));
    widenings.extend(leaving.map(|(_, inbox)| (Arc::clone(inbox), nothing_more(&hand_over))));
    Ok(Opened {
        hand_over,
        shells,
        inboxes: new,
        widenings,
        exchange,
    })
}

/// What a task gets that has no new channels.
fn nothing_more(hand_over: &Arc<HandOver>) -> Arc<Widening> {
    Arc::new(Widening {
        hand_over: Arc::clone(hand_over),
        first_channel: 0,
        looks_for_splits: false,
        routes: Vec::new(),
        senders: Vec::new(),
    })
}

/// What it takes to find the way from a task here to any other.
struct Way<'a> {
    hand_over: &'a Arc<HandOver>,
    /// Of the tasks that run here from the barrier on.
    all: &'a BTreeMap<TaskId, Arc<Inbox>>,
    exchange: Option<&'a AttemptExchange>,
}

impl Way<'_> {
    /// What each running task gets, whose lanes are there.
    async fn widenings(
        &self,
        new: &BTreeMap<TaskId, Arc<Inbox>>,
        widened: BTreeMap<TaskId, Widened>,
    ) -> Result<Vec<(Arc<Inbox>, Arc<Widening>)>, Error> {
        let mut widenings = Vec::with_capacity(widened.len());
        for (id, (first_channel, senders)) in widened {
            let Some(inbox) = self.all.get(&id) else {
                continue;
            };
            let joins = |to: SubtaskIdx| self.hand_over.joining.contains(&to);
            let mut routes = local_routes(id, self.hand_over, new);
            routes.extend(self.open_channels(id, joins).await?);
            let widening = Widening {
                hand_over: Arc::clone(self.hand_over),
                first_channel,
                looks_for_splits: looks_for_splits(self.hand_over, id),
                routes,
                senders,
            };
            widenings.push((Arc::clone(inbox), Arc::new(widening)));
        }
        Ok(widenings)
    }

    /// Ways to tasks elsewhere.
    async fn open_channels(
        &self,
        id: TaskId,
        wanted: impl Fn(SubtaskIdx) -> bool,
    ) -> Result<Vec<(usize, SubtaskIdx, Outlet)>, Error> {
        let (Some(exchange), Some(own)) = (self.exchange, self.all.get(&id)) else {
            return Ok(Vec::new());
        };
        let mut channels = unopened(&self.hand_over.deployment, self.all, id);
        channels.retain(|channel| wanted(channel.to));
        let opening = channels.into_iter().map(|channel| async move {
            let opened = exchange.open(channel.name, &channel.address, Arc::clone(own));
            let outlet = Outlet::Remote(opened.await?);
            Ok::<_, Error>((channel.edge, channel.to, outlet))
        });
        try_join_all(opening).await
    }
}

fn looks_for_splits(hand_over: &HandOver, id: TaskId) -> bool {
    operators_of(&hand_over.deployment, id)
        .iter()
        .any(|operator| match &operator.kind {
            OperatorKind::Source(spec) => connectors::looks_for_splits(spec),
            _ => false,
        })
}

/// Lanes for the channels from tasks that join, and the ways back.
fn widen_inbox(
    id: TaskId,
    hand_over: &HandOver,
    all: &BTreeMap<TaskId, Arc<Inbox>>,
    exchange: Option<&AttemptExchange>,
    added: &mut Added,
) -> Result<Widened, Error> {
    let deployment = &hand_over.deployment;
    let graph = &deployment.graph;
    let Some(inbox) = all.get(&id) else {
        return Ok((0, Vec::new()));
    };
    let channels = registry::channels_by_operator(&task_plan(deployment, id));
    let joined = joined_channels(graph, id, channels.into_iter(), hand_over);
    let first = inbox.add_lanes(joined.len());
    let mut senders = Vec::with_capacity(joined.len());
    for (lane, channel) in (first..).zip(joined) {
        added.insert((id, channel.edge, channel.sender), lane);
        let Some(edge) = graph.edges.get(channel.edge) else {
            continue;
        };
        let sender = TaskId {
            stage: edge.from_stage,
            subtask: channel.sender,
        };
        let upstream = match (all.get(&sender), deployment.placement.get(&channel.sender)) {
            (Some(sender), _) => Upstream::Local(Arc::clone(sender)),
            (None, Some(place)) => {
                let exchange = exchange.ok_or(Error::Alone)?;
                let name = channel_name(channel, id.subtask);
                let from = &place.task_manager.name;
                Upstream::Remote(exchange.accept(name, from, Arc::clone(inbox), lane))
            }
            (None, None) => continue,
        };
        senders.push(((channel.edge, channel.sender), upstream));
    }
    Ok((first, senders))
}

/// Ways from a running task to tasks that join here.
fn local_routes(
    id: TaskId,
    hand_over: &HandOver,
    new: &BTreeMap<TaskId, Arc<Inbox>>,
) -> Vec<(usize, SubtaskIdx, Outlet)> {
    let deployment = &hand_over.deployment;
    let mut routes = Vec::new();
    for (receiver, inbox) in new {
        let channels = registry::channels_by_operator(&task_plan(deployment, *receiver));
        for (lane, channel) in channels.into_iter().enumerate() {
            let edge = deployment.graph.edges.get(channel.edge);
            let is_from = edge.is_some_and(|edge| edge.from_stage == id.stage);
            if is_from && channel.sender == id.subtask {
                let outlet = Outlet::Local(Arc::clone(inbox), lane);
                routes.push((channel.edge, receiver.subtask, outlet));
            }
        }
    }
    routes
}

/// First markers of the slots of tasks that join (X3): whoever published under these names is fenced.
async fn take_slots(
    base: &Base,
    hand_over: &HandOver,
    joining: &[SubtaskIdx],
) -> Result<(), Error> {
    let restore = hand_over.deployment.restore.as_ref();
    for (sink, publisher) in base.publishing.publishers.iter() {
        let slot = |subtask: &SubtaskIdx| SlotTakeOver {
            slot: SlotId {
                sink: sink.clone(),
                slot: subtask.0,
            },
            listed: Vec::new(),
            newest: restore.map(|manifest| manifest.id).unwrap_or_default(),
        };
        let slots: Vec<SlotTakeOver> = joining.iter().map(slot).collect();
        if !slots.is_empty() {
            publisher.take_over(&slots).await?;
        }
    }
    Ok(())
}

/// Loads what tasks gain by a hand-over that all have acknowledged, and lets them go on.
pub(super) async fn receive(
    context: Context,
    inboxes: BTreeMap<TaskId, Arc<Inbox>>,
    events: mpsc::Sender<Event>,
    manifest: Arc<Manifest>,
    hand_over: Arc<HandOver>,
) {
    let tasks = inboxes.into_iter().map(|(id, inbox)| {
        let (context, manifest) = (context.clone(), Arc::clone(&manifest));
        let (events, hand_over) = (events.clone(), Arc::clone(&hand_over));
        async move {
            match caught(gained(&context, id, &manifest, &hand_over)).await {
                Ok(states) => {
                    let states = Mutex::new(states);
                    let receipt = Receipt { manifest, states };
                    inbox.control(Control::Receive(Arc::new(receipt)));
                }
                Err(error) => {
                    let event = Event::Failed {
                        task: Some(id),
                        cause: with_causes(&error),
                        retry: error.may_succeed_later(),
                    };
                    let _gone = events.send(event).await;
                }
            }
        }
    });
    let tasks: Vec<_> = tasks.map(tokio::spawn).collect();
    for task in tasks {
        let _told = task.await;
    }
}

async fn gained(
    context: &Context,
    id: TaskId,
    manifest: &Manifest,
    hand_over: &HandOver,
) -> Result<Vec<(usize, RestoredState)>, Error> {
    let Some(table) = &manifest.handed_to else {
        return Ok(Vec::new());
    };
    let groups: BTreeSet<KeyGroup> = table.gained(&manifest.assignment, id.subtask);
    let mut states = Vec::new();
    for (idx, operator) in operators_of(&hand_over.deployment, id).iter().enumerate() {
        let Some(state) = manifest.operators.get(&operator.uid) else {
            continue;
        };
        let loaded = load_groups(context.parts(), manifest, state, &groups).await;
        let loaded = loaded.map_err(|source| Error::Restore {
            operator: operator.uid.0.clone(),
            source,
        })?;
        states.push((idx, loaded));
    }
    Ok(states)
}
