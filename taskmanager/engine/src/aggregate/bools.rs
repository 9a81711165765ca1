//! `bool_and(x)` and `bool_or(x)`. State: BOOLEAN, NULL where no value was seen.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, BooleanArray};

use super::{Accumulator, Error, Evaluated, Rows, argument, columns, typed};

/// How values join.
#[derive(Clone, Copy, Debug)]
pub(super) enum Joins {
    And,
    Or,
}

/// All true, or any true.
#[derive(Debug)]
pub(super) struct Bools {
    joined: Vec<Option<bool>>,
    joins: Joins,
}

impl Bools {
    pub(super) fn new(joins: Joins) -> Self {
        Self {
            joined: Vec::new(),
            joins,
        }
    }

    fn join(&mut self, group: usize, value: bool) {
        let joined = &mut self.joined[group];
        *joined = Some(match (self.joins, *joined) {
            (_, None) => value,
            (Joins::And, Some(before)) => before && value,
            (Joins::Or, Some(before)) => before || value,
        });
    }
}

impl Accumulator for Bools {
    fn update(&mut self, arg: Option<&ArrayRef>, rows: &Rows<'_>) -> Result<(), Error> {
        let arg: &BooleanArray = typed(argument(arg)?)?;
        self.joined.resize(rows.groups_n, None);
        rows.for_each(arg.nulls(), |row, group| self.join(group, arg.value(row)));
        Ok(())
    }

    fn merge(
        &mut self,
        state: &[ArrayRef],
        groups: &[usize],
        groups_n: usize,
    ) -> Result<(), Error> {
        let [joined] = columns(state)?;
        let joined: &BooleanArray = typed(joined)?;
        self.joined.resize(groups_n, None);
        for (group, value) in groups.iter().zip(joined) {
            if let Some(value) = value {
                self.join(*group, value);
            }
        }
        Ok(())
    }

    fn take_state(&mut self) -> Result<Vec<ArrayRef>, Error> {
        Ok(vec![Arc::new(BooleanArray::from(std::mem::take(
            &mut self.joined,
        )))])
    }

    fn evaluate(&self, groups: &[usize]) -> Result<Evaluated, Error> {
        let joined: ArrayRef = Arc::new(BooleanArray::from_iter(
            groups.iter().map(|group| self.joined[*group]),
        ));
        Ok(joined.into())
    }

    fn size(&self) -> usize {
        self.joined.capacity() * size_of::<Option<bool>>()
    }
}
