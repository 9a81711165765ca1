//! A store in a bucket of an S3 server.
//!
//! Owns: the calls of the trait over [`Bucket`], which owns the client, the deadlines and the only
//! layer of retries. Opening it for writing proves with racing writers that the server keeps its
//! conditions ([`probe`]). Never shows a secret: not in `Debug`, not in an error, not in a log.
//! Start at: [`S3Store::open`].
//!
//! Invariant C2: a conditional put whose answer was lost is told apart from somebody else's by the
//! nonce in the object's metadata; what cannot be told is an error of unknown outcome, never
//! `ConditionFailed`.

mod bucket;
mod client;
mod failure;
mod line;
mod multipart;
mod probe;
mod retry;
mod secret;

use std::ops::Range;
use std::path::Path;

use async_trait::async_trait;
use bytes::Bytes;
use streamforge_core::s3::S3Place;

pub use bucket::{Bucket, Head, Piece};
pub use failure::Refusal;
pub use multipart::{
    Completed, MULTIPART_ABOVE_BYTES, PART_BYTES, PARTS_AT_ONCE, PartTag, Upload, UploadName,
};
pub use retry::Limits;

use crate::key::{check_key, check_prefix};
use crate::{Condition, Error, ObjectMeta, ObjectStore, ObjectWriter, Put, Result, StoredObject};

/// A store in a bucket. Cheap to clone; clones share their connections.
#[derive(Clone, Debug)]
pub struct S3Store {
    bucket: Bucket,
    writes: bool,
}

impl S3Store {
    /// Opens a place for writing, after proving that its server keeps conditions under a race.
    /// `secrets` is the folder of secrets, one folder each with a file per key.
    ///
    /// # Errors
    /// [`Error::S3`] when the place cannot be written, says who we are not, or breaks its
    /// conditions; [`Error::Unavailable`] when there is no answer.
    pub async fn open(place: &S3Place, secrets: Option<&Path>) -> Result<Self> {
        Self::open_with(place, secrets, Limits::default()).await
    }

    /// As [`Self::open`], with other deadlines.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub async fn open_with(
        place: &S3Place,
        secrets: Option<&Path>,
        limits: Limits,
    ) -> Result<Self> {
        let store = Self::connect(place, secrets, limits).await?;
        probe::check(&store).await?;
        Ok(store)
    }

    /// As [`Self::open`], for a server that has proved itself to this process before: only whether we may write
    /// there is asked.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub async fn open_proven(place: &S3Place, secrets: Option<&Path>) -> Result<Self> {
        let store = Self::connect(place, secrets, Limits::default()).await?;
        probe::may_write(&store).await?;
        Ok(store)
    }

    /// As [`Self::open`], without the proof: for a process whose coordinator has given it.
    ///
    /// # Errors
    /// When the credentials cannot be found or read. The server is not asked anything.
    pub async fn connect(place: &S3Place, secrets: Option<&Path>, limits: Limits) -> Result<Self> {
        let bucket = Bucket::connect(place, secrets, limits).await?;
        Ok(Self {
            bucket,
            writes: true,
        })
    }

    /// Opens a place for reading, beside whoever writes there.
    ///
    /// # Errors
    /// When the credentials cannot be found or read. The server is not asked anything.
    pub async fn open_read_only(place: &S3Place, secrets: Option<&Path>) -> Result<Self> {
        let bucket = Bucket::connect(place, secrets, Limits::default()).await?;
        Ok(Self {
            bucket,
            writes: false,
        })
    }

    fn check_writes(&self, key: &str) -> Result<()> {
        if self.writes {
            Ok(())
        } else {
            Err(Error::OpenedReadOnly {
                key: key.to_owned(),
                location: self.location(),
            })
        }
    }
}

#[async_trait]
impl ObjectStore for S3Store {
    async fn get_within(&self, key: &str, bytes_max: u64) -> Result<Option<StoredObject>> {
        check_key(key)?;
        self.bucket.get_within(key, bytes_max).await
    }

    async fn get_range(&self, key: &str, range: Range<u64>) -> Result<Bytes> {
        check_key(key)?;
        Box::pin(self.bucket.get_range(key, range)).await
    }

    async fn put(&self, key: &str, bytes: Bytes, condition: Condition) -> Result<Put> {
        check_key(key)?;
        self.check_writes(key)?;
        if bytes.len() > MULTIPART_ABOVE_BYTES {
            return self.bucket.put_in_parts(key, bytes, &condition).await;
        }
        self.bucket.put(key, bytes, &condition).await
    }

    async fn begin(&self, key: &str) -> Result<Box<dyn ObjectWriter>> {
        check_key(key)?;
        self.check_writes(key)?;
        Ok(Box::new(self.bucket.begin_pieces(key).await?))
    }

    async fn list(&self, prefix: &str) -> Result<Vec<ObjectMeta>> {
        check_prefix(prefix)?;
        let mut found = self.bucket.list(prefix).await?;
        // What is no key of ours is a stranger's; and not every server lists in byte order.
        found.retain(|meta| check_key(&meta.key).is_ok());
        found.sort_by(|a, b| a.key.cmp(&b.key));
        Ok(found)
    }

    async fn delete(&self, keys: &[String]) -> Result<()> {
        for key in keys {
            check_key(key)?;
            self.check_writes(key)?;
        }
        self.bucket.delete(keys).await
    }

    fn location(&self) -> String {
        self.bucket.location().to_owned()
    }
}

#[cfg(test)]
mod tests;
