//! The children of a job, from what is to run.
//!
//! Owns: what the objects of a job look like. Pure, and cannot fail: every mistake was found by validate.
//! The objects are whole, so that server-side apply with one field manager repairs every field that is
//! ours and takes none that is not. Start at: [`build`]; one file per kind.

mod disruption_budget;
mod document;
mod merge;
mod metadata;
mod network_policy;
pub mod pod;
mod service;
mod service_account;
mod stateful_set;
mod tls_secret;

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{ConfigMap, Service, ServiceAccount};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;

use super::validate::Desired;
use crate::certificates::Leaf;
use crate::settings::Settings;

pub use document::{DOCUMENT_KEY, Deployed, PODS_KEY};
pub use metadata::owner;
pub use pod::KeptPods;
pub use tls_secret::{AUTHORITY_KEY, CERTIFICATE_KEY, PRIVATE_KEY_KEY, TlsSecret};

/// What to build from.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// What is to run.
    pub desired: &'a Desired,
    /// What the operator was told.
    pub settings: &'a Settings,
    /// The pods that run, as they were built. They stay as they are while the document says the same of
    /// them: an operator of another version restarts no pod.
    pub kept: Option<&'a KeptPods>,
    /// How many pods there are to be now: none of a job that is suspended or over, and while key groups
    /// are handed over more than the document asks for.
    pub replicas: i32,
    /// The certificate of the task managers, if it is a new one.
    pub certificate: Option<&'a Leaf>,
}

/// All children of a job.
#[derive(Clone, Debug, PartialEq)]
pub struct Children {
    /// The document that runs, and the pods as they were built.
    pub document: ConfigMap,
    /// The identity of the pods, with no rights at all.
    pub service_account: ServiceAccount,
    /// Certificates of the pods; none: those that are there hold.
    pub tls: Option<TlsSecret>,
    /// Names for the pods.
    pub service: Service,
    /// How many pods may be away at once.
    pub disruption_budget: PodDisruptionBudget,
    /// Who may speak to the pods.
    pub network_policy: NetworkPolicy,
    /// The pods.
    pub stateful_set: StatefulSet,
}

/// Builds the children.
#[must_use]
pub fn build(request: &Request<'_>) -> Children {
    let Request {
        desired,
        settings,
        kept,
        replicas,
        certificate,
    } = *request;
    let identity = &desired.identity;
    let pods = KeptPods::of(desired, settings, kept);
    Children {
        document: document::build(desired, &pods),
        service_account: service_account::build(identity),
        tls: certificate.map(|certificate| tls_secret::build(identity, certificate)),
        service: service::build(identity),
        disruption_budget: disruption_budget::build(identity),
        network_policy: network_policy::build(identity),
        stateful_set: stateful_set::build(identity, pods.template, replicas),
    }
}

#[cfg(test)]
mod tests;
