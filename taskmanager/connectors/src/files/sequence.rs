//! The files of one split, one after the other, as chunks.
//!
//! Owns: opening files in order, the header of CSV, and the positions of chunks. Start at:
//! [`Sequence::next_job`]. Decodes nothing: that is done where there is a core free for it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use serde::{Deserialize, Serialize};

use super::chunker::{CHUNK_BYTES, Chunker, Framing, Piece};
use super::identity::{Error as FileError, FileFacts};
use super::stream;
use crate::formats::csv::header_names;
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
}

/// Why the next chunk cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file is not what it was, or cannot be read.
    #[error(transparent)]
    File(#[from] FileError),
    /// A CSV file lacks a column.
    #[error("{file} has no column `{column}`; its header names {found}")]
    MissingColumn {
        /// File.
        file: String,
        /// Column.
        column: String,
        /// What it has.
        found: String,
    },
    /// The first record of a CSV file cannot be read.
    #[error("{file} has no header that can be read: {reason}")]
    Header {
        /// File.
        file: String,
        /// What is wrong with it.
        reason: String,
    },
}

impl Error {
    /// Whether another attempt may do better.
    pub fn retry(&self) -> bool {
        match self {
            Error::File(error) => error.retry(),
            Error::MissingColumn { .. } | Error::Header { .. } => false,
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
}

struct Open {
    chunker: Chunker,
    places: Arc<Vec<Option<usize>>>,
}

/// The files of one split.
pub struct Sequence {
    files: Vec<FileFacts>,
    format: TextFormat,
    columns: Arc<Vec<Column>>,
    file: usize,
    offset: u64,
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
        files: Vec<FileFacts>,
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
            let Some(facts) = self.files.get(self.file) else {
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
                .map_err(|error| FileError::io("read", &facts.path, error))?;
            if let Some(piece) = piece {
                return Ok(Some(Job {
                    file: self.file,
                    places: Arc::clone(&open.places),
                    piece,
                    end_offset: open.chunker.offset(),
                }));
            }
            buffer = Vec::new();
            self.open = None;
            self.file += 1;
            self.offset = 0;
        }
    }

    fn open_file(&self) -> Result<Open, Error> {
        let framing = match &self.format {
            TextFormat::Csv { dialect, .. } => Framing::Csv {
                delimiter: dialect.delimiter,
            },
            TextFormat::Json | TextFormat::Raw => Framing::Lines,
        };
        let Some(facts) = self.files.get(self.file) else {
            return Err(Error::Header {
                file: String::new(),
                reason: "no such file".into(),
            });
        };
        let (places, start) = self.places(facts, framing)?;
        let offset = self.offset.max(start);
        let stream = stream::open(facts, offset, &self.read_bytes)?;
        let chunker = Chunker::new(stream, framing, offset);
        Ok(Open {
            chunker,
            places: Arc::new(places),
        })
    }

    /// Which column each field of a CSV file is, and where its records begin.
    fn places(
        &self,
        facts: &FileFacts,
        framing: Framing,
    ) -> Result<(Vec<Option<usize>>, u64), Error> {
        let TextFormat::Csv { dialect, header } = &self.format else {
            return Ok((Vec::new(), bom_bytes(facts)?));
        };
        let start = bom_bytes(facts)?;
        if !header {
            return Ok(((0..self.columns.len()).map(Some).collect(), start));
        }
        let file = facts.path.display().to_string();
        let stream = stream::open(facts, start, &Arc::default())?;
        let mut chunker = Chunker::new(stream, framing, start);
        let first = chunker
            .take_first()
            .map_err(|error| FileError::io("read", &facts.path, error))?;
        // A file without a single byte has no rows either.
        let Some(first) = first else {
            return Ok((Vec::new(), start));
        };
        let names = header_names(&first, dialect.delimiter).map_err(|fault| Error::Header {
            file: file.clone(),
            reason: fault.to_string(),
        })?;
        for column in self.columns.iter() {
            if !names.contains(&column.name) {
                let (column, found) = (column.name.clone(), names.join(", "));
                return Err(Error::MissingColumn {
                    file,
                    column,
                    found,
                });
            }
        }
        let mut places: Vec<Option<usize>> = Vec::with_capacity(names.len());
        for name in &names {
            let place = self.columns.iter().position(|c| c.name == *name);
            if place.is_some() && places.contains(&place) {
                let reason = format!("two columns are named `{name}`");
                return Err(Error::Header { file, reason });
            }
            places.push(place);
        }
        Ok((places, chunker.offset()))
    }
}

/// Length of a UTF-8 byte order mark at the start of the file: no row has it.
fn bom_bytes(facts: &FileFacts) -> Result<u64, Error> {
    use std::io::Read;
    let mut first = Vec::new();
    let stream = stream::open(facts, 0, &Arc::default())?;
    stream
        .take(3)
        .read_to_end(&mut first)
        .map_err(|error| FileError::io("read", &facts.path, error))?;
    Ok(if first == b"\xEF\xBB\xBF" { 3 } else { 0 })
}
