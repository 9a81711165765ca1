//! Durations and sizes as users write them.
//!
//! Owns: `250ms 10s 1m 1h30m 7d` and `64Mi`, their parsing, printing and schema. Durations are whole
//! microseconds, so that window arithmetic never rounds. Start at: [`HumanDuration`], [`ByteSize`].

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Longest duration that may be written: 100,000 days. Event time covers years 1..9999, and sums of
/// a time and a few durations must stay far from the ends of an i64.
pub const DURATION_MICROS_MAX: i64 = 100_000 * 86_400_000_000;

/// The schema's pattern of a [`HumanDuration`]. No pattern can add, so each unit is bounded such that all of them together
/// stay below [`DURATION_MICROS_MAX`]: 49,999 days and 45, 19, 31, 3 and 3 years. What a pattern admits and nobody can
/// read would be stored by an API server.
pub const DURATION_PATTERN: &str = "^([1-4]?[0-9]{1,4}d)?([1-3]?[0-9]{1,5}h)?([0-9]{1,7}m)?([0-9]{1,9}s)?([0-9]{1,11}ms)?([0-9]{1,14}us)?$";

/// The schema's pattern of a [`HumanOffset`].
pub const OFFSET_PATTERN: &str = "^-?([1-4]?[0-9]{1,4}d)?([1-3]?[0-9]{1,5}h)?([0-9]{1,7}m)?([0-9]{1,9}s)?([0-9]{1,11}ms)?([0-9]{1,14}us)?$";

/// The shortest duration, `0s`: the patterns would admit an empty text and a bare sign.
pub const DURATION_CHARS_MIN: usize = 2;

/// The schema's pattern of a [`ByteSize`]: each unit is bounded such that it stays below 2^63 bytes.
pub const SIZE_PATTERN: &str =
    "^([0-9]{1,18}|[0-9]{1,15}(Ki|k)|[0-9]{1,12}(Mi|M)|[0-9]{1,9}(Gi|G)|[0-9]{1,6}(Ti|T))$";

/// The shortest size, `0`.
const SIZE_CHARS_MIN: usize = 1;

/// Units of a duration, largest first: the order in which they are written.
const UNITS: [(&str, i64); 6] = [
    ("d", 86_400_000_000),
    ("h", 3_600_000_000),
    ("m", 60_000_000),
    ("s", 1_000_000),
    ("ms", 1_000),
    ("us", 1),
];

/// Suffixes of a size, largest first.
const SUFFIXES: [(&str, u64); 9] = [
    ("Ti", 1 << 40),
    ("Gi", 1 << 30),
    ("Mi", 1 << 20),
    ("Ki", 1 << 10),
    ("T", 1_000_000_000_000),
    ("G", 1_000_000_000),
    ("M", 1_000_000),
    ("k", 1_000),
    ("", 1),
];

/// Why a text is not a duration or a size.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not {what}: {reason}")]
pub struct ParseError {
    /// What was written.
    pub text: String,
    /// What was wanted: "a duration" or "a size".
    pub what: &'static str,
    /// What is wrong, and what to write.
    pub reason: String,
}

/// A length of time that is not negative.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HumanDuration(i64);

/// A length of time that may be negative (`-15m`): the offset of a window grid.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HumanOffset(i64);

/// A number of bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ByteSize(u64);

impl HumanDuration {
    /// No time at all.
    pub const ZERO: Self = Self(0);

    /// A duration of whole milliseconds.
    pub const fn from_millis(millis: u32) -> Self {
        Self(millis as i64 * 1_000)
    }

    /// A duration of whole seconds.
    pub const fn from_secs(secs: u32) -> Self {
        Self(secs as i64 * 1_000_000)
    }

    /// The duration in microseconds, never negative.
    pub const fn micros(self) -> i64 {
        self.0
    }

    /// For clocks and timers.
    pub const fn to_std(self) -> std::time::Duration {
        std::time::Duration::from_micros(self.0.unsigned_abs())
    }

    /// Whether it is no time at all.
    pub const fn is_zero(self) -> bool {
        self.0 == 0
    }
}

impl HumanOffset {
    /// The offset in microseconds.
    pub const fn micros(self) -> i64 {
        self.0
    }
}

impl ByteSize {
    /// A size in bytes.
    pub const fn from_bytes(bytes: u64) -> Self {
        Self(bytes)
    }

    /// A size in binary megabytes.
    pub const fn from_mebibytes(mebibytes: u32) -> Self {
        Self((mebibytes as u64) << 20)
    }

    /// The size in bytes.
    pub const fn bytes(self) -> u64 {
        self.0
    }
}

fn parse_micros(text: &str) -> Result<i64, ParseError> {
    let error = |reason: &str| ParseError {
        text: text.to_owned(),
        what: "a duration",
        reason: reason.to_owned(),
    };
    let mut rest = text;
    let mut micros: i64 = 0;
    let mut next_unit = 0;
    if rest.is_empty() {
        return Err(error(
            "write a number and a unit, as in 250ms, 10s, 1m, 1h30m or 7d",
        ));
    }
    while !rest.is_empty() {
        let digits_n = rest.bytes().take_while(u8::is_ascii_digit).count();
        let (digits, after) = rest.split_at(digits_n);
        let unit_n = after.bytes().take_while(u8::is_ascii_alphabetic).count();
        let (unit, after) = after.split_at(unit_n);
        if digits.is_empty() {
            return Err(error(
                "write a whole number before each unit, as in 1h30m or 250ms",
            ));
        }
        if unit.is_empty() {
            return Err(error(
                "it lacks a unit: write d, h, m, s, ms or us after the number",
            ));
        }
        let Some(position) = UNITS.iter().position(|(name, _)| *name == unit) else {
            return Err(error("the units are d, h, m, s, ms and us"));
        };
        if position < next_unit {
            return Err(error(
                "write each unit once, the largest first, as in 1h30m",
            ));
        }
        next_unit = position + 1;
        let value = digits
            .parse::<i64>()
            .ok()
            .and_then(|n| n.checked_mul(UNITS[position].1))
            .and_then(|n| micros.checked_add(n))
            .filter(|n| *n <= DURATION_MICROS_MAX);
        micros = value.ok_or_else(|| error("it is longer than 100000d"))?;
        rest = after;
    }
    Ok(micros)
}

fn write_micros(f: &mut fmt::Formatter<'_>, micros: i64) -> fmt::Result {
    if micros == 0 {
        return f.write_str("0s");
    }
    let mut rest = micros;
    for (unit, size) in UNITS {
        if rest >= size {
            write!(f, "{}{unit}", rest / size)?;
            rest %= size;
        }
    }
    Ok(())
}

impl FromStr for HumanDuration {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        if text.starts_with('-') {
            return Err(ParseError {
                text: text.to_owned(),
                what: "a duration",
                reason: "it is negative".to_owned(),
            });
        }
        parse_micros(text).map(Self)
    }
}

impl fmt::Display for HumanDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_micros(f, self.0)
    }
}

impl FromStr for HumanOffset {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        match text.strip_prefix('-') {
            Some(rest) => parse_micros(rest).map(|micros| Self(-micros)),
            None => parse_micros(text).map(Self),
        }
        .map_err(|error| ParseError {
            text: text.to_owned(),
            ..error
        })
    }
}

impl fmt::Display for HumanOffset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 < 0 {
            f.write_str("-")?;
        }
        write_micros(f, self.0.saturating_abs())
    }
}

impl FromStr for ByteSize {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let error = |reason: &str| ParseError {
            text: text.to_owned(),
            what: "a size",
            reason: reason.to_owned(),
        };
        let digits_n = text.bytes().take_while(u8::is_ascii_digit).count();
        let (digits, suffix) = text.split_at(digits_n);
        let Some((_, factor)) = SUFFIXES.iter().find(|(name, _)| *name == suffix) else {
            return Err(error(
                "the units are Ki, Mi, Gi, Ti, k, M, G and T, as in 64Mi",
            ));
        };
        let number = digits
            .parse::<u64>()
            .map_err(|_| error("write a whole number, as in 64Mi"))?;
        let bytes = number
            .checked_mul(*factor)
            .filter(|n| i64::try_from(*n).is_ok());
        bytes
            .map(Self)
            .ok_or_else(|| error("it is larger than 2^63 bytes"))
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fits = |factor: u64| self.0 >= factor && self.0.is_multiple_of(factor);
        match SUFFIXES.iter().find(|(_, factor)| fits(*factor)) {
            Some((suffix, factor)) => write!(f, "{}{suffix}", self.0 / factor),
            None => f.write_str("0"),
        }
    }
}

/// Serde and schema of a type that is written as text.
macro_rules! written_as_text {
    ($name:ident, $pattern:ident, $chars_min:ident, $description:literal) => {
        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = Cow::<'de, str>::deserialize(deserializer)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }

        impl schemars::JsonSchema for $name {
            fn inline_schema() -> bool {
                true
            }

            fn schema_name() -> Cow<'static, str> {
                stringify!($name).into()
            }

            fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
                schemars::json_schema!({
                    "type": "string",
                    "minLength": $chars_min,
                    "maxLength": 40,
                    "pattern": $pattern,
                    "description": $description,
                })
            }
        }
    };
}

written_as_text!(
    HumanDuration,
    DURATION_PATTERN,
    DURATION_CHARS_MIN,
    "A duration: 250ms 10s 1m 1h30m 7d"
);
written_as_text!(
    HumanOffset,
    OFFSET_PATTERN,
    DURATION_CHARS_MIN,
    "A duration that may be negative: 3h -15m"
);
written_as_text!(
    ByteSize,
    SIZE_PATTERN,
    SIZE_CHARS_MIN,
    "A size in bytes: 64Mi"
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_as_written() {
        for (text, micros) in [
            ("250ms", 250_000),
            ("10s", 10_000_000),
            ("1m", 60_000_000),
            ("1h30m", 5_400_000_000),
            ("7d", 604_800_000_000),
            ("0s", 0),
            ("90s", 90_000_000),
            ("1us", 1),
        ] {
            assert_eq!(
                text.parse::<HumanDuration>().unwrap().micros(),
                micros,
                "{text}"
            );
        }
    }

    #[test]
    fn durations_print_in_their_shortest_form() {
        for (text, printed) in [
            ("90s", "1m30s"),
            ("0ms", "0s"),
            ("1500ms", "1s500ms"),
            ("24h", "1d"),
            ("1d2us", "1d2us"),
        ] {
            assert_eq!(text.parse::<HumanDuration>().unwrap().to_string(), printed);
        }
    }

    #[test]
    fn wrong_durations_say_what_to_write() {
        for (text, reason) in [
            ("", "write a number and a unit"),
            ("10", "lacks a unit"),
            ("s", "whole number before each unit"),
            ("1.5s", "lacks a unit"),
            ("1m1h", "largest first"),
            ("1s1s", "each unit once"),
            ("5 s", "lacks a unit"),
            ("1w", "the units are"),
            ("-5s", "negative"),
            ("99999999999999999999d", "longer"),
            ("100001d", "longer"),
            ("10é", "lacks a unit"),
        ] {
            let error = text.parse::<HumanDuration>().unwrap_err();
            assert!(error.reason.contains(reason), "{text}: {error}");
        }
    }

    #[test]
    fn an_offset_may_be_negative() {
        let offset: HumanOffset = "-15m".parse().unwrap();
        assert_eq!(offset.micros(), -900_000_000);
        assert_eq!(offset.to_string(), "-15m");
        assert!("--1m".parse::<HumanOffset>().is_err());
    }

    #[test]
    fn sizes_round_trip() {
        for (text, bytes) in [
            ("64Mi", 64 << 20),
            ("128Mi", 128 << 20),
            ("1k", 1000),
            ("0", 0),
            ("1025", 1025),
        ] {
            let size: ByteSize = text.parse().unwrap();
            assert_eq!(size.bytes(), bytes);
            assert_eq!(size.to_string(), text);
        }
    }

    #[test]
    fn wrong_sizes_say_what_to_write() {
        for text in ["", "Mi", "64MB", "64 Mi", "-1", "1.5Gi", "99999999Ti"] {
            assert!(text.parse::<ByteSize>().is_err(), "{text}");
        }
    }
}
