//! Drives the coordinator of one job with timers, a transport and the store.
//!
//! Owns: carrying out what the coordinator decides, and telling it what happened. Never decides
//! anything itself. Start at: [`start`]; what the store holds: [`history`]; task managers in other
//! processes: [`sessions`].

mod clock;
mod control;
mod elsewhere;
pub mod history;
mod job;
pub mod metrics;
pub mod policy;
mod requests;
pub mod sessions;
mod task_managers;

pub use control::{Ask, Orders, Over};
pub use job::{JobConfig, JobHandle, RestoreFrom, start};
pub use requests::{check_objects, perform};
pub use streamforge_coordinator::compatibility;
pub use streamforge_coordinator::{
    CheckpointPolicy, CheckpointStatus, CompletedCheckpoint, Error, FailedCheckpoint, Failure,
    MemberPolicy, Outcome, Phase, Report, RestartPolicy, SavepointState, Status,
};
pub use task_managers::{InProcess, Lost, News, TaskManagerEnd, TaskManagers, in_process};
