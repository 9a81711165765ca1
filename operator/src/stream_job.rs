//! One StreamJob: dereference, validate, decide, build, apply, report.
//!
//! Owns: the steps. [`pass`] says in which order; [`validate`], [`judge`], [`change`], [`build`],
//! [`secrets`] and [`report`] are pure, [`keep`] and [`coordinate`] read and open what is needed.

pub mod build;
pub mod change;
pub mod checked;
pub mod conditions;
pub mod coordinate;
pub mod document;
pub mod effect;
pub mod ended;
pub mod error;
pub mod judge;
pub mod keep;
pub mod pass;
pub mod pods;
pub mod report;
pub mod secrets;
mod take_down;
#[cfg(test)]
pub(crate) mod testing;
pub mod validate;
