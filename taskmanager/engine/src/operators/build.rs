//! From a plan's words to a running operator.
//!
//! Owns: which implementation stands behind each kind. A new operator has its line in [`build`].
//! Expressions are compiled by who calls: the engine does not know SQL.

use streamforge_core::ids::StageIdx;
use streamforge_core::job_graph::{
    Column, Expr, Input, JobGraph, Operator as OperatorSpec, OperatorKind, Port, SourceSpec,
    bad_columns, late_columns,
};

use super::Named;
use super::filter::Filter;
use super::project::Project;
use super::source::{EventTimeEvaluator, SourceOperator};
use super::union::Union;
use super::unnest::Unnest;
use super::window_final::WindowFinal;
use super::window_partial::WindowPartial;
use super::windowed::Windowed;
use crate::error::Error;
use crate::evaluate::Evaluator;
use crate::operator::Operator;
use crate::task::Chained;

/// Makes an expression over these columns runnable.
pub type Compile<'a, E> = &'a dyn Fn(&Expr, &[Column]) -> Result<Evaluator, E>;

/// The implementation of one operator of a stage.
///
/// # Errors
/// What `compile` says, and what the operators refuse: aggregates of another version.
pub fn build<E: From<Error>>(
    graph: &JobGraph,
    stage: StageIdx,
    spec: &OperatorSpec,
    compile: Compile<'_, E>,
) -> Result<Chained, E> {
    let named = Named {
        uid: spec.uid.0.clone(),
        node: spec.node.clone(),
    };
    let input = input_columns(graph, stage, spec);
    let operator: Box<dyn Operator> = match &spec.kind {
        OperatorKind::Source(source) => {
            return Ok(Chained::Source(self::source(named, source, spec, compile)?));
        }
        OperatorKind::Sink(_) => return Ok(Chained::Sink(named)),
        OperatorKind::Filter { predicate } => {
            Box::new(Filter::new(named, compile(predicate, &input)?))
        }
        OperatorKind::Project { items } => {
            let items = items.iter().map(|item| compile(&item.expr, &input));
            let items = items.collect::<Result<Vec<_>, _>>()?;
            Box::new(Project::new(named, items, &spec.output))
        }
        OperatorKind::Unnest { item } => {
            let item = compile(&item.expr, &input)?;
            Box::new(Unnest::new(named, item, &spec.output))
        }
        OperatorKind::Union => Box::new(Union::new(named, &spec.output)),
        OperatorKind::WindowPartial(window) => {
            let windowed = Windowed::new(window.clone(), &named)?;
            let exprs = windowed.expressions().into_iter();
            let exprs = exprs.map(|expr| compile(expr, &window.input));
            let exprs = exprs.collect::<Result<Vec<_>, _>>()?;
            Box::new(WindowPartial::new(named, windowed, exprs))
        }
        OperatorKind::WindowFinal(window) => {
            let windowed = Windowed::new(window.clone(), &named)?;
            Box::new(WindowFinal::new(named, windowed, graph.max_parallelism))
        }
    };
    Ok(Chained::Operator(operator))
}

fn source<E>(
    named: Named,
    source: &SourceSpec,
    spec: &OperatorSpec,
    compile: Compile<'_, E>,
) -> Result<SourceOperator, E> {
    let event_time = match &source.event_time {
        None => None,
        Some(time) => Some(EventTimeEvaluator {
            expr: compile(&time.expr, &spec.output)?,
            max_out_of_orderness_us: time.max_out_of_orderness_us,
            idle_timeout_ms: time.idle_timeout_ms,
        }),
    };
    Ok(SourceOperator::new(
        named,
        event_time,
        source.on_bad_record,
        source.bounded,
    ))
}

/// The columns of an operator's first input; all inputs of a union have the same.
fn input_columns(graph: &JobGraph, stage: StageIdx, spec: &OperatorSpec) -> Vec<Column> {
    match spec.inputs.first() {
        Some(Input::Chained { operator, port }) => output_columns(graph, stage, *operator, *port),
        Some(Input::Edge(edge)) => graph.edges.get(*edge).map_or_else(Vec::new, |edge| {
            output_columns(graph, edge.from_stage, edge.from_operator, edge.port)
        }),
        None => Vec::new(),
    }
}

/// The columns of an operator's output.
fn output_columns(graph: &JobGraph, stage: StageIdx, operator: usize, port: Port) -> Vec<Column> {
    let stage = graph.stages.get(stage.0 as usize);
    let spec = stage.and_then(|stage| stage.operators.get(operator));
    match (port, spec.map(|spec| (&spec.kind, &spec.output))) {
        (Port::Bad, _) => bad_columns(),
        (Port::Main, Some((_, output))) => output.clone(),
        (
            Port::Late,
            Some((OperatorKind::WindowPartial(spec) | OperatorKind::WindowFinal(spec), _)),
        ) => late_columns(&spec.input),
        (Port::Main | Port::Late, _) => Vec::new(),
    }
}
