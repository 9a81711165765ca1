//! Real brokers at the edge of a source, by librdkafka.
//!
//! Owns: a consumer with a queue per partition, threads for calls that block, and the machine's clock.
//! Decides nothing.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rdkafka::consumer::base_consumer::PartitionQueue;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{BorrowedMessage, Headers};
use rdkafka::{Message, Offset, TopicPartitionList};
use streamforge_engine::error::Error;
use tokio::sync::Notify;

use super::client::{Context, Ear};
use super::config::{Access, cannot_open};
use super::edge::{Consume, Edge, Instead, Queue, Record, Start};
use super::keep::close_beside;
use super::lookup::{Lookup, LookupPlace};
use crate::error::failed;

/// How a reader gets at its brokers.
#[derive(Clone)]
pub struct Brokers {
    node: String,
    access: Access,
    secrets: Option<PathBuf>,
    group: Option<String>,
    place: LookupPlace,
    wake: Arc<Notify>,
}

impl Brokers {
    /// For a node of this name that reads this cluster; `group` is told positions, for people.
    pub fn new(
        node: &str,
        access: Access,
        secrets: Option<PathBuf>,
        group: Option<String>,
    ) -> Self {
        Brokers {
            node: node.to_owned(),
            place: LookupPlace::new(access.clone(), secrets.clone()),
            access,
            secrets,
            group,
            wake: Arc::default(),
        }
    }
}

impl Edge for Brokers {
    type Asker = Lookup;
    type Consumer = Reading;

    fn now(&self) -> Instant {
        Instant::now()
    }

    fn spawn(&self, work: impl FnOnce() + Send + 'static) {
        tokio::task::spawn_blocking(work);
    }

    async fn wait(&self, patience: Duration) -> bool {
        let woken = tokio::time::timeout(patience, self.wake.notified());
        woken.await.is_ok()
    }

    fn credentials(&self) -> u64 {
        self.access.credentials(self.secrets.as_deref())
    }

    fn asker(&self) -> Result<Lookup, Error> {
        self.place.open()
    }

    fn consumer(&self, partitions_n: usize) -> Result<Reading, Error> {
        let group = self.group.as_deref().unwrap_or("streamforge-reader");
        let secrets = self.secrets.as_deref();
        let config = self.access.reader(group, partitions_n, secrets)?;
        let context = Context::default();
        let ear = Arc::clone(&context.ear);
        let consumer = config
            .create_with_context(context)
            .map_err(|error| cannot_open("a reader of kafka", error))?;
        Ok(Reading {
            action: format!("read {}", self.node),
            consumer: Arc::new(consumer),
            ear,
            wake: Arc::clone(&self.wake),
        })
    }

    fn close(&self, consumer: Arc<Reading>) {
        close_beside(consumer);
    }
}

/// A consumer of librdkafka.
pub struct Reading {
    action: String,
    consumer: Arc<BaseConsumer<Context>>,
    ear: Arc<Ear>,
    wake: Arc<Notify>,
}

impl Reading {
    fn failed(&self, retry: bool, error: KafkaError) -> Error {
        failed(self.action.clone(), retry, error)
    }
}

impl Consume for Reading {
    type Queue = PartitionQueue<Context>;

    fn assign(&self, at: &[Start]) -> Result<Vec<Self::Queue>, Error> {
        let mut queues = Vec::with_capacity(at.len());
        let mut assigned = TopicPartitionList::new();
        for start in at {
            let (topic, partition) = (start.topic.as_str(), start.partition);
            assigned
                .add_partition_offset(topic, partition, Offset::Offset(start.offset))
                .map_err(|error| self.failed(false, error))?;
            // Its own queue first: once it is assigned, records come.
            let queue = self.consumer.split_partition_queue(topic, partition);
            let Some(mut queue) = queue else {
                let reason = KafkaError::MetadataFetch(RDKafkaErrorCode::UnknownPartition);
                return Err(self.failed(true, reason));
            };
            let wake = Arc::clone(&self.wake);
            queue.set_nonempty_callback(move || wake.notify_one());
            queues.push(queue);
        }
        self.consumer
            .incremental_assign(&assigned)
            .map_err(|error| self.failed(true, error))?;
        Ok(queues)
    }

    fn unassign(&self, topic: &str, partition: i32) -> Result<(), Error> {
        let mut gone = TopicPartitionList::new();
        gone.add_partition(topic, partition);
        self.consumer
            .incremental_unassign(&gone)
            .map_err(|error| self.failed(true, error))
    }

    fn serve(&self) {
        // Its errors have been told to the callbacks.
        let _ = self.consumer.poll(Duration::ZERO);
    }

    fn ear(&self) -> &Ear {
        &self.ear
    }

    fn tell(&self, positions: &[Start]) {
        if positions.is_empty() {
            return;
        }
        let mut list = TopicPartitionList::new();
        for at in positions {
            let offset = Offset::Offset(at.offset);
            let _ = list.add_partition_offset(&at.topic, at.partition, offset);
        }
        if let Err(error) = self.consumer.commit(&list, CommitMode::Async) {
            tracing::debug!(%error, "positions could not be told to the group");
        }
    }
}

impl Queue for PartitionQueue<Context> {
    type Record<'a> = BorrowedMessage<'a>;

    #[inline]
    fn take(&self) -> Option<Result<BorrowedMessage<'_>, Instead>> {
        let taken = self.poll(Duration::ZERO)?;
        Some(taken.map_err(|error| instead(&error)))
    }
}

fn instead(error: &KafkaError) -> Instead {
    if let KafkaError::PartitionEOF(_) = error {
        return Instead::End;
    }
    match error.rdkafka_error_code() {
        Some(RDKafkaErrorCode::AutoOffsetReset | RDKafkaErrorCode::OffsetOutOfRange) => {
            Instead::OutOfRange(error.to_string())
        }
        _ => Instead::Trouble(error.to_string()),
    }
}

impl Record for BorrowedMessage<'_> {
    #[inline]
    fn offset(&self) -> i64 {
        Message::offset(self)
    }

    #[inline]
    fn written_ms(&self) -> Option<i64> {
        self.timestamp().to_millis()
    }

    fn key(&self) -> Option<&[u8]> {
        Message::key(self)
    }

    #[inline]
    fn value(&self) -> Option<&[u8]> {
        self.payload()
    }

    fn headers(&self) -> Vec<(String, Option<Vec<u8>>)> {
        let headers = Message::headers(self).map(|headers| {
            let header = |header: rdkafka::message::Header<'_, &[u8]>| {
                (header.key.to_owned(), header.value.map(<[u8]>::to_vec))
            };
            headers.iter().map(header).collect()
        });
        headers.unwrap_or_default()
    }
}
