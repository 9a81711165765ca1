//! Differing rows, for people.

use streamforge_core::data_type::DataType;
use streamforge_core::job_graph::Column;

use super::cell::Cell;
use super::multiset::Sample;
use crate::time;

/// Longest text of one value.
const VALUE_CHARS_MAX: usize = 60;

/// A differing row.
pub fn sample(sample: &Sample, columns: &[Column]) -> String {
    match sample {
        Sample::Missing(cells) => format!("missing  {}", row(cells, columns)),
        Sample::Extra(cells) => format!("extra    {}", row(cells, columns)),
        Sample::Wrong { expected, found } => {
            format!(
                "wrong    {}\n  expected {}",
                row(found, columns),
                row(expected, columns)
            )
        }
    }
}

fn row(cells: &[Cell], columns: &[Column]) -> String {
    let values = cells.iter().zip(columns);
    let values =
        values.map(|(cell, column)| format!("{}={}", column.name, value(cell, &column.data_type)));
    values.collect::<Vec<_>>().join(" ")
}

fn value(cell: &Cell, data_type: &DataType) -> String {
    let text = match (cell, data_type) {
        (Cell::Null, _) => "null".to_owned(),
        (Cell::Int(value), DataType::Boolean) => (*value != 0).to_string(),
        (Cell::Int(value), DataType::Decimal(_, scale)) => decimal(*value, usize::from(*scale)),
        (Cell::Int(value), DataType::Timestamp | DataType::TimestampTz) => {
            i64::try_from(*value).map_or_else(|_| value.to_string(), time::event_time)
        }
        (Cell::Int(value), _) => value.to_string(),
        (Cell::Float(value), _) => format!("{value:?}"),
        (Cell::Text(text), _) => format!("{text:?}"),
        (Cell::Bytes(bytes), _) => format!("{:?}", String::from_utf8_lossy(bytes)),
        (Cell::Many(cells), DataType::List(item)) => {
            let items: Vec<String> = cells.iter().map(|cell| value(cell, item)).collect();
            format!("[{}]", items.join(", "))
        }
        (Cell::Many(cells), DataType::Struct(fields)) => {
            let fields = cells.iter().zip(fields);
            let fields: Vec<String> = fields
                .map(|(cell, (name, t))| format!("{name}: {}", value(cell, t)))
                .collect();
            format!("{{{}}}", fields.join(", "))
        }
        (Cell::Many(_), _) => "...".to_owned(),
    };
    if text.chars().count() <= VALUE_CHARS_MAX {
        return text;
    }
    text.chars()
        .take(VALUE_CHARS_MAX)
        .chain("...".chars())
        .collect()
}

fn decimal(value: i128, scale: usize) -> String {
    if scale == 0 {
        return value.to_string();
    }
    let digits = format!("{:0>width$}", value.unsigned_abs(), width = scale + 1);
    let (whole, fraction) = digits.split_at(digits.len() - scale);
    format!("{}{whole}.{fraction}", if value < 0 { "-" } else { "" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decimals_keep_their_scale_and_sign() {
        assert_eq!(decimal(-5, 2), "-0.05");
        assert_eq!(decimal(12345, 2), "123.45");
        assert_eq!(decimal(7, 0), "7");
    }
}
