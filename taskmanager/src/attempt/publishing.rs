//! Making committed output visible.
//!
//! Owns: the publishers of an attempt's sinks, of each slot one interval at a time, and what is done with the
//! slots of dead attempts before the first row: fenced by their new owners (X4), unlisted output
//! removed by the first task manager.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex as StdMutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::future::BoxFuture;
use streamforge_connectors::registry as connectors;
use streamforge_core::ids::{CheckpointId, OperatorUid, SlotId, SubtaskIdx};
use streamforge_core::job_graph::OperatorKind;
use streamforge_core::manifest::StagedInterval;
use streamforge_core::messages::{Event, Progress};
use streamforge_engine::error::Error;
use streamforge_engine::sink::{Publisher, SlotTakeOver};
use streamforge_engine::staged::Staged;
use tokio::sync::{Mutex, mpsc};

use super::building::Building;
use crate::upload::failed;

/// How often people are told what a start waits for.
pub(super) const TOLD_EVERY: Duration = Duration::from_secs(1);

/// Makes intervals visible, of each slot one at a time: which of a sink's may go together is the
/// coordinator's to say (X5).
#[derive(Clone)]
pub struct Publishing {
    pub(super) publishers: Arc<BTreeMap<OperatorUid, Arc<dyn Publisher>>>,
    pub(super) staged: Arc<Staged>,
    events: mpsc::Sender<Event>,
    turns: Arc<StdMutex<BTreeMap<SlotId, Arc<Turn>>>>,
}

/// Of one slot. Notices are repeated until they are confirmed (C3): while a sink is away only the newest
/// of them waits (B1).
#[derive(Default)]
struct Turn {
    is_taken: Mutex<()>,
    waiting: StdMutex<Option<StagedInterval>>,
}

impl Turn {
    fn waiting(&self) -> MutexGuard<'_, Option<StagedInterval>> {
        // It is replaced whole.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn next(&self) -> Option<StagedInterval> {
        self.waiting().take()
    }
}

impl Publishing {
    pub(super) fn new(
        publishers: BTreeMap<OperatorUid, Arc<dyn Publisher>>,
        staged: Arc<Staged>,
        events: mpsc::Sender<Event>,
    ) -> Self {
        Self {
            publishers: Arc::new(publishers),
            staged,
            events,
            turns: Arc::default(),
        }
    }

    /// A checkpoint is committed: what was staged up to it is listed.
    pub fn on_committed(&self, id: CheckpointId) {
        self.staged.on_committed(id);
    }

    /// Lets go of slots that no subtask writes, once all of them is visible (X4).
    pub(super) fn retire_all_but(&self, subtasks: &BTreeSet<SubtaskIdx>) {
        for (sink, publisher) in self.publishers.iter() {
            let mut needed = self.staged.unpublished_slots(sink);
            needed.extend(subtasks.iter().map(|subtask| SlotId {
                sink: sink.clone(),
                slot: subtask.0,
            }));
            let publisher = Arc::clone(publisher);
            tokio::spawn(async move { publisher.retire_others(&needed).await });
        }
    }

    fn turn(&self, slot: &SlotId) -> Arc<Turn> {
        // An entry is added whole.
        let mut turns = self.turns.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(turns.entry(slot.clone()).or_default())
    }

    /// Publishes one interval and says how it went, and then what came meanwhile; while another of the
    /// slot is under way this is left to whoever is at that.
    pub async fn publish(&self, slot: SlotId, interval: StagedInterval) {
        let turn = self.turn(&slot);
        *turn.waiting() = Some(interval);
        // Looked at once more after the turn is over: it may have come at the last moment.
        while turn.waiting().is_some() {
            let Ok(_in_turn) = turn.is_taken.try_lock() else {
                return;
            };
            while let Some(interval) = turn.next() {
                self.publish_now(slot.clone(), interval).await;
            }
        }
    }

    async fn publish_now(&self, slot: SlotId, interval: StagedInterval) {
        let Some(publisher) = self.publishers.get(&slot.sink) else {
            return;
        };
        let event = match publisher.publish(&slot, &interval).await {
            Ok(()) => {
                self.staged.on_published(&slot, interval.id);
                Event::Published {
                    slot,
                    interval: interval.id,
                }
            }
            Err(error @ Error::TakenOver { .. }) => Event::TakenOver {
                reason: error.with_causes(),
            },
            // To try it again would never help, and rows would be staged until the store is full.
            Err(error @ Error::OutputReplaced { .. }) => failed(None, &error),
            Err(error) => Event::PublishFailed {
                slot,
                interval: interval.id,
                reason: error.with_causes(),
            },
        };
        let _ = self.events.send(event).await;
    }
}

pub(super) async fn open_publishers(
    building: &Building<'_>,
) -> Result<BTreeMap<OperatorUid, Arc<dyn Publisher>>, super::Error> {
    let mut publishers = BTreeMap::new();
    for (_, operator) in building.deployment.graph.operators() {
        let OperatorKind::Sink(spec) = &operator.kind else {
            continue;
        };
        let name = connectors::PublisherName {
            job: building.stamp.job.clone(),
            sink: operator.uid.clone(),
            generation: building.stamp.generation,
            epoch: building.stamp.epoch,
        };
        let surroundings = building.context.surroundings();
        let publisher = connectors::open_publisher(spec, &name, &surroundings)?;
        let Some(publisher) = publisher.map(Arc::<dyn Publisher>::from) else {
            continue;
        };
        let staged = building
            .deployment
            .restore
            .iter()
            .flat_map(|manifest| &manifest.staged);
        let listed: Vec<StagedInterval> = staged
            .filter(|slot| slot.slot.sink == operator.uid)
            .flat_map(|slot| slot.intervals.iter().cloned())
            .collect();
        let me = &building.context.me;
        if building.joins.is_some() {
            publishers.insert(operator.uid.clone(), publisher);
            continue; // others have restored; the slots of those that join are taken with them
        }
        if building.deployment.is_first(me) {
            let discard = || publisher.discard_unlisted(&listed);
            patiently(building.events, (&operator.uid, &*publisher), discard).await?;
        }
        let slots = SlotTakeOver::of(building.deployment, me, &operator.uid);
        let take_over = || publisher.take_over(&slots);
        patiently(building.events, (&operator.uid, &*publisher), take_over).await?;
        for SlotTakeOver { slot, listed, .. } in slots {
            building.staged.inherit(slot, listed);
        }
        publishers.insert(operator.uid.clone(), publisher);
    }
    Ok(publishers)
}

/// Does what must be done before the first row, however long the sink's outside system is away; people are
/// told of it. An attempt that failed over it would be begun anew, until no restart is left.
async fn patiently<'a>(
    events: &mpsc::Sender<Event>,
    (sink, publisher): (&OperatorUid, &dyn Publisher),
    begin: impl Fn() -> BoxFuture<'a, Result<(), Error>>,
) -> Result<(), Error> {
    let mut trying = begin();
    loop {
        let tried = tokio::time::timeout(TOLD_EVERY, &mut trying).await;
        match (tried, publisher.trouble()) {
            (Ok(Err(error)), Some(_)) => {
                tracing::warn!(sink = sink.0, error = error.with_causes(), "sink waits");
                trying = begin();
            }
            (Ok(tried), _) => return tried,
            (Err(_), Some(trouble)) => {
                let progress = Progress {
                    held_back_by: BTreeMap::from([(sink.clone(), trouble)]),
                    ..Progress::default()
                };
                let _ = events.send(Event::Progress(Box::new(progress))).await;
            }
            (Err(_), None) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use async_trait::async_trait;
    use futures::FutureExt as _;
    use streamforge_core::manifest::StagedObject;

    use super::*;

    /// Says which slots it was told to keep.
    struct Kept(mpsc::UnboundedSender<BTreeSet<SlotId>>);

    #[async_trait]
    impl Publisher for Kept {
        async fn publish(&self, _: &SlotId, _: &StagedInterval) -> Result<(), Error> {
            Ok(())
        }

        async fn retire_others(&self, needed: &BTreeSet<SlotId>) {
            self.0.send(needed.clone()).expect("the test waits");
        }

        async fn discard_unlisted(&self, _: &[StagedInterval]) -> Result<(), Error> {
            Ok(())
        }
    }

    fn slot(number: u32) -> SlotId {
        SlotId {
            sink: OperatorUid("out".to_owned()),
            slot: number,
        }
    }

    fn interval(n: u64) -> StagedInterval {
        StagedInterval {
            id: CheckpointId::from_stored(n),
            objects: vec![StagedObject {
                staged: String::new(),
                published: String::new(),
                bytes: 1,
                rows: 1,
                detail: String::new(),
            }],
        }
    }

    /// Publishes nothing before it is let.
    struct Away {
        began: mpsc::UnboundedSender<CheckpointId>,
        back: tokio::sync::Semaphore,
    }

    #[async_trait]
    impl Publisher for Away {
        async fn publish(&self, _: &SlotId, interval: &StagedInterval) -> Result<(), Error> {
            self.began.send(interval.id).expect("the test waits");
            self.back.acquire().await.expect("it is open").forget();
            Ok(())
        }

        async fn retire_others(&self, _: &BTreeSet<SlotId>) {}

        async fn discard_unlisted(&self, _: &[StagedInterval]) -> Result<(), Error> {
            Ok(())
        }
    }

    #[tokio::test]
    async fn while_a_sink_is_away_one_notice_of_a_slot_waits_b1_c3() {
        let (began, mut begins) = mpsc::unbounded_channel();
        let back = tokio::sync::Semaphore::new(0);
        let away = Arc::new(Away { began, back });
        let publisher: Arc<dyn Publisher> = Arc::<Away>::clone(&away);
        let publishers = BTreeMap::from([(OperatorUid("out".to_owned()), publisher)]);
        let (events, mut said) = mpsc::channel(8);
        let publishing = Publishing::new(publishers, Arc::default(), events);
        let id = CheckpointId::from_stored;
        let first = publishing.clone();
        let first = tokio::spawn(async move { first.publish(slot(0), interval(1)).await });
        assert_eq!(begins.recv().await, Some(id(1)));

        // An hour of repeated notices, and one of the next interval.
        for n in [vec![1; 1_800], vec![2]].concat() {
            let noticed = publishing.publish(slot(0), interval(n));
            assert!(noticed.now_or_never().is_some(), "it is left to the first");
        }
        // Another slot has a turn of its own.
        let other = publishing.publish(slot(1), interval(1));
        assert!(other.now_or_never().is_none());
        assert_eq!(begins.recv().await, Some(id(1)));

        away.back.add_permits(2);
        first.await.expect("it does not panic");
        assert_eq!(begins.try_recv(), Ok(id(2)));
        assert!(begins.try_recv().is_err(), "nothing else was waiting");
        for n in [1, 2] {
            let published = Event::Published {
                slot: slot(0),
                interval: id(n),
            };
            assert_eq!(said.recv().await, Some(published));
        }
    }

    #[tokio::test]
    async fn slot_of_a_subtask_that_left_retires_with_its_last_interval_x4() {
        let (kept, mut told) = mpsc::unbounded_channel();
        let publisher: Arc<dyn Publisher> = Arc::new(Kept(kept));
        let publishers = BTreeMap::from([(OperatorUid("out".to_owned()), publisher)]);
        let staged = Arc::new(Staged::default());
        let (events, mut said) = mpsc::channel(8);
        let publishing = Publishing::new(publishers, Arc::clone(&staged), events);
        // Slot 1 was written by a subtask that left, slot 2 was taken over from a dead attempt.
        staged.add(slot(0), interval(3));
        staged.add(slot(1), interval(3));
        staged.inherit(slot(2), vec![interval(2)]);
        let subtasks = BTreeSet::from([SubtaskIdx(0)]);

        publishing.retire_all_but(&subtasks);
        let all = BTreeSet::from([slot(0), slot(1), slot(2)]);
        assert_eq!(told.recv().await, Some(all));

        for (of, n) in [(0, 3), (1, 3), (2, 2)] {
            publishing.publish(slot(of), interval(n)).await;
            assert!(matches!(said.recv().await, Some(Event::Published { .. })));
        }
        publishing.retire_all_but(&subtasks);
        assert_eq!(told.recv().await, Some(BTreeSet::from([slot(0)])));
    }

    /// Nobody answers it for a while, and what it does takes longer than people wait for a word.
    struct Unreachable {
        tries_left: StdMutex<u32>,
    }

    #[async_trait]
    impl Publisher for Unreachable {
        async fn publish(&self, _: &SlotId, _: &StagedInterval) -> Result<(), Error> {
            Ok(())
        }

        fn trouble(&self) -> Option<String> {
            let left = *self.tries_left.lock().expect("it does not panic");
            (left > 0).then(|| "nobody answers".to_owned())
        }

        async fn retire_others(&self, _: &BTreeSet<SlotId>) {}

        async fn discard_unlisted(&self, _: &[StagedInterval]) -> Result<(), Error> {
            let mut left = self.tries_left.lock().expect("it does not panic");
            *left -= 1;
            Err(Error::Connector {
                action: "list".to_owned(),
                retry: true,
                source: "no answer".into(),
            })
        }
    }

    #[tokio::test]
    async fn what_an_outside_system_does_not_answer_is_tried_until_it_is_refused() {
        let publisher = Unreachable {
            tries_left: StdMutex::new(20),
        };
        let (events, _said) = mpsc::channel(8);
        let sink = OperatorUid("out".to_owned());

        let refused = patiently(&events, (&sink, &publisher), || {
            publisher.discard_unlisted(&[])
        });

        assert!(refused.await.is_err(), "it has no trouble any more");
        assert_eq!(*publisher.tries_left.lock().expect("it does not panic"), 0);
    }
}
