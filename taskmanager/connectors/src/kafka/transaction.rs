//! One slot's producer: short transactions that carry the slot's marker.
//!
//! Owns: the order of calls that keeps a transaction from being lost or doubled, and when a producer
//! is thrown away. All calls block. Decides nothing about intervals: see [`super::marker`].
//!
//! Invariant X2: first `init_transactions`, which fences whoever published before and ends an open
//! transaction, *then* the marker is read: read before, it would block or be old. After any answer
//! that is not definite, and after a commit during which a connection broke or a request timed out,
//! the producer is never used again: a delayed end of one transaction may hit the next.

pub mod ends;
mod orphans;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};
use rdkafka::{Offset, TopicPartitionList};
use streamforge_engine::error::Error as EngineError;

use super::client::{Context, Ear, listen};
use super::config::{ANSWER_TIMEOUT, Access, cannot_open};
use super::marker::{Marker, NoMarker};
use super::staged::Record;
use ends::Ends;

/// The output topic's partition under which a slot's group keeps its marker. Every topic has it.
const MARKER_PARTITION: i32 = 0;

/// How long the fence may take: the first transaction of a cluster makes an internal topic.
const INIT_TIMEOUT: Duration = Duration::from_secs(30);

/// How long reading a marker may take.
const READ_TIMEOUT: Duration = Duration::from_secs(15);

/// How long a marker may take before one is suspected that was neither committed nor aborted (X7):
/// brokers do not answer while there is such a one.
const HIDDEN_AFTER: Duration = Duration::from_secs(3);

/// How long handing over the marker may take.
const OFFSETS_TIMEOUT: Duration = Duration::from_secs(15);

/// How much longer than that it may take until it is known that there is no answer.
const OFFSETS_GRACE: Duration = Duration::from_secs(1);

/// How long giving a transaction up may take; a fence will do it otherwise.
const ABORT_TIMEOUT: Duration = Duration::from_secs(5);

/// How long what a client tells is listened to at most.
const HEAR_FOR: Duration = Duration::from_secs(1);

/// Records handed over between two looks at deliveries.
const SERVE_EVERY: usize = 1_000;

/// What failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Another producer of this id began, or our transaction outlived its timeout: it looks alike.
    #[error("{action}: fenced by another producer of {id}, or the transaction timed out")]
    Fenced {
        /// What was done.
        action: &'static str,
        /// The transactional id.
        id: String,
    },
    /// The broker's limit is lower.
    #[error(
        "begin to publish as {id}: transaction.timeout.ms is longer than the broker's \
         transaction.max.timeout.ms allows; lower it in `properties`"
    )]
    TimeoutTooLong {
        /// The transactional id.
        id: String,
    },
    /// The broker refused, for good until somebody changes something.
    #[error("{action} as {id}")]
    Refused {
        /// What was done.
        action: &'static str,
        /// The transactional id.
        id: String,
        /// Why.
        source: KafkaError,
    },
    /// No definite answer: what was asked may have happened.
    #[error("{action} as {id}: the outcome is not known")]
    Unknown {
        /// What was done.
        action: &'static str,
        /// The transactional id.
        id: String,
        /// What was said.
        source: KafkaError,
    },
    /// The group holds something else.
    #[error("read the marker of {id}")]
    Foreign {
        /// The transactional id.
        id: String,
        /// What it holds.
        source: NoMarker,
    },
    /// A client could not be made.
    #[error("open a producer of kafka")]
    Client(#[source] EngineError),
}

/// How to begin as a slot.
#[derive(Clone, Debug)]
pub struct SlotPlace {
    /// The cluster.
    pub access: Access,
    /// Folder of secrets.
    pub secrets: Option<PathBuf>,
    /// Transactional id and group.
    pub id: String,
    /// The output topic.
    pub topic: String,
    /// How many partitions it has.
    pub partitions_n: i32,
    /// Its `max.message.bytes`.
    pub message_bytes_max: usize,
}

/// A producer that has fenced everybody before it, and the marker it found.
pub struct SlotProducer {
    place: SlotPlace,
    /// Shared with a thread that may wait for a broker that does not come back.
    producer: Arc<BaseProducer<Context>>,
    ear: Arc<Ear>,
    /// Reads the marker and is the group in whose name it is written.
    group: BaseConsumer<Context>,
    marker: Option<Marker>,
    /// Where the rows before the marker end.
    ends: Ends,
    /// Partitions in which a predecessor's transaction may be open that was to be aborted (X7).
    suspects: BTreeSet<i32>,
    /// Partitions that had no leader, so that this is not known of them yet.
    unasked: BTreeSet<i32>,
    /// Broken connections when the producer was known to be sound.
    disturbances_n: u64,
}

impl std::fmt::Debug for SlotProducer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SlotProducer({})", self.place.id)
    }
}

/// Steps of a transaction, for tests that die between two of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// The fence holds, the marker is not read.
    Fenced,
    /// The marker is read.
    MarkerRead,
    /// What predecessors left open is ended; only where there was something.
    OrphansEnded,
    /// The transaction is open and empty.
    Begun,
    /// All rows are handed over.
    Sent,
    /// All rows are at the broker.
    Drained,
    /// The marker is handed over.
    MarkerSent,
    /// The transaction is committed, and nobody was told.
    Committed,
}

/// Called at every stage.
pub trait Watch {
    /// A stage is reached.
    fn reached(&self, stage: Stage);
}

/// Watches nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Unwatched;

impl Watch for Unwatched {
    fn reached(&self, _: Stage) {}
}

impl SlotPlace {
    fn error(&self, action: &'static str, source: KafkaError) -> Error {
        let id = self.id.clone();
        match source.rdkafka_error_code() {
            Some(
                RDKafkaErrorCode::Fenced
                | RDKafkaErrorCode::ProducerFenced
                | RDKafkaErrorCode::InvalidProducerEpoch,
            ) => Error::Fenced { action, id },
            Some(RDKafkaErrorCode::InvalidTransactionTimeout) => Error::TimeoutTooLong { id },
            Some(
                RDKafkaErrorCode::TopicAuthorizationFailed
                | RDKafkaErrorCode::GroupAuthorizationFailed
                | RDKafkaErrorCode::ClusterAuthorizationFailed
                | RDKafkaErrorCode::TransactionalIdAuthorizationFailed
                | RDKafkaErrorCode::MessageSizeTooLarge
                | RDKafkaErrorCode::InvalidMessageSize
                | RDKafkaErrorCode::InvalidRecord
                | RDKafkaErrorCode::UnknownTopicOrPartition
                | RDKafkaErrorCode::UnknownTopic
                | RDKafkaErrorCode::UnknownPartition
                | RDKafkaErrorCode::OffsetMetadataTooLarge,
            ) => Error::Refused { action, id, source },
            _ => Error::Unknown { action, id, source },
        }
    }

    /// Fences whoever published as this slot, then reads its marker.
    pub fn begin(&self, watch: &dyn Watch) -> Result<SlotProducer, Error> {
        let secrets = self.secrets.as_deref();
        let config = self
            .access
            .transactional_producer(&self.id, self.message_bytes_max, secrets);
        let context = Context::default();
        let ear = Arc::clone(&context.ear);
        let open = |error| Error::Client(cannot_open("a producer of kafka", error));
        let producer: BaseProducer<Context> = config
            .map_err(Error::Client)?
            .create_with_context(context)
            .map_err(open)?;
        self.connect(&producer);
        producer
            .init_transactions(INIT_TIMEOUT)
            .map_err(|error| self.error("begin to publish", error))?;
        watch.reached(Stage::Fenced);
        let group = self.group_client()?;
        let (asked, unasked) = orphans::partitions(self, &group)?;
        let open_partitions = orphans::open_partitions(self, &group, &asked)?;
        let mut begun = SlotProducer {
            place: self.clone(),
            producer: Arc::new(producer),
            ear,
            group,
            marker: None,
            ends: Ends::default(),
            suspects: BTreeSet::new(),
            unasked,
            disturbances_n: 0,
        };
        let found = match self.read_marker(&begun.group, HIDDEN_AFTER) {
            Err(Error::Unknown { .. }) => {
                begun.end_orphaned_marker()?;
                self.read_marker(&begun.group, READ_TIMEOUT)?
            }
            answer => answer?,
        };
        if let Some((marker, ends)) = found {
            (begun.marker, begun.ends) = (Some(marker), ends);
        }
        begun.suspects = begun.ends.not_committed(&open_partitions);
        watch.reached(Stage::MarkerRead);
        begun.hear();
        begun.disturbances_n = begun.ear.disturbances_n();
        Ok(begun)
    }

    /// A client that reads what is committed, in the name of the slot's group.
    fn group_client(&self) -> Result<BaseConsumer<Context>, Error> {
        let config = self.access.marker_reader(&self.id, self.secrets.as_deref());
        config
            .map_err(Error::Client)?
            .create_with_context(Context::default())
            .map_err(|error| Error::Client(cannot_open("a client of kafka", error)))
    }

    /// A producer that knows no broker yet looks for its coordinator again half a second later. Once it has
    /// asked anything, it knows one.
    fn connect(&self, producer: &BaseProducer<Context>) {
        let known = producer
            .client()
            .fetch_metadata(Some(&self.topic), ANSWER_TIMEOUT);
        if let Err(error) = known {
            // The fence will say what is wrong.
            tracing::debug!(id = self.id, %error, "no broker yet");
        }
    }

    /// The marker as it is without a fence, if it can be had soon: whoever wrote it has published
    /// already. One that is missing or old says nothing (X2).
    pub fn peek_marker(&self) -> Option<Marker> {
        let group = self.group_client().ok()?;
        let found = self.read_marker(&group, HIDDEN_AFTER).ok().flatten();
        found.map(|(marker, _)| marker)
    }

    fn read_marker(
        &self,
        group: &BaseConsumer<Context>,
        patience: Duration,
    ) -> Result<Option<(Marker, Ends)>, Error> {
        let mut wanted = TopicPartitionList::new();
        wanted.add_partition(&self.topic, MARKER_PARTITION);
        let found = group
            .committed_offsets(wanted, patience)
            .map_err(|error| self.error("read the marker", error))?;
        let Some(element) = found.find_partition(&self.topic, MARKER_PARTITION) else {
            return Ok(None);
        };
        element
            .error()
            .map_err(|error| self.error("read the marker", error))?;
        let Offset::Offset(offset) = element.offset() else {
            return Ok(None);
        };
        let id = self.id.clone();
        let marker = Marker::decode(offset, element.metadata())
            .map_err(|source| Error::Foreign { id, source })?;
        Ok(Some((marker, Ends::decode(element.metadata()))))
    }
}

impl SlotProducer {
    /// What this slot has published, by its marker.
    pub fn marker(&self) -> Option<Marker> {
        self.marker
    }

    /// Whether it may be used for another transaction: nothing happened since it began that could
    /// make an earlier answer doubtful (X2).
    pub fn is_sound(&self) -> bool {
        self.ear.disturbances_n() == self.disturbances_n
    }

    /// The same as an error, right after a transaction.
    pub fn check_sound(&self) -> Result<(), Error> {
        if self.is_sound() {
            return Ok(());
        }
        let broke = KafkaError::Global(RDKafkaErrorCode::BrokerTransportFailure);
        Err(self.place.error("end a transaction", broke))
    }

    /// Writes records and the marker in one transaction. After an error the producer is not to be
    /// used again.
    pub fn commit(
        &mut self,
        records: &[Record<'_>],
        marker: Marker,
        watch: &dyn Watch,
    ) -> Result<(), Error> {
        let committed = self
            .ask_late(records)
            .and_then(|()| self.end_orphans(records, watch))
            .and_then(|()| self.try_commit(records, marker, watch));
        match committed {
            Ok(ends) => {
                (self.marker, self.ends) = (Some(marker), ends);
                Ok(())
            }
            Err(error) => {
                // Readers would wait for the open transaction until its timeout.
                if matches!(error, Error::Refused { .. }) {
                    let _ = self.producer.abort_transaction(ABORT_TIMEOUT);
                }
                Err(error)
            }
        }
    }

    /// Returns where the slot's rows end then.
    fn try_commit(
        &self,
        records: &[Record<'_>],
        marker: Marker,
        watch: &dyn Watch,
    ) -> Result<Ends, Error> {
        let place = &self.place;
        let patience = place.access.transaction_timeout();
        let began = Instant::now();
        self.producer
            .begin_transaction()
            .map_err(|error| place.error("begin a transaction", error))?;
        watch.reached(Stage::Begun);
        for (idx, record) in records.iter().enumerate() {
            self.send(*record, began, patience)?;
            if idx % SERVE_EVERY == SERVE_EVERY - 1 {
                self.producer.poll(Duration::ZERO);
            }
        }
        watch.reached(Stage::Sent);
        self.drain(began, patience)?;
        let drained = began.elapsed();
        watch.reached(Stage::Drained);
        // Behind the rows: it says where they lie.
        let ends = self.ends.after(&self.ear.take_delivered());
        self.send_marker(marker, &ends)?;
        let marked = began.elapsed();
        watch.reached(Stage::MarkerSent);
        // Bounded by the transaction's own timeout: a slow coordinator is no failure.
        self.producer
            .commit_transaction(patience)
            .map_err(|error| place.error("commit a transaction", error))?;
        tracing::debug!(
            id = place.id,
            rows = records.len(),
            ?drained,
            ?marked,
            committed = ?began.elapsed(),
            "transaction"
        );
        watch.reached(Stage::Committed);
        self.hear();
        Ok(ends)
    }

    /// Takes in all that the client has to tell by now. A poll without patience takes one thing, and the
    /// broken connection may be behind it.
    fn hear(&self) {
        let began = Instant::now();
        while self.producer.in_flight_count() > 0 && began.elapsed() < HEAR_FOR {
            listen(&self.producer);
        }
    }

    fn send(&self, record: Record<'_>, began: Instant, patience: Duration) -> Result<(), Error> {
        let mut base: BaseRecord<'_, [u8], [u8]> =
            BaseRecord::to(&self.place.topic).partition(record.partition);
        base.key = record.key;
        base.payload = record.value;
        loop {
            match self.producer.send(base) {
                Ok(()) => return Ok(()),
                Err((KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull), back))
                    if began.elapsed() < patience =>
                {
                    base = back;
                    listen(&self.producer);
                }
                Err((error, _)) => return Err(self.place.error("write rows", error)),
            }
        }
    }

    fn send_marker(&self, marker: Marker, ends: &Ends) -> Result<(), Error> {
        let place = &self.place;
        let failed = |error| place.error("write the marker", error);
        let mut offsets = TopicPartitionList::new();
        {
            let mut element = offsets.add_partition(&place.topic, MARKER_PARTITION);
            let interval = i64::try_from(marker.interval.get()).unwrap_or(i64::MAX);
            element
                .set_offset(Offset::Offset(interval))
                .map_err(failed)?;
            element.set_metadata(format!("{marker}{}", ends.encode()));
        }
        let group = self.group.group_metadata().ok_or_else(|| {
            failed(KafkaError::ClientCreation(
                "a consumer without a group".to_owned(),
            ))
        })?;
        // librdkafka waits for the group's coordinator without a limit when that broker died before it
        // answered, whatever patience it is given. So the wait is left to a thread of its own.
        let (producer, (told, answer)) = (Arc::clone(&self.producer), mpsc::channel());
        let thread = std::thread::Builder::new().name("kafka-marker".to_owned());
        let started = thread.spawn(move || {
            let sent = producer.send_offsets_to_transaction(&offsets, &group, OFFSETS_TIMEOUT);
            // Nobody waits any more if it took too long.
            let _heard = told.send(sent);
        });
        let late = || KafkaError::Global(RDKafkaErrorCode::OperationTimedOut);
        match started {
            Ok(_) => answer
                .recv_timeout(OFFSETS_TIMEOUT + OFFSETS_GRACE)
                .unwrap_or_else(|_| Err(late()))
                .map_err(failed),
            Err(error) => Err(failed(KafkaError::ClientCreation(error.to_string()))),
        }
    }

    /// Waits until every record has its delivery report, and looks at them: a flush says Ok to a
    /// zombie.
    fn drain(&self, began: Instant, patience: Duration) -> Result<(), Error> {
        while self.producer.in_flight_count() > 0 {
            listen(&self.producer);
            if began.elapsed() > patience {
                let late = KafkaError::Flush(RDKafkaErrorCode::OperationTimedOut);
                return Err(self.place.error("write rows", late));
            }
        }
        match self.ear.take_failed_delivery() {
            None => Ok(()),
            Some(error) => Err(self.place.error("write rows", error)),
        }
    }
}
