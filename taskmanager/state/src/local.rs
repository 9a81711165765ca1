//! Copies of parts on this task manager's own disk, for a fast recovery.
//!
//! Owns: a folder of copies, which range of which part each holds, and dropping those that no recent
//! checkpoint lists. A copy is never needed and never believed: the store has every part, and what is
//! read here is checked against the manifest's checksums like what the store answers. So nothing is
//! synced, and an error of this disk costs a read of the store. Start at: [`LocalCopies`].

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs::{self, File};
use std::io::{self, ErrorKind, Read as _, Seek as _, SeekFrom};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use bytes::Bytes;
use streamforge_core::ids::{CheckpointId, TaskId};
use streamforge_core::object_key::writer_of;
use tracing::warn;

/// How a copy's file name ends.
const SUFFIX: &str = ".copy";

/// Checkpoints of a task whose parts stay: a restore is from the newest committed one, and one more may
/// be under way.
const CHECKPOINTS_N: usize = 3;

/// What was read here, and what had to come from the store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LocalReads {
    /// Parts.
    pub here_n: u64,
    /// Their bytes.
    pub here_bytes: u64,
    /// Parts that were not here, or damaged.
    pub store_n: u64,
    /// Their bytes.
    pub store_bytes: u64,
}

/// The folder of copies.
#[derive(Debug)]
pub struct LocalCopies {
    folder: PathBuf,
    index: Mutex<Index>,
    /// Whether somebody was told that this disk fails.
    told: AtomicBool,
    here: (AtomicU64, AtomicU64),
    store: (AtomicU64, AtomicU64),
}

#[derive(Debug, Default)]
struct Index {
    /// By the part's key: what is here of it.
    copies: BTreeMap<String, Vec<Range<u64>>>,
    /// What the last checkpoints of each task list.
    listed: BTreeMap<TaskId, VecDeque<(CheckpointId, BTreeSet<String>)>>,
}

impl LocalCopies {
    /// Opens the folder, made if need be, and removes the copies of an earlier process: nobody knows
    /// which of them a checkpoint still lists.
    ///
    /// # Errors
    /// When it cannot be made, read, or emptied.
    pub fn open(folder: &Path) -> io::Result<Self> {
        fs::create_dir_all(folder)?;
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            if path.to_string_lossy().ends_with(SUFFIX) {
                fs::remove_file(path)?;
            }
        }
        Ok(Self {
            folder: folder.to_owned(),
            index: Mutex::default(),
            told: AtomicBool::new(false),
            here: Default::default(),
            store: Default::default(),
        })
    }

    /// Keeps a copy of a part, of which `bytes` begin at `start`. Blocks on the disk.
    pub fn keep(&self, key: &str, start: u64, bytes: &[u8]) {
        let range = start..start.saturating_add(bytes.len() as u64);
        if self.holds(key, &range).is_some() {
            return;
        }
        // Not in the index before it is whole: whatever a failed write leaves is never read.
        let path = self.path(key, &range);
        match fs::write(&path, bytes) {
            Ok(()) => {
                let mut index = self.index.lock().unwrap_or_else(PoisonError::into_inner);
                index.copies.entry(key.to_owned()).or_default().push(range);
            }
            Err(error) => {
                let _ = fs::remove_file(&path);
                if !self.told.swap(true, Ordering::Relaxed) {
                    warn!(
                        "no local copy of `{key}` in {}: {error}; the store has it",
                        self.folder.display()
                    );
                }
            }
        }
    }

    /// These bytes of a part, if they are here. Blocks on the disk.
    #[must_use]
    pub fn read(&self, key: &str, range: &Range<u64>) -> Option<Bytes> {
        let held = self.holds(key, range)?;
        let read = || {
            let mut file = File::open(self.path(key, &held))?;
            file.seek(SeekFrom::Start(range.start.saturating_sub(held.start)))?;
            let length = range.end.saturating_sub(range.start);
            let mut bytes = Vec::with_capacity(usize::try_from(length).unwrap_or_default());
            file.take(length).read_to_end(&mut bytes)?;
            if bytes.len() as u64 == length {
                Ok(Bytes::from(bytes))
            } else {
                Err(io::Error::from(ErrorKind::UnexpectedEof))
            }
        };
        match read() {
            Ok(bytes) => Some(bytes),
            Err(error) => {
                warn!("read the local copy of `{key}`: {error}; reading the store");
                self.forget(key);
                None
            }
        }
    }

    /// Drops what is here of a part, because it is not what it should be.
    pub fn forget(&self, key: &str) {
        let mut index = self.index.lock().unwrap_or_else(PoisonError::into_inner);
        let held = index.copies.remove(key).unwrap_or_default();
        drop(index);
        self.remove(key, &held);
    }

    /// A checkpoint of a task lists these parts; those that only older ones list are dropped. Blocks on
    /// the disk.
    pub fn on_listed(&self, task: TaskId, id: CheckpointId, parts: BTreeSet<String>) {
        let mut index = self.index.lock().unwrap_or_else(PoisonError::into_inner);
        let of_task = index.listed.entry(task).or_default();
        of_task.push_back((id, parts));
        if of_task.len() <= CHECKPOINTS_N {
            return;
        }
        of_task.pop_front();
        let Some(oldest) = of_task.front().map(|(id, _)| *id) else {
            return;
        };
        // Ids only grow: a task that has listed nothing for so long is gone.
        let lives =
            |lists: &VecDeque<(CheckpointId, _)>| lists.back().is_some_and(|(id, _)| *id >= oldest);
        index.listed.retain(|_, lists| lives(lists));
        let listed = index.listed.values().flatten();
        let listed: BTreeSet<String> = listed
            .flat_map(|(_, parts)| parts.iter().cloned())
            .collect();
        // A part that a task writes now is not listed yet.
        let is_old = |key: &str| writer_of(key).is_none_or(|writer| writer.checkpoint < oldest);
        let dropped: Vec<String> = index
            .copies
            .keys()
            .filter(|it| is_old(it) && !listed.contains(*it))
            .cloned()
            .collect();
        let dropped: Vec<_> = dropped
            .into_iter()
            .filter_map(|key| index.copies.remove_entry(&key))
            .collect();
        drop(index);
        for (key, held) in dropped {
            self.remove(&key, &held);
        }
    }

    /// Notes where a part's bytes came from.
    pub(crate) fn on_read(&self, is_here: bool, bytes_n: u64) {
        let (parts, bytes) = if is_here { &self.here } else { &self.store };
        parts.fetch_add(1, Ordering::Relaxed);
        bytes.fetch_add(bytes_n, Ordering::Relaxed);
    }

    /// How often a copy was of use.
    #[must_use]
    pub fn reads(&self) -> LocalReads {
        LocalReads {
            here_n: self.here.0.load(Ordering::Relaxed),
            here_bytes: self.here.1.load(Ordering::Relaxed),
            store_n: self.store.0.load(Ordering::Relaxed),
            store_bytes: self.store.1.load(Ordering::Relaxed),
        }
    }

    /// The held range that covers this one.
    fn holds(&self, key: &str, range: &Range<u64>) -> Option<Range<u64>> {
        let index = self.index.lock().unwrap_or_else(PoisonError::into_inner);
        let covers = |held: &&Range<u64>| held.start <= range.start && range.end <= held.end;
        index.copies.get(key)?.iter().find(covers).cloned()
    }

    fn path(&self, key: &str, range: &Range<u64>) -> PathBuf {
        let name = key.replace('/', "_");
        self.folder
            .join(format!("{name}@{}-{}{SUFFIX}", range.start, range.end))
    }

    fn remove(&self, key: &str, held: &[Range<u64>]) {
        for range in held {
            let _ = fs::remove_file(self.path(key, range));
        }
    }
}

#[cfg(test)]
mod tests {
    use streamforge_core::ids::{StageIdx, SubtaskIdx};

    use super::*;

    fn task(subtask: u32) -> TaskId {
        TaskId {
            stage: StageIdx(0),
            subtask: SubtaskIdx(subtask),
        }
    }

    fn files(folder: &Path) -> usize {
        fs::read_dir(folder).unwrap().count()
    }

    fn list(copies: &LocalCopies, task: TaskId, id: u64, parts: &[&str]) {
        let parts = parts.iter().map(|&it| it.to_owned()).collect();
        copies.on_listed(task, CheckpointId::from_stored(id), parts);
    }

    #[test]
    fn a_range_within_what_is_held_is_read_and_others_are_not() {
        let folder = tempfile::tempdir().unwrap();
        let copies = LocalCopies::open(folder.path()).unwrap();
        copies.keep("parts/g1-e1-c1-t0-0-1", 100, b"abcdef");

        let read = |range| copies.read("parts/g1-e1-c1-t0-0-1", &range);
        assert_eq!(read(102..104).as_deref(), Some(&b"cd"[..]));
        assert_eq!(read(100..106).as_deref(), Some(&b"abcdef"[..]));
        assert_eq!(read(99..104), None);
        assert_eq!(read(104..107), None);
        assert_eq!(copies.read("parts/g1-e1-c1-t0-0-2", &(100..101)), None);
    }

    #[test]
    fn a_copy_that_was_cut_or_removed_is_not_read_and_forgotten() {
        let folder = tempfile::tempdir().unwrap();
        let copies = LocalCopies::open(folder.path()).unwrap();
        let key = "parts/g1-e1-c1-t0-0-1";
        copies.keep(key, 0, b"abcdef");
        fs::write(copies.path(key, &(0..6)), b"abc").unwrap();

        assert_eq!(copies.read(key, &(0..6)), None);
        assert_eq!(files(folder.path()), 0);
        copies.keep(key, 0, b"abcdef");
        assert!(copies.read(key, &(0..6)).is_some());
    }

    #[test]
    fn parts_that_no_recent_checkpoint_lists_are_dropped_and_new_ones_are_not() {
        let folder = tempfile::tempdir().unwrap();
        let copies = LocalCopies::open(folder.path()).unwrap();
        let [old, merged, other, new] = [
            "parts/g1-e1-c1-t0-0-1",
            "parts/g1-e1-c2-t0-0-2",
            "parts/g1-e1-c1-t0-1-1",
            "parts/g1-e1-c9-t0-1-2",
        ];
        for key in [old, merged, other, new] {
            copies.keep(key, 0, b"x");
        }

        list(&copies, task(1), 1, &[other]);
        list(&copies, task(0), 1, &[old]);
        for id in 2..=3 {
            list(&copies, task(0), id, &[merged]);
        }
        assert_eq!(files(folder.path()), 4, "checkpoint 1 may be restored");
        list(&copies, task(1), 2, &[other]);
        list(&copies, task(0), 4, &[merged]);

        let held = |key| copies.read(key, &(0..1)).is_some();
        assert_eq!(
            [old, merged, other, new].map(held),
            [false, true, true, true]
        );

        // Task 1 has gone elsewhere; it lists nothing any more.
        for id in 5..=7 {
            list(&copies, task(0), id, &[merged]);
        }
        assert_eq!([merged, other, new].map(held), [true, false, true]);
        assert_eq!(files(folder.path()), 2);
    }

    #[test]
    fn copies_of_an_earlier_process_are_removed_and_foreign_files_are_not() {
        let folder = tempfile::tempdir().unwrap();
        let before = LocalCopies::open(folder.path()).unwrap();
        before.keep("parts/g1-e1-c1-t0-0-1", 0, b"x");
        fs::write(folder.path().join("mine.txt"), "x").unwrap();

        LocalCopies::open(folder.path()).unwrap();

        assert_eq!(files(folder.path()), 1);
    }

    #[test]
    fn a_disk_that_cannot_be_written_costs_the_copy_only() {
        let folder = tempfile::tempdir().unwrap();
        let copies = LocalCopies::open(folder.path()).unwrap();
        fs::remove_dir(folder.path()).unwrap();

        copies.keep("parts/g1-e1-c1-t0-0-1", 0, b"x");

        assert_eq!(copies.read("parts/g1-e1-c1-t0-0-1", &(0..1)), None);
    }
}
