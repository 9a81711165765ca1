//! What somebody else changes of a job's children is set back at once.

use serde_json::Value;
use streamforge_e2e_cluster::{
    ClicksJob, Namespace, TASK_MANAGERS_DIE, apply, bucket, eventually, get,
};

/// Notes of the events that say so.
fn repairs(namespace: &Namespace) -> Vec<String> {
    let selector = "--field-selector=reason=DriftRepaired";
    let text = namespace.kubectl(&["get", "events", selector, "-o", "json"]);
    let list: Value = serde_json::from_str(&text).expect("kubectl prints JSON");
    let items = list["items"].as_array().expect("a list").iter();
    let note = |event: &Value| event["message"].as_str().unwrap_or_default().to_owned();
    items.map(note).collect()
}

fn wait_for_repair(namespace: &Namespace, note: &str) {
    eventually(note, 20, || {
        let found = repairs(namespace).iter().any(|it| it.starts_with(note));
        found.then_some(())
    });
}

/// A job without an end, with one pod.
fn run_job(namespace: &Namespace) {
    let job = ClicksJob {
        namespace,
        name: "clicks",
        rows: None,
        rate: 1_000,
        parallelism: 1,
        slots: 1,
        more: "",
    };
    job.apply();
    eventually("rows flow", 90, || {
        (namespace.phase("clicks") == "Running").then_some(())
    });
}

fn checkpoint(namespace: &Namespace) -> u64 {
    let status = namespace.status("clicks");
    let id = &status["checkpoint"]["lastCompleted"]["id"];
    id.as_u64().unwrap_or_default()
}

fn wait_for_later_checkpoint(namespace: &Namespace) {
    let seen = checkpoint(namespace);
    eventually("a later checkpoint", 60, || {
        (checkpoint(namespace) > seen + 1).then_some(())
    });
}

#[test]
fn child_that_somebody_changes_or_deletes_is_set_right_within_seconds_and_rows_go_on() {
    let namespace = Namespace::create("drift");
    run_job(&namespace);
    let pods = namespace.pod_uids();

    let patch = r#"{"spec":{"selector":{"streamforge.io/job":"other"}}}"#;
    namespace.kubectl(&["patch", "service", "clicks-tm", "-p", patch]);
    eventually("the Service is set right", 10, || {
        let service = get(namespace.name(), "service", "clicks-tm")?;
        (service["spec"]["selector"]["streamforge.io/job"] == "clicks").then_some(())
    });
    // A selector is one field.
    let note = "put spec.selector of Service clicks-tm right that kubectl-patch had changed";
    wait_for_repair(&namespace, note);

    for (kind, name) in [
        ("NetworkPolicy", "clicks-tm"),
        ("PodDisruptionBudget", "clicks-tm"),
        ("ServiceAccount", "clicks-tm"),
        ("ConfigMap", "clicks-document"),
    ] {
        namespace.kubectl(&["delete", kind, name]);
        eventually(&format!("the {kind} is made again"), 10, || {
            get(namespace.name(), kind, name)
        });
        wait_for_repair(&namespace, &format!("made {kind} {name} again"));
    }

    wait_for_later_checkpoint(&namespace);
    assert_eq!(namespace.pod_uids(), pods, "a pod was replaced");
}

#[test]
fn stateful_set_that_somebody_scales_is_scaled_back_at_once_and_no_more_than_once_kf_o23() {
    let namespace = Namespace::create("scaled");
    run_job(&namespace);
    let pods = namespace.pod_uids();
    let generation = || {
        let set = get(namespace.name(), "statefulset", "clicks-tm").expect("the job has one");
        let generation = set["metadata"]["generation"].as_u64();
        (
            generation.expect("it has one"),
            set["spec"]["replicas"].clone(),
        )
    };
    let (before, _) = generation();

    namespace.kubectl(&["scale", "statefulset/clicks-tm", "--replicas=2"]);

    eventually("the StatefulSet is scaled back", 60, || {
        (generation().1 == 1).then_some(())
    });
    // Of kubectl, however it names itself.
    let note = "put spec.replicas of StatefulSet clicks-tm right that kubectl";
    wait_for_repair(&namespace, note);
    eventually("one pod", 60, || {
        (namespace.pods().len() == 1).then_some(())
    });
    wait_for_later_checkpoint(&namespace);
    // Once by kubectl, once by the operator: nobody takes it back and forth.
    assert_eq!(generation(), (before + 2, 1.into()));
    assert_eq!(namespace.pod_uids(), pods, "a pod was replaced");
}

#[test]
fn secret_of_certificates_that_is_gone_is_made_again_when_a_pod_needs_it() {
    let namespace = Namespace::create("uncertified");
    namespace.announce(&TASK_MANAGERS_DIE);
    run_job(&namespace);
    let before = namespace.pod_uids();

    // Nobody may watch it; a pod that runs has what it needs.
    namespace.kubectl(&["delete", "secret", "clicks-tls"]);
    let (pod, now) = ("clicks-tm-0", "--grace-period=0");
    namespace.kubectl(&["delete", "pod", pod, "--force", now]);

    eventually("the Secret is made again", 60, || {
        let secret = get(namespace.name(), "secret", "clicks-tls")?;
        secret["data"]["tls.key"].is_string().then_some(())
    });
    // The kubelet tries again less and less often to mount what was not there.
    eventually("another pod is ready", 150, || {
        let pod = namespace.pods().into_iter().next()?;
        let mut conditions = pod["status"]["conditions"].as_array()?.iter();
        let is_ready = conditions.any(|it| it["type"] == "Ready" && it["status"] == "True");
        (is_ready && pod["metadata"]["uid"] != *before[0]).then_some(())
    });
    wait_for_later_checkpoint(&namespace);
}

#[test]
fn savepoint_that_is_deleted_while_it_is_made_leaves_no_copy() {
    let namespace = Namespace::create("unsaved");
    run_job(&namespace);
    let savepoint = r#"
apiVersion: streamforge.io/v1alpha1
kind: Savepoint
metadata: {name: unwanted}
spec: {job: clicks, deletionPolicy: Delete}
"#;
    apply(namespace.name(), savepoint).expect("it is taken");
    // As soon as it is known where the copy will be, and before it is whole.
    let place = eventually("it is begun", 20, || {
        let savepoint = get(namespace.name(), "savepoint", "unwanted")?;
        let place = savepoint["metadata"]["annotations"]["streamforge.io/place"].as_str();
        place.map(str::to_owned)
    });
    namespace.kubectl(&["delete", "savepoint", "unwanted", "--timeout=60s"]);

    let place: Value = serde_json::from_str(&place).expect("it is JSON");
    let prefix = place["prefix"].as_str().expect("it has a prefix");
    assert!(prefix.contains("/savepoints/unwanted-"), "{prefix}");
    assert_eq!(bucket::keys(prefix), Vec::<String>::new());
    // The list has what is there.
    let (folder, _) = prefix.split_once("/savepoints/").expect("it has one");
    assert!(!bucket::keys(folder).is_empty());
}
