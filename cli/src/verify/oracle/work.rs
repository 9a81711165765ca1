//! What each node of the oracle does with rows, planned once.

use anyhow::{Context as _, Result};
use streamforge_core::job_graph::{Column, Expr, OperatorKind, Port, bad_columns, late_columns};
use streamforge_taskmanager::connectors::registry::again::RecordLimit;
use streamforge_taskmanager::connectors::registry::is_readable_topic;
use streamforge_taskmanager::engine::evaluate::Evaluator;

use super::super::aggregation::Aggregation;
use super::super::bad::BadColumns;
use super::super::graph::Node;
use super::super::late::LateLog;
use super::super::multiset::Multiset;
use super::super::published::partition_by;
use super::Compile;

/// What a node does with rows.
pub(super) enum Work<'g> {
    Source {
        event_time: Option<Evaluator>,
        newest: i64,
        max_out_of_orderness_us: i64,
    },
    Filter(Evaluator),
    Project(Vec<Evaluator>),
    Unnest(Evaluator),
    Union,
    Partial(Box<Aggregation<'g>>),
    Final {
        partial: usize,
    },
    Sink {
        /// What it should hold; `None`: it cannot be read back.
        rows: Option<Multiset>,
        /// What its topic takes.
        limit: Option<RecordLimit>,
        /// The columns that its folders are named after.
        folders: Vec<String>,
        /// Of a sink that reads `.bad` outputs.
        bad: Option<BadColumns>,
    },
}

/// The columns of one of a node's outputs.
pub(super) fn columns_of(node: &Node<'_>, port: Port) -> Vec<Column> {
    match (port, &node.operator.kind) {
        (Port::Main, _) => node.operator.output.clone(),
        (Port::Bad, _) => bad_columns(),
        (Port::Late, OperatorKind::WindowPartial(spec) | OperatorKind::WindowFinal(spec)) => {
            late_columns(&spec.input)
        }
        (Port::Late, _) => Vec::new(),
    }
}

pub(super) fn plan_work<'g>(
    node: &Node<'g>,
    nodes: &[Node<'g>],
    compile: &Compile<'_>,
    late: &mut LateLog,
) -> Result<Work<'g>> {
    let input = match node.inputs.first() {
        Some((from, port)) => columns_of(nodes.get(*from).context("an input")?, *port),
        None => node.operator.output.clone(),
    };
    let evaluator = |expr: &Expr| -> Result<Evaluator> {
        Ok(Evaluator {
            sql: expr.sql.clone(),
            expr: compile(expr, &input)?,
        })
    };
    Ok(match &node.operator.kind {
        OperatorKind::Source(spec) => Work::Source {
            event_time: spec
                .event_time
                .as_ref()
                .map(|time| evaluator(&time.expr))
                .transpose()?,
            newest: i64::MIN,
            max_out_of_orderness_us: spec
                .event_time
                .as_ref()
                .map_or(0, |time| time.max_out_of_orderness_us),
        },
        OperatorKind::Filter { predicate } => Work::Filter(evaluator(predicate)?),
        OperatorKind::Project { items } => Work::Project(
            items
                .iter()
                .map(|item| evaluator(&item.expr))
                .collect::<Result<_>>()?,
        ),
        OperatorKind::Unnest { item } => Work::Unnest(evaluator(&item.expr)?),
        OperatorKind::Union => Work::Union,
        OperatorKind::WindowPartial(spec) => {
            let second = node
                .consumers
                .iter()
                .find(|(port, _, _)| *port == Port::Main);
            let second = second.and_then(|(_, idx, _)| nodes.get(*idx));
            let mut uids = vec![node.operator.uid.0.as_str()];
            uids.extend(second.map(|node| node.operator.uid.0.as_str()));
            let late = late.take(&uids);
            Work::Partial(Box::new(Aggregation::new(
                spec,
                &node.operator.node,
                late,
                &evaluator,
            )?))
        }
        OperatorKind::WindowFinal(_) => {
            let (partial, _) = node
                .inputs
                .first()
                .context("an aggregate without first half")?;
            Work::Final { partial: *partial }
        }
        OperatorKind::Sink(spec) => {
            let readable = spec.connector.kind == "file" || is_readable_topic(spec);
            Work::Sink {
                rows: readable.then(|| Multiset::new(key_columns(node, nodes))),
                limit: None,
                folders: partition_by(spec),
                bad: BadColumns::of_sink(node, nodes),
            }
        }
    })
}

/// The columns that identify a row of a sink right behind an aggregate: its group and window.
pub(super) fn key_columns(node: &Node<'_>, nodes: &[Node<'_>]) -> Vec<usize> {
    let [(from, Port::Main)] = node.inputs.as_slice() else {
        return Vec::new();
    };
    match nodes.get(*from).map(|node| &node.operator.kind) {
        Some(OperatorKind::WindowFinal(spec)) => (0..spec.keys.len() + 2).collect(),
        _ => Vec::new(),
    }
}
