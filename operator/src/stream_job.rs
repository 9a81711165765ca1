//! One StreamJob: dereference, validate, build, apply, report.

pub mod build;
pub mod change;
pub mod conditions;
pub mod document;
pub mod report;
pub mod validate;

#[cfg(test)]
mod testing;
