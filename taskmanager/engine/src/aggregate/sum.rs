//! `sum(x)` in a type wide enough for any number of rows; only the result must fit.
//!
//! State: integers DECIMAL128(38,0) holding an i128, decimals DECIMAL256(76,s), floats DOUBLE; NULL
//! where no value was seen.

use std::fmt::Debug;
use std::marker::PhantomData;
use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, Decimal128Array, Decimal256Array, Float64Array, Int64Array,
    PrimitiveArray,
};
use arrow::buffer::NullBuffer;
use arrow::datatypes::{ArrowPrimitiveType, DataType, Decimal128Type, Decimal256Type, i256};

use super::{Accumulator, Error, Evaluated, Rows, argument, columns, typed};

/// Largest absolute value of DECIMAL(38, s) plus one: 10^38.
const DECIMAL_38_LIMIT: i128 = 10_i128.pow(38);

/// What a sum of integers is given as.
#[derive(Clone, Copy, Debug)]
pub(super) enum IntResult {
    /// BIGINT
    BigInt,
    /// DECIMAL(38,0)
    Decimal,
}

/// A running sum that `avg` can divide.
pub(super) trait Sum: Accumulator {
    /// Exact sum and its scale, or a float.
    fn total(&self, group: usize) -> Total;
    /// Digits after the point of an exact sum.
    fn scale(&self) -> i8;
    /// Type of `avg`.
    fn average_type(&self) -> DataType;
}

/// A group's sum.
pub(super) enum Total {
    /// Unscaled value.
    Exact(i256),
    /// Floating sum.
    Float(f64),
}

/// DECIMAL(38, min(s + 6, 38)).
pub(super) fn average_scale(scale: i8) -> i8 {
    (scale + 6).min(38)
}

fn nulls(seen: &[bool]) -> Option<NullBuffer> {
    seen.iter()
        .any(|seen| !seen)
        .then(|| NullBuffer::from(seen))
}

/// Sum of INT or BIGINT in an i128.
#[derive(Debug)]
pub(super) struct IntSum<T> {
    sums: Vec<i128>,
    seen: Vec<bool>,
    result: IntResult,
    arg: PhantomData<fn() -> T>,
}

impl<T> IntSum<T> {
    pub(super) fn new(result: IntResult) -> Self {
        Self {
            sums: Vec::new(),
            seen: Vec::new(),
            result,
            arg: PhantomData,
        }
    }

    fn make_room(&mut self, groups_n: usize) {
        self.sums.resize(groups_n, 0);
        self.seen.resize(groups_n, false);
    }
}

impl<T> Accumulator for IntSum<T>
where
    T: ArrowPrimitiveType + Debug,
    T::Native: Into<i128>,
{
    fn update(&mut self, arg: Option<&ArrayRef>, rows: &Rows<'_>) -> Result<(), Error> {
        let arg: &PrimitiveArray<T> = typed(argument(arg)?)?;
        self.make_room(rows.groups_n);
        let (sums, seen, values) = (&mut self.sums, &mut self.seen, arg.values());
        rows.for_each(arg.nulls(), |row, group| {
            // i64::MIN x 2^63 rows still fits an i128: this cannot overflow.
            sums[group] = sums[group].wrapping_add(values[row].into());
            seen[group] = true;
        });
        Ok(())
    }

    fn merge(
        &mut self,
        state: &[ArrayRef],
        groups: &[usize],
        groups_n: usize,
    ) -> Result<(), Error> {
        let [sums] = columns(state)?;
        let sums: &Decimal128Array = typed(sums)?;
        self.make_room(groups_n);
        for (group, sum) in groups.iter().zip(sums) {
            if let Some(sum) = sum {
                self.sums[*group] = self.sums[*group].wrapping_add(sum);
                self.seen[*group] = true;
            }
        }
        Ok(())
    }

    fn take_state(&mut self) -> Result<Vec<ArrayRef>, Error> {
        let seen = std::mem::take(&mut self.seen);
        let sums = std::mem::take(&mut self.sums);
        let sums = PrimitiveArray::<Decimal128Type>::new(sums.into(), nulls(&seen))
            .with_precision_and_scale(38, 0)?;
        Ok(vec![Arc::new(sums)])
    }

    fn evaluate(&self, groups: &[usize]) -> Result<Evaluated, Error> {
        let mut bad = Vec::new();
        let values: ArrayRef = match self.result {
            IntResult::BigInt => Arc::new(Int64Array::from_iter(groups.iter().enumerate().map(
                |(at, group)| {
                    let sum = self.seen[*group].then_some(self.sums[*group])?;
                    i64::try_from(sum)
                        .map_err(|_| bad.push((at, format!("sum {sum} is out of range of BIGINT"))))
                        .ok()
                },
            ))),
            IntResult::Decimal => {
                let values = groups.iter().enumerate().map(|(at, group)| {
                    let sum = self.seen[*group].then_some(self.sums[*group])?;
                    check_decimal(at, Some(sum), &mut bad)
                });
                Arc::new(Decimal128Array::from_iter(values).with_precision_and_scale(38, 0)?)
            }
        };
        Ok(Evaluated { values, bad })
    }

    fn size(&self) -> usize {
        self.sums.capacity() * size_of::<i128>() + self.seen.capacity()
    }
}

impl<T> Sum for IntSum<T>
where
    T: ArrowPrimitiveType + Debug,
    T::Native: Into<i128>,
{
    fn total(&self, group: usize) -> Total {
        Total::Exact(i256::from_i128(self.sums[group]))
    }

    fn scale(&self) -> i8 {
        0
    }

    fn average_type(&self) -> DataType {
        DataType::Decimal128(38, average_scale(0))
    }
}

/// `value` if it fits DECIMAL(38, s), else a bad row.
pub(super) fn check_decimal(
    at: usize,
    value: Option<i128>,
    bad: &mut Vec<(usize, String)>,
) -> Option<i128> {
    let fits = value.filter(|value| value.unsigned_abs() < DECIMAL_38_LIMIT.unsigned_abs());
    if fits.is_none() {
        bad.push((at, "result has more than 38 digits".to_owned()));
    }
    fits
}

/// Sum of DECIMAL in an i256.
#[derive(Debug)]
pub(super) struct DecimalSum {
    sums: Vec<i256>,
    seen: Vec<bool>,
    scale: i8,
}

impl DecimalSum {
    pub(super) fn new(scale: i8) -> Self {
        Self {
            sums: Vec::new(),
            seen: Vec::new(),
            scale,
        }
    }

    fn make_room(&mut self, groups_n: usize) {
        self.sums.resize(groups_n, i256::ZERO);
        self.seen.resize(groups_n, false);
    }
}

impl Accumulator for DecimalSum {
    fn update(&mut self, arg: Option<&ArrayRef>, rows: &Rows<'_>) -> Result<(), Error> {
        let arg: &Decimal128Array = typed(argument(arg)?)?;
        self.make_room(rows.groups_n);
        let (sums, seen, values) = (&mut self.sums, &mut self.seen, arg.values());
        rows.for_each(arg.nulls(), |row, group| {
            // 2^127 x 2^63 rows is below 2^255: this cannot overflow.
            sums[group] = sums[group].wrapping_add(i256::from_i128(values[row]));
            seen[group] = true;
        });
        Ok(())
    }

    fn merge(
        &mut self,
        state: &[ArrayRef],
        groups: &[usize],
        groups_n: usize,
    ) -> Result<(), Error> {
        let [sums] = columns(state)?;
        let sums: &Decimal256Array = typed(sums)?;
        self.make_room(groups_n);
        for (group, sum) in groups.iter().zip(sums) {
            if let Some(sum) = sum {
                self.sums[*group] = self.sums[*group].wrapping_add(sum);
                self.seen[*group] = true;
            }
        }
        Ok(())
    }

    fn take_state(&mut self) -> Result<Vec<ArrayRef>, Error> {
        let seen = std::mem::take(&mut self.seen);
        let sums = std::mem::take(&mut self.sums);
        let sums = PrimitiveArray::<Decimal256Type>::new(sums.into(), nulls(&seen))
            .with_precision_and_scale(76, self.scale)?;
        Ok(vec![Arc::new(sums)])
    }

    fn evaluate(&self, groups: &[usize]) -> Result<Evaluated, Error> {
        let mut bad = Vec::new();
        let values = groups.iter().enumerate().map(|(at, group)| {
            let sum = self.seen[*group].then_some(self.sums[*group])?;
            check_decimal(at, sum.to_i128(), &mut bad)
        });
        let values = Decimal128Array::from_iter(values).with_precision_and_scale(38, self.scale)?;
        Ok(Evaluated {
            values: Arc::new(values),
            bad,
        })
    }

    fn size(&self) -> usize {
        self.sums.capacity() * size_of::<i256>() + self.seen.capacity()
    }
}

impl Sum for DecimalSum {
    fn total(&self, group: usize) -> Total {
        Total::Exact(self.sums[group])
    }

    fn scale(&self) -> i8 {
        self.scale
    }

    fn average_type(&self) -> DataType {
        DataType::Decimal128(38, average_scale(self.scale))
    }
}

/// Sum of REAL or DOUBLE in a double.
#[derive(Debug)]
pub(super) struct FloatSum<T> {
    sums: Vec<f64>,
    seen: Vec<bool>,
    arg: PhantomData<fn() -> T>,
}

impl<T> Default for FloatSum<T> {
    fn default() -> Self {
        Self {
            sums: Vec::new(),
            seen: Vec::new(),
            arg: PhantomData,
        }
    }
}

impl<T> FloatSum<T> {
    fn make_room(&mut self, groups_n: usize) {
        self.sums.resize(groups_n, 0.0);
        self.seen.resize(groups_n, false);
    }
}

impl<T> Accumulator for FloatSum<T>
where
    T: ArrowPrimitiveType + Debug,
    T::Native: Into<f64>,
{
    fn update(&mut self, arg: Option<&ArrayRef>, rows: &Rows<'_>) -> Result<(), Error> {
        let arg: &PrimitiveArray<T> = argument(arg)?.as_primitive();
        self.make_room(rows.groups_n);
        let (sums, seen, values) = (&mut self.sums, &mut self.seen, arg.values());
        rows.for_each(arg.nulls(), |row, group| {
            sums[group] += values[row].into();
            seen[group] = true;
        });
        Ok(())
    }

    fn merge(
        &mut self,
        state: &[ArrayRef],
        groups: &[usize],
        groups_n: usize,
    ) -> Result<(), Error> {
        let [sums] = columns(state)?;
        let sums: &Float64Array = typed(sums)?;
        self.make_room(groups_n);
        for (group, sum) in groups.iter().zip(sums) {
            if let Some(sum) = sum {
                self.sums[*group] += sum;
                self.seen[*group] = true;
            }
        }
        Ok(())
    }

    fn take_state(&mut self) -> Result<Vec<ArrayRef>, Error> {
        let seen = std::mem::take(&mut self.seen);
        let sums = std::mem::take(&mut self.sums);
        Ok(vec![Arc::new(Float64Array::new(sums.into(), nulls(&seen)))])
    }

    fn evaluate(&self, groups: &[usize]) -> Result<Evaluated, Error> {
        let values: ArrayRef = Arc::new(Float64Array::from_iter(
            groups
                .iter()
                .map(|group| self.seen[*group].then_some(self.sums[*group])),
        ));
        Ok(values.into())
    }

    fn size(&self) -> usize {
        self.sums.capacity() * size_of::<f64>() + self.seen.capacity()
    }
}

impl<T> Sum for FloatSum<T>
where
    T: ArrowPrimitiveType + Debug,
    T::Native: Into<f64>,
{
    fn total(&self, group: usize) -> Total {
        Total::Float(self.sums[group])
    }

    fn scale(&self) -> i8 {
        0
    }

    fn average_type(&self) -> DataType {
        DataType::Float64
    }
}
