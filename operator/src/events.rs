//! The events of a job: what `kubectl describe` tells, in order.
//!
//! Owns: which transition gives which event. Pure; whoever sends them gives them best effort only.
//! The words are in [`reasons`]. Start at: [`of_transition`].

pub mod reasons;

use streamforge_crds::v1alpha1::{Condition, JobStatus, SavepointStatus};

use streamforge_host::Report;

use crate::one_line::one_line;
use crate::step::Unsaved;
use crate::stream_job::conditions::{self, Kind};
use crate::stream_job::report::Phase;

pub use reasons::Reason;

/// Longest note of an event.
const NOTE_BYTES_MAX: usize = 1_024;

/// An event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Whether somebody should look.
    pub severity: Severity,
    /// One word.
    pub reason: &'static str,
    /// What the operator did, one word.
    pub action: &'static str,
    /// For people.
    pub note: String,
}

/// Whether somebody should look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// No.
    Normal,
    /// Yes.
    Warning,
}

impl Severity {
    /// As an event says it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Normal => "Normal",
            Self::Warning => "Warning",
        }
    }
}

fn event(reason: Reason, action: &'static str, note: impl Into<String>) -> Event {
    // It may quote the document.
    let mut note = one_line(&note.into()).into_owned();
    if note.len() > NOTE_BYTES_MAX {
        let end = (0..=NOTE_BYTES_MAX - '…'.len_utf8())
            .rev()
            .find(|end| note.is_char_boundary(*end));
        note.truncate(end.unwrap_or_default());
        note.push('…');
    }
    Event {
        severity: reason.severity,
        reason: reason.name,
        action,
        note,
    }
}

/// The events that lead from one status to the next.
#[must_use]
pub fn of_transition(old: Option<&JobStatus>, new: &JobStatus) -> Vec<Event> {
    let phases = (Phase::of(old), Phase::of(Some(new)));
    let mut events = Vec::new();
    events.extend(of_failure(old, new));
    if let (before, Some(now)) = phases
        && before != Some(now)
    {
        events.extend(of_phase(before, now, new));
    }
    events.extend(
        Kind::ALL
            .into_iter()
            .filter_map(|kind| of_condition(kind, old, new)),
    );
    events
}

/// A failure that was not there before.
fn of_failure(old: Option<&JobStatus>, new: &JobStatus) -> Option<Event> {
    let failure = new.last_failure.as_ref()?;
    let known = old.and_then(|old| old.last_failure.as_ref());
    if known == Some(failure) {
        return None;
    }
    let note = match failure.task_manager.as_str() {
        "" => failure.reason.clone(),
        task_manager => format!("{task_manager}: {}", failure.reason),
    };
    Some(event(reasons::ATTEMPT_FAILED, "Recover", note))
}

fn of_phase(before: Option<Phase>, now: Phase, status: &JobStatus) -> Option<Event> {
    let parallelism = status.parallelism.unwrap_or_default();
    let checkpoint = status
        .checkpoint
        .as_ref()
        .and_then(|it| it.last_completed.as_ref());
    let at = checkpoint.map_or_else(
        || "before its first checkpoint".to_owned(),
        |checkpoint| format!("with checkpoint {}", checkpoint.id),
    );
    Some(match now {
        Phase::Pending => return None,
        Phase::Starting => event(reasons::STARTING, "Start", "pods are started"),
        Phase::Running => {
            let (reason, what) = match before {
                Some(Phase::Recovering) => (reasons::RECOVERED, "rows flow again"),
                Some(Phase::Upgrading) => (reasons::UPGRADED, "rows flow by the new document"),
                _ => (reasons::RUNNING, "rows flow"),
            };
            event(reason, "Run", format!("{what}, in {parallelism} subtasks"))
        }
        Phase::Recovering => {
            let from = checkpoint.map_or_else(
                || "from the start".to_owned(),
                |checkpoint| format!("from checkpoint {}", checkpoint.id),
            );
            event(reasons::RECOVERING, "Recover", format!("goes on {from}"))
        }
        Phase::Suspending => event(reasons::SUSPENDING, "Suspend", "takes its last checkpoint"),
        Phase::Suspended => event(reasons::SUSPENDED, "Suspend", format!("has stopped {at}")),
        Phase::Upgrading => event(
            reasons::UPGRADING,
            "Upgrade",
            "goes over to another document",
        ),
        Phase::Finished => event(
            reasons::FINISHED,
            "Finish",
            "all input is read, all output published",
        ),
        Phase::Failed => {
            let why = message(Kind::Ready, status).unwrap_or("the job was given up");
            event(reasons::FAILED, "Fail", why)
        }
    })
}

fn find(kind: Kind, status: &JobStatus) -> Option<&Condition> {
    status
        .conditions
        .iter()
        .find(|condition| condition.condition_type == kind.name())
}

fn message(kind: Kind, status: &JobStatus) -> Option<&str> {
    find(kind, status).map(|condition| condition.message.as_str())
}

/// A condition that turned, where that is news beside the phase.
fn of_condition(kind: Kind, old: Option<&JobStatus>, new: &JobStatus) -> Option<Event> {
    let now = find(kind, new)?;
    let before = old.and_then(|old| find(kind, old));
    let same_reason =
        before.is_some_and(|before| (&before.status, &before.reason) == (&now.status, &now.reason));
    let note = now.message.as_str();
    let was_bad = before.is_some_and(|before| before.status == "False");
    let is_bad = now.status == "False";
    match kind {
        // Another mistake under the same reason is news too.
        Kind::Valid if is_bad && before.is_none_or(|before| before.message != now.message) => {
            let (reason, action) = match now.reason.as_str() {
                "RolledBack" => (reasons::ROLLED_BACK, "RollBack"),
                "StateWouldBeDropped" => (reasons::STATE_WOULD_BE_DROPPED, "Refuse"),
                _ => (reasons::INVALID_SPEC, "Refuse"),
            };
            Some(event(reason, action, note))
        }
        _ if same_reason => None,
        Kind::Valid if was_bad && !is_bad => Some(event(reasons::VALID, "Accept", note)),
        Kind::Progressing if is_bad => {
            trouble(&now.reason).map(|reason| event(reason, "Wait", note))
        }
        Kind::Progressing if now.reason == "Scaling" => {
            Some(event(reasons::SCALING, "Scale", note))
        }
        Kind::CheckpointFresh if is_bad => {
            Some(event(reasons::CHECKPOINT_STALE, "Checkpoint", note))
        }
        Kind::CheckpointFresh if was_bad && now.status == "True" => {
            Some(event(reasons::CHECKPOINT_FRESH, "Checkpoint", note))
        }
        Kind::WatermarkAdvancing if is_bad => {
            Some(event(reasons::WATERMARK_HELD_BACK, "Watch", note))
        }
        Kind::WatermarkAdvancing if was_bad && now.status == "True" => {
            Some(event(reasons::WATERMARK_ADVANCING, "Watch", note))
        }
        Kind::CaughtUp if now.reason == UNREACHABLE => {
            Some(event(reasons::SOURCE_UNREACHABLE, "Read", note))
        }
        Kind::CaughtUp if before.is_some_and(|it| it.reason == UNREACHABLE) => {
            let runs = now.reason != conditions::CAUGHT_UP_NOT_RUNNING.name;
            runs.then(|| event(reasons::SOURCE_REACHABLE, "Read", note))
        }
        _ => None,
    }
}

/// A source cannot be read.
const UNREACHABLE: &str = conditions::CAUGHT_UP_UNREACHABLE.name;

/// Reasons of trouble, as events say them.
fn trouble(reason: &str) -> Option<Reason> {
    let known = [
        reasons::PAUSED,
        reasons::SECRET_MISSING,
        reasons::STORE_UNREACHABLE,
        reasons::SAVEPOINT_MISSING,
        reasons::PODS_STUCK,
        reasons::OUT_OF_MEMORY,
        reasons::NOT_ALLOWED,
        reasons::SAVEPOINT_FAILS,
        reasons::RECORD_UNREADABLE,
    ];
    known.into_iter().find(|known| known.name == reason)
}

/// Somebody changed a field that is ours, and it was put right.
#[must_use]
pub fn drift_repaired(kind: &str, name: &str, manager: Option<&str>, fields: &[String]) -> Event {
    let by = manager.map_or_else(String::new, |manager| {
        format!(" that {manager} had changed")
    });
    let what = match fields {
        [] => String::new(),
        fields => format!("{} of ", fields.join(", ")),
    };
    let note = format!("put {what}{kind} {name} right{by}; change the StreamJob instead");
    event(reasons::DRIFT_REPAIRED, "Apply", note)
}

/// Somebody deleted a child, and it was made again.
#[must_use]
pub fn made_again(kind: &str, name: &str) -> Event {
    let note = format!("made {kind} {name} again, which somebody had deleted");
    event(reasons::DRIFT_REPAIRED, "Apply", note)
}

/// The checkpoint that somebody wants to go back to is not there.
#[must_use]
pub fn rewind_refused(reason: &str) -> Event {
    let note = format!("the job goes on from its newest checkpoint: {reason}");
    event(reasons::REWIND_REFUSED, "Refuse", note)
}

/// A job has stopped, for good or for another document, and no savepoint could be made.
#[must_use]
pub fn stopped_without_savepoint(unsaved: &Unsaved) -> Event {
    let Unsaved {
        reason,
        checkpoint,
        unpublished_n,
    } = unsaved;
    let from = checkpoint.map_or_else(
        || "the beginning".to_owned(),
        |id| format!("checkpoint {id}"),
    );
    let staged = match unpublished_n {
        0 => String::new(),
        n => format!("; {n} intervals staged up to then are published when it does"),
    };
    let note = format!(
        "goes on from {from}: what was read after it is read again, and a sink with delivery AtLeastOnce may get rows \
         twice{staged}; why: {reason}"
    );
    event(reasons::STOPPED_WITHOUT_SAVEPOINT, "Suspend", note)
}

/// A job is left, or goes over to another document, while it has no coordinator that could make a savepoint.
#[must_use]
pub fn given_up_without_savepoint(reason: &str) -> Event {
    let note = format!(
        "goes on from its newest checkpoint: what was read after it is read again, and a sink with delivery AtLeastOnce \
         may get rows twice; why: the coordinator that was to make one ended, or could not be started: {reason}"
    );
    event(reasons::STOPPED_WITHOUT_SAVEPOINT, "Suspend", note)
}

/// Secrets are newer than pods that mount them, and their kubelets were told: pods, each with the Secrets in question.
#[must_use]
pub fn secret_changed(told: &[(String, String)]) -> Event {
    let told = told
        .iter()
        .map(|(pod, secrets)| format!("{pod} ({secrets})"));
    let told: Vec<String> = told.collect();
    let note = format!(
        "Secrets were changed after pods began that mount them; their kubelets are told to bring them now: {}",
        told.join(", ")
    );
    event(reasons::SECRET_CHANGED, "Sync", note)
}

/// A job is not given up, since a Secret was changed so many seconds before it would have been.
#[must_use]
pub fn tried_again(secret: &str, seconds: i64, reason: &str) -> Event {
    let when = match seconds {
        ..0 => "just now".to_owned(),
        seconds => format!("{seconds} s before"),
    };
    let note =
        format!("not given up, tried again: secret {secret} was changed {when}; why: {reason}");
    event(reasons::TRIED_AGAIN, "Recover", note)
}

/// A pod that could not start is deleted, so that a better one takes its place.
#[must_use]
pub fn stuck_pod_deleted(name: &str, reason: &str) -> Event {
    let note = format!("deleted pod {name} of an older revision: {reason}");
    event(reasons::STUCK_POD_DELETED, "Apply", note)
}

/// A pod of a lost node is deleted by force, so that another one takes its place.
#[must_use]
pub fn lost_pod_deleted(name: &str) -> Event {
    let note = format!("deleted pod {name} by force: it should have ended, and its node is silent");
    event(reasons::LOST_POD_DELETED, "Apply", note)
}

/// What a coordinator tells that belongs into the story.
#[must_use]
pub fn of_report(report: &Report) -> Option<Event> {
    Some(match report {
        Report::TaskManagerLost {
            task_manager,
            cause,
        } => event(
            reasons::TASK_MANAGER_LOST,
            "Recover",
            format!("{}: {cause}", task_manager.name),
        ),
        Report::RecordsSkipped { source, n } => event(
            reasons::RECORDS_SKIPPED,
            "Read",
            format!(
                "{source}: {n} offsets were deleted before they were read (onOffsetOutOfRange: Earliest)"
            ),
        ),
        Report::HandedOver { to, took_ms } => event(
            reasons::HANDED_OVER,
            "Scale",
            format!("{to} subtasks now, after {took_ms} ms"),
        ),
        Report::Adopted { epoch, .. } => event(
            reasons::ADOPTED,
            "Run",
            format!("a new coordinator goes on with attempt {epoch}; no task stopped"),
        ),
        Report::StateDropped { what } => event(
            reasons::STATE_DROPPED,
            "Upgrade",
            format!(
                "dropped as upgrade.droppedState allows: {}",
                what.join("; ")
            ),
        ),
        // One failed try that is repeated at once is nothing for people.
        Report::PublishFailed { what, reason, .. } if !report.may_pass() => event(
            reasons::PUBLISH_FAILED,
            "Publish",
            format!("{what}: {reason}"),
        ),
        _ => return None,
    })
}

/// The event of a savepoint that has got on.
#[must_use]
pub fn of_savepoint(
    name: &str,
    old: Option<&SavepointStatus>,
    new: &SavepointStatus,
) -> Option<Event> {
    let phase = new.phase.as_deref()?;
    if old.and_then(|old| old.phase.as_deref()) == Some(phase) {
        return None;
    }
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    match phase {
        "InProgress" => Some(event(
            reasons::SAVEPOINT_STARTED,
            "Savepoint",
            format!("takes the savepoint {name}"),
        )),
        "Completed" => {
            let note = format!(
                "the savepoint {name} is whole, {}: {}",
                text(&new.size),
                text(&new.uri)
            );
            Some(event(reasons::SAVEPOINT_COMPLETED, "Savepoint", note))
        }
        "Failed" => {
            let note = format!("the savepoint {name} failed: {}", text(&new.reason));
            Some(event(reasons::SAVEPOINT_FAILED, "Savepoint", note))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests;
