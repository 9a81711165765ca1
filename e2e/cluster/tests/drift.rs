//! What somebody else changes of a job's children is set back at once.

use serde_json::Value;
use streamforge_e2e_cluster::{ClicksJob, Namespace, apply, bucket, eventually, get};

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

fn checkpoint(namespace: &Namespace) -> u64 {
    let status = namespace.status("clicks");
    let id = &status["checkpoint"]["lastCompleted"]["id"];
    id.as_u64().unwrap_or_default()
}

#[test]
fn child_that_somebody_changes_or_deletes_is_set_right_within_seconds_and_rows_go_on() {
    let namespace = Namespace::create("drift");
    let job = ClicksJob {
        namespace: &namespace,
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

    let seen = checkpoint(&namespace);
    eventually("a later checkpoint", 60, || {
        (checkpoint(&namespace) > seen + 1).then_some(())
    });
    assert_eq!(namespace.pod_uids(), pods, "a pod was replaced");
}

#[test]
fn savepoint_that_is_deleted_while_it_is_made_leaves_no_copy() {
    let namespace = Namespace::create("unsaved");
    let job = ClicksJob {
        namespace: &namespace,
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
