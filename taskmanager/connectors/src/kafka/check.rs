//! Whether what a checkpoint remembers of partitions is what the brokers have.
//!
//! Owns: the questions asked before a split is read, or when the brokers say that its offset is out of
//! range, and the refusals made of the answers (KF-K1, KF-K2). All calls block.

use std::collections::{BTreeMap, BTreeSet};

use streamforge_engine::error::Error as EngineError;

use super::config::OnOffsetOutOfRange;
use super::lookup::{Ask, Error as LookupError, TopicFacts};
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

/// What was answered.
#[derive(Debug)]
pub struct Answers {
    /// Splits that may be read.
    pub checked: Vec<Checked>,
    /// Why nothing is known of the others now; it is some day.
    pub unanswered: Option<Error>,
}

/// Asks about each split: of some the brokers may be away. One of a bounded source that is read to its
/// end is not asked about.
pub fn check(
    lookup: &impl Ask,
    splits: &[(Description, i64)],
    policy: OnOffsetOutOfRange,
) -> Result<Answers, Error> {
    let mut asking = Asking {
        lookup,
        policy,
        topics: BTreeMap::new(),
        silent: BTreeSet::new(),
    };
    let (mut checked, mut unanswered) = (Vec::with_capacity(splits.len()), None);
    for (description, offset) in splits {
        match asking.check(description, *offset) {
            Ok(found) => checked.extend(found),
            Err(error) if error.may_pass() => unanswered = unanswered.or(Some(error)),
            Err(error) => return Err(error),
        }
    }
    Ok(Answers {
        checked,
        unanswered,
    })
}

struct Asking<'a, A> {
    lookup: &'a A,
    policy: OnOffsetOutOfRange,
    /// None: it was not told.
    topics: BTreeMap<&'a str, Option<TopicFacts>>,
    /// Brokers that did not answer. Each costs its time once.
    silent: BTreeSet<i32>,
}

impl<'a, A: Ask> Asking<'a, A> {
    /// None: an earlier question had no answer, and this one would have none.
    fn check(
        &mut self,
        description: &'a Description,
        offset: i64,
    ) -> Result<Option<Checked>, Error> {
        let (topic, partition) = (description.topic.as_str(), description.partition);
        if !self.topics.contains_key(topic) {
            self.topics.insert(topic, None);
            let facts = self.lookup.topic(topic)?;
            self.topics.insert(topic, Some(facts));
        }
        let Some(Some(facts)) = self.topics.get(topic) else {
            return Ok(None);
        };
        check_identity(description, offset, facts)?;
        let Some(leader) = facts.leader(partition) else {
            let topic = topic.to_owned();
            return Err(LookupError::NoLeader { topic, partition }.into());
        };
        if self.silent.contains(&leader) {
            return Ok(None);
        }
        let range = self.lookup.range(topic, partition).inspect_err(|_| {
            self.silent.insert(leader);
        });
        self.judge(description, offset, range?).map(Some)
    }

    fn judge(
        &self,
        description: &Description,
        offset: i64,
        (low, high): (i64, i64),
    ) -> Result<Checked, Error> {
        let at = |offset, skipped| Checked {
            description: description.clone(),
            offset,
            skipped,
        };
        let (topic, partition) = (description.topic.clone(), description.partition);
        match judge(offset, low, high, self.policy) {
            Judgement::Read => Ok(at(offset, 0)),
            Judgement::GoOnAt { low, skipped } => Ok(at(low, skipped)),
            Judgement::Lost => Err(Error::Lost {
                topic,
                partition,
                offset,
                low,
                lost: low.saturating_sub(offset),
            }),
            Judgement::BeyondEnd => Err(Error::BeyondEnd {
                topic,
                partition,
                offset,
                high,
            }),
        }
    }
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
    use rdkafka::mocking::MockCluster;

    use super::*;
    use crate::kafka::lookup::Lookup;

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
            leaders: vec![1; 4],
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

    /// One partition whose brokers are away keeps no other from being read.
    #[test]
    fn splits_are_answered_for_though_a_partition_has_no_leader() {
        let cluster = MockCluster::new(1).unwrap();
        cluster.create_topic("t", 3, 1).unwrap();
        cluster.partition_leader("t", 1, None).unwrap();
        let access = serde_json::from_value(serde_json::json!({
            "bootstrapServers": cluster.bootstrap_servers(),
        }));
        let lookup = Lookup::open(&access.unwrap(), None).unwrap();
        let split = |partition| {
            let split = Description {
                partition,
                topic_id: None,
                ..description()
            };
            (split, 0)
        };

        let answers = check(
            &lookup,
            &[split(0), split(1), split(2)],
            OnOffsetOutOfRange::Fail,
        )
        .unwrap();

        let checked = answers.checked.iter().map(|it| it.description.partition);
        assert_eq!(checked.collect::<Vec<_>>(), [0, 2]);
        let unanswered = answers.unanswered.unwrap();
        assert!(unanswered.may_pass());
        assert_eq!(unanswered.to_string(), "t/1 has no leader now");
    }
}
