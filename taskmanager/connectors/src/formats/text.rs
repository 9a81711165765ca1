//! Values written as plain text: the fields of CSV.
//!
//! Owns: which texts each column type takes. Start at: [`push_text`].

use crate::formats::base64;
use crate::formats::builder::{ColumnBuilder, Values};
use crate::formats::decoded::CHUNK_PADDING;
use crate::formats::fault::Fault;
use crate::formats::json::value::read_value;
use crate::formats::number::{Rest, decimal, digits, float32, float64, integer, without_digits};
use crate::formats::time;

/// Appends the value that `text` stands for. Lists and structs are JSON. On an error the column may
/// hold half a value; the caller takes the row back.
pub fn push_text(column: &mut ColumnBuilder, text: &[u8]) -> Result<(), Fault> {
    match &mut column.values {
        Values::Text(runs) => {
            std::str::from_utf8(text).map_err(|_| Fault::Utf8)?;
            if column.wanted {
                runs.extend(text);
            }
            runs.close();
        }
        Values::BigInt(values) => values.push(plain_integer(text)?),
        Values::Int(values) => {
            values.push(i32::try_from(plain_integer(text)?).map_err(|_| Fault::Overflow)?);
        }
        Values::Double(values) => values.push(match without_digits(text) {
            Some(value) => value,
            None => float64(float_text(text)?)?,
        }),
        Values::Real(values) => values.push(match without_digits(text) {
            Some(value) => value as f32,
            None => float32(float_text(text)?)?,
        }),
        Values::Decimal {
            values,
            precision,
            scale,
        } => {
            let rest = Rest::Refuse(Fault::TooPrecise);
            values.push(decimal(text, *precision, u32::from(*scale), rest)?);
        }
        Values::Boolean(values) => values.push(match text {
            b"true" | b"TRUE" | b"True" => true,
            b"false" | b"FALSE" | b"False" => false,
            _ => return Err(Fault::NotABoolean),
        }),
        Values::Date(values) => values.push(time::date(text)?),
        Values::Time {
            values,
            parse,
            zone,
        } => values.push(time::timestamp(text, parse, *zone)?),
        Values::Bytes(runs) => {
            base64::decode(text, runs)?;
            runs.close();
        }
        Values::List { .. } | Values::Struct { .. } => return push_json(column, text),
    }
    column.len += 1;
    Ok(())
}

fn push_json(column: &mut ColumnBuilder, text: &[u8]) -> Result<(), Fault> {
    let mut padded = Vec::with_capacity(text.len() + CHUNK_PADDING);
    // Spaces of JSON that would end a line of NDJSON.
    padded.extend(text.iter().map(|c| if *c == b'\n' { b' ' } else { *c }));
    padded.resize(text.len() + CHUNK_PADDING, b'\n');
    let end = read_value(column, &padded, 0).map_err(|(fault, _)| fault)?;
    if end == text.len() {
        Ok(())
    } else {
        Err(Fault::TrailingText)
    }
}

fn plain_integer(text: &[u8]) -> Result<i64, Fault> {
    let (value, n) = digits(text, 0);
    // At most 18 digits fit.
    if n == text.len() && n > 0 && n <= 18 {
        Ok(value as i64)
    } else {
        integer(text)
    }
}

/// Refuses what Rust reads as a float and a number in a file is not: `inf`, `nan`, `infinity`.
fn float_text(text: &[u8]) -> Result<&[u8], Fault> {
    let number = text
        .iter()
        .all(|c| matches!(c, b'0'..=b'9' | b'+' | b'-' | b'.' | b'e' | b'E'));
    if number && !text.is_empty() {
        Ok(text)
    } else {
        Err(Fault::NotANumber)
    }
}
