//! Two task managers that cannot reach each other although both reach the coordinator.
//!
//! Owns: which pairs broke, and who has no place for a while because of it. Invariant B2: a break ends
//! the epoch; a pair that breaks again costs one of the two its place, or the job would begin the
//! same attempt again and again.

use std::collections::BTreeMap;

use streamforge_core::messages::TaskManagerId;

/// Breaks of one pair further apart than this have nothing to do with each other.
const AGAIN_WITHIN_MS: u64 = 60_000;

/// How long one of a broken pair has no place.
const EXCLUDED_MS: u64 = 60_000;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Channels {
    broke_at_ms: BTreeMap<(TaskManagerId, TaskManagerId), u64>,
    excluded_until_ms: BTreeMap<TaskManagerId, u64>,
}

impl Channels {
    /// A channel between these two broke; both ends may say so of one break.
    pub(crate) fn on_broke(&mut self, now_ms: u64, one: &TaskManagerId, other: &TaskManagerId) {
        let pair = (one.min(other).clone(), one.max(other).clone());
        let before = self.broke_at_ms.insert(pair.clone(), now_ms);
        let again = before.is_some_and(|at_ms| now_ms.saturating_sub(at_ms) < AGAIN_WITHIN_MS);
        if !again {
            return;
        }
        // Whoever has trouble with others, too, is the one; else the later name.
        let troubles = |id: &TaskManagerId| {
            let pairs = self.broke_at_ms.keys();
            pairs.filter(|(a, b)| a == id || b == id).count()
        };
        let loser = if troubles(&pair.0) > troubles(&pair.1) {
            pair.0
        } else {
            pair.1
        };
        self.broke_at_ms
            .retain(|(a, b), _| *a != loser && *b != loser);
        self.excluded_until_ms.insert(loser, now_ms + EXCLUDED_MS);
    }

    /// Its session is over: that is why its channels broke.
    pub(crate) fn on_lost(&mut self, id: &TaskManagerId) {
        self.broke_at_ms.retain(|(a, b), _| a != id && b != id);
        self.excluded_until_ms.remove(id);
    }

    pub(crate) fn excludes(&self, now_ms: u64, id: &TaskManagerId) -> bool {
        let until_ms = self.excluded_until_ms.get(id);
        until_ms.is_some_and(|until_ms| now_ms < *until_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(name: &str) -> TaskManagerId {
        let name = name.to_owned();
        TaskManagerId { name, nonce: 1 }
    }

    #[test]
    fn pair_that_breaks_again_costs_one_of_the_two_its_place_for_a_while_b2() {
        let mut channels = Channels::default();
        channels.on_broke(1_000, &id("a"), &id("b"));
        assert!(!channels.excludes(1_000, &id("b")), "once is nothing");

        channels.on_broke(5_000, &id("b"), &id("a"));

        assert!(channels.excludes(5_000, &id("b")));
        assert!(!channels.excludes(5_000, &id("a")));
        assert!(!channels.excludes(65_000, &id("b")), "it may try again");
    }

    #[test]
    fn who_has_trouble_with_others_too_is_the_one() {
        let mut channels = Channels::default();
        channels.on_broke(1_000, &id("a"), &id("c"));
        channels.on_broke(2_000, &id("a"), &id("b"));

        channels.on_broke(3_000, &id("a"), &id("b"));

        assert!(channels.excludes(3_000, &id("a")));
        assert!(!channels.excludes(3_000, &id("b")));
    }

    #[test]
    fn break_of_a_dead_one_is_not_held_against_the_pair() {
        let mut channels = Channels::default();
        channels.on_broke(1_000, &id("a"), &id("b"));
        channels.on_lost(&id("b"));

        channels.on_broke(2_000, &id("a"), &id("b"));

        assert!(!channels.excludes(2_000, &id("a")) && !channels.excludes(2_000, &id("b")));
    }

    #[test]
    fn breaks_far_apart_have_nothing_to_do_with_each_other() {
        let mut channels = Channels::default();
        channels.on_broke(1_000, &id("a"), &id("b"));

        channels.on_broke(61_000, &id("a"), &id("b"));

        assert!(!channels.excludes(61_000, &id("b")));
    }
}
