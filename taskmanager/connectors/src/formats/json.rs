//! NDJSON: one JSON object per line, into the declared columns.
//!
//! Owns: the decoder. It reads only what the schema names, in one pass over the bytes, without an
//! intermediate tree, and sets aside each line that is wrong. Start at: [`JsonDecoder::decode`].
//!
//! What makes a row bad depends on the schema alone: columns that nobody reads are checked as well.

use arrow::datatypes::SchemaRef;
use arrow::error::ArrowError;

use crate::formats::builder::ColumnBuilder;
use crate::formats::decoded::{Chunk, Column, Decoded, ROW_BYTES_MAX, Rows, wanted_schema};
use crate::formats::fault::{Fault, RowFault};
use object::{ObjectPlan, fill_missing};
use scan::{byte, spaces};

pub mod object;
pub mod scan;
pub mod unescape;
pub mod value;

#[cfg(test)]
mod tests;

/// Decodes chunks of whole lines.
#[derive(Debug)]
pub struct JsonDecoder {
    columns: Vec<Column>,
    builders: Vec<ColumnBuilder>,
    plan: ObjectPlan,
    schema: SchemaRef,
}

impl JsonDecoder {
    /// A decoder of these columns.
    pub fn new(columns: Vec<Column>) -> Result<Self, ArrowError> {
        Ok(JsonDecoder {
            builders: columns
                .iter()
                .map(ColumnBuilder::new)
                .collect::<Result<_, _>>()?,
            plan: ObjectPlan::of_columns(&columns),
            schema: wanted_schema(&columns),
            columns,
        })
    }

    /// Decodes all lines of a chunk. Rows are numbered from the first line of the chunk.
    pub fn decode(&mut self, chunk: &Chunk) -> Result<Decoded, ArrowError> {
        let buf = chunk.padded();
        let mut rows = Rows::default();
        let mut pos = 0;
        while pos < chunk.len() {
            let offset = chunk.offset.wrapping_add(pos as u64);
            let unknown_fields = self.plan.unknown_fields;
            match self.read_row(buf, pos, rows.good_n()) {
                Ok(Line::Row(next)) => {
                    rows.push_good(offset);
                    pos = next;
                }
                Ok(Line::Blank(next)) => {
                    rows.rows_n = rows.rows_n.wrapping_add(1);
                    pos = next;
                }
                Err(fault) => {
                    // How far it was read depends on the rows before it.
                    self.plan.unknown_fields = unknown_fields;
                    pos = self.set_aside(&mut rows, chunk, pos, fault);
                }
            }
        }
        let unknown_fields = std::mem::take(&mut self.plan.unknown_fields);
        rows.finish(&mut self.builders, &self.schema, unknown_fields)
    }

    #[inline(always)]
    fn read_row(&mut self, buf: &[u8], start: usize, good_n: usize) -> Result<Line, RowFault> {
        let mut pos = start;
        if byte(buf, pos) != b'{' {
            pos = spaces(buf, pos);
            match byte(buf, pos) {
                b'{' => {}
                b'\n' => return Ok(Line::Blank(pos.wrapping_add(1))),
                _ => return Err(RowFault::at(Fault::NotAnObject, pos)),
            }
        }
        pos = self.plan.read(&mut self.builders, buf, pos)?;
        if byte(buf, pos) != b'\n' {
            pos = spaces(buf, pos);
            if byte(buf, pos) != b'\n' {
                return Err(RowFault::at(Fault::TrailingText, pos));
            }
        }
        fill_missing(&mut self.builders, good_n.wrapping_add(1), pos)?;
        if pos.wrapping_sub(start) > ROW_BYTES_MAX {
            return Err(RowFault::at(Fault::RowTooLong, pos));
        }
        Ok(Line::Row(pos.wrapping_add(1)))
    }

    /// Takes the row back from the columns that have it already; answers where the next begins.
    #[cold]
    fn set_aside(
        &mut self,
        rows: &mut Rows,
        chunk: &Chunk,
        start: usize,
        fault: RowFault,
    ) -> usize {
        for builder in &mut self.builders {
            builder.truncate(rows.good_n());
        }
        let fault = self.first_fault(chunk, start).unwrap_or(fault);
        let rest = chunk.data().get(start..).unwrap_or_default();
        let len = memchr::memchr(b'\n', rest).unwrap_or(rest.len());
        let name = fault
            .column
            .and_then(|idx| self.columns.get(idx))
            .map(|c| c.name.as_str());
        let row = rest.get(..len).unwrap_or_default();
        rows.push_bad(chunk.offset + start as u64, row, fault.reason(name, start));
        start + len + 1
    }

    /// What a decoder that has seen no other row says about this one. Which of several faults is met
    /// first depends on the keys that were learned, and so on where reading began; what is written
    /// about a row must not.
    fn first_fault(&self, chunk: &Chunk, start: usize) -> Option<RowFault> {
        let mut fresh = JsonDecoder::new(self.columns.clone()).ok()?;
        fresh.read_row(chunk.padded(), start, 0).err()
    }
}

enum Line {
    /// A good row; the next begins here.
    Row(usize),
    /// Nothing but spaces; the next begins here.
    Blank(usize),
}
