//! Making files in a bucket visible.
//!
//! Owns: completing uploads after the commit, keeping what is committed of an open file, and at a restore
//! completing what no writer will go on with. Start at: [`BucketPublisher`].
//!
//! What an interval leaves open is *held*: its state becomes a hidden object of its own, because a manifest
//! lists only what is not confirmed. So the newest state of an open file is in the manifest or in the
//! bucket, and a newer one is in place before what only older ones need is removed. States have names
//! of their own: a put that arrives late replaces none.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::{self, StreamExt as _, TryStreamExt as _};
use streamforge_core::ids::{CheckpointId, Epoch, JobId, SlotId};
use streamforge_core::manifest::{StagedInterval, StagedObject};
use streamforge_engine::error::Error;
use streamforge_engine::sink::Publisher;
use streamforge_store::Condition;
use streamforge_store::s3::{Bucket, Completed};

use super::detail::{Detail, OpenDetail, TailPiece, held_key, hidden_prefix, is_held, piece_key};
use super::{Door, FILES_AT_ONCE};
use crate::error::{failed, refused};
use crate::files::sink::{STAGING, epoch_of, name_prefix};

/// Hidden objects of one file that are read at once.
const PIECES_AT_ONCE: usize = 8;

/// Publishes the intervals of one sink.
#[derive(Debug)]
pub struct BucketPublisher {
    door: Door,
    prefix: String,
    epoch: Epoch,
    /// Why the bucket cannot be asked now; a restore waits for it.
    away: Mutex<Option<String>>,
}

/// What is committed of a file.
#[derive(Debug)]
struct State {
    id: CheckpointId,
    object: StagedObject,
    detail: Detail,
}

impl State {
    fn of(id: CheckpointId, object: &StagedObject) -> Result<Self, Error> {
        Ok(Self {
            id,
            detail: Detail::of(object)?,
            object: object.clone(),
        })
    }

    fn rows_n(&self) -> u64 {
        self.detail.upload().rows_before + self.object.rows
    }
}

impl BucketPublisher {
    /// A publisher of a job's sink, in this attempt.
    #[must_use]
    pub fn new(door: Door, job: &JobId, sink: &str, epoch: Epoch) -> Self {
        Self {
            door,
            prefix: name_prefix(job, sink),
            epoch,
            away: Mutex::default(),
        }
    }

    fn away(&self) -> MutexGuard<'_, Option<String>> {
        // It is replaced whole.
        self.away.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether an earlier attempt of this sink wrote it. A later one's is not ours to judge: we may be
    /// the one that is dead.
    fn is_of_the_dead(&self, key: &str) -> bool {
        epoch_of(key, &self.prefix).is_some_and(|epoch| epoch < self.epoch)
    }

    async fn publish_state(&self, state: &State) -> Result<(), Error> {
        let bucket = self.door.bucket().await?;
        let key = &state.object.published;
        let failed = |error| self.door.failed("publish a file in", error);
        match &state.detail {
            Detail::Whole(upload) => {
                let completed = bucket.complete(&upload.name(key), &upload.parts()).await;
                self.check(state, completed.map_err(failed)?)?;
                if upload.rows_before > 0 {
                    let hidden = bucket.list(&hidden_prefix(key)).await.map_err(failed)?;
                    let hidden: Vec<String> = hidden.into_iter().map(|it| it.key).collect();
                    bucket.delete(&hidden).await.map_err(failed)?;
                }
                Ok(())
            }
            // Nobody is told to publish before the restore is over, and that completed it.
            Detail::Open { .. } if self.is_of_the_dead(key) => Ok(()),
            Detail::Open { open } => self.hold(bucket, state, open).await,
        }
    }

    /// Sees that the state outlives its place in the manifest.
    async fn hold(&self, bucket: &Bucket, state: &State, open: &OpenDetail) -> Result<(), Error> {
        let key = &state.object.published;
        let failed = |error| self.door.failed("keep an open file in", error);
        let interval = StagedInterval {
            id: state.id,
            objects: vec![state.object.clone()],
        };
        let bytes = serde_json::to_vec(&interval).expect("texts and numbers are JSON");
        let held = held_key(key, open.segment);
        let put = bucket.put(&held, bytes.into(), &Condition::None);
        // Without a condition it is done if it is no error.
        let _done = put.await.map_err(failed)?;
        let pieces = open.obsolete.iter().map(|object| piece_key(key, *object));
        let before = open.segment.checked_sub(1);
        let before = before.map(|segment| held_key(key, segment));
        let replaced: Vec<String> = pieces.chain(before).collect();
        bucket.delete(&replaced).await.map_err(failed)
    }

    /// Says why a file did not become visible.
    fn check(&self, state: &State, completed: Completed) -> Result<(), Error> {
        let (rows_n, id) = (state.rows_n(), state.id);
        let action = || format!("publish {} in {}", state.object.published, self.door.place);
        match completed {
            Completed::Done => Ok(()),
            Completed::Gone => Err(refused(
                action(),
                format!(
                    "{rows_n} rows up to checkpoint {id} were staged for it as an upload, and neither \
                     upload nor file is there: somebody removed it, or a lifecycle rule of the \
                     bucket did"
                ),
            )),
            Completed::Taken => Err(refused(
                action(),
                format!(
                    "{rows_n} rows up to checkpoint {id} belong there, and another object has this name"
                ),
            )),
        }
    }

    /// The newest state of each file that is committed and perhaps not visible, by its key.
    async fn newest(
        &self,
        bucket: &Bucket,
        listed: &[StagedInterval],
        hidden: &[String],
    ) -> Result<BTreeMap<String, State>, Error> {
        let held = hidden.iter().filter(|key| is_held(key));
        let reads: Vec<_> = held.map(|key| self.held(bucket, key)).collect();
        let held: Vec<Option<StagedInterval>> = stream::iter(reads)
            .buffered(FILES_AT_ONCE)
            .try_collect()
            .await?;
        let mut newest: BTreeMap<String, State> = BTreeMap::new();
        for interval in listed.iter().chain(held.iter().flatten()) {
            for object in &interval.objects {
                let known = newest.get(&object.published);
                if known.is_none_or(|known| known.id < interval.id) {
                    let state = State::of(interval.id, object)?;
                    newest.insert(object.published.clone(), state);
                }
            }
        }
        Ok(newest)
    }

    async fn held(&self, bucket: &Bucket, key: &str) -> Result<Option<StagedInterval>, Error> {
        let failed_to = "read an open file in";
        let object = bucket.get(key).await;
        // One that is gone was replaced or is over, by another process that began a restore.
        let Some(object) = object.map_err(|error| self.door.failed(failed_to, error))? else {
            return Ok(None);
        };
        let read = serde_json::from_slice(&object.bytes);
        read.map(Some)
            .map_err(|error| failed(format!("read {key} in {}", self.door.place), false, error))
    }

    /// Makes a whole file of one whose writer is gone.
    async fn complete(&self, bucket: &Bucket, state: &State) -> Result<(), Error> {
        let Detail::Open { open } = &state.detail else {
            return Ok(()); // its owner publishes it
        };
        let key = &state.object.published;
        let failed = |error| self.door.failed("complete an open file in", error);
        let name = open.upload.name(key);
        if let Some(found) = bucket.completed(&name).await.map_err(failed)? {
            return self.check(state, found);
        }
        let rest = match tail(bucket, key, &open.tail).await {
            Ok(rest) => rest,
            Err(error) => match bucket.completed(&name).await.map_err(failed)? {
                // Another process has completed and tidied up meanwhile.
                Some(found) => return self.check(state, found),
                None => return Err(failed(error)),
            },
        };
        let parts = open.upload.parts();
        let completed = bucket.complete_with(&name, &parts, rest).await;
        self.check(state, completed.map_err(failed)?)
    }

    /// Throws uploads of dead epochs away that are not among these.
    async fn abandon_others(&self, bucket: &Bucket, known: &BTreeSet<&str>) -> Result<(), Error> {
        let failed = |error| self.door.failed("remove old uploads in", error);
        for (key, id) in bucket.uploads("").await.map_err(failed)? {
            if self.is_of_the_dead(&key) && !known.contains(id.as_str()) {
                bucket.abandon(&key, &id).await.map_err(failed)?;
            }
        }
        Ok(())
    }
}

/// What belongs behind the parts of a file: less than a part, and a footer.
async fn tail(
    bucket: &Bucket,
    published: &str,
    pieces: &[TailPiece],
) -> Result<Bytes, streamforge_store::Error> {
    let read = |piece: &TailPiece| {
        let key = piece_key(published, piece.object);
        let range = piece.start..piece.end;
        async move { bucket.get_range(&key, range).await }
    };
    let reads: Vec<_> = pieces.iter().map(read).collect();
    let read: Vec<Bytes> = stream::iter(reads)
        .buffered(PIECES_AT_ONCE)
        .try_collect()
        .await?;
    Ok(read.concat().into())
}

#[async_trait]
impl Publisher for BucketPublisher {
    async fn publish(&self, _slot: &SlotId, interval: &StagedInterval) -> Result<(), Error> {
        let states: Vec<State> = interval
            .objects
            .iter()
            .map(|object| State::of(interval.id, object))
            .collect::<Result<_, _>>()?;
        let publishes = states.iter().map(|state| self.publish_state(state));
        stream::iter(publishes.collect::<Vec<_>>())
            .buffer_unordered(FILES_AT_ONCE)
            .try_collect()
            .await
    }

    fn trouble(&self) -> Option<String> {
        self.away().clone()
    }

    async fn discard_unlisted(&self, listed: &[StagedInterval]) -> Result<(), Error> {
        let discarded = self.try_discard_unlisted(listed).await;
        let away = discarded.as_ref().err().filter(|error| is_away(error));
        *self.away() = away.map(Error::with_causes);
        discarded
    }
}

/// Whether no server answered: one that refuses is not waited for.
fn is_away(error: &Error) -> bool {
    let Error::Connector { source, .. } = error else {
        return false;
    };
    let said = source.downcast_ref::<streamforge_store::Error>();
    matches!(said, Some(streamforge_store::Error::Unavailable { .. }))
}

impl BucketPublisher {
    async fn try_discard_unlisted(&self, listed: &[StagedInterval]) -> Result<(), Error> {
        let bucket = self.door.bucket().await?;
        let failed = |error| self.door.failed("look for open files in", error);
        let hidden = bucket.list(&format!("{STAGING}/{}", self.prefix)).await;
        let hidden = hidden.map_err(failed)?.into_iter().map(|it| it.key);
        let hidden: Vec<String> = hidden.filter(|key| self.is_of_the_dead(key)).collect();
        let newest = self.newest(bucket, listed, &hidden).await?;
        let open = newest.values();
        let open = open.filter(|state| self.is_of_the_dead(&state.object.published));
        let completions: Vec<_> = open.map(|state| self.complete(bucket, state)).collect();
        stream::iter(completions)
            .buffer_unordered(FILES_AT_ONCE)
            .try_collect::<()>()
            .await?;
        let known = newest.values().map(|state| state.object.staged.as_str());
        self.abandon_others(bucket, &known.collect()).await?;
        // Of a file that is whole and not visible yet they stay: a rewind may want it open again.
        let whole = newest.values();
        let whole = whole.filter(|state| matches!(state.detail, Detail::Whole(_)));
        let kept: Vec<String> = whole
            .map(|it| hidden_prefix(&it.object.published))
            .collect();
        let is_kept = |key: &String| kept.iter().any(|prefix| key.starts_with(prefix));
        let over: Vec<String> = hidden.into_iter().filter(|key| !is_kept(key)).collect();
        bucket.delete(&over).await.map_err(failed)
    }
}
