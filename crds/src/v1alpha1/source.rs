//! Sources: where rows come from, how they are decoded, what their event time is.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use streamforge_core::units::{DURATION_CHARS_MIN, HumanDuration, ParseError};

use super::schema;
use super::{S3Access, SecretName};

/// A named source of rows: exactly one of `kafka`, `file`, `generator`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Source {
    /// Unique in the job.
    #[schemars(schema_with = "schema::name")]
    pub name: String,
    /// What state follows through a rename; default: the name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::name")]
    pub uid: Option<String>,
    /// Rows from Kafka topics.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kafka: Option<KafkaSource>,
    /// Rows from files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<FileSource>,
    /// Rows made up from a seed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generator: Option<GeneratorSource>,
    /// How rows are encoded; a generator needs none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub format: Option<Format>,
    /// The columns; a generator's are fixed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::columns")]
    pub schema: Vec<Column>,
    /// Which time a row belongs to; omitted = no event time, which forbids windows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event_time: Option<EventTimeSpec>,
    /// What to do with a record that cannot be decoded.
    #[serde(default)]
    pub on_bad_record: OnBadRecord,
    /// Slows the source down.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate_limit: Option<RateLimit>,
}

/// Rows from Kafka topics.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct KafkaSource {
    /// `host:port,host:port`
    #[schemars(schema_with = "schema::text")]
    pub bootstrap_servers: String,
    /// Topics by name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::texts")]
    pub topics: Vec<String>,
    /// Topics by regular expression.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::text")]
    pub topic_pattern: Option<String>,
    /// Where a first start begins; a restored checkpoint always wins.
    #[serde(default)]
    pub start_from: StartFrom,
    /// For `startFrom: Timestamp`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::time")]
    pub start_timestamp: Option<String>,
    /// Where to stop; omitted = never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end_at: Option<EndAt>,
    /// librdkafka settings.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "schema::properties")]
    pub properties: BTreeMap<String, String>,
    /// Encryption and authentication.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub security: Option<KafkaSecurity>,
    /// What to do when the wanted offset is gone.
    #[serde(default)]
    pub on_offset_out_of_range: OnOffsetOutOfRange,
}

/// Where a first start begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum StartFrom {
    /// The oldest record.
    #[default]
    Earliest,
    /// What arrives after the start.
    Latest,
    /// The first record at or after `startTimestamp`.
    Timestamp,
}

/// Where to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum EndAt {
    /// At the offsets seen at the start.
    Latest,
}

/// What to do when the wanted offset is gone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum OnOffsetOutOfRange {
    /// Stop the job.
    #[default]
    Fail,
    /// Go on at the oldest record, counted.
    Earliest,
}

/// Encryption and authentication of a Kafka client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct KafkaSecurity {
    /// The protocol.
    pub protocol: SecurityProtocol,
    /// The SASL mechanism.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mechanism: Option<SaslMechanism>,
    /// Keys `username` and `password`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credentials_secret: Option<SecretName>,
    /// Key `ca.crt`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca_secret: Option<SecretName>,
}

/// Protocol of a Kafka client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum SecurityProtocol {
    /// No encryption, no authentication.
    Plaintext,
    /// Encryption only.
    Ssl,
    /// Authentication only.
    SaslPlaintext,
    /// Both.
    SaslSsl,
}

/// SASL mechanism of a Kafka client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum SaslMechanism {
    /// PLAIN
    Plain,
    /// SCRAM-SHA-256
    ScramSha256,
    /// SCRAM-SHA-512
    ScramSha512,
}

/// Rows from files; each file is a split.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct FileSource {
    /// A file, a folder or a glob, of this machine or in a bucket; `.gz` and `.zst` are read as such.
    #[schemars(schema_with = "schema::text")]
    pub path: String,
    /// Whether the files are one sequence.
    #[serde(default)]
    pub order: FileOrder,
    /// `Never`, or how often to look for new files.
    #[serde(default)]
    pub watch: Watch,
    /// Access to `s3://` paths.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub s3: Option<S3Access>,
}

/// Whether the files are one sequence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum FileOrder {
    /// Every listed file holds the watermark until it is finished.
    #[default]
    Any,
    /// The files are one sequence, by name.
    ByName,
}

/// Whether new files are looked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Watch {
    /// The list is fixed at the first start.
    #[default]
    Never,
    /// Look again after this time.
    Every(HumanDuration),
}

impl FromStr for Watch {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        match text {
            "Never" => Ok(Watch::Never),
            _ => text
                .parse()
                .map(Watch::Every)
                .map_err(|error: ParseError| ParseError {
                    what: "`Never` or a duration",
                    ..error
                }),
        }
    }
}

impl fmt::Display for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Watch::Never => f.write_str("Never"),
            Watch::Every(duration) => duration.fmt(f),
        }
    }
}

impl Serialize for Watch {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Watch {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?
            .parse()
            .map_err(serde::de::Error::custom)
    }
}

impl JsonSchema for Watch {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Watch".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string", "minLength": DURATION_CHARS_MIN, "maxLength": 40,
            "pattern": schema::WATCH_PATTERN,
        })
    }
}

/// Rows made up from a seed: exactly one preset. 8 splits, whatever the parallelism.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct GeneratorSource {
    /// user_id TEXT, page TEXT, type TEXT, amount DECIMAL(10,2), ts TIMESTAMP
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clicks: Option<ClicksPreset>,
    /// line TEXT, ts TIMESTAMP
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lines: Option<LinesPreset>,
}

fn users() -> u64 {
    1_000
}

/// Clicks of users on pages.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ClicksPreset {
    /// How many rows; omitted = unbounded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rows: Option<u64>,
    /// How fast; omitted = as fast as possible.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub rows_per_second: Option<u64>,
    /// How many users.
    #[serde(default = "users")]
    #[schemars(range(min = 1))]
    pub users: u64,
    /// Zipf exponent of the users: 0 = all alike.
    #[serde(default)]
    #[schemars(range(min = 0.0, max = 10.0))]
    pub skew: f64,
    /// How far behind the largest time so far a row may be.
    #[serde(default)]
    pub out_of_orderness: HumanDuration,
    /// Share of rows behind even that.
    #[serde(default)]
    #[schemars(range(min = 0.0, max = 1.0))]
    pub late_fraction: f64,
    /// Share of records that cannot be decoded.
    #[serde(default)]
    #[schemars(range(min = 0.0, max = 1.0))]
    pub bad_fraction: f64,
    /// The same seed gives the same rows.
    #[serde(default)]
    pub seed: u64,
}

/// Lines of words.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct LinesPreset {
    /// How many rows; omitted = unbounded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rows: Option<u64>,
    /// How fast; omitted = as fast as possible.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub rows_per_second: Option<u64>,
    /// The same seed gives the same rows.
    #[serde(default)]
    pub seed: u64,
}

/// How rows are encoded: exactly one of these.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Format {
    /// One JSON object per record.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub json: Option<JsonFormat>,
    /// One CSV line per record.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub csv: Option<CsvFormat>,
    /// Parquet files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parquet: Option<ParquetFormat>,
    /// The record as it is, in one column.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub raw: Option<RawFormat>,
}

/// One JSON object per record.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct JsonFormat {}

fn header() -> bool {
    true
}

fn delimiter() -> String {
    ",".to_owned()
}

/// One CSV line per record (RFC 4180).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CsvFormat {
    /// Whether the first line names the columns.
    #[serde(default = "header")]
    pub header: bool,
    /// One ASCII character.
    #[serde(default = "delimiter")]
    #[schemars(schema_with = "schema::text")]
    pub delimiter: String,
    /// The unquoted field that means NULL.
    #[serde(default)]
    #[schemars(schema_with = "schema::any_text")]
    pub null: String,
}

/// Parquet files.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ParquetFormat {}

/// The record as it is, in one column of type TEXT or BYTEA.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RawFormat {}

fn nullable() -> bool {
    true
}

/// A column of a source.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Column {
    /// Case-sensitive, not beginning with `_`.
    #[schemars(schema_with = "schema::text")]
    pub name: String,
    /// BOOLEAN INT BIGINT REAL DOUBLE DECIMAL(p,s) TEXT BYTEA DATE TIMESTAMP TIMESTAMPTZ, T[], STRUCT(a INT)
    #[serde(rename = "type")]
    #[schemars(schema_with = "schema::text")]
    pub data_type: String,
    /// Whether NULL is a value; a record without a value is bad otherwise.
    #[serde(default = "nullable")]
    pub nullable: bool,
    /// JSON pointer (RFC 6901) to the value; default: the column's name at the top.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::text")]
    pub path: Option<String>,
    /// How a time is written: Rfc3339 (default), EpochSeconds, EpochMillis, EpochMicros, or a strftime pattern.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::text")]
    pub parse: Option<String>,
}

/// Which time a row belongs to: exactly one of `column`, `expression`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EventTimeSpec {
    /// A column of type TIMESTAMP or TIMESTAMPTZ.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::text")]
    pub column: Option<String>,
    /// An expression of type TIMESTAMP or TIMESTAMPTZ.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::expression")]
    pub expression: Option<String>,
    /// How far behind the largest time so far a row may be.
    #[serde(default)]
    pub max_out_of_orderness: HumanDuration,
    /// After how long without rows a split no longer holds the watermark; omitted = never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_timeout: Option<HumanDuration>,
}

/// What to do with a record that cannot be decoded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum OnBadRecord {
    /// Send it to the node's `.bad` output.
    #[default]
    Divert,
    /// Stop the job.
    Fail,
}

/// Slows a source or a sink down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RateLimit {
    /// Rows per second over all subtasks.
    #[schemars(range(min = 1))]
    pub rows_per_second: u64,
}
