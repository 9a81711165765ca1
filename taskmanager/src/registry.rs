//! From a plan's words to running operators, readers and writers.
//!
//! Owns: which implementation stands behind each word. A new operator or connector has its line here.

use streamforge_connectors::files::source::ReaderPlace;
use streamforge_connectors::registry as connectors;
use streamforge_core::ids::{JobId, StageIdx, TaskId};
use streamforge_core::job_graph::{
    Column, Expr, Input, JobGraph, Operator as OperatorSpec, OperatorKind, Port, SourceSpec,
    bad_columns, late_columns,
};
use streamforge_core::manifest::SplitState;
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
use streamforge_engine::source::SourceReader;
use streamforge_engine::task::{Chained, Channel, TaskPlan};

use crate::attempt::Error;

/// The columns of an operator's output.
fn output_columns(graph: &JobGraph, stage: StageIdx, operator: usize, port: Port) -> Vec<Column> {
    let spec = graph
        .stages
        .get(stage.0 as usize)
        .and_then(|stage| stage.operators.get(operator));
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

/// The columns of an operator's first input; all inputs of a union have the same.
fn input_columns(operator: &OperatorSpec, graph: &JobGraph, stage: StageIdx) -> Vec<Column> {
    match operator.inputs.first() {
        Some(Input::Chained { operator, port }) => output_columns(graph, stage, *operator, *port),
        Some(Input::Edge(edge)) => graph.edges.get(*edge).map_or_else(Vec::new, |edge| {
            output_columns(graph, edge.from_stage, edge.from_operator, edge.port)
        }),
        None => Vec::new(),
    }
}

fn evaluator(operator: &OperatorSpec, expr: &Expr, input: &[Column]) -> Result<Evaluator, Error> {
    let compiled = streamforge_plan::compile(expr, input).map_err(|source| Error::Compile {
        operator: operator.uid.0.clone(),
        source,
    })?;
    Ok(Evaluator {
        sql: expr.sql.clone(),
        expr: compiled,
    })
}

/// The implementation of one operator of `task`'s stage.
pub fn build(operator: &OperatorSpec, graph: &JobGraph, task: TaskId) -> Result<Chained, Error> {
    let named = Named {
        uid: operator.uid.0.clone(),
        node: operator.node.clone(),
    };
    let input = input_columns(operator, graph, task.stage);
    let compile = |expr: &Expr| evaluator(operator, expr, &input);
    Ok(match &operator.kind {
        OperatorKind::Source(spec) => {
            let event_time = match &spec.event_time {
                None => None,
                Some(time) => Some(EventTimeEvaluator {
                    expr: evaluator(operator, &time.expr, &operator.output)?,
                    max_out_of_orderness_us: time.max_out_of_orderness_us,
                    idle_timeout_ms: time.idle_timeout_ms,
                }),
            };
            let source = SourceOperator::new(named, event_time, spec.on_bad_record, spec.bounded);
            Chained::Source(source)
        }
        OperatorKind::Filter { predicate } => {
            Chained::Operator(Box::new(Filter::new(named, compile(predicate)?)))
        }
        OperatorKind::Project { items } => {
            let items = items
                .iter()
                .map(|item| compile(&item.expr))
                .collect::<Result<Vec<_>, _>>()?;
            Chained::Operator(Box::new(Project::new(named, items, &operator.output)))
        }
        OperatorKind::Unnest { item } => {
            let item = compile(&item.expr)?;
            Chained::Operator(Box::new(Unnest::new(named, item, &operator.output)))
        }
        OperatorKind::Union => Chained::Operator(Box::new(Union::new(named, &operator.output))),
        OperatorKind::WindowPartial(spec) => {
            let windowed = Windowed::new(spec.clone(), &named)?;
            let evaluators = windowed
                .expressions()
                .into_iter()
                .map(|expr| evaluator(operator, expr, &spec.input))
                .collect::<Result<Vec<_>, _>>()?;
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

pub use streamforge_connectors::registry::open_enumerator;

/// A source's reader for one subtask, with the job and every split that the attempt begins with.
pub fn open_reader(
    operator: &OperatorSpec,
    spec: &SourceSpec,
    plan: &TaskPlan<'_>,
    (job, known): (JobId, Vec<SplitState>),
    surroundings: &connectors::Surroundings,
) -> Result<Box<dyn SourceReader>, Error> {
    let place = ReaderPlace {
        subtask: plan.id.subtask.0,
        parallelism: plan.parallelism,
        known,
        job: Some(job),
    };
    Ok(connectors::open_reader(
        operator,
        spec,
        place,
        surroundings,
    )?)
}

/// A task's input channels in the order its core numbers them: by operator, then by input.
pub fn channels_by_operator(plan: &TaskPlan<'_>) -> Vec<Channel> {
    let all = plan.channels();
    let stage = plan.graph.stages.get(plan.id.stage.0 as usize);
    let inputs = stage
        .into_iter()
        .flat_map(|stage| &stage.operators)
        .flat_map(|o| &o.inputs);
    let edges = inputs.filter_map(|input| match input {
        Input::Edge(edge) => Some(*edge),
        Input::Chained { .. } => None,
    });
    edges
        .flat_map(|edge| all.iter().filter(move |c| c.edge == edge).copied())
        .collect()
}
