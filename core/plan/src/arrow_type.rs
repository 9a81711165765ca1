//! SQL types as Arrow types and back.
//!
//! Owns: the representation of each SQL type at a node's edge. Strings are Utf8 (not views), times are
//! microseconds, a TIMESTAMPTZ is UTC. The engine has the same table, since neither may import the
//! other; a test of the task manager compares them.

use std::sync::Arc;

use arrow::datatypes::{DataType as ArrowType, Field, Fields, Schema, SchemaRef, TimeUnit};
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
        DataType::List(item) => {
            ArrowType::List(Arc::new(Field::new("item", arrow_type(item), true)))
        }
        DataType::Struct(fields) => ArrowType::Struct(
            fields
                .iter()
                .map(|(name, data_type)| Field::new(name, arrow_type(data_type), true))
                .collect::<Fields>(),
        ),
    }
}

/// The SQL type of what an expression returns; `None` if no column can have it.
pub fn sql_type(data_type: &ArrowType) -> Option<DataType> {
    Some(match data_type {
        ArrowType::Boolean => DataType::Boolean,
        ArrowType::Int8
        | ArrowType::Int16
        | ArrowType::Int32
        | ArrowType::UInt8
        | ArrowType::UInt16 => DataType::Int,
        ArrowType::Int64 | ArrowType::UInt32 | ArrowType::UInt64 => DataType::BigInt,
        ArrowType::Float16 | ArrowType::Float32 => DataType::Real,
        ArrowType::Float64 => DataType::Double,
        ArrowType::Decimal32(p, s) | ArrowType::Decimal64(p, s) | ArrowType::Decimal128(p, s) => {
            DataType::Decimal(*p, u8::try_from(*s).ok()?)
        }
        ArrowType::Utf8 | ArrowType::LargeUtf8 | ArrowType::Utf8View => DataType::Text,
        ArrowType::Binary
        | ArrowType::LargeBinary
        | ArrowType::BinaryView
        | ArrowType::FixedSizeBinary(_) => DataType::Bytea,
        ArrowType::Date32 | ArrowType::Date64 => DataType::Date,
        ArrowType::Timestamp(_, None) => DataType::Timestamp,
        ArrowType::Timestamp(_, Some(_)) => DataType::TimestampTz,
        ArrowType::List(item)
        | ArrowType::LargeList(item)
        | ArrowType::FixedSizeList(item, _)
        | ArrowType::ListView(item)
        | ArrowType::LargeListView(item) => DataType::List(Box::new(sql_type(item.data_type())?)),
        ArrowType::Struct(fields) => DataType::Struct(
            fields
                .iter()
                .map(|field| Some((field.name().clone(), sql_type(field.data_type())?)))
                .collect::<Option<Vec<_>>>()?,
        ),
        ArrowType::Dictionary(_, value) => sql_type(value)?,
        _ => return None,
    })
}

/// What a person calls a type that no column can have.
pub(crate) fn foreign_type_name(data_type: &ArrowType) -> String {
    match data_type {
        ArrowType::Null => "NULL, of no type".to_owned(),
        ArrowType::Interval(_) | ArrowType::Duration(_) => "INTERVAL".to_owned(),
        ArrowType::Time32(_) | ArrowType::Time64(_) => "TIME".to_owned(),
        other => other.to_string(),
    }
}

/// The Arrow schema of columns.
pub fn schema(columns: &[Column]) -> SchemaRef {
    let field =
        |column: &Column| Field::new(&column.name, arrow_type(&column.data_type), column.nullable);
    Arc::new(Schema::new(columns.iter().map(field).collect::<Vec<_>>()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_sql_type_round_trips_through_arrow() {
        for text in [
            "BOOLEAN",
            "INT",
            "BIGINT",
            "REAL",
            "DOUBLE",
            "DECIMAL(18,2)",
            "TEXT",
            "BYTEA",
            "DATE",
            "TIMESTAMP",
            "TIMESTAMPTZ",
            "TEXT[]",
            "STRUCT(a INT, b TEXT[])",
        ] {
            let data_type: DataType = text.parse().unwrap();

            assert_eq!(sql_type(&arrow_type(&data_type)), Some(data_type), "{text}");
        }
    }
}
