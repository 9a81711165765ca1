//! Reading files as a source.
//!
//! Owns: the list of files, one after the other, their decoded rows and positions, and the look for
//! new files. Start at: [`FileEnumerator`], [`FileReader`].
//!
//! A list is fixed when it is made, with the length of each file: a bounded source reads exactly what
//! was there at its first start. A watched source takes a new file as it is when it is first seen, so
//! files are to be moved in whole.

use std::collections::{BTreeSet, VecDeque};
use std::path::Path;
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
use super::listing;
use super::parquet_read::ParquetReading;
use super::sequence::{Position, Sequence};
use super::shelf::{Found, Shelf, SourceFile};
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
    /// Where the files lie.
    pub shelf: Arc<Shelf>,
}

fn facts_of(found: &Found, node: &str) -> Result<FileFacts, Error> {
    found
        .facts()
        .map_err(|error| failed(format!("list files of {node}"), error.retry(), error))
}

/// What was done when an error came, which names the file itself.
fn read_action(spec: &FileSourceSpec) -> String {
    format!("read files of {}", spec.node)
}

/// Whether the files that are still to be read are those that were listed.
fn check_files(state: &SplitState, spec: &FileSourceSpec) -> Result<(), Error> {
    let (action, shelf) = (|| read_action(spec), &spec.shelf);
    let opened = split::open(state).map_err(|error| failed(action(), false, error))?;
    let Some((description, position)) = opened else {
        return Ok(());
    };
    let unread = description.files.into_iter().skip(position.file);
    let mut unread = unread.map(|facts| SourceFile::new(facts, shelf));
    let checked = match unread.next() {
        Some(current) => check_read(&current, &position),
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

/// What the path of a source names now.
pub(crate) fn listed(spec: &FileSourceSpec) -> Result<Vec<Found>, Error> {
    let found = spec.shelf.list(&spec.config.path);
    found.map_err(|error| {
        let action = format!("list files of {}", spec.node);
        failed(action, error.retry(), error)
    })
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
        let found = listed(&self.spec)?;
        if found.is_empty() && self.spec.config.watch.is_none() {
            let error = listing::Error::Nothing {
                pattern: self.spec.config.path.clone(),
            };
            return Err(failed(
                format!("list files of {}", self.spec.node),
                false,
                error,
            ));
        }
        let facts = found.iter().map(|file| facts_of(file, &self.spec.node));
        let facts: Vec<FileFacts> = facts.collect::<Result<_, _>>()?;
        // Later, in a watched folder, the rows of such a file go to `.bad`: a job that runs is not
        // ended by one file.
        if let FileFormat::Text(format) = &self.spec.format {
            let shelf = &self.spec.shelf;
            let files = SourceFile::all(facts.clone(), shelf);
            let columns = &self.spec.layout.columns;
            let checked = header::check_all(&files, format, columns, shelf.openings_at_once());
            checked.map_err(|error| {
                let action = format!("list files of {}", self.spec.node);
                failed(action, error.retry(), error)
            })?;
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
        let action = || read_action(&self.spec);
        let Some((description, position)) =
            split::open(state).map_err(|error| failed(action(), false, error))?
        else {
            return Ok(None);
        };
        let files = SourceFile::all(description.files, &self.spec.shelf);
        let names = files.iter().map(|file| Arc::from(file.name())).collect();
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
        for file in listed(&self.spec)? {
            let id = file_id(&file.path);
            let owner = match self.spec.config.order {
                Order::ByName => 0,
                Order::Any => xxh3_64(id.0.as_bytes()) % parallelism,
            };
            if owner == u64::from(self.place.subtask) && self.seen.insert(id) {
                new.push(file);
            }
        }
        let mut facts = Vec::new();
        for file in new {
            match facts_of(&file, &self.spec.node) {
                Ok(found) => facts.push(found),
                // Somebody took it away again, as one may with a folder that is watched.
                Err(_) if file.is_gone() => {
                    self.seen.remove(&file_id(&file.path));
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
        let is_asked_for = self.place.subtask == 0 && self.place.job.is_some();
        // A bucket is listed when the job begins, and then only to be watched: each time costs.
        if !is_asked_for || matches!(*self.spec.shelf, Shelf::Bucket(_)) {
            return;
        }
        let found = listed(&self.spec).unwrap_or_default();
        let unread = |file: &&Found| !self.seen.contains(&file_id(&file.path));
        let unread: Vec<&Found> = found.iter().filter(unread).collect();
        if let Some(first) = unread.first() {
            tracing::warn!(
                files = unread.len(),
                first = %first.path.display(),
                "some files that match the path of `{}` are not read: they are not among those that the job listed \
                 when it began; a source with `watch` reads what comes later",
                self.spec.node
            );
        }
    }

    fn read(&mut self) -> Result<Option<DecodedPiece>, Error> {
        let action = || read_action(&self.spec);
        let Some(current) = &mut self.current else {
            return Ok(None);
        };
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
            check_files(&split, &self.spec)?;
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
