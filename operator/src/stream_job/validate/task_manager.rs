//! `spec.taskManager`: what the pods are like.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{PodTemplateSpec, ResourceRequirements};
use serde::Serialize;
use streamforge_core::secret_name::is_secret_name;
use streamforge_crds::v1alpha1::{LogFormat, LogLevel, PullPolicy, StreamJob, TaskManager};

use super::{Identity, Problem, Problems, RESTART_ANNOTATION, pod_template, resources};

const PATH: &str = "spec.taskManager";

/// All that a document says about the pods of a job, and nothing that it does not: what the operator
/// fills in may differ from version to version, and a new version restarts no pod.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PodSettings {
    /// Subtasks per pod.
    pub slots: u32,
    /// The image; none: the operator's default when the pods are made.
    pub image: Option<String>,
    /// When it is pulled.
    pub image_pull_policy: PullPolicy,
    /// Requests and limits.
    pub resources: ResourceRequirements,
    /// Whose identity the pods have; none: a ServiceAccount of their own.
    pub service_account: Option<String>,
    /// Merged over what is built.
    pub template: PodTemplateSpec,
    /// Time to leave in peace, in whole seconds.
    pub termination_grace_s: i64,
    /// The least level of a log line.
    pub log_level: LogLevel,
    /// How log lines are written, if not as JSON.
    pub log_format: Option<LogFormat>,
    /// The Secrets that are mounted.
    pub secrets: BTreeSet<String>,
    /// The value of [`RESTART_ANNOTATION`].
    pub restart: Option<String>,
}

pub(super) fn check(
    job: &StreamJob,
    identity: &Identity,
    secrets: BTreeSet<String>,
    problems: &mut Problems,
) -> Option<PodSettings> {
    let default = TaskManager::default();
    let task_manager = job.spec.task_manager.as_ref().unwrap_or(&default);
    check_image(task_manager, problems);
    check_service_account(task_manager, problems);
    let termination_grace_s = grace(task_manager, problems);
    let resources = resources::check(task_manager, problems);
    let template = pod_template::check(&task_manager.pod_template, identity, problems);
    let annotations = job.metadata.annotations.as_ref();
    Some(PodSettings {
        slots: task_manager.slots.max(1),
        image: task_manager.image.clone(),
        image_pull_policy: task_manager.image_pull_policy,
        resources: resources?,
        service_account: task_manager.service_account_name.clone(),
        template: template?,
        termination_grace_s,
        log_level: job.spec.logging.level,
        log_format: (job.spec.logging.format).filter(|format| *format != LogFormat::Json),
        secrets,
        restart: annotations
            .and_then(|all| all.get(RESTART_ANNOTATION))
            .cloned(),
    })
}

fn check_image(task_manager: &TaskManager, problems: &mut Problems) {
    let Some(image) = &task_manager.image else {
        return;
    };
    if image.is_empty() || image.chars().any(|c| c.is_whitespace() || c.is_control()) {
        let message = format!("{image:?} is no name of an image");
        let cure = "write as in registry/streamforge-taskmanager:tag, or leave it out";
        problems.add(Problem::new(&format!("{PATH}.image"), message, cure));
    }
}

fn check_service_account(task_manager: &TaskManager, problems: &mut Problems) {
    let name = task_manager.service_account_name.as_deref();
    if let Some(name) = name.filter(|name| !is_secret_name(name)) {
        let message = format!("`{name}` is no name of a ServiceAccount");
        let cure = "a name has lower-case letters, digits, - and .";
        problems.add(Problem::new(
            &format!("{PATH}.serviceAccountName"),
            message,
            cure,
        ));
    }
}

/// A pod that is killed at once hands nothing over.
fn grace(task_manager: &TaskManager, problems: &mut Problems) -> i64 {
    let micros = task_manager.termination_grace_period.micros();
    if micros < 1_000_000 {
        let message = "a pod that is asked to go needs time to hand over what it has";
        let cure = "write at least 1s; the default is 30s";
        problems.add(Problem::new(
            &format!("{PATH}.terminationGracePeriod"),
            message,
            cure,
        ));
    }
    micros.saturating_add(999_999) / 1_000_000
}
