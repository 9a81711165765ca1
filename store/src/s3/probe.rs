//! Does this server keep its conditions when several writers race?
//!
//! Owns: the proof that opening a store for writing demands. Some servers honour a condition one by
//! one and break it under a race, so two puts in turn prove nothing: here many writers put at once,
//! each its own bytes, and exactly one may be told that it won, and its bytes must be what is stored.

use std::future::Future;

use bytes::Bytes;
use futures::future::join_all;

use super::S3Store;
use super::failure::Refusal;
use super::retry::nonce;
use crate::{Condition, ETag, Error, ObjectStore as _, Put, Result};

/// Writers that race.
const WRITERS_N: usize = 16;

/// Races for a key that is free, and then as many for one version of an object.
const RACES_N: usize = 3;

/// Long enough that a server which writes in pieces mixes them.
const BODY_BYTES: usize = 64 * 1024;

/// Runs the races under names of its own, and removes what it wrote.
///
/// # Errors
/// [`Refusal::BreaksConditions`]; or why the server could not be asked.
pub(super) async fn check(store: &S3Store) -> Result<()> {
    let key = format!("probe/{}", nonce()?);
    let outcome = races(store, &key).await;
    let keys: Vec<String> = (0..RACES_N).map(|race| format!("{key}-{race}")).collect();
    match outcome {
        Ok(()) => store.delete(&keys).await,
        Err(error) => {
            // The first error is the one to tell.
            let _best_effort = store.delete(&keys).await;
            Err(error)
        }
    }
}

/// Whether we may write at all.
///
/// # Errors
/// Why not; [`Refusal::BreaksConditions`] if a new key is said to be taken.
pub(super) async fn may_write(store: &S3Store) -> Result<()> {
    let key = format!("probe/{}", nonce()?);
    write_one(store, &key, Bytes::from_static(b"?")).await
}

async fn write_one(store: &S3Store, key: &str, body: Bytes) -> Result<()> {
    let first = store.put(key, body, Condition::CreateIfAbsent).await?;
    let Put::Done(_) = first else {
        return Err(broken(store, "it says that a new key is taken".to_owned()));
    };
    store.delete(&[key.to_owned()]).await
}

async fn races(store: &S3Store, key: &str) -> Result<()> {
    // That is told by one writer, not by sixteen.
    write_one(store, &format!("{key}-0"), body(0)).await?;
    let mut versions = Vec::new();
    for race in 0..RACES_N {
        let key = format!("{key}-{race}");
        let etag = one_winner(store, &key, "one free key", |writer| {
            store.put(&key, body(writer), Condition::CreateIfAbsent)
        })
        .await?;
        versions.push((key, etag));
    }
    for (key, etag) in versions {
        one_winner(store, &key, "one version of an object", |writer| {
            // Bytes that no version had before, so that its name is new.
            store.put(
                &key,
                body(WRITERS_N + writer),
                Condition::IfMatch(etag.clone()),
            )
        })
        .await?;
    }
    Ok(())
}

/// Lets all writers put at once; the version of the one that won.
async fn one_winner<F>(
    store: &S3Store,
    key: &str,
    what: &str,
    put: impl Fn(usize) -> F,
) -> Result<ETag>
where
    F: Future<Output = Result<Put>>,
{
    let puts = join_all((0..WRITERS_N).map(&put)).await;
    let mut winners = Vec::new();
    let mut unanswered = None;
    for (writer, put) in puts.into_iter().enumerate() {
        match put {
            Ok(Put::Done(etag)) => winners.push((writer, etag)),
            Ok(Put::ConditionFailed) => {}
            Err(error) => unanswered = Some(error),
        }
    }
    let winners_n = winners.len();
    let found = store.get(key).await?;
    match (winners.pop(), found) {
        (Some((_, etag)), Some(found)) if winners_n == 1 => {
            // Writers' bytes differ, all bytes of one writer are the same.
            if found.etag == etag && is_whole(&found.bytes) {
                return Ok(etag);
            }
            let finding = format!(
                "of {WRITERS_N} writers that raced for {what} one was told that it won, but its bytes are not what is stored"
            );
            Err(broken(store, finding))
        }
        (Some(_), _) => {
            let finding = format!(
                "of {WRITERS_N} writers that raced for {what}, {winners_n} were told that they won"
            );
            Err(broken(store, finding))
        }
        (None, _) => Err(unanswered.unwrap_or_else(|| {
            let finding = format!("of {WRITERS_N} writers that raced for {what} none won");
            broken(store, finding)
        })),
    }
}

fn body(writer: usize) -> Bytes {
    Bytes::from(vec![u8::try_from(writer).unwrap_or(u8::MAX); BODY_BYTES])
}

fn is_whole(bytes: &Bytes) -> bool {
    bytes.len() == BODY_BYTES && bytes.windows(2).all(|pair| pair[0] == pair[1])
}

fn broken(store: &S3Store, finding: String) -> Error {
    store
        .bucket
        .refusal("open", "", Refusal::BreaksConditions { finding })
}
