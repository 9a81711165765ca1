//! `rateLimit`: rows per second, held by pausing.

use std::time::Duration;

/// Slices per second that a limited source or sink works in, so that rows flow evenly.
const STEPS_PER_SECOND: u64 = 20;

/// Paces one task's share of a limit.
#[derive(Debug)]
pub struct Pace {
    rows_per_second: u64,
    began_us: Option<u64>,
    rows: u64,
}

impl Pace {
    /// The share of one of `parallelism` subtasks; at least one row a second.
    pub fn share(rows_per_second: u64, parallelism: u32) -> Self {
        let rows_per_second = (rows_per_second / u64::from(parallelism.max(1))).max(1);
        Self {
            rows_per_second,
            began_us: None,
            rows: 0,
        }
    }

    /// How long to wait before the next row.
    pub fn pause(&mut self, now_us: u64) -> Option<Duration> {
        let began_us = *self.began_us.get_or_insert(now_us);
        let due_us = self.rows.saturating_mul(1_000_000) / self.rows_per_second;
        let pause_us = due_us.saturating_sub(now_us - began_us);
        // Time that was lost upstream is not caught up in a burst.
        if pause_us == 0 && now_us - began_us > due_us + 1_000_000 {
            self.began_us = Some(now_us);
            self.rows = 0;
        }
        (pause_us > 0).then(|| Duration::from_micros(pause_us))
    }

    /// Rows went through.
    pub fn on_rows(&mut self, rows: u64) {
        self.rows += rows;
    }

    /// Rows to take at once.
    pub fn step(&self) -> usize {
        usize::try_from(self.rows_per_second / STEPS_PER_SECOND)
            .unwrap_or(usize::MAX)
            .max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thousand_rows_a_second_take_a_second() {
        let mut pace = Pace::share(2000, 2);

        assert_eq!(pace.pause(5), None);
        pace.on_rows(1000);
        assert_eq!(pace.pause(5), Some(Duration::from_secs(1)));
        assert_eq!(pace.pause(500_005), Some(Duration::from_millis(500)));
        assert_eq!(pace.pause(1_000_005), None);
    }

    #[test]
    fn lost_time_is_not_caught_up_in_a_burst() {
        let mut pace = Pace::share(1000, 1);
        assert_eq!(pace.pause(0), None);

        assert_eq!(pace.pause(60_000_000), None);
        pace.on_rows(500);
        assert_eq!(pace.pause(60_000_000), Some(Duration::from_millis(500)));
    }
}
