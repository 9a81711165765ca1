//! Pods that cannot start.
//!
//! Owns: telling from a pod's status that waiting does not help, and why. Pure.

use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::ResourceExt as _;

/// The label by which a StatefulSet says which of its revisions a pod is.
const REVISION: &str = "controller-revision-hash";

/// Why a container does not start, where only an edit helps.
const STUCK: [&str; 7] = [
    "ErrImagePull",
    "ImagePullBackOff",
    "InvalidImageName",
    "ErrImageNeverPull",
    "CreateContainerConfigError",
    "CreateContainerError",
    "RunContainerError",
];

/// A pod that does not work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sick {
    /// Its name.
    pub name: String,
    /// Why, for people.
    pub reason: String,
    /// It was killed for its memory.
    pub out_of_memory: bool,
    /// It is of a revision that is not wanted any more, and holds up the one that is: a StatefulSet
    /// waits for it for ever (kubernetes/kubernetes#67250).
    pub is_in_the_way: bool,
}

/// How much longer than its grace period a pod may take to go.
const GONE_WITHIN: SignedDuration = SignedDuration::from_secs(15);

/// From when on a pod that ends should be gone: if it is there still, its node is lost, and a StatefulSet would
/// wait for ever (kubernetes/kubernetes#55713).
#[must_use]
pub fn left_behind_at(pod: &Pod) -> Option<Timestamp> {
    // The time of deletion is when its grace period is over.
    let over = pod.metadata.deletion_timestamp.as_ref()?;
    over.0.checked_add(GONE_WITHIN).ok()
}

/// What is wrong with a pod, if waiting alone does not help.
#[must_use]
pub fn sick(pod: &Pod, wanted_revision: Option<&str>) -> Option<Sick> {
    let (reason, out_of_memory) = why(pod)?;
    let revision = pod.labels().get(REVISION).map(String::as_str);
    let is_in_the_way = wanted_revision.is_some() && revision != wanted_revision;
    Some(Sick {
        name: pod.name_any(),
        reason,
        out_of_memory,
        is_in_the_way: is_in_the_way && pod.metadata.deletion_timestamp.is_none(),
    })
}

fn why(pod: &Pod) -> Option<(String, bool)> {
    let status = pod.status.as_ref()?;
    let containers = status.container_statuses.iter().flatten();
    let containers = containers.chain(status.init_container_statuses.iter().flatten());
    let of_container = containers.filter_map(of_container).next();
    of_container.or_else(|| {
        let mut conditions = status.conditions.iter().flatten();
        let unschedulable = conditions.find(|it| {
            it.type_ == "PodScheduled"
                && it.status == "False"
                && it.reason.as_deref() == Some("Unschedulable")
        })?;
        let message = unschedulable.message.clone().unwrap_or_default();
        Some((format!("it has no node: {message}"), false))
    })
}

fn of_container(container: &ContainerStatus) -> Option<(String, bool)> {
    let name = &container.name;
    let waiting = container.state.as_ref().and_then(|it| it.waiting.as_ref());
    let reason = waiting
        .and_then(|it| it.reason.as_deref())
        .unwrap_or_default();
    let message = waiting
        .and_then(|it| it.message.as_deref())
        .unwrap_or_default();
    if STUCK.contains(&reason) {
        return Some((format!("container {name}: {reason}: {message}"), false));
    }
    let last = container
        .last_state
        .as_ref()
        .and_then(|it| it.terminated.as_ref());
    let ended = last.and_then(|it| it.reason.as_deref());
    if ended == Some("OOMKilled") && !container.ready {
        let limit = "it took more memory than its limit (taskManager.resources)";
        return Some((format!("container {name}: OOMKilled: {limit}"), true));
    }
    if reason == "CrashLoopBackOff" {
        let code = last.map(|it| it.exit_code).unwrap_or_default();
        return Some((
            format!("container {name}: it ends again and again, with code {code}"),
            false,
        ));
    }
    None
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use serde_json::json;

    use super::*;

    fn pod(status: &serde_json::Value) -> Pod {
        let pod = json!({
            "metadata": {"name": "job-tm-0", "labels": {"controller-revision-hash": "old"}},
            "status": status,
        });
        serde_json::from_value(pod).unwrap()
    }

    fn container(state: &serde_json::Value, last: &serde_json::Value) -> Pod {
        pod(&json!({"containerStatuses": [{
            "name": "task-manager", "ready": false, "restartCount": 1, "image": "i", "imageID": "i",
            "state": state, "lastState": last,
        }]}))
    }

    #[test]
    fn image_that_is_not_there_holds_up_the_next_revision() {
        let waiting =
            json!({"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}});
        let pod = container(&waiting, &json!({}));

        let found = sick(&pod, Some("new")).unwrap();
        assert!(
            found.is_in_the_way && found.reason.contains("no such image"),
            "{found:?}"
        );
        assert!(!sick(&pod, Some("old")).unwrap().is_in_the_way);
    }

    #[test]
    fn lack_of_memory_and_of_nodes_are_named() {
        let killed = json!({"terminated": {"reason": "OOMKilled", "exitCode": 137}});
        let waiting = json!({"waiting": {"reason": "CrashLoopBackOff"}});
        let found = sick(&container(&waiting, &killed), None).unwrap();
        assert!(found.out_of_memory && !found.is_in_the_way);

        let nowhere = pod(&json!({"conditions": [{
            "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes",
        }]}));
        assert!(sick(&nowhere, None).unwrap().reason.contains("0/1 nodes"));
    }

    #[test]
    fn pod_of_a_lost_node_is_left_behind_after_its_grace_period() {
        let ended: Timestamp = "2026-01-31T12:00:00Z".parse().unwrap();
        let mut pod = Pod::default();
        assert_eq!(left_behind_at(&pod), None);

        pod.metadata.deletion_timestamp = Some(Time(ended));

        let at = left_behind_at(&pod).unwrap();
        assert_eq!(at, "2026-01-31T12:00:15Z".parse().unwrap());
    }

    #[test]
    fn pod_that_only_starts_is_waited_for() {
        let creating = json!({"waiting": {"reason": "ContainerCreating"}});
        assert_eq!(sick(&container(&creating, &json!({})), Some("new")), None);
        assert_eq!(sick(&Pod::default(), Some("new")), None);
    }
}
