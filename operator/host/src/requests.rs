//! The coordinator's requests as calls of the object store.
//!
//! Owns: the translation of both sides' words, and the check of stored objects against what a
//! manifest says of them.

use bytes::Bytes;
use streamforge_coordinator::{ExpectedObject, PutCondition, StoreAnswer, StoreRequest, Version};
use streamforge_store::{Condition, ETag, Error, ObjectStore, Put, Recovery};
use xxhash_rust::xxh3::xxh3_64;

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
        let reason = with_sources(&error);
        match error.recovery() {
            Recovery::OutcomeUnknown => StoreAnswer::Unknown { reason },
            Recovery::Refused | Recovery::Fatal => StoreAnswer::Refused { reason },
        }
    })
}

/// What is wrong with these objects, one sentence each: missing, of another length, or changed.
///
/// # Errors
/// When the store cannot be read, so that nothing can be said.
pub async fn check_objects(
    store: &dyn ObjectStore,
    objects: &[ExpectedObject],
) -> Result<Vec<String>, Error> {
    let mut damages = Vec::new();
    for expected in objects {
        let found = store.get(&expected.key).await?;
        damages.extend(damage_of(expected, found.map(|object| object.bytes)));
    }
    Ok(damages)
}

/// Copies these objects; what is not whole is not copied, and said.
async fn copy_objects(
    store: &dyn ObjectStore,
    objects: &[(ExpectedObject, String)],
) -> Result<Vec<String>, Error> {
    let mut damages = Vec::new();
    for (expected, to) in objects {
        let found = store.get(&expected.key).await?.map(|object| object.bytes);
        match (damage_of(expected, found.clone()), found) {
            (Some(damage), _) => damages.push(damage),
            (None, None) => {}
            (None, Some(bytes)) => {
                // A name stands for one content: what is there is an earlier copy.
                let _done = store.put(to, bytes, Condition::CreateIfAbsent).await?;
            }
        }
    }
    Ok(damages)
}

fn damage_of(expected: &ExpectedObject, found: Option<Bytes>) -> Option<String> {
    let key = &expected.key;
    let Some(bytes) = found else {
        return Some(format!("object {key} is missing"));
    };
    let bytes_n = bytes.len() as u64;
    if bytes_n != expected.bytes_n {
        return Some(format!(
            "object {key} has {bytes_n} bytes instead of {}: it is cut or not ours",
            expected.bytes_n
        ));
    }
    let wrong = expected.pieces.iter().find(|piece| {
        let from = usize::try_from(piece.offset).unwrap_or(usize::MAX);
        let to = usize::try_from(piece.offset.saturating_add(piece.length)).unwrap_or(usize::MAX);
        bytes
            .get(from..to)
            .is_none_or(|block| xxh3_64(block) != piece.checksum)
    });
    wrong.map(|piece| {
        format!(
            "object {key} is corrupt: the checksum of the block at byte {} differs",
            piece.offset
        )
    })
}

/// An error with its causes, in one line.
pub(crate) fn with_sources(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}
