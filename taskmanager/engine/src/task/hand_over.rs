//! A task in a hand-over of key groups (K3).
//!
//! Owns: what changes at its barrier. Before it a task only opens channels: [`TaskCore::prepare`], or
//! [`TaskCore::join_at_barrier`] for a task that begins with it. At the barrier it sends by the new
//! table, its channels begin anew with the rejoin handshake, splits and key groups that others own
//! from now on leave it, and if it gains some it *waits* for them: it takes rows of what it has, holds
//! those of groups that it awaits, and its watermark stands still (T1, T6). Start at:
//! [`TaskCore::switch`], then [`TaskCore::receive`].
//!
//! Every receiver of an edge is asked how far it is, those that give groups away included, and every
//! sender goes on from the highest answer. So whatever watermark a moved group comes with, no row
//! that was sent behind the barrier is late for it.

use std::collections::BTreeSet;
use std::sync::Arc;

use streamforge_core::event_time::Watermark;
use streamforge_core::ids::{CheckpointId, SplitId, SubtaskIdx, TaskId};
use streamforge_core::job_graph::{Exchange, JobGraph};
use streamforge_core::key_group::KeyGroup;
use streamforge_core::manifest::{SplitProgress, SplitState};
use streamforge_core::messages::HandOver;

use super::{Chained, Channel, Effect, TaskCore, route};
use crate::batch::StreamBatch;
use crate::error::Error;
use crate::operator::RestoredState;
use crate::state::StatePart;

/// Bytes of rows that a task holds for key groups it awaits before it takes no more (B1).
const HELD_BYTES_MAX: usize = 4 * 1024 * 1024;

/// Where a task is in a hand-over.
#[derive(Debug, Default)]
pub(super) struct HandOverState {
    prepared: Option<Prepared>,
    /// It begins at the barrier, and does nothing before.
    joins: bool,
    /// It ended at the barrier.
    left: bool,
    awaited: Option<Awaited>,
    /// The source that waits for its splits, and those that it gave up.
    awaits_splits: Option<(usize, BTreeSet<SplitId>)>,
    /// Key groups that are left, if some were given away and are still here.
    releasing: Option<(BTreeSet<KeyGroup>, Parts)>,
    deal: Option<Arc<HandOver>>,
    /// Its checkpoint, once all that it brings is here; to be told when receivers have answered.
    received: Option<CheckpointId>,
    /// Of the subtasks before none is left to say how far the groups are.
    nobody_stayed: bool,
}

/// The parts of each operator's snapshot at the barrier.
pub(super) type Parts = Vec<(usize, Vec<Arc<StatePart>>)>;

#[derive(Debug)]
struct Prepared {
    hand_over: Arc<HandOver>,
    /// Readers of this task's source look for new splits, each for its share of them.
    looks_for_splits: bool,
    channels_before: usize,
}

/// Key groups that are on their way here.
#[derive(Debug)]
struct Awaited {
    is_awaited: Vec<bool>,
    held: Vec<(usize, usize, StreamBatch)>,
    bytes: usize,
}

/// The channels that a task gets by a hand-over, in the order in which they are added to those it has.
pub fn joined_channels(
    graph: &JobGraph,
    id: TaskId,
    before: impl Iterator<Item = Channel>,
    hand_over: &HandOver,
) -> Vec<Channel> {
    let mut edges: Vec<usize> = Vec::new();
    for channel in before {
        let exchange = graph.edges.get(channel.edge).map(|edge| &edge.exchange);
        let is_shuffle = matches!(exchange, Some(Exchange::KeyGroup { .. }));
        if is_shuffle && !edges.contains(&channel.edge) {
            edges.push(channel.edge);
        }
    }
    if hand_over.leaving.contains(&id.subtask) {
        return Vec::new();
    }
    let joining = |edge: usize| {
        let senders = hand_over.joining.iter();
        senders.map(move |sender| Channel {
            edge,
            sender: *sender,
        })
    };
    edges.into_iter().flat_map(joining).collect()
}

impl HandOverState {
    /// Whether watermarks stand still and nothing of its own is sent.
    pub(super) fn is_frozen(&self) -> bool {
        self.joins || self.left || self.awaited.is_some() || self.awaits_splits.is_some()
    }

    /// Whether a join can be answered only when what is awaited is there (T6).
    pub(super) fn answers_later(&self) -> bool {
        self.nobody_stayed && self.awaited.is_some()
    }

    /// Whether it is known what its barrier leads to.
    pub(super) fn is_prepared(&self) -> bool {
        self.prepared.is_some()
    }

    /// Whether more rows may be taken.
    pub(super) fn has_room(&self) -> bool {
        self.awaited
            .as_ref()
            .is_none_or(|awaited| awaited.bytes < HELD_BYTES_MAX)
    }

    /// Whether a barrier can be taken: what is awaited is in no snapshot of this task.
    pub(super) fn is_whole(&self) -> bool {
        self.awaited.is_none() && self.awaits_splits.is_none()
    }
}

impl TaskCore {
    /// Opens channels from tasks that join. Until the barrier they are as if they were not there.
    /// The first of them is number `first`; those below it of which this task knows nothing were
    /// opened in vain. `looks_for_splits`: readers of its source find new splits by themselves.
    pub fn prepare(&mut self, hand_over: Arc<HandOver>, first: usize, looks_for_splits: bool) {
        self.withdraw();
        while self.channels.len() < first {
            let nobody = Channel {
                edge: usize::MAX,
                sender: SubtaskIdx(u32::MAX),
            };
            self.aligner.add_input();
            self.aligner.retire(self.channels.len());
            self.channels.push((nobody, usize::MAX, usize::MAX));
        }
        let channels_before = self.channels.len();
        let graph = &hand_over.deployment.graph;
        for channel in joined_channels(graph, self.id, self.channels(), &hand_over) {
            let known = self.channels.iter().find(|it| it.0.edge == channel.edge);
            let Some((_, operator, lane)) = known.copied() else {
                continue;
            };
            if let Some(node) = self.nodes.get_mut(operator) {
                let input = node.inputs_of_lanes.get(lane).copied().unwrap_or_default();
                node.inputs_of_lanes.push(input);
                self.channels.push((channel, operator, node.lanes.add()));
                self.aligner.add_input();
            }
        }
        self.hand_over.prepared = Some(Prepared {
            hand_over,
            looks_for_splits,
            channels_before,
        });
    }

    /// The hand-over that was prepared will not be: nothing comes through its channels.
    pub fn withdraw(&mut self) {
        let Some(prepared) = self.hand_over.prepared.take() else {
            return;
        };
        for channel in prepared.channels_before..self.channels.len() {
            self.aligner.retire(channel);
        }
    }

    /// Begins at the barrier of this hand-over, instead of [`TaskCore::start`].
    pub fn join_at_barrier(&mut self, hand_over: Arc<HandOver>) {
        self.started = true;
        self.hand_over.joins = true;
        self.hand_over.prepared = Some(Prepared {
            hand_over,
            looks_for_splits: false,
            channels_before: self.channels.len(),
        });
    }

    /// Names the new receivers: the barrier goes to them, too. Of a task that leaves nobody new gets
    /// anything.
    pub(super) fn widen_edges(&mut self) {
        let Some(prepared) = &self.hand_over.prepared else {
            return;
        };
        let hand_over = &prepared.hand_over;
        if hand_over.leaving.contains(&self.id.subtask) {
            return;
        }
        let all: Vec<SubtaskIdx> = hand_over.deployment.placement.keys().copied().collect();
        for edge in &mut self.edges {
            let next = match edge.exchange {
                Exchange::KeyGroup { .. } => all.clone(),
                Exchange::Forward => vec![self.id.subtask],
            };
            edge.hand_over(next);
        }
    }

    /// The barrier was sent on: from here on the new table holds.
    pub(super) fn switch(&mut self, parts: Parts) {
        let Some(prepared) = self.hand_over.prepared.take() else {
            return;
        };
        let hand_over = prepared.hand_over;
        let joined = std::mem::take(&mut self.hand_over.joins);
        let me = self.id.subtask;
        if hand_over.leaving.contains(&me) {
            self.hand_over.left = true;
            self.effects.push(Effect::Left);
            return;
        }
        let mut after = hand_over.deployment.placement.keys();
        self.hand_over.nobody_stayed = after.all(|it| hand_over.joining.contains(it));
        let now = hand_over.deployment.assignment.clone();
        let before = std::mem::replace(&mut self.assignment, now);
        for idx in 0..self.channels.len() {
            self.begin_channel_anew(idx, &hand_over.leaving);
        }
        for idx in 0..self.edges.len() {
            self.join(idx);
        }
        // A task that joins is built for the new table: nothing of it was its own before.
        let mut gained = self.assignment.gained(&before, me);
        if joined {
            gained = self.assignment.groups_of(me).into_iter().collect();
        }
        let kept: BTreeSet<KeyGroup> = self.assignment.groups_of(me).into_iter().collect();
        let lost = before.groups_of(me).iter().any(|it| !kept.contains(it));
        if lost && !joined && !parts.is_empty() {
            self.hand_over.releasing = Some((kept, parts));
            self.effects.push(Effect::Release);
        }
        if !gained.is_empty() && !self.channels.is_empty() {
            let n = self.assignment.groups_n() as usize;
            let mut is_awaited = vec![false; n];
            for group in gained {
                if let Some(awaited) = is_awaited.get_mut(usize::from(group.0)) {
                    *awaited = true;
                }
            }
            self.hand_over.awaited = Some(Awaited {
                is_awaited,
                held: Vec::new(),
                bytes: 0,
            });
        }
        // A stage that only forwards is the tail of a source's: what its splits are behind is not late
        // there either.
        if self.shuffles.is_empty() && !self.channels.is_empty() {
            self.begin_anew();
        }
        self.hand_over.deal = Some(Arc::clone(&hand_over));
        self.switch_splits(&hand_over, joined || prepared.looks_for_splits);
    }

    /// What is behind the barrier is judged anew: a channel falls to the task's own watermark, and
    /// holds it until its sender has joined.
    fn begin_channel_anew(&mut self, idx: usize, leaving: &BTreeSet<SubtaskIdx>) {
        let Some((channel, operator, lane)) = self.channels.get(idx).copied() else {
            return;
        };
        let Some(node) = self.nodes.get_mut(operator) else {
            return;
        };
        if self.aligner.is_retired(idx) {
            return;
        }
        if leaving.contains(&channel.sender) {
            self.aligner.retire(idx);
            node.lanes.on_rejoin(lane, Watermark::NONE);
            node.lanes.on_idle(lane);
        } else {
            let own = node.watermark.max(node.floor);
            node.lanes.on_rejoin(lane, own);
        }
    }

    fn switch_splits(&mut self, hand_over: &HandOver, opens_anew: bool) {
        let me = self.id.subtask;
        let mut waits = None;
        for (idx, node) in self.nodes.iter_mut().enumerate() {
            let Chained::Source(source) = &mut node.chained else {
                continue;
            };
            let deal = hand_over.splits.get(&node.uid);
            let held = source.splits();
            let is_open = |split: &&SplitState| split.progress != SplitProgress::End;
            let goes = |split: &&SplitState| {
                let reader = deal.and_then(|deal| deal.get(&split.split));
                reader.is_some_and(|reader| *reader != me)
            };
            let gone = held.iter().filter(is_open).filter(goes);
            let gone: BTreeSet<SplitId> = gone.map(|split| split.split.clone()).collect();
            let holds = |id: &SplitId| held.iter().any(|split| split.split == *id);
            let mut dealt = deal.into_iter().flatten();
            let gains = dealt.any(|(id, reader)| *reader == me && !holds(id));
            if gains || opens_anew {
                source.give_up(&gone);
                waits = Some((idx, gone));
                self.effects.push(Effect::CloseReader);
            } else if !gone.is_empty() {
                source.give_up(&gone);
                let splits = source.splits();
                let splits = splits.into_iter().filter(|it| is_open(&it)).collect();
                self.effects.push(Effect::Reopen { splits });
            }
        }
        if waits.is_some() {
            self.begin_anew();
            self.hand_over.awaits_splits = waits;
        }
    }

    /// The watermarks of this task begin anew, as at a restore: the source that it has, or is fed by,
    /// may read other splits from now on. Receivers' answers raise them (T6).
    fn begin_anew(&mut self) {
        self.ended = false;
        for node in &mut self.nodes {
            node.watermark = Watermark::NONE;
            node.floor = Watermark::NONE;
            node.sent = Watermark::NONE;
            node.idle = false;
            for lane in 0..node.lanes.len() {
                node.lanes.on_rejoin(lane, Watermark::NONE);
            }
            if let Chained::Operator(operator) = &mut node.chained {
                operator.begin_anew();
            }
        }
    }

    /// All that the hand-over of this checkpoint brings is here. It is told once receivers have answered: when
    /// everybody has told, those that leave may go, and would never answer.
    pub fn on_received(&mut self, id: CheckpointId) {
        self.hand_over.received = Some(id);
        self.tell_received();
    }

    pub(super) fn tell_received(&mut self) {
        if self.takes_rows()
            && let Some(id) = self.hand_over.received.take()
        {
            self.effects.push(Effect::Received(id));
            if self.ended && !self.hand_over.left {
                self.effects.push(Effect::Ended);
            }
        }
    }

    /// Whether its work is another's.
    pub fn has_left(&self) -> bool {
        self.hand_over.left
    }

    /// Lets go of what others own now.
    pub fn release(&mut self) -> Result<(), Error> {
        let Some((kept, parts)) = self.hand_over.releasing.take() else {
            return Ok(());
        };
        for (idx, parts) in parts {
            let Some(node) = self.nodes.get_mut(idx) else {
                continue;
            };
            let Chained::Operator(operator) = &mut node.chained else {
                continue;
            };
            operator.release(&kept, &parts)?;
            if node.watermark != Watermark::NONE {
                let sent = operator.on_watermark(node.watermark, &mut node.outputs)?;
                node.sent.advance(sent);
                self.collect(idx)?;
                self.run()?;
            }
        }
        Ok(())
    }

    /// Rows of a channel: those of awaited groups are held, the others go on.
    pub(super) fn take_rows(
        &mut self,
        edge: usize,
        (operator, input): (usize, usize),
        batch: StreamBatch,
    ) -> Result<(), Error> {
        let mut batch = Some(batch);
        if let Some(awaited) = &mut self.hand_over.awaited
            && let Some(columns) = self.shuffles.get(&edge)
            && let Some(all) = batch.take()
        {
            let split = route::split(all, columns, &awaited.is_awaited);
            let (held, own) = split.map_err(|source| Error::Kernel {
                operator: edge.to_string(),
                source,
            })?;
            if let Some(held) = held {
                awaited.bytes += held.rows.get_array_memory_size();
                awaited.held.push((operator, input, held));
            }
            batch = own;
        }
        if let Some(batch) = batch {
            self.work.push_back((operator, input, batch));
        }
        self.run()
    }

    /// The source whose splits are awaited, if they are.
    pub fn awaits_splits(&self) -> Option<usize> {
        self.hand_over.awaits_splits.as_ref().map(|(idx, _)| *idx)
    }

    /// Of all splits of the source, as they were at the barrier, those that this task reads from now
    /// on, and those that it read to their ends.
    pub fn splits_after(&self, at_barrier: &[SplitState]) -> Vec<SplitState> {
        let Some((idx, gone)) = &self.hand_over.awaits_splits else {
            return Vec::new();
        };
        let Some(node) = self.nodes.get(*idx) else {
            return Vec::new();
        };
        let Chained::Source(source) = &node.chained else {
            return Vec::new();
        };
        let held = source.splits();
        let deal = self.hand_over.deal.as_ref();
        let deal = deal.and_then(|deal| deal.splits.get(&node.uid));
        let dealt_to = |id: &SplitId| deal.and_then(|deal| deal.get(id)).copied();
        let is_mine = |split: &&SplitState| {
            let holds = held.iter().any(|it| it.split == split.split);
            let comes = dealt_to(&split.split) == Some(self.id.subtask)
                && split.progress != SplitProgress::End;
            !gone.contains(&split.split) && (holds || comes)
        };
        at_barrier.iter().filter(is_mine).cloned().collect()
    }

    /// The splits that were awaited.
    pub fn receive_splits(&mut self, splits: Vec<SplitState>) -> Result<(), Error> {
        let Some((idx, _)) = self.hand_over.awaits_splits.take() else {
            return Ok(());
        };
        if let Some(source) = self.source(idx) {
            source.begin_anew(splits);
        }
        self.propagate()
    }

    /// Whether key groups are on their way here.
    pub fn awaits_groups(&self) -> bool {
        self.hand_over.awaited.is_some()
    }

    /// What was awaited, by operator: it is caught up, then come the rows that were held, then the
    /// watermark goes on.
    pub fn receive(&mut self, states: Vec<(usize, RestoredState)>) -> Result<(), Error> {
        let Some(awaited) = self.hand_over.awaited.take() else {
            return Ok(());
        };
        for (idx, state) in states {
            let Some(node) = self.nodes.get_mut(idx) else {
                continue;
            };
            let Chained::Operator(operator) = &mut node.chained else {
                continue;
            };
            let top = state.watermark;
            if node.watermark.advance(top) {
                let sent = operator.on_watermark(top, &mut node.outputs)?;
                node.sent.advance(sent);
            }
            node.floor.advance(top);
            operator.receive(state, &mut node.outputs)?;
            self.collect(idx)?;
            self.run()?;
        }
        self.answer_joins();
        self.work.extend(awaited.held);
        self.run()?;
        self.propagate()
    }
}
