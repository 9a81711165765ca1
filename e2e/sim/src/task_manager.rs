//! A task manager, without threads: commands in, events out, one small thing at a time.
//!
//! Owns: one attempt at a time, uploads and publishing, and what it does without a session, in the
//! order of `taskmanager/src/{manager,session}.rs`. A publish outlives its attempt, as a request that
//! is under way does; a process that was frozen finds its mail when it wakes.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use streamforge_core::ids::{Epoch, SlotId, SubtaskIdx};
use streamforge_core::manifest::{Head, StagedInterval};
use streamforge_core::messages::{
    Command, Event, HandOver, Newest, Registration, Stamp, TaskManagerId,
};
use streamforge_engine::barrier::Barrier;
use streamforge_engine::staged::Staged;
use streamforge_store::MemoryStore;
use streamforge_store::memory::{Fault, Faults, Operation, OperationKind};

use crate::attempt::{Attempt, Outcome, Site};
use crate::net::{What, Wire};
use crate::outside::Outside;
use crate::publish::{KafkaSlots, Stage, Trouble};
use crate::reader::Sources;
use crate::rng::Rng;
use crate::task::Control;

/// A store that fails one call in so many, until the chaos is over.
#[derive(Debug)]
pub struct SeededFaults {
    /// Which call fails, and how.
    pub rng: Rng,
    /// One in so many; 0: none.
    pub one_in: u64,
    /// The chaos is over.
    pub calm: Arc<AtomicBool>,
}

impl Faults for SeededFaults {
    fn on_operation(&mut self, operation: Operation<'_>) -> Fault {
        let calm = self.calm.load(Ordering::Relaxed);
        if calm || self.one_in == 0 || !self.rng.one_in(self.one_in) {
            return Fault::None;
        }
        match (operation.kind, self.rng.below(3)) {
            (OperationKind::Put, 1) => Fault::FailAfter,
            (OperationKind::Put, 2) => Fault::LandLater,
            _ => Fault::FailBefore,
        }
    }
}

/// One interval of a slot that is being made visible.
#[derive(Debug)]
struct Publishing {
    stamp: Stamp,
    staged: Arc<Staged>,
    topic: Arc<Mutex<KafkaSlots>>,
    stage: Stage,
    slot: SlotId,
    interval: StagedInterval,
}

/// See the module.
pub struct TaskManager {
    /// Which process.
    pub id: TaskManagerId,
    /// Subtasks it can run.
    pub slots: u32,
    sources: Sources,
    /// Its client.
    pub store: MemoryStore,
    newest: Newest,
    attempt: Option<Attempt>,
    publishing: VecDeque<Publishing>,
    /// It publishes nothing now.
    pub holds_publishes: bool,
    /// Its tasks' threads stand still now; commands and uploads go on.
    pub holds_tasks: bool,
    /// The coordinator it has a session with.
    pub session: Option<u64>,
    /// Sent to it before its last session broke, and not read yet.
    pub mail: VecDeque<(Stamp, Command)>,
    /// Frozen until this step.
    pub asleep_until: u64,
    /// To the coordinator.
    pub out: Vec<(Stamp, Event)>,
    /// To other task managers.
    pub frames: Vec<(Wire, What)>,
}

impl TaskManager {
    /// A task manager that runs nothing.
    pub fn new(id: TaskManagerId, slots: u32, sources: Sources, store: MemoryStore) -> Self {
        Self {
            id,
            slots,
            sources,
            store,
            newest: Newest::default(),
            attempt: None,
            publishing: VecDeque::new(),
            holds_publishes: false,
            holds_tasks: false,
            session: None,
            mail: VecDeque::new(),
            asleep_until: 0,
            out: Vec::new(),
            frames: Vec::new(),
        }
    }

    /// Whether there is anything that it could do by itself.
    pub fn is_busy(&self) -> bool {
        self.attempt.is_some()
            || !self.publishing.is_empty()
            || !self.mail.is_empty()
            || self.session.is_none()
    }

    /// What it says of itself as a session begins.
    pub fn registration(&self) -> Registration {
        Registration {
            slots: self.slots,
            exchange: String::new(),
            runs: self.attempt.as_ref().map(|it| Box::new(it.running())),
        }
    }

    /// Which attempt, and which of its subtasks, runs here.
    pub fn runs(&self) -> Option<(Epoch, Vec<SubtaskIdx>)> {
        let attempt = self.attempt.as_ref()?;
        Some((attempt.born().0, attempt.subtasks().collect()))
    }

    fn with_site<T>(
        &mut self,
        outside: &mut Outside,
        act: impl FnOnce(&mut Option<Attempt>, &mut Site<'_>) -> T,
    ) -> T {
        let mut site = Site {
            me: &self.id,
            store: &self.store,
            sources: &self.sources,
            outside,
        };
        act(&mut self.attempt, &mut site)
    }

    /// A coordinator said something.
    pub fn on_command(&mut self, stamp: Stamp, command: Command, outside: &mut Outside) {
        if !self.newest.admits(&stamp) {
            return; // C5
        }
        match command {
            Command::Deploy(deployment) => {
                let prepared = self.with_site(outside, |attempt, site| {
                    *attempt = None;
                    Attempt::prepare(site, &stamp, *deployment)
                });
                let event = match prepared {
                    Ok((attempt, splits)) => {
                        self.attempt = Some(attempt);
                        Event::Prepared { splits }
                    }
                    Err(trouble) => trouble.event(),
                };
                self.out.push((stamp, event));
            }
            // Whatever runs is older, or is this one.
            Command::Cancel => self.attempt = None,
            Command::Prepare(hand_over) => self.open_hand_over(stamp, *hand_over, outside),
            Command::Adopt { void_to } => {
                let ours = self.attempt.as_mut();
                if let Some(current) = ours.filter(|it| is_same_attempt(&it.stamp(), &stamp)) {
                    let again = current.adopt(void_to, stamp.generation);
                    self.say(again);
                }
            }
            command => self.on_command_of_attempt(&stamp, command, outside),
        }
    }

    fn on_command_of_attempt(&mut self, stamp: &Stamp, command: Command, outside: &mut Outside) {
        let current = self.attempt.as_mut();
        let Some(current) = current.filter(|attempt| attempt.stamp() == *stamp) else {
            return;
        };
        match command {
            Command::Deploy(_) | Command::Prepare(_) | Command::Adopt { .. } | Command::Cancel => {}
            Command::Start { splits } => {
                let outcome = current.start(&splits, outside);
                self.say(outcome);
            }
            Command::Checkpoint { id, kind } => current.on_checkpoint(Barrier {
                id,
                kind,
                begun_by: stamp.generation,
            }),
            Command::Abort { id } => current.tell_all(&Control::Abort(id)),
            Command::Withdraw => {
                let outcome = current.withdraw();
                self.say(outcome);
            }
            Command::Receive(manifest) => {
                let outcome = current.receive(&self.store, &outside.book, *manifest);
                self.say(outcome);
            }
            Command::Committed { id } => {
                current.staged.on_committed(id);
                let outcome = current.on_committed(id);
                self.say(outcome);
            }
            Command::Publish { manifest, slots } => {
                current.staged.on_committed(manifest);
                for (slot, interval) in slots {
                    self.publishing.push_back(Publishing {
                        stamp: stamp.clone(),
                        staged: Arc::clone(&current.staged),
                        topic: Arc::clone(&current.topic),
                        stage: Stage::default(),
                        slot,
                        interval,
                    });
                }
            }
        }
    }

    /// Whoever runs nothing of it yet begins with an attempt without tasks.
    fn open_hand_over(&mut self, stamp: Stamp, hand_over: HandOver, outside: &mut Outside) {
        let opened: Result<Outcome, Trouble> = self.with_site(outside, |attempt, site| {
            let current = attempt.take().filter(|it| it.stamp() == stamp);
            let is_new = current.is_none();
            let mut current = current.unwrap_or_else(|| Attempt::join(site, &stamp, &hand_over));
            let opened = current.open_hand_over(site, Arc::new(hand_over));
            *attempt = (opened.is_ok() || !is_new).then_some(current);
            opened
        });
        match opened {
            Ok(mut outcome) => {
                outcome.push(Event::HandOverPrepared);
                self.say(outcome);
            }
            Err(trouble) => {
                let reason = format!("{trouble:?}");
                self.out.push((stamp, Event::HandOverRefused { reason }));
            }
        }
    }

    /// Whether a subtask has left it (K3).
    pub fn has_left(&self) -> bool {
        self.attempt.as_ref().is_some_and(Attempt::has_left)
    }

    /// Whether rows of it are in a transaction without their marker.
    pub fn has_sent(&self) -> bool {
        let mut publishing = self.publishing.iter();
        publishing.any(|it| matches!(it.stage, Stage::Sent(..)))
    }

    /// One source never hears of a checkpoint that it is about to take; false: none is.
    pub fn drop_a_barrier(&mut self) -> bool {
        self.attempt.as_mut().is_some_and(Attempt::drop_a_barrier)
    }

    /// Events of the attempt, under the stamp that holds when they leave. Without a session nobody
    /// hears them.
    fn say(&mut self, outcome: Outcome) {
        let Some(attempt) = &mut self.attempt else {
            return;
        };
        for event in outcome {
            let stamp = attempt.outbox.note(&event);
            if self.session.is_some() {
                self.out.push((stamp, event));
            }
        }
        self.frames.append(&mut attempt.frames);
    }

    /// Its session is over.
    pub fn on_session_lost(&mut self) {
        self.session = None;
        if let Some(attempt) = &mut self.attempt {
            attempt.tell_all(&Control::Orphaned(attempt.stamp().generation));
        }
    }

    /// It looked into the head (F4): a newer epoch ends its tasks.
    pub fn on_head(&mut self, head: &Head) {
        let stamp = Stamp {
            job: head.job.clone(),
            generation: head.generation,
            epoch: head.epoch,
        };
        let ours = self.attempt.as_ref().map(Attempt::stamp);
        if ours.is_some_and(|ours| ours.job != stamp.job || ours.epoch < stamp.epoch) {
            self.attempt = None;
        }
        self.newest.admits(&stamp);
    }

    /// A frame came. False: it is of another attempt, or of a channel that nobody accepts here.
    pub fn on_frame(&mut self, wire: &Wire, what: What) -> bool {
        let ours = self.attempt.as_mut();
        let ours = ours.filter(|attempt| attempt.born() == wire.born);
        ours.is_some_and(|attempt| attempt.on_frame(wire, what))
    }

    /// A channel broke of which one end is here (B2).
    pub fn on_broken(&mut self, wire: &Wire) {
        let ours = self.attempt.as_ref().map(Attempt::born);
        if ours == Some(wire.born) {
            self.say(vec![Attempt::on_broken(wire)]);
        }
    }

    /// One small thing that it does by itself.
    pub fn step(&mut self, rng: &mut Rng, now_ms: u64, outside: &mut Outside, calm: bool) {
        if let Some((stamp, command)) = self.mail.pop_front() {
            return self.on_command(stamp, command, outside);
        }
        if !self.publishing.is_empty() && !self.holds_publishes && rng.one_in(6) {
            return self.publish_one(rng, outside, calm);
        }
        let holds = self.holds_tasks;
        let outcome = self.with_site(outside, |attempt, site| {
            let attempt = attempt.as_mut();
            attempt.map(|attempt| attempt.step(rng, (now_ms, calm, holds), site))
        });
        self.say(outcome.unwrap_or_default());
    }

    /// Slots go side by side, each in its own order.
    fn publish_one(&mut self, rng: &mut Rng, outside: &mut Outside, calm: bool) {
        let mut first: BTreeMap<(Epoch, &SlotId), usize> = BTreeMap::new();
        for (idx, publishing) in self.publishing.iter().enumerate() {
            let turn = (publishing.stamp.epoch, &publishing.slot);
            first.entry(turn).or_insert(idx);
        }
        let first: Vec<usize> = first.into_values().collect();
        let Some(idx) = first.get(rng.pick(first.len())).copied() else {
            return;
        };
        let Some(publishing) = self.publishing.get_mut(idx) else {
            return;
        };
        let published = if outside.is_topic(&publishing.slot.sink) {
            publishing.send(&self.store, outside)
        } else {
            publishing.rename(rng, outside, calm)
        };
        if published == Ok(false) {
            return; // there is more to do
        }
        let Some(done) = self.publishing.remove(idx) else {
            return;
        };
        let (slot, interval) = (done.slot, done.interval.id);
        let event = match published {
            Ok(_) => {
                done.staged.on_published(&slot, interval);
                Event::Published { slot, interval }
            }
            Err(Trouble::TakenOver(reason)) => Event::TakenOver { reason },
            Err(Trouble::Again(reason) | Trouble::Refused(reason)) => Event::PublishFailed {
                slot,
                interval,
                reason,
            },
        };
        // The confirmation may get lost on its way; the notice comes again.
        if self.session.is_some() && (calm || !rng.one_in(10)) {
            self.out.push((done.stamp, event));
        }
    }
}

impl Publishing {
    /// By renames, all of them or some.
    fn rename(&self, rng: &mut Rng, outside: &mut Outside, calm: bool) -> Result<bool, Trouble> {
        let (slot, interval) = (&self.slot, &self.interval);
        let objects_n = interval.objects.len();
        if !calm && rng.one_in(6) {
            outside.publish(slot, interval, rng.pick(objects_n + 1));
            return Err(Trouble::Again("the disk is full".to_owned()));
        }
        outside.publish(slot, interval, objects_n);
        Ok(true)
    }

    /// One call to the broker.
    fn send(&mut self, store: &MemoryStore, outside: &mut Outside) -> Result<bool, Trouble> {
        let Some(broker) = &mut outside.broker else {
            return Ok(true);
        };
        let mut topic = self.topic.lock().unwrap_or_else(PoisonError::into_inner);
        let what = (&self.slot, &self.interval);
        let published = topic.advance((broker, store), what, &mut self.stage);
        outside.look_into_topic();
        if matches!(published, Err(Trouble::Refused(_))) {
            outside.check_kept(store, &self.interval);
        }
        published
    }
}

fn is_same_attempt(ours: &Stamp, stamp: &Stamp) -> bool {
    (&ours.job, ours.epoch) == (&stamp.job, stamp.epoch)
}
