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
fn the_yaml_is_the_same_every_time_and_equal_to_the_committed_file() {
    let committed = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/generated/streamjobs.streamforge.io.yaml"
    );
    let yaml = crd_yaml();

    assert_eq!(yaml, crd_yaml());
    assert_eq!(
        std::fs::read_to_string(committed).unwrap_or_default(),
        yaml,
        "run `cargo xtask crdgen`"
    );
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
    for path in reserved::FIELDS.iter().chain(reserved::CLUSTER_FIELDS) {
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
    let schema = schema();
    let spec = schema.pointer("/properties/spec").unwrap();

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

#[test]
fn the_schema_is_structural() {
    walk(&schema(), "", &mut |path, schema| {
        for word in ["$ref", "anyOf", "oneOf", "allOf", "definitions"] {
            assert!(schema.get(word).is_none(), "{path} has {word}");
        }
        assert!(schema.get("type").is_some(), "{path} has no type");
    });
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
