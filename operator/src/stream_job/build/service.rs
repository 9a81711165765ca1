//! The headless Service that gives a job's pods their names.

use k8s_openapi::api::core::v1::{Service, ServicePort, ServiceSpec};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::metadata;
use super::pod::OWN_PORTS;
use crate::stream_job::validate::Identity;

pub(super) fn build(identity: &Identity) -> Service {
    let port = |(name, number): (&str, i32)| ServicePort {
        name: Some(name.to_owned()),
        port: number,
        protocol: Some("TCP".to_owned()),
        target_port: Some(IntOrString::String(name.to_owned())),
        ..ServicePort::default()
    };
    Service {
        metadata: metadata::of(identity, &identity.names.task_managers()),
        spec: Some(ServiceSpec {
            cluster_ip: Some("None".to_owned()),
            selector: Some(identity.names.selector()),
            ports: Some(OWN_PORTS.into_iter().map(port).collect()),
            // A task manager that is not ready yet is spoken to all the same: that makes it ready.
            publish_not_ready_addresses: Some(true),
            ..ServiceSpec::default()
        }),
        status: None,
    }
}
