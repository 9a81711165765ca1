//! `min(x)` and `max(x)`, and so `bool_and(x)` and `bool_or(x)`. State: the argument's type, NULL where no
//! value was seen.
//!
//! Floats are ordered -NaN < -Inf < ... < -0 < 0 < ... < Inf < NaN, text by its bytes.

use std::cmp::Ordering;
use std::fmt::Debug;
use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, ArrowNativeTypeOp, AsArray, BinaryArray, BooleanArray, PrimitiveArray,
    StringArray,
};
use arrow::buffer::NullBuffer;
use arrow::datatypes::{ArrowPrimitiveType, DataType};

use super::{Accumulator, Error, Evaluated, Rows, argument, columns, typed};

/// Which end.
#[derive(Clone, Copy, Debug)]
pub(super) enum Side {
    Min,
    Max,
}

impl Side {
    fn replaces(self, order: Ordering) -> bool {
        match self {
            Side::Min => order == Ordering::Less,
            Side::Max => order == Ordering::Greater,
        }
    }
}

/// All types with a fixed-width native value.
#[derive(Debug)]
pub(super) struct PrimitiveMinMax<T: ArrowPrimitiveType> {
    best: Vec<T::Native>,
    seen: Vec<bool>,
    data_type: DataType,
    side: Side,
}

impl<T: ArrowPrimitiveType> PrimitiveMinMax<T>
where
    T::Native: ArrowNativeTypeOp,
{
    pub(super) fn new(data_type: DataType, side: Side) -> Self {
        Self {
            best: Vec::new(),
            seen: Vec::new(),
            data_type,
            side,
        }
    }

    fn make_room(&mut self, groups_n: usize) {
        self.best.resize(groups_n, T::Native::default());
        self.seen.resize(groups_n, false);
    }

    fn offer(&mut self, group: usize, value: T::Native) {
        if !self.seen[group] || self.side.replaces(value.compare(self.best[group])) {
            self.best[group] = value;
            self.seen[group] = true;
        }
    }
}

impl<T: ArrowPrimitiveType + Debug> Accumulator for PrimitiveMinMax<T>
where
    T::Native: ArrowNativeTypeOp,
{
    fn update(&mut self, arg: Option<&ArrayRef>, rows: &Rows<'_>) -> Result<(), Error> {
        let arg: &PrimitiveArray<T> = typed(argument(arg)?)?;
        self.make_room(rows.groups_n);
        let values = arg.values();
        rows.for_each(arg.nulls(), |row, group| self.offer(group, values[row]));
        Ok(())
    }

    fn merge(
        &mut self,
        state: &[ArrayRef],
        groups: &[usize],
        groups_n: usize,
    ) -> Result<(), Error> {
        let [best] = columns(state)?;
        let best: &PrimitiveArray<T> = typed(best)?;
        self.make_room(groups_n);
        for (group, value) in groups.iter().zip(best) {
            if let Some(value) = value {
                self.offer(*group, value);
            }
        }
        Ok(())
    }

    fn take_state(&mut self) -> Result<Vec<ArrayRef>, Error> {
        let seen = std::mem::take(&mut self.seen);
        let nulls = seen.contains(&false).then(|| NullBuffer::from(seen));
        let best = PrimitiveArray::<T>::new(std::mem::take(&mut self.best).into(), nulls);
        Ok(vec![Arc::new(best.with_data_type(self.data_type.clone()))])
    }

    fn evaluate(&self, groups: &[usize]) -> Result<Evaluated, Error> {
        let best = PrimitiveArray::<T>::from_iter(
            groups
                .iter()
                .map(|group| self.seen[*group].then_some(self.best[*group])),
        );
        let best: ArrayRef = Arc::new(best.with_data_type(self.data_type.clone()));
        Ok(best.into())
    }

    fn size(&self) -> usize {
        self.best.capacity() * size_of::<T::Native>() + self.seen.capacity()
    }
}

/// BOOLEAN: false < true.
#[derive(Debug)]
pub(super) struct BooleanMinMax {
    best: Vec<Option<bool>>,
    side: Side,
}

impl BooleanMinMax {
    pub(super) fn new(side: Side) -> Self {
        Self {
            best: Vec::new(),
            side,
        }
    }

    fn offer(&mut self, group: usize, value: bool) {
        if self.best[group].is_none_or(|best| self.side.replaces(value.cmp(&best))) {
            self.best[group] = Some(value);
        }
    }
}

impl Accumulator for BooleanMinMax {
    fn update(&mut self, arg: Option<&ArrayRef>, rows: &Rows<'_>) -> Result<(), Error> {
        let arg: &BooleanArray = typed(argument(arg)?)?;
        self.best.resize(rows.groups_n, None);
        rows.for_each(arg.nulls(), |row, group| self.offer(group, arg.value(row)));
        Ok(())
    }

    fn merge(
        &mut self,
        state: &[ArrayRef],
        groups: &[usize],
        groups_n: usize,
    ) -> Result<(), Error> {
        let [best] = columns(state)?;
        let best: &BooleanArray = typed(best)?;
        self.best.resize(groups_n, None);
        for (group, value) in groups.iter().zip(best) {
            if let Some(value) = value {
                self.offer(*group, value);
            }
        }
        Ok(())
    }

    fn take_state(&mut self) -> Result<Vec<ArrayRef>, Error> {
        Ok(vec![Arc::new(BooleanArray::from(std::mem::take(
            &mut self.best,
        )))])
    }

    fn evaluate(&self, groups: &[usize]) -> Result<Evaluated, Error> {
        let best: ArrayRef = Arc::new(BooleanArray::from_iter(
            groups.iter().map(|group| self.best[*group]),
        ));
        Ok(best.into())
    }

    fn size(&self) -> usize {
        self.best.capacity() * size_of::<Option<bool>>()
    }
}

/// TEXT and BYTEA.
#[derive(Debug)]
pub(super) struct BytesMinMax {
    best: Vec<Option<Box<[u8]>>>,
    bytes: usize,
    data_type: DataType,
    side: Side,
}

impl BytesMinMax {
    pub(super) fn new(data_type: DataType, side: Side) -> Self {
        Self {
            best: Vec::new(),
            bytes: 0,
            data_type,
            side,
        }
    }

    fn offer(&mut self, group: usize, value: &[u8]) {
        let best = &mut self.best[group];
        if best
            .as_deref()
            .is_none_or(|best| self.side.replaces(value.cmp(best)))
        {
            self.bytes += value.len();
            self.bytes -= best.as_ref().map_or(0, |best| best.len());
            *best = Some(value.into());
        }
    }

    fn array<'a>(&self, values: impl Iterator<Item = Option<&'a [u8]>>) -> Result<ArrayRef, Error> {
        Ok(match self.data_type {
            DataType::Binary => Arc::new(BinaryArray::from_iter(values)),
            _ => Arc::new(StringArray::try_from_binary(BinaryArray::from_iter(
                values,
            ))?),
        })
    }

    fn take(&mut self, column: &ArrayRef, mut visit: impl FnMut(&mut Self, &dyn BytesAt)) {
        match self.data_type {
            DataType::Binary => visit(self, column.as_binary::<i32>()),
            _ => visit(self, column.as_string::<i32>()),
        }
    }

    fn check(&self, column: &ArrayRef) -> Result<(), Error> {
        if *column.data_type() == self.data_type {
            Ok(())
        } else {
            Err(Error::State(format!("a column is {}", column.data_type())))
        }
    }
}

/// The bytes of a TEXT or BYTEA value.
trait BytesAt {
    fn bytes_at(&self, idx: usize) -> Option<&[u8]>;
}

impl BytesAt for BinaryArray {
    fn bytes_at(&self, idx: usize) -> Option<&[u8]> {
        self.is_valid(idx).then(|| self.value(idx))
    }
}

impl BytesAt for StringArray {
    fn bytes_at(&self, idx: usize) -> Option<&[u8]> {
        self.is_valid(idx).then(|| self.value(idx).as_bytes())
    }
}

impl Accumulator for BytesMinMax {
    fn update(&mut self, arg: Option<&ArrayRef>, rows: &Rows<'_>) -> Result<(), Error> {
        let arg = argument(arg)?;
        self.check(arg)?;
        self.best.resize(rows.groups_n, None);
        self.take(arg, |this, values| {
            rows.for_each(arg.nulls(), |row, group| {
                if let Some(value) = values.bytes_at(row) {
                    this.offer(group, value);
                }
            });
        });
        Ok(())
    }

    fn merge(
        &mut self,
        state: &[ArrayRef],
        groups: &[usize],
        groups_n: usize,
    ) -> Result<(), Error> {
        let [best] = columns(state)?;
        self.check(best)?;
        self.best.resize(groups_n, None);
        self.take(best, |this, values| {
            for (row, group) in groups.iter().enumerate() {
                if let Some(value) = values.bytes_at(row) {
                    this.offer(*group, value);
                }
            }
        });
        Ok(())
    }

    fn take_state(&mut self) -> Result<Vec<ArrayRef>, Error> {
        let best = std::mem::take(&mut self.best);
        self.bytes = 0;
        Ok(vec![self.array(best.iter().map(Option::as_deref))?])
    }

    fn evaluate(&self, groups: &[usize]) -> Result<Evaluated, Error> {
        Ok(self
            .array(groups.iter().map(|group| self.best[*group].as_deref()))?
            .into())
    }

    fn size(&self) -> usize {
        self.best.capacity() * size_of::<Option<Box<[u8]>>>() + self.bytes
    }
}
