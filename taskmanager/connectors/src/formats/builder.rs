//! Columns under construction.
//!
//! Owns: appending values one by one and taking back those of a row that turned out bad. Start at:
//! [`ColumnBuilder`].
//!
//! Why not Arrow's builders: a bad row must be taken back from columns that already have it, and
//! theirs cannot shrink.

use std::sync::Arc;

use arrow::array::{
    ArrayRef, BinaryArray, BooleanArray, Date32Array, Decimal128Array, Float32Array, Float64Array,
    Int32Array, Int64Array, ListArray, StringArray, StructArray, TimestampMicrosecondArray,
    new_null_array,
};
use arrow::buffer::{BooleanBuffer, Buffer, NullBuffer, OffsetBuffer, ScalarBuffer};
use arrow::datatypes::{DataType, Field, FieldRef, Fields, TimeUnit};
use arrow::error::ArrowError;

use crate::formats::decoded::{Column, TimeParse};
use crate::formats::fault::Fault;
use crate::formats::json::object::ObjectPlan;
use crate::formats::time::Zone;

/// Variable-length values: all bytes in one run.
#[derive(Debug, Default)]
pub struct Runs {
    /// End of each value.
    ends: Vec<i32>,
    /// The values, one after the other.
    data: Vec<u8>,
}

impl Runs {
    /// Appends a value that begins at `start` of a padded buffer.
    #[inline(always)]
    pub fn push(&mut self, buf: &[u8], start: usize, end: usize) {
        // A copy of fixed length needs no call; most values are short.
        let len = end.wrapping_sub(start);
        let block: Option<&[u8; 32]> = buf
            .get(start..start.wrapping_add(32))
            .and_then(|block| block.try_into().ok());
        match block {
            Some(block) if len <= 32 => {
                let new_len = self.data.len().wrapping_add(len);
                self.data.extend_from_slice(block);
                self.data.truncate(new_len);
            }
            _ => self
                .data
                .extend_from_slice(buf.get(start..end).unwrap_or_default()),
        }
        self.close();
    }

    /// Appends a piece of a value; [`Runs::close`] ends it.
    #[inline]
    pub fn extend(&mut self, piece: &[u8]) {
        self.data.extend_from_slice(piece);
    }

    /// Ends the value that the pieces made.
    #[inline(always)]
    pub fn close(&mut self) {
        // A chunk is far shorter than 2 GiB and no value is longer than its text.
        self.ends.push(self.data.len() as i32);
    }

    /// The pieces of the value that is not ended yet.
    pub fn open(&self) -> &[u8] {
        self.data
            .get(self.ends.last().map_or(0, |end| *end as usize)..)
            .unwrap_or_default()
    }

    /// Forgets the pieces of a value that is not ended.
    pub fn drop_open(&mut self) {
        self.data
            .truncate(self.ends.last().map_or(0, |end| *end as usize));
    }

    fn truncate(&mut self, len: usize) {
        self.ends.truncate(len);
        self.drop_open();
    }

    fn take(&mut self) -> (OffsetBuffer<i32>, Buffer) {
        let data = replace(&mut self.data);
        (take_offsets(&mut self.ends), Buffer::from_vec(data))
    }
}

/// Takes a vector and leaves an empty one that is about as large.
fn replace<T>(values: &mut Vec<T>) -> Vec<T> {
    let next = Vec::with_capacity(values.len() + values.len() / 8);
    std::mem::replace(values, next)
}

fn take_offsets(ends: &mut Vec<i32>) -> OffsetBuffer<i32> {
    let mut offsets = Vec::with_capacity(ends.len() + 1);
    offsets.push(0);
    offsets.extend_from_slice(ends);
    ends.clear();
    OffsetBuffer::new(ScalarBuffer::from(offsets))
}

/// The values of a column; NULL holds a default.
#[derive(Debug)]
pub enum Values {
    /// BOOLEAN
    Boolean(Vec<bool>),
    /// INT
    Int(Vec<i32>),
    /// BIGINT
    BigInt(Vec<i64>),
    /// REAL
    Real(Vec<f32>),
    /// DOUBLE
    Double(Vec<f64>),
    /// DECIMAL
    Decimal {
        /// Unscaled values.
        values: Vec<i128>,
        /// Digits.
        precision: u8,
        /// Digits behind the point.
        scale: u8,
    },
    /// TEXT
    Text(Runs),
    /// BYTEA
    Bytes(Runs),
    /// DATE
    Date(Vec<i32>),
    /// TIMESTAMP and TIMESTAMPTZ
    Time {
        /// Microseconds.
        values: Vec<i64>,
        /// How they are read.
        parse: TimeParse,
        /// Whether they need an offset.
        zone: Zone,
    },
    /// `T[]`
    List {
        /// End of each list within the items.
        ends: Vec<i32>,
        /// The items.
        items: Box<ColumnBuilder>,
        /// Their field.
        field: FieldRef,
    },
    /// `STRUCT`
    Struct {
        /// How its JSON object is read.
        plan: Box<ObjectPlan>,
        /// Its fields' values.
        fields: Vec<ColumnBuilder>,
        /// Their names and types.
        types: Fields,
    },
}

/// A column under construction.
#[derive(Debug)]
pub struct ColumnBuilder {
    /// Number of values.
    pub len: usize,
    /// Whether the values are kept at all.
    pub wanted: bool,
    /// Whether NULL is allowed.
    pub nullable: bool,
    /// Numbers of the NULL values.
    nulls: Vec<u32>,
    /// The values.
    pub values: Values,
    /// Arrow's type.
    pub data_type: DataType,
}

impl ColumnBuilder {
    /// An empty column; an error names a type that no format can hold.
    pub fn new(column: &Column) -> Result<Self, ArrowError> {
        let values = match &column.data_type {
            DataType::Boolean => Values::Boolean(Vec::new()),
            DataType::Int32 => Values::Int(Vec::new()),
            DataType::Int64 => Values::BigInt(Vec::new()),
            DataType::Float32 => Values::Real(Vec::new()),
            DataType::Float64 => Values::Double(Vec::new()),
            DataType::Decimal128(precision, scale) => Values::Decimal {
                values: Vec::new(),
                precision: *precision,
                scale: u8::try_from(*scale).map_err(|_| unsupported(column))?,
            },
            DataType::Utf8 => Values::Text(Runs::default()),
            DataType::Binary => Values::Bytes(Runs::default()),
            DataType::Date32 => Values::Date(Vec::new()),
            DataType::Timestamp(TimeUnit::Microsecond, zone) => Values::Time {
                values: Vec::new(),
                parse: column.parse.clone(),
                zone: if zone.is_some() {
                    Zone::Required
                } else {
                    Zone::Optional
                },
            },
            DataType::List(field) => Values::List {
                ends: Vec::new(),
                items: Box::new(ColumnBuilder::new(&part_of(column, field))?),
                field: Arc::clone(field),
            },
            DataType::Struct(types) => {
                let parts: Vec<Column> = types.iter().map(|f| part_of(column, f)).collect();
                Values::Struct {
                    plan: Box::new(ObjectPlan::of_columns(&parts)),
                    fields: parts
                        .iter()
                        .map(ColumnBuilder::new)
                        .collect::<Result<_, _>>()?,
                    types: types.clone(),
                }
            }
            _ => return Err(unsupported(column)),
        };
        Ok(ColumnBuilder {
            len: 0,
            wanted: column.wanted,
            nullable: column.nullable,
            nulls: Vec::new(),
            values,
            data_type: column.data_type.clone(),
        })
    }

    /// Appends NULL.
    #[inline]
    pub fn push_null(&mut self) -> Result<(), Fault> {
        if !self.nullable {
            return Err(Fault::Null);
        }
        self.nulls.push(self.len as u32);
        self.push_default();
        Ok(())
    }

    /// Appends a value that stands for NULL, here or in a struct around it.
    fn push_default(&mut self) {
        match &mut self.values {
            Values::Boolean(values) => values.push(false),
            Values::Int(values) | Values::Date(values) => values.push(0),
            Values::BigInt(values) | Values::Time { values, .. } => values.push(0),
            Values::Real(values) => values.push(0.0),
            Values::Double(values) => values.push(0.0),
            Values::Decimal { values, .. } => values.push(0),
            Values::Text(runs) | Values::Bytes(runs) => runs.close(),
            Values::List { ends, items, .. } => ends.push(items.len as i32),
            Values::Struct { fields, .. } => {
                for field in fields {
                    field.nulls.push(field.len as u32);
                    field.push_default();
                }
            }
        }
        self.len += 1;
    }

    /// Shrinks to `len` values: takes back what a bad row left.
    pub fn truncate(&mut self, len: usize) {
        while self.nulls.last().is_some_and(|row| *row as usize >= len) {
            self.nulls.pop();
        }
        match &mut self.values {
            Values::Boolean(values) => values.truncate(len),
            Values::Int(values) | Values::Date(values) => values.truncate(len),
            Values::BigInt(values) | Values::Time { values, .. } => values.truncate(len),
            Values::Real(values) => values.truncate(len),
            Values::Double(values) => values.truncate(len),
            Values::Decimal { values, .. } => values.truncate(len),
            Values::Text(runs) | Values::Bytes(runs) => runs.truncate(len),
            Values::List { ends, items, .. } => {
                ends.truncate(len);
                items.truncate(ends.last().map_or(0, |end| *end as usize));
            }
            Values::Struct { fields, .. } => {
                for field in fields {
                    field.truncate(len);
                }
            }
        }
        self.len = len;
    }

    fn take_nulls(&mut self) -> Option<NullBuffer> {
        let nulls = std::mem::take(&mut self.nulls);
        if nulls.is_empty() {
            return None;
        }
        let mut valid = vec![true; self.len];
        for row in nulls {
            if let Some(valid) = valid.get_mut(row as usize) {
                *valid = false;
            }
        }
        Some(NullBuffer::from(valid))
    }

    /// The values as an array; the builder is empty again. A column nobody wants answers NULLs.
    pub fn finish(&mut self) -> Result<ArrayRef, ArrowError> {
        if !self.wanted {
            let len = self.len;
            self.truncate(0);
            return Ok(new_null_array(&DataType::Null, len));
        }
        let nulls = self.take_nulls();
        let len = std::mem::take(&mut self.len);
        Ok(match &mut self.values {
            Values::Boolean(values) => {
                let values = BooleanBuffer::from(std::mem::take(values));
                Arc::new(BooleanArray::new(values, nulls))
            }
            Values::Int(values) => Arc::new(Int32Array::new(replace(values).into(), nulls)),
            Values::BigInt(values) => Arc::new(Int64Array::new(replace(values).into(), nulls)),
            Values::Real(values) => Arc::new(Float32Array::new(replace(values).into(), nulls)),
            Values::Double(values) => Arc::new(Float64Array::new(replace(values).into(), nulls)),
            Values::Decimal {
                values,
                precision,
                scale,
            } => {
                let scale = i8::try_from(*scale).unwrap_or(38);
                let array = Decimal128Array::new(replace(values).into(), nulls);
                Arc::new(array.with_precision_and_scale(*precision, scale)?)
            }
            Values::Text(runs) => {
                let (offsets, data) = runs.take();
                Arc::new(StringArray::try_new(offsets, data, nulls)?)
            }
            Values::Bytes(runs) => {
                let (offsets, data) = runs.take();
                Arc::new(BinaryArray::try_new(offsets, data, nulls)?)
            }
            Values::Date(values) => Arc::new(Date32Array::new(replace(values).into(), nulls)),
            Values::Time { values, .. } => {
                let array = TimestampMicrosecondArray::new(replace(values).into(), nulls);
                let DataType::Timestamp(_, zone) = &self.data_type else {
                    return Err(ArrowError::SchemaError(
                        "a time column has a time type".into(),
                    ));
                };
                Arc::new(array.with_timezone_opt(zone.clone()))
            }
            Values::List { ends, items, field } => {
                let offsets = take_offsets(ends);
                Arc::new(ListArray::try_new(
                    Arc::clone(field),
                    offsets,
                    items.finish()?,
                    nulls,
                )?)
            }
            Values::Struct { fields, types, .. } => {
                let arrays = fields
                    .iter_mut()
                    .map(ColumnBuilder::finish)
                    .collect::<Result<_, _>>()?;
                Arc::new(StructArray::try_new_with_length(
                    types.clone(),
                    arrays,
                    nulls,
                    len,
                )?)
            }
        })
    }
}

/// The item of a list or the field of a struct, as a column of its own.
fn part_of(column: &Column, field: &Field) -> Column {
    Column {
        name: field.name().clone(),
        data_type: field.data_type().clone(),
        nullable: field.is_nullable(),
        path: Vec::new(),
        parse: column.parse.clone(),
        // Parts of a column that nobody wants are never asked for their array.
        wanted: true,
    }
}

#[cold]
fn unsupported(column: &Column) -> ArrowError {
    ArrowError::SchemaError(format!(
        "column {} has type {}",
        column.name, column.data_type
    ))
}
