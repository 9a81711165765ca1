//! CSV of RFC 4180: quoted fields may hold delimiters, quotes written twice, and newlines.
//!
//! Owns: finding where records end, cutting them into fields, and the decoder. A quote has a meaning
//! only where a field begins. Start at: [`CsvDecoder::decode`], [`record_end`].

use arrow::datatypes::SchemaRef;
use arrow::error::ArrowError;
use memchr::{memchr, memchr2, memrchr};

use crate::formats::builder::ColumnBuilder;
use crate::formats::decoded::{Chunk, Column, Decoded, Rows, wanted_schema};
use crate::formats::fault::Fault;
use crate::formats::text::push_text;

#[cfg(test)]
mod tests;

/// How a file is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dialect {
    /// Between fields.
    pub delimiter: u8,
    /// Text that means NULL, besides the empty field.
    pub null: Option<Vec<u8>>,
}

/// Length of the first record of `buf` with its newline; `None` when it does not end here.
pub fn record_end(buf: &[u8], delimiter: u8) -> Option<usize> {
    let mut pos = 0;
    let mut field_start = true;
    loop {
        if field_start && buf.get(pos) == Some(&b'"') {
            pos = quoted_end(buf, pos)?;
        }
        let rest = buf.get(pos..)?;
        let at = pos + memchr2(delimiter, b'\n', rest)?;
        if buf.get(at) == Some(&b'\n') {
            return Some(at + 1);
        }
        pos = at + 1;
        field_start = true;
    }
}

/// Position behind the closing quote of the field whose opening quote is at `pos`.
fn quoted_end(buf: &[u8], pos: usize) -> Option<usize> {
    let mut at = pos + 1;
    loop {
        at += memchr(b'"', buf.get(at..)?)?;
        if buf.get(at + 1) != Some(&b'"') {
            return Some(at + 1);
        }
        at += 2;
    }
}

/// Length of the longest prefix of `buf` that is whole records.
pub fn whole_records(buf: &[u8], delimiter: u8) -> usize {
    if memchr(b'"', buf).is_none() {
        return memrchr(b'\n', buf).map_or(0, |at| at + 1);
    }
    let mut end = 0;
    while let Some(len) = buf.get(end..).and_then(|rest| record_end(rest, delimiter)) {
        end += len;
    }
    end
}

/// A field of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Field {
    /// Its bytes are its value.
    Plain { start: usize, end: usize },
    /// Between quotes; with quotes written twice in it.
    Quoted {
        start: usize,
        end: usize,
        doubled: bool,
    },
}

/// Whether these bytes, which end with a newline, are one record and nothing more.
pub fn is_one_record(buf: &[u8], delimiter: u8) -> bool {
    split_record(buf, 0, delimiter, &mut Vec::new()) == Ok(buf.len())
}

/// Cuts the record at `pos` into fields; answers where the next record begins.
fn split_record(
    buf: &[u8],
    mut pos: usize,
    delimiter: u8,
    fields: &mut Vec<Field>,
) -> Result<usize, Fault> {
    fields.clear();
    loop {
        let field = if buf.get(pos) == Some(&b'"') {
            let end = quoted_end(buf, pos).ok_or(Fault::UnclosedQuote)?;
            let (start, close) = (pos + 1, end - 1);
            let inside = buf.get(start..close).unwrap_or_default();
            pos = end;
            Field::Quoted {
                start,
                end: close,
                doubled: memchr(b'"', inside).is_some(),
            }
        } else {
            let rest = buf.get(pos..).unwrap_or_default();
            let end = pos + memchr2(delimiter, b'\n', rest).unwrap_or(rest.len());
            let start = pos;
            pos = end;
            let cr =
                buf.get(end) == Some(&b'\n') && end > start && buf.get(end - 1) == Some(&b'\r');
            Field::Plain {
                start,
                end: end - usize::from(cr),
            }
        };
        fields.push(field);
        if buf.get(pos) == Some(&b'\r') && buf.get(pos + 1) == Some(&b'\n') {
            pos += 1;
        }
        match buf.get(pos) {
            None | Some(b'\n') => return Ok(pos + 1),
            Some(byte) if *byte == delimiter => pos += 1,
            Some(_) => return Err(Fault::TextAfterQuote),
        }
    }
}

fn value<'a>(buf: &'a [u8], field: Field, scratch: &'a mut Vec<u8>) -> &'a [u8] {
    match field {
        Field::Plain { start, end }
        | Field::Quoted {
            start,
            end,
            doubled: false,
        } => buf.get(start..end).unwrap_or_default(),
        Field::Quoted {
            start,
            end,
            doubled: true,
        } => {
            scratch.clear();
            let mut skip = false;
            for byte in buf.get(start..end).unwrap_or_default() {
                skip = *byte == b'"' && !skip;
                if !skip {
                    scratch.push(*byte);
                }
            }
            scratch
        }
    }
}

/// The fields of a header line.
pub fn header_names(line: &[u8], delimiter: u8) -> Result<Vec<String>, Fault> {
    let mut fields = Vec::new();
    split_record(line, 0, delimiter, &mut fields)?;
    let mut scratch = Vec::new();
    let names = fields.iter().map(|field| {
        let name = value(line, *field, &mut scratch).to_vec();
        String::from_utf8(name).map_err(|_| Fault::Utf8)
    });
    names.collect()
}

/// Decodes chunks of whole records.
#[derive(Debug)]
pub struct CsvDecoder {
    columns: Vec<Column>,
    builders: Vec<ColumnBuilder>,
    schema: SchemaRef,
    dialect: Dialect,
    /// Column of each field of a record.
    places: Vec<Option<usize>>,
    /// A declared column that no field is: no row of the file is whole.
    missing: Option<usize>,
    fields: Vec<Field>,
    scratch: Vec<u8>,
}

impl CsvDecoder {
    /// A decoder; `places` says for each field of a record which column it is.
    pub fn new(
        columns: Vec<Column>,
        dialect: Dialect,
        places: Vec<Option<usize>>,
    ) -> Result<Self, ArrowError> {
        let missing = (0..columns.len()).find(|idx| !places.contains(&Some(*idx)));
        Ok(CsvDecoder {
            missing,
            builders: columns
                .iter()
                .map(ColumnBuilder::new)
                .collect::<Result<_, _>>()?,
            schema: wanted_schema(&columns),
            columns,
            dialect,
            places,
            fields: Vec::new(),
            scratch: Vec::new(),
        })
    }

    /// Decodes all records of a chunk. Rows are numbered from its first record. An empty line is none,
    /// but where records have one field it is that field, empty: NULL.
    pub fn decode(&mut self, chunk: &Chunk) -> Result<Decoded, ArrowError> {
        let buf = chunk.data();
        let mut rows = Rows::default();
        let mut pos = 0;
        while pos < buf.len() {
            let offset = chunk.offset + pos as u64;
            if let Some(next) = blank(buf, pos).filter(|_| self.places.len() != 1) {
                rows.rows_n += 1;
                pos = next;
                continue;
            }
            let split = split_record(buf, pos, self.dialect.delimiter, &mut self.fields);
            // A record that cannot be cut ends where whoever made the chunk saw its end: else the rows
            // after it would depend on where chunks begin. One without end ends with its first line.
            let bad_end = || {
                // The padding is the newline that the last record may lack.
                let rest = chunk.padded().get(pos..).unwrap_or_default();
                let line_end = || memchr(b'\n', rest).map(|at| at + 1);
                let end = record_end(rest, self.dialect.delimiter).or_else(line_end);
                (pos + end.unwrap_or(rest.len())).min(buf.len())
            };
            let (next, fault) = match split {
                Ok(next) => (next.min(buf.len()), self.read_fields(buf).err()),
                Err(fault) => (bad_end(), Some((fault, None))),
            };
            match fault {
                None => rows.push_good(offset),
                Some((fault, column)) => {
                    for builder in &mut self.builders {
                        builder.truncate(rows.good_n());
                    }
                    let name = column
                        .and_then(|idx| self.columns.get(idx))
                        .map(|c| &c.name);
                    let reason = match name {
                        Some(name) => format!("column {name}: {fault}"),
                        None => fault.to_string(),
                    };
                    rows.push_bad(offset, trim_newline(buf.get(pos..next)), reason);
                }
            }
            pos = next;
        }
        let unknown_n = self.places.iter().filter(|place| place.is_none()).count();
        let unknown_fields = unknown_n as u64 * rows.rows_n;
        rows.finish(&mut self.builders, &self.schema, unknown_fields)
    }

    fn read_fields(&mut self, buf: &[u8]) -> Result<(), (Fault, Option<usize>)> {
        if self.fields.len() != self.places.len() {
            return Err((Fault::FieldCount, None));
        }
        if self.missing.is_some() {
            return Err((Fault::NotInHeader, self.missing));
        }
        for (field, place) in self.fields.iter().zip(&self.places) {
            let Some(idx) = *place else { continue };
            let Some(column) = self.builders.get_mut(idx) else {
                continue;
            };
            let text = value(buf, *field, &mut self.scratch);
            let plain = matches!(field, Field::Plain { .. });
            let null = plain && (text.is_empty() || self.dialect.null.as_deref() == Some(text));
            let pushed = if null {
                column.push_null()
            } else {
                push_text(column, text)
            };
            pushed.map_err(|fault| (fault, Some(idx)))?;
        }
        Ok(())
    }
}

fn blank(buf: &[u8], pos: usize) -> Option<usize> {
    match buf.get(pos..)? {
        [b'\n', ..] => Some(pos + 1),
        [b'\r', b'\n', ..] => Some(pos + 2),
        _ => None,
    }
}

fn trim_newline(row: Option<&[u8]>) -> &[u8] {
    let row = row.unwrap_or_default();
    let row = row.strip_suffix(b"\n").unwrap_or(row);
    row.strip_suffix(b"\r").unwrap_or(row)
}
