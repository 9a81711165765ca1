//! Dates and times from and to text.
//!
//! Owns: the `parse` rules of TIMESTAMP and TIMESTAMPTZ columns and the form in which sinks write
//! dates and times. Microseconds since the epoch, UTC. Start at: [`timestamp`], [`write_timestamp`].

use chrono::{DateTime, NaiveDate, NaiveDateTime};

use crate::formats::decoded::TimeParse;
use crate::formats::fault::Fault;
use crate::formats::number::{Rest, decimal};

/// Microseconds of a day.
pub const DAY_MICROS: i64 = 86_400_000_000;

/// Whether a column's times carry an offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Zone {
    /// TIMESTAMP: an offset converts to UTC, none means UTC.
    Optional,
    /// TIMESTAMPTZ: an offset must be there.
    Required,
}

/// Days from the epoch to a date of the proleptic Gregorian calendar. The month and day are checked.
pub fn days_of(year: i64, month: i64, day: i64) -> Option<i64> {
    const LENGTHS: [i64; 12] = [31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let length = *LENGTHS.get(usize::try_from(month - 1).ok()?)?;
    if day < 1 || day > length + i64::from(month == 2 && leap) {
        return None;
    }
    // Years begin in March, so that the leap day is the last of its year.
    let y = if month <= 2 { year - 1 } else { year };
    let era = y.div_euclid(400);
    let year_of_era = y.rem_euclid(400);
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    Some(era * 146_097 + day_of_era - 719_468)
}

/// Year, month and day of a number of days since the epoch.
pub fn date_of(days: i64) -> (i64, u32, u32) {
    let z = days + 719_468;
    let era = z.div_euclid(146_097);
    let day_of_era = z.rem_euclid(146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let mp = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * mp + 2) / 5 + 1;
    let month = if mp < 10 { mp + 3 } else { mp - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    (
        year,
        u32::try_from(month).unwrap_or(1),
        u32::try_from(day).unwrap_or(1),
    )
}

/// Two digits at `at`; something above 99 when they are not digits.
#[inline(always)]
fn two(text: &[u8; 19], at: usize) -> i64 {
    let (tens, ones) = (text[at].wrapping_sub(b'0'), text[at + 1].wrapping_sub(b'0'));
    if tens > 9 || ones > 9 {
        1000
    } else {
        i64::from(tens) * 10 + i64::from(ones)
    }
}

/// A date `YYYY-MM-DD` as days since the epoch.
pub fn date(text: &[u8]) -> Result<i32, Fault> {
    let mut padded = [b'0'; 19];
    if text.len() != 10 {
        return Err(Fault::NotADate);
    }
    padded[..10].copy_from_slice(text);
    let days = civil_days(&padded).ok_or(Fault::NotADate)?;
    i32::try_from(days).map_err(|_| Fault::NotADate)
}

#[inline(always)]
fn civil_days(text: &[u8; 19]) -> Option<i64> {
    let (century, year, month, day) = (two(text, 0), two(text, 2), two(text, 5), two(text, 8));
    if century > 99 || year > 99 || text[4] != b'-' || text[7] != b'-' {
        return None;
    }
    days_of(century * 100 + year, month, day)
}

/// A time of RFC 3339; a space may stand for the `T`, and digits behind the microseconds are cut off.
#[inline]
pub fn rfc3339(text: &[u8], zone: Zone) -> Result<i64, Fault> {
    let wrong = Fault::NotATime;
    let (head, mut tail) = text.split_first_chunk::<19>().ok_or(wrong)?;
    let days = civil_days(head).ok_or(wrong)?;
    let (hour, minute, second) = (two(head, 11), two(head, 14), two(head, 17));
    let separators = matches!(head[10], b'T' | b't' | b' ') && head[13] == b':' && head[16] == b':';
    if !separators || hour > 23 || minute > 59 || second > 59 {
        return Err(wrong);
    }
    let mut micros = days * DAY_MICROS + (hour * 3600 + minute * 60 + second) * 1_000_000;
    if let Some((b'.', fraction)) = tail.split_first() {
        let n = fraction.iter().take_while(|c| c.is_ascii_digit()).count();
        if n == 0 {
            return Err(wrong);
        }
        let mut unit = 100_000;
        for digit in fraction.iter().take(n.min(6)) {
            micros += i64::from(digit - b'0') * unit;
            unit /= 10;
        }
        tail = fraction.get(n..).unwrap_or_default();
    }
    match tail {
        [] if zone == Zone::Required => Err(Fault::NoOffset),
        [] | [b'Z' | b'z'] => Ok(micros),
        [sign @ (b'+' | b'-'), h1, h2, b':', m1, m2] => {
            let digit = |c: &u8| c.is_ascii_digit().then(|| i64::from(c - b'0')).ok_or(wrong);
            let hours = digit(h1)? * 10 + digit(h2)?;
            let minutes = digit(m1)? * 10 + digit(m2)?;
            if hours > 23 || minutes > 59 {
                return Err(wrong);
            }
            let offset = (hours * 3600 + minutes * 60) * 1_000_000;
            Ok(if *sign == b'+' {
                micros - offset
            } else {
                micros + offset
            })
        }
        _ => Err(wrong),
    }
}

/// A time written as text by the column's rule.
pub fn timestamp(text: &[u8], parse: &TimeParse, zone: Zone) -> Result<i64, Fault> {
    match parse {
        TimeParse::Rfc3339 => rfc3339(text, zone),
        TimeParse::Strftime(pattern) => strftime(text, pattern, zone),
        _ => epoch(text, parse),
    }
}

/// A time written as a number since the epoch. Digits behind the microseconds are cut off.
pub fn epoch(text: &[u8], parse: &TimeParse) -> Result<i64, Fault> {
    let scale = match parse {
        TimeParse::EpochSeconds => 6,
        TimeParse::EpochMillis => 3,
        _ => 0,
    };
    let micros = decimal(text, 38, scale, Rest::Floor)?;
    i64::try_from(micros).map_err(|_| Fault::Overflow)
}

/// Microseconds of one unit of an epoch rule; `None` when the rule is not one.
pub fn epoch_unit(parse: &TimeParse) -> Option<i64> {
    match parse {
        TimeParse::EpochSeconds => Some(1_000_000),
        TimeParse::EpochMillis => Some(1000),
        TimeParse::EpochMicros => Some(1),
        TimeParse::Rfc3339 | TimeParse::Strftime(_) => None,
    }
}

/// A time by a strftime pattern. A pattern without a time of day means midnight.
fn strftime(text: &[u8], pattern: &str, zone: Zone) -> Result<i64, Fault> {
    let text = std::str::from_utf8(text).map_err(|_| Fault::Utf8)?;
    if let Ok(time) = DateTime::parse_from_str(text, pattern) {
        return Ok(time.timestamp_micros());
    }
    if zone == Zone::Required {
        return Err(match NaiveDateTime::parse_from_str(text, pattern) {
            Ok(_) => Fault::NoOffset,
            Err(_) => Fault::NotATime,
        });
    }
    if let Ok(time) = NaiveDateTime::parse_from_str(text, pattern) {
        return Ok(time.and_utc().timestamp_micros());
    }
    let date = NaiveDate::parse_from_str(text, pattern).map_err(|_| Fault::NotATime)?;
    Ok(date
        .and_time(chrono::NaiveTime::MIN)
        .and_utc()
        .timestamp_micros())
}

fn push_two(out: &mut Vec<u8>, value: u32) {
    let digit = |v: u32| b'0' + u8::try_from(v % 10).unwrap_or(0);
    out.extend_from_slice(&[digit(value / 10), digit(value)]);
}

/// Writes `2026-01-31`. Years beyond four digits are written with their sign, as ISO 8601 wants.
pub fn write_date(out: &mut Vec<u8>, days: i64) {
    let (year, month, day) = date_of(days);
    if (0..=9999).contains(&year) {
        let year = u32::try_from(year).unwrap_or(0);
        push_two(out, year / 100);
        push_two(out, year % 100);
    } else {
        out.extend_from_slice(format!("{year:+05}").as_bytes());
    }
    out.push(b'-');
    push_two(out, month);
    out.push(b'-');
    push_two(out, day);
}

/// Writes `2026-01-31T23:59:59.123456`, the fraction only as far as it is not zero, `Z` behind it for
/// a TIMESTAMPTZ.
pub fn write_timestamp(out: &mut Vec<u8>, micros: i64, zone: Zone) {
    write_date(out, micros.div_euclid(DAY_MICROS));
    let of_day = u64::try_from(micros.rem_euclid(DAY_MICROS)).unwrap_or(0);
    let seconds = u32::try_from(of_day / 1_000_000).unwrap_or(0);
    let mut fraction = u32::try_from(of_day % 1_000_000).unwrap_or(0);
    for (mark, value) in [
        (b'T', seconds / 3600),
        (b':', seconds / 60 % 60),
        (b':', seconds % 60),
    ] {
        out.push(mark);
        push_two(out, value);
    }
    if fraction > 0 {
        let mut digits_n = 6;
        while fraction.is_multiple_of(10) {
            fraction /= 10;
            digits_n -= 1;
        }
        out.push(b'.');
        out.extend_from_slice(format!("{fraction:0digits_n$}").as_bytes());
    }
    if zone == Zone::Required {
        out.push(b'Z');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_agree_with_chrono_for_every_day_of_eight_centuries() {
        let epoch = NaiveDate::from_ymd_opt(1970, 1, 1).unwrap();
        let mut day = NaiveDate::from_ymd_opt(1600, 1, 1).unwrap();
        let end = NaiveDate::from_ymd_opt(2401, 1, 1).unwrap();
        while day < end {
            use chrono::Datelike;
            let days = (day - epoch).num_days();
            let (y, m, d) = (i64::from(day.year()), day.month(), day.day());
            assert_eq!(days_of(y, i64::from(m), i64::from(d)), Some(days));
            assert_eq!(date_of(days), (y, m, d));
            day = day.succ_opt().unwrap();
        }
        assert_eq!(days_of(2023, 2, 29), None);
        assert_eq!(days_of(2023, 13, 1), None);
        assert_eq!(days_of(2023, 0, 1), None);
        assert_eq!(days_of(2023, 1, 0), None);
    }

    #[test]
    fn rfc3339_reads_offsets_and_fractions() {
        let read = |text: &str| rfc3339(text.as_bytes(), Zone::Optional);
        assert_eq!(read("1970-01-01T00:00:01Z"), Ok(1_000_000));
        assert_eq!(read("1970-01-01 00:00:01"), Ok(1_000_000));
        assert_eq!(read("1970-01-01T01:00:00+01:00"), Ok(0));
        assert_eq!(read("1969-12-31T23:59:59.999999-00:00"), Ok(-1));
        assert_eq!(read("1970-01-01T00:00:00.123456789Z"), Ok(123_456));
        assert_eq!(read("1970-01-01T00:00:00.5Z"), Ok(500_000));
        for wrong in [
            "1970-01-01",
            "1970-01-01T24:00:00Z",
            "1970-02-30T00:00:00Z",
            "1970-01-01T00:00:00.Z",
            "1970-01-01T00:00:00+0100",
            "1970-01-01T00:00:00Zx",
            "197a-01-01T00:00:00Z",
            "",
        ] {
            assert_eq!(read(wrong), Err(Fault::NotATime), "{wrong}");
        }
    }

    #[test]
    fn a_timestamptz_needs_an_offset() {
        let read = |text: &str| rfc3339(text.as_bytes(), Zone::Required);
        assert_eq!(read("1970-01-01T00:00:01"), Err(Fault::NoOffset));
        assert_eq!(read("1970-01-01T00:00:01Z"), Ok(1_000_000));
        let pattern = TimeParse::Strftime("%Y/%m/%d %H:%M".into());
        assert_eq!(
            timestamp(b"1970/01/01 00:01", &pattern, Zone::Required),
            Err(Fault::NoOffset)
        );
        assert_eq!(
            timestamp(b"1970/01/01 00:01", &pattern, Zone::Optional),
            Ok(60_000_000)
        );
    }

    #[test]
    fn epochs_are_exact_and_cut_at_microseconds() {
        assert_eq!(epoch(b"1.5", &TimeParse::EpochSeconds), Ok(1_500_000));
        assert_eq!(
            epoch(b"1700000000000", &TimeParse::EpochMillis),
            Ok(1_700_000_000_000_000)
        );
        assert_eq!(epoch(b"-1", &TimeParse::EpochMicros), Ok(-1));
        assert_eq!(
            epoch(b"9223372036854775807", &TimeParse::EpochMillis),
            Err(Fault::Overflow)
        );
    }

    #[test]
    fn times_are_written_with_as_much_fraction_as_needed() {
        let write = |micros, zone| {
            let mut out = Vec::new();
            write_timestamp(&mut out, micros, zone);
            String::from_utf8(out).unwrap()
        };
        assert_eq!(write(0, Zone::Optional), "1970-01-01T00:00:00");
        assert_eq!(write(-1, Zone::Required), "1969-12-31T23:59:59.999999Z");
        assert_eq!(
            write(1_769_903_999_120_000, Zone::Optional),
            "2026-01-31T23:59:59.12"
        );
        assert_eq!(write(1_000, Zone::Optional), "1970-01-01T00:00:00.001");
        assert_eq!(
            write(-62_135_596_800_000_000, Zone::Optional),
            "0001-01-01T00:00:00"
        );
    }
}
