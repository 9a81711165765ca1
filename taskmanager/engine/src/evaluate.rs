//! Evaluating expressions so that one bad row costs one row.
//!
//! Owns: isolation (F3). Arrow's kernels fail a whole batch for one overflow or bad cast; here the
//! batch is halved until the failing rows stand alone, and the others go on.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, UInt32Array};
use arrow::compute::concat;
use arrow::error::ArrowError;
use arrow::record_batch::RecordBatch;
use datafusion_common::DataFusionError;
use datafusion_physical_expr::PhysicalExpr;

use crate::batch::{BadRows, StreamBatch};
use crate::row_json::row_as_json;

/// A compiled expression and its text.
#[derive(Clone, Debug)]
pub struct Evaluator {
    /// As the user wrote it, for reasons in `.bad`.
    pub sql: String,
    /// Compiled against the input's columns.
    pub expr: Arc<dyn PhysicalExpr>,
}

/// What became of a batch.
#[derive(Debug)]
pub struct Evaluated {
    /// One array per expression, over the good rows.
    pub columns: Vec<ArrayRef>,
    /// The good rows; `None`: all of the input's.
    pub good: Option<StreamBatch>,
    /// Index into the input and reason of each bad row.
    pub bad: Vec<(usize, String)>,
}

struct Isolation<'a> {
    evaluators: &'a [Evaluator],
    rows: &'a RecordBatch,
    pieces: Vec<Vec<ArrayRef>>,
    good: Vec<u32>,
    bad: Vec<(usize, String)>,
}

fn evaluate_all(
    evaluators: &[Evaluator],
    rows: &RecordBatch,
) -> Result<Vec<ArrayRef>, (usize, DataFusionError)> {
    let evaluate = |(idx, evaluator): (usize, &Evaluator)| {
        evaluator
            .expr
            .evaluate(rows)
            .and_then(|value| value.into_array(rows.num_rows()))
            .map_err(|error| (idx, error))
    };
    evaluators.iter().enumerate().map(evaluate).collect()
}

impl Isolation<'_> {
    fn run(&mut self, offset: usize, length: usize) {
        match evaluate_all(self.evaluators, &self.rows.slice(offset, length)) {
            Ok(columns) => {
                self.pieces.push(columns);
                self.good
                    .extend((offset..offset + length).filter_map(|i| u32::try_from(i).ok()));
            }
            Err((idx, error)) if length == 1 => {
                let sql = self
                    .evaluators
                    .get(idx)
                    .map_or("", |evaluator| &evaluator.sql);
                let text = format!("`{}`: {}", shown(sql), reason(&error));
                self.bad.push((offset, text));
            }
            Err(_) => {
                let half = length / 2;
                self.run(offset, half);
                self.run(offset + half, length - half);
            }
        }
    }
}

/// An expression as a person wrote it: a column of an aggregate's result has the call for its name,
/// behind a `_`, in quotes.
fn shown(sql: &str) -> String {
    let mut out = String::with_capacity(sql.len());
    let mut rest = sql;
    while let Some((before, after)) = rest.split_once("\"_") {
        out.push_str(before);
        // A quote within a name is written twice.
        let mut name = after;
        loop {
            let (part, behind) = name.split_once('"').unwrap_or((name, ""));
            out.push_str(part);
            name = behind;
            match name.strip_prefix('"') {
                Some(behind) => {
                    out.push('"');
                    name = behind;
                }
                None => break,
            }
        }
        rest = name;
    }
    out.push_str(rest);
    out
}

/// A short reason out of DataFusion's wrappings.
fn reason(error: &DataFusionError) -> String {
    match error.find_root() {
        DataFusionError::ArrowError(error, _) => match error.as_ref() {
            ArrowError::DivideByZero => "division by zero".to_owned(),
            ArrowError::ArithmeticOverflow(text) => format!("overflow: {text}"),
            ArrowError::CastError(text)
            | ArrowError::ComputeError(text)
            | ArrowError::ParseError(text)
            | ArrowError::InvalidArgumentError(text) => text.clone(),
            other => other.to_string(),
        },
        DataFusionError::Execution(text) => text.clone(),
        other => other.to_string(),
    }
}

/// Evaluates `evaluators` over `batch`; a row on which any of them fails is bad.
pub fn evaluate(evaluators: &[Evaluator], batch: &StreamBatch) -> Result<Evaluated, ArrowError> {
    if let Ok(columns) = evaluate_all(evaluators, &batch.rows) {
        return Ok(Evaluated {
            columns,
            good: None,
            bad: Vec::new(),
        });
    }
    let mut isolation = Isolation {
        evaluators,
        rows: &batch.rows,
        pieces: Vec::new(),
        good: Vec::new(),
        bad: Vec::new(),
    };
    isolation.run(0, batch.len());
    let Isolation {
        pieces, good, bad, ..
    } = isolation;
    let good = batch.take(&UInt32Array::from(good))?;
    if pieces.is_empty() {
        return Ok(Evaluated {
            columns: Vec::new(),
            good: Some(good),
            bad,
        });
    }
    let column = |idx: usize| {
        let arrays: Vec<&dyn Array> = pieces
            .iter()
            .filter_map(|piece| piece.get(idx))
            .map(AsRef::as_ref)
            .collect();
        concat(&arrays)
    };
    let columns = (0..evaluators.len())
        .map(column)
        .collect::<Result<_, _>>()?;
    Ok(Evaluated {
        columns,
        good: Some(good),
        bad,
    })
}

/// The `.bad` rows of these rows of `batch`, as JSON.
pub fn bad_rows(batch: &StreamBatch, bad: Vec<(usize, String)>) -> BadRows {
    let mut rows = BadRows::default();
    for (idx, reason) in bad {
        let raw = row_as_json(&batch.rows, idx);
        rows.push_row(batch, idx, raw.as_bytes(), reason);
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::shown;

    #[test]
    fn hidden_columns_are_shown_as_the_calls_they_stand_for() {
        assert_eq!(shown("a / \"my b\""), "a / \"my b\"");
        assert_eq!(
            shown("\"_sum(v)\" / \"_count(*)\" + 1"),
            "sum(v) / count(*) + 1"
        );
        assert_eq!(shown("1 / \"_sum(\"\"my b\"\")\""), "1 / sum(\"my b\")");
    }
}
