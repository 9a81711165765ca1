//! The shell of one task, without a thread: what `taskmanager/src/task.rs` does between two waits is
//! one step here.
//!
//! Owns: a task's queues and its writers. Decides nothing about rows.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch};
use arrow::datatypes::{DataType, TimeUnit, TimestampMicrosecondType};
use arrow::util::display::{ArrayFormatter, FormatOptions};
use streamforge_core::event_time::Watermark;
use streamforge_core::ids::{CheckpointId, Generation, OperatorUid, SlotId, SubtaskIdx};
use streamforge_core::manifest::{Manifest, ObjectRef, SplitProgress, SplitState, StagedInterval};
use streamforge_core::messages::HandOver;
use streamforge_core::object_key::{self, STAGED};
use streamforge_engine::barrier::Barrier;
use streamforge_engine::batch::{RowOp, StreamBatch};
use streamforge_engine::error::Error;
use streamforge_engine::operator::RestoredState;
use streamforge_engine::source::SourceEvent;
use streamforge_engine::task::{Channel, CoreSnapshot, Element, TaskCore};

use crate::outside::{Outside, Row};
use crate::reader::Reader;
use crate::rng::Rng;

/// Rows of one staged object.
const OBJECT_ROWS_MAX: usize = 4;

/// What the coordinator, or a receiver, says to a task.
#[derive(Clone, Debug)]
pub enum Control {
    /// To source tasks: take a checkpoint now.
    Checkpoint(Barrier),
    /// This attempt is given up.
    Abort(CheckpointId),
    /// Whatever this coordinator began is given up: nobody is left who would complete it (A2).
    Orphaned(Generation),
    /// Channels for a hand-over are open; the first new one has this number (K3).
    Prepare(Arc<HandOver>, usize),
    /// That hand-over will not be.
    Withdraw,
    /// All tasks have passed its barrier: go on with what is gained by it.
    Receive(Arc<Receipt>),
    /// A receiver of `edge` answers a rejoin.
    Answer {
        /// Which edge.
        edge: usize,
        /// Who answers.
        receiver: SubtaskIdx,
        /// With this.
        watermark: Watermark,
    },
}

/// What one task gains by a hand-over.
#[derive(Debug)]
pub struct Receipt {
    /// Its manifest.
    pub manifest: Arc<Manifest>,
    /// State by operator; taken once.
    pub states: Mutex<Vec<(usize, RestoredState)>>,
}

/// What a task hands over at a barrier.
#[derive(Debug)]
pub struct Upload {
    /// From its core.
    pub snapshot: CoreSnapshot,
    /// What its sinks staged at this barrier.
    pub staged: Vec<(SlotId, StagedInterval)>,
    /// Objects of it that are not in the store yet: those that go to a topic.
    pub puts: Vec<String>,
}

/// Writes the rows of one sink of one subtask.
#[derive(Debug)]
pub struct Writer {
    /// Which slot.
    pub slot: SlotId,
    /// For names (C4); its checkpoint is the last barrier seen.
    writer: object_key::Writer,
    subtask: streamforge_core::ids::TaskId,
    objects_n: u64,
    buffered: Vec<Row>,
    puts: Vec<String>,
    staged: Vec<streamforge_core::manifest::StagedObject>,
}

impl Writer {
    /// A writer that has written nothing.
    pub fn new(
        slot: SlotId,
        writer: object_key::Writer,
        task: streamforge_core::ids::TaskId,
    ) -> Self {
        Self {
            slot,
            writer,
            subtask: task,
            objects_n: 0,
            buffered: vec![],
            puts: vec![],
            staged: vec![],
        }
    }

    fn write(&mut self, batch: &StreamBatch, outside: &mut Outside) {
        self.buffered.extend(rows(batch));
        if self.buffered.len() >= OBJECT_ROWS_MAX {
            self.close_object(outside);
        }
    }

    fn close_object(&mut self, outside: &mut Outside) {
        if self.buffered.is_empty() {
            return;
        }
        self.objects_n += 1;
        let is_topic = outside.is_topic(&self.slot.sink);
        let folder = if is_topic { STAGED } else { &self.slot.sink.0 };
        let name = self.writer.task_key(folder, self.subtask, self.objects_n);
        if is_topic {
            self.puts.push(name.clone());
        }
        self.staged
            .push(outside.stage(name, std::mem::take(&mut self.buffered)));
    }

    fn stage(&mut self, id: CheckpointId, outside: &mut Outside) -> Option<StagedInterval> {
        self.close_object(outside);
        self.writer.checkpoint = id;
        let objects = std::mem::take(&mut self.staged);
        (!objects.is_empty()).then_some(StagedInterval { id, objects })
    }
}

/// A batch as text.
fn rows(batch: &StreamBatch) -> Vec<Row> {
    let options = FormatOptions::default().with_null("NULL");
    let text = |column: &ArrayRef| -> Vec<String> {
        if *column.data_type() == DataType::Timestamp(TimeUnit::Microsecond, None) {
            let times = column.as_primitive::<TimestampMicrosecondType>();
            let time = |time: Option<i64>| time.map_or("NULL".to_owned(), |it| it.to_string());
            return times.iter().map(time).collect();
        }
        let formatter = ArrayFormatter::try_new(column, &options).expect("a column to print");
        (0..column.len())
            .map(|row| formatter.value(row).to_string())
            .collect()
    };
    let columns: Vec<Vec<String>> = batch.rows.columns().iter().map(text).collect();
    let row = |idx: usize| {
        let op = batch
            .ops
            .as_ref()
            .map_or(Some(RowOp::Insert), |ops| RowOp::from_byte(ops.value(idx)));
        Row {
            op: op.expect("an operation").text(),
            columns: columns
                .iter()
                .filter_map(|column| column.get(idx).cloned())
                .collect(),
        }
    };
    (0..batch.len()).map(row).collect()
}

/// A subtask's place after a hand-over, and how many there are then.
fn place_after(me: SubtaskIdx, hand_over: Option<&HandOver>) -> (u32, u32) {
    hand_over.map_or((0, 1), |it| it.deployment.rank_of(me))
}

/// One task and what waits for it.
pub struct Task {
    /// The decisions.
    pub core: TaskCore,
    /// By index of the channel.
    pub queues: Vec<VecDeque<Element>>,
    /// Which channel each is.
    pub names: Vec<Channel>,
    /// Channels of which a batch was taken, for their credit.
    pub taken: Vec<Channel>,
    /// What was said to it.
    pub control: VecDeque<Control>,
    /// The source, if the stage begins with one.
    pub reader: Option<Reader>,
    /// Its name.
    pub source: Option<OperatorUid>,
    /// The hand-over that was prepared last.
    pub hand_over: Option<Arc<HandOver>>,
    reading: bool,
    waiting: Option<SourceEvent>,
    /// Sinks by index within the stage.
    pub writers: BTreeMap<usize, Writer>,
    /// Snapshots that wait for the uploader, oldest first.
    pub uploads: VecDeque<Upload>,
    /// Objects that the uploader wrote in this attempt.
    pub objects_n: u64,
    /// Late log objects of this attempt.
    pub late_log: Vec<ObjectRef>,
    /// Late rows that are not in an object yet.
    pub late_rows: VecDeque<(OperatorUid, RecordBatch)>,
    /// It failed, and does nothing any more.
    pub dead: bool,
}

impl Task {
    /// A loaded task that waits for its start.
    pub fn new(
        core: TaskCore,
        reader: Option<(OperatorUid, Reader)>,
        writers: BTreeMap<usize, Writer>,
    ) -> Self {
        let (source, reader) = reader.unzip();
        Self {
            queues: core.channels().map(|_| VecDeque::new()).collect(),
            names: core.channels().collect(),
            taken: Vec::new(),
            core,
            control: VecDeque::new(),
            reading: reader.is_some(),
            reader,
            source,
            hand_over: None,
            waiting: None,
            writers,
            uploads: VecDeque::new(),
            objects_n: 0,
            late_log: Vec::new(),
            late_rows: VecDeque::new(),
            dead: false,
        }
    }

    /// Whether it reads a source.
    pub fn is_source(&self) -> bool {
        self.reader.is_some()
    }

    /// Takes one thing from whatever may come next. `room`: receivers have room for rows.
    pub fn step(&mut self, rng: &mut Rng, now_ms: u64, room: bool) -> Result<(), Error> {
        self.core.set_now_ms(now_ms);
        if self.reader.is_some() {
            self.step_source(rng, now_ms, room)
        } else {
            self.step_channels(rng)
        }
    }

    fn step_channels(&mut self, rng: &mut Rng) -> Result<(), Error> {
        // As the real one: what is said comes before what is sent.
        if !self.control.is_empty() {
            return self.step_control(|_| true).map(|_| ());
        }
        let ready: Vec<usize> = (0..self.queues.len())
            .filter(|idx| self.queues.get(*idx).is_some_and(|queue| !queue.is_empty()))
            .filter(|idx| self.core.takes(*idx))
            .collect();
        if ready.is_empty() || rng.one_in(30) {
            return self.core.on_quiet();
        }
        let channel = ready.get(rng.pick(ready.len())).copied().unwrap_or(0);
        match self.queues.get_mut(channel).and_then(VecDeque::pop_front) {
            Some(element) => {
                if matches!(element, Element::Batch(_)) {
                    self.taken.extend(self.names.get(channel));
                }
                self.core.on_element(channel, element)
            }
            None => Ok(()),
        }
    }

    /// An element came. False: this task has no such channel.
    pub fn arrive(&mut self, channel: Channel, element: Element) -> bool {
        let at = self.names.iter().rposition(|other| *other == channel);
        let Some(queue) = at.and_then(|at| self.queues.get_mut(at)) else {
            return false;
        };
        match (queue.back_mut(), element) {
            (Some(Element::Watermark(last)), Element::Watermark(newer)) => *last = newer,
            (_, element) => queue.push_back(element),
        }
        true
    }

    /// Batches that wait in a channel.
    pub fn batches_n(&self, channel: Channel) -> usize {
        let at = self.names.iter().rposition(|other| *other == channel);
        let queue = at.and_then(|at| self.queues.get(at));
        let is_batch = |it: &&Element| matches!(it, Element::Batch(_));
        queue.map_or(0, |queue| queue.iter().filter(is_batch).count())
    }

    /// More channels, for good; returns the number of the first.
    pub fn add_lanes(&mut self, names: Vec<Channel>) -> usize {
        let first = self.names.len();
        self.queues.extend(names.iter().map(|_| VecDeque::new()));
        self.names.extend(names);
        first
    }

    /// Takes the next message that is allowed; says whether there was one.
    fn step_control(&mut self, allowed: impl Fn(&Control) -> bool) -> Result<bool, Error> {
        let idx = self.control.iter().position(allowed);
        let Some(control) = idx.and_then(|idx| self.control.remove(idx)) else {
            return Ok(false);
        };
        match control {
            Control::Abort(id) => self.core.on_abort(id),
            Control::Orphaned(gone) => self.core.on_orphaned(gone),
            Control::Prepare(hand_over, first) => self.prepare(hand_over, first),
            Control::Withdraw => self.core.withdraw(),
            Control::Receive(receipt) => self.receive(&receipt)?,
            Control::Answer {
                edge,
                receiver,
                watermark,
            } => {
                self.core.on_answer(edge, receiver, watermark)?;
            }
            Control::Checkpoint(barrier) => self.core.on_checkpoint(barrier)?,
        }
        Ok(true)
    }

    /// Goes on with what is gained; a repeated word of it changes nothing.
    fn receive(&mut self, receipt: &Receipt) -> Result<(), Error> {
        if self.core.awaits_splits().is_some()
            && let (Some(reader), Some(uid)) = (&mut self.reader, &self.source)
        {
            let all = receipt.manifest.sources.get(uid);
            let all = all.cloned().unwrap_or_default();
            let mine = self.core.splits_after(&all);
            let open = mine.iter().filter(|it| it.progress != SplitProgress::End);
            let open = open.cloned().collect();
            let place = place_after(self.core.id().subtask, self.hand_over.as_deref());
            reader.open(place, all, open);
            self.reading = true;
            self.core.receive_splits(mine)?;
        }
        if self.core.awaits_groups() {
            let states = receipt.states.lock();
            let states = std::mem::take(&mut *states.unwrap_or_else(PoisonError::into_inner));
            self.core.receive(states)?;
        }
        self.core.on_received(receipt.manifest.id);
        Ok(())
    }

    fn prepare(&mut self, hand_over: Arc<HandOver>, first: usize) {
        let looks = self.reader.as_ref().is_some_and(Reader::looks_for_splits);
        self.core.prepare(Arc::clone(&hand_over), first, looks);
        self.hand_over = Some(hand_over);
    }

    /// Other readers go on with some splits: it goes on with these.
    pub fn reopen(&mut self, splits: Vec<SplitState>) {
        let place = place_after(self.core.id().subtask, self.hand_over.as_deref());
        if let Some(reader) = &mut self.reader {
            reader.open(place, splits.clone(), splits);
        }
    }

    /// Its work is another's.
    pub fn leave(&mut self) {
        self.reading = false;
        if let Some(reader) = &mut self.reader {
            reader.close();
        }
    }

    fn step_source(&mut self, rng: &mut Rng, now_ms: u64, room: bool) -> Result<(), Error> {
        let free = self.core.takes_rows() && self.waiting.is_none();
        if self.step_control(|it| free || !matches!(it, Control::Checkpoint(_)))? {
            return Ok(());
        }
        if !self.core.takes_rows() {
            return Ok(());
        }
        if let Some(event) = self.waiting.take() {
            return self.on_event(event);
        }
        if !self.reading || !self.core.reads() || rng.one_in(30) {
            return self.core.on_quiet();
        }
        if !room {
            return Ok(());
        }
        let Some(reader) = &mut self.reader else {
            return Ok(());
        };
        let event = reader.next(rng, now_ms)?;
        self.on_event(event)
    }

    fn on_event(&mut self, event: SourceEvent) -> Result<(), Error> {
        let Some(operator) = self.reader.as_ref().map(|reader| reader.operator) else {
            return Ok(());
        };
        match event {
            SourceEvent::Batch(batch) => {
                if !self.core.wake(operator, &batch.split)? {
                    self.waiting = Some(SourceEvent::Batch(batch));
                    return Ok(());
                }
                if let Some(reader) = &mut self.reader {
                    reader.on_taken(&batch);
                }
                self.core.on_source_batch(operator, batch)
            }
            SourceEvent::SplitEnded(split) => self.core.on_split_ended(operator, &split),
            SourceEvent::NothingNew(split) => self.core.on_nothing_new(operator, &split),
            SourceEvent::Discovered(split) => self.core.on_discovered(operator, split),
            SourceEvent::Waiting | SourceEvent::Quiet => self.core.on_quiet(),
            SourceEvent::Ended => {
                self.reading = false;
                self.core.on_source_ended(operator)
            }
        }
    }

    /// Writes rows to a sink.
    pub fn write(&mut self, operator: usize, batch: &StreamBatch, outside: &mut Outside) {
        if let Some(writer) = self.writers.get_mut(&operator) {
            writer.write(batch, outside);
        }
    }

    /// Stages every sink and hands the rest to the uploader.
    pub fn snapshot(&mut self, snapshot: CoreSnapshot, outside: &mut Outside) {
        let id = snapshot.barrier.id;
        let (mut staged, mut puts) = (Vec::new(), Vec::new());
        for writer in self.writers.values_mut() {
            if let Some(interval) = writer.stage(id, outside) {
                staged.push((writer.slot.clone(), interval));
            }
            puts.append(&mut writer.puts);
        }
        self.uploads.push_back(Upload {
            snapshot,
            staged,
            puts,
        });
    }
}
