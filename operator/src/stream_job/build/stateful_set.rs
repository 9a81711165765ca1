//! The StatefulSet of a job's task managers.

use k8s_openapi::api::apps::v1::{StatefulSet, StatefulSetSpec, StatefulSetUpdateStrategy};
use k8s_openapi::api::core::v1::PodTemplateSpec;

use super::metadata;
use crate::stream_job::validate::Identity;

/// Old revisions that are kept, for people who want to compare.
const REVISIONS_MAX: i32 = 2;

pub(super) fn build(identity: &Identity, template: PodTemplateSpec, replicas: i32) -> StatefulSet {
    let name = identity.names.task_managers();
    StatefulSet {
        metadata: metadata::of(identity, &name),
        spec: StatefulSetSpec {
            replicas: Some(replicas),
            selector: metadata::pods(identity),
            service_name: Some(name.to_string()),
            // A pod that does not come up keeps no other from coming up (KF-O15).
            pod_management_policy: Some("Parallel".to_owned()),
            update_strategy: Some(StatefulSetUpdateStrategy {
                type_: Some("RollingUpdate".to_owned()),
                rolling_update: None,
            }),
            revision_history_limit: Some(REVISIONS_MAX),
            template,
            ..StatefulSetSpec::default()
        },
        status: None,
    }
}
