//! Pods of a document that is not accepted yet, tried at the API server.
//!
//! Owns: when it is asked, and that what it refuses is no valid document. Nothing is made of it: what runs goes on.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{LOOK_AGAIN_SOON, Pass};
use crate::apply;
use crate::hash;
use crate::stream_job::build::{self, KeptPods};
use crate::stream_job::error::Error;
use crate::stream_job::report::Refusal;
use crate::stream_job::validate::{Desired, Problem};

/// After how long pods that were refused are tried again, which doubles up to [`TRY_AGAIN_MAX`]: a policy may have been
/// mended, or a webhook have come back, and nobody tells of that.
const TRY_AGAIN: Duration = Duration::from_secs(5);

/// How seldom they are tried in the end.
const TRY_AGAIN_MAX: Duration = Duration::from_secs(60);

/// What came of pods that were tried.
#[derive(Clone, Debug)]
pub struct Tried {
    /// Hash of their template.
    hash: String,
    at: Instant,
    /// How often they were refused in a row before.
    refused_n: u32,
    /// Why they may not be made; none: they may.
    refused: Option<Problem>,
}

impl Tried {
    /// How long what was said of them counts; none: for good.
    fn holds_for(&self) -> Option<Duration> {
        self.refused.as_ref()?;
        let wait = TRY_AGAIN.saturating_mul(1 << self.refused_n.min(8));
        Some(wait.min(TRY_AGAIN_MAX).saturating_sub(self.at.elapsed()))
    }
}

impl Pass<'_> {
    /// Makes a document whose pods the API server refuses no valid one. It is asked once for each; until it has answered
    /// no new document is accepted.
    pub(super) async fn try_pods(&mut self) -> Result<(), Error> {
        let mut done = Ok(());
        if let Some((desired, pods)) = self.new_pods() {
            let hash = hash::of(&pods.template);
            let known = self.memory.tried.as_ref().filter(|it| it.hash == hash);
            if known.is_none_or(|it| it.holds_for() == Some(Duration::ZERO)) {
                let refused_n = known.map_or(0, |it| it.refused_n.saturating_add(1));
                match self.ask(&desired).await {
                    Ok(refused) => {
                        self.memory.tried = Some(Tried {
                            hash,
                            at: Instant::now(),
                            refused_n,
                            refused,
                        });
                    }
                    Err(error) => {
                        self.is_untried = true;
                        done = Err(error);
                    }
                }
            }
        }
        self.recall_tried();
        done
    }

    /// The same by what it has said before.
    pub(super) fn recall_tried(&mut self) {
        let hash = self.new_pods().map(|(_, pods)| hash::of(&pods.template));
        let tried = self.memory.tried.take();
        self.memory.tried = tried.filter(|tried| Some(&tried.hash) == hash.as_ref());
        if let Some(tried) = &self.memory.tried
            && let (Some(refused), Some(again)) = (&tried.refused, tried.holds_for())
        {
            self.look_within = self.look_within.min(again.max(LOOK_AGAIN_SOON));
            self.desired = Err((Refusal::Invalid, vec![refused.clone()]));
        }
    }

    /// The pods of what is wanted, if they are others than those of what is on record. Of a document that was rolled back
    /// none are made.
    fn new_pods(&self) -> Option<(Arc<Desired>, KeptPods)> {
        if self.rolled_back().is_some() {
            return None;
        }
        let desired = self.desired.as_ref().ok()?;
        let pods = |of: &Desired| KeptPods::of(of, &self.context.settings, self.kept.as_ref());
        let wanted = match self.current() {
            Some(Ok(current)) if Arc::ptr_eq(&current, desired) => return None,
            Some(Ok(current)) => {
                let wanted = pods(desired);
                if pods(&current).template == wanted.template {
                    return None;
                }
                wanted
            }
            _ => pods(desired),
        };
        Some((Arc::clone(desired), wanted))
    }

    /// What is wrong with these pods, if something is.
    async fn ask(&self, desired: &Desired) -> Result<Option<Problem>, Error> {
        let children = build::build(&build::Request {
            desired,
            settings: &self.context.settings,
            kept: self.kept.as_ref(),
            replicas: desired.replicas(),
            certificate: None,
        });
        let set = &children.stateful_set;
        let refused = apply::dry_run(&self.context.client, set).await;
        let refused = refused.map_err(|source| Error::Apply {
            kind: "StatefulSet",
            source,
        })?;
        let written = self.job.spec.task_manager.as_ref();
        let has_template = written.is_some_and(|it| !it.pod_template.is_empty());
        let path = if has_template {
            "spec.taskManager.podTemplate"
        } else {
            "spec.taskManager"
        };
        let cure = "edit it; it is tried again each minute at least";
        Ok(refused.map(|why| {
            let message = format!("the API server refuses such pods: {why}");
            Problem::new(path, message, cure)
        }))
    }
}
