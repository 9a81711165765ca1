//! `kind: StreamJob`.
#![expect(
    clippy::duplicated_attributes,
    reason = "printer columns share words; each is an attribute of its own"
)]

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use streamforge_core::key_group::MAX_PARALLELISM;
use streamforge_core::units::HumanDuration;

use super::schema;
use super::{
    Checkpoint, FailureDetection, JobStatus, Logging, Restart, RestoreFrom, Sink, Source, State,
    TaskManager, Transform, Upgrade,
};

fn parallelism() -> u32 {
    1
}

fn max_parallelism() -> u32 {
    128
}

/// A stateful, exactly-once, event-time pipeline.
#[derive(CustomResource, Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "streamforge.io",
    version = "v1alpha1",
    kind = "StreamJob",
    namespaced,
    status = "JobStatus",
    shortname = "sj",
    category = "streamforge",
    derive = "PartialEq",
    doc = "A stateful, exactly-once, event-time pipeline.",
    scale(
        spec_replicas_path = ".spec.parallelism",
        status_replicas_path = ".status.parallelism",
        label_selector_path = ".status.selector"
    ),
    printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase"),
    printcolumn(
        name = "Parallelism",
        type_ = "integer",
        json_path = ".status.parallelism"
    ),
    printcolumn(
        name = "TMs",
        type_ = "integer",
        json_path = ".status.taskManagers.ready"
    ),
    printcolumn(
        name = "Checkpoint",
        type_ = "integer",
        json_path = ".status.checkpoint.lastCompleted.id"
    ),
    printcolumn(
        name = "Ckpt-Age",
        type_ = "date",
        json_path = ".status.checkpoint.lastCompleted.time"
    ),
    printcolumn(name = "Lag", type_ = "integer", json_path = ".status.lag.records"),
    printcolumn(name = "Restarts", type_ = "integer", json_path = ".status.restarts"),
    printcolumn(
        name = "Age",
        type_ = "date",
        json_path = ".metadata.creationTimestamp"
    )
)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct StreamJobSpec {
    /// Subtasks; at most `maxParallelism`. The scale subresource writes it.
    #[serde(default = "parallelism")]
    #[schemars(range(min = 1, max = MAX_PARALLELISM))]
    pub parallelism: u32,
    /// Key groups; cannot change while state exists.
    #[serde(default = "max_parallelism")]
    #[schemars(range(min = 1, max = MAX_PARALLELISM))]
    pub max_parallelism: u32,
    /// Where rows come from.
    #[schemars(schema_with = "schema::sources")]
    pub sources: Vec<Source>,
    /// What happens to them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::transforms")]
    pub transforms: Vec<Transform>,
    /// Where they go.
    #[schemars(schema_with = "schema::sinks")]
    pub sinks: Vec<Sink>,
    /// When checkpoints are taken and where they are kept.
    #[serde(default)]
    pub checkpoint: Checkpoint,
    /// Where state lives while the job runs.
    #[serde(default)]
    pub state: State,
    /// When a failing job is given up.
    #[serde(default)]
    pub restart: Restart,
    /// How a lost task manager is noticed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure_detection: Option<FailureDetection>,
    /// What happens when the document is changed in a cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub upgrade: Option<Upgrade>,
    /// Where a job that has no state yet starts from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restore_from: Option<RestoreFrom>,
    /// true = stop with a savepoint and keep the resource.
    #[serde(default)]
    pub suspend: bool,
    /// The pods that do the work.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task_manager: Option<TaskManager>,
    /// After this the resource of an ended job is deleted; omitted = kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_after_finished: Option<HumanDuration>,
    /// What is logged.
    #[serde(default)]
    pub logging: Logging,
}
