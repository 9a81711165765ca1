//! Which failures count, and how long to wait before the next attempt.
//!
//! Owns: the budget. A failure counts only if no checkpoint completed since the last one; the one
//! taken at once after a recovery does not count as progress, or a crash loop on a poison record
//! would never end (attack 47).

use std::collections::VecDeque;

use crate::config::RestartPolicy;

/// What to do after a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Verdict {
    /// Try again after this long.
    AgainIn(u64),
    /// Too many failures without progress.
    GiveUp {
        /// How many counted.
        failures_n: u32,
    },
}

/// Failures that counted, within the window.
#[derive(Debug)]
pub struct RestartBudget {
    policy: RestartPolicy,
    counted_at_ms: VecDeque<u64>,
    progress_since_failure: bool,
    in_a_row_n: u32,
}

impl RestartBudget {
    /// A budget of which nothing is used.
    #[must_use]
    pub fn new(policy: RestartPolicy) -> Self {
        let counted_at_ms = VecDeque::new();
        Self {
            policy,
            counted_at_ms,
            progress_since_failure: false,
            in_a_row_n: 0,
        }
    }

    /// A checkpoint completed that was not the one taken right after a recovery.
    pub fn on_progress(&mut self) {
        self.progress_since_failure = true;
    }

    /// An attempt failed.
    pub fn on_failure(&mut self, now_ms: u64) -> Verdict {
        let window_begin_ms = now_ms.saturating_sub(self.policy.window_ms);
        self.counted_at_ms.retain(|at_ms| *at_ms >= window_begin_ms);
        if self.progress_since_failure {
            self.in_a_row_n = 0;
        } else {
            self.counted_at_ms.push_back(now_ms);
        }
        self.progress_since_failure = false;
        let failures_n = u32::try_from(self.counted_at_ms.len()).unwrap_or(u32::MAX);
        if failures_n > self.policy.failures_n_max {
            return Verdict::GiveUp { failures_n };
        }
        let wait_ms = self
            .policy
            .backoff_initial_ms
            .saturating_mul(1 << self.in_a_row_n.min(20));
        self.in_a_row_n += 1;
        Verdict::AgainIn(wait_ms.min(self.policy.backoff_max_ms))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn budget(failures_n_max: u32) -> RestartBudget {
        RestartBudget::new(RestartPolicy {
            failures_n_max,
            window_ms: 60_000,
            backoff_initial_ms: 100,
            backoff_max_ms: 1_000,
        })
    }

    #[test]
    fn crash_loop_ends_the_job_and_waits_longer_each_time() {
        let mut budget = budget(4);

        let verdicts: Vec<Verdict> = (0..5).map(|n| budget.on_failure(n)).collect();

        let again = Verdict::AgainIn;
        let give_up = Verdict::GiveUp { failures_n: 5 };
        assert_eq!(
            verdicts,
            [again(100), again(200), again(400), again(800), give_up]
        );
    }

    #[test]
    fn kills_with_progress_never_end_a_job() {
        let mut budget = budget(1);

        for n in 0..100 {
            budget.on_progress();
            assert_eq!(budget.on_failure(n), Verdict::AgainIn(100));
        }
    }

    #[test]
    fn failures_outside_the_window_are_forgotten() {
        let mut budget = budget(1);

        for n in 0..10 {
            assert!(
                matches!(budget.on_failure(n * 60_001), Verdict::AgainIn(_)),
                "failure {n}"
            );
        }
    }
}
