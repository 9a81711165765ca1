//! Columns and cells into rows, and rows into multisets.

use std::sync::Arc;

use anyhow::{Result, ensure};
use arrow::array::ArrayRef;
use arrow::compute::cast;
use arrow::record_batch::{RecordBatch, RecordBatchOptions};
use streamforge_core::job_graph::Column;
use streamforge_taskmanager::engine::types;

use super::super::array::array;
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
    not_compared: Option<usize>,
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
        if let Some(cell) = not_compared.and_then(|idx| row.get_mut(idx)) {
            *cell = Cell::Null;
        }
        into.add(Side::Expected, &row, 1);
    }
    Ok(())
}
