//! Which partitions a source has, and where a first start begins and ends.
//!
//! Owns: resolving names, patterns and times once, into manifest 0 (C10). Start at:
//! [`KafkaEnumerator`].

use std::time::{Duration, Instant};

use async_trait::async_trait;
use chrono::DateTime;
use regex::Regex;
use streamforge_core::manifest::SplitState;
use streamforge_engine::error::Error;
use streamforge_engine::source::SplitEnumerator;

use super::config::{EndAt, SourceConfig, StartFrom};
use super::lookup::{Error as LookupError, Lookup, LookupPlace};
use super::split::Description;
use crate::error::{failed, refused};

/// How long a first start waits for brokers before the attempt ends and is begun anew.
const PATIENCE: Duration = Duration::from_secs(60);

/// Pause between two questions that were not answered.
const PAUSE: Duration = Duration::from_millis(500);

/// Topics of Kafka's own, which no pattern means.
fn is_internal(topic: &str) -> bool {
    topic.starts_with("__")
}

/// The topics that a source names now.
pub fn topics_of(config: &SourceConfig, lookup: &Lookup) -> Result<Vec<String>, LookupError> {
    let Some(pattern) = &config.topic_pattern else {
        return Ok(config.topics.clone());
    };
    // The plan has checked it.
    let Ok(pattern) = Regex::new(&format!("^(?:{pattern})$")) else {
        return Ok(Vec::new());
    };
    let mut topics: Vec<String> = lookup
        .topics()?
        .into_iter()
        .filter(|topic| pattern.is_match(topic) && !is_internal(topic))
        .collect();
    topics.sort();
    Ok(topics)
}

/// Where a first start begins in a partition that holds `low..high`.
fn start(config: &SourceConfig, (low, high): (i64, i64), since: Option<i64>) -> i64 {
    match config.start_from {
        StartFrom::Earliest => low,
        StartFrom::Latest => high,
        StartFrom::Timestamp => since.unwrap_or(high),
    }
}

fn list_topic(
    config: &SourceConfig,
    lookup: &Lookup,
    topic: &str,
    time_ms: Option<i64>,
) -> Result<Vec<SplitState>, LookupError> {
    let facts = lookup.topic(topic)?;
    let since = match time_ms {
        Some(time_ms) => lookup.first_since(topic, facts.partitions_n, time_ms)?,
        None => Vec::new(),
    };
    let mut splits = Vec::new();
    for partition in 0..facts.partitions_n {
        let (low, high) = lookup.range(topic, partition)?;
        let idx = usize::try_from(partition).unwrap_or(0);
        let start = start(config, (low, high), since.get(idx).copied().flatten());
        let description = Description {
            topic: topic.to_owned(),
            partition,
            topic_id: facts.id.clone(),
            start,
            // Of a bounded read this is the high watermark: what open transactions hold back is
            // waited for, not left out (KF-K13).
            end: config.end_at.map(|EndAt::Latest| high.max(start)),
        };
        splits.push(description.at(start));
    }
    Ok(splits)
}

fn list_all(
    config: &SourceConfig,
    lookup: &Lookup,
    time_ms: Option<i64>,
) -> Result<Vec<SplitState>, LookupError> {
    let mut splits = Vec::new();
    for topic in topics_of(config, lookup)? {
        splits.extend(list_topic(config, lookup, &topic, time_ms)?);
    }
    Ok(splits)
}

/// Lists a source's partitions.
#[derive(Debug)]
pub struct KafkaEnumerator {
    node: String,
    config: SourceConfig,
    place: LookupPlace,
}

impl KafkaEnumerator {
    /// For a node with this block.
    pub fn new(node: &str, config: SourceConfig, place: LookupPlace) -> Self {
        KafkaEnumerator {
            node: node.to_owned(),
            config,
            place,
        }
    }

    fn start_time_ms(&self) -> Result<Option<i64>, Error> {
        let Some(text) = &self.config.start_timestamp else {
            return Ok(None);
        };
        match DateTime::parse_from_rfc3339(text) {
            Ok(time) => Ok(Some(time.timestamp_millis())),
            Err(_) => Err(refused(
                format!("list partitions of {}", self.node),
                format!("`{text}` is no time"),
            )),
        }
    }
}

#[async_trait]
impl SplitEnumerator for KafkaEnumerator {
    async fn list(&mut self) -> Result<Vec<SplitState>, Error> {
        let (config, place) = (self.config.clone(), self.place.clone());
        let time_ms = self.start_time_ms()?;
        let action = format!("list partitions of {}", self.node);
        let asked = tokio::task::spawn_blocking(move || {
            let lookup = place.open()?;
            let began = Instant::now();
            loop {
                match list_all(&config, &lookup, time_ms) {
                    Ok(splits) => return Ok(splits),
                    Err(error) if error.may_pass() && began.elapsed() < PATIENCE => {
                        tracing::warn!(%error, "waiting for kafka");
                        std::thread::sleep(PAUSE);
                    }
                    Err(error) => {
                        let retry = error.may_pass();
                        return Err(failed(action, retry, error));
                    }
                }
            }
        });
        asked.await.unwrap_or_else(|error| {
            let action = format!("list partitions of {}", self.node);
            Err(failed(action, true, error))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(json: &str) -> SourceConfig {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn attack_31_the_start_is_resolved_once_from_what_is_there_c10() {
        let earliest = config(r#"{"bootstrapServers":"a","topics":["t"]}"#);
        let latest = config(r#"{"bootstrapServers":"a","topics":["t"],"startFrom":"Latest"}"#);
        let time = config(
            r#"{"bootstrapServers":"a","topics":["t"],"startFrom":"Timestamp",
                "startTimestamp":"2026-01-31T00:00:00Z"}"#,
        );

        assert_eq!(start(&earliest, (3, 100), None), 3);
        assert_eq!(start(&latest, (3, 100), None), 100);
        assert_eq!(start(&time, (3, 100), Some(40)), 40);
        assert_eq!(start(&time, (3, 100), None), 100, "all are before it");
    }
}
