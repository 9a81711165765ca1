//! What a reader does about what brokers said.
//!
//! Owns: answers to its questions (which splits are read on, which are new, and what is no longer what it was,
//! KF-K1), and another client when the secret that the present one was made of was replaced, or when there are
//! many more partitions than it was made for. Brokers ask for credentials when a connection begins, and one that
//! breaks may find those of yesterday refused. The reader then goes on where it stands, as after a restore.

use streamforge_engine::error::Error;
use streamforge_engine::source::SourceEvent;
use xxhash_rust::xxh3::xxh3_64;

use super::question::{Answer, Questions};
use super::{KafkaReader, LOOK_EVERY};
use crate::kafka::check::{Answers, check_identity};
use crate::kafka::edge::{Consume, Edge};
use crate::kafka::lookup::TopicFacts;
use crate::kafka::split::Description;

impl<E: Edge> KafkaReader<E> {
    pub(super) fn on_answer(&mut self, answer: Answer) -> Result<(), Error> {
        if answer.is_error() && self.renew_if_replaced() {
            return Ok(());
        }
        match answer {
            Answer::Checked(Ok(Answers {
                checked,
                unanswered,
            })) => {
                self.unanswered = unanswered.map(|error| error.to_string());
                self.find_trouble(self.edge.now());
                let ids: Vec<_> = checked.iter().map(|it| it.description.id()).collect();
                self.unchecked
                    .retain(|(split, _)| !ids.contains(&split.id()));
                self.open(checked)
            }
            Answer::Checked(Err(error)) => Err(self.check_failed(error)),
            Answer::Looked(Ok(found)) => {
                for (description, facts) in self.splits.iter().filter_map(|split| {
                    let facts = found.topics.get(&split.description.topic)?;
                    Some((&split.description, facts))
                }) {
                    check_identity(description, description.start, facts)
                        .map_err(|error| self.check_failed(error))?;
                }
                self.discover(found.partitions);
                Ok(())
            }
            // The consumer itself says what is wrong with brokers, and credentials may be on their way; a
            // topic that is gone says so twice.
            Answer::Looked(Err(error)) if error.may_pass() || error.means_credentials() => Ok(()),
            Answer::Looked(Err(error)) => {
                if self.questions.failed_in_a_row() > 1 {
                    return Err(self.check_failed(error.into()));
                }
                let sooner = self.edge.now().checked_sub(LOOK_EVERY / 2);
                self.looked = sooner.unwrap_or(self.looked);
                Ok(())
            }
        }
    }

    /// Takes another client, if the secrets say something else than when the present one was made: what is
    /// wrong with it may be that.
    pub(super) fn renew_if_replaced(&mut self) -> bool {
        let now = self.edge.credentials();
        if now == self.credentials {
            return false;
        }
        tracing::info!(
            node = self.spec.node,
            "kafka source takes replaced credentials"
        );
        self.credentials = now;
        self.renew();
        self.questions = Questions::new(self.edge.clone(), self.spec.config.clone());
        true
    }

    /// Takes another client, which goes on where this one stands.
    fn renew(&mut self) {
        // Their queues go before the client whose they are.
        let splits = self.splits.drain(..);
        let stand = splits.map(|split| (split.description.clone(), split.position));
        self.unchecked.extend(stand);
        if let Some(consumer) = self.consumer.take() {
            self.edge.close(consumer);
        }
    }

    /// Takes another client, if the present one was made for less than half as many partitions: how much of
    /// each it holds unread is fixed, and all of it together is to stay bounded (B1).
    fn renew_if_outgrown(&mut self) {
        if self.consumer.is_some() && self.partitions_n > self.shares_n.saturating_mul(2) {
            let (node, shares_n, partitions_n) =
                (&self.spec.node, self.shares_n, self.partitions_n);
            tracing::info!(
                node,
                shares_n,
                partitions_n,
                "kafka source has outgrown its client and takes another"
            );
            self.renew();
        }
    }

    /// KF-K1 while running: the client saw another identity of a topic it reads.
    pub(super) fn check_ids_told(&self, consumer: &E::Consumer) -> Result<(), Error> {
        for split in &self.splits {
            let now = consumer.ear().topic_ids(&split.description.topic).pop();
            let facts = TopicFacts {
                partitions_n: i32::MAX,
                id: now,
                leaders: Vec::new(),
            };
            check_identity(&split.description, split.position, &facts)
                .map_err(|error| self.check_failed(error))?;
        }
        Ok(())
    }

    /// New partitions belong to the reader that the hash of their name says, and are read from their
    /// begin: nothing of them was there before.
    fn discover(&mut self, partitions: Vec<Description>) {
        let parallelism = u64::from(self.place.parallelism.max(1));
        // Those of others are found each time.
        let partitions_n = self.seen.len() + partitions.len();
        self.partitions_n = self.partitions_n.max(partitions_n);
        for description in partitions {
            let id = description.id();
            let owner = xxh3_64(id.0.as_bytes()) % parallelism;
            if owner == u64::from(self.place.subtask) && self.seen.insert(id.0.clone()) {
                tracing::info!(split = %id, "new partition");
                self.said
                    .push_back(SourceEvent::Discovered(description.at(description.start)));
                let start = description.start;
                self.unchecked.push((description, start));
            }
        }
        self.renew_if_outgrown();
    }
}
