//! A task manager: commands in, events out.
//!
//! Owns: one attempt at a time, and publishing. Refuses a lower generation whatever its epoch, and an
//! older epoch (C5). In one process the commands come by channel; later by gRPC.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use streamforge_core::ids::SlotId;
use streamforge_core::manifest::StagedInterval;
use streamforge_core::messages::{Command, Event, Newest, Stamp};
use streamforge_store::ObjectStore;
use tokio::sync::mpsc;

use crate::attempt::{Attempt, Prepared};
use crate::inbox::Control;
use crate::upload::with_causes;
use streamforge_engine::barrier::Barrier;

/// How often progress is told.
const PROGRESS_EVERY: Duration = Duration::from_millis(250);

/// What a task manager works with.
#[derive(Clone)]
pub struct Context {
    /// Checkpoints.
    pub store: Arc<dyn ObjectStore>,
    /// Folder of secrets, one folder each.
    pub secrets: Option<PathBuf>,
    /// Bytes of keyed state that an attempt may hold here.
    pub memory_limit: u64,
    /// Whether somebody looks at what `print` prints; `None`: find out.
    pub terminal: Option<bool>,
}

/// Works until the coordinator's channel closes.
pub async fn run(
    context: Context,
    mut commands: mpsc::Receiver<(Stamp, Command)>,
    events: mpsc::Sender<(Stamp, Event)>,
) {
    let mut newest = Newest::default();
    let mut attempt: Option<Attempt> = None;
    let mut ticks = tokio::time::interval(PROGRESS_EVERY);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            command = commands.recv() => {
                let Some((stamp, command)) = command else { break };
                if !newest.admits(&stamp) {
                    tracing::warn!(?stamp, "command of an older coordinator or attempt refused");
                    continue;
                }
                on_command(&context, &mut attempt, stamp, command, &events).await;
            }
            _ = ticks.tick() => {
                if let Some(attempt) = attempt.as_ref().filter(|attempt| attempt.is_running()) {
                    let progress = Event::Progress(Box::new(attempt.progress()));
                    // A full queue means that newer progress is on its way anyway.
                    let _ = events.try_send((attempt.stamp().clone(), progress));
                }
            }
        }
    }
    if let Some(attempt) = attempt {
        attempt.end().await;
    }
}

async fn on_command(
    context: &Context,
    attempt: &mut Option<Attempt>,
    stamp: Stamp,
    command: Command,
    events: &mpsc::Sender<(Stamp, Event)>,
) {
    if let Command::Deploy(deployment) = command {
        if let Some(old) = attempt.take() {
            old.end().await;
        }
        let event =
            match Attempt::prepare(context, stamp.clone(), *deployment, events.clone()).await {
                Ok(Prepared {
                    attempt: prepared,
                    splits,
                }) => {
                    *attempt = Some(prepared);
                    Event::Prepared { splits }
                }
                Err(error) => Event::Failed {
                    task: None,
                    cause: with_causes(&error),
                    retry: error.may_succeed_later(),
                },
            };
        let _ = events.send((stamp, event)).await;
        return;
    }
    let Some(current) = attempt.as_mut().filter(|attempt| *attempt.stamp() == stamp) else {
        return;
    };
    match command {
        Command::Deploy(_) => {}
        Command::Start { splits } => current.start(splits).await,
        Command::Checkpoint { id, kind } => {
            current.tell_sources(Control::Checkpoint(Barrier { id, kind }));
        }
        Command::Abort { id } => current.tell_all(Control::Abort(id)),
        Command::Publish { slots, .. } => publish(current, slots),
        Command::Committed { id } => tracing::debug!(checkpoint = %id, "checkpoint committed"),
        Command::Cancel => {
            if let Some(old) = attempt.take() {
                old.end().await;
            }
        }
    }
}

/// Publishes in order, off this loop; each answer is its own event.
fn publish(attempt: &Attempt, slots: Vec<(SlotId, StagedInterval)>) {
    let publishing = attempt.publishing();
    tokio::spawn(async move {
        for (slot, interval) in slots {
            publishing.publish(slot, interval).await;
        }
    });
}
