//! From a plan's operators to the engine's, as a task manager does it.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use anyhow::Result;
use streamforge_core::ids::StageIdx;
use streamforge_core::job_graph::{Column, Expr, JobGraph, Operator};
use streamforge_engine::evaluate::Evaluator;
use streamforge_engine::operators;
use streamforge_engine::task::Chained;

/// The implementation of one operator.
pub fn build(graph: &JobGraph, stage: StageIdx, operator: &Operator) -> Result<Chained> {
    operators::build::build(graph, stage, operator, &compiled)
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
