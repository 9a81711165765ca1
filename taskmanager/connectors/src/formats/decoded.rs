//! What a decoder is told and what it answers.
//!
//! Owns: the description of a column to decode, the padded chunk of bytes, and the answer of decoded
//! columns, bad rows and positions. Start at: [`Chunk`], [`Decoded`].

use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch, RecordBatchOptions};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use arrow::error::ArrowError;
use streamforge_core::job_graph::{self, SourceColumn};
use streamforge_engine::types;

use crate::formats::builder::ColumnBuilder;

/// A row's bytes are kept in `.bad` up to this length, as streamjob.md promises.
pub const RAW_BYTES_MAX: usize = 64 << 10;

/// Longest row that is decoded. One longer is bad; it is skipped without being held in memory.
pub const ROW_BYTES_MAX: usize = 16 << 20;

/// Bytes behind the end of a chunk, all newlines. Scanners look 16 bytes ahead and stop at a newline,
/// so with these they need not ask where the chunk ends.
pub const CHUNK_PADDING: usize = 64;

/// How the text or number of a TIMESTAMP is read.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub enum TimeParse {
    /// `2026-01-31T23:59:59.123456Z`
    #[default]
    Rfc3339,
    /// Seconds since the epoch.
    EpochSeconds,
    /// Milliseconds since the epoch.
    EpochMillis,
    /// Microseconds since the epoch.
    EpochMicros,
    /// A strftime pattern.
    Strftime(String),
}

/// A declared column of a source.
#[derive(Clone, Debug)]
pub struct Column {
    /// Its name.
    pub name: String,
    /// Its type.
    pub data_type: DataType,
    /// Whether NULL is allowed.
    pub nullable: bool,
    /// Unescaped tokens of its JSON pointer; empty = the field of its name.
    pub path: Vec<String>,
    /// How its times are read.
    pub parse: TimeParse,
    /// Whether somebody reads it. A column nobody reads is checked, not kept: which rows are bad
    /// depends on the schema alone, never on the rest of the job.
    pub wanted: bool,
}

impl Column {
    /// A nullable, wanted column.
    pub fn new(name: impl Into<String>, data_type: DataType) -> Self {
        Column {
            name: name.into(),
            data_type,
            nullable: true,
            path: Vec::new(),
            parse: TimeParse::default(),
            wanted: true,
        }
    }

    /// The declared columns of a source, of which its output names those that somebody reads.
    pub fn declared(declared: &[SourceColumn], output: &[job_graph::Column]) -> Vec<Self> {
        declared.iter().map(|c| Self::of(c, output)).collect()
    }

    fn of(declared: &SourceColumn, output: &[job_graph::Column]) -> Self {
        let name = &declared.column.name;
        Column {
            name: name.clone(),
            data_type: types::arrow_type(&declared.column.data_type),
            nullable: declared.column.nullable,
            path: declared.path.as_deref().map(tokens).unwrap_or_default(),
            parse: match &declared.parse {
                job_graph::TimeParse::Rfc3339 => TimeParse::Rfc3339,
                job_graph::TimeParse::EpochSeconds => TimeParse::EpochSeconds,
                job_graph::TimeParse::EpochMillis => TimeParse::EpochMillis,
                job_graph::TimeParse::EpochMicros => TimeParse::EpochMicros,
                job_graph::TimeParse::Pattern(pattern) => TimeParse::Strftime(pattern.clone()),
            },
            wanted: output.iter().any(|column| column.name == *name),
        }
    }

    /// The same, not nullable.
    pub fn not_null(mut self) -> Self {
        self.nullable = false;
        self
    }
}

/// The unescaped tokens of a JSON pointer (RFC 6901).
fn tokens(pointer: &str) -> Vec<String> {
    let unescape = |token: &str| token.replace("~1", "/").replace("~0", "~");
    pointer.split('/').skip(1).map(unescape).collect()
}

/// A run of whole rows, with [`CHUNK_PADDING`] newlines behind it.
#[derive(Debug)]
pub struct Chunk {
    bytes: Vec<u8>,
    len: usize,
    /// Where the first byte is in the (uncompressed) file.
    pub offset: u64,
}

impl Chunk {
    /// A chunk of these bytes.
    pub fn new(bytes: Vec<u8>, offset: u64) -> Self {
        let len = bytes.len();
        Self::from_buffer(bytes, len, offset)
    }

    /// A chunk of the first `len` bytes of a buffer that may be longer. What is behind them is
    /// overwritten by the padding.
    pub fn from_buffer(mut bytes: Vec<u8>, len: usize, offset: u64) -> Self {
        let len = len.min(bytes.len());
        if bytes.len() < len + CHUNK_PADDING {
            bytes.resize(len + CHUNK_PADDING, b'\n');
        }
        bytes[len..len + CHUNK_PADDING].fill(b'\n');
        Chunk { bytes, len, offset }
    }

    /// The rows.
    pub fn data(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// The rows and the padding.
    pub fn padded(&self) -> &[u8] {
        &self.bytes[..self.len + CHUNK_PADDING]
    }

    /// Length without padding.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Gives the memory back for the next chunk.
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }
}

/// A row that could not be decoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadRow {
    /// Number of the row in its split.
    pub row: u64,
    /// Where its first byte is in the split.
    pub offset: u64,
    /// Its bytes, cut at [`RAW_BYTES_MAX`].
    pub raw: Vec<u8>,
    /// What is wrong.
    pub reason: String,
}

/// The answer to one chunk.
#[derive(Debug)]
pub struct Decoded {
    /// The wanted columns of the good rows.
    pub rows: RecordBatch,
    /// Number of each good row in its split.
    pub row_numbers: Vec<u64>,
    /// Where each good row's first byte is in its split.
    pub offsets: Vec<u64>,
    /// The other rows.
    pub bad: Vec<BadRow>,
    /// Fields that no column names.
    pub unknown_fields: u64,
    /// Rows of the chunk, blank lines included: what to add to the row number.
    pub rows_n: u64,
}

impl Decoded {
    /// Moves all row numbers up: the rows of a chunk are numbered before it is known how many rows the
    /// chunks before it have.
    pub fn shift_rows(&mut self, by: u64) {
        for row in &mut self.row_numbers {
            *row += by;
        }
        for bad in &mut self.bad {
            bad.row += by;
        }
    }
}

/// Raw bytes of a bad row.
pub fn raw_of(row: &[u8]) -> Vec<u8> {
    row.get(..row.len().min(RAW_BYTES_MAX))
        .unwrap_or_default()
        .to_vec()
}

/// The schema of the wanted columns.
pub fn wanted_schema(columns: &[Column]) -> SchemaRef {
    let fields = columns.iter().filter(|column| column.wanted);
    let fields = fields.map(|c| Field::new(&c.name, c.data_type.clone(), c.nullable));
    Arc::new(Schema::new(fields.collect::<Vec<_>>()))
}

/// Rows of one chunk on their way to a [`Decoded`].
#[derive(Debug, Default)]
pub struct Rows {
    /// Number of each good row.
    pub row_numbers: Vec<u64>,
    /// Offset of each good row.
    pub offsets: Vec<u64>,
    /// The bad rows.
    pub bad: Vec<BadRow>,
    /// Rows so far, good, bad and blank.
    pub rows_n: u64,
}

impl Rows {
    /// Number of good rows.
    pub fn good_n(&self) -> usize {
        self.offsets.len()
    }

    /// Counts a good row.
    #[inline(always)]
    pub fn push_good(&mut self, offset: u64) {
        self.row_numbers.push(self.rows_n);
        self.offsets.push(offset);
        self.rows_n = self.rows_n.wrapping_add(1);
    }

    /// Counts a bad row.
    #[cold]
    pub fn push_bad(&mut self, offset: u64, row: &[u8], reason: String) {
        self.bad.push(BadRow {
            row: self.rows_n,
            offset,
            raw: raw_of(row),
            reason,
        });
        self.rows_n += 1;
    }

    /// The answer, with the columns of the good rows.
    pub fn finish(
        self,
        builders: &mut [ColumnBuilder],
        schema: &SchemaRef,
        unknown_fields: u64,
    ) -> Result<Decoded, ArrowError> {
        let mut arrays: Vec<ArrayRef> = Vec::with_capacity(schema.fields().len());
        for builder in builders {
            let array = builder.finish()?;
            if builder.wanted {
                arrays.push(array);
            }
        }
        let options = RecordBatchOptions::new().with_row_count(Some(self.good_n()));
        Ok(Decoded {
            rows: RecordBatch::try_new_with_options(Arc::clone(schema), arrays, &options)?,
            row_numbers: self.row_numbers,
            offsets: self.offsets,
            bad: self.bad,
            unknown_fields,
            rows_n: self.rows_n,
        })
    }
}
