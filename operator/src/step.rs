//! The next step of a job's life.
//!
//! Owns: the decision, from what is wanted, what is on record and what the coordinator does. One step
//! at a time: each is small enough to be lost with the operator and decided again. Pure: no clock, no
//! client. Start at: [`next`].
//!
//! A change that needs the state goes: stop with a savepoint, then write the record with the new
//! document, then start. Whoever comes in between finds either the old record, and stops again, or
//! the new one, and starts.

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use crate::record::{Previous, Record, Refused, State};

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
    /// How it differs from the one on record.
    pub edit: Edit,
    /// It is not to run.
    pub suspend: bool,
    /// An upgrade that is not healthy after this is rolled back.
    pub rollback_after: SignedDuration,
    /// The annotation `streamforge.io/restart`.
    pub restart: Option<String>,
    /// The annotation `streamforge.io/rewind-to`.
    pub rewind_to: Option<String>,
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
        /// The job has read something: there is a checkpoint.
        has_state: bool,
    },
    /// The job cannot go on.
    Failed(String),
    /// Something around it: the store, or another coordinator. It is started again.
    Broken(String),
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
        State::Suspended => suspended(wanted, record, run),
        State::Finished { .. } => ended_for_good(run),
        State::Failed { .. } => failed(wanted, record, run),
    }
}

fn begin(wanted: Option<&Wanted>) -> Step {
    let Some(wanted) = wanted else {
        return Step::Wait;
    };
    let mut record = Record::new(&wanted.uid, wanted.document.clone(), wanted.generation);
    record.done.restart.clone_from(&wanted.restart);
    // What was asked of an earlier life is not done again.
    record.done.rewind_to.clone_from(&wanted.rewind_to);
    if wanted.suspend {
        record.state = State::Suspended;
    }
    Step::Write(record)
}

fn active(now: Timestamp, wanted: Option<&Wanted>, record: &Record, run: &Run) -> Step {
    match run {
        Run::None => Step::Start,
        Run::Ended {
            is_current: false, ..
        } => Step::Start,
        Run::Ended { how, .. } => over(now, wanted, record, how),
        Run::Alive(alive) => alive_step(now, wanted, record, alive),
    }
}

/// The coordinator has ended.
fn over(now: Timestamp, wanted: Option<&Wanted>, record: &Record, ended: &Ended) -> Step {
    match ended {
        Ended::Finished => Step::Write(Record {
            state: State::Finished { at: now },
            previous: None,
            ..record.clone()
        }),
        Ended::Stopped { .. } => match wanted {
            Some(wanted) if wanted.suspend => Step::Write(Record {
                state: State::Suspended,
                previous: None,
                ..record.clone()
            }),
            Some(wanted) if is_wanted(wanted, record) && wanted.edit.upgrade => {
                Step::Write(upgraded(now, wanted, record))
            }
            // Nobody wants it stopped any more.
            _ => Step::Start,
        },
        Ended::Failed(reason) => match &record.previous {
            Some(previous) => Step::Write(rolled_back(record, previous, reason)),
            None => Step::Write(Record {
                state: State::Failed {
                    at: now,
                    reason: reason.clone(),
                },
                ..record.clone()
            }),
        },
        Ended::Broken(reason) => broken(now, wanted, record, reason),
    }
}

/// It could not be started, or something around it ended it. What cannot be started with this document
/// may be with another one.
fn broken(now: Timestamp, wanted: Option<&Wanted>, record: &Record, reason: &str) -> Step {
    match (wanted, &record.previous) {
        (Some(wanted), _) if wanted.suspend => Step::Write(Record {
            state: State::Suspended,
            ..record.clone()
        }),
        (Some(wanted), _)
            if is_wanted(wanted, record) && wanted.generation != record.generation =>
        {
            if wanted.edit.upgrade && record.ran {
                return Step::Write(upgraded(now, wanted, record));
            }
            Step::Write(taken(wanted, record))
        }
        (Some(wanted), Some(previous))
            if now.duration_since(previous.since) > wanted.rollback_after =>
        {
            Step::Write(rolled_back(record, previous, reason))
        }
        _ => Step::Start,
    }
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
        let limit = wanted.map(|wanted| wanted.rollback_after);
        let is_late = limit.is_some_and(|limit| {
            now.duration_since(previous.since) > limit && alive.age > limit.min(PATIENCE)
        });
        // An interval that is longer than the limit is no illness.
        if is_late && alive.is_running {
            return Step::Write(Record {
                previous: None,
                ..record.clone()
            });
        }
        if is_late {
            let reason = "it was not healthy in time (upgrade.rollbackAfter)";
            return Step::Write(rolled_back(record, previous, reason));
        }
    }
    let Some(wanted) = wanted else {
        return Step::Wait;
    };
    if wanted.suspend {
        return stop("suspend", wanted, alive);
    }
    if wanted.rewind_to != record.done.rewind_to {
        let mut record = record.clone();
        record.done.rewind_to.clone_from(&wanted.rewind_to);
        record.rewind.clone_from(&wanted.rewind_to);
        return Step::Write(record);
    }
    if wanted.restart != record.done.restart {
        let mut record = record.clone();
        record.done.restart.clone_from(&wanted.restart);
        return Step::Write(record);
    }
    if !is_wanted(wanted, record) {
        return Step::Wait;
    }
    edit(now, wanted, record, alive)
}

fn edit(now: Timestamp, wanted: &Wanted, record: &Record, alive: &Alive) -> Step {
    let Edit {
        upgrade,
        parallelism,
        ..
    } = wanted.edit;
    if upgrade {
        if alive.is_running {
            return stop("upgrade", wanted, alive);
        }
        // What does not run cannot be stopped with a savepoint: the newest checkpoint is what there is.
        return Step::Write(upgraded(now, wanted, record));
    }
    if let Some(parallelism) = parallelism
        && alive.wanted != parallelism
    {
        return Step::Scale(parallelism);
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
        refused: None,
        ..record.clone()
    }
}

/// Whether this document is to be tried: one that was rolled back is not, until it is edited.
fn is_wanted(wanted: &Wanted, record: &Record) -> bool {
    let refused = record.refused.as_ref();
    refused.is_none_or(|refused| refused.generation != wanted.generation)
}

fn upgraded(now: Timestamp, wanted: &Wanted, record: &Record) -> Record {
    let previous = Previous {
        document: record.document.clone(),
        generation: record.generation,
        since: now,
    };
    let stateless = wanted.edit.stateless;
    Record {
        document: wanted.document.clone(),
        generation: wanted.generation,
        // Without its state there is nothing to go back to.
        previous: (!stateless).then_some(previous),
        refused: None,
        incarnation: record.incarnation + u32::from(stateless),
        ran: record.ran && !stateless,
        ..record.clone()
    }
}

fn rolled_back(record: &Record, previous: &Previous, reason: &str) -> Record {
    Record {
        document: previous.document.clone(),
        generation: previous.generation,
        previous: None,
        refused: Some(Refused {
            generation: record.generation,
            reason: reason.to_owned(),
        }),
        ..record.clone()
    }
}

fn suspended(wanted: Option<&Wanted>, record: &Record, run: &Run) -> Step {
    if !matches!(run, Run::None) {
        return Step::Abandon;
    }
    match wanted {
        // What was edited meanwhile is taken as it is: nothing runs that could be rolled back to.
        Some(wanted) if !wanted.suspend => Step::Write(Record {
            state: State::Active,
            document: wanted.document.clone(),
            generation: wanted.generation,
            incarnation: record.incarnation + u32::from(wanted.edit.stateless),
            ..record.clone()
        }),
        _ => Step::Wait,
    }
}

fn failed(wanted: Option<&Wanted>, record: &Record, run: &Run) -> Step {
    if !matches!(run, Run::None) {
        return Step::Abandon;
    }
    let Some(wanted) = wanted else {
        return Step::Wait;
    };
    let asked = wanted.restart != record.done.restart;
    if wanted.suspend && wanted.generation != record.generation {
        return Step::Write(Record {
            state: State::Suspended,
            ..record.clone()
        });
    }
    let is_edited = wanted.generation != record.generation && is_wanted(wanted, record);
    if asked || is_edited {
        let mut again = Record {
            state: State::Active,
            document: wanted.document.clone(),
            generation: wanted.generation,
            refused: None,
            incarnation: record.incarnation + u32::from(wanted.edit.stateless),
            ..record.clone()
        };
        again.done.restart.clone_from(&wanted.restart);
        return Step::Write(again);
    }
    Step::Wait
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
    let name = || format!("{why}-{}-{}", wanted.generation, alive.generation);
    Step::Stop {
        savepoint: alive.is_running.then(name),
    }
}

#[cfg(test)]
mod tests;
