//! Secrets that were changed under the pods which mount them.
//!
//! Owns: which pods are to hear of a change, and which failures are taken for the old values'. The kubelet
//! brings a change into a pod when it next looks at the pod, within a minute and a half, or at once when the pod
//! itself changes: an annotation is enough. Pure; when a Secret was changed is what the API server says of it,
//! so an operator that has just started knows as much as the one before. Start at: [`due`], [`excuse`].

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ManagedFieldsEntry, ObjectMeta};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::ResourceExt as _;
use streamforge_host::{Phase, Status};

/// Of a pod: the Secrets that were changed after it began, with the versions that its kubelet was told of.
pub const ANNOTATION: &str = "streamforge.io/secrets";

/// For so long after a change the old values may be what an attempt fails by: the kubelet takes up to 90 s by
/// itself.
pub const OLD_VALUES: SignedDuration = SignedDuration::from_mins(2);

/// The newest of a Secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Newest {
    /// Its name.
    pub name: String,
    version: String,
    /// When its values were written last.
    changed: Timestamp,
}

impl Newest {
    /// What its metadata says; none: it says nothing of when.
    #[must_use]
    pub fn of(meta: &ObjectMeta) -> Option<Self> {
        let writes = meta.managed_fields.iter().flatten().filter(writes_values);
        let times = writes.filter_map(|it| it.time.as_ref());
        let changed = times.max().or(meta.creation_timestamp.as_ref())?;
        Some(Self {
            name: meta.name.clone()?,
            version: meta.resource_version.clone()?,
            changed: changed.0,
        })
    }

    /// How long before that time it was changed.
    #[must_use]
    pub fn age(&self, at: Timestamp) -> SignedDuration {
        at.duration_since(self.changed)
    }
}

fn writes_values(entry: &&ManagedFieldsEntry) -> bool {
    let fields = entry.fields_v1.as_ref().map(|fields| &fields.0);
    let has = |key| fields.is_some_and(|fields| fields.get(key).is_some());
    has("f:data") || has("f:stringData")
}

/// What the annotation of a pod is to say; none: its kubelet knows all there is to know.
#[must_use]
pub fn due(pod: &Pod, secrets: &[Newest]) -> Option<String> {
    if pod.metadata.deletion_timestamp.is_some() {
        return None;
    }
    let began = pod.metadata.creation_timestamp.as_ref()?.0;
    let newer = secrets.iter().filter(|secret| secret.changed > began);
    let newer: Vec<String> = newer
        .map(|Newest { name, version, .. }| format!("{name}={version}"))
        .collect();
    let newer = newer.join(",");
    let told = pod.annotations().get(ANNOTATION);
    (!newer.is_empty() && told != Some(&newer)).then_some(newer)
}

/// The Secret whose old values a failure may have come of: it was changed in the life of the job, and at most two
/// minutes before.
#[must_use]
pub fn excuse(
    secrets: &[Newest],
    job_began: Option<Timestamp>,
    failed: Timestamp,
) -> Option<&Newest> {
    let began = job_began?;
    let changed = secrets.iter().filter(|secret| secret.changed > began);
    changed
        .max_by_key(|secret| secret.changed)
        .filter(|secret| secret.age(failed) < OLD_VALUES)
}

/// Whether it may be old values of a Secret that a job suffers from.
#[must_use]
pub fn may_be_old(status: &Status) -> bool {
    let runs = matches!(status.phase, Phase::Running | Phase::Finishing);
    let failed = status.checkpoint.last_failed.as_ref();
    let completed = status.checkpoint.last_completed.as_ref();
    let checkpoints_fail = failed.map(|it| it.time_ms) > completed.map(|it| it.time_ms);
    let is_cut_off = !status.unreachable.is_empty();
    status.last_failure.is_some() && !runs || checkpoints_fail || is_cut_off
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use streamforge_host::Failure;

    use super::*;

    fn at(text: &str) -> Timestamp {
        format!("2026-01-31T{text}Z").parse().unwrap()
    }

    fn meta(version: &str, managed_fields: &Value) -> ObjectMeta {
        serde_json::from_value(json!({
            "name": "keys", "resourceVersion": version, "creationTimestamp": "2026-01-31T10:00:00Z",
            "managedFields": managed_fields,
        }))
        .unwrap()
    }

    fn written(time: &str, fields: Value) -> Value {
        json!({
            "manager": "kubectl", "operation": "Update", "apiVersion": "v1", "time": format!("2026-01-31T{time}Z"),
            "fieldsType": "FieldsV1", "fieldsV1": fields,
        })
    }

    fn newest(name: &str, changed: &str) -> Newest {
        Newest {
            name: name.to_owned(),
            version: "7".to_owned(),
            changed: at(changed),
        }
    }

    #[test]
    fn secret_is_as_old_as_the_newest_write_of_its_values() {
        let changed = |fields: Value| Newest::of(&meta("7", &fields)).map(|it| it.changed);
        let values = json!({"f:data": {"f:accessKeyId": {}}});

        assert_eq!(changed(json!([])), Some(at("10:00:00")));
        let labelled = written("12:00:00", json!({"f:metadata": {"f:labels": {}}}));
        assert_eq!(changed(json!([labelled])), Some(at("10:00:00")));
        let (one, other) = (
            written("11:00:00", values),
            written("11:30:00", json!({"f:stringData": {}})),
        );
        assert_eq!(changed(json!([one, other, labelled])), Some(at("11:30:00")));
        assert_eq!(Newest::of(&ObjectMeta::default()), None);
    }

    fn pod(began: &str, told: Option<&str>) -> Pod {
        let mut pod = json!({"metadata": {
            "name": "clicks-tm-0", "creationTimestamp": format!("2026-01-31T{began}Z"),
        }});
        if let Some(told) = told {
            pod["metadata"]["annotations"] = json!({ANNOTATION: told});
        }
        serde_json::from_value(pod).unwrap()
    }

    #[test]
    fn pod_hears_once_of_each_change_that_came_after_it() {
        let secrets = [newest("keys", "11:00:00"), newest("kafka", "09:00:00")];

        assert_eq!(due(&pod("10:00:00", None), &secrets).unwrap(), "keys=7");
        assert_eq!(
            due(&pod("08:00:00", Some("keys=7")), &secrets).unwrap(),
            "keys=7,kafka=7"
        );
        assert_eq!(due(&pod("10:00:00", Some("keys=7")), &secrets), None);
        assert_eq!(
            due(&pod("10:00:00", Some("keys=6")), &secrets).unwrap(),
            "keys=7"
        );
        assert_eq!(
            due(&pod("11:00:00", None), &secrets),
            None,
            "it began with it"
        );
        let mut ends = pod("10:00:00", None);
        ends.metadata.deletion_timestamp = ends.metadata.creation_timestamp.clone();
        assert_eq!(due(&ends, &secrets), None);
    }

    #[test]
    fn failure_is_excused_for_two_minutes_after_a_change_in_the_life_of_the_job() {
        let secrets = [newest("kafka", "09:00:00"), newest("keys", "11:00:00")];
        let excuse = |began: &str, failed: &str| {
            let found = excuse(&secrets, Some(at(began)), at(failed));
            found.map(|it| it.name.clone())
        };

        assert_eq!(excuse("10:00:00", "11:00:30").as_deref(), Some("keys"));
        assert_eq!(excuse("10:00:00", "11:01:59").as_deref(), Some("keys"));
        assert_eq!(excuse("10:00:00", "11:02:00"), None);
        // It was changed after the failure, and nobody has looked at that yet.
        assert_eq!(excuse("10:00:00", "10:59:59").as_deref(), Some("keys"));
        assert_eq!(excuse("11:00:00", "11:00:30"), None, "made with the job");
    }

    #[test]
    fn old_values_are_looked_for_where_something_fails_and_not_where_all_is_well() {
        let failed = Failure {
            time_ms: 1,
            task_manager: None,
            reason: "the credentials are refused".to_owned(),
        };
        let well = Status {
            phase: Phase::Running,
            last_failure: Some(failed),
            ..Status::default()
        };
        assert!(!may_be_old(&well) && !may_be_old(&Status::default()));

        let recovers = Status {
            phase: Phase::Recovering,
            ..well.clone()
        };
        assert!(may_be_old(&recovers));
        let mut cut_off = well;
        let uid = streamforge_core::ids::OperatorUid("in".to_owned());
        cut_off.unreachable.insert(uid, "refused".to_owned());
        assert!(may_be_old(&cut_off));
    }
}
