//! The `file` blocks of the document, as far as the connector reads them.
//!
//! Owns: nothing but their shape; the plan has checked them. Start at: [`SourceConfig`].

use serde::{Deserialize, Deserializer};
use streamforge_core::s3::S3Access;
use streamforge_core::units::{ByteSize, HumanDuration};

/// `file:` of a source.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SourceConfig {
    /// A file, a folder or a glob, of this machine or in a bucket.
    pub path: String,
    /// Whether the files are one sequence.
    #[serde(default)]
    pub order: Order,
    /// How often to look for new files; `None` = never.
    #[serde(default, deserialize_with = "watch")]
    pub watch: Option<HumanDuration>,
    /// The way to a bucket.
    #[serde(default)]
    pub s3: Option<S3>,
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

/// `s3:` of a source or a sink.
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

impl S3 {
    /// The way there; none is written: the default one.
    #[must_use]
    pub fn access(block: Option<&Self>) -> S3Access {
        block.map_or_else(S3Access::default, |s3| S3Access {
            endpoint: s3.endpoint.clone(),
            region: s3.region.clone(),
            path_style: s3.path_style,
            credentials_secret: s3.credentials_secret.as_ref().map(|it| it.name.clone()),
        })
    }
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
