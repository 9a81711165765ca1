//! Formats: bytes to Arrow columns and back.
//!
//! Owns: decoding of NDJSON, CSV, Parquet and raw lines with every wrong row set aside on its own, and
//! encoding of the same formats for sinks. Never opens a file and never decides where a row goes.
//! Start at: [`json::JsonDecoder`], [`decoded::Decoded`].
//!
//! Invariant F3: a row that cannot be decoded never touches another row: it leaves as a
//! [`decoded::BadRow`] with its bytes, its reason and its position, and the columns are as if it had
//! not been there.

pub mod builder;
pub mod decoded;
pub mod fault;
pub mod json;
pub mod number;
pub mod time;
