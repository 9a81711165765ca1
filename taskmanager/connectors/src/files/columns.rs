//! From decoded rows to the source's output columns.
//!
//! Owns: which declared columns are wanted, and the columns `_file` and `_row`. Start at: [`Layout`].

use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array, RecordBatch, RecordBatchOptions, StringArray};
use arrow::datatypes::SchemaRef;
use arrow::error::ArrowError;
use streamforge_core::job_graph::{self, SourceColumn};
use streamforge_engine::types;

use crate::formats::decoded::{Column, Decoded};

/// Where an output column comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Origin {
    /// The decoded column of this index.
    Decoded(usize),
    /// Path of the file.
    File,
    /// Number of the row.
    Row,
}

/// The declared columns and the output made of them.
#[derive(Clone, Debug)]
pub struct Layout {
    /// What to decode.
    pub columns: Arc<Vec<Column>>,
    schema: SchemaRef,
    output: Vec<Origin>,
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
            None if name == "_row" => Origin::Row,
            None => Origin::File,
        };
        let output_origins = output.iter().map(|column| origin(&column.name)).collect();
        let schema = types::schema(output);
        Layout {
            columns: Arc::new(columns),
            schema,
            output: output_origins,
        }
    }

    /// The output columns of decoded rows.
    pub fn output(&self, decoded: &Decoded, file: &str) -> Result<RecordBatch, ArrowError> {
        let rows_n = decoded.rows.num_rows();
        let array = |origin: &Origin| -> ArrayRef {
            match origin {
                Origin::Decoded(idx) => Arc::clone(decoded.rows.column(*idx)),
                Origin::File => Arc::new(StringArray::from_iter_values(std::iter::repeat_n(
                    file, rows_n,
                ))),
                Origin::Row => Arc::new(Int64Array::from_iter_values(
                    decoded
                        .row_numbers
                        .iter()
                        .map(|row| i64::try_from(*row).unwrap_or(i64::MAX)),
                )),
            }
        };
        let arrays = self.output.iter().map(array).collect();
        let options = RecordBatchOptions::new().with_row_count(Some(rows_n));
        RecordBatch::try_new_with_options(Arc::clone(&self.schema), arrays, &options)
    }
}
