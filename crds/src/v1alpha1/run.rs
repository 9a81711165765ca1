//! How a job runs: checkpoints, state, failures, task managers, logging.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use streamforge_core::units::{ByteSize, HumanDuration};

use super::schema;

/// The name of a secret: a Secret of the job's namespace, on a laptop a folder under `--secrets`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SecretName {
    /// The name.
    #[schemars(schema_with = "schema::text")]
    pub name: String,
}

fn path_style() -> bool {
    true
}

/// Access to an S3-compatible object store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct S3Access {
    /// URL of the store; omitted = AWS.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::text")]
    pub endpoint: Option<String>,
    /// The region.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::text")]
    pub region: Option<String>,
    /// Whether the bucket is part of the path.
    #[serde(default = "path_style")]
    pub path_style: bool,
    /// Keys `accessKeyId` and `secretAccessKey`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credentials_secret: Option<SecretName>,
}

/// When checkpoints are taken and where they are kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Checkpoint {
    /// Time from one start to the next.
    pub interval: HumanDuration,
    /// After this a checkpoint has failed.
    pub timeout: HumanDuration,
    /// Least time between one's end and the next one's start.
    pub min_pause: HumanDuration,
    /// How many are kept.
    #[schemars(range(min = 1, max = 1000))]
    pub retain: u32,
    /// After so many failures in a row the job is no longer fresh.
    #[schemars(range(min = 0, max = 1000))]
    pub tolerate_failures: u32,
    /// What happens to them when the job is deleted; savepoints always stay.
    pub on_delete: OnDelete,
    /// Where they are kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub storage: Option<Storage>,
}

impl Default for Checkpoint {
    fn default() -> Self {
        Self {
            interval: HumanDuration::from_secs(10),
            timeout: HumanDuration::from_secs(60),
            min_pause: HumanDuration::ZERO,
            retain: 3,
            tolerate_failures: 3,
            on_delete: OnDelete::Delete,
            storage: None,
        }
    }
}

/// What happens to checkpoints when the job is deleted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum OnDelete {
    /// They are deleted too.
    #[default]
    Delete,
    /// They stay.
    Retain,
}

/// A place for checkpoints.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Storage {
    /// `s3://bucket/prefix` or `file:///path`
    #[schemars(schema_with = "schema::text")]
    pub uri: String,
    /// Access to `s3://`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub s3: Option<S3Access>,
}

/// Where state lives while the job runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct State {
    /// The backend.
    pub backend: Backend,
    /// What the state of one task manager may take.
    pub memory_limit: ByteSize,
}

impl Default for State {
    fn default() -> Self {
        Self {
            backend: Backend::Memory,
            memory_limit: ByteSize::from_mebibytes(512),
        }
    }
}

/// A state backend.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Backend {
    /// In memory.
    #[default]
    Memory,
}

/// When a failing job is given up. A failure counts only if no checkpoint completed since the last.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Restart {
    /// More failures than this within `window` end the job.
    #[schemars(range(min = 0, max = 1000000))]
    pub max_failures: u32,
    /// The time over which failures are counted.
    pub window: HumanDuration,
    /// The wait before a restart.
    pub backoff: Backoff,
}

impl Default for Restart {
    fn default() -> Self {
        Self {
            max_failures: 10,
            window: HumanDuration::from_secs(600),
            backoff: Backoff::default(),
        }
    }
}

/// A wait that doubles from `initial` to `max`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Backoff {
    /// The first wait.
    pub initial: HumanDuration,
    /// The longest wait.
    pub max: HumanDuration,
}

impl Default for Backoff {
    fn default() -> Self {
        Self {
            initial: HumanDuration::from_millis(100),
            max: HumanDuration::from_secs(30),
        }
    }
}

/// How a lost task manager is noticed. A broken connection or an exited process counts at once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct FailureDetection {
    /// Time between two heartbeats.
    pub heartbeat: HumanDuration,
    /// Silence after which it is lost.
    pub timeout: HumanDuration,
}

impl Default for FailureDetection {
    fn default() -> Self {
        Self {
            heartbeat: HumanDuration::from_millis(500),
            timeout: HumanDuration::from_secs(5),
        }
    }
}

/// What happens when the document is changed in a cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Upgrade {
    /// Whether state is kept.
    pub mode: UpgradeMode,
    /// An upgrade that is not healthy after this is rolled back.
    pub rollback_after: HumanDuration,
    /// What to do when the new document has no place for some state.
    pub dropped_state: DroppedState,
}

impl Default for Upgrade {
    fn default() -> Self {
        Self {
            mode: UpgradeMode::Stateful,
            rollback_after: HumanDuration::from_secs(300),
            dropped_state: DroppedState::Refuse,
        }
    }
}

/// Whether state is kept through an upgrade.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum UpgradeMode {
    /// By a savepoint.
    #[default]
    Stateful,
    /// Starts empty.
    Stateless,
}

/// What to do when the new document has no place for some state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum DroppedState {
    /// Refuse the edit.
    #[default]
    Refuse,
    /// Drop the state.
    Allow,
}

/// Where a job that has no state yet starts from: exactly one of these.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RestoreFrom {
    /// The name of a Savepoint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::text")]
    pub savepoint: Option<String>,
    /// The place of a savepoint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::text")]
    pub uri: Option<String>,
}

/// The pods that do the work.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct TaskManager {
    /// Subtasks per pod.
    #[schemars(range(min = 1, max = 1024))]
    pub slots: u32,
    /// The image; default: that of the operator's version.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::text")]
    pub image: Option<String>,
    /// When the image is pulled.
    pub image_pull_policy: PullPolicy,
    /// Requests and limits.
    #[serde(skip_serializing_if = "Map::is_empty")]
    #[schemars(schema_with = "schema::kubernetes_object")]
    pub resources: Map<String, Value>,
    /// Brings workload identity.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::text")]
    pub service_account_name: Option<String>,
    /// Merged over what the operator builds; checked by a dry run.
    #[serde(skip_serializing_if = "Map::is_empty")]
    #[schemars(schema_with = "schema::kubernetes_object")]
    pub pod_template: Map<String, Value>,
    /// Time to leave in peace.
    pub termination_grace_period: HumanDuration,
}

impl Default for TaskManager {
    fn default() -> Self {
        Self {
            slots: 2,
            image: None,
            image_pull_policy: PullPolicy::IfNotPresent,
            resources: Map::new(),
            service_account_name: None,
            pod_template: Map::new(),
            termination_grace_period: HumanDuration::from_secs(30),
        }
    }
}

/// When an image is pulled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum PullPolicy {
    /// Every time.
    Always,
    /// If the node does not have it.
    #[default]
    IfNotPresent,
    /// Never.
    Never,
}

/// What is logged.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Logging {
    /// The least level.
    pub level: LogLevel,
    /// How lines are written; default: Json in a pod, else Text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub format: Option<LogFormat>,
}

/// Level of a log line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum LogLevel {
    /// A human must look.
    Error,
    /// Unexpected but handled.
    Warn,
    /// State changes.
    #[default]
    Info,
    /// Per batch.
    Debug,
    /// Per record.
    Trace,
}

/// How log lines are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum LogFormat {
    /// One JSON object per line.
    Json,
    /// For people.
    Text,
}
