//! Rows of `.late` and of the late log: one per (record, missed window).

use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array, StringArray, TimestampMicrosecondArray, UInt32Array};
use arrow::datatypes::SchemaRef;
use arrow::error::ArrowError;
use arrow::record_batch::RecordBatch;
use streamforge_core::event_time::Watermark;

use crate::batch::StreamBatch;
use crate::operator::late_log_schema;

/// Missed windows of one batch.
#[derive(Debug, Default)]
pub(crate) struct Missed {
    rows: Vec<u32>,
    starts: Vec<i64>,
    ends: Vec<i64>,
}

impl Missed {
    /// Row `row` of the batch missed the window `[start, end)`.
    pub(crate) fn push(&mut self, row: u32, start: i64, end: i64) {
        self.rows.push(row);
        self.starts.push(start);
        self.ends.push(end);
    }

    /// True if no window was missed.
    pub(crate) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Rows of `.late`; `batch` has the input's columns.
    pub(crate) fn output(
        &self,
        schema: &SchemaRef,
        batch: &StreamBatch,
        watermark: Watermark,
    ) -> Result<StreamBatch, ArrowError> {
        let late = batch.take(&UInt32Array::from(self.rows.clone()))?;
        let (source, position) = origin(&late);
        let mut columns = late.rows.columns().to_vec();
        let time =
            |micros: Vec<i64>| -> ArrayRef { Arc::new(TimestampMicrosecondArray::from(micros)) };
        columns.push(time(self.starts.clone()));
        columns.push(time(self.ends.clone()));
        columns.push(time(vec![watermark.0; self.rows.len()]));
        columns.push(Arc::new(source));
        columns.push(Arc::new(position));
        let rows = RecordBatch::try_new(Arc::clone(schema), columns)?;
        Ok(StreamBatch {
            event_time: late.event_time,
            ..StreamBatch::plain(rows)
        })
    }

    /// Entries of the late log.
    pub(crate) fn log(
        &self,
        batch: &StreamBatch,
        watermark: Watermark,
    ) -> Result<RecordBatch, ArrowError> {
        let narrow = RecordBatch::try_new_with_options(
            Arc::new(arrow::datatypes::Schema::empty()),
            vec![],
            &arrow::record_batch::RecordBatchOptions::new().with_row_count(Some(batch.len())),
        )?;
        let late = batch
            .with_rows(narrow)
            .take(&UInt32Array::from(self.rows.clone()))?;
        let (source, position) = origin(&late);
        RecordBatch::try_new(
            late_log_schema(),
            vec![
                Arc::new(source),
                Arc::new(position),
                Arc::new(Int64Array::from(self.starts.clone())),
                Arc::new(Int64Array::from(self.ends.clone())),
                Arc::new(Int64Array::from(vec![watermark.0; self.rows.len()])),
            ],
        )
    }
}

fn origin(batch: &StreamBatch) -> (StringArray, StringArray) {
    match &batch.origin {
        Some(origin) => (
            StringArray::from(vec![origin.source.as_ref(); batch.len()]),
            (0..batch.len())
                .map(|row| Some(origin.position(row)))
                .collect(),
        ),
        None => {
            let none = StringArray::from(vec![None::<&str>; batch.len()]);
            (none.clone(), none)
        }
    }
}
