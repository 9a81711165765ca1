//! One attempt of the job: from its deployment to its end.
//!
//! Owns: deploying, manifest 0, letting rows flow, and what a failure leads to.
//!
//! Invariant C10: before the first row of any source is read, a manifest with that source's resolved
//! splits is committed; a restart before checkpoint 1 restores it. Invariant X4: what a restored
//! manifest lists is published before anything newer.

use std::collections::{BTreeMap, BTreeSet};

use streamforge_core::ids::{CheckpointId, OperatorUid, SplitId, SubtaskIdx, TaskId};
use streamforge_core::job_graph::JobGraph;
use streamforge_core::manifest::{CheckpointKind, Counters, Departed, Manifest, SplitState};
use streamforge_core::messages::{Command, Deployment, Place, Progress, Stamp, TaskManagerId};

use crate::coordinator::Coordinator;
use crate::decision::{Decision, Report};
use crate::error::Error;
use crate::hand_over::HandingOver;
use crate::head::{Change, Table};
use crate::placement::{Places, Placing, place};
use crate::restart::Verdict;
use crate::splits::deal_splits;
use crate::status::{CompletedCheckpoint, Failure, Phase};

/// How long the return to all subtasks waits after a loss, at first; doubles with each.
const GROW_WAIT_MS_INITIAL: u64 = 1_000;

/// Task managers that are lost within so long of the first are one failure: a machine or a network
/// takes several along, and each is noticed by itself.
const INCIDENT_MS: u64 = 1_000;

/// Task managers that load say so as they get on. When one does not for this long, something hangs there that no
/// restore waits for: a piece of an operator's state is read in less.
pub(crate) const LOADING_QUIET_MS_MAX: u64 = 900_000;

/// After this long without a loss it begins anew with the shortest wait.
const CALM_MS: u64 = 60_000;

/// One attempt of the job.
#[derive(Debug)]
pub(crate) struct Attempt {
    pub stamp: Stamp,
    /// Whose acknowledgements a checkpoint of this attempt needs (C1).
    pub tasks: BTreeSet<TaskId>,
    /// What its task managers run.
    pub deployment: Deployment,
    /// Who runs which subtask.
    pub places: Places,
    /// Task managers that have not loaded their tasks yet, and when each last said that it gets on, or was sent what
    /// to load.
    pub unprepared: BTreeMap<TaskManagerId, u64>,
    /// What each last said of its tasks.
    pub progress: BTreeMap<TaskManagerId, Progress>,
    /// What it was deployed from; counters count from here.
    pub restored: Option<Manifest>,
    /// Every split of every source, as resolved.
    pub sources: BTreeMap<OperatorUid, Vec<SplitState>>,
    /// Tasks that have read, fired and staged all.
    pub ended: BTreeSet<TaskId>,
    /// Everything older was written by dead attempts.
    pub first_id: CheckpointId,
    /// How often leftovers of dead attempts were looked for.
    pub sweeps_n: u32,
    /// It follows a failure, and its first checkpoint is still to come.
    pub recovering: bool,
    /// Who reads which split, as of the last checkpoint of this attempt.
    pub holders: BTreeMap<OperatorUid, BTreeMap<SplitId, SubtaskIdx>>,
    /// What subtasks left behind that left.
    pub departed: Departed,
    /// Owners change.
    pub hand_over: Option<HandingOver>,
    /// Checkpoints in a row of whose acknowledgements no manifest could be made.
    pub unions_failed_n: u32,
    /// An earlier coordinator began it, and heard of it before this one did.
    pub adopted: bool,
}

impl Attempt {
    /// Each task manager of this attempt, once: those that run tasks, and those that ran some and
    /// publish what is left of them.
    pub(crate) fn task_managers(&self) -> BTreeSet<TaskManagerId> {
        let mut all = self.workers();
        all.extend(self.deployment.slots.values().cloned());
        all
    }

    /// Those that run tasks, or will.
    pub(crate) fn workers(&self) -> BTreeSet<TaskManagerId> {
        let joining = self.hand_over.iter().flat_map(|it| it.places.values());
        self.places.values().chain(joining).cloned().collect()
    }

    /// Whether this one runs that subtask, or will.
    pub(crate) fn runs(&self, id: &TaskManagerId, subtask: SubtaskIdx) -> bool {
        let joining = self.hand_over.iter();
        let mut joining = joining.filter_map(|it| it.places.get(&subtask));
        self.places.get(&subtask) == Some(id) || joining.any(|it| it == id)
    }

    /// Whose acknowledgements a checkpoint of this kind needs: that of a hand-over needs those of
    /// subtasks that leave and of those that join.
    pub(crate) fn expected(&self, kind: CheckpointKind, graph: &JobGraph) -> BTreeSet<TaskId> {
        let mut expected = self.tasks.clone();
        if let (CheckpointKind::HandOver, Some(hand_over)) = (kind, &self.hand_over) {
            expected.extend(graph.tasks_of(hand_over.plan.joining.clone()));
        }
        expected
    }
}

impl Coordinator {
    pub(crate) fn begin_epoch(&mut self) {
        self.recover_at_ms = None;
        self.undeployed = false;
        let table = self.next_table();
        self.swap(Change::BeginEpoch(table));
    }

    /// The table of the next epoch, where it must change for the slots there are.
    fn next_table(&mut self) -> Option<Table> {
        let placing = self.placing()?;
        let head = self.head.head()?;
        let parallelism = placing.parallelism;
        // After a hand-over numbers may be missing.
        let fits = head.assignment.subtasks().iter().eq(placing.places.keys());
        let table = (parallelism != head.parallelism || !fits).then(|| Table {
            assignment: if self.places.is_empty() {
                head.assignment.rescaled(parallelism)
            } else {
                head.assignment.handed_on(&placing.heirs, parallelism)
            },
            parallelism,
        });
        self.places = placing.places;
        table
    }

    /// Who would run what if the attempt began now. `None`: too few are there.
    fn placing(&self) -> Option<Placing> {
        let wanted = self.wanted;
        let gathered = self
            .gather_until_ms
            .is_none_or(|until_ms| until_ms <= self.now_ms);
        if self.slots_n() < wanted && !(self.may_run_smaller && gathered) {
            return None;
        }
        place(&self.slots(), wanted, &self.places)
    }

    /// The slots of those who may run tasks now. If that is nobody, of all.
    pub(crate) fn slots(&self) -> BTreeMap<&TaskManagerId, u32> {
        let all = self.members.iter().map(|(id, it)| (id, it.slots));
        let may = |(id, _): &(&TaskManagerId, u32)| {
            !self.channels.excludes(self.now_ms, id) && !self.members.leaves(id)
        };
        let (allowed, excluded): (Vec<_>, Vec<_>) = all.partition(may);
        let slots = if allowed.is_empty() {
            excluded
        } else {
            allowed
        };
        slots.into_iter().collect()
    }

    fn slots_n(&self) -> u32 {
        self.slots().into_values().fold(0, u32::saturating_add)
    }

    /// A channel broke. If neither of its task managers turns out to be lost, the two cannot reach
    /// each other, and when that happens again one of them loses its place (B2).
    pub(crate) fn on_channel_broke(
        &mut self,
        sender: SubtaskIdx,
        receiver: SubtaskIdx,
        cause: &str,
    ) {
        if self.is_beside([sender, receiver], cause) {
            return;
        }
        let place = |idx| self.attempt.as_ref().and_then(|it| it.places.get(&idx));
        let mut between = String::new();
        if let (Some(one), Some(other)) = (place(sender), place(receiver)) {
            self.channels.on_broke(self.now_ms, one, other);
            between = format!("between {} and {}: ", one.name, other.name);
        }
        self.on_failed(None, &format!("{between}{cause}"), true);
    }

    /// The head names an epoch of which nothing has been sent: begin it, if enough are there.
    pub(crate) fn deploy_if_possible(&mut self) {
        if !self.undeployed || !self.store.is_free() {
            return;
        }
        let Some(placing) = self.placing() else {
            return self.note_waiting();
        };
        let fits = |head: &streamforge_core::manifest::Head| {
            head.assignment.subtasks().iter().eq(placing.places.keys())
        };
        if self.head.head().is_some_and(fits) {
            self.undeployed = false;
            self.status.waits_for = None;
            self.deploy(placing.places);
        } else {
            self.begin_epoch();
        }
    }

    fn note_waiting(&mut self) {
        let (slots_n, wanted_n) = (self.slots_n(), self.wanted);
        let waits_for = format!("slots for {wanted_n} subtasks, task managers offer {slots_n}");
        if self.status.waits_for.as_ref() != Some(&waits_for) {
            self.status.waits_for = Some(waits_for);
            self.report(Report::WaitsForSlots { slots_n, wanted_n });
        }
    }

    /// The head names this attempt: load the tasks.
    fn deploy(&mut self, places: Places) {
        let Some(head) = self.head.head() else { return };
        let stamp = Stamp {
            job: head.job.clone(),
            generation: head.generation,
            epoch: head.epoch,
        };
        let deployment = Deployment {
            graph: JobGraph::clone(&self.config.graph),
            parallelism: head.parallelism,
            assignment: head.assignment.clone(),
            restore: self.restored(),
            first_id: self.next_id,
            placement: self.placement(&places),
            born: head.generation,
            slots: self.slot_owners(&places),
        };
        self.places = places;
        self.may_run_smaller = true;
        self.status.parallelism = deployment.parallelism;
        self.status.generation = head.generation;
        self.status.epoch = head.epoch;
        self.publisher.forget_sent();
        let attempt = Attempt {
            stamp,
            tasks: self.config.graph.tasks(deployment.parallelism).collect(),
            deployment: deployment.clone(),
            places: self.places.clone(),
            unprepared: (self.places.values().cloned())
                .map(|id| (id, self.now_ms))
                .collect(),
            progress: BTreeMap::new(),
            sources: deployment
                .restore
                .as_ref()
                .map(|m| m.sources.clone())
                .unwrap_or_default(),
            restored: deployment.restore.clone(),
            ended: BTreeSet::new(),
            first_id: deployment.first_id,
            sweeps_n: 0,
            recovering: self.status.last_failure.is_some(),
            holders: BTreeMap::new(),
            departed: Departed::default(),
            hand_over: None,
            unions_failed_n: 0,
            adopted: false,
        };
        self.attempt = Some(attempt);
        self.note_restored();
        self.phase = Phase::Deploying;
        self.send(Command::Deploy(Box::new(deployment)));
    }

    /// Who publishes which slots: the task manager of its subtask, and those of numbers that no
    /// subtask has are dealt out (X4).
    fn slot_owners(&self, places: &Places) -> BTreeMap<u32, TaskManagerId> {
        let own = places.iter().map(|(idx, id)| (idx.0, id.clone()));
        let mut owners: BTreeMap<u32, TaskManagerId> = own.collect();
        let listed = self.committed.iter().flat_map(|it| &it.staged);
        for slot in listed.map(|state| state.slot.slot) {
            let mut ids = places.values();
            let nth = (slot as usize).checked_rem(places.len());
            if let Some(id) = nth.and_then(|nth| ids.nth(nth)) {
                owners.entry(slot).or_insert_with(|| id.clone());
            }
        }
        owners
    }

    /// The newest manifest; of its staged output what is not known as published: a sink that takes
    /// over the rest would wait for notices that never come.
    fn restored(&self) -> Option<Manifest> {
        let manifest = self.committed.clone()?;
        let staged = self.publisher.list([]);
        Some(Manifest { staged, ..manifest })
    }

    pub(crate) fn placement(&self, places: &Places) -> BTreeMap<SubtaskIdx, Place> {
        let place = |(idx, id): (&SubtaskIdx, &TaskManagerId)| {
            let exchange = self.members.get(id).map(|it| it.exchange.clone());
            let place = Place {
                task_manager: id.clone(),
                exchange: exchange.unwrap_or_default(),
            };
            (*idx, place)
        };
        places.iter().map(place).collect()
    }

    pub(crate) fn note_restored(&mut self) {
        let Some(manifest) = &self.committed else {
            return;
        };
        self.status.ledger = manifest.ledger.clone();
        self.status
            .checkpoint
            .last_completed
            .get_or_insert(CompletedCheckpoint {
                id: manifest.id,
                kind: manifest.kind,
                time_ms: manifest.time_ms,
                duration_ms: manifest.duration_ms,
                bytes_n: 0,
                freeze_us: 0,
            });
    }

    /// A task manager's tasks are loaded; go on when all are. Splits that no manifest knows
    /// must be committed first (C10).
    pub(crate) fn on_prepared(
        &mut self,
        from: &TaskManagerId,
        splits: BTreeMap<OperatorUid, Vec<SplitState>>,
    ) {
        if self.phase != Phase::Deploying || self.in_flight.is_some() {
            return;
        }
        let Some(attempt) = &mut self.attempt else {
            return;
        };
        attempt.unprepared.remove(from);
        let mut new = attempt.restored.is_none();
        for (source, splits) in splits {
            new |= !attempt.sources.contains_key(&source);
            let known = attempt.sources.entry(source).or_default();
            let ids: BTreeSet<SplitId> = known.iter().map(|it| it.split.clone()).collect();
            let unknown = splits.into_iter().filter(|it| !ids.contains(&it.split));
            known.extend(unknown);
            new |= known.len() > ids.len();
        }
        if !attempt.unprepared.is_empty() {
            return;
        }
        if new {
            self.commit_initial();
        } else {
            self.let_rows_flow();
        }
    }

    /// Loading that does not get on somewhere ends the attempt, whatever the others say: whoever hangs there says
    /// nothing by itself.
    pub(crate) fn check_loading(&mut self) {
        let Some(attempt) = &self.attempt else { return };
        if self.phase != Phase::Deploying {
            return;
        }
        let unprepared = attempt.unprepared.iter();
        let quiet = unprepared.filter(|(_, at_ms)| *at_ms + LOADING_QUIET_MS_MAX <= self.now_ms);
        let quiet: Vec<&TaskManagerId> = quiet.map(|(id, _)| id).collect();
        let Some(first) = quiet.first().copied().cloned() else {
            return;
        };
        let names: Vec<&str> = quiet.iter().map(|id| id.name.as_str()).collect();
        let names = names.join(", ");
        let minutes_n = LOADING_QUIET_MS_MAX / 60_000;
        let cause = format!("for {minutes_n} minutes nothing of its tasks was loaded by {names}");
        self.on_failed(Some(&first), &cause, true);
    }

    /// Manifest 0 is committed, or was long ago.
    pub(crate) fn let_rows_flow(&mut self) {
        let Some(attempt) = &self.attempt else { return };
        let splits = deal_splits(&attempt.sources, attempt.deployment.parallelism);
        let (epoch, recovering) = (attempt.stamp.epoch, attempt.recovering);
        self.phase = Phase::Running;
        // What the attempt before knew of its sources is over.
        self.status.unreachable.clear();
        self.status.lag.clear();
        // X4: what the restored manifest lists goes first.
        self.send_notices();
        self.send(Command::Start { splits });
        let wait_ms = if recovering {
            0
        } else {
            self.config.checkpoint.interval_ms
        };
        self.checkpoint_at_ms = self.now_ms + wait_ms;
        self.report(Report::Running { epoch });
    }

    /// A task manager is gone. If it ran a part of the attempt, all of the attempt is over; nothing
    /// is wrong with the job, so the next one waits for nothing unless this happens in a row.
    pub(crate) fn on_task_manager_lost(&mut self, id: &TaskManagerId, cause: &str) {
        self.put_off_growing();
        self.report(Report::TaskManagerLost {
            task_manager: id.clone(),
            cause: cause.to_owned(),
        });
        self.on_task_manager_gone(id, cause);
    }

    /// One that was let go has gone: no reason to wait before another one takes its place.
    pub(crate) fn on_task_manager_left(&mut self, id: &TaskManagerId) {
        let task_manager = id.clone();
        self.report(Report::TaskManagerLeft { task_manager });
        self.on_task_manager_gone(id, "it was asked to end, and no other could take over");
    }

    fn on_task_manager_gone(&mut self, id: &TaskManagerId, cause: &str) {
        self.channels.on_lost(id);
        let runs = |attempt: &Attempt| attempt.places.values().any(|it| it == id);
        if self.attempt.as_ref().is_some_and(runs) || self.on_partner_lost(id) {
            self.same_incident = self.now_ms < self.incident_until_ms;
            if !self.same_incident {
                self.incident_until_ms = self.now_ms + INCIDENT_MS;
            }
            self.on_failed(Some(id), cause, true);
            self.same_incident = false;
        }
        // A broken channel may have been reported before this.
        let patience_ms = self.now_ms + self.config.restart.backoff_initial_ms;
        let ran = self.places.values().any(|it| it == id);
        if ran && self.attempt.is_none() {
            self.blame(id, cause);
        }
        if let Some(at_ms) = &mut self.recover_at_ms
            && ran
            && *at_ms <= patience_ms
        {
            *at_ms = self.now_ms;
        }
    }

    /// Each loss in a row puts off the return to all subtasks for longer: a task manager that comes
    /// and goes must not keep the job busy with restarts.
    fn put_off_growing(&mut self) {
        let calm_ms = self.now_ms.saturating_sub(self.grow_at_ms);
        let wait_ms = if calm_ms > CALM_MS {
            GROW_WAIT_MS_INITIAL
        } else {
            (self.grow_wait_ms * 2).max(GROW_WAIT_MS_INITIAL)
        };
        self.grow_wait_ms = wait_ms.min(self.config.restart.backoff_max_ms);
        self.grow_at_ms = self.now_ms + self.grow_wait_ms;
    }

    /// A failure that was nobody's a moment ago, such as a broken channel, was the loss of this one.
    fn blame(&mut self, id: &TaskManagerId, cause: &str) {
        let now_ms = self.now_ms;
        let failure = self.status.last_failure.as_mut();
        let is_its =
            |it: &&mut Failure| it.task_manager.is_none() && now_ms < it.time_ms + INCIDENT_MS;
        if let Some(failure) = failure.filter(is_its) {
            failure.task_manager = Some(id.name.clone());
            cause.clone_into(&mut failure.reason);
        }
    }

    /// A task failed, or the loading of tasks.
    pub(crate) fn on_task_failed(
        &mut self,
        from: &TaskManagerId,
        task: Option<TaskId>,
        cause: &str,
        retry: bool,
    ) {
        // Nobody needs to be told that it is the only one.
        let at = Some(from).filter(|it| **it != TaskManagerId::local());
        let task = task.map_or_else(String::new, |task| format!("task {task}: "));
        self.on_failed(at, &format!("{task}{cause}"), retry);
    }

    /// The attempt is over, because of what happened at that task manager if it was one's alone. What
    /// it did since the newest manifest is forgotten and done again.
    pub(crate) fn on_failed(&mut self, at: Option<&TaskManagerId>, reason: &str, retry: bool) {
        let Some(attempt) = &self.attempt else { return };
        let epoch = attempt.stamp.epoch;
        if attempt.hand_over.is_some() {
            self.put_off_hand_over();
        }
        self.send(Command::Cancel);
        let records = self.recording.manifest().is_some();
        let needs_no_task = self.finish_begun || records || self.only_copies();
        self.attempt = None;
        if needs_no_task {
            return; // all output is published
        }
        let failure = Failure {
            time_ms: self.now_ms,
            task_manager: at.map(|id| id.name.clone()),
            reason: reason.to_owned(),
        };
        let cause = failure.to_string();
        self.status.last_failure = Some(failure);
        self.forget_in_flight(&cause);
        if self.stop_since_ms.is_some() {
            // What the newest manifest does not hold is read again by the next start.
            return self.stopped(Some(format!(
                "while it was stopping a task failed: {cause}"
            )));
        }
        if !retry {
            let cause = reason.to_owned();
            return self.fail(Error::Job { cause });
        }
        let verdict = if self.same_incident {
            Verdict::AgainIn(0)
        } else {
            self.budget.on_failure(self.now_ms)
        };
        match verdict {
            Verdict::GiveUp { failures_n } => {
                self.fail(Error::RestartBudget { failures_n, cause });
            }
            Verdict::AgainIn(wait_ms) => {
                self.status.restarts_n += 1;
                self.phase = Phase::Recovering;
                self.recover_at_ms = Some(self.now_ms + wait_ms);
                let again_in_ms = wait_ms;
                self.report(Report::AttemptFailed {
                    epoch,
                    cause,
                    again_in_ms,
                });
            }
        }
    }

    /// The commit notices that are due (C3), once there is somebody who can publish.
    pub(crate) fn send_notices(&mut self) {
        if !matches!(
            self.phase,
            Phase::Running | Phase::Stopping | Phase::Finishing
        ) {
            return;
        }
        if self.taken_over.is_some() {
            return;
        }
        let Some((manifest, slots)) = self.publisher.notice(self.now_ms) else {
            return;
        };
        let Some(attempt) = &self.attempt else { return };
        let mut by_owner: BTreeMap<TaskManagerId, Vec<_>> = BTreeMap::new();
        for (slot, interval) in slots {
            if let Some(owner) = attempt.deployment.publisher_of(slot.slot) {
                let theirs = by_owner.entry(owner.clone()).or_default();
                theirs.push((slot, interval));
            }
        }
        let stamp = attempt.stamp.clone();
        for (owner, slots) in by_owner {
            let notice = Command::Publish { manifest, slots };
            self.out.push(Decision::Send(owner, stamp.clone(), notice));
        }
    }
}

/// The counters since the job's first row: those of the restored manifest and those since.
pub(crate) fn ledger<'a>(
    restored: Option<&BTreeMap<OperatorUid, Counters>>,
    since: impl IntoIterator<Item = &'a BTreeMap<OperatorUid, Counters>>,
) -> BTreeMap<OperatorUid, Counters> {
    let mut ledger = restored.cloned().unwrap_or_default();
    for (operator, counters) in since.into_iter().flatten() {
        ledger.entry(operator.clone()).or_default().add(counters);
    }
    ledger
}
