//! The copy of a savepoint whose resource goes, or whose job has gone.
//!
//! Owns: the finalizer, and clearing the copy beside the passes, so that a store that does not answer keeps no other
//! savepoint waiting. Limits are counted from when this operator began, by its own clock. Start at: [`Pass::delete`].

use std::sync::Arc;
use std::time::Duration;

use kube::ResourceExt as _;
use kube::api::Patch;
use kube::runtime::controller::Action;
use serde_json::json;
use streamforge_core::s3::S3Place;
use streamforge_core::savepoint;
use streamforge_crds::v1alpha1::DeletionPolicy;
use streamforge_host::{Ask, SavepointState};

use super::{LOOK_AGAIN, LOOK_AGAIN_LATER, PLACE, Pass, in_phase};
use crate::apply::{is_conflict, is_gone};
use crate::ending::{Clearing, Left};
use crate::stream_job::error::Error;

/// The finalizer of one whose copy goes with it.
const FINALIZER: &str = "streamforge.io/savepoint";

/// How long a savepoint whose resource is being deleted may take to end: its copy cannot be deleted before.
const END_WITHIN: Duration = Duration::from_secs(600);

/// Which copy is cleared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Which {
    /// Whatever there is.
    Any,
    /// One that is not whole: that is no savepoint.
    Unfinished,
}

impl Pass<'_> {
    /// Where the copy is, if that is the copy of this resource, in a place that its namespace may delete from: whoever
    /// may write the resource may write the annotation, too.
    fn own_place(&self) -> Option<S3Place> {
        let place = self.resource.annotations().get(PLACE)?;
        let place: S3Place = serde_json::from_str(place).ok()?;
        let folder = savepoint::folder(&self.copy_name());
        let is_copy = place.prefix.ends_with(folder.trim_end_matches('/'));
        let is_own = is_copy && self.context.settings.may_use(&self.namespace(), &place);
        is_own.then_some(place)
    }

    pub(super) fn has_finalizer(&self) -> bool {
        self.resource.finalizers().iter().any(|it| it == FINALIZER)
    }

    /// Whether it is set now: not if somebody else has just changed the resource.
    pub(super) async fn set_finalizer(&self, there: bool) -> Result<bool, Error> {
        let mut finalizers = self.resource.finalizers().to_vec();
        finalizers.retain(|it| it != FINALIZER);
        if there {
            finalizers.push(FINALIZER.to_owned());
        }
        let patch = json!({"metadata": {
            "finalizers": finalizers,
            "resourceVersion": self.resource.resource_version(),
            "uid": self.resource.uid(),
        }});
        match self.patch(&Patch::Merge(patch)).await {
            Err(source) if is_conflict(&source) => Ok(false),
            Err(source) if !is_gone(&source) => Err(Error::Api {
                what: "set the finalizer of the Savepoint",
                source,
            }),
            _ => Ok(true),
        }
    }

    /// Whether a coordinator still makes it: what it copies afterwards nobody would delete.
    async fn is_under_way(&self) -> bool {
        if self.context.endings.since(&self.uid()) > END_WITHIN {
            return false;
        }
        let uid = self.job().and_then(|job| job.uid());
        let coordinator = uid.and_then(|uid| self.context.fleet.get(&uid));
        let Some(coordinator) = coordinator else {
            return false;
        };
        let copy = self.copy_name();
        let asked = coordinator
            .orders
            .ask(|answer| Ask::SavepointState(copy, answer));
        let state = asked.await.ok().flatten();
        matches!(
            state,
            Some(SavepointState::Pending | SavepointState::InProgress)
        )
    }

    pub(super) async fn delete(&self) -> Result<Action, Error> {
        if !self.has_finalizer() {
            self.context.forget_savepoint(&self.uid());
            return Ok(Action::await_change());
        }
        if self.is_under_way().await {
            return Ok(Action::requeue(LOOK_AGAIN));
        }
        let deletes = self.resource.spec.deletion_policy == DeletionPolicy::Delete;
        if deletes && !self.is_cleared(Which::Any) {
            return Ok(Action::requeue(LOOK_AGAIN));
        }
        if !self.set_finalizer(false).await? {
            return Ok(Action::requeue(LOOK_AGAIN));
        }
        self.context.forget_savepoint(&self.uid());
        Ok(Action::await_change())
    }

    /// The job whose state it was to be is gone, and so is whoever made it.
    pub(super) async fn fail_without_job(&self) -> Result<Action, Error> {
        if !self.is_cleared(Which::Unfinished) {
            return Ok(Action::requeue(LOOK_AGAIN));
        }
        let reason = format!(
            "its job is gone: StreamJob {} was deleted before the savepoint was whole",
            self.resource.spec.job
        );
        let failed = self.report(in_phase("Failed", reason), LOOK_AGAIN_LATER);
        let failed = failed.await?;
        self.context.forget_savepoint(&self.uid());
        Ok(failed)
    }

    /// Whether the copy is cleared, if there is one that can be; begins with that. A store that is gone for good must
    /// not keep the resource for ever.
    fn is_cleared(&self, which: Which) -> bool {
        let Some(place) = self.own_place() else {
            return true;
        };
        let uid = self.uid();
        match self.context.endings.clearing(&uid) {
            Clearing::Over => return true,
            Clearing::UnderWay => return false,
            Clearing::None => {}
        }
        let left = Left {
            what: "the copy is left",
            namespace: self.namespace(),
            name: self.resource.name_any(),
        };
        let (context, namespace) = (Arc::clone(self.context), self.namespace());
        let user = uid.clone();
        let clear = async move {
            let opener = context.opener(&namespace, &user);
            match which {
                Which::Any => opener.clear(&place).await?,
                Which::Unfinished => opener.clear_unfinished(&place).await?,
            }
            Ok(())
        };
        self.context.endings.clear(&uid, left, clear, || {});
        false
    }
}
