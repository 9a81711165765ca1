//! Files in a bucket as an exactly-once sink.
//!
//! Owns: staging a closed file as an upload that nobody sees, and completing it after the commit.
//! Start at: [`BucketWriter`], [`BucketPublisher`]. Encoding, partitions and names are those of a
//! folder: rows go through a [`FileWriter`] into a folder of this process, and what it stages at a
//! barrier is sent on.
//!
//! Invariant X6: an upload belongs to one epoch; the manifest lists it with its parts, and only
//! completing makes the file visible, whole. A listed upload that is gone was completed if the file
//! carries its nonce; else somebody removed it, and that is an error that names the file. Uploads of
//! dead epochs that no manifest lists are thrown away.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Read as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::{self, StreamExt as _, TryStreamExt as _};
use serde::{Deserialize, Serialize};
use streamforge_core::ids::{CheckpointId, Epoch, JobId, SlotId};
use streamforge_core::manifest::{StagedInterval, StagedObject};
use streamforge_core::s3::S3Place;
use streamforge_engine::batch::{BadRows, StreamBatch};
use streamforge_engine::error::Error;
use streamforge_engine::sink::{Publisher, SinkWriter, Staging};
use streamforge_store::Recovery;
use streamforge_store::s3::{
    Bucket, Completed, Limits, PART_BYTES, PARTS_AT_ONCE, PartTag, UploadName,
};
use tokio::sync::OnceCell;

use super::{FileSinkSpec, FileWriter, STAGING, WriterName, epoch_of, name_prefix};
use crate::error::{failed, refused};
use crate::files::config::{S3, SinkConfig};
use crate::files::sink::segment::disk_error;

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

    /// A failed call; whether another attempt may mend it is the store's word.
    fn failed(&self, action: &str, error: streamforge_store::Error) -> Error {
        let retry = error.recovery() == Recovery::OutcomeUnknown;
        failed(format!("{action} {}", self.place), retry, error)
    }
}

/// The connector's own words about a staged upload.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct UploadDetail {
    /// The server's name for it.
    upload: String,
    /// What the finished file is recognised by.
    nonce: String,
    /// Its parts, in order: the server's name and its checksum of each.
    parts: Vec<(String, Option<String>)>,
}

impl UploadDetail {
    fn new(name: &UploadName, parts: Vec<PartTag>) -> Self {
        Self {
            upload: name.id.clone(),
            nonce: name.nonce.clone(),
            parts: parts.into_iter().map(|it| (it.etag, it.crc32)).collect(),
        }
    }

    fn name(&self, key: &str) -> UploadName {
        UploadName {
            key: key.to_owned(),
            id: self.upload.clone(),
            nonce: self.nonce.clone(),
        }
    }

    fn parts(&self) -> Vec<PartTag> {
        let tag = |(n, (etag, crc32)): (i32, &(String, Option<String>))| PartTag {
            n,
            etag: etag.clone(),
            crc32: crc32.clone(),
        };
        (1..).zip(&self.parts).map(tag).collect()
    }
}

/// A folder of this process for files on their way, removed when the last user is gone.
#[derive(Debug)]
struct Spill {
    root: PathBuf,
    /// Locked while the process lives, however it ends: another one removes what is left.
    _lock: File,
}

/// How the names of these folders begin.
const SPILL: &str = "streamforge-spill-";

/// The lock within such a folder. It is locked before it has this name.
const SPILL_LOCK: &str = "lock";

impl Spill {
    fn create() -> Result<Self, Error> {
        static SPILLS: AtomicU64 = AtomicU64::new(0);
        remove_dead_spills();
        let n = SPILLS.fetch_add(1, Ordering::Relaxed);
        let name = format!("{SPILL}{}-{n}", std::process::id());
        let root = std::env::temp_dir().join(name);
        let made = || -> std::io::Result<File> {
            // A dead process of the same id may have left one.
            let _absent = fs::remove_dir_all(&root);
            fs::create_dir_all(&root)?;
            let draft = root.join("lock.new");
            let lock = File::create(&draft)?;
            lock.try_lock()?;
            fs::rename(draft, root.join(SPILL_LOCK))?;
            Ok(lock)
        };
        match made() {
            Ok(lock) => Ok(Self { root, _lock: lock }),
            Err(error) => Err(disk_error(format!("make folder {}", root.display()), error)),
        }
    }
}

/// Removes the folders of killed processes, as well as it can.
fn remove_dead_spills() {
    let Ok(entries) = fs::read_dir(std::env::temp_dir()) else {
        return;
    };
    for entry in entries.flatten() {
        if !entry.file_name().to_string_lossy().starts_with(SPILL) {
            continue;
        }
        let lock = File::open(entry.path().join(SPILL_LOCK));
        if lock.is_ok_and(|lock| lock.try_lock().is_ok()) {
            let _best_effort = fs::remove_dir_all(entry.path());
        }
    }
}

impl Drop for Spill {
    fn drop(&mut self) {
        // What stays is in the system's temporary folder.
        let _best_effort = fs::remove_dir_all(&self.root);
    }
}

/// Writes the rows of one subtask.
#[derive(Debug)]
pub struct BucketWriter {
    inner: FileWriter,
    spill: Arc<Spill>,
    door: Door,
}

impl BucketWriter {
    /// A writer into this place. The server is first asked at the first barrier.
    ///
    /// # Errors
    /// When there is no room for files on their way.
    pub fn open(mut spec: FileSinkSpec, name: WriterName, door: Door) -> Result<Self, Error> {
        let spill = Arc::new(Spill::create()?);
        spec.config.path = spill.root.to_string_lossy().into_owned();
        // A file closes at every barrier.
        spec.config.rollover = None;
        Ok(Self {
            inner: FileWriter::open(spec, name)?,
            spill,
            door,
        })
    }
}

/// Sends the files of an interval on; the folder lives as long as this does.
async fn send_all(
    door: Door,
    spill: Arc<Spill>,
    interval: StagedInterval,
) -> Result<StagedInterval, Error> {
    let bucket = door.bucket().await?;
    let sends = interval.objects.into_iter().map(|object| {
        let path = spill.root.join(STAGING).join(&object.staged);
        send(&door, bucket, object, path)
    });
    let objects = stream::iter(sends)
        .buffered(FILES_AT_ONCE)
        .try_collect()
        .await?;
    Ok(StagedInterval {
        id: interval.id,
        objects,
    })
}

/// Sends one file as an upload that is not completed, and removes it here.
async fn send(
    door: &Door,
    bucket: &Bucket,
    mut object: StagedObject,
    path: PathBuf,
) -> Result<StagedObject, Error> {
    let failed = |error| door.failed("stage a file in", error);
    let upload = bucket.begin(&object.published).await.map_err(failed)?;
    let parts_n = object.bytes.div_ceil(PART_BYTES as u64).max(1);
    let sends = (1..).zip(0..parts_n).map(|(n, idx)| {
        let (upload, path) = (&upload, path.clone());
        async move {
            let bytes = read_part(path, idx).await?;
            upload.send(n, bytes).await.map_err(failed)
        }
    });
    let parts = stream::iter(sends)
        .buffered(PARTS_AT_ONCE)
        .try_collect()
        .await?;
    let detail = UploadDetail::new(upload.name(), parts);
    object.staged.clone_from(&detail.upload);
    object.detail = serde_json::to_string(&detail).expect("texts and lists are JSON");
    // The rest goes with the folder.
    let _best_effort = fs::remove_file(path);
    Ok(object)
}

/// One part of a file.
async fn read_part(path: PathBuf, idx: u64) -> Result<Bytes, Error> {
    let shown = path.display().to_string();
    let read = move || -> std::io::Result<Bytes> {
        use std::io::{Seek as _, SeekFrom};
        let mut file = File::open(&path)?;
        file.seek(SeekFrom::Start(idx * PART_BYTES as u64))?;
        let mut bytes = Vec::new();
        file.take(PART_BYTES as u64).read_to_end(&mut bytes)?;
        Ok(bytes.into())
    };
    let read = tokio::task::spawn_blocking(read).await;
    read.unwrap_or_else(|_| Err(std::io::Error::other("a thread ended early")))
        .map_err(|error| disk_error(format!("read {shown}"), error))
}

#[async_trait]
impl SinkWriter for BucketWriter {
    async fn write(&mut self, batch: StreamBatch) -> Result<BadRows, Error> {
        self.inner.write(batch).await
    }

    fn stage(&mut self, id: CheckpointId) -> Result<Staging, Error> {
        let staging = self.inner.stage(id)?;
        let (door, spill) = (self.door.clone(), Arc::clone(&self.spill));
        Ok(Box::pin(async move {
            match staging.await? {
                None => Ok(None),
                Some(interval) => send_all(door, spill, interval).await.map(Some),
            }
        }))
    }

    fn close_at_next_stage(&mut self) {
        self.inner.close_at_next_stage();
    }
}

/// Publishes the intervals of one sink.
#[derive(Debug)]
pub struct BucketPublisher {
    door: Door,
    prefix: String,
    epoch: Epoch,
}

impl BucketPublisher {
    /// A publisher of a job's sink, in this attempt.
    #[must_use]
    pub fn new(door: Door, job: &JobId, sink: &str, epoch: Epoch) -> Self {
        Self {
            door,
            prefix: name_prefix(job, sink),
            epoch,
        }
    }

    async fn publish_object(&self, object: &StagedObject, id: CheckpointId) -> Result<(), Error> {
        let key = &object.published;
        let action = || format!("publish {key} in {}", self.door.place);
        let detail: UploadDetail =
            serde_json::from_str(&object.detail).map_err(|error| failed(action(), false, error))?;
        let completed = self
            .door
            .bucket()
            .await?
            .complete(&detail.name(key), &detail.parts())
            .await
            .map_err(|error| self.door.failed("publish a file in", error))?;
        let rows = object.rows;
        match completed {
            Completed::Done => Ok(()),
            Completed::Gone => Err(refused(
                action(),
                format!(
                    "{rows} rows of checkpoint {id} were staged for it as an upload, and neither \
                     upload nor file is there: somebody removed it, or a lifecycle rule of the \
                     bucket did"
                ),
            )),
            Completed::Taken => Err(refused(
                action(),
                format!(
                    "{rows} rows of checkpoint {id} belong there, and another object has this name"
                ),
            )),
        }
    }
}

#[async_trait]
impl Publisher for BucketPublisher {
    async fn publish(&self, _slot: &SlotId, interval: &StagedInterval) -> Result<(), Error> {
        for object in &interval.objects {
            self.publish_object(object, interval.id).await?;
        }
        Ok(())
    }

    async fn discard_unlisted(&self, listed: &[StagedInterval]) -> Result<(), Error> {
        let objects = listed.iter().flat_map(|interval| &interval.objects);
        let listed: BTreeSet<&str> = objects.map(|object| object.staged.as_str()).collect();
        let bucket = self.door.bucket().await?;
        let failed = |error| self.door.failed("remove old uploads in", error);
        for (key, id) in bucket.uploads("").await.map_err(failed)? {
            // A later attempt's are not ours to judge: we may be the one that is dead.
            let dead = epoch_of(&key, &self.prefix).is_some_and(|epoch| epoch < self.epoch);
            if dead && !listed.contains(id.as_str()) {
                bucket.abandon(&key, &id).await.map_err(failed)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
