//! Text of a published file as a value of its column's type.
//!
//! Owns: undoing what the sinks' formats do to values, as streamjob.md ("Values out") describes it.
//! Start at: [`from_json`], [`from_text`].

use anyhow::{Context as _, Result, bail, ensure};
use chrono::{NaiveDate, NaiveDateTime};
use streamforge_core::data_type::DataType;

use super::json::{self, Json};
use crate::verify::cell::Cell;

/// A JSON value of a column of this type.
pub fn from_json(value: &Json, data_type: &DataType) -> Result<Cell> {
    Ok(match (value, data_type) {
        (Json::Null, _) => Cell::Null,
        (Json::Bool(value), DataType::Boolean) => Cell::Int(i128::from(*value)),
        (Json::Number(text), DataType::Int | DataType::BigInt | DataType::Decimal(..)) => {
            from_text(text, data_type)?
        }
        (Json::Number(text) | Json::Text(text), DataType::Real | DataType::Double) => {
            from_text(text, data_type)?
        }
        (Json::Text(text), DataType::Text) => Cell::Text(text.as_str().into()),
        (
            Json::Text(text),
            DataType::Bytea | DataType::Date | DataType::Timestamp | DataType::TimestampTz,
        ) => from_text(text, data_type)?,
        (Json::Array(items), DataType::List(item)) => Cell::Many(
            items
                .iter()
                .map(|value| from_json(value, item))
                .collect::<Result<_>>()?,
        ),
        (Json::Object(values), DataType::Struct(fields)) => {
            let cell = |(name, data_type): &(String, DataType)| {
                let value = values.iter().find(|(field, _)| field == name);
                value.map_or(Ok(Cell::Null), |(_, value)| from_json(value, data_type))
            };
            Cell::Many(fields.iter().map(cell).collect::<Result<_>>()?)
        }
        (value, data_type) => bail!("{value:?} is no {data_type}"),
    })
}

/// Text that is not NULL, of a column of this type.
pub fn from_text(text: &str, data_type: &DataType) -> Result<Cell> {
    let cell = match data_type {
        DataType::Boolean => match text {
            "true" => Cell::Int(1),
            "false" => Cell::Int(0),
            _ => bail!("`{text}` is no BOOLEAN"),
        },
        DataType::Int | DataType::BigInt => Cell::Int(text.parse::<i64>()?.into()),
        DataType::Decimal(_, scale) => Cell::Int(decimal(text, usize::from(*scale))?),
        DataType::Real => Cell::Float(text.parse::<f32>()?.into()),
        DataType::Double => Cell::Float(text.parse::<f64>()?),
        DataType::Text => Cell::Text(text.into()),
        DataType::Bytea => Cell::Bytes(base64(text)?.into()),
        DataType::Date => {
            let date: NaiveDate = text.parse()?;
            Cell::Int(
                date.signed_duration_since(NaiveDate::default())
                    .num_days()
                    .into(),
            )
        }
        DataType::Timestamp => Cell::Int(micros(text)?.into()),
        DataType::TimestampTz => {
            let text = text.strip_suffix('Z').context("a TIMESTAMPTZ without Z")?;
            Cell::Int(micros(text)?.into())
        }
        DataType::List(_) | DataType::Struct(_) => {
            return from_json(&json::parse(text)?, data_type);
        }
    };
    Ok(cell)
}

fn micros(text: &str) -> Result<i64> {
    let time = NaiveDateTime::parse_from_str(text, "%Y-%m-%dT%H:%M:%S%.f")
        .with_context(|| format!("read the time `{text}`"))?;
    Ok(time.and_utc().timestamp_micros())
}

/// A plain number without its point; its scale must be the column's.
fn decimal(text: &str, scale: usize) -> Result<i128> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    ensure!(
        fraction.len() == scale,
        "`{text}` is not written with {scale} decimals"
    );
    format!("{whole}{fraction}")
        .parse()
        .with_context(|| format!("read the decimal `{text}`"))
}

fn base64(text: &str) -> Result<Vec<u8>> {
    let digit = |byte: u8| {
        Ok(u32::from(match byte {
            b'A'..=b'Z' => byte - b'A',
            b'a'..=b'z' => byte - b'a' + 26,
            b'0'..=b'9' => byte - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => bail!("`{text}` is not base64"),
        }))
    };
    let mut out = Vec::with_capacity(text.len() / 4 * 3);
    for four in text.trim_end_matches('=').as_bytes().chunks(4) {
        ensure!(four.len() > 1, "`{text}` is cut base64");
        let mut bits = 0;
        for byte in four {
            bits = bits << 6 | digit(*byte)?;
        }
        bits <<= 6 * (4 - four.len());
        let [_, bytes @ ..] = bits.to_be_bytes();
        out.extend(bytes.iter().take(four.len() - 1));
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str, data_type: &str) -> Option<Cell> {
        from_text(text, &data_type.parse().unwrap()).ok()
    }

    #[test]
    fn values_are_read_as_the_document_promises_to_write_them() {
        assert_eq!(text("-0.05", "DECIMAL(10,2)"), Some(Cell::Int(-5)));
        assert_eq!(text("12.5", "DECIMAL(10,2)"), None);
        assert_eq!(
            text("-Infinity", "DOUBLE"),
            Some(Cell::Float(f64::NEG_INFINITY))
        );
        assert_eq!(text("1970-01-02", "DATE"), Some(Cell::Int(1)));
        assert_eq!(
            text("1970-01-01T00:00:00.000001", "TIMESTAMP"),
            Some(Cell::Int(1))
        );
        assert_eq!(
            text("1969-12-31T23:59:59Z", "TIMESTAMPTZ"),
            Some(Cell::Int(-1_000_000))
        );
        assert_eq!(text("1969-12-31T23:59:59", "TIMESTAMPTZ"), None);
        assert_eq!(
            text("AP+A", "BYTEA"),
            Some(Cell::Bytes([0, 255, 128].into()))
        );
        assert_eq!(text("AA==", "BYTEA"), Some(Cell::Bytes([0].into())));
        assert_eq!(text("true", "BOOLEAN"), Some(Cell::Int(1)));
    }

    #[test]
    fn nested_values_follow_their_type() {
        let data_type: DataType = "STRUCT(a INT, b TEXT[])".parse().unwrap();
        let value = json::parse(r#"{"b":["x",null],"a":7}"#).unwrap();

        let items = Cell::Many(vec![Cell::Text("x".into()), Cell::Null]);
        assert_eq!(
            from_json(&value, &data_type).unwrap(),
            Cell::Many(vec![Cell::Int(7), items])
        );
        assert!(from_json(&Json::Text("7".into()), &DataType::Int).is_err());
    }
}
