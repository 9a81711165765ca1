//! What a coordinator tells its task managers, as far as tasks obey it.
//!
//! Owns: the terms of the newest welcome. Another coordinator that takes running tasks over may have been
//! told other ones: what runs obeys them as well as what comes after it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{PoisonError, RwLock};

/// See the module.
#[derive(Debug)]
pub struct Terms {
    state_bytes_max: AtomicU64,
    accept_lost_markers: RwLock<Vec<String>>,
}

impl Terms {
    /// The bytes of keyed state that tasks may hold here together, and the sinks whose lost Kafka marker
    /// a person has accepted.
    pub fn new(state_bytes_max: u64, accept_lost_markers: Vec<String>) -> Self {
        Self {
            state_bytes_max: AtomicU64::new(state_bytes_max),
            accept_lost_markers: RwLock::new(accept_lost_markers),
        }
    }

    /// Others, from now on.
    pub fn take(&self, state_bytes_max: u64, accept_lost_markers: Vec<String>) {
        self.state_bytes_max
            .store(state_bytes_max, Ordering::Relaxed);
        let mut markers = self
            .accept_lost_markers
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        *markers = accept_lost_markers;
    }

    /// Bytes of keyed state that tasks may hold here together.
    pub fn state_bytes_max(&self) -> u64 {
        self.state_bytes_max.load(Ordering::Relaxed)
    }

    /// Sinks whose lost Kafka marker was accepted by a person.
    pub fn accept_lost_markers(&self) -> Vec<String> {
        let markers = self.accept_lost_markers.read();
        markers.unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// No limit, and nothing accepted.
impl Default for Terms {
    fn default() -> Self {
        Self::new(u64::MAX, Vec::new())
    }
}
