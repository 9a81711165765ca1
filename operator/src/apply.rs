//! Writing to the API server.
//!
//! Owns: server-side apply with one field manager, and what is done when the server refuses a change of
//! something that cannot be changed. Decides nothing about a job.

use std::fmt::Debug;

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{DeleteParams, Patch, PatchParams, Preconditions, PropagationPolicy};
use kube::core::{Request, Status};
use kube::{Api, Client, Resource, ResourceExt as _};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use streamforge_crds::v1alpha1::StreamJob;

use crate::names::FIELD_MANAGER;

/// The same for statuses: another field manager's fields are never in the way.
pub const STATUS_MANAGER: &str = "streamforge-operator-status";

/// Applies one object; what somebody else set in a field of ours is set back.
///
/// # Errors
/// The server's.
pub async fn apply<K>(client: &Client, object: &K) -> Result<K, kube::Error>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + Debug
        + Serialize
        + DeserializeOwned,
{
    let namespace = object.namespace().unwrap_or_default();
    let api: Api<K> = Api::namespaced(client.clone(), &namespace);
    let params = PatchParams::apply(FIELD_MANAGER).force();
    api.patch(&object.name_any(), &params, &Patch::Apply(object))
        .await
}

/// Patches a resource of ours, its status or all but that. What the server answers is not read: it may be nothing that
/// can be.
///
/// # Errors
/// The server's.
pub async fn patch<K>(
    client: &Client,
    object: &K,
    part: Part,
    (params, patch): (&PatchParams, &Patch<Value>),
) -> Result<(), kube::Error>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
{
    let (namespace, name) = (object.namespace().unwrap_or_default(), object.name_any());
    let request = Request::new(K::url_path(&(), Some(&namespace)));
    let request = match part {
        Part::Object => request.patch(&name, params, patch),
        Part::Status => request.patch_subresource("status", &name, params, patch),
    };
    let request = request.map_err(kube::Error::BuildRequest)?;
    client.request_text(request).await.map(drop)
}

/// What of a resource is patched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// All but the status.
    Object,
    /// The status.
    Status,
}

/// As [`apply`]. A field that cannot be changed makes the server refuse; then the set is made anew, and its pods go on
/// meanwhile. `None`: the one that is there goes first, and is to be applied again when it is gone.
///
/// # Errors
/// The server's.
pub async fn apply_set(
    client: &Client,
    set: &StatefulSet,
    job: &StreamJob,
) -> Result<Option<StatefulSet>, kube::Error> {
    let refused = match apply(client, set).await {
        Err(kube::Error::Api(status)) if is_unchangeable(&status) => status,
        applied => return applied.map(Some),
    };
    let namespace = set.namespace().unwrap_or_default();
    let (api, name) = (
        Api::<StatefulSet>::namespaced(client.clone(), &namespace),
        set.name_any(),
    );
    let Some(found) = api.get_metadata_opt(&name).await? else {
        return Ok(None);
    };
    if !is_child(&found.metadata, job) {
        return Err(kube::Error::Api(refused));
    }
    if found.metadata.deletion_timestamp.is_some() {
        return Ok(None); // its pods are being let go of
    }
    tracing::warn!(
        set = name,
        reason = refused.message,
        "making the StatefulSet anew, its pods go on"
    );
    let orphan = DeleteParams {
        propagation_policy: Some(PropagationPolicy::Orphan),
        preconditions: Some(Preconditions {
            uid: found.metadata.uid,
            resource_version: None,
        }),
        ..DeleteParams::default()
    };
    match api.delete(&name, &orphan).await {
        Err(error) if !is_gone(&error) && !is_conflict(&error) => Err(error),
        _ => Ok(None),
    }
}

/// Whether all that is wrong with a change is that the object cannot be changed so. A wrong pod template is told in the
/// same answer, and a set that was deleted for it could not be made again.
fn is_unchangeable(refused: &Status) -> bool {
    const SAID: &str = "updates to statefulset spec";
    let causes = refused.details.as_ref().map(|details| &details.causes[..]);
    refused.code == 422
        && match causes.unwrap_or_default() {
            [] => refused.message.contains(SAID),
            causes => causes.iter().all(|cause| cause.message.contains(SAID)),
        }
}

/// Asks whether a set would be taken. `Some`: why it is refused for what it says.
///
/// # Errors
/// The server's, when that says nothing of the set.
pub async fn dry_run(client: &Client, set: &StatefulSet) -> Result<Option<String>, kube::Error> {
    let namespace = set.namespace().unwrap_or_default();
    let api: Api<StatefulSet> = Api::namespaced(client.clone(), &namespace);
    let params = PatchParams {
        dry_run: true,
        ..PatchParams::apply(FIELD_MANAGER).force()
    };
    let asked = api
        .patch(&set.name_any(), &params, &Patch::Apply(set))
        .await;
    let refused = match asked {
        Err(kube::Error::Api(refused)) => refused,
        taken => return taken.map(|_| None),
    };
    // A webhook with side effects is asked when it counts.
    if is_unchangeable(&refused) || refused.message.contains("does not support dry run") {
        return Ok(None);
    }
    // Policies and webhooks deny with this code, too; else it is a right of ours, a quota, or the end of a namespace.
    let is_of_ours = refused.code == 403 && !refused.message.contains("denied");
    if is_refusal(&refused) && !is_of_ours {
        return Ok(Some(refused.message));
    }
    Err(kube::Error::Api(refused))
}

/// Whether the server refuses what it is told, and will do so again.
#[must_use]
pub fn is_refusal(status: &Status) -> bool {
    (400..500).contains(&status.code) && ![401, 404, 408, 409, 429].contains(&status.code)
}

/// Takes all pods of a set away, and changes nothing else of it.
///
/// # Errors
/// The server's.
pub async fn scale_to_zero(client: &Client, set: &StatefulSet) -> Result<(), kube::Error> {
    let params = PatchParams {
        field_manager: Some(FIELD_MANAGER.to_owned()),
        ..PatchParams::default()
    };
    let change = Patch::Merge(json!({"spec": {"replicas": 0}}));
    patch(client, set, Part::Object, (&params, &change)).await
}

/// Whether an object of this name is free for a job, or the job's already: one of an earlier job of the
/// same name is. Server-side apply would take over whatever it finds.
///
/// # Errors
/// The server's.
pub async fn is_free<K>(client: &Client, object: &K, job: &StreamJob) -> Result<bool, kube::Error>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + Debug
        + DeserializeOwned,
{
    let namespace = object.namespace().unwrap_or_default();
    let api: Api<K> = Api::namespaced(client.clone(), &namespace);
    let Some(found) = api.get_metadata_opt(&object.name_any()).await? else {
        return Ok(true);
    };
    Ok(is_child(&found.metadata, job))
}

/// Whether something is the job's, or that of an earlier one of its name.
#[must_use]
pub fn is_child(metadata: &ObjectMeta, job: &StreamJob) -> bool {
    let (name, kind) = (job.name_any(), StreamJob::kind(&()));
    let mut owners = metadata.owner_references.iter().flatten();
    owners.any(|owner| owner.kind == kind && owner.name == name)
}

/// Whether an error says that the object is not there.
#[must_use]
pub fn is_gone(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 404)
}

/// Whether an error says that the object is not there, or that this operator has no right to it any more: in a
/// namespace that is being deleted its Role may be gone first.
#[must_use]
pub fn is_out_of_reach(error: &kube::Error) -> bool {
    is_gone(error) || matches!(error, kube::Error::Api(status) if status.code == 403)
}

/// Whether an error says that somebody else has written in between: news of that is on its way.
#[must_use]
pub fn is_conflict(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 409)
}

#[cfg(test)]
mod tests;
