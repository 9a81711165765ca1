//! `array_agg(x)`: all values, NULLs too, sorted by event time, then value (NULL last).
//!
//! State: BOOLEAN whether there were more than [`ARRAY_AGG_ITEMS_MAX`] items (then they are not kept
//! and the group is bad), list of BIGINT event times, list of values; NULL lists: no row.

use std::fmt;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, BooleanArray, Int64Array, ListArray};
use arrow::buffer::{NullBuffer, OffsetBuffer};
use arrow::datatypes::{DataType, Field};
use arrow::row::{RowConverter, SortField};

use super::{Accumulator, Error, Evaluated, Rows, argument, columns, typed};

/// Items a group may have; more make the group bad.
pub const ARRAY_AGG_ITEMS_MAX: usize = 10_000;

type Item = (i64, Box<[u8]>);

/// The items of each group; values are held in a comparable form, in memory only.
pub(super) struct ArrayAgg {
    groups: Vec<Items>,
    bytes: usize,
    converter: RowConverter,
    data_type: DataType,
}

#[derive(Clone, Debug, Default)]
struct Items {
    items: Vec<Item>,
    too_many: bool,
}

impl fmt::Debug for ArrayAgg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ArrayAgg")
            .field("groups", &self.groups.len())
            .field("data_type", &self.data_type)
            .finish_non_exhaustive()
    }
}

impl ArrayAgg {
    pub(super) fn new(data_type: DataType) -> Result<Self, Error> {
        let options = arrow::compute::SortOptions {
            descending: false,
            nulls_first: false,
        };
        let field = SortField::new_with_options(data_type.clone(), options);
        let converter = RowConverter::new(vec![field])?;
        Ok(Self {
            groups: Vec::new(),
            bytes: 0,
            converter,
            data_type,
        })
    }

    fn push(&mut self, group: usize, time: i64, value: &[u8]) {
        let items = &mut self.groups[group];
        if items.too_many {
            return;
        }
        if items.items.len() >= ARRAY_AGG_ITEMS_MAX {
            self.drop_items(group);
            return;
        }
        items.items.push((time, value.into()));
        self.bytes += value.len() + size_of::<Item>();
    }

    fn drop_items(&mut self, group: usize) {
        let items = &mut self.groups[group];
        items.too_many = true;
        let dropped = std::mem::take(&mut items.items);
        self.bytes -= dropped
            .iter()
            .map(|item| item.1.len() + size_of::<Item>())
            .sum::<usize>();
    }

    /// Times and values of these groups as lists.
    fn lists<'a>(
        &self,
        groups: impl Iterator<Item = &'a Items> + Clone,
    ) -> Result<(ListArray, ListArray), Error> {
        let mut sorted: Vec<&Item> = Vec::new();
        for group in groups.clone() {
            let start = sorted.len();
            sorted.extend(&group.items);
            if let Some(own) = sorted.get_mut(start..) {
                own.sort_unstable();
            }
        }
        let offsets = OffsetBuffer::<i32>::from_lengths(groups.clone().map(|g| g.items.len()));
        let nulls: NullBuffer = groups.map(|group| !group.items.is_empty()).collect();
        let nulls = (nulls.null_count() > 0).then_some(nulls);
        let times: ArrayRef = Arc::new(Int64Array::from_iter_values(
            sorted.iter().map(|item| item.0),
        ));
        let parser = self.converter.parser();
        let values = self
            .converter
            .convert_rows(sorted.iter().map(|item| parser.parse(&item.1)))?;
        let values = values
            .into_iter()
            .next()
            .ok_or_else(|| Error::State("no column".to_owned()))?;
        let field = |data_type: &DataType| Arc::new(Field::new("item", data_type.clone(), true));
        Ok((
            ListArray::try_new(
                field(times.data_type()),
                offsets.clone(),
                times,
                nulls.clone(),
            )?,
            ListArray::try_new(field(&self.data_type), offsets, values, nulls)?,
        ))
    }
}

impl Accumulator for ArrayAgg {
    fn update(&mut self, arg: Option<&ArrayRef>, rows: &Rows<'_>) -> Result<(), Error> {
        let values = self
            .converter
            .convert_columns(&[Arc::clone(argument(arg)?)])?;
        self.groups.resize(rows.groups_n, Items::default());
        rows.for_each(None, |row, group| {
            self.push(group, rows.event_time[row], values.row(row).data());
        });
        Ok(())
    }

    fn merge(
        &mut self,
        state: &[ArrayRef],
        groups: &[usize],
        groups_n: usize,
    ) -> Result<(), Error> {
        let [too_many, times, values] = columns(state)?;
        let too_many: &BooleanArray = typed(too_many)?;
        let times: &ListArray = typed(times)?;
        let values: &ListArray = typed(values)?;
        if times.value_offsets() != values.value_offsets() {
            return Err(Error::State(
                "times and values of array_agg do not pair".to_owned(),
            ));
        }
        // A sliced list still holds all items of its parent; only its own are converted.
        let at = |bound: i32| usize::try_from(bound).unwrap_or(0);
        let offsets = values.value_offsets();
        let start = offsets.first().map_or(0, |first| at(*first));
        let n = offsets.last().map_or(0, |last| at(*last)) - start;
        let item_times = times.values().slice(start, n);
        let item_times: &Int64Array = typed(&item_times)?;
        let items = self
            .converter
            .convert_columns(&[values.values().slice(start, n)])?;
        self.groups.resize(groups_n, Items::default());
        for (row, (group, bounds)) in groups.iter().zip(offsets.windows(2)).enumerate() {
            if too_many.value(row) {
                self.drop_items(*group);
            }
            for item in at(bounds[0]) - start..at(bounds[1]) - start {
                self.push(*group, item_times.value(item), items.row(item).data());
            }
        }
        Ok(())
    }

    fn take_state(&mut self) -> Result<Vec<ArrayRef>, Error> {
        let groups = std::mem::take(&mut self.groups);
        self.bytes = 0;
        let too_many: BooleanArray = groups.iter().map(|group| Some(group.too_many)).collect();
        let (times, values) = self.lists(groups.iter())?;
        Ok(vec![Arc::new(too_many), Arc::new(times), Arc::new(values)])
    }

    fn evaluate(&self, groups: &[usize]) -> Result<Evaluated, Error> {
        let (_, values) = self.lists(groups.iter().map(|group| &self.groups[*group]))?;
        let reason = || format!("array_agg has more than {ARRAY_AGG_ITEMS_MAX} items");
        let bad = groups
            .iter()
            .enumerate()
            .filter(|(_, group)| self.groups[**group].too_many);
        let bad = bad.map(|(at, _)| (at, reason())).collect();
        Ok(Evaluated {
            values: Arc::new(values),
            bad,
        })
    }

    fn size(&self) -> usize {
        self.groups.capacity() * size_of::<Items>() + self.bytes
    }
}
