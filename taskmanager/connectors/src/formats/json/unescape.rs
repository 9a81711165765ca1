//! JSON string escapes.
//!
//! Owns: turning an escaped string into its UTF-8 bytes. Start at: [`unescape`].

use super::scan::{Stop, byte};
use crate::formats::fault::Fault;

/// Gives the value of the string `start..end` piece by piece. The bytes are UTF-8 already.
pub fn unescape(
    buf: &[u8],
    start: usize,
    end: usize,
    mut piece: impl FnMut(&[u8]),
) -> Result<(), Stop> {
    let mut at = start;
    while at < end {
        let rest = buf.get(at..end).unwrap_or_default();
        let plain = memchr::memchr(b'\\', rest).unwrap_or(rest.len());
        piece(rest.get(..plain).unwrap_or_default());
        at += plain;
        if at >= end {
            break;
        }
        let simple = match byte(buf, at + 1) {
            b'"' => b'"',
            b'\\' => b'\\',
            b'/' => b'/',
            b'b' => 0x08,
            b'f' => 0x0C,
            b'n' => b'\n',
            b'r' => b'\r',
            b't' => b'\t',
            b'u' => {
                let (c, next) = code_point(buf, at, end)?;
                piece(c.encode_utf8(&mut [0; 4]).as_bytes());
                at = next;
                continue;
            }
            _ => return Err((Fault::Escape, at)),
        };
        piece(&[simple]);
        at += 2;
    }
    Ok(())
}

/// `\uXXXX`, or two of them that are a surrogate pair.
fn code_point(buf: &[u8], at: usize, end: usize) -> Result<(char, usize), Stop> {
    let first = hex4(buf, at + 2, end).ok_or((Fault::Escape, at))?;
    if let Some(c) = char::from_u32(first) {
        return Ok((c, at + 6));
    }
    let lone = (Fault::LoneSurrogate, at);
    if first >= 0xDC00 || byte(buf, at + 6) != b'\\' || byte(buf, at + 7) != b'u' {
        return Err(lone);
    }
    let second = hex4(buf, at + 8, end).ok_or(lone)?;
    if !(0xDC00..0xE000).contains(&second) {
        return Err(lone);
    }
    let c = char::from_u32(0x10000 + ((first - 0xD800) << 10) + (second - 0xDC00)).ok_or(lone)?;
    Ok((c, at + 12))
}

fn hex4(buf: &[u8], at: usize, end: usize) -> Option<u32> {
    let digits = buf.get(at..at + 4).filter(|_| at + 4 <= end)?;
    digits.iter().try_fold(0, |value, c| {
        Some(value * 16 + char::from(*c).to_digit(16)?)
    })
}
