//! Where a sink's output becomes visible.
//!
//! Owns: reading that out of a sink's block, for those who must know whether two plans publish to the same
//! place. Everything else in the block is its connector's.

use std::fmt;
use std::path::{Component, Path, PathBuf};

use crate::job_graph::{Delivery, SinkSpec};
use crate::s3::SCHEME;

/// Where what a sink stages is published.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SinkPlace {
    /// A topic. Which cluster it is of shows by its identity, not by the servers' addresses.
    Topic(String),
    /// Files of a folder.
    Folder(PathBuf),
    /// Objects below an address.
    Bucket(String),
}

impl SinkPlace {
    /// Of this sink; `None`: it stages nothing.
    pub fn of(spec: &SinkSpec) -> Option<Self> {
        let text = |field: &str| spec.connector.config[field].as_str().unwrap_or_default();
        match spec.connector.kind.as_str() {
            "kafka" if spec.delivery == Delivery::ExactlyOnce => {
                Some(Self::Topic(text("topic").to_owned()))
            }
            "file" if text("path").starts_with(SCHEME) => {
                Some(Self::Bucket(text("path").trim_end_matches('/').to_owned()))
            }
            "file" => {
                let written = Path::new(text("path")).components();
                let parts = written.filter(|part| *part != Component::CurDir);
                Some(Self::Folder(parts.collect()))
            }
            _ => None,
        }
    }

    /// The folder in which committed rows may be kept back until their file is full.
    pub fn holding(spec: &SinkSpec) -> Option<PathBuf> {
        let rolls_over = !spec.connector.config["rollover"].is_null();
        match Self::of(spec) {
            Some(Self::Folder(folder)) if rolls_over => Some(folder),
            _ => None,
        }
    }
}

impl fmt::Display for SinkPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Topic(topic) => write!(f, "topic {topic:?}"),
            Self::Folder(folder) => write!(f, "folder {folder:?}"),
            Self::Bucket(address) => write!(f, "{address:?}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::job_graph::{ChangelogMode, Connector};

    fn sink(kind: &str, config: Value, delivery: Delivery) -> SinkSpec {
        SinkSpec {
            connector: Connector {
                kind: kind.to_owned(),
                config,
            },
            format: None,
            input: Vec::new(),
            delivery,
            changelog: ChangelogMode::AppendOnly,
            rate_limit: None,
        }
    }

    #[test]
    fn one_place_may_be_written_in_several_ways() {
        let place =
            |path: &str| SinkPlace::of(&sink("file", json!({"path": path}), Delivery::ExactlyOnce));
        assert_eq!(place("out"), place("./out/"));
        assert_eq!(place("s3://b/out"), place("s3://b/out/"));
        assert_ne!(place("out"), place("/out"));
    }

    #[test]
    fn what_writes_straight_through_publishes_nowhere() {
        for kind in ["kafka", "print", "blackhole"] {
            let spec = sink(kind, json!({"topic": "t"}), Delivery::AtLeastOnce);
            assert_eq!(SinkPlace::of(&spec), None, "{kind}");
        }
    }
}
