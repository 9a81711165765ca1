//! A batch of rows in flight.
//!
//! Owns: rows together with what travels beside their columns: event time, origin and changelog
//! operation. Start at: [`StreamBatch`].

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, BinaryArray, BooleanArray, Int8Array, StringArray, TimestampMicrosecondArray,
    UInt32Array, UInt64Array,
};
use arrow::compute::{filter, filter_record_batch, take, take_record_batch};
use arrow::datatypes::SchemaRef;
use arrow::error::ArrowError;
use arrow::record_batch::RecordBatch;
use streamforge_core::event_time::{EVENT_TIME_MAX, EVENT_TIME_MIN};

/// Rows aimed at per batch: large enough to amortise calls, small enough to stay in cache.
pub const BATCH_ROWS: usize = 8192;

/// What happened to a row of a changelog.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i8)]
pub enum RowOp {
    /// `+I`: a new row.
    Insert = 0,
    /// `-U`: takes back a row sent before; its `+U` follows.
    UpdateBefore = 1,
    /// `+U`: replaces the row just taken back.
    UpdateAfter = 2,
    /// `-D`: takes back a row sent before; nothing follows.
    Delete = 3,
}

impl RowOp {
    /// As printed in `_op`.
    pub fn text(self) -> &'static str {
        match self {
            RowOp::Insert => "+I",
            RowOp::UpdateBefore => "-U",
            RowOp::UpdateAfter => "+U",
            RowOp::Delete => "-D",
        }
    }

    /// From the byte in a batch.
    pub fn from_byte(byte: i8) -> Option<RowOp> {
        [
            RowOp::Insert,
            RowOp::UpdateBefore,
            RowOp::UpdateAfter,
            RowOp::Delete,
        ]
        .into_iter()
        .find(|op| *op as i8 == byte)
    }
}

/// Where the rows of one batch were read. Kept up to the first aggregate.
#[derive(Clone, Debug)]
pub struct Origin {
    /// Topic or file.
    pub source: Arc<str>,
    /// First half of `position`: row number (files: from 0) or partition.
    pub row: UInt64Array,
    /// Second half: byte offset or offset.
    pub offset: UInt64Array,
}

impl Origin {
    /// `position` of one row.
    pub fn position(&self, idx: usize) -> String {
        format!("{}:{}", self.row.value(idx), self.offset.value(idx))
    }
}

/// A batch of rows in flight.
#[derive(Clone, Debug)]
pub struct StreamBatch {
    /// The columns.
    pub rows: RecordBatch,
    /// Event time of each row, without nulls; `None` where the job has none.
    pub event_time: Option<TimestampMicrosecondArray>,
    /// Where each row was read, if anybody needs it.
    pub origin: Option<Origin>,
    /// [`RowOp`] of each row; `None`: all are inserts.
    pub ops: Option<Int8Array>,
}

fn downcast<T: Array + Clone + 'static>(array: &ArrayRef) -> Result<T, ArrowError> {
    array
        .as_any()
        .downcast_ref::<T>()
        .cloned()
        .ok_or_else(|| ArrowError::CastError("a kernel changed its input's type".to_owned()))
}

impl StreamBatch {
    /// Rows without event time, origin or operation.
    pub fn plain(rows: RecordBatch) -> Self {
        Self {
            rows,
            event_time: None,
            origin: None,
            ops: None,
        }
    }

    /// Number of rows.
    pub fn len(&self) -> usize {
        self.rows.num_rows()
    }

    /// Bytes of the columns' values as they lie in memory, of these rows alone.
    pub fn bytes_n(&self) -> u64 {
        let columns = self.rows.columns().iter();
        // An array that cannot say (none of ours) counts nothing.
        let sizes = columns.map(|column| column.to_data().get_slice_memory_size().unwrap_or(0));
        sizes.sum::<usize>() as u64
    }

    /// True if it has no rows.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The same rows with other columns.
    #[must_use]
    pub fn with_rows(&self, rows: RecordBatch) -> Self {
        debug_assert_eq!(rows.num_rows(), self.len());
        Self {
            rows,
            ..self.clone()
        }
    }

    /// `length` rows from `offset`, without copying.
    #[must_use]
    pub fn slice(&self, offset: usize, length: usize) -> Self {
        Self {
            rows: self.rows.slice(offset, length),
            event_time: self.event_time.as_ref().map(|a| a.slice(offset, length)),
            origin: self.origin.as_ref().map(|o| Origin {
                source: Arc::clone(&o.source),
                row: o.row.slice(offset, length),
                offset: o.offset.slice(offset, length),
            }),
            ops: self.ops.as_ref().map(|a| a.slice(offset, length)),
        }
    }

    /// The rows for which `keep` is true (NULL drops the row).
    pub fn filter(&self, keep: &BooleanArray) -> Result<Self, ArrowError> {
        self.map_arrays(filter_record_batch(&self.rows, keep)?, |array| {
            filter(array, keep)
        })
    }

    /// The rows at `indices`, in that order.
    pub fn take(&self, indices: &UInt32Array) -> Result<Self, ArrowError> {
        let rows = if self.rows.num_columns() == 0 {
            RecordBatch::try_new_with_options(
                self.rows.schema(),
                vec![],
                &arrow::record_batch::RecordBatchOptions::new().with_row_count(Some(indices.len())),
            )?
        } else {
            take_record_batch(&self.rows, indices)?
        };
        self.map_arrays(rows, |array| take(array, indices, None))
    }

    fn map_arrays(
        &self,
        rows: RecordBatch,
        map: impl Fn(&dyn Array) -> Result<ArrayRef, ArrowError>,
    ) -> Result<Self, ArrowError> {
        let origin = match &self.origin {
            None => None,
            Some(origin) => Some(Origin {
                source: Arc::clone(&origin.source),
                row: downcast(&map(&origin.row)?)?,
                offset: downcast(&map(&origin.offset)?)?,
            }),
        };
        let event_time = match &self.event_time {
            None => None,
            Some(times) => Some(downcast(&map(times)?)?),
        };
        let ops = match &self.ops {
            None => None,
            Some(ops) => Some(downcast(&map(ops)?)?),
        };
        Ok(Self {
            rows,
            event_time,
            origin,
            ops,
        })
    }
}

/// Largest `raw` in a `.bad` row; longer ones are cut.
pub const BAD_RAW_BYTES_MAX: usize = 64 * 1024;

/// Rows of a `.bad` output under construction.
#[derive(Debug, Default)]
pub struct BadRows {
    raw: Vec<Option<Vec<u8>>>,
    reason: Vec<String>,
    source: Vec<Option<Arc<str>>>,
    position: Vec<Option<String>>,
    event_time: Vec<Option<i64>>,
}

impl BadRows {
    /// Adds one row; `raw` is cut at [`BAD_RAW_BYTES_MAX`].
    pub fn push(
        &mut self,
        raw: Option<&[u8]>,
        reason: String,
        origin: Option<(&Arc<str>, String)>,
        event_time: Option<i64>,
    ) {
        self.raw
            .push(raw.map(|raw| raw.get(..BAD_RAW_BYTES_MAX).unwrap_or(raw).to_vec()));
        self.reason.push(reason);
        let (source, position) =
            origin.map_or((None, None), |(s, p)| (Some(Arc::clone(s)), Some(p)));
        self.source.push(source);
        self.position.push(position);
        // A time that no sink can write would keep the row from being told.
        let writable = event_time.filter(|time| (EVENT_TIME_MIN..=EVENT_TIME_MAX).contains(time));
        self.event_time.push(writable);
    }

    /// Adds a row of a batch, with its origin and time.
    pub fn push_row(&mut self, batch: &StreamBatch, row: usize, raw: &[u8], reason: String) {
        let origin = batch.origin.as_ref().map(|o| (&o.source, o.position(row)));
        let event_time = batch.event_time.as_ref().map(|times| times.value(row));
        self.push(Some(raw), reason, origin, event_time);
    }

    /// Number of rows so far.
    pub fn len(&self) -> usize {
        self.reason.len()
    }

    /// True if there are none.
    pub fn is_empty(&self) -> bool {
        self.reason.is_empty()
    }

    /// Position (`source position`) and reason of the first row.
    pub fn first(&self) -> Option<(String, &str)> {
        let reason = self.reason.first()?;
        let source = self
            .source
            .first()
            .and_then(Option::as_deref)
            .unwrap_or_default();
        let position = self
            .position
            .first()
            .and_then(Option::as_deref)
            .unwrap_or_default();
        Some((format!("{source} {position}").trim().to_owned(), reason))
    }

    /// Adds all rows of `other`.
    pub fn append(&mut self, mut other: BadRows) {
        self.raw.append(&mut other.raw);
        self.reason.append(&mut other.reason);
        self.source.append(&mut other.source);
        self.position.append(&mut other.position);
        self.event_time.append(&mut other.event_time);
    }

    /// The rows as a batch with the columns of `.bad`; `node` is the node they failed in.
    pub fn finish(self, node: &str) -> Result<StreamBatch, ArrowError> {
        let n = self.len();
        let schema: SchemaRef = crate::types::schema(&streamforge_core::job_graph::bad_columns());
        let event_time = TimestampMicrosecondArray::from(self.event_time);
        let columns: Vec<ArrayRef> = vec![
            Arc::new(BinaryArray::from_iter(self.raw)),
            Arc::new(StringArray::from(self.reason)),
            Arc::new(StringArray::from(vec![node; n])),
            Arc::new(StringArray::from_iter(
                self.source.iter().map(|s| s.as_deref()),
            )),
            Arc::new(StringArray::from_iter(self.position)),
            Arc::new(event_time),
        ];
        Ok(StreamBatch::plain(RecordBatch::try_new(schema, columns)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_a_slice_are_those_of_its_rows_alone() {
        let values: ArrayRef = Arc::new(arrow::array::Int64Array::from_iter_values(0..1_000));
        let batch = StreamBatch::plain(RecordBatch::try_from_iter([("v", values)]).unwrap());

        assert_eq!(batch.bytes_n(), 8_000);
        assert_eq!(batch.slice(10, 5).bytes_n(), 40);
    }

    #[test]
    fn bad_rows_outside_of_the_years_that_can_be_written_are_told_without_a_time_f3() {
        let mut bad = BadRows::default();
        for time in [
            EVENT_TIME_MIN - 1,
            EVENT_TIME_MIN,
            EVENT_TIME_MAX,
            EVENT_TIME_MAX + 1,
        ] {
            bad.push(None, "why".to_owned(), None, Some(time));
        }

        let rows = bad.finish("node").unwrap().rows;

        assert_eq!(rows.num_rows(), 4, "none is lost");
        let times = rows.column_by_name("event_time").unwrap();
        let told: Vec<bool> = (0..4).map(|row| times.is_valid(row)).collect();
        assert_eq!(told, [false, true, true, false]);
    }
}
