//! Keyed state by slice: one active table per slice, and sealed, immutable parts (design §5.3).
//!
//! Owns: where a slice's groups are. Rows go to its active table; a barrier swaps all active tables
//! out, O(number of slices), into one sealed part that is converted elsewhere, or here if a window
//! must fire before. A new part takes over the rows of older ones up to twice its size, so that a
//! long window has few parts and each row is rewritten a logarithmic number of times.
//! Start at: [`SliceStore::table`], [`SliceStore::seal`].
//!
//! Invariant: a group of a slice may be in any number of places; merged, they are the group (G1).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BooleanArray, Int64Array};
use arrow::buffer::BooleanBuffer;
use arrow::compute::{filter_record_batch, take_record_batch};
use arrow::datatypes::{DataType, Field, Int64Type, Schema, SchemaRef};
use arrow::record_batch::RecordBatch;
use streamforge_core::ids::CheckpointId;

use crate::aggregate::Error;
use crate::group_table::{GroupTable, TableRows, TableShape, constant};
use crate::state::{PartRows, StatePart};

mod key_groups;
pub(crate) mod row_log;

pub(crate) use key_groups::sort_by_key_group;

/// Kind of the parts that hold slices.
pub const SLICES: &str = "slices";

/// Sealed parts that may wait for conversion; with more the checkpoint is declined (§5.3).
pub const UNCONVERTED_PARTS_MAX: usize = 2;

/// Key of the layout in a part's schema metadata (G3).
pub const LAYOUT: &str = "layout";

/// A slice, and a second number that keeps apart what must not be merged: for tumbling and hopping
/// windows the first window the rows count for, for sessions the watermark they came under.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SliceKey {
    /// Number of the slice.
    pub slice: i64,
    /// See the type.
    pub first: i64,
}

#[derive(Debug, Default)]
struct Slice {
    active: Option<GroupTable>,
    /// Groups moved out of an active table to be read, not in any part yet.
    settled: Vec<TableRows>,
}

#[derive(Debug)]
struct LivePart {
    part: Arc<StatePart>,
    keys: BTreeSet<SliceKey>,
}

/// See the module.
#[derive(Debug)]
pub struct SliceStore {
    shape: Arc<TableShape>,
    /// Number of key groups.
    groups_n: u32,
    slices: BTreeMap<SliceKey, Slice>,
    parts: Vec<LivePart>,
    sequence: u64,
}

impl SliceStore {
    /// A store without slices; `groups_n` is the number of key groups.
    pub fn new(shape: Arc<TableShape>, groups_n: u32) -> Self {
        Self {
            shape,
            groups_n,
            slices: BTreeMap::new(),
            parts: Vec::new(),
            sequence: 0,
        }
    }

    /// All slices that have rows, ascending.
    pub fn keys(&self) -> impl Iterator<Item = SliceKey> + '_ {
        self.slices.keys().copied()
    }

    /// Slices from `low` to below `high`, ascending.
    pub fn keys_between(&self, low: i64, high: i64) -> Vec<SliceKey> {
        let bound = |slice| SliceKey {
            slice,
            first: i64::MIN,
        };
        if low >= high {
            return Vec::new();
        }
        self.slices
            .range(bound(low)..bound(high))
            .map(|(key, _)| *key)
            .collect()
    }

    /// The table that takes a slice's rows.
    pub fn table(&mut self, key: SliceKey) -> Result<&mut GroupTable, Error> {
        let slice = self.slices.entry(key).or_default();
        if slice.active.is_none() {
            slice.active = Some(GroupTable::new(&self.shape)?);
        }
        slice
            .active
            .as_mut()
            .ok_or_else(|| Error::State("no active table".to_owned()))
    }

    /// Adds groups that another store moved out, not to be merged with what is there yet.
    pub fn add(&mut self, key: SliceKey, rows: TableRows) {
        if rows.rows > 0 {
            self.slices.entry(key).or_default().settled.push(rows);
        }
    }

    /// All pieces of a slice, as columns; the slice stays.
    pub fn pieces(&mut self, key: SliceKey) -> Result<Vec<TableRows>, Error> {
        let Some(slice) = self.slices.get_mut(&key) else {
            return Ok(Vec::new());
        };
        if let Some(mut active) = slice.active.take()
            && !active.is_empty()
        {
            slice.settled.push(active.take()?);
        }
        let mut pieces = slice.settled.clone();
        for live in self.parts.iter().filter(|live| live.keys.contains(&key)) {
            pieces.push(rows_of_slice(&self.shape, &live.part, key)?);
        }
        Ok(pieces)
    }

    /// Takes a slice out, as one table.
    pub fn consume(&mut self, key: SliceKey) -> Result<GroupTable, Error> {
        let mut slice = self.slices.remove(&key).unwrap_or_default();
        let mut table = match slice.active.take() {
            Some(active) => active,
            None => GroupTable::new(&self.shape)?,
        };
        for rows in &slice.settled {
            table.merge(rows)?;
        }
        for live in self.parts.iter().filter(|live| live.keys.contains(&key)) {
            table.merge(&rows_of_slice(&self.shape, &live.part, key)?)?;
        }
        self.forget(key);
        Ok(table)
    }

    /// Drops a slice.
    pub fn remove(&mut self, key: SliceKey) {
        self.slices.remove(&key);
        self.forget(key);
    }

    fn forget(&mut self, key: SliceKey) {
        self.parts.retain_mut(|live| {
            live.keys.remove(&key);
            !live.keys.is_empty()
        });
    }

    /// Freezes everything as of now, O(number of slices); later calls do not change it. `None`: too
    /// many parts wait for conversion, so this checkpoint must be declined.
    pub fn seal(&mut self, id: CheckpointId) -> Option<Vec<Arc<StatePart>>> {
        let waiting = self
            .parts
            .iter()
            .filter(|live| !live.part.is_converted())
            .count();
        if waiting >= UNCONVERTED_PARTS_MAX {
            return None;
        }
        let mut swapped = Vec::new();
        let mut rows_n = 0;
        for (key, slice) in &mut self.slices {
            let active = slice.active.take().filter(|active| !active.is_empty());
            let settled = std::mem::take(&mut slice.settled);
            rows_n += active.as_ref().map_or(0, GroupTable::len);
            rows_n += settled.iter().map(|rows| rows.rows).sum::<usize>();
            if active.is_some() || !settled.is_empty() {
                swapped.push(Sealed {
                    key: *key,
                    active,
                    settled,
                });
            }
        }
        if !swapped.is_empty() {
            let part = self.seal_part(id, swapped, rows_n);
            self.parts.push(part);
        }
        Some(
            self.parts
                .iter()
                .map(|live| Arc::clone(&live.part))
                .collect(),
        )
    }

    fn seal_part(&mut self, id: CheckpointId, swapped: Vec<Sealed>, mut rows_n: usize) -> LivePart {
        let mut keys: BTreeSet<SliceKey> = swapped.iter().map(|sealed| sealed.key).collect();
        let mut absorbed = Vec::new();
        while let Some(last) = self.parts.last()
            && last.part.is_converted()
            && let Ok(rows) = last.part.rows()
            && rows.rows.num_rows() <= 2 * rows_n
        {
            rows_n += rows.rows.num_rows();
            if let Some(last) = self.parts.pop() {
                keys.extend(&last.keys);
                absorbed.push(last);
            }
        }
        let (shape, groups_n) = (Arc::clone(&self.shape), self.groups_n);
        let convert = move || {
            convert(&shape, groups_n, swapped, &absorbed).map_err(|error| error.to_string())
        };
        self.sequence += 1;
        let part = StatePart::sealed(SLICES, id, self.sequence, Box::new(convert));
        LivePart {
            part: Arc::new(part),
            keys,
        }
    }

    /// Takes a part read back from the store; rows of slices that `is_live` denies are ignored. Its
    /// error is that of a slice that cannot be.
    pub fn load(
        &mut self,
        part: StatePart,
        is_live: impl Fn(SliceKey) -> Result<bool, Error>,
    ) -> Result<(), Error> {
        let rows = part.rows().map_err(Error::State)?;
        self.check_layout(&rows.rows)?;
        let keys = live_keys(&rows.rows, is_live)?;
        for key in &keys {
            self.slices.entry(*key).or_default();
        }
        if !keys.is_empty() {
            self.parts.push(LivePart {
                part: Arc::new(part),
                keys,
            });
        }
        Ok(())
    }

    /// Takes all rows of another store; its parts stay what they are, and where they are stored.
    pub fn absorb(&mut self, other: SliceStore) -> Result<(), Error> {
        for (key, theirs) in other.slices {
            let slice = self.slices.entry(key).or_default();
            slice.settled.extend(theirs.settled);
            if let Some(mut active) = theirs.active
                && !active.is_empty()
            {
                slice.settled.push(active.take()?);
            }
        }
        self.parts.extend(other.parts);
        self.sequence = self.sequence.max(other.sequence);
        // New parts take over the last ones, and these must be the smallest.
        let rows_n = |live: &LivePart| match live.part.is_converted() {
            true => live.part.rows().map_or(0, |rows| rows.rows.num_rows()),
            false => 0,
        };
        self.parts
            .sort_by_key(|live| std::cmp::Reverse(rows_n(live)));
        Ok(())
    }

    fn check_layout(&self, rows: &RecordBatch) -> Result<(), Error> {
        let schema = rows.schema();
        let found = schema.metadata().get(LAYOUT).cloned().unwrap_or_default();
        let expected = self.shape.layout();
        if found != expected {
            return Err(Error::State(format!(
                "stored layout is `{found}`, this program's `{expected}`"
            )));
        }
        check_form(rows, &part_schema(&self.shape))
    }

    /// Bytes held, shared parts included.
    pub fn size(&self) -> usize {
        let slice = |slice: &Slice| {
            let columns = slice.settled.iter().flat_map(|rows| &rows.columns);
            slice.active.as_ref().map_or(0, GroupTable::size)
                + columns
                    .map(|column| column.get_array_memory_size())
                    .sum::<usize>()
        };
        let part = |live: &LivePart| match live.part.is_converted() {
            true => live
                .part
                .rows()
                .map_or(0, |rows| rows.rows.get_array_memory_size()),
            false => 0,
        };
        self.slices.values().map(slice).sum::<usize>() + self.parts.iter().map(part).sum::<usize>()
    }
}

/// Whether stored rows have the columns that their layout promises. Names may differ.
pub(crate) fn check_form(rows: &RecordBatch, expected: &Schema) -> Result<(), Error> {
    let fields = expected.fields();
    let is_like = |(column, field): (&ArrayRef, &Arc<Field>)| {
        column.data_type().equals_datatype(field.data_type())
            && (field.is_nullable() || column.null_count() == 0)
    };
    let columns = rows.columns();
    if columns.len() == fields.len() && columns.iter().zip(fields).all(is_like) {
        return Ok(());
    }
    Err(Error::State(
        "stored rows have other columns than their layout promises".to_owned(),
    ))
}

struct Sealed {
    key: SliceKey,
    active: Option<GroupTable>,
    settled: Vec<TableRows>,
}

fn part_schema(shape: &TableShape) -> SchemaRef {
    let mut fields = vec![
        Field::new("_slice", DataType::Int64, false),
        Field::new("_first", DataType::Int64, false),
    ];
    for (idx, data_type) in shape.column_types().enumerate() {
        let name = match idx.checked_sub(shape.keys_n()) {
            None => format!("k{idx}"),
            Some(state) => format!("s{state}"),
        };
        fields.push(Field::new(name, data_type.clone(), true));
    }
    let metadata = [(LAYOUT.to_owned(), shape.layout())];
    Arc::new(Schema::new_with_metadata(fields, metadata.into()))
}

fn convert(
    shape: &Arc<TableShape>,
    groups_n: u32,
    swapped: Vec<Sealed>,
    absorbed: &[LivePart],
) -> Result<PartRows, Error> {
    let mut swapped: BTreeMap<SliceKey, Sealed> = swapped
        .into_iter()
        .map(|sealed| (sealed.key, sealed))
        .collect();
    for key in absorbed.iter().flat_map(|live| &live.keys) {
        let none = Sealed {
            key: *key,
            active: None,
            settled: Vec::new(),
        };
        swapped.entry(*key).or_insert(none);
    }
    let mut slices = Vec::with_capacity(swapped.len());
    for (key, mut sealed) in swapped {
        for live in absorbed.iter().filter(|live| live.keys.contains(&key)) {
            sealed.settled.push(rows_of_slice(shape, &live.part, key)?);
        }
        slices.push((key, join(shape, sealed)?));
    }
    let pieces: Vec<TableRows> = slices.iter().map(|(_, rows)| rows.clone()).collect();
    let all = if pieces.is_empty() {
        TableRows::empty(shape)
    } else {
        TableRows::concat(&pieces)?
    };
    let number = |of: fn(SliceKey) -> i64| -> ArrayRef {
        let values = slices
            .iter()
            .flat_map(|(key, rows)| std::iter::repeat_n(of(*key), rows.rows));
        Arc::new(Int64Array::from_iter_values(values))
    };
    let mut columns = vec![number(|key| key.slice), number(|key| key.first)];
    columns.extend(all.columns.iter().cloned());
    let rows = RecordBatch::try_new(part_schema(shape), columns)?;
    let keys = all.columns.get(..shape.keys_n()).unwrap_or_default();
    let (order, groups) = sort_by_key_group(keys, all.rows, groups_n)?;
    Ok(PartRows {
        rows: take_record_batch(&rows, &order)?,
        groups,
    })
}

fn join(shape: &Arc<TableShape>, sealed: Sealed) -> Result<TableRows, Error> {
    if sealed.active.is_none()
        && let [rows] = sealed.settled.as_slice()
    {
        return Ok(rows.clone());
    }
    let mut table = match sealed.active {
        Some(active) => active,
        None => GroupTable::new(shape)?,
    };
    for rows in &sealed.settled {
        table.merge(rows)?;
    }
    table.take()
}

fn number_column(rows: &RecordBatch, idx: usize) -> Result<&Int64Array, Error> {
    rows.columns()
        .get(idx)
        .and_then(|column| column.as_primitive_opt::<Int64Type>())
        .ok_or_else(|| Error::State("a part without slice numbers".to_owned()))
}

/// The live slices of stored rows, each judged once.
fn live_keys(
    rows: &RecordBatch,
    is_live: impl Fn(SliceKey) -> Result<bool, Error>,
) -> Result<BTreeSet<SliceKey>, Error> {
    let (slices, firsts) = (number_column(rows, 0)?, number_column(rows, 1)?);
    let key = |(slice, first): (&i64, &i64)| SliceKey {
        slice: *slice,
        first: *first,
    };
    let all = slices.values().iter().zip(firsts.values()).map(key);
    let all: BTreeSet<SliceKey> = all.collect();
    let judged = all.into_iter().map(|key| Ok((key, is_live(key)?)));
    let live = judged.filter_map(|judged| match judged {
        Ok((key, live)) => live.then_some(Ok(key)),
        Err(error) => Some(Err(error)),
    });
    live.collect()
}

fn rows_of_slice(shape: &TableShape, part: &StatePart, key: SliceKey) -> Result<TableRows, Error> {
    let rows = part.rows().map_err(Error::State)?;
    filter_slice(shape, &rows.rows, key)
}

fn filter_slice(shape: &TableShape, rows: &RecordBatch, key: SliceKey) -> Result<TableRows, Error> {
    let slices = number_column(rows, 0)?.values();
    let firsts = number_column(rows, 1)?.values();
    let keep = BooleanBuffer::collect_bool(rows.num_rows(), |row| {
        slices.get(row) == Some(&key.slice) && firsts.get(row) == Some(&key.first)
    });
    let filtered = if keep.count_set_bits() == rows.num_rows() {
        rows.clone()
    } else {
        filter_record_batch(rows, &BooleanArray::new(keep, None))?
    };
    let columns = filtered.columns().get(2..).unwrap_or_default().to_vec();
    if columns.len() != shape.keys_n() + shape.states_n() {
        return Err(Error::State(format!("{} columns in a part", columns.len())));
    }
    Ok(TableRows {
        columns,
        rows: filtered.num_rows(),
    })
}

/// The columns in which partial groups cross the shuffle: keys, slice, first window, states.
pub(crate) fn partial_columns(key: SliceKey, rows: TableRows, keys_n: usize) -> Vec<ArrayRef> {
    let mut columns = rows.columns;
    let numbers = [
        constant(key.slice, rows.rows),
        constant(key.first, rows.rows),
    ];
    columns.splice(keys_n..keys_n, numbers);
    columns
}

#[cfg(test)]
mod tests;
