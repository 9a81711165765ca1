//! Ordering rows by key group.

use std::ops::Range;

use arrow::array::{ArrayRef, UInt32Array};
use streamforge_core::key_group::{KeyGroup, key_group_of_hash};

use crate::aggregate::Error;
use crate::key_hash::hash_columns;

/// The rows in the order of their key groups (within a group as they are), and where each group is.
pub(crate) fn sort_by_key_group(
    keys: &[ArrayRef],
    rows: usize,
    groups_n: u32,
) -> Result<(UInt32Array, Vec<(KeyGroup, Range<usize>)>), Error> {
    let hashes = hash_columns(keys, rows)?;
    let group_of = |hash: &u64| usize::from(key_group_of_hash(*hash, groups_n).0);
    let mut ends = vec![0usize; usize::try_from(groups_n).unwrap_or(0) + 1];
    for hash in &hashes {
        ends[group_of(hash) + 1] += 1;
    }
    for idx in 1..ends.len() {
        ends[idx] += ends[idx - 1];
    }
    let starts = ends.clone();
    let mut order = vec![0u32; rows];
    for (row, hash) in hashes.iter().enumerate() {
        let next = &mut ends[group_of(hash)];
        order[*next] =
            u32::try_from(row).map_err(|_| Error::State("a part over 2^32 rows".into()))?;
        *next += 1;
    }
    let groups = starts
        .windows(2)
        .enumerate()
        .filter(|(_, bounds)| bounds[0] < bounds[1]);
    let groups = groups.map(|(group, bounds)| {
        (
            KeyGroup(u16::try_from(group).unwrap_or(u16::MAX)),
            bounds[0]..bounds[1],
        )
    });
    Ok((UInt32Array::from(order), groups.collect()))
}
