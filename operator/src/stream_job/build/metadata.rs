//! What all children have in common.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta, OwnerReference};

use crate::names::ChildName;
use crate::stream_job::validate::Identity;

/// Name, labels and owner of a child.
pub(super) fn of(identity: &Identity, name: &ChildName) -> ObjectMeta {
    ObjectMeta {
        name: Some(name.to_string()),
        namespace: Some(identity.namespace.clone()),
        labels: Some(identity.names.labels()),
        owner_references: Some(vec![owner(identity)]),
        ..ObjectMeta::default()
    }
}

/// The job as the owner of an object: when the job is gone the object goes too.
#[must_use]
pub fn owner(identity: &Identity) -> OwnerReference {
    OwnerReference {
        api_version: "streamforge.io/v1alpha1".to_owned(),
        kind: "StreamJob".to_owned(),
        name: identity.name.clone(),
        uid: identity.uid.to_string(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    }
}

/// The pods of a job.
pub(super) fn pods(identity: &Identity) -> LabelSelector {
    LabelSelector {
        match_labels: Some(identity.names.selector()),
        match_expressions: None,
    }
}
