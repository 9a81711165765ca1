//! The next step of a job's life.
//!
//! Owns: the decision, from what is wanted, what is on record and what the coordinator does. One step
//! at a time: each is small enough to be lost with the operator and decided again. Pure: no clock, no
//! client. Start at: [`next`].
//!
//! A change that needs the state goes: stop with a savepoint, then write the record with the new
//! document, then start. Whoever comes in between finds either the old record, and stops again, or
//! the new one, and starts.

mod rest;
mod unsaved;

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use crate::record::{Lived, Previous, Record, Refused, State, Used};
use unsaved::{STOPS_MAX, is_looking, is_unsaved};
pub use unsaved::{Without, without_savepoint};

/// How long a coordinator has to find its task managers before it is judged.
const PATIENCE: SignedDuration = SignedDuration::from_secs(60);

/// What a person wants.
#[derive(Clone, Debug, PartialEq)]
pub struct Wanted {
    /// The resource's.
    pub uid: String,
    /// The resource's.
    pub generation: i64,
    /// The document, which is valid.
    pub document: Value,
    /// Hash of its plan.
    pub plan: String,
    /// Its parallelism.
    pub parallelism: u32,
    /// How it differs from the one on record.
    pub edit: Edit,
    /// What is on record is no document that this operator can run.
    pub mends: bool,
    /// It is not to run.
    pub suspend: bool,
    /// An upgrade that has completed no checkpoint after this is rolled back.
    pub healthy_within: SignedDuration,
    /// The annotation `streamforge.io/restart`.
    pub restart: Option<String>,
    /// The annotation `streamforge.io/rewind-to`.
    pub rewind_to: Option<String>,
    /// The annotation `streamforge.io/accept-lost-marker`.
    pub accept_lost_marker: Option<String>,
    /// What is known of the job if there is no record.
    pub lived: Lived,
}

/// How one document differs from another, by what it takes to go from one to the other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Edit {
    /// Another plan: stop, and start with the state.
    pub upgrade: bool,
    /// The upgrade begins without the state.
    pub stateless: bool,
    /// Another parallelism.
    pub parallelism: Option<u32>,
    /// Pods, policies, or what concerns neither.
    pub rest: bool,
}

impl Edit {
    fn is_none(&self) -> bool {
        *self == Self::default()
    }
}

/// What the coordinator does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Run {
    /// There is none.
    None,
    /// It works.
    Alive(Alive),
    /// It has ended.
    Ended {
        /// How.
        how: Ended,
        /// It was started with what is on record.
        is_current: bool,
        /// For how long this operator has tried to run it, without rows that flowed.
        tried: SignedDuration,
        /// Stops in a row, this one included, that came to nothing.
        stops_failed_n: u32,
    },
}

/// A coordinator that works.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Alive {
    /// It was started with what is on record.
    pub is_current: bool,
    /// Rows flow.
    pub is_running: bool,
    /// It was told to stop, or is at its end: that is waited for.
    pub is_stopping: bool,
    /// Its last stop came to nothing a moment ago: it runs on before another one is tried.
    pub stop_failed: bool,
    /// Since it was started.
    pub age: SignedDuration,
    /// What its savepoints are called after: another coordinator's have other names.
    pub generation: u64,
    /// Subtasks that it wants.
    pub wanted: u32,
    /// Ordinary checkpoints that it completed.
    pub completed_n: u64,
}

/// How a coordinator ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended {
    /// All is read and published.
    Finished,
    /// By an order.
    Stopped {
        /// The savepoint that was ordered with it is not there.
        failed: Option<Unsaved>,
    },
    /// The checkpoint to go back to is not there; nothing was changed.
    NotRetained(String),
    /// The job cannot go on.
    Failed(String),
    /// Something around it: the store, or another coordinator. It is started again.
    Broken(String),
}

/// A stop without the savepoint that was ordered with it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unsaved {
    /// Why.
    pub reason: String,
    /// The newest checkpoint; `None`: no row was ever read.
    pub checkpoint: Option<u64>,
    /// Staged intervals that the next start publishes.
    pub unpublished_n: usize,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Write this record.
    Write(Record),
    /// Start a coordinator with what is on record.
    Start,
    /// End the coordinator and tell nobody: tasks go on for the next one.
    Abandon,
    /// Order a stop, with a savepoint of this name if the job runs.
    Stop {
        /// The savepoint.
        savepoint: Option<String>,
    },
    /// Order another parallelism.
    Scale(u32),
    /// Nothing.
    Wait,
}

/// Decides. `wanted` is `None` while the document is not valid: then what is on record goes on.
#[must_use]
pub fn next(now: Timestamp, wanted: Option<&Wanted>, record: Option<&Record>, run: &Run) -> Step {
    let Some(record) = record else {
        return begin(wanted);
    };
    match &record.state {
        State::Active => active(now, wanted, record, run),
        State::Suspended => rest::suspended(wanted, record, run),
        State::Finished { .. } => ended_for_good(run),
        State::Failed { .. } => rest::failed(wanted, record, run),
    }
}

fn begin(wanted: Option<&Wanted>) -> Step {
    let Some(wanted) = wanted else {
        return Step::Wait;
    };
    let lived = &wanted.lived;
    if lived
        .refused
        .as_ref()
        .is_some_and(|it| it.plan == wanted.plan)
    {
        // What ran instead was lost with the record: somebody has to say what is to run.
        return Step::Wait;
    }
    let mut record = Record {
        plan: wanted.plan.clone(),
        incarnation: lived.incarnation,
        ran: lived.ran,
        ..Record::new(&wanted.uid, wanted.document.clone(), wanted.generation)
    };
    // What was asked of an earlier life is not done again.
    record.done.rewind_to.clone_from(&wanted.rewind_to);
    record = answered(wanted, record);
    if wanted.suspend {
        record.state = State::Suspended;
    }
    Step::Write(record)
}

fn active(now: Timestamp, wanted: Option<&Wanted>, record: &Record, run: &Run) -> Step {
    match run {
        Run::None => start(wanted, record),
        Run::Ended {
            is_current: false, ..
        } => start(wanted, record),
        Run::Ended {
            how,
            stops_failed_n,
            ..
        } if *stops_failed_n < STOPS_MAX && is_unsaved(wanted, record, how) => {
            start(wanted, record)
        }
        Run::Ended { how, tried, .. } => over(now, wanted, record, (how, *tried)),
        Run::Alive(alive) => alive_step(now, wanted, record, alive),
    }
}

/// What is on record is started; if it is nothing that can be, what is wanted comes in its place.
fn start(wanted: Option<&Wanted>, record: &Record) -> Step {
    match wanted {
        Some(wanted) if wanted.mends && is_wanted(wanted, record) => {
            let begun = begun(wanted, record);
            Step::Write(if wanted.suspend {
                at_rest(&begun)
            } else {
                begun
            })
        }
        _ => Step::Start,
    }
}

/// The coordinator has ended.
fn over(
    now: Timestamp,
    wanted: Option<&Wanted>,
    record: &Record,
    (ended, tried): (&Ended, SignedDuration),
) -> Step {
    match ended {
        Ended::Finished => Step::Write(Record {
            state: State::Finished { at: now },
            previous: None,
            ..record.clone()
        }),
        Ended::Stopped { .. } => match wanted {
            Some(wanted) if wanted.suspend => Step::Write(at_rest(record)),
            Some(wanted) if is_wanted(wanted, record) && wanted.edit.upgrade => {
                Step::Write(upgraded(now, wanted, record))
            }
            // Nobody wants it stopped any more.
            _ => start(wanted, record),
        },
        Ended::NotRetained(_) if record.rewind.is_some() => Step::Write(Record {
            rewind: None,
            before_rewind: None,
            ..record.clone()
        }),
        Ended::NotRetained(_) => start(wanted, record),
        Ended::Failed(reason) => match &record.previous {
            Some(previous) => Step::Write(rolled_back(record, previous, reason)),
            None => Step::Write(Record {
                state: State::Failed {
                    at: now,
                    reason: reason.clone(),
                },
                // It had been started with that.
                ..wanted.map_or(record.clone(), |it| accepted(it, record.clone()))
            }),
        },
        Ended::Broken(reason) => broken(now, wanted, record, (reason, tried)),
    }
}

/// It could not be started, or something around it ended it. What cannot be started with this document
/// may be with another one.
fn broken(
    now: Timestamp,
    wanted: Option<&Wanted>,
    record: &Record,
    (reason, tried): (&str, SignedDuration),
) -> Step {
    match (wanted, &record.previous) {
        (Some(wanted), _) if wanted.suspend => Step::Write(at_rest(record)),
        (Some(wanted), _)
            if is_wanted(wanted, record) && wanted.generation != record.generation =>
        {
            if wanted.edit.upgrade && record.ran {
                return Step::Write(upgraded(now, wanted, record));
            }
            Step::Write(taken(wanted, record))
        }
        (Some(wanted), Some(previous)) if is_late(now, wanted, previous, tried) => {
            Step::Write(rolled_back(record, previous, reason))
        }
        _ => start(wanted, record),
    }
}

/// Whether an upgrade had its time, and this operator has tried for long enough: nobody may have for hours.
fn is_late(now: Timestamp, wanted: &Wanted, previous: &Previous, tried: SignedDuration) -> bool {
    let limit = wanted.healthy_within;
    now.duration_since(previous.since) > limit && tried > limit.min(PATIENCE)
}

fn alive_step(now: Timestamp, wanted: Option<&Wanted>, record: &Record, alive: &Alive) -> Step {
    if !alive.is_current {
        return Step::Abandon;
    }
    if alive.is_stopping {
        return Step::Wait;
    }
    if alive.is_running && !record.ran {
        return Step::Write(Record {
            ran: true,
            ..record.clone()
        });
    }
    if record.rewind.is_some() && alive.is_running {
        return Step::Write(Record {
            rewind: None,
            before_rewind: None,
            ..record.clone()
        });
    }
    if let Some(previous) = &record.previous {
        if alive.is_running && alive.completed_n > 0 {
            return Step::Write(Record {
                previous: None,
                ..record.clone()
            });
        }
        if wanted.is_some_and(|wanted| is_late(now, wanted, previous, alive.age)) {
            let reason = "it was not healthy in time (upgrade.rollbackAfter)";
            return Step::Write(rolled_back(record, previous, reason));
        }
    }
    let Some(wanted) = wanted else {
        return Step::Wait;
    };
    if is_to_stop(Some(wanted), Some(record)) && is_looking(wanted, record, alive) {
        return Step::Wait;
    }
    if wanted.suspend {
        return stop("suspend", wanted, alive);
    }
    if wanted.rewind_to != record.done.rewind_to {
        return Step::Write(rewound(wanted, record));
    }
    if !is_answered(wanted, record) {
        return Step::Write(answered(wanted, record.clone()));
    }
    if !is_wanted(wanted, record) {
        return scale_alone(wanted, record, alive);
    }
    edit(now, wanted, record, alive)
}

/// The document is not to be tried, but if it was edited since, then perhaps in how many subtasks there are to be.
fn scale_alone(wanted: &Wanted, record: &Record, alive: &Alive) -> Step {
    let refused = record.refused.as_ref().map(|refused| refused.generation);
    let on_record = record.document["parallelism"].as_u64();
    let on_record = on_record.and_then(|n| u32::try_from(n).ok());
    let parallelism = match on_record {
        Some(n) if refused == Some(wanted.generation) => n,
        _ => wanted.parallelism,
    };
    if alive.wanted != parallelism {
        return Step::Scale(parallelism);
    }
    if on_record == Some(parallelism) {
        return Step::Wait;
    }
    let mut record = record.clone();
    record.document["parallelism"] = parallelism.into();
    Step::Write(record)
}

fn edit(now: Timestamp, wanted: &Wanted, record: &Record, alive: &Alive) -> Step {
    if wanted.edit.upgrade {
        if alive.is_running || alive.stop_failed {
            return stop("upgrade", wanted, alive);
        }
        // What does not run cannot be stopped with a savepoint: the newest checkpoint is what there is.
        return Step::Write(upgraded(now, wanted, record));
    }
    // What was ordered and taken back is on no record: the coordinator alone knows.
    if alive.wanted != wanted.parallelism {
        return Step::Scale(wanted.parallelism);
    }
    if wanted.generation != record.generation || !wanted.edit.is_none() {
        return Step::Write(taken(wanted, record));
    }
    Step::Wait
}

/// The document that is wanted, as it is.
fn taken(wanted: &Wanted, record: &Record) -> Record {
    Record {
        document: wanted.document.clone(),
        generation: wanted.generation,
        plan: wanted.plan.clone(),
        refused: None,
        ..record.clone()
    }
}

/// Whether the job is to be stopped, for good or for another document.
#[must_use]
pub fn is_to_stop(wanted: Option<&Wanted>, record: Option<&Record>) -> bool {
    let (Some(wanted), Some(record)) = (wanted, record) else {
        return false;
    };
    let upgrades = wanted.edit.upgrade && is_wanted(wanted, record);
    record.state == State::Active && (wanted.suspend || upgrades)
}

/// Whether this document is to be tried: one that was rolled back is not, until its plan is edited.
#[must_use]
pub fn is_wanted(wanted: &Wanted, record: &Record) -> bool {
    let refused = record.refused.as_ref();
    refused.is_none_or(|refused| refused.plan != wanted.plan)
}

fn upgraded(now: Timestamp, wanted: &Wanted, record: &Record) -> Record {
    // One that never proved itself is nothing to go back to: what it came after is.
    let proven = match &record.previous {
        Some(previous) => previous.clone(),
        None => Previous {
            document: record.document.clone(),
            generation: record.generation,
            plan: record.plan.clone(),
            since: now,
        },
    };
    let goes_back = proven.plan == wanted.plan;
    let previous = Previous {
        since: now,
        ..proven
    };
    Record {
        // Without its state there is nothing to go back to either.
        previous: (!wanted.edit.stateless && !goes_back).then_some(previous),
        ..begun(wanted, record)
    }
}

/// The document that is wanted comes in the place of what is on record, without looking back.
fn begun(wanted: &Wanted, record: &Record) -> Record {
    let again = Record {
        state: State::Active,
        previous: None,
        ..taken(wanted, record)
    };
    if !wanted.edit.stateless {
        return again;
    }
    Record {
        incarnation: record.incarnation + 1,
        ran: false,
        // What it could go back to is not in its new folder.
        rewind: None,
        before_rewind: None,
        ..again
    }
}

/// The next start goes back to the checkpoint that somebody wants to go back to, if that was not done.
fn rewound(wanted: &Wanted, record: &Record) -> Record {
    let mut record = record.clone();
    if wanted.rewind_to != record.done.rewind_to {
        record.done.rewind_to.clone_from(&wanted.rewind_to);
        record.rewind.clone_from(&wanted.rewind_to);
        record.before_rewind = None;
    }
    record
}

/// Stopped, and with nothing to be rolled back to.
fn at_rest(record: &Record) -> Record {
    Record {
        state: State::Suspended,
        previous: None,
        ..record.clone()
    }
}

fn rolled_back(record: &Record, previous: &Previous, reason: &str) -> Record {
    Record {
        document: previous.document.clone(),
        generation: previous.generation,
        plan: previous.plan.clone(),
        previous: None,
        refused: Some(Refused {
            generation: record.generation,
            plan: record.plan.clone(),
            reason: reason.to_owned(),
        }),
        ..record.clone()
    }
}

/// Whether the coordinator of now came after all that is asked of the next one.
fn is_answered(wanted: &Wanted, record: &Record) -> bool {
    let (done, accepting) = (&record.done, wanted.accept_lost_marker.as_deref());
    wanted.restart == done.restart && done.accept_lost_marker.is(accepting)
}

fn answered(wanted: &Wanted, mut record: Record) -> Record {
    record.done.restart.clone_from(&wanted.restart);
    accepted(wanted, record)
}

/// Lost markers are accepted as they stand.
fn accepted(wanted: &Wanted, mut record: Record) -> Record {
    record.done.accept_lost_marker = Used::Known(wanted.accept_lost_marker.clone());
    record
}

fn ended_for_good(run: &Run) -> Step {
    match run {
        Run::None => Step::Wait,
        Run::Alive(_) | Run::Ended { .. } => Step::Abandon,
    }
}

/// A stop. A savepoint is of one coordinator: one that an earlier coordinator made is older than what
/// is being stopped. What does not run has nothing to be saved that its newest checkpoint has not.
fn stop(why: &str, wanted: &Wanted, alive: &Alive) -> Step {
    if alive.stop_failed {
        return Step::Wait;
    }
    let name = || format!("{why}-{}-{}", wanted.generation, alive.generation);
    Step::Stop {
        savepoint: alive.is_running.then(name),
    }
}

#[cfg(test)]
mod tests;
