//! A publisher's slots.
//!
//! Owns: which there are, each behind a lock of its own, and closing their producers without making anybody
//! wait: that of the next attempt fences them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use streamforge_core::ids::SlotId;

use crate::kafka::keep::close_beside;
use crate::kafka::transaction::SlotProducer;

/// One slot: its producer while that is sound.
#[derive(Default)]
pub(super) struct Slot {
    pub producer: Option<SlotProducer>,
    /// When its marker was written last, by us.
    pub committed: Option<Instant>,
    /// Nobody needs it any more.
    pub is_retired: bool,
}

impl Slot {
    /// Whether it is ours to keep a marker of.
    fn is_kept(&self) -> bool {
        self.committed.is_some() && !self.is_retired
    }

    /// Whether nothing was written for so long.
    pub fn is_idle(&self, after: Duration) -> bool {
        self.is_kept() && self.committed.is_some_and(|at| at.elapsed() >= after)
    }
}

/// See the module.
#[derive(Default)]
pub(super) struct Slots(Mutex<BTreeMap<SlotId, Arc<Mutex<Slot>>>>);

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What a panic left half done is a producer, and that is thrown away.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether a slot is not at work, and this is so.
fn rests(slot: &Mutex<Slot>, is_so: impl Fn(&Slot) -> bool) -> bool {
    match slot.try_lock() {
        Ok(slot) => is_so(&slot),
        Err(TryLockError::Poisoned(slot)) => is_so(&slot.into_inner()), // as in `lock`
        Err(TryLockError::WouldBlock) => false,
    }
}

impl Slots {
    /// The slot of this id.
    pub fn of(&self, id: &SlotId) -> Arc<Mutex<Slot>> {
        Arc::clone(lock(&self.0).entry(id.clone()).or_default())
    }

    /// Those of which nothing was written for so long, and that are not at work.
    pub fn idle(&self, after: Duration) -> Vec<SlotId> {
        let is_idle = |slot: &Mutex<Slot>| rests(slot, |it| it.is_idle(after));
        let slots = lock(&self.0);
        let idle = slots.iter().filter(|(_, slot)| is_idle(slot));
        idle.map(|(id, _)| id.clone()).collect()
    }

    /// Those kept that are not among the needed ones and are not at work.
    pub fn unneeded(&self, needed: &BTreeSet<SlotId>) -> Vec<(SlotId, Arc<Mutex<Slot>>)> {
        let is_kept = |slot: &Mutex<Slot>| rests(slot, Slot::is_kept);
        let slots = lock(&self.0);
        let unneeded = slots
            .iter()
            .filter(|(id, slot)| !needed.contains(*id) && is_kept(slot));
        unneeded
            .map(|(id, slot)| (id.clone(), Arc::clone(slot)))
            .collect()
    }
}

impl Drop for Slots {
    fn drop(&mut self) {
        let slots = std::mem::take(&mut *lock(&self.0));
        if !slots.is_empty() {
            close_beside(slots);
        }
    }
}
