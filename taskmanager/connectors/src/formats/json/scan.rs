//! Walking over JSON text.
//!
//! Owns: spaces, strings, numbers and whole values that nobody wants, each checked while it is passed
//! over. Start at: [`string`], [`skip_value`].
//!
//! Every function takes the padded buffer and a position and answers the position behind what it read.
//! None looks for the end of the row: a newline is no legal byte inside of a token, so each stops there.

use crate::formats::fault::Fault;
use crate::formats::number::digits;

/// Deepest nesting of arrays and objects in a row.
pub const NESTING_MAX: u32 = 128;

/// A fault and where it was met.
pub type Stop = (Fault, usize);

/// The byte at `pos`; a newline behind the end.
#[inline(always)]
pub fn byte(buf: &[u8], pos: usize) -> u8 {
    match buf.get(pos) {
        Some(byte) => *byte,
        None => b'\n',
    }
}

/// Passes over spaces, tabs and carriage returns. Not over newlines: they end the row.
#[inline(always)]
pub fn spaces(buf: &[u8], mut pos: usize) -> usize {
    while matches!(byte(buf, pos), b' ' | b'\t' | b'\r') {
        pos += 1;
    }
    pos
}

/// Marks each byte of a block that ends or changes a plain ASCII string: quote, backslash, controls,
/// and everything above 0x7F. Written so that the compiler makes vector instructions of it.
#[inline(always)]
fn special_or_wide(block: &[u8; 16]) -> u128 {
    let mut marks = [0u8; 16];
    for (mark, c) in marks.iter_mut().zip(block) {
        let hit = (*c == b'"') | (*c == b'\\') | (c.wrapping_sub(0x20) >= 0x60);
        *mark = 0u8.wrapping_sub(u8::from(hit));
    }
    u128::from_le_bytes(marks)
}

/// The same without those above 0x7F.
#[inline(always)]
fn special(block: &[u8; 16]) -> u128 {
    let mut marks = [0u8; 16];
    for (mark, c) in marks.iter_mut().zip(block) {
        let hit = (*c == b'"') | (*c == b'\\') | (*c < 0x20);
        *mark = 0u8.wrapping_sub(u8::from(hit));
    }
    u128::from_le_bytes(marks)
}

#[inline(always)]
fn block16(buf: &[u8], pos: usize) -> Option<&[u8; 16]> {
    buf.get(pos..pos.wrapping_add(16))?.try_into().ok()
}

/// What a string holds besides plain ASCII.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Text {
    /// Nothing: its bytes are its value.
    Plain,
    /// Escapes: it must be unescaped.
    Escaped,
}

/// Passes over a string whose opening quote is before `pos`. Answers the position of the closing quote.
/// The bytes up to there are UTF-8.
#[inline(always)]
pub fn string(buf: &[u8], pos: usize) -> Result<(usize, Text), Stop> {
    let mut at = pos;
    loop {
        let Some(block) = block16(buf, at) else {
            return Err((Fault::ControlCharacter, at));
        };
        let marks = special_or_wide(block);
        if marks == 0 {
            at = at.wrapping_add(16);
            continue;
        }
        at = at.wrapping_add((marks.trailing_zeros() / 8) as usize);
        if byte(buf, at) == b'"' {
            return Ok((at, Text::Plain));
        }
        return string_general(buf, pos, at);
    }
}

/// The rest of a string that has a byte which is not plain ASCII at `at`.
fn string_general(buf: &[u8], start: usize, mut at: usize) -> Result<(usize, Text), Stop> {
    let mut text = Text::Plain;
    loop {
        let Some(block) = block16(buf, at) else {
            return Err((Fault::ControlCharacter, at));
        };
        let marks = special(block);
        if marks == 0 {
            at += 16;
            continue;
        }
        at += (marks.trailing_zeros() / 8) as usize;
        match byte(buf, at) {
            b'"' => break,
            // The escaped byte may be a quote; a newline there is met again by the next round.
            b'\\' => {
                text = Text::Escaped;
                at += if byte(buf, at + 1) == b'\n' { 1 } else { 2 };
            }
            _ => return Err((Fault::ControlCharacter, at)),
        }
    }
    match std::str::from_utf8(buf.get(start..at).unwrap_or_default()) {
        Ok(_) => Ok((at, text)),
        Err(error) => Err((Fault::Utf8, start + error.valid_up_to())),
    }
}

/// Passes over a number and checks its grammar.
#[inline]
pub fn number(buf: &[u8], pos: usize) -> Result<usize, Stop> {
    let mut at = if byte(buf, pos) == b'-' { pos + 1 } else { pos };
    let (_, n) = digits(buf, at);
    if n == 0 || (n > 1 && byte(buf, at) == b'0') {
        return Err((Fault::Syntax, at));
    }
    at += n;
    if byte(buf, at) == b'.' {
        let (_, n) = digits(buf, at + 1);
        if n == 0 {
            return Err((Fault::Syntax, at + 1));
        }
        at += 1 + n;
    }
    if matches!(byte(buf, at), b'e' | b'E') {
        at += 1;
        if matches!(byte(buf, at), b'+' | b'-') {
            at += 1;
        }
        let (_, n) = digits(buf, at);
        if n == 0 {
            return Err((Fault::Syntax, at));
        }
        at += n;
    }
    Ok(at)
}

/// Passes over `true`, `false` or `null`.
pub fn word(buf: &[u8], pos: usize, word: &[u8]) -> Result<usize, Stop> {
    let end = pos + word.len();
    if buf.get(pos..end) == Some(word) {
        Ok(end)
    } else {
        Err((Fault::Syntax, pos))
    }
}

/// Checks the escapes of a string that was passed over.
pub fn check_escapes(buf: &[u8], start: usize, end: usize) -> Result<(), Stop> {
    super::unescape::unescape(buf, start, end, |_| {})
}

/// Passes over a string whose opening quote is at `pos`, and checks it fully.
#[inline]
pub fn skip_string(buf: &[u8], pos: usize) -> Result<usize, Stop> {
    let (end, text) = string(buf, pos + 1)?;
    if text == Text::Escaped {
        check_escapes(buf, pos + 1, end)?;
    }
    Ok(end + 1)
}

/// Passes over any value. Its form is checked; whether a nested object names a key twice is not:
/// nobody looks into it.
#[inline]
pub fn skip_value(buf: &[u8], pos: usize) -> Result<usize, Stop> {
    match byte(buf, pos) {
        b'"' => skip_string(buf, pos),
        b'-' | b'0'..=b'9' => number(buf, pos),
        _ => skip_other(buf, pos),
    }
}

fn skip_scalar(buf: &[u8], pos: usize) -> Result<usize, Stop> {
    match byte(buf, pos) {
        b'"' => skip_string(buf, pos),
        b'-' | b'0'..=b'9' => number(buf, pos),
        b't' => word(buf, pos, b"true"),
        b'f' => word(buf, pos, b"false"),
        b'n' => word(buf, pos, b"null"),
        _ => Err((Fault::Syntax, pos)),
    }
}

/// Nested values without recursion: one bit for each open bracket says whether it is an object.
fn skip_other(buf: &[u8], pos: usize) -> Result<usize, Stop> {
    let mut at = pos;
    let mut objects = 0u128;
    let mut depth = 0u32;
    loop {
        // Here a value begins.
        let opened = byte(buf, at);
        if matches!(opened, b'{' | b'[') {
            if depth == NESTING_MAX {
                return Err((Fault::TooDeep, at));
            }
            let object = opened == b'{';
            let close = if object { b'}' } else { b']' };
            depth += 1;
            objects = (objects << 1) | u128::from(object);
            at = spaces(buf, at + 1);
            if byte(buf, at) != close {
                if object {
                    at = skip_key(buf, at)?;
                }
                continue;
            }
        } else {
            at = skip_scalar(buf, at)?;
            if depth == 0 {
                return Ok(at);
            }
            at = spaces(buf, at);
        }
        // Here a value ended, or an empty one is about to.
        loop {
            let object = objects & 1 == 1;
            match byte(buf, at) {
                b',' => {
                    at = spaces(buf, at + 1);
                    if object {
                        at = skip_key(buf, at)?;
                    }
                    break;
                }
                b'}' if object => {}
                b']' if !object => {}
                _ => return Err((Fault::Syntax, at)),
            }
            at += 1;
            depth -= 1;
            objects >>= 1;
            if depth == 0 {
                return Ok(at);
            }
            at = spaces(buf, at);
        }
    }
}

/// Passes over `"key" :` and the spaces around it.
fn skip_key(buf: &[u8], pos: usize) -> Result<usize, Stop> {
    if byte(buf, pos) != b'"' {
        return Err((Fault::Syntax, pos));
    }
    let at = spaces(buf, skip_string(buf, pos)?);
    if byte(buf, at) != b':' {
        return Err((Fault::Syntax, at));
    }
    Ok(spaces(buf, at + 1))
}
