//! `count(DISTINCT x)`: exact. State: a list of the distinct values, without NULL.

use std::fmt;
use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, Int64Array, ListArray, UInt32Array, UInt64Array, new_empty_array,
};
use arrow::buffer::OffsetBuffer;
use arrow::compute::take;
use arrow::datatypes::{DataType, Field, Schema, UInt64Type};
use datafusion_expr::EmitTo;
use datafusion_physical_plan::aggregates::group_values::{GroupValues, new_group_values};
use datafusion_physical_plan::aggregates::order::GroupOrdering;

use super::{Accumulator, Error, Evaluated, Rows, argument, columns, typed};
use crate::key_hash::grouping_form;

/// The distinct (group, value) pairs and their number per group.
pub(super) struct CountDistinct {
    pairs: Box<dyn GroupValues>,
    counts: Vec<i64>,
    scratch: Vec<usize>,
    data_type: DataType,
}

impl fmt::Debug for CountDistinct {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CountDistinct")
            .field("counts", &self.counts)
            .field("data_type", &self.data_type)
            .finish_non_exhaustive()
    }
}

impl CountDistinct {
    pub(super) fn new(data_type: DataType) -> Result<Self, Error> {
        let schema = Schema::new(vec![
            Field::new("group", DataType::UInt64, false),
            Field::new("value", data_type.clone(), true),
        ]);
        let pairs = new_group_values(Arc::new(schema), &GroupOrdering::None)?;
        Ok(Self {
            pairs,
            counts: Vec::new(),
            scratch: Vec::new(),
            data_type,
        })
    }

    fn add(&mut self, groups: UInt64Array, values: ArrayRef) -> Result<(), Error> {
        let mut known = self.pairs.len();
        let columns: [ArrayRef; 2] = [Arc::new(groups.clone()), grouping_form(&values)?];
        self.pairs.intern(&columns, &mut self.scratch)?;
        for (pair, group) in self.scratch.iter().zip(groups.values()) {
            // Ids are given in order of first sight, so the next one is a new pair.
            if *pair == known {
                known += 1;
                self.counts[index(*group)] += 1;
            }
        }
        Ok(())
    }
}

fn index(group: u64) -> usize {
    usize::try_from(group).expect("it was made from a usize")
}

impl Accumulator for CountDistinct {
    fn update(&mut self, arg: Option<&ArrayRef>, rows: &Rows<'_>) -> Result<(), Error> {
        let arg = argument(arg)?;
        self.counts.resize(rows.groups_n, 0);
        let mut groups = Vec::with_capacity(rows.groups.len());
        let mut kept = Vec::with_capacity(rows.groups.len());
        rows.for_each(arg.logical_nulls().as_ref(), |row, group| {
            groups.push(group as u64);
            kept.push(u32::try_from(row).unwrap_or(u32::MAX));
        });
        let values = if kept.len() == arg.len() {
            Arc::clone(arg)
        } else {
            take(arg, &UInt32Array::from(kept), None)?
        };
        self.add(UInt64Array::from(groups), values)
    }

    fn merge(
        &mut self,
        state: &[ArrayRef],
        groups: &[usize],
        groups_n: usize,
    ) -> Result<(), Error> {
        let [lists] = columns(state)?;
        let lists: &ListArray = typed(lists)?;
        self.counts.resize(groups_n, 0);
        let offsets = lists.value_offsets();
        let mut of_value = Vec::new();
        for (group, bounds) in groups.iter().zip(offsets.windows(2)) {
            let n = usize::try_from(bounds[1] - bounds[0]).unwrap_or(0);
            of_value.extend(std::iter::repeat_n(*group as u64, n));
        }
        let start = usize::try_from(offsets.first().copied().unwrap_or(0)).unwrap_or(0);
        let values = lists.values().slice(start, of_value.len());
        self.add(UInt64Array::from(of_value), values)
    }

    fn take_state(&mut self) -> Result<Vec<ArrayRef>, Error> {
        let counts = std::mem::take(&mut self.counts);
        let lengths = counts
            .iter()
            .map(|count| usize::try_from(*count).unwrap_or(0));
        let offsets = OffsetBuffer::<i32>::from_lengths(lengths);
        let field = Arc::new(Field::new("item", self.data_type.clone(), true));
        // A table that never had a row yields no columns at all.
        if self.pairs.is_empty() {
            let values = new_empty_array(&self.data_type);
            return Ok(vec![Arc::new(ListArray::try_new(
                field, offsets, values, None,
            )?)]);
        }
        let pairs = self.pairs.emit(EmitTo::All)?;
        let [groups, values] = columns(&pairs)?;
        let mut next: Vec<usize> = offsets
            .iter()
            .map(|offset| usize::try_from(*offset).unwrap_or(0))
            .collect();
        let mut order = vec![0u32; values.len()];
        for (row, group) in groups
            .as_primitive::<UInt64Type>()
            .values()
            .iter()
            .enumerate()
        {
            let place = &mut next[index(*group)];
            order[*place] = u32::try_from(row).unwrap_or(u32::MAX);
            *place += 1;
        }
        let values = take(values, &UInt32Array::from(order), None)?;
        Ok(vec![Arc::new(ListArray::try_new(
            field, offsets, values, None,
        )?)])
    }

    fn evaluate(&self, groups: &[usize]) -> Result<Evaluated, Error> {
        let counts: ArrayRef = Arc::new(Int64Array::from_iter_values(
            groups.iter().map(|group| self.counts[*group]),
        ));
        Ok(counts.into())
    }

    fn size(&self) -> usize {
        self.pairs.size() + self.counts.capacity() * size_of::<i64>()
    }
}
