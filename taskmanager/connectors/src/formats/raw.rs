//! Raw lines: one BYTEA or TEXT column per line.
//!
//! Owns: the decoder. Start at: [`RawDecoder::decode`].

use arrow::datatypes::SchemaRef;
use arrow::error::ArrowError;

use crate::formats::builder::{ColumnBuilder, Values};
use crate::formats::decoded::{Chunk, Column, Decoded, Rows, wanted_schema};
use crate::formats::fault::Fault;
use crate::formats::text::push_text;

/// Decodes chunks of whole lines, each into the one column.
#[derive(Debug)]
pub struct RawDecoder {
    builders: Vec<ColumnBuilder>,
    schema: SchemaRef,
}

impl RawDecoder {
    /// A decoder; an error when the schema is not one column of BYTEA or TEXT.
    pub fn new(columns: &[Column]) -> Result<Self, ArrowError> {
        let builders: Vec<ColumnBuilder> = columns
            .iter()
            .map(ColumnBuilder::new)
            .collect::<Result<_, _>>()?;
        let fits =
            |builder: &ColumnBuilder| matches!(builder.values, Values::Bytes(_) | Values::Text(_));
        if builders.len() != 1 || !builders.iter().all(fits) {
            return Err(ArrowError::SchemaError(
                "format raw takes exactly one column, BYTEA or TEXT".into(),
            ));
        }
        Ok(RawDecoder {
            builders,
            schema: wanted_schema(columns),
        })
    }

    /// Decodes all lines of a chunk; an empty line is an empty value.
    pub fn decode(&mut self, chunk: &Chunk) -> Result<Decoded, ArrowError> {
        let mut rows = Rows::default();
        let mut offset = chunk.offset;
        for line in chunk.data().split_inclusive(|byte| *byte == b'\n') {
            let text = line.strip_suffix(b"\n").unwrap_or(line);
            let text = text.strip_suffix(b"\r").unwrap_or(text);
            match self.push(text) {
                Ok(()) => rows.push_good(offset),
                Err(fault) => rows.push_bad(offset, text, fault.to_string()),
            }
            offset += line.len() as u64;
        }
        rows.finish(&mut self.builders, &self.schema, 0)
    }

    fn push(&mut self, text: &[u8]) -> Result<(), Fault> {
        let Some(builder) = self.builders.first_mut() else {
            return Ok(());
        };
        if let Values::Bytes(runs) = &mut builder.values {
            runs.extend(text);
            runs.close();
            builder.len += 1;
            return Ok(());
        }
        push_text(builder, text)
    }
}
