//! How a task comes to be: its operators, chained, with a lane for each input and an out edge for each
//! exchange that leaves the stage.
//!
//! Owns: [`TaskPlan`], which says who talks to whom. Start at: [`TaskCore::new`].

use std::collections::{BTreeMap, VecDeque};

use streamforge_core::event_time::Watermark;
use streamforge_core::ids::{OperatorUid, StageIdx, SubtaskIdx, TaskId};
use streamforge_core::job_graph::{Exchange, Input, JobGraph, Port};
use streamforge_core::key_group::Assignment;
use streamforge_core::manifest::Counters;

use super::hand_over::HandOverState;
use super::out_edge::OutEdge;
use super::{Chained, Channel, TaskCore, Traffic};
use crate::barrier::Aligner;
use crate::operator::Outputs;
use crate::watermark::Lanes;

#[derive(Clone, Copy, Debug)]
pub(super) enum Consumer {
    Operator { operator: usize, input: usize },
    Edge(usize),
}

pub(super) struct Node {
    pub uid: OperatorUid,
    pub chained: Chained,
    pub outputs: Outputs,
    pub consumers: Vec<(Port, Consumer)>,
    /// Lane of each input: one if chained, one per channel of an edge.
    pub lanes: Lanes,
    /// Which input each lane belongs to.
    pub inputs_of_lanes: Vec<usize>,
    /// Consumers' lanes that this operator's watermark feeds: (operator, lane).
    pub feeds: Vec<(usize, usize)>,
    pub watermark: Watermark,
    /// At least this, from a restore or a handshake (T6).
    pub floor: Watermark,
    pub sent: Watermark,
    pub idle: bool,
    pub out_rows: u64,
    pub traffic: Traffic,
    pub sink_counters: Counters,
}

/// Which task of which job.
pub struct TaskPlan<'a> {
    /// The plan.
    pub graph: &'a JobGraph,
    /// Which task.
    pub id: TaskId,
    /// The subtasks there are, ascending.
    pub subtasks: Vec<SubtaskIdx>,
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
            Some(Exchange::KeyGroup { .. }) => self.subtasks.clone(),
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
        inputs_of_lanes: Vec<usize>,
    ) -> Self {
        let lanes_n = inputs_of_lanes.len();
        Self {
            uid,
            chained,
            outputs,
            consumers: Vec::new(),
            lanes: Lanes::new(lanes_n),
            inputs_of_lanes,
            feeds: Vec::new(),
            watermark: Watermark::NONE,
            floor: Watermark::NONE,
            sent: Watermark::NONE,
            idle: false,
            out_rows: 0,
            traffic: Traffic::default(),
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
    fn lay_lanes(&mut self, to: usize, inputs: &[Input], channels: &[Channel]) -> Vec<usize> {
        let mut inputs_of_lanes = Vec::with_capacity(inputs.len());
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
            inputs_of_lanes.extend(std::iter::repeat_n(input, lane - first));
        }
        inputs_of_lanes
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

fn shuffles(plan: &TaskPlan<'_>) -> BTreeMap<usize, Vec<usize>> {
    let into = plan.graph.edges.iter().enumerate();
    let into = into.filter(|(_, edge)| edge.to_stage == plan.id.stage);
    let columns = into.filter_map(|(idx, edge)| match &edge.exchange {
        Exchange::KeyGroup { columns } => Some((idx, columns.clone())),
        Exchange::Forward => None,
    });
    columns.collect()
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
            shuffles: shuffles(plan),
            hand_over: HandOverState::default(),
            nodes: built.nodes,
            aligner: Aligner::new(built.channels.len()),
            channels: built.channels,
            edges: built.edges,
            effects: Vec::new(),
            work: VecDeque::new(),
            ended: false,
            started: false,
            unanswered: Vec::new(),
            stopped_by: None,
            now_ms: 0,
        }
    }
}
