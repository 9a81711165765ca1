//! One attempt of the job: from its deployment to its end.
//!
//! Owns: deploying, manifest 0, letting rows flow, and what a failure or a stop leads to.
//!
//! Invariant C10: before the first row of any source is read, a manifest with that source's resolved
//! splits is committed; a restart before checkpoint 1 restores it. Invariant X4: what a restored
//! manifest lists is published before anything newer.

use std::collections::{BTreeMap, BTreeSet};

use streamforge_core::ids::{CheckpointId, OperatorUid, TaskId};
use streamforge_core::manifest::{CheckpointKind, Counters, Manifest, SplitState};
use streamforge_core::messages::{Command, Deployment, Progress, Stamp};

use crate::coordinator::Coordinator;
use crate::decision::{Outcome, Report};
use crate::error::Error;
use crate::head::Change;
use crate::restart::Verdict;
use crate::splits::deal_splits;
use crate::status::{CompletedCheckpoint, Phase};

/// One attempt of the job.
#[derive(Debug)]
pub(crate) struct Attempt {
    pub stamp: Stamp,
    /// Whose acknowledgements a checkpoint of this attempt needs (C1).
    pub tasks: BTreeSet<TaskId>,
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
}

impl Coordinator {
    pub(crate) fn begin_epoch(&mut self) {
        self.recover_at_ms = None;
        self.swap(Change::BeginEpoch);
    }

    /// The head names this attempt: load the tasks.
    pub(crate) fn deploy(&mut self) {
        let Some(head) = self.head.head() else { return };
        let stamp = Stamp {
            job: head.job.clone(),
            generation: head.generation,
            epoch: head.epoch,
        };
        let deployment = Deployment {
            graph: self.config.graph.clone(),
            parallelism: head.parallelism,
            assignment: head.assignment.clone(),
            restore: self.committed.clone(),
            first_id: self.next_id,
        };
        self.status.generation = head.generation;
        self.status.epoch = head.epoch;
        self.publisher.forget_sent();
        self.attempt = Some(Attempt {
            stamp,
            tasks: self.all_tasks(),
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
        });
        self.note_restored();
        self.phase = Phase::Deploying;
        self.send(Command::Deploy(Box::new(deployment)));
    }

    fn note_restored(&mut self) {
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

    /// All tasks are loaded. Splits of sources that no manifest knows must be committed first (C10).
    pub(crate) fn on_prepared(&mut self, splits: BTreeMap<OperatorUid, Vec<SplitState>>) {
        if self.phase != Phase::Deploying || self.in_flight.is_some() {
            return;
        }
        let Some(attempt) = &mut self.attempt else {
            return;
        };
        let mut new = attempt.restored.is_none();
        for (source, splits) in splits {
            attempt.sources.entry(source).or_insert_with(|| {
                new = true;
                splits
            });
        }
        if new {
            self.commit_initial();
        } else {
            self.let_rows_flow();
        }
    }

    /// Manifest 0 is committed, or was long ago.
    pub(crate) fn let_rows_flow(&mut self) {
        let Some(attempt) = &self.attempt else { return };
        let splits = deal_splits(&attempt.sources, self.config.parallelism);
        let (epoch, recovering) = (attempt.stamp.epoch, attempt.recovering);
        self.phase = Phase::Running;
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

    pub(crate) fn on_progress(&mut self, progress: Progress) {
        let Some(attempt) = &self.attempt else { return };
        let base = attempt.restored.as_ref().map(|manifest| &manifest.ledger);
        self.status.ledger = ledger(base, [&progress.counters]);
        self.status.watermarks = progress.watermarks;
        self.status.held_back_by = progress.held_back_by;
        self.status.read = progress.read;
    }

    /// The attempt is over. What it did since the newest manifest is forgotten and done again.
    pub(crate) fn on_failed(&mut self, cause: &str, retry: bool) {
        let Some(attempt) = &self.attempt else { return };
        let epoch = attempt.stamp.epoch;
        self.send(Command::Cancel);
        self.attempt = None;
        if self.finish_begun {
            return; // all output is published: no task is needed any more
        }
        self.forget_in_flight(cause);
        self.status.last_failure = Some(cause.to_owned());
        if self.stop_since_ms.is_some() {
            // What the newest manifest does not hold is read again by the next start.
            return self.stopped(Some(format!(
                "while it was stopping a task failed: {cause}"
            )));
        }
        if !retry {
            return self.fail(Error::Job {
                cause: cause.to_owned(),
            });
        }
        match self.budget.on_failure(self.now_ms) {
            Verdict::GiveUp { failures_n } => {
                self.fail(Error::RestartBudget {
                    failures_n,
                    cause: cause.to_owned(),
                });
            }
            Verdict::AgainIn(wait_ms) => {
                self.status.restarts_n += 1;
                self.phase = Phase::Recovering;
                self.recover_at_ms = Some(self.now_ms + wait_ms);
                let (cause, again_in_ms) = (cause.to_owned(), wait_ms);
                self.report(Report::AttemptFailed {
                    epoch,
                    cause,
                    again_in_ms,
                });
            }
        }
    }

    /// A person wants the job to stop. Not an end: watermarks stay, nothing fires (C11).
    pub(crate) fn on_stop(&mut self) {
        if self.stop_since_ms.is_some() {
            return;
        }
        self.stop_since_ms = Some(self.now_ms);
        self.report(Report::Stopping);
        match self.phase {
            // The checkpoint follows as soon as none is in flight.
            Phase::Running => self.phase = Phase::Stopping,
            Phase::Finishing => {
                self.publish_until_ms = Some(self.now_ms + self.config.checkpoint.timeout_ms);
            }
            // No row has been read since the newest manifest.
            Phase::Starting | Phase::Deploying | Phase::Recovering => self.stopped(None),
            Phase::Stopping | Phase::Ended => {}
        }
    }

    pub(crate) fn stopped(&mut self, note: Option<String>) {
        self.send(Command::Cancel);
        let newest = self
            .head
            .head()
            .and_then(|head| head.newest.as_ref())
            .map(|newest| newest.id);
        let unpublished_n = self.publisher.unpublished_n();
        self.end(Outcome::Stopped {
            checkpoint: newest,
            unpublished_n,
            note,
        });
    }

    /// The commit notices that are due (C3), once there is somebody who can publish.
    pub(crate) fn send_notices(&mut self) {
        if !matches!(
            self.phase,
            Phase::Running | Phase::Stopping | Phase::Finishing
        ) {
            return;
        }
        if let Some(notice) = self.publisher.notice(self.now_ms) {
            self.send(notice);
        }
    }

    /// Is the job, or its stop, done?
    pub(crate) fn end_if_done(&mut self) {
        let Some(committed) = &self.committed else {
            return;
        };
        if self.in_flight.is_some() || self.committing.is_some() || !self.store.is_free() {
            return;
        }
        let published = self.publisher.unpublished_n() == 0;
        match (self.phase, committed.kind) {
            (Phase::Finishing, CheckpointKind::Final) if published && self.is_of_attempt() => {
                // C11: finished = the final checkpoint's publish is confirmed.
                self.finish_begun = true;
                self.swap(Change::Finish);
            }
            (Phase::Stopping, CheckpointKind::Stop) if published && self.is_of_attempt() => {
                self.stopped(None);
            }
            (Phase::Stopping | Phase::Finishing, _)
                if self
                    .publish_until_ms
                    .is_some_and(|at_ms| at_ms <= self.now_ms) =>
            {
                self.stopped(None);
            }
            _ => {}
        }
    }

    /// Is the newest manifest one that this attempt made?
    fn is_of_attempt(&self) -> bool {
        let epoch = self.attempt.as_ref().map(|attempt| attempt.stamp.epoch);
        let generation = self
            .attempt
            .as_ref()
            .map(|attempt| attempt.stamp.generation);
        self.committed.as_ref().is_some_and(|manifest| {
            Some(manifest.epoch) == epoch && Some(manifest.generation) == generation
        })
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
