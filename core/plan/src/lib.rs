//! Document to checked job graph; compiles expressions. Every user mistake is found here.
pub mod arrow_type;
mod document;
pub mod expression;
mod graph;
mod needs;
mod problem;
mod structure;
mod yaml;
pub use document::{Loaded, load};
pub use graph::plan;
pub use expression::{compile, function_reference};
pub use problem::Problem;
