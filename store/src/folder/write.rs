//! How one object becomes durable, whole or not at all.
//!
//! Owns: the temporary file, the step that makes it an object, and the syncs around both: content
//! first, then the name, then the folder that holds the name. Dying between any two of them leaves
//! a file in `.tmp/`, which the next `open` removes.
//!
//! Invariant C2: the check of a condition and the step that makes the object visible happen under
//! one mutex, and the process holds the folder's lock, so no writer comes in between.

use std::fs::{self, File};
use std::io::{ErrorKind, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use xxhash_rust::xxh3::Xxh3;

use super::beside::Place;
use super::lock::Lock;
use super::{TMP_NAME, etag_of, is_absence, version_name};
use crate::{Condition, ETag, Error, Put, Result};

/// How often a folder is made anew that others keep removing.
const FOLDER_ATTEMPTS_MAX: u32 = 100;

#[derive(Debug)]
pub(super) struct Writer {
    tmp: PathBuf,
    next: AtomicU64,
    /// Held while names change: condition check + rename, and the pruning of empty folders.
    names: Mutex<()>,
    hold: Hold,
}

/// By what right a writer writes.
#[derive(Debug)]
enum Hold {
    /// It is the only one.
    Lock(#[expect(dead_code, reason = "held until drop")] Lock),
    /// Beside the one that holds the lock.
    Beside(#[expect(dead_code, reason = "held until drop")] Place),
}

impl Writer {
    /// Prepares the folder for writing and removes what a dead writer left half done.
    pub(super) fn open(root: &Path, lock: Lock) -> Result<Self> {
        let tmp = root.join(TMP_NAME);
        match fs::remove_dir_all(&tmp) {
            Ok(()) => {}
            Err(e) if e.kind() == ErrorKind::NotFound => {}
            Err(e) => return Err(Error::from_io("empty temporary folder", tmp, e)),
        }
        fs::create_dir(&tmp).map_err(|e| Error::from_io("create temporary folder", &tmp, e))?;
        Ok(Self {
            tmp,
            next: AtomicU64::new(0),
            names: Mutex::new(()),
            hold: Hold::Lock(lock),
        })
    }

    /// A writer of new objects beside the one that holds the lock.
    pub(super) fn beside(place: Place) -> Self {
        Self {
            tmp: place.folder().to_owned(),
            next: AtomicU64::new(0),
            names: Mutex::new(()),
            hold: Hold::Beside(place),
        }
    }

    /// Whether no other process may change objects.
    pub(super) fn is_alone(&self) -> bool {
        matches!(self.hold, Hold::Lock(_))
    }

    pub(super) fn put(
        &self,
        root: &Path,
        path: &Path,
        bytes: &[u8],
        condition: &Condition,
    ) -> Result<Put> {
        // A doomed put need not be written first; the check that counts comes under the mutex.
        if *condition == Condition::CreateIfAbsent && path.is_file() {
            return Ok(Put::ConditionFailed);
        }
        let mut tmp = self.begin()?;
        tmp.add(bytes)?;
        self.finish(root, path, &mut tmp, condition)
    }

    /// An empty temporary file.
    pub(super) fn begin(&self) -> Result<Tmp> {
        let n = self.next.fetch_add(1, Ordering::Relaxed);
        Tmp::create(self.tmp.join(n.to_string()))
    }

    /// Makes the temporary file the object, if the condition holds. After an error it may be tried again.
    pub(super) fn finish(
        &self,
        root: &Path,
        path: &Path,
        tmp: &mut Tmp,
        condition: &Condition,
    ) -> Result<Put> {
        tmp.sync()?;
        let named = self.name(root, path, &tmp.path, condition)?;
        Ok(if named {
            Put::Done(tmp.etag())
        } else {
            Put::ConditionFailed
        })
    }

    /// Gives the temporary file its name, if the condition holds.
    fn name(&self, root: &Path, path: &Path, tmp: &Path, condition: &Condition) -> Result<bool> {
        let _names = self.names();
        let folder = path.parent().unwrap_or(root);
        match condition {
            Condition::None => {
                create_folders(root, folder)?;
                fs::rename(tmp, path).map_err(|e| Error::from_io("rename object", path, e))?;
            }
            Condition::CreateIfAbsent => {
                if !self.create(root, folder, path, tmp)? {
                    return Ok(false);
                }
            }
            Condition::IfMatch(wanted) => {
                let current = match fs::read(path) {
                    Ok(bytes) => etag_of(&bytes),
                    Err(e) if is_absence(&e) => return Ok(false),
                    Err(e) => return Err(Error::from_io("read object", path, e)),
                };
                if current != *wanted {
                    return Ok(false);
                }
                fs::rename(tmp, path).map_err(|e| Error::from_io("rename object", path, e))?;
            }
        }
        sync_dir(folder)?;
        Ok(true)
    }

    /// Makes the object unless there is one. Another process may remove the folder, which is empty
    /// until then, between its making and this.
    fn create(&self, root: &Path, folder: &Path, path: &Path, tmp: &Path) -> Result<bool> {
        for _again in 0..FOLDER_ATTEMPTS_MAX {
            let linked = create_folders(root, folder).and_then(|()| link_new(tmp, path));
            match linked {
                Err(_) if !folder.is_dir() => {}
                linked => return linked,
            }
        }
        create_folders(root, folder)?;
        link_new(tmp, path)
    }

    pub(super) fn delete(&self, root: &Path, path: &Path) -> Result<()> {
        let _names = self.names();
        match fs::remove_file(path) {
            Ok(()) => {}
            Err(e) if is_absence(&e) => return Ok(()),
            // Linux says EISDIR, others EPERM: a folder is not an object.
            Err(_) if path.is_dir() => return Ok(()),
            Err(e) => return Err(Error::from_io("delete object", path, e)),
        }
        let mut folder = path.parent();
        while let Some(empty) = folder.filter(|folder| *folder != root) {
            if fs::remove_dir(empty).is_err() {
                break; // not empty
            }
            folder = empty.parent();
        }
        Ok(())
    }

    fn names(&self) -> MutexGuard<'_, ()> {
        // The mutex guards no data; a panic of another writer leaves nothing half done.
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A file that is no object yet; it goes when this is dropped.
#[derive(Debug)]
pub(super) struct Tmp {
    path: PathBuf,
    file: File,
    bytes_n: u64,
    hasher: Hasher,
}

/// Of what is in a file.
struct Hasher(Xxh3);

impl std::fmt::Debug for Hasher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Hasher")
    }
}

impl Tmp {
    fn create(path: PathBuf) -> Result<Self> {
        let file = File::create_new(&path)
            .map_err(|e| Error::from_io("create temporary file", &path, e))?;
        Ok(Self {
            path,
            file,
            bytes_n: 0,
            hasher: Hasher(Xxh3::new()),
        })
    }

    /// Adds bytes at its end. After an error it may be tried again.
    pub(super) fn add(&mut self, bytes: &[u8]) -> Result<()> {
        self.file
            .seek(SeekFrom::Start(self.bytes_n))
            .and_then(|_at| self.file.write_all(bytes))
            .map_err(|e| Error::from_io("write object to", &self.path, e))?;
        self.bytes_n += bytes.len() as u64;
        self.hasher.0.update(bytes);
        Ok(())
    }

    fn sync(&mut self) -> Result<()> {
        // Without what an addition that failed may have left behind.
        self.file
            .set_len(self.bytes_n)
            .and_then(|()| self.file.sync_all())
            .map_err(|e| Error::from_io("sync object to disk", &self.path, e))
    }

    fn etag(&self) -> ETag {
        version_name(self.hasher.0.digest128(), self.bytes_n)
    }
}

impl Drop for Tmp {
    fn drop(&mut self) {
        // An object has another name by now. Best effort: what stays is removed by the next open.
        let _removed = fs::remove_file(&self.path);
    }
}

/// Makes the temporary file the object, unless there is one. A hard link never replaces.
fn link_new(tmp: &Path, path: &Path) -> Result<bool> {
    match fs::hard_link(tmp, path) {
        Ok(()) => {
            // Only the second name goes; should this fail, the next open removes it.
            let _removed = fs::remove_file(tmp);
            return Ok(true);
        }
        Err(e) if e.kind() == ErrorKind::AlreadyExists => {
            return if path.is_dir() {
                Err(Error::from_io("create object", path, e))
            } else {
                Ok(false)
            };
        }
        Err(e) if no_hard_links(&e) => {}
        Err(e) => return Err(Error::from_io("create object", path, e)),
    }
    // A file system without hard links: look first. Nobody else writes here (lock and mutex).
    if path.exists() {
        return Ok(false);
    }
    fs::rename(tmp, path).map_err(|e| Error::from_io("rename object", path, e))?;
    Ok(true)
}

fn no_hard_links(error: &std::io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::Unsupported | ErrorKind::PermissionDenied
    )
}

/// Makes the missing folders down to `folder` and syncs each one's name.
fn create_folders(root: &Path, folder: &Path) -> Result<()> {
    let mut missing = Vec::new();
    let mut at = folder;
    while at != root && !at.is_dir() {
        missing.push(at);
        at = at.parent().unwrap_or(root);
    }
    for path in missing.into_iter().rev() {
        match fs::create_dir(path) {
            Ok(()) => {}
            // Another process was faster.
            Err(e) if e.kind() == ErrorKind::AlreadyExists && path.is_dir() => {}
            // Another process removed the one above, empty as it was; the caller tries again.
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(()),
            Err(e) => return Err(Error::from_io("create folder", path, e)),
        }
        sync_dir(path.parent().unwrap_or(root))?;
    }
    Ok(())
}

pub(super) fn sync_dir(path: &Path) -> Result<()> {
    File::open(path)
        .and_then(|folder| folder.sync_all())
        .map_err(|e| Error::from_io("sync folder", path, e))
}
