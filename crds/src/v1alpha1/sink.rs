//! Sinks: where rows go.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use streamforge_core::units::{ByteSize, HumanDuration};

use super::schema;
use super::{Format, KafkaSecurity, RateLimit, S3Access};

/// A named destination: exactly one of `kafka`, `file`, `print`, `blackhole`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Sink {
    /// Unique in the job.
    #[schemars(schema_with = "schema::name")]
    pub name: String,
    /// What state follows through a rename; default: the name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::name")]
    pub uid: Option<String>,
    /// The output this sink writes.
    #[schemars(schema_with = "schema::output")]
    pub from: String,
    /// A Kafka topic.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kafka: Option<KafkaSink>,
    /// A folder of files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<FileSink>,
    /// The terminal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub print: Option<PrintSink>,
    /// Nowhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blackhole: Option<BlackholeSink>,
    /// How rows are encoded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub format: Option<Format>,
    /// Default: ExactlyOnce where the kind can.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delivery: Option<Delivery>,
    /// How corrections are written; default AppendOnly, but Retract for print and blackhole.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub changelog: Option<Changelog>,
    /// Slows the sink down.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate_limit: Option<RateLimit>,
}

/// How often a row may arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Delivery {
    /// Every row is seen once.
    ExactlyOnce,
    /// After a failure rows may come again.
    AtLeastOnce,
}

/// How corrections are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Changelog {
    /// There are none: an updating input is refused.
    AppendOnly,
    /// As rows with `_op`: +I, -U, +U, -D.
    Retract,
    /// By key; a delete is a tombstone.
    Upsert,
}

/// A Kafka topic.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct KafkaSink {
    /// `host:port,host:port`
    #[schemars(schema_with = "schema::text")]
    pub bootstrap_servers: String,
    /// The topic.
    #[schemars(schema_with = "schema::text")]
    pub topic: String,
    /// The columns of the record's key.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::texts")]
    pub key: Vec<String>,
    /// How a key finds its partition.
    #[serde(default)]
    pub partitioner: Partitioner,
    /// librdkafka settings.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "schema::properties")]
    pub properties: BTreeMap<String, String>,
    /// Encryption and authentication.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub security: Option<KafkaSecurity>,
}

/// How a key finds its partition.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Partitioner {
    /// As the Java client does.
    #[default]
    Murmur2,
}

/// A folder of files, exactly once by staging and rename.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct FileSink {
    /// The folder.
    #[schemars(schema_with = "schema::text")]
    pub path: String,
    /// Columns that become folders (`day=2026-01-31/`) and are left out of the data.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::texts")]
    pub partition_by: Vec<String>,
    /// When a file is closed; omitted = at every checkpoint that has rows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rollover: Option<Rollover>,
    /// Access to `s3://` paths.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub s3: Option<S3Access>,
}

/// A file closes at the first checkpoint after its size or age is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Rollover {
    /// The size.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<ByteSize>,
    /// The age.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub every: Option<HumanDuration>,
}

/// The terminal: an aligned table, or NDJSON when not a terminal; at least once.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PrintSink {
    /// Where to.
    #[serde(default)]
    pub stream: PrintStream,
}

/// Where a print sink writes to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum PrintStream {
    /// Standard output.
    #[default]
    Stdout,
}

/// Counts rows and drops them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct BlackholeSink {}
