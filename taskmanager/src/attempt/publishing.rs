//! Making committed output visible.
//!
//! Owns: the publishers of an attempt's sinks, of each slot one interval at a time, and what is done with the
//! slots of dead attempts before the first row: fenced by their new owners (X4), unlisted output
//! removed by the first task manager.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex as StdMutex, PoisonError};

use streamforge_connectors::registry as connectors;
use streamforge_core::ids::{CheckpointId, OperatorUid, SlotId};
use streamforge_core::job_graph::OperatorKind;
use streamforge_core::manifest::StagedInterval;
use streamforge_core::messages::Event;
use streamforge_engine::error::Error;
use streamforge_engine::sink::{Publisher, SlotTakeOver};
use streamforge_engine::staged::Staged;
use tokio::sync::{Mutex, mpsc};

use super::building::Building;

/// Makes intervals visible, of each slot one at a time: which of a sink's may go together is the
/// coordinator's to say (X5).
#[derive(Clone)]
pub struct Publishing {
    pub(super) publishers: Arc<BTreeMap<OperatorUid, Box<dyn Publisher>>>,
    pub(super) staged: Arc<Staged>,
    events: mpsc::Sender<Event>,
    turns: Arc<StdMutex<BTreeMap<SlotId, Arc<Mutex<()>>>>>,
}

impl Publishing {
    pub(super) fn new(
        publishers: BTreeMap<OperatorUid, Box<dyn Publisher>>,
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

    fn turn(&self, slot: &SlotId) -> Arc<Mutex<()>> {
        // An entry is added whole.
        let mut turns = self.turns.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(turns.entry(slot.clone()).or_default())
    }

    /// Publishes one interval and says how it went.
    pub async fn publish(&self, slot: SlotId, interval: StagedInterval) {
        let turn = self.turn(&slot);
        let _in_turn = turn.lock().await;
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
) -> Result<BTreeMap<OperatorUid, Box<dyn Publisher>>, super::Error> {
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
        let Some(publisher) = publisher else { continue };
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
            publisher.discard_unlisted(&listed).await?;
        }
        let slots = SlotTakeOver::of(building.deployment, me, &operator.uid);
        publisher.take_over(&slots).await?;
        for SlotTakeOver { slot, listed, .. } in slots {
            building.staged.inherit(slot, listed);
        }
        publishers.insert(operator.uid.clone(), publisher);
    }
    Ok(publishers)
}
