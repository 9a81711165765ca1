//! Groups and their aggregates: one hash table of keys, one accumulator per aggregate.
//!
//! Owns: keys to group numbers (DataFusion's vectorised `GroupValues`), and moving all groups out as
//! Arrow columns. A table is filled by rows or by what other tables moved out, in any mixture.
//! Start at: [`GroupTable::update`]. Keys come in grouping form (`key_hash::grouping_form`) and go
//! out as they came in.

use std::fmt;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, Int64Array, new_empty_array};
use arrow::buffer::BooleanBuffer;
use arrow::compute::concat;
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion_expr::EmitTo;
use datafusion_physical_plan::aggregates::group_values::{GroupValues, new_group_values};
use datafusion_physical_plan::aggregates::order::GroupOrdering;

use crate::aggregate::extent::Extent;
use crate::aggregate::{Accumulator, Aggregate, Error, Rows};

/// Rows merged at a time: what they touch stays in cache.
const MERGE_ROWS: usize = 8192;

/// Whether a table keeps the earliest and latest event time of each group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extents {
    /// No.
    Ignored,
    /// Yes, as the first two state columns (sessions).
    Kept,
}

/// What the tables of one operator have in common.
#[derive(Debug)]
pub struct TableShape {
    keys: Vec<DataType>,
    aggregates: Vec<Aggregate>,
    extents: Extents,
    /// State columns of each accumulator.
    widths: Vec<usize>,
    states: Vec<DataType>,
}

impl TableShape {
    /// A shape with these key types and aggregates.
    pub fn new(
        keys: Vec<DataType>,
        aggregates: Vec<Aggregate>,
        extents: Extents,
    ) -> Result<Self, Error> {
        let mut widths = Vec::new();
        let mut states = Vec::new();
        if extents == Extents::Kept {
            widths.push(2);
            states.extend([DataType::Int64, DataType::Int64]);
        }
        for aggregate in &aggregates {
            let types = aggregate.state_types()?;
            widths.push(types.len());
            states.extend(types);
        }
        Ok(Self {
            keys,
            aggregates,
            extents,
            widths,
            states,
        })
    }

    /// Number of key columns.
    pub fn keys_n(&self) -> usize {
        self.keys.len()
    }

    /// Number of state columns.
    pub fn states_n(&self) -> usize {
        self.states.len()
    }

    /// Key types, then state types.
    pub fn column_types(&self) -> impl Iterator<Item = &DataType> {
        self.keys.iter().chain(&self.states)
    }

    /// The aggregates.
    pub fn aggregates(&self) -> &[Aggregate] {
        &self.aggregates
    }

    /// Names everything that the state columns depend on (G3).
    pub fn layout(&self) -> String {
        let keys: Vec<String> = self.keys.iter().map(ToString::to_string).collect();
        let aggregates: Vec<String> = self.aggregates.iter().map(Aggregate::layout).collect();
        let extents = match self.extents {
            Extents::Ignored => "",
            Extents::Kept => " extent/1",
        };
        format!(
            "keys [{}]{extents} aggregates [{}]",
            keys.join(", "),
            aggregates.join(", ")
        )
    }
}

/// Groups moved out of a table: key columns, then state columns.
#[derive(Clone, Debug)]
pub struct TableRows {
    /// Keys, then states.
    pub columns: Vec<ArrayRef>,
    /// Number of groups.
    pub rows: usize,
}

impl TableRows {
    /// No rows of this shape.
    pub fn empty(shape: &TableShape) -> Self {
        Self {
            columns: shape.column_types().map(new_empty_array).collect(),
            rows: 0,
        }
    }

    /// All rows of all pieces; they must not be none.
    pub fn concat(pieces: &[TableRows]) -> Result<Self, Error> {
        if let [piece] = pieces {
            return Ok(piece.clone());
        }
        let columns_n = pieces.first().map_or(0, |piece| piece.columns.len());
        let column = |idx: usize| {
            let arrays: Vec<&dyn Array> = pieces
                .iter()
                .filter_map(|p| p.columns.get(idx))
                .map(AsRef::as_ref)
                .collect();
            concat(&arrays)
        };
        let columns = (0..columns_n).map(column).collect::<Result<_, _>>()?;
        Ok(Self {
            columns,
            rows: pieces.iter().map(|piece| piece.rows).sum(),
        })
    }
}

/// Rows to add to a table.
#[derive(Debug)]
pub struct TableInput<'a> {
    /// Key columns in grouping form.
    pub keys: &'a [ArrayRef],
    /// Argument of each aggregate that has one.
    pub args: &'a [Option<ArrayRef>],
    /// Rows that each aggregate's filter keeps; `None`: all.
    pub keep: &'a [Option<BooleanBuffer>],
    /// Event time of each row.
    pub event_time: &'a [i64],
}

enum Keys {
    /// No key columns: one group, once there is a row.
    Constant {
        seen: bool,
    },
    Columns(Box<dyn GroupValues>),
}

/// See the module.
pub struct GroupTable {
    shape: Arc<TableShape>,
    keys: Keys,
    accumulators: Vec<Box<dyn Accumulator>>,
    groups: Vec<usize>,
}

impl fmt::Debug for GroupTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GroupTable")
            .field("groups", &self.len())
            .finish_non_exhaustive()
    }
}

fn key_schema(keys: &[DataType]) -> SchemaRef {
    let field = |(idx, key): (usize, &DataType)| Field::new(format!("k{idx}"), key.clone(), true);
    Arc::new(Schema::new(
        keys.iter().enumerate().map(field).collect::<Vec<_>>(),
    ))
}

impl GroupTable {
    /// A table without groups.
    pub fn new(shape: &Arc<TableShape>) -> Result<Self, Error> {
        let keys = if shape.keys.is_empty() {
            Keys::Constant { seen: false }
        } else {
            Keys::Columns(new_group_values(
                key_schema(&shape.keys),
                &GroupOrdering::None,
            )?)
        };
        let mut accumulators: Vec<Box<dyn Accumulator>> = Vec::new();
        if shape.extents == Extents::Kept {
            accumulators.push(Box::new(Extent::default()));
        }
        for aggregate in &shape.aggregates {
            accumulators.push(aggregate.accumulator()?);
        }
        Ok(Self {
            shape: Arc::clone(shape),
            keys,
            accumulators,
            groups: Vec::new(),
        })
    }

    /// Number of groups.
    pub fn len(&self) -> usize {
        match &self.keys {
            Keys::Constant { seen } => usize::from(*seen),
            Keys::Columns(values) => values.len(),
        }
    }

    /// True if there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Group numbers of these keys, new ones included. Numbers are given from 0 without gaps.
    pub fn intern(&mut self, keys: &[ArrayRef], rows: usize) -> Result<&[usize], Error> {
        match &mut self.keys {
            Keys::Constant { seen } => {
                *seen |= rows > 0;
                self.groups.clear();
                self.groups.resize(rows, 0);
            }
            Keys::Columns(values) => values.intern(keys, &mut self.groups)?,
        }
        Ok(&self.groups)
    }

    /// Adds rows.
    pub fn update(&mut self, input: &TableInput<'_>) -> Result<(), Error> {
        self.intern(input.keys, input.event_time.len())?;
        let groups_n = self.len();
        let rows = |keep| Rows {
            groups: &self.groups,
            groups_n,
            keep,
            event_time: input.event_time,
        };
        let mut accumulators = self.accumulators.iter_mut();
        if self.shape.extents == Extents::Kept
            && let Some(extent) = accumulators.next()
        {
            extent.update(None, &rows(None))?;
        }
        for ((accumulator, arg), keep) in accumulators.zip(input.args).zip(input.keep) {
            accumulator.update(arg.as_ref(), &rows(keep.as_ref()))?;
        }
        Ok(())
    }

    /// Adds what other tables moved out.
    pub fn merge(&mut self, rows: &TableRows) -> Result<(), Error> {
        let mut offset = 0;
        while offset < rows.rows {
            let n = MERGE_ROWS.min(rows.rows - offset);
            let slice: Vec<ArrayRef> = rows
                .columns
                .iter()
                .map(|column| column.slice(offset, n))
                .collect();
            self.merge_slice(&slice, n)?;
            offset += n;
        }
        Ok(())
    }

    fn merge_slice(&mut self, columns: &[ArrayRef], rows: usize) -> Result<(), Error> {
        let keys_n = self.shape.keys_n();
        if columns.len() != keys_n + self.shape.states_n() {
            return Err(Error::State(format!(
                "{} columns of a table",
                columns.len()
            )));
        }
        let (keys, states) = columns.split_at(keys_n);
        self.intern(keys, rows)?;
        let groups_n = self.len();
        let mut rest = states;
        for (accumulator, width) in self.accumulators.iter_mut().zip(&self.shape.widths) {
            let (state, after) = rest.split_at(*width);
            accumulator.merge(state, &self.groups, groups_n)?;
            rest = after;
        }
        Ok(())
    }

    /// Adds state columns to groups that the caller numbers itself; keys play no part.
    pub fn merge_numbered(
        &mut self,
        states: &[ArrayRef],
        groups: &[usize],
        groups_n: usize,
    ) -> Result<(), Error> {
        let mut rest = states;
        for (accumulator, width) in self.accumulators.iter_mut().zip(&self.shape.widths) {
            let (state, after) = rest.split_at(*width);
            accumulator.merge(state, groups, groups_n)?;
            rest = after;
        }
        Ok(())
    }

    /// Moves all groups out, in the order of their numbers.
    pub fn take(&mut self) -> Result<TableRows, Error> {
        let rows = self.len();
        let mut columns = self.take_keys()?;
        columns.extend(self.take_states()?);
        Ok(TableRows { columns, rows })
    }

    /// Moves the keys out, in the order of their numbers.
    pub fn take_keys(&mut self) -> Result<Vec<ArrayRef>, Error> {
        match &mut self.keys {
            Keys::Constant { seen } => {
                *seen = false;
                Ok(Vec::new())
            }
            Keys::Columns(values) => Ok(values.emit(EmitTo::All)?),
        }
    }

    /// Moves the state of all groups out, in the order of their numbers.
    pub fn take_states(&mut self) -> Result<Vec<ArrayRef>, Error> {
        let mut states = Vec::with_capacity(self.shape.states_n());
        for accumulator in &mut self.accumulators {
            states.extend(accumulator.take_state()?);
        }
        Ok(states)
    }

    /// Results of these groups: a column per aggregate, and the groups (as positions in `groups`)
    /// without a result, with the reason.
    pub fn evaluate(
        &self,
        groups: &[usize],
    ) -> Result<(Vec<ArrayRef>, Vec<(usize, String)>), Error> {
        let mut values = Vec::new();
        let mut bad = Vec::new();
        let skip = usize::from(self.shape.extents == Extents::Kept);
        for accumulator in self.accumulators.iter().skip(skip) {
            let evaluated = accumulator.evaluate(groups)?;
            values.push(evaluated.values);
            bad.extend(evaluated.bad);
        }
        bad.sort_by_key(|(at, _)| *at);
        bad.dedup_by_key(|(at, _)| *at);
        Ok((values, bad))
    }

    /// Bytes it holds.
    pub fn size(&self) -> usize {
        let keys = match &self.keys {
            Keys::Constant { .. } => 0,
            Keys::Columns(values) => values.size(),
        };
        let accumulators: usize = self.accumulators.iter().map(|a| a.size()).sum();
        keys + accumulators + self.groups.capacity() * size_of::<usize>()
    }
}

/// A column that repeats one number.
pub(crate) fn constant(value: i64, rows: usize) -> ArrayRef {
    Arc::new(Int64Array::from(vec![value; rows]))
}

#[cfg(test)]
mod tests;
