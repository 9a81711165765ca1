//! SQL types as Arrow types, and schemas of operator outputs.
//!
//! Owns: which Arrow type stands for a [`streamforge_core::data_type::DataType`]. Strings are Utf8 at
//! node edges, times are microseconds. The plan has the same table, since neither may import the other;
//! a test of the task manager compares them.

use std::sync::Arc;

use arrow::datatypes::{
    DataType as ArrowType, Field, FieldRef, Fields, Schema, SchemaRef, TimeUnit,
};
use streamforge_core::data_type::DataType;
use streamforge_core::job_graph::Column;

/// Time zone of TIMESTAMPTZ columns.
pub const UTC: &str = "+00:00";

/// The Arrow type of a SQL type.
pub fn arrow_type(data_type: &DataType) -> ArrowType {
    match data_type {
        DataType::Boolean => ArrowType::Boolean,
        DataType::Int => ArrowType::Int32,
        DataType::BigInt => ArrowType::Int64,
        DataType::Real => ArrowType::Float32,
        DataType::Double => ArrowType::Float64,
        DataType::Decimal(precision, scale) => {
            ArrowType::Decimal128(*precision, i8::try_from(*scale).unwrap_or(38))
        }
        DataType::Text => ArrowType::Utf8,
        DataType::Bytea => ArrowType::Binary,
        DataType::Date => ArrowType::Date32,
        DataType::Timestamp => ArrowType::Timestamp(TimeUnit::Microsecond, None),
        DataType::TimestampTz => ArrowType::Timestamp(TimeUnit::Microsecond, Some(UTC.into())),
        DataType::List(item) => ArrowType::List(item_field(item)),
        DataType::Struct(fields) => ArrowType::Struct(
            fields
                .iter()
                .map(|(name, data_type)| Field::new(name, arrow_type(data_type), true))
                .collect::<Fields>(),
        ),
    }
}

fn item_field(item: &DataType) -> FieldRef {
    Arc::new(Field::new("item", arrow_type(item), true))
}

/// The Arrow field of a column.
pub fn field(column: &Column) -> Field {
    Field::new(&column.name, arrow_type(&column.data_type), column.nullable)
}

/// The Arrow schema of columns.
pub fn schema(columns: &[Column]) -> SchemaRef {
    Arc::new(Schema::new(columns.iter().map(field).collect::<Vec<_>>()))
}
