//! What reaches the coordinator.

use streamforge_core::messages::{Event, Registration, Stamp, TaskManagerId};

use crate::store_request::{RequestId, StoreAnswer};

/// One thing that happened. Given to [`crate::Coordinator::on`] with the time it happened at.
#[derive(Clone, Debug, PartialEq)]
pub enum Input {
    /// Time passed. The first one starts the coordinator; then several a second.
    Tick,
    /// The store answered.
    Store(RequestId, StoreAnswer),
    /// A session with a task manager began. What it says from now on is of this session.
    Registered {
        /// Which process.
        task_manager: TaskManagerId,
        /// What it offers, and what it runs.
        registration: Box<Registration>,
    },
    /// A task manager is there, and says nothing else.
    Heard(TaskManagerId),
    /// A task manager said something about an attempt.
    Task(TaskManagerId, Stamp, Event),
    /// The session with a task manager broke. Nothing that it said there comes any more.
    SessionLost {
        /// Which process.
        task_manager: TaskManagerId,
        /// How it was noticed, for people.
        cause: String,
    },
    /// No task manager is left, and none will come: the only one was in this process.
    TaskManagersEnded,
    /// A person wants this task manager to have no subtasks: they go to others.
    Leaving(TaskManagerId),
    /// The same, and the task manager itself asks to be told when it may end.
    Ending(TaskManagerId),
    /// A person wants this many subtasks; see [`crate::Coordinator::check_scale`].
    Scale(u32),
    /// A person wants a savepoint; see [`crate::Coordinator::check_savepoint`].
    Savepoint {
        /// What it is called.
        name: String,
        /// Whether the job is to stop there.
        stops: bool,
    },
    /// A person or the system wants the job to stop, with a checkpoint.
    Stop,
}
