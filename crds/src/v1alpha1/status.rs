//! Status of a StreamJob in a cluster, as the operator reports it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::schema;

/// What a job is doing.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct JobStatus {
    /// Pending, Starting, Running, Recovering, Suspending, Suspended, Upgrading, Finished or Failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<String>,
    /// The generation this status is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// The job's id; a deleted and re-created job has another.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub job_id: Option<String>,
    /// The attempt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub epoch: Option<i64>,
    /// Subtasks that run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parallelism: Option<i32>,
    /// Label selector of the pods, for the scale subresource.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub selector: Option<String>,
    /// Pods.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub task_managers: Option<TaskManagerCount>,
    /// How often the job was restarted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub restarts: Option<i64>,
    /// Ready, Progressing, Valid, CheckpointFresh, WatermarkAdvancing, CaughtUp.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,
    /// Checkpoints so far.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<CheckpointStatus>,
    /// Event time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub watermark: Option<WatermarkStatus>,
    /// What is not yet read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lag: Option<LagStatus>,
    /// The newest failure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_failure: Option<LastFailure>,
    /// How often the job began anew without its state: its checkpoints are in the folder `<uid>-<incarnation>`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub incarnation: Option<i64>,
    /// The document that was rolled back: it is not tried again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rolled_back: Option<RolledBack>,
}

/// A document that was rolled back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RolledBack {
    /// Its generation.
    pub generation: i64,
    /// Hash of its plan.
    pub plan: String,
    /// Why.
    pub reason: String,
}

/// Pods wanted and ready.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TaskManagerCount {
    /// Wanted.
    pub desired: i32,
    /// Ready.
    pub ready: i32,
}

/// One condition, by the conventions of the Kubernetes API.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// Which.
    #[serde(rename = "type")]
    pub condition_type: String,
    /// True, False or Unknown.
    pub status: String,
    /// One CamelCase word.
    pub reason: String,
    /// For people.
    pub message: String,
    /// When `status` changed last.
    #[schemars(schema_with = "schema::time")]
    pub last_transition_time: String,
    /// The generation this condition is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
}

/// Checkpoints so far.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct CheckpointStatus {
    /// The newest that completed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_completed: Option<CompletedCheckpoint>,
    /// The newest that failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_failed: Option<FailedCheckpoint>,
    /// How many completed.
    pub completed_total: i64,
    /// How many failed.
    pub failed_total: i64,
}

/// A completed checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CompletedCheckpoint {
    /// Its id.
    pub id: i64,
    /// The attempt that took it.
    pub epoch: i64,
    /// When.
    #[schemars(schema_with = "schema::time")]
    pub time: String,
    /// How long it took.
    pub duration: String,
    /// How large it is.
    pub size: String,
    /// Where it is.
    pub uri: String,
}

/// A failed checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FailedCheckpoint {
    /// Its id.
    pub id: i64,
    /// When.
    #[schemars(schema_with = "schema::time")]
    pub time: String,
    /// Why.
    pub reason: String,
}

/// Event time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct WatermarkStatus {
    /// Every earlier event was seen.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    /// What it waits for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub held_back_by: Option<String>,
}

/// What is not yet read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LagStatus {
    /// In records.
    pub records: i64,
    /// In seconds.
    pub seconds: i64,
}

/// The newest failure.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LastFailure {
    /// When.
    #[schemars(schema_with = "schema::time")]
    pub time: String,
    /// Where.
    pub task_manager: String,
    /// Why.
    pub reason: String,
}
