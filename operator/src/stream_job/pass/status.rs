//! What a pass tells people: the status of the job and its events.

use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Patch, PatchParams};
use kube::{Resource as _, ResourceExt as _};
use serde_json::json;
use streamforge_crds::v1alpha1::{JobStatus, StreamJob};
use streamforge_host::Phase as Doing;

use super::{PAUSE, Pass};
use crate::apply::{self, Part, STATUS_MANAGER, is_refusal};
use crate::record::{Lived, Record, State};
use crate::recorder::Recorder;
use crate::stream_job::error::{Error, api, chain};
use crate::stream_job::report::{self, Known, Phase, Refusal, Trouble};
use crate::stream_job::validate::{Desired, Problem};
use crate::{events, stores};

/// How long an event may take to be written: whoever writes it has better things to do.
const PUBLISH_WITHIN: Duration = Duration::from_secs(5);

impl Pass<'_> {
    pub(super) async fn tell(&self, event: events::Event) {
        publish(&self.context.recorder, &self.job.object_ref(&()), event).await;
    }

    pub(super) async fn report(&mut self) -> Result<(), Error> {
        let current = self.current().and_then(Result::ok);
        let coordinator = self.context.fleet.get(&self.uid);
        let status = coordinator.map(|it| it.status.borrow().clone());
        let status = status.or_else(|| self.said.clone());
        let now = Timestamp::now();
        if let Some(status) = &status {
            self.memory.pace = self.memory.pace.after(status, now);
            if status.phase == Doing::Running {
                self.memory.broken_n = 0;
            }
        }
        let (phase, doing) = self.phase(current.as_deref(), status.as_ref().map(|it| it.phase));
        phase.name().clone_into(&mut self.memory.phase);
        let unreadable = self.unreadable_record();
        let doing = doing.or_else(|| unreadable.as_ref().map(|(_, why)| why.clone()));
        let rolled_back = self.rolled_back();
        let refused = match &self.desired {
            Err((refusal, problems)) => Some((*refusal, &problems[..])),
            Ok(_) => rolled_back
                .as_ref()
                .map(|problem| (Refusal::RolledBack, std::slice::from_ref(problem))),
        };
        let stop_failed = self.memory.stop_failed.clone();
        let stop_failed = stop_failed.map(|reason| (Trouble::SavepointFails, reason));
        let trouble = self.memory.trouble.as_ref();
        let trouble = trouble.or(self.memory.start_failed.as_ref());
        let trouble = trouble.or(unreadable.as_ref());
        let trouble = trouble.or(stop_failed.as_ref());
        let trouble = trouble.or(self.memory.sick.as_ref());
        let lived = self.lived();
        let new = report::report(
            self.job,
            &Known {
                phase,
                doing: doing.as_deref(),
                desired: current.as_deref(),
                coordinator: status.as_ref(),
                pace: self.memory.pace,
                before: self.memory.before,
                pods: &self.pods,
                replaces_pods: self.replaces_pods,
                refused,
                trouble: trouble.map(|(trouble, message)| (*trouble, &message[..])),
                lived: &lived,
                paused: self.annotation(PAUSE).is_some(),
                now,
            },
        );
        let since = self
            .memory
            .reported
            .map_or(Duration::MAX, |at| at.elapsed());
        if !report::is_worth_writing(self.job.status.as_ref(), &new, since) {
            return Ok(());
        }
        self.write_status(&new).await?;
        self.memory.reported = Some(Instant::now());
        for event in events::of_transition(self.job.status.as_ref(), &new) {
            self.tell(event).await;
        }
        Ok(())
    }

    async fn write_status(&self, status: &JobStatus) -> Result<(), Error> {
        if self.unreadable.is_some_and(|unreadable| unreadable.status) {
            return Ok(()); // what it says would be lost
        }
        let (api_version, kind) = (StreamJob::api_version(&()), StreamJob::kind(&()));
        let patch = json!({
            "apiVersion": api_version, "kind": kind,
            "metadata": {"name": self.job.name_any(), "uid": self.uid},
            "status": status,
        });
        let params = PatchParams::apply(STATUS_MANAGER).force();
        let patch = (&params, &Patch::Apply(patch));
        let written = apply::patch(&self.context.client, self.job, Part::Status, patch).await;
        written.map_err(api("write the status"))
    }

    /// Writes what must not be lost with the record, if the status does not say so already.
    pub(super) async fn keep_lived(&self, record: &Record) -> Result<(), Error> {
        let before = self.job.status.clone().unwrap_or_default();
        let mut status = before.clone();
        report::keep_lived(&mut status, &Lived::of(record));
        if status == before {
            return Ok(());
        }
        self.write_status(&status).await
    }

    /// Why nothing runs though it is to: what is on record cannot be read.
    fn unreadable_record(&self) -> Option<(Trouble, String)> {
        let record = self.record.as_ref()?;
        let runs = self.context.fleet.get(&self.uid).is_some();
        let Some(Err(problems)) = self.current() else {
            return None;
        };
        let message = format!(
            "the document of generation {}: {}",
            record.generation,
            report::listed(&problems)
        );
        let is_active = record.state == State::Active;
        (is_active && !runs).then_some((Trouble::RecordUnreadable, message))
    }

    /// Why the newest document is not tried, if it was.
    pub(super) fn rolled_back(&self) -> Option<Problem> {
        let refused = self.lived().refused?;
        let desired = self.desired.as_ref().ok()?;
        (refused.plan == desired.document.attempt_hash())
            .then(|| Problem::new("spec", refused.reason, "edit it, or go back to what runs"))
    }

    fn phase(&self, current: Option<&Desired>, doing: Option<Doing>) -> (Phase, Option<String>) {
        let Some(record) = &self.record else {
            return (Phase::Pending, None);
        };
        match &record.state {
            State::Suspended => return (Phase::Suspended, None),
            State::Finished { .. } => return (Phase::Finished, None),
            State::Failed { reason, .. } => return (Phase::Failed, Some(reason.clone())),
            State::Active => {}
        }
        let tried = self.tried();
        let upgrades = match (current, tried) {
            (Some(current), Some(desired)) => {
                self.edit(current, desired).upgrade && self.rolled_back().is_none()
            }
            _ => false,
        };
        // Nothing is on its way during a pause, or until a stop that came to nothing is tried again.
        let goes_on = self.annotation(PAUSE).is_none() && self.memory.until_stop().is_none();
        let phase = of_active(&Active {
            can_run: current.is_some() || doing.is_some(),
            suspends: goes_on && tried.is_some() && self.job.spec.suspend,
            upgrades: goes_on && upgrades,
            doing,
            may_flow: self.pods.ready > 0 && self.memory.start_failed.is_none(),
            is_proving: record.previous.is_some(),
            before: Phase::of(self.job.status.as_ref()),
        });
        (phase, None)
    }
}

/// What is known of a job that is to run.
#[derive(Clone, Copy, Debug)]
struct Active {
    /// What is on record can be read, or is coordinated already.
    can_run: bool,
    /// It is to stop.
    suspends: bool,
    /// It is to go over to another document.
    upgrades: bool,
    /// What its coordinator does; none: there is none, or it says nothing yet.
    doing: Option<Doing>,
    /// Tasks may run for a coordinator that is to come: there are pods, and starting it did not fail.
    may_flow: bool,
    /// There is a document to roll back to.
    is_proving: bool,
    /// What the status says.
    before: Option<Phase>,
}

fn of_active(job: &Active) -> Phase {
    match job.doing {
        // Nobody looks after it, whatever its tasks do.
        _ if !job.can_run => Phase::Starting,
        _ if job.suspends => Phase::Suspending,
        _ if job.upgrades => Phase::Upgrading,
        Some(Doing::Running | Doing::Finishing) => Phase::Running,
        Some(Doing::Recovering) => Phase::Recovering,
        _ if job.is_proving => Phase::Upgrading,
        // Rows flow while a new coordinator looks for its task managers (F1).
        _ => match job.before {
            Some(before @ (Phase::Running | Phase::Recovering)) if job.may_flow => before,
            _ => Phase::Starting,
        },
    }
}

/// Best effort: an event that is not taken is no reason to do less.
pub(crate) async fn publish(
    recorder: &Recorder,
    regarding: &ObjectReference,
    event: events::Event,
) {
    let reason = event.reason;
    match tokio::time::timeout(PUBLISH_WITHIN, recorder.publish(&event, regarding)).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(%error, reason, "event not taken"),
        Err(_) => tracing::debug!(reason, "event not taken: no answer"),
    }
}

/// What keeps a job from going on, if it is not the API server.
pub(super) fn trouble(error: &Error) -> Option<(Trouble, String)> {
    let kind = match error {
        Error::Store(stores::Error::Secret { source, .. }) => match source {
            kube::Error::Api(status) if status.code == 404 => Trouble::SecretMissing,
            kube::Error::Api(status) if status.code == 403 => Trouble::NotAllowed,
            // Without it the store cannot be reached.
            _ => Trouble::StoreUnreachable,
        },
        // The client could not even be made of what the Secret says.
        Error::Store(stores::Error::Open {
            source:
                streamforge_store::Error::S3 {
                    source: streamforge_store::s3::Refusal::Setup { .. },
                    ..
                },
            ..
        }) => Trouble::SecretMissing,
        Error::Store(_) | Error::Silent { .. } | Error::Emptied { .. } => Trouble::StoreUnreachable,
        Error::NotOurs { .. } => Trouble::NotAllowed,
        Error::Savepoint { .. } => Trouble::SavepointMissing,
        Error::Api {
            source: kube::Error::Api(status),
            ..
        } if status.code == 403 => Trouble::NotAllowed,
        Error::Apply {
            source: kube::Error::Api(status),
            ..
        } if is_refusal(status) => Trouble::NotAllowed,
        Error::Api { .. }
        | Error::Apply { .. }
        | Error::Stuck { .. }
        | Error::Certificate(_)
        | Error::Record { .. } => return None,
    };
    Some((kind, chain(error).to_string()))
}

#[cfg(test)]
mod tests {
    use kube::core::Status;

    use super::*;

    /// Why a Secret could not be read, by the server's code.
    fn unread(code: u16) -> Error {
        let status = Status {
            code,
            ..Status::default()
        };
        Error::Store(stores::Error::Secret {
            name: "store".to_owned(),
            source: kube::Error::Api(status.boxed()),
        })
    }

    fn unopened(source: streamforge_store::s3::Refusal) -> Error {
        let location = "s3://bucket/jobs".to_owned();
        Error::Store(stores::Error::Open {
            location: location.clone(),
            source: streamforge_store::Error::S3 {
                action: "open",
                key: String::new(),
                location,
                source,
            },
        })
    }

    #[test]
    fn secret_is_missing_when_it_is_not_there_or_lacks_a_key_and_for_nothing_else() {
        use streamforge_store::s3::Refusal;
        let kind = |error: &Error| trouble(error).map(|(kind, _)| kind);
        assert_eq!(kind(&unread(404)), Some(Trouble::SecretMissing));
        assert_eq!(kind(&unread(403)), Some(Trouble::NotAllowed));
        let in_trouble = kind(&unread(500));
        assert_eq!(in_trouble, Some(Trouble::StoreUnreachable));

        let reason = "the secret `store` has no key accessKeyId".to_owned();
        let lacks = unopened(Refusal::Setup { reason });
        assert_eq!(kind(&lacks), Some(Trouble::SecretMissing));
        assert!(trouble(&lacks).is_some_and(|(_, said)| said.contains("accessKeyId")));
        let none = unopened(Refusal::NoBucket);
        assert_eq!(kind(&none), Some(Trouble::StoreUnreachable));
    }

    #[test]
    fn job_without_anybody_who_can_run_it_is_not_running_whatever_it_was_before() {
        let known = Active {
            can_run: true,
            suspends: false,
            upgrades: false,
            doing: None,
            may_flow: true,
            is_proving: false,
            before: Some(Phase::Running),
        };
        assert_eq!(of_active(&known), Phase::Running, "F1: rows flow");
        let no_rows = Active {
            may_flow: false,
            ..known
        };
        assert_eq!(of_active(&no_rows), Phase::Starting);

        let lost = Active {
            can_run: false,
            ..known
        };
        assert_eq!(of_active(&lost), Phase::Starting);
    }

    #[test]
    fn job_runs_on_until_it_is_to_stop() {
        let runs = Active {
            can_run: true,
            suspends: false,
            upgrades: false,
            doing: Some(Doing::Running),
            may_flow: true,
            is_proving: true,
            before: None,
        };
        assert_eq!(of_active(&runs), Phase::Running);
        let suspends = Active {
            suspends: true,
            ..runs
        };
        assert_eq!(of_active(&suspends), Phase::Suspending);
        let upgrades = Active {
            upgrades: true,
            ..runs
        };
        assert_eq!(of_active(&upgrades), Phase::Upgrading);
    }
}
