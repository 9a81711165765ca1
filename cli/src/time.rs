//! Times for people.

use chrono::{DateTime, SecondsFormat};
use streamforge_core::event_time::Watermark;

/// Event time as RFC 3339.
pub fn event_time(micros: i64) -> String {
    match DateTime::from_timestamp_micros(micros) {
        Some(time) => time.to_rfc3339_opts(SecondsFormat::AutoSi, true),
        None => format!("{micros} us"),
    }
}

/// A watermark.
pub fn watermark(watermark: Watermark) -> String {
    match watermark {
        Watermark::NONE => "none".to_owned(),
        Watermark::END => "end".to_owned(),
        Watermark(micros) => event_time(micros),
    }
}

/// A stretch of time, to the second: `1h02m03s`.
pub fn stretch(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m{:02}s", seconds / 60, seconds % 60),
        _ => format!("{}h{:02}m", seconds / 3600, seconds % 3600 / 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_readable_at_both_ends() {
        assert_eq!(event_time(0), "1970-01-01T00:00:00Z");
        assert_eq!(event_time(1_500), "1970-01-01T00:00:00.001500Z");
        assert_eq!(watermark(Watermark::NONE), "none");
        assert_eq!(watermark(Watermark::END), "end");
        assert_eq!(
            (stretch(59), stretch(61), stretch(7325)),
            ("59s".into(), "1m01s".into(), "2h02m".into())
        );
    }
}
