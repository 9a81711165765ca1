//! Files of a local folder, as source and as sink.
//!
//! Owns: listing, reading and watching files, and output that becomes visible by a rename. Start at:
//! [`source::FileReader`].

pub mod chunker;
pub mod columns;
pub mod config;
pub mod decode;
pub mod fingerprint;
pub mod header;
pub mod identity;
pub mod listing;
pub mod parquet_read;
pub mod sequence;
pub mod sink;
pub mod source;
pub mod split;
pub mod stream;
