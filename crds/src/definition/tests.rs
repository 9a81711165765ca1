use super::*;
use crate::reserved;

fn schema() -> Value {
    crd_value()
        .pointer("/spec/versions/0/schema/openAPIV3Schema")
        .unwrap()
        .clone()
}

fn walk(schema: &Value, path: &str, visit: &mut dyn FnMut(&str, &Value)) {
    visit(path, schema);
    if let Some(Value::Object(properties)) = schema.get("properties") {
        for (name, property) in properties {
            walk(property, &format!("{path}.{name}"), visit);
        }
    }
    if let Some(items) = schema.get("items") {
        walk(items, &format!("{path}[]"), visit);
    }
}

#[test]
fn the_yaml_is_the_same_every_time_and_equal_to_the_committed_files() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/generated");

    assert_eq!(definition_files(), definition_files());
    for DefinitionFile { name, text } in definition_files() {
        let committed = std::fs::read_to_string(format!("{folder}/{name}"));
        assert_eq!(
            committed.unwrap_or_default(),
            text,
            "run `cargo xtask crdgen`"
        );
    }
}

#[test]
fn all_definitions_are_one_text_of_several_documents() {
    let text = crd_yaml();

    let kinds: Vec<&str> = text
        .split("---\n")
        .filter_map(|document| {
            document
                .lines()
                .find_map(|line| line.strip_prefix("    kind: "))
        })
        .collect();
    assert_eq!(kinds, ["StreamJob", "Savepoint"]);
}

fn columns(value: &Value) -> Vec<(&str, &str)> {
    fn text<'a>(column: &'a Value, key: &str) -> &'a str {
        column.get(key).and_then(Value::as_str).unwrap()
    }
    let columns = value.pointer("/spec/versions/0/additionalPrinterColumns");
    let columns = columns.and_then(Value::as_array).unwrap().iter();
    columns
        .map(|column| (text(column, "name"), text(column, "jsonPath")))
        .collect()
}

#[test]
fn get_shows_the_columns_of_the_reference() {
    assert_eq!(
        columns(&crd_value()),
        [
            ("Phase", ".status.phase"),
            ("Parallelism", ".status.parallelism"),
            ("TMs", ".status.taskManagers.ready"),
            ("Checkpoint", ".status.checkpoint.lastCompleted.id"),
            ("Ckpt-Age", ".status.checkpoint.lastCompleted.time"),
            ("Lag", ".status.lag.records"),
            ("Restarts", ".status.restarts"),
            ("Age", ".metadata.creationTimestamp"),
        ]
    );
    assert_eq!(
        columns(&savepoint_value()),
        [
            ("Job", ".spec.job"),
            ("Phase", ".status.phase"),
            ("Checkpoint", ".status.checkpointId"),
            ("Size", ".status.size"),
            ("Taken", ".status.time"),
            ("Reason", ".status.reason"),
            ("Age", ".metadata.creationTimestamp"),
        ]
    );
}

#[test]
fn every_column_shows_a_field_that_exists() {
    for value in [crd_value(), savepoint_value()] {
        let mut schema = value.pointer(SCHEMA).unwrap().clone();
        for (name, path) in columns(&value) {
            let path = path.trim_start_matches('.');
            let known = path.starts_with("metadata.") || schema_at(&mut schema, path).is_some();
            assert!(known, "{name}: {path}");
        }
    }
}

#[test]
fn a_savepoint_is_of_one_job_for_ever_and_has_a_status_of_its_own() {
    let value = savepoint_value();
    let job = value.pointer(&format!("{SCHEMA}/properties/spec/properties/job"));
    let rule = job.unwrap().pointer("/x-kubernetes-validations/0/rule");

    assert_eq!(rule, Some(&json!("self == oldSelf")));
    let subresources = value.pointer("/spec/versions/0/subresources");
    assert_eq!(subresources, Some(&json!({"status": {}})));
    let policy = value.pointer(&format!(
        "{SCHEMA}/properties/spec/properties/deletionPolicy"
    ));
    assert_eq!(policy.unwrap().get("default"), Some(&json!("Retain")));
}

#[test]
fn every_rule_stands_at_a_place_that_exists() {
    let mut schema = schema();

    for path in CHOICES
        .iter()
        .map(|c| c.path)
        .chain(RULES.iter().map(|r| r.path))
    {
        assert!(schema_at(&mut schema, path).is_some(), "{path}");
    }
    for Choice { path, keys } in CHOICES {
        for key in *keys {
            assert!(
                schema_at(&mut schema, &format!("{path}.{key}")).is_some(),
                "{path}.{key}"
            );
        }
    }
}

#[test]
fn reserved_names_do_not_exist_and_reserved_fields_do() {
    let mut schema = schema();

    for reserved in reserved::KEYS {
        assert!(
            schema_at(&mut schema, reserved.path).is_some(),
            "{}",
            reserved.path
        );
        for key in reserved.keys {
            let path = format!("{}.{key}", reserved.path);
            assert!(schema_at(&mut schema, &path).is_none(), "{path}");
        }
    }
    for path in reserved::CLUSTER_FIELDS {
        assert!(schema_at(&mut schema, path).is_some(), "{path}");
    }
    for value in reserved::VALUES {
        let field = schema_at(&mut schema, value.path).unwrap();
        let values = field.get("enum").unwrap().as_array().unwrap();
        assert!(!values.contains(&json!(value.value)), "{}", value.path);
    }
}

#[test]
fn everything_in_the_spec_that_can_grow_is_bounded() {
    for value in [crd_value(), savepoint_value()] {
        let spec = value.pointer(&format!("{SCHEMA}/properties/spec")).unwrap();

        walk(
            spec,
            "spec",
            &mut |path, schema| match schema.get("type").and_then(Value::as_str) {
                Some("array") => assert!(schema.get("maxItems").is_some(), "{path}"),
                Some("string") if schema.get("enum").is_none() => {
                    assert!(schema.get("maxLength").is_some(), "{path}");
                }
                _ => {}
            },
        );
    }
}

#[test]
fn the_schema_is_structural() {
    for value in [crd_value(), savepoint_value()] {
        walk(value.pointer(SCHEMA).unwrap(), "", &mut |path, schema| {
            for word in ["$ref", "anyOf", "oneOf", "allOf", "definitions"] {
                assert!(schema.get(word).is_none(), "{path} has {word}");
            }
            assert!(schema.get("type").is_some(), "{path} has no type");
        });
    }
}

#[test]
fn defaults_are_written_into_the_schema() {
    let mut schema = schema();
    for (path, default) in [
        ("spec.parallelism", json!(1)),
        ("spec.maxParallelism", json!(128)),
        ("spec.sources[].onBadRecord", json!("Divert")),
        ("spec.sources[].file.watch", json!("Never")),
        ("spec.transforms[].aggregate.allowedLateness", json!("0s")),
        ("spec.transforms[].aggregate.emit", json!("OnTime")),
        (
            "spec.transforms[].aggregate.window.tumbling.timeZone",
            json!("UTC"),
        ),
        ("spec.checkpoint.interval", json!("10s")),
        ("spec.checkpoint.retain", json!(3)),
        ("spec.state.memoryLimit", json!("512Mi")),
        ("spec.restart.backoff.max", json!("30s")),
    ] {
        assert_eq!(
            schema_at(&mut schema, path).unwrap().get("default"),
            Some(&default),
            "{path}"
        );
    }
}

#[test]
fn nodes_are_lists_that_merge_by_name() {
    let mut schema = schema();
    for path in [
        "spec.sources",
        "spec.transforms",
        "spec.sinks",
        "spec.sources[].schema",
    ] {
        let list = schema_at(&mut schema, path).unwrap();
        assert_eq!(
            list.get("x-kubernetes-list-type"),
            Some(&json!("map")),
            "{path}"
        );
        assert_eq!(
            list.get("x-kubernetes-list-map-keys"),
            Some(&json!(["name"])),
            "{path}"
        );
    }
}

#[test]
fn scaling_writes_parallelism() {
    let scale = crd_value()
        .pointer("/spec/versions/0/subresources/scale")
        .unwrap()
        .clone();

    assert_eq!(
        scale.get("specReplicasPath"),
        Some(&json!(".spec.parallelism"))
    );
    assert_eq!(
        scale.get("labelSelectorPath"),
        Some(&json!(".status.selector"))
    );
}
