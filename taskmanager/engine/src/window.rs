//! Which windows an event time belongs to: pure arithmetic.
//!
//! Owns: slices (the stretches of time between any two window borders), and which windows cover
//! which slice. A slice and a window are known by number; the grid turns slice numbers into instants.
//! Every rule about lateness and firing is a comparison of such instants with a watermark.
//! Start at: [`SlicedWindows`]. Sessions have no slices that windows share: see `window/session.rs`.
//!
//! Invariants: windows are half-open; the start is found by Euclidean remainder, so times before the
//! epoch work (KF-E1); near the ends of i64 borders saturate instead of wrapping.

use std::ops::{Range, RangeInclusive};

use streamforge_core::event_time::{EVENT_TIME_MAX, EVENT_TIME_MIN};
use streamforge_core::job_graph::WindowSpec;

mod grid;
pub mod split;

pub use grid::{Error, Grid};

/// Tumbling and hopping windows over numbered slices.
#[derive(Clone, Debug)]
pub struct SlicedWindows {
    grid: Grid,
    /// Slices of one window.
    size_n: i64,
    /// Slices from one window's start to the next.
    slide_n: i64,
}

fn greatest_common_divisor(a: i64, b: i64) -> i64 {
    if b == 0 {
        a
    } else {
        greatest_common_divisor(b, a % b)
    }
}

impl SlicedWindows {
    /// The windows of a document; `None` for sessions.
    pub fn new(spec: &WindowSpec) -> Result<Option<Self>, Error> {
        let (size_us, slide_us, offset_us, time_zone) = match spec {
            WindowSpec::Tumbling {
                size_us,
                offset_us,
                time_zone,
            } => (*size_us, *size_us, *offset_us, time_zone),
            WindowSpec::Hopping {
                size_us,
                slide_us,
                offset_us,
                time_zone,
            } => (*size_us, *slide_us, *offset_us, time_zone),
            WindowSpec::Session { .. } => return Ok(None),
        };
        if size_us <= 0 || slide_us <= 0 || slide_us > size_us {
            return Err(Error::Size { size_us, slide_us });
        }
        let width_us = greatest_common_divisor(size_us, slide_us);
        let grid = Grid::new(width_us, offset_us, time_zone)?;
        Ok(Some(Self {
            grid,
            size_n: size_us / width_us,
            slide_n: slide_us / width_us,
        }))
    }

    /// The slice that `time` is in.
    pub fn slice_of(&self, time: i64) -> i64 {
        self.grid.slice_of(time)
    }

    /// Whether a slice is within the years that event times have, and as many again on either side:
    /// windows over windows reach beyond them.
    pub fn is_in_time(&self, slice: i64) -> bool {
        let beyond = EVENT_TIME_MAX - EVENT_TIME_MIN;
        self.slice_start(slice.saturating_add(1)) > EVENT_TIME_MIN - beyond
            && self.slice_start(slice) <= EVENT_TIME_MAX + beyond
    }

    /// First instant of a slice.
    pub fn slice_start(&self, slice: i64) -> i64 {
        self.grid.start(slice)
    }

    /// The windows that cover a slice, in the order of their ends.
    pub fn windows_of(&self, slice: i64) -> RangeInclusive<i64> {
        // The first window that covers it starts size - 1 slices before it or, if none starts there,
        // at the next start: division rounded up.
        let earliest = slice.saturating_sub(self.size_n - 1);
        let first =
            earliest.div_euclid(self.slide_n) + i64::from(earliest.rem_euclid(self.slide_n) != 0);
        first..=slice.div_euclid(self.slide_n)
    }

    /// The slices of a window.
    pub fn slices_of(&self, window: i64) -> Range<i64> {
        let start = window.saturating_mul(self.slide_n);
        start..start.saturating_add(self.size_n)
    }

    /// First instant of a window.
    pub fn window_start(&self, window: i64) -> i64 {
        self.grid.start(self.slices_of(window).start)
    }

    /// First instant after a window.
    pub fn window_end(&self, window: i64) -> i64 {
        self.grid.start(self.slices_of(window).end)
    }

    /// The window with this first instant.
    pub fn window_starting(&self, start: i64) -> i64 {
        self.grid.slice_of(start).div_euclid(self.slide_n)
    }

    /// True if every window is one slice.
    pub fn is_tumbling(&self) -> bool {
        self.size_n == 1
    }
}

#[cfg(test)]
mod tests;
