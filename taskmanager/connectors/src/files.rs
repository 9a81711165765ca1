//! Files of a local folder, as source and as sink.
//!
//! Owns: listing, reading and watching files, and output that becomes visible by a rename. Start at:
//! [`source::FileReader`].

pub mod chunker;
pub mod decode;
pub mod identity;
pub mod listing;
pub mod sequence;
pub mod stream;
