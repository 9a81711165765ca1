//! The exactly-once half that runs after the commit: staged objects become records of the topic.
//!
//! Owns: one producer per slot, the take-over of slots, and what is told when something cannot be
//! published. The decisions are in [`super::marker`], the calls in [`super::transaction`].
//!
//! Invariants X1 to X4: see there. A publisher that was found to be the zombie, or of which the attempt is
//! over, never begins again.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use async_trait::async_trait;
use streamforge_core::ids::{CheckpointId, Epoch, Generation, JobId, OperatorUid, SlotId};
use streamforge_core::manifest::{StagedInterval, StagedObject};
use streamforge_engine::error::{Error, Recovery};
use streamforge_engine::sink::{Publisher, SlotTakeOver};
use streamforge_store::ObjectStore;
use tokio::task::JoinError;

use super::config::SinkConfig;
use super::identity::{IdentityWatch, check_identity};
use super::keep::Keeper;
use super::lookup::LookupPlace;
use super::marker::{
    Author, Doubt, Listed, Marker, Step, TakeOver, after_part, next_step, take_over,
};
use super::staged::{self, Detail};
use super::topic_settings::{TopicView, offsets_kept_for};
use super::transaction::{self, SlotPlace, SlotProducer, Unwatched, Watch};
use crate::error::{failed, tell_waiting};

mod refresh;
pub mod refusal;
mod slots;

pub use refusal::Refusal;
use slots::{Slot, Slots, lock};

/// How long a take-over waits for brokers before the attempt ends and is begun anew.
const PATIENCE: Duration = Duration::from_secs(60);

/// Pause between two tries of a take-over.
const PAUSE: Duration = Duration::from_millis(500);

/// How a publisher is made.
#[derive(Clone, Debug)]
pub struct KafkaPublisherSpec {
    /// `kafka:`
    pub config: SinkConfig,
    /// Folder of secrets.
    pub secrets: Option<PathBuf>,
    /// The job.
    pub job: JobId,
    /// The sink.
    pub sink: OperatorUid,
    /// Term of the coordinator.
    pub generation: Generation,
    /// The attempt.
    pub epoch: Epoch,
    /// A person said that this sink's rows may come twice after its marker was lost.
    pub accept_lost_marker: bool,
    /// Who keeps clients for the next attempt.
    pub keeper: Keeper,
}

impl KafkaPublisherSpec {
    fn lookup(&self) -> LookupPlace {
        LookupPlace {
            access: self.config.access.clone(),
            secrets: self.secrets.clone(),
            keeper: self.keeper.clone(),
        }
    }
}

/// Transactional id and group of a slot. They carry the job's identity, so that jobs of one name on
/// one broker never meet.
pub fn slot_id(job: &JobId, sink: &OperatorUid, slot: u32) -> String {
    format!("streamforge-{job}-{sink}-{slot}")
}

struct Inner {
    spec: KafkaPublisherSpec,
    store: Arc<dyn ObjectStore>,
    slots: Slots,
    /// It was found to be the zombie, or its attempt is over.
    zombie: AtomicBool,
    /// Why brokers cannot be asked now; a take-over waits for them.
    away: Mutex<Option<String>>,
    watch: Box<dyn Watch + Send + Sync>,
    identity: IdentityWatch,
}

/// Publishes a sink's slots.
pub struct KafkaPublisher {
    inner: Arc<Inner>,
}

impl std::fmt::Debug for KafkaPublisher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "KafkaPublisher({})", self.inner.spec.sink)
    }
}

fn refusal(action: String, refusal: Refusal) -> Error {
    failed(action, false, refusal)
}

impl KafkaPublisher {
    /// A publisher; begins nothing before slots are taken over.
    pub fn new(spec: KafkaPublisherSpec, store: Arc<dyn ObjectStore>) -> Self {
        Self::watched(spec, store, Box::new(Unwatched))
    }

    /// The same, with somebody who is told of every stage.
    pub fn watched(
        spec: KafkaPublisherSpec,
        store: Arc<dyn ObjectStore>,
        watch: Box<dyn Watch + Send + Sync>,
    ) -> Self {
        let inner = Arc::new(Inner {
            identity: IdentityWatch::new(spec.lookup(), spec.config.topic.clone()),
            spec,
            store,
            slots: Slots::default(),
            zombie: AtomicBool::new(false),
            away: Mutex::default(),
            watch,
        });
        KafkaPublisher { inner }
    }
}

impl Drop for KafkaPublisher {
    fn drop(&mut self) {
        // A take-over of an attempt that is not loaded any more may still be at work on its thread.
        self.stop();
    }
}

impl Inner {
    fn is_zombie(&self) -> bool {
        self.zombie.load(Ordering::Relaxed)
    }

    fn author(&self) -> Author {
        Author {
            generation: self.spec.generation,
            epoch: self.spec.epoch,
            table: 0,
        }
    }

    fn action(&self) -> String {
        format!("publish to topic {}", self.spec.config.topic)
    }

    fn lookup(&self) -> LookupPlace {
        self.spec.lookup()
    }

    /// Whether a slot has a producer that may be used (X2).
    fn is_sound(&self, slot: &SlotId) -> bool {
        let mutex = self.slots.of(slot);
        let slot = lock(&mutex);
        slot.producer.as_ref().is_some_and(SlotProducer::is_sound)
    }

    fn place(&self, slot: &SlotId, view: &TopicView) -> SlotPlace {
        SlotPlace {
            access: self.spec.config.access.clone(),
            secrets: self.spec.secrets.clone(),
            id: slot_id(&self.spec.job, &slot.sink, slot.slot),
            topic: self.spec.config.topic.clone(),
            partitions_n: view.limits.partitions_n,
            message_bytes_max: view.limits.message_bytes_max,
        }
    }

    fn failed(&self, error: transaction::Error) -> Error {
        let retry = !matches!(
            error,
            transaction::Error::TimeoutTooLong { .. } | transaction::Error::Foreign { .. }
        );
        failed(self.action(), retry, error)
    }

    /// A slot's producer, taken over anew if the last one was thrown away. Blocks.
    fn take(
        &self,
        slot: &mut Slot,
        id: &SlotId,
        (view, listed): (&TopicView, Listed<'_>),
        doubt: Doubt,
    ) -> Result<Taken, Error> {
        if self.is_zombie() {
            return Ok(Taken::Zombie(None));
        }
        if slot.producer.as_ref().is_some_and(SlotProducer::is_sound) {
            return Ok(Taken::Mine);
        }
        // Dropped first: its own client still waits for answers that must not come any more.
        slot.producer = None;
        let (me, place) = (self.author(), self.place(id, view));
        // A fence of ours that comes too late would throw a newer attempt out for a moment.
        let newer = slot
            .committed
            .and_then(|_| place.peek_marker())
            .filter(|found| me.is_older_than(&found.author));
        if newer.is_some() {
            self.zombie.store(true, Ordering::Relaxed);
            return Ok(Taken::Zombie(newer));
        }
        if self.is_zombie() {
            return Ok(Taken::Zombie(None)); // stopped while brokers were asked
        }
        let mut producer = place
            .begin(&*self.watch)
            .map_err(|error| self.failed(error))?;
        let found = producer.marker();
        match take_over(found, listed, (me, doubt)) {
            TakeOver::Write(marker) => {
                producer
                    .commit(&[], marker, &*self.watch)
                    .map_err(|error| self.failed(error))?;
                (slot.committed, slot.is_retired) = (Some(Instant::now()), false);
                // The end of this transaction may hit the next one, which is of rows.
                producer.check_sound().map_err(|error| self.failed(error))?;
                slot.producer = Some(producer);
                Ok(Taken::Mine)
            }
            TakeOver::Zombie(marker) => {
                self.zombie.store(true, Ordering::Relaxed);
                Ok(Taken::Zombie(Some(marker)))
            }
            TakeOver::Vanished { .. } => Ok(Taken::Vanished),
        }
    }

    /// X3: whether every listed interval is so young that its marker would still be there.
    async fn doubt(&self, listed: &[StagedInterval]) -> (Doubt, Option<Duration>) {
        let kept = offsets_kept_for(&self.lookup()).await;
        if self.spec.accept_lost_marker {
            return (Doubt::Accepted, kept);
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let now_ms = now.map_or(0, |now| u64::try_from(now.as_millis()).unwrap_or(u64::MAX));
        let Some(kept) = kept else {
            return (Doubt::Open, None);
        };
        let kept_ms = u64::try_from(kept.as_millis()).unwrap_or(u64::MAX);
        let is_young = |object: &StagedObject| {
            serde_json::from_str::<Detail>(&object.detail)
                .is_ok_and(|detail| detail.is_young(now_ms, kept_ms))
        };
        let objects = || listed.iter().flat_map(|interval| &interval.objects);
        let young = objects().count() > 0 && objects().all(is_young);
        let doubt = if young { Doubt::AllYoung } else { Doubt::Open };
        (doubt, Some(kept))
    }

    /// The identity of the topic that rows were staged for; none: whatever there is may be written to.
    fn identity_of(&self, object: &StagedObject) -> Option<String> {
        if self.spec.accept_lost_marker {
            return None;
        }
        serde_json::from_str::<Detail>(&object.detail)
            .ok()?
            .topic_id
    }

    /// Takes one slot over; asks about retention only when a marker is missing.
    async fn take_over_slot(
        self: &Arc<Self>,
        view: &TopicView,
        wanted: &Wanted,
    ) -> Result<(), Error> {
        let oldest = wanted
            .listed
            .iter()
            .flat_map(|interval| &interval.objects)
            .next();
        if let Some(object) = oldest {
            let stored = self.identity_of(object);
            let topic = &self.spec.config.topic;
            check_identity(topic, stored.as_deref(), view.id.as_deref())?;
        }
        let mut doubt = Doubt::Open;
        let mut kept = None;
        loop {
            let (inner, view, wanted_of_thread) = (Arc::clone(self), view.clone(), wanted.clone());
            let slot = self.slots.of(&wanted.slot);
            let taken = tokio::task::spawn_blocking(move || {
                let mut slot = lock(&slot);
                let id = &wanted_of_thread.slot;
                inner.take(&mut slot, id, (&view, wanted_of_thread.listed()), doubt)
            });
            let taken = taken
                .await
                .unwrap_or_else(|error| Err(failed(self.action(), true, error)))?;
            match taken {
                Taken::Mine => return Ok(()),
                Taken::Zombie(marker) => return Err(self.zombie(&wanted.slot, marker)),
                Taken::Vanished if doubt == Doubt::Open && kept.is_none() => {
                    (doubt, kept) = self.doubt(&wanted.listed).await;
                    if doubt == Doubt::Open {
                        return Err(self.vanished(wanted, kept));
                    }
                    tracing::warn!(slot = %wanted.slot, why = %doubt, "the slot's marker is gone; it is written anew");
                }
                Taken::Vanished => return Err(self.vanished(wanted, kept)),
            }
        }
    }

    fn zombie(&self, slot: &SlotId, marker: Option<Marker>) -> Error {
        let slot = slot.clone();
        let marker = marker.unwrap_or_else(|| Marker::after(CheckpointId::ZERO, self.author()));
        Error::TakenOver {
            action: self.action(),
            source: Box::new(Refusal::Zombie { slot, marker }),
        }
    }

    fn vanished(&self, wanted: &Wanted, kept: Option<Duration>) -> Error {
        let oldest = wanted.listed.first().map_or(CheckpointId::ZERO, |it| it.id);
        let kept = kept.map_or_else(
            || "longer than the broker keeps offsets".to_owned(),
            |kept| {
                let minutes = kept.as_secs() / 60;
                format!("longer than offsets.retention.minutes = {minutes}")
            },
        );
        refusal(
            self.action(),
            Refusal::Vanished {
                slot: wanted.slot.clone(),
                group: slot_id(&self.spec.job, &wanted.slot.sink, wanted.slot.slot),
                listed_n: wanted.listed.len(),
                oldest,
                kept,
                sink: self.spec.sink.clone(),
            },
        )
    }

    /// What the marker says about an interval.
    fn step(
        &self,
        slot: &SlotId,
        interval: CheckpointId,
        parts: u32,
    ) -> Result<Option<u32>, Error> {
        let mutex = self.slots.of(slot);
        let marker = lock(&mutex)
            .producer
            .as_ref()
            .and_then(SlotProducer::marker);
        let Some(marker) = marker else {
            // Thrown away between two looks: the next notice begins anew.
            let gone = transaction::Error::Fenced {
                action: "look at the marker",
                id: slot_id(&self.spec.job, &slot.sink, slot.slot),
            };
            return Err(self.failed(gone));
        };
        let slot = slot.clone();
        match next_step(&marker, interval, parts) {
            Step::Done => Ok(None),
            Step::Publish(part) => Ok(Some(part)),
            Step::OlderUnfinished(older) => Err(refusal(
                self.action(),
                Refusal::OlderUnfinished {
                    slot,
                    interval,
                    older,
                },
            )),
            Step::OtherCut { marker, listed } => Err(refusal(
                self.action(),
                Refusal::OtherCut {
                    slot,
                    interval,
                    marker,
                    listed,
                },
            )),
        }
    }

    /// Writes one part and the marker behind it.
    async fn publish_part(
        self: &Arc<Self>,
        slot: &SlotId,
        object: &StagedObject,
        marker: Marker,
    ) -> Result<(), Error> {
        let key = &object.staged;
        let read = |error| failed(format!("read staged object {key}"), true, error);
        let found = self.store.get(key).await.map_err(read)?;
        let Some(found) = found else {
            let (slot, key) = (slot.clone(), key.clone());
            return Err(refusal(self.action(), Refusal::Missing { slot, key }));
        };
        let (inner, mutex, key) = (Arc::clone(self), self.slots.of(slot), key.clone());
        let written = tokio::task::spawn_blocking(move || {
            let records = staged::decode(&found.bytes)
                .map_err(|error| failed(format!("read staged object {key}"), false, error))?;
            let mut slot = lock(&mutex);
            // Out of the slot while it is at work: whatever ends this thread, what the producer knew
            // before is not believed afterwards.
            let Some(mut producer) = slot.producer.take() else {
                let gone = transaction::Error::Fenced {
                    action: "write rows",
                    id: key,
                };
                return Err(inner.failed(gone));
            };
            producer
                .commit(&records, marker, &*inner.watch)
                .map_err(|error| inner.failed(error))?;
            slot.committed = Some(Instant::now());
            slot.producer = Some(producer);
            Ok(())
        });
        written
            .await
            .unwrap_or_else(|error| Err(failed(self.action(), true, error)))
    }
}

/// Whether waiting may help: not after a defect of ours.
fn may_pass(error: &Error) -> bool {
    let is_panic = matches!(error, Error::Connector { source, .. } if source.is::<JoinError>());
    error.recovery() == Recovery::Restart && !is_panic
}

/// How a take-over ended.
enum Taken {
    Mine,
    Zombie(Option<Marker>),
    Vanished,
}

/// What a slot's owner begins with.
#[derive(Clone, Debug)]
struct Wanted {
    slot: SlotId,
    listed: Vec<StagedInterval>,
    /// The restored manifest's id; none: only one interval is known, the one to publish now.
    restored: Option<CheckpointId>,
}

impl Wanted {
    fn listed(&self) -> Listed<'_> {
        match (self.restored, self.listed.first()) {
            (None, Some(interval)) => Listed::One(interval),
            (newest, _) => Listed::All(&self.listed, newest.unwrap_or_default()),
        }
    }
}

#[async_trait]
impl Publisher for KafkaPublisher {
    async fn publish(&self, slot: &SlotId, interval: &StagedInterval) -> Result<(), Error> {
        let inner = &self.inner;
        let parts = u32::try_from(interval.objects.len()).unwrap_or(u32::MAX);
        loop {
            if !inner.is_sound(slot) {
                if inner.is_zombie() {
                    return Err(inner.zombie(slot, None));
                }
                let view = TopicView::look(&inner.lookup(), &inner.spec.config.topic).await?;
                let wanted = Wanted {
                    slot: slot.clone(),
                    listed: vec![interval.clone()],
                    restored: None,
                };
                inner.take_over_slot(&view, &wanted).await?;
            }
            let step = inner.step(slot, interval.id, parts)?;
            let next = step.and_then(|part| Some((part, interval.objects.get(part as usize)?)));
            let Some((part, object)) = next else {
                return Ok(());
            };
            let stored = inner.identity_of(object);
            inner.identity.check(stored.as_deref()).await?;
            if inner.is_zombie() {
                return Err(inner.zombie(slot, None));
            }
            let marker = after_part(interval.id, part, parts, inner.author());
            inner.publish_part(slot, object, marker).await?;
        }
    }

    async fn take_over(&self, slots: &[SlotTakeOver]) -> Result<(), Error> {
        let began = Instant::now();
        let mut tries_n = 0;
        loop {
            tries_n += 1;
            match self.try_take_over(slots).await {
                Err(error) if may_pass(&error) && began.elapsed() < PATIENCE => {
                    tell_waiting(tries_n, &error.with_causes(), "waiting for kafka");
                    tokio::time::sleep(PAUSE).await;
                }
                answer => return answer,
            }
        }
    }

    fn trouble(&self) -> Option<String> {
        lock(&self.inner.away).clone()
    }

    fn stop(&self) {
        self.inner.zombie.store(true, Ordering::Relaxed);
    }

    async fn retire_others(&self, needed: &BTreeSet<SlotId>) {
        let slots = self.inner.slots.unneeded(needed);
        if slots.is_empty() {
            return;
        }
        // A client waits for its own end. What was committed is remembered: see `take`.
        let dropped = tokio::task::spawn_blocking(move || {
            for (id, slot) in slots {
                let mut slot = lock(&slot);
                (slot.producer, slot.is_retired) = (None, true);
                tracing::info!(slot = %id, "slot retired: no subtask writes it, all of it is visible");
            }
        });
        let _ = dropped.await;
    }

    async fn discard_unlisted(&self, _: &[StagedInterval]) -> Result<(), Error> {
        // Staged objects lie in the job's store, where retention removes what no manifest lists.
        Ok(())
    }
}

impl KafkaPublisher {
    async fn try_take_over(&self, slots: &[SlotTakeOver]) -> Result<(), Error> {
        let inner = &self.inner;
        let looked = TopicView::look(&inner.lookup(), &inner.spec.config.topic).await;
        let away = looked.as_ref().err().filter(|error| may_pass(error));
        *lock(&inner.away) = away.map(Error::with_causes);
        let view = looked?;
        let wanted: Vec<Wanted> = slots
            .iter()
            .map(|slot| Wanted {
                slot: slot.slot.clone(),
                listed: slot.listed.clone(),
                restored: Some(slot.newest),
            })
            .collect();
        let all = wanted
            .iter()
            .map(|wanted| inner.take_over_slot(&view, wanted));
        futures::future::try_join_all(all).await?;
        Ok(())
    }
}

#[cfg(test)]
mod tests;
