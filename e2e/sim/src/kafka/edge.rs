//! The edge of the real reader, in a simulation: everything goes to [`super::Kafka`].
//!
//! Owns: nothing. The clock of clients runs [`CLOCK_SPEED`] times as fast as the simulation's, so that the
//! reader's seconds are short enough for a history.

use std::sync::Arc;
use std::time::{Duration, Instant};

use streamforge_connectors::kafka::client::Ear;
use streamforge_connectors::kafka::edge::{Consume, Edge, Instead, Queue, Record, Start};
use streamforge_connectors::kafka::lookup::{Ask, Error as LookupError, TopicFacts};
use streamforge_core::ids::{Epoch, SubtaskIdx};
use streamforge_engine::error::Error;

use super::Kafka;
use super::fetch::{Client, Fetch, Fetched, Name};

/// Milliseconds of a reader in one of the simulation.
const CLOCK_SPEED: u64 = 20;

/// How one reader gets at the brokers.
#[derive(Clone)]
pub struct SimEdge {
    pub(super) kafka: Kafka,
    /// Which reader.
    pub id: u64,
    pub(super) epoch: Epoch,
    pub(super) subtask: SubtaskIdx,
}

impl Edge for SimEdge {
    type Asker = SimAsker;
    type Consumer = SimConsumer;

    fn now(&self) -> Instant {
        let now_ms = self.kafka.lock().now_ms;
        self.kafka.base + Duration::from_millis(now_ms * CLOCK_SPEED)
    }

    fn spawn(&self, work: impl FnOnce() + Send + 'static) {
        self.kafka.lock().later(Box::new(work));
    }

    async fn wait(&self, _patience: Duration) -> bool {
        let mut state = self.kafka.lock();
        // Meanwhile an answer may come.
        let then_ms = state.now_ms + 5;
        if state.rng.one_in(3) {
            state.fetch_for(self.id, then_ms);
        }
        let client = state.clients.get(&self.id);
        client.is_some_and(Client::has_records)
    }

    fn credentials(&self) -> u64 {
        0
    }

    fn asker(&self) -> Result<SimAsker, Error> {
        Ok(SimAsker(self.kafka.clone()))
    }

    fn consumer(&self, partitions_n: usize) -> Result<SimConsumer, Error> {
        let client = Client::new(self.epoch, self.subtask);
        let ear = Arc::clone(&client.ear);
        self.kafka.lock().clients.insert(self.id, client);
        Ok(SimConsumer {
            kafka: self.kafka.clone(),
            id: self.id,
            partitions_n,
            ear,
        })
    }

    fn close(&self, _consumer: Arc<SimConsumer>) {}
}

/// Answers questions.
#[derive(Clone)]
pub struct SimAsker(pub(super) Kafka);

impl Ask for SimAsker {
    fn topics(&self) -> Result<Vec<String>, LookupError> {
        let mut state = self.0.lock();
        state.answers()?;
        Ok(state.topics.keys().cloned().collect())
    }

    fn topic(&self, topic: &str) -> Result<TopicFacts, LookupError> {
        let mut state = self.0.lock();
        state.answers()?;
        let found = state.topics.get(topic);
        let found = found.ok_or_else(|| LookupError::NoSuchTopic {
            topic: topic.to_owned(),
            servers: "sim".to_owned(),
        })?;
        let leader = |partition| {
            let led = state.partitions.get(&(topic.to_owned(), partition));
            let led = led.filter(|it| it.answers(state.now_ms));
            // Each has a broker of its own.
            led.map_or(-1, |_| partition)
        };
        Ok(TopicFacts {
            partitions_n: found.partitions_n,
            id: Some(found.id.clone()),
            leaders: (0..found.partitions_n).map(leader).collect(),
        })
    }

    fn range(&self, topic: &str, partition: i32) -> Result<(i64, i64), LookupError> {
        let mut state = self.0.lock();
        state.answers()?;
        let now_ms = state.now_ms;
        let found = state.partitions.get(&(topic.to_owned(), partition));
        let found = found.filter(|it| !it.is_away(now_ms));
        let found = found.ok_or_else(super::unreachable)?;
        Ok((found.low, found.end()))
    }

    fn first_since(
        &self,
        _topic: &str,
        _partitions_n: i32,
        _time_ms: i64,
    ) -> Result<Vec<Option<i64>>, LookupError> {
        Err(super::unreachable())
    }
}

/// Fetches for one reader.
pub struct SimConsumer {
    kafka: Kafka,
    id: u64,
    /// How many it was made for.
    partitions_n: usize,
    ear: Arc<Ear>,
}

impl Drop for SimConsumer {
    fn drop(&mut self) {
        self.kafka.lock().clients.remove(&self.id);
    }
}

impl Consume for SimConsumer {
    type Queue = SimQueue;

    fn assign(&self, at: &[Start]) -> Result<Vec<SimQueue>, Error> {
        let mut state = self.kafka.lock();
        let mut queues = Vec::new();
        for start in at {
            let name = (start.topic.clone(), start.partition);
            state.check_one_owner(self.id, &name);
            if let Some(client) = state.clients.get_mut(&self.id) {
                client
                    .fetches
                    .insert(name.clone(), Fetch::new(start.offset));
                let (n, for_n) = (client.fetches.len(), self.partitions_n);
                assert!(
                    n <= 2 * for_n,
                    "a client for {for_n} partitions reads {n} (B1)"
                );
            }
            queues.push(SimQueue {
                kafka: self.kafka.clone(),
                id: self.id,
                name,
            });
        }
        Ok(queues)
    }

    fn unassign(&self, topic: &str, partition: i32) -> Result<(), Error> {
        let mut state = self.kafka.lock();
        if let Some(client) = state.clients.get_mut(&self.id) {
            client.fetches.remove(&(topic.to_owned(), partition));
        }
        Ok(())
    }

    fn serve(&self) {
        let mut state = self.kafka.lock();
        let mut rng = state.rng.split();
        if let Some(client) = state.clients.get_mut(&self.id) {
            client.serve(&mut rng);
        }
    }

    fn ear(&self) -> &Ear {
        &self.ear
    }

    fn tell(&self, _positions: &[Start]) {}
}

/// Records of one partition for one reader.
pub struct SimQueue {
    kafka: Kafka,
    id: u64,
    name: Name,
}

impl Queue for SimQueue {
    type Record<'a> = Fetched;

    fn take(&self) -> Option<Result<Fetched, Instead>> {
        let mut state = self.kafka.lock();
        let client = state.clients.get_mut(&self.id)?;
        client.fetches.get_mut(&self.name)?.queue.pop_front()
    }
}

impl Record for Fetched {
    fn offset(&self) -> i64 {
        self.offset
    }

    fn written_ms(&self) -> Option<i64> {
        None
    }

    fn key(&self) -> Option<&[u8]> {
        None
    }

    fn value(&self) -> Option<&[u8]> {
        Some(&self.value)
    }

    fn headers(&self) -> Vec<(String, Option<Vec<u8>>)> {
        Vec::new()
    }
}
