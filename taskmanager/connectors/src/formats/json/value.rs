//! One JSON value into one column.
//!
//! Owns: which JSON types each column type takes, exactly as streamjob.md says under "Values in".
//! Start at: [`read_value`].

use super::object::fill_missing;
use super::scan::{NESTING_MAX, Stop, Text, byte, number, spaces, string, word};
use super::unescape::unescape;
use crate::formats::base64;
use crate::formats::builder::{ColumnBuilder, Runs, Values};
use crate::formats::decoded::TimeParse;
use crate::formats::fault::Fault;
use crate::formats::number::{
    Rest, decimal, digits, float32, float64, integer, pow10, without_digits,
};
use crate::formats::time;

/// Reads the value at `pos` into the column and answers the position behind it. On an error the
/// column may hold half a value; the caller takes the row back.
#[inline(always)]
pub fn read_value(column: &mut ColumnBuilder, buf: &[u8], pos: usize) -> Result<usize, Stop> {
    if byte(buf, pos) == b'n' {
        let end = word(buf, pos, b"null")?;
        column.push_null().map_err(|fault| (fault, pos))?;
        return Ok(end);
    }
    let end = match &mut column.values {
        Values::BigInt(values) => {
            let (value, end) = read_integer(buf, pos)?;
            values.push(value);
            end
        }
        Values::Text(runs) => read_text(runs, column.wanted, buf, pos)?,
        Values::Int(values) => {
            let (value, end) = read_integer(buf, pos)?;
            values.push(i32::try_from(value).map_err(|_| (Fault::Overflow, pos))?);
            end
        }
        _ => read_rarer(column, buf, pos)?,
    };
    column.len = column.len.wrapping_add(1);
    Ok(end)
}

fn read_rarer(column: &mut ColumnBuilder, buf: &[u8], pos: usize) -> Result<usize, Stop> {
    match &mut column.values {
        Values::Time {
            values,
            parse,
            zone,
        } => {
            let (value, end) = read_time(buf, pos, parse, *zone)?;
            values.push(value);
            Ok(end)
        }
        Values::Decimal {
            values,
            precision,
            scale,
        } => {
            let (value, end) = read_decimal(buf, pos, *precision, *scale)?;
            values.push(value);
            Ok(end)
        }
        Values::Double(values) => {
            let (value, end) = read_float(buf, pos, float64, |word| word)?;
            values.push(value);
            Ok(end)
        }
        Values::Real(values) => {
            let (value, end) = read_float(buf, pos, float32, |word| word as f32)?;
            values.push(value);
            Ok(end)
        }
        Values::Boolean(values) => {
            let (value, text) = match byte(buf, pos) {
                b't' => (true, &b"true"[..]),
                b'f' => (false, &b"false"[..]),
                _ => return Err((expected(buf, pos, "true or false"), pos)),
            };
            values.push(value);
            word(buf, pos, text)
        }
        Values::Date(values) => {
            let (value, end) = with_text(buf, pos, time::date)?;
            values.push(value);
            Ok(end)
        }
        Values::Bytes(runs) => {
            let ((), end) = with_text(buf, pos, |text| base64::decode(text, runs))?;
            runs.close();
            Ok(end)
        }
        Values::List { ends, items, .. } => {
            let end = read_items(items, buf, pos)?;
            ends.push(items.len as i32);
            Ok(end)
        }
        Values::Struct { plan, fields, .. } => {
            if byte(buf, pos) != b'{' {
                return Err((expected(buf, pos, "an object"), pos));
            }
            let len = column.len + 1;
            let end = plan
                .read(fields, buf, pos)
                .map_err(|stop| (stop.fault, stop.at))?;
            fill_missing(fields, len, pos).map_err(|stop| (stop.fault, stop.at))?;
            Ok(end)
        }
        Values::BigInt(_) | Values::Int(_) | Values::Text(_) => Err((Fault::Syntax, pos)),
    }
}

/// The fault of a value of the wrong type, or of what is no value.
#[cold]
fn expected(buf: &[u8], pos: usize, what: &'static str) -> Fault {
    match byte(buf, pos) {
        b'"' | b'-' | b'0'..=b'9' | b'{' | b'[' | b't' | b'f' => Fault::WrongType(what),
        _ => Fault::Syntax,
    }
}

#[cold]
fn not_a_number(buf: &[u8], pos: usize) -> Fault {
    match byte(buf, pos) {
        b'"' => Fault::StringForNumber,
        _ => expected(buf, pos, "a number"),
    }
}

#[cold]
fn not_a_string(buf: &[u8], pos: usize) -> Fault {
    match byte(buf, pos) {
        b'-' | b'0'..=b'9' => Fault::NumberForString,
        _ => expected(buf, pos, "a string"),
    }
}

/// A number, or one of the words for what JSON has no number for.
fn read_float<T>(
    buf: &[u8],
    pos: usize,
    number: fn(&[u8]) -> Result<T, Fault>,
    word: fn(f64) -> T,
) -> Result<(T, usize), Stop> {
    if byte(buf, pos) == b'"' {
        let (value, end) = with_text(buf, pos, float_word)?;
        return Ok((word(value), end));
    }
    let end = number_here(buf, pos)?;
    let value = number(slice(buf, pos, end)).map_err(|fault| (fault, pos))?;
    Ok((value, end))
}

/// JSON has no number for these; any other string is none, either.
#[cold]
fn float_word(text: &[u8]) -> Result<f64, Fault> {
    without_digits(text).ok_or(Fault::StringForNumber)
}

fn slice(buf: &[u8], start: usize, end: usize) -> &[u8] {
    buf.get(start..end).unwrap_or_default()
}

/// Passes over a number; another type is a fault of its own.
fn number_here(buf: &[u8], pos: usize) -> Result<usize, Stop> {
    match byte(buf, pos) {
        b'-' | b'0'..=b'9' => number(buf, pos),
        _ => Err((not_a_number(buf, pos), pos)),
    }
}

#[inline(always)]
fn read_integer(buf: &[u8], pos: usize) -> Result<(i64, usize), Stop> {
    let negative = byte(buf, pos) == b'-';
    let start = pos.wrapping_add(usize::from(negative));
    let (value, n) = digits(buf, start);
    let end = start.wrapping_add(n);
    let plain = n.wrapping_sub(1) < 18 && !matches!(byte(buf, end), b'.' | b'e' | b'E');
    if plain && (byte(buf, start) != b'0' || n == 1) {
        // At most 18 digits fit.
        let value = value as i64;
        return Ok((
            if negative {
                value.wrapping_neg()
            } else {
                value
            },
            end,
        ));
    }
    read_long_integer(buf, pos)
}

/// All that is not an integer of at most 18 digits.
#[cold]
fn read_long_integer(buf: &[u8], pos: usize) -> Result<(i64, usize), Stop> {
    let end = number_here(buf, pos)?;
    match integer(slice(buf, pos, end)) {
        Ok(value) => Ok((value, end)),
        Err(fault) => Err((fault, pos)),
    }
}

#[inline]
fn read_decimal(buf: &[u8], pos: usize, precision: u8, scale: u8) -> Result<(i128, usize), Stop> {
    let negative = byte(buf, pos) == b'-';
    let start = pos.wrapping_add(usize::from(negative));
    let (whole, whole_n) = digits(buf, start);
    let mut end = start.wrapping_add(whole_n);
    let (mut value, mut n, mut missing) = (whole, whole_n, usize::from(scale));
    if byte(buf, end) == b'.' {
        let (fraction, fraction_n) = digits(buf, end.wrapping_add(1));
        if fraction_n > 0 && fraction_n <= missing && whole_n + fraction_n <= 18 {
            value = value * pow10_small(fraction_n) + fraction;
            n += fraction_n;
            missing -= fraction_n;
            end = end.wrapping_add(1 + fraction_n);
        }
    }
    let plain =
        whole_n > 0 && n <= 18 && !matches!(byte(buf, end), b'.' | b'e' | b'E' | b'0'..=b'9');
    if plain && (byte(buf, start) != b'0' || whole_n == 1) && n + missing <= usize::from(precision)
    {
        let value = i128::from(value) * pow10(missing as u32);
        return Ok((if negative { -value } else { value }, end));
    }
    let end = number_here(buf, pos)?;
    let rest = Rest::Refuse(Fault::TooPrecise);
    match decimal(slice(buf, pos, end), precision, u32::from(scale), rest) {
        Ok(value) => Ok((value, end)),
        Err(fault) => Err((fault, pos)),
    }
}

fn pow10_small(n: usize) -> u64 {
    10u64.pow(n as u32)
}

fn read_time(
    buf: &[u8],
    pos: usize,
    parse: &TimeParse,
    zone: time::Zone,
) -> Result<(i64, usize), Stop> {
    let Some(unit) = time::epoch_unit(parse) else {
        return with_text(buf, pos, |text| time::timestamp(text, parse, zone));
    };
    let (value, n) = digits(buf, pos);
    let end = pos + n;
    let plain = n.wrapping_sub(1) < 18 && !matches!(byte(buf, end), b'.' | b'e' | b'E');
    if plain && (byte(buf, pos) != b'0' || n == 1) {
        let micros = (value as i64).checked_mul(unit);
        return Ok((micros.ok_or((Fault::Overflow, pos))?, end));
    }
    let end = number_here(buf, pos)?;
    match time::epoch(slice(buf, pos, end), parse) {
        Ok(value) => Ok((value, end)),
        Err(fault) => Err((fault, pos)),
    }
}

#[inline(always)]
fn read_text(runs: &mut Runs, wanted: bool, buf: &[u8], pos: usize) -> Result<usize, Stop> {
    if byte(buf, pos) != b'"' {
        return Err((not_a_string(buf, pos), pos));
    }
    let start = pos.wrapping_add(1);
    let (end, text) = string(buf, start)?;
    if text == Text::Escaped {
        read_escaped(runs, wanted, buf, start, end)?;
    } else if wanted {
        runs.push(buf, start, end);
    } else {
        runs.close();
    }
    Ok(end.wrapping_add(1))
}

fn read_escaped(
    runs: &mut Runs,
    wanted: bool,
    buf: &[u8],
    start: usize,
    end: usize,
) -> Result<(), Stop> {
    unescape(buf, start, end, |piece| {
        if wanted {
            runs.extend(piece);
        }
    })?;
    runs.close();
    Ok(())
}

/// Gives the value of the string at `pos` to `read`.
fn with_text<T>(
    buf: &[u8],
    pos: usize,
    read: impl FnOnce(&[u8]) -> Result<T, Fault>,
) -> Result<(T, usize), Stop> {
    if byte(buf, pos) != b'"' {
        return Err((not_a_string(buf, pos), pos));
    }
    let (end, text) = string(buf, pos + 1)?;
    let value = match text {
        Text::Plain => read(slice(buf, pos + 1, end)),
        Text::Escaped => {
            let mut value = Vec::new();
            unescape(buf, pos + 1, end, |piece| value.extend_from_slice(piece))?;
            read(&value)
        }
    };
    Ok((value.map_err(|fault| (fault, pos))?, end + 1))
}

/// The items of an array. Types nest far less deep than [`NESTING_MAX`], so this recursion is bounded.
fn read_items(items: &mut ColumnBuilder, buf: &[u8], pos: usize) -> Result<usize, Stop> {
    const { assert!(NESTING_MAX >= 64) };
    if byte(buf, pos) != b'[' {
        return Err((expected(buf, pos, "an array"), pos));
    }
    let mut at = spaces(buf, pos + 1);
    if byte(buf, at) == b']' {
        return Ok(at + 1);
    }
    loop {
        at = spaces(buf, read_boxed(items, buf, at)?);
        match byte(buf, at) {
            b',' => at = spaces(buf, at + 1),
            b']' => return Ok(at + 1),
            _ => return Err((Fault::Syntax, at)),
        }
    }
}

/// [`read_value`] out of line, where it is called in a recursion.
#[inline(never)]
fn read_boxed(column: &mut ColumnBuilder, buf: &[u8], pos: usize) -> Result<usize, Stop> {
    read_value(column, buf, pos)
}
