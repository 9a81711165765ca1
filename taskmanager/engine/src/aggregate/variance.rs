//! Variances and standard deviations, over doubles.
//!
//! State: BIGINT count, DOUBLE mean, DOUBLE sum of squared distances from it. Welford's update and
//! Chan's merge: stable for large means; equal for every order within 1e-9 relative.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, Float64Array, Int64Array};
use arrow::compute::cast;
use arrow::datatypes::DataType;

use super::{Accumulator, Error, Evaluated, Rows, add_count, argument, columns, typed};

/// What is made of it.
#[derive(Clone, Copy, Debug)]
pub(super) enum Yields {
    VarPop,
    VarSamp,
    StddevPop,
    StddevSamp,
}

/// Count, mean and squared distances of each group.
#[derive(Debug)]
pub(super) struct Variance {
    groups: Vec<Moments>,
    yields: Yields,
}

#[derive(Clone, Copy, Debug, Default)]
struct Moments {
    count: i64,
    mean: f64,
    squares: f64,
}

#[expect(clippy::cast_precision_loss, reason = "counts stay far below 2^53")]
fn float(count: i64) -> f64 {
    count as f64
}

impl Moments {
    fn add(&mut self, value: f64) {
        self.count += 1;
        let before = value - self.mean;
        self.mean += before / float(self.count);
        self.squares += before * (value - self.mean);
    }

    fn join(&mut self, other: Moments) -> Result<(), Error> {
        let mut count = self.count;
        add_count(&mut count, other.count)?;
        if other.count == 0 {
            return Ok(());
        }
        if self.count == 0 {
            *self = other;
            return Ok(());
        }
        let apart = other.mean - self.mean;
        let share = float(other.count) / float(count);
        self.squares += other.squares + apart * apart * float(self.count) * share;
        self.mean += apart * share;
        self.count = count;
        Ok(())
    }

    fn result(&self, yields: Yields) -> Option<f64> {
        let divisor = match yields {
            Yields::VarPop | Yields::StddevPop => self.count,
            Yields::VarSamp | Yields::StddevSamp => self.count - 1,
        };
        if divisor <= 0 {
            return None;
        }
        let variance = self.squares / float(divisor);
        Some(match yields {
            Yields::VarPop | Yields::VarSamp => variance,
            Yields::StddevPop | Yields::StddevSamp => variance.sqrt(),
        })
    }
}

impl Variance {
    pub(super) fn new(yields: Yields) -> Self {
        Self {
            groups: Vec::new(),
            yields,
        }
    }
}

impl Accumulator for Variance {
    fn update(&mut self, arg: Option<&ArrayRef>, rows: &Rows<'_>) -> Result<(), Error> {
        let arg = cast(argument(arg)?, &DataType::Float64)?;
        let arg: &Float64Array = typed(&arg)?;
        self.groups.resize(rows.groups_n, Moments::default());
        let (groups, values) = (&mut self.groups, arg.values());
        rows.for_each(arg.nulls(), |row, group| groups[group].add(values[row]));
        Ok(())
    }

    fn merge(
        &mut self,
        state: &[ArrayRef],
        groups: &[usize],
        groups_n: usize,
    ) -> Result<(), Error> {
        let [count, mean, squares] = columns(state)?;
        let count: &Int64Array = typed(count)?;
        let mean: &Float64Array = typed(mean)?;
        let squares: &Float64Array = typed(squares)?;
        self.groups.resize(groups_n, Moments::default());
        for (row, group) in groups.iter().enumerate() {
            self.groups[*group].join(Moments {
                count: count.value(row),
                mean: mean.value(row),
                squares: squares.value(row),
            })?;
        }
        Ok(())
    }

    fn take_state(&mut self) -> Result<Vec<ArrayRef>, Error> {
        let groups = std::mem::take(&mut self.groups);
        Ok(vec![
            Arc::new(Int64Array::from_iter_values(
                groups.iter().map(|group| group.count),
            )),
            Arc::new(Float64Array::from_iter_values(
                groups.iter().map(|group| group.mean),
            )),
            Arc::new(Float64Array::from_iter_values(
                groups.iter().map(|group| group.squares),
            )),
        ])
    }

    fn evaluate(&self, groups: &[usize]) -> Result<Evaluated, Error> {
        let values: ArrayRef = Arc::new(Float64Array::from_iter(
            groups
                .iter()
                .map(|group| self.groups[*group].result(self.yields)),
        ));
        Ok(values.into())
    }

    fn size(&self) -> usize {
        self.groups.capacity() * size_of::<Moments>()
    }
}
