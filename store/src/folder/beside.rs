//! Writing into a folder that another process holds.
//!
//! Owns: a place for temporary files of each such writer, and its removal once the writer is dead.
//! A task manager writes parts beside the coordinator, which holds the lock and alone swaps the head.
//! A new object gets its name by a hard link, which never replaces, so two processes cannot both
//! create it; nothing else is promised between processes, and nothing else is allowed here.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use crate::{Error, Result};

/// Folder of such writers' folders.
const BESIDE_NAME: &str = ".beside";

/// Locked by its writer for life.
const LOCK_NAME: &str = "lock";

/// A writer's own folder; removed when it is dropped.
#[derive(Debug)]
pub(super) struct Place {
    folder: PathBuf,
    _lock: File,
}

impl Place {
    /// Makes a folder that no other writer has.
    pub(super) fn make(root: &Path) -> Result<Self> {
        let all = root.join(BESIDE_NAME);
        fs::create_dir_all(&all).map_err(|e| Error::from_io("create temporary folder", &all, e))?;
        let process = std::process::id();
        for n in 0_u32.. {
            let folder = all.join(format!("{process}-{n}"));
            match fs::create_dir(&folder) {
                Ok(()) => return Self::lock(folder),
                Err(e) if e.kind() == ErrorKind::AlreadyExists => {}
                Err(e) => return Err(Error::from_io("create temporary folder", folder, e)),
            }
        }
        no_number_left(&all)
    }

    fn lock(folder: PathBuf) -> Result<Self> {
        let path = folder.join(LOCK_NAME);
        let file = open_lock(&path).map_err(|e| Error::from_io("open lock file", &path, e))?;
        match file.try_lock() {
            Ok(()) => Ok(Self {
                folder,
                _lock: file,
            }),
            Err(TryLockError::WouldBlock) => Err(Error::InUse {
                path: folder,
                pid: "unknown".to_owned(),
            }),
            Err(TryLockError::Error(e)) => Err(Error::from_io("lock", path, e)),
        }
    }

    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // What stays is removed by the next one who holds the store.
        let _removed = fs::remove_dir_all(&self.folder);
    }
}

fn open_lock(path: &Path) -> std::io::Result<File> {
    OpenOptions::new()
        .create(true)
        .truncate(false)
        .read(true)
        .write(true)
        .open(path)
}

fn no_number_left(all: &Path) -> Result<Place> {
    let source = std::io::Error::other("no number is free");
    Err(Error::from_io("create temporary folder", all, source))
}

/// Removes the folders of writers that are dead.
pub(super) fn remove_dead(root: &Path) {
    let Ok(entries) = fs::read_dir(root.join(BESIDE_NAME)) else {
        return; // nobody was ever there
    };
    for entry in entries.flatten() {
        let folder = entry.path();
        let lock = folder.join(LOCK_NAME);
        // A live writer holds its lock. One that is just being made has none yet, and makes it in
        // the folder's first moments; that it then finds no folder is an error it reports.
        let dead = match File::open(&lock) {
            Ok(file) => file.try_lock().is_ok(),
            Err(_) => false,
        };
        if dead {
            let _removed = fs::remove_dir_all(folder);
        }
    }
}
