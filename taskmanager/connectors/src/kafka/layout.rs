//! From decoded records to the source's output columns.
//!
//! Owns: which declared columns are wanted, and the columns `_key _topic _partition _offset
//! _timestamp _headers`. Start at: [`Layout`].

use std::sync::Arc;

use arrow::array::{
    ArrayRef, BinaryBuilder, Int32Array, Int64Array, ListBuilder, RecordBatch, RecordBatchOptions,
    StringArray, StringBuilder, StructBuilder, TimestampMicrosecondArray,
};
use arrow::datatypes::{DataType, Field, Fields, SchemaRef};
use arrow::error::ArrowError;
use streamforge_core::job_graph::{self, SourceColumn};
use streamforge_engine::types;

use super::edge::Record;
use crate::formats::decoded::{Column, Decoded};

/// Where an output column comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Origin {
    /// The decoded column of this index.
    Decoded(usize),
    Key,
    Topic,
    Partition,
    Offset,
    Timestamp,
    Headers,
}

/// The declared columns and the output made of them.
#[derive(Clone, Debug)]
pub struct Layout {
    /// What to decode.
    pub columns: Arc<Vec<Column>>,
    schema: SchemaRef,
    output: Vec<Origin>,
    /// Whether a column is made of more than values and offsets.
    keeps_more: bool,
}

/// What is kept of the records of one batch beside their values, one entry per record.
#[derive(Debug, Default)]
pub struct Kept {
    offsets: Vec<i64>,
    keys: Vec<Option<Vec<u8>>>,
    timestamps: Vec<Option<i64>>,
    headers: Vec<Vec<(String, Option<Vec<u8>>)>>,
    bytes: usize,
}

impl Kept {
    /// Offset of a record.
    pub fn offset(&self, record: u32) -> i64 {
        self.offsets.get(record as usize).copied().unwrap_or(-1)
    }

    /// Bytes of keys and headers.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Forgets all.
    pub fn clear(&mut self) {
        self.offsets.clear();
        self.keys.clear();
        self.timestamps.clear();
        self.headers.clear();
        self.bytes = 0;
    }
}

impl Layout {
    /// The layout of a source with these declared columns, of which the output names those wanted.
    pub fn new(declared: &[SourceColumn], output: &[job_graph::Column]) -> Self {
        let columns = Column::declared(declared, output);
        let wanted: Vec<&str> = columns
            .iter()
            .filter(|c| c.wanted)
            .map(|c| c.name.as_str())
            .collect();
        let origin = |name: &str| match wanted.iter().position(|wanted| *wanted == name) {
            Some(idx) => Origin::Decoded(idx),
            None => match name {
                "_key" => Origin::Key,
                "_topic" => Origin::Topic,
                "_partition" => Origin::Partition,
                "_timestamp" => Origin::Timestamp,
                "_headers" => Origin::Headers,
                _ => Origin::Offset,
            },
        };
        let output_origins: Vec<Origin> = output.iter().map(|c| origin(&c.name)).collect();
        let more =
            |origin: &Origin| matches!(origin, Origin::Key | Origin::Timestamp | Origin::Headers);
        let schema = types::schema(output);
        Layout {
            columns: Arc::new(columns),
            schema,
            keeps_more: output_origins.iter().any(more),
            output: output_origins,
        }
    }

    fn wants(&self, origin: &Origin) -> bool {
        self.output.contains(origin)
    }

    /// Keeps what the output wants of a record.
    #[inline]
    pub fn keep(&self, kept: &mut Kept, record: &impl Record) {
        kept.offsets.push(record.offset());
        if self.keeps_more {
            self.keep_more(kept, record);
        }
    }

    fn keep_more(&self, kept: &mut Kept, record: &impl Record) {
        if self.wants(&Origin::Key) {
            let key = record.key();
            kept.bytes += key.map_or(0, <[u8]>::len);
            kept.keys.push(key.map(<[u8]>::to_vec));
        }
        if self.wants(&Origin::Timestamp) {
            kept.timestamps.push(record.written_ms());
        }
        if self.wants(&Origin::Headers) {
            let headers = record.headers();
            let bytes = |(name, value): &(String, Option<Vec<u8>>)| {
                name.len() + value.as_ref().map_or(0, Vec::len)
            };
            kept.bytes += headers.iter().map(bytes).sum::<usize>();
            kept.headers.push(headers);
        }
    }

    /// The output columns of decoded rows; `records` says which record each row was.
    pub fn output(
        &self,
        decoded: &Decoded,
        records: &[u32],
        kept: &Kept,
        (topic, partition): (&str, i32),
    ) -> Result<RecordBatch, ArrowError> {
        let rows_n = decoded.rows.num_rows();
        let mut arrays: Vec<ArrayRef> = Vec::with_capacity(self.output.len());
        for (idx, origin) in self.output.iter().enumerate() {
            arrays.push(match origin {
                Origin::Decoded(idx) => Arc::clone(decoded.rows.column(*idx)),
                Origin::Topic => Arc::new(StringArray::from_iter_values(std::iter::repeat_n(
                    topic, rows_n,
                ))),
                Origin::Partition => Arc::new(Int32Array::from(vec![partition; rows_n])),
                Origin::Offset => Arc::new(Int64Array::from_iter_values(
                    records.iter().map(|record| kept.offset(*record)),
                )),
                Origin::Key => {
                    let mut keys = BinaryBuilder::new();
                    for record in records {
                        keys.append_option(
                            kept.keys.get(*record as usize).and_then(Option::as_ref),
                        );
                    }
                    Arc::new(keys.finish())
                }
                Origin::Timestamp => {
                    let time = |record: &u32| {
                        let ms = kept.timestamps.get(*record as usize).copied().flatten();
                        ms.and_then(|ms| ms.checked_mul(1000))
                    };
                    let times = records.iter().map(time);
                    Arc::new(times.collect::<TimestampMicrosecondArray>())
                }
                Origin::Headers => {
                    let data_type = self.schema.field(idx).data_type();
                    headers(records, kept, data_type)?
                }
            });
        }
        let options = RecordBatchOptions::new().with_row_count(Some(rows_n));
        RecordBatch::try_new_with_options(Arc::clone(&self.schema), arrays, &options)
    }
}

fn headers(records: &[u32], kept: &Kept, data_type: &DataType) -> Result<ArrayRef, ArrowError> {
    let wrong = || ArrowError::SchemaError(format!("_headers is not {data_type}"));
    let DataType::List(item) = data_type else {
        return Err(wrong());
    };
    let DataType::Struct(fields) = item.data_type() else {
        return Err(wrong());
    };
    let fields: Fields = fields.clone();
    let item: Arc<Field> = Arc::clone(item);
    let parts = StructBuilder::from_fields(fields, 0);
    let mut lists = ListBuilder::new(parts).with_field(item);
    for record in records {
        let none = Vec::new();
        for (name, value) in kept.headers.get(*record as usize).unwrap_or(&none) {
            let parts = lists.values();
            let names = parts.field_builder::<StringBuilder>(0).ok_or_else(wrong)?;
            names.append_value(name);
            let values = parts.field_builder::<BinaryBuilder>(1).ok_or_else(wrong)?;
            values.append_option(value.as_ref());
            parts.append(true);
        }
        lists.append(true);
    }
    Ok(Arc::new(lists.finish()))
}
