//! Clicks of users on pages: `user_id TEXT, page TEXT, type TEXT, amount DECIMAL(10,2), ts TIMESTAMP`.
//!
//! `user_id` is `user-<n>` by Zipf, `page` one of 100, `type` click 70 %, view 25 %, purchase 5 %,
//! `amount` 0.01 to 500.00 even; `ts` is the row's time less an even draw up to `outOfOrderness`, for
//! late rows another 1 to 2 minutes less. A bad record is a row's JSON cut in the middle.

use std::fmt::Write;
use std::sync::Arc;

use arrow::array::{ArrayRef, Decimal128Array, StringBuilder, TimestampMicrosecondArray};
use serde::Deserialize;
use streamforge_core::units::HumanDuration;

use super::draw::{Alias, Draw, unit};
use super::{INTERVAL_US, Preset, TIME_ZERO_US};

const PAGES_N: u64 = 100;
const CENTS_MAX: u64 = 50_000;
/// Users that a table for drawing them is made for; 16 bytes each.
const USERS_MAX: u64 = 10_000_000;
const MINUTE_US: f64 = 60_000_000.0;

const USER: u64 = 1;
const PAGE: u64 = 2;
const TYPE: u64 = 3;
const AMOUNT: u64 = 4;
const DISORDER: u64 = 5;
const LATE: u64 = 6;
const BAD: u64 = 7;

fn users() -> u64 {
    1_000
}

/// The document's `clicks:` block.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Config {
    rows: Option<u64>,
    rows_per_second: Option<u64>,
    #[serde(default = "users")]
    users: u64,
    #[serde(default)]
    skew: f64,
    #[serde(default)]
    out_of_orderness: HumanDuration,
    #[serde(default)]
    late_fraction: f64,
    #[serde(default)]
    bad_fraction: f64,
    #[serde(default)]
    seed: u64,
}

/// See the module.
pub struct Clicks {
    config: Config,
    draw: Draw,
    users: Alias,
    interval_us: f64,
    disorder_us: f64,
}

impl Clicks {
    /// Refuses what would need unbounded memory.
    pub fn new(config: Config) -> Result<Self, String> {
        let users = u32::try_from(config.users.clamp(1, USERS_MAX)).unwrap_or(1);
        if config.users > USERS_MAX {
            return Err(format!("users: at most {USERS_MAX}"));
        }
        #[expect(
            clippy::cast_precision_loss,
            reason = "a pace needs no more than 53 bits"
        )]
        let interval_us = config
            .rows_per_second
            .map_or(INTERVAL_US, |n| 1e6 / n.max(1) as f64);
        Ok(Self {
            draw: Draw::new(config.seed),
            users: Alias::zipf(users, config.skew),
            interval_us,
            disorder_us: config.out_of_orderness.to_std().as_secs_f64() * 1e6,
            config,
        })
    }

    fn time_us(&self, number: u64) -> i64 {
        #[expect(clippy::cast_precision_loss, reason = "exact up to 2^53 rows")]
        let mut after = number as f64 * self.interval_us;
        after -= self.draw.unit(number, DISORDER) * self.disorder_us;
        let late = self.draw.bits(number, LATE);
        if unit(late) < self.config.late_fraction {
            after -= self.disorder_us + MINUTE_US * (1.0 + unit(late.rotate_left(32)));
        }
        #[expect(clippy::cast_possible_truncation, reason = "a float's cast saturates")]
        let after = after.floor() as i64;
        TIME_ZERO_US.saturating_add(after)
    }

    fn kind(&self, number: u64) -> &'static str {
        match self.draw.bits(number, TYPE) % 100 {
            0..70 => "click",
            70..95 => "view",
            _ => "purchase",
        }
    }

    fn texts(&self, numbers: &[u64], prefix: &str, n: impl Fn(u64) -> u64) -> ArrayRef {
        let mut texts = StringBuilder::with_capacity(numbers.len(), numbers.len() * 12);
        for number in numbers {
            // Writing into the builder's own buffer cannot fail.
            let _ = write!(texts, "{prefix}{}", n(*number));
            texts.append_value("");
        }
        Arc::new(texts.finish())
    }
}

impl Preset for Clicks {
    fn column(&self, name: &str, numbers: &[u64]) -> Option<ArrayRef> {
        Some(match name {
            "user_id" => self.texts(numbers, "user-", |number| {
                u64::from(self.users.pick(self.draw.bits(number, USER)))
            }),
            "page" => self.texts(numbers, "/page/", |number| {
                self.draw.bits(number, PAGE) % PAGES_N
            }),
            "type" => {
                let mut texts = StringBuilder::with_capacity(numbers.len(), numbers.len() * 6);
                numbers
                    .iter()
                    .for_each(|number| texts.append_value(self.kind(*number)));
                Arc::new(texts.finish())
            }
            "amount" => {
                let cents =
                    |number: &u64| i128::from(self.draw.bits(*number, AMOUNT) % CENTS_MAX + 1);
                let amounts = Decimal128Array::from_iter_values(numbers.iter().map(cents));
                Arc::new(amounts.with_precision_and_scale(10, 2).ok()?)
            }
            "ts" => {
                let times = numbers.iter().map(|number| self.time_us(*number));
                Arc::new(TimestampMicrosecondArray::from_iter_values(times))
            }
            _ => return None,
        })
    }

    fn bad(&self, number: u64) -> Option<(Vec<u8>, String)> {
        if self.config.bad_fraction <= 0.0
            || self.draw.unit(number, BAD) >= self.config.bad_fraction
        {
            return None;
        }
        let user = self.users.pick(self.draw.bits(number, USER));
        let raw = format!("{{\"user_id\":\"user-{user}\",\"page\":");
        Some((
            raw.into_bytes(),
            "expected a value, found the end of the record".to_owned(),
        ))
    }

    fn rows(&self) -> Option<u64> {
        self.config.rows
    }

    fn rows_per_second(&self) -> Option<u64> {
        self.config.rows_per_second
    }
}
