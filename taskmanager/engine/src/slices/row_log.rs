//! Keyed rows that are only added and die by watermark: what was sent, extents of final sessions.
//!
//! Owns: their way into sealed parts. A barrier moves what was added since the last one into a new
//! part, which takes over the live rows of older ones up to twice its size. When several rows say
//! something about one thing, the one with the highest number in the first column holds.

use std::sync::Arc;

use arrow::array::{AsArray, BooleanArray};
use arrow::compute::{concat_batches, filter_record_batch, take_record_batch};
use arrow::datatypes::{Int64Type, SchemaRef};
use arrow::record_batch::RecordBatch;
use streamforge_core::ids::CheckpointId;

use super::{LAYOUT, UNCONVERTED_PARTS_MAX, check_form, sort_by_key_group};
use crate::aggregate::Error;
use crate::state::{PartRows, StatePart};

/// Columns of a log: a number, the instant up to which a row is needed, the keys, then anything.
#[derive(Clone, Debug)]
pub(crate) struct LogShape {
    /// Kind of its parts.
    pub(crate) kind: &'static str,
    /// Where its parts' sequence numbers begin, apart from those of the operator's other parts.
    pub(crate) sequence_from: u64,
    /// `_seq` BIGINT, `_until` BIGINT, keys, more.
    pub(crate) schema: SchemaRef,
    /// Number of key columns.
    pub(crate) keys_n: usize,
    /// Number of key groups.
    pub(crate) groups_n: u32,
}

#[derive(Debug)]
struct LogPart {
    part: Arc<StatePart>,
    until: i64,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct RowLog {
    shape: LogShape,
    added: Vec<RecordBatch>,
    parts: Vec<LogPart>,
    sequence: u64,
}

fn until_max(rows: &RecordBatch) -> i64 {
    let until = rows
        .columns()
        .get(1)
        .and_then(|column| column.as_primitive_opt::<Int64Type>());
    until.and_then(arrow::compute::max).unwrap_or(i64::MIN)
}

impl RowLog {
    pub(crate) fn new(shape: LogShape) -> Self {
        let sequence = shape.sequence_from;
        Self {
            shape,
            added: Vec::new(),
            parts: Vec::new(),
            sequence,
        }
    }

    /// Remembers rows of the log's schema.
    pub(crate) fn add(&mut self, rows: RecordBatch) {
        if rows.num_rows() > 0 {
            self.added.push(rows);
        }
    }

    /// Drops parts of which no row is needed at `watermark`.
    pub(crate) fn expire(&mut self, watermark: i64) {
        self.parts.retain(|part| part.until > watermark);
        self.added.retain(|rows| until_max(rows) > watermark);
    }

    /// Number of parts that wait for conversion.
    pub(crate) fn is_behind(&self) -> bool {
        self.parts
            .iter()
            .filter(|part| !part.part.is_converted())
            .count()
            >= UNCONVERTED_PARTS_MAX
    }

    /// Freezes the log; rows not needed at `watermark` may be left out.
    pub(crate) fn seal(&mut self, id: CheckpointId, watermark: i64) -> Vec<Arc<StatePart>> {
        self.expire(watermark);
        if !self.added.is_empty() {
            let mut pieces = std::mem::take(&mut self.added);
            let mut rows_n: usize = pieces.iter().map(RecordBatch::num_rows).sum();
            while let Some(last) = self.parts.last()
                && last.part.is_converted()
                && let Ok(rows) = last.part.rows()
                && rows.rows.num_rows() <= 2 * rows_n
            {
                rows_n += rows.rows.num_rows();
                pieces.insert(0, rows.rows.clone());
                self.parts.pop();
            }
            let until = pieces.iter().map(until_max).max().unwrap_or(i64::MIN);
            let shape = self.shape.clone();
            let convert =
                move || convert(&shape, &pieces, watermark).map_err(|error| error.to_string());
            self.sequence += 1;
            let part = StatePart::sealed(self.shape.kind, id, self.sequence, Box::new(convert));
            self.parts.push(LogPart {
                part: Arc::new(part),
                until,
            });
        }
        self.parts
            .iter()
            .map(|part| Arc::clone(&part.part))
            .collect()
    }

    /// Takes a part read back, and returns its rows.
    pub(crate) fn load(&mut self, part: StatePart) -> Result<RecordBatch, Error> {
        let rows = part.rows().map_err(Error::State)?;
        self.check(&rows.rows)?;
        let until = until_max(&rows.rows);
        self.parts.push(LogPart {
            part: Arc::new(part),
            until,
        });
        Ok(rows.rows.clone())
    }

    /// Bytes held, shared parts included.
    pub(crate) fn size(&self) -> usize {
        let part = |part: &LogPart| match part.part.is_converted() {
            true => part
                .part
                .rows()
                .map_or(0, |rows| rows.rows.get_array_memory_size()),
            false => 0,
        };
        self.added
            .iter()
            .map(RecordBatch::get_array_memory_size)
            .sum::<usize>()
            + self.parts.iter().map(part).sum::<usize>()
    }

    /// Takes over all rows of another log.
    pub(crate) fn absorb(&mut self, other: RowLog) {
        self.added.extend(other.added);
        self.parts.extend(other.parts);
        self.sequence = self.sequence.max(other.sequence);
    }

    fn check(&self, rows: &RecordBatch) -> Result<(), Error> {
        let schema = rows.schema();
        let found = schema.metadata().get(LAYOUT);
        let expected = self.shape.schema.metadata().get(LAYOUT);
        if found != expected {
            return Err(Error::State(format!(
                "stored layout is {found:?}, this program's {expected:?}"
            )));
        }
        check_form(rows, &self.shape.schema)
    }
}

fn convert(shape: &LogShape, pieces: &[RecordBatch], watermark: i64) -> Result<PartRows, Error> {
    // Schemas may differ in field metadata only (a stored one was read back): columns decide.
    let cast = |piece: &RecordBatch| {
        RecordBatch::try_new(Arc::clone(&shape.schema), piece.columns().to_vec())
    };
    let pieces = pieces.iter().map(cast).collect::<Result<Vec<_>, _>>()?;
    let all = concat_batches(&shape.schema, &pieces)?;
    let until = all.column(1).as_primitive::<Int64Type>();
    let keep: BooleanArray = until
        .iter()
        .map(|until| until.map(|until| until > watermark))
        .collect();
    let all = filter_record_batch(&all, &keep)?;
    let keys = all.columns().get(2..2 + shape.keys_n).unwrap_or_default();
    let (order, groups) = sort_by_key_group(keys, all.num_rows(), shape.groups_n)?;
    Ok(PartRows {
        rows: take_record_batch(&all, &order)?,
        groups,
    })
}
