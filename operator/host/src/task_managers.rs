//! How commands reach the task managers, and events come back.
//!
//! Owns: the transport as the host sees it, and the one within a process. Both directions are
//! bounded; a task manager that lets its queue fill up counts as lost.

use async_trait::async_trait;
use streamforge_core::messages::{Command, Event, Registration, Stamp, TaskManagerId};
use tokio::sync::mpsc;

use crate::control::Ask;

/// Commands waiting for one task manager. It takes them at once; so many mean that it hangs.
pub(crate) const COMMANDS_MAX: usize = 1_024;

/// Events waiting for the host. A full queue makes the task manager wait, which is harmless.
pub(crate) const EVENTS_MAX: usize = 1_024;

/// The connection to a task manager is broken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("reach the task manager: {reason}")]
pub struct Lost {
    /// How it was noticed.
    pub reason: String,
}

/// What comes from task managers.
#[derive(Debug)]
pub enum News {
    /// A session began.
    Registered(TaskManagerId, Box<Registration>),
    /// It is there.
    Heard(TaskManagerId),
    /// It said something about an attempt.
    Said(TaskManagerId, Stamp, Event),
    /// It was told to end, and asks to be let go.
    Leaving(TaskManagerId),
    /// Its session is over.
    Lost(TaskManagerId, String),
    /// A person asks something.
    Asked(Ask),
}

/// News with the number of their session. Boxed: a channel has room for some from its beginning, and there may be
/// a thousand.
pub(crate) type Told = (u64, Box<News>);

/// The task managers of one job, as their coordinator's host sees them.
#[async_trait]
pub trait TaskManagers: Send + 'static {
    /// Hands a command over, without waiting. Commands arrive in order or not at all.
    ///
    /// # Errors
    /// When the connection is broken, and with it the session: one that lives is ended.
    fn send(&mut self, to: &TaskManagerId, stamp: Stamp, command: Command) -> Result<(), Lost>;

    /// The next news; `None` when none will come any more. May be dropped and called again.
    async fn recv(&mut self) -> Option<News>;

    /// This one asked to end, and may.
    fn release(&mut self, _to: &TaskManagerId) {}

    /// This one counts as lost: its session is ended, if it has one. When it lives it registers anew.
    fn disconnect(&mut self, _to: &TaskManagerId) {}

    /// The job is over: whoever has a session, or asks for one, is told that nothing is left to do.
    async fn dismiss(&mut self, _reason: &str) {}
}

/// A task manager in the same process.
#[derive(Debug)]
pub struct InProcess {
    commands: mpsc::Sender<(Stamp, Command)>,
    events: mpsc::Receiver<(Stamp, Event)>,
    state: State,
}

#[derive(Debug)]
enum State {
    New,
    Connected,
    Gone,
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
    let state = State::New;
    let ours = InProcess {
        commands,
        events,
        state,
    };
    (ours, end)
}

#[async_trait]
impl TaskManagers for InProcess {
    fn send(&mut self, _to: &TaskManagerId, stamp: Stamp, command: Command) -> Result<(), Lost> {
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

    async fn recv(&mut self) -> Option<News> {
        let local = TaskManagerId::local();
        match self.state {
            State::New => {
                self.state = State::Connected;
                let everything = Registration {
                    slots: u32::MAX,
                    exchange: String::new(),
                    runs: None,
                };
                Some(News::Registered(local, Box::new(everything)))
            }
            State::Connected => Some(match self.events.recv().await {
                Some((stamp, event)) => News::Said(local, stamp, event),
                None => {
                    self.state = State::Gone;
                    News::Lost(local, "it has ended".to_owned())
                }
            }),
            State::Gone => None,
        }
    }
}
