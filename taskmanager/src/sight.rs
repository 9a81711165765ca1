//! Whether this task manager still knows that its attempt is the newest (F4).
//!
//! Owns: one flag between the session, which looks, and tasks whose output is visible at once. A task
//! manager that has no session and cannot read the head may have been replaced: what it writes then
//! may come a second time from its successor, so it waits.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How often a task that waits looks again.
pub const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Whether the head is in sight. In sight until somebody says otherwise.
#[derive(Debug, Default)]
pub struct HeadSight {
    lost: AtomicBool,
}

impl HeadSight {
    /// The coordinator spoke, or the head was read.
    pub fn found(&self) {
        if self.lost.swap(false, Ordering::Relaxed) {
            tracing::info!("at-least-once sinks go on");
        }
    }

    /// Neither for too long.
    pub fn lose(&self) {
        if !self.lost.swap(true, Ordering::Relaxed) {
            tracing::warn!("head not read for too long: at-least-once sinks wait");
        }
    }

    /// Whether rows that are visible at once must wait.
    pub fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Relaxed)
    }
}
