//! Pods that cannot start, or do not end.
//!
//! Owns: telling from a pod's status that waiting does not help, and why; and of pods that end, when they should have
//! ended. Pure: the time comes in.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
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
    /// What tells it from the next one of that name.
    pub uid: Option<String>,
    /// Why, for people.
    pub reason: String,
    /// It was killed for its memory.
    pub out_of_memory: bool,
    /// It is of a revision that is not wanted any more, and holds up the one that is: a StatefulSet
    /// waits for it for ever (kubernetes/kubernetes#67250).
    pub is_in_the_way: bool,
}

/// How much longer than its grace period a pod may take to go.
const GONE_WITHIN: Duration = Duration::from_secs(15);

/// How long a pod that ends may take to be gone: if it is there still, its node is lost, and a StatefulSet would
/// wait for ever (kubernetes/kubernetes#55713). None: it does not end.
#[must_use]
pub fn leaves_within(pod: &Pod) -> Option<Duration> {
    pod.metadata.deletion_timestamp.as_ref()?;
    let grace = pod
        .metadata
        .deletion_grace_period_seconds
        .unwrap_or_default();
    Some(Duration::from_secs(u64::try_from(grace).unwrap_or_default()) + GONE_WITHIN)
}

/// How long a StatefulSet may take to make a pod. Where a quota or an admission policy keeps it from that there is none that
/// could say so.
const MADE_WITHIN: Duration = Duration::from_secs(60);

/// Since when pods are not there at all.
#[derive(Clone, Copy, Debug, Default)]
pub struct Missing(Option<Instant>);

impl Missing {
    /// How long the StatefulSet may still take to make those that are missing of so many; none: none is missing, or
    /// one ends first.
    pub fn look(&mut self, pods: &[Arc<Pod>], wanted: i32, now: Instant) -> Option<Duration> {
        let wanted = usize::try_from(wanted).unwrap_or_default();
        let is_ending = |pod: &Arc<Pod>| pod.metadata.deletion_timestamp.is_some();
        if pods.len() >= wanted || pods.iter().any(is_ending) {
            self.0 = None;
            return None;
        }
        let since = *self.0.get_or_insert(now);
        Some(MADE_WITHIN.saturating_sub(now.saturating_duration_since(since)))
    }
}

/// Pods that end, by their uid, and since when it is known: whose clock the API server goes by is unknown, and how long
/// they ended before this operator was there, too.
#[derive(Clone, Debug, Default)]
pub struct Leaving(BTreeMap<String, Instant>);

impl Leaving {
    /// How long each of these pods that end may still take.
    pub fn look<'a>(&mut self, pods: &'a [Arc<Pod>], now: Instant) -> Vec<(&'a Pod, Duration)> {
        let uid = |pod: &Pod| pod.uid().unwrap_or_default();
        let leaving = pods.iter().map(|pod| &**pod);
        let leaving = leaving.filter_map(|pod| Some((pod, leaves_within(pod)?)));
        let leaving: Vec<(&Pod, Duration)> = leaving.collect();
        let before = std::mem::take(&mut self.0);
        let since = |pod: &Pod| before.get(&uid(pod)).copied().unwrap_or(now);
        self.0 = leaving
            .iter()
            .map(|(pod, _)| (uid(pod), since(pod)))
            .collect();
        let left = |within: Duration, pod: &Pod| within.saturating_sub(now - since(pod));
        leaving
            .into_iter()
            .map(|(pod, within)| (pod, left(within, pod)))
            .collect()
    }
}

/// What is wrong with a pod, if waiting alone does not help.
#[must_use]
pub fn sick(pod: &Pod, wanted_revision: Option<&str>) -> Option<Sick> {
    let (reason, out_of_memory) = why(pod)?;
    let revision = pod.labels().get(REVISION).map(String::as_str);
    let is_in_the_way = wanted_revision.is_some() && revision != wanted_revision;
    Some(Sick {
        name: pod.name_any(),
        uid: pod.uid(),
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
    use k8s_openapi::jiff::Timestamp;
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
    fn pod_of_a_lost_node_is_left_behind_its_grace_period_after_it_was_seen_to_end() {
        let pod = |uid: &str, ends: bool| {
            // By a clock that is far behind.
            let ended: Timestamp = "2001-01-31T12:00:00Z".parse().unwrap();
            let mut pod = Pod::default();
            pod.metadata.uid = Some(uid.to_owned());
            pod.metadata.deletion_timestamp = ends.then_some(Time(ended));
            pod.metadata.deletion_grace_period_seconds = ends.then_some(30);
            Arc::new(pod)
        };
        let (began, seconds) = (Instant::now(), Duration::from_secs);
        let mut leaving = Leaving::default();
        let mut left = |pods: &[Arc<Pod>], after: u64| -> Vec<u64> {
            let left = leaving.look(pods, began + seconds(after));
            left.into_iter().map(|(_, left)| left.as_secs()).collect()
        };

        assert_eq!(left(&[pod("a", false), pod("b", true)], 0), [45]);
        assert_eq!(left(&[pod("a", true), pod("b", true)], 40), [45, 5]);
        assert_eq!(left(&[pod("a", true), pod("b", true)], 50), [35, 0]);
        // The next one of its name is another one.
        assert_eq!(left(&[pod("c", true)], 60), [45]);
        assert_eq!(left(&[], 70), [0; 0]);
        assert!(leaving.0.is_empty());
    }

    #[test]
    fn pods_are_missing_when_nothing_ends_and_they_are_not_there_for_long() {
        let pod = |ends: bool| {
            let mut pod = Pod::default();
            pod.metadata.deletion_timestamp = ends.then_some(Time(Timestamp::UNIX_EPOCH));
            Arc::new(pod)
        };
        let (began, mut missing) = (Instant::now(), Missing::default());
        let mut left = |pods: &[Arc<Pod>], after: u64| {
            let left = missing.look(pods, 2, began + Duration::from_secs(after));
            left.map(|left| left.as_secs())
        };

        assert_eq!(left(&[], 0), Some(60));
        assert_eq!(left(&[pod(false)], 55), Some(5));
        assert_eq!(left(&[pod(false)], 70), Some(0));
        assert_eq!(left(&[pod(false), pod(false)], 80), None);
        assert_eq!(left(&[pod(false)], 90), Some(60), "another time");
        // The next one is made when that has gone.
        assert_eq!(left(&[pod(true)], 145), None);
        assert_eq!(left(&[], 160), Some(60));
    }

    #[test]
    fn pod_that_only_starts_is_waited_for() {
        let creating = json!({"waiting": {"reason": "ContainerCreating"}});
        assert_eq!(sick(&container(&creating, &json!({})), Some("new")), None);
        assert_eq!(sick(&Pod::default(), Some("new")), None);
    }
}
