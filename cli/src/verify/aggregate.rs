//! Aggregates over plain values, one at a time.
//!
//! Owns: what each aggregate function means, written for reading and not for speed: exact sums in
//! 256 bits, distinct values in a set, deviations in two passes over the values kept. Shares no code
//! with the engine's accumulators. Start at: [`Acc`].

use std::cmp::Ordering;
use std::collections::{BTreeMap, HashSet};

use arrow::datatypes::i256;
use streamforge_core::data_type::DataType;
use streamforge_core::job_graph::{AggregateCall, AggregateFunction};

use super::cell::Cell;
use super::sketch;

/// Longest `array_agg`; a longer one makes its group bad.
const ARRAY_AGG_ITEMS_MAX: usize = 10_000;

/// Largest magnitude of DECIMAL(38, s) without its point.
const DECIMAL_MAX: i128 = 99_999_999_999_999_999_999_999_999_999_999_999_999;

/// One aggregate of one group.
#[derive(Clone, Debug)]
pub enum Acc {
    /// How many.
    Count(u64),
    /// Which values, as bytes.
    Distinct(HashSet<Box<[u8]>>),
    /// The values themselves, by their bytes.
    Approx(BTreeMap<Box<[u8]>, Cell>),
    /// Whole numbers and decimals.
    Exact {
        /// Their sum.
        sum: i256,
        /// How many.
        n: u64,
    },
    /// All float values.
    Floats(Vec<f64>),
    /// The smallest or largest.
    Extreme {
        /// Which end.
        keep: Ordering,
        /// So far.
        best: Cell,
    },
    /// The value at the earliest or latest time.
    AtEnd {
        /// Which end.
        keep: Ordering,
        /// So far.
        best: Option<(i64, Cell)>,
    },
    /// All values with their times.
    All(Vec<(i64, Cell)>),
    /// All true, or any.
    Bool {
        /// The value that decides.
        decisive: bool,
        /// So far.
        seen: Option<bool>,
    },
}

/// Why a group has no result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadGroup;

impl Acc {
    /// Empty.
    pub fn new(call: &AggregateCall) -> Self {
        let float = call
            .arg
            .as_ref()
            .is_some_and(|arg| matches!(arg.data_type, DataType::Real | DataType::Double));
        match call.function {
            AggregateFunction::Count => Acc::Count(0),
            AggregateFunction::CountDistinct => Acc::Distinct(HashSet::new()),
            AggregateFunction::ApproxDistinct => Acc::Approx(BTreeMap::new()),
            AggregateFunction::Sum | AggregateFunction::Avg if !float => Acc::Exact {
                sum: i256::ZERO,
                n: 0,
            },
            AggregateFunction::Sum
            | AggregateFunction::Avg
            | AggregateFunction::StddevPop
            | AggregateFunction::StddevSamp
            | AggregateFunction::VarPop
            | AggregateFunction::VarSamp => Acc::Floats(Vec::new()),
            AggregateFunction::Min => Acc::Extreme {
                keep: Ordering::Less,
                best: Cell::Null,
            },
            AggregateFunction::Max => Acc::Extreme {
                keep: Ordering::Greater,
                best: Cell::Null,
            },
            AggregateFunction::FirstValue => Acc::AtEnd {
                keep: Ordering::Less,
                best: None,
            },
            AggregateFunction::LastValue => Acc::AtEnd {
                keep: Ordering::Greater,
                best: None,
            },
            AggregateFunction::ArrayAgg => Acc::All(Vec::new()),
            AggregateFunction::BoolAnd => Acc::Bool {
                decisive: false,
                seen: None,
            },
            AggregateFunction::BoolOr => Acc::Bool {
                decisive: true,
                seen: None,
            },
        }
    }

    /// Takes one row's argument; `None` for `count(*)`.
    pub fn add(&mut self, call: &AggregateCall, ts: i64, value: Option<&Cell>) {
        match self {
            Acc::Count(n) => *n += u64::from(value.is_none_or(|value| !value.is_null())),
            Acc::AtEnd { keep, best } => {
                let value = value.cloned().unwrap_or(Cell::Null);
                if best
                    .as_ref()
                    .is_none_or(|best| wins(*keep, (ts, &value), (best.0, &best.1)))
                {
                    *best = Some((ts, value));
                }
            }
            Acc::All(items) => items.push((ts, value.cloned().unwrap_or(Cell::Null))),
            _ => {
                if let Some(value) = value.filter(|value| !value.is_null()) {
                    self.add_value(call, value);
                }
            }
        }
    }

    fn add_value(&mut self, call: &AggregateCall, value: &Cell) {
        match (self, value) {
            (Acc::Distinct(seen), value) => {
                let mut bytes = Vec::new();
                value.encode(&mut bytes);
                seen.insert(bytes.into());
            }
            (Acc::Approx(seen), value) => {
                let mut bytes = Vec::new();
                value.encode(&mut bytes);
                seen.entry(bytes.into()).or_insert_with(|| value.clone());
            }
            (Acc::Exact { sum, n }, Cell::Int(value)) => {
                *sum = sum.wrapping_add(i256::from_i128(*value));
                *n += 1;
            }
            (Acc::Floats(values), Cell::Float(value)) => values.push(*value),
            (Acc::Floats(values), Cell::Int(value)) => {
                let scale = call.arg.as_ref().map_or(0, |arg| scale_of(&arg.data_type));
                values.push(*value as f64 / 10f64.powi(scale));
            }
            (Acc::Extreme { keep, best }, value)
                if best.is_null() || value.order(best) == *keep =>
            {
                *best = value.clone();
            }
            (Acc::Bool { decisive, seen }, Cell::Int(value)) => {
                let value = *value != 0;
                *seen = Some(if value == *decisive {
                    value
                } else {
                    seen.unwrap_or(value)
                });
            }
            _ => {}
        }
    }

    /// The group's result.
    pub fn finish(self, call: &AggregateCall) -> Result<Cell, BadGroup> {
        match self {
            Acc::Count(n) => Ok(Cell::Int(n.into())),
            Acc::Distinct(seen) => Ok(Cell::Int(seen.len() as i128)),
            Acc::Approx(seen) => {
                let values: Vec<Cell> = seen.into_values().collect();
                let arg = call.arg.as_ref().ok_or(BadGroup)?;
                let estimate = sketch::estimate(&values, &arg.data_type);
                estimate.map(Cell::Int).map_err(|_| BadGroup)
            }
            Acc::Exact { n: 0, .. } => Ok(Cell::Null),
            Acc::Exact { sum, n } if call.function == AggregateFunction::Avg => {
                mean(sum, n, call).map(Cell::Int)
            }
            Acc::Exact { sum, .. } => in_range(sum, &call.data_type).map(Cell::Int),
            Acc::Floats(values) => Ok(statistic(&values, call.function)),
            Acc::Extreme { best, .. } => Ok(best),
            Acc::AtEnd { best, .. } => Ok(best.map_or(Cell::Null, |(_, value)| value)),
            Acc::All(items) if items.len() > ARRAY_AGG_ITEMS_MAX => Err(BadGroup),
            Acc::All(items) if items.is_empty() => Ok(Cell::Null),
            Acc::All(mut items) => {
                items.sort_by(|a, b| a.0.cmp(&b.0).then_with(|| a.1.order(&b.1)));
                Ok(Cell::Many(
                    items.into_iter().map(|(_, value)| value).collect(),
                ))
            }
            Acc::Bool { seen, .. } => Ok(seen.map_or(Cell::Null, |v| Cell::Int(i128::from(v)))),
        }
    }
}

/// Whether `new` replaces `old`: nearer to the end by time, then by value, NULL never over a value.
fn wins(keep: Ordering, new: (i64, &Cell), old: (i64, &Cell)) -> bool {
    match new.0.cmp(&old.0) {
        Ordering::Equal if new.1.is_null() || old.1.is_null() => !new.1.is_null(),
        Ordering::Equal => new.1.order(old.1) == keep,
        order => order == keep,
    }
}

fn scale_of(data_type: &DataType) -> i32 {
    match data_type {
        DataType::Decimal(_, scale) => i32::from(*scale),
        _ => 0,
    }
}

fn in_range(value: i256, data_type: &DataType) -> Result<i128, BadGroup> {
    let value = value.to_i128().ok_or(BadGroup)?;
    let fits = match data_type {
        DataType::Int => i32::try_from(value).is_ok(),
        DataType::BigInt => i64::try_from(value).is_ok(),
        _ => (-DECIMAL_MAX..=DECIMAL_MAX).contains(&value),
    };
    if fits { Ok(value) } else { Err(BadGroup) }
}

/// `sum / n` at the scale of the result, rounded half away from zero.
fn mean(sum: i256, n: u64, call: &AggregateCall) -> Result<i128, BadGroup> {
    let from = call.arg.as_ref().map_or(0, |arg| scale_of(&arg.data_type));
    let more = u32::try_from(scale_of(&call.data_type) - from).map_err(|_| BadGroup)?;
    let n = i256::from_i128(n.into());
    let factor = i256::from_i128(10i128.pow(more));
    let (quotient, rest) = (sum.wrapping_div(n), sum.wrapping_rem(n));
    // Whole part and fraction apart, so that the product with the factor cannot overflow.
    let scaled = rest.wrapping_mul(factor);
    let (fraction, left) = (scaled.wrapping_div(n), scaled.wrapping_rem(n));
    let twice = left.wrapping_add(left);
    let round = if twice.wrapping_abs() >= n {
        sum.signum()
    } else {
        i256::ZERO
    };
    let whole = quotient.checked_mul(factor).ok_or(BadGroup)?;
    in_range(
        whole.wrapping_add(fraction).wrapping_add(round),
        &call.data_type,
    )
}

fn statistic(values: &[f64], function: AggregateFunction) -> Cell {
    let n = values.len() as f64;
    if values.is_empty() {
        return Cell::Null;
    }
    let sum = sum(values.iter().copied());
    let mean = if sum.is_finite() {
        sum / n
    } else {
        self::sum(values.iter().map(|value| value / n))
    };
    // The mean is rounded: what its error adds to the squares is taken out again, so that equal
    // values deviate by nothing.
    let squares = || {
        let lost = self::sum(values.iter().map(|value| value - mean));
        let squares = self::sum(values.iter().map(|value| (value - mean) * (value - mean)));
        if squares.is_infinite() {
            squares
        } else {
            squares - lost * lost / n
        }
    };
    match function {
        AggregateFunction::Sum => Cell::Float(sum),
        AggregateFunction::Avg => Cell::Float(sum / n),
        AggregateFunction::VarPop => Cell::Float(squares() / n),
        AggregateFunction::StddevPop => Cell::Float(root(squares() / n)),
        _ if values.len() < 2 => Cell::Null,
        AggregateFunction::StddevSamp => Cell::Float(root(squares() / (n - 1.0))),
        _ => Cell::Float(squares() / (n - 1.0)),
    }
}

/// Rounding may leave a variance of nothing below 0; one that is NaN stays it.
fn root(variance: f64) -> f64 {
    if variance < 0.0 { 0.0 } else { variance.sqrt() }
}

/// Sum with the rounding errors summed apart (Neumaier), so that order does not show.
fn sum(values: impl Iterator<Item = f64>) -> f64 {
    let (mut sum, mut lost) = (0f64, 0f64);
    for value in values {
        let next = sum + value;
        lost += if sum.abs() >= value.abs() {
            (sum - next) + value
        } else {
            (value - next) + sum
        };
        sum = next;
    }
    // With an infinity or NaN among the values the errors are NaN and mean nothing.
    if lost.is_finite() { sum + lost } else { sum }
}

#[cfg(test)]
#[path = "aggregate/tests.rs"]
mod tests;
