//! Document to checked job graph; compiles expressions. Every user mistake is found here.
pub mod arrow_type;
pub mod expression;
mod problem;
mod structure;
mod yaml;
pub use problem::Problem;
