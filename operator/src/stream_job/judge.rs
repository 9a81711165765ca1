//! What a resource asks for, beside what is on record.
//!
//! Owns: whether an edit is taken, and what it would change. The webhook asks here with what the passes
//! use, [`of_record`], [`validate`], [`difference`] and [`refusal`], so that the two never disagree; but
//! passes ask the API server about pods, too, which is not done while it waits for an answer. Pure.
//! Start at: [`judge`].

use streamforge_crds::v1alpha1::{StreamJob, UpgradeMode};

use super::build::{Deployed, KeptPods};
use super::change::{Change, change};
use super::report::Refusal;
use super::validate::{Desired, Problem, check_annotations, validate};
use crate::record::Record;
use crate::settings::Settings;

/// What was found.
#[derive(Clone, Debug, PartialEq)]
pub struct Judged {
    /// What the resource wants, if it can be had.
    pub desired: Result<Desired, (Refusal, Vec<Problem>)>,
    /// What is on record, if something is, as this operator reads it.
    pub current: Option<Result<Desired, Vec<Problem>>>,
    /// What leads from the one to the other, where both can be read; told of an edit that is refused,
    /// too.
    pub change: Option<Change>,
}

/// Judges a resource. `kept` are the pods as they were built.
#[must_use]
pub fn judge(
    job: &StreamJob,
    record: Option<&Record>,
    kept: Option<&KeptPods>,
    settings: &Settings,
) -> Judged {
    let current =
        record.map(|record| of_record(job, record).and_then(|it| validate(&it, settings)));
    let desired = validate(job, settings);
    let asked = check_annotations(job, record);
    let desired = match desired.and_then(|desired| asked.map(|()| desired)) {
        Ok(desired) => desired,
        Err(problems) => {
            return Judged {
                desired: Err((Refusal::Invalid, problems)),
                current,
                change: None,
            };
        }
    };
    let found = match &current {
        Some(Ok(current)) => Some(difference(current, &desired, kept, settings)),
        _ => None,
    };
    let refused = found
        .as_ref()
        .map_or_else(Vec::new, |change| refusal(job, record, change));
    Judged {
        desired: if refused.is_empty() {
            Ok(desired)
        } else {
            Err((Refusal::DropsState, refused))
        },
        current,
        change: found,
    }
}

/// What is on record, as if the resource said so.
///
/// # Errors
/// When this operator does not understand it.
pub fn of_record(job: &StreamJob, record: &Record) -> Result<StreamJob, Vec<Problem>> {
    let spec = serde_json::from_value(record.document.clone())
        .map_err(|error| vec![Problem::new("", error.to_string(), "edit the job")])?;
    let mut job = job.clone();
    job.spec = spec;
    Ok(job)
}

/// What leads from what runs, with its pods as they were built, to what is wanted.
#[must_use]
pub fn difference(
    current: &Desired,
    desired: &Desired,
    kept: Option<&KeptPods>,
    settings: &Settings,
) -> Change {
    let deployed = Deployed {
        document: current.document.clone(),
        pods: kept.cloned(),
    };
    change(&deployed, desired, settings)
}

/// An edit that would lose state is no valid edit, unless it says so. Before a job has run there is none.
#[must_use]
pub fn refusal(job: &StreamJob, record: Option<&Record>, change: &Change) -> Vec<Problem> {
    let Change::Upgrade(upgrade) = change else {
        return Vec::new();
    };
    if !record.is_some_and(|record| record.ran) {
        return Vec::new();
    }
    let policy = job.spec.upgrade.clone().unwrap_or_default();
    let mut problems = upgrade.refusal(&policy);
    if upgrade.moves_store && policy.mode == UpgradeMode::Stateful {
        problems.push(Problem::new(
            "spec.checkpoint.storage",
            "the checkpoints of a job stay where they are",
            "take a Savepoint, and begin a new job with it (restoreFrom)",
        ));
    }
    problems
}
