//! Secrets of pods, looked at while old values of them may be what a job suffers from.
//!
//! Owns: when they are looked at: they may not be watched, and of a job that does well nobody needs to know. The
//! decisions are in [`crate::stream_job::secrets`].

use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::{Pod, Secret};
use k8s_openapi::jiff::Timestamp;
use kube::api::{Patch, PatchParams};
use kube::{Api, ResourceExt as _};
use serde_json::json;

use super::Pass;
use crate::apply::is_out_of_reach;
use crate::events;
use crate::record::State;
use crate::step::{Ended, Run};
use crate::stream_job::build::KeptPods;
use crate::stream_job::checked::Outcome as Checked;
use crate::stream_job::ended;
use crate::stream_job::error::{Error, api};
use crate::stream_job::secrets::{self, ANNOTATION, Newest, OLD_VALUES};
use crate::stream_job::validate::Desired;

/// How often they are looked at after a failure, at first; each time half as often, down to once in 17 minutes: a bucket
/// that is away for long fails all jobs.
const LOOK_EVERY: Duration = Duration::from_secs(2);
const DOUBLED_MAX: u32 = 9;

/// Secrets of one job that are looked at: each is a request. Those of the document are some five.
const SECRETS_MAX: usize = 32;

/// When they were looked at last.
#[derive(Clone, Copy, Debug)]
pub struct Looked {
    at: Instant,
    /// How often since the newest failure.
    looked_n: u32,
    restarts_n: u32,
}

impl Looked {
    /// How long nothing is to be looked at.
    fn left(self) -> Duration {
        let wait = LOOK_EVERY * (1 << self.looked_n.min(DOUBLED_MAX));
        wait.saturating_sub(self.at.elapsed())
    }
}

impl Pass<'_> {
    /// Tells kubelets of Secrets that were changed, while it may be old values of them that something fails by.
    pub(super) async fn look_at_secrets(&mut self, current: &Desired) -> Result<(), Error> {
        let coordinator = self.context.fleet.get(&self.uid);
        let suffers = coordinator.and_then(|it| {
            let status = it.status.borrow();
            secrets::may_be_old(&status).then_some(status.restarts_n)
        });
        let Some(restarts_n) = suffers else {
            self.memory.secrets = None;
            return Ok(());
        };
        let same = |looked: &Looked| looked.restarts_n == restarts_n;
        let looked_n = match self.memory.secrets {
            Some(mut looked) => {
                if !same(&looked) {
                    (looked.looked_n, looked.restarts_n) = (0, restarts_n);
                    self.memory.secrets = Some(looked);
                }
                let left = looked.left();
                if !left.is_zero() {
                    self.look_within = self.look_within.min(left);
                    return Ok(());
                }
                looked.looked_n + 1
            }
            None => 0,
        };
        let looked = Looked {
            at: Instant::now(),
            looked_n,
            restarts_n,
        };
        self.memory.secrets = Some(looked);
        self.look_within = self.look_within.min(looked.left());
        let secrets = self.newest(current).await?;
        self.push(current, &secrets).await;
        Ok(())
    }

    /// An end that may have come of old values of a Secret is none of the job's: it is begun anew, and so is the
    /// count of failures.
    pub(super) async fn excused(
        &mut self,
        current: Option<&Checked>,
        run: Run,
    ) -> Result<Run, Error> {
        let is_active = self
            .record
            .as_ref()
            .is_some_and(|record| record.state == State::Active);
        let (Some(Ok(current)), true) = (current, is_active) else {
            return Ok(run);
        };
        let Some((reason, failed_ms)) = self.failed(&run) else {
            if matches!(&run, Run::Alive(alive) if alive.completed_n > 0) {
                self.memory.excused = None;
            }
            return Ok(run);
        };
        let failed = i64::try_from(failed_ms).ok();
        let failed = failed.and_then(|ms| Timestamp::from_millisecond(ms).ok());
        let failed = failed.unwrap_or_else(Timestamp::now);
        let began = self.job.creation_timestamp().map(|time| time.0);
        let secrets = self.newest(current).await?;
        let Some(changed) = secrets::excuse(&secrets, began, failed) else {
            return Ok(run);
        };
        // A Secret that somebody writes all the time excuses nothing for longer.
        let before = self.memory.excused;
        let since = before.map_or_else(Instant::now, |(_, since)| since);
        if since.elapsed() > OLD_VALUES.unsigned_abs() {
            return Ok(run);
        }
        self.push(current, &secrets).await;
        self.memory.excused = Some((failed_ms, since));
        if before.map(|(ms, _)| ms) != Some(failed_ms) {
            let age_s = changed.age(failed).as_secs();
            self.tell(events::tried_again(&changed.name, age_s, &reason))
                .await;
            // Each has a count of failures of its own, and there are two minutes in all.
            if before.is_none() {
                self.memory.broken_n = 0;
            }
        }
        Ok(match run {
            Run::Ended {
                is_current,
                tried,
                stops_failed_n,
                ..
            } => Run::Ended {
                how: Ended::Broken(reason),
                is_current,
                tried,
                stops_failed_n,
            },
            other => other,
        })
    }

    /// Why and when the job's last attempt ended it, if that is how its coordinator came to its end.
    fn failed(&self, run: &Run) -> Option<(String, u64)> {
        let Run::Ended {
            how: Ended::Failed(reason),
            is_current: true,
            ..
        } = run
        else {
            return None;
        };
        let coordinator = self.context.fleet.get(&self.uid)?;
        let outcome = coordinator.outcome.borrow().clone()?;
        let failure = coordinator.status.borrow().last_failure.clone()?;
        ended::is_of_an_attempt(&outcome).then_some((reason.clone(), failure.time_ms))
    }

    /// The newest of the Secrets that the job's pods mount. Their values are not asked for.
    async fn newest(&self, current: &Desired) -> Result<Vec<Newest>, Error> {
        let pods = KeptPods::of(current, &self.context.settings, self.kept.as_ref());
        let secrets: Api<Secret> =
            Api::namespaced(self.context.client.clone(), &current.identity.namespace);
        let mut newest = Vec::new();
        for name in pods.secrets().into_iter().take(SECRETS_MAX) {
            match secrets.get_metadata_opt(name).await {
                Ok(found) => newest.extend(found.and_then(|it| Newest::of(&it.metadata))),
                Err(error) if is_out_of_reach(&error) => {}
                Err(error) => return Err(api("read when a Secret was changed")(error)),
            }
        }
        Ok(newest)
    }

    /// Changes the pods that are to hear of a change: nothing but an annotation, so none is made anew. It only makes
    /// the kubelet quicker: where that is refused its next round will do.
    async fn push(&self, current: &Desired, secrets: &[Newest]) {
        let namespace = self.namespace();
        let label = current.identity.names.label();
        let listed = self.context.children.pods(&namespace, label.as_str());
        let pods: Api<Pod> = Api::namespaced(self.context.client.clone(), &namespace);
        let (params, mut told) = (PatchParams::default(), Vec::new());
        for pod in &listed {
            let Some(newer) = secrets::due(pod, secrets) else {
                continue;
            };
            let name = pod.name_any();
            let patch = Patch::Merge(json!({"metadata": {"annotations": {ANNOTATION: newer}}}));
            let patched = pods.patch_metadata(&name, &params, &patch).await;
            match patched {
                Ok(_) => told.push((name, newer)),
                Err(error) => {
                    tracing::debug!(%error, name, "a pod is not annotated with its newer Secrets");
                }
            }
        }
        if !told.is_empty() {
            self.tell(events::secret_changed(&told)).await;
        }
    }
}

#[cfg(test)]
mod tests;
