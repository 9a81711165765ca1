//! A task manager, without threads: commands in, events out, one small thing at a time.
//!
//! Owns: one attempt at a time, uploads and publishing, in the order of `taskmanager/src`. A publish
//! outlives its attempt, as a request that is under way does.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use streamforge_core::ids::{OperatorUid, SlotId};
use streamforge_core::manifest::StagedInterval;
use streamforge_core::messages::{Command, Event, Newest, Stamp};
use streamforge_engine::barrier::Barrier;
use streamforge_engine::staged::Staged;
use streamforge_store::MemoryStore;
use streamforge_store::memory::{Fault, Faults, Operation, OperationKind};

use crate::attempt::{Attempt, Outcome};
use crate::job::Input;
use crate::outside::Outside;
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

/// A commit notice that is worked off.
#[derive(Debug)]
struct Publishing {
    stamp: Stamp,
    staged: Arc<Staged>,
    left: VecDeque<(SlotId, StagedInterval)>,
}

/// See the module.
pub struct TaskManager {
    /// Which.
    pub id: u64,
    input: Arc<Input>,
    unbounded: bool,
    store: MemoryStore,
    newest: Newest,
    attempt: Option<Attempt>,
    publishing: Vec<Publishing>,
    /// It publishes nothing now.
    pub holds_publishes: bool,
    /// To whoever is connected.
    pub out: Vec<(Stamp, Event)>,
}

impl TaskManager {
    /// A task manager that runs nothing.
    pub fn new(id: u64, input: &Arc<Input>, unbounded: bool, store: MemoryStore) -> Self {
        Self {
            id,
            input: Arc::clone(input),
            unbounded,
            store,
            newest: Newest::default(),
            attempt: None,
            publishing: Vec::new(),
            holds_publishes: false,
            out: Vec::new(),
        }
    }

    /// Whether there is anything that it could do by itself.
    pub fn is_busy(&self) -> bool {
        self.attempt.is_some() || !self.publishing.is_empty()
    }

    /// A coordinator said something.
    pub fn on_command(&mut self, stamp: Stamp, command: Command, outside: &mut Outside) {
        if !self.newest.admits(&stamp) {
            return; // C5
        }
        if let Command::Deploy(deployment) = command {
            self.attempt = None;
            discard(
                &deployment.graph,
                deployment.restore.as_ref(),
                &stamp,
                outside,
            );
            let prepared = Attempt::prepare(
                stamp.clone(),
                *deployment,
                &self.store,
                &self.input,
                self.unbounded,
            );
            let event = match prepared {
                Ok((attempt, splits)) => {
                    self.attempt = Some(attempt);
                    Event::Prepared { splits }
                }
                Err((cause, retry)) => Event::Failed {
                    task: None,
                    cause,
                    retry,
                },
            };
            self.out.push((stamp, event));
            return;
        }
        let Some(current) = self
            .attempt
            .as_mut()
            .filter(|attempt| attempt.stamp == stamp)
        else {
            return;
        };
        match command {
            Command::Deploy(_)
            | Command::Adopt { .. }
            | Command::Prepare(_)
            | Command::Withdraw
            | Command::Receive(_)
            | Command::Committed { .. } => {}
            Command::Start { splits } => {
                let outcome = current.start(splits, outside);
                self.say(outcome);
            }
            Command::Checkpoint { id, kind } => {
                current.tell_sources(Control::Checkpoint(Barrier { id, kind }));
            }
            Command::Abort { id } => current.tell_all(Control::Abort(id)),
            Command::Publish { slots, .. } => self.publishing.push(Publishing {
                stamp,
                staged: Arc::clone(&current.staged),
                left: slots.into(),
            }),
            Command::Cancel => self.attempt = None,
        }
    }

    /// One source never hears of a checkpoint that it is about to take; false: none is.
    pub fn drop_a_barrier(&mut self) -> bool {
        self.attempt.as_mut().is_some_and(Attempt::drop_a_barrier)
    }

    fn say(&mut self, outcome: Outcome) {
        if let Some(attempt) = &self.attempt {
            let stamp = &attempt.stamp;
            self.out
                .extend(outcome.into_iter().map(|event| (stamp.clone(), event)));
        }
    }

    /// One small thing that it does by itself.
    pub fn step(&mut self, rng: &mut Rng, now_ms: u64, outside: &mut Outside, calm: bool) {
        if !self.publishing.is_empty() && !self.holds_publishes && rng.one_in(6) {
            return self.publish_one(rng, outside, calm);
        }
        if let Some(attempt) = &mut self.attempt {
            let outcome = attempt.step(rng, now_ms, &self.store, outside, calm);
            self.say(outcome);
        }
    }

    fn publish_one(&mut self, rng: &mut Rng, outside: &mut Outside, calm: bool) {
        let idx = rng.pick(self.publishing.len());
        let Some(publishing) = self.publishing.get_mut(idx) else {
            return;
        };
        let Some((slot, interval)) = publishing.left.pop_front() else {
            self.publishing.swap_remove(idx);
            return;
        };
        let event = if !calm && rng.one_in(6) {
            // Some of it may be visible by now.
            outside.publish(&slot, &interval, rng.pick(interval.objects.len() + 1));
            let reason = "the disk is full".to_owned();
            Event::PublishFailed {
                slot,
                interval: interval.id,
                reason,
            }
        } else {
            outside.publish(&slot, &interval, interval.objects.len());
            publishing.staged.on_published(&slot, interval.id);
            Event::Published {
                slot,
                interval: interval.id,
            }
        };
        // The confirmation may get lost on its way; the notice comes again.
        if calm || !rng.one_in(10) {
            self.out.push((publishing.stamp.clone(), event));
        }
    }
}

/// What dead attempts staged and the restored manifest does not list is removed (C6).
fn discard(
    graph: &streamforge_core::job_graph::JobGraph,
    restore: Option<&streamforge_core::manifest::Manifest>,
    stamp: &Stamp,
    outside: &mut Outside,
) {
    use streamforge_core::job_graph::OperatorKind;
    let sinks = graph
        .operators()
        .filter(|(_, it)| matches!(it.kind, OperatorKind::Sink(_)));
    for (_, operator) in sinks {
        let uid: &OperatorUid = &operator.uid;
        let slots = restore.iter().flat_map(|manifest| &manifest.staged);
        let listed: Vec<StagedInterval> = slots
            .filter(|slot| slot.slot.sink == *uid)
            .flat_map(|slot| slot.intervals.iter().cloned())
            .collect();
        outside.discard_unlisted(uid, &listed, (stamp.generation, stamp.epoch));
    }
}
