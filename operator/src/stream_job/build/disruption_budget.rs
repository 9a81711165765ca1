//! The PodDisruptionBudget: a drain takes one pod of a job at a time, so that the others have taken its
//! key groups over before the next one goes.

use k8s_openapi::api::policy::v1::{PodDisruptionBudget, PodDisruptionBudgetSpec};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::metadata;
use crate::stream_job::validate::Identity;

pub(super) fn build(identity: &Identity) -> PodDisruptionBudget {
    PodDisruptionBudget {
        metadata: metadata::of(identity, &identity.names.task_managers()),
        spec: Some(PodDisruptionBudgetSpec {
            // Not `minAvailable`: of a job with one pod that would block every drain for ever.
            max_unavailable: Some(IntOrString::Int(1)),
            selector: Some(metadata::pods(identity)),
            // A pod that does not work is no reason to keep its node.
            unhealthy_pod_eviction_policy: Some("AlwaysAllow".to_owned()),
            ..PodDisruptionBudgetSpec::default()
        }),
        status: None,
    }
}
