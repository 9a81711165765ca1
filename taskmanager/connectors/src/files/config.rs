//! The `file` blocks of the document, as far as the connector reads them.
//!
//! Owns: nothing but their shape; the plan has checked them. Start at: [`SourceConfig`].

use serde::{Deserialize, Deserializer};
use streamforge_core::units::{ByteSize, HumanDuration};

/// `file:` of a source.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SourceConfig {
    /// A file, a folder or a glob.
    pub path: String,
    /// Whether the files are one sequence.
    #[serde(default)]
    pub order: Order,
    /// How often to look for new files; `None` = never.
    #[serde(default, deserialize_with = "watch")]
    pub watch: Option<HumanDuration>,
}

/// Whether the files are one sequence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub enum Order {
    /// Each file is a split.
    #[default]
    Any,
    /// All files are one split, by name.
    ByName,
}

fn watch<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<HumanDuration>, D::Error> {
    match String::deserialize(deserializer)?.as_str() {
        "Never" => Ok(None),
        text => text.parse().map(Some).map_err(serde::de::Error::custom),
    }
}

/// `file:` of a sink.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SinkConfig {
    /// The folder.
    pub path: String,
    /// Columns that become folders.
    #[serde(default)]
    pub partition_by: Vec<String>,
    /// When a file is closed.
    #[serde(default)]
    pub rollover: Option<Rollover>,
    /// The way to a bucket.
    #[serde(default)]
    pub s3: Option<S3>,
}

/// `s3:` of a sink.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct S3 {
    /// URL of the server.
    pub endpoint: Option<String>,
    /// The region.
    pub region: Option<String>,
    /// Whether the bucket is part of the path.
    #[serde(default = "path_style")]
    pub path_style: bool,
    /// The secret with the keys.
    pub credentials_secret: Option<SecretName>,
}

/// The name of a secret.
#[derive(Clone, Debug, Deserialize)]
pub struct SecretName {
    /// The name.
    pub name: String,
}

fn path_style() -> bool {
    true
}

/// A file closes at the first barrier after one of these is reached.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct Rollover {
    /// Bytes.
    #[serde(default)]
    pub size: Option<ByteSize>,
    /// Age.
    #[serde(default)]
    pub every: Option<HumanDuration>,
}
