//! `first_value(x)` and `last_value(x)` by event time.
//!
//! Of rows at the same time first takes the smallest and last the largest value; NULL is taken only
//! if all are NULL. A NULL at the earliest (latest) time alone is the result: NULLs are rows too.
//! State: BIGINT event time (NULL: no row), then the value.

use std::fmt;
use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array, new_null_array};
use arrow::compute::SortOptions;
use arrow::datatypes::DataType;
use arrow::row::{RowConverter, SortField};

use super::{Accumulator, Error, Evaluated, Rows, argument, columns, typed};

/// Which end of time.
#[derive(Clone, Copy, Debug)]
pub(super) enum End {
    First,
    Last,
}

/// The winning time and value of each group; values are held in a comparable form, in memory only.
pub(super) struct ByTime {
    best: Vec<Option<(i64, Box<[u8]>)>>,
    bytes: usize,
    converter: RowConverter,
    null: Box<[u8]>,
    end: End,
}

impl fmt::Debug for ByTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ByTime")
            .field("groups", &self.best.len())
            .field("end", &self.end)
            .finish_non_exhaustive()
    }
}

impl ByTime {
    pub(super) fn new(data_type: DataType, end: End) -> Result<Self, Error> {
        // In both orders NULL is what loses: the largest for first, the smallest for last.
        let options = SortOptions {
            descending: false,
            nulls_first: matches!(end, End::Last),
        };
        let null = new_null_array(&data_type, 1);
        let converter = RowConverter::new(vec![SortField::new_with_options(data_type, options)])?;
        let null = converter.convert_columns(&[null])?.row(0).data().into();
        Ok(Self {
            best: Vec::new(),
            bytes: 0,
            converter,
            null,
            end,
        })
    }

    fn offer(&mut self, group: usize, time: i64, value: &[u8]) {
        let best = &mut self.best[group];
        let wins = best
            .as_ref()
            .is_none_or(|(best_time, best_value)| match self.end {
                End::First => (time, value) < (*best_time, best_value),
                End::Last => (time, value) > (*best_time, best_value),
            });
        if wins {
            self.bytes += value.len();
            self.bytes -= best.as_ref().map_or(0, |(_, value)| value.len());
            *best = Some((time, value.into()));
        }
    }

    fn values<'a>(
        &self,
        values: impl Iterator<Item = Option<&'a [u8]>>,
    ) -> Result<ArrayRef, Error> {
        let parser = self.converter.parser();
        let null: &[u8] = &self.null;
        let values: Vec<&[u8]> = values.map(|value| value.unwrap_or(null)).collect();
        let rows = values.iter().map(|value| parser.parse(value));
        let columns = self.converter.convert_rows(rows)?;
        columns
            .into_iter()
            .next()
            .ok_or_else(|| Error::State("no column".to_owned()))
    }
}

impl Accumulator for ByTime {
    fn update(&mut self, arg: Option<&ArrayRef>, rows: &Rows<'_>) -> Result<(), Error> {
        let values = self
            .converter
            .convert_columns(&[Arc::clone(argument(arg)?)])?;
        self.best.resize(rows.groups_n, None);
        rows.for_each(None, |row, group| {
            self.offer(group, rows.event_time[row], values.row(row).data());
        });
        Ok(())
    }

    fn merge(
        &mut self,
        state: &[ArrayRef],
        groups: &[usize],
        groups_n: usize,
    ) -> Result<(), Error> {
        let [times, values] = columns(state)?;
        let times: &Int64Array = typed(times)?;
        let values = self.converter.convert_columns(&[Arc::clone(values)])?;
        self.best.resize(groups_n, None);
        for (row, (group, time)) in groups.iter().zip(times).enumerate() {
            if let Some(time) = time {
                self.offer(*group, time, values.row(row).data());
            }
        }
        Ok(())
    }

    fn take_state(&mut self) -> Result<Vec<ArrayRef>, Error> {
        let best = std::mem::take(&mut self.best);
        self.bytes = 0;
        let times = Int64Array::from_iter(best.iter().map(|best| best.as_ref().map(|b| b.0)));
        let values = self.values(best.iter().map(|best| best.as_ref().map(|b| &*b.1)))?;
        Ok(vec![Arc::new(times), values])
    }

    fn evaluate(&self, groups: &[usize]) -> Result<Evaluated, Error> {
        let best = groups
            .iter()
            .map(|group| self.best[*group].as_ref().map(|b| &*b.1));
        Ok(self.values(best)?.into())
    }

    fn size(&self) -> usize {
        self.best.capacity() * size_of::<Option<(i64, Box<[u8]>)>>() + self.bytes
    }
}
