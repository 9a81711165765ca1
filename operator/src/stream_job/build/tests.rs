use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};
use streamforge_crds::v1alpha1::StreamJob;

use super::*;
use crate::certificates::Authority;
use crate::stream_job::testing::{UID, job, settings, with, with_metadata};
use crate::stream_job::validate::{RESTART_ANNOTATION, validate};

fn children(job: &StreamJob) -> Children {
    let settings = settings();
    let desired = validate(job, &settings).unwrap();
    build(&Request {
        desired: &desired,
        settings: &settings,
        kept: None,
        replicas: desired.replicas(),
        certificate: None,
    })
}

fn value(object: &impl serde::Serialize) -> Value {
    serde_json::to_value(object).unwrap()
}

fn template(children: &Children) -> Value {
    value(&children.stateful_set.spec.template)
}

fn container(children: &Children) -> Value {
    template(children)
        .pointer("/spec/containers/0")
        .unwrap()
        .clone()
}

fn labels() -> Value {
    json!({
        "app.kubernetes.io/name": "streamforge",
        "app.kubernetes.io/component": "task-manager",
        "app.kubernetes.io/managed-by": "streamforge-operator",
        "app.kubernetes.io/instance": "clicks",
        "streamforge.io/job": "clicks",
    })
}

fn metadata(name: &str) -> Value {
    json!({
        "name": name, "namespace": "team", "labels": labels(),
        "ownerReferences": [{
            "apiVersion": "streamforge.io/v1alpha1", "kind": "StreamJob", "name": "clicks", "uid": UID,
            "controller": true, "blockOwnerDeletion": true,
        }],
    })
}

fn selector() -> Value {
    json!({"matchLabels": {"streamforge.io/job": "clicks"}})
}

fn secret_volume(secret: &str) -> String {
    let hash = xxhash_rust::xxh3::xxh3_64(secret.as_bytes()) & 0xffff_ffff;
    format!("streamforge-secret-{hash:08x}")
}

/// The container of [`job`] as it is built.
fn built_container() -> Value {
    let mount = |name: &str, path: &str| json!({"name": name, "mountPath": path, "readOnly": true});
    let probe = |path: &str, period: i32| json!({"httpGet": {"path": path, "port": "metrics"}, "periodSeconds": period, "failureThreshold": 6});
    json!({
        "name": "task-manager",
        "image": "localhost/streamforge-taskmanager:0.1.0",
        "imagePullPolicy": "IfNotPresent",
        "command": ["/bin/streamforge-taskmanager"],
        "args": [
            "--coordinator=streamforge-coordinator.streamforge-system.svc:7100",
            format!("--job={UID}"),
            "--stay",
            "--name=$(POD_NAME)",
            "--slots=2",
            "--listen=0.0.0.0:7101",
            "--advertise=$(POD_IP)",
            "--metrics-listen=0.0.0.0:8080",
            "--secrets=/etc/streamforge/secrets",
            "--tls-ca=/etc/streamforge/tls/ca.crt",
            "--tls-cert=/etc/streamforge/tls/tls.crt",
            "--tls-key=/etc/streamforge/tls/tls.key",
            format!("--tls-peer-name={UID}.jobs.streamforge"),
            "--tls-coordinator-name=coordinator.streamforge",
            "--local-copies=/var/lib/streamforge/copies",
        ],
        "env": [
            {"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
            {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
            {"name": "TMPDIR", "value": "/var/lib/streamforge"},
            {"name": "RUST_LOG", "value": "info"},
            {"name": "STREAMFORGE_LOG_FORMAT", "value": "json"},
        ],
        "ports": [
            {"name": "exchange", "containerPort": 7101, "protocol": "TCP"},
            {"name": "metrics", "containerPort": 8080, "protocol": "TCP"},
        ],
        "readinessProbe": probe("/readyz", 1),
        "livenessProbe": probe("/livez", 5),
        "resources": {},
        "securityContext": {
            "allowPrivilegeEscalation": false,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": true,
        },
        "volumeMounts": [
            mount("streamforge-tls", "/etc/streamforge/tls"),
            {"name": "streamforge-copies", "mountPath": "/var/lib/streamforge"},
            mount(&secret_volume("kafka"), "/etc/streamforge/secrets/kafka"),
            mount(&secret_volume("kafka-ca"), "/etc/streamforge/secrets/kafka-ca"),
            mount(&secret_volume("results"), "/etc/streamforge/secrets/results"),
            mount(&secret_volume("store"), "/etc/streamforge/secrets/store"),
        ],
    })
}

/// The volumes of its pods.
fn built_volumes() -> Value {
    let secret = |name: &str, secret: &str| json!({"name": name, "secret": {"secretName": secret, "defaultMode": 288}});
    json!([
        secret("streamforge-tls", "clicks-tls"),
        {"name": "streamforge-copies", "emptyDir": {}},
        secret(&secret_volume("kafka"), "kafka"),
        secret(&secret_volume("kafka-ca"), "kafka-ca"),
        secret(&secret_volume("results"), "results"),
        secret(&secret_volume("store"), "store"),
    ])
}

#[test]
fn stateful_set_is_whole() {
    let spread = |key: &str| json!({"maxSkew": 1, "topologyKey": key, "whenUnsatisfiable": "ScheduleAnyway", "labelSelector": selector()});

    assert_eq!(
        value(&children(&job()).stateful_set),
        json!({
            "apiVersion": "apps/v1", "kind": "StatefulSet",
            "metadata": metadata("clicks-tm"),
            "spec": {
                "replicas": 2,
                "selector": selector(),
                "serviceName": "clicks-tm",
                "podManagementPolicy": "Parallel",
                "updateStrategy": {"type": "RollingUpdate"},
                "revisionHistoryLimit": 2,
                "template": {
                    "metadata": {
                        "labels": labels(),
                        "annotations": {"kubectl.kubernetes.io/default-container": "task-manager"},
                    },
                    "spec": {
                        "serviceAccountName": "clicks-tm",
                        "automountServiceAccountToken": false,
                        "enableServiceLinks": false,
                        "terminationGracePeriodSeconds": 30,
                        "securityContext": {
                            "runAsNonRoot": true, "runAsUser": 65532, "runAsGroup": 65532,
                            "fsGroup": 65532, "fsGroupChangePolicy": "OnRootMismatch",
                            "seccompProfile": {"type": "RuntimeDefault"},
                        },
                        "topologySpreadConstraints": [spread("kubernetes.io/hostname")],
                        "containers": [built_container()],
                        "volumes": built_volumes(),
                    },
                },
            },
        })
    );
}

#[test]
fn service_disruption_budget_network_policy_and_service_account_are_whole() {
    let children = children(&job());

    assert_eq!(
        value(&children.service),
        json!({
            "apiVersion": "v1", "kind": "Service", "metadata": metadata("clicks-tm"),
            "spec": {
                "clusterIP": "None", "publishNotReadyAddresses": true,
                "selector": {"streamforge.io/job": "clicks"},
                "ports": [
                    {"name": "exchange", "port": 7101, "protocol": "TCP", "targetPort": "exchange"},
                    {"name": "metrics", "port": 8080, "protocol": "TCP", "targetPort": "metrics"},
                ],
            },
        })
    );
    assert_eq!(
        value(&children.disruption_budget),
        json!({
            "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": metadata("clicks-tm"),
            "spec": {"maxUnavailable": 1, "selector": selector(), "unhealthyPodEvictionPolicy": "AlwaysAllow"},
        })
    );
    assert_eq!(
        value(&children.network_policy),
        json!({
            "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": metadata("clicks-tm"),
            "spec": {
                "podSelector": selector(), "policyTypes": ["Ingress"],
                "ingress": [
                    {"from": [{"podSelector": selector()}], "ports": [{"port": 7101, "protocol": "TCP"}]},
                    {"ports": [{"port": 8080, "protocol": "TCP"}]},
                ],
            },
        })
    );
    assert_eq!(
        value(&children.service_account),
        json!({
            "apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata("clicks-tm"),
            "automountServiceAccountToken": false,
        })
    );
}

#[test]
fn what_is_deployed_is_read_back_from_the_config_map() {
    let settings = settings();
    let desired = validate(&job(), &settings).unwrap();
    let children = children(&job());
    let deployed = Deployed::read(&children.document).unwrap();

    assert_eq!(
        value(&children.document).pointer("/metadata"),
        Some(&metadata("clicks-document"))
    );
    assert_eq!(deployed.document, desired.document);
    let pods = deployed.pods.unwrap();
    assert_eq!(pods.hash, pod::pods_hash(&desired, &settings));
    assert_eq!(pods.template, children.stateful_set.spec.template);
}

#[test]
fn config_map_that_somebody_emptied_is_an_error_and_one_without_pods_is_not() {
    let mut config_map = children(&job()).document;
    let data = config_map.data.as_mut().unwrap();
    data.remove(PODS_KEY);
    assert_eq!(Deployed::read(&config_map).unwrap().pods, None);

    config_map.data = None;
    assert!(Deployed::read(&config_map).is_err());
}

#[test]
fn operator_of_another_version_leaves_the_pods_as_they_are() {
    let old = settings();
    let new = Settings {
        task_manager_image: "localhost/streamforge-taskmanager:0.2.0".to_owned(),
        ..settings()
    };
    let desired = validate(&job(), &old).unwrap();
    let kept = KeptPods::of(&desired, &old, None);
    let build_with = |desired: &Desired, settings| {
        let kept = Some(&kept);
        let request = Request {
            desired,
            settings,
            kept,
            replicas: 2,
            certificate: None,
        };
        build(&request).stateful_set.spec.template
    };

    assert_eq!(build_with(&desired, &new), kept.template);

    // A document that says something else of the pods gets pods of this version.
    let edited = validate(&with(&job(), "/taskManager/slots", json!(4)), &new).unwrap();
    let pods = value(&build_with(&edited, &new));
    assert_eq!(
        pods.pointer("/spec/containers/0/image"),
        Some(&json!("localhost/streamforge-taskmanager:0.2.0"))
    );

    // And so do those that could not find their coordinator.
    let moved = Settings {
        coordinator: "elsewhere:7100".to_owned(),
        ..settings()
    };
    let pods = value(&build_with(&desired, &moved));
    assert_eq!(
        pods.pointer("/spec/containers/0/args/0"),
        Some(&json!("--coordinator=elsewhere:7100"))
    );
}

/// Whoever may write ConfigMaps, but make no pods, gets none by the operator.
#[test]
fn kept_pods_that_somebody_else_wrote_are_built_anew() {
    let settings = settings();
    let desired = validate(&job(), &settings).unwrap();
    let built = KeptPods::of(&desired, &settings, None);
    let of = |kept: &KeptPods| KeptPods::of(&desired, &settings, Some(kept));
    let image = |pods: &KeptPods| {
        pods.template.spec.as_ref().unwrap().containers[0]
            .image
            .clone()
    };
    let read = |edit: &dyn Fn(&mut Value)| {
        let mut written: Value = serde_json::from_str(&built.text()).unwrap();
        edit(&mut written);
        KeptPods::read(&written.to_string()).unwrap()
    };
    // By an operator of another version.
    let older = Settings {
        task_manager_image: "localhost/streamforge-taskmanager:0.0.9".to_owned(),
        ..settings.clone()
    };
    let older = KeptPods::of(&desired, &older, None);
    assert_eq!(of(&KeptPods::read(&older.text()).unwrap()), older);

    let theirs = read(&|kept| kept["template"]["spec"]["containers"][0]["image"] = json!("theirs"));
    assert_eq!(image(&theirs).as_deref(), Some("theirs"));
    assert_eq!(of(&theirs), built);
    let unsealed = read(&|kept| drop(kept.as_object_mut().unwrap().remove("seal")));
    assert_eq!(of(&unsealed), built);
    // Nor are those of another job, or of another authority, taken for it.
    let other = with_metadata(
        &job(),
        "/uid",
        json!("5f7f0e0b-0c5e-4f2e-8f5d-7d1f5a1f0c55"),
    );
    let mut moved = KeptPods::of(&validate(&other, &settings).unwrap(), &settings, None);
    moved.hash.clone_from(&built.hash);
    assert_eq!(of(&moved), built);
    let stranger = Settings {
        seal: crate::seal::Seal::of(b"another key"),
        ..settings.clone()
    };
    assert_eq!(of(&KeptPods::of(&desired, &stranger, None)), built);
}

#[test]
fn restart_annotation_changes_the_pods_and_nothing_else() {
    let restarted = with_metadata(
        &job(),
        "/annotations",
        json!({RESTART_ANNOTATION: "2026-11-30"}),
    );
    let labelled = with_metadata(&job(), "/annotations", json!({"team.example/owner": "me"}));

    assert_eq!(
        template(&children(&restarted)).pointer("/metadata/annotations/streamforge.io~1restart"),
        Some(&json!("2026-11-30"))
    );
    assert_eq!(children(&labelled), children(&job()));
}

#[test]
fn pod_template_is_merged_by_name_and_ours_stays() {
    let job = with(
        &job(),
        "/taskManager/podTemplate",
        json!({
            "metadata": {"labels": {"team": "a"}, "annotations": {"x": "y"}},
            "spec": {
                "nodeSelector": {"disk": "ssd"},
                "topologySpreadConstraints": [{"maxSkew": 2, "topologyKey": "rack", "whenUnsatisfiable": "DoNotSchedule"}],
                "containers": [
                    {"name": "sidecar", "image": "s"},
                    {"name": "task-manager", "env": [{"name": "RUST_LOG", "value": "debug"}, {"name": "A", "value": "1"}],
                     "volumeMounts": [{"name": "extra", "mountPath": "/extra"}]},
                ],
                "volumes": [
                    {"name": "extra", "emptyDir": {}},
                    {"name": "streamforge-copies", "ephemeral": {"volumeClaimTemplate": {"spec": {"accessModes": ["ReadWriteOnce"]}}}},
                ],
            },
        }),
    );
    let children = children(&job);
    let template = template(&children);
    let at = |pointer: &str| template.pointer(pointer).cloned().unwrap_or_default();

    assert_eq!(at("/metadata/labels/team"), json!("a"));
    assert_eq!(at("/metadata/labels/streamforge.io~1job"), json!("clicks"));
    assert_eq!(at("/spec/nodeSelector"), json!({"disk": "ssd"}));
    assert_eq!(
        at("/spec/topologySpreadConstraints")
            .as_array()
            .unwrap()
            .len(),
        1
    );
    assert_eq!(
        at("/spec/containers/1"),
        json!({"name": "sidecar", "image": "s"})
    );
    assert_eq!(
        at("/spec/containers/0/command"),
        json!(["/bin/streamforge-taskmanager"])
    );
    let env = at("/spec/containers/0/env");
    assert_eq!(env[3], json!({"name": "RUST_LOG", "value": "debug"}));
    assert_eq!(env[5], json!({"name": "A", "value": "1"}));
    let mounts = at("/spec/containers/0/volumeMounts");
    assert_eq!(
        mounts.as_array().unwrap().last().unwrap()["mountPath"],
        "/extra"
    );
    let copies = &at("/spec/volumes")[1];
    assert_eq!(copies["name"], "streamforge-copies");
    assert!(
        copies.get("emptyDir").is_none(),
        "one volume has one source: {copies}"
    );
    assert!(copies.get("ephemeral").is_some());
}

#[test]
fn settings_of_the_task_manager_reach_the_pods() {
    let job = with(
        &job(),
        "/taskManager",
        json!({
            "slots": 4, "image": "registry/tm:1", "imagePullPolicy": "Always", "serviceAccountName": "irsa",
            "terminationGracePeriod": "1m500ms", "resources": {"limits": {"memory": "1Gi"}},
        }),
    );
    let job = with(
        &job,
        "/logging",
        json!({"level": "debug", "format": "Text"}),
    );
    let children = children(&job);
    let (template, container) = (template(&children), container(&children));

    assert_eq!(children.stateful_set.spec.replicas, Some(1));
    assert_eq!(container["image"], "registry/tm:1");
    assert_eq!(container["imagePullPolicy"], "Always");
    assert_eq!(container["args"][4], "--slots=4");
    assert_eq!(container["resources"], json!({"limits": {"memory": "1Gi"}}));
    assert_eq!(container["env"][3]["value"], "debug");
    assert_eq!(container["env"][4]["value"], "text");
    assert_eq!(template["spec"]["serviceAccountName"], "irsa");
    assert_eq!(template["spec"]["terminationGracePeriodSeconds"], 61);
}

#[test]
fn certificates_come_into_a_secret_that_debug_does_not_show() {
    let now: Timestamp = "2026-11-30T10:00:00Z".parse().unwrap();
    let settings = settings();
    let desired = validate(&job(), &settings).unwrap();
    let leaf = Authority::create(now)
        .unwrap()
        .issue_to_job(&desired.identity.uid, now)
        .unwrap();
    let request = Request {
        desired: &desired,
        settings: &settings,
        kept: None,
        replicas: 0,
        certificate: Some(&leaf),
    };
    let children = build(&request);

    let secret = &children.tls.as_ref().unwrap().0;
    assert_eq!(value(&secret.metadata), metadata("clicks-tls"));
    assert_eq!(secret.type_.as_deref(), Some("kubernetes.io/tls"));
    let data = secret.data.as_ref().unwrap();
    assert_eq!(data["tls.crt"].0, leaf.certificate.as_bytes());
    assert_eq!(data["tls.key"].0, leaf.key.reveal().as_bytes());
    assert_eq!(data["ca.crt"].0, leaf.authority.as_bytes());
    let shown = format!("{children:?} {request:?}");
    assert!(!shown.contains("PRIVATE KEY") && !shown.contains(&format!("{:?}", data["tls.key"].0)));
    assert_eq!(children.stateful_set.spec.replicas, Some(0));
}

#[test]
fn longest_name_of_a_job_gives_children_that_the_api_server_takes() {
    let job = with_metadata(&job(), "/name", json!("n".repeat(253)));
    let children = children(&job);

    let name = children.stateful_set.metadata.name.unwrap();
    assert!(name.len() <= 52 && name.ends_with("-tm"), "{name}");
    assert_eq!(
        children.stateful_set.metadata.owner_references.unwrap()[0]
            .name
            .len(),
        253
    );
}

#[test]
fn nothing_of_a_pod_breaks_the_restricted_pod_security_standard() {
    let template = template(&children(&job()));
    let at = |pointer: &str| template.pointer(pointer).cloned();

    for absent in [
        "hostNetwork",
        "hostPID",
        "hostIPC",
        "initContainers",
        "hostUsers",
    ] {
        assert_eq!(at(&format!("/spec/{absent}")), None);
    }
    assert_eq!(at("/spec/securityContext/runAsNonRoot"), Some(json!(true)));
    assert_eq!(
        at("/spec/securityContext/seccompProfile/type"),
        Some(json!("RuntimeDefault"))
    );
    assert_eq!(
        at("/spec/containers/0/securityContext/allowPrivilegeEscalation"),
        Some(json!(false))
    );
    assert_eq!(
        at("/spec/containers/0/securityContext/capabilities/drop"),
        Some(json!(["ALL"]))
    );
    for volume in at("/spec/volumes").unwrap().as_array().unwrap() {
        let kinds: Vec<&String> = volume
            .as_object()
            .unwrap()
            .keys()
            .filter(|key| *key != "name")
            .collect();
        assert!(kinds == ["secret"] || kinds == ["emptyDir"], "{volume}");
    }
}
