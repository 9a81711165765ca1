//! What stands before the rows of a file: a byte order mark, the header of CSV.
//!
//! Owns: which declared column each field of a CSV file is, and where its rows begin. Start at:
//! [`read`]; [`check`] for what is refused at the start of a job.

use std::io::Read;
use std::sync::Arc;

use super::chunker::Chunker;
use super::identity::Error as FileError;
use super::sequence::framing;
use super::shelf::SourceFile;
use super::stream;
use crate::formats::csv::header_names;
use crate::formats::decoded::Column;
use crate::formats::decoder::TextFormat;

/// Why a header is none.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file is not what it was, or cannot be read.
    #[error(transparent)]
    File(#[from] FileError),
    /// A CSV file lacks a column.
    #[error(
        "{file} has no column `{column}`; its header names {found}; mend the file or the `schema`"
    )]
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
    Unreadable {
        /// File.
        file: String,
        /// What is wrong with it.
        reason: String,
    },
}

impl Error {
    /// A split without the file it goes on in.
    pub fn no_file() -> Self {
        Error::Unreadable {
            file: String::new(),
            reason: "no such file".into(),
        }
    }

    /// Whether another attempt may do better.
    pub fn retry(&self) -> bool {
        match self {
            Error::File(error) => error.retry(),
            Error::MissingColumn { .. } | Error::Unreadable { .. } => false,
        }
    }
}

/// The begin of a file.
#[derive(Debug, Default)]
pub struct Header {
    /// Column of each field; empty for formats without fields, and for a file without a byte.
    pub places: Vec<Option<usize>>,
    /// The names, if the file has any.
    pub names: Vec<String>,
    /// Where the rows begin.
    pub end: u64,
}

impl Header {
    /// A declared column that the header does not name.
    pub fn missing<'a>(&self, columns: &'a [Column]) -> Option<&'a str> {
        let absent = |column: &&Column| !self.names.contains(&column.name);
        let first = columns
            .iter()
            .find(absent)
            .filter(|_| !self.names.is_empty());
        first.map(|column| column.name.as_str())
    }
}

/// Reads what stands before the rows.
pub fn read(source: &SourceFile, format: &TextFormat, columns: &[Column]) -> Result<Header, Error> {
    let start = bom_bytes(source)?;
    let end = start;
    let TextFormat::Csv { dialect, header } = format else {
        return Ok(Header {
            end,
            ..Header::default()
        });
    };
    if !header {
        return Ok(Header {
            places: (0..columns.len()).map(Some).collect(),
            names: Vec::new(),
            end,
        });
    }
    let file = source.name();
    let stream = stream::open(source, start, &Arc::default())?;
    let mut chunker = Chunker::new(stream, framing(format), start, None);
    let first = chunker
        .take_first()
        .map_err(|error| stream::read_error(source.path(), error))?;
    // A file without a single byte has no rows either.
    let Some(first) = first else {
        return Ok(Header {
            end,
            ..Header::default()
        });
    };
    let names = header_names(&first, dialect.delimiter).map_err(|fault| Error::Unreadable {
        file: file.clone(),
        reason: fault.to_string(),
    })?;
    let mut places: Vec<Option<usize>> = Vec::with_capacity(names.len());
    for name in &names {
        let place = columns.iter().position(|c| c.name == *name);
        if place.is_some() && places.contains(&place) {
            let reason = format!("two columns are named `{name}`");
            return Err(Error::Unreadable { file, reason });
        }
        places.push(place);
    }
    Ok(Header {
        places,
        names,
        end: chunker.offset(),
    })
}

/// Refuses a file without a declared column, before any row is read.
pub fn check(source: &SourceFile, format: &TextFormat, columns: &[Column]) -> Result<(), Error> {
    if !matches!(format, TextFormat::Csv { header: true, .. }) {
        return Ok(());
    }
    let header = read(source, format, columns)?;
    match header.missing(columns) {
        None => Ok(()),
        Some(column) => Err(Error::MissingColumn {
            file: source.name(),
            column: column.to_owned(),
            found: header.names.join(", "),
        }),
    }
}

/// Refuses the first of several files that lacks one; so many are opened at once.
pub fn check_all(
    files: &[SourceFile],
    format: &TextFormat,
    columns: &[Column],
    at_once: usize,
) -> Result<(), Error> {
    let check_some = |some: &[SourceFile]| {
        some.iter()
            .try_for_each(|file| check(file, format, columns))
    };
    if at_once <= 1 || files.len() <= 1 || !matches!(format, TextFormat::Csv { header: true, .. }) {
        return check_some(files);
    }
    let share = files.len().div_ceil(at_once);
    std::thread::scope(|scope| {
        let threads = files
            .chunks(share)
            .map(|some| scope.spawn(move || check_some(some)));
        let threads: Vec<_> = threads.collect();
        let join = |thread: std::thread::ScopedJoinHandle<'_, Result<(), Error>>| {
            let panicked = |panic| std::panic::resume_unwind(panic);
            thread.join().unwrap_or_else(panicked)
        };
        threads.into_iter().try_for_each(join)
    })
}

/// Length of a UTF-8 byte order mark at the start of the file: no row has it.
fn bom_bytes(source: &SourceFile) -> Result<u64, FileError> {
    let mut first = Vec::new();
    let stream = stream::open(source, 0, &Arc::default())?;
    stream
        .take(3)
        .read_to_end(&mut first)
        .map_err(|error| stream::read_error(source.path(), error))?;
    Ok(if first == b"\xEF\xBB\xBF" { 3 } else { 0 })
}
