//! One bucket under one prefix: the calls, each with its retries.
//!
//! Owns: requests and what their answers mean. Keys here are relative to the prefix and not checked:
//! [`super::S3Store`] checks those of the trait, a sink makes its own.

use std::fmt;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use aws_sdk_s3::Client;
use aws_sdk_s3::primitives::{ByteStream, ByteStreamError};
use aws_sdk_s3::types::{Delete, ObjectIdentifier};
use bytes::Bytes;
use streamforge_core::s3::S3Place;

use super::failure::{Answer, Failure, Refusal};
use super::line::Line;
use super::retry::{Limits, Retry, nonce};
use crate::{Condition, ETag, Error, ObjectMeta, Put, Result, StoredObject};

/// Metadata of every object of ours: which put wrote it.
pub(super) const NONCE: &str = "streamforge-put";

/// Most keys that one request removes: the server's limit.
const DELETE_KEYS_MAX: usize = 1_000;

/// A bucket under a prefix. Cheap to clone.
#[derive(Clone)]
pub struct Bucket {
    inner: Arc<Inner>,
}

struct Inner {
    line: Line,
    name: String,
    /// With a slash at its end, unless it is empty.
    prefix: String,
}

impl fmt::Debug for Bucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Bucket({})", self.location())
    }
}

/// What is known of an object without reading it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// Its version.
    pub etag: ETag,
    /// Its length.
    pub bytes_n: u64,
    /// Which put wrote it; none: nobody of us.
    pub nonce: Option<String>,
}

/// A piece of one version of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    /// Its bytes.
    Same(Bytes),
    /// The object is another one by now.
    Changed,
    /// It is no more.
    Gone,
}

impl Bucket {
    /// A client of this place.
    ///
    /// # Errors
    /// [`Error::S3`] when credentials or certificates cannot be had. The server is not asked.
    pub async fn connect(place: &S3Place, secrets: Option<&Path>, limits: Limits) -> Result<Self> {
        let line = Line::open(place, secrets, limits)
            .await
            .map_err(|source| Error::S3 {
                action: "open",
                key: String::new(),
                location: place.to_string(),
                source,
            })?;
        let prefix = match place.prefix.as_str() {
            "" => String::new(),
            prefix => format!("{prefix}/"),
        };
        let inner = Inner {
            line,
            name: place.bucket.clone(),
            prefix,
        };
        Ok(Self {
            inner: Arc::new(inner),
        })
    }

    /// Where this is, for people.
    #[must_use]
    pub fn location(&self) -> &str {
        self.inner.line.location()
    }

    /// The same bucket under a longer prefix.
    #[cfg(test)]
    pub(super) fn under(&self, folder: &str) -> Self {
        let Inner { line, name, prefix } = &*self.inner;
        let inner = Inner {
            line: line.clone(),
            name: name.clone(),
            prefix: format!("{prefix}{folder}/"),
        };
        Self {
            inner: Arc::new(inner),
        }
    }

    /// For one attempt: the next one may be another's, with other keys.
    pub(super) fn client(&self) -> Client {
        self.inner.line.client()
    }

    pub(super) fn name(&self) -> &str {
        &self.inner.name
    }

    pub(super) fn full(&self, key: &str) -> String {
        format!("{}{key}", self.inner.prefix)
    }

    /// A key as the server lists it, without our prefix.
    pub(super) fn relative<'k>(&self, full: &'k str) -> Option<&'k str> {
        full.strip_prefix(&self.inner.prefix)
    }

    pub(super) fn retry<'a>(
        &'a self,
        action: &'static str,
        key: &'a str,
        bytes_n: u64,
    ) -> Retry<'a> {
        Retry::new(&self.inner.line, action, key, bytes_n)
    }

    pub(super) fn refusal(&self, action: &'static str, key: &str, source: Refusal) -> Error {
        Error::S3 {
            action,
            key: key.to_owned(),
            location: self.location().to_owned(),
            source,
        }
    }

    /// The object of this key, or `None`.
    ///
    /// # Errors
    /// As [`crate::ObjectStore::get`].
    pub async fn get(&self, key: &str) -> Result<Option<StoredObject>> {
        self.get_within(key, u64::MAX).await
    }

    /// As [`Self::get`], of an object that may have so many bytes.
    ///
    /// # Errors
    /// As [`crate::ObjectStore::get_within`].
    pub async fn get_within(&self, key: &str, bytes_max: u64) -> Result<Option<StoredObject>> {
        let too_long = || Error::TooLong {
            key: key.to_owned(),
            location: self.location().to_owned(),
            bytes_max,
        };
        let mut retry = self.retry("read object", key, 0);
        loop {
            let request = self.client().get_object().bucket(self.name());
            let sent = request.key(self.full(key)).send();
            let answer = match retry.attempt(Box::pin(sent)).await {
                Ok(answer) => answer,
                Err(Failure::Answer(no)) if no.is_absent() => return Ok(None),
                Err(failure) => {
                    retry.after(failure).await?;
                    continue;
                }
            };
            let bytes_n = length(answer.content_length());
            if bytes_n > bytes_max {
                return Err(too_long());
            }
            retry.carries(bytes_n);
            let etag = etag(answer.e_tag(), &retry)?;
            let body = collect(answer.body, bytes_n, bytes_max);
            match retry.attempt(Box::pin(body)).await {
                Ok(Some(bytes)) => return Ok(Some(StoredObject { bytes, etag })),
                Ok(None) => return Err(too_long()),
                Err(failure) => retry.after(failure).await?,
            }
        }
    }

    /// What is known of this object, or `None`.
    ///
    /// # Errors
    /// When the server does not say.
    pub async fn head(&self, key: &str) -> Result<Option<Head>> {
        self.head_within(key, &mut self.retry("look at object", key, 0))
            .await
    }

    /// As [`Self::head`], within the time of another call.
    pub(super) async fn head_within(
        &self,
        key: &str,
        retry: &mut Retry<'_>,
    ) -> Result<Option<Head>> {
        loop {
            let request = self.client().head_object().bucket(self.name());
            let sent = request.key(self.full(key)).send();
            match retry.attempt(Box::pin(sent)).await {
                Ok(answer) => {
                    let meta = answer.metadata();
                    return Ok(Some(Head {
                        etag: etag(answer.e_tag(), retry)?,
                        bytes_n: length(answer.content_length()),
                        nonce: meta.and_then(|meta| meta.get(NONCE)).cloned(),
                    }));
                }
                // Without a word why: a server that has 404 for keys that it does not know may mean these.
                Err(Failure::Answer(no)) if no.is_absent() => {
                    if !retry.renew().await {
                        return Ok(None);
                    }
                }
                Err(failure) => retry.after(failure).await?,
            }
        }
    }

    /// Bytes `range` of the object of this key.
    ///
    /// # Errors
    /// As [`crate::ObjectStore::get_range`].
    pub async fn get_range(&self, key: &str, range: Range<u64>) -> Result<Bytes> {
        if range.start >= range.end {
            return self.empty_range(key, &range).await;
        }
        let wanted_n = range.end - range.start;
        let mut retry = self.retry("read object", key, wanted_n);
        loop {
            let request = self.client().get_object().bucket(self.name());
            let asked = format!("bytes={}-{}", range.start, range.end - 1);
            let sent = request.key(self.full(key)).range(asked).send();
            let failure = match retry.attempt(Box::pin(sent)).await {
                Ok(answer) => {
                    let body = collect(answer.body, wanted_n, wanted_n);
                    match retry.attempt(Box::pin(body)).await {
                        Ok(Some(bytes)) if bytes.len() as u64 == wanted_n => return Ok(bytes),
                        // A server gives what there is of a range that reaches beyond the end.
                        Ok(_) => return self.empty_range(key, &range).await,
                        Err(failure) => failure,
                    }
                }
                Err(Failure::Answer(no)) if no.is_absent() => return Err(self.not_found(key)),
                Err(Failure::Answer(Answer { status: 416, .. })) => {
                    return self.empty_range(key, &range).await;
                }
                Err(failure) => failure,
            };
            retry.after(failure).await?;
        }
    }

    /// Bytes `range`, which lies within the object and is not empty, of this version of it.
    ///
    /// # Errors
    /// When the server refuses or does not answer.
    pub async fn get_piece(&self, key: &str, range: Range<u64>, version: &ETag) -> Result<Piece> {
        let wanted_n = range.end.saturating_sub(range.start);
        let mut retry = self.retry("read object", key, wanted_n);
        loop {
            let request = self.client().get_object().bucket(self.name());
            let asked = format!("bytes={}-{}", range.start, range.end.saturating_sub(1));
            let request = request.key(self.full(key)).range(asked);
            let sent = request.if_match(version.as_str()).send();
            let failure = match retry.attempt(Box::pin(sent)).await {
                // Not every server looks at the condition.
                Ok(answer) if answer.e_tag().is_some_and(|it| it != version.as_str()) => {
                    return Ok(Piece::Changed);
                }
                Ok(answer) => {
                    let body = collect(answer.body, wanted_n, wanted_n);
                    match retry.attempt(Box::pin(body)).await {
                        Ok(Some(bytes)) if bytes.len() as u64 == wanted_n => {
                            return Ok(Piece::Same(bytes));
                        }
                        Ok(_) => return Ok(Piece::Changed),
                        Err(failure) => failure,
                    }
                }
                Err(Failure::Answer(no)) if no.is_absent() => return Ok(Piece::Gone),
                Err(Failure::Answer(Answer {
                    status: 412 | 416, ..
                })) => return Ok(Piece::Changed),
                Err(failure) => failure,
            };
            retry.after(failure).await?;
        }
    }

    /// A range that has no bytes: inside the object it is right, else it is an error.
    async fn empty_range(&self, key: &str, range: &Range<u64>) -> Result<Bytes> {
        let Some(head) = self.head(key).await? else {
            return Err(self.not_found(key));
        };
        if range.start == range.end && range.end <= head.bytes_n {
            return Ok(Bytes::new());
        }
        Err(Error::OutOfRange {
            key: key.to_owned(),
            start: range.start,
            end: range.end,
            bytes_n: head.bytes_n,
        })
    }

    fn not_found(&self, key: &str) -> Error {
        Error::NotFound {
            key: key.to_owned(),
            location: self.location().to_owned(),
        }
    }

    /// Writes an object in one request.
    ///
    /// # Errors
    /// As [`crate::ObjectStore::put`].
    pub async fn put(&self, key: &str, bytes: Bytes, condition: &Condition) -> Result<Put> {
        let nonce = nonce()?;
        let mut retry = self.retry("write object", key, bytes.len() as u64);
        loop {
            let (if_match, if_none_match) = headers(condition);
            let sent = self
                .client()
                .put_object()
                .bucket(self.name())
                .key(self.full(key))
                .metadata(NONCE, &nonce)
                .set_if_match(if_match)
                .set_if_none_match(if_none_match)
                .body(ByteStream::from(bytes.clone()))
                .send();
            match retry.attempt(Box::pin(sent)).await {
                Ok(answer) => return Ok(Put::Done(etag(answer.e_tag(), &retry)?)),
                Err(Failure::Answer(no)) if failed(condition, &no) => {
                    return self.whose(key, &nonce, &mut retry).await;
                }
                Err(failure) => retry.after(failure).await?,
            }
        }
    }

    /// A condition did not hold: was it an earlier attempt of this very call that made it so?
    pub(super) async fn whose(&self, key: &str, nonce: &str, retry: &mut Retry<'_>) -> Result<Put> {
        if !retry.may_have_been_done() {
            return Ok(Put::ConditionFailed);
        }
        match self.head_within(key, retry).await? {
            Some(head) if head.nonce.as_deref() == Some(nonce) => Ok(Put::Done(head.etag)),
            // Ours may have been there and been replaced since. The caller reads back and knows.
            _ => Err(retry.unavailable(
                "an attempt got no answer, and the object is now another; what became of it is open",
            )),
        }
    }

    /// All objects whose key begins with `prefix`, in the server's order.
    ///
    /// # Errors
    /// When the server refuses or does not answer.
    pub async fn list(&self, prefix: &str) -> Result<Vec<ObjectMeta>> {
        let versions = self.list_versions(prefix).await?;
        Ok(versions.into_iter().map(|(meta, _)| meta).collect())
    }

    /// As [`Self::list`], with the version of each.
    ///
    /// # Errors
    /// As [`Self::list`].
    pub async fn list_versions(&self, prefix: &str) -> Result<Vec<(ObjectMeta, ETag)>> {
        let mut found = Vec::new();
        let mut next: Option<String> = None;
        loop {
            let mut retry = self.retry("list objects", prefix, 0);
            let page = loop {
                let sent = self
                    .client()
                    .list_objects_v2()
                    .bucket(self.name())
                    .prefix(self.full(prefix))
                    .set_continuation_token(next.clone())
                    .send();
                match retry.attempt(Box::pin(sent)).await {
                    Ok(page) => break page,
                    Err(failure) => retry.after(failure).await?,
                }
            };
            found.extend(page.contents().iter().filter_map(|object| {
                let key = self.relative(object.key()?)?;
                let meta = ObjectMeta {
                    key: key.to_owned(),
                    bytes_n: length(object.size()),
                };
                Some((meta, ETag::new(object.e_tag().unwrap_or_default())))
            }));
            next = page.next_continuation_token().map(str::to_owned);
            if next.is_none() {
                return Ok(found);
            }
        }
    }

    /// Removes objects; those that are not there are no error.
    ///
    /// # Errors
    /// When the server refuses one of them or does not answer.
    pub async fn delete(&self, keys: &[String]) -> Result<()> {
        for batch in keys.chunks(DELETE_KEYS_MAX) {
            match batch {
                [key] => self.delete_one(key).await?,
                _ => self.delete_batch(batch).await?,
            }
        }
        Ok(())
    }

    async fn delete_one(&self, key: &str) -> Result<()> {
        let mut retry = self.retry("delete object", key, 0);
        loop {
            let request = self.client().delete_object().bucket(self.name());
            let sent = request.key(self.full(key)).send();
            match retry.attempt(Box::pin(sent)).await {
                Ok(_) => return Ok(()),
                Err(Failure::Answer(no)) if no.is_absent() => return Ok(()),
                Err(failure) => retry.after(failure).await?,
            }
        }
    }

    async fn delete_batch(&self, keys: &[String]) -> Result<()> {
        let first = keys.first().map_or("", String::as_str);
        let mut retry = self.retry("delete objects, among them", first, 0);
        let named = |key: &String| ObjectIdentifier::builder().key(self.full(key)).build();
        let objects: std::result::Result<Vec<_>, _> = keys.iter().map(named).collect();
        let batch = objects.and_then(|objects| {
            Delete::builder()
                .set_objects(Some(objects))
                .quiet(true)
                .build()
        });
        let batch = batch.map_err(|error| {
            let reason = error.to_string();
            self.refusal("delete objects", first, Refusal::Setup { reason })
        })?;
        loop {
            let request = self.client().delete_objects().bucket(self.name());
            let sent = request.delete(batch.clone()).send();
            match retry.attempt(Box::pin(sent)).await {
                Ok(answer) => match answer.errors().iter().find(|one| !is_gone(one.code())) {
                    None => return Ok(()),
                    Some(one) => retry.after(failure_of_one(one)).await?,
                },
                Err(failure) => retry.after(failure).await?,
            }
        }
    }
}

/// All of a body, once in memory; `None`: it has more than it may. `bytes_n` is what the answer says that it
/// has: not every answer says it, and then it is 0.
async fn collect(
    mut body: ByteStream,
    bytes_n: u64,
    bytes_max: u64,
) -> std::result::Result<Option<Bytes>, ByteStreamError> {
    let is_too_long = |n: usize| n as u64 > bytes_max;
    let first = body.try_next().await?.unwrap_or_default();
    if is_too_long(first.len()) {
        return Ok(None);
    }
    let Some(mut part) = body.try_next().await? else {
        return Ok(Some(first));
    };
    let mut bytes = Vec::new();
    // A length that there is no memory for was not meant.
    let _if_there_is = bytes.try_reserve_exact(usize::try_from(bytes_n).unwrap_or_default());
    bytes.extend_from_slice(&first);
    drop(first);
    loop {
        if is_too_long(bytes.len().saturating_add(part.len())) {
            return Ok(None);
        }
        bytes.extend_from_slice(&part);
        match body.try_next().await? {
            Some(next) => part = next,
            None => return Ok(Some(bytes.into())),
        }
    }
}

fn is_gone(code: Option<&str>) -> bool {
    code == Some("NoSuchKey")
}

/// Why one object of a batch could not be removed.
fn failure_of_one(error: &aws_sdk_s3::types::Error) -> Failure {
    let code = error.code().unwrap_or_default().to_owned();
    if matches!(
        code.as_str(),
        "InternalError" | "SlowDown" | "ServiceUnavailable"
    ) {
        return Failure::Lost(code);
    }
    let status = if code == "AccessDenied" { 403 } else { 400 };
    Failure::Answer(Answer {
        status,
        message: error.message().unwrap_or_default().to_owned(),
        code,
    })
}

/// The headers of a condition: `If-Match`, `If-None-Match`.
pub(super) fn headers(condition: &Condition) -> (Option<String>, Option<String>) {
    match condition {
        Condition::None => (None, None),
        Condition::CreateIfAbsent => (None, Some("*".to_owned())),
        Condition::IfMatch(etag) => (Some(etag.as_str().to_owned()), None),
    }
}

/// Whether an answer says that the condition did not hold.
pub(super) fn failed(condition: &Condition, answer: &Answer) -> bool {
    match condition {
        Condition::None => false,
        Condition::CreateIfAbsent => answer.is_condition_failed(false),
        Condition::IfMatch(_) => answer.is_condition_failed(true),
    }
}

pub(super) fn etag(text: Option<&str>, retry: &Retry<'_>) -> Result<ETag> {
    text.map(ETag::new)
        .ok_or_else(|| retry.unavailable("the answer names no version (ETag)"))
}

fn length(n: Option<i64>) -> u64 {
    n.and_then(|n| u64::try_from(n).ok()).unwrap_or(0)
}
