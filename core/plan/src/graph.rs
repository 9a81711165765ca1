//! From resolved nodes to stages and exchanges.
//!
//! Owns: where stages are cut, which columns are carried, who needs a record's origin. A stage ends
//! where rows must find the owner of their key, or where several stages flow together; everything
//! else is chained. Cannot fail: every mistake was found before. Start at: [`plan`].

use std::collections::{BTreeMap, BTreeSet};

use streamforge_core::ids::{OperatorUid, StageIdx};
use streamforge_core::job_graph::{
    AggregateSpec, Column, Edge, Exchange, Expr, Input, JobGraph, NamedExpr, Operator,
    OperatorKind, PLAN_FORMAT_VERSION, Port, SourceSpec, Stage, WindowSpec, bad_columns,
    late_columns,
};

use crate::document::{Kind, Loaded, OutputName, Resolved, ResolvedAggregate, fired_columns};
use crate::expression::quoted;
use crate::needs::Needs;
use crate::stack::on_large_stack;

/// The job, ready to run at any parallelism up to `maxParallelism`. The same document gives the same
/// graph, byte for byte.
pub fn plan(loaded: &Loaded) -> JobGraph {
    on_large_stack(|| plan_here(loaded))
}

fn plan_here(loaded: &Loaded) -> JobGraph {
    let needs = Needs::of(&loaded.nodes);
    let live: Vec<&Resolved> = needs.live(&loaded.nodes).collect();
    let bounded = live
        .iter()
        .filter(|node| matches!(node.kind, Kind::Source(_)))
        .all(|node| node.bounded);
    let mut builder = Builder {
        needs: &needs,
        bounded,
        stages: Vec::new(),
        edges: Vec::new(),
        outputs: BTreeMap::new(),
    };
    for node in live {
        builder.add(node);
    }
    JobGraph {
        format_version: PLAN_FORMAT_VERSION,
        name: loaded.name.clone(),
        max_parallelism: loaded.spec.max_parallelism,
        bounded,
        stages: builder
            .stages
            .into_iter()
            .map(|operators| Stage { operators })
            .collect(),
        edges: builder.edges,
    }
}

/// An output of an operator that is already placed.
#[derive(Clone, Debug)]
struct Placed {
    stage: usize,
    operator: usize,
    port: Port,
    columns: Vec<Column>,
    updating: bool,
}

struct Builder<'a> {
    needs: &'a Needs,
    bounded: bool,
    stages: Vec<Vec<Operator>>,
    edges: Vec<Edge>,
    outputs: BTreeMap<OutputName, Vec<Placed>>,
}

/// An operator that is still to be placed.
struct Draft<'a> {
    node: &'a Resolved,
    /// Added to the node's uid where a node becomes several operators.
    part: &'static str,
    kind: OperatorKind,
    output: Vec<Column>,
    updating: bool,
}

impl Builder<'_> {
    fn add(&mut self, node: &Resolved) {
        match &node.kind {
            Kind::Source(source) => self.add_source(node, source),
            Kind::Union => {
                let inputs = self.inputs(node);
                let output = self.union_columns(node, &inputs);
                let draft = Draft {
                    node,
                    part: "",
                    kind: OperatorKind::Union,
                    output,
                    updating: node.updating,
                };
                let placed = self.place(draft, &inputs);
                self.publish(node, Port::Main, placed.clone());
                self.publish_bad(node, &placed);
            }
            Kind::Filter(predicate) => {
                let kind = OperatorKind::Filter {
                    predicate: predicate.clone(),
                };
                self.add_plain(node, kind, <[Column]>::to_vec);
            }
            Kind::Select(items) => {
                let kind = OperatorKind::Project {
                    items: items.clone(),
                };
                self.add_plain(node, kind, |_| node.columns.clone());
            }
            Kind::Unnest(item) => {
                let kind = OperatorKind::Unnest { item: item.clone() };
                self.add_plain(node, kind, |input| {
                    input.iter().chain(node.columns.last()).cloned().collect()
                });
            }
            Kind::Aggregate(aggregate) => self.add_aggregate(node, aggregate),
            Kind::Sink(sink) => {
                let input = self.single_input(node);
                let input = self.with_exactly(node, input, &sink.input);
                let draft = Draft {
                    node,
                    part: "",
                    kind: OperatorKind::Sink(sink.clone()),
                    output: vec![],
                    updating: false,
                };
                let placed = self.place(draft, &[input]);
                self.publish_bad(node, &placed);
            }
        }
    }

    fn add_source(&mut self, node: &Resolved, source: &SourceSpec) {
        let output = self.needs.source_columns(node, source);
        let spec = SourceSpec {
            origin: self.needs.origin(node, self.bounded),
            ..source.clone()
        };
        let draft = Draft {
            node,
            part: "",
            kind: OperatorKind::Source(spec),
            output,
            updating: false,
        };
        let placed = self.place(draft, &[]);
        self.publish(node, Port::Main, placed.clone());
        self.publish_bad(node, &placed);
    }

    fn add_plain(
        &mut self,
        node: &Resolved,
        kind: OperatorKind,
        output: impl FnOnce(&[Column]) -> Vec<Column>,
    ) {
        let input = self.single_input(node);
        let output = output(&input.columns);
        let draft = Draft {
            node,
            part: "",
            kind,
            output,
            updating: node.updating,
        };
        let placed = self.place(draft, &[input]);
        self.publish(node, Port::Main, placed.clone());
        self.publish_bad(node, &placed);
    }

    fn add_aggregate(&mut self, node: &Resolved, aggregate: &ResolvedAggregate) {
        let input = self.single_input(node);
        let spec = AggregateSpec {
            input: input.columns.clone(),
            late_log: self.bounded,
            ..aggregate.spec.clone()
        };
        let late = late_columns(&spec.input);
        let keys: Vec<Column> = fired_columns(&spec)
            .into_iter()
            .take(spec.keys.len())
            .collect();
        let first = Draft {
            node,
            part: ".partial",
            kind: OperatorKind::WindowPartial(spec.clone()),
            output: keys,
            updating: false,
        };
        let first = self.place(first, &[input]);
        self.publish_bad(node, &first);
        let second = Draft {
            node,
            part: "",
            output: fired_columns(&spec),
            kind: OperatorKind::WindowFinal(spec.clone()),
            updating: node.updating,
        };
        let second = self.place_behind_shuffle(second, &first, spec.keys.len());
        self.publish_bad(node, &second);
        // Only the second half of a session knows which session a record has missed.
        let decides = if matches!(spec.window, WindowSpec::Session { .. }) {
            &second
        } else {
            &first
        };
        let late = Placed {
            port: Port::Late,
            columns: late,
            ..decides.clone()
        };
        self.publish(node, Port::Late, late);
        if aggregate.post.is_empty() {
            self.publish(node, Port::Main, second);
            return;
        }
        let post = Draft {
            node,
            part: ".select",
            kind: OperatorKind::Project {
                items: aggregate.post.clone(),
            },
            output: node.columns.clone(),
            updating: node.updating,
        };
        let post = self.place(post, &[second]);
        self.publish_bad(node, &post);
        self.publish(node, Port::Main, post);
    }

    fn union_columns(&self, node: &Resolved, inputs: &[Placed]) -> Vec<Column> {
        let is_carried = |column: &&Column| {
            inputs
                .iter()
                .all(|input| input.columns.iter().any(|c| c.name == column.name))
        };
        let needed = self.needs.columns(&node.name);
        let columns = node
            .columns
            .iter()
            .filter(|column| needed.contains(&column.name));
        let columns: Vec<Column> = columns.filter(is_carried).cloned().collect();
        if columns.is_empty() {
            node.columns.iter().filter(is_carried).cloned().collect()
        } else {
            columns
        }
    }

    fn inputs(&self, node: &Resolved) -> Vec<Placed> {
        node.inputs
            .iter()
            .flat_map(|name| self.outputs.get(name))
            .flatten()
            .cloned()
            .collect()
    }

    /// The node's only input. A side output may leave several operators: they are put together first.
    fn single_input(&mut self, node: &Resolved) -> Placed {
        let inputs = self.inputs(node);
        if let [only] = inputs.as_slice() {
            return only.clone();
        }
        let output = inputs
            .first()
            .map(|input| input.columns.clone())
            .unwrap_or_default();
        let draft = Draft {
            node,
            part: ".inputs",
            kind: OperatorKind::Union,
            output,
            updating: false,
        };
        self.place(draft, &inputs)
    }

    /// The input with exactly these columns, for operators that write all they get.
    fn with_exactly(&mut self, node: &Resolved, input: Placed, columns: &[Column]) -> Placed {
        if input.columns == columns {
            return input;
        }
        let item = |column: &Column| NamedExpr {
            name: column.name.clone(),
            expr: Expr {
                sql: quoted(&column.name),
                data_type: column.data_type.clone(),
                nullable: column.nullable,
            },
        };
        let draft = Draft {
            node,
            part: ".columns",
            kind: OperatorKind::Project {
                items: columns.iter().map(item).collect(),
            },
            output: columns.to_vec(),
            updating: input.updating,
        };
        self.place(draft, &[input])
    }

    /// Puts an operator behind its inputs: into their stage if it is one, else into a new one.
    fn place(&mut self, draft: Draft<'_>, inputs: &[Placed]) -> Placed {
        let stages: BTreeSet<usize> = inputs.iter().map(|input| input.stage).collect();
        let chained_to = match (stages.first(), stages.len()) {
            (Some(stage), 1) => Some(*stage),
            _ => None,
        };
        let stage = chained_to.unwrap_or_else(|| self.new_stage());
        let operator = self.stages.get(stage).map_or(0, Vec::len);
        let inputs = inputs
            .iter()
            .map(|input| match chained_to {
                Some(_) => Input::Chained {
                    operator: input.operator,
                    port: input.port,
                },
                None => self.edge(input, stage, operator, Exchange::Forward),
            })
            .collect();
        self.push(draft, stage, inputs)
    }

    fn place_behind_shuffle(&mut self, draft: Draft<'_>, input: &Placed, keys_n: usize) -> Placed {
        let stage = self.new_stage();
        let exchange = Exchange::KeyGroup {
            columns: (0..keys_n).collect(),
        };
        let edge = self.edge(input, stage, 0, exchange);
        self.push(draft, stage, vec![edge])
    }

    fn new_stage(&mut self) -> usize {
        self.stages.push(Vec::new());
        self.stages.len() - 1
    }

    fn edge(&mut self, from: &Placed, stage: usize, operator: usize, exchange: Exchange) -> Input {
        self.edges.push(Edge {
            from_stage: stage_idx(from.stage),
            from_operator: from.operator,
            port: from.port,
            to_stage: stage_idx(stage),
            to_operator: operator,
            exchange,
        });
        Input::Edge(self.edges.len() - 1)
    }

    fn push(&mut self, draft: Draft<'_>, stage: usize, inputs: Vec<Input>) -> Placed {
        let Draft {
            node,
            part,
            kind,
            output,
            updating,
        } = draft;
        let uid = OperatorUid(format!("{}{part}", node.uid));
        let columns = output.clone();
        let operator = Operator {
            uid,
            node: node.name.clone(),
            kind,
            inputs,
            output,
            updating,
        };
        let operators = self
            .stages
            .get_mut(stage)
            .expect("the stage was made by new_stage or holds an input of this operator");
        operators.push(operator);
        Placed {
            stage,
            operator: operators.len() - 1,
            port: Port::Main,
            columns,
            updating,
        }
    }

    fn publish(&mut self, node: &Resolved, port: Port, placed: Placed) {
        let name = OutputName {
            node: node.name.clone(),
            port,
        };
        self.outputs.entry(name).or_default().push(placed);
    }

    fn publish_bad(&mut self, node: &Resolved, placed: &Placed) {
        let bad = Placed {
            port: Port::Bad,
            columns: bad_columns(),
            updating: false,
            ..placed.clone()
        };
        self.publish(node, Port::Bad, bad);
    }
}

fn stage_idx(stage: usize) -> StageIdx {
    StageIdx(u32::try_from(stage).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests;
