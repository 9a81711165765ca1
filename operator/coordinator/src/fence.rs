//! Whether this coordinator is still the one.
//!
//! Owns: what it does to learn that it has a successor. Whoever took over has swapped the head, so a
//! swap of ours tells (C5). Commits swap it anyway; whoever has nothing to commit would never learn it:
//! it would wait for ever for what others say, and hold the task managers that its successor waits for.

use crate::coordinator::Coordinator;
use crate::head::Change;
use crate::status::Phase;

/// How long it waits for others, for slots, tasks, acknowledgements, publishes or a copy, without
/// looking.
const LOOK_EVERY_MS: u64 = 5_000;

/// How long when all is well and no checkpoint is due.
const CALM_LOOK_EVERY_MS: u64 = 60_000;

impl Coordinator {
    /// Writes the head if that was long ago.
    pub(crate) fn look_if_due(&mut self) {
        let every_ms = match self.phase {
            // What a start does next is a swap; one that ended does nothing.
            Phase::Starting | Phase::Ended => return,
            Phase::Running if self.in_flight.is_none() && !self.is_handing_over() => {
                CALM_LOOK_EVERY_MS
            }
            Phase::Deploying
            | Phase::Running
            | Phase::Stopping
            | Phase::Finishing
            | Phase::Recovering => LOOK_EVERY_MS,
        };
        if self.swapped_at_ms + every_ms <= self.now_ms && self.store.is_free() {
            self.swap(Change::Reserve);
        }
    }

    /// X2: somebody newer publishes: the head is looked at now. If it names nobody newer, the outside
    /// world is ahead of this store.
    pub(crate) fn on_taken_over_elsewhere(&mut self, reason: String) {
        if self.taken_over.is_none() {
            self.taken_over = Some(reason);
            self.forget_in_flight("a newer attempt publishes");
            self.swap(Change::Reserve);
        }
    }
}
