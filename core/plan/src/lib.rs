//! Document to checked job graph; compiles expressions. Every user mistake is found here.
//!
//! Owns: reading a StreamJob with all its mistakes at once, the plan made from it, the SQL of its
//! expressions. Pure: no I/O, no clock, no async. Start at: [`load`] for the way in, [`plan`] for
//! stages and exchanges, [`compile`] for expressions where they run, [`explain_text`] for people.

pub mod arrow_type;

mod document;
mod explain;
mod expression;
mod graph;
mod kafka_settings;
mod needs;
mod problem;
mod stack;
mod structure;
mod yaml;

pub use document::{
    Loaded, Mistaken, forget_headers_of_kafka, load, load_resolved, load_with_notes, s3_place,
};
pub use explain::{explain_dot, explain_json, explain_text};
pub use expression::{Error, compile, function_reference};
pub use graph::plan;
pub use problem::Problem;
