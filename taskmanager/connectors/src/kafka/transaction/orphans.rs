//! Rows and markers that a predecessor left in a transaction that its coordinator has forgotten.
//!
//! Owns: finding the partitions where that may be so, and ending it before anything is committed.
//! The rule and its reasons: docs/adr/0008. Start at: [`open_partitions`], [`SlotProducer::end_orphans`].
//!
//! Invariant X7: nothing is committed to a partition in which rows of this producer may lie that were
//! to be aborted. A commit would make them visible: partitions know transactions by the producer's id
//! alone.

use std::collections::BTreeMap;
use std::time::Instant;

use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::producer::Producer;
use rdkafka::{Offset, TopicPartitionList};

use super::{Error, READ_TIMEOUT, SlotPlace, SlotProducer, Stage, Watch};
use crate::kafka::client::Context;
use crate::kafka::config::cannot_open;
use crate::kafka::marker::{Author, Marker};
use crate::kafka::staged::Record;
use streamforge_core::ids::CheckpointId;

/// Partitions of the topic in which some transaction is open, with the offset it begins at, asked
/// after the fence: of ours, only one that nobody will end. Others' transactions are open at times,
/// too; to suspect those costs little.
pub(super) fn open_partitions(
    place: &SlotPlace,
    stable: &BaseConsumer<Context>,
) -> Result<BTreeMap<i32, i64>, Error> {
    let all: BaseConsumer<Context> = place
        .access
        .lookup(place.secrets.as_deref())
        .map_err(Error::Client)?
        .create_with_context(Context::default())
        .map_err(|error| Error::Client(cannot_open("a client of kafka", error)))?;
    // The high watermarks first: whatever is open below them now holds the stable end back.
    let high = ends(place, &all)?;
    let stable = ends(place, stable)?;
    let pairs = (0..).zip(high.into_iter().zip(stable));
    let is_open = |(partition, (high, stable))| (stable < high).then_some((partition, stable));
    let found: BTreeMap<i32, i64> = pairs.filter_map(is_open).collect();
    if !found.is_empty() {
        tracing::info!(id = place.id, topic = place.topic, partitions = ?found, "transactions are open");
    }
    Ok(found)
}

/// The end of each partition as this client's isolation sees it.
fn ends(place: &SlotPlace, client: &BaseConsumer<Context>) -> Result<Vec<i64>, Error> {
    let failed = |error| place.error("look for open transactions", error);
    let mut wanted = TopicPartitionList::new();
    for partition in 0..place.partitions_n {
        wanted
            .add_partition_offset(&place.topic, partition, Offset::End)
            .map_err(failed)?;
    }
    let found = client
        .offsets_for_times(wanted, READ_TIMEOUT)
        .map_err(failed)?;
    let mut ends = Vec::new();
    for partition in 0..place.partitions_n {
        let element = found.find_partition(&place.topic, partition);
        let unknown =
            || KafkaError::OffsetFetch(rdkafka::types::RDKafkaErrorCode::UnknownPartition);
        let element = element.ok_or_else(|| failed(unknown()))?;
        element.error().map_err(failed)?;
        match element.offset() {
            Offset::Offset(end) => ends.push(end),
            _ => return Err(failed(unknown())),
        }
    }
    Ok(ends)
}

impl SlotProducer {
    /// X7: an aborted transaction with one of these records on each suspected partition that they go
    /// to. Its end is the end of whatever the producer's id has open there, and our first record shuts
    /// the partition to everything that is older and still under way.
    pub(super) fn end_orphans(
        &mut self,
        records: &[Record<'_>],
        watch: &dyn Watch,
    ) -> Result<(), Error> {
        let mut first = Vec::new();
        for record in records {
            if self.suspects.is_empty() {
                break;
            }
            if self.suspects.remove(&record.partition) {
                first.push(*record);
            }
        }
        if first.is_empty() {
            return Ok(());
        }
        let (place, patience) = (&self.place, self.place.access.transaction_timeout());
        let (began, disturbances_n) = (Instant::now(), self.ear.disturbances_n());
        self.producer
            .begin_transaction()
            .map_err(|error| place.error("begin a transaction", error))?;
        for record in first {
            self.send(record, began, patience)?;
        }
        // A partition is part of the transaction, and gets its end, once it has taken a record.
        self.drain(began, patience)?;
        self.ear.take_delivered();
        self.producer
            .abort_transaction(patience)
            .map_err(|error| place.error("end what was left open", error))?;
        self.check_end_came_once(disturbances_n)?;
        watch.reached(Stage::OrphansEnded);
        Ok(())
    }

    /// X2: an abort that is still under way somewhere would abort the rows that follow it.
    fn check_end_came_once(&self, disturbances_n_before: u64) -> Result<(), Error> {
        self.hear();
        if self.ear.disturbances_n() == disturbances_n_before {
            return Ok(());
        }
        let broke = KafkaError::Global(RDKafkaErrorCode::BrokerTransportFailure);
        Err(self.place.error("end what was left open", broke))
    }

    /// The same for the group: a marker that was written and neither committed nor aborted hides the
    /// one before it.
    pub(super) fn end_orphaned_marker(&self) -> Result<(), Error> {
        let (place, patience) = (&self.place, self.place.access.transaction_timeout());
        let disturbances_n = self.ear.disturbances_n();
        self.producer
            .begin_transaction()
            .map_err(|error| place.error("begin a transaction", error))?;
        self.send_marker(
            Marker::after(CheckpointId::ZERO, Author::default()),
            &self.ends,
        )?;
        self.producer
            .abort_transaction(patience)
            .map_err(|error| place.error("end what was left open", error))?;
        self.check_end_came_once(disturbances_n)
    }
}
