//! The plan as a flat list of nodes that know their consumers.

use std::collections::HashMap;

use anyhow::{Context as _, Result};
use streamforge_core::job_graph::{Input, JobGraph, Operator, Port};

/// One operator, stages forgotten.
#[derive(Debug)]
pub struct Node<'g> {
    /// The operator.
    pub operator: &'g Operator,
    /// Who reads which of its outputs: node and index of the input there.
    pub consumers: Vec<(Port, usize, usize)>,
    /// Nodes it reads, and what of them.
    pub inputs: Vec<(usize, Port)>,
}

/// All operators in an order in which producers come before their consumers.
pub fn nodes(graph: &JobGraph) -> Result<Vec<Node<'_>>> {
    let mut index = HashMap::new();
    let mut nodes: Vec<Node<'_>> = Vec::new();
    for (stage_idx, stage) in graph.stages.iter().enumerate() {
        for (operator_idx, operator) in stage.operators.iter().enumerate() {
            let idx = nodes.len();
            index.insert((stage_idx, operator_idx), idx);
            let mut inputs = Vec::new();
            for (input_idx, input) in operator.inputs.iter().enumerate() {
                let (from, port) = match input {
                    Input::Chained { operator, port } => ((stage_idx, *operator), *port),
                    Input::Edge(edge) => {
                        let edge = graph.edges.get(*edge).context("the plan lacks an edge")?;
                        ((edge.from_stage.0 as usize, edge.from_operator), edge.port)
                    }
                };
                let from = *index
                    .get(&from)
                    .context("the plan is not in topological order")?;
                inputs.push((from, port));
                if let Some(producer) = nodes.get_mut(from) {
                    producer.consumers.push((port, idx, input_idx));
                }
            }
            nodes.push(Node {
                operator,
                consumers: Vec::new(),
                inputs,
            });
        }
    }
    Ok(nodes)
}
