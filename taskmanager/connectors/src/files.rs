//! Files of a folder or a bucket, as source and as sink.
//!
//! Owns: listing, reading and watching files, and output that becomes visible by a rename or by completing
//! an upload. Start at:
//! [`source::FileReader`].

pub mod chunker;
pub mod columns;
pub mod config;
pub mod decode;
pub mod fingerprint;
pub mod header;
pub mod identity;
pub mod listing;
pub mod object;
pub mod parquet_read;
pub mod sequence;
pub mod shelf;
pub mod sink;
pub mod source;
pub mod split;
pub mod stream;
#[cfg(test)]
mod test_server;
