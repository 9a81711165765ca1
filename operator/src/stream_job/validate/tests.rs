use proptest::prelude::*;
use serde_json::{Value, json};
use streamforge_crds::v1alpha1::StreamJob;

use super::*;
use crate::stream_job::testing::{UID, job, settings, with, with_metadata, written};

fn desired(job: &StreamJob) -> Desired {
    validate(job, &settings()).unwrap_or_else(|problems| panic!("{problems:#?}"))
}

fn problems(job: &StreamJob) -> Vec<Problem> {
    validate(job, &settings()).expect_err("there is something wrong")
}

/// Paths and messages.
fn found(job: &StreamJob) -> Vec<(String, String)> {
    let problems = problems(job).into_iter();
    problems
        .map(|problem| (problem.path, problem.message))
        .collect()
}

#[test]
fn valid_job_says_all_that_is_to_run() {
    let desired = desired(&job());

    assert_eq!(desired.identity.namespace, "team");
    assert_eq!(desired.identity.names.task_managers().as_str(), "clicks-tm");
    assert_eq!(
        (
            desired.parallelism(),
            desired.pods.slots,
            desired.replicas()
        ),
        (4, 2, 2)
    );
    let secrets: Vec<&str> = desired.secrets().iter().map(String::as_str).collect();
    assert_eq!(secrets, ["kafka", "kafka-ca", "results", "store"]);
    assert_eq!(desired.store_secret(), Some("store"));
    assert_eq!(desired.pods.termination_grace_s, 30);
}

#[test]
fn checkpoints_of_a_job_are_below_its_uid_so_that_a_job_created_anew_finds_none() {
    let namesake = with_metadata(
        &job(),
        "/uid",
        json!("11111111-5a52-4b0a-9b8f-0d3c0c2f7a11"),
    );

    assert_eq!(desired(&job()).store.prefix, format!("jobs/{UID}"));
    assert_ne!(desired(&namesake).store, desired(&job()).store);
}

#[test]
fn pods_have_room_for_all_subtasks() {
    for (parallelism, slots, replicas) in [
        (1, 2, 1),
        (2, 2, 1),
        (3, 2, 2),
        (8, 3, 3),
        (128, 1, 128),
        (1, 1024, 1),
    ] {
        let job = with(&job(), "/parallelism", json!(parallelism));
        let job = with(&job, "/taskManager/slots", json!(slots));

        assert_eq!(
            desired(&job).replicas(),
            replicas,
            "{parallelism} by {slots}"
        );
    }
}

#[test]
fn messages_and_paths_of_the_document_are_those_of_the_command() {
    let job = with(&job(), "/transforms/0/filter", json!("amuont > 0"));
    let text = json!({
        "apiVersion": "streamforge.io/v1alpha1", "kind": "StreamJob",
        "metadata": {"name": "clicks"}, "spec": job.spec,
    });

    let said =
        streamforge_plan::load(&text.to_string(), "").expect_err("the column does not exist");
    let said: Vec<Problem> = said.into_iter().map(Problem::from).collect();
    assert_eq!(problems(&job), said);
    assert_eq!(said[0].path, "spec.transforms[0].filter");
}

#[test]
fn document_and_cluster_mistakes_are_reported_at_once() {
    let job = with(&job(), "/transforms/0/filter", json!("amuont > 0"));
    let job = with(&job, "/checkpoint/storage", Value::Null);
    let job = with(&job, "/taskManager/image", json!("a b"));

    let paths: Vec<String> = problems(&job)
        .into_iter()
        .map(|problem| problem.path)
        .collect();
    assert_eq!(
        paths,
        [
            "spec.transforms[0].filter",
            "spec.checkpoint.storage",
            "spec.taskManager.image"
        ]
    );
}

#[test]
fn what_a_pod_cannot_reach_is_refused_with_the_cure() {
    let file_source = json!({
        "name": "clicks", "file": {"path": "/data/*.ndjson"}, "format": {"json": {}},
        "schema": [{"name": "user_id", "type": "TEXT"}, {"name": "amount", "type": "BIGINT"}, {"name": "ts", "type": "TIMESTAMP"}],
        "eventTime": {"column": "ts"},
    });
    let file_sink = json!({"name": "out", "from": "per_user", "file": {"path": "/data/out"}, "format": {"json": {}}});
    for (pointer, value, path, cure) in [
        (
            "/sources/0",
            file_source,
            "spec.sources[0].file.path",
            "write `path: s3://bucket/prefix/`, or read from Kafka; a volume is no help, for nothing tells \
             whether all pods see the same files there",
        ),
        (
            "/sinks/0",
            file_sink,
            "spec.sinks[0].file.path",
            "write `path: s3://bucket/prefix`; a volume is no help, for nothing tells whether all pods see \
             the same files there",
        ),
        (
            "/checkpoint/storage",
            json!({"uri": "file:///state"}),
            "spec.checkpoint.storage.uri",
            "write `uri: s3://bucket/prefix`",
        ),
        (
            "/restoreFrom",
            json!({"uri": "file:///state/sp"}),
            "spec.restoreFrom.uri",
            "write `uri: s3://bucket/prefix`",
        ),
    ] {
        let problems = problems(&with(&job(), pointer, value));

        assert_eq!(problems.len(), 1, "{problems:?}");
        assert_eq!(
            (problems[0].path.as_str(), problems[0].cure.as_deref()),
            (path, Some(cure))
        );
    }
}

#[test]
fn sink_that_prints_is_allowed() {
    let job = with(
        &job(),
        "/sinks/0",
        json!({"name": "out", "from": "per_user", "print": {}}),
    );

    assert_eq!(desired(&job).document.spec.sinks.len(), 1);
}

#[test]
fn attack_48_store_without_credentials_must_be_shared_with_the_namespace() {
    let own = with(
        &job(),
        "/checkpoint/storage",
        json!({"uri": "s3://state/jobs"}),
    );
    let shared = with_metadata(&own, "/namespace", json!("shared"));
    let elsewhere = with(
        &shared,
        "/checkpoint/storage",
        json!({"uri": "s3://state/jobs", "s3": {"endpoint": "http://evil:9"}}),
    );

    assert_eq!(
        found(&own),
        [(
            "spec.checkpoint.storage.uri".to_owned(),
            "s3://state/jobs is not shared with jobs of the namespace `team`".to_owned()
        )]
    );
    assert_eq!(desired(&shared).store_secret(), None);
    assert_eq!(
        found(&elsewhere).len(),
        1,
        "the operator's signature is for its own store only"
    );
}

#[test]
fn attack_48_savepoint_of_another_namespaces_store_is_not_read_with_the_operators_identity() {
    let job = with_metadata(&job(), "/namespace", json!("shared"));
    let job = with(
        &job,
        "/checkpoint/storage",
        json!({"uri": "s3://state/jobs"}),
    );

    for (uri, problems_n) in [("s3://state/other", 0), ("s3://private/sp", 1)] {
        let job = with(&job, "/restoreFrom", json!({"uri": uri}));
        let found = validate(&job, &settings()).err().unwrap_or_default();
        assert_eq!(found.len(), problems_n, "{found:?}");
    }
}

#[test]
fn prefix_leaves_room_for_the_jobs_id() {
    let uri = |bytes: usize| json!(format!("s3://state/{}", "p".repeat(bytes)));

    assert!(
        validate(
            &with(&job(), "/checkpoint/storage/uri", uri(83)),
            &settings()
        )
        .is_ok()
    );
    let found = found(&with(&job(), "/checkpoint/storage/uri", uri(84)));
    assert_eq!(
        found[0].1,
        "the prefix has 84 bytes, and with the job's id behind it at most 83 can be used"
    );
}

#[test]
fn task_manager_mistakes_are_found_where_they_stand() {
    for (pointer, value, path) in [
        ("/taskManager/image", json!("a b"), "spec.taskManager.image"),
        (
            "/taskManager/serviceAccountName",
            json!("A_b"),
            "spec.taskManager.serviceAccountName",
        ),
        (
            "/taskManager/terminationGracePeriod",
            json!("0s"),
            "spec.taskManager.terminationGracePeriod",
        ),
        (
            "/taskManager/resources",
            json!({"request": {"cpu": 1}}),
            "spec.taskManager.resources.request",
        ),
        (
            "/taskManager/resources",
            json!({"requests": {"cpu": "much"}}),
            "spec.taskManager.resources.requests.cpu",
        ),
        (
            "/taskManager/resources",
            json!({"requests": {"memory": "2Gi"}, "limits": {"memory": "1024Mi"}}),
            "spec.taskManager.resources.requests.memory",
        ),
        (
            "/checkpoint/storage/s3/credentialsSecret/name",
            json!("../x"),
            "spec.checkpoint.storage.s3.credentialsSecret.name",
        ),
        (
            "/sources/0/kafka/security/caSecret/name",
            json!("../x"),
            "spec.sources[0].kafka.security.caSecret.name",
        ),
    ] {
        let found = found(&with(&job(), pointer, value));
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(found[0].0, path, "{found:?}");
    }
}

/// A pod template is refused for one field.
fn check_refused(template: &Value, path: &str) {
    let found = found(&with(&job(), "/taskManager/podTemplate", template.clone()));
    assert_eq!(found.len(), 1, "{template}: {found:?}");
    let path = format!("spec.taskManager.podTemplate.{path}");
    assert_eq!(found[0].0, path, "{found:?}");
}

#[test]
fn certificate_of_a_kafka_client_comes_as_a_volume() {
    let mount = json!({"name": "kafka-client", "mountPath": "/kafka-client", "readOnly": true});
    let template = json!({"spec": {
        "containers": [{"name": "task-manager", "volumeMounts": [mount]}],
        "volumes": [{"name": "kafka-client", "secret": {"secretName": "kafka-client"}}],
    }});
    let properties = json!({
        "ssl.certificate.location": "/kafka-client/tls.crt",
        "ssl.key.location": "/kafka-client/tls.key",
    });
    let job = with(&job(), "/taskManager/podTemplate", template.clone());
    let job = with(&job, "/sources/0/kafka/properties", properties);

    let kept = serde_json::to_value(desired(&job).pods.template).unwrap();

    assert_eq!(kept, template);
}

#[test]
fn fields_of_a_pod_that_are_the_operators_are_refused() {
    let own_label = json!({"metadata": {"labels": {"streamforge.io/job": "x"}}});
    let own_volume = json!({"spec": {"volumes": [{"name": "streamforge-tls", "emptyDir": {}}]}});
    let grace = json!({"spec": {"terminationGracePeriodSeconds": 1}});
    let containers = |containers: Value| json!({"spec": {"containers": containers}});
    let twice = containers(json!([{"name": "x"}, {"name": "x"}]));
    let misspelt = containers(json!([{"name": "x", "comand": ["a"]}]));
    for (template, path) in [
        (json!({"metadata": {"name": "x"}}), "metadata.name"),
        (own_label, "metadata.labels[streamforge.io/job]"),
        (
            json!({"spec": {"serviceAccountName": "x"}}),
            "spec.serviceAccountName",
        ),
        (
            json!({"spec": {"serviceAccount": "x"}}),
            "spec.serviceAccount",
        ),
        (grace, "spec.terminationGracePeriodSeconds"),
        (
            json!({"spec": {"restartPolicy": "Never"}}),
            "spec.restartPolicy",
        ),
        (own_volume, "spec.volumes[0].name"),
        (
            containers(json!([{"image": "x"}])),
            "spec.containers[0].name",
        ),
        (twice, "spec.containers[1].name"),
        (
            json!({"spec": {"nodeSelektor": {"a": "b"}}}),
            "spec.nodeSelektor",
        ),
        (misspelt, "spec.containers[0].comand"),
    ] {
        check_refused(&template, path);
    }
}

#[test]
fn fields_of_a_container_that_are_the_operators_are_refused() {
    let mount = json!([{"name": "x", "mountPath": "/etc//./streamforge/tls/"}]);
    for (field, value, path) in [
        ("command", json!(["sh"]), "command"),
        ("args", json!(["x"]), "args"),
        ("image", json!("x"), "image"),
        ("imagePullPolicy", json!("Never"), "imagePullPolicy"),
        ("resources", json!({}), "resources"),
        ("readinessProbe", json!({}), "readinessProbe"),
        ("livenessProbe", json!({}), "livenessProbe"),
        (
            "env",
            json!([{"name": "POD_IP", "value": "x"}]),
            "env[0].name",
        ),
        ("ports", json!([{"containerPort": 8080}]), "ports[0]"),
        ("volumeMounts", mount, "volumeMounts[0].mountPath"),
    ] {
        let template = json!({"spec": {"containers": [{"name": "task-manager", field: value}]}});
        check_refused(&template, &format!("spec.containers[0].{path}"));
    }
}

#[test]
fn what_is_no_pod_template_is_refused_with_what_was_expected() {
    let job = with(
        &job(),
        "/taskManager/podTemplate",
        json!({"spec": {"containers": "x"}}),
    );

    let found = found(&job);
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(found[0].0, "spec.taskManager.podTemplate");
}

#[test]
fn object_without_identity_is_refused_not_taken_for_another() {
    for path in ["/uid", "/namespace"] {
        let found = found(&with_metadata(&job(), path, Value::Null));
        assert_eq!(found[0].0, format!("metadata.{}", &path[1..]));
    }
}

#[test]
fn kf_o9_same_resource_with_keys_in_another_order_and_numbers_spelled_otherwise_is_the_same() {
    let mut same = written();
    same["spec"]["taskManager"] = json!({
        "resources": {"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "1"}},
        "podTemplate": {"spec": {
            "priority": 1, "nodeSelector": {"a": "1", "b": "2"},
            "containers": [{"name": "x", "image": "y", "resources": {"limits": {"cpu": "2"}}}],
        }},
    });
    let first = desired(&serde_json::from_value(same.clone()).unwrap());
    let mut spelled = same.clone();
    for (pointer, value) in [
        ("/spec/taskManager/resources/limits/cpu", json!(1.0)),
        ("/spec/taskManager/resources/requests/cpu", json!(1)),
        ("/spec/taskManager/podTemplate/spec/priority", json!(1.0)),
        (
            "/spec/taskManager/podTemplate/spec/containers/0/resources/limits/cpu",
            json!(2),
        ),
    ] {
        *spelled.pointer_mut(pointer).unwrap() = value;
    }

    for seed in 0..100 {
        let written = shuffled(if seed % 2 == 0 { &same } else { &spelled }, seed);
        let other = desired(&serde_json::from_value(written).unwrap());

        assert_eq!(other.pods_hash(), first.pods_hash(), "seed {seed}");
        assert_eq!(
            other.document.attempt_hash(),
            first.document.attempt_hash(),
            "seed {seed}"
        );
        assert_eq!(other.pods, first.pods, "seed {seed}");
    }
}

/// The same value with its keys in an order that the seed gives.
fn shuffled(value: &Value, seed: u64) -> Value {
    match value {
        Value::Object(map) => {
            let mut entries: Vec<_> = map.iter().collect();
            let rank = |key: &str| xxhash_rust::xxh3::xxh3_64_with_seed(key.as_bytes(), seed);
            entries.sort_by_key(|(key, _)| rank(key));
            entries
                .into_iter()
                .map(|(key, value)| (key.clone(), shuffled(value, seed)))
                .collect()
        }
        Value::Array(items) => items.iter().map(|item| shuffled(item, seed)).collect(),
        other => other.clone(),
    }
}

#[test]
fn secrets_are_never_read_here_so_no_message_can_show_one() {
    let job = with(
        &job(),
        "/sources/0/kafka/security/credentialsSecret/name",
        json!("hunter2 is no name"),
    );

    let found = problems(&job);
    assert!(
        found.iter().all(|problem| problem.path.ends_with(".name")),
        "{found:?}"
    );
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        (-1e9_f64..1e9).prop_map(Value::from),
        "[a-z0-9/.-]{0,12}".prop_map(Value::from),
    ];
    let key = prop_oneof![
        Just("spec"),
        Just("metadata"),
        Just("containers"),
        Just("name"),
        Just("env"),
        Just("volumes"),
        Just("ports"),
        Just("labels"),
        Just("resources"),
        Just("limits"),
        Just("cpu"),
        Just("image"),
        Just("containerPort"),
        Just("x"),
    ];
    leaf.prop_recursive(5, 40, 5, move |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            proptest::collection::vec((key.clone(), inner), 0..5).prop_map(|entries| entries
                .into_iter()
                .map(|(key, value)| (key.to_owned(), value))
                .collect()),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn no_pod_template_makes_validate_or_build_panic(template in any_json(), resources in any_json()) {
        let mut written = written();
        let map = |value: Value| if value.is_object() { value } else { json!({}) };
        written["spec"]["taskManager"] = json!({"podTemplate": map(template), "resources": map(resources)});
        let job: StreamJob = serde_json::from_value(written).unwrap();

        if let Ok(desired) = validate(&job, &settings()) {
            let settings = settings();
            let _children = crate::stream_job::build::build(&crate::stream_job::build::Request {
                desired: &desired, settings: &settings, kept: None, replicas: 1, certificate: None,
            });
        }
    }
}
