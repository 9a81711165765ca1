//! Reading partitions.
//!
//! Owns: one consumer per subtask with a queue per partition, batches of one partition at a time, the
//! ends of bounded partitions, what is idle, and new partitions. Clients, threads and the clock are at the
//! [`Edge`]. Start at: [`KafkaReader`].
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
use streamforge_core::ids::SplitId;
use streamforge_core::manifest::{SplitProgress, SplitState};
use streamforge_engine::batch::{BATCH_ROWS, BadRows, Origin};
use streamforge_engine::error::Error;
use streamforge_engine::source::{Health, SourceBatch, SourceEvent, SourceReader};

use super::brokers::Brokers;
use super::check::{Checked, Error as CheckError};
use super::config::SourceConfig;
use super::edge::{Consume, Edge, Instead, Queue, Record, Start};
use super::layout::{Kept, Layout};
use super::records::{DecodedRecords, Records};
use super::split::Description;
use crate::error::failed;
use crate::formats::decoder::TextFormat;
use question::{Question, Questions};
use split::OpenSplit;
use trouble::{Lasting, Trouble};

mod answers;
pub mod question;
pub mod split;
pub mod trouble;

#[cfg(test)]
mod tests;

/// Bytes of values in one batch at most, so that a batch of long records stays small.
const BATCH_BYTES: usize = 1 << 20;

/// How long a reader without records waits before it says so.
const PATIENCE: Duration = Duration::from_millis(5);

/// The same for one that has said so before.
const LONG_PATIENCE: Duration = Duration::from_millis(20);

/// How often it is said of a partition that it has nothing more, while others have: a task takes a pause of
/// two seconds for one in which nobody asked (T2).
const SAY_EVERY: Duration = Duration::from_millis(100);

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

/// What a reader takes records from.
type QueueOf<E> = <<E as Edge>::Consumer as Consume>::Queue;

/// Reads the partitions of one subtask.
pub struct KafkaReader<E: Edge = Brokers> {
    spec: KafkaSourceSpec,
    place: KafkaPlace,
    /// Dropped before the consumer whose queues they are.
    splits: Vec<OpenSplit<QueueOf<E>>>,
    consumer: Option<Arc<E::Consumer>>,
    /// Partitions of all readers of the source, as far as they are known.
    partitions_n: usize,
    /// What they were when the client was made, which holds so much of each unread.
    shares_n: usize,
    /// What the client is made of; an older state of it at worst.
    credentials: u64,
    edge: E,
    questions: Questions<E>,
    /// Splits that wait to be checked, with their offsets.
    unchecked: Vec<(Description, i64)>,
    /// Why nothing was answered about them.
    unanswered: Option<String>,
    seen: BTreeSet<String>,
    said: VecDeque<SourceEvent>,
    records: Option<Records>,
    kept: Kept,
    /// The split that is asked next.
    turn: usize,
    served: Instant,
    looked: Instant,
    committed: Instant,
    trouble: Option<Trouble>,
    lasting: Lasting,
    /// What the client said of it last.
    reason: Option<String>,
    /// Offsets that were deleted before they were read.
    skipped_n: u64,
    read_n: u64,
    all_n: u64,
    was_quiet: bool,
    /// Rows of one batch.
    rows_max: usize,
}

impl<E: Edge> std::fmt::Debug for KafkaReader<E> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "KafkaReader({}#{})", self.spec.node, self.place.subtask)
    }
}

impl KafkaReader {
    /// A reader of real brokers without splits; asks nobody yet.
    pub fn new(spec: KafkaSourceSpec, place: KafkaPlace) -> Self {
        let (access, secrets) = (spec.config.access.clone(), spec.secrets.clone());
        let brokers = Brokers::new(&spec.node, access, secrets, place.group.clone());
        Self::at(brokers, spec, place)
    }
}

impl<E: Edge> KafkaReader<E> {
    /// A reader without splits; asks nobody yet.
    pub fn at(edge: E, spec: KafkaSourceSpec, place: KafkaPlace) -> Self {
        let seen = place
            .known
            .iter()
            .map(|split| split.split.0.clone())
            .collect();
        let now = edge.now();
        KafkaReader {
            credentials: edge.credentials(),
            questions: Questions::new(edge.clone(), spec.config.clone()),
            edge,
            partitions_n: place.known.len(),
            spec,
            place,
            splits: Vec::new(),
            consumer: None,
            shares_n: 0,
            unchecked: Vec::new(),
            unanswered: None,
            seen,
            said: VecDeque::new(),
            records: None,
            kept: Kept::default(),
            turn: 0,
            served: now,
            looked: now,
            committed: now,
            trouble: None,
            lasting: Lasting::default(),
            reason: None,
            skipped_n: 0,
            read_n: 0,
            all_n: 0,
            was_quiet: false,
            rows_max: BATCH_ROWS,
        }
    }

    fn since(&self, moment: Instant) -> Duration {
        self.edge.now().saturating_duration_since(moment)
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

    /// Begins to read splits that were found to be what they should be.
    fn open(&mut self, checked: Vec<Checked>) -> Result<(), Error> {
        if checked.is_empty() {
            return Ok(());
        }
        let consumer = match &self.consumer {
            Some(consumer) => Arc::clone(consumer),
            None => {
                let mine_n = checked.len() + self.unchecked.len();
                self.shares_n = self.partitions_n.max(mine_n);
                let consumer = Arc::new(self.edge.consumer(self.shares_n)?);
                Arc::clone(self.consumer.insert(consumer))
            }
        };
        let mut starts = Vec::with_capacity(checked.len());
        for split in &checked {
            if split.skipped > 0 {
                let (id, skipped, offset) = (split.description.id(), split.skipped, split.offset);
                tracing::warn!(split = %id, skipped, offset, "offsets were deleted before they were read");
                self.skipped_n += unsigned(skipped);
            }
            starts.push(start(&split.description, split.offset));
        }
        let queues = consumer.assign(&starts)?;
        let opened = checked.into_iter().zip(queues);
        let opened =
            opened.map(|(split, queue)| OpenSplit::new(split.description, split.offset, queue));
        self.splits.extend(opened);
        Ok(())
    }

    /// Serves callbacks, answers and what is due.
    fn serve(&mut self) -> Result<(), Error> {
        let now = self.edge.now();
        self.served = now;
        if let Some(answer) = self.questions.take() {
            self.on_answer(answer)?;
        }
        if !self.unchecked.is_empty() {
            let splits = self.unchecked.clone();
            self.questions.ask(Question::Check(splits));
        } else if !self.is_bounded() && self.since(self.looked) >= LOOK_EVERY {
            self.looked = now;
            let known = self.seen.clone();
            self.questions.ask(Question::Look(known));
        }
        let Some(consumer) = self.consumer.clone() else {
            return Ok(());
        };
        for _ in 0..SERVED_MAX {
            consumer.serve();
        }
        if consumer.ear().take_new_ids() {
            self.check_ids_told(&consumer)?;
        }
        if let Some(places) = consumer.ear().take_places() {
            for split in &mut self.splits {
                split.find_place(&places, now);
            }
            let told = consumer.ear().take_trouble();
            if told.is_some() && self.renew_if_replaced() {
                return Ok(());
            }
            self.reason = told.map(|trouble| trouble.reason).or(self.reason.take());
            self.find_trouble(now);
        }
        self.commit(&consumer);
        Ok(())
    }

    /// Tells positions to the group. They are for people; nothing ever reads them back (KF-K14).
    fn commit(&mut self, consumer: &E::Consumer) {
        if self.place.group.is_none() || self.since(self.committed) < COMMIT_EVERY {
            return;
        }
        self.committed = self.edge.now();
        let mut positions = Vec::new();
        for split in self.splits.iter_mut().filter(|split| split.has_moved()) {
            positions.push(start(&split.description, split.position));
            split.told = split.position;
        }
        consumer.tell(&positions);
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

    /// Of which splits there is nothing, unless that was said within this time.
    fn say_nothing(&mut self, pause: Duration) {
        let now = self.edge.now();
        for split in &mut self.splits {
            if split.may_say_nothing(now, pause) {
                self.said
                    .push_back(SourceEvent::NothingNew(split.id.clone()));
            }
        }
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
        let mut passed = false;
        while records.len() < self.rows_max
            && records.bytes() + self.kept.bytes() < BATCH_BYTES
            && split.may_have_more()
        {
            let mut push = |record: <QueueOf<E> as Queue>::Record<'_>| {
                let offset = record.offset();
                if split.takes(offset) {
                    records.push(offset, record.value());
                    self.spec.layout.keep(&mut self.kept, &record);
                }
                (offset, record.written_ms())
            };
            let taken = split.queue.take().map(|taken| taken.map(&mut push));
            match taken {
                None => {
                    passed = split.on_drained();
                    break;
                }
                Some(Ok((offset, written_ms))) => split.on_record(offset, written_ms),
                Some(Err(Instead::End)) => {}
                Some(Err(Instead::OutOfRange(error))) => {
                    split.is_out_of_range = true;
                    split.on_error(error);
                }
                Some(Err(Instead::Trouble(error))) => split.on_error(error),
            }
        }
        let (ended, is_lost) = (split.is_at_end(), split.is_out_of_range);
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
        if is_lost {
            self.reopen(idx)?;
        }
        Ok(None)
    }

    /// The split's offset is not there, and what came before it has gone out: it is asked about as at
    /// a restore.
    fn reopen(&mut self, idx: usize) -> Result<(), Error> {
        let split = self.splits.swap_remove(idx);
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
        match &self.consumer {
            Some(consumer) => consumer.unassign(&description.topic, description.partition),
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

fn unsigned(n: i64) -> u64 {
    u64::try_from(n).unwrap_or(0)
}

fn start(description: &Description, offset: i64) -> Start {
    Start {
        topic: description.topic.clone(),
        partition: description.partition,
        offset,
    }
}

#[async_trait]
impl<E: Edge> SourceReader for KafkaReader<E> {
    async fn assign(&mut self, splits: Vec<SplitState>) -> Result<(), Error> {
        for state in splits {
            let (description, offset) =
                Description::open(&state).map_err(|error| failed(self.action(), false, error))?;
            self.seen.insert(state.split.0.clone());
            let Some(offset) = offset else { continue };
            if let Some(end) = description.end {
                self.all_n += unsigned(end - description.start);
                self.read_n += unsigned(offset - description.start);
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
        if self.since(self.served) >= SERVE_EVERY || self.consumer.is_none() {
            self.serve()?;
        }
        if let Some(event) = self.read()? {
            self.was_quiet = false;
            self.say_nothing(SAY_EVERY);
            return Ok(event);
        }
        if self.splits.is_empty() && self.unchecked.is_empty() && self.is_bounded() {
            return Ok(SourceEvent::Ended);
        }
        // The first pause is short, so that rows held for efficiency go on soon.
        let patience = if self.was_quiet {
            LONG_PATIENCE
        } else {
            PATIENCE
        };
        let woken = self.edge.wait(patience).await;
        if woken && let Some(event) = self.read()? {
            self.was_quiet = false;
            self.say_nothing(SAY_EVERY);
            return Ok(event);
        }
        // Not before the pause: what came meanwhile was just looked for.
        self.say_nothing(Duration::ZERO);
        self.was_quiet = true;
        Ok(SourceEvent::Quiet)
    }

    fn prefer_rows(&mut self, rows: usize) {
        self.rows_max = rows.clamp(1, BATCH_ROWS);
    }

    fn read_units(&self) -> (u64, u64) {
        // Offsets of control records are passed without a row.
        (self.read_n.min(self.all_n.max(self.read_n)), self.all_n)
    }

    fn name_of(&self, split: &SplitId) -> String {
        let SourceConfig {
            topics,
            topic_pattern,
            ..
        } = &self.spec.config;
        let is_only = topics.len() == 1 && topic_pattern.is_none();
        match split.0.rsplit_once('/') {
            Some((_, partition)) if is_only => format!("partition {partition}"),
            Some((topic, partition)) => format!("partition {partition} of {topic}"),
            None => split.to_string(),
        }
    }

    fn health(&self) -> Health {
        self.told_health()
    }
}
