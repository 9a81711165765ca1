//! Files in a bucket as an exactly-once sink.
//!
//! Owns: sending what was written on, and listing it at a barrier. Start at: [`BucketWriter`]; making files
//! visible is [`publish`]. Encoding, partitions, names and when a file is full are those of a folder: rows
//! go through a [`FileWriter`] into a folder of this process, and what it stages at a barrier is sent.
//!
//! A file is an upload, begun when its first rows are staged. At a barrier that leaves it open, parts that
//! are full are sent, and the rest is staged beside it as a plain hidden object in `_streamforge/`, for
//! Parquet with the footer that would make it a file. The manifest lists the upload, its parts and these
//! objects. The writer goes on from its own disk and never reads them; they are for a restore, which
//! makes them the last part. So all it knows of formats is in [`joint`].
//!
//! The other way was weighed: no upload before a file is full, only an object for each barrier, which are
//! put together then. It needs neither parts in the manifest nor a tail. But all bytes are sent twice (or
//! copied, where pieces have 5 MiB), the barrier that fills a file waits for all of it, and above all
//! an upload that is begun after the commit is listed nowhere: who dies between completing it and
//! removing the objects finds them again, and if a reader has taken the file away by then, its rows
//! come twice. An upload that the manifest lists is completed once, whoever tries.
//!
//! Invariant X6: an upload belongs to one epoch, and no other goes on with it; the manifest lists it with
//! its parts, and only completing makes the file visible, whole. A listed upload that is gone was
//! completed if the file carries its nonce; else somebody removed it, and that is an error that names
//! the file. Uploads and hidden objects of dead epochs that no manifest lists are thrown away.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use futures::stream::{self, StreamExt as _, TryStreamExt as _};
use streamforge_core::ids::CheckpointId;
use streamforge_core::manifest::{StagedInterval, StagedObject};
use streamforge_core::s3::S3Place;
use streamforge_engine::batch::{BadRows, StreamBatch};
use streamforge_engine::error::Error;
use streamforge_engine::sink::{SinkWriter, Staging};
use streamforge_store::Recovery;
use streamforge_store::s3::{Bucket, Limits};
use tokio::sync::OnceCell;

use super::{FileSinkSpec, FileWriter, OutputFormat, WriterName};
use crate::error::failed;
use crate::files::config::{S3, SinkConfig};
use detail::Detail;
use open_upload::OpenUpload;
use spill::Spill;

mod detail;
mod joint;
mod open_upload;
pub mod publish;
mod spill;

pub use publish::BucketPublisher;

/// Files of one interval that are sent at once; each sends a few parts at once by itself.
const FILES_AT_ONCE: usize = 8;

/// The place that a `file:` block means; `None`: a folder.
///
/// # Errors
/// When the plan let an address through that is none.
pub fn place_of(config: &SinkConfig) -> Result<Option<S3Place>, Error> {
    if !config.path.starts_with(streamforge_core::s3::SCHEME) {
        return Ok(None);
    }
    S3Place::parse(&config.path, S3::access(config.s3.as_ref()))
        .map(Some)
        .map_err(|error| failed("open file sink", false, error))
}

/// A bucket that is connected to when it is first needed.
#[derive(Clone, Debug)]
pub struct Door {
    place: S3Place,
    secrets: Option<PathBuf>,
    bucket: Arc<OnceCell<Bucket>>,
}

impl Door {
    /// To this place, with the folder of secrets that may name its keys.
    #[must_use]
    pub fn new(place: S3Place, secrets: Option<PathBuf>) -> Self {
        Self {
            place,
            secrets,
            bucket: Arc::default(),
        }
    }

    async fn bucket(&self) -> Result<&Bucket, Error> {
        let connect = || Bucket::connect(&self.place, self.secrets.as_deref(), Limits::default());
        self.bucket
            .get_or_try_init(connect)
            .await
            .map_err(|error| self.failed("open", error))
    }

    /// A failed call; whether another attempt may mend it is the store's word. A refusal may pass, too:
    /// keys are rotated, clocks are set, and policies mended.
    fn failed(&self, action: &str, error: streamforge_store::Error) -> Error {
        let retry = error.recovery() != Recovery::Fatal;
        failed(format!("{action} {}", self.place), retry, error)
    }
}

/// Writes the rows of one subtask.
#[derive(Debug)]
pub struct BucketWriter {
    inner: FileWriter,
    files: Arc<Files>,
    door: Door,
}

/// Files on their way. Stagings share them, and are awaited one after the other.
#[derive(Debug)]
struct Files {
    spill: Spill,
    format: OutputFormat,
    /// Those that get more rows, by key.
    open: Mutex<BTreeMap<String, OpenUpload>>,
}

impl Files {
    fn open(&self) -> MutexGuard<'_, BTreeMap<String, OpenUpload>> {
        // Entries are added and taken whole.
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Those that must get no more rows, by key.
    fn full(&self) -> Vec<String> {
        let open = self.open();
        let full = open.iter().filter(|(_, file)| file.is_full());
        full.map(|(key, _)| key.clone()).collect()
    }

    /// Sends the files of an interval on; the folder lives as long as this does.
    async fn send_all(
        &self,
        door: &Door,
        interval: StagedInterval,
    ) -> Result<StagedInterval, Error> {
        let bucket = door.bucket().await?;
        let objects = interval.objects.into_iter();
        let sends = objects.map(|object| self.send(object, (bucket, door)));
        let objects = stream::iter(sends)
            .buffered(FILES_AT_ONCE)
            .try_collect()
            .await?;
        Ok(StagedInterval {
            id: interval.id,
            objects,
        })
    }

    /// Sends one file, or what is new of it, and removes it here.
    async fn send(
        &self,
        mut object: StagedObject,
        (bucket, door): (&Bucket, &Door),
    ) -> Result<StagedObject, Error> {
        let key = object.published.clone();
        let said: super::Detail = serde_json::from_str(&object.detail)
            .map_err(|error| failed(format!("stage {key}"), false, error))?;
        let known = self.open().remove(&key);
        let mut file = match known {
            Some(file) => file,
            None => {
                let begun = bucket.begin(&key).await;
                let file = OpenUpload::new(begun.map_err(|it| door.failed("stage a file in", it))?);
                // A Parquet file of one segment is sent as it was written.
                if self.format == OutputFormat::Parquet && !said.is_whole() {
                    file.of_parquet()
                } else {
                    file
                }
            }
        };
        if !object.staged.is_empty() {
            file.add(self.spill.staged(&object.staged), object.bytes)
                .await?;
        }
        let detail = if said.last {
            Detail::Whole(file.finish(door).await?)
        } else {
            let open = file.stage(said.segment, (bucket, door)).await?;
            file.count(object.rows);
            self.open().insert(key, file);
            Detail::Open { open }
        };
        object.staged.clone_from(&detail.upload().upload);
        object.detail = detail.to_text();
        Ok(object)
    }
}

impl BucketWriter {
    /// A writer into this place. The server is first asked at the first barrier.
    ///
    /// # Errors
    /// When there is no room for files on their way.
    pub fn open(mut spec: FileSinkSpec, name: WriterName, door: Door) -> Result<Self, Error> {
        let spill = Spill::create()?;
        spec.config.path = spill.root.to_string_lossy().into_owned();
        let files = Files {
            spill,
            format: spec.format.clone(),
            open: Mutex::default(),
        };
        Ok(Self {
            inner: FileWriter::open(spec, name)?,
            files: Arc::new(files),
            door,
        })
    }
}

#[async_trait]
impl SinkWriter for BucketWriter {
    async fn write(&mut self, batch: StreamBatch) -> Result<BadRows, Error> {
        self.inner.write(batch).await
    }

    fn stage(&mut self, id: CheckpointId) -> Result<Staging, Error> {
        for file in self.files.full() {
            self.inner.close_file(&file);
        }
        let staging = self.inner.stage(id)?;
        let (door, files) = (self.door.clone(), Arc::clone(&self.files));
        Ok(Box::pin(async move {
            match staging.await? {
                None => Ok(None),
                Some(interval) => files.send_all(&door, interval).await.map(Some),
            }
        }))
    }

    fn close_at_next_stage(&mut self) {
        self.inner.close_at_next_stage();
    }
}

#[cfg(test)]
mod tests;
