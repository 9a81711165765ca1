//! The NetworkPolicy: rows come from pods of the same job only; metrics may be read by anybody. Nothing is
//! said about where a pod may go: only the document knows its brokers and buckets.

use k8s_openapi::api::networking::v1::{
    NetworkPolicy, NetworkPolicyIngressRule, NetworkPolicyPeer, NetworkPolicyPort,
    NetworkPolicySpec,
};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::metadata;
use crate::settings::{EXCHANGE_PORT, METRICS_PORT};
use crate::stream_job::validate::Identity;

pub(super) fn build(identity: &Identity) -> NetworkPolicy {
    let port = |number: i32| {
        let port = NetworkPolicyPort {
            port: Some(IntOrString::Int(number)),
            protocol: Some("TCP".to_owned()),
            ..NetworkPolicyPort::default()
        };
        Some(vec![port])
    };
    let same_job = NetworkPolicyPeer {
        pod_selector: Some(metadata::pods(identity)),
        ..NetworkPolicyPeer::default()
    };
    NetworkPolicy {
        metadata: metadata::of(identity, &identity.names.task_managers()),
        spec: Some(NetworkPolicySpec {
            pod_selector: Some(metadata::pods(identity)),
            policy_types: Some(vec!["Ingress".to_owned()]),
            ingress: Some(vec![
                NetworkPolicyIngressRule {
                    from: Some(vec![same_job]),
                    ports: port(EXCHANGE_PORT),
                },
                NetworkPolicyIngressRule {
                    from: None,
                    ports: port(METRICS_PORT),
                },
            ]),
            egress: None,
        }),
    }
}
