//! Formats: bytes to Arrow columns and back.
//!
//! Owns: decoding of NDJSON, CSV and raw lines with every wrong row set aside on its own, and encoding
//! of NDJSON and CSV for sinks. Never opens a file and never decides where a row goes.
//! Start at: [`json::JsonDecoder`], [`decoded::Decoded`].
//!
//! Invariant F3: a row that cannot be decoded never touches another row: it leaves as a
//! [`decoded::BadRow`] with its bytes, its reason and its position, and the columns are as if it had
//! not been there.

pub mod base64;
pub mod builder;
pub mod csv;
pub mod decoded;
pub mod decoder;
pub mod fault;
pub mod json;
pub mod number;
pub mod raw;
pub mod text;
pub mod time;
pub mod write;
