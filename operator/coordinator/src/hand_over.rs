//! Key groups, splits and subtasks change their owners while the attempt goes on (K3).
//!
//! Owns: when that is due, who comes and who goes, and its steps: the head names the proposed table by
//! a swap, every task manager opens what it needs, the barrier of one checkpoint carries the change,
//! and the manifest of that checkpoint is its commit. Start at: [`Coordinator::hand_over_if_due`],
//! then [`Coordinator::go_on_handing_over`].
//!
//! Until the barrier is sent a hand-over can be withdrawn, and nothing ends; from then on whatever
//! gives its checkpoint up ends the epoch, because some sent by the new table already. Meanwhile no
//! other barrier is sent. Numbers of subtasks are not used twice in an epoch: so no channel, object
//! or slot of one that left can be taken for another's (B2, C4), and a slot never changes hands
//! within an attempt (X4): its task manager publishes what is left of it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use streamforge_core::ids::{CheckpointId, OperatorUid, SubtaskIdx, TaskId};
use streamforge_core::job_graph::OperatorKind;
use streamforge_core::manifest::{CheckpointKind, Manifest, Scaled};
use streamforge_core::messages::{Command, Deployment, HandOver, TaskManagerId};

use crate::coordinator::Coordinator;
use crate::decision::{Decision, Report};
use crate::head::Change;
use crate::placement::Places;
use crate::splits::deal_on;
use crate::status::Phase;

/// A hand-over under way.
#[derive(Debug)]
pub(crate) struct HandingOver {
    pub plan: HandOver,
    pub places: Places,
    pub step: Step,
    since_ms: u64,
    /// Tasks that have what they gained.
    received: BTreeSet<TaskId>,
}

/// How far a hand-over is.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// The head is to name the table.
    Proposing,
    /// These have not opened what they need.
    Preparing(BTreeSet<TaskManagerId>),
    /// The barrier of this checkpoint is sent.
    UnderWay(CheckpointId),
    /// The new table holds; some tasks still wait for what they gain.
    Committed(CheckpointId),
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Proposing => f.write_str("a table is being proposed"),
            Self::Preparing(unprepared) => {
                write!(f, "{} task managers are opening channels", unprepared.len())
            }
            Self::UnderWay(id) => write!(f, "checkpoint {id} is under way"),
            Self::Committed(id) => write!(f, "tasks load what they gained by checkpoint {id}"),
        }
    }
}

impl Coordinator {
    /// The task manager of this name is to give its subtasks away.
    ///
    /// # Errors
    /// When there is no such one, or nobody to give them to.
    pub fn check_drain(&self, name: &str) -> Result<TaskManagerId, String> {
        let mut members = self.members.iter();
        let found = members.find(|(id, _)| id.name == name);
        let unknown = || {
            let names: Vec<&str> = self.members.iter().map(|it| it.0.name.as_str()).collect();
            format!(
                "no task manager is called `{name}`; there are {}",
                names.join(", ")
            )
        };
        let id = found.map(|(id, _)| id.clone()).ok_or_else(unknown)?;
        if self.members.leaves(&id) || self.members.any_stays_without(&id) {
            return Ok(id);
        }
        Err(format!(
            "nobody would be left to take what `{name}` runs: start another task manager first, or end the \
             job with `streamforge stop`"
        ))
    }

    /// Right after a checkpoint: is somebody to come, or to go?
    pub(crate) fn hand_over_if_due(&mut self) {
        let Some(attempt) = &self.attempt else { return };
        if !self.just_committed
            || self.phase != Phase::Running
            || attempt.hand_over.is_some()
            || self.in_flight.is_some()
            || self.committing.is_some()
            || !self.store.is_free()
            || self.now_ms < self.grow_at_ms
            || attempt.ended == attempt.tasks
        {
            return;
        }
        self.just_committed = false;
        let Some((places, joining, leaving)) = self.changed_places() else {
            return;
        };
        self.propose(places, joining, leaving);
    }

    /// Who runs what next, if that is not as it is.
    fn changed_places(&self) -> Option<(Places, BTreeSet<SubtaskIdx>, BTreeSet<SubtaskIdx>)> {
        let attempt = self.attempt.as_ref()?;
        let slots = self.slots();
        let total = slots.values().fold(0, |sum: u32, n| sum.saturating_add(*n));
        let wanted = self.wanted.min(total).max(1) as usize;
        let mut free: BTreeMap<&TaskManagerId, u32> = slots;
        let mut places = Places::new();
        // The highest numbers go first.
        for (idx, id) in &attempt.places {
            let Some(n) = free.get_mut(id).filter(|n| **n > 0) else {
                continue;
            };
            if places.len() < wanted {
                *n -= 1;
                places.insert(*idx, id.clone());
            }
        }
        let mut next = self.next_number();
        let mut joining = BTreeSet::new();
        while places.len() < wanted {
            let running = |id: &TaskManagerId| places.values().filter(|it| *it == id).count();
            let least = free.iter().filter(|(_, n)| **n > 0);
            let least = least.map(|(id, _)| *id).min_by_key(|id| (running(id), *id));
            let id = least?.clone();
            if let Some(n) = free.get_mut(&id) {
                *n -= 1;
            }
            places.insert(SubtaskIdx(next), id);
            joining.insert(SubtaskIdx(next));
            next += 1;
        }
        let stays = |idx: &&SubtaskIdx| !places.contains_key(*idx);
        let leaving: BTreeSet<SubtaskIdx> = attempt.places.keys().filter(stays).copied().collect();
        (!joining.is_empty() || !leaving.is_empty()).then_some((places, joining, leaving))
    }

    /// A number that no subtask of this epoch and no slot with unpublished output has.
    fn next_number(&self) -> u32 {
        let used = self.head.head().map_or(0, |head| head.numbers_to);
        let places = self.attempt.iter().flat_map(|it| it.places.keys());
        let places = places.map(|idx| idx.0 + 1).max().unwrap_or(0);
        let listed = self.committed.iter().flat_map(|it| &it.staged);
        let listed = listed.map(|state| state.slot.slot + 1).max().unwrap_or(0);
        let owned = self
            .attempt
            .iter()
            .flat_map(|it| it.deployment.slots.keys());
        let owned = owned.map(|slot| slot + 1).max().unwrap_or(0);
        used.max(places).max(listed).max(owned)
    }

    fn propose(
        &mut self,
        places: Places,
        joining: BTreeSet<SubtaskIdx>,
        leaving: BTreeSet<SubtaskIdx>,
    ) {
        let (Some(attempt), Some(committed)) = (&self.attempt, &self.committed) else {
            return;
        };
        let subtasks: BTreeSet<SubtaskIdx> = places.keys().copied().collect();
        let before = &attempt.deployment;
        let mut slots = before.slots.clone();
        let new = joining.iter();
        slots.extend(new.filter_map(|idx| Some((idx.0, places.get(idx)?.clone()))));
        let assignment = before.assignment.dealt_to(&subtasks);
        let plan = HandOver {
            deployment: Deployment {
                parallelism: u32::try_from(places.len()).unwrap_or(u32::MAX),
                assignment: assignment.clone(),
                placement: self.placement(&places),
                slots,
                ..before.clone()
            },
            splits: deal_on(&committed.sources, &attempt.holders, &subtasks),
            joining,
            leaving,
        };
        let numbers = plan.joining.iter().chain(attempt.places.keys());
        let numbers_to = numbers.map(|idx| idx.0 + 1).max().unwrap_or(0);
        let (from, to) = (attempt.places.len(), places.len());
        let hand_over = HandingOver {
            plan,
            places,
            step: Step::Proposing,
            since_ms: self.now_ms,
            received: BTreeSet::new(),
        };
        if let Some(attempt) = &mut self.attempt {
            attempt.hand_over = Some(hand_over);
        }
        self.report(Report::HandingOver { from, to });
        self.swap(Change::Propose {
            assignment,
            numbers_to,
        });
    }

    /// The head names the table: everybody opens what it needs.
    pub(crate) fn on_proposed(&mut self) {
        let Some(attempt) = &mut self.attempt else {
            return;
        };
        let everybody = attempt.workers();
        let Some(hand_over) = &mut attempt.hand_over else {
            return;
        };
        hand_over.step = Step::Preparing(everybody.clone());
        let prepare = Command::Prepare(Box::new(hand_over.plan.clone()));
        self.send_to(everybody, &prepare);
    }

    pub(crate) fn on_hand_over_prepared(&mut self, from: &TaskManagerId) {
        if let Some(Step::Preparing(unprepared)) = self.hand_over_step() {
            unprepared.remove(from);
        }
    }

    pub(crate) fn on_hand_over_refused(&mut self, from: &TaskManagerId, reason: &str) {
        if let Some(Step::Preparing(_)) = self.hand_over_step() {
            self.withdraw(&format!("task manager {}: {reason}", from.name));
        }
    }

    fn hand_over_step(&mut self) -> Option<&mut Step> {
        let hand_over = self.attempt.as_mut()?.hand_over.as_mut()?;
        Some(&mut hand_over.step)
    }

    /// The next step, when the last one is done.
    pub(crate) fn go_on_handing_over(&mut self) {
        let Some(attempt) = &self.attempt else { return };
        let Some(hand_over) = &attempt.hand_over else {
            return;
        };
        let timeout_ms = self.config.checkpoint.timeout_ms;
        match &hand_over.step {
            Step::Proposing => {}
            Step::Preparing(_)
                if self.phase != Phase::Running || attempt.ended == attempt.tasks =>
            {
                self.withdraw("the job ends");
            }
            Step::Preparing(unprepared) if unprepared.is_empty() => self.send_barrier(),
            Step::Preparing(unprepared) if hand_over.since_ms + timeout_ms <= self.now_ms => {
                let names: Vec<&str> = unprepared.iter().map(|id| id.name.as_str()).collect();
                let names = names.join(", ");
                self.withdraw(&format!("not prepared after {timeout_ms} ms by {names}"));
            }
            Step::Preparing(_) | Step::UnderWay(_) => {}
            Step::Committed(_) if attempt.tasks.is_subset(&hand_over.received) => {
                self.handed_over();
            }
            // Nothing can be done without what is awaited, not even a checkpoint.
            Step::Committed(_) if hand_over.since_ms + 2 * timeout_ms <= self.now_ms => {
                let mut late = attempt.tasks.difference(&hand_over.received);
                let late = late
                    .next()
                    .and_then(|task| attempt.places.get(&task.subtask));
                let late = late.cloned();
                let cause = "a task has not received its key groups in time";
                self.on_failed(late.as_ref(), cause, true);
            }
            Step::Committed(_) => {}
        }
    }

    fn send_barrier(&mut self) {
        if self.in_flight.is_some() || self.committing.is_some() || !self.store.is_free() {
            return;
        }
        let Some(id) = self.reserved_id() else {
            return self.swap(Change::Reserve);
        };
        let kind = CheckpointKind::HandOver;
        self.begin(id, kind);
        if let Some(step) = self.hand_over_step() {
            *step = Step::UnderWay(id);
        }
        let everybody = self.attempt.iter().flat_map(|it| it.workers()).collect();
        self.send_to(everybody, &Command::Checkpoint { id, kind });
    }

    /// All tasks have acknowledged it. What follows does not wait for the commit: should that fail,
    /// the epoch ends.
    pub(crate) fn let_receive(&mut self, manifest: &Manifest) {
        let gainers = self.gainers();
        let Some(attempt) = &mut self.attempt else {
            return;
        };
        // They read again: what they said of their end was of the splits they had.
        attempt.ended.retain(|task| !gainers.contains(task));
        let everybody = attempt.workers();
        self.send_to(everybody, &Command::Receive(Box::new(manifest.clone())));
    }

    /// Source tasks that get splits which others had.
    fn gainers(&self) -> BTreeSet<TaskId> {
        let Some(attempt) = &self.attempt else {
            return BTreeSet::new();
        };
        let splits = attempt.hand_over.iter().flat_map(|it| &it.plan.splits);
        let mut gainers = BTreeSet::new();
        for (source, deal) in splits {
            let Some(stage) = self.stage_of(source) else {
                continue;
            };
            let held = attempt.holders.get(source);
            for (split, subtask) in deal {
                let holder = held.and_then(|held| held.get(split));
                if holder != Some(subtask) {
                    let subtask = *subtask;
                    gainers.insert(TaskId { stage, subtask });
                }
            }
        }
        gainers
    }

    fn stage_of(&self, source: &OperatorUid) -> Option<streamforge_core::ids::StageIdx> {
        let mut operators = self.config.graph.operators();
        let is_it = |operator: &streamforge_core::job_graph::Operator| {
            operator.uid == *source && matches!(operator.kind, OperatorKind::Source(_))
        };
        let found = operators.find(|(_, operator)| is_it(operator));
        found.map(|(stage, _)| stage)
    }

    pub(crate) fn on_received(&mut self, task: TaskId, id: CheckpointId) {
        let Some(hand_over) = self.attempt.as_mut().and_then(|it| it.hand_over.as_mut()) else {
            return;
        };
        if matches!(hand_over.step, Step::UnderWay(at) | Step::Committed(at) if at == id) {
            hand_over.received.insert(task);
        }
    }

    /// The manifest of a hand-over is the head's newest: its table holds.
    pub(crate) fn on_hand_over_committed(&mut self, manifest: &Manifest) {
        let Some(attempt) = &mut self.attempt else {
            return;
        };
        let Some(hand_over) = &mut attempt.hand_over else {
            return;
        };
        hand_over.step = Step::Committed(manifest.id);
        attempt.deployment = hand_over.plan.deployment.clone();
        attempt.places = hand_over.places.clone();
        let subtasks: Vec<SubtaskIdx> = attempt.places.keys().copied().collect();
        attempt.tasks = self.config.graph.tasks_of(subtasks).collect();
        attempt.ended.retain(|task| attempt.tasks.contains(task));
        attempt.sources = manifest.sources.clone();
        attempt.departed = manifest.departed.clone();
        let everybody = attempt.task_managers();
        let gone = |id: &TaskManagerId| !everybody.contains(id);
        attempt.progress.retain(|id, _| !gone(id));
        self.places = attempt.places.clone();
        self.status.parallelism = attempt.deployment.parallelism;
    }

    /// Every task has what it gained. The next checkpoint is taken at once: one who comes later needs
    /// not know of this.
    fn handed_over(&mut self) {
        let Some(attempt) = &mut self.attempt else {
            return;
        };
        let Some(hand_over) = attempt.hand_over.take() else {
            return;
        };
        let took_ms = self.now_ms.saturating_sub(hand_over.since_ms);
        let to = attempt.places.len();
        self.hand_overs_failed_n = 0;
        self.checkpoint_at_ms = self.now_ms;
        self.report(Report::HandedOver { to, took_ms });
    }

    /// Before its barrier is sent a hand-over can be given up, and nothing ends.
    pub(crate) fn withdraw(&mut self, reason: &str) {
        let Some(attempt) = &mut self.attempt else {
            return;
        };
        if attempt.hand_over.is_none() {
            return;
        }
        let everybody = attempt.workers();
        attempt.hand_over = None;
        self.put_off_hand_over();
        let reason = reason.to_owned();
        self.report(Report::HandOverWithdrawn { reason });
        self.swap(Change::Withdraw);
        self.send_to(everybody, &Command::Withdraw);
    }

    /// Each failure in a row puts the next attempt off for longer.
    pub(crate) fn put_off_hand_over(&mut self) {
        let policy = &self.config.restart;
        let factor = 1 << self.hand_overs_failed_n.min(20);
        let wait_ms = policy.backoff_initial_ms.saturating_mul(factor);
        self.hand_overs_failed_n += 1;
        let at_ms = self.now_ms + wait_ms.min(policy.backoff_max_ms);
        self.grow_at_ms = self.grow_at_ms.max(at_ms);
    }

    /// A task manager is gone that takes part in a hand-over, or whose slots still have output. True:
    /// the attempt is over.
    pub(crate) fn on_partner_lost(&mut self, id: &TaskManagerId) -> bool {
        let Some(attempt) = &self.attempt else {
            return false;
        };
        let takes_part = |it: &HandingOver| it.places.values().any(|place| place == id);
        let step = attempt.hand_over.as_ref().filter(|it| takes_part(it));
        match step.map(|it| &it.step) {
            Some(Step::Proposing | Step::Preparing(_)) => {
                // What it still has to publish decides about the attempt.
                self.withdraw(&format!("task manager {} is gone", id.name));
            }
            Some(Step::UnderWay(_) | Step::Committed(_)) => return true,
            None => {}
        }
        let Some(attempt) = &mut self.attempt else {
            return false;
        };
        let unpublished = self.publisher.unpublished_slots();
        let slots = &mut attempt.deployment.slots;
        let mut theirs = slots.iter().filter(|(_, owner)| *owner == id);
        let has_output = theirs.any(|(slot, _)| unpublished.contains(slot));
        if !has_output {
            slots.retain(|_, owner| owner != id);
        }
        has_output
    }

    /// Whether this subtask joins at a barrier that is not sent.
    pub(crate) fn is_to_join(&self, subtask: SubtaskIdx) -> bool {
        let hand_over = self.attempt.as_ref().and_then(|it| it.hand_over.as_ref());
        hand_over.is_some_and(|it| {
            matches!(it.step, Step::Proposing | Step::Preparing(_))
                && it.plan.joining.contains(&subtask)
        })
    }

    /// A channel broke; if one of its ends joins or has left, that ends less than the attempt. True:
    /// that was all of it.
    pub(crate) fn is_beside(&mut self, ends: [SubtaskIdx; 2], cause: &str) -> bool {
        let Some(attempt) = &self.attempt else {
            return true;
        };
        if ends.iter().all(|end| attempt.places.contains_key(end)) {
            return false;
        }
        let hand_over = attempt.hand_over.as_ref();
        let joins = |end: &SubtaskIdx| hand_over.is_some_and(|it| it.plan.joining.contains(end));
        match hand_over.map(|it| &it.step) {
            Some(Step::UnderWay(_)) => false,
            Some(Step::Proposing | Step::Preparing(_)) if ends.iter().any(joins) => {
                self.withdraw(cause);
                true
            }
            _ => true, // of one that has left, or was to join and did not
        }
    }

    /// What a person may ask for.
    pub fn check_scale(&self, parallelism: u32) -> Result<(), String> {
        let max = self.config.graph.max_parallelism;
        if parallelism == 0 || parallelism > max {
            return Err(format!(
                "parallelism {parallelism} is not between 1 and {max}, the maxParallelism"
            ));
        }
        match self.phase {
            Phase::Stopping | Phase::Finishing | Phase::Ended => Err("the job ends".to_owned()),
            Phase::Starting => Err("the coordinator is starting".to_owned()),
            Phase::Deploying | Phase::Running | Phase::Recovering => Ok(()),
        }
    }

    pub(crate) fn on_scale(&mut self, parallelism: u32) {
        if self.check_scale(parallelism).is_err() || self.wanted == parallelism {
            return;
        }
        self.wanted = parallelism;
        self.unsaved_scale = true;
        // It may be more than there are slots for: no start waits for those.
        self.may_run_smaller = true;
        self.report(Report::Scaling { to: parallelism });
        self.hurry();
    }

    /// The hand-over follows a checkpoint, and that is taken now.
    pub(crate) fn hurry(&mut self) {
        self.grow_at_ms = self.now_ms;
        self.checkpoint_at_ms = self.now_ms;
    }

    /// The head remembers what was asked for, or a new coordinator would undo it.
    pub(crate) fn save_scale(&mut self) {
        let is_idle = self.in_flight.is_none() && self.committing.is_none();
        if !self.unsaved_scale || !is_idle || !self.store.is_free() || self.head.head().is_none() {
            return;
        }
        self.swap(Change::Scale(Scaled {
            started_with: self.config.parallelism,
            to: self.wanted,
        }));
    }

    /// Tells these.
    pub(crate) fn send_to(&mut self, ids: BTreeSet<TaskManagerId>, command: &Command) {
        let Some(attempt) = &self.attempt else { return };
        let stamp = attempt.stamp.clone();
        for id in ids {
            let decision = Decision::Send(id, stamp.clone(), command.clone());
            self.out.push(decision);
        }
    }
}

impl HandingOver {
    /// One that a coordinator finds committed when it adopts the attempt: whether each task has heard
    /// of it is not known.
    pub(crate) fn adopted(
        deployment: Deployment,
        places: Places,
        id: CheckpointId,
        now_ms: u64,
    ) -> Self {
        Self {
            plan: HandOver {
                deployment,
                joining: BTreeSet::new(),
                leaving: BTreeSet::new(),
                splits: BTreeMap::new(),
            },
            places,
            step: Step::Committed(id),
            since_ms: now_ms,
            received: BTreeSet::new(),
        }
    }
}
