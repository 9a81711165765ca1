//! Stops that have no savepoint.
//!
//! Owns: for how long a job that is to stop is brought back to make one, and when it goes without and that is told.

use k8s_openapi::jiff::SignedDuration;

use super::{Alive, Ended, Record, Run, State, Unsaved, Wanted, is_to_stop};

/// How long a new coordinator has to find tasks that run, before a stop goes without a savepoint.
const FINDS_WITHIN: SignedDuration = SignedDuration::from_secs(10);

/// After so many stops in a row without their savepoint the job goes without one: what keeps it from being made may be
/// what a person wants to mend. Its next start goes back to the newest checkpoint, as this one's would.
pub(super) const STOPS_MAX: u32 = 2;

/// Without its savepoint a stop is none at first, but for who does without the state. Nor is the end of a coordinator
/// for reasons around it: what it ran may run on, and the next one saves it.
pub(super) fn is_unsaved(wanted: Option<&Wanted>, record: &Record, ended: &Ended) -> bool {
    let has_run_on = match ended {
        Ended::Stopped { failed } => failed.is_some(),
        Ended::Broken(_) => record.ran && is_to_stop(wanted, Some(record)),
        _ => false,
    };
    has_run_on && !wanted.is_some_and(|it| it.edit.stateless)
}

/// Whether it may find tasks yet that run since before it: then it can stop them with a savepoint.
pub(super) fn is_looking(wanted: &Wanted, record: &Record, alive: &Alive) -> bool {
    record.ran && !alive.is_running && alive.age < FINDS_WITHIN && !wanted.edit.stateless
}

/// Why a job goes on, or is left, without a savepoint of what it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Without<'r> {
    /// It was stopped, and none was made.
    Stopped(&'r Unsaved),
    /// There was no coordinator to make one; why.
    Broken(&'r str),
}

/// A job that is stopped for good, or for another document that takes its state, though no savepoint was made; what is
/// told of it. `next` is what is written next.
#[must_use]
pub fn without_savepoint<'r>(run: &'r Run, record: &Record, next: &Record) -> Option<Without<'r>> {
    let Run::Ended { how, .. } = run else {
        return None;
    };
    let without = match how {
        Ended::Stopped { failed } => Without::Stopped(failed.as_ref()?),
        Ended::Broken(reason) if record.ran => Without::Broken(reason),
        _ => return None,
    };
    let is_rolled_back = next.refused.is_some() && next.refused != record.refused;
    let goes_over = next.state == State::Suspended || next.plan != record.plan;
    let has_state = next.incarnation == record.incarnation;
    (goes_over && has_state && !is_rolled_back).then_some(without)
}
