//! The operator: reconciles StreamJobs and hosts their coordinators.

pub mod certificates;
pub mod events;
pub mod hash;
pub mod names;
pub mod settings;
pub mod stream_job;
