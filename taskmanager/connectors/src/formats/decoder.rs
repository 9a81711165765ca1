//! The decoders of formats that are read as a stream of bytes.
//!
//! Owns: the choice between them. Start at: [`Decoder`].

use arrow::error::ArrowError;

use crate::formats::csv::{CsvDecoder, Dialect};
use crate::formats::decoded::{Chunk, Column, Decoded};
use crate::formats::json::JsonDecoder;
use crate::formats::raw::RawDecoder;

/// How bytes become rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TextFormat {
    /// One object per line.
    Json,
    /// RFC 4180.
    Csv {
        /// How it is written.
        dialect: Dialect,
        /// Whether the first record names the columns.
        header: bool,
    },
    /// One value per line.
    Raw,
}

/// Decodes one file, or one part of it.
#[derive(Debug)]
pub enum Decoder {
    /// NDJSON.
    Json(Box<JsonDecoder>),
    /// CSV.
    Csv(Box<CsvDecoder>),
    /// Lines.
    Raw(RawDecoder),
}

impl Decoder {
    /// A decoder; `places` says which column each field of a CSV record is.
    pub fn new(
        format: &TextFormat,
        columns: &[Column],
        places: &[Option<usize>],
    ) -> Result<Self, ArrowError> {
        Ok(match format {
            TextFormat::Json => Decoder::Json(Box::new(JsonDecoder::new(columns.to_vec())?)),
            TextFormat::Csv { dialect, .. } => Decoder::Csv(Box::new(CsvDecoder::new(
                columns.to_vec(),
                dialect.clone(),
                places.to_vec(),
            )?)),
            TextFormat::Raw => Decoder::Raw(RawDecoder::new(columns)?),
        })
    }

    /// Decodes whole rows.
    pub fn decode(&mut self, chunk: &Chunk) -> Result<Decoded, ArrowError> {
        match self {
            Decoder::Json(decoder) => decoder.decode(chunk),
            Decoder::Csv(decoder) => decoder.decode(chunk),
            Decoder::Raw(decoder) => decoder.decode(chunk),
        }
    }
}
