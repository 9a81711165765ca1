//! The end of a job's resource.
//!
//! Owns: the finalizer, and what happens before it is taken away. Every step has a limit: a resource
//! always ends.

use std::time::Duration;

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use kube::runtime::controller::Action;
use kube::{Api, ResourceExt as _};
use serde_json::json;
use streamforge_crds::v1alpha1::{OnDelete, StreamJob, StreamJobSpec};
use streamforge_host::Ask;

use super::error::{Error, api, chain};
use super::keep::{self, Kept};
use crate::apply::is_gone;
use crate::controller::Context;
use crate::names::Names;
use crate::stores::{self, Opener};

/// The finalizer: a job's coordinator ends, and its checkpoints are deleted, before it is gone.
const FINALIZER: &str = "streamforge.io/checkpoints";

/// How long a deleted job may take to stop.
const STOP_WITHIN: Duration = Duration::from_secs(10);

/// How long its pods may take to end.
const PODS_WITHIN: Duration = Duration::from_secs(120);

/// When a job that is being stopped is looked at again.
const LOOK_AT_ENDING: Duration = Duration::from_millis(200);

/// The same while its pods end.
const LOOK_AT_PODS: Duration = Duration::from_secs(1);

/// How long a deleted job's store may take to be cleared before the job goes without.
const CLEAR_WITHIN: Duration = Duration::from_secs(60);

/// Whether the finalizer is there.
pub(super) fn has_finalizer(job: &StreamJob) -> bool {
    job.finalizers().iter().any(|it| it == FINALIZER)
}

/// Sets or takes away the finalizer.
pub(super) async fn set_finalizer(
    job: &StreamJob,
    context: &Context,
    there: bool,
) -> Result<(), Error> {
    let mut finalizers: Vec<&str> = job.finalizers().iter().map(String::as_str).collect();
    finalizers.retain(|it| *it != FINALIZER);
    if there {
        finalizers.push(FINALIZER);
    }
    // The resource version makes sure that no other finalizer is lost.
    let patch = json!({"metadata": {
        "finalizers": finalizers,
        "resourceVersion": job.resource_version(),
        "uid": job.uid(),
    }});
    let namespace = job.namespace().unwrap_or_default();
    let jobs: Api<StreamJob> = Api::namespaced(context.client.clone(), &namespace);
    let patched = jobs
        .patch(
            &job.name_any(),
            &PatchParams::default(),
            &Patch::Merge(&patch),
        )
        .await;
    match patched {
        Err(error) if !is_gone(&error) => Err(api("set the finalizer")(error)),
        _ => Ok(()),
    }
}

/// A job that is being deleted: it is stopped, its pods end, its checkpoints go or stay, and so may it.
pub(super) async fn take_down(job: &StreamJob, context: &Context) -> Result<Action, Error> {
    let uid = job.uid().unwrap_or_default();
    if !has_finalizer(job) {
        context.fleet.abandon(&uid);
        context.forget(&uid);
        return Ok(Action::await_change());
    }
    let asked = job.metadata.deletion_timestamp.as_ref().map(|it| it.0);
    let since = asked.map_or(Duration::MAX, |at| {
        // A clock that is behind the API server's only makes this wait longer.
        let since = Timestamp::now().duration_since(at);
        if since.is_negative() {
            Duration::ZERO
        } else {
            since.unsigned_abs()
        }
    });
    if since < STOP_WITHIN && is_stopping(&uid, context).await {
        return Ok(Action::requeue(LOOK_AT_ENDING));
    }
    if since < PODS_WITHIN && has_pods(job, context).await? {
        return Ok(Action::requeue(LOOK_AT_PODS));
    }
    context.fleet.abandon(&uid);
    if job.spec.checkpoint.on_delete == OnDelete::Delete {
        let cleared = tokio::time::timeout(CLEAR_WITHIN, clear(job, context)).await;
        // A store that is gone for good must not keep the resource for ever.
        let name = job.name_any();
        match cleared {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(name, "checkpoints are left: {}", chain(&error)),
            Err(_) => tracing::warn!(name, "checkpoints are left: the store did not answer"),
        }
    }
    set_finalizer(job, context, false).await?;
    context.forget(&uid);
    Ok(Action::await_change())
}

/// Whether its coordinator is told to stop, and has not yet.
async fn is_stopping(uid: &str, context: &Context) -> bool {
    let Some(coordinator) = context.fleet.get(uid) else {
        return false;
    };
    let has_ended = coordinator.outcome.borrow().is_some();
    !has_ended && coordinator.orders.ask(Ask::Stop).await.is_ok()
}

/// Whether pods of it are left; they are told to end. A pod that writes to a store that is being cleared
/// would leave something behind.
async fn has_pods(job: &StreamJob, context: &Context) -> Result<bool, Error> {
    let Ok(names) = Names::of(&job.name_any()) else {
        return Ok(false);
    };
    let namespace = job.namespace().unwrap_or_default();
    let sets: Api<StatefulSet> = Api::namespaced(context.client.clone(), &namespace);
    let params = DeleteParams::background();
    match sets.delete(names.task_managers().as_str(), &params).await {
        Err(error) if !is_gone(&error) => return Err(api("delete the StatefulSet")(error)),
        _ => {}
    }
    let pods: Api<Pod> = Api::namespaced(context.client.clone(), &namespace);
    let ours = ListParams::default().labels(&names.selector_text());
    let pods = pods.list_metadata(&ours).await.map_err(api("list pods"))?;
    Ok(!pods.items.is_empty())
}

async fn clear(job: &StreamJob, context: &Context) -> Result<(), Error> {
    let uid = job.uid().unwrap_or_default();
    let kept = keep::read(&context.client, job).await?;
    let kept = kept.filter(|kept| kept.record.uid == uid);
    // Without a record, which goes first when a namespace is deleted, the resource says where to look.
    let (spec, incarnations) = match kept {
        Some(Kept { record, .. }) => {
            let spec: Option<StreamJobSpec> = serde_json::from_value(record.document).ok();
            (spec.unwrap_or_else(|| job.spec.clone()), record.incarnation)
        }
        None if job.spec.checkpoint.storage.is_none() => return Ok(()), // it never ran
        None => (job.spec.clone(), 0),
    };
    let namespace = job.namespace().unwrap_or_default();
    let opener = Opener {
        client: &context.client,
        namespace: &namespace,
        work_dir: &context.work_dir,
    };
    for incarnation in 0..=incarnations {
        let place = stores::place(&spec, &uid, incarnation)?;
        if !context.settings.may_use(&namespace, &place) {
            continue; // no job of this namespace wrote there
        }
        opener.clear(&place).await?;
    }
    Ok(())
}
