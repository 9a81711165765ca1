//! The coordinator of one job.
//!
//! Owns: the state that its rules share, and who is asked when something happens. The rules
//! themselves are in the other modules, most of them as further `impl Coordinator` blocks.
//! Start at: [`Coordinator::on`].
//!
//! Invariant C5: nothing is sent to a task manager before this coordinator's swap of the head to its
//! own generation is known to have succeeded, and nothing after it lost one.

use streamforge_core::ids::{CheckpointId, TaskId};
use streamforge_core::manifest::{Head, Manifest};
use streamforge_core::messages::{Command, Event, Registration, Stamp, TaskManagerId};

use crate::attempt::Attempt;
use crate::channels::Channels;
use crate::checkpoint::{Committing, InFlight};
use crate::cleaning::Cleaning;
use crate::config::Config;
use crate::decision::{Decision, Outcome, Report};
use crate::error::Error;
use crate::head::{Change, HeadKeeper, Step};
use crate::import::Import;
use crate::input::Input;
use crate::lane::{Answered, Lane, RequestIds};
use crate::members::Members;
use crate::placement::Places;
use crate::publish::Publisher;
use crate::recording::Recording;
use crate::restart::RestartBudget;
use crate::retention::Retention;
use crate::savepoint::Savepoints;
use crate::start::Starting;
use crate::status::{Phase, Status};
use crate::store_request::{RequestId, StoreAnswer, StoreRequest};

/// How often the store is asked in vain before a start is given up: about three seconds, so that a
/// person at a terminal is told, and a short outage is passed over.
const START_ATTEMPTS_MAX: u32 = 6;

/// What the job's own request to the store is for.
#[derive(Debug)]
pub(crate) enum Purpose {
    /// Reading what there is, before anything is written.
    Start,
    /// Reading a savepoint, and copying it.
    Import,
    /// Writing a manifest that no head names yet.
    PutManifest,
    /// The swap of the head, or the reading back after it.
    Swap,
}

/// The coordinator of one job: events in, decisions out.
#[derive(Debug)]
pub struct Coordinator {
    pub(crate) config: Config,
    pub(crate) now_ms: u64,
    pub(crate) phase: Phase,
    pub(crate) starting: Starting,
    /// The savepoint that the job is to begin with, until it does.
    pub(crate) import: Option<Import>,
    pub(crate) head: HeadKeeper,
    pub(crate) store: Lane<Purpose>,
    pub(crate) cleaner: Lane<Cleaning>,
    pub(crate) requests: RequestIds,
    pub(crate) next_id: CheckpointId,
    /// The newest manifest that the head names.
    pub(crate) committed: Option<Manifest>,
    pub(crate) members: Members,
    /// Who runs what in the attempt, or ran what in the last one.
    pub(crate) places: Places,
    pub(crate) attempt: Option<Attempt>,
    /// The head names an epoch of which nothing has been sent yet.
    pub(crate) undeployed: bool,
    /// The takeover left the epoch as it was.
    pub(crate) adoption_begins: bool,
    /// Until when the attempt that the head names may still turn out to be running.
    pub(crate) adopt_until_ms: Option<u64>,
    /// The job ran before: it goes on with as many subtasks as there are slots.
    pub(crate) may_run_smaller: bool,
    /// When there was nobody left: until when others may come before fewer are made do with.
    pub(crate) gather_until_ms: Option<u64>,
    /// When it began to swap the head last: that is how it learns of a newer coordinator.
    pub(crate) swapped_at_ms: u64,
    /// Until when a lost task manager belongs to the loss before it.
    pub(crate) incident_until_ms: u64,
    pub(crate) same_incident: bool,
    /// Channels that broke although both sessions live, and who has no place because of them.
    pub(crate) channels: Channels,
    /// Subtasks that are wanted: what the coordinator was started with, or was asked for since.
    pub(crate) wanted: u32,
    /// The head does not know of what was asked for.
    pub(crate) unsaved_scale: bool,
    /// Hand-overs in a row that came to nothing.
    pub(crate) hand_overs_failed_n: u32,
    /// Not before this subtasks come or go.
    pub(crate) grow_at_ms: u64,
    pub(crate) grow_wait_ms: u64,
    /// An ordinary checkpoint is committed, and nothing has followed it yet.
    pub(crate) just_committed: bool,
    pub(crate) in_flight: Option<InFlight>,
    /// A manifest whose naming swap has begun and is not resolved (C2).
    pub(crate) committing: Option<Committing>,
    pub(crate) publisher: Publisher,
    pub(crate) savepoints: Savepoints,
    pub(crate) retention: Retention,
    pub(crate) budget: RestartBudget,
    /// When the next attempt begins, after a failure.
    pub(crate) recover_at_ms: Option<u64>,
    /// When the next checkpoint is due.
    pub(crate) checkpoint_at_ms: u64,
    /// Not before this a savepoint, stop or final checkpoint that failed is tried again.
    pub(crate) retry_at_ms: u64,
    pub(crate) failures_in_a_row_n: u32,
    /// When a person asked for a stop.
    pub(crate) stop_since_ms: Option<u64>,
    /// Until when a stop waits for its output to be published.
    pub(crate) publish_until_ms: Option<u64>,
    /// What a stop has published is being recorded.
    pub(crate) recording: Recording,
    /// The swap that finishes the job has begun, and is repeated until it has succeeded.
    pub(crate) finish_begun: bool,
    /// A publisher found itself the zombie: how it knows. The head is being read.
    pub(crate) taken_over: Option<String>,
    /// What the store's last answer was, if it was none.
    pub(crate) store_trouble: Option<String>,
    pub(crate) status: Status,
    pub(crate) out: Vec<Decision>,
}

impl Coordinator {
    /// A coordinator that has done nothing yet; the first [`Input::Tick`] starts it.
    #[must_use]
    pub fn new(config: Config) -> Self {
        Self {
            now_ms: 0,
            phase: Phase::Starting,
            starting: Starting::default(),
            import: None,
            head: HeadKeeper::new(config.nonce_seed),
            store: Lane::default(),
            cleaner: Lane::default(),
            requests: RequestIds::default(),
            next_id: CheckpointId::ZERO.next(),
            committed: None,
            members: Members::default(),
            places: Places::new(),
            attempt: None,
            undeployed: false,
            adoption_begins: false,
            adopt_until_ms: None,
            may_run_smaller: false,
            gather_until_ms: None,
            swapped_at_ms: 0,
            channels: Channels::default(),
            incident_until_ms: 0,
            same_incident: false,
            wanted: config.parallelism,
            unsaved_scale: false,
            hand_overs_failed_n: 0,
            grow_at_ms: 0,
            grow_wait_ms: 0,
            just_committed: false,
            in_flight: None,
            committing: None,
            publisher: Publisher::default(),
            savepoints: Savepoints::default(),
            retention: Retention::default(),
            budget: RestartBudget::new(config.restart.clone()),
            recover_at_ms: None,
            checkpoint_at_ms: 0,
            retry_at_ms: 0,
            failures_in_a_row_n: 0,
            stop_since_ms: None,
            publish_until_ms: None,
            recording: Recording::default(),
            finish_begun: false,
            taken_over: None,
            store_trouble: None,
            status: Status {
                parallelism: config.parallelism,
                ..Status::default()
            },
            out: Vec::new(),
            config,
        }
    }

    /// One thing happened at `now_ms` (milliseconds since the epoch, never going back): what is to
    /// be done about it, in this order.
    pub fn on(&mut self, now_ms: u64, input: Input) -> Vec<Decision> {
        self.now_ms = now_ms.max(self.now_ms);
        if self.phase == Phase::Ended {
            return Vec::new();
        }
        match input {
            Input::Tick => self.on_tick(),
            Input::Store(id, answer) => self.on_store(id, answer),
            Input::Registered {
                task_manager,
                registration,
            } => self.on_registered(task_manager, *registration),
            Input::Heard(task_manager) => self.members.heard(&task_manager),
            Input::Task(from, stamp, event) => self.on_task(&from, &stamp, event),
            Input::SessionLost {
                task_manager,
                cause,
            } => {
                let released = self.members.is_released(&task_manager);
                let was_there = self.members.remove(&task_manager);
                if was_there && released {
                    self.on_task_manager_left(&task_manager);
                } else if was_there {
                    self.on_task_manager_lost(&task_manager, &cause);
                }
                if was_there {
                    self.call_replaced(&task_manager);
                }
            }
            Input::TaskManagersEnded => {
                let cause = "the task manager has ended, and no other will come".to_owned();
                self.fail(Error::Job { cause });
            }
            Input::Leaving(task_manager) => self.on_leaving(&task_manager, false),
            Input::Ending(task_manager) => self.on_leaving(&task_manager, true),
            Input::Scale(parallelism) => self.on_scale(parallelism),
            Input::Savepoint { name, stops } => self.on_savepoint(name, stops),
            Input::Stop => self.on_stop(),
        }
        self.go_on();
        std::mem::take(&mut self.out)
    }

    /// How the job does.
    #[must_use]
    pub fn status(&self) -> Status {
        let mut status = self.status.clone();
        status.phase = self.phase;
        status.wanted = self.wanted;
        let hand_over = self.attempt.as_ref().and_then(|it| it.hand_over.as_ref());
        status.hand_over = hand_over.map(|it| it.step.to_string());
        status.task_managers_n = self.members.len();
        status.drained = self.members.drained();
        status.unpublished_n = self.publisher.unpublished_n();
        status.stop_waits_for = self.stop_waits_for();
        status.checkpoint.in_flight = self
            .in_flight
            .as_ref()
            .map(|in_flight| (in_flight.id, in_flight.since_ms));
        status
    }

    /// The head, as this coordinator last knew it.
    #[must_use]
    pub fn head(&self) -> Option<&Head> {
        self.head.head()
    }

    /// The newest committed manifest, as this coordinator knows it.
    #[must_use]
    pub fn committed(&self) -> Option<&Manifest> {
        self.committed.as_ref()
    }

    /// Whether nothing happens until somebody registers, so that time need not be told often.
    #[must_use]
    pub fn waits_for_task_managers(&self) -> bool {
        self.members.len() == 0 && self.attempt.is_none() && self.phase != Phase::Starting
    }

    fn on_tick(&mut self) {
        if let Some(decision) = self.store.on_tick(&mut self.requests, self.now_ms) {
            self.out.push(decision);
        }
        if let Some(decision) = self.cleaner.on_tick(&mut self.requests, self.now_ms) {
            self.out.push(decision);
        }
        let again = self.savepoints.on_tick(&mut self.requests, self.now_ms);
        self.out.extend(again);
        if self.phase == Phase::Starting && self.store.is_free() {
            self.start();
        }
        let silence_ms_max = self.config.members.silence_ms_max;
        for silent in self.members.pass(self.now_ms, silence_ms_max) {
            self.members.remove(&silent);
            let cause = format!("it has said nothing for {silence_ms_max} ms");
            self.on_task_manager_lost(&silent, &cause);
            self.call_replaced(&silent);
            self.out.push(Decision::Disconnect(silent));
        }
        if self
            .adopt_until_ms
            .is_some_and(|at_ms| at_ms <= self.now_ms)
        {
            self.adopt_if_whole();
        }
    }

    /// Whoever the lost one had replaced may live, has a session that counts for nothing, and would stay
    /// outside: without it, it registers anew.
    fn call_replaced(&mut self, lost: &TaskManagerId) {
        let replaced = self.members.take_replaced(&lost.name);
        self.out
            .extend(replaced.into_iter().map(Decision::Disconnect));
    }

    fn on_registered(&mut self, id: TaskManagerId, registration: Registration) {
        if let (Some(head), Some(runs)) = (self.head.head(), &registration.runs)
            && runs.stamp.job == head.job
            && runs.stamp.generation > head.generation
        {
            let (theirs, ours) = (runs.stamp.generation, head.generation);
            return self.fail(Error::Fenced { theirs, ours });
        }
        let slots_n = registration.slots;
        if self.members.slots_n() == 0 {
            self.gather_until_ms = Some(self.now_ms + self.config.members.gather_ms);
        }
        let before = self.members.register(id.clone(), registration);
        if let Some(before) = before {
            let cause = if before == id {
                "its session began anew"
            } else {
                "it was started anew"
            };
            self.on_task_manager_lost(&before, cause);
        }
        let task_manager = id;
        self.report(Report::TaskManagerCame {
            task_manager,
            slots_n,
        });
        self.adopt_if_whole();
    }

    /// Whatever is due now, whoever made it due.
    fn go_on(&mut self) {
        if self.phase == Phase::Ended {
            return;
        }
        if self.recover_at_ms.is_some_and(|at_ms| at_ms <= self.now_ms) {
            self.begin_epoch();
        }
        self.deploy_if_possible();
        self.send_notices();
        self.check_timeouts();
        self.save_scale();
        self.hand_over_if_due();
        self.release_leaving();
        self.go_on_handing_over();
        self.go_on_saving();
        self.trigger_if_due();
        self.end_if_done();
        self.look_if_due();
    }

    fn on_store(&mut self, id: RequestId, answer: StoreAnswer) {
        let answer = match self.store.on_answer(id, answer) {
            Ok(answered) => return self.on_own_answer(answered),
            Err(answer) => answer,
        };
        let answer = match self.savepoints.on_answer(id, answer) {
            Ok(answered) => return self.on_saved(answered),
            Err(answer) => answer,
        };
        if let Ok(answered) = self.cleaner.on_answer(id, answer) {
            self.on_cleaned(answered);
        }
    }

    fn on_own_answer(&mut self, answered: Answered<Purpose>) {
        if let Some(trouble) = answered.answer.trouble() {
            let request = answered.request.name();
            let (reason, attempts_n) = (trouble.to_owned(), answered.attempts_n);
            self.store_trouble = Some(format!("{request}: {reason}"));
            let hopeless = matches!(answered.answer, StoreAnswer::Refused { .. })
                || attempts_n >= START_ATTEMPTS_MAX;
            if self.phase == Phase::Starting && hopeless {
                return self.fail(Error::Store {
                    request,
                    reason,
                    attempts_n,
                });
            }
            self.report(Report::StoreTrouble {
                request,
                reason,
                attempts_n,
            });
        } else {
            self.store_trouble = None;
        }
        match answered.purpose {
            Purpose::Start => self.on_start_answer(answered),
            Purpose::Import => self.on_import_answer(answered),
            Purpose::PutManifest => self.on_manifest_answer(answered),
            Purpose::Swap => {
                let step = self.head.on_answer(answered.answer.clone());
                self.on_swap_step(step, Some(answered));
            }
        }
    }

    /// Begins a swap of the head, superseding one that is under way.
    pub(crate) fn swap(&mut self, change: Change) {
        self.swapped_at_ms = self.now_ms;
        let step = self.head.swap(change, self.next_id);
        self.on_swap_step(step, None);
    }

    fn on_swap_step(&mut self, step: Step, answered: Option<Answered<Purpose>>) {
        match (step, answered) {
            (Step::Ask(request), None) => self.ask(Purpose::Swap, request),
            // Asked once more what was not answered: not in a circle without a pause.
            (Step::Ask(request), Some(answered)) if request == answered.request => {
                self.store.ask_again_later(self.now_ms, answered);
            }
            (Step::Ask(request), Some(answered)) => {
                let decision = self.store.ask_on(&mut self.requests, answered, request);
                self.out.push(decision);
            }
            (Step::AskLater(request), Some(answered)) => {
                self.store.ask_later(self.now_ms, answered, request);
            }
            (Step::AskAgainLater, Some(answered)) => {
                self.store.ask_again_later(self.now_ms, answered);
            }
            // A keeper asks for patience only after an answer.
            (Step::AskLater(_) | Step::AskAgainLater, None) => {}
            (Step::Done(change, head), _) => self.on_swapped(&change, &head),
            (Step::Outrun, _) => self.on_outrun(),
            (Step::Failed(error), _) => self.fail(error),
        }
    }

    fn on_swapped(&mut self, change: &Change, head: &Head) {
        self.resolve_commit(head);
        if let Some(reason) = &self.taken_over {
            let cause = format!("{reason}; the head of this store knows of no newer attempt");
            return self.fail(Error::Job { cause });
        }
        // Its own swap may have been superseded, and not have taken effect.
        self.unsaved_scale &= head.scaled.is_none_or(|it| it.to != self.wanted);
        match change {
            Change::TakeOver(_) => self.on_taken_over(head),
            Change::BeginEpoch(_) => {
                self.status.epoch = head.epoch;
                self.undeployed = true;
            }
            Change::Propose { .. } => self.on_proposed(),
            Change::Commit { .. } => self.on_imported(head),
            Change::CommitHandOver { .. }
            | Change::Withdraw
            | Change::Scale(_)
            | Change::Reserve => {}
            Change::Record(_) => self.on_recorded(head),
            Change::Finish => {
                self.send(Command::Cancel);
                self.end(Outcome::Finished { before: false });
            }
        }
    }

    /// The one place where the sender and the stamp of what a task manager says are checked (C5).
    fn on_task(&mut self, from: &TaskManagerId, stamp: &Stamp, event: Event) {
        if !self.members.contains(from) {
            return; // its session is over: what it does counts for nothing any more
        }
        self.members.heard(from);
        let Some(attempt) = &self.attempt else {
            return;
        };
        let ours = &attempt.stamp;
        if stamp.job == ours.job && stamp.generation > ours.generation {
            let (theirs, ours) = (stamp.generation, ours.generation);
            return self.fail(Error::Fenced { theirs, ours });
        }
        if stamp != ours {
            return; // C5: of an older coordinator, or of an attempt that is over
        }
        let is_theirs = match spoken_of(&event) {
            Some(task) => attempt.runs(from, task.subtask),
            None => attempt.task_managers().contains(from),
        };
        if !is_theirs {
            return; // of a task that another runs
        }
        match event {
            Event::Prepared { splits } => self.on_prepared(from, splits),
            Event::Ack(snapshot) => self.on_ack(*snapshot),
            Event::Declined { task, id, reason } => self.on_declined(task, id, &reason),
            Event::Published { slot, interval } => {
                self.publisher.on_published(&slot, interval);
            }
            Event::PublishFailed {
                slot,
                interval,
                reason,
            } => {
                let in_a_row = self.publisher.on_publish_failed(self.now_ms, &slot);
                let what = format!("interval {interval} of {slot}");
                self.report(Report::PublishFailed {
                    what,
                    reason,
                    in_a_row,
                });
            }
            Event::TakenOver { reason } => self.on_taken_over_elsewhere(reason),
            Event::Ended { task } => self.on_ended(task),
            Event::Failed {
                task: Some(task),
                cause,
                ..
            } if self.is_to_join(task.subtask) => self.withdraw(&format!("task {task}: {cause}")),
            Event::Failed { task, cause, retry } => self.on_task_failed(from, task, &cause, retry),
            Event::ChannelBroke {
                sender,
                receiver,
                cause,
            } => self.on_channel_broke(sender, receiver, &cause),
            Event::HandOverPrepared => self.on_hand_over_prepared(from),
            Event::HandOverRefused { reason } => self.on_hand_over_refused(from, &reason),
            Event::Received { task, id } => self.on_received(task, id),
            Event::Progress(progress) => self.on_progress(from.clone(), *progress),
        }
    }

    pub(crate) fn ask(&mut self, purpose: Purpose, request: StoreRequest) {
        let decision = self.store.ask(&mut self.requests, purpose, request);
        self.out.push(decision);
    }

    /// Tells every task manager of this attempt; of no attempt, nobody.
    pub(crate) fn send(&mut self, command: Command) {
        let Some(attempt) = &self.attempt else { return };
        for id in attempt.task_managers() {
            let stamp = attempt.stamp.clone();
            self.out.push(Decision::Send(id, stamp, command.clone()));
        }
    }

    pub(crate) fn report(&mut self, report: Report) {
        self.out.push(Decision::Report(report));
    }

    pub(crate) fn fail(&mut self, error: Error) {
        // Whoever fenced this one may be about to adopt its tasks (F1); otherwise they learn from
        // the newer coordinator, or from the head, that they are over (F4).
        let theirs = matches!(error, Error::Fenced { .. });
        if !(theirs && self.config.members.adopt_within_ms.is_some()) {
            self.send(Command::Cancel);
        }
        self.end(Outcome::Failed(error));
    }

    pub(crate) fn end(&mut self, outcome: Outcome) {
        self.phase = Phase::Ended;
        self.attempt = None;
        self.in_flight = None;
        self.store.clear();
        self.cleaner.clear();
        self.savepoints.clear();
        self.out.push(Decision::End(outcome));
    }
}

/// The task that an event is of, if it is of one.
fn spoken_of(event: &Event) -> Option<TaskId> {
    match event {
        Event::Ack(snapshot) => Some(snapshot.task),
        Event::Declined { task, .. } | Event::Ended { task } | Event::Received { task, .. } => {
            Some(*task)
        }
        Event::Failed { task, .. } => *task,
        Event::Prepared { .. }
        | Event::Published { .. }
        | Event::PublishFailed { .. }
        | Event::TakenOver { .. }
        | Event::HandOverPrepared
        | Event::HandOverRefused { .. }
        | Event::ChannelBroke { .. }
        | Event::Progress(_) => None,
    }
}
