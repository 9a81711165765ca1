//! Contracts and pure stream logic: operators, windows, alignment, watermarks.
//!
//! Owns: what happens to rows between a source and a sink, and when. Does no I/O, reads no clock,
//! spawns nothing: the task manager drives it and performs the effects it asks for.
//! Start at: `task::TaskCore` for how a task works, [`operator::Operator`] for what an operator is,
//! `operators/` for the operators.

pub mod batch;
pub mod error;
pub mod operator;
pub mod sink;
pub mod source;
pub mod state;
pub mod types;
