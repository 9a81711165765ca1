//! Asking brokers about topics, without reading them.
//!
//! Owns: a client for questions, the patience with an answer, and what a missing answer means. All
//! calls block; they run on threads made for that.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::{ClientConfig, Offset, TopicPartitionList};

use super::client::{Context, Ear};
use super::config::{ANSWER_TIMEOUT, Access};
use super::keep::Keeper;
use streamforge_engine::error::Error as EngineError;

/// How often is asked about a topic before it is believed to be missing.
const MISSING_ASKED: u32 = 4;

/// How many callbacks one answer may wait for: two lines of a log for each of many partitions.
const CALLBACKS_MAX: usize = 1_000_000;

/// Pause between two such questions.
const MISSING_PAUSE: Duration = Duration::from_millis(300);

/// Why a question has no answer.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No broker answers; it may later.
    #[error("no answer from kafka {servers}: {reason}")]
    Unreachable {
        /// Where.
        servers: String,
        /// What the client said last.
        reason: String,
    },
    /// The credentials are wrong.
    #[error("kafka {servers} refuses the credentials: {reason}")]
    Credentials {
        /// Where.
        servers: String,
        /// What the client said.
        reason: String,
    },
    /// There is no such topic, or it may not be seen.
    #[error("topic `{topic}` does not exist on kafka {servers}")]
    NoSuchTopic {
        /// Which.
        topic: String,
        /// Where.
        servers: String,
    },
    /// The user may not do this.
    #[error("kafka {servers} does not allow to {action} topic `{topic}`: an ACL is missing")]
    Denied {
        /// What.
        action: &'static str,
        /// Which.
        topic: String,
        /// Where.
        servers: String,
    },
    /// Its brokers are away; one of them will be chosen.
    #[error("{topic}/{partition} has no leader now")]
    NoLeader {
        /// Topic.
        topic: String,
        /// Partition.
        partition: i32,
    },
    /// Another refusal.
    #[error("ask kafka {servers} about `{topic}`")]
    Refused {
        /// About what.
        topic: String,
        /// Where.
        servers: String,
        /// Why.
        source: KafkaError,
    },
}

impl Error {
    /// Whether the same question may be answered later without anybody's help.
    pub fn may_pass(&self) -> bool {
        match self {
            Error::Unreachable { .. } | Error::NoLeader { .. } | Error::Refused { .. } => true,
            Error::Credentials { .. } | Error::NoSuchTopic { .. } | Error::Denied { .. } => false,
        }
    }

    /// Whether brokers refused the credentials.
    pub fn means_credentials(&self) -> bool {
        matches!(self, Error::Credentials { .. })
    }
}

/// What a topic is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicFacts {
    /// How many partitions it has.
    pub partitions_n: i32,
    /// Its identity, where brokers tell it.
    pub id: Option<String>,
    /// The broker that leads each partition; -1: none does now.
    pub leaders: Vec<i32>,
}

impl TopicFacts {
    /// The broker that leads a partition, if one does now.
    pub fn leader(&self, partition: i32) -> Option<i32> {
        let partition = usize::try_from(partition).ok()?;
        let leader = self.leaders.get(partition).copied();
        leader.filter(|leader| *leader >= 0)
    }
}

/// What brokers can be asked. All calls block.
pub trait Ask {
    /// All topics there are.
    fn topics(&self) -> Result<Vec<String>, Error>;

    /// One topic. A broker that has just started may not know a topic yet: it is asked again.
    fn topic(&self, topic: &str) -> Result<TopicFacts, Error>;

    /// The oldest offset of a partition and its high watermark.
    fn range(&self, topic: &str, partition: i32) -> Result<(i64, i64), Error>;

    /// The first offset of each partition at or after a time in milliseconds; none: all are before it.
    fn first_since(
        &self,
        topic: &str,
        partitions_n: i32,
        time_ms: i64,
    ) -> Result<Vec<Option<i64>>, Error>;
}

/// Whether a topic holds anything. Ends of transactions count: what they ended cannot be seen from here.
///
/// # Errors
/// When a broker does not answer, or refuses.
pub fn holds_records(lookup: &impl Ask, topic: &str) -> Result<bool, Error> {
    for partition in 0..lookup.topic(topic)?.partitions_n {
        let (low, high) = lookup.range(topic, partition)?;
        if low < high {
            return Ok(true);
        }
    }
    Ok(false)
}

/// A client for questions.
pub struct Lookup {
    consumer: BaseConsumer<Context>,
    ear: Arc<Ear>,
    servers: String,
    /// Held by whoever takes in what the client has to tell: when it is free, all of it has been heard.
    listening: Mutex<()>,
}

impl std::fmt::Debug for Lookup {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Lookup({})", self.servers)
    }
}

/// How to make a [`Lookup`] later, on another thread.
#[derive(Clone, Debug)]
pub struct LookupPlace {
    /// The cluster.
    pub access: Access,
    /// Folder of secrets.
    pub secrets: Option<PathBuf>,
    /// Who keeps clients that are asked more than once.
    pub keeper: Keeper,
}

impl LookupPlace {
    /// A place of which no client is kept.
    pub fn new(access: Access, secrets: Option<PathBuf>) -> Self {
        let keeper = Keeper::default();
        Self {
            access,
            secrets,
            keeper,
        }
    }

    /// The client.
    pub fn open(&self) -> Result<Lookup, EngineError> {
        Lookup::open(&self.access, self.secrets.as_deref())
    }
}

impl Lookup {
    /// A client of this cluster.
    pub fn open(access: &Access, secrets: Option<&Path>) -> Result<Self, EngineError> {
        let config: ClientConfig = access.lookup(secrets)?;
        let context = Context::default();
        let ear = Arc::clone(&context.ear);
        let consumer = config
            .create_with_context(context)
            .map_err(|error| super::config::cannot_open("a client of kafka", error))?;
        Ok(Lookup {
            consumer,
            ear,
            servers: access.bootstrap_servers.clone(),
            listening: Mutex::default(),
        })
    }

    /// Takes in all that the client has to tell by now. What is left would be heard in place of what the
    /// next answer tells.
    fn listen(&self) {
        let listening = self.listening.lock();
        let _listening = listening.unwrap_or_else(PoisonError::into_inner);
        // Each poll performs one callback; a metadata answer makes lines of the log for each partition.
        for _ in 0..CALLBACKS_MAX {
            let before = self.ear.heard_n();
            let told = self.consumer.poll(Duration::ZERO);
            if told.is_none() && self.ear.heard_n() == before {
                return;
            }
        }
    }

    fn error(&self, topic: &str, action: &'static str, source: KafkaError) -> Error {
        self.listen();
        let servers = self.servers.clone();
        let topic = topic.to_owned();
        let trouble = self.ear.take_trouble();
        if let Some(trouble) = trouble
            .as_ref()
            .filter(|trouble| trouble.means_credentials())
        {
            let reason = trouble.reason.clone();
            return Error::Credentials { servers, reason };
        }
        match source.rdkafka_error_code() {
            Some(
                RDKafkaErrorCode::UnknownTopicOrPartition
                | RDKafkaErrorCode::UnknownTopic
                | RDKafkaErrorCode::UnknownPartition
                | RDKafkaErrorCode::UnknownTopicId,
            ) => Error::NoSuchTopic { topic, servers },
            Some(
                RDKafkaErrorCode::TopicAuthorizationFailed
                | RDKafkaErrorCode::GroupAuthorizationFailed
                | RDKafkaErrorCode::ClusterAuthorizationFailed
                | RDKafkaErrorCode::TransactionalIdAuthorizationFailed,
            ) => Error::Denied {
                action,
                topic,
                servers,
            },
            Some(
                RDKafkaErrorCode::BrokerTransportFailure
                | RDKafkaErrorCode::AllBrokersDown
                | RDKafkaErrorCode::Resolve
                | RDKafkaErrorCode::OperationTimedOut
                | RDKafkaErrorCode::TimedOutQueue
                | RDKafkaErrorCode::RequestTimedOut
                | RDKafkaErrorCode::LeaderNotAvailable
                | RDKafkaErrorCode::NotLeaderForPartition,
            ) => {
                let reason = trouble.map_or_else(|| source.to_string(), |it| it.reason);
                Error::Unreachable { servers, reason }
            }
            _ => Error::Refused {
                topic,
                servers,
                source,
            },
        }
    }

    /// A broker's number.
    pub fn some_broker(&self) -> Result<i32, Error> {
        let metadata = self
            .consumer
            .fetch_metadata(None, ANSWER_TIMEOUT)
            .map_err(|error| self.error("", "list", error))?;
        let broker = metadata.brokers().first().map(|broker| broker.id());
        broker.ok_or_else(|| Error::Unreachable {
            servers: self.servers.clone(),
            reason: "no broker is listed".to_owned(),
        })
    }

    fn ask_topic(&self, topic: &str) -> Result<TopicFacts, Error> {
        let metadata = self
            .consumer
            .fetch_metadata(Some(topic), ANSWER_TIMEOUT)
            .map_err(|error| self.error(topic, "describe", error))?;
        let found = metadata.topics().iter().find(|found| found.name() == topic);
        let Some(found) = found else {
            return Err(Error::NoSuchTopic {
                topic: topic.to_owned(),
                servers: self.servers.clone(),
            });
        };
        if let Some(code) = found.error() {
            let source = KafkaError::MetadataFetch(code.into());
            return Err(self.error(topic, "describe", source));
        }
        let partitions_n = i32::try_from(found.partitions().len()).unwrap_or(i32::MAX);
        let mut leaders = vec![-1; found.partitions().len()];
        for partition in found.partitions() {
            let idx = usize::try_from(partition.id()).ok();
            if let Some(leader) = idx.and_then(|idx| leaders.get_mut(idx)) {
                *leader = partition.leader();
            }
        }
        let began = Instant::now();
        // The line with the identity was written before the answer was given.
        let id = loop {
            self.listen();
            let id = self.ear.topic_ids(topic).pop();
            if id.is_some() || began.elapsed() > Duration::from_millis(200) {
                break id;
            }
        };
        Ok(TopicFacts {
            partitions_n,
            id,
            leaders,
        })
    }
}

impl Ask for Lookup {
    fn topics(&self) -> Result<Vec<String>, Error> {
        let metadata = self
            .consumer
            .fetch_metadata(None, ANSWER_TIMEOUT)
            .map_err(|error| self.error("", "list", error))?;
        let topics = metadata.topics().iter();
        Ok(topics.map(|topic| topic.name().to_owned()).collect())
    }

    fn topic(&self, topic: &str) -> Result<TopicFacts, Error> {
        for _ in 1..MISSING_ASKED {
            match self.ask_topic(topic) {
                Err(Error::NoSuchTopic { .. }) => std::thread::sleep(MISSING_PAUSE),
                answer => return answer,
            }
        }
        self.ask_topic(topic)
    }

    fn range(&self, topic: &str, partition: i32) -> Result<(i64, i64), Error> {
        self.consumer
            .fetch_watermarks(topic, partition, ANSWER_TIMEOUT)
            .map_err(|error| self.error(topic, "read", error))
    }

    fn first_since(
        &self,
        topic: &str,
        partitions_n: i32,
        time_ms: i64,
    ) -> Result<Vec<Option<i64>>, Error> {
        let mut times = TopicPartitionList::new();
        for partition in 0..partitions_n {
            times
                .add_partition_offset(topic, partition, Offset::Offset(time_ms))
                .map_err(|error| self.error(topic, "read", error))?;
        }
        let found = self
            .consumer
            .offsets_for_times(times, ANSWER_TIMEOUT)
            .map_err(|error| self.error(topic, "read", error))?;
        let mut offsets = Vec::new();
        for partition in 0..partitions_n {
            let element = found.find_partition(topic, partition);
            offsets.push(match element.map(|element| element.offset()) {
                Some(Offset::Offset(offset)) => Some(offset),
                _ => None,
            });
        }
        Ok(offsets)
    }
}

#[cfg(test)]
mod tests {
    use rdkafka::mocking::MockCluster;
    use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _};

    use super::*;

    #[test]
    fn a_record_in_any_partition_is_one_in_the_topic() {
        let cluster = MockCluster::new(1).unwrap();
        cluster.create_topic("t", 3, 1).unwrap();
        let servers = cluster.bootstrap_servers();
        let access = serde_json::from_value(serde_json::json!({"bootstrapServers": servers}));
        let lookup = Lookup::open(&access.unwrap(), None).unwrap();
        assert!(!holds_records(&lookup, "t").unwrap());

        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", &servers);
        let producer: BaseProducer = config.create().unwrap();
        let record = BaseRecord::<(), str>::to("t").payload("row").partition(2);
        producer.send(record).unwrap();
        producer.flush(ANSWER_TIMEOUT).unwrap();

        assert!(holds_records(&lookup, "t").unwrap());
    }
}
