//! `kind: Savepoint`: to create one is to take one.
//!
//! Owns: asking the job's coordinator, by a name that only this resource has, until the savepoint is
//! whole; and deleting its copy with the resource, if that is its policy. It outlives its job: what
//! must be known to delete it is kept in an annotation.

mod copy;

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::api::{Patch, PatchParams};
use kube::runtime::controller::Action;
use kube::runtime::reflector::{ObjectRef, Store};
use kube::{Resource as _, ResourceExt as _};
use serde_json::{Value, json};
use streamforge_core::s3::{S3Place, SCHEME};
use streamforge_core::savepoint;
use streamforge_core::units::ByteSize;
use streamforge_crds::v1alpha1::{DeletionPolicy, Savepoint, SavepointStatus, StreamJob};
use streamforge_host::{Ask, SavepointState};

use crate::apply::{self, Part, STATUS_MANAGER};
use crate::controller::Context;
use crate::events;
use crate::heard::Heard;
use crate::names::Names;
use crate::one_line::one_line;
use crate::record::Record;
use crate::stream_job::error::{Error, chain};
use crate::stream_job::pass::status::publish;
use crate::stream_job::report::{Phase, listed};
use crate::stream_job::validate::Problem;
use crate::stream_job::{conditions, coordinate, judge, keep, validate};

/// Where the copy is, with the way there.
const PLACE: &str = "streamforge.io/place";

/// The uid of the job whose state it is to be: another one of its name is another job.
const JOB: &str = "streamforge.io/job-uid";

/// How often one that is under way is looked at.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// How often one is looked at that waits for something else.
const LOOK_AGAIN_LATER: Duration = Duration::from_secs(10);

/// How often one is looked at that has waited for long: the watch of jobs tells of the job that it waits for.
const LOOK_AGAIN_SELDOM: Duration = Duration::from_secs(300);

/// How often one asks whose job has had no room for it for long.
const ASK_AGAIN_MAX: Duration = Duration::from_secs(60);

/// Letters of the resource's name in that of the copy: keys of a store must not get too long.
const NAME_LETTERS_MAX: usize = 30;

/// Letters of the uid that make the copy's name its own.
const UID_LETTERS: usize = 8;

/// One pass over one savepoint.
///
/// # Errors
/// When something around it does not work; it is tried again.
pub async fn reconcile(
    heard: Arc<Heard<Savepoint>>,
    context: Arc<Context>,
    jobs: Store<Heard<StreamJob>>,
) -> Result<Action, Error> {
    let resource = &heard.object;
    let pass = Pass {
        resource,
        context: &context,
        jobs: &jobs,
    };
    if resource.metadata.deletion_timestamp.is_some() {
        return pass.delete().await;
    }
    if let Some(unreadable) = &heard.unreadable {
        if unreadable.status || is_over(resource) {
            return Ok(Action::await_change());
        }
        let reason = listed(&unreadable.problems);
        return pass
            .report(in_phase("Pending", reason), LOOK_AGAIN_SELDOM)
            .await;
    }
    // The policy may be edited at any time, also of one that is whole.
    let deletes = resource.spec.deletion_policy == DeletionPolicy::Delete;
    if deletes != pass.has_finalizer() {
        pass.set_finalizer(deletes).await?;
        return Ok(Action::requeue(LOOK_AGAIN));
    }
    if is_over(resource) {
        return Ok(Action::await_change());
    }
    if let Some(problem) = problem(resource) {
        let status = in_phase("Failed", problem.to_string());
        return pass.report(status, LOOK_AGAIN_LATER).await;
    }
    pass.take().await
}

/// After a pass that failed.
pub fn again(resource: Arc<Heard<Savepoint>>, error: &Error, context: Arc<Context>) -> Action {
    let (namespace, name) = (
        resource.namespace().unwrap_or_default(),
        resource.name_any(),
    );
    let wait = context
        .failures
        .on_failed(&resource.uid().unwrap_or_default());
    tracing::warn!(
        namespace,
        name,
        wait_ms = wait.as_millis(),
        "pass over a savepoint failed: {}",
        chain(error)
    );
    Action::requeue(wait)
}

/// What is wrong with a savepoint whatever happens around it.
#[must_use]
pub fn problem(savepoint: &Savepoint) -> Option<Problem> {
    let job = Names::of(&savepoint.spec.job).err()?;
    let cure = "name a StreamJob of this namespace";
    Some(Problem::new("spec.job", job.to_string(), cure))
}

/// Said of one whose job is not there.
#[must_use]
pub fn no_job(name: &str) -> String {
    format!("there is no StreamJob {} in this namespace", one_line(name))
}

/// Whether it waits for this job.
#[must_use]
pub fn waits_for(savepoint: &Savepoint, job: &StreamJob) -> bool {
    savepoint.namespace() == job.namespace()
        && savepoint.spec.job == job.name_any()
        && !is_over(savepoint)
}

/// It is whole, or will never be.
fn is_over(savepoint: &Savepoint) -> bool {
    let status = savepoint.status.as_ref();
    let phase = status.and_then(|status| status.phase.as_deref());
    matches!(phase, Some("Completed" | "Failed"))
}

/// After how long one of this age is looked at again whose job is not there, or at rest.
fn look_again(age: SignedDuration) -> Duration {
    let age = Duration::try_from(age).unwrap_or_default();
    (age / 4).clamp(LOOK_AGAIN_LATER, LOOK_AGAIN_SELDOM)
}

/// After how long one of this age whose job has no room for it asks again.
fn ask_again(age: SignedDuration) -> Duration {
    let age = Duration::try_from(age).unwrap_or_default();
    (age / 4).clamp(LOOK_AGAIN, ASK_AGAIN_MAX)
}

/// What it waits for at first.
const WAITS: &str = "it waits for its checkpoint";

fn in_phase(phase: &str, reason: String) -> SavepointStatus {
    SavepointStatus {
        phase: Some(phase.to_owned()),
        reason: Some(reason),
        ..SavepointStatus::default()
    }
}

fn unreadable(job: &str) -> SavepointStatus {
    let reason = format!("what is kept of StreamJob {job} cannot be read");
    in_phase("Pending", reason)
}

struct Pass<'a> {
    resource: &'a Savepoint,
    context: &'a Arc<Context>,
    /// As they were heard of: a thousand savepoints that wait must not ask the API server each second.
    jobs: &'a Store<Heard<StreamJob>>,
}

impl Pass<'_> {
    fn uid(&self) -> String {
        self.resource.uid().unwrap_or_default()
    }

    fn namespace(&self) -> String {
        self.resource.namespace().unwrap_or_default()
    }

    async fn patch(&self, patch: &Patch<Value>) -> Result<(), kube::Error> {
        let (client, params) = (&self.context.client, PatchParams::default());
        apply::patch(client, self.resource, Part::Object, (&params, patch)).await
    }

    fn age(&self) -> SignedDuration {
        let made = self.resource.metadata.creation_timestamp.as_ref();
        made.map(|made| Timestamp::now().duration_since(made.0))
            .unwrap_or_default()
    }

    /// The job that it names.
    fn job(&self) -> Option<Arc<Heard<StreamJob>>> {
        let job = ObjectRef::new(&self.resource.spec.job).within(&self.namespace());
        self.jobs.get(&job)
    }

    /// The name of the copy: another resource of the same name is another copy.
    fn copy_name(&self) -> String {
        let uid: String = self.uid().chars().take(UID_LETTERS).collect();
        let name = self.resource.name_any().replace('.', "-");
        let name: String = name.chars().take(NAME_LETTERS_MAX).collect();
        format!("{}-{uid}", name.trim_end_matches('-'))
    }

    async fn take(&self) -> Result<Action, Error> {
        let name = &self.resource.spec.job;
        let job = self.job();
        // A uid never comes back.
        let begun = self.resource.annotations().get(JOB);
        if begun.is_some_and(|of| job.as_ref().and_then(|job| job.uid()).as_ref() != Some(of)) {
            return self.fail_without_job().await;
        }
        let Some(job) = job else {
            let status = in_phase("Pending", no_job(name));
            return self.report(status, look_again(self.age())).await;
        };
        let uid = job.uid().unwrap_or_default();
        let Some(coordinator) = self.context.fleet.get(&uid) else {
            let reason = format!("StreamJob {name} does not run");
            let rests = Phase::of(job.status.as_ref()).is_some_and(Phase::is_at_rest);
            let wait = if rests {
                look_again(self.age())
            } else {
                LOOK_AGAIN_LATER
            };
            return self.report(in_phase("Pending", reason), wait).await;
        };
        let copy = self.copy_name();
        let asked = coordinator
            .orders
            .ask(|answer| Ask::SavepointState(copy.clone(), answer));
        match asked.await {
            Ok(Some(state)) => self.on_state(&job, state).await,
            Ok(None) => {
                // First of all it is noted of which job it is, and where the copy will be: whoever deletes the
                // resource meanwhile deletes what there is of it.
                let Some(place) = self.place(&job).await? else {
                    return self.report(unreadable(name), LOOK_AGAIN_LATER).await;
                };
                self.keep_place(&job, &place).await?;
                let ordered = coordinator
                    .orders
                    .ask(|answer| Ask::Savepoint(copy, false, answer));
                let (reason, wait) = match ordered.await {
                    Ok(Ok(())) => (WAITS.to_owned(), LOOK_AGAIN),
                    Ok(Err(reason)) => (reason, ask_again(self.age())),
                    Err(over) => (over.to_string(), LOOK_AGAIN),
                };
                self.report(in_phase("Pending", reason), wait).await
            }
            Err(over) => {
                let status = in_phase("Pending", over.to_string());
                self.report(status, LOOK_AGAIN_LATER).await
            }
        }
    }

    async fn on_state(&self, job: &StreamJob, state: SavepointState) -> Result<Action, Error> {
        match state {
            SavepointState::Pending => {
                let status = in_phase("Pending", WAITS.to_owned());
                self.report(status, LOOK_AGAIN).await
            }
            SavepointState::InProgress => {
                let reason = "its checkpoint is published and copied".to_owned();
                self.report(in_phase("InProgress", reason), LOOK_AGAIN)
                    .await
            }
            SavepointState::Failed { reason } => {
                self.report(in_phase("Failed", reason), LOOK_AGAIN_LATER)
                    .await
            }
            SavepointState::Completed {
                id,
                bytes_n,
                time_ms,
                ..
            } => {
                let Some(place) = self.place(job).await? else {
                    return self
                        .report(unreadable(&job.name_any()), LOOK_AGAIN_LATER)
                        .await;
                };
                self.keep_place(job, &place).await?;
                let time = i64::try_from(time_ms).ok();
                let time = time.and_then(|ms| Timestamp::from_millisecond(ms).ok());
                let status = SavepointStatus {
                    phase: Some("Completed".to_owned()),
                    uri: Some(format!("{SCHEME}{}/{}", place.bucket, place.prefix)),
                    checkpoint_id: i64::try_from(id.get()).ok(),
                    size: Some(ByteSize::from_bytes(bytes_n).to_string()),
                    time: time.map(conditions::time),
                    reason: None,
                };
                self.report(status, LOOK_AGAIN_LATER).await
            }
        }
    }

    /// What is on record of the job: as the passes over it remember it, whose coordinator it is.
    async fn record(&self, job: &StreamJob) -> Result<Option<Record>, Error> {
        let uid = job.uid().unwrap_or_default();
        let remembered = self.context.memory(&uid).kept.unpacked();
        if remembered.record.is_some() {
            return Ok(remembered.record);
        }
        Ok(keep::read(&self.context.client, job).await?.record)
    }

    /// Where the copy is.
    async fn place(&self, job: &StreamJob) -> Result<Option<S3Place>, Error> {
        let Some(record) = self.record(job).await? else {
            return Ok(None);
        };
        let of_record = judge::of_record(job, &record);
        let desired = of_record.and_then(|job| validate::validate(&job, &self.context.settings));
        let Ok(desired) = desired else {
            return Ok(None);
        };
        let mut place = coordinate::place(&desired, &record);
        let folder = savepoint::folder(&self.copy_name());
        place.prefix = format!("{}/{}", place.prefix, folder.trim_end_matches('/'));
        Ok(Some(place))
    }

    async fn keep_place(&self, job: &StreamJob, place: &S3Place) -> Result<(), Error> {
        let place = serde_json::to_string(place).expect("a place has texts as keys");
        let uid = job.uid().unwrap_or_default();
        let noted = self.resource.annotations();
        if (noted.get(PLACE), noted.get(JOB)) == (Some(&place), Some(&uid)) {
            return Ok(());
        }
        let patch = json!({"metadata": {"annotations": {PLACE: place, JOB: uid}}});
        let patched = self.patch(&Patch::Merge(patch)).await;
        patched.map_err(|source| Error::Api {
            what: "annotate the Savepoint",
            source,
        })
    }

    async fn report(&self, status: SavepointStatus, wait: Duration) -> Result<Action, Error> {
        if self.resource.status.as_ref() == Some(&status) {
            return Ok(Action::requeue(wait));
        }
        let patch = json!({
            "apiVersion": Savepoint::api_version(&()), "kind": Savepoint::kind(&()),
            "metadata": {"name": self.resource.name_any(), "uid": self.resource.uid()},
            "status": status,
        });
        let params = PatchParams::apply(STATUS_MANAGER).force();
        let patch = (&params, &Patch::Apply(patch));
        let client = &self.context.client;
        let written = apply::patch(client, self.resource, Part::Status, patch).await;
        written.map_err(|source| Error::Api {
            what: "write the status of the Savepoint",
            source,
        })?;
        let before = self.resource.status.as_ref();
        let name = self.resource.name_any();
        if let Some(event) = events::of_savepoint(&name, before, &status) {
            publish(
                &self.context.recorder,
                &self.resource.object_ref(&()),
                event,
            )
            .await;
        }
        Ok(Action::requeue(wait))
    }
}

#[cfg(test)]
mod tests;
