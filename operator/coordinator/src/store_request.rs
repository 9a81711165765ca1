//! What the coordinator asks of the store, and what it may be told.
//!
//! Owns: the words only. The shell turns them into calls of `streamforge_store::ObjectStore`; a
//! simulation into whatever it likes, answering late, never, or after the deed.

use streamforge_core::manifest::Manifest;

/// Names one request, so that a late answer is not taken for another's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

/// One version of an object, as the store names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version(pub String);

/// Under which condition a put takes effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PutCondition {
    /// Only when there is no such object.
    CreateIfAbsent,
    /// Only when the object is still this version.
    IfMatch(Version),
}

/// Keys that begin with this are under the place that [`crate::Config::restore_from`] names, which is
/// only read.
pub const ELSEWHERE: &str = "elsewhere/";

/// What is asked. Keys are under the job's prefix, but for [`ELSEWHERE`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreRequest {
    /// Read a whole object; answered by [`StoreAnswer::Got`].
    Get {
        /// Its key.
        key: String,
    },
    /// Name the objects under a folder; answered by [`StoreAnswer::Listed`].
    List {
        /// The folder, with a slash at its end.
        prefix: String,
    },
    /// Write an object; answered by [`StoreAnswer::Put`] or [`StoreAnswer::ConditionFailed`].
    Put {
        /// Its key.
        key: String,
        /// Its content.
        bytes: Vec<u8>,
        /// When it may take effect.
        condition: PutCondition,
    },
    /// Read these objects and compare length and checksums; answered by [`StoreAnswer::Checked`].
    Check {
        /// What should be there.
        objects: Vec<ExpectedObject>,
    },
    /// Read these objects, compare as for `Check`, and write those that are whole under another key,
    /// where nothing or the same is; answered by [`StoreAnswer::Checked`].
    Copy {
        /// What should be there, and its new key.
        objects: Vec<(ExpectedObject, String)>,
    },
    /// Remove these objects; answered by [`StoreAnswer::Deleted`].
    Delete {
        /// Their keys.
        keys: Vec<String>,
    },
}

impl StoreRequest {
    /// What is done, for people.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            StoreRequest::Get { .. } => "read from the store",
            StoreRequest::List { .. } => "list the store",
            StoreRequest::Put { .. } => "write to the store",
            StoreRequest::Check { .. } => "check the checkpoint's objects",
            StoreRequest::Copy { .. } => "copy the savepoint's objects",
            StoreRequest::Delete { .. } => "delete from the store",
        }
    }
}

/// What the store said. Every request may be answered by the last two as well.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreAnswer {
    /// The object and its version; `None`: there is none.
    Got(Option<(Vec<u8>, Version)>),
    /// All keys of the folder.
    Listed(Vec<String>),
    /// The object is durable, as this version.
    Put(Version),
    /// The condition did not hold. It may be that an earlier put of ours made it so.
    ConditionFailed,
    /// What is wrong with the objects, one sentence each; empty: all are whole, and copied if asked.
    Checked(Vec<String>),
    /// They are gone.
    Deleted,
    /// It was not done and will not be, for a reason a person can act on (disk full, permission).
    Refused {
        /// Why, for people.
        reason: String,
    },
    /// No answer, or none that says anything: it may have been done, or may yet be done.
    Unknown {
        /// What happened instead, for people.
        reason: String,
    },
}

impl StoreAnswer {
    /// Why it was not done, if it is an answer of that kind.
    pub(crate) fn trouble(&self) -> Option<&str> {
        match self {
            StoreAnswer::Refused { reason } | StoreAnswer::Unknown { reason } => Some(reason),
            StoreAnswer::Got(_)
            | StoreAnswer::Listed(_)
            | StoreAnswer::Put(_)
            | StoreAnswer::ConditionFailed
            | StoreAnswer::Checked(_)
            | StoreAnswer::Deleted => None,
        }
    }
}

/// An object that a manifest names, with what it said of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExpectedObject {
    /// Its key.
    pub key: String,
    /// Its length.
    pub bytes_n: u64,
    /// Checked pieces of it.
    pub pieces: Vec<Piece>,
}

/// A run of bytes and its XXH3-64.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// First byte.
    pub offset: u64,
    /// Length in bytes.
    pub length: u64,
    /// XXH3-64 (seed 0) of these bytes.
    pub checksum: u64,
}

/// Everything a restore of this manifest would read.
#[must_use]
pub fn expected_objects(manifest: &Manifest) -> Vec<ExpectedObject> {
    let parts = manifest.operators.values().flat_map(|state| &state.parts);
    let parts = parts.map(|part| ExpectedObject {
        key: part.key.clone(),
        bytes_n: part.bytes,
        pieces: part
            .blocks
            .iter()
            .map(|block| Piece {
                offset: block.offset,
                length: block.length,
                checksum: block.checksum,
            })
            .collect(),
    });
    let late = manifest.late_log.iter().map(|object| ExpectedObject {
        key: object.key.clone(),
        bytes_n: object.bytes,
        pieces: vec![Piece {
            offset: 0,
            length: object.bytes,
            checksum: object.checksum,
        }],
    });
    parts.chain(late).collect()
}
