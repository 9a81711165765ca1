//! Which partitions a source has, and where a first start begins and ends.
//!
//! Owns: resolving names, patterns and times once, into manifest 0 (C10). Start at:
//! [`KafkaEnumerator`].

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use chrono::DateTime;
use regex::Regex;
use streamforge_core::manifest::SplitState;
use streamforge_engine::error::Error;
use streamforge_engine::source::SplitEnumerator;

use super::config::{EndAt, SourceConfig, StartFrom};
use super::lookup::{Ask, Error as LookupError, LookupPlace};
use super::split::Description;
use crate::error::{failed, refused, tell_waiting};

/// How long a first start waits for brokers before the attempt ends and is begun anew.
const PATIENCE: Duration = Duration::from_secs(60);

/// Pause between two questions that were not answered.
const PAUSE: Duration = Duration::from_millis(500);

/// Topics of Kafka's own, which no pattern means.
fn is_internal(topic: &str) -> bool {
    topic.starts_with("__")
}

fn whole_name(pattern: &str) -> Result<Regex, regex::Error> {
    Regex::new(&format!("^(?:{pattern})$"))
}

/// The topics that a source names now.
pub fn topics_of(config: &SourceConfig, lookup: &impl Ask) -> Result<Vec<String>, LookupError> {
    let Some(pattern) = &config.topic_pattern else {
        return Ok(config.topics.clone());
    };
    // The plan has checked it.
    let Ok(pattern) = whole_name(pattern) else {
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
    lookup: &impl Ask,
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

/// Every partition of a source, where a first start begins; `time_ms`: what `startTimestamp` says.
pub fn list_all(
    config: &SourceConfig,
    lookup: &impl Ask,
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

impl KafkaEnumerator {
    /// Lists the partitions that this block means; brokers that are away are waited for.
    async fn list_of(&self, config: SourceConfig) -> Result<Vec<SplitState>, Error> {
        let (place, time_ms) = (self.place.clone(), self.start_time_ms()?);
        let action = format!("list partitions of {}", self.node);
        let asked = tokio::task::spawn_blocking(move || {
            let lookup = place.open()?;
            let began = Instant::now();
            let mut tries_n = 0;
            loop {
                tries_n += 1;
                match list_all(&config, &lookup, time_ms) {
                    Ok(splits) => return Ok(splits),
                    Err(error) if error.may_pass() && began.elapsed() < PATIENCE => {
                        tell_waiting(tries_n, &error, "waiting for kafka");
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

    /// Names topics that a bounded read with a pattern does not have: they were not there when it was
    /// resolved, or the pattern is another one. Nobody waits for that.
    fn name_unread(&self, known: BTreeSet<String>) {
        let (node, config, place) = (self.node.clone(), self.config.clone(), self.place.clone());
        tokio::task::spawn_blocking(move || {
            let Ok(lookup) = place.open() else { return };
            let Ok(topics) = topics_of(&config, &lookup) else {
                return;
            };
            let unread: Vec<_> = topics
                .into_iter()
                .filter(|topic| !known.contains(topic))
                .collect();
            if !unread.is_empty() {
                let unread = unread.join(", ");
                tracing::warn!(
                    node,
                    unread,
                    "topicPattern means topics that this bounded read does not read: which it reads was \
                     resolved at its first start; to read them, too, name all in `topics`"
                );
            }
        });
    }
}

/// What an edited block does to a source that has read before.
#[derive(Debug, Default, PartialEq, Eq)]
struct Edit {
    /// Topics it was reading.
    known: BTreeSet<String>,
    /// Topics that are named now for the first time.
    added: Vec<String>,
    /// Topics that nothing names any more and that are not read to their end.
    dropped: BTreeSet<String>,
}

/// Whether the document names a topic.
fn naming(config: &SourceConfig) -> impl Fn(&str) -> bool {
    let pattern = config.topic_pattern.as_deref().map(whole_name);
    move |topic| match &pattern {
        // The plan has checked it.
        Some(pattern) => pattern.as_ref().is_ok_and(|it| it.is_match(topic)),
        None => config.topics.iter().any(|it| it == topic),
    }
}

fn edit_of(config: &SourceConfig, known: &[SplitState]) -> Result<Edit, super::split::Error> {
    let mut edit = Edit::default();
    let is_named = naming(config);
    for state in known {
        let (Description { topic, .. }, offset) = Description::open(state)?;
        if !is_named(&topic) && offset.is_some() {
            edit.dropped.insert(topic.clone());
        }
        edit.known.insert(topic);
    }
    if config.topic_pattern.is_none() {
        let named = config.topics.iter();
        let added = named.filter(|topic| !edit.known.contains(*topic));
        edit.added = added.cloned().collect();
    }
    Ok(edit)
}

/// Why an `endAt` that came or went cannot be followed: where a partition ends was resolved once (C10), and
/// what is read to its end stays so (C11).
fn changed_end(
    config: &SourceConfig,
    known: &[SplitState],
) -> Result<Option<String>, super::split::Error> {
    let (ends, is_named) = (config.end_at.is_some(), naming(config));
    let mut differs = false;
    for state in known {
        let (description, offset) = Description::open(state)?;
        // Of one that is read, and nobody wants more of, it is all the same.
        let is_done = offset.is_none() && (ends || !is_named(&description.topic));
        differs |= description.end.is_some() != ends && !is_done;
    }
    let what = match (differs, ends) {
        (false, _) => return Ok(None),
        (true, true) => {
            "`endAt` is new, and what this source was reading has no end: it would never end; take `endAt` away"
        }
        (true, false) => {
            "`endAt` is gone, and what this source was reading ends where that said: the rest would never be \
             read; put `endAt: Latest` back"
        }
    };
    Ok(Some(format!(
        "{what}, give the source another name and `uid`, or start the job anew (--fresh; in a cluster \
         `upgrade.mode: Stateless`)"
    )))
}

#[async_trait]
impl SplitEnumerator for KafkaEnumerator {
    async fn list(&mut self) -> Result<Vec<SplitState>, Error> {
        self.list_of(self.config.clone()).await
    }

    async fn list_new(&mut self, known: &[SplitState]) -> Result<Vec<SplitState>, Error> {
        let action = || format!("read {}", self.node);
        let edit = edit_of(&self.config, known).map_err(|error| failed(action(), false, error))?;
        if !edit.dropped.is_empty() {
            let dropped: Vec<_> = edit.dropped.iter().map(|it| format!("`{it}`")).collect();
            let reason = format!(
                "the document no longer names {}, and the rest of it would never be read; name it again, or \
                 start the job anew with --fresh",
                dropped.join(", ")
            );
            return Err(refused(action(), reason));
        }
        let changed =
            changed_end(&self.config, known).map_err(|error| failed(action(), false, error))?;
        if let Some(reason) = changed {
            return Err(refused(action(), reason));
        }
        if self.config.topic_pattern.is_some() && self.config.end_at.is_some() {
            self.name_unread(edit.known);
        }
        if edit.added.is_empty() {
            return Ok(Vec::new());
        }
        let (node, added) = (&self.node, edit.added.join(", "));
        tracing::info!(
            node,
            added,
            "topics that the document names now are read, too"
        );
        let config = SourceConfig {
            topics: edit.added,
            ..self.config.clone()
        };
        self.list_of(config).await
    }
}

#[cfg(test)]
mod tests {
    use streamforge_core::manifest::SplitProgress;

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

    fn reads(topic: &str, is_ended: bool) -> SplitState {
        let description = Description {
            topic: topic.to_owned(),
            partition: 0,
            topic_id: None,
            start: 0,
            end: Some(9),
        };
        let mut state = description.at(5);
        if is_ended {
            state.progress = SplitProgress::End;
        }
        state
    }

    #[test]
    fn end_that_a_document_gains_or_loses_between_two_runs_is_refused_c10() {
        let endless = config(r#"{"bootstrapServers":"a","topics":["ta"]}"#);
        let bounded = config(r#"{"bootstrapServers":"a","topics":["ta"],"endAt":"Latest"}"#);
        let without_end = Description {
            topic: "ta".to_owned(),
            partition: 1,
            topic_id: None,
            start: 0,
            end: None,
        };
        let without_end = [without_end.at(5)];
        let (reading, ended) = ([reads("ta", false)], [reads("ta", true)]);
        let said =
            |config: &SourceConfig, known: &[SplitState]| changed_end(config, known).unwrap();

        assert_eq!(said(&endless, &without_end), None);
        assert_eq!(said(&bounded, &reading), None);
        assert_eq!(said(&bounded, &ended), None);
        let other = config(r#"{"bootstrapServers":"a","topics":["tb"]}"#);
        assert_eq!(said(&other, &ended), None, "nobody wants more of it");
        for known in [&reading, &ended] {
            let gone = said(&endless, known).unwrap();
            assert!(gone.contains("put `endAt: Latest` back"), "{gone}");
        }
        let new = said(&bounded, &without_end).unwrap();
        assert!(new.contains("take `endAt` away"), "{new}");
    }

    #[test]
    fn topics_that_a_document_gains_and_loses_between_two_runs_are_known_c10() {
        let bounded = |topics: &str| {
            let more = r#""endAt":"Latest""#;
            config(&format!(r#"{{"bootstrapServers":"a",{topics},{more}}}"#))
        };
        let edit = |topics: &str, known: &[SplitState]| {
            let edit = edit_of(&bounded(topics), known).unwrap();
            (edit.added, edit.dropped.into_iter().collect::<Vec<_>>())
        };
        let (a, b) = (reads("ta", false), reads("tb", false));
        let nothing = (vec![], vec![]);
        let both = [a.clone(), b];

        assert_eq!(edit(r#""topics":["tb","ta"]"#, &both), nothing);
        let added = (vec!["tb".to_owned()], vec![]);
        assert_eq!(
            edit(r#""topics":["ta","tb"]"#, std::slice::from_ref(&a)),
            added
        );
        let dropped = (vec![], vec!["ta".to_owned()]);
        assert_eq!(edit(r#""topics":["tb"]"#, &both), dropped);
        // What is read to its end need not be named.
        let ended = [reads("ta", true), reads("tb", false)];
        assert_eq!(edit(r#""topics":["tb"]"#, &ended), nothing);
        // A pattern means whole names.
        assert_eq!(edit(r#""topicPattern":"t.""#, &both), nothing);
        let dropped = (vec![], vec!["ta".to_owned()]);
        assert_eq!(edit(r#""topicPattern":"t""#, &[a]), dropped);
    }
}
