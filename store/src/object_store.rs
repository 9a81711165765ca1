//! The object store trait, its words and its errors.
//!
//! Owns: what every store promises. Does no I/O itself.
//! Start at: [`ObjectStore`].

use std::ops::Range;
use std::path::PathBuf;

use async_trait::async_trait;
use bytes::Bytes;

use crate::ObjectWriter;

/// What a call to a store comes back with.
pub type Result<T> = std::result::Result<T, Error>;

/// Names one version of one object's content. Opaque: only equality means anything.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ETag(String);

impl ETag {
    /// Wraps the text a store uses to name a version.
    #[must_use]
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The text a store uses to name a version.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Under which condition a put takes effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Condition {
    /// Always; an existing object is replaced.
    None,
    /// Only when no object of that key exists.
    CreateIfAbsent,
    /// Only when the object exists and its version is this one.
    IfMatch(ETag),
}

/// How a put ended, when the store answered.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "a put whose condition failed wrote nothing"]
pub enum Put {
    /// The object is durable under the key, with this version.
    Done(ETag),
    /// The condition did not hold; this call wrote nothing. It may be that an earlier call of
    /// ours, whose answer was lost, made it so: read back and compare a nonce.
    ConditionFailed,
}

/// A whole object, as read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredObject {
    /// The content.
    pub bytes: Bytes,
    /// The version of the content.
    pub etag: ETag,
}

/// One line of a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectMeta {
    /// The full key.
    pub key: String,
    /// Length of the content.
    pub bytes_n: u64,
}

/// A flat space of named objects.
///
/// # Contract
/// * A put is atomic: a reader sees the whole of one version or of another, never a mixture.
/// * [`Put::Done`] means durable: the object survives the death of the process and the machine.
/// * A read that starts after `Done` was answered sees that version or a later one.
/// * Of several puts racing for one key with `CreateIfAbsent`, or with the same `IfMatch`,
///   exactly one is answered `Done`.
/// * An error from `put` that is not [`Recovery::Refused`] leaves the outcome open: the object
///   may or may not be there, now or later.
/// * No key may be a prefix path of another (`a` and `a/b`). A store that keeps objects in folders
///   refuses the second put; one with flat names cannot see it without a listing per put, so whoever
///   makes keys (`core::object_key`) keeps to it.
/// * `get_within` reads no more of an object than `bytes_max` and one piece, whatever length the store
///   says that it has.
/// * `list` is complete and in byte order of the keys.
/// * Deleting a key that does not exist is no error.
///
/// Every implementation calls [`crate::contract::check_contract`] from its tests.
#[async_trait]
pub trait ObjectStore: Send + Sync + std::fmt::Debug {
    /// The object of this key, or `None` when there is none.
    async fn get(&self, key: &str) -> Result<Option<StoredObject>> {
        self.get_within(key, u64::MAX).await
    }

    /// The same of an object that may have so many bytes; a longer one is an error.
    async fn get_within(&self, key: &str, bytes_max: u64) -> Result<Option<StoredObject>>;

    /// Bytes `range` of the object of this key. A range that reaches beyond the end is an error.
    async fn get_range(&self, key: &str, range: Range<u64>) -> Result<Bytes>;

    /// Writes an object under a condition.
    async fn put(&self, key: &str, bytes: Bytes, condition: Condition) -> Result<Put>;

    /// Begins an object that comes piece by piece.
    async fn begin(&self, key: &str) -> Result<Box<dyn ObjectWriter>>;

    /// All objects whose key begins with `prefix` (plain text, not a path).
    async fn list(&self, prefix: &str) -> Result<Vec<ObjectMeta>>;

    /// Removes objects. Stops at the first one that cannot be removed.
    async fn delete(&self, keys: &[String]) -> Result<()>;

    /// Where this store is, for people.
    fn location(&self) -> String;
}

/// What a caller does about an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recovery {
    /// No definite answer: the call may have taken effect. Read back, then try again.
    OutcomeUnknown,
    /// The call definitely had no effect; it may succeed later, when a person made room or
    /// gave a permission.
    Refused,
    /// The call definitely had no effect and never will: the caller asked for something wrong,
    /// or the store is not ours.
    Fatal,
}

/// Why a store could not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The key is not one that every store can hold.
    #[error("use object key {key:?}: {reason}")]
    InvalidKey {
        /// The key as given.
        key: String,
        /// Which rule it breaks.
        reason: &'static str,
    },
    /// The key would make one object the folder of another.
    #[error("put object {key:?}: {other:?} exists, and no key may be a prefix path of another")]
    KeyConflict {
        /// The key as given.
        key: String,
        /// The object that is in the way.
        other: String,
    },
    /// A range was asked of an object that does not exist.
    #[error("read object {key:?} in {location}: it does not exist")]
    NotFound {
        /// The key as given.
        key: String,
        /// The store.
        location: String,
    },
    /// The object is shorter than the range that was asked for.
    #[error("read object {key:?}: bytes {start}..{end} asked for, but it has only {bytes_n}")]
    OutOfRange {
        /// The key as given.
        key: String,
        /// First byte asked for.
        start: u64,
        /// One past the last byte asked for.
        end: u64,
        /// Its length.
        bytes_n: u64,
    },
    /// The object is longer than it may be.
    #[error("read object {key:?} in {location}: {}", too_long(*.bytes_max))]
    TooLong {
        /// The key as given.
        key: String,
        /// The store.
        location: String,
        /// What it may have.
        bytes_max: u64,
    },
    /// What would be written could not be read again.
    #[error(
        "write object {key:?}: it has {bytes_n} bytes, and {bytes_max} is the most that one of its kind may have: make \
         several jobs of this one, or let it read fewer files or partitions"
    )]
    TooLongToKeep {
        /// The key as given.
        key: String,
        /// Its length.
        bytes_n: u64,
        /// What it may have.
        bytes_max: u64,
    },
    /// Another process holds the store.
    #[error(
        "open store {path}: it is in use by a live process (pid {pid}); stop that one first, or \
         give this job a store of its own with --store"
    )]
    InUse {
        /// The folder.
        path: PathBuf,
        /// The process that holds it, as it wrote itself into the lock file.
        pid: String,
    },
    /// The store was opened for reading only.
    #[error("write object {key:?}: the store {location} was opened for reading only")]
    OpenedReadOnly {
        /// The key as given.
        key: String,
        /// The store.
        location: String,
    },
    /// The path is there but is no folder.
    #[error("open store {path}: it is a file, not a folder")]
    NotAFolder {
        /// The path as given.
        path: PathBuf,
    },
    /// The disk, or the quota, is full.
    #[error("{action} {path}: the disk is full")]
    DiskFull {
        /// What was done.
        action: &'static str,
        /// With which file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The file system is mounted read-only.
    #[error("{action} {path}: the file system is read-only")]
    ReadOnlyFileSystem {
        /// What was done.
        action: &'static str,
        /// With which file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The process may not do this.
    #[error("{action} {path}: permission denied")]
    PermissionDenied {
        /// What was done.
        action: &'static str,
        /// With which file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The system failed in another way. Whether a write took effect is open.
    #[error("{action} {path}")]
    Io {
        /// What was done.
        action: &'static str,
        /// With which file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A server said no, or cannot be used as it is.
    #[error("{action} {key}{in_}{location}", in_ = if key.is_empty() { "" } else { " in " })]
    S3 {
        /// What was done.
        action: &'static str,
        /// With which object; empty: with the whole store.
        key: String,
        /// The store.
        location: String,
        /// Why not.
        source: crate::s3::Refusal,
    },
    /// The store gave no answer, or one that says nothing about the outcome.
    #[error("reach the store at {location}: {reason}")]
    Unavailable {
        /// The store.
        location: String,
        /// What happened instead of an answer.
        reason: String,
    },
}

/// What is wrong with an object that is too long, and what to do.
fn too_long(bytes_max: u64) -> String {
    format!(
        "it is longer than {bytes_max} bytes, the most that one of its kind may have: it is not ours. Put the one back \
         that was there, or give the job another place for its checkpoints"
    )
}

impl Error {
    /// Sorts an error of the file system into the kinds that a person treats differently.
    #[must_use]
    pub fn from_io(action: &'static str, path: impl Into<PathBuf>, source: std::io::Error) -> Self {
        use std::io::ErrorKind;
        let path = path.into();
        match source.kind() {
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge => {
                Self::DiskFull {
                    action,
                    path,
                    source,
                }
            }
            ErrorKind::ReadOnlyFilesystem => Self::ReadOnlyFileSystem {
                action,
                path,
                source,
            },
            ErrorKind::PermissionDenied => Self::PermissionDenied {
                action,
                path,
                source,
            },
            _ => Self::Io {
                action,
                path,
                source,
            },
        }
    }

    /// What the caller does about it. No `_` arm: whoever adds a variant must decide here.
    #[must_use]
    pub fn recovery(&self) -> Recovery {
        match self {
            Self::Io { .. } | Self::Unavailable { .. } => Recovery::OutcomeUnknown,
            Self::DiskFull { .. }
            | Self::ReadOnlyFileSystem { .. }
            | Self::PermissionDenied { .. } => Recovery::Refused,
            Self::S3 { source, .. } if source.may_pass() => Recovery::Refused,
            Self::S3 { .. }
            | Self::InvalidKey { .. }
            | Self::KeyConflict { .. }
            | Self::NotFound { .. }
            | Self::OutOfRange { .. }
            | Self::TooLong { .. }
            | Self::TooLongToKeep { .. }
            | Self::InUse { .. }
            | Self::OpenedReadOnly { .. }
            | Self::NotAFolder { .. } => Recovery::Fatal,
        }
    }
}
