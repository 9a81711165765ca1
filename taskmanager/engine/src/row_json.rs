//! A row as JSON, for people who read `.bad`.
//!
//! Owns: the slow, complete rendering of single rows. Sinks have encoders of their own.

use arrow::array::{Array, AsArray};
use arrow::datatypes::{
    DataType, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type, UInt8Type,
    UInt16Type, UInt32Type, UInt64Type,
};
use arrow::record_batch::RecordBatch;
use arrow::util::display::{ArrayFormatter, FormatOptions};
use serde_json::{Map, Value};

/// The row at `idx` as one JSON object, in column order.
pub fn row_as_json(rows: &RecordBatch, idx: usize) -> String {
    let schema = rows.schema();
    let fields = schema.fields().iter().zip(rows.columns());
    let object: Map<String, Value> = fields
        .map(|(field, column)| (field.name().clone(), value(column.as_ref(), idx)))
        .collect();
    Value::Object(object).to_string()
}

fn value(array: &dyn Array, idx: usize) -> Value {
    if array.is_null(idx) {
        return Value::Null;
    }
    match array.data_type() {
        DataType::Boolean => array.as_boolean().value(idx).into(),
        DataType::Int8 => array.as_primitive::<Int8Type>().value(idx).into(),
        DataType::Int16 => array.as_primitive::<Int16Type>().value(idx).into(),
        DataType::Int32 => array.as_primitive::<Int32Type>().value(idx).into(),
        DataType::Int64 => array.as_primitive::<Int64Type>().value(idx).into(),
        DataType::UInt8 => array.as_primitive::<UInt8Type>().value(idx).into(),
        DataType::UInt16 => array.as_primitive::<UInt16Type>().value(idx).into(),
        DataType::UInt32 => array.as_primitive::<UInt32Type>().value(idx).into(),
        DataType::UInt64 => array.as_primitive::<UInt64Type>().value(idx).into(),
        DataType::Float32 => float(f64::from(array.as_primitive::<Float32Type>().value(idx))),
        DataType::Float64 => float(array.as_primitive::<Float64Type>().value(idx)),
        DataType::List(_) => {
            let items = array.as_list::<i32>().value(idx);
            (0..items.len()).map(|i| value(items.as_ref(), i)).collect()
        }
        DataType::Struct(fields) => {
            let columns = array.as_struct();
            let object: Map<String, Value> = fields
                .iter()
                .zip(columns.columns())
                .map(|(field, column)| (field.name().clone(), value(column.as_ref(), idx)))
                .collect();
            Value::Object(object)
        }
        _ => display(array, idx),
    }
}

fn float(number: f64) -> Value {
    // The words that sinks write and sources read.
    let word = match number {
        n if n.is_nan() => "NaN",
        n if n > 0.0 => "Infinity",
        _ => "-Infinity",
    };
    serde_json::Number::from_f64(number).map_or_else(|| word.into(), Value::Number)
}

fn display(array: &dyn Array, idx: usize) -> Value {
    let text = ArrayFormatter::try_new(array, &FormatOptions::default())
        .map(|formatter| formatter.value(idx).to_string());
    Value::String(text.unwrap_or_default())
}
