//! Sources, sinks and formats, one folder per outside system.
//!
//! Owns: reading and writing outside systems, and the formats of their bytes. Never decides what a
//! watermark, a checkpoint or a commit is: it is told. Start at: [`registry`].

pub mod blackhole;
pub mod changelog;
pub mod error;
pub mod files;
pub mod formats;
pub mod generator;
pub mod kafka;
pub mod print;
pub mod registry;
