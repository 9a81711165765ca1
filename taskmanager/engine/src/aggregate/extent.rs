//! Earliest and latest event time of a group: the extent of a session's fragment.
//!
//! State: two BIGINT columns. Every group has at least one row.

use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array};

use super::{Accumulator, Error, Evaluated, Rows, columns, typed};

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Extent {
    earliest: Vec<i64>,
    latest: Vec<i64>,
}

impl Extent {
    fn make_room(&mut self, groups_n: usize) {
        self.earliest.resize(groups_n, i64::MAX);
        self.latest.resize(groups_n, i64::MIN);
    }
}

impl Accumulator for Extent {
    fn update(&mut self, _: Option<&ArrayRef>, rows: &Rows<'_>) -> Result<(), Error> {
        self.make_room(rows.groups_n);
        for (group, time) in rows.groups.iter().zip(rows.event_time) {
            self.earliest[*group] = self.earliest[*group].min(*time);
            self.latest[*group] = self.latest[*group].max(*time);
        }
        Ok(())
    }

    fn merge(
        &mut self,
        state: &[ArrayRef],
        groups: &[usize],
        groups_n: usize,
    ) -> Result<(), Error> {
        let [earliest, latest] = columns(state)?;
        let earliest: &Int64Array = typed(earliest)?;
        let latest: &Int64Array = typed(latest)?;
        self.make_room(groups_n);
        for (row, group) in groups.iter().enumerate() {
            self.earliest[*group] = self.earliest[*group].min(earliest.value(row));
            self.latest[*group] = self.latest[*group].max(latest.value(row));
        }
        Ok(())
    }

    fn take_state(&mut self) -> Result<Vec<ArrayRef>, Error> {
        let (earliest, latest) = (
            std::mem::take(&mut self.earliest),
            std::mem::take(&mut self.latest),
        );
        Ok(vec![
            Arc::new(Int64Array::from(earliest)),
            Arc::new(Int64Array::from(latest)),
        ])
    }

    fn evaluate(&self, groups: &[usize]) -> Result<Evaluated, Error> {
        let latest: ArrayRef = Arc::new(Int64Array::from_iter_values(
            groups.iter().map(|group| self.latest[*group]),
        ));
        Ok(latest.into())
    }

    fn size(&self) -> usize {
        (self.earliest.capacity() + self.latest.capacity()) * size_of::<i64>()
    }
}
