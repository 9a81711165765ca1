//! Making committed output visible: by renames, or as a Kafka sink does it.
//!
//! Owns: the calls of `connectors/src/kafka/publisher.rs` and `transaction.rs`, one at a time and in
//! their order; the decisions between them are the real ones of `kafka::marker`. Start at:
//! [`KafkaSlots::advance`].

use std::collections::{BTreeMap, BTreeSet};

use streamforge_connectors::kafka::marker::{
    Author, Doubt, Listed, Marker, Step, TakeOver, after_part, next_step, take_over,
};
use streamforge_connectors::kafka::publisher::slot_id;
use streamforge_connectors::kafka::transaction::ends::Ends;
use streamforge_core::ids::{JobId, SlotId};
use streamforge_core::manifest::StagedInterval;
use streamforge_core::messages::{Event, Stamp};
use streamforge_engine::sink::SlotTakeOver;
use streamforge_store::MemoryStore;

use crate::broker::{Answer, Broker, Fenced, Offsets, Producer};

/// How often a take-over is tried again before the attempt ends.
const TRIES_N: usize = 5;

/// Why something is not published, or not taken over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// It may go better another time.
    Again(String),
    /// It will not, by itself.
    Refused(String),
    /// Somebody newer publishes (X2).
    TakenOver(String),
}

/// How far the publish of one interval is.
#[derive(Clone, Debug, Default)]
pub enum Stage {
    /// Nothing is done.
    #[default]
    Begin,
    /// A new producer is to fence the others.
    Fence,
    /// They are fenced; the marker is to be read.
    Read(Producer),
    /// This marker is to be written before anything else.
    Mark(Begun, Marker),
    /// The marker says what is next.
    Next,
    /// Rows of this part lie where an earlier transaction has no end: they are to be aborted, and that
    /// one with them (X7).
    Orphans(Begun, u32, i32),
    /// This part is to be sent.
    Send(Begun, u32),
    /// The rows of this part are sent and lie there, the marker is not.
    Sent(Begun, u32, Offsets),
}

/// A producer that has fenced the others, and what it found.
#[derive(Clone, Debug)]
pub struct Begun {
    producer: Producer,
    marker: Marker,
    ends: Ends,
    suspects: BTreeSet<i32>,
}

#[derive(Debug, Default)]
struct Slot {
    producer: Option<Begun>,
    committed: bool,
}

/// The slots of one sink, as one attempt in one task manager publishes them.
#[derive(Debug)]
pub struct KafkaSlots {
    author: Author,
    job: JobId,
    slots: BTreeMap<SlotId, Slot>,
    zombie: bool,
}

impl Trouble {
    /// Of something that must be done before an attempt can begin.
    pub fn event(self) -> Event {
        let (cause, retry) = match self {
            Trouble::TakenOver(reason) => return Event::TakenOver { reason },
            Trouble::Again(cause) => (cause, true),
            Trouble::Refused(cause) => (cause, false),
        };
        Event::Failed {
            task: None,
            cause,
            retry,
        }
    }
}

impl KafkaSlots {
    /// Nothing is taken over.
    pub fn new(stamp: &Stamp) -> Self {
        Self {
            author: Author {
                generation: stamp.generation,
                epoch: stamp.epoch,
                table: 0,
            },
            job: stamp.job.clone(),
            slots: BTreeMap::new(),
            zombie: false,
        }
    }

    fn id(&self, slot: &SlotId) -> String {
        slot_id(&self.job, &slot.sink, slot.slot)
    }

    fn read(&self, broker: &Broker, slot: &SlotId) -> Option<(Marker, Ends)> {
        let (offset, metadata) = broker.marker(&self.id(slot))?;
        let marker = Marker::decode(offset, metadata).expect("only we commit to this group");
        Some((marker, Ends::decode(metadata)))
    }

    fn taken_over(&mut self, slot: &SlotId) -> Trouble {
        self.zombie = true;
        Trouble::TakenOver(format!("{slot} is published by somebody newer"))
    }

    /// Before the first row: fences whoever published these slots before (X2, X4).
    pub fn take_over(
        &mut self,
        broker: &mut Broker,
        slots: &[SlotTakeOver],
    ) -> Result<(), Trouble> {
        for wanted in slots {
            let mut tries = 0..TRIES_N;
            while let Err(trouble) = self.take_over_slot(broker, wanted) {
                let again = matches!(trouble, Trouble::Again(_));
                if !again || tries.next().is_none() {
                    return Err(trouble);
                }
            }
        }
        Ok(())
    }

    fn take_over_slot(
        &mut self,
        broker: &mut Broker,
        wanted: &SlotTakeOver,
    ) -> Result<(), Trouble> {
        let listed = Listed::All(&wanted.listed, wanted.newest);
        let mut stage = Stage::Begin;
        while !matches!(stage, Stage::Next) {
            stage = self.go_on(broker, &wanted.slot, listed, stage)?;
        }
        Ok(())
    }

    /// One call of a publish. `true`: the interval is visible, all of it.
    pub fn advance(
        &mut self,
        (broker, store): (&mut Broker, &MemoryStore),
        (slot, interval): (&SlotId, &StagedInterval),
        stage: &mut Stage,
    ) -> Result<bool, Trouble> {
        *stage = match std::mem::take(stage) {
            Stage::Next => match self.next(slot, interval)? {
                None => return Ok(true),
                Some(part) => self.take_out(store, (slot, interval), part)?,
            },
            Stage::Orphans(mut begun, part, partition) => {
                broker.abort(&begun.producer).map_err(fenced)?;
                begun.suspects.remove(&partition);
                Stage::Send(begun, part)
            }
            Stage::Send(begun, part) => self.send(broker, interval, begun, part)?,
            Stage::Sent(mut begun, part, lie_at) => {
                let parts = u32::try_from(interval.objects.len()).unwrap_or(u32::MAX);
                let marker = after_part(interval.id, part, parts, self.author);
                begun.ends = begun.ends.after(&lie_at);
                self.commit(broker, slot, begun, marker)?;
                Stage::Next
            }
            other => self.go_on(broker, slot, Listed::One(interval), other)?,
        };
        Ok(false)
    }

    /// The steps that lead to a producer of our own.
    fn go_on(
        &mut self,
        broker: &mut Broker,
        slot: &SlotId,
        listed: Listed<'_>,
        stage: Stage,
    ) -> Result<Stage, Trouble> {
        let me = self.author;
        match stage {
            Stage::Begin => {
                let entry = self.slots.entry(slot.clone()).or_default();
                let (has, committed) = (entry.producer.is_some(), entry.committed);
                if self.zombie {
                    return Err(self.taken_over(slot));
                }
                if has {
                    return Ok(Stage::Next);
                }
                // A fence of ours that comes too late would throw a newer attempt out for a moment.
                let found = self.read(broker, slot).filter(|_| committed);
                if found.is_some_and(|(found, _)| me.is_older_than(&found.author)) {
                    return Err(self.taken_over(slot));
                }
                Ok(Stage::Fence)
            }
            Stage::Fence => Ok(Stage::Read(broker.init(&self.id(slot)))),
            Stage::Read(producer) => {
                let open = broker.open_partitions();
                let (found, ends) = self.read(broker, slot).unzip();
                let ends = ends.unwrap_or_default();
                let suspects = ends.not_committed(&open);
                match take_over(found, listed, (me, Doubt::Open)) {
                    TakeOver::Write(marker) => {
                        let begun = Begun {
                            producer,
                            marker,
                            ends,
                            suspects,
                        };
                        Ok(Stage::Mark(begun, marker))
                    }
                    TakeOver::Zombie(_) => Err(self.taken_over(slot)),
                    TakeOver::Vanished { oldest, listed_n } => Err(Trouble::Refused(format!(
                        "the marker of {slot} is gone, {listed_n} intervals from {oldest} on are listed"
                    ))),
                }
            }
            Stage::Mark(begun, marker) => {
                self.commit(broker, slot, begun, marker)?;
                Ok(Stage::Next)
            }
            Stage::Next | Stage::Orphans(..) | Stage::Send(..) | Stage::Sent(..) => Ok(stage),
        }
    }

    /// X1: the part that is to be written next.
    fn next(&self, slot: &SlotId, interval: &StagedInterval) -> Result<Option<u32>, Trouble> {
        let slot_state = self.slots.get(slot);
        let Some(begun) = slot_state.and_then(|it| it.producer.as_ref()) else {
            return Err(Trouble::Again("the producer was thrown away".to_owned()));
        };
        let marker = &begun.marker;
        let parts = u32::try_from(interval.objects.len()).unwrap_or(u32::MAX);
        match next_step(marker, interval.id, parts) {
            Step::Done => Ok(None),
            Step::Publish(part) => Ok(Some(part)),
            step => panic!("{slot}, interval {}: {step:?} (X1)", interval.id),
        }
    }

    /// The producer leaves the slot while it is at work: whatever ends this, it is not believed afterwards.
    fn take_out(
        &mut self,
        store: &MemoryStore,
        (slot, interval): (&SlotId, &StagedInterval),
        part: u32,
    ) -> Result<Stage, Trouble> {
        let Some(object) = interval.objects.get(part as usize) else {
            return Ok(Stage::Next);
        };
        let found = store.get_now(&object.staged);
        let found = found.map_err(|error| Trouble::Again(error.to_string()))?;
        if found.is_none() {
            let key = &object.staged;
            return Err(Trouble::Refused(format!("{key} is not in the store")));
        }
        let taken = self.slots.get_mut(slot).and_then(|it| it.producer.take());
        let begun =
            taken.ok_or_else(|| Trouble::Again("the producer was thrown away".to_owned()))?;
        Ok(Stage::Send(begun, part))
    }

    fn send(
        &mut self,
        broker: &mut Broker,
        interval: &StagedInterval,
        begun: Begun,
        part: u32,
    ) -> Result<Stage, Trouble> {
        let Some(object) = interval.objects.get(part as usize) else {
            return Ok(Stage::Next);
        };
        let (partition, offset) = broker
            .send(&begun.producer, &object.staged)
            .map_err(fenced)?;
        if begun.suspects.contains(&partition) {
            return Ok(Stage::Orphans(begun, part, partition));
        }
        Ok(Stage::Sent(begun, part, [(partition, offset)].into()))
    }

    fn commit(
        &mut self,
        broker: &mut Broker,
        slot: &SlotId,
        mut begun: Begun,
        marker: Marker,
    ) -> Result<(), Trouble> {
        let offset = i64::try_from(marker.interval.get()).unwrap_or(i64::MAX);
        let metadata = format!("{marker}{}", begun.ends.encode());
        broker
            .mark(&begun.producer, offset, metadata)
            .map_err(fenced)?;
        match broker.commit(&begun.producer).map_err(fenced)? {
            Answer::None => Err(Trouble::Again("the outcome is not known".to_owned())),
            Answer::Done => {
                begun.marker = marker;
                let slot = self.slots.entry(slot.clone()).or_default();
                slot.producer = Some(begun);
                slot.committed = true;
                Ok(())
            }
        }
    }
}

fn fenced(Fenced: Fenced) -> Trouble {
    Trouble::Again("fenced by another producer".to_owned())
}
