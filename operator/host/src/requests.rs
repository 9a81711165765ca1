//! The coordinator's requests as calls of the object store.
//!
//! Owns: the translation of both sides' words, and the check of stored objects against what a
//! manifest says of them.

use std::time::Duration;

use bytes::Bytes;
use futures::{FutureExt as _, StreamExt as _, TryStreamExt as _, stream};
use streamforge_coordinator::{ExpectedObject, PutCondition, StoreAnswer, StoreRequest, Version};
use streamforge_core::causes::with_causes;
use streamforge_store::{Condition, ETag, Error, ObjectStore, Put, Recovery};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use self::blocks::Blocks;
use self::copy::copy_objects;

mod blocks;
mod copy;
#[cfg(test)]
mod tests;

/// Most of an object that is in memory while it is checked.
const RANGE_BYTES: u64 = 4 * 1024 * 1024;

/// Objects of one job that are checked at once.
const CHECKS_AT_ONCE: usize = 4;

/// For the checks of all jobs of this process: an operator that begins may have a hundred of them to look at.
static TURNS: Turns = Turns {
    quick: Semaphore::const_new(8),
    slow: Semaphore::const_new(24),
    quick_for: Duration::from_secs(2),
};

/// How many reads there are at once, each of which takes memory. Whoever waits is served in order, and each read
/// is a turn of its own: a job with a large state waits for others between two of its ranges.
struct Turns {
    quick: Semaphore,
    /// What takes longer than [`Self::quick_for`] goes on here and makes room: a bucket that answers slowly keeps
    /// those of others waiting for no longer.
    slow: Semaphore,
    quick_for: Duration,
}

impl Turns {
    async fn take<T>(&self, read: impl Future<Output = T>) -> T {
        let quick = self.quick.acquire().await;
        tokio::pin!(read);
        // A simulation has no clock, and stores that answer at once.
        if let Some(done) = read.as_mut().now_or_never() {
            return done;
        }
        if let Ok(done) = timeout(self.quick_for, &mut read).await {
            return done;
        }
        let slow = self.slow.try_acquire();
        if slow.is_ok() {
            drop(quick);
        }
        read.await
    }
}

/// Carries one request out.
pub async fn perform(store: &dyn ObjectStore, request: StoreRequest) -> StoreAnswer {
    let answer = match request {
        StoreRequest::Get { key } => store.get(&key).await.map(|object| {
            let whole = |it: streamforge_store::StoredObject| {
                (it.bytes.to_vec(), Version(it.etag.as_str().to_owned()))
            };
            StoreAnswer::Got(object.map(whole))
        }),
        StoreRequest::List { prefix } => store
            .list(&prefix)
            .await
            .map(|found| StoreAnswer::Listed(found.into_iter().map(|meta| meta.key).collect())),
        StoreRequest::Put {
            key,
            bytes,
            condition,
        } => {
            let condition = match condition {
                PutCondition::CreateIfAbsent => Condition::CreateIfAbsent,
                PutCondition::IfMatch(Version(etag)) => Condition::IfMatch(ETag::new(etag)),
            };
            store
                .put(&key, Bytes::from(bytes), condition)
                .await
                .map(|put| match put {
                    Put::Done(etag) => StoreAnswer::Put(Version(etag.as_str().to_owned())),
                    Put::ConditionFailed => StoreAnswer::ConditionFailed,
                })
        }
        StoreRequest::Check { objects } => check_objects(store, &objects)
            .await
            .map(StoreAnswer::Checked),
        StoreRequest::Copy { objects } => copy_objects(store, &objects)
            .await
            .map(StoreAnswer::Checked),
        StoreRequest::Delete { keys } => store.delete(&keys).await.map(|()| StoreAnswer::Deleted),
    };
    answer.unwrap_or_else(|error| {
        let reason = with_causes(&error);
        match error.recovery() {
            Recovery::OutcomeUnknown => StoreAnswer::Unknown { reason },
            Recovery::Refused | Recovery::Fatal => StoreAnswer::Refused { reason },
        }
    })
}

/// What is wrong with these objects, one sentence each: missing, of another length, or changed. Several
/// are read at once, large ones in ranges: an operator checks the state of many jobs in little memory.
///
/// # Errors
/// When the store cannot be read, so that nothing can be said.
pub async fn check_objects(
    store: &dyn ObjectStore,
    objects: &[ExpectedObject],
) -> Result<Vec<String>, Error> {
    let mut checks = Vec::with_capacity(objects.len());
    for expected in objects {
        checks.push(check_object(store, expected));
    }
    let checks = stream::iter(checks).buffered(CHECKS_AT_ONCE);
    let damages: Vec<Option<String>> = checks.try_collect().await?;
    Ok(damages.into_iter().flatten().collect())
}

async fn check_object(
    store: &dyn ObjectStore,
    expected: &ExpectedObject,
) -> Result<Option<String>, Error> {
    if expected.bytes_n <= RANGE_BYTES {
        let found = TURNS.take(read(store, expected)).await?;
        return Ok(found.and_then(|found| whole(expected, found)).err());
    }
    match check_in_ranges(store, expected).await {
        Err(Error::NotFound { .. }) => Ok(Some(missing(expected))),
        Err(Error::OutOfRange { bytes_n, .. }) => Ok(Some(wrong_length(expected, bytes_n))),
        other => other,
    }
}

/// The same for a large object, of which a range at a time is in memory. Bytes behind those that are
/// expected are not noticed; no restore reads them.
async fn check_in_ranges(
    store: &dyn ObjectStore,
    expected: &ExpectedObject,
) -> Result<Option<String>, Error> {
    let (key, bytes_n) = (&expected.key, expected.bytes_n);
    let mut blocks = Blocks::of(expected);
    // Its end is looked at even if no block is there.
    TURNS
        .take(store.get_range(key, bytes_n - 1..bytes_n))
        .await?;
    while let Some(from) = blocks.wanted_from() {
        blocks.skip_to(from);
        let range = from.min(bytes_n)..from.saturating_add(RANGE_BYTES).min(bytes_n);
        // Nobody waits with a range in hand.
        let turn = async {
            let bytes = store.get_range(key, range).await?;
            Ok::<_, Error>(blocks.pass(&bytes))
        };
        if let Err(damage) = TURNS.take(turn).await? {
            return Ok(Some(damage));
        }
    }
    Ok(None)
}

/// A whole object, unless it is longer than expected, which is said.
async fn read(
    store: &dyn ObjectStore,
    expected: &ExpectedObject,
) -> Result<Result<Option<Bytes>, String>, Error> {
    match store.get_within(&expected.key, expected.bytes_n).await {
        Ok(found) => Ok(Ok(found.map(|object| object.bytes))),
        Err(Error::TooLong { .. }) => Ok(Err(longer(expected))),
        Err(error) => Err(error),
    }
}

/// What was found, if it is what was expected; else what is wrong.
fn whole(expected: &ExpectedObject, found: Option<Bytes>) -> Result<Bytes, String> {
    let bytes = found.ok_or_else(|| missing(expected))?;
    let bytes_n = bytes.len() as u64;
    if bytes_n != expected.bytes_n {
        return Err(wrong_length(expected, bytes_n));
    }
    Blocks::of(expected).pass(&bytes)?;
    Ok(bytes)
}

fn missing(expected: &ExpectedObject) -> String {
    format!("object {} is missing", expected.key)
}

fn wrong_length(expected: &ExpectedObject, bytes_n: u64) -> String {
    let ExpectedObject {
        key, bytes_n: n, ..
    } = expected;
    format!("object {key} has {bytes_n} bytes instead of {n}: it is cut or not ours")
}

fn longer(expected: &ExpectedObject) -> String {
    let ExpectedObject { key, bytes_n, .. } = expected;
    format!("object {key} has more than {bytes_n} bytes: it is not ours")
}
