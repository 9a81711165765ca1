//! Which file a split is, and whether it is still the same.
//!
//! Owns: the facts about a file that are stored with its split, and the check of them when the file is
//! opened again. Start at: [`FileFacts::of`], [`FileFacts::check`].
//!
//! A file is read to the length it had when it was listed. It may grow; it must not shrink, vanish or
//! change. Equal length and equal time of change is taken for the same content; any other file must
//! agree in its first and in its last listed bytes, and in all that was read of it
//! ([`super::stream::check_read`]).

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

/// Bytes at each end of a file that are hashed.
const SAMPLE_BYTES: u64 = 4096;

/// What is known about a file since it was listed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileFacts {
    /// Where it is.
    pub path: PathBuf,
    /// Its length, to which it is read.
    pub size: u64,
    /// When it was changed last, in microseconds since the epoch.
    pub changed_us: i64,
    /// XXH3-64 of its first bytes.
    pub head: u64,
    /// XXH3-64 of the last bytes before `size`.
    pub tail: u64,
    /// The version of an object of a bucket, which says all: of one the three before are 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub etag: Option<String>,
}

/// Why a file cannot be read as it was listed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The system refused.
    #[error("{action} {}", path.display())]
    Io {
        /// Verb.
        action: &'static str,
        /// File.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
    /// It is gone.
    #[error("{} vanished since it was listed; put it back, or start anew with --fresh", path.display())]
    Vanished {
        /// File.
        path: PathBuf,
    },
    /// It is shorter than it was.
    #[error(
        "{} shrank from {listed} to {now} bytes since it was listed; put it back, or start anew with --fresh",
        path.display()
    )]
    Shrank {
        /// File.
        path: PathBuf,
        /// Length when listed.
        listed: u64,
        /// Length now.
        now: u64,
    },
    /// Its content is another.
    #[error("{} changed since it was listed ({what}); put it back, or start anew with --fresh", path.display())]
    Changed {
        /// File.
        path: PathBuf,
        /// How that was noticed.
        what: &'static str,
    },
    /// It is not what its name or the document says, or not all of it.
    #[error(
        "{} is no whole {kind} file ({reason}); put a whole one in its place, or take it away, and start anew with \
         --fresh",
        path.display()
    )]
    Broken {
        /// File.
        path: PathBuf,
        /// What it should be.
        kind: &'static str,
        /// What the library says.
        reason: String,
    },
}

impl Error {
    /// An error of the system; the path is the caller's. Objects of a bucket say in this way, too, that
    /// they are not what was listed.
    pub fn io(action: &'static str, path: &Path, source: std::io::Error) -> Self {
        source.downcast().unwrap_or_else(|source| Error::Io {
            action,
            path: path.to_owned(),
            source,
        })
    }

    /// Whether another attempt may do better.
    pub fn retry(&self) -> bool {
        match self {
            Error::Io { source, .. } => !matches!(
                source.kind(),
                std::io::ErrorKind::NotFound
                    | std::io::ErrorKind::PermissionDenied
                    // Damaged compressed data; the libraries say it in these ways.
                    | std::io::ErrorKind::InvalidData
                    | std::io::ErrorKind::InvalidInput
                    | std::io::ErrorKind::UnexpectedEof
                    | std::io::ErrorKind::Other
            ),
            Error::Vanished { .. }
            | Error::Shrank { .. }
            | Error::Changed { .. }
            | Error::Broken { .. } => false,
        }
    }
}

/// How a file compares with what was listed, its first and last listed bytes being the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Touch {
    /// Its length and its time of change are those of the list.
    Untouched,
    /// Another time of change.
    Touched,
    /// It is longer.
    Grew,
}

fn sample(file: &mut File, path: &Path, from: u64, len: u64) -> Result<u64, Error> {
    let mut bytes = Vec::new();
    file.seek(SeekFrom::Start(from))
        .map_err(|error| Error::io("seek in", path, error))?;
    let mut part = file.take(len);
    part.read_to_end(&mut bytes)
        .map_err(|error| Error::io("read", path, error))?;
    Ok(xxh3_64(&bytes))
}

fn samples(file: &mut File, path: &Path, size: u64) -> Result<(u64, u64), Error> {
    let head = sample(file, path, 0, size.min(SAMPLE_BYTES))?;
    let from = size.saturating_sub(SAMPLE_BYTES);
    Ok((head, sample(file, path, from, size - from)?))
}

fn size_and_change(file: &File, path: &Path) -> Result<(u64, i64), Error> {
    let facts = file
        .metadata()
        .map_err(|error| Error::io("read facts of", path, error))?;
    let changed = facts
        .modified()
        .ok()
        .and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    let changed = changed
        .and_then(|since| i64::try_from(since.as_micros()).ok())
        .unwrap_or(0);
    Ok((facts.len(), changed))
}

/// Opens a file, never a pipe: opening one waits for its writer, for ever.
fn open_regular(path: &Path) -> std::io::Result<File> {
    if !std::fs::metadata(path)?.is_file() {
        return Err(std::io::Error::other("it is not a regular file"));
    }
    File::open(path)
}

impl FileFacts {
    /// The facts of a file as it is now.
    pub fn of(path: &Path) -> Result<Self, Error> {
        let mut file = open_regular(path).map_err(|error| Error::io("open", path, error))?;
        let (size, changed_us) = size_and_change(&file, path)?;
        let (head, tail) = samples(&mut file, path, size)?;
        Ok(FileFacts {
            path: path.to_owned(),
            size,
            changed_us,
            head,
            tail,
            etag: None,
        })
    }

    /// Opens the file, at its start, after checking that it may be the one that was listed.
    pub fn open(&self) -> Result<File, Error> {
        self.open_touched().map(|(file, _)| file)
    }

    /// The same, with whether somebody touched it.
    pub fn open_touched(&self) -> Result<(File, Touch), Error> {
        let path = &self.path;
        let mut file = open_regular(path).map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => Error::Vanished { path: path.clone() },
            _ => Error::io("open", path, error),
        })?;
        let touch = self.check(&mut file)?;
        file.rewind()
            .map_err(|error| Error::io("seek in", path, error))?;
        Ok((file, touch))
    }

    /// The error that names this file as changed.
    pub fn changed(&self, what: &'static str) -> Error {
        Error::Changed {
            path: self.path.clone(),
            what,
        }
    }

    fn check(&self, file: &mut File) -> Result<Touch, Error> {
        let path = &self.path;
        let (size, changed_us) = size_and_change(file, path)?;
        if size < self.size {
            return Err(Error::Shrank {
                path: path.clone(),
                listed: self.size,
                now: size,
            });
        }
        let (head, tail) = samples(file, path, self.size)?;
        if head != self.head {
            return Err(self.changed("its first bytes differ"));
        }
        if tail != self.tail {
            return Err(self.changed("its last listed bytes differ"));
        }
        if size > self.size {
            tracing::warn!(file = %path.display(), listed = self.size, now = size,
                "file grew; it is read to its listed length");
            return Ok(Touch::Grew);
        }
        Ok(if changed_us == self.changed_us {
            Touch::Untouched
        } else {
            Touch::Touched
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(content: &str) -> (tempfile::TempDir, FileFacts) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.ndjson");
        std::fs::write(&path, content).unwrap();
        let facts = FileFacts::of(&path).unwrap();
        (folder, facts)
    }

    #[test]
    fn an_untouched_and_a_grown_file_are_the_same() {
        let (_folder, facts) = listed("one\ntwo\n");

        facts.open().unwrap();
        std::fs::write(&facts.path, "one\ntwo\nthree\n").unwrap();
        facts.open().unwrap();
    }

    #[test]
    fn another_time_of_change_alone_is_no_change() {
        let (_folder, mut facts) = listed("one\ntwo\n");
        facts.changed_us -= 1_000_000;

        let (_, touch) = facts.open_touched().unwrap();

        assert_eq!(touch, Touch::Touched);
    }

    #[test]
    fn file_that_became_a_pipe_is_refused_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        std::fs::write(&path, "1\n").unwrap();
        let facts = FileFacts::of(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let made = std::process::Command::new("mkfifo").arg(&path).status();
        assert!(made.unwrap().success());

        let said = facts.open().unwrap_err().to_string();
        assert!(said.contains("open"), "{said}");
    }

    #[test]
    fn a_shrunk_changed_or_vanished_file_is_named() {
        let (_folder, facts) = listed("one\ntwo\n");

        std::fs::write(&facts.path, "one\n").unwrap();
        assert!(matches!(facts.open(), Err(Error::Shrank { .. })));
        std::fs::write(&facts.path, "one\ntwx\nthree\n").unwrap();
        assert!(matches!(facts.open(), Err(Error::Changed { .. })));
        std::fs::write(&facts.path, "one\ntwx\n").unwrap();
        let mut later = facts.clone();
        later.changed_us -= 1_000_000;
        assert!(matches!(later.open(), Err(Error::Changed { .. })));
        std::fs::remove_file(&facts.path).unwrap();
        let error = facts.open().unwrap_err();
        assert!(matches!(error, Error::Vanished { .. }));
        assert!(error.to_string().contains("a.ndjson"));
    }
}
