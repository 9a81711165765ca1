//! Splitting a batch by the owners of its rows' key groups.

use std::sync::Arc;

use arrow::array::{ArrayRef, UInt32Array};
use arrow::error::ArrowError;
use streamforge_core::ids::SubtaskIdx;
use streamforge_core::key_group::{Assignment, key_group_of_hash};

use crate::batch::StreamBatch;
use crate::key_hash::hash_columns;

/// The rows of `batch` whose key groups are marked, and the others; each in the batch's order.
pub fn split(
    batch: StreamBatch,
    key_columns: &[usize],
    is_marked: &[bool],
) -> Result<(Option<StreamBatch>, Option<StreamBatch>), ArrowError> {
    let keys: Vec<ArrayRef> = key_columns
        .iter()
        .filter_map(|idx| batch.rows.columns().get(*idx))
        .map(Arc::clone)
        .collect();
    let groups_n = u32::try_from(is_marked.len()).unwrap_or(u32::MAX);
    let (mut marked, mut others) = (Vec::new(), Vec::new());
    for (row, hash) in (0u32..).zip(hash_columns(&keys, batch.len())?) {
        let group = key_group_of_hash(hash, groups_n);
        let rows = match is_marked.get(usize::from(group.0)) {
            Some(true) => &mut marked,
            _ => &mut others,
        };
        rows.push(row);
    }
    if others.is_empty() {
        return Ok((Some(batch), None));
    }
    if marked.is_empty() {
        return Ok((None, Some(batch)));
    }
    let marked = batch.take(&UInt32Array::from(marked))?;
    let others = batch.take(&UInt32Array::from(others))?;
    Ok((Some(marked), Some(others)))
}

/// Each receiver's rows of `batch`, in the batch's order; receivers without rows are left out.
pub fn by_key_group(
    batch: StreamBatch,
    key_columns: &[usize],
    assignment: &Assignment,
) -> Result<Vec<(SubtaskIdx, StreamBatch)>, ArrowError> {
    let owners = assignment.owners();
    let single = owners
        .first()
        .filter(|first| owners.iter().all(|owner| owner == *first));
    if let Some(only) = single {
        return Ok(vec![(*only, batch)]);
    }
    let keys: Vec<ArrayRef> = key_columns
        .iter()
        .filter_map(|idx| batch.rows.columns().get(*idx))
        .map(Arc::clone)
        .collect();
    let hashes = hash_columns(&keys, batch.len())?;
    let mut rows_of: Vec<Vec<u32>> = Vec::new();
    for (row, hash) in hashes.iter().enumerate() {
        let group = key_group_of_hash(*hash, assignment.groups_n());
        let owner = assignment.owner(group).unwrap_or_default().0 as usize;
        if owner >= rows_of.len() {
            rows_of.resize_with(owner + 1, Vec::new);
        }
        if let Some(rows) = rows_of.get_mut(owner) {
            rows.push(u32::try_from(row).unwrap_or(u32::MAX));
        }
    }
    let mut parts = Vec::with_capacity(rows_of.len());
    for (owner, rows) in rows_of.into_iter().enumerate() {
        let owner = SubtaskIdx(u32::try_from(owner).unwrap_or(u32::MAX));
        if rows.len() == batch.len() {
            return Ok(vec![(owner, batch)]);
        }
        if !rows.is_empty() {
            parts.push((owner, batch.take(&UInt32Array::from(rows))?));
        }
    }
    Ok(parts)
}
