//! Lines of words: `line TEXT, ts TIMESTAMP`.
//!
//! A line has 3 to 12 of [`WORDS`], by Zipf with exponent 1; `ts` is the row's time.

use std::sync::Arc;

use arrow::array::{ArrayRef, StringBuilder, TimestampMicrosecondArray};
use serde::Deserialize;

use super::draw::{Alias, Draw};
use super::{INTERVAL_US, Preset, TIME_ZERO_US};

/// The vocabulary, most frequent first.
const WORDS: [&str; 32] = [
    "the", "stream", "of", "a", "and", "to", "in", "window", "is", "row", "late", "it", "river",
    "on", "time", "state", "with", "key", "as", "barrier", "at", "flow", "by", "water", "mark",
    "from", "join", "sink", "source", "slow", "fast", "forge",
];

const LENGTH: u64 = 1;
const FIRST_WORD: u64 = 16;

/// The document's `lines:` block.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Config {
    rows: Option<u64>,
    rows_per_second: Option<u64>,
    #[serde(default)]
    seed: u64,
}

/// See the module.
pub struct Lines {
    config: Config,
    draw: Draw,
    words: Alias,
    interval_us: f64,
}

impl Lines {
    /// Lines of this block.
    pub fn new(config: Config) -> Self {
        #[expect(
            clippy::cast_precision_loss,
            reason = "a pace needs no more than 53 bits"
        )]
        let interval_us = config
            .rows_per_second
            .map_or(INTERVAL_US, |n| 1e6 / n.max(1) as f64);
        let words = u32::try_from(WORDS.len()).unwrap_or(1);
        Self {
            draw: Draw::new(config.seed),
            words: Alias::zipf(words, 1.0),
            config,
            interval_us,
        }
    }

    fn line(&self, number: u64, line: &mut String) {
        line.clear();
        let words_n = 3 + self.draw.bits(number, LENGTH) % 10;
        for word in 0..words_n {
            if word > 0 {
                line.push(' ');
            }
            let idx = self.words.pick(self.draw.bits(number, FIRST_WORD + word)) as usize;
            line.push_str(WORDS.get(idx).copied().unwrap_or_default());
        }
    }
}

impl Preset for Lines {
    fn column(&self, name: &str, numbers: &[u64]) -> Option<ArrayRef> {
        Some(match name {
            "line" => {
                let mut texts = StringBuilder::with_capacity(numbers.len(), numbers.len() * 40);
                let mut line = String::new();
                for number in numbers {
                    self.line(*number, &mut line);
                    texts.append_value(&line);
                }
                Arc::new(texts.finish())
            }
            "ts" => {
                #[expect(clippy::cast_precision_loss, reason = "exact up to 2^53 rows")]
                let after = |number: u64| (number as f64 * self.interval_us).floor();
                #[expect(clippy::cast_possible_truncation, reason = "a float's cast saturates")]
                let time = |number: &u64| TIME_ZERO_US.saturating_add(after(*number) as i64);
                Arc::new(TimestampMicrosecondArray::from_iter_values(
                    numbers.iter().map(time),
                ))
            }
            _ => return None,
        })
    }

    fn bad(&self, _: u64) -> Option<(Vec<u8>, String)> {
        None
    }

    fn rows(&self) -> Option<u64> {
        self.config.rows
    }

    fn rows_per_second(&self) -> Option<u64> {
        self.config.rows_per_second
    }
}
