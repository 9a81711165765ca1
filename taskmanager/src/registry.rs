//! From a plan's words to running operators and readers.
//!
//! Owns: compiling expressions for the engine. Which implementation stands behind a word is known by
//! `engine::operators::build` and `connectors::registry`.

use streamforge_core::ids::TaskId;
use streamforge_core::job_graph::{Column, Expr, Input, JobGraph, Operator as OperatorSpec};
use streamforge_engine::evaluate::Evaluator;
use streamforge_engine::operators;
use streamforge_engine::task::{Chained, Channel, TaskPlan};

use crate::attempt::Error;

/// The implementation of one operator of `task`'s stage.
pub fn build(operator: &OperatorSpec, graph: &JobGraph, task: TaskId) -> Result<Chained, Error> {
    let compile = |expr: &Expr, input: &[Column]| {
        let compiled = streamforge_plan::compile(expr, input);
        compiled
            .map(|compiled| Evaluator {
                sql: expr.sql.clone(),
                expr: compiled,
            })
            .map_err(|source| Error::Compile {
                operator: operator.uid.0.clone(),
                source,
            })
    };
    operators::build::build(graph, task.stage, operator, &compile)
}

pub use streamforge_connectors::registry::open_enumerator;

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

#[cfg(test)]
mod tests {
    use super::*;

    /// An expression that was compiled for another table would be given columns that it does not know.
    #[test]
    fn plan_and_engine_have_the_same_arrow_type_for_each_sql_type() {
        let types = [
            "BOOLEAN",
            "INT",
            "BIGINT",
            "REAL",
            "DOUBLE",
            "DECIMAL(18,2)",
            "TEXT",
            "BYTEA",
            "DATE",
            "TIMESTAMP",
            "TIMESTAMPTZ",
            "TEXT[]",
            "STRUCT(a INT, b TEXT[])",
        ];
        let column = |(text, nullable): (&str, bool)| Column {
            name: text.to_owned(),
            data_type: text.parse().expect("a type"),
            nullable,
        };
        let both = |text| [(text, false), (text, true)];
        let columns: Vec<Column> = types.into_iter().flat_map(both).map(column).collect();

        let planned = streamforge_plan::arrow_type::schema(&columns);

        assert_eq!(planned, streamforge_engine::types::schema(&columns));
    }
}
