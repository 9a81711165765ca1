//! The operator: StreamJobs become pods, and are coordinated.
//!
//! Owns: everything that speaks to the API server. One pass over a job reads as its steps:
//! dereference, validate, decide, build, apply, report ([`stream_job`]); those in the middle are pure.
//! What to do next in a job's life is decided by [`step`], what must not be forgotten is the
//! [`record`], and the coordinators themselves run in the [`fleet`]. The [`webhook`] judges resources
//! before they are written. Start at: [`controller::run`].

pub mod apply;
pub mod args;
pub mod authority;
pub mod certificates;
pub mod children;
pub mod client;
pub mod controller;
pub mod credentials;
pub mod ending;
pub mod events;
pub mod fleet;
pub mod hash;
pub mod heard;
pub mod lease;
pub mod liveness;
pub mod metrics;
pub mod names;
pub mod one_line;
pub mod opening;
pub mod record;
pub mod recorder;
pub mod savepoint;
pub mod seal;
pub mod settings;
pub mod step;
pub mod stores;
pub mod stream_job;
pub mod watch;
pub mod webhook;
