//! From a resource to what is to run.
//!
//! Owns: every mistake that a person can make. What is valid here can be built, and what is built the API
//! server takes. The document's own mistakes come from `streamforge-plan`, in the words of `streamforge
//! validate`; here is what only a cluster asks for. Pure. Start at: [`validate`].

mod nodes;
mod pod_template;
mod resources;
mod storage;
mod task_manager;

use std::collections::BTreeSet;
use std::fmt;

use kube::ResourceExt as _;
use streamforge_core::s3::S3Place;
use streamforge_core::secret_name::{SECRET_NAME_RULE, is_secret_name};
use streamforge_crds::v1alpha1::{RestoreFrom, StreamJob};

use super::document::Document;
use super::pass::REWIND_TO;
use crate::hash;
use crate::names::{Names, Uid};
use crate::one_line::one_line;
use crate::record::Record;
use crate::settings::Settings;

pub use pod_template::normal;
pub use task_manager::PodSettings;

/// Whoever changes the value of this annotation restarts the pods, one after the other.
pub const RESTART_ANNOTATION: &str = "streamforge.io/restart";

/// One mistake: where it is, what is wrong, what to write instead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The field, as in `spec.checkpoint.storage.uri`; empty for the document as a whole.
    pub path: String,
    /// What is wrong.
    pub message: String,
    /// What to write.
    pub cure: Option<String>,
}

impl Problem {
    /// A problem with its cure.
    pub fn new(path: &str, message: impl Into<String>, cure: impl Into<String>) -> Self {
        Self {
            path: path.to_owned(),
            message: message.into(),
            cure: Some(cure.into()),
        }
    }

    /// What is wrong and what to write, in one line.
    #[must_use]
    pub fn explained(&self) -> String {
        let message = one_line(&self.message);
        match &self.cure {
            Some(cure) => format!("{message} ({})", one_line(cure)),
            None => message.into_owned(),
        }
    }
}

impl From<streamforge_plan::Problem> for Problem {
    /// A resource has no lines.
    fn from(problem: streamforge_plan::Problem) -> Self {
        Self {
            path: problem.path,
            message: problem.message,
            cure: problem.hint,
        }
    }
}

impl fmt::Display for Problem {
    /// In one line: it may quote the document, which may say anything.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.path.is_empty() {
            write!(f, "{}: ", one_line(&self.path))?;
        }
        f.write_str(&self.explained())
    }
}

/// Which job it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// What tells it from one of the same name that was there before.
    pub uid: Uid,
    /// What its children are called.
    pub names: Names,
}

impl Identity {
    /// Reads it from a resource that the API server sent.
    ///
    /// # Errors
    /// When a part is missing, which the API server does not let happen, or cannot be.
    pub fn of(job: &StreamJob) -> Result<Self, Problem> {
        let metadata = &job.metadata;
        let missing =
            |path: &str| Problem::new(path, "it is missing", "the API server fills it in");
        let name = metadata
            .name
            .clone()
            .ok_or_else(|| missing("metadata.name"))?;
        let namespace = metadata.namespace.clone();
        let uid = metadata
            .uid
            .as_deref()
            .ok_or_else(|| missing("metadata.uid"))?;
        let wrong = |path: &'static str| {
            move |error: crate::names::BadName| Problem {
                path: path.to_owned(),
                message: error.to_string(),
                cure: None,
            }
        };
        Ok(Self {
            namespace: namespace.ok_or_else(|| missing("metadata.namespace"))?,
            uid: Uid::new(uid).map_err(wrong("metadata.uid"))?,
            names: Names::of(&name).map_err(wrong("metadata.name"))?,
            name,
        })
    }
}

/// What is to run: everything that building and running need to know.
#[derive(Clone, Debug, PartialEq)]
pub struct Desired {
    /// Which job.
    pub identity: Identity,
    /// What it does.
    pub document: Document,
    /// Where this job's checkpoints are: below the place of the document, by the job's uid, so that a job
    /// that is created anew finds none.
    pub store: S3Place,
    /// Where a job that has no state yet starts from.
    pub restore_from: Option<RestoreFrom>,
    /// What its pods are like.
    pub pods: PodSettings,
}

impl Desired {
    /// Subtasks per stage.
    #[must_use]
    pub fn parallelism(&self) -> u32 {
        self.document.spec.parallelism
    }

    /// Pods that have room for all subtasks.
    #[must_use]
    pub fn replicas(&self) -> i32 {
        let replicas = self.parallelism().div_ceil(self.pods.slots.max(1));
        i32::try_from(replicas).unwrap_or(i32::MAX)
    }

    /// The Secrets that the job names; they are mounted into its pods.
    #[must_use]
    pub fn secrets(&self) -> &BTreeSet<String> {
        &self.pods.secrets
    }

    /// The Secret with the credentials of the store; none: the operator's own identity.
    #[must_use]
    pub fn store_secret(&self) -> Option<&str> {
        self.store.access.credentials_secret.as_deref()
    }

    /// What the pods are made of: other pods are needed when it changes.
    #[must_use]
    pub fn pods_hash(&self) -> String {
        hash::of(&self.pods)
    }
}

/// Checks a resource.
///
/// # Errors
/// All that is wrong with it.
pub fn validate(job: &StreamJob, settings: &Settings) -> Result<Desired, Vec<Problem>> {
    let identity = Identity::of(job).map_err(|problem| vec![problem])?;
    let mut problems = Problems::default();
    let document = match Document::of(job) {
        Ok(document) => Some(document),
        Err(found) => {
            problems.0 = found;
            None
        }
    };
    let store = storage::check(job, &identity, settings, &mut problems);
    nodes::check(&job.spec, &mut problems);
    let secrets = secrets(&job.spec, &mut problems);
    let pods = task_manager::check(job, &identity, secrets, &mut problems);
    match (document, store, pods) {
        (Some(document), Some(store), Some(pods)) if problems.0.is_empty() => Ok(Desired {
            identity,
            document,
            store,
            restore_from: job.spec.restore_from.clone(),
            pods,
        }),
        _ => Err(problems.0),
    }
}

/// Checks what annotations ask for, unless it is done already: then an earlier operator took it.
///
/// # Errors
/// What is wrong with them.
pub fn check_annotations(job: &StreamJob, record: Option<&Record>) -> Result<(), Vec<Problem>> {
    let Some(id) = job.annotations().get(REWIND_TO) else {
        return Ok(());
    };
    let is_done = record.is_some_and(|record| record.done.rewind_to.as_ref() == Some(id));
    if is_done || id.parse::<u64>().is_ok() {
        return Ok(());
    }
    let message = format!("{REWIND_TO} is `{id}`, which is no id of a checkpoint");
    let cure = "write the number of a checkpoint or savepoint, or take the annotation away";
    Err(vec![Problem::new("metadata.annotations", message, cure)])
}

/// Collects problems.
#[derive(Debug, Default)]
pub(crate) struct Problems(Vec<Problem>);

impl Problems {
    /// Adds one, unless the field has one already: the second would say the same in other words.
    fn add(&mut self, problem: Problem) {
        if !self.0.iter().any(|known| known.path == problem.path) {
            self.0.push(problem);
        }
    }
}

/// The Secrets that a document names.
fn secrets(
    spec: &streamforge_crds::v1alpha1::StreamJobSpec,
    problems: &mut Problems,
) -> BTreeSet<String> {
    let named = nodes::secrets(spec);
    for (path, name) in &named {
        if !is_secret_name(name) {
            let path = format!("{path}.name");
            problems.add(Problem::new(
                &path,
                format!("`{name}` is no name of a secret"),
                SECRET_NAME_RULE,
            ));
        }
    }
    named.into_iter().map(|(_, name)| name).collect()
}

#[cfg(test)]
mod tests;
