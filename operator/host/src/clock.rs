//! The host's clock and its only source of randomness.
//!
//! Owns: milliseconds since the epoch that never go back, and seeds. Everything else gets both
//! through the door.

use std::hash::{BuildHasher, RandomState};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Milliseconds since the epoch; steady, even when the system's clock is set.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    epoch_at_start: Duration,
    start: Instant,
}

impl Clock {
    pub(crate) fn start() -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        Self {
            epoch_at_start: since.unwrap_or_default(),
            start: Instant::now(),
        }
    }

    pub(crate) fn now_ms(&self) -> u64 {
        let now = self.epoch_at_start + self.start.elapsed();
        u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
    }
}

/// A number that no other process has.
pub(crate) fn seed() -> u64 {
    // The standard hasher's keys are the system's randomness.
    RandomState::new().hash_one((std::process::id(), SystemTime::now()))
}
