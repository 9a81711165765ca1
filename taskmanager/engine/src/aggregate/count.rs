//! `count(*)` and `count(x)`. State: BIGINT.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, Int64Array};

use super::{Accumulator, Error, Evaluated, Rows, add_count, columns, typed};

/// Rows, or values that are not NULL.
#[derive(Debug, Default)]
pub(super) struct Count {
    counts: Vec<i64>,
}

impl Accumulator for Count {
    fn update(&mut self, arg: Option<&ArrayRef>, rows: &Rows<'_>) -> Result<(), Error> {
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
        let [counts] = columns(state)?;
        let counts: &Int64Array = typed(counts)?;
        self.counts.resize(groups_n, 0);
        for (group, count) in groups.iter().zip(counts.values()) {
            add_count(&mut self.counts[*group], *count)?;
        }
        Ok(())
    }

    fn take_state(&mut self) -> Result<Vec<ArrayRef>, Error> {
        Ok(vec![Arc::new(Int64Array::from(std::mem::take(
            &mut self.counts,
        )))])
    }

    fn evaluate(&self, groups: &[usize]) -> Result<Evaluated, Error> {
        let counts: ArrayRef = Arc::new(Int64Array::from_iter_values(
            groups.iter().map(|group| self.counts[*group]),
        ));
        Ok(counts.into())
    }

    fn size(&self) -> usize {
        self.counts.capacity() * size_of::<i64>()
    }
}
