//! Sources, sinks and formats, one folder per outside system.
//!
//! Owns: the list of connectors. Start at: [`formats`].

pub mod files;
pub mod formats;
