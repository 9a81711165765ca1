//! Brokers that the real Kafka reader reads from: topics that are written to while the job runs.
//!
//! Owns: which partitions there are and how much is written to each, who is away, what clients have fetched
//! and which questions are under way; all of it from one seed. Transactions are open for a while and hide
//! what is behind them; some are aborted. Checks by panicking: a partition has one reader of an epoch (O4),
//! and a reader that calls a partition idle was told so (T2). Start at: [`Kafka::step`]; the reader's side
//! is [`edge`].
//!
//! A source without an end would keep its last windows open. So each partition has a *last word*, a record
//! far in the future, which is written when a manifest has all that is in front of it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use streamforge_connectors::kafka::config::SourceConfig;
use streamforge_connectors::kafka::enumerator::list_all;
use streamforge_connectors::kafka::lookup::Error as LookupError;
use streamforge_connectors::kafka::split::Description;
use streamforge_core::ids::{Epoch, SplitId, SubtaskIdx};
use streamforge_core::manifest::{Manifest, SplitProgress, SplitState};

use crate::input::Input;
use crate::job::DISORDER;
use crate::rng::Rng;
use edge::{SimAsker, SimEdge};
use fetch::{Client, Name};
use partition::Partition;
use silence::Silences;

pub mod edge;
pub mod fetch;
pub mod log;
pub mod partition;
pub mod silence;

/// One question in so many is not answered.
const UNANSWERED_ONE_IN: u64 = 25;

/// One question in so many is forgotten by whoever asks it.
const FORGOTTEN_ONE_IN: u64 = 30;

/// One step in so many something is written at least, once nothing goes wrong any more.
const CALM_PACE: u64 = 4;

/// One step in so many brings a new partition.
const PARTITION_ONE_IN: u64 = 400;

/// One step in so many somebody goes away.
const AWAY_ONE_IN: u64 = 900;

/// What is done beside a reader, and when.
type Work = (u64, Box<dyn FnOnce() + Send>);

/// One topic.
#[derive(Clone, Debug)]
struct Topic {
    id: String,
    partitions_n: i32,
}

/// Numbers of what happened.
#[derive(Clone, Copy, Debug, Default)]
pub struct KafkaTotals {
    /// Partitions that appeared while the job ran.
    pub added_n: u64,
    /// Times that a leader, or all of them, went away.
    pub away_n: u64,
    /// Times that a partition was silent long enough to be idle.
    pub silences_n: u64,
    /// Aborted records that readers passed.
    pub aborted_n: u64,
}

struct State {
    rng: Rng,
    calm: Arc<AtomicBool>,
    now_ms: u64,
    /// Questions are not answered before.
    asleep_until_ms: u64,
    topics: BTreeMap<String, Topic>,
    partitions: BTreeMap<Name, Partition>,
    clients: BTreeMap<u64, Client>,
    readers_n: u64,
    work: Vec<Work>,
    /// One step in so many something is written.
    pace: u64,
    /// Nobody writes any more.
    is_closed: bool,
    /// The last word of each partition may be written.
    has_last_words: bool,
    /// They are read.
    is_over: bool,
    /// The source ends at what is written at its start.
    is_bounded: bool,
    /// The highest event time that is written.
    latest: i64,
    silences: Silences,
    totals: KafkaTotals,
    /// For people who replay a seed.
    news: Vec<String>,
}

/// See the module. Clones are the same brokers.
#[derive(Clone)]
pub struct Kafka {
    state: Arc<Mutex<State>>,
    base: Instant,
}

fn unreachable() -> LookupError {
    LookupError::Unreachable {
        servers: "sim".to_owned(),
        reason: "no answer".to_owned(),
    }
}

fn name_of(split: &SplitId) -> Option<Name> {
    let (topic, partition) = split.0.rsplit_once('/')?;
    Some((topic.to_owned(), partition.parse().ok()?))
}

/// How far a split is read.
fn offset_of(state: &SplitState) -> i64 {
    let (description, offset) = Description::open(state).expect("a stored split is understood");
    let end = match state.progress {
        SplitProgress::End => description.end,
        SplitProgress::At(_) => offset,
    };
    end.unwrap_or(i64::MAX)
}

impl Kafka {
    /// Brokers for what a job reads; some of it is written.
    pub fn new(input: &Input, is_bounded: bool, mut rng: Rng, calm: &Arc<AtomicBool>) -> Self {
        let mut topics: BTreeMap<String, Topic> = BTreeMap::new();
        let mut partitions = BTreeMap::new();
        for split in &input.splits {
            let (Some(log), Some(name)) = (&split.log, name_of(&split.split)) else {
                continue;
            };
            let topic = topics.entry(name.0.clone()).or_insert_with(|| Topic {
                id: format!("{}-1", name.0),
                partitions_n: 0,
            });
            topic.partitions_n += 1;
            partitions.insert(name, Partition::new(Arc::clone(log)));
        }
        for topic in topics.values_mut() {
            let planned = usize::try_from(topic.partitions_n).unwrap_or(1);
            topic.partitions_n = 1 + i32::try_from(rng.pick(planned)).unwrap_or(0);
        }
        let mut state = State {
            pace: 1 + rng.below(15),
            rng,
            calm: Arc::clone(calm),
            now_ms: 0,
            asleep_until_ms: 0,
            topics,
            partitions,
            clients: BTreeMap::new(),
            readers_n: 0,
            work: Vec::new(),
            is_closed: false,
            has_last_words: false,
            is_over: false,
            is_bounded,
            latest: i64::MIN,
            silences: Silences::default(),
            totals: KafkaTotals::default(),
            news: Vec::new(),
        };
        let written_n = state.rng.below(if is_bounded { 300 } else { 30 });
        for _ in 0..written_n {
            state.write();
        }
        for partition in state.partitions.values_mut() {
            partition.silent_until_ms = 0;
        }
        Self {
            state: Arc::new(Mutex::new(state)),
            base: Instant::now(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The same topics for a job that begins with a savepoint of the first: nothing that it has read is
    /// missing.
    pub fn for_another(&self, savepoint: &Manifest, rng: Rng, calm: &Arc<AtomicBool>) -> Self {
        let mut first = self.lock();
        let mut partitions: BTreeMap<Name, Partition> = BTreeMap::new();
        for (name, partition) in &first.partitions {
            partitions.insert(name.clone(), Partition::new(Arc::clone(&partition.log)));
        }
        for state in savepoint.sources.values().flatten() {
            let name = name_of(&state.split).expect("a partition");
            if let Some(partition) = partitions.get_mut(&name) {
                let read = offset_of(state) - partition.log.first;
                partition.written_n = usize::try_from(read).unwrap_or(0);
            }
        }
        let latest = partitions.values().filter_map(Partition::latest).max();
        let state = State {
            rng,
            calm: Arc::clone(calm),
            now_ms: 0,
            asleep_until_ms: 0,
            topics: first.topics.clone(),
            partitions,
            clients: BTreeMap::new(),
            readers_n: 0,
            work: Vec::new(),
            pace: first.pace,
            is_closed: false,
            has_last_words: false,
            is_over: false,
            is_bounded: first.is_bounded,
            latest: latest.unwrap_or(i64::MIN),
            silences: std::mem::take(&mut first.silences),
            totals: KafkaTotals::default(),
            news: Vec::new(),
        };
        Self {
            state: Arc::new(Mutex::new(state)),
            base: self.base,
        }
    }

    /// Something happens here, perhaps; says what, for people.
    pub fn step(&self, now_ms: u64) -> Vec<String> {
        let mut state = self.lock();
        state.now_ms = now_ms;
        state.stir();
        state.fetch();
        let due = state.due_work();
        let news = std::mem::take(&mut state.news);
        drop(state);
        if let Some(work) = due {
            work();
        }
        news
    }

    /// Questions that are under way are not answered any more.
    pub fn forget_work(&self) {
        let work = std::mem::take(&mut self.lock().work);
        drop(work);
    }

    /// What happened.
    pub fn totals(&self) -> KafkaTotals {
        self.lock().totals
    }

    /// What a first start finds.
    pub fn list(&self, config: &SourceConfig) -> Result<Vec<SplitState>, LookupError> {
        list_all(config, &SimAsker(self.clone()), None)
    }

    /// For one more reader.
    pub fn edge(&self, (epoch, subtask): (Epoch, SubtaskIdx)) -> SimEdge {
        let mut state = self.lock();
        state.readers_n += 1;
        SimEdge {
            kafka: self.clone(),
            id: state.readers_n,
            epoch,
            subtask,
        }
    }

    /// T2: a reader says that there is nothing at this offset.
    pub fn check_nothing(&self, reader: u64, split: &SplitId, offset: i64) {
        let state = self.lock();
        let name = name_of(split).expect("a partition");
        let client = state.clients.get(&reader);
        assert!(
            client.is_some_and(|client| client.was_told_end(&name, offset)),
            "{split} has nothing at {offset}, says its reader, and was not told so (T2)"
        );
    }

    /// A partition was silent for as long as it takes.
    pub fn on_silence(&self, split: &SplitId, offset: i64) {
        let mut state = self.lock();
        let is_new = state.silences.begin(split.clone(), offset);
        state.totals.silences_n += u64::from(is_new);
        if is_new {
            state.news.push(format!("{split} is silent at {offset}"));
        }
    }

    /// Rows from this offset on are taken.
    pub fn on_taken(&self, split: &SplitId, offset: i64) {
        let mut state = self.lock();
        let watermark = state.latest.saturating_sub(DISORDER);
        state.silences.on_taken(split, offset, watermark);
    }

    /// For which watermark the row at this offset may be late at most; none: for no one.
    pub fn excuse(&self, split: &SplitId, offset: i64) -> Option<i64> {
        self.lock().silences.excuse(split, offset)
    }

    /// A head names this manifest: if it has all, the last words may be written.
    pub fn on_named(&self, manifest: &Manifest) {
        let mut state = self.lock();
        state.has_last_words |= !state.is_bounded && state.is_read(manifest, false);
        state.is_over = state.has_last_words && state.is_read(manifest, true);
    }

    /// Whether the newest manifest has everything, the last words included.
    pub fn is_over(&self) -> bool {
        self.lock().is_over
    }

    /// Whether somebody reads this partition.
    pub fn is_fetched(&self, split: &SplitId) -> bool {
        let (state, name) = (self.lock(), name_of(split));
        let mut clients = state.clients.values();
        name.is_some_and(|name| clients.any(|it| it.fetches.contains_key(&name)))
    }

    /// A partition is not written to before that time, and no transaction is open in it.
    pub fn silence(&self, topic: &str, partition: i32, until_ms: u64) {
        let mut state = self.lock();
        if let Some(found) = state.partitions.get_mut(&(topic.to_owned(), partition)) {
            while found.stable() < found.end() {
                found.written_n += 1;
            }
            found.silent_until_ms = until_ms;
            let latest = found.latest();
            state.latest = state.latest.max(latest.unwrap_or(i64::MIN));
        }
    }

    /// A topic is deleted and made anew.
    pub fn recreate(&self, topic: &str) {
        if let Some(found) = self.lock().topics.get_mut(topic) {
            found.id += "-again";
        }
    }

    /// Retention deletes all that is written.
    pub fn delete_all(&self) {
        let mut state = self.lock();
        state.is_closed = true;
        for partition in state.partitions.values_mut() {
            partition.low = partition.end();
        }
    }

    /// An unclean election: the newest leader never had what was written last.
    pub fn cut_all(&self) {
        let mut state = self.lock();
        state.is_closed = true;
        for partition in state.partitions.values_mut() {
            partition.written_n = 0;
        }
    }
}

impl State {
    fn is_calm(&self) -> bool {
        self.calm.load(Ordering::Relaxed)
    }

    /// Whether a question is answered now.
    fn answers(&mut self) -> Result<(), LookupError> {
        let calm = self.is_calm();
        let fails = !calm && self.rng.one_in(UNANSWERED_ONE_IN);
        if fails || self.now_ms < self.asleep_until_ms {
            return Err(unreachable());
        }
        Ok(())
    }

    fn later(&mut self, work: Box<dyn FnOnce() + Send>) {
        if !self.is_calm() && self.rng.one_in(FORGOTTEN_ONE_IN) {
            return;
        }
        let due_ms = self.now_ms + self.rng.below(40);
        self.work.push((due_ms, work));
    }

    fn due_work(&mut self) -> Option<Box<dyn FnOnce() + Send>> {
        let now_ms = self.now_ms;
        let due = self.work.iter().position(|(due_ms, _)| *due_ms <= now_ms);
        due.map(|idx| self.work.swap_remove(idx).1)
    }

    /// Names of the partitions there are.
    fn names(&self) -> Vec<Name> {
        let there = |(topic, partition): &&Name| {
            let topic = self.topics.get(topic);
            topic.is_some_and(|topic| *partition < topic.partitions_n)
        };
        self.partitions.keys().filter(there).cloned().collect()
    }

    fn stir(&mut self) {
        let calm = self.is_calm();
        let pace = if calm {
            self.pace.min(CALM_PACE)
        } else {
            self.pace
        };
        if !self.is_closed && self.rng.one_in(pace) {
            self.write();
        }
        let one_in = PARTITION_ONE_IN / if calm { 3 } else { 1 };
        if !self.is_bounded && self.rng.one_in(one_in) {
            self.add_partition();
        }
        if !calm && self.rng.one_in(AWAY_ONE_IN) {
            self.go_away();
        }
    }

    fn write(&mut self) {
        let names = self.names();
        let name = names.get(self.rng.pick(names.len()));
        let found = name.and_then(|name| self.partitions.get_mut(name));
        let Some(partition) = found else {
            return;
        };
        let limit = partition.log.len(self.has_last_words);
        let limit = limit.max(partition.written_n);
        let latest = partition.write(self.now_ms, limit, &mut self.rng);
        self.latest = self.latest.max(latest.unwrap_or(i64::MIN));
    }

    /// A topic gets another partition, if there is to be one.
    fn add_partition(&mut self) {
        let missing = |(name, _): &(&Name, &Partition)| {
            let topic = self.topics.get(&name.0);
            topic.is_some_and(|topic| topic.partitions_n == name.1)
        };
        let missing = self.partitions.iter().find(missing);
        let Some((name, first)) = missing.map(|(name, it)| (name.clone(), it.log.first)) else {
            return;
        };
        if let Some(topic) = self.topics.get_mut(&name.0) {
            topic.partitions_n += 1;
        }
        self.totals.added_n += 1;
        // Nobody knows it yet, and so it holds nothing.
        let split = SplitId(format!("{}/{}", name.0, name.1));
        self.news.push(format!("partition {split} appears"));
        self.silences.begin(split, first);
    }

    /// One leader, or all of them and whoever answers questions.
    fn go_away(&mut self) {
        self.totals.away_n += 1;
        self.news.push("a leader goes away".to_owned());
        let until_ms = self.now_ms + self.rng.below(800);
        let all = self.rng.one_in(3);
        let one = self.rng.pick(self.partitions.len());
        for (idx, partition) in self.partitions.values_mut().enumerate() {
            if all || idx == one {
                partition.leave(self.now_ms, until_ms);
            }
        }
        if all {
            self.asleep_until_ms = until_ms;
        }
    }

    fn fetch(&mut self) {
        let ids: Vec<u64> = self.clients.keys().copied().collect();
        let now_ms = self.now_ms;
        ids.into_iter().for_each(|id| self.fetch_for(id, now_ms));
    }

    fn fetch_for(&mut self, id: u64, now_ms: u64) {
        if let Some(client) = self.clients.get_mut(&id) {
            let aborted_n = client.step(&self.partitions, now_ms, &mut self.rng);
            self.totals.aborted_n += aborted_n;
        }
    }

    /// O4: of one epoch a partition has one reader.
    fn check_one_owner(&self, reader: u64, name: &Name) {
        let Some(ours) = self.clients.get(&reader) else {
            return;
        };
        for (id, other) in &self.clients {
            let shares = *id != reader && other.epoch == ours.epoch;
            assert!(
                !shares || !other.fetches.contains_key(name),
                "partition {name:?} is read by subtasks {} and {} of epoch {} (O4)",
                other.subtask.0,
                ours.subtask.0,
                ours.epoch
            );
        }
    }

    fn is_read(&self, manifest: &Manifest, with_last_words: bool) -> bool {
        let states = manifest.sources.values().flatten();
        let read: BTreeMap<Name, i64> = states
            .filter_map(|state| Some((name_of(&state.split)?, offset_of(state))))
            .collect();
        self.partitions.iter().all(|(name, partition)| {
            let end = partition.log.end_of(partition.log.len(with_last_words));
            read.get(name).is_some_and(|offset| *offset >= end)
        })
    }
}
