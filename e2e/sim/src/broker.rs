//! A broker with transactions, as far as exactly-once output depends on it.
//!
//! Owns: fences, open transactions, markers, and ends of transactions that are under way after their
//! producer has given them up. Like brokers without the newest defence it takes an end for that of
//! whatever transaction its producer has open (X2). Decides nothing about intervals.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::rng::Rng;

/// One end of a transaction in so many goes wrong in each of the ways there are.
const TROUBLE_ONE_IN: u64 = 40;

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

#[derive(Debug, Default)]
struct Transaction {
    objects: Vec<String>,
    marker: Option<(i64, String)>,
}

/// See the module.
#[derive(Debug)]
pub struct Broker {
    rng: Rng,
    calm: Arc<AtomicBool>,
    epochs: BTreeMap<String, u64>,
    open: BTreeMap<String, Transaction>,
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
            markers: BTreeMap::new(),
            late: Vec::new(),
            visible: Vec::new(),
        }
    }

    /// Fences whoever began as this id before, and ends what that one has open.
    pub fn init(&mut self, id: &str) -> Producer {
        self.open.remove(id);
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

    /// Rows of a staged object are sent in the producer's transaction.
    pub fn send(&mut self, producer: &Producer, object: &str) -> Result<(), Fenced> {
        self.check(producer)?;
        let open = self.open.entry(producer.id.clone()).or_default();
        open.objects.push(object.to_owned());
        Ok(())
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

    /// The end of some transaction arrives that was given up. False: there is none.
    pub fn land(&mut self) -> bool {
        if self.late.is_empty() {
            return false;
        }
        let late = self.late.swap_remove(self.rng.pick(self.late.len()));
        let _refused = self.arrive(&late);
        true
    }

    fn arrive(&mut self, producer: &Producer) -> Result<(), Fenced> {
        self.check(producer)?;
        let ended = self.open.remove(&producer.id).unwrap_or_default();
        self.visible.extend(ended.objects);
        if let Some(marker) = ended.marker {
            self.markers.insert(producer.id.clone(), marker);
        }
        Ok(())
    }
}
