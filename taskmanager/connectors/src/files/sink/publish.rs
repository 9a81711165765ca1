//! Making staged files visible.
//!
//! Owns: the rename, the joining of held segments, and the removal of what dead attempts left. Start
//! at: [`FilePublisher`].
//!
//! Invariant X6: only a rename removes a *listed* staged file, so listed but missing is published.
//! Every step may be repeated: a crash between any two leaves the interval publishable.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use parquet::column::writer::ColumnCloseResult;
use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::file::writer::SerializedFileWriter;
use streamforge_core::ids::{Epoch, JobId, SlotId};
use streamforge_core::manifest::{StagedInterval, StagedObject};
use streamforge_engine::error::Error;
use streamforge_engine::sink::Publisher;
use tracing::warn;

use super::segment::disk_error;
use super::{Detail, STAGING, epoch_of, name_prefix};
use crate::error::{failed, refused};

/// Folder of held segments, one folder per file.
const HELD: &str = "held";

/// Name of the file that says where the segments beside it belong.
const PUBLISHED: &str = "published";

/// Makes a folder and sees that it can be written to.
pub fn make_folder(folder: &Path) -> Result<(), Error> {
    let error = |error| disk_error(format!("make output folder {}", folder.display()), error);
    fs::create_dir_all(folder).map_err(error)?;
    // A folder that exists may still refuse files; that is to be known before the first row.
    let probe = tempfile_name(folder);
    File::create(&probe).map_err(error)?;
    fs::remove_file(&probe).map_err(error)?;
    // The folder itself may be new, and so may the one around it.
    for above in folder.ancestors().skip(1).take(2) {
        if !above.as_os_str().is_empty() {
            sync_folder(above)?;
        }
    }
    Ok(())
}

/// The folder's one name, whatever the working directory and links are.
pub fn absolute(folder: &Path) -> Result<String, Error> {
    let error = |error| disk_error(format!("find folder {}", folder.display()), error);
    let path = fs::canonicalize(folder).map_err(error)?;
    Ok(path.to_string_lossy().into_owned())
}

/// A name that no other probe of this machine has at the same time.
fn tempfile_name(folder: &Path) -> PathBuf {
    use std::sync::atomic::{AtomicU64, Ordering};
    static PROBES: AtomicU64 = AtomicU64::new(0);
    let n = PROBES.fetch_add(1, Ordering::Relaxed);
    folder.join(format!(".probe-{}-{n}", std::process::id()))
}

/// Makes the names in a folder durable.
pub fn sync_folder(folder: &Path) -> Result<(), Error> {
    File::open(folder)
        .and_then(|folder| folder.sync_all())
        .map_err(|error| disk_error(format!("make {} durable", folder.display()), error))
}

/// Output that is committed and not visible lies in another folder than the job's.
#[derive(Debug, thiserror::Error)]
#[error(
    "it is committed, and staged in {staged_in}, but the sink's folder is {here} now; run the job with the \
     earlier folder until it has published (or move that folder, with its hidden part, to the new place), \
     then change it"
)]
struct OtherFolder {
    staged_in: String,
    here: String,
}

/// Publishes the intervals of one sink.
#[derive(Debug)]
pub struct FilePublisher {
    root: PathBuf,
    staging: PathBuf,
    prefix: String,
    epoch: Epoch,
}

impl FilePublisher {
    /// A publisher of a job's sink into this folder, for one attempt.
    pub fn open(root: &str, job: &JobId, sink: &str, epoch: Epoch) -> Result<Self, Error> {
        let root = PathBuf::from(root);
        let staging = root.join(STAGING);
        make_folder(&staging)?;
        Ok(FilePublisher {
            root,
            staging,
            prefix: name_prefix(job, sink),
            epoch,
        })
    }

    fn held(&self, published: &str) -> PathBuf {
        let name = published.rsplit('/').next().unwrap_or(published);
        self.staging.join(HELD).join(name)
    }

    fn publish_object(&self, object: &StagedObject) -> Result<(), Error> {
        let detail = self.detail_of(object)?;
        self.place(object, &detail)
    }

    /// The sink's own words about a listed object, which belongs to this folder.
    fn detail_of(&self, object: &StagedObject) -> Result<Detail, Error> {
        let detail: Detail = serde_json::from_str(&object.detail)
            .map_err(|error| failed(format!("publish {}", object.published), false, error))?;
        self.check_place(object, &detail)?;
        Ok(detail)
    }

    fn place(&self, object: &StagedObject, detail: &Detail) -> Result<(), Error> {
        if detail.is_whole() {
            let target = self.root.join(&object.published);
            let moved = self.move_file(&self.staging.join(&object.staged), &target)?;
            if !moved {
                self.warn_if_missing(object);
            }
            return Ok(());
        }
        self.hold(object, detail)?;
        if !self.held(&object.published).exists() {
            self.warn_if_missing(object);
        }
        if detail.last {
            self.complete(&self.held(&object.published))
        } else {
            Ok(())
        }
    }

    /// Says so if a listed file that waits nowhere is not visible, either.
    fn warn_if_missing(&self, object: &StagedObject) {
        if !self.root.join(&object.published).exists() {
            let (file, rows) = (&object.published, object.rows);
            warn!(
                "{file} ({rows} rows) is committed output and neither in {} nor staged: another program \
                 took it away, or the staged file before it was published",
                self.root.display()
            );
        }
    }

    /// What is listed and missing is published, but only where it was staged: a job whose output
    /// folder is another now would silently lose it.
    fn check_place(&self, object: &StagedObject, detail: &Detail) -> Result<(), Error> {
        let Some(staged_in) = &detail.root else {
            return Ok(());
        };
        let here = absolute(&self.root)?;
        let came_along = if object.staged.is_empty() {
            self.held(&object.published).exists()
        } else {
            self.staging.join(&object.staged).exists()
        };
        let is_there = || self.root.join(&object.published).exists();
        if *staged_in == here || came_along || is_there() {
            return Ok(());
        }
        let moved = OtherFolder {
            staged_in: staged_in.clone(),
            here,
        };
        let action = format!("publish {}", object.published);
        Err(failed(action, false, moved))
    }

    /// Segments go in order, so the one before this one is held, or its file is visible.
    fn check_earlier(&self, object: &StagedObject, of: &Detail, held: &Path) -> Result<(), Error> {
        let Some(earlier) = of.segment.checked_sub(1) else {
            return Ok(());
        };
        let earlier = held.join(segment(earlier));
        if earlier.exists() || self.root.join(&object.published).exists() {
            return Ok(());
        }
        let reason = format!(
            "rows of earlier checkpoints were kept back in {} until this file is full, and are gone: somebody \
             removed them; put that folder back, or start over with --fresh",
            earlier.display()
        );
        Err(refused(format!("publish {}", object.published), reason))
    }

    /// Puts a segment to those of its file, if it is not there yet.
    fn hold(&self, object: &StagedObject, detail: &Detail) -> Result<(), Error> {
        let staged = self.staging.join(&object.staged);
        if object.staged.is_empty() || !staged.exists() {
            return Ok(());
        }
        let held = self.held(&object.published);
        self.check_earlier(object, detail, &held)?;
        let note = held.join(PUBLISHED);
        if !note.exists() {
            let error = |error| disk_error(format!("hold {}", object.published), error);
            fs::create_dir_all(&held).map_err(error)?;
            let draft = draft_in(&held);
            fs::write(&draft, &object.published).map_err(error)?;
            File::open(&draft)
                .and_then(|file| file.sync_all())
                .map_err(error)?;
            fs::rename(&draft, &note).map_err(error)?;
            sync_folder(&held)?;
            sync_folder(&self.staging.join(HELD))?;
        }
        self.move_file(&staged, &held.join(segment(detail.segment)))
            .map(|_| ())
    }

    /// Makes a finished file visible unless one of its name is: a zombie that joins what its successor
    /// has joined and removed already would put a shorter file in its place.
    fn place_new(&self, draft: &Path, to: &Path) -> Result<(), Error> {
        let error = |error| disk_error(format!("publish {}", to.display()), error);
        self.make_folder_of(to)?;
        match fs::hard_link(draft, to) {
            Ok(()) => sync_folder(to.parent().unwrap_or(&self.root)),
            Err(cause) if cause.kind() == ErrorKind::AlreadyExists => Ok(()),
            Err(cause) => Err(error(cause)),
        }
    }

    /// Renames; a missing source was renamed before. Both folders are made durable.
    fn move_file(&self, from: &Path, to: &Path) -> Result<bool, Error> {
        let error = |error| disk_error(format!("publish {}", to.display()), error);
        let folder = to.parent().unwrap_or(&self.root);
        self.make_folder_of(to)?;
        match fs::rename(from, to) {
            Ok(()) => {}
            Err(cause) if cause.kind() == ErrorKind::NotFound => return Ok(false),
            Err(cause) => return Err(error(cause)),
        }
        sync_folder(folder)?;
        if let Some(source) = from.parent() {
            sync_folder(source)?;
        }
        Ok(true)
    }

    fn make_folder_of(&self, to: &Path) -> Result<(), Error> {
        let error = |error| disk_error(format!("publish {}", to.display()), error);
        let folder = to.parent().unwrap_or(&self.root);
        if !folder.is_dir() {
            let in_the_way = folder.ancestors().find(|above| above.is_file());
            if let Some(file) = in_the_way {
                let reason = format!("{} is a file; a folder must be there", file.display());
                return Err(error(io::Error::new(ErrorKind::AlreadyExists, reason)));
            }
            fs::create_dir_all(folder).map_err(error)?;
            let mut parent = folder;
            while parent != self.root {
                let Some(above) = parent.parent() else { break };
                parent = above;
                sync_folder(parent)?;
            }
        }
        Ok(())
    }

    /// Joins the held segments of one file and makes it visible.
    fn complete(&self, held: &Path) -> Result<(), Error> {
        let error = |error| disk_error(format!("complete {}", held.display()), error);
        let published = match fs::read_to_string(held.join(PUBLISHED)) {
            Ok(published) => published,
            // Nothing was held, or it was completed before.
            Err(cause) if cause.kind() == ErrorKind::NotFound => {
                let _ = fs::remove_dir_all(held);
                return Ok(());
            }
            Err(cause) => return Err(error(cause)),
        };
        let target = self.root.join(&published);
        if !target.exists() {
            let mut segments = Vec::new();
            for entry in fs::read_dir(held).map_err(error)? {
                let path = entry.map_err(error)?.path();
                let name = path
                    .file_name()
                    .map(|name| name.to_string_lossy().into_owned());
                if name.is_some_and(|name| name.bytes().all(|byte| byte.is_ascii_digit())) {
                    segments.push(path);
                }
            }
            segments.sort();
            match segments.as_slice() {
                [] => {}
                _ => {
                    let draft = draft_in(held);
                    join(&segments, &draft, published.ends_with(".parquet"))?;
                    self.place_new(&draft, &target)?;
                }
            }
        }
        match fs::remove_dir_all(held) {
            Err(cause) if cause.kind() != ErrorKind::NotFound => Err(error(cause)),
            _ => Ok(()),
        }
    }

    /// Whether an earlier attempt of this sink wrote it. A later one's is not ours to judge: this
    /// process may have been frozen, and be the dead one.
    fn is_of_the_dead(&self, name: &str) -> bool {
        epoch_of(name, &self.prefix).is_some_and(|epoch| epoch < self.epoch)
    }

    /// Removes staged files of this sink that no manifest lists.
    fn remove_unlisted(&self, listed: &BTreeSet<&str>) -> Result<(), Error> {
        let error = |error| disk_error(format!("list {}", self.staging.display()), error);
        for entry in fs::read_dir(&self.staging).map_err(error)? {
            let name = entry
                .map_err(error)?
                .file_name()
                .to_string_lossy()
                .into_owned();
            if self.is_of_the_dead(&name) && !listed.contains(name.as_str()) {
                let path = self.staging.join(&name);
                let gone = fs::remove_file(&path);
                if let Err(cause) = gone
                    && cause.kind() != ErrorKind::NotFound
                {
                    return Err(disk_error(format!("remove {}", path.display()), cause));
                }
            }
        }
        Ok(())
    }

    /// Makes files of all held segments: their writers are gone.
    fn complete_all(&self) -> Result<(), Error> {
        let folder = self.staging.join(HELD);
        let entries = match fs::read_dir(&folder) {
            Ok(entries) => entries,
            Err(cause) if cause.kind() == ErrorKind::NotFound => return Ok(()),
            Err(cause) => return Err(disk_error(format!("list {}", folder.display()), cause)),
        };
        for entry in entries {
            let entry =
                entry.map_err(|error| disk_error(format!("list {}", folder.display()), error))?;
            if self.is_of_the_dead(&entry.file_name().to_string_lossy()) {
                self.complete(&entry.path())?;
            }
        }
        Ok(())
    }
}

/// Name of a held segment.
fn segment(n: u32) -> String {
    format!("{n:08}")
}

/// A name that no other process writes to at the same time.
fn draft_in(held: &Path) -> PathBuf {
    static DRAFTS: AtomicU64 = AtomicU64::new(0);
    let n = DRAFTS.fetch_add(1, Ordering::Relaxed);
    held.join(format!("draft-{}-{n}", std::process::id()))
}

/// Joins segments into one durable file.
fn join(segments: &[PathBuf], draft: &Path, parquet: bool) -> Result<(), Error> {
    let action = || format!("join segments into {}", draft.display());
    let io = |error| disk_error(action(), error);
    if parquet {
        return join_parquet(segments, draft).map_err(|error| failed(action(), true, error));
    }
    let mut out = File::create(draft).map_err(io)?;
    for segment in segments {
        let mut part = File::open(segment).map_err(io)?;
        std::io::copy(&mut part, &mut out).map_err(io)?;
    }
    out.sync_all().map_err(io)
}

/// Copies the row groups as they are; nothing is decoded.
fn join_parquet(segments: &[PathBuf], draft: &Path) -> Result<(), ParquetError> {
    let mut writer: Option<SerializedFileWriter<File>> = None;
    for segment in segments {
        let input = File::open(segment)?;
        let reader = SerializedFileReader::new(input.try_clone()?)?;
        let facts = reader.metadata();
        let out = match &mut writer {
            Some(out) => out,
            None => {
                let schema = facts.file_metadata().schema_descr().root_schema_ptr();
                let keys = facts.file_metadata().key_value_metadata().cloned();
                let properties = WriterProperties::builder()
                    .set_key_value_metadata(keys)
                    .build();
                let out =
                    SerializedFileWriter::new(File::create(draft)?, schema, properties.into())?;
                writer.insert(out)
            }
        };
        for group in facts.row_groups() {
            let mut copy = out.next_row_group()?;
            for column in group.columns() {
                let closed = ColumnCloseResult {
                    bytes_written: u64::try_from(column.compressed_size()).unwrap_or(0),
                    rows_written: u64::try_from(group.num_rows()).unwrap_or(0),
                    metadata: column.clone(),
                    bloom_filter: None,
                    column_index: None,
                    offset_index: None,
                };
                copy.append_column(&input, closed)?;
            }
            copy.close()?;
        }
    }
    if let Some(writer) = writer {
        writer.into_inner()?.sync_all()?;
    }
    Ok(())
}

#[async_trait]
impl Publisher for FilePublisher {
    async fn publish(&self, _slot: &SlotId, interval: &StagedInterval) -> Result<(), Error> {
        interval
            .objects
            .iter()
            .try_for_each(|object| self.publish_object(object))
    }

    async fn discard_unlisted(&self, listed: &[StagedInterval]) -> Result<(), Error> {
        let objects = || listed.iter().flat_map(|interval| &interval.objects);
        let names: BTreeSet<&str> = objects().map(|object| object.staged.as_str()).collect();
        self.remove_unlisted(&names)?;
        // What is listed is committed. Segments of a file that was still open belong to those held
        // of it, and no writer will ever close that file.
        for object in objects() {
            let detail = self.detail_of(object)?;
            match self.place(object, &detail) {
                // A whole file waits where it is staged: whoever owns its slot tries until it can be
                // placed. A segment must be with the others before `complete_all`.
                Err(error) if detail.is_whole() => {
                    warn!("{} stays staged: {}", object.published, error.with_causes());
                }
                placed => placed?,
            }
        }
        self.complete_all()
    }
}

#[cfg(test)]
mod tests {
    use streamforge_core::ids::{CheckpointId, OperatorUid};

    use super::*;

    fn slot() -> SlotId {
        SlotId {
            sink: OperatorUid("out".into()),
            slot: 0,
        }
    }

    fn listed(staged: &str, root: &Path) -> StagedObject {
        let root = absolute(root).unwrap();
        let detail = Detail {
            segment: 0,
            last: true,
            root: Some(root),
        };
        StagedObject {
            staged: staged.to_owned(),
            published: "a.ndjson".to_owned(),
            bytes: 1,
            rows: 1,
            detail: serde_json::to_string(&detail).unwrap(),
        }
    }

    #[test]
    fn what_was_staged_in_another_folder_is_not_taken_for_published_x6() {
        let (old, new) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let path = new.path().to_str().unwrap();
        let publisher =
            FilePublisher::open(path, &JobId("j".to_owned()), "out", Epoch::from_stored(9))
                .unwrap();

        let refused = publisher.publish_object(&listed("s", old.path()));
        let said = refused.unwrap_err().with_causes();
        assert!(said.contains("earlier folder"), "{said}");

        // Listed, staged here and missing: published.
        publisher.publish_object(&listed("s", new.path())).unwrap();
        // The folder was moved with all that is in it, and this much was published before.
        fs::write(new.path().join("a.ndjson"), "1\n").unwrap();
        publisher.publish_object(&listed("s", old.path())).unwrap();
        fs::remove_file(new.path().join("a.ndjson")).unwrap();
        // So it was, and this was not.
        fs::write(new.path().join(STAGING).join("s"), "1\n").unwrap();
        publisher.publish_object(&listed("s", old.path())).unwrap();
        assert_eq!(
            fs::read_to_string(new.path().join("a.ndjson")).unwrap(),
            "1\n"
        );
    }

    #[tokio::test]
    async fn a_blocked_folder_keeps_no_attempt_from_its_start_x4() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().to_str().unwrap();
        let publisher =
            FilePublisher::open(root, &JobId("j".to_owned()), "out", Epoch::from_stored(9))
                .unwrap();
        let mut object = listed("s", folder.path());
        object.published = "day/a.ndjson".to_owned();
        fs::write(folder.path().join(STAGING).join("s"), "1\n").unwrap();
        fs::write(folder.path().join("day"), "in the way").unwrap();
        let interval = StagedInterval {
            id: CheckpointId::from_stored(1),
            objects: vec![object],
        };

        let listed = [interval.clone()];
        publisher.discard_unlisted(&listed).await.unwrap();
        let refused = publisher.publish(&slot(), &interval).await.unwrap_err();
        let said = refused.with_causes();
        assert!(
            said.contains("day is a file; a folder must be there"),
            "{said}"
        );

        fs::remove_file(folder.path().join("day")).unwrap();
        publisher.publish(&slot(), &interval).await.unwrap();
        let placed = fs::read_to_string(folder.path().join("day/a.ndjson"));
        assert_eq!(placed.unwrap(), "1\n");
    }

    #[test]
    fn a_zombies_shorter_join_does_not_replace_a_finished_file_x6() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().to_str().unwrap();
        let publisher =
            FilePublisher::open(root, &JobId("j".to_owned()), "out", Epoch::from_stored(9))
                .unwrap();
        let target = folder.path().join("a/part-1.ndjson");
        let [whole, shorter] = ["whole", "shorter"].map(|name| folder.path().join(name));
        fs::write(&whole, "1\n2\n").unwrap();
        fs::write(&shorter, "2\n").unwrap();

        publisher.place_new(&whole, &target).unwrap();
        publisher.place_new(&shorter, &target).unwrap();

        assert_eq!(fs::read_to_string(&target).unwrap(), "1\n2\n");
        let held = folder.path();
        assert_ne!(
            draft_in(held),
            draft_in(held),
            "two joins never share a draft"
        );
    }
}
