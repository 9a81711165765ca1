//! Cutting a batch by slice, without per-row work where all rows are in one.

use arrow::array::UInt32Array;

use super::SlicedWindows;

/// Which rows of a batch.
#[derive(Clone, Debug, PartialEq)]
pub enum Rows {
    /// All.
    All,
    /// Neighbours.
    Run {
        /// First.
        offset: usize,
        /// How many.
        length: usize,
    },
    /// These, ascending.
    Some(UInt32Array),
}

/// The slices that these times are in, ascending, with their rows.
pub fn split(windows: &SlicedWindows, times: &[i64]) -> Vec<(i64, Rows)> {
    let Some((low, high)) = bounds(times) else {
        return Vec::new();
    };
    let slice = windows.slice_of(low);
    let end = windows.slice_start(slice.saturating_add(1));
    if high < end || end == i64::MAX {
        return vec![(slice, Rows::All)];
    }
    let mut slices: Vec<(i64, Vec<(usize, usize)>)> = Vec::new();
    let mut current = 0;
    let (mut start, mut end) = (i64::MAX, i64::MIN);
    for (row, time) in times.iter().enumerate() {
        if !(start..end).contains(time) {
            let slice = windows.slice_of(*time);
            (start, end) = (
                windows.slice_start(slice),
                windows.slice_start(slice.saturating_add(1)),
            );
            current = slices
                .iter()
                .position(|(known, _)| *known == slice)
                .unwrap_or_else(|| {
                    slices.push((slice, Vec::new()));
                    slices.len() - 1
                });
        }
        let Some((_, runs)) = slices.get_mut(current) else {
            continue;
        };
        match runs.last_mut() {
            Some((from, length)) if *from + *length == row => *length += 1,
            _ => runs.push((row, 1)),
        }
    }
    slices.sort_unstable_by_key(|(slice, _)| *slice);
    slices
        .into_iter()
        .map(|(slice, runs)| (slice, rows(&runs)))
        .collect()
}

fn bounds(times: &[i64]) -> Option<(i64, i64)> {
    let first = *times.first()?;
    Some(times.iter().fold((first, first), |(low, high), time| {
        (low.min(*time), high.max(*time))
    }))
}

fn rows(runs: &[(usize, usize)]) -> Rows {
    if let [(offset, length)] = runs {
        return Rows::Run {
            offset: *offset,
            length: *length,
        };
    }
    let rows = runs
        .iter()
        .flat_map(|(offset, length)| *offset..*offset + *length);
    Rows::Some(
        rows.map(|row| u32::try_from(row).unwrap_or(u32::MAX))
            .collect::<Vec<_>>()
            .into(),
    )
}
