//! Hosts tasks: threads, channels, uploads, publishing.
//!
//! Owns: everything around the engine that touches the world. Decides nothing about rows (the
//! engine's) nor about checkpoints (the coordinator's). Start at: [`manager::run`]; one task's life
//! is in [`task`].

pub mod attempt;
pub mod budget;
pub mod clock;
pub mod exchange;
pub mod file_size;
pub mod inbox;
pub mod manager;
pub mod metrics;
pub mod pace;
pub mod progress;
pub mod registry;
pub mod session;
pub mod sight;
pub mod task;
pub mod terms;
pub mod upload;

/// The contracts and stream logic that tasks run, for programs that host tasks in process.
pub use streamforge_engine as engine;

/// The outside systems, for `streamforge verify`, which reads a job's input a second time.
pub use streamforge_connectors as connectors;
