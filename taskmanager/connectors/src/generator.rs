//! Rows made up from a seed.
//!
//! Owns: the presets `clicks` and `lines`. Every row is a pure function of the seed, its split and its
//! number, so the same seed gives the same rows at any parallelism and after any restart. There are
//! always [`SPLITS_N`] splits; row `k` of split `s` is row `k * SPLITS_N + s` of the whole, and its
//! time is [`TIME_ZERO_US`] plus that number times one row's interval (`1 / rowsPerSecond`, or
//! [`INTERVAL_US`] when the rate is free). Start at: [`GeneratorReader`].

mod clicks;
mod draw;
mod lines;

use std::sync::Arc;
use std::time::Duration;

use arrow::array::{ArrayRef, UInt64Array};
use arrow::datatypes::SchemaRef;
use arrow::record_batch::{RecordBatch, RecordBatchOptions};
use async_trait::async_trait;
use serde::Deserialize;
use streamforge_core::event_time::Watermark;
use streamforge_core::ids::SplitId;
use streamforge_core::job_graph::Column;
use streamforge_core::manifest::{SplitProgress, SplitState};
use streamforge_engine::batch::{BadRows, Origin};
use streamforge_engine::error::Error;
use streamforge_engine::source::{SourceBatch, SourceEvent, SourceReader, SplitEnumerator};
use streamforge_engine::types::schema;
use tokio::time::Instant;

use crate::error::{failed, refused};

/// Splits of every generator.
pub const SPLITS_N: u64 = 8;

/// Time of row 0: 2026-01-01T00:00:00Z.
pub const TIME_ZERO_US: i64 = 1_767_225_600_000_000;

/// Event time between two rows when the rate is free.
pub const INTERVAL_US: f64 = 100.0;

/// Rows of one batch of one split: small enough that the splits advance side by side.
const ROWS_MAX: u64 = 4096;

/// How often a paced reader makes rows.
const PACE_MS: u64 = 20;

/// The document's `generator:` block.
#[derive(Clone, Debug, Deserialize)]
pub struct Config {
    clicks: Option<clicks::Config>,
    lines: Option<lines::Config>,
}

/// What a preset makes of row numbers.
trait Preset: Send {
    /// Column of this name for rows `numbers`, which are good ones.
    fn column(&self, name: &str, numbers: &[u64]) -> Option<ArrayRef>;

    /// The bytes and the reason of a record that cannot be decoded, if this one is.
    fn bad(&self, number: u64) -> Option<(Vec<u8>, String)>;

    /// Rows in all; `None`: no end.
    fn rows(&self) -> Option<u64>;

    /// Rows a second in all.
    fn rows_per_second(&self) -> Option<u64>;
}

fn preset(node: &str, config: &serde_json::Value) -> Result<Box<dyn Preset>, Error> {
    let action = || format!("open generator {node}");
    let config: Config =
        serde_json::from_value(config.clone()).map_err(|error| failed(action(), false, error))?;
    match config {
        Config {
            clicks: Some(config),
            lines: None,
        } => Ok(Box::new(
            clicks::Clicks::new(config).map_err(|reason| refused(action(), reason))?,
        )),
        Config {
            clicks: None,
            lines: Some(config),
        } => Ok(Box::new(lines::Lines::new(config))),
        _ => Err(refused(action(), "write exactly one of clicks, lines")),
    }
}

fn rows_of_split(preset: &dyn Preset, split: u64) -> Option<u64> {
    preset
        .rows()
        .map(|rows| (rows + SPLITS_N - 1 - split) / SPLITS_N)
}

/// Lists the splits.
pub struct GeneratorEnumerator {
    preset: Box<dyn Preset>,
}

impl GeneratorEnumerator {
    /// For a node with this block.
    pub fn new(node: &str, config: &serde_json::Value) -> Result<Self, Error> {
        Ok(Self {
            preset: preset(node, config)?,
        })
    }
}

#[async_trait]
impl SplitEnumerator for GeneratorEnumerator {
    async fn list(&mut self) -> Result<Vec<SplitState>, Error> {
        let split = |split: u64| SplitState {
            split: SplitId(split.to_string()),
            progress: SplitProgress::At("0".to_owned()),
            watermark: Watermark::NONE,
            description: String::new(),
            weight: rows_of_split(&*self.preset, split).unwrap_or(1),
        };
        Ok((0..SPLITS_N).map(split).collect())
    }
}

struct Split {
    id: SplitId,
    number: u64,
    next: u64,
    end: Option<u64>,
}

/// Makes the rows of some splits.
pub struct GeneratorReader {
    node: String,
    source: Arc<str>,
    preset: Box<dyn Preset>,
    output: Vec<Column>,
    schema: SchemaRef,
    origin: bool,
    splits: Vec<Split>,
    made: u64,
    total: u64,
    /// Rows of one batch.
    rows_max: u64,
    /// Whether rows wait for their time.
    is_paced: bool,
    /// Begin of pacing and the rows made since.
    pace: Option<(Instant, u64)>,
}

impl GeneratorReader {
    /// For a node with this block whose readers want these columns.
    pub fn new(
        node: &str,
        config: &serde_json::Value,
        output: &[Column],
        origin: bool,
    ) -> Result<Self, Error> {
        Ok(Self {
            node: node.to_owned(),
            source: Arc::from("generator"),
            preset: preset(node, config)?,
            output: output.to_vec(),
            schema: schema(output),
            origin,
            splits: Vec::new(),
            made: 0,
            total: 0,
            rows_max: ROWS_MAX,
            is_paced: true,
            pace: None,
        })
    }

    /// The same rows, without waiting.
    #[must_use]
    pub fn at_full_speed(self) -> Self {
        Self {
            is_paced: false,
            ..self
        }
    }

    /// Rows that the pace allows now; sleeps until there are some.
    async fn allowance(&mut self) -> u64 {
        let per_second = self.preset.rows_per_second().filter(|_| self.is_paced);
        let Some(per_second) = per_second else {
            return self.rows_max;
        };
        let share = (per_second * self.splits.len() as u64)
            .div_ceil(SPLITS_N)
            .max(1);
        let (began, made) = *self.pace.get_or_insert_with(|| (Instant::now(), 0));
        loop {
            let elapsed_us = u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX);
            let due = elapsed_us.saturating_mul(share) / 1_000_000;
            if due > made {
                return (due - made).min(self.rows_max);
            }
            tokio::time::sleep(Duration::from_millis(PACE_MS)).await;
        }
    }

    fn batch(&self, split: &Split, n: u64) -> Result<SourceBatch, Error> {
        let numbers = split.next..split.next + n;
        let mut good = Vec::with_capacity(usize::try_from(n).unwrap_or(0));
        let mut bad = BadRows::default();
        for k in numbers {
            let number = k * SPLITS_N + split.number;
            match self.preset.bad(number) {
                None => good.push(number),
                Some((raw, reason)) => {
                    let position = format!("{}:{k}", split.number);
                    bad.push(Some(&raw), reason, Some((&self.source, position)), None);
                }
            }
        }
        let column = |column: &Column| {
            self.preset.column(&column.name, &good).ok_or_else(|| {
                let reason = format!("it has no column `{}`", column.name);
                refused(format!("read generator {}", self.node), reason)
            })
        };
        let columns = self
            .output
            .iter()
            .map(column)
            .collect::<Result<Vec<_>, _>>()?;
        let options = RecordBatchOptions::new().with_row_count(Some(good.len()));
        let rows =
            RecordBatch::try_new_with_options(Arc::clone(&self.schema), columns, &options)
                .map_err(|error| failed(format!("read generator {}", self.node), false, error))?;
        let origin = self.origin.then(|| Origin {
            source: Arc::clone(&self.source),
            row: UInt64Array::from(vec![split.number; good.len()]),
            offset: good
                .iter()
                .map(|number| number / SPLITS_N)
                .collect::<Vec<_>>()
                .into(),
        });
        Ok(SourceBatch {
            split: split.id.clone(),
            rows,
            origin,
            bad_n: bad.len() as u64,
            bad,
            unknown_fields: 0,
            progress: SplitProgress::At((split.next + n).to_string()),
        })
    }
}

#[async_trait]
impl SourceReader for GeneratorReader {
    async fn assign(&mut self, splits: Vec<SplitState>) -> Result<(), Error> {
        for state in splits {
            let SplitProgress::At(next) = &state.progress else {
                continue;
            };
            let unreadable = || {
                let reason = format!("split {} at {next:?} is not one of its own", state.split);
                refused(format!("read generator {}", self.node), reason)
            };
            let number: u64 = state.split.0.parse().map_err(|_| unreadable())?;
            let next = next.parse().map_err(|_| unreadable())?;
            let end = rows_of_split(&*self.preset, number);
            if end.is_some_and(|end| end < next) {
                let reason = format!(
                    "the job has read {next} rows of split {number} already: `rows` is too small now"
                );
                return Err(refused(format!("read generator {}", self.node), reason));
            }
            self.made += next;
            self.total += end.unwrap_or(0);
            self.splits.push(Split {
                id: state.split,
                number,
                next,
                end,
            });
        }
        Ok(())
    }

    async fn next(&mut self) -> Result<SourceEvent, Error> {
        if let Some(idx) = self
            .splits
            .iter()
            .position(|split| Some(split.next) == split.end)
        {
            return Ok(SourceEvent::SplitEnded(self.splits.swap_remove(idx).id));
        }
        if self.splits.is_empty() {
            return Ok(SourceEvent::Ended);
        }
        let allowed = self.allowance().await;
        let behind = self
            .splits
            .iter()
            .enumerate()
            .min_by_key(|(_, split)| split.next);
        let Some((idx, split)) = behind else {
            return Ok(SourceEvent::Ended);
        };
        let left = split.end.map_or(u64::MAX, |end| end - split.next);
        // Under a pace the splits share what is due, or one of them would run ahead.
        let fair = if self.pace.is_some() {
            allowed.div_ceil(self.splits.len() as u64)
        } else {
            allowed
        };
        let n = fair.min(left);
        let batch = self.batch(split, n)?;
        if let Some(split) = self.splits.get_mut(idx) {
            split.next += n;
        }
        self.made += n;
        if let Some((_, made)) = &mut self.pace {
            *made += n;
        }
        Ok(SourceEvent::Batch(batch))
    }

    fn prefer_rows(&mut self, rows: usize) {
        let rows = u64::try_from(rows).unwrap_or(ROWS_MAX);
        self.rows_max = rows.clamp(1, ROWS_MAX);
    }

    fn read_units(&self) -> (u64, u64) {
        (
            self.made,
            if self.preset.rows().is_some() {
                self.total
            } else {
                0
            },
        )
    }
}

#[cfg(test)]
mod tests;
