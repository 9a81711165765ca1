//! How commands reach the task managers, and events come back.
//!
//! Owns: the transport as the host sees it, and the one within a process. Both directions are
//! bounded; a task manager that lets its queue fill up counts as lost.

use async_trait::async_trait;
use streamforge_core::messages::{Command, Event, Stamp};
use tokio::sync::mpsc;

/// Commands waiting for one task manager. It takes them at once; so many mean that it hangs.
const COMMANDS_MAX: usize = 1_024;

/// Events waiting for the host. A full queue makes the task manager wait, which is harmless.
const EVENTS_MAX: usize = 1_024;

/// The connection to the task managers is broken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("reach the task managers: {reason}")]
pub struct Lost {
    /// How it was noticed.
    pub reason: String,
}

/// The task managers of one job, as their coordinator's host sees them.
#[async_trait]
pub trait TaskManagers: Send + 'static {
    /// Hands a command over, without waiting. Commands arrive in order or not at all.
    ///
    /// # Errors
    /// When the connection is broken.
    fn send(&mut self, stamp: Stamp, command: Command) -> Result<(), Lost>;

    /// The next event; `None` when the connection is broken. May be dropped and called again.
    async fn recv(&mut self) -> Option<(Stamp, Event)>;
}

/// A task manager in the same process.
#[derive(Debug)]
pub struct InProcess {
    commands: mpsc::Sender<(Stamp, Command)>,
    events: mpsc::Receiver<(Stamp, Event)>,
}

/// The other end of [`InProcess`]: what the task manager holds. Plain threads use the `blocking_`
/// calls of both.
#[derive(Debug)]
pub struct TaskManagerEnd {
    /// What to do. Closed: the coordinator is gone, and so must be the tasks.
    pub commands: mpsc::Receiver<(Stamp, Command)>,
    /// What happened, stamped with the command's stamp that caused it.
    pub events: mpsc::Sender<(Stamp, Event)>,
}

/// A pair of ends that are connected.
#[must_use]
pub fn in_process() -> (InProcess, TaskManagerEnd) {
    let (commands, commands_end) = mpsc::channel(COMMANDS_MAX);
    let (events_end, events) = mpsc::channel(EVENTS_MAX);
    let end = TaskManagerEnd {
        commands: commands_end,
        events: events_end,
    };
    (InProcess { commands, events }, end)
}

#[async_trait]
impl TaskManagers for InProcess {
    fn send(&mut self, stamp: Stamp, command: Command) -> Result<(), Lost> {
        self.commands.try_send((stamp, command)).map_err(|error| {
            let reason = match error {
                mpsc::error::TrySendError::Full(_) => "it does not take its commands",
                mpsc::error::TrySendError::Closed(_) => "it has ended",
            };
            Lost {
                reason: reason.to_owned(),
            }
        })
    }

    async fn recv(&mut self) -> Option<(Stamp, Event)> {
        self.events.recv().await
    }
}
