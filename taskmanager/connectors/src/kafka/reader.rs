//! Reading partitions.
//!
//! Owns: one consumer per subtask with a queue per partition, batches of one partition at a time, the
//! ends of bounded partitions, what is idle, and new partitions. Start at: [`KafkaReader`].
//!
//! The consumer never joins a group: partitions are assigned at the offsets of the checkpoint. What
//! the network does is no failure of the task: a broker that is away is *trouble*, told to people,
//! and its partitions hold the watermark (T2). What would lose or double rows is an error.

use std::collections::{BTreeSet, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow::array::UInt64Array;
use async_trait::async_trait;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::{Message, Offset, TopicPartitionList};
use streamforge_core::manifest::{SplitProgress, SplitState};
use streamforge_engine::batch::{BATCH_ROWS, BadRows, Origin};
use streamforge_engine::error::Error;
use streamforge_engine::source::{Health, SourceBatch, SourceEvent, SourceReader};
use tokio::sync::Notify;
use xxhash_rust::xxh3::xxh3_64;

use super::check::{Checked, Error as CheckError};
use super::client::{Context, Ear};
use super::config::{SourceConfig, cannot_open};
use super::layout::{Kept, Layout};
use super::lookup::LookupPlace;
use super::records::{DecodedRecords, Records};
use super::split::Description;
use crate::error::failed;
use crate::formats::decoder::TextFormat;
use question::{Answer, Question, Questions};
use split::OpenSplit;

pub mod question;
pub mod split;

#[cfg(test)]
mod tests;

/// Bytes of values in one batch at most, so that a batch of long records stays small.
const BATCH_BYTES: usize = 1 << 20;

/// How long a reader without records waits before it says so.
const PATIENCE: Duration = Duration::from_millis(5);

/// The same for one that has said so before.
const LONG_PATIENCE: Duration = Duration::from_millis(20);

/// How often callbacks are served while records flow.
const SERVE_EVERY: Duration = Duration::from_millis(20);

/// Callbacks served at once: statistics, errors and log lines.
const SERVED_MAX: usize = 64;

/// How often brokers are asked for new partitions and for the identity of topics.
const LOOK_EVERY: Duration = Duration::from_secs(10);

/// How often positions are told to the group, for people and their tools.
const COMMIT_EVERY: Duration = Duration::from_secs(5);

/// What a Kafka source is told.
#[derive(Clone, Debug)]
pub struct KafkaSourceSpec {
    /// The node's name, for people.
    pub node: String,
    /// `kafka:`
    pub config: SourceConfig,
    /// How values are written.
    pub format: TextFormat,
    /// The columns.
    pub layout: Layout,
    /// Whether rows carry their origin.
    pub origin: bool,
    /// Folder of secrets.
    pub secrets: Option<PathBuf>,
}

/// Which of the readers of a source this is.
#[derive(Clone, Debug, Default)]
pub struct KafkaPlace {
    /// Its subtask.
    pub subtask: u32,
    /// How many there are.
    pub parallelism: u32,
    /// Every split that the restored manifest knows, of all readers.
    pub known: Vec<SplitState>,
    /// Its group, which nobody joins: positions are told to it for people. None: they are not told.
    pub group: Option<String>,
}

/// Reads the partitions of one subtask.
pub struct KafkaReader {
    spec: KafkaSourceSpec,
    place: KafkaPlace,
    /// Dropped before the consumer whose queues they are.
    splits: Vec<OpenSplit>,
    consumer: Option<Arc<BaseConsumer<Context>>>,
    ear: Arc<Ear>,
    wake: Arc<Notify>,
    questions: Questions,
    /// Splits that wait to be checked, with their offsets.
    unchecked: Vec<(Description, i64)>,
    seen: BTreeSet<String>,
    said: VecDeque<SourceEvent>,
    records: Option<Records>,
    kept: Kept,
    /// The split that is asked next.
    turn: usize,
    served: Instant,
    looked: Instant,
    committed: Instant,
    trouble: Option<String>,
    read_n: u64,
    all_n: u64,
    was_quiet: bool,
}

impl std::fmt::Debug for KafkaReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KafkaReader")
            .field("node", &self.spec.node)
            .field("subtask", &self.place.subtask)
            .finish_non_exhaustive()
    }
}

impl KafkaReader {
    /// A reader without splits; asks nobody yet.
    pub fn new(spec: KafkaSourceSpec, place: KafkaPlace) -> Self {
        let seen = place
            .known
            .iter()
            .map(|split| split.split.0.clone())
            .collect();
        let lookup = LookupPlace {
            access: spec.config.access.clone(),
            secrets: spec.secrets.clone(),
        };
        let now = Instant::now();
        KafkaReader {
            questions: Questions::new(lookup, spec.config.clone()),
            spec,
            place,
            splits: Vec::new(),
            consumer: None,
            ear: Arc::default(),
            wake: Arc::default(),
            unchecked: Vec::new(),
            seen,
            said: VecDeque::new(),
            records: None,
            kept: Kept::default(),
            turn: 0,
            served: now,
            looked: now,
            committed: now,
            trouble: None,
            read_n: 0,
            all_n: 0,
            was_quiet: false,
        }
    }

    fn is_bounded(&self) -> bool {
        self.spec.config.end_at.is_some()
    }

    fn action(&self) -> String {
        format!("read {}", self.spec.node)
    }

    fn check_failed(&self, error: CheckError) -> Error {
        match error {
            CheckError::Client(error) => error,
            error => failed(self.action(), error.may_pass(), error),
        }
    }

    /// People are told once when something goes wrong and once when it is over.
    fn set_trouble(&mut self, trouble: Option<String>) {
        let node = &self.spec.node;
        match (&self.trouble, &trouble) {
            (None, Some(trouble)) => tracing::warn!(node, trouble, "kafka source waits"),
            (Some(_), None) => tracing::info!(node, "kafka source goes on"),
            // The same, in newer words.
            (Some(_), Some(_)) | (None, None) => {}
        }
        self.trouble = trouble;
    }

    /// Begins to read splits that were found to be what they should be.
    fn open(&mut self, checked: Vec<Checked>) -> Result<(), Error> {
        let consumer = match &self.consumer {
            Some(consumer) => Arc::clone(consumer),
            None => {
                let group = self.place.group.as_deref().unwrap_or("streamforge-reader");
                let n = self.place.known.len().max(checked.len());
                let access = &self.spec.config.access;
                let config = access.reader(group, n, self.spec.secrets.as_deref())?;
                let context = Context {
                    ear: Arc::clone(&self.ear),
                };
                let consumer: BaseConsumer<Context> = config
                    .create_with_context(context)
                    .map_err(|error| cannot_open("a reader of kafka", error))?;
                Arc::clone(self.consumer.insert(Arc::new(consumer)))
            }
        };
        let mut assigned = TopicPartitionList::new();
        for split in checked {
            if split.skipped > 0 {
                let (id, skipped, offset) = (split.description.id(), split.skipped, split.offset);
                tracing::warn!(split = %id, skipped, offset, "offsets were deleted before they were read");
            }
            let Description {
                topic, partition, ..
            } = &split.description;
            assigned
                .add_partition_offset(topic, *partition, Offset::Offset(split.offset))
                .map_err(|error| failed(self.action(), false, error))?;
            // Its own queue first: once it is assigned, records come.
            let queue = consumer.split_partition_queue(topic, *partition);
            let Some(mut queue) = queue else {
                let reason = KafkaError::MetadataFetch(RDKafkaErrorCode::UnknownPartition);
                return Err(failed(self.action(), true, reason));
            };
            let wake = Arc::clone(&self.wake);
            queue.set_nonempty_callback(move || wake.notify_one());
            self.splits
                .push(OpenSplit::new(split.description, split.offset, queue));
        }
        consumer
            .incremental_assign(&assigned)
            .map_err(|error| failed(self.action(), true, error))
    }

    /// Serves callbacks, answers and what is due.
    fn serve(&mut self) -> Result<(), Error> {
        self.served = Instant::now();
        if let Some(answer) = self.questions.take() {
            self.on_answer(answer)?;
        }
        if !self.unchecked.is_empty() {
            let splits = self.unchecked.clone();
            self.questions.ask(Question::Check(splits));
        } else if !self.is_bounded() && self.looked.elapsed() >= LOOK_EVERY {
            self.looked = Instant::now();
            let known = self.seen.clone();
            self.questions.ask(Question::Look(known));
        }
        let Some(consumer) = self.consumer.clone() else {
            return Ok(());
        };
        for _ in 0..SERVED_MAX {
            // Its errors have been told to the callbacks.
            let _ = consumer.poll(Duration::ZERO);
        }
        if self.ear.take_new_ids() {
            self.check_ids_told()?;
        }
        if let Some(places) = self.ear.take_places() {
            for split in &mut self.splits {
                split.on_place(&places);
            }
            let trouble = self.splits.iter().find_map(OpenSplit::trouble);
            let reason = self.ear.take_trouble().map(|trouble| trouble.reason);
            let trouble = trouble.map(|text| match reason {
                Some(reason) => format!("{text} ({reason})"),
                None => text,
            });
            self.set_trouble(trouble);
        }
        self.commit(&consumer);
        Ok(())
    }

    fn on_answer(&mut self, answer: Answer) -> Result<(), Error> {
        match answer {
            Answer::Checked(Ok(checked)) => {
                self.set_trouble(None);
                let ids: Vec<_> = checked.iter().map(|it| it.description.id()).collect();
                self.unchecked
                    .retain(|(split, _)| !ids.contains(&split.id()));
                self.open(checked)
            }
            Answer::Checked(Err(error)) if error.may_pass() => {
                self.set_trouble(Some(error.to_string()));
                Ok(())
            }
            Answer::Checked(Err(error)) => Err(self.check_failed(error)),
            Answer::Looked(Ok(found)) => {
                for (description, facts) in self.splits.iter().filter_map(|split| {
                    let facts = found.topics.get(&split.description.topic)?;
                    Some((&split.description, facts))
                }) {
                    super::check::check_identity(description, description.start, facts)
                        .map_err(|error| self.check_failed(error))?;
                }
                self.discover(found.partitions);
                Ok(())
            }
            // The consumer itself says what is wrong with brokers; a topic that is gone says so twice.
            Answer::Looked(Err(error)) if error.may_pass() => Ok(()),
            Answer::Looked(Err(error)) => {
                if self.questions.failed_in_a_row() > 1 {
                    return Err(self.check_failed(error.into()));
                }
                self.looked = Instant::now()
                    .checked_sub(LOOK_EVERY / 2)
                    .unwrap_or(self.looked);
                Ok(())
            }
        }
    }

    /// KF-K1 while running: the client saw another identity of a topic it reads.
    fn check_ids_told(&self) -> Result<(), Error> {
        for split in &self.splits {
            let now = self.ear.topic_ids(&split.description.topic).pop();
            let facts = super::lookup::TopicFacts {
                partitions_n: i32::MAX,
                id: now,
            };
            super::check::check_identity(&split.description, split.position, &facts)
                .map_err(|error| self.check_failed(error))?;
        }
        Ok(())
    }

    /// New partitions belong to the reader that the hash of their name says, and are read from their
    /// begin: nothing of them was there before.
    fn discover(&mut self, partitions: Vec<Description>) {
        let parallelism = u64::from(self.place.parallelism.max(1));
        for description in partitions {
            let id = description.id();
            let owner = xxh3_64(id.0.as_bytes()) % parallelism;
            if owner == u64::from(self.place.subtask) && self.seen.insert(id.0.clone()) {
                tracing::info!(split = %id, "new partition");
                self.said
                    .push_back(SourceEvent::Discovered(description.at(description.start)));
                let start = description.start;
                self.unchecked.push((description, start));
            }
        }
    }

    /// Tells positions to the group. They are for people; nothing ever reads them back (KF-K14).
    fn commit(&mut self, consumer: &BaseConsumer<Context>) {
        if self.place.group.is_none() || self.committed.elapsed() < COMMIT_EVERY {
            return;
        }
        self.committed = Instant::now();
        let mut positions = TopicPartitionList::new();
        for split in self.splits.iter_mut().filter(|split| split.has_moved()) {
            let Description {
                topic, partition, ..
            } = &split.description;
            let offset = Offset::Offset(split.position);
            let _ = positions.add_partition_offset(topic, *partition, offset);
            split.told = split.position;
        }
        if positions.count() > 0
            && let Err(error) = consumer.commit(&positions, CommitMode::Async)
        {
            tracing::debug!(%error, "positions could not be told to the group");
        }
    }

    /// Rows of the split whose turn it is, or of the next that has some.
    fn read(&mut self) -> Result<Option<SourceEvent>, Error> {
        for _ in 0..self.splits.len() {
            let idx = self.turn % self.splits.len().max(1);
            self.turn = idx + 1;
            if let Some(event) = self.read_split(idx)? {
                return Ok(Some(event));
            }
        }
        Ok(None)
    }

    fn read_split(&mut self, idx: usize) -> Result<Option<SourceEvent>, Error> {
        let Some(split) = self.splits.get_mut(idx) else {
            return Ok(None);
        };
        let records = match &mut self.records {
            Some(records) => records,
            None => {
                let columns = &self.spec.layout.columns;
                let records = Records::new(&self.spec.format, columns)
                    .map_err(|error| failed(format!("read {}", self.spec.node), false, error))?;
                self.records.insert(records)
            }
        };
        self.kept.clear();
        let (mut out_of_range, mut passed) = (false, false);
        while records.len() < BATCH_ROWS && records.bytes() < BATCH_BYTES && !split.is_at_end() {
            match split.queue.poll(Duration::ZERO) {
                None => {
                    passed = split.on_drained();
                    break;
                }
                Some(Ok(message)) => {
                    let (offset, written) = (message.offset(), message.timestamp());
                    if split.takes(offset) {
                        records.push(offset, message.payload());
                        self.spec.layout.keep(&mut self.kept, &message);
                    }
                    drop(message);
                    split.on_record(offset, written.to_millis());
                }
                Some(Err(KafkaError::PartitionEOF(_))) => {}
                Some(Err(error)) => {
                    out_of_range |= split::means_out_of_range(&error);
                    split.on_error(&error);
                }
            }
        }
        if out_of_range {
            let split = self.splits.swap_remove(idx);
            self.reopen(split)?;
            return Ok(None);
        }
        let ended = split.is_at_end();
        // Without a row the position moves, too: control records may be deleted like others.
        if !records.is_empty() || passed {
            let batch = self.batch(idx)?;
            if ended {
                self.end(idx)?;
            }
            return Ok(Some(SourceEvent::Batch(batch)));
        }
        if ended {
            self.end(idx)?;
            return Ok(self.said.pop_front());
        }
        Ok(None)
    }

    /// The split's offset is not there: it is asked about as at a restore.
    fn reopen(&mut self, split: OpenSplit) -> Result<(), Error> {
        let (description, position) = (split.description.clone(), split.position);
        drop(split);
        self.unassign(&description)?;
        self.unchecked.push((description, position));
        Ok(())
    }

    fn end(&mut self, idx: usize) -> Result<(), Error> {
        let split = self.splits.swap_remove(idx);
        let description = split.description.clone();
        self.said
            .push_back(SourceEvent::SplitEnded(split.id.clone()));
        drop(split);
        self.unassign(&description)
    }

    fn unassign(&self, description: &Description) -> Result<(), Error> {
        let mut gone = TopicPartitionList::new();
        gone.add_partition(&description.topic, description.partition);
        match &self.consumer {
            Some(consumer) => consumer
                .incremental_unassign(&gone)
                .map_err(|error| failed(self.action(), true, error)),
            None => Ok(()),
        }
    }

    fn batch(&mut self, idx: usize) -> Result<SourceBatch, Error> {
        let action = self.action();
        let arrow = |error| failed(action.clone(), false, error);
        let (Some(split), Some(records)) = (self.splits.get(idx), &mut self.records) else {
            return Err(crate::error::refused(action, "rows without a split"));
        };
        let DecodedRecords {
            decoded,
            records,
            bad: bad_records,
        } = records.decode().map_err(arrow)?;
        let Description {
            topic, partition, ..
        } = &split.description;
        let rows = self
            .spec
            .layout
            .output(&decoded, &records, &self.kept, (topic, *partition))
            .map_err(arrow)?;
        let mut bad = BadRows::default();
        let bad_n = bad_records.len() as u64;
        for record in bad_records {
            let position = format!("{partition}:{}", record.offset);
            let origin = Some((&split.topic, position));
            bad.push(record.raw.as_deref(), record.reason, origin, None);
        }
        self.read_n += records.len() as u64 + bad_n;
        let unsigned = |n: i64| u64::try_from(n).unwrap_or(0);
        let origin = self.spec.origin.then(|| Origin {
            source: Arc::clone(&split.topic),
            row: UInt64Array::from(vec![unsigned(i64::from(*partition)); records.len()]),
            offset: UInt64Array::from_iter_values(
                records
                    .iter()
                    .map(|record| unsigned(self.kept.offset(*record))),
            ),
        });
        Ok(SourceBatch {
            split: split.id.clone(),
            rows,
            origin,
            bad,
            bad_n,
            unknown_fields: decoded.unknown_fields,
            progress: SplitProgress::At(split.position.to_string()),
        })
    }
}

#[async_trait]
impl SourceReader for KafkaReader {
    async fn assign(&mut self, splits: Vec<SplitState>) -> Result<(), Error> {
        for state in splits {
            let (description, offset) =
                Description::open(&state).map_err(|error| failed(self.action(), false, error))?;
            self.seen.insert(state.split.0.clone());
            let Some(offset) = offset else { continue };
            if let Some(end) = description.end {
                let offsets = |n: i64| u64::try_from(n).unwrap_or(0);
                self.all_n += offsets(end - description.start);
                self.read_n += offsets(offset - description.start);
                if offset >= end {
                    self.said.push_back(SourceEvent::SplitEnded(state.split));
                    continue;
                }
            }
            self.unchecked.push((description, offset));
        }
        Ok(())
    }

    async fn next(&mut self) -> Result<SourceEvent, Error> {
        if let Some(event) = self.said.pop_front() {
            return Ok(event);
        }
        if self.served.elapsed() >= SERVE_EVERY || self.consumer.is_none() {
            self.serve()?;
        }
        if let Some(event) = self.read()? {
            self.was_quiet = false;
            return Ok(event);
        }
        if self.splits.is_empty() && self.unchecked.is_empty() && self.is_bounded() {
            return Ok(SourceEvent::Ended);
        }
        for split in self.splits.iter().filter(|split| split.has_nothing_more()) {
            self.said
                .push_back(SourceEvent::NothingNew(split.id.clone()));
        }
        // The first pause is short, so that rows held for efficiency go on soon.
        let patience = if self.was_quiet {
            LONG_PATIENCE
        } else {
            PATIENCE
        };
        let woken = tokio::time::timeout(patience, self.wake.notified()).await;
        if woken.is_ok()
            && let Some(event) = self.read()?
        {
            self.was_quiet = false;
            return Ok(event);
        }
        self.was_quiet = true;
        Ok(SourceEvent::Quiet)
    }

    fn read_units(&self) -> (u64, u64) {
        // Offsets of control records are passed without a row.
        (self.read_n.min(self.all_n.max(self.read_n)), self.all_n)
    }

    fn health(&self) -> Health {
        let lags = self.splits.iter().map(OpenSplit::lag);
        Health {
            trouble: self.trouble.clone(),
            lag_records: lags.sum::<Option<u64>>(),
            // A split that has nothing more is not behind.
            read_up_to_ms: self
                .splits
                .iter()
                .filter(|split| split.lag() != Some(0))
                .filter_map(|split| split.written_ms)
                .min(),
        }
    }
}
