//! The hash that decides a key's group.
//!
//! Owns: canonical bytes of every value and their fold over a key's columns. Never looks at an Arrow
//! encoding: equal values of equal class hash alike whether they come as Utf8, Utf8View or a
//! dictionary, as INT or BIGINT, as DECIMAL of any scale. Start at: [`hash_columns`].
//!
//! Invariant K1, a file format frozen by `testdata/keyhash_v1.json`: each column's value becomes
//! `class tag, payload` (little endian) and is hashed with XXH3-64, seed 0. The hash of one column is
//! that; each further column folds as `XXH3-64(hash so far, hash of the column)` over these 16 bytes;
//! no column at all is `XXH3-64` of nothing.
//!
//! | class | tag | payload |
//! |---|---|---|
//! | NULL | 0 | none |
//! | BOOLEAN | 1 | one byte, 0 or 1 |
//! | integers | 2 | i64 (above its range: i128) |
//! | REAL, DOUBLE | 3 | f64 bits, -0 as 0, one NaN (`0x7ff8000000000000`) |
//! | DECIMAL | 4 | i128 without trailing zeros, then its scale as i8; zero has scale 0 |
//! | TEXT | 5 | UTF-8 |
//! | BYTEA | 6 | bytes |
//! | DATE | 7 | days as i64 |
//! | TIMESTAMP, TIMESTAMPTZ | 8 | microseconds as i64, rounded down |
//! | list | 9 | number of items as u32, then each item: length as u32, canonical bytes |
//! | struct | 10 | number of fields as u32, then each field likewise |

use arrow::array::{
    Array, ArrayRef, AsArray, BooleanArray, FixedSizeListArray, PrimitiveArray, StructArray,
};
use arrow::compute::take;
use arrow::datatypes::{
    ArrowDictionaryKeyType, ArrowPrimitiveType, DataType, Date32Type, Date64Type, Decimal32Type,
    Decimal64Type, Decimal128Type, Decimal256Type, Float16Type, Float32Type, Float64Type, Int8Type,
    Int16Type, Int32Type, Int64Type, TimeUnit, TimestampMicrosecondType, TimestampMillisecondType,
    TimestampNanosecondType, TimestampSecondType, UInt8Type, UInt16Type, UInt32Type, UInt64Type,
    i256,
};
use arrow::downcast_dictionary_array;
use arrow::error::ArrowError;
use xxhash_rust::xxh3::xxh3_64;

const NULL: u8 = 0;
const BOOLEAN: u8 = 1;
const INTEGER: u8 = 2;
const FLOAT: u8 = 3;
const DECIMAL: u8 = 4;
const TEXT: u8 = 5;
const BYTES: u8 = 6;
const DATE: u8 = 7;
const TIMESTAMP: u8 = 8;
const LIST: u8 = 9;
const STRUCT: u8 = 10;

const CANONICAL_NAN: u64 = 0x7ff8_0000_0000_0000;

/// Nesting that a key may have; types are limited alike where they are parsed.
const DEPTH_MAX: usize = 32;

/// The hash of each row's key (K1). `rows` counts them, for a key without columns.
pub fn hash_columns(columns: &[ArrayRef], rows: usize) -> Result<Vec<u64>, ArrowError> {
    let Some((first, others)) = columns.split_first() else {
        return Ok(vec![xxh3_64(&[]); rows]);
    };
    let mut hashes = Vec::with_capacity(rows);
    hash_column(first, &mut hashes)?;
    let mut next = Vec::new();
    for column in others {
        next.clear();
        hash_column(column, &mut next)?;
        for (hash, next) in hashes.iter_mut().zip(&next) {
            *hash = fold(*hash, *next);
        }
    }
    Ok(hashes)
}

fn fold(left: u64, right: u64) -> u64 {
    let mut bytes = [0u8; 16];
    let (low, high) = bytes.split_at_mut(8);
    low.copy_from_slice(&left.to_le_bytes());
    high.copy_from_slice(&right.to_le_bytes());
    xxh3_64(&bytes)
}

fn hash_tagged(tag: u8, value: i64) -> u64 {
    let mut bytes = [tag; 9];
    if let Some(payload) = bytes.get_mut(1..) {
        payload.copy_from_slice(&value.to_le_bytes());
    }
    xxh3_64(&bytes)
}

/// Appends the hash of each value of one column.
pub(crate) fn hash_column(column: &ArrayRef, out: &mut Vec<u64>) -> Result<(), ArrowError> {
    match column.data_type() {
        DataType::Int32 => {
            hash_primitive::<Int32Type>(column, out, |v| hash_tagged(INTEGER, i64::from(v)));
        }
        DataType::Int64 => hash_primitive::<Int64Type>(column, out, |v| hash_tagged(INTEGER, v)),
        DataType::Timestamp(TimeUnit::Microsecond, _) => {
            hash_primitive::<TimestampMicrosecondType>(column, out, |v| hash_tagged(TIMESTAMP, v));
        }
        DataType::Utf8 => hash_bytes(TEXT, column.as_string::<i32>().iter().map(bytes), out),
        DataType::LargeUtf8 => hash_bytes(TEXT, column.as_string::<i64>().iter().map(bytes), out),
        DataType::Utf8View => hash_bytes(TEXT, column.as_string_view().iter().map(bytes), out),
        DataType::Dictionary(_, _) => {
            let column = column.as_ref();
            downcast_dictionary_array!(
                column => hash_dictionary(column, out)?,
                other => return Err(unsupported_type(other)),
            );
        }
        _ => {
            let mut canonical = Vec::new();
            out.reserve(column.len());
            for idx in 0..column.len() {
                canonical.clear();
                append_canonical(column.as_ref(), idx, 0, &mut canonical)?;
                out.push(xxh3_64(&canonical));
            }
        }
    }
    Ok(())
}

fn bytes(text: Option<&str>) -> Option<&[u8]> {
    text.map(str::as_bytes)
}

fn hash_primitive<T: ArrowPrimitiveType>(
    column: &ArrayRef,
    out: &mut Vec<u64>,
    hash: impl Fn(T::Native) -> u64,
) {
    let column: &PrimitiveArray<T> = column.as_primitive();
    if column.null_count() == 0 {
        out.extend(column.values().iter().map(|value| hash(*value)));
    } else {
        let null = xxh3_64(&[NULL]);
        out.extend(column.iter().map(|value| value.map_or(null, &hash)));
    }
}

fn hash_bytes<'a>(tag: u8, values: impl Iterator<Item = Option<&'a [u8]>>, out: &mut Vec<u64>) {
    let null = xxh3_64(&[NULL]);
    let mut canonical = vec![tag];
    out.extend(values.map(|value| match value {
        None => null,
        Some(value) => {
            canonical.truncate(1);
            canonical.extend_from_slice(value);
            xxh3_64(&canonical)
        }
    }));
}

fn hash_dictionary<K: ArrowDictionaryKeyType>(
    column: &arrow::array::DictionaryArray<K>,
    out: &mut Vec<u64>,
) -> Result<(), ArrowError> {
    let mut values = Vec::with_capacity(column.values().len());
    hash_column(column.values(), &mut values)?;
    let null = xxh3_64(&[NULL]);
    out.extend(
        column
            .keys_iter()
            .map(|key| key.and_then(|key| values.get(key)).copied().unwrap_or(null)),
    );
    Ok(())
}

fn unsupported(column: &dyn Array) -> ArrowError {
    unsupported_type(column.data_type())
}

fn unsupported_type(data_type: &DataType) -> ArrowError {
    ArrowError::NotYetImplemented(format!("a key of type {data_type}"))
}

/// Appends tag and payload of one value.
pub(crate) fn append_canonical(
    column: &dyn Array,
    idx: usize,
    depth: usize,
    out: &mut Vec<u8>,
) -> Result<(), ArrowError> {
    if depth > DEPTH_MAX {
        return Err(unsupported(column));
    }
    if column.is_null(idx) {
        out.push(NULL);
        return Ok(());
    }
    match column.data_type() {
        DataType::Null => out.push(NULL),
        DataType::Boolean => {
            let column: &BooleanArray = column.as_boolean();
            out.extend([BOOLEAN, u8::from(column.value(idx))]);
        }
        DataType::Int8 => integer(i128::from(value::<Int8Type>(column, idx)), out),
        DataType::Int16 => integer(i128::from(value::<Int16Type>(column, idx)), out),
        DataType::Int32 => integer(i128::from(value::<Int32Type>(column, idx)), out),
        DataType::Int64 => integer(i128::from(value::<Int64Type>(column, idx)), out),
        DataType::UInt8 => integer(i128::from(value::<UInt8Type>(column, idx)), out),
        DataType::UInt16 => integer(i128::from(value::<UInt16Type>(column, idx)), out),
        DataType::UInt32 => integer(i128::from(value::<UInt32Type>(column, idx)), out),
        DataType::UInt64 => integer(i128::from(value::<UInt64Type>(column, idx)), out),
        DataType::Float16 => float(f64::from(value::<Float16Type>(column, idx)), out),
        DataType::Float32 => float(f64::from(value::<Float32Type>(column, idx)), out),
        DataType::Float64 => float(value::<Float64Type>(column, idx), out),
        DataType::Utf8 => text(column.as_string::<i32>().value(idx).as_bytes(), TEXT, out),
        DataType::LargeUtf8 => text(column.as_string::<i64>().value(idx).as_bytes(), TEXT, out),
        DataType::Utf8View => text(column.as_string_view().value(idx).as_bytes(), TEXT, out),
        DataType::Binary => text(column.as_binary::<i32>().value(idx), BYTES, out),
        DataType::LargeBinary => text(column.as_binary::<i64>().value(idx), BYTES, out),
        DataType::BinaryView => text(column.as_binary_view().value(idx), BYTES, out),
        DataType::FixedSizeBinary(_) => {
            text(column.as_fixed_size_binary().value(idx), BYTES, out);
        }
        _ => append_wide(column, idx, depth, out)?,
    }
    Ok(())
}

/// The rarer half of [`append_canonical`]: decimals, times, nested values, dictionaries.
fn append_wide(
    column: &dyn Array,
    idx: usize,
    depth: usize,
    out: &mut Vec<u8>,
) -> Result<(), ArrowError> {
    match column.data_type() {
        DataType::Decimal32(_, s) => {
            decimal(i256::from(value::<Decimal32Type>(column, idx)), *s, out);
        }
        DataType::Decimal64(_, s) => {
            decimal(i256::from(value::<Decimal64Type>(column, idx)), *s, out);
        }
        DataType::Decimal128(_, s) => {
            decimal(
                i256::from_i128(value::<Decimal128Type>(column, idx)),
                *s,
                out,
            );
        }
        DataType::Decimal256(_, s) => decimal(value::<Decimal256Type>(column, idx), *s, out),
        DataType::Date32 => tagged(DATE, i64::from(value::<Date32Type>(column, idx)), out),
        DataType::Date64 => {
            tagged(
                DATE,
                value::<Date64Type>(column, idx).div_euclid(86_400_000),
                out,
            );
        }
        DataType::Timestamp(unit, _) => {
            let micros = match unit {
                TimeUnit::Second => {
                    value::<TimestampSecondType>(column, idx).saturating_mul(1_000_000)
                }
                TimeUnit::Millisecond => {
                    value::<TimestampMillisecondType>(column, idx).saturating_mul(1_000)
                }
                TimeUnit::Microsecond => value::<TimestampMicrosecondType>(column, idx),
                TimeUnit::Nanosecond => {
                    value::<TimestampNanosecondType>(column, idx).div_euclid(1_000)
                }
            };
            tagged(TIMESTAMP, micros, out);
        }
        DataType::List(_) => {
            items(column.as_list::<i32>().value(idx).as_ref(), depth, out)?;
        }
        DataType::LargeList(_) => {
            items(column.as_list::<i64>().value(idx).as_ref(), depth, out)?;
        }
        DataType::FixedSizeList(_, _) => {
            let column: &FixedSizeListArray = column.as_fixed_size_list();
            items(column.value(idx).as_ref(), depth, out)?;
        }
        DataType::Struct(_) => {
            let column: &StructArray = column.as_struct();
            out.push(STRUCT);
            length(column.num_columns(), out);
            for field in column.columns() {
                item(field.as_ref(), idx, depth, out)?;
            }
        }
        DataType::Dictionary(_, _) => downcast_dictionary_array!(
            column => match column.key(idx) {
                Some(key) => append_canonical(column.values().as_ref(), key, depth, out)?,
                None => out.push(NULL),
            },
            other => return Err(unsupported_type(other)),
        ),
        _ => return Err(unsupported(column)),
    }
    Ok(())
}

fn value<T: ArrowPrimitiveType>(column: &dyn Array, idx: usize) -> T::Native {
    column.as_primitive::<T>().value(idx)
}

fn tagged(tag: u8, value: i64, out: &mut Vec<u8>) {
    out.push(tag);
    out.extend(value.to_le_bytes());
}

fn integer(value: i128, out: &mut Vec<u8>) {
    match i64::try_from(value) {
        Ok(value) => tagged(INTEGER, value, out),
        Err(_) => {
            out.push(INTEGER);
            out.extend(value.to_le_bytes());
        }
    }
}

fn float(value: f64, out: &mut Vec<u8>) {
    out.push(FLOAT);
    out.extend(canonical_bits(value).to_le_bytes());
}

/// Bits of a float, -0 as 0 and one NaN.
pub(crate) fn canonical_bits(value: f64) -> u64 {
    if value.is_nan() {
        CANONICAL_NAN
    } else if value == 0.0 {
        0
    } else {
        value.to_bits()
    }
}

fn decimal(mut value: i256, mut scale: i8, out: &mut Vec<u8>) {
    let ten = i256::from_i128(10);
    if value == i256::ZERO {
        scale = 0;
    }
    while value != i256::ZERO && scale > i8::MIN && value.wrapping_rem(ten) == i256::ZERO {
        value = value.wrapping_div(ten);
        scale -= 1;
    }
    out.push(DECIMAL);
    match value.to_i128() {
        Some(value) => out.extend(value.to_le_bytes()),
        None => out.extend(value.to_le_bytes()),
    }
    out.extend(scale.to_le_bytes());
}

fn text(value: &[u8], tag: u8, out: &mut Vec<u8>) {
    out.push(tag);
    out.extend_from_slice(value);
}

fn length(length: usize, out: &mut Vec<u8>) {
    out.extend(u32::try_from(length).unwrap_or(u32::MAX).to_le_bytes());
}

fn items(values: &dyn Array, depth: usize, out: &mut Vec<u8>) -> Result<(), ArrowError> {
    out.push(LIST);
    length(values.len(), out);
    for idx in 0..values.len() {
        item(values, idx, depth, out)?;
    }
    Ok(())
}

fn item(values: &dyn Array, idx: usize, depth: usize, out: &mut Vec<u8>) -> Result<(), ArrowError> {
    let start = out.len();
    length(0, out);
    append_canonical(values, idx, depth + 1, out)?;
    let written = u32::try_from(out.len() - start - 4).unwrap_or(u32::MAX);
    if let Some(place) = out.get_mut(start..start + 4) {
        place.copy_from_slice(&written.to_le_bytes());
    }
    Ok(())
}

/// Keys as they are grouped: dictionaries resolved, -0 as 0 and one NaN, so that values which hash
/// alike are one group.
pub fn grouping_form(column: &ArrayRef) -> Result<ArrayRef, ArrowError> {
    match column.data_type() {
        DataType::Dictionary(_, _) => {
            let column = column.as_ref();
            downcast_dictionary_array!(
                column => grouping_form(&take(column.values(), column.keys(), None)?),
                other => Err(unsupported_type(other)),
            )
        }
        DataType::Float32 => {
            let column: &PrimitiveArray<Float32Type> = column.as_primitive();
            let one = |v: f32| if v.is_nan() { f32::NAN } else { v + 0.0 };
            Ok(std::sync::Arc::new(column.unary::<_, Float32Type>(one)))
        }
        DataType::Float64 => {
            let column: &PrimitiveArray<Float64Type> = column.as_primitive();
            let one = |v: f64| f64::from_bits(canonical_bits(v));
            Ok(std::sync::Arc::new(column.unary::<_, Float64Type>(one)))
        }
        _ => Ok(std::sync::Arc::clone(column)),
    }
}

#[cfg(test)]
mod tests;
