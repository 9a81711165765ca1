//! What reaches the coordinator.

use streamforge_core::messages::{Event, Stamp};

use crate::store_request::{RequestId, StoreAnswer};

/// One thing that happened. Given to [`crate::Coordinator::on`] with the time it happened at.
#[derive(Clone, Debug, PartialEq)]
pub enum Input {
    /// Time passed. The first one starts the coordinator; then several a second.
    Tick,
    /// The store answered.
    Store(RequestId, StoreAnswer),
    /// A task manager said something.
    Task(Stamp, Event),
    /// The connection to the task managers broke.
    TaskManagersLost {
        /// How it was noticed, for people.
        cause: String,
    },
    /// A person or the system wants the job to stop, with a checkpoint.
    Stop,
}
