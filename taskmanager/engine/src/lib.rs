//! Contracts and pure stream logic: operators, windows, alignment, watermarks.
//!
//! Owns: what happens to rows between a source and a sink, and when. Does no I/O, reads no clock,
//! spawns nothing: the task manager drives it and performs the effects it asks for.
//! Start at: `task::TaskCore` for how a task works, [`operator::Operator`] for what an operator is,
//! `operators/` for the operators.

pub mod aggregate;
pub mod barrier;
pub mod batch;
pub mod error;
pub mod evaluate;
pub mod group_table;
pub mod key_hash;
pub mod operator;
pub mod operators;
pub mod outbox;
pub mod row_json;
pub mod sink;
pub mod slices;
pub mod source;
pub mod staged;
pub mod state;
pub mod task;
pub mod types;
pub mod watermark;
pub mod window;
