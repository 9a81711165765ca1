//! A document, read and checked.
//!
//! Owns: the way from text to [`Loaded`]: YAML, then shape, then meaning. All mistakes that can be
//! found are reported at once; each step goes on with what the step before could mend. Does no I/O.
//! Start at: [`load`].

mod folders;
mod headers;
mod kafka;
mod nodes;
mod outputs;
mod resolve;
mod run;
mod s3;
mod sinks;
mod sources;
mod transforms;
mod windows;

use std::sync::LazyLock;

use serde_json::{Value as Json, json};
use streamforge_crds::v1alpha1::StreamJobSpec;

use crate::problem::{At, Problem, Problems, did_you_mean, nearest};
use crate::stack::on_large_stack;
use crate::structure::{self, Places};
use crate::yaml::{self, Entry, Node, Value};

pub use headers::forget_headers_of_kafka;
use outputs::Output;
pub(crate) use outputs::OutputName;
pub(crate) use resolve::{Kind, Resolved, ResolvedAggregate};
pub use s3::s3_place;
pub(crate) use transforms::fired_columns;

/// A document in which no mistake was found.
#[derive(Debug)]
pub struct Loaded {
    /// `metadata.name`.
    pub name: String,
    /// The document, defaults filled in.
    pub spec: StreamJobSpec,
    /// What a person should know, though nothing is wrong.
    pub notes: Vec<Problem>,
    /// Nodes in topological order, types resolved.
    pub(crate) nodes: Vec<Resolved>,
}

/// A document in which mistakes were found.
#[derive(Debug)]
pub struct Mistaken {
    /// The mistakes.
    pub problems: Vec<Problem>,
    /// What a person should know besides.
    pub notes: Vec<Problem>,
}

/// Reads and checks a document; `file_name` is only for messages.
pub fn load(text: &str, file_name: &str) -> Result<Loaded, Vec<Problem>> {
    load_with_notes(text, file_name).map_err(|mistaken| mistaken.problems)
}

/// As [`load`], for those who show notes beside mistakes.
pub fn load_with_notes(text: &str, file_name: &str) -> Result<Loaded, Mistaken> {
    on_large_stack(|| load_here(text, file_name, yaml::DOCUMENT_BYTES_MAX))
}

/// Reads and checks a document in which the defaults are written out, so that it may be larger than
/// one that a person writes: as the API server keeps it, or as [`Loaded::spec`] says it.
pub fn load_resolved(text: &str, file_name: &str) -> Result<Loaded, Vec<Problem>> {
    on_large_stack(|| load_here(text, file_name, yaml::RESOLVED_BYTES_MAX))
        .map_err(|mistaken| mistaken.problems)
}

fn load_here(text: &str, file_name: &str, bytes_max: usize) -> Result<Loaded, Mistaken> {
    let mut problems = Problems::new(file_name);
    let mut notes = Problems::new(file_name);
    let loaded = match yaml::parse(text, bytes_max) {
        Ok(root) => load_root(&root, &mut problems, &mut notes),
        Err(mistake) => {
            problems.add(mistake.at, "", mistake.message, mistake.hint);
            None
        }
    };
    let notes = notes.into_sorted();
    match loaded {
        Some(loaded) if problems.is_empty() => Ok(Loaded { notes, ..loaded }),
        _ => Err(Mistaken {
            problems: problems.into_sorted(),
            notes,
        }),
    }
}

static SPEC_SCHEMA: LazyLock<Json> = LazyLock::new(|| {
    let crd = serde_json::to_value(streamforge_crds::crd()).unwrap_or_default();
    crd.pointer("/spec/versions/0/schema/openAPIV3Schema/properties/spec")
        .cloned()
        .unwrap_or_else(|| json!({"type": "object"}))
});

fn load_root(root: &Node, problems: &mut Problems, notes: &mut Problems) -> Option<Loaded> {
    let Value::Map(entries) = &root.value else {
        let hint = "begin with `apiVersion: streamforge.io/v1alpha1`".to_owned();
        let message = format!("expected a StreamJob, found {}", root.kind());
        problems.add(root.at, "", message, Some(hint));
        return None;
    };
    if !is_stream_job(root, entries, problems) {
        return None;
    }
    check_root_fields(entries, problems);
    let name = metadata_name(root, entries, problems);
    let Some(spec) = entries.iter().find(|entry| entry.key == "spec") else {
        problems.add(root.at, "", "`spec` is missing", None);
        return None;
    };
    let (value, places) = structure::check(&spec.value, &SPEC_SCHEMA, "spec", problems);
    let spec = typed(value?, &places, problems)?;
    let nodes = nodes::resolve_all(&spec, &places, problems);
    folders::check(&spec, &places, problems);
    run::check(&spec, &places, problems, notes);
    Some(Loaded {
        name: name?,
        spec,
        notes: Vec::new(),
        nodes,
    })
}

fn typed(value: Json, places: &Places, problems: &mut Problems) -> Option<StreamJobSpec> {
    match serde_json::from_value(value) {
        Ok(spec) => Some(spec),
        // The schema and the types come from the same place; this speaks of a bug, but not by panic.
        Err(error) => {
            problems.add(places.at("spec"), "spec", error.to_string(), None);
            None
        }
    }
}

fn text_at<'a>(entries: &'a [Entry], key: &str) -> Option<(At, Option<&'a str>)> {
    let entry = entries.iter().find(|entry| entry.key == key)?;
    let text = match &entry.value.value {
        Value::Text(text) => Some(text.as_str()),
        _ => None,
    };
    Some((entry.value.at, text))
}

/// Whether to look at the rest at all.
fn is_stream_job(root: &Node, entries: &[Entry], problems: &mut Problems) -> bool {
    let mut is_ours = true;
    for (key, wanted) in [
        ("apiVersion", "streamforge.io/v1alpha1"),
        ("kind", "StreamJob"),
    ] {
        let hint = Some(format!("write `{key}: {wanted}`"));
        match text_at(entries, key) {
            None => problems.add(root.at, "", format!("`{key}` is missing"), hint),
            Some((_, Some(found))) if found == wanted => {}
            Some((at, Some("Savepoint"))) if key == "kind" => {
                let message = "this is a Savepoint, and what runs is a StreamJob";
                problems.add(at, key, message, None);
                is_ours = false;
            }
            Some((at, found)) => {
                let found = found.unwrap_or("something else");
                let message = format!("this is not a StreamJob: `{key}` is `{}`", yaml::cut(found));
                problems.add(at, key, message, hint);
                is_ours = false;
            }
        }
    }
    is_ours
}

const ROOT_FIELDS: [&str; 5] = ["apiVersion", "kind", "metadata", "spec", "status"];

fn check_root_fields(entries: &[Entry], problems: &mut Problems) {
    for (idx, Entry { key, key_at, .. }) in entries.iter().enumerate() {
        if entries.iter().take(idx).any(|earlier| earlier.key == *key) {
            problems.add(*key_at, key, format!("`{key}` is written twice"), None);
        }
        if !ROOT_FIELDS.contains(&key.as_str()) {
            let hint = did_you_mean(key, ROOT_FIELDS)
                .unwrap_or_else(|| "everything about the job stands under `spec`".to_owned());
            problems.add(*key_at, key, format!("unknown field `{key}`"), Some(hint));
        }
    }
}

/// Fields of a Kubernetes object's metadata, so that a job read back from a cluster is accepted.
const METADATA_FIELDS: [&str; 15] = [
    "name",
    "namespace",
    "labels",
    "annotations",
    "uid",
    "generateName",
    "finalizers",
    "ownerReferences",
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "managedFields",
    "selfLink",
];

/// Longest name of a Kubernetes object.
const JOB_NAME_CHARS_MAX: usize = 253;

fn metadata_name(root: &Node, entries: &[Entry], problems: &mut Problems) -> Option<String> {
    let hint = || Some("write `metadata: {name: my-job}`".to_owned());
    let Some(metadata) = entries.iter().find(|entry| entry.key == "metadata") else {
        problems.add(root.at, "", "`metadata` is missing", hint());
        return None;
    };
    let Value::Map(fields) = &metadata.value.value else {
        let message = format!("expected a map, found {}", metadata.value.kind());
        problems.add(metadata.value.at, "metadata", message, hint());
        return None;
    };
    let mut name_is_misspelt = false;
    for Entry { key, key_at, .. } in fields {
        if !METADATA_FIELDS.contains(&key.as_str()) {
            let path = format!("metadata.{key}");
            let hint = did_you_mean(key, METADATA_FIELDS);
            name_is_misspelt |= nearest(key, METADATA_FIELDS) == Some("name");
            problems.add(*key_at, &path, format!("unknown field `{key}`"), hint);
        }
    }
    let (at, name) = match text_at(fields, "name") {
        None => {
            if !name_is_misspelt {
                problems.add(metadata.value.at, "metadata", "`name` is missing", hint());
            }
            return None;
        }
        Some(found) => found,
    };
    match name.filter(|name| is_job_name(name)) {
        Some(name) => Some(name.to_owned()),
        None => {
            let hint =
                "a job's name has a to z, 0 to 9 and -, begins and ends with a letter or digit";
            let message = match name {
                Some(name) => format!("`{}` is not a name of a job", yaml::cut(name)),
                None => "the name must be text".to_owned(),
            };
            problems.add(at, "metadata.name", message, Some(hint.to_owned()));
            None
        }
    }
}

/// A DNS subdomain (RFC 1123), as Kubernetes wants it; also safe as the name of a folder.
fn is_job_name(name: &str) -> bool {
    let is_label = |label: &str| {
        let edge =
            |c: Option<char>| c.is_some_and(|c| c.is_ascii_lowercase() || c.is_ascii_digit());
        edge(label.chars().next())
            && edge(label.chars().next_back())
            && label
                .chars()
                .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
    };
    name.len() <= JOB_NAME_CHARS_MAX && name.split('.').all(is_label)
}

#[cfg(test)]
mod tests;
