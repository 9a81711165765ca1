//! From a plan's operators to the engine's.

use anyhow::Result;
use streamforge_core::ids::StageIdx;
use streamforge_core::job_graph::{Column, Expr, JobGraph, Operator};
use streamforge_engine::evaluate::Evaluator;
use streamforge_engine::operators;
use streamforge_engine::task::Chained;

/// The implementation of one operator.
pub fn build(graph: &JobGraph, stage: StageIdx, operator: &Operator) -> Result<Chained> {
    let compile = |expr: &Expr, input: &[Column]| -> Result<Evaluator> {
        Ok(Evaluator {
            sql: expr.sql.clone(),
            expr: streamforge_plan::compile(expr, input)?,
        })
    };
    operators::build::build(graph, stage, operator, &compile)
}
