//! What a pass tells people: the status of the job and its events.

use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Patch, PatchParams};
use kube::runtime::events::{Event, EventType, Recorder};
use kube::{Api, Resource as _, ResourceExt as _};
use serde_json::json;
use streamforge_crds::v1alpha1::StreamJob;
use streamforge_host::Phase as Doing;

use super::{PAUSE, Pass};
use crate::apply::STATUS_MANAGER;
use crate::record::State;
use crate::stream_job::error::{Error, api, chain};
use crate::stream_job::report::{self, Known, Phase, Refusal, Trouble};
use crate::stream_job::validate::{Desired, Problem};
use crate::{events, stores};

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
        let (phase, doing) = self.phase(current.as_ref(), status.as_ref().map(|it| it.phase));
        phase.name().clone_into(&mut self.memory.phase);
        let rolled_back = self.rolled_back();
        let refused = match &self.desired {
            Err((refusal, problems)) => Some((*refusal, &problems[..])),
            Ok(_) => rolled_back
                .as_ref()
                .map(|problem| (Refusal::RolledBack, std::slice::from_ref(problem))),
        };
        let trouble = self.memory.trouble.as_ref().or(self.memory.sick.as_ref());
        let new = report::report(
            self.job,
            &Known {
                phase,
                doing: doing.as_deref(),
                desired: current.as_ref(),
                coordinator: status.as_ref(),
                pace: self.memory.pace,
                before: self.memory.before,
                pods: &self.pods,
                replaces_pods: self.replaces_pods,
                refused,
                trouble: trouble.map(|(trouble, message)| (*trouble, &message[..])),
                failure: None,
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
        let api_version = StreamJob::api_version(&());
        let kind = StreamJob::kind(&());
        let patch = json!({
            "apiVersion": api_version, "kind": kind,
            "metadata": {"name": self.job.name_any(), "uid": self.uid},
            "status": new,
        });
        let jobs: Api<StreamJob> = Api::namespaced(self.context.client.clone(), &self.namespace());
        let params = PatchParams::apply(STATUS_MANAGER).force();
        let written = jobs
            .patch_status(&self.job.name_any(), &params, &Patch::Apply(&patch))
            .await;
        written.map_err(api("write the status"))?;
        self.memory.reported = Some(Instant::now());
        for event in events::of_transition(self.job.status.as_ref(), &new) {
            self.tell(event).await;
        }
        Ok(())
    }

    fn rolled_back(&self) -> Option<Problem> {
        let refused = self.record.as_ref()?.refused.as_ref()?;
        let is_newest = Some(refused.generation) == self.job.metadata.generation;
        is_newest.then(|| {
            Problem::new(
                "spec",
                refused.reason.clone(),
                "edit it, or go back to what runs",
            )
        })
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
        let upgrades = match (current, &self.desired) {
            (Some(current), Ok(desired)) => {
                self.edit(current, desired).upgrade && self.rolled_back().is_none()
            }
            _ => false,
        };
        let phase = match doing {
            _ if self.desired.is_ok() && self.job.spec.suspend => Phase::Suspending,
            _ if upgrades => Phase::Upgrading,
            Some(Doing::Running | Doing::Finishing) => Phase::Running,
            Some(Doing::Recovering) => Phase::Recovering,
            _ if record.previous.is_some() => Phase::Upgrading,
            // Rows flow while a new coordinator looks for its task managers (F1).
            _ => match Phase::of(self.job.status.as_ref()) {
                Some(before @ (Phase::Running | Phase::Recovering)) => before,
                _ => Phase::Starting,
            },
        };
        (phase, None)
    }
}

/// Best effort: an event that is not taken is no reason to do less.
pub(crate) async fn publish(
    recorder: &Recorder,
    regarding: &ObjectReference,
    event: events::Event,
) {
    let reason = event.reason;
    let event = Event {
        type_: match event.severity {
            events::Severity::Normal => EventType::Normal,
            events::Severity::Warning => EventType::Warning,
        },
        reason: reason.to_owned(),
        note: Some(event.note),
        action: event.action.to_owned(),
        secondary: None,
    };
    if let Err(error) = recorder.publish(&event, regarding).await {
        tracing::debug!(%error, reason, "event not taken");
    }
}

/// What keeps a job from going on, if it is not the API server.
pub(super) fn trouble(error: &Error) -> Option<(Trouble, String)> {
    let kind = match error {
        Error::Store(stores::Error::Secret { .. }) => Trouble::SecretMissing,
        Error::Store(_) | Error::Silent { .. } | Error::Emptied { .. } => Trouble::StoreUnreachable,
        Error::NotOurs { .. } => Trouble::NotAllowed,
        Error::Savepoint { .. } => Trouble::SavepointMissing,
        Error::Api {
            source: kube::Error::Api(status),
            ..
        } if status.code == 403 => Trouble::NotAllowed,
        Error::Api { .. } | Error::Certificate(_) | Error::Record { .. } => return None,
    };
    Some((kind, chain(error).to_string()))
}
