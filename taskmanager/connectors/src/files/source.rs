//! Reading files as a source.
//!
//! Owns: the list of files, one after the other, their decoded rows and positions, and the look for
//! new files. Start at: [`FileEnumerator`], [`FileReader`].
//!
//! A list is fixed when it is made, with the length of each file: a bounded source reads exactly what
//! was there at its first start. A watched source takes a new file as it is when it is first seen, so
//! files are to be moved in whole.

use std::collections::{BTreeSet, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use arrow::array::UInt64Array;
use async_trait::async_trait;
use streamforge_core::ids::{JobId, SplitId};
use streamforge_core::manifest::{SplitProgress, SplitState};
use streamforge_engine::batch::{BadRows, Origin};
use streamforge_engine::error::Error;
use streamforge_engine::source::{SourceBatch, SourceEvent, SourceReader, SplitEnumerator};
use xxhash_rust::xxh3::xxh3_64;

use super::columns::Layout;
use super::config::{Order, SourceConfig};
use super::decode::{DecodedPiece, Reading};
use super::header;
use super::identity::FileFacts;
use super::listing::{self, list};
use super::parquet_read::ParquetReading;
use super::sequence::{Position, Sequence};
use super::split;
use super::stream::check_read;
use crate::error::{failed, refused};
use crate::formats::decoded::Decoded;
use crate::formats::decoder::TextFormat;

/// How the bytes of files become rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FileFormat {
    /// As a stream.
    Text(TextFormat),
    /// Parquet.
    Parquet,
}

/// Which of the readers of a source this is.
#[derive(Clone, Debug, Default)]
pub struct ReaderPlace {
    /// Its subtask.
    pub subtask: u32,
    /// How many there are.
    pub parallelism: u32,
    /// Every split of the source that the restored manifest knows, of all readers, ended ones too: a
    /// watching reader takes no file twice.
    pub known: Vec<SplitState>,
    /// The job; none where nobody is to be told that it is read.
    pub job: Option<JobId>,
}

/// What a file source is told.
#[derive(Clone, Debug)]
pub struct FileSourceSpec {
    /// The node's name, for people.
    pub node: String,
    /// `file:`
    pub config: SourceConfig,
    /// How the files are written.
    pub format: FileFormat,
    /// The columns.
    pub layout: Layout,
    /// Whether rows carry their origin.
    pub origin: bool,
}

fn facts_of(paths: Vec<PathBuf>, node: &str) -> Result<Vec<FileFacts>, Error> {
    let facts = |path: PathBuf| {
        FileFacts::of(&path)
            .map_err(|error| failed(format!("list files of {node}"), error.retry(), error))
    };
    paths.into_iter().map(facts).collect()
}

/// Whether the files that are still to be read are those that were listed.
fn check_files(state: &SplitState) -> Result<(), Error> {
    let action = || format!("read {}", state.split);
    let opened = split::open(state).map_err(|error| failed(action(), false, error))?;
    let Some((description, position)) = opened else {
        return Ok(());
    };
    let mut unread = description.files.iter().skip(position.file);
    let checked = match unread.next() {
        Some(current) => check_read(current, &position),
        None => Ok(()),
    };
    checked
        .and_then(|()| unread.try_for_each(|file| file.open().map(|_| ())))
        .map_err(|error| failed(action(), error.retry(), error))
}

/// The split of one file.
fn file_id(path: &Path) -> SplitId {
    SplitId(path.display().to_string())
}

/// The files of a split, each as the split it would be by itself.
fn files_of(state: &SplitState) -> Vec<SplitId> {
    let files = split::describe(state)
        .map(|description| description.files)
        .unwrap_or_default();
    files.iter().map(|file| file_id(&file.path)).collect()
}

fn listed(spec: &FileSourceSpec) -> Result<Vec<PathBuf>, Error> {
    list(&spec.config.path)
        .map_err(|error| failed(format!("list files of {}", spec.node), false, error))
}

/// Lists the files of a source.
#[derive(Debug)]
pub struct FileEnumerator {
    spec: FileSourceSpec,
}

impl FileEnumerator {
    /// Lists what the configuration names.
    pub fn new(spec: FileSourceSpec) -> Self {
        FileEnumerator { spec }
    }
}

#[async_trait]
impl SplitEnumerator for FileEnumerator {
    async fn list(&mut self) -> Result<Vec<SplitState>, Error> {
        let paths = listed(&self.spec)?;
        if paths.is_empty() && self.spec.config.watch.is_none() {
            let error = listing::Error::Nothing {
                pattern: self.spec.config.path.clone(),
            };
            return Err(failed(
                format!("list files of {}", self.spec.node),
                false,
                error,
            ));
        }
        let facts = facts_of(paths, &self.spec.node)?;
        // Later, in a watched folder, the rows of such a file go to `.bad`: a job that runs is not
        // ended by one file.
        if let FileFormat::Text(format) = &self.spec.format {
            for file in &facts {
                header::check(file, format, &self.spec.layout.columns).map_err(|error| {
                    let action = format!("list files of {}", self.spec.node);
                    failed(action, error.retry(), error)
                })?;
            }
        }
        Ok(split::splits_of(facts, self.spec.config.order))
    }
}

/// A split that is being read.
struct Current {
    split: SplitId,
    names: Vec<Arc<str>>,
    position: Position,
    reading: Open,
}

enum Open {
    Text(Reading),
    Parquet(ParquetReading),
}

/// Reads the files of one subtask.
pub struct FileReader {
    spec: FileSourceSpec,
    place: ReaderPlace,
    waiting: VecDeque<SplitState>,
    /// New splits that the task does not know yet.
    announced: VecDeque<SplitState>,
    current: Option<Current>,
    seen: BTreeSet<SplitId>,
    looked: Option<Instant>,
    read_bytes: Arc<AtomicU64>,
    all_bytes: u64,
}

impl std::fmt::Debug for FileReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FileReader")
            .field("place", &self.place.subtask)
            .finish_non_exhaustive()
    }
}

impl FileReader {
    /// A reader without splits.
    pub fn new(spec: FileSourceSpec, place: ReaderPlace) -> Self {
        let seen = place.known.iter().flat_map(files_of).collect();
        FileReader {
            spec,
            place,
            waiting: VecDeque::new(),
            announced: VecDeque::new(),
            current: None,
            seen,
            looked: None,
            read_bytes: Arc::default(),
            all_bytes: 0,
        }
    }

    /// Threads that decode: this reader's share of all work, as a share of the subtasks. Where files
    /// are many and dealt out evenly, that is one: the task's own.
    fn threads(&self, weight: u64) -> usize {
        let unread = |split: &&SplitState| split.progress != SplitProgress::End;
        let all: u64 = self
            .place
            .known
            .iter()
            .filter(unread)
            .map(|split| split.weight)
            .sum();
        let mine: u64 = weight + self.waiting.iter().map(|split| split.weight).sum::<u64>();
        let all = all.max(mine).max(1);
        let parallelism = u64::from(self.place.parallelism.max(1));
        let share = (mine.saturating_mul(parallelism) + all / 2) / all;
        usize::try_from(share.clamp(1, parallelism)).unwrap_or(1)
    }

    fn open(&self, state: &SplitState) -> Result<Option<Current>, Error> {
        let action = || format!("read {}", state.split);
        let Some((description, position)) =
            split::open(state).map_err(|error| failed(action(), false, error))?
        else {
            return Ok(None);
        };
        let files = description.files;
        let names = files
            .iter()
            .map(|file| Arc::from(file.path.display().to_string()))
            .collect();
        let columns = Arc::clone(&self.spec.layout.columns);
        let read_bytes = Arc::clone(&self.read_bytes);
        let reading = match &self.spec.format {
            FileFormat::Text(format) => {
                let threads = self.threads(state.weight);
                let sequence = Sequence::new(
                    files,
                    format.clone(),
                    Arc::clone(&columns),
                    position,
                    read_bytes,
                );
                let reading = Reading::start(sequence, format, &columns, threads);
                Open::Text(reading.map_err(|error| failed(action(), error.retry(), error))?)
            }
            FileFormat::Parquet => {
                let reading = ParquetReading::start(files, columns, position, read_bytes);
                Open::Parquet(reading.map_err(|error| failed(action(), error.retry(), error))?)
            }
        };
        Ok(Some(Current {
            split: state.split.clone(),
            names,
            position,
            reading,
        }))
    }

    fn batch(&mut self, piece: DecodedPiece) -> Result<SourceEvent, Error> {
        let Some(current) = &mut self.current else {
            return Err(refused("read files", "rows without a split"));
        };
        let DecodedPiece {
            file,
            end_offset,
            read,
            mut decoded,
        } = piece;
        if file != current.position.file {
            current.position = Position {
                file,
                ..Position::default()
            };
        }
        decoded.shift_rows(current.position.row);
        current.position.row += decoded.rows_n;
        current.position.offset = end_offset;
        current.position.read = read;
        let name = current
            .names
            .get(file)
            .map_or_else(|| Arc::from(""), Arc::clone);
        let rows = self.spec.layout.output(&decoded, &name);
        let rows = rows.map_err(|error| failed(format!("read {name}"), false, error))?;
        let Decoded {
            row_numbers,
            offsets,
            bad: bad_rows,
            unknown_fields,
            ..
        } = decoded;
        let mut bad = BadRows::default();
        let bad_n = bad_rows.len() as u64;
        for row in bad_rows {
            let position = format!("{}:{}", row.row, row.offset);
            bad.push(Some(&row.raw), row.reason, Some((&name, position)), None);
        }
        let origin = self.spec.origin.then(|| Origin {
            source: name,
            row: UInt64Array::from(row_numbers),
            offset: UInt64Array::from(offsets),
        });
        Ok(SourceEvent::Batch(SourceBatch {
            split: current.split.clone(),
            rows,
            origin,
            bad,
            bad_n,
            unknown_fields,
            progress: split::progress(current.position),
        }))
    }

    /// Looks for files that were not there before, if it is time. New ones belong to the reader that
    /// the hash of their name says; all of them to the first where they are one sequence.
    fn look(&mut self) -> Result<(), Error> {
        let Some(every) = self.spec.config.watch else {
            return Ok(());
        };
        if self
            .looked
            .is_some_and(|looked| looked.elapsed() < every.to_std())
        {
            return Ok(());
        }
        self.looked = Some(Instant::now());
        let parallelism = u64::from(self.place.parallelism.max(1));
        let mut new = Vec::new();
        for path in listed(&self.spec)? {
            let id = file_id(&path);
            let owner = match self.spec.config.order {
                Order::ByName => 0,
                Order::Any => xxh3_64(id.0.as_bytes()) % parallelism,
            };
            if owner == u64::from(self.place.subtask) && self.seen.insert(id) {
                new.push(path);
            }
        }
        let mut facts = Vec::new();
        for path in new {
            match facts_of(vec![path.clone()], &self.spec.node) {
                Ok(found) => facts.extend(found),
                // Somebody took it away again, as one may with a folder that is watched.
                Err(_) if !path.exists() => {
                    self.seen.remove(&file_id(&path));
                }
                Err(error) => return Err(error),
            }
        }
        for split in split::splits_of(facts, Order::Any) {
            self.all_bytes += split.weight;
            self.announced.push_back(split);
        }
        Ok(())
    }

    /// Files that came after the list was made are not read; whoever put them there should know.
    fn tell_unread(&self) {
        if self.place.subtask != 0 || self.place.job.is_none() {
            return;
        }
        let paths = listed(&self.spec).unwrap_or_default();
        let unread = |path: &&PathBuf| !self.seen.contains(&file_id(path));
        let unread: Vec<&PathBuf> = paths.iter().filter(unread).collect();
        if let Some(first) = unread.first() {
            tracing::warn!(
                files = unread.len(),
                first = %first.display(),
                "some files that match the path of `{}` are not read: they are not among those that the job listed \
                 when it began; a source with `watch` reads what comes later",
                self.spec.node
            );
        }
    }

    fn read(&mut self) -> Result<Option<DecodedPiece>, Error> {
        let Some(current) = &mut self.current else {
            return Ok(None);
        };
        let action = || format!("read {}", current.split);
        match &mut current.reading {
            Open::Text(reading) => reading
                .next_piece()
                .map_err(|error| failed(action(), error.retry(), error)),
            Open::Parquet(reading) => reading
                .next_piece()
                .map_err(|error| failed(action(), error.retry(), error)),
        }
    }
}

#[async_trait]
impl SourceReader for FileReader {
    async fn assign(&mut self, splits: Vec<SplitState>) -> Result<(), Error> {
        for split in splits {
            self.seen.extend(files_of(&split));
            check_files(&split)?;
            if split.progress != SplitProgress::End {
                self.all_bytes += split.weight;
                self.waiting.push_back(split);
            }
        }
        self.waiting
            .make_contiguous()
            .sort_by(|a, b| a.split.cmp(&b.split));
        Ok(())
    }

    async fn next(&mut self) -> Result<SourceEvent, Error> {
        loop {
            if self.current.is_some() {
                if let Some(piece) = self.read()? {
                    return self.batch(piece);
                }
                let ended = self.current.take();
                if let Some(current) = ended {
                    return Ok(SourceEvent::SplitEnded(current.split));
                }
            }
            if let Some(event) = self.announce() {
                return Ok(event);
            }
            if let Some(state) = self.waiting.pop_front() {
                self.current = self.open(&state)?;
                continue;
            }
            if self.spec.config.watch.is_none() {
                self.tell_unread();
                return Ok(SourceEvent::Ended);
            }
            self.look()?;
            return Ok(self.announce().unwrap_or(SourceEvent::Waiting));
        }
    }

    fn read_units(&self) -> (u64, u64) {
        let all = if self.spec.config.watch.is_some() {
            0
        } else {
            self.all_bytes
        };
        (self.read_bytes.load(Ordering::Relaxed), all)
    }
}

impl FileReader {
    /// Announces a new file; it is read once all are announced, so that all hold the watermark.
    fn announce(&mut self) -> Option<SourceEvent> {
        let state = self.announced.pop_front()?;
        self.waiting.push_back(state.clone());
        Some(SourceEvent::Discovered(state))
    }
}

#[cfg(test)]
mod tests;
