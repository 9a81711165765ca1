//! `kind: Savepoint`.
#![expect(
    clippy::duplicated_attributes,
    reason = "printer columns share words; each is an attribute of its own"
)]

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::schema;

/// A copy of all of a job's state at one moment: complete in itself, it outlives its job, and another job
/// may begin with it (`restoreFrom.savepoint`). To create one is to take one.
#[derive(CustomResource, Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "streamforge.io",
    version = "v1alpha1",
    kind = "Savepoint",
    namespaced,
    status = "SavepointStatus",
    shortname = "ssp",
    category = "streamforge",
    derive = "PartialEq",
    doc = "A copy of all of a job's state at one moment.",
    printcolumn(name = "Job", type_ = "string", json_path = ".spec.job"),
    printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase"),
    printcolumn(
        name = "Checkpoint",
        type_ = "integer",
        json_path = ".status.checkpointId"
    ),
    printcolumn(name = "Size", type_ = "string", json_path = ".status.size"),
    printcolumn(name = "Taken", type_ = "date", json_path = ".status.time"),
    printcolumn(
        name = "Reason",
        type_ = "string",
        json_path = ".status.reason",
        priority = 1
    ),
    printcolumn(
        name = "Age",
        type_ = "date",
        json_path = ".metadata.creationTimestamp"
    )
)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SavepointSpec {
    /// The StreamJob of this namespace whose state is copied.
    #[schemars(schema_with = "schema::job_name")]
    pub job: String,
    /// What happens to the copy when this resource is deleted.
    #[serde(default)]
    pub deletion_policy: DeletionPolicy,
}

/// What happens to a savepoint's copy when its resource is deleted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum DeletionPolicy {
    /// It stays.
    #[default]
    Retain,
    /// It is deleted too.
    Delete,
}

/// How a savepoint does.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct SavepointStatus {
    /// Pending, InProgress, Completed or Failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<String>,
    /// Where it is, for `restoreFrom.uri`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uri: Option<String>,
    /// The checkpoint that it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checkpoint_id: Option<i64>,
    /// How large it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size: Option<String>,
    /// When it was completed or failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::time")]
    pub time: Option<String>,
    /// Why it failed, or what it waits for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}
