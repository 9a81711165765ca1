//! What a client does in the background for one reader: fetches and statistics.
//!
//! Owns: how far each partition is fetched, what the last answer said of its end, and what the client has
//! to tell. Decides nothing about rows.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use streamforge_connectors::kafka::client::Ear;
use streamforge_connectors::kafka::edge::Instead;
use streamforge_connectors::kafka::statistics::{Place, Places};
use streamforge_core::ids::{Epoch, SubtaskIdx};

use super::partition::Partition;
use crate::rng::Rng;

/// A topic's name and a partition of it.
pub type Name = (String, i32);

/// Records that may lie unread in one queue.
const QUEUE_MAX: usize = 16;

/// Records of one answer.
const ANSWER_MAX: u64 = 6;

/// Time between two statistics: 250 ms by the clock of clients.
const STATISTICS_EVERY_MS: u64 = 12;

/// Where partitions are, and of which that is no older than the last return of their leader.
type Told = (Places, BTreeSet<Name>);

/// Statistics that wait to be served.
const PENDING_MAX: usize = 100;

/// A record in a queue.
#[derive(Clone, Debug)]
pub struct Fetched {
    pub(super) offset: i64,
    pub(super) value: Vec<u8>,
}

/// What the last answer said of a partition.
#[derive(Clone, Copy, Debug)]
struct Known {
    told_end: i64,
    stable: i64,
    high: i64,
}

impl Known {
    /// Before the first answer, in librdkafka's numbers.
    const NOTHING: Self = Self {
        told_end: -1001,
        stable: -1001,
        high: -1001,
    };
}

/// One partition as one reader's client fetches it.
#[derive(Debug)]
pub struct Fetch {
    at: i64,
    /// What was fetched and not taken.
    pub queue: VecDeque<Result<Fetched, Instead>>,
    known: Known,
    answers_n: u64,
    answered_ms: u64,
    due_ms: u64,
    is_stuck: bool,
}

impl Fetch {
    /// From this offset on.
    pub fn new(at: i64) -> Self {
        Self {
            at,
            queue: VecDeque::new(),
            known: Known::NOTHING,
            answers_n: 0,
            answered_ms: 0,
            due_ms: 0,
            is_stuck: false,
        }
    }

    /// An answer comes if it is time; says how many aborted records it passed.
    fn step(&mut self, it: &Partition, now_ms: u64, rng: &mut Rng) -> u64 {
        if self.is_stuck || now_ms < self.due_ms || self.queue.len() >= QUEUE_MAX {
            return 0;
        }
        let delayed = if rng.one_in(20) { rng.below(300) } else { 0 };
        self.due_ms = now_ms + 1 + rng.below(12) + delayed;
        if it.is_away(now_ms) {
            return 0;
        }
        self.answers_n += 1;
        self.answered_ms = now_ms;
        let (high, stable) = (it.end(), it.stable());
        if self.at < it.low || self.at > high {
            self.is_stuck = true;
            let text = format!("offset {} is out of range", self.at);
            self.queue.push_back(Err(Instead::OutOfRange(text)));
            return 0;
        }
        let mut left = rng.below(ANSWER_MAX);
        let mut aborted_n = 0;
        while left > 0 && self.at < stable {
            if let Some(value) = it.log.value(self.at) {
                left -= 1;
                self.queue.push_back(Ok(Fetched {
                    offset: self.at,
                    value: value.to_vec(),
                }));
            }
            aborted_n += u64::from(it.log.is_aborted(self.at));
            self.at += 1;
        }
        let told_end = if self.at == stable {
            self.at
        } else {
            self.known.told_end
        };
        self.known = Known {
            told_end,
            stable,
            high,
        };
        aborted_n
    }
}

/// The client of one reader.
#[derive(Debug)]
pub struct Client {
    /// Of which attempt.
    pub epoch: Epoch,
    /// Of which subtask.
    pub subtask: SubtaskIdx,
    /// What it reads.
    pub fetches: BTreeMap<Name, Fetch>,
    /// Where it tells the rest.
    pub ear: Arc<Ear>,
    pending: VecDeque<Told>,
    /// What was told last.
    told: Told,
    due_ms: u64,
}

impl Client {
    /// One that reads nothing.
    pub fn new(epoch: Epoch, subtask: SubtaskIdx) -> Self {
        Self {
            epoch,
            subtask,
            fetches: BTreeMap::new(),
            ear: Arc::default(),
            pending: VecDeque::new(),
            told: Told::default(),
            due_ms: 0,
        }
    }

    /// Fetches, and notes how far it is; says how many aborted records were passed.
    pub fn step(
        &mut self,
        partitions: &BTreeMap<Name, Partition>,
        now_ms: u64,
        rng: &mut Rng,
    ) -> u64 {
        let mut aborted_n = 0;
        for (name, fetch) in &mut self.fetches {
            if let Some(partition) = partitions.get(name) {
                aborted_n += fetch.step(partition, now_ms, rng);
            }
        }
        if now_ms >= self.due_ms {
            self.due_ms = now_ms + STATISTICS_EVERY_MS;
            let mut fresh = BTreeSet::new();
            let places = self.fetches.iter().filter_map(|(name, fetch)| {
                let partition = partitions.get(name)?;
                let (returns_n, returned_ms) = partition.returned(now_ms);
                if fetch.answered_ms >= returned_ms {
                    fresh.insert(name.clone());
                }
                let place = Place {
                    told_end: fetch.known.told_end,
                    stable: fetch.known.stable,
                    high: fetch.known.high,
                    low: partition.low,
                    leader_answers: partition.answers(now_ms),
                    leader_is_silent: !partition.answers(now_ms),
                    connection: (name.1, returns_n),
                    // The next one is under way.
                    fetches_n: fetch.answers_n + 1,
                };
                Some((name.clone(), place))
            });
            let places: Places = places.collect();
            self.pending.push_back((places, fresh));
            if self.pending.len() > PENDING_MAX {
                self.pending.pop_front();
            }
        }
        aborted_n
    }

    /// Tells the oldest of what it has to tell; the newest may be on its way still.
    pub fn serve(&mut self, rng: &mut Rng) {
        if self.pending.len() == 1 && rng.one_in(4) {
            return;
        }
        if let Some(places) = self.pending.pop_front() {
            self.ear.tell_places(places.0.clone());
            self.told = places;
        }
    }

    /// Whether records wait to be taken.
    pub fn has_records(&self) -> bool {
        self.fetches.values().any(|fetch| !fetch.queue.is_empty())
    }

    /// T2: whether the newest statistics that were served say that all up to this offset was fetched, that
    /// nothing is behind it, open transactions included, that the leader answers, and that it said so since it
    /// was away last.
    pub fn was_told_end(&self, name: &Name, offset: i64) -> bool {
        let (places, fresh) = &self.told;
        places.get(name).is_some_and(|place| {
            let ends = [place.told_end, place.stable, place.high];
            place.leader_answers && fresh.contains(name) && ends.iter().all(|end| *end == offset)
        })
    }
}
