//! `spec.taskManager.podTemplate`: what is merged over the pods that we build.
//!
//! Owns: which fields stay ours, and what is no pod template at all. The merge itself is in
//! `build/pod_template.rs`; after these checks it cannot fail.

use k8s_openapi::api::core::v1::{Container, PodSpec, PodTemplateSpec};
use serde_json::{Map, Number, Value};

use super::{Identity, Problem, Problems};
use crate::stream_job::build::pod::{CONTAINER, OWN_ENV, OWN_MOUNTS, OWN_PORTS, is_own_volume};

const PATH: &str = "spec.taskManager.podTemplate";

/// Reads it.
pub(super) fn check(
    written: &Map<String, Value>,
    identity: &Identity,
    problems: &mut Problems,
) -> Option<PodTemplateSpec> {
    let written = normal(&Value::Object(written.clone()));
    let read: PodTemplateSpec = match serde_json::from_value(written.clone()) {
        Ok(read) => read,
        Err(error) => {
            let cure =
                "write it as the template of a StatefulSet: `podTemplate: {metadata: …, spec: …}`";
            problems.add(Problem::new(PATH, error.to_string(), cure));
            return None;
        }
    };
    let kept = serde_json::to_value(&read).unwrap_or_default();
    unknown_fields(&written, &kept, PATH, problems);
    check_metadata(&written, identity, problems);
    if let Some(spec) = &read.spec {
        check_spec(spec, problems);
    }
    Some(read)
}

/// The same with numbers as the API server would have them: quantities are texts, whole numbers have no
/// fraction.
#[must_use]
pub fn normal(value: &Value) -> Value {
    match value {
        Value::Object(map) => map
            .iter()
            .map(|(key, value)| {
                let value = match key.as_str() {
                    "requests" | "limits" | "overhead" => quantities(value),
                    "sizeLimit" => quantity(value),
                    _ => normal(value),
                };
                (key.clone(), value)
            })
            .collect(),
        Value::Array(items) => items.iter().map(normal).collect(),
        Value::Number(number) => Value::Number(whole(number)),
        other => other.clone(),
    }
}

fn quantities(value: &Value) -> Value {
    match value {
        Value::Object(map) => map
            .iter()
            .map(|(key, value)| (key.clone(), quantity(value)))
            .collect(),
        other => other.clone(),
    }
}

fn quantity(value: &Value) -> Value {
    match value {
        Value::Number(number) => Value::String(whole(number).to_string()),
        other => other.clone(),
    }
}

fn whole(number: &Number) -> Number {
    match number.as_f64() {
        #[expect(clippy::cast_possible_truncation, reason = "whole and below 2^53")]
        Some(float) if number.is_f64() && float.fract() == 0.0 && float.abs() < 9e15 => {
            Number::from(float as i64)
        }
        _ => number.clone(),
    }
}

/// What reading it lost is nothing that Kubernetes knows.
fn unknown_fields(written: &Value, kept: &Value, path: &str, problems: &mut Problems) {
    match (written, kept) {
        (Value::Object(written), Value::Object(kept)) => {
            for (key, value) in written {
                let path = format!("{path}.{key}");
                match kept.get(key) {
                    Some(kept) => unknown_fields(value, kept, &path, problems),
                    None if says_nothing(value) => {}
                    None => {
                        let message = format!("unknown field `{key}`");
                        let cure = "write fields as in the template of a StatefulSet";
                        problems.add(Problem::new(&path, message, cure));
                    }
                }
            }
        }
        (Value::Array(written), Value::Array(kept)) => {
            for (idx, (written, kept)) in written.iter().zip(kept).enumerate() {
                unknown_fields(written, kept, &format!("{path}[{idx}]"), problems);
            }
        }
        _ => {}
    }
}

fn says_nothing(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Object(map) => map.is_empty(),
        Value::Array(items) => items.is_empty(),
        _ => false,
    }
}

/// A pod's labels and annotations may be added to; all else of its metadata is not a template's.
fn check_metadata(written: &Value, identity: &Identity, problems: &mut Problems) {
    let Some(Value::Object(metadata)) = written.get("metadata") else {
        return;
    };
    for key in metadata
        .keys()
        .filter(|key| !matches!(key.as_str(), "labels" | "annotations"))
    {
        let message = format!("`{key}` of a pod is not for a template to say");
        refuse(
            &format!("{PATH}.metadata.{key}"),
            message,
            "write labels and annotations only",
            problems,
        );
    }
    let own = identity.names.labels();
    let labels = metadata.get("labels").and_then(Value::as_object);
    for key in labels
        .into_iter()
        .flat_map(Map::keys)
        .filter(|key| own.contains_key(*key))
    {
        let path = format!("{PATH}.metadata.labels[{key}]");
        refuse(
            &path,
            "the operator finds its pods by this label",
            "use another",
            problems,
        );
    }
}

fn refuse(path: &str, message: impl Into<String>, cure: &str, problems: &mut Problems) {
    problems.add(Problem::new(path, message, cure));
}

fn check_spec(spec: &PodSpec, problems: &mut Problems) {
    let path = format!("{PATH}.spec");
    let grace = spec.termination_grace_period_seconds.is_some();
    let account = spec.service_account_name.is_some();
    let elsewhere = [
        ("serviceAccountName", account, "serviceAccountName"),
        (
            "serviceAccount",
            spec.service_account.is_some(),
            "serviceAccountName",
        ),
        (
            "terminationGracePeriodSeconds",
            grace,
            "terminationGracePeriod",
        ),
    ];
    refuse_elsewhere(&path, &elsewhere, problems);
    if spec
        .restart_policy
        .as_ref()
        .is_some_and(|policy| policy != "Always")
    {
        let message = "the pods of a StatefulSet are always restarted";
        refuse(
            &format!("{path}.restartPolicy"),
            message,
            "remove it",
            problems,
        );
    }
    for (idx, volume) in spec.volumes.iter().flatten().enumerate() {
        if is_own_volume(&volume.name) {
            let message = format!("the volume `{}` is the operator's", volume.name);
            refuse(
                &format!("{path}.volumes[{idx}].name"),
                message,
                "use another name",
                problems,
            );
        }
    }
    check_names(&format!("{path}.containers"), &spec.containers, problems);
    check_names(
        &format!("{path}.initContainers"),
        spec.init_containers.as_deref().unwrap_or_default(),
        problems,
    );
    for (idx, container) in spec.containers.iter().enumerate() {
        if container.name == CONTAINER {
            check_container(&format!("{path}.containers[{idx}]"), container, problems);
        }
    }
}

/// Containers are merged by name.
fn check_names(path: &str, containers: &[Container], problems: &mut Problems) {
    for (idx, container) in containers.iter().enumerate() {
        let path = format!("{path}[{idx}].name");
        if container.name.is_empty() {
            refuse(
                &path,
                "a container needs a name",
                "`task-manager` is the operator's own",
                problems,
            );
        } else if containers
            .iter()
            .take(idx)
            .any(|other| other.name == container.name)
        {
            let message = format!("the container `{}` is written twice", container.name);
            refuse(&path, message, "write it once", problems);
        }
    }
}

/// Our own container: how it is started and asked how it does is ours.
fn check_container(path: &str, container: &Container, problems: &mut Problems) {
    let ours = [
        ("command", container.command.is_some()),
        ("args", container.args.is_some()),
        ("readinessProbe", container.readiness_probe.is_some()),
        ("livenessProbe", container.liveness_probe.is_some()),
    ];
    for (field, _) in ours.iter().filter(|(_, is_written)| *is_written) {
        let path = format!("{path}.{field}");
        refuse(&path, "the operator says this", "remove it", problems);
    }
    let image = container.image.is_some();
    let pull_policy = container.image_pull_policy.is_some();
    let resources = container.resources.is_some();
    let elsewhere = [
        ("image", image, "image"),
        ("imagePullPolicy", pull_policy, "imagePullPolicy"),
        ("resources", resources, "resources"),
    ];
    refuse_elsewhere(path, &elsewhere, problems);
    check_environment(path, container, problems);
    check_mounts(path, container, problems);
}

/// Fields of a pod that `spec.taskManager` has a field for.
fn refuse_elsewhere(path: &str, fields: &[(&str, bool, &str)], problems: &mut Problems) {
    for (field, _, instead) in fields.iter().filter(|(_, is_written, _)| *is_written) {
        let path = format!("{path}.{field}");
        let message = "another field of the document says this";
        let cure = format!("remove it, and write spec.taskManager.{instead}");
        refuse(&path, message, &cure, problems);
    }
}

/// Variables and ports.
fn check_environment(path: &str, container: &Container, problems: &mut Problems) {
    for (idx, env) in container.env.iter().flatten().enumerate() {
        if OWN_ENV.contains(&env.name.as_str()) {
            let path = format!("{path}.env[{idx}].name");
            let message = format!("the variable `{}` is the operator's", env.name);
            refuse(&path, message, "use another name", problems);
        }
    }
    for (idx, port) in container.ports.iter().flatten().enumerate() {
        let name = port.name.as_deref();
        let is_own =
            |(own, number): &(&str, i32)| *number == port.container_port || name == Some(*own);
        if OWN_PORTS.iter().any(is_own) {
            let path = format!("{path}.ports[{idx}]");
            let message = format!("the port {} is the operator's", port.container_port);
            refuse(&path, message, "use another", problems);
        }
    }
}

fn check_mounts(path: &str, container: &Container, problems: &mut Problems) {
    for (idx, mount) in container.volume_mounts.iter().flatten().enumerate() {
        let mounted = plain_path(&mount.mount_path);
        let is_own = |own: &str| mounted == own || mounted.starts_with(&format!("{own}/"));
        if OWN_MOUNTS.into_iter().any(is_own) {
            let path = format!("{path}.volumeMounts[{idx}].mountPath");
            let message = format!("`{}` is the operator's", mount.mount_path);
            refuse(&path, message, "use another", problems);
        }
    }
}

/// The same place in the only way to write it; `..` the API server refuses.
fn plain_path(path: &str) -> String {
    let steps = path.split('/').filter(|step| !matches!(*step, "" | "."));
    steps.map(|step| format!("/{step}")).collect()
}
