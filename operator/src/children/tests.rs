use serde_json::{Value, json};

use super::*;

fn meta(metadata: Value) -> ObjectMeta {
    serde_json::from_value(metadata).unwrap()
}

fn service(version: &str, more: &Value) -> ObjectMeta {
    let mut metadata = json!({
        "name": "clicks-tm", "namespace": "team", "uid": "uid-1", "resourceVersion": version,
        "labels": {"streamforge.io/job": "clicks"},
        "ownerReferences": [{
            "apiVersion": "streamforge.io/v1alpha1", "kind": "StreamJob", "name": "clicks", "uid": "uid-job",
        }],
    });
    let map = metadata.as_object_mut().unwrap();
    map.extend(more.as_object().unwrap().clone());
    meta(metadata)
}

fn see(meta: &ObjectMeta) -> Seen {
    Seen::of(meta, SetStatus::default())
}

#[test]
fn somebody_elses_change_is_told_from_ours_and_from_one_that_is_older() {
    let applied = see(&service("100", &json!({"generation": 1})));
    let status_written = see(&service("120", &json!({"generation": 1})));
    let spec_written = see(&service("120", &json!({"generation": 2})));
    let labels_taken = see(&service("120", &json!({"generation": 1, "labels": {}})));
    let older = see(&service("99", &json!({"generation": 7})));

    for kind in [
        Kind::StatefulSet,
        Kind::PodDisruptionBudget,
        Kind::NetworkPolicy,
    ] {
        assert!(status_written.is_as(&applied, kind), "{kind:?}");
        assert!(!spec_written.is_as(&applied, kind), "{kind:?}");
        assert!(!labels_taken.is_as(&applied, kind), "{kind:?}");
    }
    for kind in [Kind::ConfigMap, Kind::Service, Kind::ServiceAccount] {
        assert!(!status_written.is_as(&applied, kind), "{kind:?}");
        assert!(older.is_as(&applied, kind), "{kind:?}");
    }
}

#[test]
fn culprit_is_the_newest_writer_of_what_is_no_status() {
    let entry = |manager: &str, time: &str, subresource: &str, fields: Value| {
        json!({
            "manager": manager, "time": time, "subresource": subresource, "operation": "Update",
            "apiVersion": "v1", "fieldsType": "FieldsV1", "fieldsV1": fields,
        })
    };
    let ports =
        json!({"f:spec": {"f:ports": {"k:{\"port\":7101}": {"f:name": {}}}, "f:clusterIP": {}}});
    let seen = see(&service(
        "120",
        &json!({"managedFields": [
            entry("streamforge-operator", "2026-01-31T12:00:05Z", "", json!({"f:spec": {}})),
            entry("old", "2026-01-31T11:00:00Z", "", json!({"f:metadata": {"f:labels": {"f:a": {}}}})),
            entry("kubectl-edit", "2026-01-31T12:00:00Z", "", ports),
            entry("kube-controller-manager", "2026-01-31T12:00:09Z", "status", json!({"f:status": {}})),
        ]}),
    ));

    let by = seen.by.unwrap();
    assert_eq!(by.manager, "kubectl-edit");
    let applied = json!({"spec": {"ports": [{"port": 7101}]}});
    assert_eq!(by.fields_of(&applied), ["spec.ports"]);
}

#[test]
fn culprit_may_have_scaled() {
    let seen = see(&service(
        "120",
        &json!({"managedFields": [{
            "manager": "kubectl", "time": "2026-01-31T12:00:00Z", "subresource": "scale", "operation": "Update",
            "apiVersion": "apps/v1", "fieldsType": "FieldsV1", "fieldsV1": {"f:spec": {"f:replicas": {}}},
        }]}),
    ));

    let by = seen.by.unwrap();
    assert_eq!(by.manager, "kubectl");
    let applied = json!({"spec": {"replicas": 1}});
    assert_eq!(by.fields_of(&applied), ["spec.replicas"]);
}

#[test]
fn pods_are_those_of_the_job_and_wake_it() {
    let children = Children::default();
    let woken = children.put(
        Kind::Service,
        &service("1", &json!({})),
        see(&service("1", &json!({}))),
    );
    let job = reference("team", "clicks");
    assert_eq!(woken, Some(job.clone()));
    let pod = |namespace: &str| -> Pod {
        let labels = json!({"streamforge.io/job": "clicks"});
        let metadata = json!({"name": "clicks-tm-0", "namespace": namespace, "labels": labels});
        serde_json::from_value(json!({"metadata": metadata})).unwrap()
    };

    assert_eq!(children.put_pod(pod("team")), Some(job.clone()));
    assert_eq!(children.put_pod(pod("other")), None);

    assert_eq!(children.pods("team", "clicks").len(), 1);
    assert_eq!(
        children.remove_pod("team", "clicks", "clicks-tm-0"),
        Some(job)
    );
    assert!(children.pods("team", "clicks").is_empty());
    assert_eq!(children.pods("other", "clicks").len(), 1);
}

#[test]
fn name_of_a_job_is_forgotten_with_the_last_of_its_children_and_no_other_one_is() {
    let children = Children::default();
    let here = service("1", &json!({}));
    let elsewhere = service("1", &json!({"namespace": "other"}));
    for meta in [&here, &elsewhere] {
        children.put(Kind::Service, meta, see(meta));
    }
    children.put(Kind::StatefulSet, &here, see(&here));
    let known = || children.tables().jobs.len();
    assert_eq!(known(), 2);

    children.remove(Kind::Service, "team", "clicks-tm");
    assert_eq!(known(), 2);
    children.remove(Kind::StatefulSet, "team", "clicks-tm");
    assert_eq!(known(), 1);
    assert!(
        !children
            .tables()
            .jobs
            .contains_key(&("team".to_owned(), "clicks".to_owned()))
    );
}

#[test]
fn child_that_a_later_list_does_not_have_is_gone_and_its_job_is_woken() {
    let children = Children::default();
    let here = service("1", &json!({}));
    children.put(Kind::Service, &here, see(&here));
    let elsewhere = ObjectMeta {
        namespace: Some("other".to_owned()),
        ..here
    };
    children.put(Kind::Service, &elsewhere, see(&elsewhere));

    let known = children.known(Kind::Service, Some("team"), &BTreeSet::new());

    assert_eq!(known, [("team".to_owned(), "clicks-tm".to_owned())]);
    let woken = children.remove(Kind::Service, "team", "clicks-tm");
    assert_eq!(woken, Some(reference("team", "clicks")));
    assert_eq!(children.get(Kind::Service, "team", "clicks-tm"), None);
    assert!(children.get(Kind::Service, "other", "clicks-tm").is_some());
}
