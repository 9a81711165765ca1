//! The status of a job, from what is known of it.
//!
//! Owns: what each field of the status says, and when it is worth writing. Pure: the time comes in. A
//! status is computed from the one before, so that what a new operator does not know yet is not taken
//! back. Start at: [`report`], [`is_worth_writing`].

mod checkpoint;
mod progress;

use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use streamforge_crds::v1alpha1::{
    CheckpointStatus, Condition, JobStatus, LagStatus, LastFailure, RolledBack, StreamJob,
    TaskManagerCount,
};
use streamforge_host::Status;

use super::conditions as reason;
use super::conditions::{Kind, Reason};
use super::validate::{Desired, Problem};
use crate::names::Names;
use crate::one_line::at_most;
use crate::record::{Lived, Refused};

pub use progress::Pace;

/// Longest reason of a failure: it may quote rows, and the status must fit into its object.
const REASON_CHARS_MAX: usize = 1_024;

/// What a job is doing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Phase {
    /// Nothing was started yet.
    #[default]
    Pending,
    /// Pods are started and tasks loaded.
    Starting,
    /// Rows flow.
    Running,
    /// An attempt failed; the next one is on its way.
    Recovering,
    /// Stopping with a checkpoint.
    Suspending,
    /// Stopped because `suspend` is true.
    Suspended,
    /// Going over to another document.
    Upgrading,
    /// All input is read, all output published.
    Finished,
    /// Given up.
    Failed,
}

impl Phase {
    /// All.
    pub const ALL: [Self; 9] = [
        Self::Pending,
        Self::Starting,
        Self::Running,
        Self::Recovering,
        Self::Suspending,
        Self::Suspended,
        Self::Upgrading,
        Self::Finished,
        Self::Failed,
    ];

    /// As the status says it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Pending => "Pending",
            Self::Starting => "Starting",
            Self::Running => "Running",
            Self::Recovering => "Recovering",
            Self::Suspending => "Suspending",
            Self::Suspended => "Suspended",
            Self::Upgrading => "Upgrading",
            Self::Finished => "Finished",
            Self::Failed => "Failed",
        }
    }

    /// The phase that a status says; none: it says none, or one of a later version.
    #[must_use]
    pub fn of(status: Option<&JobStatus>) -> Option<Self> {
        let name = status?.phase.as_deref()?;
        Self::ALL.into_iter().find(|phase| phase.name() == name)
    }

    /// Whether no task runs and none is about to.
    #[must_use]
    pub fn is_at_rest(self) -> bool {
        matches!(self, Self::Suspended | Self::Finished | Self::Failed)
    }
}

/// Why the newest document does not run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// It is wrong.
    Invalid,
    /// It has no place for state that there is.
    DropsState,
    /// It did not become healthy in time.
    RolledBack,
}

/// What keeps the operator from going on; the world has to change first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// A Secret is missing, or a key of it.
    SecretMissing,
    /// The store does not answer or refuses.
    StoreUnreachable,
    /// The savepoint to begin with is not there.
    SavepointMissing,
    /// Pods cannot start.
    PodsStuck,
    /// A pod was killed for its memory.
    OutOfMemory,
    /// The API server refuses.
    NotAllowed,
    /// The job cannot be stopped with a savepoint.
    SavepointFails,
    /// What is on record is nothing that this operator can run, nor is what is wanted.
    RecordUnreadable,
}

/// Counted before the coordinator of now was started, which counts from zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Completed checkpoints.
    pub completed: i64,
    /// Failed checkpoints.
    pub failed: i64,
    /// Restarts.
    pub restarts: i64,
}

impl Totals {
    /// What a status says: the totals to begin with when a coordinator is started.
    #[must_use]
    pub fn of(status: Option<&JobStatus>) -> Self {
        let checkpoint = status.and_then(|status| status.checkpoint.as_ref());
        Self {
            completed: checkpoint.map_or(0, |it| it.completed_total),
            failed: checkpoint.map_or(0, |it| it.failed_total),
            restarts: status
                .and_then(|status| status.restarts)
                .unwrap_or_default(),
        }
    }
}

/// What is known of a job.
#[derive(Clone, Copy, Debug)]
pub struct Known<'a> {
    /// What it is doing.
    pub phase: Phase,
    /// The same in more words: what it waits for, why it failed.
    pub doing: Option<&'a str>,
    /// What runs, or is to run; none: no valid document was ever seen.
    pub desired: Option<&'a Desired>,
    /// What its coordinator says; none: there is none, or not yet.
    pub coordinator: Option<&'a Status>,
    /// Since when its watermark has not moved.
    pub pace: Pace,
    /// Counts from before that coordinator.
    pub before: Totals,
    /// Pods there are to be, and ready ones.
    pub pods: &'a TaskManagerCount,
    /// Pods are being replaced.
    pub replaces_pods: bool,
    /// Why the newest document does not run.
    pub refused: Option<(Refusal, &'a [Problem])>,
    /// What keeps the operator from going on.
    pub trouble: Option<(Trouble, &'a str)>,
    /// What must not be lost with the record.
    pub lived: &'a Lived,
    /// The operator is told to change nothing.
    pub paused: bool,
    /// Now.
    pub now: Timestamp,
}

/// The status of a job.
#[must_use]
pub fn report(job: &StreamJob, known: &Known<'_>) -> JobStatus {
    let before = job.status.clone().unwrap_or_default();
    let names = job
        .metadata
        .name
        .as_deref()
        .and_then(|name| Names::of(name).ok());
    let coordinator = known.coordinator;
    let restarts = coordinator.map(|it| known.before.restarts + i64::from(it.restarts_n));
    let mut status = JobStatus {
        phase: Some(known.phase.name().to_owned()),
        observed_generation: job.metadata.generation,
        job_id: job.metadata.uid.clone(),
        epoch: coordinator
            .map(|it| signed(it.epoch.get()))
            .or(before.epoch),
        parallelism: parallelism(known, &before),
        selector: names.map(|names| names.selector_text()),
        task_managers: Some(known.pods.clone()),
        restarts: restarts.or(before.restarts).or(Some(0)),
        checkpoint: checkpoint::status(known, checkpoint_of(known, &before)),
        watermark: progress::watermark(known, before.watermark.as_ref()),
        lag: lag(known, before.lag.as_ref()),
        last_failure: last_failure(known, before.last_failure.as_ref()),
        conditions: conditions(job, known, &before),
        ..JobStatus::default()
    };
    keep_lived(&mut status, known.lived);
    status
}

/// What was said of checkpoints. Those of a life that was given up are in another folder.
fn checkpoint_of<'a>(known: &Known<'_>, before: &'a JobStatus) -> Option<&'a CheckpointStatus> {
    let incarnation = before.incarnation.unwrap_or_default();
    let is_same = incarnation == i64::from(known.lived.incarnation);
    before.checkpoint.as_ref().filter(|_| is_same)
}

/// Puts what must not be lost into a status.
pub fn keep_lived(status: &mut JobStatus, lived: &Lived) {
    status.incarnation = (lived.incarnation > 0).then(|| lived.incarnation.into());
    status.rolled_back = lived.refused.as_ref().map(|refused| RolledBack {
        generation: refused.generation,
        plan: refused.plan.clone(),
        reason: at_most(REASON_CHARS_MAX, &refused.reason),
    });
}

/// What a status says of a job whose record was lost.
#[must_use]
pub fn lived(status: Option<&JobStatus>) -> Lived {
    let Some(status) = status else {
        return Lived::default();
    };
    let number = |n: i64| u32::try_from(n).unwrap_or_default();
    let checkpoint = status.checkpoint.as_ref();
    Lived {
        incarnation: status.incarnation.map(number).unwrap_or_default(),
        // Of a checkpoint something is left in the store.
        ran: checkpoint.is_some_and(|it| it.last_completed.is_some()),
        refused: status.rolled_back.as_ref().map(|it| Refused {
            generation: it.generation,
            plan: it.plan.clone(),
            reason: it.reason.clone(),
        }),
    }
}

fn signed(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

/// Subtasks that run, for the scale subresource.
fn parallelism(known: &Known<'_>, before: &JobStatus) -> Option<i32> {
    if known.phase.is_at_rest() {
        return Some(0);
    }
    let running = known
        .coordinator
        .map(|it| i32::try_from(it.parallelism).unwrap_or(i32::MAX));
    running.or(before.parallelism).or(Some(0))
}

fn lag(known: &Known<'_>, before: Option<&LagStatus>) -> Option<LagStatus> {
    if known.phase.is_at_rest() {
        return None;
    }
    let now = known
        .coordinator
        .and_then(|it| progress::lag(it, known.now));
    // Without a coordinator the last word stands; with one that measures nothing there is none.
    now.or_else(|| before.filter(|_| known.coordinator.is_none()).cloned())
}

fn last_failure(known: &Known<'_>, before: Option<&LastFailure>) -> Option<LastFailure> {
    let Some(failure) = known.coordinator.and_then(|it| it.last_failure.as_ref()) else {
        return before.cloned(); // none that this coordinator saw
    };
    Some(LastFailure {
        time: checkpoint::time_of(failure.time_ms),
        task_manager: failure.task_manager.clone().unwrap_or_default(),
        reason: at_most(REASON_CHARS_MAX, &failure.reason),
    })
}

fn conditions(job: &StreamJob, known: &Known<'_>, before: &JobStatus) -> Vec<Condition> {
    let at = (job.metadata.generation, known.now);
    let kept = |kind: Kind| {
        let kept = before
            .conditions
            .iter()
            .find(|old| old.condition_type == kind.name());
        kept.map(|kept| Condition {
            observed_generation: job.metadata.generation,
            ..kept.clone()
        })
    };
    // An operator that has just started knows nothing of rows yet, and they flow all the same (F1).
    let unknown = known.coordinator.is_none() && Phase::of(Some(before)) == Some(known.phase);
    Kind::ALL
        .into_iter()
        .map(|kind| {
            let judged: (Reason, String) = match kind {
                Kind::Ready => ready(known),
                Kind::Progressing => progressing(known),
                Kind::Valid => valid(known),
                Kind::CheckpointFresh => checkpoint::fresh(known, checkpoint_of(known, before)),
                Kind::WatermarkAdvancing => progress::advancing(known),
                Kind::CaughtUp => progress::caught_up(known),
            };
            let says_more_later = !matches!(
                kind,
                Kind::Valid | Kind::Progressing | Kind::CheckpointFresh
            );
            match kept(kind).filter(|_| unknown && says_more_later && known.phase == Phase::Running)
            {
                Some(kept) => kept,
                None => judged.0.condition(judged.1, &before.conditions, at),
            }
        })
        .collect()
}

fn ready(known: &Known<'_>) -> (Reason, String) {
    let TaskManagerCount { desired, ready } = known.pods;
    let pods = format!("{ready} of {desired} task managers are ready");
    let reason = match known.phase {
        Phase::Running if ready < desired => return (reason::READY_SURVIVORS, pods),
        Phase::Running => return (reason::READY_RUNNING, pods),
        Phase::Pending => reason::READY_PENDING,
        Phase::Starting => reason::READY_STARTING,
        Phase::Recovering => reason::READY_RECOVERING,
        Phase::Suspending => reason::READY_SUSPENDING,
        Phase::Suspended => reason::READY_SUSPENDED,
        Phase::Upgrading => reason::READY_UPGRADING,
        Phase::Finished => reason::READY_FINISHED,
        Phase::Failed => reason::READY_FAILED,
    };
    (reason, doing(known, reason.meaning))
}

/// What the job is doing, in the words of whoever knows best.
fn doing(known: &Known<'_>, otherwise: &str) -> String {
    let waits_for = known.coordinator.and_then(|it| {
        let stop = it
            .stop_waits_for
            .as_ref()
            .map(|what| format!("the stop waits for {what}"));
        stop.or_else(|| {
            it.waits_for
                .as_ref()
                .map(|what| format!("waits for {what}"))
        })
    });
    let said = known.doing.map(str::to_owned).or(waits_for);
    let failed = known.coordinator.and_then(|it| it.last_failure.as_ref());
    let failed = failed.map(ToString::to_string);
    let failed = failed.filter(|_| known.phase == Phase::Recovering);
    said.or(failed).unwrap_or_else(|| otherwise.to_owned())
}

fn progressing(known: &Known<'_>) -> (Reason, String) {
    if let Some((trouble, message)) = known.trouble {
        let reason = match trouble {
            Trouble::SecretMissing => reason::PROGRESSING_SECRET_MISSING,
            Trouble::StoreUnreachable => reason::PROGRESSING_STORE_UNREACHABLE,
            Trouble::SavepointMissing => reason::PROGRESSING_SAVEPOINT_MISSING,
            Trouble::PodsStuck => reason::PROGRESSING_PODS_STUCK,
            Trouble::OutOfMemory => reason::PROGRESSING_OUT_OF_MEMORY,
            Trouble::NotAllowed => reason::PROGRESSING_NOT_ALLOWED,
            Trouble::SavepointFails => reason::PROGRESSING_SAVEPOINT_FAILS,
            Trouble::RecordUnreadable => reason::PROGRESSING_RECORD_UNREADABLE,
        };
        return (reason, message.to_owned());
    }
    let hand_over = known.coordinator.and_then(|it| it.hand_over.clone());
    let reason = match known.phase {
        _ if known.paused => reason::PROGRESSING_PAUSED,
        Phase::Failed => reason::PROGRESSING_FAILED,
        Phase::Pending | Phase::Starting => reason::PROGRESSING_STARTING,
        Phase::Recovering => reason::PROGRESSING_RECOVERING,
        Phase::Suspending => reason::PROGRESSING_SUSPENDING,
        Phase::Upgrading => reason::PROGRESSING_UPGRADING,
        Phase::Suspended | Phase::Finished => reason::PROGRESSING_SETTLED,
        Phase::Running => match hand_over {
            Some(hand_over) => return (reason::PROGRESSING_SCALING, hand_over),
            None => return running(known),
        },
    };
    (reason, doing(known, reason.meaning))
}

/// Rows flow, and perhaps something is still to be done.
fn running(known: &Known<'_>) -> (Reason, String) {
    let TaskManagerCount { desired, ready } = known.pods;
    let scales = known
        .coordinator
        .filter(|it| it.wanted != it.parallelism && it.wanted > 0);
    if let Some(Status {
        parallelism,
        wanted,
        ..
    }) = scales
    {
        let message = format!("{parallelism} subtasks run, {wanted} are wanted");
        return (reason::PROGRESSING_SCALING, message);
    }
    if known.replaces_pods || ready < desired {
        let message = format!("{ready} of {desired} task managers are ready");
        return (reason::PROGRESSING_REPLACING_PODS, message);
    }
    (
        reason::PROGRESSING_SETTLED,
        reason::PROGRESSING_SETTLED.meaning.to_owned(),
    )
}

/// Problems that a message shows; the rest is counted.
const PROBLEMS_MAX: usize = 10;

fn valid(known: &Known<'_>) -> (Reason, String) {
    let Some((refusal, problems)) = known.refused else {
        return (reason::VALID, reason::VALID.meaning.to_owned());
    };
    let reason = match refusal {
        Refusal::Invalid => reason::VALID_INVALID_SPEC,
        Refusal::DropsState => reason::VALID_STATE_WOULD_BE_DROPPED,
        Refusal::RolledBack => reason::VALID_ROLLED_BACK,
    };
    (reason, listed(problems))
}

/// Problems one after the other.
#[must_use]
pub fn listed(problems: &[Problem]) -> String {
    let shown = problems.iter().take(PROBLEMS_MAX).map(Problem::to_string);
    let mut shown: Vec<String> = shown.collect();
    let more = problems.len().saturating_sub(PROBLEMS_MAX);
    if more > 0 {
        shown.push(format!("and {more} more"));
    }
    shown.join("; ")
}

/// What goes on of itself is written at most so often: of a thousand jobs that run, that is two hundred
/// writes a second at the very most, spread by their ids.
pub const WRITE_EVERY: Duration = Duration::from_secs(5);

/// Whether a status is worth a write: at once when a person or a program would act on the difference,
/// after [`WRITE_EVERY`] when something went on, never when only time did.
#[must_use]
pub fn is_worth_writing(
    old: Option<&JobStatus>,
    new: &JobStatus,
    since_last_write: Duration,
) -> bool {
    let Some(old) = old else { return true };
    if urgent(old) != urgent(new) {
        return true;
    }
    timeless(old) != timeless(new) && since_last_write >= WRITE_EVERY
}

/// What somebody may wait for.
fn urgent(status: &JobStatus) -> JobStatus {
    let conditions = status.conditions.iter().map(|condition| Condition {
        message: String::new(),
        last_transition_time: String::new(),
        ..condition.clone()
    });
    JobStatus {
        conditions: conditions.collect(),
        checkpoint: None,
        watermark: None,
        lag: None,
        ..status.clone()
    }
}

/// The same without what changes because time passes.
fn timeless(status: &JobStatus) -> JobStatus {
    let mut status = status.clone();
    for condition in &mut status.conditions {
        condition.message = without_digits(&condition.message);
        condition.last_transition_time.clear();
    }
    if let Some(held_back_by) = status
        .watermark
        .as_mut()
        .and_then(|it| it.held_back_by.as_mut())
    {
        *held_back_by = without_digits(held_back_by);
    }
    if let Some(lag) = &mut status.lag {
        lag.seconds = 0;
    }
    status
}

/// "idle in 22s" and "idle in 21s" say the same.
fn without_digits(text: &str) -> String {
    text.chars().filter(|c| !c.is_ascii_digit()).collect()
}

#[cfg(test)]
mod tests;
