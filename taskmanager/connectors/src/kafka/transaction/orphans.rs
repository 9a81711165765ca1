//! Rows and markers that a predecessor left in a transaction that its coordinator has forgotten.
//!
//! Owns: finding the partitions where that may be so, and ending it before anything is committed.
//! The rule and its reasons: docs/adr/0008. Start at: [`open_partitions`], [`SlotProducer::end_orphans`].
//!
//! Invariant X7: nothing is committed to a partition in which rows of this producer may lie that were
//! to be aborted. A commit would make them visible: partitions know transactions by the producer's id
//! alone.

use std::collections::{BTreeMap, BTreeSet};
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

/// The partitions that can be asked now, and those that have no leader: these are asked before anything is
/// written to them. To suspect them all would be wrong: where the end of a committed transaction is missing
/// an abort would take its rows away.
pub(super) fn partitions(
    place: &SlotPlace,
    client: &BaseConsumer<Context>,
) -> Result<(Vec<i32>, BTreeSet<i32>), Error> {
    let known = client
        .fetch_metadata(Some(&place.topic), READ_TIMEOUT)
        .map_err(|error| place.error("look for open transactions", error))?;
    let found = known.topics().iter().flat_map(|topic| topic.partitions());
    let led: BTreeSet<i32> = found
        .filter(|it| it.leader() >= 0)
        .map(|it| it.id())
        .collect();
    let (asked, leaderless): (Vec<i32>, Vec<i32>) =
        (0..place.partitions_n).partition(|partition| led.contains(partition));
    if !leaderless.is_empty() {
        tracing::warn!(id = place.id, topic = place.topic, partitions = ?leaderless, "no leader");
    }
    Ok((asked, leaderless.into_iter().collect()))
}

/// Those of these partitions in which some transaction is open, with the offset it begins at, asked
/// after the fence: of ours, only one that nobody will end. Others' transactions are open at times,
/// too; to suspect those costs little.
pub(super) fn open_partitions(
    place: &SlotPlace,
    stable: &BaseConsumer<Context>,
    partitions: &[i32],
) -> Result<BTreeMap<i32, i64>, Error> {
    if partitions.is_empty() {
        return Ok(BTreeMap::new());
    }
    let all: BaseConsumer<Context> = place
        .access
        .lookup(place.secrets.as_deref())
        .map_err(Error::Client)?
        .create_with_context(Context::default())
        .map_err(|error| Error::Client(cannot_open("a client of kafka", error)))?;
    // The high watermarks first: whatever is open below them now holds the stable end back.
    let high = ends(place, &all, partitions)?;
    let stable = ends(place, stable, partitions)?;
    let pairs = partitions.iter().zip(high.into_iter().zip(stable));
    let is_open = |(partition, (high, stable)): (&i32, (i64, i64))| {
        (stable < high).then_some((*partition, stable))
    };
    let found: BTreeMap<i32, i64> = pairs.filter_map(is_open).collect();
    if !found.is_empty() {
        let since = |(partition, offset)| format!("{partition} from offset {offset}");
        let partitions = found.iter().map(since).collect::<Vec<_>>().join(", ");
        tracing::info!(
            id = place.id,
            topic = place.topic,
            partitions,
            "transactions are open"
        );
    }
    Ok(found)
}

/// The end of each partition as this client's isolation sees it.
fn ends(
    place: &SlotPlace,
    client: &BaseConsumer<Context>,
    partitions: &[i32],
) -> Result<Vec<i64>, Error> {
    let failed = |error| place.error("look for open transactions", error);
    let mut wanted = TopicPartitionList::new();
    for partition in partitions {
        wanted
            .add_partition_offset(&place.topic, *partition, Offset::End)
            .map_err(failed)?;
    }
    let found = client
        .offsets_for_times(wanted, READ_TIMEOUT)
        .map_err(failed)?;
    let mut ends = Vec::new();
    for partition in partitions {
        let element = found.find_partition(&place.topic, *partition);
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
    /// Asks about partitions that had no leader before, if these records go to them.
    pub(super) fn ask_late(&mut self, records: &[Record<'_>]) -> Result<(), Error> {
        let is_late = |record: &&Record<'_>| self.unasked.contains(&record.partition);
        let late: BTreeSet<i32> = records
            .iter()
            .filter(is_late)
            .map(|it| it.partition)
            .collect();
        if late.is_empty() {
            return Ok(());
        }
        let late: Vec<i32> = late.into_iter().collect();
        // The group's client has learned that nobody leads them.
        let stable = self.place.group_client()?;
        let open = open_partitions(&self.place, &stable, &late)?;
        self.suspects.extend(self.ends.not_committed(&open));
        self.unasked.retain(|partition| !late.contains(partition));
        Ok(())
    }

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

#[cfg(test)]
mod tests {
    use rdkafka::mocking::MockCluster;

    use super::super::Unwatched;
    use super::*;

    /// What nobody leads now is asked before something is written to it, and keeps nothing else waiting.
    #[test]
    fn x7_a_partition_without_a_leader_is_asked_when_rows_go_to_it() {
        let cluster = MockCluster::new(1).unwrap();
        cluster.create_topic("t", 2, 1).unwrap();
        cluster.partition_leader("t", 1, None).unwrap();
        let access = serde_json::from_value(serde_json::json!({
            "bootstrapServers": cluster.bootstrap_servers(),
        }));
        let place = SlotPlace {
            access: access.unwrap(),
            secrets: None,
            id: "slot".to_owned(),
            topic: "t".to_owned(),
            partitions_n: 2,
            message_bytes_max: 1 << 20,
        };
        let record = |partition| Record {
            partition,
            key: None,
            value: Some(b"v"),
        };
        let marker = |n| Marker::after(CheckpointId::from_stored(n), Author::default());

        let mut producer = place.begin(&Unwatched).unwrap();
        producer
            .commit(&[record(0)], marker(1), &Unwatched)
            .unwrap();
        assert_eq!(producer.unasked, BTreeSet::from([1]));
        cluster.partition_leader("t", 1, Some(1)).unwrap();
        producer
            .commit(&[record(0), record(1)], marker(2), &Unwatched)
            .unwrap();

        assert_eq!(producer.unasked, BTreeSet::new());
        assert_eq!(producer.marker(), Some(marker(2)));
    }
}
