//! Columns and cells into rows, and rows into multisets.

use std::collections::BTreeSet;
use std::sync::Arc;

use anyhow::{Result, ensure};
use arrow::array::ArrayRef;
use arrow::compute::cast;
use arrow::datatypes::DataType as ArrowType;
use arrow::record_batch::{RecordBatch, RecordBatchOptions};
use streamforge_core::event_time::{EVENT_TIME_MAX, EVENT_TIME_MIN};
use streamforge_core::job_graph::Column;
use streamforge_taskmanager::engine::types;

use super::super::array::array;
use super::super::bad::BadColumns;
use super::super::cell::{Cell, cells};
use super::super::group::Row;
use super::super::multiset::{Multiset, Side};

/// Results as rows; of those without values only the columns that name the group.
pub(super) fn result_rows(columns: &[Column], results: &[&Row]) -> Result<RecordBatch> {
    let mut values = vec![Vec::with_capacity(results.len()); columns.len()];
    for row in results {
        let window = [row.window.start, row.window.end].map(|time| Cell::Int(time.into()));
        let cells = row
            .keys
            .iter()
            .chain(&window)
            .chain(row.values.iter().flatten());
        for (column, cell) in values.iter_mut().zip(cells) {
            column.push(cell.clone());
        }
    }
    let arrays = columns.iter().zip(&values);
    let arrays = arrays.map(|(column, v)| array(v, &types::arrow_type(&column.data_type)));
    assemble(columns, &arrays.collect::<Result<Vec<_>>>()?, results.len())
}

pub(super) fn assemble(
    columns: &[Column],
    arrays: &[ArrayRef],
    rows_n: usize,
) -> Result<RecordBatch> {
    ensure!(
        columns.len() == arrays.len() || rows_n == 0,
        "{} columns",
        arrays.len()
    );
    let schema = types::schema(columns);
    if rows_n == 0 {
        return Ok(RecordBatch::new_empty(schema));
    }
    let typed = arrays.iter().zip(schema.fields()).map(|(array, field)| {
        if array.data_type() == field.data_type() {
            Ok(Arc::clone(array))
        } else {
            cast(array, field.data_type())
        }
    });
    let typed = typed.collect::<Result<_, _>>()?;
    let options = RecordBatchOptions::new().with_row_count(Some(rows_n));
    Ok(RecordBatch::try_new_with_options(schema, typed, &options)?)
}

pub(super) fn add_rows(
    into: &mut Multiset,
    rows: &RecordBatch,
    bad: Option<BadColumns>,
) -> Result<()> {
    let columns = rows
        .columns()
        .iter()
        .map(cells)
        .collect::<Result<Vec<_>>>()?;
    let mut columns: Vec<_> = columns.into_iter().map(Vec::into_iter).collect();
    let mut row = Vec::with_capacity(columns.len());
    for _ in 0..rows.num_rows() {
        row.clear();
        row.extend(columns.iter_mut().filter_map(Iterator::next));
        if let Some(bad) = bad {
            bad.settle(&mut row);
        }
        into.add(Side::Expected, &row, 1);
    }
    Ok(())
}

/// Rows with a time outside of years 0001 to 9999: a sink cannot write them so that they read back.
pub fn outside_years(rows: &RecordBatch) -> Result<BTreeSet<usize>> {
    let mut outside = BTreeSet::new();
    for array in rows.columns() {
        let data_type = array.data_type();
        if !has_times(data_type) {
            continue;
        }
        let cells = cells(array)?;
        let found = cells.iter().enumerate();
        outside.extend(
            found
                .filter(|(_, cell)| is_outside(cell, data_type))
                .map(|(row, _)| row),
        );
    }
    Ok(outside)
}

fn has_times(data_type: &ArrowType) -> bool {
    match data_type {
        ArrowType::Timestamp(..) | ArrowType::Date32 => true,
        ArrowType::List(item) => has_times(item.data_type()),
        ArrowType::Struct(fields) => fields.iter().any(|field| has_times(field.data_type())),
        _ => false,
    }
}

fn is_outside(cell: &Cell, data_type: &ArrowType) -> bool {
    const DAY_MICROS: i128 = 86_400_000_000;
    let years = i128::from(EVENT_TIME_MIN)..=i128::from(EVENT_TIME_MAX);
    match (cell, data_type) {
        (Cell::Int(micros), ArrowType::Timestamp(..)) => !years.contains(micros),
        (Cell::Int(days), ArrowType::Date32) => !years.contains(&(days * DAY_MICROS)),
        (Cell::Many(cells), ArrowType::List(item)) => {
            cells.iter().any(|cell| is_outside(cell, item.data_type()))
        }
        (Cell::Many(cells), ArrowType::Struct(fields)) => {
            let mut fields = cells.iter().zip(fields);
            fields.any(|(cell, field)| is_outside(cell, field.data_type()))
        }
        _ => false,
    }
}
