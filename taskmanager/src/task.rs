//! The shell of one task: a thread that feeds a [`TaskCore`] and performs its effects.
//!
//! Owns: waiting, writing to sinks, handing snapshots to the uploader. Decides nothing about rows.
//! Start at: [`TaskShell::run`].

mod sink;

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use streamforge_connectors::files::source::ReaderPlace;
use streamforge_connectors::registry::{self as connectors, Surroundings};
use streamforge_core::ids::{JobId, SubtaskIdx, TaskId};
use streamforge_core::job_graph::{Operator, SourceSpec};
use streamforge_core::manifest::{CheckpointKind, SplitProgress, SplitState};
use streamforge_core::messages::{Event, HandOver};
use streamforge_engine::barrier::Barrier;
use streamforge_engine::error::Error;
use streamforge_engine::source::{SourceBatch, SourceEvent, SourceReader};
use streamforge_engine::staged::Staged;
use streamforge_engine::task::{Channel, CoreSnapshot, Effect, Element, TaskCore};
use tokio::runtime::Handle;
use tokio::sync::mpsc;

use crate::budget::StateBudget;
use crate::clock::Clock;
use crate::exchange::{Outlet, Upstream};
use crate::inbox::{Control, Inbox, Next, Receipt, Widening};
use crate::pace::Pace;
use crate::progress::TaskProgress;
use crate::upload::Upload;

pub use sink::Writer;

/// How long a task waits for rows before it sends what it holds for efficiency: the most that a
/// partial aggregate is late at low rates.
const QUIET: Duration = Duration::from_millis(5);

/// How long a reader without rows is left alone before it is asked again.
const READER_PAUSE: Duration = Duration::from_millis(20);

/// How long a task whose channel is over waits to be cancelled before it says so itself: the channel's own
/// report comes first, and names both ends.
const CUT_OFF_PATIENCE: Duration = Duration::from_secs(2);

/// How often a busy task says how it does.
const PROGRESS_EVERY_MS: u64 = 100;

/// A source's reader within the task.
pub struct Reader {
    /// Index of the source within the stage.
    pub operator: usize,
    /// The connector's reader; `None` while it is not known which splits are its.
    pub reader: Option<Box<dyn SourceReader>>,
    /// `rateLimit`, this subtask's share.
    pub pace: Option<Pace>,
    /// How another one is opened.
    pub opening: ReaderOpening,
}

/// What it takes to open a source's reader.
pub struct ReaderOpening {
    /// The source.
    pub source: Operator,
    /// What it reads.
    pub spec: SourceSpec,
    /// Whose source.
    pub job: JobId,
    /// What connectors may use.
    pub surroundings: Surroundings,
}

impl ReaderOpening {
    /// Opens a reader for `mine`; `known` are all splits there are, those of others included.
    pub async fn open(
        &self,
        (rank, subtasks_n): (u32, u32),
        known: Vec<SplitState>,
        mine: Vec<SplitState>,
    ) -> Result<Box<dyn SourceReader>, Error> {
        let place = ReaderPlace {
            subtask: rank,
            parallelism: subtasks_n,
            known,
            job: Some(self.job.clone()),
        };
        let (source, spec) = (&self.source, &self.spec);
        let mut reader = connectors::open_reader(source, spec, place, &self.surroundings)?;
        reader.assign(mine).await?;
        if let Some(limit) = spec.rate_limit {
            reader.prefer_rows(Pace::share(limit, subtasks_n).step());
        }
        Ok(reader)
    }
}

/// Where the elements of one edge go, by receiver.
pub type Route = BTreeMap<SubtaskIdx, Outlet>;

/// Everything a task's thread works with.
pub struct TaskShell {
    /// The decisions.
    pub core: TaskCore,
    /// Its own inbox.
    pub inbox: Arc<Inbox>,
    /// Edge -> receivers.
    pub routes: BTreeMap<usize, Route>,
    /// Input channel -> the way back to its sender, for answers.
    pub senders: BTreeMap<(usize, SubtaskIdx), Upstream>,
    /// The source, if the stage begins with one.
    pub reader: Option<Reader>,
    /// Sinks by index within the stage.
    pub writers: BTreeMap<usize, Writer>,
    /// Output that waits to be published.
    pub staged: Arc<Staged>,
    /// A sink took no rows at the last step.
    pub was_full: bool,
    /// To the uploader.
    pub uploads: mpsc::Sender<Upload>,
    /// To the coordinator.
    pub events: mpsc::Sender<Event>,
    /// For people.
    pub progress: Arc<TaskProgress>,
    /// What all tasks may hold.
    pub budget: Arc<StateBudget>,
    /// What this one held when it looked last.
    pub held: u64,
    /// Runs the connectors' futures.
    pub runtime: Handle,
    /// Time.
    pub clock: Clock,
    /// Whether the source's reader is asked for more.
    pub reading: bool,
    /// When the barrier of the last hand-over came.
    pub handed_over_us: u64,
    /// The hand-over that was prepared last.
    pub hand_over: Option<Arc<HandOver>>,
    /// When the step under way began: what it does for a checkpoint counts as freeze.
    pub step_began_us: u64,
}

enum Flow {
    GoOn,
    Over,
}

impl TaskShell {
    /// Runs until the attempt is over.
    pub fn run(mut self) -> Result<(), Error> {
        let ended = self.work();
        // Others may hold what it held.
        let _freed = self.budget.hold(self.held, 0);
        ended
    }

    fn work(&mut self) -> Result<(), Error> {
        self.core.start()?;
        let mut waiting: Option<(usize, SourceEvent)> = None;
        let mut shown_ms = 0;
        loop {
            if let Flow::Over = self.perform()? {
                return Ok(());
            }
            let now_us = self.clock.now_us();
            let now_ms = now_us / 1000;
            self.step_began_us = now_us;
            self.core.set_now_ms(now_ms);
            if now_ms >= shown_ms + PROGRESS_EVERY_MS {
                shown_ms = now_ms;
                self.show();
                let held = self.core.state_size() as u64;
                self.budget
                    .hold(std::mem::replace(&mut self.held, held), held)?;
            }
            let flow = if self.reader.is_some() {
                self.step_source(&mut waiting)?
            } else {
                self.step_channels()?
            };
            if let Flow::Over = flow {
                return Ok(());
            }
        }
    }

    fn show(&self) {
        let reader = self.reader.as_ref().and_then(|it| it.reader.as_ref());
        self.progress.update(&self.core, reader.map(|it| &**it));
        self.progress.on_running(self.clock.now_us());
    }

    fn step_channels(&mut self) -> Result<Flow, Error> {
        let is_full = self.is_full();
        let core = &self.core;
        // Rows, and what may release rows, wait for a full sink; a barrier that is in front of them
        // does not.
        let takes = |channel, element: &Element| {
            let brings_no_rows = matches!(element, Element::Barrier(_) | Element::Rejoin);
            core.takes(channel) && (!is_full || brings_no_rows)
        };
        let next = self.inbox.next(takes, QUIET);
        let waited_since_us = self.step_began_us;
        self.step_began_us = self.clock.now_us();
        let idle_us = self.step_began_us.saturating_sub(waited_since_us);
        self.progress.on_idle(idle_us);
        match next {
            Next::Cancelled => return Ok(Flow::Over),
            Next::Nothing => self.core.on_quiet()?,
            Next::Element(channel, element) => self.core.on_element(channel, element)?,
            Next::Control(control) => return self.on_control(control),
        }
        Ok(Flow::GoOn)
    }

    /// Whether a sink has so much unpublished output that no more rows may come in (B1).
    fn is_full(&mut self) -> bool {
        let mut sinks = self.writers.values().map(|writer| &writer.slot.sink);
        let full = sinks.find(|sink| self.staged.is_full(sink));
        if full.is_some() != self.was_full {
            self.was_full = full.is_some();
            match full {
                Some(sink) => tracing::warn!(
                    sink = sink.0,
                    "too much output waits to be published: rows wait, too"
                ),
                None => tracing::info!("output was published: rows go on"),
            }
        }
        self.was_full
    }

    fn on_control(&mut self, control: Control) -> Result<Flow, Error> {
        match control {
            Control::Abort(id) => self.core.on_abort(id),
            Control::Orphaned(gone) => self.core.on_orphaned(gone),
            Control::Answer {
                edge,
                receiver,
                watermark,
            } => {
                self.core.on_answer(edge, receiver, watermark)?;
            }
            Control::Checkpoint(barrier) => self.core.on_checkpoint(barrier)?,
            Control::Prepare(widening) => self.prepare(&widening),
            Control::Withdraw => self.core.withdraw(),
            Control::Receive(receipt) => return self.receive(&receipt),
        }
        Ok(Flow::GoOn)
    }

    /// Opens the ways to tasks that join.
    fn prepare(&mut self, widening: &Widening) {
        for (edge, to, outlet) in &widening.routes {
            let route = self.routes.entry(*edge).or_default();
            route.insert(*to, outlet.clone());
        }
        self.senders.extend(widening.senders.iter().cloned());
        let hand_over = Arc::clone(&widening.hand_over);
        let (first, looks) = (widening.first_channel, widening.looks_for_splits);
        self.core.prepare(Arc::clone(&hand_over), first, looks);
        self.hand_over = Some(hand_over);
    }

    /// This subtask's place after the hand-over, and how many there are then.
    fn place_after(&self) -> (u32, u32) {
        let me = self.core.id().subtask;
        let hand_over = self.hand_over.as_ref();
        hand_over.map_or((0, 1), |it| it.deployment.rank_of(me))
    }

    fn open_reader(&mut self, known: Vec<SplitState>, mine: Vec<SplitState>) -> Result<(), Error> {
        let place = self.place_after();
        let Some(reader) = &mut self.reader else {
            return Ok(());
        };
        let opened = reader.opening.open(place, known, mine);
        reader.reader = Some(self.runtime.block_on(opened)?);
        let limit = reader.opening.spec.rate_limit;
        reader.pace = limit.map(|limit| Pace::share(limit, place.1));
        Ok(())
    }

    /// Goes on with what is gained; a repeated word of it changes nothing.
    fn receive(&mut self, receipt: &Receipt) -> Result<Flow, Error> {
        let awaits = self.core.awaits_splits().is_some() || self.core.awaits_groups();
        if let (Some(_), Some(reader)) = (self.core.awaits_splits(), &self.reader) {
            let all = receipt.manifest.sources.get(&reader.opening.source.uid);
            let all = all.cloned().unwrap_or_default();
            let mine = self.core.splits_after(&all);
            let open = mine.iter().filter(|it| it.progress != SplitProgress::End);
            let open = open.cloned().collect();
            self.open_reader(all, open)?;
            self.reading = true;
            self.core.receive_splits(mine)?;
        }
        if self.core.awaits_groups() {
            let states = receipt.states.lock();
            let states = std::mem::take(&mut *states.unwrap_or_else(PoisonError::into_inner));
            self.core.receive(states)?;
        }
        let (task, id) = (self.core.id(), receipt.manifest.id);
        if awaits {
            let pause_ms = self.clock.now_us().saturating_sub(self.handed_over_us) / 1_000;
            tracing::info!(%task, %id, pause_ms, "goes on with what it gained");
        }
        self.core.on_received(id);
        Ok(Flow::GoOn)
    }

    fn step_source(&mut self, waiting: &mut Option<(usize, SourceEvent)>) -> Result<Flow, Error> {
        // A barrier must not overtake rows that already woke an idle source, and nothing is sent
        // while receivers have not answered.
        let free = self.core.takes_rows() && waiting.is_none();
        match self
            .inbox
            .try_control(|c| free || !matches!(c, Control::Checkpoint(_)))
        {
            Next::Cancelled => return Ok(Flow::Over),
            Next::Control(control) => return self.on_control(control),
            Next::Nothing | Next::Element(..) => {}
        }
        if !self.core.takes_rows() {
            self.wait(QUIET);
            return Ok(Flow::GoOn);
        }
        if self.is_full() {
            self.wait(QUIET);
            return Ok(Flow::GoOn);
        }
        if let Some((operator, event)) = waiting.take() {
            self.on_event(operator, event, waiting)?;
            return Ok(Flow::GoOn);
        }
        let reads = self.reading && self.core.reads();
        let source = self.reader.as_mut().filter(|_| reads);
        let opened = source.and_then(|it| {
            let reader = it.reader.as_mut()?;
            Some((it.operator, reader, &mut it.pace))
        });
        let Some((operator, reader, pace)) = opened else {
            self.core.on_quiet()?;
            self.wait(READER_PAUSE);
            return Ok(Flow::GoOn);
        };
        if let Some(pause) = pace
            .as_mut()
            .and_then(|pace| pace.pause(self.clock.now_us()))
        {
            self.wait(pause.min(READER_PAUSE));
            return Ok(Flow::GoOn);
        }
        let inbox = Arc::clone(&self.inbox);
        let event = self.runtime.block_on(async {
            tokio::select! {
                biased;
                event = reader.next() => Some(event),
                () = inbox.notify.notified() => None,
            }
        });
        match event {
            None => {}
            Some(event) => self.on_event(operator, event?, waiting)?,
        }
        Ok(Flow::GoOn)
    }

    fn on_event(
        &mut self,
        operator: usize,
        event: SourceEvent,
        waiting: &mut Option<(usize, SourceEvent)>,
    ) -> Result<(), Error> {
        match event {
            SourceEvent::Batch(batch) => {
                if !self.core.wake(operator, &batch.split)? {
                    *waiting = Some((operator, SourceEvent::Batch(batch)));
                    return Ok(());
                }
                self.count_for_pace(&batch);
                self.core.on_source_batch(operator, batch)
            }
            SourceEvent::SplitEnded(split) => self.core.on_split_ended(operator, &split),
            SourceEvent::NothingNew(split) => self.core.on_nothing_new(operator, &split),
            SourceEvent::Discovered(split) => self.core.on_discovered(operator, split),
            SourceEvent::Waiting => {
                self.core.on_quiet()?;
                self.wait(READER_PAUSE);
                Ok(())
            }
            SourceEvent::Quiet => self.core.on_quiet(),
            SourceEvent::Ended => {
                self.reading = false;
                self.core.on_source_ended(operator)
            }
        }
    }

    fn count_for_pace(&mut self, batch: &SourceBatch) {
        let rows_n = batch.rows.num_rows() as u64 + batch.bad_n;
        if let Some(pace) = self.reader.as_mut().and_then(|reader| reader.pace.as_mut()) {
            pace.on_rows(rows_n);
        }
    }

    /// Waits until something is said to this task, at most `patience`.
    fn wait(&self, patience: Duration) {
        let inbox = &self.inbox;
        let since_us = self.clock.now_us();
        self.runtime.block_on(async {
            let _ = tokio::time::timeout(patience, inbox.notify.notified()).await;
        });
        self.progress.on_idle(self.clock.now_us() - since_us);
    }

    /// Performs what the core asked for, in order.
    fn perform(&mut self) -> Result<Flow, Error> {
        loop {
            let effects = self.core.take_effects();
            if effects.is_empty() {
                return Ok(Flow::GoOn);
            }
            for effect in effects {
                if let Flow::Over = self.perform_one(effect)? {
                    return Ok(Flow::Over);
                }
            }
        }
    }

    fn perform_one(&mut self, effect: Effect) -> Result<Flow, Error> {
        match effect {
            Effect::Send { edge, to, element } => return self.send(edge, to, element),
            Effect::Answer {
                channel: Channel { edge, sender },
                watermark,
            } => {
                let receiver = self.core.id().subtask;
                if let Some(upstream) = self.senders.get(&(edge, sender)) {
                    upstream.answer(edge, receiver, watermark);
                }
            }
            Effect::Write { operator, batch } => return self.write(operator, batch),
            Effect::Snapshot(snapshot) => return self.snapshot(*snapshot),
            Effect::Declined { id, reason } => {
                let task = self.core.id();
                return Ok(self.say(Event::Declined { task, id, reason }));
            }
            Effect::Received(id) => {
                let task = self.core.id();
                return Ok(self.say(Event::Received { task, id }));
            }
            Effect::Release => self.core.release()?,
            Effect::Reopen { splits } => self.open_reader(splits.clone(), splits)?,
            Effect::CloseReader => {
                if let Some(reader) = &mut self.reader {
                    reader.reader = None;
                }
            }
            Effect::Left => {
                self.reading = false;
                if let Some(reader) = &mut self.reader {
                    reader.reader = None;
                }
            }
            Effect::Ended => {
                let task: TaskId = self.core.id();
                self.show();
                return Ok(self.say(Event::Ended { task }));
            }
        }
        Ok(Flow::GoOn)
    }

    fn say(&self, event: Event) -> Flow {
        match self.events.blocking_send(event) {
            Ok(()) => Flow::GoOn,
            Err(_) => Flow::Over,
        }
    }

    fn send(&self, edge: usize, to: SubtaskIdx, element: Element) -> Result<Flow, Error> {
        let since_us = self.clock.now_us();
        let flow = match self.routes.get(&edge).and_then(|route| route.get(&to)) {
            Some(outlet) if outlet.push(element) => Flow::GoOn,
            _ => return self.cut_off(edge, to),
        };
        let blocked_us = self.clock.now_us() - since_us;
        self.progress.on_blocked(blocked_us);
        Ok(flow)
    }

    /// A channel that is over ends this task. Who ended it on purpose cancels the task, and so does the
    /// coordinator when it hears of a break; if nobody does this task must not be gone without a word.
    fn cut_off(&self, edge: usize, to: SubtaskIdx) -> Result<Flow, Error> {
        let cancelled = self.inbox.cancelled();
        let cancelled = async { tokio::time::timeout(CUT_OFF_PATIENCE, cancelled).await };
        match self.runtime.block_on(cancelled) {
            Ok(()) => Ok(Flow::Over),
            Err(_) => Err(Error::Connector {
                action: format!("send to subtask {} over edge {edge}", to.0),
                retry: true,
                source: "the channel is over".into(),
            }),
        }
    }

    /// Closes every sink's interval and hands all to the uploader.
    fn snapshot(&mut self, snapshot: CoreSnapshot) -> Result<Flow, Error> {
        let Barrier { id, kind, .. } = snapshot.barrier;
        // X4: what is open of a slot that nobody writes any more is closed. C9: a savepoint's output is
        // all visible.
        let closes = matches!(
            kind,
            CheckpointKind::Stop | CheckpointKind::Final | CheckpointKind::Savepoint
        );
        let closing = closes || self.core.has_left();
        if kind == CheckpointKind::HandOver {
            self.handed_over_us = self.step_began_us;
            let (_, subtasks_n) = self.place_after();
            for writer in self.writers.values_mut() {
                let share = |limit| Pace::share(limit, subtasks_n);
                writer.pace = writer.rate_limit.map(share);
            }
        }
        let mut staged = Vec::new();
        for writer in self.writers.values_mut() {
            if closing {
                writer.writer.close_at_next_stage();
            }
            staged.push((writer.slot.clone(), writer.writer.stage(id)?));
        }
        self.show();
        let freeze_us = self.clock.now_us().saturating_sub(self.step_began_us);
        let upload = Upload {
            snapshot,
            staged,
            freeze_us,
        };
        Ok(match self.uploads.blocking_send(upload) {
            Ok(()) => Flow::GoOn,
            Err(_) => Flow::Over,
        })
    }
}
