//! Files of a local folder as an exactly-once sink.
//!
//! Owns: writing staged files, and listing them at a barrier. Start at: [`FileWriter`]; making them
//! visible is [`publish`].
//!
//! What is written between two barriers is a *segment*: a whole file in the hidden folder
//! `_streamforge`, on disk before the barrier is acknowledged. Without `rollover` a segment is renamed
//! into place as it is. With it, published segments are held back until their file is full, and then
//! joined; so a visible file is always whole, and a restore that finds held segments makes a file of
//! its own of them (X6). No writer ever continues what another attempt began.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Instant;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use streamforge_core::ids::{CheckpointId, Epoch, Generation, JobId, SlotId};
use streamforge_core::job_graph::ChangelogMode;
use streamforge_core::manifest::{StagedInterval, StagedObject};
use streamforge_engine::batch::{BadRows, StreamBatch};
use streamforge_engine::error::Error;
use streamforge_engine::sink::{SinkWriter, Staging};
use xxhash_rust::xxh3::xxh3_64;

use super::config::SinkConfig;
use crate::changelog::with_ops;
use crate::error::failed;
use partition::Partitioner;
use segment::SegmentWriter;

pub mod bucket;
pub mod partition;
pub mod publish;
pub mod segment;

#[cfg(test)]
mod tests;

pub use segment::OutputFormat;

/// Folder of staged files within the output folder.
pub const STAGING: &str = "_streamforge";

/// Files that one writer has open. With more partitions than this at once the one not written to for
/// the longest time is closed, and its next row opens another.
pub const OPEN_FILES_MAX: usize = 128;

/// What a writer is told.
#[derive(Clone, Debug)]
pub struct FileSinkSpec {
    /// `file:`
    pub config: SinkConfig,
    /// How rows are written.
    pub format: OutputFormat,
    /// Whether `_op` comes first.
    pub changelog: ChangelogMode,
}

/// Who writes.
#[derive(Clone, Debug)]
pub struct WriterName {
    /// The job.
    pub job: JobId,
    /// The slot, which is the sink and the subtask.
    pub slot: SlotId,
    /// Term of the coordinator.
    pub generation: Generation,
    /// The attempt.
    pub epoch: Epoch,
    /// Checkpoint id that things staged before the first barrier carry (C4).
    pub first_id: CheckpointId,
}

/// How staged and published names of one sink of one job begin.
pub fn name_prefix(job: &JobId, sink: &str) -> String {
    let hash = xxh3_64(format!("{job}/{sink}").as_bytes());
    format!("part-{:08x}-", hash >> 32)
}

/// The epoch in a file's name, if it is one of this sink's.
pub fn epoch_of(key: &str, prefix: &str) -> Option<Epoch> {
    let name = key.rsplit('/').next()?;
    let number = name.strip_prefix(prefix)?.split('-').next()?;
    number.parse().ok().map(Epoch::from_stored)
}

/// The connector's own words about a staged object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Detail {
    /// Number of the segment within its file.
    pub segment: u32,
    /// Whether the file is full: it becomes visible with this segment.
    pub last: bool,
    /// The output folder, absolute: a job that writes elsewhere must not take what is missing there
    /// for published. `None`: an older version staged it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub root: Option<String>,
}

impl Detail {
    /// Whether the object is a whole file, not one of several segments.
    fn is_whole(&self) -> bool {
        self.segment == 0 && self.last
    }
}

/// A file that gets rows.
#[derive(Debug)]
struct OpenFile {
    /// Path below the output folder.
    published: String,
    /// Name without folders.
    name: String,
    /// The output folder, absolute.
    root: String,
    opened: Instant,
    segments_n: u32,
    /// Bytes of earlier segments.
    bytes: u64,
    writer: Option<SegmentWriter>,
    /// When it was written to last, as a count of batches.
    used: u64,
    /// Whether it closes at the next barrier, whatever its size and age.
    closes: bool,
}

/// Writes the rows of one subtask.
#[derive(Debug)]
pub struct FileWriter {
    spec: FileSinkSpec,
    name: WriterName,
    prefix: String,
    staging: PathBuf,
    /// The output folder, absolute.
    root: String,
    partitioner: Partitioner,
    open: BTreeMap<String, OpenFile>,
    /// Files closed since the last barrier, to make room for others.
    closed: Vec<StagedObject>,
    /// Id that new names carry.
    checkpoint: CheckpointId,
    files_n: u64,
    batches_n: u64,
    closing: bool,
}

impl FileWriter {
    /// A writer; the folder is made if need be.
    pub fn open(spec: FileSinkSpec, name: WriterName) -> Result<Self, Error> {
        let staging = PathBuf::from(&spec.config.path).join(STAGING);
        publish::make_folder(&staging)?;
        Ok(FileWriter {
            root: publish::absolute(Path::new(&spec.config.path))?,
            prefix: name_prefix(&name.job, &name.slot.sink.0),
            partitioner: Partitioner::new(spec.config.partition_by.clone()),
            checkpoint: name.first_id,
            spec,
            name,
            staging,
            open: BTreeMap::new(),
            closed: Vec::new(),
            files_n: 0,
            batches_n: 0,
            closing: false,
        })
    }

    fn new_file(&mut self, folder: &str) -> OpenFile {
        let name = format!(
            "{}{}-{}-{}-{}.{}",
            self.prefix,
            self.name.epoch,
            self.checkpoint,
            self.name.slot.slot,
            self.files_n,
            self.spec.format.ending()
        );
        self.files_n += 1;
        OpenFile {
            published: format!("{folder}{name}"),
            name,
            root: self.root.clone(),
            opened: Instant::now(),
            segments_n: 0,
            bytes: 0,
            writer: None,
            used: self.batches_n,
            closes: false,
        }
    }

    /// This file, if it is open, closes at the next barrier.
    fn close_file(&mut self, published: &str) {
        let mut files = self.open.values_mut();
        if let Some(file) = files.find(|file| file.published == published) {
            file.closes = true;
        }
    }

    fn write_rows(&mut self, folder: &str, rows: &arrow::array::RecordBatch) -> Result<(), Error> {
        if !self.open.contains_key(folder) {
            if self.open.len() >= OPEN_FILES_MAX {
                self.close_oldest()?;
            }
            let file = self.new_file(folder);
            self.open.insert(folder.to_owned(), file);
        }
        let Some(file) = self.open.get_mut(folder) else {
            return Ok(());
        };
        file.used = self.batches_n;
        if file.writer.is_none() {
            let path = self.staging.join(segment_name(file));
            file.writer = Some(SegmentWriter::create(
                path,
                &self.spec.format,
                rows.schema_ref(),
            )?);
        }
        match &mut file.writer {
            Some(writer) => writer.write(rows),
            None => Ok(()),
        }
    }

    fn close_oldest(&mut self) -> Result<(), Error> {
        let oldest = self
            .open
            .iter()
            .min_by_key(|(_, file)| file.used)
            .map(|(key, _)| key.clone());
        if let Some(file) = oldest.and_then(|key| self.open.remove(&key)) {
            let (segment, _) = close_segment(file, true);
            self.closed.push(segment.make_durable()?);
        }
        Ok(())
    }

    /// Whether a file is full at this barrier.
    fn is_full(&self, file: &OpenFile) -> bool {
        let Some(rollover) = self.spec.config.rollover else {
            return true;
        };
        let written = file.writer.as_ref().map_or(0, SegmentWriter::bytes_about);
        let big = rollover
            .size
            .is_some_and(|size| file.bytes + written >= size.bytes());
        let old = rollover
            .every
            .is_some_and(|every| file.opened.elapsed() >= every.to_std());
        self.closing || file.closes || big || old
    }

    /// Closes what is open.
    fn close_all(&mut self, id: CheckpointId) -> Vec<ClosedSegment> {
        let mut segments = Vec::new();
        for (folder, file) in std::mem::take(&mut self.open) {
            let full = self.is_full(&file);
            if file.writer.is_none() && !full {
                self.open.insert(folder, file);
                continue;
            }
            let (segment, file) = close_segment(file, full);
            segments.push(segment);
            if !full {
                self.open.insert(folder, file);
            }
        }
        self.checkpoint = id;
        self.closing = false;
        segments
    }
}

fn segment_name(file: &OpenFile) -> String {
    format!("{}.{}", file.name, file.segments_n)
}

/// A segment that gets no more rows.
#[derive(Debug)]
struct ClosedSegment {
    /// Its length and rows are known once it is durable.
    object: StagedObject,
    /// `None`: a file that closed without new rows.
    writer: Option<SegmentWriter>,
}

impl ClosedSegment {
    fn make_durable(self) -> Result<StagedObject, Error> {
        let mut object = self.object;
        if let Some(writer) = self.writer {
            (object.bytes, object.rows) = writer.finish()?;
        }
        Ok(object)
    }
}

/// Makes an interval durable: its files, then the folder that names them.
fn make_durable(
    id: CheckpointId,
    mut objects: Vec<StagedObject>,
    segments: Vec<ClosedSegment>,
    staging: &Path,
) -> Result<Option<StagedInterval>, Error> {
    for segment in segments {
        objects.push(segment.make_durable()?);
    }
    if objects.is_empty() {
        return Ok(None);
    }
    publish::sync_folder(staging)?;
    Ok(Some(StagedInterval { id, objects }))
}

/// Ends the open segment. A file that closes without new rows lists an empty one.
fn close_segment(mut file: OpenFile, last: bool) -> (ClosedSegment, OpenFile) {
    let detail = Detail {
        segment: file.segments_n,
        last,
        root: Some(file.root.clone()),
    };
    let detail = serde_json::to_string(&detail).expect("numbers, flags and text are JSON");
    let mut object = StagedObject {
        staged: String::new(),
        published: file.published.clone(),
        bytes: 0,
        rows: 0,
        detail,
    };
    let writer = file.writer.take();
    if let Some(writer) = &writer {
        object.staged = segment_name(&file);
        file.bytes += writer.bytes_about();
        file.segments_n += 1;
    }
    (ClosedSegment { object, writer }, file)
}

#[async_trait]
impl SinkWriter for FileWriter {
    async fn write(&mut self, batch: StreamBatch) -> Result<BadRows, Error> {
        let mut bad = BadRows::default();
        if batch.is_empty() {
            return Ok(bad);
        }
        self.batches_n += 1;
        let path = &self.spec.config.path;
        let kernel = |error| failed(format!("write rows to {path}"), true, error);
        let parts = self.partitioner.split(&batch, &mut bad).map_err(kernel)?;
        for part in parts {
            let rows = with_ops(&part.batch, self.spec.changelog).map_err(|error| {
                failed(
                    format!("write rows to {}", self.spec.config.path),
                    true,
                    error,
                )
            })?;
            self.write_rows(&part.folder, &rows)?;
        }
        Ok(bad)
    }

    fn stage(&mut self, id: CheckpointId) -> Result<Staging, Error> {
        let segments = self.close_all(id);
        let objects = std::mem::take(&mut self.closed);
        let staging = self.staging.clone();
        let action = format!("stage files in {}", staging.display());
        Ok(Box::pin(async move {
            let disk = move || make_durable(id, objects, segments, &staging);
            match tokio::task::spawn_blocking(disk).await {
                Ok(durable) => durable,
                Err(ended) => Err(failed(action, true, ended)),
            }
        }))
    }

    fn close_at_next_stage(&mut self) {
        self.closing = true;
    }
}
