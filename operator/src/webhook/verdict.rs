//! Whether a resource may be written, and what it would do.
//!
//! Owns: which mistakes are refused. An edit answers for what it touches: of a job that is wrong already
//! only new mistakes are refused, so that it can be mended step by step, labelled, and deleted. Pure.
//! Start at: [`of_job`].

use serde_json::Value;
use streamforge_crds::v1alpha1::{Savepoint, StreamJob};

use super::review::Request;
use crate::settings::Settings;
use crate::stream_job::effect::{self, Edit};
use crate::stream_job::judge::{Judged, judge};
use crate::stream_job::keep::Kept;
use crate::stream_job::pass::{ACCEPT_LOST_MARKER, PAUSE, REWIND_TO};
use crate::stream_job::validate::{Problem, RESTART_ANNOTATION};

/// Annotations that ask the operator for something.
const ANNOTATIONS: [&str; 4] = [RESTART_ANNOTATION, REWIND_TO, ACCEPT_LOST_MARKER, PAUSE];

/// Warnings that an answer holds; the API server cuts all of them at 4 KiB.
const WARNINGS_MAX: usize = 8;

/// An answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// Why it is refused; none: it is not.
    pub problems: Vec<Problem>,
    /// What whoever writes it should know, one sentence each.
    pub warnings: Vec<String>,
}

impl Verdict {
    /// One word, for metrics.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match (self.problems.is_empty(), self.warnings.is_empty()) {
            (false, _) => "denied",
            (true, false) => "warned",
            (true, true) => "allowed",
        }
    }
}

/// Whether anything is asked that a pass would look at. Status, finalizers, labels, an object that is
/// being deleted: all of these pass unseen.
#[must_use]
pub fn is_worth_judging(request: &Request) -> bool {
    let spec = |object: &Value| object.get("spec").cloned();
    let asks = |object: &Value| {
        let annotations = object.pointer("/metadata/annotations");
        ANNOTATIONS.map(|name| annotations.and_then(|all| all.get(name)).cloned())
    };
    let (new, old) = (&request.object, &request.old_object);
    request.is_of_document()
        && (request.is_creation() || spec(new) != spec(old) || asks(new) != asks(old))
}

/// Judges a StreamJob. `kept` is what is on record of it.
#[must_use]
pub fn of_job(request: &Request, kept: Option<&Kept>, settings: &Settings) -> Verdict {
    let new = match read(&request.object) {
        Ok(new) => new,
        Err(problem) => {
            let is_known = read(&request.old_object).err().as_ref() == Some(&problem);
            return refuse_new(vec![problem], is_known);
        }
    };
    let record = kept.and_then(|kept| kept.record.as_ref());
    let pods = kept.and_then(|kept| kept.pods.as_ref());
    let judged = judge(&new, record, pods, settings);
    let effects = record.map(|record| {
        effect::effects(&Edit {
            job: &new,
            judged: &judged,
            record,
            kept: pods,
            settings,
        })
    });
    let mut verdict = match &judged.desired {
        Ok(_) => Verdict::default(),
        Err((_, problems)) => {
            let old = read(&request.old_object).ok();
            let old = old.map(|old| judge(&old, record, pods, settings));
            refuse_new(
                problems.clone(),
                !is_made_worse(request, problems, old.as_ref()),
            )
        }
    };
    verdict.warnings.extend(effects.into_iter().flatten());
    verdict.warnings.truncate(WARNINGS_MAX);
    verdict
}

/// All that is wrong is told, refused or not.
fn refuse_new(problems: Vec<Problem>, is_known: bool) -> Verdict {
    if is_known {
        let told = problems
            .iter()
            .map(|problem| format!("still wrong: {problem}"));
        return Verdict {
            warnings: told.collect(),
            problems: Vec::new(),
        };
    }
    Verdict {
        problems,
        warnings: Vec::new(),
    }
}

/// Whether one of these mistakes was made by this edit. The planner may not see a second mistake before
/// the first is mended: of a document that was wrong, one counts only where the edit touched it.
fn is_made_worse(request: &Request, problems: &[Problem], old: Option<&Judged>) -> bool {
    let Some(old) = old else {
        return true;
    };
    let Err((_, known)) = &old.desired else {
        return true;
    };
    let touches = |problem: &Problem| {
        at(&request.object, &problem.path) != at(&request.old_object, &problem.path)
    };
    problems
        .iter()
        .any(|problem| !known.contains(problem) && touches(problem))
}

/// The value at a path like `spec.sources[0].name`.
fn at<'a>(object: &'a Value, path: &str) -> Option<&'a Value> {
    let steps = path.split(['.', '[', ']']).filter(|step| !step.is_empty());
    let mut value = object;
    for step in steps {
        value = match value {
            Value::Array(items) => items.get(step.parse::<usize>().ok()?)?,
            other => other.get(step)?,
        };
    }
    Some(value)
}

fn read(object: &Value) -> Result<StreamJob, Problem> {
    serde_json::from_value(object.clone()).map_err(|error| Problem {
        path: "spec".to_owned(),
        message: error.to_string(),
        cure: None,
    })
}

/// Judges a Savepoint.
#[must_use]
pub fn of_savepoint(savepoint: &Savepoint) -> Verdict {
    Verdict {
        problems: crate::savepoint::problem(savepoint).into_iter().collect(),
        warnings: Vec::new(),
    }
}

#[cfg(test)]
mod tests;
