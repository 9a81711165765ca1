//! Parquet files as a source.
//!
//! Owns: reading wanted columns by name, going on at a row, and setting aside the rows whose values do
//! not fit the declared types. Start at: [`ParquetReading`].
//!
//! Only wanted columns are read: the file's own schema says what the others are.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arrow::array::{Array, ArrayRef, BooleanArray, RecordBatch, RecordBatchOptions};
use arrow::compute::{CastOptions, cast_with_options, filter};
use arrow::datatypes::{DataType, SchemaRef};
use arrow::error::ArrowError;
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{ParquetRecordBatchReader, ParquetRecordBatchReaderBuilder};
use parquet::errors::ParquetError;
use parquet::file::reader::ChunkReader;
use streamforge_engine::batch::BATCH_ROWS;

use super::decode::DecodedPiece;
use super::identity::Error as FileError;
use super::object::ObjectChunks;
use super::sequence::Position;
use super::shelf::{Opened, SourceFile};
use crate::formats::decoded::{BadRow, Column, Decoded, raw_of, wanted_schema};
use crate::formats::fault::Fault;
use crate::formats::write::json_row;

/// Why a Parquet file cannot be read on.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file is not what it was, or cannot be opened.
    #[error(transparent)]
    File(#[from] FileError),
    /// Its rows cannot be sorted.
    #[error("sort rows of {file}")]
    Rows {
        /// File.
        file: String,
        /// What is wrong.
        #[source]
        source: ArrowError,
    },
    /// A column is missing or of another kind.
    #[error("{file}: {reason}")]
    Schema {
        /// File.
        file: String,
        /// What is wrong, and what is there.
        reason: String,
    },
}

impl Error {
    /// Whether another attempt may do better.
    pub fn retry(&self) -> bool {
        match self {
            Error::File(error) => error.retry(),
            Error::Rows { .. } | Error::Schema { .. } => false,
        }
    }
}

/// Of a file that is no Parquet file, or a damaged one.
fn broken(file: &str, error: &dyn std::error::Error) -> Error {
    let reason = error.to_string();
    let reason = reason.trim_start_matches("Parquet error: ").to_owned();
    Error::File(FileError::Broken {
        path: file.into(),
        kind: "Parquet",
        reason,
    })
}

/// The Parquet files of one split, one after the other.
pub struct ParquetReading {
    files: Vec<SourceFile>,
    columns: Arc<Vec<Column>>,
    schema: SchemaRef,
    position: Position,
    reader: Option<ParquetRecordBatchReader>,
    /// Of an object: it knows why a read failed.
    chunks: Option<ObjectChunks>,
    read_bytes: Arc<AtomicU64>,
}

impl std::fmt::Debug for ParquetReading {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ParquetReading")
            .field("position", &self.position)
            .finish_non_exhaustive()
    }
}

impl ParquetReading {
    /// Begins at a position, in whose file it checks at once.
    pub fn start(
        files: Vec<SourceFile>,
        columns: Arc<Vec<Column>>,
        position: Position,
        read_bytes: Arc<AtomicU64>,
    ) -> Result<Self, Error> {
        let schema = wanted_schema(&columns);
        let mut reading = ParquetReading {
            files,
            columns,
            schema,
            position,
            reader: None,
            chunks: None,
            read_bytes,
        };
        reading.open()?;
        Ok(reading)
    }

    fn open(&mut self) -> Result<(), Error> {
        let Some(source) = self.files.get(self.position.file) else {
            return Ok(());
        };
        let name = source.name();
        self.reader = Some(match source.open()? {
            Opened::File(file) => self.reader_of(file, name)?,
            Opened::Object(object) => {
                let chunks = ObjectChunks::new(object.object().clone());
                self.chunks = Some(chunks.clone());
                let opened = self.reader_of(chunks, name);
                opened.map_err(|error| self.fault_or(error))?
            }
        });
        Ok(())
    }

    /// What kept an object from being read, if that is what is behind an error.
    fn fault_or(&self, error: Error) -> Error {
        let fault = self.chunks.as_ref().and_then(ObjectChunks::take_fault);
        let source = self.files.get(self.position.file);
        match (fault, source) {
            (Some(fault), Some(source)) => FileError::io("read", source.path(), fault).into(),
            _ => error,
        }
    }

    fn reader_of<T: ChunkReader + 'static>(
        &self,
        input: T,
        name: String,
    ) -> Result<ParquetRecordBatchReader, Error> {
        let error = |error: ParquetError| broken(&name, &error);
        let builder = ParquetRecordBatchReaderBuilder::try_new(input).map_err(error)?;
        let mut wanted = Vec::new();
        for column in self.columns.iter().filter(|column| column.wanted) {
            let fields = builder.schema().fields();
            let Some(idx) = fields.iter().position(|field| *field.name() == column.name) else {
                let found: Vec<&str> = fields.iter().map(|field| field.name().as_str()).collect();
                let reason = format!("no column `{}`; it has {}", column.name, found.join(", "));
                return Err(Error::Schema { file: name, reason });
            };
            wanted.push(idx);
        }
        let mask = ProjectionMask::roots(builder.parquet_schema(), wanted);
        let rows_to_skip = usize::try_from(self.position.row).unwrap_or(usize::MAX);
        builder
            .with_projection(mask)
            .with_batch_size(BATCH_ROWS)
            .with_offset(rows_to_skip)
            .build()
            .map_err(error)
    }

    /// The next rows in order; `None` at the end.
    pub fn next_piece(&mut self) -> Result<Option<DecodedPiece>, Error> {
        loop {
            let Some(source) = self.files.get(self.position.file) else {
                return Ok(None);
            };
            let (file, size) = (source.name(), source.facts.size);
            if self.reader.is_none() {
                self.open()?;
            }
            let batch = self.reader.as_mut().and_then(Iterator::next);
            let Some(batch) = batch else {
                self.reader = None;
                self.read_bytes.fetch_add(size, Ordering::Relaxed);
                self.position = Position {
                    file: self.position.file + 1,
                    ..Position::default()
                };
                continue;
            };
            let batch = batch.map_err(|error| self.fault_or(broken(&file, &error)))?;
            let decoded = self.convert(&batch, &file)?;
            self.position.row += decoded.rows_n;
            return Ok(Some(DecodedPiece {
                file: self.position.file,
                end_offset: 0,
                read: None,
                decoded,
            }));
        }
    }

    /// The rows in the declared types; those that do not fit are bad.
    fn convert(&self, batch: &RecordBatch, file: &str) -> Result<Decoded, Error> {
        let rows_n = batch.num_rows();
        let mut good = vec![true; rows_n];
        let mut bad = Vec::new();
        let mut arrays = Vec::with_capacity(self.schema.fields().len());
        for field in self.schema.fields() {
            let Some(array) = batch.column_by_name(field.name()) else {
                continue;
            };
            let converted = convert_array(array, field.data_type()).map_err(|reason| {
                let reason = format!("column `{}`: {reason}", field.name());
                Error::Schema {
                    file: file.to_owned(),
                    reason,
                }
            })?;
            for (row, good) in good.iter_mut().enumerate() {
                let fault = if converted.is_null(row) && !array.is_null(row) {
                    Fault::Convert
                } else if converted.is_null(row) && !field.is_nullable() {
                    Fault::Null
                } else {
                    continue;
                };
                if std::mem::replace(good, false) {
                    let reason = format!("column {}: {fault}", field.name());
                    let raw = raw_of(&json_row(batch, row));
                    bad.push(BadRow {
                        row: row as u64,
                        offset: 0,
                        raw,
                        reason,
                    });
                }
            }
            arrays.push(converted);
        }
        bad.sort_by_key(|bad| bad.row);
        let rows_error = |source| Error::Rows {
            file: file.to_owned(),
            source,
        };
        let rows = self
            .good_rows(arrays, &good, !bad.is_empty(), rows_n)
            .map_err(rows_error)?;
        let numbers = good.iter().enumerate().filter(|(_, good)| **good);
        let row_numbers: Vec<u64> = numbers.map(|(row, _)| row as u64).collect();
        Ok(Decoded {
            offsets: vec![0; row_numbers.len()],
            rows,
            row_numbers,
            bad,
            unknown_fields: 0,
            rows_n: rows_n as u64,
        })
    }

    fn good_rows(
        &self,
        arrays: Vec<ArrayRef>,
        good: &[bool],
        some_bad: bool,
        rows_n: usize,
    ) -> Result<RecordBatch, ArrowError> {
        let mut arrays = arrays;
        let mut len = rows_n;
        if some_bad {
            let keep = BooleanArray::from(good.to_vec());
            len = keep.true_count();
            arrays = arrays
                .iter()
                .map(|a| filter(a, &keep))
                .collect::<Result<_, _>>()?;
        }
        let options = RecordBatchOptions::new().with_row_count(Some(len));
        RecordBatch::try_new_with_options(Arc::clone(&self.schema), arrays, &options)
    }
}

/// Kinds of types that convert into each other without another meaning.
fn same_kind(from: &DataType, to: &DataType) -> bool {
    use DataType::{
        Binary, BinaryView, Boolean, Date32, Date64, Decimal128, Decimal256, Dictionary,
        FixedSizeBinary, Float32, Float64, LargeBinary, LargeList, LargeUtf8, List, Struct,
        Timestamp, Utf8, Utf8View,
    };
    match (from, to) {
        (Dictionary(_, value), _) => same_kind(value, to),
        (Boolean, Boolean) | (Date32 | Date64, Date32) | (Timestamp(..), Timestamp(..)) => true,
        (Utf8 | LargeUtf8 | Utf8View, Utf8) => true,
        (Binary | LargeBinary | BinaryView | FixedSizeBinary(_), Binary) => true,
        (from, Decimal128(..)) => {
            from.is_integer() || matches!(from, Decimal128(..) | Decimal256(..))
        }
        (Float32 | Float64, Float32 | Float64) => true,
        (from, Float64) => from.is_integer(),
        (List(from) | LargeList(from), List(to)) => same_kind(from.data_type(), to.data_type()),
        (Struct(_), Struct(_)) => true,
        (from, to) => from.is_integer() && to.is_integer(),
    }
}

/// The values in the wanted type, NULL where they do not fit.
fn convert_array(array: &ArrayRef, to: &DataType) -> Result<ArrayRef, String> {
    if array.data_type() == to {
        return Ok(Arc::clone(array));
    }
    let other = || format!("the file has {}, the schema wants {to}", array.data_type());
    if !same_kind(array.data_type(), to) {
        return Err(other());
    }
    let options = CastOptions {
        safe: true,
        ..CastOptions::default()
    };
    cast_with_options(array, to, &options).map_err(|_| other())
}
