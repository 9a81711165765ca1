//! The session's messages in the words of the domain.
//!
//! Owns: the envelope of every command and event, and the versions of what travels in payloads. A
//! payload's JSON is that of the store; whoever reads one of a newer format is told so and nothing
//! of it is used (C8).

use std::fmt;

use serde::Serialize;
use serde::de::DeserializeOwned;
use streamforge_core::ids::{
    CheckpointId, Epoch, Generation, JobId, OperatorUid, SlotId, StageIdx, SubtaskIdx, TaskId,
};
use streamforge_core::manifest::StagedInterval;
use streamforge_core::messages::{
    Command, Event, Registration, RunningAttempt, Stamp, TaskManagerId,
};

use super::Error;
use super::exchange::{decode_barrier, encode_barrier};
use crate::v1;
use v1::task_command::What as CommandWhat;
use v1::task_event::What as EventWhat;

/// Oldest version of the session's protocol that this program speaks: version 1 has no hand-over.
pub const PROTOCOL_MIN: u32 = 2;

/// Newest version of the session's protocol that this program speaks.
pub const PROTOCOL_MAX: u32 = 3;

/// From this version on a task manager says that it is to end.
pub const PROTOCOL_LEAVING: u32 = 3;

/// Newest version of the payloads' encoding, and the only one so far.
pub const PAYLOAD_FORMAT: u32 = 1;

/// The highest version that both ends speak; `None`: there is none.
pub fn agree(theirs_min: u32, theirs_max: u32) -> Option<u32> {
    let highest = theirs_max.min(PROTOCOL_MAX);
    (highest >= theirs_min.max(PROTOCOL_MIN)).then_some(highest)
}

fn payload<T: Serialize>(value: &T) -> Option<v1::Payload> {
    let json = serde_json::to_vec(value)
        .expect("messages have string or number keys and no failing serializers");
    Some(v1::Payload {
        format: PAYLOAD_FORMAT,
        json: json.into(),
    })
}

fn open<T: DeserializeOwned>(
    message: &'static str,
    payload: Option<v1::Payload>,
) -> Result<T, Error> {
    let payload = required(message, "payload", payload)?;
    if payload.format != PAYLOAD_FORMAT {
        return Err(Error::Unknown {
            message,
            field: "format",
            value: payload.format.into(),
        });
    }
    serde_json::from_slice(&payload.json).map_err(|error| Error::Payload {
        message,
        reason: error.to_string(),
    })
}

fn required<T>(message: &'static str, field: &'static str, value: Option<T>) -> Result<T, Error> {
    value.ok_or(Error::Missing { message, field })
}

fn to_stamp(stamp: Stamp) -> v1::Stamp {
    v1::Stamp {
        job: stamp.job.0,
        generation: stamp.generation.get(),
        epoch: stamp.epoch.get(),
    }
}

fn from_stamp(message: &'static str, stamp: Option<v1::Stamp>) -> Result<Stamp, Error> {
    let stamp = required(message, "stamp", stamp)?;
    Ok(Stamp {
        job: JobId(stamp.job),
        generation: Generation::from_stored(stamp.generation),
        epoch: Epoch::from_stored(stamp.epoch),
    })
}

fn to_task(task: TaskId) -> v1::Task {
    v1::Task {
        stage: task.stage.0,
        subtask: task.subtask.0,
    }
}

fn from_task(task: &v1::Task) -> TaskId {
    TaskId {
        stage: StageIdx(task.stage),
        subtask: SubtaskIdx(task.subtask),
    }
}

fn task(message: &'static str, task: Option<v1::Task>) -> Result<TaskId, Error> {
    required(message, "task", task).map(|task| from_task(&task))
}

fn to_slot(slot: SlotId) -> v1::Slot {
    v1::Slot {
        sink: slot.sink.0,
        slot: slot.slot,
    }
}

fn slot(message: &'static str, slot: Option<v1::Slot>) -> Result<SlotId, Error> {
    let slot = required(message, "slot", slot)?;
    Ok(SlotId {
        sink: OperatorUid(slot.sink),
        slot: slot.slot,
    })
}

fn id(id: u64) -> CheckpointId {
    CheckpointId::from_stored(id)
}

/// A process, as it names itself.
pub fn to_sender(id: TaskManagerId) -> v1::Sender {
    v1::Sender {
        name: id.name,
        nonce: id.nonce,
    }
}

/// What a task manager registers with.
pub fn to_register(task_manager: TaskManagerId, registration: Registration) -> v1::Register {
    let running = registration.runs.map(|running| {
        let ended = running.ended.into_iter().map(to_task).collect();
        v1::Running {
            stamp: Some(to_stamp(running.stamp)),
            started: running.started,
            ended,
            failed: running.failed,
            deployment: payload(&running.deployment),
            prepared: running.prepared.and_then(|it| payload(&*it)),
        }
    });
    v1::Register {
        protocol_min: PROTOCOL_MIN,
        protocol_max: PROTOCOL_MAX,
        sender: Some(to_sender(task_manager)),
        slots: registration.slots,
        exchange_address: registration.exchange,
        running,
        job: String::new(),
    }
}

/// Who registers, and with what; the protocol's version is the caller's to compare.
///
/// # Errors
/// When something is missing, or of a newer format.
pub fn from_register(register: v1::Register) -> Result<(TaskManagerId, Registration), Error> {
    const MESSAGE: &str = "register";
    let sender = required(MESSAGE, "sender", register.sender)?;
    let runs = match register.running {
        None => None,
        Some(running) => Some(Box::new(RunningAttempt {
            stamp: from_stamp(MESSAGE, running.stamp)?,
            deployment: open(MESSAGE, running.deployment)?,
            started: running.started,
            ended: running.ended.iter().map(from_task).collect(),
            failed: running.failed,
            prepared: match running.prepared {
                None => None,
                prepared => Some(open(MESSAGE, prepared)?),
            },
        })),
    };
    let task_manager = TaskManagerId {
        name: sender.name,
        nonce: sender.nonce,
    };
    let registration = Registration {
        slots: register.slots,
        exchange: register.exchange_address,
        runs,
    };
    Ok((task_manager, registration))
}

/// A command as it travels.
pub fn to_command(stamp: Stamp, command: Command) -> v1::TaskCommand {
    let what = match command {
        Command::Deploy(deployment) => CommandWhat::Deploy(v1::Deploy {
            deployment: payload(&*deployment),
        }),
        Command::Adopt { void_to } => CommandWhat::Adopt(v1::Adopt {
            void_to: void_to.get(),
        }),
        Command::Start { splits } => CommandWhat::Start(v1::Start {
            splits: payload(&splits),
        }),
        Command::Checkpoint { id, kind } => CommandWhat::Checkpoint(encode_barrier(id, kind)),
        Command::Abort { id } => CommandWhat::Abort(v1::Abort { id: id.get() }),
        Command::Publish { manifest, slots } => {
            let interval = |(slot, staged): (SlotId, StagedInterval)| v1::SlotInterval {
                slot: Some(to_slot(slot)),
                interval: staged.id.get(),
                staged: payload(&staged),
            };
            CommandWhat::Publish(v1::Publish {
                manifest: manifest.get(),
                slots: slots.into_iter().map(interval).collect(),
            })
        }
        Command::Prepare(hand_over) => CommandWhat::Prepare(v1::Prepare {
            hand_over: payload(&*hand_over),
        }),
        Command::Withdraw => CommandWhat::Withdraw(v1::Withdraw {}),
        Command::Receive(manifest) => CommandWhat::Receive(v1::Receive {
            manifest: payload(&*manifest),
        }),
        Command::Committed { id } => CommandWhat::Committed(v1::Committed { id: id.get() }),
        Command::Cancel => CommandWhat::Cancel(v1::Cancel {}),
    };
    v1::TaskCommand {
        stamp: Some(to_stamp(stamp)),
        what: Some(what),
    }
}

/// What a command says.
///
/// # Errors
/// When something is missing, or of a newer format.
pub fn from_command(command: v1::TaskCommand) -> Result<(Stamp, Command), Error> {
    const MESSAGE: &str = "command";
    let stamp = from_stamp(MESSAGE, command.stamp)?;
    let command = match required(MESSAGE, "what", command.what)? {
        CommandWhat::Deploy(deploy) => Command::Deploy(open("deploy", deploy.deployment)?),
        CommandWhat::Adopt(adopt) => Command::Adopt {
            void_to: id(adopt.void_to),
        },
        CommandWhat::Start(start) => Command::Start {
            splits: open("start", start.splits)?,
        },
        CommandWhat::Checkpoint(mark) => {
            let (id, kind) = decode_barrier(&mark)?;
            Command::Checkpoint { id, kind }
        }
        CommandWhat::Abort(abort) => Command::Abort { id: id(abort.id) },
        CommandWhat::Publish(publish) => {
            let interval = |it: v1::SlotInterval| {
                let staged: StagedInterval = open("publish", it.staged)?;
                Ok((slot("publish", it.slot)?, staged))
            };
            let slots: Result<Vec<_>, Error> = publish.slots.into_iter().map(interval).collect();
            Command::Publish {
                manifest: id(publish.manifest),
                slots: slots?,
            }
        }
        CommandWhat::Committed(committed) => Command::Committed {
            id: id(committed.id),
        },
        CommandWhat::Prepare(prepare) => Command::Prepare(open("prepare", prepare.hand_over)?),
        CommandWhat::Withdraw(v1::Withdraw {}) => Command::Withdraw,
        CommandWhat::Receive(receive) => Command::Receive(open("receive", receive.manifest)?),
        CommandWhat::Cancel(v1::Cancel {}) => Command::Cancel,
    };
    Ok((stamp, command))
}

/// An event as it travels.
pub fn to_event(stamp: Stamp, event: Event) -> v1::TaskEvent {
    let what = match event {
        Event::Prepared { splits } => EventWhat::Prepared(v1::Prepared {
            splits: payload(&splits),
        }),
        Event::Ack(snapshot) => EventWhat::Ack(v1::Ack {
            task: Some(to_task(snapshot.task)),
            id: snapshot.id.get(),
            snapshot: payload(&*snapshot),
        }),
        Event::Declined { task, id, reason } => EventWhat::Declined(v1::Declined {
            task: Some(to_task(task)),
            id: id.get(),
            reason,
        }),
        Event::Published { slot, interval } => EventWhat::Published(v1::Published {
            slot: Some(to_slot(slot)),
            interval: interval.get(),
        }),
        Event::PublishFailed {
            slot,
            interval,
            reason,
        } => EventWhat::PublishFailed(v1::PublishFailed {
            slot: Some(to_slot(slot)),
            interval: interval.get(),
            reason,
        }),
        Event::TakenOver { reason } => EventWhat::TakenOver(v1::TakenOver { reason }),
        Event::Ended { task } => EventWhat::Ended(v1::Ended {
            task: Some(to_task(task)),
        }),
        Event::Failed { task, cause, retry } => EventWhat::Failed(v1::Failed {
            task: task.map(to_task),
            cause,
            retry,
        }),
        Event::ChannelBroke {
            sender,
            receiver,
            cause,
        } => EventWhat::ChannelBroke(v1::ChannelBroke {
            sender: sender.0,
            receiver: receiver.0,
            cause,
        }),
        Event::HandOverPrepared => EventWhat::HandOverPrepared(v1::HandOverPrepared {}),
        Event::HandOverRefused { reason } => {
            EventWhat::HandOverRefused(v1::HandOverRefused { reason })
        }
        Event::Received { task, id } => EventWhat::Received(v1::Received {
            task: Some(to_task(task)),
            id: id.get(),
        }),
        Event::Progress(progress) => EventWhat::Progress(v1::Progress {
            progress: payload(&*progress),
        }),
    };
    v1::TaskEvent {
        stamp: Some(to_stamp(stamp)),
        what: Some(what),
    }
}

/// What an event says.
///
/// # Errors
/// When something is missing, or of a newer format.
pub fn from_event(event: v1::TaskEvent) -> Result<(Stamp, Event), Error> {
    const MESSAGE: &str = "event";
    let stamp = from_stamp(MESSAGE, event.stamp)?;
    let event = match required(MESSAGE, "what", event.what)? {
        EventWhat::Prepared(prepared) => Event::Prepared {
            splits: open("prepared", prepared.splits)?,
        },
        EventWhat::Ack(ack) => Event::Ack(open("ack", ack.snapshot)?),
        EventWhat::Declined(declined) => Event::Declined {
            task: task("declined", declined.task)?,
            id: id(declined.id),
            reason: declined.reason,
        },
        EventWhat::Published(published) => Event::Published {
            slot: slot("published", published.slot)?,
            interval: id(published.interval),
        },
        EventWhat::PublishFailed(failed) => Event::PublishFailed {
            slot: slot("publish failed", failed.slot)?,
            interval: id(failed.interval),
            reason: failed.reason,
        },
        EventWhat::TakenOver(taken) => Event::TakenOver {
            reason: taken.reason,
        },
        EventWhat::Ended(ended) => Event::Ended {
            task: task("ended", ended.task)?,
        },
        EventWhat::Failed(failed) => Event::Failed {
            task: failed.task.as_ref().map(from_task),
            cause: failed.cause,
            retry: failed.retry,
        },
        EventWhat::ChannelBroke(broke) => Event::ChannelBroke {
            sender: SubtaskIdx(broke.sender),
            receiver: SubtaskIdx(broke.receiver),
            cause: broke.cause,
        },
        EventWhat::HandOverPrepared(v1::HandOverPrepared {}) => Event::HandOverPrepared,
        EventWhat::HandOverRefused(refused) => Event::HandOverRefused {
            reason: refused.reason,
        },
        EventWhat::Received(received) => Event::Received {
            task: task("received", received.task)?,
            id: id(received.id),
        },
        EventWhat::Progress(progress) => Event::Progress(open("progress", progress.progress)?),
    };
    Ok((stamp, event))
}

/// A refusal's text for a task manager whose versions do not meet ours.
pub struct NoCommonVersion {
    /// Its oldest.
    pub theirs_min: u32,
    /// Its newest.
    pub theirs_max: u32,
}

impl fmt::Display for NoCommonVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the coordinator speaks versions {PROTOCOL_MIN} to {PROTOCOL_MAX} of the protocol, the \
             task manager {} to {}: run both from one release",
            self.theirs_min, self.theirs_max
        )
    }
}

#[cfg(test)]
mod tests;
