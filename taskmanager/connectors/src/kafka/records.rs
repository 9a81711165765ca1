//! Records of a partition on their way to rows: every record is exactly one row, good or bad.
//!
//! Owns: laying records side by side for the decoders, which read lines, and finding each row's record
//! again. Start at: [`Records`].
//!
//! A record is not a line: it may hold newlines, be empty or have no value at all. A newline between
//! the tokens of JSON becomes a carriage return, which is as blank; within a string either is an error.
//! A CSV record is looked at before it is laid down if it has a quote or a newline, so that an open
//! quote never reaches into the next record.

use arrow::error::ArrowError;
use memchr::{memchr, memchr_iter, memchr2};

use crate::formats::builder::{ColumnBuilder, Values};
use crate::formats::csv::is_one_record;
use crate::formats::decoded::{Chunk, Column, Decoded, ROW_BYTES_MAX, Rows, raw_of, wanted_schema};
use crate::formats::decoder::{Decoder, TextFormat};
use crate::formats::fault::Fault;
use crate::formats::text::push_text;
use arrow::datatypes::SchemaRef;

/// What a record without a value is told as.
const TOMBSTONE: &str = "the record has no value (a tombstone)";

/// What an empty record is told as.
const EMPTY: &str = "the record is empty";

/// What a CSV record of several lines is told as.
const SEVERAL: &str = "the record is not exactly one CSV record";

/// A record that could not become a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadRecord {
    /// Its offset.
    pub offset: i64,
    /// Its bytes, cut; `None`: it has no value.
    pub raw: Option<Vec<u8>>,
    /// What is wrong.
    pub reason: String,
}

/// Rows and where they come from.
#[derive(Debug)]
pub struct DecodedRecords {
    /// The good rows.
    pub decoded: Decoded,
    /// For each good row the record's number among those taken since the last call.
    pub records: Vec<u32>,
    /// The others.
    pub bad: Vec<BadRecord>,
}

enum How {
    /// As lines of a chunk.
    Lines(Decoder),
    /// Each value as it is.
    Raw(Box<Raw>),
}

struct Raw {
    builders: Vec<ColumnBuilder>,
    schema: SchemaRef,
    rows: Rows,
}

/// Collects records of one partition and decodes them.
pub struct Records {
    how: How,
    is_json: bool,
    delimiter: u8,
    /// Values, one per line.
    lines: Vec<u8>,
    /// For each line its record's number and offset.
    of_line: Vec<(u32, i64)>,
    /// Bytes of lines that were changed to fit: line and what the record was.
    changed: Vec<(usize, Vec<u8>)>,
    bad: Vec<BadRecord>,
    records_n: u32,
    /// Bytes of their values.
    bytes: usize,
}

impl std::fmt::Debug for Records {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Records")
            .field("records", &self.records_n)
            .finish_non_exhaustive()
    }
}

impl Records {
    /// For records of this format with these columns.
    pub fn new(format: &TextFormat, columns: &[Column]) -> Result<Self, ArrowError> {
        let (how, is_json, delimiter) = match format {
            TextFormat::Json => (How::Lines(Decoder::new(format, columns, &[])?), true, b','),
            TextFormat::Csv { dialect, .. } => {
                // Fields come in the order of the columns.
                let places: Vec<Option<usize>> = (0..columns.len()).map(Some).collect();
                let decoder = Decoder::new(format, columns, &places)?;
                (How::Lines(decoder), false, dialect.delimiter)
            }
            TextFormat::Raw => {
                let builders = columns
                    .iter()
                    .map(ColumnBuilder::new)
                    .collect::<Result<_, _>>()?;
                let raw = Raw {
                    builders,
                    schema: wanted_schema(columns),
                    rows: Rows::default(),
                };
                (How::Raw(Box::new(raw)), false, b',')
            }
        };
        Ok(Records {
            how,
            is_json,
            delimiter,
            lines: Vec::new(),
            of_line: Vec::new(),
            changed: Vec::new(),
            bad: Vec::new(),
            records_n: 0,
            bytes: 0,
        })
    }

    /// Records taken since the last [`Records::decode`].
    pub fn len(&self) -> usize {
        self.records_n as usize
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.records_n == 0
    }

    /// Bytes of their values.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Takes a record.
    #[inline]
    pub fn push(&mut self, offset: i64, value: Option<&[u8]>) {
        let record = self.records_n;
        self.records_n = self.records_n.wrapping_add(1);
        self.bytes += value.map_or(0, <[u8]>::len);
        if let How::Raw(raw) = &mut self.how {
            raw.push(offset, value, &mut self.bad);
            self.of_line.push((record, offset));
            return;
        }
        let Some(value) = value else {
            return self.set_aside(offset, None, TOMBSTONE);
        };
        if value.len() > ROW_BYTES_MAX {
            return self.set_aside(offset, Some(value), &Fault::RowTooLong.to_string());
        }
        let fits = if self.is_json {
            value.first() == Some(&b'{') && memchr(b'\n', value).is_none()
        } else {
            // A line of nothing but a return would be blank, and a blank line is no row.
            value.first().is_some_and(|byte| *byte != b'\r')
                && memchr2(b'\n', b'"', value).is_none()
        };
        if fits {
            self.lines.extend_from_slice(value);
            self.lines.push(b'\n');
            self.of_line.push((record, offset));
        } else {
            self.push_odd(record, offset, value);
        }
    }

    /// A record that is not simply a line.
    #[cold]
    fn push_odd(&mut self, record: u32, offset: i64, value: &[u8]) {
        if value.iter().all(u8::is_ascii_whitespace) {
            return self.set_aside(offset, Some(value), EMPTY);
        }
        let start = self.lines.len();
        self.lines.extend_from_slice(value);
        self.lines.push(b'\n');
        if self.is_json {
            let newlines: Vec<usize> = memchr_iter(b'\n', value).collect();
            if !newlines.is_empty() {
                self.changed.push((self.of_line.len(), raw_of(value)));
            }
            for at in newlines {
                if let Some(byte) = self.lines.get_mut(start + at) {
                    *byte = b'\r';
                }
            }
        } else {
            let whole = value.len() + usize::from(!value.ends_with(b"\n"));
            let line = self.lines.get(start..start + whole).unwrap_or_default();
            if !is_one_record(line, self.delimiter) {
                self.lines.truncate(start);
                return self.set_aside(offset, Some(value), SEVERAL);
            }
            self.lines.truncate(start + whole);
        }
        self.of_line.push((record, offset));
    }

    #[cold]
    fn set_aside(&mut self, offset: i64, value: Option<&[u8]>, reason: &str) {
        self.bad.push(BadRecord {
            offset,
            raw: value.map(raw_of),
            reason: reason.to_owned(),
        });
    }

    /// The rows of all records taken; none are left.
    pub fn decode(&mut self) -> Result<DecodedRecords, ArrowError> {
        (self.records_n, self.bytes) = (0, 0);
        let mut decoded = match &mut self.how {
            How::Raw(raw) => {
                std::mem::take(&mut raw.rows).finish(&mut raw.builders, &raw.schema, 0)?
            }
            How::Lines(decoder) => {
                let chunk = Chunk::new(std::mem::take(&mut self.lines), 0);
                let decoded = decoder.decode(&chunk)?;
                self.lines = chunk.into_bytes();
                self.lines.clear();
                decoded
            }
        };
        let mut bad = std::mem::take(&mut self.bad);
        for row in std::mem::take(&mut decoded.bad) {
            let line = usize::try_from(row.row).unwrap_or(usize::MAX);
            let as_it_was = self.changed.iter().find(|(changed, _)| *changed == line);
            bad.push(BadRecord {
                offset: self.of_line.get(line).map_or(-1, |(_, offset)| *offset),
                raw: Some(as_it_was.map_or(row.raw, |(_, raw)| raw.clone())),
                reason: row.reason,
            });
        }
        let record = |row: &u64| {
            let line = usize::try_from(*row).unwrap_or(usize::MAX);
            self.of_line.get(line).map_or(0, |(record, _)| *record)
        };
        let records = decoded.row_numbers.iter().map(record).collect();
        self.of_line.clear();
        self.changed.clear();
        Ok(DecodedRecords {
            decoded,
            records,
            bad,
        })
    }
}

fn push_raw(builder: &mut ColumnBuilder, value: &[u8]) -> Result<(), Fault> {
    if let Values::Bytes(runs) = &mut builder.values {
        runs.extend(value);
        runs.close();
        builder.len += 1;
        return Ok(());
    }
    push_text(builder, value)
}

impl Raw {
    fn push(&mut self, offset: i64, value: Option<&[u8]>, bad: &mut Vec<BadRecord>) {
        let good_n = self.rows.good_n();
        let Some(builder) = self.builders.first_mut() else {
            return;
        };
        let pushed = match value {
            None => builder.push_null(),
            Some(value) => push_raw(builder, value),
        };
        match pushed {
            Ok(()) => self.rows.push_good(0),
            Err(fault) => {
                builder.truncate(good_n);
                let reason = if value.is_none() {
                    TOMBSTONE.to_owned()
                } else {
                    fault.to_string()
                };
                // Its place among the rows is kept, so that rows and records stay in step.
                self.rows.rows_n += 1;
                bad.push(BadRecord {
                    offset,
                    raw: value.map(raw_of),
                    reason,
                });
            }
        }
    }
}

#[cfg(test)]
mod tests;
