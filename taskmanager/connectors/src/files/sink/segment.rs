//! One staged file while it is written.
//!
//! Owns: encoding into it and making it durable. Start at: [`SegmentWriter`].

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use parquet::arrow::ArrowWriter;
use parquet::basic::{Compression, ZstdLevel};
use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;
use streamforge_engine::error::Error;

use crate::error::failed;
use crate::formats::write::{CsvDialect, write_json_rows};

/// Encoded bytes that are handed to the system at once.
const WRITE_BYTES: usize = 256 << 10;

/// A Parquet writer holds a row group in memory; this bounds it.
const ROW_GROUP_BYTES_MAX: usize = 16 << 20;

/// Bytes after which a file is sent to the disk while it is still written: the barrier then waits for
/// the rest only.
const SYNC_AHEAD_BYTES: u64 = 8 << 20;

/// How rows are written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OutputFormat {
    /// One object per line.
    Json,
    /// RFC 4180.
    Csv {
        /// How.
        dialect: CsvDialect,
        /// Whether the first line names the columns.
        header: bool,
    },
    /// Apache Parquet.
    Parquet,
}

impl OutputFormat {
    /// How names of its files end.
    pub fn ending(&self) -> &'static str {
        match self {
            OutputFormat::Json => "ndjson",
            OutputFormat::Csv { .. } => "csv",
            OutputFormat::Parquet => "parquet",
        }
    }
}

/// The engine's error for what the disk refused. A full disk or a folder that cannot be written to is
/// for a human; another attempt would meet it again.
pub fn disk_error(action: String, error: std::io::Error) -> Error {
    let retry = !matches!(
        error.kind(),
        ErrorKind::StorageFull
            | ErrorKind::QuotaExceeded
            | ErrorKind::FileTooLarge
            | ErrorKind::ReadOnlyFilesystem
            | ErrorKind::PermissionDenied
            | ErrorKind::NotFound
            | ErrorKind::NotADirectory
            | ErrorKind::InvalidFilename
    );
    failed(action, retry, error)
}

fn parquet_error(path: &Path, error: ParquetError) -> Error {
    let action = format!("write {}", path.display());
    match error {
        ParquetError::External(source) => match source.downcast::<std::io::Error>() {
            Ok(error) => disk_error(action, *error),
            Err(source) => failed(action, true, ParquetError::External(source)),
        },
        other => failed(action, true, other),
    }
}

#[derive(Debug)]
enum Encoder {
    Text {
        file: File,
        buffer: Vec<u8>,
        dialect: Option<CsvDialect>,
    },
    Parquet(Box<ArrowWriter<File>>),
}

/// A staged file that gets rows.
#[derive(Debug)]
pub struct SegmentWriter {
    path: PathBuf,
    encoder: Encoder,
    bytes: u64,
    rows: u64,
    /// Length up to which the disk was asked to take it.
    sent: u64,
    /// The disk takes what was written so far. The system tells a failed write to one caller only,
    /// so this one is asked before the file counts as durable.
    ahead: Option<JoinHandle<std::io::Result<()>>>,
}

impl SegmentWriter {
    /// Makes the file. Names are never used twice, so an existing one is an error.
    pub fn create(path: PathBuf, format: &OutputFormat, schema: &SchemaRef) -> Result<Self, Error> {
        let file = OpenOptions::new().write(true).create_new(true).open(&path);
        let file = file.map_err(|error| disk_error(format!("create {}", path.display()), error))?;
        let encoder = match format {
            OutputFormat::Json => Encoder::Text {
                file,
                buffer: Vec::new(),
                dialect: None,
            },
            OutputFormat::Csv { dialect, header } => {
                let mut buffer = Vec::new();
                if *header && is_first(&path) {
                    let names = schema.fields().iter().map(|field| field.name().as_str());
                    dialect.write_header(&mut buffer, names);
                }
                Encoder::Text {
                    file,
                    buffer,
                    dialect: Some(dialect.clone()),
                }
            }
            OutputFormat::Parquet => {
                let compression = Compression::ZSTD(ZstdLevel::default());
                let properties = WriterProperties::builder()
                    .set_compression(compression)
                    .build();
                let writer = ArrowWriter::try_new(file, schema.clone(), Some(properties));
                Encoder::Parquet(Box::new(writer.map_err(|e| parquet_error(&path, e))?))
            }
        };
        Ok(SegmentWriter {
            path,
            encoder,
            bytes: 0,
            rows: 0,
            sent: 0,
            ahead: None,
        })
    }

    fn write_error(&self, error: std::io::Error) -> Error {
        disk_error(format!("write {}", self.path.display()), error)
    }

    /// Appends rows.
    pub fn write(&mut self, rows: &RecordBatch) -> Result<(), Error> {
        self.rows += rows.num_rows() as u64;
        match &mut self.encoder {
            Encoder::Text {
                buffer, dialect, ..
            } => {
                match dialect {
                    None => write_json_rows(buffer, rows),
                    Some(dialect) => dialect.write_rows(buffer, rows),
                }
                if buffer.len() >= WRITE_BYTES {
                    self.flush()
                } else {
                    Ok(())
                }
            }
            Encoder::Parquet(writer) => {
                writer
                    .write(rows)
                    .map_err(|error| parquet_error(&self.path, error))?;
                if writer.in_progress_size() >= ROW_GROUP_BYTES_MAX {
                    writer
                        .flush()
                        .map_err(|error| parquet_error(&self.path, error))?;
                    return self.sync_ahead();
                }
                Ok(())
            }
        }
    }

    fn flush(&mut self) -> Result<(), Error> {
        let Encoder::Text { file, buffer, .. } = &mut self.encoder else {
            return Ok(());
        };
        let written = file.write_all(buffer);
        self.bytes += buffer.len() as u64;
        buffer.clear();
        written.map_err(|error| self.write_error(error))?;
        self.sync_ahead()
    }

    /// Lets the disk begin, if enough was written and it is not busy with this file.
    fn sync_ahead(&mut self) -> Result<(), Error> {
        let (file, written) = match &self.encoder {
            Encoder::Text { file, .. } => (file, self.bytes),
            Encoder::Parquet(writer) => (writer.inner(), writer.bytes_written() as u64),
        };
        let busy = self
            .ahead
            .as_ref()
            .is_some_and(|ahead| !ahead.is_finished());
        if busy || written < self.sent + SYNC_AHEAD_BYTES {
            return Ok(());
        }
        let file = file.try_clone();
        self.wait_for_disk()?;
        let file = file.map_err(|error| self.write_error(error))?;
        let thread = std::thread::Builder::new().name("sync-ahead".to_owned());
        let ahead = thread.spawn(move || file.sync_data());
        self.ahead = Some(ahead.map_err(|error| self.write_error(error))?);
        self.sent = written;
        Ok(())
    }

    /// What the disk said to what was sent ahead.
    fn wait_for_disk(&mut self) -> Result<(), Error> {
        let Some(ahead) = self.ahead.take() else {
            return Ok(());
        };
        let said = ahead
            .join()
            .unwrap_or_else(|_| Err(std::io::Error::other("a thread ended early")));
        said.map_err(|error| disk_error(format!("make {} durable", self.path.display()), error))
    }

    /// Bytes so far, roughly where they are compressed later.
    pub fn bytes_about(&self) -> u64 {
        match &self.encoder {
            Encoder::Text { buffer, .. } => self.bytes + buffer.len() as u64,
            Encoder::Parquet(writer) => (writer.bytes_written() + writer.in_progress_size()) as u64,
        }
    }

    /// Length up to which the disk was asked to take it before the barrier.
    #[cfg(test)]
    pub fn sent_ahead(&self) -> u64 {
        self.sent
    }

    /// Ends the file and makes it durable; answers its length and rows.
    pub fn finish(mut self) -> Result<(u64, u64), Error> {
        self.flush()?;
        self.wait_for_disk()?;
        let path = self.path.clone();
        let file = match self.encoder {
            Encoder::Text { file, .. } => file,
            Encoder::Parquet(writer) => writer
                .into_inner()
                .map_err(|error| parquet_error(&path, error))?,
        };
        let failed = |error| disk_error(format!("make {} durable", path.display()), error);
        file.sync_all().map_err(failed)?;
        let bytes = file.metadata().map_err(failed)?.len();
        Ok((bytes, self.rows))
    }
}

/// Whether a segment is the first of its file: only that one has a header.
fn is_first(path: &Path) -> bool {
    path.extension().is_some_and(|number| number == "0")
}
