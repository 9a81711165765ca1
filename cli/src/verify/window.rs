//! Which windows a time belongs to, the slow and plain way.
//!
//! Owns: the oracle's own reading of `tumbling` and `hopping`, local days included. It tries every
//! grid point near the time and asks of each whether the window that begins there holds it; it
//! shares no code with the engine's windows. Sessions are made in `group.rs`, by sorting.

use anyhow::{Context as _, Result};
use chrono::{DateTime, LocalResult, NaiveDateTime, TimeDelta, TimeZone as _};
use chrono_tz::Tz;
use streamforge_core::job_graph::WindowSpec;

/// `[start, end)` in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Window {
    /// First microsecond in it.
    pub start: i64,
    /// First microsecond after it.
    pub end: i64,
}

/// A window definition, ready to be asked.
#[derive(Debug)]
pub enum Windows {
    /// A grid of equal windows.
    Grid {
        /// Length.
        size: i64,
        /// Distance of starts.
        slide: i64,
        /// Where the grid begins.
        offset: i64,
        /// Whose clocks the grid is drawn on.
        zone: Tz,
    },
    /// Decided by the key's other records.
    Session {
        /// Distance at which a session ends.
        gap: i64,
    },
}

impl Windows {
    /// Reads the definition.
    pub fn new(spec: &WindowSpec) -> Result<Self> {
        let zone = |name: &str| -> Result<Tz> {
            name.parse()
                .ok()
                .with_context(|| format!("`{name}` is not a time zone"))
        };
        Ok(match spec {
            WindowSpec::Tumbling {
                size_us,
                offset_us,
                time_zone,
            } => Windows::Grid {
                size: *size_us,
                slide: *size_us,
                offset: *offset_us,
                zone: zone(time_zone)?,
            },
            WindowSpec::Hopping {
                size_us,
                slide_us,
                offset_us,
                time_zone,
            } => Windows::Grid {
                size: *size_us,
                slide: *slide_us,
                offset: *offset_us,
                zone: zone(time_zone)?,
            },
            WindowSpec::Session { gap_us } => Windows::Session { gap: *gap_us },
        })
    }

    /// Every window of the grid that holds `ts`; a session has none until its key is known.
    pub fn of(&self, ts: i64, out: &mut Vec<Window>) {
        out.clear();
        let Windows::Grid {
            size,
            slide,
            offset,
            zone,
        } = self
        else {
            return;
        };
        if *zone == Tz::UTC {
            // The last start at or before ts, then back while the window still reaches it.
            let mut start = (ts - offset).div_euclid(*slide) * slide + offset;
            while start + size > ts {
                out.push(Window {
                    start,
                    end: start + size,
                });
                start -= slide;
            }
            return;
        }
        // A local clock differs from UTC by less than a day and a shift by less than another.
        let day = 86_400_000_000;
        let mut local = (ts + 2 * day - offset).div_euclid(*slide) * slide + offset;
        while local + size > ts - 2 * day {
            let window = Window {
                start: instant(local, *zone),
                end: instant(local + size, *zone),
            };
            if window.start <= ts && ts < window.end {
                out.push(window);
            }
            local -= slide;
        }
    }
}

/// The instant at which the clocks of `zone` show `local` microseconds: the earlier one if they do
/// so twice, shifted forward by the gap if they never do.
fn instant(local: i64, zone: Tz) -> i64 {
    let Some(naive) = DateTime::from_timestamp_micros(local).map(|utc| utc.naive_utc()) else {
        return local;
    };
    let micros = |zoned: DateTime<Tz>| zoned.timestamp_micros();
    match zone.from_local_datetime(&naive) {
        LocalResult::Single(zoned) => micros(zoned),
        LocalResult::Ambiguous(early, _) => micros(early),
        LocalResult::None => after_gap(naive, zone).unwrap_or(local),
    }
}

/// A missing local time, read with the offset that held before the gap.
fn after_gap(naive: NaiveDateTime, zone: Tz) -> Option<i64> {
    let mut before = naive;
    for _ in 0..48 {
        before -= TimeDelta::minutes(30);
        if let Some(zoned) = zone.from_local_datetime(&before).latest() {
            return Some(zoned.timestamp_micros() + (naive - before).num_microseconds()?);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: i64 = 1_000_000;

    fn starts(windows: &Windows, ts: i64) -> Vec<(i64, i64)> {
        let mut out = Vec::new();
        windows.of(ts, &mut out);
        out.iter().map(|w| (w.start, w.end)).collect()
    }

    fn grid(size: i64, slide: i64, offset: i64, zone: Tz) -> Windows {
        Windows::Grid {
            size,
            slide,
            offset,
            zone,
        }
    }

    #[test]
    fn times_before_the_epoch_fall_into_their_own_window_kf_e1() {
        let tumble = grid(10 * S, 10 * S, 0, Tz::UTC);

        assert_eq!(starts(&tumble, -1), [(-10 * S, 0)]);
        assert_eq!(starts(&tumble, -10 * S), [(-10 * S, 0)]);
        assert_eq!(starts(&tumble, -10 * S - 1), [(-20 * S, -10 * S)]);
    }

    #[test]
    fn a_hop_has_size_over_slide_windows_around_a_time() {
        let hop = grid(10 * S, 4 * S, 0, Tz::UTC);

        assert_eq!(
            starts(&hop, 9 * S),
            [(8 * S, 18 * S), (4 * S, 14 * S), (0, 10 * S)]
        );
        assert_eq!(starts(&hop, 11 * S), [(8 * S, 18 * S), (4 * S, 14 * S)]);
    }

    #[test]
    fn local_days_have_23_to_25_hours() {
        let day = 86_400 * S;
        let hour = 3_600 * S;
        let berlin = grid(day, day, 0, Tz::Europe__Berlin);
        // 2026-03-29 begins at 23:00Z the day before and lasts 23 hours.
        let start = utc("2026-03-28T23:00:00");
        assert_eq!(
            starts(&berlin, utc("2026-03-29T12:00:00")),
            [(start, start + 23 * hour)]
        );
        // 2026-10-25 begins at 22:00Z the day before and lasts 25 hours.
        let start = utc("2026-10-24T22:00:00");
        assert_eq!(
            starts(&berlin, utc("2026-10-25T22:59:59")),
            [(start, start + 25 * hour)]
        );
        // In Beirut 2022-03-27 began at 01:00 local, 22:00Z the day before.
        let beirut = grid(day, day, 0, Tz::Asia__Beirut);
        let start = utc("2022-03-26T22:00:00");
        assert_eq!(starts(&beirut, start), [(start, start + 23 * hour)]);
    }

    fn utc(text: &str) -> i64 {
        text.parse::<NaiveDateTime>()
            .unwrap()
            .and_utc()
            .timestamp_micros()
    }
}
