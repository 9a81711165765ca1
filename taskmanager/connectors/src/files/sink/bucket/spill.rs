//! Bytes on their way to a bucket: on this machine's disk, or for the last of them in memory.
//!
//! Owns: the folder of this process, and cutting what lies there into parts. A file is removed when
//! nothing of it is waited for any more. Start at: [`Spill`], [`Bits`].

use std::collections::VecDeque;
use std::fs::{self, File};
use std::io::{Read as _, Seek as _, SeekFrom};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use streamforge_engine::error::Error;

use crate::files::sink::STAGING;
use crate::files::sink::segment::disk_error;

/// A folder of this process for files on their way, removed when the last user is gone.
#[derive(Debug)]
pub(super) struct Spill {
    pub(super) root: PathBuf,
    /// Locked while the process lives, however it ends: another one removes what is left.
    _lock: File,
}

/// How the names of these folders begin.
pub(super) const SPILL: &str = "streamforge-spill-";

/// The lock within such a folder. It is locked before it has this name.
pub(super) const SPILL_LOCK: &str = "lock";

impl Spill {
    pub(super) fn create() -> Result<Self, Error> {
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

    /// A file that was staged in this folder.
    pub(super) fn staged(&self, name: &str) -> LocalFile {
        LocalFile(self.root.join(STAGING).join(name))
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

/// A file that is removed with this.
#[derive(Debug)]
pub(super) struct LocalFile(PathBuf);

impl LocalFile {
    pub(super) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for LocalFile {
    fn drop(&mut self) {
        // The rest goes with the folder.
        let _best_effort = fs::remove_file(&self.0);
    }
}

/// Some bytes in a row.
#[derive(Clone, Debug)]
enum Bit {
    File(Arc<LocalFile>, Range<u64>),
    Memory(Bytes),
}

impl Bit {
    fn bytes_n(&self) -> u64 {
        match self {
            Self::File(_, range) => range.end - range.start,
            Self::Memory(bytes) => bytes.len() as u64,
        }
    }

    /// Cuts off the first `bytes_n` bytes, or all if there are no more.
    fn take(&mut self, bytes_n: u64) -> Self {
        let bytes_n = bytes_n.min(self.bytes_n());
        match self {
            Self::File(file, range) => {
                let at = range.start + bytes_n;
                let first = range.start..at;
                range.start = at;
                Self::File(Arc::clone(file), first)
            }
            Self::Memory(bytes) => {
                let bytes_n = usize::try_from(bytes_n).unwrap_or(usize::MAX);
                Self::Memory(bytes.split_to(bytes_n.min(bytes.len())))
            }
        }
    }
}

/// Bytes that follow each other, wherever they are. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub(super) struct Bits {
    bits: VecDeque<Bit>,
    bytes_n: u64,
}

impl Bits {
    pub(super) fn bytes_n(&self) -> u64 {
        self.bytes_n
    }

    pub(super) fn push_file(&mut self, file: LocalFile, range: Range<u64>) {
        self.push(Bit::File(Arc::new(file), range));
    }

    pub(super) fn push_bytes(&mut self, bytes: Bytes) {
        self.push(Bit::Memory(bytes));
    }

    fn push(&mut self, bit: Bit) {
        let bytes_n = bit.bytes_n();
        if bytes_n > 0 {
            self.bytes_n += bytes_n;
            self.bits.push_back(bit);
        }
    }

    /// Cuts off the first `bytes_n` bytes, or all if there are no more.
    pub(super) fn take(&mut self, bytes_n: u64) -> Self {
        let mut taken = Self::default();
        while taken.bytes_n < bytes_n {
            let Some(bit) = self.bits.front_mut() else {
                break;
            };
            let first = bit.take(bytes_n - taken.bytes_n);
            self.bytes_n -= first.bytes_n();
            if bit.bytes_n() == 0 {
                self.bits.pop_front();
            }
            taken.push(first);
        }
        taken
    }

    /// The last `bytes_n` bytes.
    pub(super) fn last(&self, bytes_n: u64) -> Self {
        let mut last = self.clone();
        last.take(self.bytes_n.saturating_sub(bytes_n));
        last
    }

    /// Brings all of it into memory.
    pub(super) async fn read(self) -> Result<Bytes, Error> {
        let read = move || {
            let mut all = Vec::new();
            for bit in self.bits {
                match bit {
                    Bit::Memory(bytes) => all.extend_from_slice(&bytes),
                    Bit::File(file, range) => {
                        let path = file.path();
                        let error = |error| disk_error(format!("read {}", path.display()), error);
                        append(path, range, &mut all).map_err(error)?;
                    }
                }
            }
            Ok(all.into())
        };
        let ended_early = |_| {
            let error = std::io::Error::other("a thread ended early");
            Err(disk_error("read staged rows".to_owned(), error))
        };
        tokio::task::spawn_blocking(read)
            .await
            .unwrap_or_else(ended_early)
    }
}

fn append(path: &Path, range: Range<u64>, to: &mut Vec<u8>) -> std::io::Result<()> {
    let mut file = File::open(path)?;
    file.seek(SeekFrom::Start(range.start))?;
    let wanted_n = range.end - range.start;
    let read_n = file.take(wanted_n).read_to_end(to)?;
    if read_n as u64 == wanted_n {
        Ok(())
    } else {
        Err(std::io::ErrorKind::UnexpectedEof.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn bits_of_files_and_memory_are_cut_anywhere_and_files_go_with_their_last_bit() {
        let folder = tempfile::tempdir().unwrap();
        let [one, two] = ["one", "two"].map(|name| folder.path().join(name));
        fs::write(&one, "abcdef").unwrap();
        fs::write(&two, "ghij").unwrap();
        let mut bits = Bits::default();
        bits.push_file(LocalFile(one.clone()), 1..5);
        bits.push_file(LocalFile(two.clone()), 0..4);
        bits.push_bytes(Bytes::from_static(b"xyz"));
        assert_eq!(bits.bytes_n(), 11);
        let text = async |bits: Bits| String::from_utf8(bits.read().await.unwrap().to_vec());

        assert_eq!(text(bits.last(5)).await.unwrap(), "ijxyz");
        let first = bits.take(6);
        assert_eq!(text(first).await.unwrap(), "bcdegh");
        assert!(!one.exists() && two.exists());
        assert_eq!(bits.bytes_n(), 5);
        assert_eq!(text(bits.take(9)).await.unwrap(), "ijxyz");
        assert_eq!(bits.bytes_n(), 0);
        assert!(!two.exists());
    }
}
