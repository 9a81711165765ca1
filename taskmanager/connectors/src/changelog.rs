//! `changelog: Retract`: the column `_op`.
//!
//! Owns: putting it first. Start at: [`with_ops`].

use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch, RecordBatchOptions, StringArray};
use arrow::datatypes::{DataType, Field, Schema};
use arrow::error::ArrowError;
use streamforge_core::job_graph::ChangelogMode;
use streamforge_engine::batch::{RowOp, StreamBatch};

/// The rows, with `_op` before their columns if the sink shows retractions.
pub fn with_ops(batch: &StreamBatch, mode: ChangelogMode) -> Result<RecordBatch, ArrowError> {
    if mode != ChangelogMode::Retract {
        return Ok(batch.rows.clone());
    }
    let text = |op: i8| RowOp::from_byte(op).unwrap_or(RowOp::Insert).text();
    let ops: StringArray = match &batch.ops {
        Some(ops) => ops.values().iter().map(|op| Some(text(*op))).collect(),
        None => std::iter::repeat_n(Some(text(0)), batch.len()).collect(),
    };
    let rows = &batch.rows;
    let mut fields = vec![Arc::new(Field::new("_op", DataType::Utf8, false))];
    fields.extend(rows.schema_ref().fields().iter().cloned());
    let mut arrays: Vec<ArrayRef> = vec![Arc::new(ops)];
    arrays.extend(rows.columns().iter().cloned());
    let options = RecordBatchOptions::new().with_row_count(Some(batch.len()));
    RecordBatch::try_new_with_options(Arc::new(Schema::new(fields)), arrays, &options)
}
