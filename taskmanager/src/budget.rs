//! `state.memoryLimit`: how much keyed state a task manager may hold.
//!
//! Owns: the sum over its tasks. A job over its limit ends with a reason, before the machine ends it
//! without one.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use streamforge_engine::error::Error;

use crate::terms::Terms;

/// The limit, and what all tasks of an attempt hold.
#[derive(Debug)]
pub struct StateBudget {
    terms: Arc<Terms>,
    held: AtomicU64,
}

impl StateBudget {
    /// The limit is that of the terms of the moment; nothing is held.
    pub fn new(terms: Arc<Terms>) -> Self {
        Self {
            terms,
            held: AtomicU64::new(0),
        }
    }

    /// A task held `before` bytes and holds `now`.
    ///
    /// # Errors
    /// When all tasks together hold more than the limit.
    pub fn hold(&self, before: u64, now: u64) -> Result<(), Error> {
        let held = if now >= before {
            let more = now - before;
            self.held.fetch_add(more, Ordering::Relaxed) + more
        } else {
            let less = before - now;
            self.held.fetch_sub(less, Ordering::Relaxed) - less
        };
        let limit = self.terms.state_bytes_max();
        if held > limit {
            return Err(Error::StateLimit { held, limit });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_share_one_limit_and_give_back_what_they_free_b1() {
        const MIB: u64 = 1 << 20;
        let budget = StateBudget::new(Arc::new(Terms::new(100 * MIB, Vec::new())));

        assert!(budget.hold(0, 60 * MIB).is_ok());
        assert!(budget.hold(0, 40 * MIB).is_ok(), "together they fill it");
        assert!(budget.hold(40 * MIB, 40 * MIB + 1).is_err());
        assert!(
            budget.hold(60 * MIB, 10 * MIB).is_ok(),
            "half of it is free now"
        );
        let error = budget.hold(40 * MIB + 1, 141 * MIB).unwrap_err();

        let text = error.to_string();
        assert!(
            text.contains("holds 151.0 MiB") && text.contains("(100Mi)"),
            "{text}"
        );
    }
}
