//! The lock that makes one process the only writer of a folder.
//!
//! Owns: the lock file, held until drop. The system frees it when the process dies, however it
//! dies, so a SIGKILL leaves nothing to clean up; the text in it is only for people.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::Path;

use super::LOCK_NAME;
use crate::{Error, Result};

/// A held lock.
#[derive(Debug)]
pub(super) struct Lock {
    _file: File,
}

impl Lock {
    /// Takes the lock, or says who holds it.
    pub(super) fn acquire(root: &Path) -> Result<Self> {
        let path = root.join(LOCK_NAME);
        let io = |action| {
            let path = path.clone();
            move |e| Error::from_io(action, path, e)
        };
        let mut file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .read(true)
            .write(true)
            .open(&path)
            .map_err(io("open lock file"))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let mut holder = String::new();
                // What cannot be read is not worth a second error.
                let _read = file.read_to_string(&mut holder);
                let pid = holder.trim();
                let pid = if pid.is_empty() { "unknown" } else { pid }.to_owned();
                return Err(Error::InUse {
                    path: root.to_owned(),
                    pid,
                });
            }
            Err(TryLockError::Error(e)) => return Err(io("lock")(e)),
        }
        file.set_len(0).map_err(io("write lock file"))?;
        file.seek(SeekFrom::Start(0))
            .map_err(io("write lock file"))?;
        writeln!(file, "{}", std::process::id()).map_err(io("write lock file"))?;
        Ok(Self { _file: file })
    }
}
