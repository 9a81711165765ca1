//! The custom resource definitions.
//!
//! Owns: what a derived schema cannot say by itself: CEL rules, and the removal of what the API
//! server does not know (`uint32`) or what would let an empty key count as written (`nullable`).

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt;
use serde_json::{Map, Value, json};

use crate::v1alpha1::{CHOICES, Choice, Savepoint, StreamJob};
use crate::yaml;

/// A CEL rule at a place of the schema; `[]` stands for the items of a list.
struct Rule {
    path: &'static str,
    rule: &'static str,
    message: &'static str,
}

const RULES: &[Rule] = &[
    Rule {
        path: "spec",
        rule: "self.parallelism <= self.maxParallelism",
        message: "parallelism must not be larger than maxParallelism",
    },
    Rule {
        path: "spec",
        rule: "!has(self.transforms) || self.sources.all(s, !self.transforms.exists(t, t.name == s.name))",
        message: "a source and a transform have the same name",
    },
    Rule {
        path: "spec",
        rule: "self.sources.all(s, !self.sinks.exists(t, t.name == s.name))",
        message: "a source and a sink have the same name",
    },
    Rule {
        path: "spec",
        rule: "!has(self.transforms) || self.sinks.all(s, !self.transforms.exists(t, t.name == s.name))",
        message: "a sink and a transform have the same name",
    },
    Rule {
        path: "spec.sources[]",
        rule: "has(self.generator) ? !has(self.format) && !has(self.schema) : has(self.format)",
        message: "a kafka or file source needs format, a generator takes neither format nor schema",
    },
    Rule {
        path: "spec.transforms[]",
        rule: "has(self.union) != has(self.from)",
        message: "union names its inputs itself, every other transform needs from",
    },
    Rule {
        path: "spec.sinks[]",
        rule: "(has(self.file) || has(self.kafka)) == has(self.format)",
        message: "file and kafka sinks need format, print and blackhole take none",
    },
];

/// The custom resource definition of a StreamJob.
pub fn crd() -> CustomResourceDefinition {
    serde_json::from_value(crd_value())
        .expect("the definition came from this type and keeps its shape")
}

const SAVEPOINT_RULES: &[Rule] = &[Rule {
    path: "spec.job",
    rule: "self == oldSelf",
    message: "a savepoint is of one job for ever: create another",
}];

/// The custom resource definition of a Savepoint.
pub fn savepoint_crd() -> CustomResourceDefinition {
    serde_json::from_value(savepoint_value())
        .expect("the definition came from this type and keeps its shape")
}

/// One file of a definition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DefinitionFile {
    /// Its name.
    pub name: &'static str,
    /// YAML; the same bytes every time.
    pub text: String,
}

/// The custom resource definitions, one file each.
pub fn definition_files() -> [DefinitionFile; 2] {
    [
        DefinitionFile {
            name: "streamjobs.streamforge.io.yaml",
            text: file_text(&crd_value()),
        },
        DefinitionFile {
            name: "savepoints.streamforge.io.yaml",
            text: file_text(&savepoint_value()),
        },
    ]
}

/// All definitions as one YAML text, as `kubectl apply --server-side -f -` takes it.
pub fn crd_yaml() -> String {
    definition_files().map(|file| file.text).join("---\n")
}

fn file_text(value: &Value) -> String {
    let header =
        "# Generated from the types in crds/src/v1alpha1 by `cargo xtask crdgen`. Do not edit.\n";
    format!("{header}{}", yaml::write(value))
}

fn savepoint_value() -> Value {
    let mut value = serde_json::to_value(Savepoint::crd()).expect("a definition is plain JSON");
    if let Some(schema) = value.pointer_mut(SCHEMA) {
        clean(schema);
        add_rules(schema, SAVEPOINT_RULES);
    }
    value
}

/// Where a definition has its schema.
const SCHEMA: &str = "/spec/versions/0/schema/openAPIV3Schema";

fn crd_value() -> Value {
    let mut value = serde_json::to_value(StreamJob::crd()).expect("a definition is plain JSON");
    if let Some(schema) = value.pointer_mut(SCHEMA) {
        clean(schema);
        for Choice { path, keys } in CHOICES {
            add_rule(
                schema,
                path,
                &exactly_one_rule(keys),
                &exactly_one_message(keys),
            );
        }
        add_rules(schema, RULES);
    }
    value
}

fn add_rules(schema: &mut Value, rules: &[Rule]) {
    for Rule {
        path,
        rule,
        message,
    } in rules
    {
        add_rule(schema, path, rule, message);
    }
}

fn exactly_one_rule(keys: &[&str]) -> String {
    let has: Vec<String> = keys.iter().map(|key| format!("has(self.{key})")).collect();
    format!("[{}].filter(x, x).size() == 1", has.join(", "))
}

fn exactly_one_message(keys: &[&str]) -> String {
    format!("write exactly one of {}", keys.join(", "))
}

/// Takes out what the API server does not know, everywhere.
fn clean(schema: &mut Value) {
    match schema {
        Value::Object(map) => {
            clean_object(map);
            map.values_mut().for_each(clean);
        }
        Value::Array(items) => items.iter_mut().for_each(clean),
        _ => {}
    }
}

fn clean_object(map: &mut Map<String, Value>) {
    if map.get("nullable") == Some(&Value::Bool(true)) {
        map.remove("nullable");
    }
    if map
        .get("format")
        .and_then(Value::as_str)
        .is_some_and(|format| format.starts_with("uint"))
    {
        map.insert("format".to_owned(), json!("int64"));
    }
    // A structural schema may not say `false`; unknown fields are pruned or refused anyway.
    if map.get("additionalProperties") == Some(&Value::Bool(false)) {
        map.remove("additionalProperties");
    }
    for bound in ["minimum", "maximum"] {
        let whole = map
            .get(bound)
            .and_then(Value::as_f64)
            .filter(|n| n.fract() == 0.0);
        if let Some(whole) = whole {
            #[expect(
                clippy::cast_possible_truncation,
                reason = "the bounds are small whole numbers"
            )]
            map.insert(bound.to_owned(), json!(whole as i64));
        }
    }
}

/// The schema at a path, or nothing if the types no longer have that place (a test checks this).
fn schema_at<'a>(schema: &'a mut Value, path: &str) -> Option<&'a mut Value> {
    path.split('.').try_fold(schema, |schema, step| {
        let (name, is_list) = match step.strip_suffix("[]") {
            Some(name) => (name, true),
            None => (step, false),
        };
        let property = schema.get_mut("properties")?.get_mut(name)?;
        if is_list {
            property.get_mut("items")
        } else {
            Some(property)
        }
    })
}

fn add_rule(schema: &mut Value, path: &str, rule: &str, message: &str) {
    let Some(Value::Object(place)) = schema_at(schema, path) else {
        return;
    };
    let rules = place
        .entry("x-kubernetes-validations")
        .or_insert_with(|| json!([]));
    if let Value::Array(rules) = rules {
        rules.push(json!({"message": message, "rule": rule}));
    }
}

#[cfg(test)]
mod tests;
