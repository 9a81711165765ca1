//! Rows to NDJSON and CSV, exactly as streamjob.md says under "Values out".
//!
//! Owns: the text of every type. Start at: [`write_json_rows`], [`json_row`].

use arrow::array::{
    Array, ArrayRef, AsArray, BinaryArray, BooleanArray, Date32Array, Decimal128Array,
    Float32Array, Float64Array, Int8Array, Int32Array, Int64Array, ListArray, RecordBatch,
    StringArray, TimestampMicrosecondArray, UInt64Array,
};
use arrow::datatypes::{
    DataType, Date32Type, Decimal128Type, Float32Type, Float64Type, Int8Type, Int32Type, Int64Type,
    TimeUnit, TimestampMicrosecondType, UInt64Type,
};
use arrow::util::display::{ArrayFormatter, FormatOptions};

use crate::formats::base64;
use crate::formats::time::{Zone, write_date, write_timestamp};

#[cfg(test)]
mod tests;

/// A column, ready to be written value by value.
enum Values<'a> {
    Boolean(&'a BooleanArray),
    Tiny(&'a Int8Array),
    Int(&'a Int32Array),
    BigInt(&'a Int64Array),
    Count(&'a UInt64Array),
    Real(&'a Float32Array),
    Double(&'a Float64Array),
    Decimal(&'a Decimal128Array, i8),
    Text(&'a StringArray),
    Bytes(&'a BinaryArray),
    Date(&'a Date32Array),
    Time(&'a TimestampMicrosecondArray, Zone),
    List(&'a ListArray, Box<Column<'a>>),
    Struct(Vec<(Vec<u8>, Column<'a>)>),
    /// A type that no column of a job has; written by Arrow's own words.
    Other(&'a ArrayRef),
}

struct Column<'a> {
    array: &'a ArrayRef,
    /// Whether any value is NULL.
    nulls: bool,
    values: Values<'a>,
}

fn column(array: &ArrayRef) -> Column<'_> {
    let values = match array.data_type() {
        DataType::Boolean => Values::Boolean(array.as_boolean()),
        DataType::Int8 => Values::Tiny(array.as_primitive::<Int8Type>()),
        DataType::Int32 => Values::Int(array.as_primitive::<Int32Type>()),
        DataType::Int64 => Values::BigInt(array.as_primitive::<Int64Type>()),
        DataType::UInt64 => Values::Count(array.as_primitive::<UInt64Type>()),
        DataType::Float32 => Values::Real(array.as_primitive::<Float32Type>()),
        DataType::Float64 => Values::Double(array.as_primitive::<Float64Type>()),
        DataType::Decimal128(_, scale) => {
            Values::Decimal(array.as_primitive::<Decimal128Type>(), *scale)
        }
        DataType::Utf8 => Values::Text(array.as_string()),
        DataType::Binary => Values::Bytes(array.as_binary()),
        DataType::Date32 => Values::Date(array.as_primitive::<Date32Type>()),
        DataType::Timestamp(TimeUnit::Microsecond, zone) => {
            let zone = if zone.is_some() {
                Zone::Required
            } else {
                Zone::Optional
            };
            Values::Time(array.as_primitive::<TimestampMicrosecondType>(), zone)
        }
        DataType::List(_) => {
            let list: &ListArray = array.as_list();
            Values::List(list, Box::new(column(list.values())))
        }
        DataType::Struct(fields) => {
            let columns = array.as_struct().columns();
            let named = fields.iter().zip(columns);
            Values::Struct(
                named
                    .map(|(field, array)| (key(field.name()), column(array)))
                    .collect(),
            )
        }
        _ => Values::Other(array),
    };
    Column {
        array,
        nulls: array.null_count() > 0,
        values,
    }
}

/// `"name":`
fn key(name: &str) -> Vec<u8> {
    let mut key = Vec::with_capacity(name.len() + 3);
    write_string(&mut key, name.as_bytes());
    key.push(b':');
    key
}

/// Bytes of a JSON string that must be escaped.
const ESCAPED: [bool; 256] = {
    let mut escaped = [false; 256];
    let mut i = 0;
    while i < 0x20 {
        escaped[i] = true;
        i += 1;
    }
    escaped[b'"' as usize] = true;
    escaped[b'\\' as usize] = true;
    escaped
};

fn must_escape(byte: u8) -> bool {
    ESCAPED.get(usize::from(byte)).copied().unwrap_or(false)
}

/// Whether none of 16 bytes must be escaped; vector instructions.
fn plain16(block: &[u8; 16]) -> bool {
    let mut hit = 0;
    for byte in block {
        hit |= u8::from(*byte == b'"') | u8::from(*byte == b'\\') | u8::from(*byte < 0x20);
    }
    hit == 0
}

/// Writes a JSON string.
fn write_string(out: &mut Vec<u8>, text: &[u8]) {
    out.push(b'"');
    let (blocks, rest) = text.as_chunks::<16>();
    for block in blocks {
        if plain16(block) {
            out.extend_from_slice(block);
        } else {
            write_escaped(out, block);
        }
    }
    write_escaped(out, rest);
    out.push(b'"');
}

fn write_escaped(out: &mut Vec<u8>, text: &[u8]) {
    for byte in text {
        if !must_escape(*byte) {
            out.push(*byte);
            continue;
        }
        match byte {
            b'"' => out.extend_from_slice(b"\\\""),
            b'\\' => out.extend_from_slice(b"\\\\"),
            b'\n' => out.extend_from_slice(b"\\n"),
            b'\r' => out.extend_from_slice(b"\\r"),
            b'\t' => out.extend_from_slice(b"\\t"),
            _ => out.extend_from_slice(format!("\\u{byte:04x}").as_bytes()),
        }
    }
}

/// Writes an integer.
fn write_integer(out: &mut Vec<u8>, value: i64) {
    if value < 0 {
        out.push(b'-');
    }
    write_unsigned(out, u128::from(value.unsigned_abs()), 1);
}

/// Writes at least `digits_min` digits.
fn write_unsigned(out: &mut Vec<u8>, value: u128, digits_min: usize) {
    let mut digits = [b'0'; 40];
    let mut at = digits.len();
    let mut rest = value;
    // Numbers of 64 bits divide far faster.
    while rest > u128::from(u64::MAX) {
        at -= 1;
        digits[at] = b'0' + u8::try_from(rest % 10).unwrap_or(0);
        rest /= 10;
    }
    let mut rest = u64::try_from(rest).unwrap_or(0);
    while rest > 0 {
        at -= 1;
        digits[at] = b'0' + u8::try_from(rest % 10).unwrap_or(0);
        rest /= 10;
    }
    at = at.min(digits.len() - digits_min.min(digits.len()));
    out.extend_from_slice(&digits[at..]);
}

/// Writes an unscaled decimal as a plain number of full scale.
pub fn write_decimal(out: &mut Vec<u8>, value: i128, scale: i8) {
    let scale = usize::try_from(scale).unwrap_or(0);
    if value < 0 {
        out.push(b'-');
    }
    let start = out.len();
    write_unsigned(out, value.unsigned_abs(), scale + 1);
    if scale > 0 {
        let point = out.len().saturating_sub(scale).max(start);
        out.insert(point, b'.');
    }
}

/// Writes a float so that it reads back bit-equal; what is no number is a word.
fn write_float(out: &mut Vec<u8>, value: f64, quote: &[u8], write: impl FnOnce(&mut Vec<u8>)) {
    if value.is_finite() {
        return write(out);
    }
    let word: &[u8] = match value {
        v if v.is_nan() => b"NaN",
        v if v > 0.0 => b"Infinity",
        _ => b"-Infinity",
    };
    out.extend_from_slice(quote);
    out.extend_from_slice(word);
    out.extend_from_slice(quote);
}

fn write_number<T: serde::Serialize>(out: &mut Vec<u8>, value: T) {
    // Writing a number to memory cannot fail.
    let _ = serde_json::to_writer(out, &value);
}

impl Column<'_> {
    fn is_null(&self, row: usize) -> bool {
        self.nulls && self.array.is_null(row)
    }

    /// Writes the text of a scalar without quotes; `false`: the value is text, bytes or nested.
    fn write_plain(&self, out: &mut Vec<u8>, row: usize, quote: &[u8]) -> bool {
        match &self.values {
            Values::Boolean(array) => {
                let word: &[u8] = if array.value(row) { b"true" } else { b"false" };
                out.extend_from_slice(word);
            }
            Values::Tiny(array) => write_integer(out, i64::from(array.value(row))),
            Values::Int(array) => write_integer(out, i64::from(array.value(row))),
            Values::BigInt(array) => write_integer(out, array.value(row)),
            Values::Count(array) => write_unsigned(out, u128::from(array.value(row)), 1),
            Values::Real(array) => {
                let value = array.value(row);
                write_float(out, f64::from(value), quote, |out| write_number(out, value));
            }
            Values::Double(array) => {
                let value = array.value(row);
                write_float(out, value, quote, |out| write_number(out, value));
            }
            Values::Decimal(array, scale) => write_decimal(out, array.value(row), *scale),
            Values::Date(_) | Values::Time(..) => {
                out.extend_from_slice(quote);
                match &self.values {
                    Values::Date(array) => write_date(out, i64::from(array.value(row))),
                    Values::Time(array, zone) => write_timestamp(out, array.value(row), *zone),
                    _ => {}
                }
                out.extend_from_slice(quote);
            }
            _ => return false,
        }
        true
    }

    fn write_json(&self, out: &mut Vec<u8>, row: usize) {
        if self.is_null(row) {
            out.extend_from_slice(b"null");
            return;
        }
        match &self.values {
            Values::Text(array) => write_string(out, array.value(row).as_bytes()),
            Values::Bytes(array) => {
                out.push(b'"');
                base64::encode(array.value(row), out);
                out.push(b'"');
            }
            Values::List(list, items) => {
                let offsets = list.value_offsets();
                let bound = |idx: usize| {
                    offsets
                        .get(idx)
                        .and_then(|o| usize::try_from(*o).ok())
                        .unwrap_or(0)
                };
                out.push(b'[');
                for item in bound(row)..bound(row + 1) {
                    if item > bound(row) {
                        out.push(b',');
                    }
                    items.write_json(out, item);
                }
                out.push(b']');
            }
            Values::Struct(fields) => write_object(out, fields, row),
            Values::Other(array) => write_string(out, other(array, row).as_bytes()),
            _ => {
                self.write_plain(out, row, b"\"");
            }
        }
    }

    fn write_csv(
        &self,
        out: &mut Vec<u8>,
        row: usize,
        dialect: &CsvDialect,
        scratch: &mut Vec<u8>,
    ) {
        if self.is_null(row) {
            return;
        }
        if self.write_plain(out, row, b"") {
            return;
        }
        match &self.values {
            Values::Text(array) => dialect.write_field(out, array.value(row).as_bytes()),
            Values::Bytes(array) if array.value(row).is_empty() => out.extend_from_slice(b"\"\""),
            Values::Bytes(array) => base64::encode(array.value(row), out),
            Values::Other(array) => dialect.write_field(out, other(array, row).as_bytes()),
            _ => {
                scratch.clear();
                self.write_json(scratch, row);
                dialect.write_field(out, scratch);
            }
        }
    }
}

fn other(array: &ArrayRef, row: usize) -> String {
    let options = FormatOptions::default();
    let formatter = ArrayFormatter::try_new(array, &options);
    formatter
        .map(|formatter| formatter.value(row).to_string())
        .unwrap_or_default()
}

fn write_object(out: &mut Vec<u8>, fields: &[(Vec<u8>, Column<'_>)], row: usize) {
    out.push(b'{');
    for (idx, (key, column)) in fields.iter().enumerate() {
        if idx > 0 {
            out.push(b',');
        }
        out.extend_from_slice(key);
        column.write_json(out, row);
    }
    out.push(b'}');
}

/// How CSV is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CsvDialect {
    /// Between fields.
    pub delimiter: u8,
    /// Text that a reader takes for NULL: a value equal to it is quoted.
    pub null: Option<Vec<u8>>,
}

impl CsvDialect {
    fn write_field(&self, out: &mut Vec<u8>, text: &[u8]) {
        let special = |byte: &u8| matches!(byte, b'"' | b'\n' | b'\r') || *byte == self.delimiter;
        let quoted =
            text.is_empty() || text.iter().any(special) || self.null.as_deref() == Some(text);
        if !quoted {
            out.extend_from_slice(text);
            return;
        }
        out.push(b'"');
        for byte in text {
            if *byte == b'"' {
                out.push(b'"');
            }
            out.push(*byte);
        }
        out.push(b'"');
    }

    /// Writes the header.
    pub fn write_header<'a>(&self, out: &mut Vec<u8>, names: impl Iterator<Item = &'a str>) {
        for (idx, name) in names.enumerate() {
            if idx > 0 {
                out.push(self.delimiter);
            }
            self.write_field(out, name.as_bytes());
        }
        out.push(b'\n');
    }

    /// Writes all rows.
    pub fn write_rows(&self, out: &mut Vec<u8>, batch: &RecordBatch) {
        let columns: Vec<Column<'_>> = batch.columns().iter().map(column).collect();
        let mut scratch = Vec::new();
        for row in 0..batch.num_rows() {
            let start = out.len();
            for (idx, column) in columns.iter().enumerate() {
                if idx > 0 {
                    out.push(self.delimiter);
                }
                column.write_csv(out, row, self, &mut scratch);
            }
            // An empty line would be no record.
            if out.len() == start && columns.len() == 1 && self.null.is_some() {
                out.extend_from_slice(self.null.as_deref().unwrap_or_default());
            }
            out.push(b'\n');
        }
    }
}

/// Writes all rows as NDJSON.
pub fn write_json_rows(out: &mut Vec<u8>, batch: &RecordBatch) {
    let schema = batch.schema_ref();
    let named = schema.fields().iter().zip(batch.columns());
    let fields: Vec<(Vec<u8>, Column<'_>)> = named
        .map(|(field, array)| (key(field.name()), column(array)))
        .collect();
    for row in 0..batch.num_rows() {
        write_object(out, &fields, row);
        out.push(b'\n');
    }
}

/// One row as a JSON object: `raw` of a `.bad` row that is not at a source.
pub fn json_row(batch: &RecordBatch, row: usize) -> Vec<u8> {
    let mut out = Vec::new();
    write_json_rows(&mut out, &batch.slice(row, 1));
    out.pop();
    out
}

/// One value as plain text, without quotes: the name of a folder, a cell of a table.
pub fn plain_text(array: &ArrayRef, row: usize) -> String {
    let column = column(array);
    let mut out = Vec::new();
    if !column.write_plain(&mut out, row, b"") {
        match &column.values {
            Values::Text(array) => return array.value(row).to_owned(),
            Values::Bytes(array) => base64::encode(array.value(row), &mut out),
            _ => column.write_json(&mut out, row),
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}
