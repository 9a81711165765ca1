//! The end of a job's resource.
//!
//! Owns: the finalizer, and what happens before it is taken away. Every step has a limit, counted from when this
//! operator began with it: a resource always ends.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, Preconditions};
use kube::runtime::controller::Action;
use kube::runtime::reflector::ObjectRef;
use kube::{Api, ResourceExt as _};
use serde_json::json;
use streamforge_crds::v1alpha1::{OnDelete, StreamJob, StreamJobSpec};
use streamforge_host::Ask;

use super::error::{Error, api, chain};
use super::{keep, report};
use crate::apply::{self, Part, is_child, is_conflict, is_gone, is_out_of_reach};
use crate::controller::Context;
use crate::ending::{Clearing, Left};
use crate::names::Names;
use crate::stores;

/// The finalizer: a job's coordinator ends, and its checkpoints are deleted, before it is gone.
const FINALIZER: &str = "streamforge.io/checkpoints";

/// How long a deleted job may take to stop.
const STOP_WITHIN: Duration = Duration::from_secs(10);

/// How long its pods may take to end.
const PODS_WITHIN: Duration = Duration::from_secs(120);

/// When a job that is being stopped is looked at again.
const LOOK_AT_ENDING: Duration = Duration::from_millis(200);

/// The same while its pods end, and while its store is cleared.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// Whether the finalizer is there.
pub(super) fn has_finalizer(job: &StreamJob) -> bool {
    job.finalizers().iter().any(|it| it == FINALIZER)
}

/// Sets or takes away the finalizer. False: somebody else has just changed the job.
pub(super) async fn set_finalizer(
    job: &StreamJob,
    context: &Context,
    there: bool,
) -> Result<bool, Error> {
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
    let patch = (&PatchParams::default(), &Patch::Merge(patch));
    let patched = apply::patch(&context.client, job, Part::Object, patch).await;
    match patched {
        Err(error) if is_conflict(&error) => Ok(false),
        Err(error) if !is_gone(&error) => Err(api("set the finalizer")(error)),
        _ => Ok(true),
    }
}

/// A job that is being deleted: it is stopped, its pods end, its checkpoints go or stay, and so may it.
pub(super) async fn take_down(job: &StreamJob, context: &Arc<Context>) -> Result<Action, Error> {
    let uid = job.uid().unwrap_or_default();
    if !has_finalizer(job) {
        context.forget(&uid);
        return Ok(Action::await_change());
    }
    match context.endings.clearing(&uid) {
        Clearing::None => {
            if let Some(wait) = end(job, context).await? {
                return Ok(Action::requeue(wait));
            }
            context.abandon(&uid);
            if job.spec.checkpoint.on_delete == OnDelete::Delete {
                let clear = clear(job.clone(), Arc::clone(context));
                let waker = context.fleet.waker(ObjectRef::from_obj(job));
                let endings = &context.endings;
                let left = Left {
                    what: "checkpoints are left",
                    namespace: job.namespace().unwrap_or_default(),
                    name: job.name_any(),
                };
                endings.clear(&uid, left, clear, move || waker.wake());
                return Ok(Action::requeue(LOOK_AGAIN));
            }
        }
        Clearing::UnderWay => return Ok(Action::requeue(LOOK_AGAIN)),
        Clearing::Over => {}
    }
    if !set_finalizer(job, context, false).await? {
        return Ok(Action::requeue(LOOK_AGAIN));
    }
    context.forget(&uid);
    Ok(Action::await_change())
}

/// Stops it and ends its pods, each within its time; says when to look again, if it has not ended.
async fn end(job: &StreamJob, context: &Context) -> Result<Option<Duration>, Error> {
    let uid = job.uid().unwrap_or_default();
    let since = context.endings.since(&uid);
    if since < STOP_WITHIN && is_stopping(&uid, context).await {
        return Ok(Some(LOOK_AT_ENDING));
    }
    let (namespace, name) = (job.namespace().unwrap_or_default(), job.name_any());
    // However late it is, they are told to end.
    match has_pods(job, context).await {
        Ok(false) => {}
        looked if since < PODS_WITHIN => return looked.map(|_| Some(LOOK_AGAIN)),
        Ok(true) => tracing::warn!(namespace, name, "pods of a deleted job do not end"),
        Err(error) => tracing::warn!(namespace, name, "pods are left: {}", chain(&error)),
    }
    Ok(None)
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
    delete_set(job, context, names.task_managers().as_str()).await?;
    let pods: Api<Pod> = Api::namespaced(context.client.clone(), &namespace);
    let ours = ListParams::default().labels(&names.selector_text());
    match pods.list_metadata(&ours).await {
        Ok(pods) => Ok(!pods.items.is_empty()),
        Err(error) if is_out_of_reach(&error) => Ok(false),
        Err(error) => Err(api("list pods")(error)),
    }
}

/// Deletes the job's StatefulSet; one of that name that is somebody else's is left alone.
async fn delete_set(job: &StreamJob, context: &Context, name: &str) -> Result<(), Error> {
    let namespace = job.namespace().unwrap_or_default();
    let sets: Api<StatefulSet> = Api::namespaced(context.client.clone(), &namespace);
    let found = match sets.get_metadata_opt(name).await {
        Ok(found) => found.filter(|found| is_child(&found.metadata, job)),
        Err(error) if is_out_of_reach(&error) => None,
        Err(error) => return Err(api("read the StatefulSet")(error)),
    };
    let Some(found) = found else { return Ok(()) };
    let this_one = Preconditions {
        uid: found.metadata.uid,
        resource_version: None,
    };
    let params = DeleteParams::background().preconditions(this_one);
    match sets.delete(name, &params).await {
        // Of that name there is another one by now.
        Err(error) if is_conflict(&error) || is_out_of_reach(&error) => Ok(()),
        Err(error) => Err(api("delete the StatefulSet")(error)),
        Ok(_) => Ok(()),
    }
}

fn is_over(error: &Error) -> bool {
    matches!(error, Error::Api { source, .. } if is_out_of_reach(source))
}

async fn clear(job: StreamJob, context: Arc<Context>) -> Result<(), Error> {
    let uid = job.uid().unwrap_or_default();
    // Without a record, which goes first when a namespace is deleted, the resource says where to look.
    let kept = keep::read(&context.client, &job).await;
    let record = match kept {
        Err(error) if !is_over(&error) => return Err(error),
        kept => kept.ok().and_then(|kept| kept.record),
    };
    let (spec, incarnations) = match record {
        Some(record) => {
            let spec: Option<StreamJobSpec> = serde_json::from_value(record.document).ok();
            (spec.unwrap_or_else(|| job.spec.clone()), record.incarnation)
        }
        None if job.spec.checkpoint.storage.is_none() => return Ok(()), // it never ran
        None => (
            job.spec.clone(),
            report::lived(job.status.as_ref()).incarnation,
        ),
    };
    let namespace = job.namespace().unwrap_or_default();
    let opener = context.opener(&namespace, &uid);
    for incarnation in 0..=incarnations {
        let place = stores::place(&spec, &uid, incarnation)?;
        if !context.settings.may_use(&namespace, &place) {
            continue; // no job of this namespace wrote there
        }
        opener.clear(&place).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;
    use crate::stream_job::testing::{api_server, context, job, with, with_metadata};

    const JOB: &str = "/apis/streamforge.io/v1alpha1/namespaces/team/streamjobs/clicks";
    const SET: &str = "/apis/apps/v1/namespaces/team/statefulsets/clicks-tm";
    const PODS: &str = "/api/v1/namespaces/team/pods";

    /// Deleted long ago, while no operator was there.
    fn deleted(on_delete: &str) -> StreamJob {
        let job = with(&job(), "/checkpoint/onDelete", json!(on_delete));
        let job = with_metadata(&job, "/deletionTimestamp", json!("2026-01-31T12:00:00Z"));
        with_metadata(&job, "/finalizers", json!([FINALIZER]))
    }

    fn list(names: &[&str]) -> serde_json::Value {
        let pod = |name: &&str| json!({"metadata": {"name": name}});
        json!({
            "apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadataList", "metadata": {},
            "items": names.iter().map(pod).collect::<Vec<_>>(),
        })
    }

    #[tokio::test]
    async fn pods_of_a_job_that_was_deleted_long_ago_are_told_to_end_and_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let have_ended = Arc::new(AtomicBool::new(false));
        let ended = Arc::clone(&have_ended);
        let (client, asked) = api_server(move |what| match what.split_once(' ') {
            Some(("GET", SET)) => Some(set(&[("StreamJob", "clicks")])),
            Some(("GET", PODS)) if ended.load(Ordering::SeqCst) => Some(list(&[])),
            Some(("GET", PODS)) => Some(list(&["clicks-tm-0"])),
            _ => None,
        });
        let context = context(client, folder.path());
        let job = deleted("Retain");

        let action = take_down(&job, &context).await.unwrap();
        assert_eq!(action, Action::requeue(LOOK_AGAIN));
        assert_eq!(asked.count(&format!("DELETE {SET}")), 1);
        assert_eq!(asked.count(&format!("PATCH {JOB}")), 0);

        have_ended.store(true, Ordering::SeqCst);
        take_down(&job, &context).await.unwrap();
        assert_eq!(asked.count(&format!("PATCH {JOB}")), 1);
    }

    fn set(owners: &[(&str, &str)]) -> serde_json::Value {
        let owner = |(kind, name): &(&str, &str)| json!({"apiVersion": "v1", "kind": kind, "name": name, "uid": "uid-1"});
        json!({
            "apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata",
            "metadata": {
                "name": "clicks-tm", "uid": "set-1",
                "ownerReferences": owners.iter().map(owner).collect::<Vec<_>>(),
            },
        })
    }

    #[tokio::test]
    async fn somebody_elses_stateful_set_of_that_name_stays() {
        for owners in [
            &[][..],
            &[("StreamJob", "other")],
            &[("Database", "clicks")],
        ] {
            let folder = tempfile::tempdir().unwrap();
            let found = set(owners);
            let (client, asked) = api_server(move |what| match what.split_once(' ') {
                Some(("GET", SET)) => Some(found.clone()),
                Some(("GET", PODS)) => Some(list(&[])),
                _ => None,
            });

            take_down(&deleted("Retain"), &context(client, folder.path()))
                .await
                .unwrap();

            assert_eq!(asked.count(&format!("DELETE {SET}")), 0, "{owners:?}");
            assert_eq!(
                asked.count(&format!("PATCH {JOB}")),
                1,
                "the finalizer goes"
            );
        }
    }

    #[tokio::test]
    async fn store_that_does_not_answer_holds_up_no_pass_and_keeps_its_job_until_it_is_cleared() {
        let folder = tempfile::tempdir().unwrap();
        let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = format!("http://{}", silent.local_addr().unwrap());
        let secret = "/api/v1/namespaces/team/secrets/store";
        let (client, asked) = api_server(move |what| match what.split_once(' ') {
            Some(("GET", PODS)) => Some(list(&[])),
            Some(("GET", path)) if path == secret => Some(json!({
                "metadata": {"name": "store"},
                "data": {"accessKeyId": "a2V5", "secretAccessKey": "a2V5"},
            })),
            _ => None,
        });
        let context = context(client, folder.path());
        let job = deleted("Delete");
        let job = with(&job, "/checkpoint/storage/s3/endpoint", json!(endpoint));

        for _ in 0..2 {
            let passed = take_down(&job, &context);
            let passed = tokio::time::timeout(Duration::from_secs(10), passed).await;
            let action = passed.expect("it waits for no store").unwrap();
            assert_eq!(action, Action::requeue(LOOK_AGAIN));
            // It is being cleared.
            let _asked = tokio::time::timeout(Duration::from_secs(10), silent.accept()).await;
        }

        assert_eq!(asked.count(&format!("GET {secret}")), 1);
        assert_eq!(asked.count(&format!("PATCH {JOB}")), 0);
        let kept = folder.path().join("secrets/team/store/accessKeyId");
        assert!(kept.exists());
        context.forget(&job.uid().unwrap());
        assert!(!kept.exists(), "credentials of a job that is gone");
    }
}
