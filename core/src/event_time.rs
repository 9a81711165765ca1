//! Event time and watermarks.
//!
//! Owns: the two number types. Event time is i64 microseconds since the epoch, UTC; a watermark `W`
//! says "every ts < W has been seen", so a window `[start, end)` fires when `end <= W`.
//!
//! Invariant T1: a watermark never goes back; [`Watermark::advance`] is the only way to raise one.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Microseconds since 1970-01-01T00:00:00Z. Negative before it.
pub type EventTime = i64;

/// Smallest event time that is not bad: 0001-01-01T00:00:00Z.
pub const EVENT_TIME_MIN: EventTime = -62_135_596_800_000_000;

/// Largest event time that is not bad: the last microsecond of year 9999.
pub const EVENT_TIME_MAX: EventTime = 253_402_300_799_999_999;

/// A promise that every event time below it has been seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Watermark(pub EventTime);

impl Default for Watermark {
    fn default() -> Self {
        Self::NONE
    }
}

impl Watermark {
    /// Nothing is promised yet.
    pub const NONE: Self = Self(i64::MIN);
    /// The end of time: no row will ever come.
    pub const END: Self = Self(i64::MAX);

    /// Raises this watermark to `to`; says whether it moved (T1: a lower `to` changes nothing).
    pub fn advance(&mut self, to: Watermark) -> bool {
        let moved = to > *self;
        if moved {
            *self = to;
        }
        moved
    }

    /// This watermark held back by `micros`; NONE and END stay what they are.
    #[must_use]
    pub fn held_back(self, micros: i64) -> Self {
        if self == Self::NONE || self == Self::END {
            return self;
        }
        Self(self.0.saturating_sub(micros).max(i64::MIN + 1))
    }
}

impl fmt::Display for Watermark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::NONE => f.write_str("none"),
            Self::END => f.write_str("end"),
            Self(micros) => write!(f, "{micros}us"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn watermark_never_goes_back_t1() {
        let mut w = Watermark(10);

        assert!(!w.advance(Watermark(9)));
        assert!(!w.advance(Watermark::NONE));
        assert!(w.advance(Watermark(11)));

        assert_eq!(w, Watermark(11));
    }

    #[test]
    fn held_back_keeps_both_ends() {
        assert_eq!(Watermark::NONE.held_back(5), Watermark::NONE);
        assert_eq!(Watermark::END.held_back(5), Watermark::END);
        assert_eq!(Watermark(7).held_back(5), Watermark(2));
        assert_eq!(
            Watermark(i64::MIN + 2).held_back(5),
            Watermark(i64::MIN + 1)
        );
    }
}
