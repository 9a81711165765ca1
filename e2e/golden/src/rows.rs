//! Rows in and out of the text of a story.

use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use arrow::array::TimestampMicrosecondArray;
use arrow::array::{Array, ArrayRef, AsArray, Int8Array, RecordBatch, StringArray};
use arrow::compute::{CastOptions, cast_with_options};
use arrow::datatypes::{DataType, TimeUnit, TimestampMicrosecondType};
use arrow::util::display::{ArrayFormatter, FormatOptions};
use streamforge_core::job_graph::Column;
use streamforge_engine::batch::RowOp;
use streamforge_engine::types;

/// Times beyond this are written as dates; before it seconds are easier to read.
const SECONDS_MAX: i64 = 10_000_000;

/// One record as a batch of these columns; a story's record has all of `declared`.
pub fn parse(record: &str, declared: &[Column], columns: &[Column]) -> Result<RecordBatch> {
    let values = tokens(record);
    ensure!(
        values.len() == declared.len(),
        "{} values for {} columns",
        values.len(),
        declared.len()
    );
    let array = |column: &Column| -> Result<ArrayRef> {
        let at = declared.iter().position(|other| other.name == column.name);
        let text = at
            .and_then(|at| values.get(at))
            .context("a column that no record has")?;
        let text = (text != "null" && text != "@null").then_some(text.as_str());
        let wanted = types::arrow_type(&column.data_type);
        if let Some(time) = text.and_then(|text| text.strip_prefix('@')) {
            return Ok(Arc::new(TimestampMicrosecondArray::from(vec![micros(
                time,
            )?])));
        }
        let texts = StringArray::from(vec![text.map(|text| text.trim_matches('"'))]);
        let options = CastOptions {
            safe: false,
            ..CastOptions::default()
        };
        Ok(cast_with_options(&texts, &wanted, &options)?)
    };
    let arrays = columns.iter().map(array).collect::<Result<Vec<_>>>()?;
    let options = arrow::record_batch::RecordBatchOptions::new().with_row_count(Some(1));
    Ok(RecordBatch::try_new_with_options(
        types::schema(columns),
        arrays,
        &options,
    )?)
}

/// Words, and texts in quotes with the quotes.
fn tokens(record: &str) -> Vec<String> {
    let mut tokens: Vec<String> = Vec::new();
    let mut quoted = false;
    let mut fresh = true;
    for c in record.chars() {
        if c == ' ' && !quoted {
            fresh = true;
            continue;
        }
        quoted ^= c == '"';
        if fresh {
            tokens.push(String::new());
        }
        fresh = false;
        if let Some(token) = tokens.last_mut() {
            token.push(c);
        }
    }
    tokens
}

fn micros(time: &str) -> Result<i64> {
    if let Ok(seconds) = time.parse::<i64>() {
        return Ok(seconds * 1_000_000);
    }
    let texts = StringArray::from(vec![time]);
    let wanted = DataType::Timestamp(TimeUnit::Microsecond, None);
    let options = CastOptions {
        safe: false,
        ..CastOptions::default()
    };
    let times = cast_with_options(&texts, &wanted, &options)?;
    Ok(times.as_primitive::<TimestampMicrosecondType>().value(0))
}

/// A row of an output.
#[derive(Clone, Debug)]
pub struct Row {
    /// What happened to it.
    pub op: RowOp,
    /// Its values.
    pub text: String,
}

/// The rows of a batch.
pub fn show(rows: &RecordBatch, ops: Option<&Int8Array>) -> Result<Vec<Row>> {
    let schema = rows.schema();
    let names: Vec<&str> = schema
        .fields()
        .iter()
        .map(|field| field.name().as_str())
        .collect();
    let row = |idx: usize| -> Result<Row> {
        let op = ops.map_or(Some(RowOp::Insert), |ops| RowOp::from_byte(ops.value(idx)));
        let mut words = Vec::new();
        for (name, column) in names.iter().zip(rows.columns()) {
            let value = value(column, idx)?;
            // `.late` and `.bad` are told by columns that only they have.
            match (
                *name,
                names.contains(&"watermark"),
                names.contains(&"reason"),
            ) {
                ("window_start", ..) => words.push(format!("[{}", value.trim_start_matches('@'))),
                ("window_end", ..) => {
                    let start = words.pop().unwrap_or_default();
                    words.push(format!("{start},{})", value.trim_start_matches('@')));
                }
                ("watermark", true, _) => words.push(format!("wm {value}")),
                ("source" | "position", true, _) => {}
                ("reason", _, true) => words.push(format!("| {value}")),
                ("node" | "source" | "position" | "event_time", _, true) => {}
                _ => words.push(value),
            }
        }
        Ok(Row {
            op: op.context("a changelog operation")?,
            text: words.join(" "),
        })
    };
    (0..rows.num_rows()).map(row).collect()
}

fn value(column: &ArrayRef, idx: usize) -> Result<String> {
    if column.is_null(idx) {
        return Ok("null".to_owned());
    }
    match column.data_type() {
        DataType::Timestamp(TimeUnit::Microsecond, None) => {
            let micros = column.as_primitive::<TimestampMicrosecondType>().value(idx);
            Ok(format!("@{}", time(column, idx, micros)?))
        }
        DataType::Binary => {
            Ok(String::from_utf8_lossy(column.as_binary::<i32>().value(idx)).into_owned())
        }
        _ => Ok(formatted(column, idx)?),
    }
}

fn time(column: &ArrayRef, idx: usize, micros: i64) -> Result<String> {
    let seconds = micros.div_euclid(1_000_000);
    if seconds.abs() > SECONDS_MAX {
        return formatted(column, idx);
    }
    let rest = micros.rem_euclid(1_000_000);
    let fraction = if rest == 0 {
        String::new()
    } else {
        format!(".{rest:06}")
    };
    Ok(format!("{seconds}{fraction}"))
}

fn formatted(column: &ArrayRef, idx: usize) -> Result<String> {
    let options = FormatOptions::default();
    Ok(ArrayFormatter::try_new(column.as_ref(), &options)?
        .value(idx)
        .to_string())
}
