//! One task: a stage's operators in one subtask, as a state machine.
//!
//! Owns: the order in which rows, watermarks and barriers pass through chained operators, alignment,
//! the rejoin handshake, and what a snapshot contains. Elements go in, [`Effect`]s come out; the
//! shell performs effects in their order and feeds nothing while [`TaskCore::takes`] says no.
//! Start at: [`TaskCore::start`], [`TaskCore::on_element`]; then `flow.rs`.
//!
//! Invariants: A1 and A2 (alignment), T1 (watermarks), T5 (rows a watermark released leave before
//! it), T6 (a restored task joins its receivers before it sends).

mod build;
mod flow;
mod hand_over;
mod out_edge;
mod route;
mod snapshot;

use std::collections::{BTreeMap, VecDeque};

use arrow::record_batch::RecordBatch;
use streamforge_core::event_time::Watermark;
use streamforge_core::ids::{CheckpointId, Generation, OperatorUid, SplitId, SubtaskIdx, TaskId};
use streamforge_core::job_graph::Port;
use streamforge_core::key_group::Assignment;
use streamforge_core::manifest::{CheckpointKind, Counters, SplitState};

use crate::barrier::{Aligner, Barrier, Step};
use crate::batch::{BadRows, StreamBatch};
use crate::error::Error;
use crate::operator::{Operator, OperatorSnapshot, RestoredState};
use crate::operators::source::SourceOperator;
use crate::operators::{Named, count};
use crate::source::SourceBatch;
use crate::watermark::{Holder, Promise};
use build::Node;
use hand_over::HandOverState;
use out_edge::{JoinStep, OutEdge};

pub use build::TaskPlan;
pub use hand_over::joined_channels;

/// What travels through a channel.
#[derive(Clone, Debug)]
pub enum Element {
    /// Rows.
    Batch(StreamBatch),
    /// Every event time below this was sent. `END` is the last.
    Watermark(Watermark),
    /// The sender has nothing and may be left out of the minimum (T2).
    Idle,
    /// The sender begins or comes back; answer with the receiving operator's watermark.
    Rejoin,
    /// A checkpoint's mark.
    Barrier(Barrier),
}

/// One input channel of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Channel {
    /// Index into the job graph's edges.
    pub edge: usize,
    /// Who sends.
    pub sender: SubtaskIdx,
}

/// What the shell must do, in this order.
#[derive(Debug)]
pub enum Effect {
    /// Hand an element to a receiver of an edge.
    Send {
        /// Index into the job graph's edges.
        edge: usize,
        /// Which receiver.
        to: SubtaskIdx,
        /// What.
        element: Element,
    },
    /// Answer the sender of an input channel that rejoins.
    Answer {
        /// Which channel.
        channel: Channel,
        /// The receiving operator's watermark.
        watermark: Watermark,
    },
    /// Write rows to a sink; its unwritable rows come back by [`TaskCore::on_sink_bad`].
    Write {
        /// The sink's index within the stage.
        operator: usize,
        /// Rows.
        batch: StreamBatch,
    },
    /// Stage every sink, upload, acknowledge. Comes before the barrier is sent on.
    Snapshot(Box<CoreSnapshot>),
    /// Tell the coordinator that this attempt cannot be taken here.
    Declined {
        /// Which.
        id: CheckpointId,
        /// Why, for people.
        reason: String,
    },
    /// Tell the coordinator that the hand-over is done here.
    Received(CheckpointId),
    /// Let go of what others own now, by [`TaskCore::release`].
    Release,
    /// Open the source's reader anew for these splits: others read the rest.
    Reopen {
        /// Where they are.
        splits: Vec<SplitState>,
    },
    /// Close the source's reader: which splits it has will be known later, by a hand-over.
    CloseReader,
    /// The task's work is another's from this barrier on. It goes on answering joins.
    Left,
    /// Everything is read and fired; the task goes on answering barriers (C11).
    Ended,
}

/// Bytes of rows through an operator, as they lie in memory; for people.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// That came in; a source reads from outside and counts nothing here.
    pub bytes_in: u64,
    /// Of the main output.
    pub bytes_out: u64,
}

/// A task at a barrier.
#[derive(Debug)]
pub struct CoreSnapshot {
    /// Which checkpoint.
    pub barrier: Barrier,
    /// Splits of each source.
    pub splits: BTreeMap<OperatorUid, Vec<SplitState>>,
    /// Operators with keyed state.
    pub operators: Vec<(OperatorUid, OperatorSnapshot)>,
    /// Rows by fate since the task began.
    pub counters: BTreeMap<OperatorUid, Counters>,
    /// Late log entries since the last snapshot.
    pub late_log: Vec<(OperatorUid, RecordBatch)>,
}

/// The implementation of one operator.
pub enum Chained {
    /// Reads; the shell feeds it.
    Source(SourceOperator),
    /// Computes.
    Operator(Box<dyn Operator>),
    /// Writes; the shell does. The names are the sink's.
    Sink(Named),
}

/// See the module.
pub struct TaskCore {
    id: TaskId,
    assignment: Assignment,
    /// Key columns of the edges into this task that are shuffles.
    shuffles: BTreeMap<usize, Vec<usize>>,
    hand_over: HandOverState,
    nodes: Vec<Node>,
    channels: Vec<(Channel, usize, usize)>,
    edges: Vec<OutEdge>,
    aligner: Aligner,
    effects: Vec<Effect>,
    work: VecDeque<(usize, usize, StreamBatch)>,
    ended: bool,
    started: bool,
    /// Operators and channels of joins that are to be answered.
    unanswered: Vec<(usize, Channel)>,
    /// The stop after whose barrier its source reads nothing more.
    stopped_by: Option<CheckpointId>,
    now_ms: u64,
}

impl TaskCore {
    /// Which task this is.
    pub fn id(&self) -> TaskId {
        self.id
    }

    /// The input channels, in the order of [`TaskPlan::channels`] by operator.
    pub fn channels(&self) -> impl Iterator<Item = Channel> + '_ {
        self.channels.iter().map(|(channel, ..)| *channel)
    }

    /// Loads an operator's state, before [`TaskCore::start`].
    pub fn restore(&mut self, operator: usize, state: RestoredState) -> Result<(), Error> {
        let Some(node) = self.nodes.get_mut(operator) else {
            return Ok(());
        };
        node.floor = state.watermark;
        match &mut node.chained {
            Chained::Operator(inner) => inner.restore(state),
            Chained::Source(_) | Chained::Sink(_) => Ok(()),
        }
    }

    /// Gives a source its splits, before [`TaskCore::start`].
    pub fn add_splits(&mut self, operator: usize, splits: Vec<SplitState>) {
        if let Some(Node {
            chained: Chained::Source(source),
            ..
        }) = self.nodes.get_mut(operator)
        {
            splits.into_iter().for_each(|split| source.add_split(split));
        }
    }

    /// Joins the receivers (T6). Nothing is sent before all answered.
    pub fn start(&mut self) -> Result<(), Error> {
        if self.hand_over.is_prepared() {
            return Ok(()); // it joins at a barrier
        }
        self.started = true;
        for idx in 0..self.edges.len() {
            self.join(idx);
        }
        self.propagate()
    }

    fn join(&mut self, edge: usize) {
        let Some(edge) = self.edges.get_mut(edge) else {
            return;
        };
        edge.begin_join();
        for to in &edge.receivers {
            self.effects.push(Effect::Send {
                edge: edge.edge,
                to: *to,
                element: Element::Rejoin,
            });
        }
    }

    /// What the shell must do since the last call.
    pub fn take_effects(&mut self) -> Vec<Effect> {
        std::mem::take(&mut self.effects)
    }

    /// Whether rows may come in at all: not while a receiver's answer is awaited.
    pub fn takes_rows(&self) -> bool {
        !self.edges.iter().any(OutEdge::is_joining)
    }

    /// Whether the next element of this channel (index into [`TaskCore::channels`]) may come in.
    pub fn takes(&self, channel: usize) -> bool {
        !self.aligner.is_blocked(channel) && self.takes_rows() && self.hand_over.has_room()
    }

    /// True once everything is read and fired.
    pub fn is_ended(&self) -> bool {
        self.ended
    }

    /// The time, for idleness; the only clock a task has.
    pub fn set_now_ms(&mut self, now_ms: u64) {
        self.now_ms = now_ms;
    }

    /// Takes the next element of a channel that [`TaskCore::takes`] allows.
    pub fn on_element(&mut self, channel: usize, element: Element) -> Result<(), Error> {
        let Some((named, operator, lane)) = self.channels.get(channel).copied() else {
            return Ok(());
        };
        match element {
            Element::Batch(batch) => {
                let input = self.input_of_lane(operator, lane);
                self.take_rows(named.edge, (operator, input), batch)
            }
            Element::Watermark(watermark) => {
                if let Some(node) = self.nodes.get_mut(operator) {
                    node.lanes.on_watermark(lane, watermark);
                }
                self.on_lane(operator)
            }
            Element::Idle => {
                if let Some(node) = self.nodes.get_mut(operator) {
                    node.lanes.on_idle(lane);
                }
                self.on_lane(operator)
            }
            Element::Rejoin => {
                if let Some(node) = self.nodes.get_mut(operator) {
                    let watermark = node.watermark.max(node.floor);
                    node.lanes.on_rejoin(lane, watermark);
                    self.unanswered.push((operator, named));
                }
                self.on_lane(operator)?;
                self.answer_joins();
                Ok(())
            }
            Element::Barrier(barrier) => {
                let (step, given_up) = self.aligner.on_barrier(channel, barrier);
                if let Some(id) = given_up {
                    let reason = format!("barrier {} overtook it", barrier.id);
                    self.effects.push(Effect::Declined { id, reason });
                }
                match step {
                    Step::Block | Step::Ignore => Ok(()),
                    Step::Snapshot(barrier) => self.snapshot(barrier),
                }
            }
        }
    }

    /// Answers joins, unless this task joins its own receivers just now, for it was idle itself: their answers may
    /// raise it, and whoever asked must not send what is behind that (T6).
    fn answer_joins(&mut self) {
        if !self.takes_rows() || self.hand_over.answers_later() {
            return;
        }
        for (operator, channel) in std::mem::take(&mut self.unanswered) {
            if let Some(node) = self.nodes.get(operator) {
                let watermark = node.watermark.max(node.floor);
                self.effects.push(Effect::Answer { channel, watermark });
            }
        }
    }

    /// What a channel promises changed. A task that stands still remembers what it would have come to:
    /// it goes on from there, and answers joins with it.
    fn on_lane(&mut self, operator: usize) -> Result<(), Error> {
        if self.hand_over.is_frozen()
            && let Some(node) = self.nodes.get_mut(operator)
        {
            let (Promise::Watermark(promised) | Promise::Idle(promised)) = node.lanes.promise();
            node.floor.advance(promised);
        }
        self.propagate()
    }

    fn input_of_lane(&self, operator: usize, lane: usize) -> usize {
        let node = self.nodes.get(operator);
        let input = node.and_then(|node| node.inputs_of_lanes.get(lane));
        input.copied().unwrap_or_default()
    }

    /// A receiver answered a rejoin.
    pub fn on_answer(
        &mut self,
        edge: usize,
        receiver: SubtaskIdx,
        watermark: Watermark,
    ) -> Result<(), Error> {
        let Some(out) = self.edges.iter_mut().find(|out| out.edge == edge) else {
            return Ok(());
        };
        let operator = out.operator;
        match out.on_answer(receiver, watermark) {
            JoinStep::Wait => Ok(()),
            JoinStep::Joined(highest) => {
                if let Some(node) = self.nodes.get_mut(operator) {
                    node.floor.advance(highest);
                }
                self.tell_received();
                if self.takes_rows() {
                    self.propagate()?;
                }
                self.answer_joins();
                Ok(())
            }
        }
    }

    /// The coordinator wants a checkpoint of this task, which has no inputs. After the barrier of a
    /// stop it reads nothing more.
    pub fn on_checkpoint(&mut self, barrier: Barrier) -> Result<(), Error> {
        if self.aligner.is_void(barrier.id) {
            return Ok(()); // it was given up before this task came to it
        }
        if barrier.kind == CheckpointKind::Stop {
            self.stopped_by = Some(barrier.id);
        }
        self.snapshot(barrier)
    }

    /// Whether its source is to be read.
    pub fn reads(&self) -> bool {
        self.stopped_by.is_none()
    }

    /// The coordinator gave an attempt up (A2). With a stop that is given up reading goes on: whoever
    /// wants to stop says so again, and one who came later may not want to (F1, C11).
    pub fn on_abort(&mut self, id: CheckpointId) {
        if self.stopped_by.is_some_and(|stop| stop <= id) {
            self.stopped_by = None;
        }
        if let Some(id) = self.aligner.on_abort(id) {
            let reason = "the coordinator gave it up".to_owned();
            self.effects.push(Effect::Declined { id, reason });
        }
    }

    /// Nobody is left who would complete what this coordinator began (A2).
    pub fn on_orphaned(&mut self, gone: Generation) {
        if let Some(id) = self.aligner.on_orphaned(gone) {
            let reason = "its coordinator is gone".to_owned();
            self.effects.push(Effect::Declined { id, reason });
        }
    }

    /// A reader has rows. If the source was idle it comes back first: then the caller must wait for
    /// [`TaskCore::takes_rows`] before it hands them over, see [`TaskCore::wake`].
    pub fn on_source_batch(&mut self, operator: usize, batch: SourceBatch) -> Result<(), Error> {
        if let Some(Node {
            chained: Chained::Source(source),
            outputs,
            ..
        }) = self.nodes.get_mut(operator)
        {
            source.on_batch(batch, outputs)?;
            self.collect(operator)?;
            self.run()?;
        }
        self.propagate()
    }

    /// A split has rows. If its source was idle, joins the receivers before anything is judged against
    /// its old watermark. Returns whether rows may be handed over at once; if not, the caller waits
    /// for [`TaskCore::takes_rows`].
    pub fn wake(&mut self, operator: usize, split: &SplitId) -> Result<bool, Error> {
        let idle = self.nodes.get(operator).is_some_and(|node| node.idle);
        if idle && let Some(source) = self.source(operator) {
            source.on_wake(split);
            self.propagate()?;
        }
        Ok(self.takes_rows())
    }

    /// A split was asked and had nothing.
    pub fn on_nothing_new(&mut self, operator: usize, split: &SplitId) -> Result<(), Error> {
        let now_ms = self.now_ms;
        if let Some(source) = self.source(operator) {
            source.on_nothing_new(split, now_ms);
        }
        self.propagate()
    }

    /// A split appeared.
    pub fn on_discovered(&mut self, operator: usize, split: SplitState) -> Result<(), Error> {
        self.add_splits(operator, vec![split]);
        self.propagate()
    }

    /// A split is read to its end.
    pub fn on_split_ended(&mut self, operator: usize, split: &SplitId) -> Result<(), Error> {
        if let Some(source) = self.source(operator) {
            source.on_split_ended(split);
        }
        self.propagate()
    }

    /// The reader is done for good.
    pub fn on_source_ended(&mut self, operator: usize) -> Result<(), Error> {
        if let Some(source) = self.source(operator) {
            source.on_ended();
        }
        self.propagate()
    }

    fn source(&mut self, operator: usize) -> Option<&mut SourceOperator> {
        match self.nodes.get_mut(operator).map(|node| &mut node.chained) {
            Some(Chained::Source(source)) => Some(source),
            _ => None,
        }
    }

    /// Rows that a sink could not write.
    pub fn on_sink_bad(&mut self, operator: usize, bad: BadRows) -> Result<(), Error> {
        let Some(node) = self.nodes.get_mut(operator) else {
            return Ok(());
        };
        let Chained::Sink(named) = &node.chained else {
            return Ok(());
        };
        let bad_n = count(bad.len());
        node.sink_counters.bad += bad_n;
        node.sink_counters.passed = node.sink_counters.passed.saturating_sub(bad_n);
        let batch = named.bad(bad)?;
        node.outputs.push(Port::Bad, batch);
        self.collect(operator)?;
        self.run()
    }

    /// Nothing to do for now: sends what operators hold for efficiency.
    pub fn on_quiet(&mut self) -> Result<(), Error> {
        if self.takes_rows() && !self.hand_over.is_frozen() {
            self.flush()
        } else {
            Ok(())
        }
    }

    /// Counters of every operator since the task began.
    pub fn counters(&self) -> BTreeMap<OperatorUid, Counters> {
        let counters = |node: &Node| {
            let own = match &node.chained {
                Chained::Source(source) => source.counters(),
                Chained::Operator(operator) => operator.counters(),
                Chained::Sink(_) => node.sink_counters,
            };
            (
                node.uid.clone(),
                Counters {
                    out: node.out_rows,
                    ..own
                },
            )
        };
        self.nodes.iter().map(counters).collect()
    }

    /// Bytes through every operator since the task began.
    pub fn traffic(&self) -> BTreeMap<OperatorUid, Traffic> {
        let nodes = self.nodes.iter();
        nodes.map(|node| (node.uid.clone(), node.traffic)).collect()
    }

    /// Bytes of keyed state held.
    pub fn state_size(&self) -> usize {
        let size = |node: &Node| match &node.chained {
            Chained::Operator(operator) => operator.state_size(),
            Chained::Source(_) | Chained::Sink(_) => 0,
        };
        self.nodes.iter().map(size).sum()
    }

    /// Watermark of every operator.
    pub fn watermarks(&self) -> impl Iterator<Item = (&OperatorUid, Watermark)> {
        self.nodes
            .iter()
            .map(|node| (&node.uid, node.watermark.max(node.floor)))
    }

    /// Per source, the split that holds the watermark.
    pub fn held_back_by(&self) -> impl Iterator<Item = (&OperatorUid, Holder<'_>)> {
        let now_ms = self.now_ms;
        self.nodes
            .iter()
            .filter_map(move |node| match &node.chained {
                Chained::Source(source) => Some((&node.uid, source.held_back_by(now_ms)?)),
                _ => None,
            })
    }
}

#[cfg(test)]
mod tests;
