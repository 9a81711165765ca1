//! A store in a folder of the local file system.
//!
//! Owns: the folder, from `open` to drop: a lock on `.lock` is held for life, so no other process
//! writes here meanwhile (C2's "file lock held for life"), and the lock file says which one does.
//! Start at: [`FolderStore::open`]. How one object becomes durable: [`write`].
//!
//! Layout: the key is the path. `.lock` and `.tmp/` are the store's own; keys cannot begin with a
//! dot. A version's name is a hash of the content, so it survives restarts; writers that need to
//! tell equal contents apart put a nonce in.

mod beside;
mod lock;
mod pieces;
mod write;

use std::fs;
use std::io::{ErrorKind, Read, Seek, SeekFrom};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use xxhash_rust::xxh3::xxh3_128;

use crate::key::{check_key, check_prefix};
use crate::{
    Condition, ETag, Error, ObjectMeta, ObjectStore, ObjectWriter, Put, Result, StoredObject,
};

use pieces::Pieces;
use write::{Tmp, Writer};

/// Name of the lock file, which says who holds the store.
const LOCK_NAME: &str = ".lock";

/// Folder of files that are not objects yet.
const TMP_NAME: &str = ".tmp";

/// A store in a folder. Cheap to clone; the lock is freed with the last clone.
#[derive(Clone, Debug)]
pub struct FolderStore {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    root: PathBuf,
    /// `None`: opened for reading only.
    writer: Option<Writer>,
}

impl FolderStore {
    /// Opens a folder for writing, making it when it is not there.
    ///
    /// # Errors
    /// [`Error::InUse`] when a live process holds it; otherwise what the file system says.
    pub fn open(root: impl AsRef<Path>) -> Result<Self> {
        let root = root.as_ref();
        check_folder(root)?;
        let absent = !root.exists();
        fs::create_dir_all(root).map_err(|e| Error::from_io("create store folder", root, e))?;
        if absent && let Some(parent) = root.parent() {
            write::sync_dir(if parent.as_os_str().is_empty() {
                Path::new(".")
            } else {
                parent
            })?;
        }
        let root = absolute(root)?;
        let lock = lock::Lock::acquire(&root)?;
        beside::remove_dead(&root);
        let writer = Writer::open(&root, lock)?;
        Ok(Self {
            inner: Arc::new(Inner {
                root,
                writer: Some(writer),
            }),
        })
    }

    /// Opens a folder for creating objects beside the process that holds it: what `IfMatch` and
    /// plain puts would need the lock for is refused. The folder must exist.
    ///
    /// # Errors
    /// What the file system says.
    pub fn open_beside(root: impl AsRef<Path>) -> Result<Self> {
        let root = absolute(root.as_ref())?;
        let writer = Writer::beside(beside::Place::make(&root)?);
        Ok(Self {
            inner: Arc::new(Inner {
                root,
                writer: Some(writer),
            }),
        })
    }

    /// Opens a folder for reading only: without a lock, beside a process that writes.
    ///
    /// # Errors
    /// When the folder does not exist or cannot be read.
    pub fn open_read_only(root: impl AsRef<Path>) -> Result<Self> {
        let root = absolute(root.as_ref())?;
        Ok(Self {
            inner: Arc::new(Inner { root, writer: None }),
        })
    }

    /// The folder.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.inner.root
    }

    /// Runs file work off the runtime's threads when there is a runtime, in place otherwise.
    async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Inner) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        if tokio::runtime::Handle::try_current().is_err() {
            return work(&self.inner);
        }
        let inner = Arc::clone(&self.inner);
        match tokio::task::spawn_blocking(move || work(&inner)).await {
            Ok(result) => result,
            Err(join) if join.is_panic() => std::panic::resume_unwind(join.into_panic()),
            Err(_cancelled) => Err(Error::Unavailable {
                location: self.location(),
                reason: "the runtime is shutting down".to_owned(),
            }),
        }
    }
}

impl Inner {
    fn path(&self, key: &str) -> Result<PathBuf> {
        check_key(key)?;
        Ok(self.root.join(key))
    }

    fn get(&self, key: &str, bytes_max: u64) -> Result<Option<StoredObject>> {
        let path = self.path(key)?;
        match read_within(&path, bytes_max) {
            Ok(Some(bytes)) => Ok(Some(StoredObject {
                etag: etag_of(&bytes),
                bytes: bytes.into(),
            })),
            Ok(None) => Err(Error::TooLong {
                key: key.to_owned(),
                location: self.root.display().to_string(),
                bytes_max,
            }),
            Err(e) if is_absence(&e) => Ok(None),
            Err(e) => Err(Error::from_io("read object", path, e)),
        }
    }

    fn get_range(&self, key: &str, range: &Range<u64>) -> Result<Bytes> {
        let path = self.path(key)?;
        let mut file = match fs::File::open(&path) {
            Ok(file) => file,
            Err(e) if is_absence(&e) => return Err(self.not_found(key)),
            Err(e) => return Err(Error::from_io("open object", path, e)),
        };
        let io = |e| Error::from_io("read object", &path, e);
        let meta = file.metadata().map_err(io)?;
        if meta.is_dir() {
            return Err(self.not_found(key));
        }
        let out_of_range = || Error::OutOfRange {
            key: key.to_owned(),
            start: range.start,
            end: range.end,
            bytes_n: meta.len(),
        };
        let wanted_n = range
            .end
            .checked_sub(range.start)
            .ok_or_else(out_of_range)?;
        if range.end > meta.len() {
            return Err(out_of_range());
        }
        file.seek(SeekFrom::Start(range.start)).map_err(io)?;
        let mut bytes = vec![0; usize::try_from(wanted_n).map_err(|_| out_of_range())?];
        file.read_exact(&mut bytes).map_err(io)?;
        Ok(bytes.into())
    }

    fn put(&self, key: &str, bytes: &[u8], condition: &Condition) -> Result<Put> {
        let path = self.path(key)?;
        let put = self
            .writer_under(key, condition)?
            .put(&self.root, &path, bytes, condition);
        put.map_err(|error| self.key_conflict(key).unwrap_or(error))
    }

    fn begin(&self, key: &str) -> Result<Tmp> {
        check_key(key)?;
        self.writer(key)?.begin()
    }

    fn finish(&self, key: &str, tmp: &mut Tmp, condition: &Condition) -> Result<Put> {
        let path = self.path(key)?;
        let put = self
            .writer_under(key, condition)?
            .finish(&self.root, &path, tmp, condition);
        put.map_err(|error| self.key_conflict(key).unwrap_or(error))
    }

    fn list(&self, prefix: &str) -> Result<Vec<ObjectMeta>> {
        check_prefix(prefix)?;
        let folder = prefix.rsplit_once('/').map_or("", |(folder, _)| folder);
        let mut found = Vec::new();
        let mut open = vec![(self.root.join(folder), folder.to_owned())];
        while let Some((path, folder)) = open.pop() {
            let entries = match fs::read_dir(&path) {
                Ok(entries) => entries,
                Err(e) if is_absence(&e) => continue,
                Err(e) => return Err(Error::from_io("list folder", path, e)),
            };
            for entry in entries {
                let entry = entry.map_err(|e| Error::from_io("list folder", &path, e))?;
                let Some(name) = entry.file_name().to_str().map(str::to_owned) else {
                    continue;
                };
                let key = if folder.is_empty() {
                    name
                } else {
                    format!("{folder}/{name}")
                };
                if check_key(&key).is_err() {
                    continue; // the store's own files, or a stranger's
                }
                let meta = match entry.metadata() {
                    Ok(meta) => meta,
                    Err(e) if is_absence(&e) => continue, // deleted meanwhile
                    Err(e) => return Err(Error::from_io("list object", entry.path(), e)),
                };
                if meta.is_dir() {
                    // Its keys begin with "key/": they match, or the prefix leads into it.
                    let inside = format!("{key}/");
                    if inside.starts_with(prefix) || prefix.starts_with(&inside) {
                        open.push((entry.path(), key));
                    }
                } else if key.starts_with(prefix) {
                    found.push(ObjectMeta {
                        key,
                        bytes_n: meta.len(),
                    });
                }
            }
        }
        found.sort_by(|a, b| a.key.cmp(&b.key));
        Ok(found)
    }

    fn delete(&self, keys: &[String]) -> Result<()> {
        for key in keys {
            let path = self.path(key)?;
            self.writer(key)?.delete(&self.root, &path)?;
        }
        Ok(())
    }

    fn writer(&self, key: &str) -> Result<&Writer> {
        self.writer.as_ref().ok_or_else(|| self.read_only(key))
    }

    fn writer_under(&self, key: &str, condition: &Condition) -> Result<&Writer> {
        let writer = self.writer(key)?;
        if *condition != Condition::CreateIfAbsent && !writer.is_alone() {
            return Err(self.read_only(key));
        }
        Ok(writer)
    }

    fn read_only(&self, key: &str) -> Error {
        Error::OpenedReadOnly {
            key: key.to_owned(),
            location: self.root.display().to_string(),
        }
    }

    fn not_found(&self, key: &str) -> Error {
        Error::NotFound {
            key: key.to_owned(),
            location: self.root.display().to_string(),
        }
    }

    /// When a put failed: was it because one key is the folder of another?
    fn key_conflict(&self, key: &str) -> Option<Error> {
        let conflict = |other: &str| Error::KeyConflict {
            key: key.to_owned(),
            other: other.to_owned(),
        };
        let above = key.match_indices('/').filter_map(|(at, _)| key.get(..at));
        for folder in above {
            if self.root.join(folder).is_file() {
                return Some(conflict(folder));
            }
        }
        let below = self.root.join(key).is_dir();
        below.then(|| conflict(&format!("{key}/")))
    }
}

fn check_folder(root: &Path) -> Result<()> {
    if root.is_file() {
        return Err(Error::NotAFolder {
            path: root.to_owned(),
        });
    }
    Ok(())
}

/// The path of a folder that is there, such that a later change of the working directory does not move
/// the store.
fn absolute(root: &Path) -> Result<PathBuf> {
    check_folder(root)?;
    fs::canonicalize(root).map_err(|e| Error::from_io("open store folder", root, e))
}

/// What is in a file; `None`: more than there may be.
fn read_within(path: &Path, bytes_max: u64) -> std::io::Result<Option<Vec<u8>>> {
    let file = fs::File::open(path)?;
    let bytes_n = file.metadata()?.len();
    if bytes_n > bytes_max {
        return Ok(None);
    }
    let mut bytes = Vec::with_capacity(usize::try_from(bytes_n).unwrap_or_default());
    // It may grow meanwhile.
    file.take(bytes_max.saturating_add(1))
        .read_to_end(&mut bytes)?;
    Ok((bytes.len() as u64 <= bytes_max).then_some(bytes))
}

/// The name of a version is its content's hash: the same bytes are the same version.
fn etag_of(bytes: &[u8]) -> ETag {
    version_name(xxh3_128(bytes), bytes.len() as u64)
}

fn version_name(hash: u128, bytes_n: u64) -> ETag {
    ETag::new(format!("{hash:032x}-{bytes_n}"))
}

/// No object of that key: no such file, a folder in its place, or a file in its folder's place.
fn is_absence(error: &std::io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::NotFound | ErrorKind::IsADirectory | ErrorKind::NotADirectory
    )
}

#[async_trait]
impl ObjectStore for FolderStore {
    async fn get_within(&self, key: &str, bytes_max: u64) -> Result<Option<StoredObject>> {
        let key = key.to_owned();
        self.run(move |inner| inner.get(&key, bytes_max)).await
    }

    async fn get_range(&self, key: &str, range: Range<u64>) -> Result<Bytes> {
        let key = key.to_owned();
        self.run(move |inner| inner.get_range(&key, &range)).await
    }

    async fn put(&self, key: &str, bytes: Bytes, condition: Condition) -> Result<Put> {
        let key = key.to_owned();
        self.run(move |inner| inner.put(&key, &bytes, &condition))
            .await
    }

    async fn begin(&self, key: &str) -> Result<Box<dyn ObjectWriter>> {
        let begun = Pieces::begin(self.clone(), key.to_owned());
        Ok(Box::new(begun.await?))
    }

    async fn list(&self, prefix: &str) -> Result<Vec<ObjectMeta>> {
        let prefix = prefix.to_owned();
        self.run(move |inner| inner.list(&prefix)).await
    }

    async fn delete(&self, keys: &[String]) -> Result<()> {
        let keys = keys.to_vec();
        self.run(move |inner| inner.delete(&keys)).await
    }

    fn location(&self) -> String {
        self.inner.root.display().to_string()
    }
}

#[cfg(test)]
mod tests;
