//! A task manager's pod.
//!
//! Owns: how a task manager is started, what it may do (nothing but run: Pod Security "restricted"), and
//! how it is asked how it does. Start at: [`KeptPods::of`].

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{
    Capabilities, Container, ContainerPort, EmptyDirVolumeSource, EnvVar, EnvVarSource,
    HTTPGetAction, ObjectFieldSelector, PodSecurityContext, PodSpec, PodTemplateSpec, Probe,
    SeccompProfile, SecretVolumeSource, SecurityContext, TopologySpreadConstraint, Volume,
    VolumeMount,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use serde::{Deserialize, Serialize};
use streamforge_crds::v1alpha1::{LogFormat, LogLevel, PullPolicy};
use xxhash_rust::xxh3::xxh3_64;

use super::{merge, metadata};
use crate::hash;
use crate::names::COORDINATOR_DNS_NAME;
use crate::settings::{EXCHANGE_PORT, METRICS_PORT, Settings};
use crate::stream_job::validate::{Desired, PodSettings, RESTART_ANNOTATION};

/// The container that is ours.
pub const CONTAINER: &str = "task-manager";

/// Variables of it that are ours.
pub const OWN_ENV: [&str; 3] = ["POD_NAME", "POD_IP", "TMPDIR"];

/// Ports of it.
pub const OWN_PORTS: [(&str, i32); 2] = [("exchange", EXCHANGE_PORT), ("metrics", METRICS_PORT)];

/// Folders of it.
pub const OWN_MOUNTS: [&str; 2] = ["/etc/streamforge", "/var/lib/streamforge"];

const TLS: &str = "/etc/streamforge/tls";
const SECRETS: &str = "/etc/streamforge/secrets";
const DATA: &str = "/var/lib/streamforge";
const COPIES: &str = "/var/lib/streamforge/copies";

const TLS_VOLUME: &str = "streamforge-tls";
const SECRET_VOLUME: &str = "streamforge-secret-";

/// The volume for copies of state and for what waits to be uploaded; a template may put another kind
/// of volume in its place.
pub const COPIES_VOLUME: &str = "streamforge-copies";

/// The user that our images run as.
const USER: i64 = 65_532;

/// Owner and group read.
const SECRET_MODE: i32 = 0o440;

/// So often a probe may fail in a row: a busy pod is not a dead one.
const PROBE_FAILURES: i32 = 6;

/// Whether a volume of this name is ours alone.
#[must_use]
pub fn is_own_volume(name: &str) -> bool {
    name.starts_with("streamforge-") && name != COPIES_VOLUME
}

/// Pods as they were built, and what from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KeptPods {
    /// Hash of what a document said about them.
    pub hash: String,
    /// The template.
    pub template: PodTemplateSpec,
    /// That both were written by an operator, for this job: they are kept where others may write who may make
    /// no pods.
    #[serde(default)]
    seal: String,
}

impl KeptPods {
    /// The pods for a job: those that run, if the document says the same of them as when they were built.
    #[must_use]
    pub fn of(desired: &Desired, settings: &Settings, kept: Option<&Self>) -> Self {
        let hash = pods_hash(desired, settings);
        match kept {
            Some(kept) if kept.hash == hash && kept.is_ours(desired, settings) => kept.clone(),
            _ => Self::built(desired, settings, hash),
        }
    }

    fn built(desired: &Desired, settings: &Settings, hash: String) -> Self {
        let mut built = Self {
            hash,
            template: template(desired, settings),
            seal: String::new(),
        };
        built.seal = settings.seal.seal(&built.sealed(desired));
        built
    }

    fn is_ours(&self, desired: &Desired, settings: &Settings) -> bool {
        settings.seal.is_of(&self.sealed(desired), &self.seal)
    }

    /// The Secrets that are mounted into them, but for the one that the operator itself writes.
    #[must_use]
    pub fn secrets(&self) -> BTreeSet<&str> {
        let spec = self.template.spec.iter();
        let volumes = spec.flat_map(|spec| spec.volumes.iter().flatten());
        let others = volumes.filter(|volume| volume.name != TLS_VOLUME);
        let names = others.flat_map(|volume| {
            let whole = volume
                .secret
                .iter()
                .filter_map(|it| it.secret_name.as_deref());
            let sources = volume.projected.iter().flat_map(|it| &it.sources);
            let parts = sources.flatten().filter_map(|it| it.secret.as_ref());
            whole.chain(parts.map(|it| it.name.as_str()))
        });
        names.collect()
    }

    /// What is sealed.
    fn sealed(&self, desired: &Desired) -> String {
        let parts = (desired.identity.uid.as_str(), &self.hash, &self.template);
        let parts = serde_json::to_value(parts).expect("a pod template has texts as keys");
        hash::canonical(&parts).to_string()
    }

    /// For the ConfigMap that keeps them.
    #[must_use]
    pub fn text(&self) -> String {
        serde_json::to_string(self).expect("a pod template has texts as keys")
    }

    /// Reads them back; none if this is nothing of ours.
    #[must_use]
    pub fn read(text: &str) -> Option<Self> {
        serde_json::from_str(text).ok()
    }
}

/// What pods are made of: when it changes they are made anew. What an operator fills in by itself is no
/// part of it, but where the coordinator is: pods that do not find it are of no use.
#[must_use]
pub fn pods_hash(desired: &Desired, settings: &Settings) -> String {
    hash::of(&(&desired.pods_hash(), &settings.coordinator))
}

fn template(desired: &Desired, settings: &Settings) -> PodTemplateSpec {
    let built = PodTemplateSpec {
        metadata: Some(ObjectMeta {
            labels: Some(desired.identity.names.labels()),
            annotations: Some(annotations(&desired.pods)),
            ..ObjectMeta::default()
        }),
        spec: Some(pod(desired, settings)),
    };
    let value = |template: &PodTemplateSpec| {
        serde_json::to_value(template).expect("a pod template has texts as keys")
    };
    let merged = merge::merge(value(&built), value(&desired.pods.template));
    serde_json::from_value(merged)
        .expect("both are pod templates, and a merge changes no field's type")
}

fn annotations(pods: &PodSettings) -> BTreeMap<String, String> {
    let container = ("kubectl.kubernetes.io/default-container", CONTAINER);
    let restart = pods
        .restart
        .as_deref()
        .map(|value| (RESTART_ANNOTATION, value));
    [Some(container), restart]
        .into_iter()
        .flatten()
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .collect()
}

fn pod(desired: &Desired, settings: &Settings) -> PodSpec {
    let identity = &desired.identity;
    let pods = &desired.pods;
    let own_account = || identity.names.task_managers().to_string();
    PodSpec {
        service_account_name: Some(pods.service_account.clone().unwrap_or_else(own_account)),
        automount_service_account_token: Some(false),
        enable_service_links: Some(false),
        termination_grace_period_seconds: Some(pods.termination_grace_s),
        security_context: Some(PodSecurityContext {
            run_as_non_root: Some(true),
            run_as_user: Some(USER),
            run_as_group: Some(USER),
            fs_group: Some(USER),
            fs_group_change_policy: Some("OnRootMismatch".to_owned()),
            seccomp_profile: Some(runtime_default()),
            ..PodSecurityContext::default()
        }),
        topology_spread_constraints: Some(spread(desired)),
        containers: vec![container(desired, settings)],
        volumes: Some(volumes(desired)),
        ..PodSpec::default()
    }
}

fn runtime_default() -> SeccompProfile {
    SeccompProfile {
        type_: "RuntimeDefault".to_owned(),
        localhost_profile: None,
    }
}

/// Over nodes as far as they go: one that is lost takes as few pods as can be. Zones are left to the
/// template: where no node has a zone, a constraint on zones would make the scheduler forget the nodes, too.
fn spread(desired: &Desired) -> Vec<TopologySpreadConstraint> {
    vec![TopologySpreadConstraint {
        max_skew: 1,
        topology_key: "kubernetes.io/hostname".to_owned(),
        when_unsatisfiable: "ScheduleAnyway".to_owned(),
        label_selector: Some(metadata::pods(&desired.identity)),
        ..TopologySpreadConstraint::default()
    }]
}

fn container(desired: &Desired, settings: &Settings) -> Container {
    let pods = &desired.pods;
    let image = pods.image.as_ref().unwrap_or(&settings.task_manager_image);
    Container {
        name: CONTAINER.to_owned(),
        image: Some(image.clone()),
        image_pull_policy: Some(pull_policy(pods.image_pull_policy).to_owned()),
        command: Some(vec!["/bin/streamforge-taskmanager".to_owned()]),
        args: Some(arguments(desired, settings)),
        env: Some(env(pods)),
        ports: Some(ports()),
        readiness_probe: Some(probe("/readyz", 1)),
        liveness_probe: Some(probe("/livez", 5)),
        resources: Some(pods.resources.clone()),
        security_context: Some(SecurityContext {
            allow_privilege_escalation: Some(false),
            capabilities: Some(Capabilities {
                drop: Some(vec!["ALL".to_owned()]),
                add: None,
            }),
            read_only_root_filesystem: Some(true),
            ..SecurityContext::default()
        }),
        volume_mounts: Some(mounts(desired)),
        ..Container::default()
    }
}

fn pull_policy(policy: PullPolicy) -> &'static str {
    match policy {
        PullPolicy::Always => "Always",
        PullPolicy::IfNotPresent => "IfNotPresent",
        PullPolicy::Never => "Never",
    }
}

fn arguments(desired: &Desired, settings: &Settings) -> Vec<String> {
    let uid = &desired.identity.uid;
    let slots = desired.pods.slots;
    vec![
        format!("--coordinator={}", settings.coordinator),
        format!("--job={uid}"),
        "--stay".to_owned(),
        "--name=$(POD_NAME)".to_owned(),
        format!("--slots={slots}"),
        format!("--listen=0.0.0.0:{EXCHANGE_PORT}"),
        "--advertise=$(POD_IP)".to_owned(),
        format!("--metrics-listen=0.0.0.0:{METRICS_PORT}"),
        format!("--secrets={SECRETS}"),
        format!("--tls-ca={TLS}/{}", super::AUTHORITY_KEY),
        format!("--tls-cert={TLS}/{}", super::CERTIFICATE_KEY),
        format!("--tls-key={TLS}/{}", super::PRIVATE_KEY_KEY),
        format!("--tls-peer-name={}", uid.dns_name()),
        format!("--tls-coordinator-name={COORDINATOR_DNS_NAME}"),
        format!("--local-copies={COPIES}"),
    ]
}

fn env(pods: &PodSettings) -> Vec<EnvVar> {
    let from_field = |name: &str, path: &str| EnvVar {
        name: name.to_owned(),
        value: None,
        value_from: Some(EnvVarSource {
            field_ref: Some(ObjectFieldSelector {
                field_path: path.to_owned(),
                api_version: None,
            }),
            ..EnvVarSource::default()
        }),
    };
    let is = |name: &str, value: &str| EnvVar {
        name: name.to_owned(),
        value: Some(value.to_owned()),
        value_from: None,
    };
    let [name, ip, tmp] = OWN_ENV;
    vec![
        from_field(name, "metadata.name"),
        from_field(ip, "status.podIP"),
        // What is too large for memory while it waits to be uploaded; the root is read-only.
        is(tmp, DATA),
        is("RUST_LOG", log_filter(pods.log_level)),
        // A variable and no argument: an image of another version may not know it.
        is("STREAMFORGE_LOG_FORMAT", log_format(pods.log_format)),
    ]
}

fn log_filter(level: LogLevel) -> &'static str {
    match level {
        LogLevel::Error => "error",
        LogLevel::Warn => "warn",
        LogLevel::Info => "info",
        LogLevel::Debug => "debug",
        LogLevel::Trace => "trace",
    }
}

fn log_format(format: Option<LogFormat>) -> &'static str {
    match format {
        Some(LogFormat::Text) => "text",
        Some(LogFormat::Json) | None => "json",
    }
}

fn ports() -> Vec<ContainerPort> {
    let port = |(name, number): (&str, i32)| ContainerPort {
        name: Some(name.to_owned()),
        container_port: number,
        protocol: Some("TCP".to_owned()),
        ..ContainerPort::default()
    };
    OWN_PORTS.into_iter().map(port).collect()
}

fn probe(path: &str, period_s: i32) -> Probe {
    Probe {
        http_get: Some(HTTPGetAction {
            path: Some(path.to_owned()),
            port: IntOrString::String("metrics".to_owned()),
            ..HTTPGetAction::default()
        }),
        period_seconds: Some(period_s),
        failure_threshold: Some(PROBE_FAILURES),
        ..Probe::default()
    }
}

/// The volume of a secret: a secret's own name may be too long for one.
fn secret_volume(secret: &str) -> String {
    format!(
        "{SECRET_VOLUME}{:08x}",
        xxh3_64(secret.as_bytes()) & 0xffff_ffff
    )
}

fn volumes(desired: &Desired) -> Vec<Volume> {
    let of_secret = |name: String, secret: String| Volume {
        name,
        secret: Some(SecretVolumeSource {
            secret_name: Some(secret),
            default_mode: Some(SECRET_MODE),
            ..SecretVolumeSource::default()
        }),
        ..Volume::default()
    };
    let copies = Volume {
        name: COPIES_VOLUME.to_owned(),
        empty_dir: Some(EmptyDirVolumeSource::default()),
        ..Volume::default()
    };
    let tls = of_secret(
        TLS_VOLUME.to_owned(),
        desired.identity.names.tls().to_string(),
    );
    let secrets = desired.secrets().iter();
    let secrets = secrets.map(|secret| of_secret(secret_volume(secret), secret.clone()));
    [tls, copies].into_iter().chain(secrets).collect()
}

fn mounts(desired: &Desired) -> Vec<VolumeMount> {
    let mount = |name: &str, path: String, read_only: Option<bool>| VolumeMount {
        name: name.to_owned(),
        mount_path: path,
        read_only,
        ..VolumeMount::default()
    };
    let tls = mount(TLS_VOLUME, TLS.to_owned(), Some(true));
    let copies = mount(COPIES_VOLUME, DATA.to_owned(), None);
    let secrets = desired.secrets().iter().map(|secret| {
        let path = format!("{SECRETS}/{secret}");
        mount(&secret_volume(secret), path, Some(true))
    });
    [tls, copies].into_iter().chain(secrets).collect()
}
