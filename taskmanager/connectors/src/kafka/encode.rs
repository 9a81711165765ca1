//! Rows to records: value, key and partition.
//!
//! Owns: what a row's key is, which partition it goes to, and whether it can be written at all. All
//! of this is decided here, before anything is staged, so that nothing can be refused for its own sake
//! later (X1). Start at: [`Encoder`].
//!
//! A key of one column is its plain text (BYTEA: its bytes), NULL no key; a key of several columns is
//! a JSON object of them.

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch};
use arrow::datatypes::DataType;
use arrow::error::ArrowError;
use memchr::memchr_iter;
use streamforge_core::job_graph::ChangelogMode;
use streamforge_engine::batch::{BadRows, RowOp, StreamBatch};

use super::murmur2::partition_of;
use super::staged::Record;
use crate::changelog::with_ops;
use crate::formats::write::{CsvDialect, json_row, plain_text, write_json_rows};

/// Bytes that a broker counts for a record beside its key and value, at most: the header of a batch
/// of one, and lengths.
const RECORD_OVERHEAD_BYTES: usize = 128;

/// Records without a key that go to one partition before the next one's turn: whole batches are
/// cheaper than single records, and the partitions fill alike.
const KEYLESS_RUN: u32 = 512;

/// Bytes of rows that are encoded at once, about: a batch of wide rows would need as much memory again, and
/// be one huge part.
const PIECE_BYTES: u64 = 1 << 20;

/// Pieces of a batch that are encoded one after the other; of narrow rows all of it is one.
pub fn pieces(batch: &StreamBatch) -> impl Iterator<Item = StreamBatch> {
    let rows_n = batch.len();
    let pieces_n = usize::try_from(batch.bytes_n().div_ceil(PIECE_BYTES)).unwrap_or(usize::MAX);
    let step = rows_n.div_ceil(pieces_n.max(1)).max(1);
    let starts = (0..rows_n).step_by(step);
    starts.map(move |start| batch.slice(start, step.min(rows_n - start)))
}

/// How values are written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ValueFormat {
    /// A JSON object.
    Json,
    /// A CSV record without a newline.
    Csv(CsvDialect),
}

/// What the topic is like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TopicLimits {
    /// How many partitions it has.
    pub partitions_n: i32,
    /// `max.message.bytes`
    pub message_bytes_max: usize,
}

/// Makes records of rows.
#[derive(Debug)]
pub struct Encoder {
    format: ValueFormat,
    key: Vec<String>,
    changelog: ChangelogMode,
    limits: TopicLimits,
    /// Records without a key so far; says whose turn it is.
    keyless_n: u32,
    buffer: Vec<u8>,
    ends: Vec<usize>,
}

/// Keys of a batch.
enum Keys {
    None,
    Text(ArrayRef),
    Bytes(ArrayRef),
    Other(ArrayRef),
    Several(RecordBatch),
}

impl Keys {
    fn of(rows: &RecordBatch, names: &[String]) -> Result<Self, ArrowError> {
        let indices = names
            .iter()
            .map(|name| rows.schema_ref().index_of(name))
            .collect::<Result<Vec<_>, _>>()?;
        Ok(match indices.as_slice() {
            [] => Keys::None,
            [only] => {
                let array = rows.column(*only).clone();
                match array.data_type() {
                    DataType::Utf8 => Keys::Text(array),
                    DataType::Binary => Keys::Bytes(array),
                    _ => Keys::Other(array),
                }
            }
            _ => Keys::Several(rows.project(&indices)?),
        })
    }

    fn with<R>(&self, row: usize, f: impl FnOnce(Option<&[u8]>) -> R) -> R {
        match self {
            Keys::None => f(None),
            Keys::Text(array) | Keys::Bytes(array) | Keys::Other(array) if array.is_null(row) => {
                f(None)
            }
            Keys::Text(array) => f(Some(array.as_string::<i32>().value(row).as_bytes())),
            Keys::Bytes(array) => f(Some(array.as_binary::<i32>().value(row))),
            Keys::Other(array) => f(Some(plain_text(array, row).as_bytes())),
            Keys::Several(rows) => f(Some(&json_row(rows, row))),
        }
    }
}

fn op_of(batch: &StreamBatch, row: usize) -> RowOp {
    let ops = batch.ops.as_ref();
    ops.and_then(|ops| RowOp::from_byte(ops.value(row)))
        .unwrap_or(RowOp::Insert)
}

impl Encoder {
    /// For a topic like this. `first_turn` says which partition keyless records go to first, so that
    /// the subtasks of a sink do not all begin with the same.
    pub fn new(
        format: ValueFormat,
        key: Vec<String>,
        changelog: ChangelogMode,
        limits: TopicLimits,
        first_turn: u32,
    ) -> Self {
        Encoder {
            format,
            key,
            changelog,
            limits,
            keyless_n: first_turn.wrapping_mul(KEYLESS_RUN),
            buffer: Vec::new(),
            ends: Vec::new(),
        }
    }

    /// Hands each row's record to `take`; rows that can never be written go to `bad`.
    pub fn encode(
        &mut self,
        batch: &StreamBatch,
        bad: &mut BadRows,
        take: &mut dyn FnMut(Record<'_>),
    ) -> Result<(), ArrowError> {
        let rows = with_ops(batch, self.changelog)?;
        let keys = Keys::of(&batch.rows, &self.key)?;
        self.write_values(&rows);
        let upsert = self.changelog == ChangelogMode::Upsert;
        let mut start = 0;
        for row in 0..batch.len() {
            let end = self.ends.get(row).copied().unwrap_or(start);
            let value = (start, end);
            start = end + usize::from(self.format == ValueFormat::Json);
            let op = op_of(batch, row);
            // The row after the last `-U` of a batch, or one that a filter or another key keeps from following,
            // is no `+U` of this key: what it takes back is deleted.
            let is_overwritten = upsert
                && op == RowOp::UpdateBefore
                && row + 1 < batch.len()
                && op_of(batch, row + 1) == RowOp::UpdateAfter
                && keys.with(row, |key| keys.with(row + 1, |next| key == next));
            if is_overwritten {
                continue;
            }
            let deletes = upsert && matches!(op, RowOp::Delete | RowOp::UpdateBefore);
            let refused = keys.with(row, |key| {
                let value = if deletes {
                    None
                } else {
                    self.buffer.get(value.0..value.1)
                };
                let limit = self.limits.message_bytes_max;
                let bytes = key.map_or(0, <[u8]>::len)
                    + value.map_or(0, <[u8]>::len)
                    + RECORD_OVERHEAD_BYTES;
                if bytes > limit {
                    return Some(format!(
                        "the record has {bytes} bytes, and the topic takes at most {limit}"
                    ));
                }
                if upsert && key.is_none() {
                    return Some("the key is NULL, and an upsert needs one".to_owned());
                }
                let partition = match key {
                    Some(key) => partition_of(key, self.limits.partitions_n),
                    None => keyless_turn(&mut self.keyless_n, self.limits.partitions_n),
                };
                take(Record {
                    partition,
                    key,
                    value,
                });
                None
            });
            if let Some(reason) = refused {
                bad.push_row(batch, row, &json_row(&batch.rows, row), reason);
                if upsert && op == RowOp::UpdateAfter {
                    // What it would have overwritten is not true any more.
                    keys.with(row, |key| {
                        let limit = self.limits.message_bytes_max;
                        if let Some(key) = key
                            && key.len() + RECORD_OVERHEAD_BYTES <= limit
                        {
                            take(Record {
                                partition: partition_of(key, self.limits.partitions_n),
                                key: Some(key),
                                value: None,
                            });
                        }
                    });
                }
            }
        }
        Ok(())
    }

    /// Writes all values into the buffer, one after the other.
    fn write_values(&mut self, rows: &RecordBatch) {
        self.buffer.clear();
        self.ends.clear();
        match &self.format {
            ValueFormat::Json => {
                write_json_rows(&mut self.buffer, rows);
                // JSON has no newline but the one behind each row.
                self.ends.extend(memchr_iter(b'\n', &self.buffer));
            }
            ValueFormat::Csv(dialect) => {
                for row in 0..rows.num_rows() {
                    dialect.write_rows(&mut self.buffer, &rows.slice(row, 1));
                    self.buffer.pop();
                    self.ends.push(self.buffer.len());
                }
            }
        }
    }
}

fn keyless_turn(keyless_n: &mut u32, partitions_n: i32) -> i32 {
    let partitions_n = u32::try_from(partitions_n).unwrap_or(0).max(1);
    let turn = (*keyless_n / KEYLESS_RUN) % partitions_n;
    *keyless_n = keyless_n.wrapping_add(1);
    i32::try_from(turn).unwrap_or(0)
}

#[cfg(test)]
mod tests;
