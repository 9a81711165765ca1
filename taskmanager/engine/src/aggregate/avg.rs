//! `avg(x)`: exact sum over count, rounded half away from zero at the result's last digit.
//!
//! State: the sum's state, then BIGINT number of values.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, Decimal128Array, Float64Array, Int64Array};
use arrow::datatypes::{DataType, i256};

use super::sum::{Sum, Total, check_decimal};
use super::{Accumulator, Error, Evaluated, Rows, add_count, typed};

/// Mean of the values that are not NULL.
#[derive(Debug)]
pub(super) struct Avg<S> {
    sum: S,
    counts: Vec<i64>,
}

impl<S> Avg<S> {
    pub(super) fn new(sum: S) -> Self {
        Self {
            sum,
            counts: Vec::new(),
        }
    }
}

/// `total x 10^digits / count`, rounded half away from zero.
fn divide(total: i256, count: i64, digits: u32) -> Option<i128> {
    let scaled = total.checked_mul(i256::from_i128(10_i128.pow(digits)))?;
    let count = i256::from_i128(i128::from(count));
    let (quotient, rest) = (scaled.checked_div(count)?, scaled.checked_rem(count)?);
    let twice = rest.checked_abs()?.checked_mul(i256::from_i128(2))?;
    let away = if twice >= count {
        i256::ONE
    } else {
        i256::ZERO
    };
    let rounded = if scaled < i256::ZERO {
        quotient.checked_sub(away)?
    } else {
        quotient.checked_add(away)?
    };
    rounded.to_i128()
}

impl<S: Sum> Accumulator for Avg<S> {
    fn update(&mut self, arg: Option<&ArrayRef>, rows: &Rows<'_>) -> Result<(), Error> {
        self.sum.update(arg, rows)?;
        self.counts.resize(rows.groups_n, 0);
        let counts = &mut self.counts;
        rows.for_each(arg.and_then(|arg| arg.nulls()), |_, group| {
            counts[group] += 1;
        });
        Ok(())
    }

    fn merge(
        &mut self,
        state: &[ArrayRef],
        groups: &[usize],
        groups_n: usize,
    ) -> Result<(), Error> {
        let Some((counts, sum)) = state.split_last() else {
            return Err(Error::State("0 columns".to_owned()));
        };
        self.sum.merge(sum, groups, groups_n)?;
        let counts: &Int64Array = typed(counts)?;
        self.counts.resize(groups_n, 0);
        for (group, count) in groups.iter().zip(counts.values()) {
            add_count(&mut self.counts[*group], *count)?;
        }
        Ok(())
    }

    fn take_state(&mut self) -> Result<Vec<ArrayRef>, Error> {
        let mut state = self.sum.take_state()?;
        state.push(Arc::new(Int64Array::from(std::mem::take(&mut self.counts))));
        Ok(state)
    }

    fn evaluate(&self, groups: &[usize]) -> Result<Evaluated, Error> {
        let data_type = self.sum.average_type();
        let DataType::Decimal128(_, scale) = data_type else {
            let means = groups.iter().map(|group| match self.sum.total(*group) {
                Total::Float(sum) if self.counts[*group] > 0 => {
                    #[expect(clippy::cast_precision_loss, reason = "a count above 2^53 is not")]
                    let count = self.counts[*group] as f64;
                    // A mean too small for a double is 0 on both sides of it.
                    Some(sum / count + 0.0)
                }
                _ => None,
            });
            let means: ArrayRef = Arc::new(Float64Array::from_iter(means));
            return Ok(means.into());
        };
        let digits = u32::try_from(scale - self.sum.scale()).unwrap_or(0);
        let mut bad = Vec::new();
        let means = groups.iter().enumerate().map(|(at, group)| {
            let count = self.counts[*group];
            match self.sum.total(*group) {
                Total::Exact(sum) if count > 0 => {
                    check_decimal(at, divide(sum, count, digits), &mut bad)
                }
                _ => None,
            }
        });
        let means = Decimal128Array::from_iter(means).with_precision_and_scale(38, scale)?;
        Ok(Evaluated {
            values: Arc::new(means),
            bad,
        })
    }

    fn size(&self) -> usize {
        self.sum.size() + self.counts.capacity() * size_of::<i64>()
    }
}
