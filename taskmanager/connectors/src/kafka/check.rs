//! Whether what a checkpoint remembers of partitions is what the brokers have.
//!
//! Owns: the questions asked before a split is read, or when the brokers say that its offset is out of
//! range, and the refusals made of the answers (KF-K1, KF-K2). All calls block.

use std::collections::BTreeMap;

use streamforge_engine::error::Error as EngineError;

use super::config::OnOffsetOutOfRange;
use super::lookup::{Error as LookupError, Lookup, TopicFacts};
use super::split::{Description, Judgement, is_another, judge};

/// Why a split must not be read on.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No answer, or a refusal.
    #[error(transparent)]
    Lookup(#[from] LookupError),
    /// The topic was deleted and made anew.
    #[error(
        "topic `{topic}` is not the one that was read: it was deleted and re-created (its identity was \
         {stored} and is {now}). What was read of it to offset {offset} of partition {partition} is gone; \
         to read the new one from its begin, start the job anew with --fresh"
    )]
    AnotherTopic {
        /// Its name.
        topic: String,
        /// Which partition.
        partition: i32,
        /// How far it was read.
        offset: i64,
        /// Identity in the checkpoint.
        stored: String,
        /// Identity now.
        now: String,
    },
    /// A partition is not there any more.
    #[error(
        "topic `{topic}` has {partitions_n} partitions now; partition {partition} was read to offset {offset}"
    )]
    NoSuchPartition {
        /// Topic.
        topic: String,
        /// Which.
        partition: i32,
        /// How far it was read.
        offset: i64,
        /// How many there are.
        partitions_n: i32,
    },
    /// Records that were not read were deleted.
    #[error(
        "offset {offset} of {topic}/{partition} is gone: the oldest one kept is {low}, so that {lost} offsets \
         were deleted before they were read; raise the topic's retention, or write \
         `onOffsetOutOfRange: Earliest` to go on at {low}"
    )]
    Lost {
        /// Topic.
        topic: String,
        /// Partition.
        partition: i32,
        /// Wanted.
        offset: i64,
        /// Oldest.
        low: i64,
        /// How many.
        lost: i64,
    },
    /// The partition ends before the offset.
    #[error(
        "offset {offset} of {topic}/{partition} does not exist: the partition ends at {high}. It was cut (an \
         unclean leader election) or replaced; to read it from its begin, start the job anew with --fresh"
    )]
    BeyondEnd {
        /// Topic.
        topic: String,
        /// Partition.
        partition: i32,
        /// Wanted.
        offset: i64,
        /// End.
        high: i64,
    },
    /// The client could not be made.
    #[error("open a client of kafka")]
    Client(#[source] EngineError),
}

impl Error {
    /// Whether the same question may be answered well later, without anybody's help.
    pub fn may_pass(&self) -> bool {
        match self {
            Error::Lookup(error) => error.may_pass(),
            Error::AnotherTopic { .. }
            | Error::NoSuchPartition { .. }
            | Error::Lost { .. }
            | Error::BeyondEnd { .. }
            | Error::Client(_) => false,
        }
    }
}

/// A split that may be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checked {
    /// Which.
    pub description: Description,
    /// Where to read on.
    pub offset: i64,
    /// Offsets that were passed over because the document allows it.
    pub skipped: i64,
}

/// Asks about each split. One of a bounded source that is read to its end is not asked about.
pub fn check(
    lookup: &Lookup,
    splits: &[(Description, i64)],
    policy: OnOffsetOutOfRange,
) -> Result<Vec<Checked>, Error> {
    let mut topics: BTreeMap<&str, TopicFacts> = BTreeMap::new();
    let mut checked = Vec::with_capacity(splits.len());
    for (description, offset) in splits {
        let topic = description.topic.as_str();
        if !topics.contains_key(topic) {
            topics.insert(topic, lookup.topic(topic)?);
        }
        let Some(facts) = topics.get(topic) else {
            continue;
        };
        check_identity(description, *offset, facts)?;
        let (low, high) = lookup.range(topic, description.partition)?;
        let at = |offset, skipped| Checked {
            description: description.clone(),
            offset,
            skipped,
        };
        let (topic, partition) = (topic.to_owned(), description.partition);
        checked.push(match judge(*offset, low, high, policy) {
            Judgement::Read => at(*offset, 0),
            Judgement::GoOnAt { low, skipped } => at(low, skipped),
            Judgement::Lost => {
                return Err(Error::Lost {
                    topic,
                    partition,
                    offset: *offset,
                    low,
                    lost: low.saturating_sub(*offset),
                });
            }
            Judgement::BeyondEnd => {
                return Err(Error::BeyondEnd {
                    topic,
                    partition,
                    offset: *offset,
                    high,
                });
            }
        });
    }
    Ok(checked)
}

/// KF-K1: by its identity, before any offset is compared.
pub fn check_identity(
    description: &Description,
    offset: i64,
    facts: &TopicFacts,
) -> Result<(), Error> {
    let stored = description.topic_id.as_deref();
    if is_another(stored, facts.id.as_deref()) {
        return Err(Error::AnotherTopic {
            topic: description.topic.clone(),
            partition: description.partition,
            offset,
            stored: stored.unwrap_or_default().to_owned(),
            now: facts.id.clone().unwrap_or_default(),
        });
    }
    if description.partition >= facts.partitions_n {
        return Err(Error::NoSuchPartition {
            topic: description.topic.clone(),
            partition: description.partition,
            offset,
            partitions_n: facts.partitions_n,
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn description() -> Description {
        Description {
            topic: "t".to_owned(),
            partition: 1,
            topic_id: Some("old".to_owned()),
            start: 0,
            end: None,
        }
    }

    #[test]
    fn kf_k1_a_recreated_topic_is_refused_with_both_identities() {
        let facts = TopicFacts {
            partitions_n: 4,
            id: Some("new".to_owned()),
        };

        let error = check_identity(&description(), 100, &facts).unwrap_err();

        let text = error.to_string();
        for word in ["old", "new", "100", "--fresh"] {
            assert!(text.contains(word), "{text}");
        }
        assert!(!error.may_pass());
    }

    #[test]
    fn kf_k2_both_offsets_are_named() {
        let error = Error::Lost {
            topic: "t".to_owned(),
            partition: 1,
            offset: 17,
            low: 40,
            lost: 23,
        };

        let text = error.to_string();
        assert!(
            text.contains("offset 17 of t/1") && text.contains("kept is 40"),
            "{text}"
        );
    }
}
