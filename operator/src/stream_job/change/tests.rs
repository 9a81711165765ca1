use std::collections::BTreeSet;

use serde_json::{Value, json};
use streamforge_crds::v1alpha1::StreamJob;

use super::*;
use crate::stream_job::build::{Deployed, KeptPods};
use crate::stream_job::testing::{job, settings, with, with_metadata};
use crate::stream_job::validate::validate;

fn deployed(job: &StreamJob) -> Deployed {
    let settings = settings();
    let desired = validate(job, &settings).unwrap_or_else(|problems| panic!("{problems:?}"));
    Deployed {
        pods: Some(KeptPods::of(&desired, &settings, None)),
        document: desired.document,
    }
}

fn edited(from: &StreamJob, to: &StreamJob) -> Change {
    let settings = settings();
    let desired = validate(to, &settings).unwrap_or_else(|problems| panic!("{problems:?}"));
    change(&deployed(from), &desired, &settings)
}

fn upgrade_of(from: &StreamJob, to: &StreamJob) -> Upgrade {
    match edited(from, to) {
        Change::Upgrade(upgrade) => upgrade,
        other => panic!("{other:?}"),
    }
}

/// One class of change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Class {
    None,
    Scale,
    Policies,
    Pods,
    Upgrade,
}

fn class(change: &Change) -> Class {
    match change {
        Change::None => Class::None,
        Change::Upgrade(_) => Class::Upgrade,
        Change::InPlace(InPlace {
            scale: Some(_),
            policies,
            pods: false,
        }) if policies.is_empty() => Class::Scale,
        Change::InPlace(InPlace {
            scale: None,
            policies,
            pods: false,
        }) if policies.len() == 1 => Class::Policies,
        Change::InPlace(InPlace {
            scale: None,
            policies,
            pods: true,
        }) if policies.is_empty() => Class::Pods,
        other => panic!("more than one class: {other:?}"),
    }
}

/// Every field that an edit can change, another value of it, and what that asks for.
fn table() -> Vec<(&'static str, Value, Class)> {
    use Class::{None, Pods, Policies, Scale, Upgrade};
    vec![
        ("parallelism", json!(8), Scale),
        ("maxParallelism", json!(256), Upgrade),
        ("checkpoint.interval", json!("1s"), Policies),
        ("checkpoint.timeout", json!("2m"), Policies),
        ("checkpoint.minPause", json!("1s"), Policies),
        ("checkpoint.retain", json!(5), Policies),
        ("checkpoint.tolerateFailures", json!(5), Policies),
        ("checkpoint.onDelete", json!("Retain"), None),
        ("checkpoint.storage.uri", json!("s3://state/other"), Upgrade),
        (
            "checkpoint.storage.s3.endpoint",
            json!("http://minio:9000"),
            Upgrade,
        ),
        ("checkpoint.storage.s3.region", json!("eu-west-1"), Upgrade),
        ("checkpoint.storage.s3.pathStyle", json!(false), Upgrade),
        (
            "checkpoint.storage.s3.credentialsSecret.name",
            json!("other"),
            Upgrade,
        ),
        ("state.backend", json!("Memory"), None),
        ("state.memoryLimit", json!("1Gi"), Policies),
        ("restart.maxFailures", json!(3), Policies),
        ("restart.window", json!("1m"), Policies),
        ("restart.backoff.initial", json!("1s"), Policies),
        ("restart.backoff.max", json!("1m"), Policies),
        ("failureDetection.heartbeat", json!("1s"), Policies),
        ("failureDetection.timeout", json!("10s"), Policies),
        ("upgrade.mode", json!("Stateless"), None),
        ("upgrade.rollbackAfter", json!("1m"), None),
        ("upgrade.droppedState", json!("Allow"), None),
        ("restoreFrom.savepoint", json!("nightly"), None),
        ("restoreFrom.uri", json!("s3://state/savepoint"), None),
        ("suspend", json!(true), None),
        ("taskManager.slots", json!(4), Pods),
        ("taskManager.image", json!("registry/tm:2"), Pods),
        ("taskManager.imagePullPolicy", json!("Always"), Pods),
        (
            "taskManager.resources",
            json!({"limits": {"memory": "1Gi"}}),
            Pods,
        ),
        ("taskManager.serviceAccountName", json!("irsa"), Pods),
        (
            "taskManager.podTemplate",
            json!({"spec": {"nodeSelector": {"a": "b"}}}),
            Pods,
        ),
        ("taskManager.terminationGracePeriod", json!("1m"), Pods),
        ("ttlAfterFinished", json!("1h"), None),
        ("logging.level", json!("debug"), Pods),
        ("logging.format", json!("Text"), Pods),
        ("logging.format", json!("Json"), None),
    ]
}

#[test]
fn kf_o29_every_field_asks_for_what_the_table_says_and_for_no_more() {
    for (field, value, wanted) in table() {
        let pointer = format!("/{}", field.replace('.', "/"));
        let change = edited(&job(), &with(&job(), &pointer, value));

        assert_eq!(class(&change), wanted, "{field}: {change:?}");
    }
}

#[test]
fn kf_o29_the_table_has_every_field_of_the_spec() {
    let crd = serde_json::to_value(streamforge_crds::crd()).unwrap();
    let spec = crd
        .pointer("/spec/versions/0/schema/openAPIV3Schema/properties/spec")
        .unwrap();
    let mut fields = BTreeSet::new();
    leaves(spec, "", &mut fields);
    // Nodes are compared by what they make of the plan.
    fields.retain(|field| !["sources", "transforms", "sinks"].contains(&field.as_str()));

    let listed: BTreeSet<String> = table()
        .into_iter()
        .map(|(field, _, _)| field.to_owned())
        .collect();
    assert_eq!(listed, fields);
}

fn leaves(schema: &Value, path: &str, found: &mut BTreeSet<String>) {
    match schema.get("properties").and_then(Value::as_object) {
        None => {
            found.insert(path.to_owned());
        }
        Some(properties) => {
            for (name, property) in properties {
                let path = if path.is_empty() {
                    name.clone()
                } else {
                    format!("{path}.{name}")
                };
                leaves(property, &path, found);
            }
        }
    }
}

#[test]
fn metadata_asks_for_nothing_but_the_restart_annotation_does() {
    for (pointer, value, wanted) in [
        ("/labels", json!({"a": "b"}), Class::None),
        ("/annotations", json!({"a": "b"}), Class::None),
        (
            "/annotations",
            json!({"streamforge.io/pause": "true"}),
            Class::None,
        ),
        ("/generation", json!(9), Class::None),
        ("/resourceVersion", json!("9"), Class::None),
        (
            "/annotations",
            json!({"streamforge.io/restart": "now"}),
            Class::Pods,
        ),
    ] {
        let change = edited(&job(), &with_metadata(&job(), pointer, value.clone()));
        assert_eq!(class(&change), wanted, "{pointer} {value}");
    }
}

#[test]
fn nodes_are_compared_by_what_they_make_of_the_plan() {
    for (pointer, value, wanted) in [
        // What is the default anyway.
        ("/sources/0/uid", json!("clicks"), Class::None),
        ("/sources/0/onBadRecord", json!("Divert"), Class::None),
        ("/sinks/0/delivery", json!("ExactlyOnce"), Class::None),
        (
            "/checkpoint/storage/uri",
            json!("s3://state/jobs/"),
            Class::None,
        ),
        // What nobody reads.
        (
            "/transforms/2",
            json!({"name": "unread", "from": "clicks", "filter": "amount > 1"}),
            Class::None,
        ),
        ("/transforms/0/filter", json!("amount > 1"), Class::Upgrade),
        (
            "/sources/0/rateLimit",
            json!({"rowsPerSecond": 5}),
            Class::Upgrade,
        ),
        ("/sources/0/kafka/topics", json!(["other"]), Class::Upgrade),
        (
            "/sources/0/kafka/security/caSecret/name",
            json!("other"),
            Class::Upgrade,
        ),
        (
            "/sinks/0/file/path",
            json!("s3://results/other"),
            Class::Upgrade,
        ),
    ] {
        let change = edited(&job(), &with(&job(), pointer, value.clone()));
        assert_eq!(class(&change), wanted, "{pointer} {value}: {change:?}");
    }
}

#[test]
fn several_edits_in_place_are_told_together() {
    let to = with(&job(), "/parallelism", json!(8));
    let to = with(&to, "/checkpoint/interval", json!("1s"));
    let to = with(&to, "/logging/level", json!("debug"));

    assert_eq!(
        edited(&job(), &to),
        Change::InPlace(InPlace {
            scale: Some(Scale { from: 4, to: 8 }),
            policies: vec!["spec.checkpoint.interval"],
            pods: true,
        })
    );
}

#[test]
fn upgrade_says_what_differs_and_what_state_it_drops() {
    let to = with(&job(), "/transforms/1/name", json!("per_visitor"));
    let to = with(&to, "/sinks/0/from", json!("per_visitor"));
    let upgrade = upgrade_of(&job(), &to);

    assert_eq!(
        upgrade,
        Upgrade {
            why: [
                "adds the transform `per_visitor`",
                "removes the transform `per_user`",
                "changes the sink `out`",
            ]
            .map(str::to_owned)
            .to_vec(),
            dropped: vec![Dropped {
                uid: "per_user".to_owned(),
                reason: "the aggregate with uid \"per_user\" is gone, and its state would be dropped; if \
                         \"per_visitor\" is the same by another name, give that one `uid: per_user`"
                    .to_owned(),
            }],
            moves_store: false,
            key_groups: None,
        }
    );
}

#[test]
fn renamed_node_that_keeps_its_uid_keeps_its_state() {
    let to = with(&job(), "/transforms/1/name", json!("per_visitor"));
    let to = with(&to, "/transforms/1/uid", json!("per_user"));
    let to = with(&to, "/sinks/0/from", json!("per_visitor"));

    let upgrade = upgrade_of(&job(), &to);
    assert_eq!(upgrade.dropped, []);
    assert_eq!(upgrade.refusal(&Policy::default()), []);
}

#[test]
fn state_is_dropped_only_when_somebody_says_so() {
    let to = with(
        &job(),
        "/transforms/1/aggregate/window",
        json!({"tumbling": {"size": "5m"}}),
    );
    let upgrade = upgrade_of(&job(), &to);
    let policy = |mode, dropped_state| Policy {
        mode,
        dropped_state,
        ..Policy::default()
    };

    assert_eq!(
        upgrade.refusal(&Policy::default()),
        [Problem::new(
            "spec",
            "window of aggregate \"per_user\" changed, which gives its state another meaning",
            "take that back, or write `upgrade: {droppedState: Allow}`"
        )]
    );
    assert_eq!(
        upgrade.refusal(&policy(UpgradeMode::Stateful, DroppedState::Allow)),
        []
    );
    assert_eq!(
        upgrade.refusal(&policy(UpgradeMode::Stateless, DroppedState::Refuse)),
        []
    );
}

#[test]
fn another_allowed_lateness_drops_state_like_another_window() {
    // Not corrected by retraction: the sink appends.
    let from = with(&job(), "/transforms/1/aggregate/emit", json!("Once"));
    let to = with(
        &from,
        "/transforms/1/aggregate/allowedLateness",
        json!("1h"),
    );

    assert_eq!(
        upgrade_of(&from, &to).refusal(&Policy::default()),
        [Problem::new(
            "spec",
            "allowedLateness of aggregate \"per_user\" changed, which gives its state another meaning",
            "take that back, or write `upgrade: {droppedState: Allow}`"
        )]
    );
}

#[test]
fn another_number_of_key_groups_is_refused_while_there_is_state_whatever_may_be_dropped() {
    let upgrade = upgrade_of(&job(), &with(&job(), "/maxParallelism", json!(256)));
    let allow = Policy {
        dropped_state: DroppedState::Allow,
        ..Policy::default()
    };
    let stateless = Policy {
        mode: UpgradeMode::Stateless,
        ..Policy::default()
    };

    assert_eq!(upgrade.refusal(&allow)[0].path, "spec.maxParallelism");
    assert_eq!(upgrade.refusal(&stateless), []);
}

#[test]
fn store_moves_when_its_place_does_and_not_when_the_way_there_does() {
    let moves =
        |pointer: &str, value| upgrade_of(&job(), &with(&job(), pointer, value)).moves_store;

    assert!(moves("/checkpoint/storage/uri", json!("s3://state/other")));
    assert!(moves(
        "/checkpoint/storage/s3/endpoint",
        json!("http://minio:9000")
    ));
    assert!(!moves(
        "/checkpoint/storage/s3/credentialsSecret/name",
        json!("other")
    ));
}

#[test]
fn source_that_is_gone_leaves_input_unread() {
    let second = json!({"name": "more", "generator": {"clicks": {"rowsPerSecond": 1}}});
    let sink = json!({"name": "count", "from": "more", "blackhole": {}});
    let from = with(&with(&job(), "/sources/1", second), "/sinks/1", sink);

    let dropped = upgrade_of(&from, &job()).dropped;
    assert_eq!(dropped.len(), 1, "{dropped:?}");
    assert_eq!(dropped[0].uid, "more");
}

#[test]
fn pods_that_nobody_remembers_are_no_change() {
    let mut deployed = deployed(&job());
    deployed.pods = None;
    let settings = settings();

    assert_eq!(
        change(&deployed, &validate(&job(), &settings).unwrap(), &settings),
        Change::None
    );
}
