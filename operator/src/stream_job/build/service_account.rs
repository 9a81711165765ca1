//! The ServiceAccount of a job's pods: a name without rights, and without a token in the pods.

use k8s_openapi::api::core::v1::ServiceAccount;

use super::metadata;
use crate::stream_job::validate::Identity;

pub(super) fn build(identity: &Identity) -> ServiceAccount {
    ServiceAccount {
        metadata: metadata::of(identity, &identity.names.task_managers()),
        automount_service_account_token: Some(false),
        ..ServiceAccount::default()
    }
}
