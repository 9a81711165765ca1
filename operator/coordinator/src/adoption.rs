//! An attempt that outlived its coordinator goes on (F1).
//!
//! Owns: whether the attempt that the head names still runs, whole, and taking it over. A takeover
//! that may adopt raises the generation and leaves the epoch; then either all task managers of the
//! attempt register with this coordinator in time, or the epoch ends.
//!
//! Not adopted, because nothing would be right afterwards: an attempt of which a part is gone, has
//! failed or has not begun to read, one whose last checkpoint (stop, final) is committed, one of
//! another plan, and one before manifest 0.

use std::collections::{BTreeMap, BTreeSet};

use streamforge_core::ids::CheckpointId;
use streamforge_core::manifest::{CheckpointKind, Head, Manifest, Plan};
use streamforge_core::messages::{
    Command, Deployment, Registration, RunningAttempt, Stamp, TaskManagerId,
};

use crate::attempt::Attempt;
use crate::coordinator::Coordinator;
use crate::decision::Report;
use crate::hand_over::HandingOver;
use crate::status::{Failure, Phase};

/// What the task managers that have registered say together.
enum Evidence {
    /// The attempt cannot go on: because of this task manager, and why.
    Over(Option<String>, String),
    /// Some of its task managers have not come yet.
    Incomplete,
    /// All are here.
    Whole(Box<RunningAttempt>, BTreeSet<streamforge_core::ids::TaskId>),
}

impl Coordinator {
    /// Decided before the takeover, because the head says which of the two it is.
    pub(crate) fn may_adopt(&mut self) -> bool {
        let restored = self.committed.as_ref();
        self.adoption_begins = restored.is_some_and(|manifest| self.may_go_on_from(manifest));
        self.adoption_begins
    }

    /// Whether an attempt whose newest manifest this is may be running, so that nobody needs what it
    /// names.
    pub(crate) fn may_go_on_from(&self, newest: &Manifest) -> bool {
        let ours = Plan::hash_of(&self.config.graph);
        let is_as_before = |head: &Head| {
            // The writer of the head may have written the same plan in other words.
            (head.plan_hash == ours || self.starting.deployed == Some(ours))
                // Some may send by the proposed table: the one exception to F1 (K3).
                && head.proposed.is_none()
                && head.assignment.groups_n() == self.config.graph.max_parallelism
                && !head.finished
        };
        self.config.members.adopt_within_ms.is_some()
            && self.config.rewind_to.is_none()
            && self.import.is_none()
            && self.head.head().is_some_and(is_as_before)
            && matches!(
                newest.kind,
                CheckpointKind::Initial
                    | CheckpointKind::Ordinary
                    | CheckpointKind::HandOver
                    | CheckpointKind::Savepoint
            )
    }

    /// The head names this coordinator, and the epoch that may be running.
    pub(crate) fn await_adoption(&mut self) {
        let within_ms = self.config.members.adopt_within_ms.unwrap_or(0);
        self.adopt_until_ms = Some(self.now_ms + within_ms);
        self.adopt_if_whole();
    }

    /// Somebody registered, or time passed.
    pub(crate) fn adopt_if_whole(&mut self) {
        let Some(until_ms) = self.adopt_until_ms else {
            return;
        };
        match self.evidence() {
            Evidence::Whole(running, ended) => self.adopt(&running, ended),
            Evidence::Over(at, reason) => self.give_up_adoption(at, reason),
            Evidence::Incomplete if until_ms <= self.now_ms => {
                let reason = "not all task managers came back in time".to_owned();
                self.give_up_adoption(None, reason);
            }
            Evidence::Incomplete => {}
        }
    }

    /// What those say who are part of the attempt. One that a hand-over made leave, or that was to
    /// join and did not, has an attempt of another table, and is needed at most to publish.
    fn evidence(&self) -> Evidence {
        let members = self.members.iter();
        let ours = members.filter_map(|(id, it)| Some((id, self.ours(it)?)));
        let ours: BTreeMap<&TaskManagerId, &RunningAttempt> = ours.collect();
        let mut known = ours.values();
        let found = known.find_map(|it| Some((*it, self.as_the_head_says(it)?)));
        let Some((running, deployment)) = found else {
            return self.evidence_of_idle();
        };
        let mut ended = BTreeSet::new();
        let parts = ours.iter().filter(|(id, _)| has_place(deployment, id));
        for (id, theirs) in parts {
            let over = |why: &str| Evidence::Over(Some(id.name.clone()), why.to_owned());
            if let Some(cause) = &theirs.failed {
                return over(cause);
            }
            if self.as_the_head_says(theirs).is_none() {
                return over("it runs another plan or table");
            }
            if !theirs.started {
                return over("it has not begun to read");
            }
            ended.extend(theirs.ended.iter().copied());
        }
        let runs = deployment.placement.values().map(|it| &it.task_manager);
        // Who publishes what a subtask left behind is needed as well.
        let unpublished = self.publisher.unpublished_slots();
        let slots = deployment.slots.iter();
        let slots = slots.filter(|(slot, _)| unpublished.contains(slot));
        for id in runs.chain(slots.map(|(_, owner)| owner)) {
            if ours.contains_key(id) {
                continue;
            }
            let replaced = self.members.iter().any(|(other, _)| other.name == id.name);
            return if replaced {
                Evidence::Over(Some(id.name.clone()), "it was started anew".to_owned())
            } else {
                Evidence::Incomplete
            };
        }
        Evidence::Whole(Box::new(running.clone()), ended)
    }

    /// What it runs of the attempt that the head names.
    fn ours<'a>(&self, registration: &'a Registration) -> Option<&'a RunningAttempt> {
        let (head, runs) = (self.head.head()?, registration.runs.as_deref()?);
        (runs.stamp.job == head.job && runs.stamp.epoch == head.epoch).then_some(runs)
    }

    /// Nobody who runs it has come yet. If all that ran it are here as new ones there is nothing to wait for; what
    /// comes beside them, a spare one that was faster, says nothing of them.
    fn evidence_of_idle(&self) -> Evidence {
        let members = self.members.iter();
        let idle = members.filter(|(_, it)| self.ours(it).is_none());
        let idle_slots_n = idle.fold(0_u32, |sum, (_, it)| sum.saturating_add(it.slots));
        let head = self.head.head().into_iter();
        let mut ran_it = head.flat_map(|head| &head.task_managers);
        let all_came = ran_it.all(|name| self.members.iter().any(|(id, _)| id.name == *name));
        if all_came && idle_slots_n >= self.wanted {
            Evidence::Over(None, "no task manager runs it".to_owned())
        } else {
            Evidence::Incomplete
        }
    }

    /// What runs must be what the head describes: plan, table and parallelism. A task manager may not
    /// know that a hand-over is committed.
    fn as_the_head_says<'a>(&self, running: &'a RunningAttempt) -> Option<&'a Deployment> {
        let prepared = running.prepared.iter().map(|it| &it.deployment);
        let mut known = prepared.chain([&running.deployment]);
        known.find(|deployment| self.is_as_the_head_says(deployment))
    }

    fn is_as_the_head_says(&self, deployment: &Deployment) -> bool {
        let Deployment {
            graph,
            parallelism,
            assignment,
            ..
        } = deployment;
        let hash = |head: &Head| {
            let plan = Plan {
                graph: graph.clone(),
                document: String::new(),
            };
            plan.hash() == head.plan_hash
        };
        self.head.head().is_some_and(|head| {
            head.parallelism == *parallelism && head.assignment == *assignment && hash(head)
        })
    }

    fn adopt(
        &mut self,
        running: &RunningAttempt,
        mut ended: BTreeSet<streamforge_core::ids::TaskId>,
    ) {
        let (Some(head), Some(committed)) = (self.head.head(), &self.committed) else {
            return;
        };
        let stamp = Stamp {
            job: head.job.clone(),
            generation: head.generation,
            epoch: head.epoch,
        };
        let Some(deployment) = self.as_the_head_says(running) else {
            return;
        };
        let places = deployment.placement.iter();
        let places = places.map(|(idx, place)| (*idx, place.task_manager.clone()));
        let parallelism = deployment.parallelism;
        self.places = places.collect();
        // A hand-over, and whom it made leave, belong to the epoch that it was taken in: an attempt
        // that was deployed from its manifest has both behind it, the counters in its ledger (T3).
        let handed = Some(committed).filter(|it| it.epoch == stamp.epoch);
        let departed = handed.map_or_else(Default::default, |it| it.departed.clone());
        let handed = handed
            .filter(|it| it.kind == CheckpointKind::HandOver)
            .cloned();
        let tasks: BTreeSet<_> = self.config.graph.tasks_of(deployment.subtasks()).collect();
        // Task managers remember those of subtasks that left, too.
        ended.retain(|task| tasks.contains(task));
        let attempt = Attempt {
            stamp,
            tasks,
            deployment: deployment.clone(),
            places: self.places.clone(),
            unprepared: BTreeMap::new(),
            progress: Default::default(),
            restored: deployment.restore.clone(),
            sources: committed.sources.clone(),
            ended,
            first_id: deployment.first_id,
            sweeps_n: 0,
            recovering: false,
            holders: BTreeMap::new(),
            departed,
            unions_failed_n: 0,
            adopted: true,
            hand_over: handed.as_ref().map(|committed| {
                let places = self.places.clone();
                HandingOver::adopted(deployment.clone(), places, committed.id, self.now_ms)
            }),
        };
        let (generation, epoch) = (attempt.stamp.generation, attempt.stamp.epoch);
        self.adopt_until_ms = None;
        self.may_run_smaller = true;
        self.status.parallelism = parallelism;
        self.status.waits_for = None;
        self.attempt = Some(attempt);
        self.note_restored();
        self.publisher.forget_sent();
        self.phase = if self.stop_since_ms.is_some() {
            Phase::Stopping
        } else {
            Phase::Running
        };
        // Everything below was begun by an earlier coordinator, and no one will complete it.
        let void_to = CheckpointId::from_stored(self.next_id.get().saturating_sub(1));
        self.send(Command::Adopt { void_to });
        self.tell_of_hand_over(handed);
        self.checkpoint_at_ms = self.now_ms;
        self.report(Report::Adopted { generation, epoch });
    }

    /// Of the hand-over that the earlier coordinator died at: whether it is committed.
    fn tell_of_hand_over(&mut self, committed: Option<Manifest>) {
        if let Some(manifest) = committed {
            // Whether all have heard of its commit, and of what they gain, is not known.
            self.send(Command::Committed { id: manifest.id });
            self.send(Command::Receive(Box::new(manifest)));
            return;
        }
        // They have not heard that it will not be, and would wait for its channels at every barrier.
        let members = self.members.iter();
        let prepared = members.filter(|(_, it)| {
            let prepared = it.runs.as_deref().and_then(|runs| runs.prepared.as_ref());
            prepared.is_some_and(|it| !self.is_as_the_head_says(&it.deployment))
        });
        let prepared = prepared.map(|(id, _)| id.clone()).collect();
        self.send_to(prepared, &Command::Withdraw);
    }

    fn give_up_adoption(&mut self, task_manager: Option<String>, reason: String) {
        self.adopt_until_ms = None;
        let job = self.head.head().map(|head| head.job.clone());
        let runs = |it: &RunningAttempt| Some(&it.stamp.job) == job.as_ref();
        // Some of it is there: the job was running, and goes on with whoever is left.
        let was_running = self
            .members
            .iter()
            .any(|(_, it)| it.runs.as_deref().is_some_and(runs));
        self.may_run_smaller |= was_running;
        if self.stop_since_ms.is_some() {
            return self.stopped(None);
        }
        let time_ms = self.now_ms;
        let failure = Failure {
            time_ms,
            task_manager,
            reason,
        };
        let reason = failure.to_string();
        if was_running {
            self.status.last_failure = Some(failure);
        }
        self.report(Report::NotAdopted { reason });
        self.check_before_epoch();
    }
}

/// Whether it runs a part of this.
fn has_place(deployment: &Deployment, id: &TaskManagerId) -> bool {
    let mut places = deployment.placement.values();
    places.any(|place| place.task_manager == *id)
}
