//! The files of one split, one after the other, as chunks.
//!
//! Owns: opening files in order, and the positions of chunks. Start at:
//! [`Sequence::next_job`]. Decodes nothing: that is done where there is a core free for it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use serde::{Deserialize, Serialize};

use super::chunker::{CHUNK_BYTES, Chunker, Framing, Piece};
use super::fingerprint::Fingerprint;
use super::header::{self, Error as HeaderError};
use super::identity::Error as FileError;
use super::shelf::SourceFile;
use super::stream::{self, Entered};
use crate::formats::decoded::Column;
use crate::formats::decoder::TextFormat;

/// How far a split is read: everything before is taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Position {
    /// Index of the file within the split.
    pub file: usize,
    /// Uncompressed offset within that file.
    pub offset: u64,
    /// Number of the next row of that file.
    pub row: u64,
    /// What was read of that file; unknown in positions of old stores, and for Parquet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read: Option<Fingerprint>,
}

/// Why the next chunk cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file is not what it was, or cannot be read.
    #[error(transparent)]
    File(#[from] FileError),
    /// The header of a CSV file cannot be read.
    #[error(transparent)]
    Header(#[from] HeaderError),
}

impl Error {
    /// Whether another attempt may do better.
    pub fn retry(&self) -> bool {
        match self {
            Error::File(error) => error.retry(),
            Error::Header(error) => error.retry(),
        }
    }
}

/// Work for a decoder.
#[derive(Debug)]
pub struct Job {
    /// Index of the file within the split.
    pub file: usize,
    /// Which column each CSV field is.
    pub places: Arc<Vec<Option<usize>>>,
    /// The rows.
    pub piece: Piece,
    /// Where the file goes on behind them.
    pub end_offset: u64,
    /// What was read up to there.
    pub read: Option<Fingerprint>,
}

struct Open {
    chunker: Chunker,
    places: Arc<Vec<Option<usize>>>,
}

/// The files of one split.
pub struct Sequence {
    files: Vec<SourceFile>,
    format: TextFormat,
    columns: Arc<Vec<Column>>,
    file: usize,
    offset: u64,
    /// What was read before `offset`.
    read: Option<Fingerprint>,
    open: Option<Open>,
    /// Bytes aimed at per chunk; decoders set it by the length of the rows they see.
    chunk_bytes: Arc<AtomicUsize>,
    read_bytes: Arc<AtomicU64>,
}

impl std::fmt::Debug for Sequence {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sequence")
            .field("file", &self.file)
            .finish_non_exhaustive()
    }
}

impl Sequence {
    /// The files, going on at `position`.
    pub fn new(
        files: Vec<SourceFile>,
        format: TextFormat,
        columns: Arc<Vec<Column>>,
        position: Position,
        read_bytes: Arc<AtomicU64>,
    ) -> Self {
        Sequence {
            files,
            format,
            columns,
            file: position.file,
            offset: position.offset,
            read: position.read,
            open: None,
            chunk_bytes: Arc::new(AtomicUsize::new(CHUNK_BYTES)),
            read_bytes,
        }
    }

    /// Opens the file it goes on in: a file that changed is noticed before a row is read.
    pub fn check(&mut self) -> Result<(), Error> {
        if self.open.is_none() && self.file < self.files.len() {
            self.open = Some(self.open_file()?);
        }
        Ok(())
    }

    /// Bytes aimed at per chunk, to be changed while it is read.
    pub fn chunk_bytes(&self) -> Arc<AtomicUsize> {
        Arc::clone(&self.chunk_bytes)
    }

    /// The next rows, in `buffer`'s memory; `None` when all files are read.
    pub fn next_job(&mut self, mut buffer: Vec<u8>) -> Result<Option<Job>, Error> {
        loop {
            let Some(source) = self.files.get(self.file) else {
                return Ok(None);
            };
            if self.open.is_none() {
                self.open = Some(self.open_file()?);
            }
            let Some(open) = &mut self.open else {
                return Ok(None);
            };
            open.chunker
                .set_target(self.chunk_bytes.load(Ordering::Relaxed));
            let piece = open
                .chunker
                .next_piece(buffer)
                .map_err(|error| stream::read_error(source.path(), error))?;
            if let Some(piece) = piece {
                return Ok(Some(Job {
                    file: self.file,
                    places: Arc::clone(&open.places),
                    piece,
                    end_offset: open.chunker.offset(),
                    read: open.chunker.fingerprint(),
                }));
            }
            buffer = Vec::new();
            self.open = None;
            self.file += 1;
            self.offset = 0;
            self.read = None;
        }
    }

    fn open_file(&self) -> Result<Open, Error> {
        // `next_job` and `check` come here only for a file that is there.
        let source = self.files.get(self.file).ok_or_else(HeaderError::no_file)?;
        let header = header::read(source, &self.format, &self.columns)?;
        if let Some(column) = header.missing(&self.columns) {
            tracing::warn!(file = %source.name(), column, header = header.names.join(","),
                "the header does not name a declared column; all rows of the file are bad");
        }
        let offset = self.offset.max(header.end);
        let known = self.read.filter(|_| offset == self.offset);
        let Entered { stream, prefix } = stream::enter(source, offset, known, &self.read_bytes)?;
        let chunker = Chunker::new(stream, framing(&self.format), offset, prefix);
        Ok(Open {
            chunker,
            places: Arc::new(header.places),
        })
    }
}

/// What ends a row.
pub fn framing(format: &TextFormat) -> Framing {
    match format {
        TextFormat::Csv { dialect, .. } => Framing::Csv {
            delimiter: dialect.delimiter,
        },
        TextFormat::Json | TextFormat::Raw => Framing::Lines,
    }
}
