//! Large objects, and objects that become visible later, in parts.
//!
//! Owns: an upload from its begin to its end. Nothing of it is visible before it is completed, and the
//! condition is checked then. A store completes at once ([`Bucket::put_in_parts`]); a sink keeps
//! [`UploadName`] and [`PartTag`]s in a manifest and completes after the commit, in whichever process
//! then lives.
//!
//! Invariant X6: an upload is completed once. That it is gone means that it was completed or that its
//! parts were thrown away, and the nonce of the object says which.

use async_trait::async_trait;
use aws_sdk_s3::primitives::ByteStream;
use aws_sdk_s3::types::{ChecksumAlgorithm, CompletedMultipartUpload, CompletedPart};
use bytes::Bytes;
use futures::stream::{self, StreamExt as _, TryStreamExt as _};

use super::bucket::{Bucket, NONCE, etag, failed, headers};
use super::failure::{Answer, Failure, refused};
use super::retry::nonce;
use crate::{Condition, ObjectWriter, PIECE_BYTES, Put, Result};

/// Objects above this go in parts: a broken connection then costs one part, not all.
pub const MULTIPART_ABOVE_BYTES: usize = 16 * 1024 * 1024;

/// Length of each part but the last. Servers take 5 MiB and more, and 10,000 parts: 80 GiB.
pub const PART_BYTES: usize = PIECE_BYTES;

/// Parts of one upload under way at once: enough for the line, 32 MiB at most in buffers.
pub const PARTS_AT_ONCE: usize = 4;

/// Every part is checked with this by the server. It must be said at the begin, with each part, and at
/// the end, or some servers refuse the end.
const CHECKSUM: ChecksumAlgorithm = ChecksumAlgorithm::Crc32;

/// What sending a part is called in errors.
const SEND: &str = "write part of object";

/// All that another process needs to find an upload again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UploadName {
    /// The key that the object will have, relative to the prefix.
    pub key: String,
    /// The server's name for the upload.
    pub id: String,
    /// What the finished object is recognised by.
    pub nonce: String,
}

/// A part that the server has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartTag {
    /// Counted from 1.
    pub n: i32,
    /// The server's name for its content.
    pub etag: String,
    /// Its checksum as the server saw it.
    pub crc32: Option<String>,
}

/// How completing ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "an upload may not have become the object"]
pub enum Completed {
    /// The object is visible, by this call or an earlier one.
    Done,
    /// The upload is gone, and the object is not its.
    Gone,
    /// The key was taken before by another object.
    Taken,
}

/// An upload under way.
#[derive(Clone, Debug)]
pub struct Upload {
    bucket: Bucket,
    name: UploadName,
}

impl Upload {
    /// How another process finds it.
    #[must_use]
    pub fn name(&self) -> &UploadName {
        &self.name
    }

    /// Sends part `n`, counted from 1. A part sent twice replaces itself.
    ///
    /// # Errors
    /// When the server refuses or does not answer.
    pub async fn send(&self, n: i32, bytes: Bytes) -> Result<PartTag> {
        let sent = self.send_unless_gone(n, bytes).await?;
        sent.map_err(|gone| refused(SEND, &self.name.key, self.bucket.location(), gone))
    }

    /// As [`Self::send`]; the inner error is the server's answer that the upload is gone.
    async fn send_unless_gone(
        &self,
        n: i32,
        bytes: Bytes,
    ) -> Result<std::result::Result<PartTag, Answer>> {
        let UploadName { key, id, .. } = &self.name;
        let bytes_n = bytes.len() as u64;
        let mut retry = self.bucket.retry(SEND, key, bytes_n);
        loop {
            let request = self.bucket.client().upload_part();
            let sent = request
                .bucket(self.bucket.name())
                .key(self.bucket.full(key))
                .upload_id(id)
                .part_number(n)
                .checksum_algorithm(CHECKSUM)
                .body(ByteStream::from(bytes.clone()))
                .send();
            match retry.attempt(Box::pin(sent)).await {
                Ok(answer) => {
                    return Ok(Ok(PartTag {
                        n,
                        etag: etag(answer.e_tag(), &retry)?.as_str().to_owned(),
                        crc32: answer.checksum_crc32().map(str::to_owned),
                    }));
                }
                Err(Failure::Answer(no)) if no.is_upload_gone() => return Ok(Err(no)),
                Err(failure) => retry.after(failure).await?,
            }
        }
    }

    /// Sends all of it, several parts at once.
    async fn send_all(&self, bytes: &Bytes) -> Result<Vec<PartTag>> {
        let pieces = (0..bytes.len()).step_by(PART_BYTES).zip(1..);
        let sends = pieces.map(|(at, n)| {
            let piece = bytes.slice(at..bytes.len().min(at + PART_BYTES));
            self.send(n, piece)
        });
        stream::iter(sends)
            .buffered(PARTS_AT_ONCE)
            .try_collect()
            .await
    }

    /// Makes the parts the object, under the condition. `None`: the upload is gone.
    async fn complete(&self, parts: &[PartTag], condition: &Condition) -> Result<Option<Put>> {
        let UploadName { key, id, nonce } = &self.name;
        let tags = parts.iter().map(|part| {
            CompletedPart::builder()
                .part_number(part.n)
                .e_tag(&part.etag)
                .set_checksum_crc32(part.crc32.clone())
                .build()
        });
        let all = CompletedMultipartUpload::builder()
            .set_parts(Some(tags.collect()))
            .build();
        let mut retry = self.bucket.retry("complete object", key, 0);
        loop {
            let (if_match, if_none_match) = headers(condition);
            let request = self.bucket.client().complete_multipart_upload();
            let sent = request
                .bucket(self.bucket.name())
                .key(self.bucket.full(key))
                .upload_id(id)
                .multipart_upload(all.clone())
                .set_if_match(if_match)
                .set_if_none_match(if_none_match)
                .send();
            match retry.attempt(Box::pin(sent)).await {
                Ok(answer) => return Ok(Some(Put::Done(etag(answer.e_tag(), &retry)?))),
                Err(Failure::Answer(no)) if no.is_upload_gone() => {
                    // Whoever completed it left its nonce, unless the object was replaced since.
                    let head = self.bucket.head_within(key, &mut retry).await?;
                    let ours = head.filter(|head| head.nonce.as_ref() == Some(nonce));
                    return Ok(ours.map(|head| Put::Done(head.etag)));
                }
                Err(Failure::Answer(no)) if failed(condition, &no) => {
                    return self.bucket.whose(key, nonce, &mut retry).await.map(Some);
                }
                Err(failure) => retry.after(failure).await?,
            }
        }
    }

    /// As [`Self::complete`], where nobody else completes it or throws it away.
    async fn finish(&self, parts: &[PartTag], condition: &Condition) -> Result<Put> {
        let put = self.complete(parts, condition).await?;
        put.ok_or_else(|| {
            let retry = self.bucket.retry("complete object", &self.name.key, 0);
            retry.unavailable("the upload is gone, and the object is another")
        })
    }
}

/// An object that comes piece by piece: each is a part.
#[derive(Debug)]
pub(super) struct Pieces {
    upload: Upload,
    sent: Vec<PartTag>,
}

#[async_trait]
impl ObjectWriter for Pieces {
    async fn add(&mut self, piece: Bytes) -> Result<()> {
        let n = self.sent.last().map_or(0, |last| last.n) + 1;
        let tag = self.upload.send(n, piece).await?;
        self.sent.push(tag);
        Ok(())
    }

    async fn finish(&mut self, condition: Condition) -> Result<Put> {
        if self.sent.is_empty() {
            self.add(Bytes::new()).await?; // an upload has a part
        }
        let put = self.upload.finish(&self.sent, &condition).await?;
        if put == Put::ConditionFailed {
            // As for an object that is put in parts.
            let _best_effort = self.abandon().await;
        }
        Ok(put)
    }

    async fn abandon(&mut self) -> Result<()> {
        let UploadName { key, id, .. } = &self.upload.name;
        self.upload.bucket.abandon(key, id).await
    }
}

impl Bucket {
    /// Writes a large object in parts.
    ///
    /// # Errors
    /// As [`crate::ObjectStore::put`].
    pub async fn put_in_parts(
        &self,
        key: &str,
        bytes: Bytes,
        condition: &Condition,
    ) -> Result<Put> {
        let upload = self.begin(key).await?;
        let put = match upload.send_all(&bytes).await {
            Ok(parts) => upload.finish(&parts, condition).await,
            Err(error) => Err(error),
        };
        if !matches!(put, Ok(Put::Done(_))) {
            // The first error is the one to tell; what stays is for a lifecycle rule of the bucket.
            let _best_effort = self.abandon(key, &upload.name.id).await;
        }
        put
    }

    /// Begins an object that comes piece by piece.
    ///
    /// # Errors
    /// When the server refuses or does not answer.
    pub(super) async fn begin_pieces(&self, key: &str) -> Result<Pieces> {
        Ok(Pieces {
            upload: self.begin(key).await?,
            sent: Vec::new(),
        })
    }

    /// Begins an upload.
    ///
    /// # Errors
    /// When the server refuses or does not answer.
    pub async fn begin(&self, key: &str) -> Result<Upload> {
        let nonce = nonce()?;
        let mut retry = self.retry("begin object", key, 0);
        loop {
            let request = self.client().create_multipart_upload();
            let sent = request
                .bucket(self.name())
                .key(self.full(key))
                .metadata(NONCE, &nonce)
                .checksum_algorithm(CHECKSUM)
                .send();
            match retry.attempt(Box::pin(sent)).await {
                Ok(answer) => {
                    let Some(id) = answer.upload_id() else {
                        return Err(retry.unavailable("the answer names no upload"));
                    };
                    let name = UploadName {
                        key: key.to_owned(),
                        id: id.to_owned(),
                        nonce,
                    };
                    return Ok(Upload {
                        bucket: self.clone(),
                        name,
                    });
                }
                Err(failure) => retry.after(failure).await?,
            }
        }
    }

    /// Makes an upload the object of its key, if that is free. May be repeated.
    ///
    /// # Errors
    /// When the server refuses or does not answer.
    pub async fn complete(&self, name: &UploadName, parts: &[PartTag]) -> Result<Completed> {
        self.complete_with(name, parts, Bytes::new()).await
    }

    /// As [`Self::complete`], with `rest` as one more part behind the others; there is none if it is
    /// empty. `parts` are numbered from 1 without a gap.
    ///
    /// # Errors
    /// When the server refuses or does not answer.
    pub async fn complete_with(
        &self,
        name: &UploadName,
        parts: &[PartTag],
        rest: Bytes,
    ) -> Result<Completed> {
        // Asked first: a server may forget a finished upload, and one that ignores the condition
        // must not replace what is there.
        if let Some(found) = self.completed(name).await? {
            return Ok(found);
        }
        let upload = Upload {
            bucket: self.clone(),
            name: name.clone(),
        };
        let mut parts = parts.to_vec();
        if !rest.is_empty() {
            let n = parts.last().map_or(0, |last| last.n) + 1;
            match upload.send_unless_gone(n, rest).await? {
                Ok(tag) => parts.push(tag),
                // Another process may have completed it since.
                Err(_gone) => return Ok(self.completed(name).await?.unwrap_or(Completed::Gone)),
            }
        }
        match upload.complete(&parts, &Condition::CreateIfAbsent).await? {
            Some(Put::Done(_)) => Ok(Completed::Done),
            Some(Put::ConditionFailed) => Ok(Completed::Taken),
            None => Ok(Completed::Gone),
        }
    }

    /// What is under the key of an upload: its object, or another. `None`: nothing yet.
    ///
    /// # Errors
    /// When the server refuses or does not answer.
    pub async fn completed(&self, name: &UploadName) -> Result<Option<Completed>> {
        let Some(head) = self.head(&name.key).await? else {
            return Ok(None);
        };
        Ok(Some(if head.nonce.as_ref() == Some(&name.nonce) {
            Completed::Done
        } else {
            Completed::Taken
        }))
    }

    /// Throws the parts of an upload away. One that is gone is no error.
    ///
    /// # Errors
    /// When the server refuses or does not answer.
    pub async fn abandon(&self, key: &str, id: &str) -> Result<()> {
        let mut retry = self.retry("abandon object", key, 0);
        loop {
            let request = self.client().abort_multipart_upload();
            let sent = request
                .bucket(self.name())
                .key(self.full(key))
                .upload_id(id)
                .send();
            match retry.attempt(Box::pin(sent)).await {
                Ok(_) => return Ok(()),
                Err(Failure::Answer(no)) if no.is_upload_gone() => return Ok(()),
                Err(failure) => retry.after(failure).await?,
            }
        }
    }

    /// Uploads under way whose key begins with `prefix`: key and the server's name.
    ///
    /// # Errors
    /// When the server refuses or does not answer.
    pub async fn uploads(&self, prefix: &str) -> Result<Vec<(String, String)>> {
        let mut found = Vec::new();
        let mut next: Option<(String, String)> = None;
        loop {
            let mut retry = self.retry("list uploads", prefix, 0);
            let (key_marker, id_marker) = next.take().unzip();
            let page = loop {
                let request = self.client().list_multipart_uploads();
                let sent = request
                    .bucket(self.name())
                    .prefix(self.full(prefix))
                    .set_key_marker(key_marker.clone())
                    .set_upload_id_marker(id_marker.clone())
                    .send();
                match retry.attempt(Box::pin(sent)).await {
                    Ok(page) => break page,
                    Err(failure) => retry.after(failure).await?,
                }
            };
            found.extend(page.uploads().iter().filter_map(|upload| {
                let key = self.relative(upload.key()?)?;
                Some((key.to_owned(), upload.upload_id()?.to_owned()))
            }));
            let more = page.is_truncated().unwrap_or(false);
            next = page
                .next_key_marker()
                .zip(page.next_upload_id_marker())
                .map(|(key, id)| (key.to_owned(), id.to_owned()))
                .filter(|_| more);
            if next.is_none() {
                return Ok(found);
            }
        }
    }
}
