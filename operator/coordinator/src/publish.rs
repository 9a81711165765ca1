//! What is committed and not yet visible.
//!
//! Owns: per sink slot every staged interval of the committed manifest that is not known as
//! published, and which of them may be published now.
//!
//! Invariant C3: a notice is repeated until it is confirmed, by a new coordinator too, because the
//! manifest lists what is not confirmed, oldest first. Invariant X5: a sink's interval n + 1 is
//! released only after *all* its slots confirmed n, so a key that changed slots keeps its order.

use std::collections::{BTreeMap, BTreeSet};

use streamforge_core::ids::{CheckpointId, OperatorUid, SlotId};
use streamforge_core::manifest::{Manifest, SlotState, StagedInterval};

/// After this long without a confirmation a notice is repeated.
const REPEAT_MS: u64 = 2_000;

/// After a failed publish the notice is repeated sooner.
const REPEAT_AFTER_FAILURE_MS: u64 = 500;

/// Slots of one interval that have not confirmed it.
type Waiting = BTreeMap<SlotId, StagedInterval>;

/// What is to be published: the newest manifest, and intervals of slots.
pub type Notice = (CheckpointId, Vec<(SlotId, StagedInterval)>);

/// What is committed and not yet visible.
#[derive(Debug, Default)]
pub struct Publisher {
    /// The manifest that committed all this.
    manifest: CheckpointId,
    sinks: BTreeMap<OperatorUid, BTreeMap<CheckpointId, Waiting>>,
    /// Per slot, the newest interval known as published; intervals go in ascending order.
    confirmed: BTreeMap<SlotId, CheckpointId>,
    /// Per sink, which interval was noticed, and when that is due again.
    sent: BTreeMap<OperatorUid, (CheckpointId, u64)>,
    /// Per slot, how often in a row it could not be published in this attempt.
    failed_n: BTreeMap<SlotId, u32>,
}

impl Publisher {
    /// A manifest is committed (or restored): from now on its list is what is to be published.
    pub fn on_committed(&mut self, manifest: &Manifest) {
        self.manifest = manifest.id;
        self.sinks.clear();
        for state in &manifest.staged {
            for interval in &state.intervals {
                if self.is_confirmed(&state.slot, interval.id) || interval.objects.is_empty() {
                    continue;
                }
                let sink = self.sinks.entry(state.slot.sink.clone()).or_default();
                let waiting = sink.entry(interval.id).or_default();
                waiting.insert(state.slot.clone(), interval.clone());
            }
        }
    }

    /// A new attempt begins: whoever was told anything is gone.
    pub fn forget_sent(&mut self) {
        self.sent.clear();
        self.failed_n.clear();
    }

    /// A slot's interval is visible. True: it was waited for.
    pub fn on_published(&mut self, slot: &SlotId, interval: CheckpointId) -> bool {
        self.failed_n.remove(slot);
        let Some(sink) = self.sinks.get_mut(&slot.sink) else {
            return false;
        };
        let Some(waiting) = sink.get_mut(&interval) else {
            return false;
        };
        if waiting.remove(slot).is_none() {
            return false;
        }
        if waiting.is_empty() {
            sink.remove(&interval);
        }
        if sink.is_empty() {
            self.sinks.remove(&slot.sink);
        }
        let confirmed = self.confirmed.entry(slot.clone()).or_default();
        *confirmed = interval.max(*confirmed);
        true
    }

    /// A slot's interval could not be made visible: it stays listed and is noticed again soon.
    /// Returns how often in a row.
    pub fn on_publish_failed(&mut self, now_ms: u64, slot: &SlotId) -> u32 {
        if let Some((_, again_at_ms)) = self.sent.get_mut(&slot.sink) {
            *again_at_ms = (now_ms + REPEAT_AFTER_FAILURE_MS).min(*again_at_ms);
        }
        let failed_n = self.failed_n.entry(slot.clone()).or_default();
        *failed_n = failed_n.saturating_add(1);
        *failed_n
    }

    /// The notice that is due now, if any: of every sink the oldest interval that waits (X5).
    pub fn notice(&mut self, now_ms: u64) -> Option<Notice> {
        let mut slots = Vec::new();
        for (sink, intervals) in &self.sinks {
            let Some((id, waiting)) = intervals.first_key_value() else {
                continue;
            };
            let due = self
                .sent
                .get(sink)
                .is_none_or(|(sent, again_at_ms)| sent != id || *again_at_ms <= now_ms);
            if due {
                self.sent.insert(sink.clone(), (*id, now_ms + REPEAT_MS));
                slots.extend(
                    waiting
                        .iter()
                        .map(|(slot, staged)| (slot.clone(), staged.clone())),
                );
            }
        }
        (!slots.is_empty()).then_some((self.manifest, slots))
    }

    /// What the next manifest lists: all that is listed and not confirmed, and what was staged
    /// since; per slot oldest first, each interval once (C3).
    pub fn list(
        &self,
        staged: impl IntoIterator<Item = (SlotId, StagedInterval)>,
    ) -> Vec<SlotState> {
        let listed = self.sinks.values().flat_map(BTreeMap::values).flatten();
        let listed = listed.map(|(slot, interval)| (slot.clone(), interval.clone()));
        let mut slots: BTreeMap<SlotId, BTreeMap<CheckpointId, StagedInterval>> = BTreeMap::new();
        for (slot, interval) in listed.chain(staged) {
            if self.is_confirmed(&slot, interval.id) || interval.objects.is_empty() {
                continue;
            }
            slots
                .entry(slot)
                .or_default()
                .entry(interval.id)
                .or_insert(interval);
        }
        let state =
            |(slot, intervals): (SlotId, BTreeMap<CheckpointId, StagedInterval>)| SlotState {
                slot,
                intervals: intervals.into_values().collect(),
            };
        slots.into_iter().map(state).collect()
    }

    /// Slots that have output to be published.
    #[must_use]
    pub fn unpublished_slots(&self) -> BTreeSet<u32> {
        let waiting = self.sinks.values().flat_map(BTreeMap::values);
        waiting
            .flat_map(|it| it.keys().map(|slot| slot.slot))
            .collect()
    }

    /// Whether everything up to this interval is visible.
    #[must_use]
    pub fn is_published_to(&self, id: CheckpointId) -> bool {
        let oldest = |sink: &BTreeMap<CheckpointId, Waiting>| sink.keys().next().copied();
        self.sinks.values().filter_map(oldest).all(|it| it > id)
    }

    /// How many intervals the sink that is most behind has to publish, that under way included.
    #[must_use]
    pub fn intervals_n(&self) -> usize {
        let sinks = self.sinks.values();
        sinks.map(BTreeMap::len).max().unwrap_or_default()
    }

    /// How many intervals of slots wait to be published.
    #[must_use]
    pub fn unpublished_n(&self) -> usize {
        self.sinks
            .values()
            .flat_map(BTreeMap::values)
            .map(BTreeMap::len)
            .sum()
    }

    fn is_confirmed(&self, slot: &SlotId, interval: CheckpointId) -> bool {
        self.confirmed
            .get(slot)
            .is_some_and(|confirmed| interval <= *confirmed)
    }
}
