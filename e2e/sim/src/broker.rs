//! A broker with transactions, as far as exactly-once output depends on it.
//!
//! Owns: fences, open transactions, markers, and ends of transactions that are under way after their
//! producer has given them up. Like brokers without the newest defence it takes an end for that of
//! whatever transaction its producer has open (X2). A partition may miss one end of a producer's
//! transactions, and then takes the next one for that of both (X7). Decides nothing about intervals.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::rng::Rng;

/// One end of a transaction in so many goes wrong in each of the ways there are.
const TROUBLE_ONE_IN: u64 = 40;

/// One end in so many is missed by a partition.
const FORGOTTEN_ONE_IN: u64 = 8;

/// Partitions of the topic.
const PARTITIONS_N: i32 = 2;

/// Who began as a transactional id, and when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Producer {
    id: String,
    epoch: u64,
}

/// Another producer of this id has begun since.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fenced;

/// How the end of a transaction was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It is committed.
    Done,
    /// Nothing is known.
    None,
}

/// Partition -> offset.
pub type Offsets = BTreeMap<i32, i64>;

/// Rows of a staged object, in a partition.
#[derive(Debug)]
struct Lying {
    object: String,
    partition: i32,
    offset: i64,
}

#[derive(Debug, Default)]
struct Transaction {
    rows: Vec<Lying>,
    marker: Option<(i64, String)>,
}

/// Rows of a transaction whose end their partition has missed.
#[derive(Debug)]
struct Hanging {
    rows: Vec<Lying>,
    was_committed: bool,
}

/// See the module.
#[derive(Debug)]
pub struct Broker {
    rng: Rng,
    calm: Arc<AtomicBool>,
    epochs: BTreeMap<String, u64>,
    open: BTreeMap<String, Transaction>,
    hanging: BTreeMap<(String, i32), Hanging>,
    next_offsets: Offsets,
    /// Ends that partitions have missed.
    pub forgotten_n: u64,
    markers: BTreeMap<String, (i64, String)>,
    late: Vec<Producer>,
    /// Staged objects whose rows became visible, in order; taken by whoever looks.
    pub visible: Vec<String>,
}

impl Broker {
    /// A broker without a topic's rows. Until it is calm some answers are lost.
    pub fn new(rng: Rng, calm: Arc<AtomicBool>) -> Self {
        Self {
            rng,
            calm,
            epochs: BTreeMap::new(),
            open: BTreeMap::new(),
            hanging: BTreeMap::new(),
            next_offsets: Offsets::new(),
            forgotten_n: 0,
            markers: BTreeMap::new(),
            late: Vec::new(),
            visible: Vec::new(),
        }
    }

    /// Fences whoever began as this id before, and ends what that one has open.
    pub fn init(&mut self, id: &str) -> Producer {
        let open = self.open.remove(id).unwrap_or_default();
        for ((partition, rows), is_missed) in self.by_partition(id, open.rows) {
            if is_missed {
                self.hang(id, partition, rows, false);
            }
        }
        let epoch = self.epochs.entry(id.to_owned()).or_default();
        *epoch += 1;
        Producer {
            id: id.to_owned(),
            epoch: *epoch,
        }
    }

    /// Offset and metadata that the group of this name has committed.
    pub fn marker(&self, id: &str) -> Option<(i64, &str)> {
        let marker = self.markers.get(id);
        marker.map(|(offset, metadata)| (*offset, metadata.as_str()))
    }

    /// The group's offsets are forgotten: nothing was committed for as long as they are kept (X3).
    pub fn forget_markers(&mut self) {
        self.markers.clear();
    }

    fn check(&self, producer: &Producer) -> Result<(), Fenced> {
        match self.epochs.get(&producer.id) {
            Some(epoch) if *epoch == producer.epoch => Ok(()),
            _ => Err(Fenced),
        }
    }

    /// Rows of a staged object are sent in the producer's transaction. Returns where they lie.
    pub fn send(&mut self, producer: &Producer, object: &str) -> Result<(i32, i64), Fenced> {
        self.check(producer)?;
        let sum: i32 = object.bytes().map(i32::from).sum();
        let partition = sum % PARTITIONS_N;
        let next = self.next_offsets.entry(partition).or_default();
        let offset = *next;
        *next += 1;
        let open = self.open.entry(producer.id.clone()).or_default();
        open.rows.push(Lying {
            object: object.to_owned(),
            partition,
            offset,
        });
        Ok((partition, offset))
    }

    /// The producer aborts its transaction: the partitions that it has sent rows to forget whatever of
    /// that producer has no end there.
    pub fn abort(&mut self, producer: &Producer) -> Result<(), Fenced> {
        self.check(producer)?;
        let ended = self.open.remove(&producer.id).unwrap_or_default();
        for row in ended.rows {
            let hanging = self.hanging.remove(&(producer.id.clone(), row.partition));
            assert!(
                !hanging.is_some_and(|it| it.was_committed),
                "committed rows of {} are aborted in partition {} (X7)",
                producer.id,
                row.partition
            );
        }
        Ok(())
    }

    /// Partitions in which some transaction is open, with the offset that it begins at.
    pub fn open_partitions(&self) -> Offsets {
        let hanging = self.hanging.values().flat_map(|it| &it.rows);
        let open = self.open.values().flat_map(|it| &it.rows);
        let mut begins = Offsets::new();
        for row in hanging.chain(open) {
            let begin = begins.entry(row.partition).or_insert(row.offset);
            *begin = row.offset.min(*begin);
        }
        begins
    }

    /// The marker is sent in the producer's transaction.
    pub fn mark(
        &mut self,
        producer: &Producer,
        offset: i64,
        metadata: String,
    ) -> Result<(), Fenced> {
        self.check(producer)?;
        let open = self.open.entry(producer.id.clone()).or_default();
        open.marker = Some((offset, metadata));
        Ok(())
    }

    /// The producer commits its transaction.
    pub fn commit(&mut self, producer: &Producer) -> Result<Answer, Fenced> {
        let calm = self.calm.load(Ordering::Relaxed);
        let trouble = if calm {
            TROUBLE_ONE_IN
        } else {
            self.rng.below(TROUBLE_ONE_IN)
        };
        match trouble {
            // It arrives, the answer does not.
            0 => {
                let _hidden = self.arrive(producer);
                Ok(Answer::None)
            }
            // It is lost.
            1 => Ok(Answer::None),
            // It arrives when it is told to.
            2 => {
                self.late.push(producer.clone());
                Ok(Answer::None)
            }
            _ => self.arrive(producer).map(|()| Answer::Done),
        }
    }

    /// The end of some transaction arrives that was given up, or that a partition has missed. False: there
    /// is none.
    pub fn land(&mut self) -> bool {
        if !self.late.is_empty() {
            let late = self.late.swap_remove(self.rng.pick(self.late.len()));
            let _refused = self.arrive(&late);
            return true;
        }
        let mut hanging = self.hanging.iter();
        let committed = hanging.find(|(_, hanging)| hanging.was_committed);
        let Some((place, _)) = committed.map(|(place, it)| (place.clone(), it)) else {
            return false;
        };
        self.end_hanging(&place);
        true
    }

    fn arrive(&mut self, producer: &Producer) -> Result<(), Fenced> {
        self.check(producer)?;
        let id = &producer.id;
        let ended = self.open.remove(id).unwrap_or_default();
        for ((partition, rows), is_missed) in self.by_partition(id, ended.rows) {
            // Hidden rows that are committed count as visible: readers wait in front of them.
            self.visible
                .extend(rows.iter().map(|row| row.object.clone()));
            if is_missed {
                self.hang(id, partition, rows, true);
            } else {
                self.end_hanging(&(id.clone(), partition));
            }
        }
        if let Some(marker) = ended.marker {
            self.markers.insert(producer.id.clone(), marker);
        }
        Ok(())
    }

    /// A partition gets a commit: all that it holds of the producer without an end becomes visible.
    fn end_hanging(&mut self, place: &(String, i32)) {
        let hanging = self.hanging.remove(place);
        let rows = hanging
            .into_iter()
            .filter(|it| !it.was_committed)
            .flat_map(|it| it.rows);
        self.visible.extend(rows.map(|row| row.object));
    }

    /// The rows of a transaction by partition, and whether that one misses the end. Of one producer a
    /// partition misses one at most: what to do about two of them nobody could tell (ADR 0008).
    fn by_partition(&mut self, id: &str, rows: Vec<Lying>) -> Vec<((i32, Vec<Lying>), bool)> {
        let mut by_partition: BTreeMap<i32, Vec<Lying>> = BTreeMap::new();
        for row in rows {
            by_partition.entry(row.partition).or_default().push(row);
        }
        let calm = self.calm.load(Ordering::Relaxed);
        let mut missed = BTreeSet::new();
        for partition in by_partition.keys() {
            let has_missed = self.hanging.contains_key(&(id.to_owned(), *partition));
            if !calm && !has_missed && self.rng.one_in(FORGOTTEN_ONE_IN) {
                missed.insert(*partition);
            }
        }
        let pairs = by_partition.into_iter();
        pairs
            .map(|(partition, rows)| ((partition, rows), missed.contains(&partition)))
            .collect()
    }

    fn hang(&mut self, id: &str, partition: i32, rows: Vec<Lying>, was_committed: bool) {
        self.forgotten_n += 1;
        let hanging = Hanging {
            rows,
            was_committed,
        };
        self.hanging.insert((id.to_owned(), partition), hanging);
    }
}
