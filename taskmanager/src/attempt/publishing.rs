//! Making committed output visible.
//!
//! Owns: the publishers of an attempt's sinks, of each slot one interval at a time, and what is done with the
//! slots of dead attempts before the first row: fenced by their new owners (X4), unlisted output
//! removed by the first task manager.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
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
    is_over: Arc<AtomicBool>,
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
            is_over: Arc::default(),
        }
    }

    /// The attempt is over: what is under way may end, nothing is begun any more. What waits stays listed
    /// in the manifest (C3), and is the next attempt's.
    pub fn stop(&self) {
        self.is_over.store(true, Ordering::Relaxed);
        self.publishers.values().for_each(|it| it.stop());
    }

    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
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
        if self.is_over() {
            return;
        }
        let event = match publisher.publish(&slot, &interval).await {
            Ok(()) => {
                self.staged.on_published(&slot, interval.id);
                Event::Published {
                    slot,
                    interval: interval.id,
                }
            }
            Err(_) if self.is_over() => return, // its successor has taken the slot over, or will
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
mod tests;
