//! Transforms: what happens to rows between source and sink.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use streamforge_core::units::{HumanDuration, HumanOffset};

use super::schema;

/// A named step: exactly one of `filter`, `select`, `unnest`, `union`, `aggregate`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Transform {
    /// Unique in the job.
    #[schemars(schema_with = "schema::name")]
    pub name: String,
    /// What state follows through a rename; default: the name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::name")]
    pub uid: Option<String>,
    /// The output this step reads; `union` names its inputs itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::output")]
    pub from: Option<String>,
    /// Keeps the rows for which this is true.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::expression")]
    pub filter: Option<String>,
    /// The columns of the output, each a bare column or `expression AS name`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::some_expressions")]
    pub select: Option<Vec<String>>,
    /// A list: one row per item; the other columns are kept. `expression AS name`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::expression")]
    pub unnest: Option<String>,
    /// The outputs whose rows are put together; same columns by name and type.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::outputs")]
    pub union: Option<Vec<String>>,
    /// Groups rows by key and window.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub aggregate: Option<Aggregate>,
}

/// Groups rows by key and window. Its output: the groupBy columns, window_start TIMESTAMP,
/// window_end TIMESTAMP, then the select items.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Aggregate {
    /// The key; may be empty (one group for all).
    #[serde(default)]
    #[schemars(schema_with = "schema::expressions")]
    pub group_by: Vec<String>,
    /// Which rows of a key belong together.
    pub window: Window,
    /// Aggregates, each `aggregate AS name`.
    #[schemars(schema_with = "schema::some_expressions")]
    pub select: Vec<String>,
    /// How long after its end a window may still be corrected.
    #[serde(default)]
    pub allowed_lateness: HumanDuration,
    /// When results are sent.
    #[serde(default)]
    pub emit: Emit,
}

/// When results are sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Emit {
    /// First when the watermark passes the window's end; corrected while lateness is allowed.
    #[default]
    OnTime,
    /// Once, when the window is final.
    Once,
}

/// Which rows of a key belong together: exactly one of these.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Window {
    /// Windows of one size, side by side.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tumbling: Option<TumblingWindow>,
    /// Windows of one size, one begins every slide.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hopping: Option<HoppingWindow>,
    /// Rows whose distance is below the gap.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<SessionWindow>,
}

fn time_zone() -> String {
    "UTC".to_owned()
}

/// Windows of one size, side by side.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TumblingWindow {
    /// Length of a window.
    pub size: HumanDuration,
    /// Where the grid begins, from 1970-01-01T00:00 in the time zone; less than `size`.
    #[serde(default)]
    pub offset: HumanOffset,
    /// An IANA name; another than UTC wants whole days as size.
    #[serde(default = "time_zone")]
    #[schemars(schema_with = "schema::text")]
    pub time_zone: String,
}

/// Windows of one size, one begins every slide.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HoppingWindow {
    /// Length of a window.
    pub size: HumanDuration,
    /// Distance of two windows' starts; at most `size`.
    pub slide: HumanDuration,
    /// Where the grid begins, from 1970-01-01T00:00 in the time zone; less than `slide`.
    #[serde(default)]
    pub offset: HumanOffset,
    /// An IANA name; another than UTC wants whole days as size and slide.
    #[serde(default = "time_zone")]
    #[schemars(schema_with = "schema::text")]
    pub time_zone: String,
}

/// Rows whose distance is below the gap.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SessionWindow {
    /// A session ends this long after its last row.
    pub gap: HumanDuration,
}
