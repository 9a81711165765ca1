//! What the sink says about a staged file, for whoever finishes it.
//!
//! Owns: the shape of that, and the names of hidden objects. A stored format: what an older version
//! listed is read. Start at: [`Detail`].

use serde::{Deserialize, Serialize};
use streamforge_core::manifest::StagedObject;
use streamforge_engine::error::Error;
use streamforge_store::s3::{PartTag, UploadName};

use crate::error::failed;
use crate::files::sink::STAGING;

/// The connector's own words about a staged file. Versions that know no open files must not take one
/// for whole: its words lie one level deeper, and they find no `upload`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub(super) enum Detail {
    /// All of it is in the upload.
    Whole(UploadDetail),
    /// It gets more rows, unless its writer dies.
    Open {
        /// What there is of it.
        open: OpenDetail,
    },
}

/// An upload as far as it goes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct UploadDetail {
    /// The server's name for it.
    pub(super) upload: String,
    /// What the finished file is recognised by.
    pub(super) nonce: String,
    /// Its parts, in order: the server's name and its checksum of each.
    pub(super) parts: Vec<(String, Option<String>)>,
    /// Rows of earlier intervals. Not zero: hidden objects of it may lie in the bucket.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(super) rows_before: u64,
}

/// A file that stays open behind a barrier.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct OpenDetail {
    /// Its full parts.
    pub(super) upload: UploadDetail,
    /// Counts its intervals with rows.
    pub(super) segment: u32,
    /// What belongs behind the parts to make it a whole file, in order.
    pub(super) tail: Vec<TailPiece>,
    /// Hidden objects that the state before needed and this one does not.
    pub(super) obsolete: Vec<u32>,
}

/// Bytes of a hidden object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct TailPiece {
    /// The segment that staged the object.
    pub(super) object: u32,
    /// First byte.
    pub(super) start: u64,
    /// Behind the last byte.
    pub(super) end: u64,
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde hands a reference to it"
)]
fn is_zero(n: &u64) -> bool {
    *n == 0
}

impl Detail {
    pub(super) fn of(object: &StagedObject) -> Result<Self, Error> {
        serde_json::from_str(&object.detail)
            .map_err(|error| failed(format!("publish {}", object.published), false, error))
    }

    pub(super) fn to_text(&self) -> String {
        serde_json::to_string(self).expect("texts, numbers and lists are JSON")
    }

    pub(super) fn upload(&self) -> &UploadDetail {
        match self {
            Self::Whole(upload) => upload,
            Self::Open { open } => &open.upload,
        }
    }
}

impl UploadDetail {
    pub(super) fn new(name: &UploadName, parts: &[PartTag], rows_before: u64) -> Self {
        let tag = |part: &PartTag| (part.etag.clone(), part.crc32.clone());
        Self {
            upload: name.id.clone(),
            nonce: name.nonce.clone(),
            parts: parts.iter().map(tag).collect(),
            rows_before,
        }
    }

    pub(super) fn name(&self, key: &str) -> UploadName {
        UploadName {
            key: key.to_owned(),
            id: self.upload.clone(),
            nonce: self.nonce.clone(),
        }
    }

    pub(super) fn parts(&self) -> Vec<PartTag> {
        let tag = |(n, (etag, crc32)): (i32, &(String, Option<String>))| PartTag {
            n,
            etag: etag.clone(),
            crc32: crc32.clone(),
        };
        (1..).zip(&self.parts).map(tag).collect()
    }
}

/// How the keys of hidden objects of a file begin. File names are unique without their folder.
pub(super) fn hidden_prefix(published: &str) -> String {
    let name = published.rsplit('/').next().unwrap_or(published);
    format!("{STAGING}/{name}.")
}

/// Key of the bytes that a segment staged.
pub(super) fn piece_key(published: &str, segment: u32) -> String {
    format!("{}{segment}", hidden_prefix(published))
}

/// Key of the state that a segment left behind, once it is committed.
pub(super) fn held_key(published: &str, segment: u32) -> String {
    format!("{}{HELD}{segment}", hidden_prefix(published))
}

const HELD: &str = "held.";

/// Whether this is the key of a state.
pub(super) fn is_held(hidden: &str) -> bool {
    let numbered = hidden.rsplit_once('.').map(|(before, _)| before);
    numbered.is_some_and(|before| before.ends_with(".held"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn older_words_are_read_and_older_readers_do_not_take_an_open_file_for_whole_c8() {
        // As the version before wrote it.
        let old = r#"{"upload":"u","nonce":"n","parts":[["\"e\"","c=="],["\"f\"",null]]}"#;
        let read: Detail = serde_json::from_str(old).unwrap();
        assert_eq!(read.to_text(), old);
        let Detail::Whole(upload) = read else {
            panic!("{read:?}");
        };
        assert_eq!((upload.rows_before, upload.parts.len()), (0, 2));

        let open = OpenDetail {
            upload,
            segment: 3,
            tail: Vec::new(),
            obsolete: vec![2],
        };
        let text = Detail::Open { open: open.clone() }.to_text();
        assert!(serde_json::from_str::<UploadDetail>(&text).is_err());
        let read: Detail = serde_json::from_str(&text).unwrap();
        assert_eq!(read, Detail::Open { open });
    }

    #[test]
    fn states_are_told_apart_from_pieces_by_their_key() {
        let published = "day=held.1/part-00000000-1-2-3-4.ndjson";
        assert_eq!(
            piece_key(published, 7),
            "_streamforge/part-00000000-1-2-3-4.ndjson.7"
        );
        assert_eq!(
            held_key(published, 7),
            "_streamforge/part-00000000-1-2-3-4.ndjson.held.7"
        );
        assert!(is_held(&held_key(published, 7)) && !is_held(&piece_key(published, 7)));
    }
}
