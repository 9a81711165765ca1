//! From a plan's operators to the engine's, as a task manager does it.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use anyhow::Result;
use streamforge_core::ids::StageIdx;
use streamforge_core::job_graph::{
    Column, Expr, Input, JobGraph, Operator, OperatorKind, Port, bad_columns, late_columns,
};
use streamforge_engine::evaluate::Evaluator;
use streamforge_engine::operators::Named;
use streamforge_engine::operators::filter::Filter;
use streamforge_engine::operators::project::Project;
use streamforge_engine::operators::source::{EventTimeEvaluator, SourceOperator};
use streamforge_engine::operators::union::Union;
use streamforge_engine::operators::unnest::Unnest;
use streamforge_engine::operators::window_final::WindowFinal;
use streamforge_engine::operators::window_partial::WindowPartial;
use streamforge_engine::operators::windowed::Windowed;
use streamforge_engine::task::Chained;

/// The implementation of one operator.
pub fn build(graph: &JobGraph, stage: StageIdx, operator: &Operator) -> Result<Chained> {
    let named = Named {
        uid: operator.uid.0.clone(),
        node: operator.node.clone(),
    };
    let input = input_columns(graph, stage, operator);
    let evaluator = |expr: &Expr| compiled(expr, &input);
    Ok(match &operator.kind {
        OperatorKind::Source(spec) => {
            let event_time = spec.event_time.as_ref().map(|time| -> Result<_> {
                Ok(EventTimeEvaluator {
                    expr: evaluator(&time.expr)?,
                    max_out_of_orderness_us: time.max_out_of_orderness_us,
                    idle_timeout_ms: time.idle_timeout_ms,
                })
            });
            let event_time = event_time.transpose()?;
            Chained::Source(SourceOperator::new(
                named,
                event_time,
                spec.on_bad_record,
                spec.bounded,
            ))
        }
        OperatorKind::Filter { predicate } => {
            Chained::Operator(Box::new(Filter::new(named, evaluator(predicate)?)))
        }
        OperatorKind::Project { items } => {
            let items = items
                .iter()
                .map(|item| evaluator(&item.expr))
                .collect::<Result<_>>()?;
            Chained::Operator(Box::new(Project::new(named, items, &operator.output)))
        }
        OperatorKind::Unnest { item } => {
            let item = evaluator(&item.expr)?;
            Chained::Operator(Box::new(Unnest::new(named, item, &operator.output)))
        }
        OperatorKind::Union => Chained::Operator(Box::new(Union::new(named, &operator.output))),
        OperatorKind::WindowPartial(spec) => {
            let windowed = Windowed::new(spec.clone(), &named)?;
            let evaluators = windowed
                .expressions()
                .into_iter()
                .map(evaluator)
                .collect::<Result<_>>()?;
            Chained::Operator(Box::new(WindowPartial::new(named, windowed, evaluators)))
        }
        OperatorKind::WindowFinal(spec) => {
            let windowed = Windowed::new(spec.clone(), &named)?;
            Chained::Operator(Box::new(WindowFinal::new(
                named,
                windowed,
                graph.max_parallelism,
            )))
        }
        OperatorKind::Sink(_) => Chained::Sink(named),
    })
}

/// Compiled once per process: thousands of attempts run the same few expressions.
fn compiled(expr: &Expr, input: &[Column]) -> Result<Evaluator> {
    static COMPILED: Mutex<BTreeMap<String, Evaluator>> = Mutex::new(BTreeMap::new());
    let mut compiled = COMPILED.lock().unwrap_or_else(PoisonError::into_inner);
    let key = format!("{expr:?} over {input:?}");
    if let Some(known) = compiled.get(&key) {
        return Ok(known.clone());
    }
    let evaluator = Evaluator {
        sql: expr.sql.clone(),
        expr: streamforge_plan::compile(expr, input)?,
    };
    compiled.insert(key, evaluator.clone());
    Ok(evaluator)
}

/// The columns of an operator's first input, a source's own output.
fn input_columns(graph: &JobGraph, stage: StageIdx, operator: &Operator) -> Vec<Column> {
    let (stage, idx, port) = match operator.inputs.first() {
        None => return operator.output.clone(),
        Some(Input::Chained { operator, port }) => (stage, *operator, *port),
        Some(Input::Edge(edge)) => match graph.edges.get(*edge) {
            Some(edge) => (edge.from_stage, edge.from_operator, edge.port),
            None => return Vec::new(),
        },
    };
    let producer = graph
        .stages
        .get(stage.0 as usize)
        .and_then(|stage| stage.operators.get(idx));
    match (
        port,
        producer.map(|producer| (&producer.kind, &producer.output)),
    ) {
        (Port::Bad, _) => bad_columns(),
        (
            Port::Late,
            Some((OperatorKind::WindowPartial(spec) | OperatorKind::WindowFinal(spec), _)),
        ) => late_columns(&spec.input),
        (_, Some((_, output))) => output.clone(),
        (_, None) => Vec::new(),
    }
}
