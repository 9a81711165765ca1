//! Exact numbers from text.
//!
//! Owns: eight digits at a time, integers, and decimals that are never rounded. Shared by JSON and
//! CSV. Start at: [`digits`], [`decimal`].

use crate::formats::fault::Fault;

/// Powers of ten that fit a u64.
const POW10: [u64; 20] = {
    let mut pow = [1u64; 20];
    let mut i = 1;
    while i < 20 {
        pow[i] = pow[i - 1] * 10;
        i += 1;
    }
    pow
};

/// 10^n, for n <= 38.
pub fn pow10(n: u32) -> i128 {
    10i128.pow(n.min(38))
}

/// Eight bytes from `pos`, first byte lowest. Zero beyond the end.
#[inline(always)]
pub fn load8(buf: &[u8], pos: usize) -> u64 {
    match buf
        .get(pos..pos.wrapping_add(8))
        .and_then(|bytes| bytes.try_into().ok())
    {
        Some(bytes) => u64::from_le_bytes(bytes),
        None => load_tail(buf, pos),
    }
}

#[cold]
fn load_tail(buf: &[u8], pos: usize) -> u64 {
    let mut bytes = [0; 8];
    for (to, from) in bytes.iter_mut().zip(buf.get(pos..).unwrap_or_default()) {
        *to = *from;
    }
    u64::from_le_bytes(bytes)
}

/// Number of digits the eight bytes begin with.
#[inline(always)]
fn digits_n(word: u64) -> u32 {
    // A byte is a digit when its high nibble is 3 and adding 6 does not carry into it.
    let x = word ^ 0x3030_3030_3030_3030;
    let wrong = (x | x.wrapping_add(0x0606_0606_0606_0606)) & 0xF0F0_F0F0_F0F0_F0F0;
    wrong.trailing_zeros() / 8
}

/// The number written by eight digits.
#[inline(always)]
fn value8(digits: u64) -> u64 {
    let x = digits & 0x0F0F_0F0F_0F0F_0F0F;
    let x = x.wrapping_mul(10).wrapping_add(x >> 8) & 0x00FF_00FF_00FF_00FF;
    let x = x.wrapping_mul(100).wrapping_add(x >> 16) & 0x0000_FFFF_0000_FFFF;
    x.wrapping_mul(10_000).wrapping_add(x >> 32) & 0xFFFF_FFFF
}

/// Reads digits from `pos`: their number as a value and how many there are. The value is right while
/// there are at most 19.
#[inline(always)]
pub fn digits(buf: &[u8], pos: usize) -> (u64, usize) {
    let mut value = 0u64;
    let mut n = 0;
    loop {
        let word = load8(buf, pos.wrapping_add(n));
        let more = digits_n(word);
        if more == 8 {
            value = value.wrapping_mul(100_000_000).wrapping_add(value8(word));
            n = n.wrapping_add(8);
            continue;
        }
        if more > 0 {
            let shifted = (word & 0x0F0F_0F0F_0F0F_0F0F) << (64 - 8 * more);
            value = value
                .wrapping_mul(POW10[more as usize])
                .wrapping_add(value8(shifted));
        }
        return (value, n.wrapping_add(more as usize));
    }
}

/// What becomes of digits behind the last one that fits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rest {
    /// The number is refused unless they are zeros.
    Refuse(Fault),
    /// They are cut off, towards minus infinity: for times, which are microseconds.
    Floor,
}

/// An unscaled decimal of `text`: `[+-] digits [. digits] [e [+-] digits]`, exactly.
pub fn decimal(text: &[u8], precision: u8, scale: u32, rest: Rest) -> Result<i128, Fault> {
    let (negative, body) = match text.split_first() {
        Some((b'-', body)) => (true, body),
        Some((b'+', body)) => (false, body),
        _ => (false, text),
    };
    let mantissa_end = body
        .iter()
        .position(|c| matches!(c, b'e' | b'E'))
        .unwrap_or(body.len());
    let (mantissa, exponent) = body.split_at(mantissa_end);
    let point = mantissa
        .iter()
        .position(|c| *c == b'.')
        .unwrap_or(mantissa.len());
    let (whole, fraction) = mantissa.split_at(point);
    let fraction = fraction.get(1..).unwrap_or_default();
    if whole.is_empty() && fraction.is_empty()
        || !whole.iter().chain(fraction).all(u8::is_ascii_digit)
    {
        return Err(Fault::NotANumber);
    }
    let exponent = exponent_value(exponent)?;
    // Position of the point, counted from the first digit.
    let point = i64::try_from(whole.len()).map_err(|_| Fault::Overflow)? + exponent;
    let keep = point + i64::from(scale);

    let mut value = 0i128;
    let mut cut_nonzero = false;
    let mut digits_n = 0i64;
    for digit in whole.iter().chain(fraction).map(|c| i128::from(c - b'0')) {
        if digits_n < keep {
            value = value
                .checked_mul(10)
                .and_then(|v| v.checked_add(digit))
                .ok_or(Fault::Overflow)?;
        } else if digit != 0 {
            cut_nonzero = true;
        }
        digits_n += 1;
    }
    if value != 0 && keep > digits_n {
        let zeros = u32::try_from(keep - digits_n).ok().filter(|n| *n <= 38);
        let zeros = zeros.ok_or(Fault::Overflow)?;
        value = value.checked_mul(pow10(zeros)).ok_or(Fault::Overflow)?;
    }
    if cut_nonzero {
        match rest {
            Rest::Refuse(fault) => return Err(fault),
            Rest::Floor if negative => value += 1,
            Rest::Floor => {}
        }
    }
    if value >= pow10(u32::from(precision)) {
        return Err(Fault::Overflow);
    }
    Ok(if negative { -value } else { value })
}

/// The exponent, saturated: beyond a million it decides nothing more.
fn exponent_value(text: &[u8]) -> Result<i64, Fault> {
    let Some(text) = text.get(1..) else {
        return Ok(0);
    };
    let (negative, digits) = match text.split_first() {
        Some((b'-', digits)) => (true, digits),
        Some((b'+', digits)) => (false, digits),
        _ => (false, text),
    };
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return Err(Fault::NotANumber);
    }
    let value = digits.iter().fold(0i64, |value, c| {
        (value * 10 + i64::from(c - b'0')).min(100_000_000)
    });
    Ok(if negative { -value } else { value })
}

/// An integer of `text`; `1.0` and `1e3` are integers, `1.5` is not.
pub fn integer(text: &[u8]) -> Result<i64, Fault> {
    let value = decimal(text, 38, 0, Rest::Refuse(Fault::Fraction))?;
    i64::try_from(value).map_err(|_| Fault::Overflow)
}

/// A float of a text whose grammar was checked.
pub fn float64(text: &[u8]) -> Result<f64, Fault> {
    let text = std::str::from_utf8(text).map_err(|_| Fault::NotANumber)?;
    let value: f64 = text.parse().map_err(|_| Fault::NotANumber)?;
    if value.is_finite() {
        Ok(value)
    } else {
        Err(Fault::Overflow)
    }
}

/// The same in 32 bits: rounded once, from the text.
pub fn float32(text: &[u8]) -> Result<f32, Fault> {
    let text = std::str::from_utf8(text).map_err(|_| Fault::NotANumber)?;
    let value: f32 = text.parse().map_err(|_| Fault::NotANumber)?;
    if value.is_finite() {
        Ok(value)
    } else {
        Err(Fault::Overflow)
    }
}

/// The values that have no digits, as sinks write them.
pub fn without_digits(text: &[u8]) -> Option<f64> {
    match text {
        b"NaN" => Some(f64::NAN),
        b"Infinity" => Some(f64::INFINITY),
        b"-Infinity" => Some(f64::NEG_INFINITY),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_are_read_up_to_the_first_other_byte() {
        for (text, value, n) in [
            ("", 0, 0),
            ("x", 0, 0),
            ("7,", 7, 1),
            ("12345678", 12_345_678, 8),
            ("123456789,", 123_456_789, 9),
            ("0000000000000000001}", 1, 19),
            ("9223372036854775807", 9_223_372_036_854_775_807, 19),
            ("12:34", 12, 2),
            ("12/34", 12, 2),
        ] {
            assert_eq!(digits(text.as_bytes(), 0), (value, n), "{text}");
        }
    }

    #[test]
    fn a_decimal_is_exact_or_refused() {
        let two = |text: &str| decimal(text.as_bytes(), 10, 2, Rest::Refuse(Fault::TooPrecise));
        assert_eq!(two("1"), Ok(100));
        assert_eq!(two("-0.01"), Ok(-1));
        assert_eq!(two("1.50000"), Ok(150));
        assert_eq!(two("12e-1"), Ok(120));
        assert_eq!(two("1.5e3"), Ok(150_000));
        assert_eq!(two("0e999999999999"), Ok(0));
        assert_eq!(two("99999999.99"), Ok(9_999_999_999));
        assert_eq!(two("100000000"), Err(Fault::Overflow));
        assert_eq!(two("1e400"), Err(Fault::Overflow));
        assert_eq!(two("1.005"), Err(Fault::TooPrecise));
        assert_eq!(two("1e-400"), Err(Fault::TooPrecise));
        assert_eq!(two("1.2.3"), Err(Fault::NotANumber));
        assert_eq!(two("."), Err(Fault::NotANumber));
        assert_eq!(two("-"), Err(Fault::NotANumber));
        assert_eq!(two("1e"), Err(Fault::NotANumber));
    }

    #[test]
    fn floor_goes_towards_minus_infinity() {
        assert_eq!(decimal(b"1.0000019", 38, 6, Rest::Floor), Ok(1_000_001));
        assert_eq!(decimal(b"-1.0000019", 38, 6, Rest::Floor), Ok(-1_000_002));
    }

    #[test]
    fn an_integer_may_have_a_zero_fraction_only() {
        assert_eq!(integer(b"1.0"), Ok(1));
        assert_eq!(integer(b"1e3"), Ok(1000));
        assert_eq!(integer(b"-9223372036854775808"), Ok(i64::MIN));
        assert_eq!(integer(b"9223372036854775808"), Err(Fault::Overflow));
        assert_eq!(integer(b"1.5"), Err(Fault::Fraction));
    }
}
