//! The words of the domain, shared by every crate.
//!
//! Owns: ids and epochs, key groups, event time, SQL types, the job graph, what is stored (head and
//! manifest) and what coordinator and task managers say to each other. Does no I/O, reads no clock,
//! knows no async. Start at: [`job_graph::JobGraph`] for what runs, [`manifest::Manifest`] for what
//! a checkpoint is, [`messages`] for who says what to whom.

pub mod causes;
pub mod data_type;
pub mod event_time;
pub mod frame;
pub mod ids;
pub mod job_graph;
pub mod key_group;
pub mod manifest;
pub mod messages;
pub mod object_key;
pub mod s3;
pub mod savepoint;
pub mod secret_name;
pub mod sink_place;
pub mod units;
