//! Limits of the document, and the schemas that carry them.
//!
//! Owns: every number a list or text of the document is bounded by. CEL rules are costed by the API
//! server from these bounds, so a list or text without one makes the definition impossible to install.

use schemars::{Schema, SchemaGenerator, json_schema};

/// Sources of a job.
pub const SOURCES_MAX: usize = 64;
/// Transforms of a job.
pub const TRANSFORMS_MAX: usize = 256;
/// Sinks of a job.
pub const SINKS_MAX: usize = 64;
/// Columns of a source.
pub const COLUMNS_MAX: usize = 2_000;
/// Items of any other list.
pub const ITEMS_MAX: usize = 256;
/// Bytes of an expression.
pub const EXPRESSION_BYTES_MAX: usize = 16 << 10;
/// Characters of a node's name.
pub const NAME_CHARS_MAX: usize = 40;
/// Characters of the name of a Kubernetes object.
const JOB_NAME_CHARS_MAX: usize = 253;
/// Characters of any other text.
const TEXT_CHARS_MAX: usize = 4_096;

/// What a node's name looks like.
pub const NAME_PATTERN: &str = "^[a-z][a-z0-9_]*$";
/// What `watch` looks like.
pub const WATCH_PATTERN: &str = "^(Never|([1-4]?[0-9]{1,4}d)?([1-3]?[0-9]{1,5}h)?([0-9]{1,7}m)?([0-9]{1,9}s)?([0-9]{1,11}ms)?([0-9]{1,14}us)?)$";

pub fn name(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "string", "maxLength": NAME_CHARS_MAX, "pattern": NAME_PATTERN})
}

/// The name of a StreamJob.
pub fn job_name(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "string", "minLength": 1, "maxLength": JOB_NAME_CHARS_MAX})
}

/// The name of an output: a node, or a node's side output.
pub fn output(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "string", "maxLength": NAME_CHARS_MAX + 5})
}

pub fn outputs(generator: &mut SchemaGenerator) -> Schema {
    let item = output(generator);
    json_schema!({"type": "array", "minItems": 2, "maxItems": ITEMS_MAX, "items": item})
}

pub fn expression(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "string", "minLength": 1, "maxLength": EXPRESSION_BYTES_MAX})
}

/// A list of expressions that may be empty.
pub fn expressions(generator: &mut SchemaGenerator) -> Schema {
    let item = expression(generator);
    json_schema!({"type": "array", "maxItems": ITEMS_MAX, "items": item})
}

/// A list of at least one expression.
pub fn some_expressions(generator: &mut SchemaGenerator) -> Schema {
    let item = expression(generator);
    json_schema!({"type": "array", "minItems": 1, "maxItems": ITEMS_MAX, "items": item})
}

pub fn text(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "string", "minLength": 1, "maxLength": TEXT_CHARS_MAX})
}

pub fn texts(generator: &mut SchemaGenerator) -> Schema {
    let item = text(generator);
    json_schema!({"type": "array", "maxItems": ITEMS_MAX, "items": item})
}

/// A text that may be empty.
pub fn any_text(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "string", "maxLength": TEXT_CHARS_MAX})
}

/// A time as RFC 3339.
pub fn time(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "string", "format": "date-time", "maxLength": 40})
}

pub fn properties(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "maxProperties": ITEMS_MAX,
        "additionalProperties": {"type": "string", "maxLength": TEXT_CHARS_MAX},
    })
}

/// A part of a Kubernetes object that is checked by a dry run, not by this schema.
pub fn kubernetes_object(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "object", "x-kubernetes-preserve-unknown-fields": true})
}

pub fn columns(generator: &mut SchemaGenerator) -> Schema {
    let item = generator.subschema_for::<super::Column>();
    json_schema!({
        "type": "array", "maxItems": COLUMNS_MAX, "items": item,
        "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"],
    })
}

pub fn sources(generator: &mut SchemaGenerator) -> Schema {
    let item = generator.subschema_for::<super::Source>();
    json_schema!({
        "type": "array", "minItems": 1, "maxItems": SOURCES_MAX, "items": item,
        "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"],
    })
}

pub fn transforms(generator: &mut SchemaGenerator) -> Schema {
    let item = generator.subschema_for::<super::Transform>();
    json_schema!({
        "type": "array", "maxItems": TRANSFORMS_MAX, "items": item,
        "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"],
    })
}

pub fn sinks(generator: &mut SchemaGenerator) -> Schema {
    let item = generator.subschema_for::<super::Sink>();
    json_schema!({
        "type": "array", "minItems": 1, "maxItems": SINKS_MAX, "items": item,
        "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"],
    })
}

pub fn conditions(generator: &mut SchemaGenerator) -> Schema {
    let item = generator.subschema_for::<super::Condition>();
    json_schema!({
        "type": "array", "maxItems": 32, "items": item,
        "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"],
    })
}
