//! What a hand-over of key groups opens and closes in a task manager (K3), in the order of
//! `taskmanager/src/attempt/hand_over.rs`.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use streamforge_core::ids::{CheckpointId, Generation, SlotId, SubtaskIdx, TaskId};
use streamforge_core::job_graph::OperatorKind;
use streamforge_core::key_group::KeyGroup;
use streamforge_core::manifest::{CheckpointKind, Manifest};
use streamforge_core::messages::{Deployment, Event, HandOver, Stamp};
use streamforge_engine::barrier::Barrier;
use streamforge_engine::operator::RestoredState;
use streamforge_engine::sink::SlotTakeOver;
use streamforge_engine::task::joined_channels;
use streamforge_state::restore::{Parts, load_groups};
use streamforge_store::MemoryStore;

use super::{Attempt, Outcome, Site, loads, now, operators_of};
use crate::book::Book;
use crate::net::Wire;
use crate::publish::Trouble;
use crate::task::{Control, Receipt};

impl Attempt {
    /// An attempt that runs elsewhere, and of which tasks will join here.
    pub fn join(site: &Site<'_>, stamp: &Stamp, hand_over: &HandOver) -> Self {
        let mut until_then = hand_over.deployment.clone();
        until_then
            .placement
            .retain(|subtask, _| !hand_over.joining.contains(subtask));
        Self::idle(site.me, stamp, until_then)
    }

    /// The table and places that a subtask begins with.
    pub(super) fn deployment_of(&self, subtask: SubtaskIdx) -> &Deployment {
        let joins = |hand_over: &&Arc<HandOver>| hand_over.joining.contains(&subtask);
        let hand_over = self.hand_over.as_ref().filter(joins);
        hand_over.map_or(&self.deployment, |it| &it.deployment)
    }

    /// Opens what a hand-over needs here: tasks that join wait for its barrier, running ones get to
    /// know of it.
    pub fn open_hand_over(
        &mut self,
        site: &mut Site<'_>,
        hand_over: Arc<HandOver>,
    ) -> Result<Outcome, Trouble> {
        let mut events = self.withdraw();
        let changes = hand_over.joining.iter().chain(&hand_over.leaving);
        self.outbox.unsettle(changes.copied());
        let mut joining = hand_over.deployment.subtasks_of(site.me);
        joining.retain(|subtask| hand_over.joining.contains(subtask));
        self.take_slots(site, &joining)?;
        let placement = &hand_over.deployment.placement;
        let places = placement.iter();
        self.places
            .extend(places.map(|(idx, place)| (*idx, place.task_manager.clone())));
        let graph = &hand_over.deployment.graph;
        for (id, task) in &mut self.tasks {
            let names = task.names.iter().copied();
            let joined = joined_channels(graph, *id, names, &hand_over);
            let first = task.add_lanes(joined);
            let first = if placement.contains_key(&id.subtask) {
                first
            } else {
                0
            };
            let prepare = Control::Prepare(Arc::clone(&hand_over), first);
            task.control.push_back(prepare);
        }
        self.hand_over = Some(Arc::clone(&hand_over));
        let ids: Vec<TaskId> = graph.tasks_of(joining).collect();
        for id in &ids {
            let mut core = self.core(*id);
            core.join_at_barrier(Arc::clone(&hand_over));
            let mut task = self.shell(site, *id, core);
            task.hand_over = Some(Arc::clone(&hand_over));
            self.add_task(*id, task);
        }
        self.running = true;
        for id in ids {
            events.extend(self.begin(id, site.outside));
        }
        Ok(events)
    }

    /// First markers of the slots of tasks that join (X3).
    fn take_slots(&self, site: &mut Site<'_>, joining: &[SubtaskIdx]) -> Result<(), Trouble> {
        let restore = self.deployment.restore.as_ref();
        let newest = restore.map(|manifest| manifest.id).unwrap_or_default();
        let operators = self.deployment.graph.operators();
        for (_, sink) in operators.filter(|(_, it)| matches!(it.kind, OperatorKind::Sink(_))) {
            let take_over = |subtask: &SubtaskIdx| SlotTakeOver {
                slot: SlotId {
                    sink: sink.uid.clone(),
                    slot: subtask.0,
                },
                listed: Vec::new(),
                newest,
            };
            let slots: Vec<SlotTakeOver> = joining.iter().map(take_over).collect();
            self.take_over(site, &sink.uid, &slots)?;
        }
        Ok(())
    }

    /// The hand-over that was prepared will not be.
    pub fn withdraw(&mut self) -> Outcome {
        if let Some(hand_over) = self.hand_over.take() {
            self.forget(&hand_over.joining);
            self.tell_all(&Control::Withdraw);
        }
        let broken = self.outbox.settle(&self.deployment.subtasks());
        broken.into_iter().collect()
    }

    /// These subtasks are no more.
    fn forget(&mut self, subtasks: &BTreeSet<SubtaskIdx>) {
        self.tasks.retain(|id, _| !subtasks.contains(&id.subtask));
    }

    /// The barrier of this checkpoint is about to be sent.
    pub fn on_checkpoint(&mut self, barrier: Barrier) {
        if barrier.kind == CheckpointKind::HandOver {
            self.handed_at = Some(barrier.id);
        }
        self.tell_sources(&Control::Checkpoint(barrier));
    }

    /// All tasks have passed the hand-over's barrier.
    pub fn receive(&mut self, store: &MemoryStore, book: &Book, manifest: Manifest) -> Outcome {
        let manifest = Arc::new(manifest);
        let placement = match &self.hand_over {
            Some(hand_over) => &hand_over.deployment.placement,
            None => &self.deployment.placement,
        };
        let placed: BTreeSet<SubtaskIdx> = placement.keys().copied().collect();
        let mut events = Vec::new();
        let staying = self.tasks.iter_mut();
        for (id, task) in staying.filter(|(id, _)| placed.contains(&id.subtask)) {
            match gained((store, book), *id, &manifest, &self.deployment) {
                Ok(states) => {
                    let (manifest, states) = (Arc::clone(&manifest), Mutex::new(states));
                    let receipt = Arc::new(Receipt { manifest, states });
                    task.control.push_back(Control::Receive(receipt));
                }
                Err(trouble) => events.push(trouble.event()),
            }
        }
        events
    }

    /// A checkpoint is committed; if it is that of the hand-over, the attempt is what that says. Tasks
    /// that left go on answering until the next one.
    pub fn on_committed(&mut self, id: CheckpointId) -> Outcome {
        if self.handed_at.is_some_and(|handed_at| handed_at < id) {
            let left = std::mem::take(&mut self.left);
            self.forget(&left);
            self.unpaid
                .retain(|(_, _, receiver), _| !left.contains(receiver));
        }
        if self.handed_at != Some(id) {
            return Outcome::new();
        }
        let Some(hand_over) = self.hand_over.take() else {
            return Outcome::new();
        };
        self.left.clone_from(&hand_over.leaving);
        self.deployment = hand_over.deployment.clone();
        let broken = self.outbox.settle(&self.deployment.subtasks());
        broken.into_iter().collect()
    }

    /// Another coordinator goes on with it; what it must hear.
    pub fn adopt(&mut self, void_to: CheckpointId, generation: Generation) -> Outcome {
        self.tell_all(&Control::Abort(void_to));
        self.outbox.adopt(generation)
    }

    /// A channel of this attempt broke (B2).
    pub fn on_broken(wire: &Wire) -> Event {
        Event::ChannelBroke {
            sender: wire.sender,
            receiver: wire.receiver,
            cause: format!(
                "channel {} {}->{} broke",
                wire.edge, wire.sender.0, wire.receiver.0
            ),
        }
    }
}

fn gained(
    (store, book): (&MemoryStore, &Book),
    id: TaskId,
    manifest: &Manifest,
    deployment: &Deployment,
) -> Result<Vec<(usize, RestoredState)>, Trouble> {
    let Some(table) = &manifest.handed_to else {
        return Ok(Vec::new());
    };
    let groups: BTreeSet<KeyGroup> = table.gained(&manifest.assignment, id.subtask);
    let mut states = Vec::new();
    for (idx, operator) in operators_of(deployment, id.stage).iter().enumerate() {
        let Some(state) = manifest.operators.get(&operator.uid) else {
            continue;
        };
        let loaded = now(load_groups(Parts::stored(store), manifest, state, &groups));
        let loaded = loaded.map_err(|error| loads(&error))?;
        book.check(manifest, &operator.uid, &groups, &loaded);
        states.push((idx, loaded));
    }
    Ok(states)
}
