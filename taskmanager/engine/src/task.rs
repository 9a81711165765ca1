//! One task: a stage's operators in one subtask, as a state machine.
//!
//! Owns: the order in which rows, watermarks and barriers pass through chained operators, alignment,
//! the rejoin handshake, and what a snapshot contains. Elements go in, [`Effect`]s come out; the
//! shell performs effects in their order and feeds nothing while [`TaskCore::takes`] says no.
//! Start at: [`TaskCore::start`], [`TaskCore::on_element`].
//!
//! Invariants: A1 and A2 (alignment), T1 (watermarks), T5 (rows a watermark released leave before
//! it), T6 (a restored task joins its receivers before it sends).

mod out_edge;
mod route;

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use arrow::record_batch::RecordBatch;
use streamforge_core::event_time::Watermark;
use streamforge_core::ids::{CheckpointId, OperatorUid, SplitId, StageIdx, SubtaskIdx, TaskId};
use streamforge_core::job_graph::{Exchange, Input, JobGraph, Port};
use streamforge_core::key_group::Assignment;
use streamforge_core::manifest::{Counters, SplitState};

use crate::barrier::{Aligner, Barrier, Step};
use crate::batch::{BadRows, StreamBatch};
use crate::error::Error;
use crate::operator::{Operator, OperatorSnapshot, Outputs, RestoredState};
use crate::operators::source::SourceOperator;
use crate::operators::{Named, count};
use crate::source::SourceBatch;
use crate::watermark::{Lanes, Promise};
use out_edge::{JoinStep, OutEdge};

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
    /// Everything is read and fired; the task goes on answering barriers (C11).
    Ended,
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

#[derive(Clone, Copy, Debug)]
enum Consumer {
    Operator { operator: usize, input: usize },
    Edge(usize),
}

struct Node {
    uid: OperatorUid,
    chained: Chained,
    outputs: Outputs,
    consumers: Vec<(Port, Consumer)>,
    /// Lane of each input: one if chained, one per channel of an edge.
    lanes: Lanes,
    lanes_of_inputs: Vec<Range<usize>>,
    /// Consumers' lanes that this operator's watermark feeds: (operator, lane).
    feeds: Vec<(usize, usize)>,
    watermark: Watermark,
    /// At least this, from a restore or a handshake (T6).
    floor: Watermark,
    sent: Watermark,
    idle: bool,
    out_rows: u64,
    sink_counters: Counters,
}

/// See the module.
pub struct TaskCore {
    id: TaskId,
    assignment: Assignment,
    nodes: Vec<Node>,
    channels: Vec<(Channel, usize, usize)>,
    edges: Vec<OutEdge>,
    aligner: Aligner,
    effects: Vec<Effect>,
    work: VecDeque<(usize, usize, StreamBatch)>,
    ended: bool,
    started: bool,
    now_ms: u64,
}

/// Which task of which job.
pub struct TaskPlan<'a> {
    /// The plan.
    pub graph: &'a JobGraph,
    /// Which task.
    pub id: TaskId,
    /// Subtasks per stage.
    pub parallelism: u32,
    /// Who owns which key group.
    pub assignment: &'a Assignment,
}

impl TaskPlan<'_> {
    /// Who sends to this task through an edge.
    pub fn senders(&self, edge: usize) -> Vec<SubtaskIdx> {
        self.peers(edge)
    }

    fn peers(&self, edge: usize) -> Vec<SubtaskIdx> {
        match self.graph.edges.get(edge).map(|edge| &edge.exchange) {
            Some(Exchange::KeyGroup { .. }) => (0..self.parallelism).map(SubtaskIdx).collect(),
            Some(Exchange::Forward) => vec![self.id.subtask],
            None => Vec::new(),
        }
    }

    /// The task's input channels, in a fixed order.
    pub fn channels(&self) -> Vec<Channel> {
        let mut channels = Vec::new();
        for (edge, _) in self
            .graph
            .edges
            .iter()
            .enumerate()
            .filter(|(_, e)| e.to_stage == self.id.stage)
        {
            channels.extend(
                self.senders(edge)
                    .into_iter()
                    .map(|sender| Channel { edge, sender }),
            );
        }
        channels
    }
}

fn side_output_is_read(graph: &JobGraph, stage: StageIdx, operator: usize, port: Port) -> bool {
    let chained = graph
        .stages
        .get(stage.0 as usize)
        .into_iter()
        .flat_map(|s| &s.operators)
        .any(|o| o.inputs.contains(&Input::Chained { operator, port }));
    let crosses = graph
        .edges
        .iter()
        .any(|e| e.from_stage == stage && e.from_operator == operator && e.port == port);
    chained || crosses
}

impl Node {
    /// An operator whose inputs have these lanes.
    fn new(
        uid: OperatorUid,
        chained: Chained,
        outputs: Outputs,
        lanes_of_inputs: Vec<Range<usize>>,
    ) -> Self {
        let lanes_n = lanes_of_inputs.last().map_or(0, |lanes| lanes.end);
        Self {
            uid,
            chained,
            outputs,
            consumers: Vec::new(),
            lanes: Lanes::new(lanes_n),
            lanes_of_inputs,
            feeds: Vec::new(),
            watermark: Watermark::NONE,
            floor: Watermark::NONE,
            sent: Watermark::NONE,
            idle: false,
            out_rows: 0,
            sink_counters: Counters::default(),
        }
    }
}

/// One chained connection: from an operator's output to another's input and lane.
struct Link {
    from: usize,
    port: Port,
    to: usize,
    input: usize,
    lane: usize,
}

/// A task under construction.
#[derive(Default)]
struct Built {
    nodes: Vec<Node>,
    links: Vec<Link>,
    channels: Vec<(Channel, usize, usize)>,
    edges: Vec<OutEdge>,
}

impl Built {
    /// The lanes of each input of operator `to`: one if chained, else one per channel of its edge.
    fn lay_lanes(
        &mut self,
        to: usize,
        inputs: &[Input],
        channels: &[Channel],
    ) -> Vec<Range<usize>> {
        let mut lanes_of_inputs = Vec::with_capacity(inputs.len());
        let mut lane = 0;
        for (input, source) in inputs.iter().enumerate() {
            let first = lane;
            match source {
                Input::Chained { operator, port } => {
                    self.links.push(Link {
                        from: *operator,
                        port: *port,
                        to,
                        input,
                        lane,
                    });
                    lane += 1;
                }
                Input::Edge(edge) => {
                    for channel in channels.iter().filter(|channel| channel.edge == *edge) {
                        self.channels.push((*channel, to, lane));
                        lane += 1;
                    }
                }
            }
            lanes_of_inputs.push(first..lane);
        }
        lanes_of_inputs
    }

    fn link_chain(&mut self) {
        for Link {
            from,
            port,
            to,
            input,
            lane,
        } in std::mem::take(&mut self.links)
        {
            if let Some(node) = self.nodes.get_mut(from) {
                node.consumers.push((
                    port,
                    Consumer::Operator {
                        operator: to,
                        input,
                    },
                ));
                node.feeds.push((to, lane));
            }
        }
    }

    fn link_edges(&mut self, plan: &TaskPlan<'_>) {
        for (idx, edge) in plan.graph.edges.iter().enumerate() {
            if edge.from_stage == plan.id.stage
                && let Some(node) = self.nodes.get_mut(edge.from_operator)
            {
                node.consumers
                    .push((edge.port, Consumer::Edge(self.edges.len())));
                let (from, exchange) = (edge.from_operator, edge.exchange.clone());
                self.edges
                    .push(OutEdge::new(idx, from, exchange, plan.peers(idx)));
            }
        }
    }
}

impl TaskCore {
    /// A task whose operators are given in the stage's order.
    pub fn new(plan: &TaskPlan<'_>, operators: Vec<Chained>) -> Self {
        let mut built = Built::default();
        let stage = plan.graph.stages.get(plan.id.stage.0 as usize);
        let specs = stage
            .map(|stage| stage.operators.as_slice())
            .unwrap_or_default();
        let channels = plan.channels();
        for (idx, (spec, chained)) in specs.iter().zip(operators).enumerate() {
            let lanes = built.lay_lanes(idx, &spec.inputs, &channels);
            let is_read = |port| side_output_is_read(plan.graph, plan.id.stage, idx, port);
            let outputs = Outputs::new(is_read(Port::Bad), is_read(Port::Late));
            built
                .nodes
                .push(Node::new(spec.uid.clone(), chained, outputs, lanes));
        }
        built.link_chain();
        built.link_edges(plan);
        Self {
            id: plan.id,
            assignment: plan.assignment.clone(),
            nodes: built.nodes,
            aligner: Aligner::new(built.channels.len()),
            channels: built.channels,
            edges: built.edges,
            effects: Vec::new(),
            work: VecDeque::new(),
            ended: false,
            started: false,
            now_ms: 0,
        }
    }

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
        !self.aligner.is_blocked(channel) && self.takes_rows()
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
                self.work.push_back((operator, input, batch));
                self.run()
            }
            Element::Watermark(watermark) => {
                if let Some(node) = self.nodes.get_mut(operator) {
                    node.lanes.on_watermark(lane, watermark);
                }
                self.propagate()
            }
            Element::Idle => {
                if let Some(node) = self.nodes.get_mut(operator) {
                    node.lanes.on_idle(lane);
                }
                self.propagate()
            }
            Element::Rejoin => {
                if let Some(node) = self.nodes.get_mut(operator) {
                    let watermark = node.watermark.max(node.floor);
                    node.lanes.on_rejoin(lane, watermark);
                    self.effects.push(Effect::Answer {
                        channel: named,
                        watermark,
                    });
                }
                self.propagate()
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

    fn input_of_lane(&self, operator: usize, lane: usize) -> usize {
        let inputs = self
            .nodes
            .get(operator)
            .map(|node| node.lanes_of_inputs.as_slice());
        inputs
            .unwrap_or_default()
            .iter()
            .position(|lanes| lanes.contains(&lane))
            .unwrap_or_default()
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
                if self.takes_rows() {
                    self.propagate()
                } else {
                    Ok(())
                }
            }
        }
    }

    /// The coordinator wants a checkpoint of this task, which has no inputs.
    pub fn on_checkpoint(&mut self, barrier: Barrier) -> Result<(), Error> {
        self.snapshot(barrier)
    }

    /// The coordinator gave an attempt up (A2).
    pub fn on_abort(&mut self, id: CheckpointId) {
        if let Some(id) = self.aligner.on_abort(id) {
            let reason = "the coordinator gave it up".to_owned();
            self.effects.push(Effect::Declined { id, reason });
        }
    }

    /// Nobody is left who would complete the attempt that inputs wait for (A2).
    pub fn give_up_alignment(&mut self) {
        if let Some(id) = self.aligner.aligning() {
            self.on_abort(id);
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
        if self.takes_rows() {
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

    /// Watermark of every operator.
    pub fn watermarks(&self) -> impl Iterator<Item = (&OperatorUid, Watermark)> {
        self.nodes
            .iter()
            .map(|node| (&node.uid, node.watermark.max(node.floor)))
    }

    /// Per source, the split that holds the watermark.
    pub fn held_back_by(&self) -> impl Iterator<Item = (&OperatorUid, &SplitId)> {
        self.nodes.iter().filter_map(|node| match &node.chained {
            Chained::Source(source) => Some((&node.uid, source.held_back_by()?)),
            _ => None,
        })
    }

    /// Hands queued batches to their operators, in order, until none is left.
    fn run(&mut self) -> Result<(), Error> {
        while let Some((operator, input, batch)) = self.work.pop_front() {
            let Some(node) = self.nodes.get_mut(operator) else {
                continue;
            };
            match &mut node.chained {
                Chained::Operator(inner) => inner.on_batch(input, batch, &mut node.outputs)?,
                Chained::Sink(_) => {
                    node.sink_counters.rows_in += count(batch.len());
                    node.sink_counters.passed += count(batch.len());
                    self.effects.push(Effect::Write { operator, batch });
                }
                Chained::Source(_) => {}
            }
            self.collect(operator)?;
        }
        Ok(())
    }

    /// Queues what an operator sent for its consumers.
    fn collect(&mut self, operator: usize) -> Result<(), Error> {
        let Some(node) = self.nodes.get_mut(operator) else {
            return Ok(());
        };
        for (port, batch) in node.outputs.take() {
            if port == Port::Main {
                node.out_rows += count(batch.len());
            }
            let consumers = node.consumers.iter().filter(|(read, _)| *read == port);
            for (_, consumer) in consumers {
                match *consumer {
                    Consumer::Operator { operator, input } => {
                        self.work.push_back((operator, input, batch.clone()));
                    }
                    Consumer::Edge(edge) => {
                        if let Some(edge) = self.edges.get(edge) {
                            send(edge, batch.clone(), &self.assignment, &mut self.effects)
                                .map_err(|source| Error::Kernel {
                                    operator: node.uid.0.clone(),
                                    source,
                                })?;
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// Carries watermarks and idleness through the chain, in topological order.
    fn propagate(&mut self) -> Result<(), Error> {
        self.propagate_from(0)
    }

    fn propagate_from(&mut self, first: usize) -> Result<(), Error> {
        // Before the receivers are joined nothing may be sent; the last answer calls this again.
        if !self.started || !self.takes_rows() {
            return Ok(());
        }
        for operator in first..self.nodes.len() {
            self.advance(operator)?;
            if !self.takes_rows() {
                return Ok(());
            }
        }
        if !self.ended
            && self
                .nodes
                .iter()
                .all(|node| node.watermark == Watermark::END)
        {
            self.ended = true;
            self.effects.push(Effect::Ended);
        }
        Ok(())
    }

    /// Brings one operator to the minimum over its inputs.
    fn advance(&mut self, operator: usize) -> Result<(), Error> {
        let Some(node) = self.nodes.get_mut(operator) else {
            return Ok(());
        };
        let minimum = match &node.chained {
            Chained::Source(source) => match source.promise() {
                Promise::Watermark(watermark) => Some(watermark),
                Promise::Idle => None,
            },
            _ => node.lanes.minimum(),
        };
        let idle = minimum.is_none();
        let target = minimum.unwrap_or(Watermark::NONE).max(node.floor);
        if node.watermark.advance(target) {
            let watermark = node.watermark;
            let sent = match &mut node.chained {
                Chained::Operator(inner) => inner.on_watermark(watermark, &mut node.outputs)?,
                Chained::Source(_) | Chained::Sink(_) => watermark,
            };
            node.sent.advance(sent);
            self.collect(operator)?;
            self.run()?;
        }
        if idle {
            self.flush_operator(operator)?;
        }
        self.set_idleness(operator, idle);
        self.feed_watermark(operator);
        Ok(())
    }

    fn set_idleness(&mut self, operator: usize, idle: bool) {
        let Some(node) = self.nodes.get_mut(operator) else {
            return;
        };
        let changed = node.idle != idle;
        node.idle = idle;
        let edges_lag = self
            .edges
            .iter()
            .any(|edge| edge.operator == operator && edge.is_idle() != idle && !edge.is_joining());
        if changed || edges_lag {
            self.feed_idleness(operator);
        }
    }

    /// Tells an operator's consumers that it is idle, or that it comes back.
    fn feed_idleness(&mut self, operator: usize) {
        let Some(node) = self.nodes.get(operator) else {
            return;
        };
        let (idle, sent, feeds) = (node.idle, node.sent, node.feeds.clone());
        for (consumer, lane) in feeds {
            if let Some(consumer) = self.nodes.get_mut(consumer) {
                if idle {
                    consumer.lanes.on_idle(lane);
                } else {
                    consumer.lanes.on_watermark(lane, sent);
                }
            }
        }
        for idx in 0..self.edges.len() {
            let Some(edge) = self.edges.get_mut(idx) else {
                continue;
            };
            if edge.operator != operator || edge.is_joining() || edge.is_idle() == idle {
                continue;
            }
            if idle {
                edge.set_idle();
                let (edge, receivers) = (edge.edge, edge.receivers.clone());
                for to in receivers {
                    self.effects.push(Effect::Send {
                        edge,
                        to,
                        element: Element::Idle,
                    });
                }
            } else {
                self.join(idx);
            }
        }
    }

    /// Tells an operator's consumers its watermark, where it is news.
    fn feed_watermark(&mut self, operator: usize) {
        let Some(node) = self.nodes.get(operator) else {
            return;
        };
        if node.idle {
            return;
        }
        let (sent, feeds) = (node.sent, node.feeds.clone());
        for (consumer, lane) in feeds {
            if let Some(consumer) = self.nodes.get_mut(consumer) {
                consumer.lanes.on_watermark(lane, sent);
            }
        }
        for edge in self
            .edges
            .iter_mut()
            .filter(|edge| edge.operator == operator)
        {
            if edge.advance(sent) {
                for to in &edge.receivers {
                    let element = Element::Watermark(sent);
                    self.effects.push(Effect::Send {
                        edge: edge.edge,
                        to: *to,
                        element,
                    });
                }
            }
        }
    }

    fn flush_operator(&mut self, operator: usize) -> Result<(), Error> {
        let Some(node) = self.nodes.get_mut(operator) else {
            return Ok(());
        };
        if let Chained::Operator(inner) = &mut node.chained {
            if let Some(watermark) = inner.flush(&mut node.outputs)? {
                node.sent.advance(watermark);
            }
            self.collect(operator)?;
            self.run()?;
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), Error> {
        for operator in 0..self.nodes.len() {
            self.advance(operator)?;
            self.flush_operator(operator)?;
            self.feed_watermark(operator);
        }
        Ok(())
    }

    /// Snapshots every operator and sends the barrier on.
    fn snapshot(&mut self, barrier: Barrier) -> Result<(), Error> {
        self.flush()?;
        let mut snapshot = CoreSnapshot {
            barrier,
            splits: BTreeMap::new(),
            operators: Vec::new(),
            counters: self.counters(),
            late_log: Vec::new(),
        };
        let mut declined = None;
        for node in &mut self.nodes {
            match &mut node.chained {
                Chained::Source(source) => {
                    snapshot.splits.insert(node.uid.clone(), source.splits());
                }
                Chained::Operator(operator) => {
                    let uid = &node.uid;
                    match operator.snapshot(barrier.id)? {
                        Some(part) if part.keyed => {
                            snapshot.operators.push((uid.clone(), part));
                        }
                        Some(_) => {}
                        None => declined = Some(format!("`{uid}` has two unconverted tables")),
                    }
                }
                Chained::Sink(_) => {}
            }
        }
        match declined {
            Some(reason) => self.effects.push(Effect::Declined {
                id: barrier.id,
                reason,
            }),
            None => {
                for node in &mut self.nodes {
                    if let Chained::Operator(operator) = &mut node.chained {
                        let log = operator.take_late_log().into_iter();
                        snapshot
                            .late_log
                            .extend(log.map(|rows| (node.uid.clone(), rows)));
                    }
                }
                self.effects.push(Effect::Snapshot(Box::new(snapshot)));
            }
        }
        for edge in &self.edges {
            for to in &edge.receivers {
                let element = Element::Barrier(barrier);
                self.effects.push(Effect::Send {
                    edge: edge.edge,
                    to: *to,
                    element,
                });
            }
        }
        Ok(())
    }
}

fn send(
    edge: &OutEdge,
    batch: StreamBatch,
    assignment: &Assignment,
    effects: &mut Vec<Effect>,
) -> Result<(), arrow::error::ArrowError> {
    let parts = match &edge.exchange {
        Exchange::Forward => edge
            .receivers
            .first()
            .map(|to| vec![(*to, batch)])
            .unwrap_or_default(),
        Exchange::KeyGroup { columns } => route::by_key_group(batch, columns, assignment)?,
    };
    for (to, batch) in parts {
        effects.push(Effect::Send {
            edge: edge.edge,
            to,
            element: Element::Batch(batch),
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests;
