//! Slice numbers to instants and back, in UTC or in local days.
//!
//! A local day begins at midnight plus the offset, by the clock of its zone: an ambiguous time is the
//! earlier instant, one in a gap shifts forward. So a day has 23 to 25 hours, and the borders of all
//! days follow each other without a hole.

use chrono::{DateTime, Duration, NaiveDate, NaiveDateTime, Offset, TimeZone, Utc};
use chrono_tz::Tz;

const DAY_US: i64 = 86_400_000_000;

/// Why a document's windows make no sense.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum Error {
    /// Sizes are positive, and windows leave no gaps.
    #[error("windows need 0 < slide <= size, not size {size_us} us and slide {slide_us} us")]
    Size {
        /// Length.
        size_us: i64,
        /// Distance of starts.
        slide_us: i64,
    },
    /// The offset is within one slide.
    #[error("offset {offset_us} us is not within the windows' slide")]
    Offset {
        /// Microseconds.
        offset_us: i64,
    },
    /// Not an IANA name.
    #[error("`{0}` is not an IANA time zone")]
    Zone(String),
    /// Local windows are days.
    #[error("windows in a time zone are whole days, not {0} us")]
    Days(i64),
}

/// Numbered stretches of time that cover all of it.
#[derive(Clone, Debug)]
pub enum Grid {
    /// `[n * width + offset, (n + 1) * width + offset)`.
    Even {
        /// Microseconds.
        width_us: i64,
        /// Microseconds.
        offset_us: i64,
    },
    /// Runs of local days, counted from 1970-01-01.
    Days {
        /// Whose days.
        zone: Tz,
        /// Days per slice.
        days: i64,
        /// After midnight, microseconds.
        offset_us: i64,
    },
}

fn clamp(value: i128) -> i64 {
    i64::try_from(value).unwrap_or(if value < 0 { i64::MIN } else { i64::MAX })
}

impl Grid {
    /// A grid of this width; in a zone other than UTC the width is whole days.
    pub fn new(width_us: i64, offset_us: i64, time_zone: &str) -> Result<Self, Error> {
        let zone: Tz = time_zone
            .parse()
            .map_err(|_| Error::Zone(time_zone.to_owned()))?;
        if zone == Tz::UTC {
            return Ok(Grid::Even {
                width_us,
                offset_us,
            });
        }
        if width_us % DAY_US != 0 {
            return Err(Error::Days(width_us));
        }
        Ok(Grid::Days {
            zone,
            days: width_us / DAY_US,
            offset_us,
        })
    }

    /// First instant of a slice; saturates at the ends of time.
    pub fn start(&self, slice: i64) -> i64 {
        match self {
            Grid::Even {
                width_us,
                offset_us,
            } => clamp(i128::from(slice) * i128::from(*width_us) + i128::from(*offset_us)),
            Grid::Days {
                zone,
                days,
                offset_us,
            } => {
                let local = i128::from(slice) * i128::from(*days) * i128::from(DAY_US)
                    + i128::from(*offset_us);
                let local = clamp(local);
                local_time(local).map_or(local, |local| instant(*zone, local))
            }
        }
    }

    /// The slice that `time` is in: the one with `start(n) <= time < start(n + 1)`.
    pub fn slice_of(&self, time: i64) -> i64 {
        match self {
            Grid::Even {
                width_us,
                offset_us,
            } => match time.checked_sub(*offset_us) {
                Some(time) => time.div_euclid(*width_us),
                None => clamp(
                    (i128::from(time) - i128::from(*offset_us)).div_euclid(i128::from(*width_us)),
                ),
            },
            Grid::Days {
                zone,
                days,
                offset_us,
            } => {
                let local = local_of(*zone, time);
                let width = i128::from(*days) * i128::from(DAY_US);
                let guess = clamp((i128::from(local) - i128::from(*offset_us)).div_euclid(width));
                // The clock may have been changed between the border and `time`.
                if time < self.start(guess) {
                    guess.saturating_sub(1)
                } else if time >= self.start(guess.saturating_add(1)) {
                    guess.saturating_add(1)
                } else {
                    guess
                }
            }
        }
    }
}

fn epoch() -> NaiveDateTime {
    NaiveDate::default().and_time(chrono::NaiveTime::MIN)
}

fn local_time(micros: i64) -> Option<NaiveDateTime> {
    // A day short of the calendar's ends, so that an offset can be taken off.
    let time = epoch().checked_add_signed(Duration::microseconds(micros))?;
    let safe = NaiveDateTime::MIN + Duration::days(2)..NaiveDateTime::MAX - Duration::days(2);
    safe.contains(&time).then_some(time)
}

fn micros(time: NaiveDateTime) -> i64 {
    time.and_utc().timestamp_micros()
}

fn local_of(zone: Tz, time: i64) -> i64 {
    match local_time(time) {
        Some(utc) => {
            let offset = zone.offset_from_utc_datetime(&utc).fix().local_minus_utc();
            time.saturating_add(i64::from(offset) * 1_000_000)
        }
        None => time,
    }
}

fn instant(zone: Tz, local: NaiveDateTime) -> i64 {
    let found: Option<DateTime<Tz>> = zone.from_local_datetime(&local).earliest();
    match found {
        Some(found) => found.with_timezone(&Utc).timestamp_micros(),
        None => {
            // In a gap: by the offset that held before it, which lands right behind the gap's start.
            let before = local - Duration::days(1);
            let offset = zone
                .offset_from_utc_datetime(&before)
                .fix()
                .local_minus_utc();
            micros(local) - i64::from(offset) * 1_000_000
        }
    }
}
