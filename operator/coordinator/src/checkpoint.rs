//! One checkpoint: trigger, acknowledgements, manifest, head swap.
//!
//! Owns: the attempt in flight, of which there is at most one. Start at:
//! [`Coordinator::trigger_if_due`], then [`Coordinator::on_ack`].
//!
//! Invariant C1: a manifest is built only when every *expected* task has acknowledged this very id,
//! and lists them. Invariant C2: until its swap has succeeded, or a later swap of ours has without
//! it, a checkpoint is neither committed nor failed. Invariant A2: an attempt that is given up is
//! aborted by name, so that no task waits for its barrier. Invariant C11: when all tasks have ended
//! the checkpoint is the final one.

mod build;

use std::collections::{BTreeMap, BTreeSet};

use streamforge_core::frame;
use streamforge_core::ids::{CheckpointId, OperatorUid, SplitId, SubtaskIdx, TaskId};
use streamforge_core::manifest::{self, CheckpointKind, Head, Manifest, ManifestRef};
use streamforge_core::messages::{Command, TaskSnapshot};
use streamforge_core::object_key::{MANIFESTS, Writer};

use crate::coordinator::{Coordinator, Purpose};
use crate::decision::Report;
use crate::error::Error;
use crate::head::Change;
use crate::lane::Answered;
use crate::status::{CompletedCheckpoint, FailedCheckpoint, Phase};
use crate::store_request::{PutCondition, StoreAnswer, StoreRequest};

/// After a failed savepoint, stop or final checkpoint the next attempt does not wait for the interval.
const RETRY_MS: u64 = 200;

/// With so many intervals of a sink not published, the next checkpoint is held back.
const BEHIND_N: usize = 2;

/// But no longer than this: a sink may be away for hours.
const HELD_BACK_MS_MAX: u64 = 1_000;

/// When so many checkpoints in a row had all acknowledgements and no manifest could be made of them, the
/// attempt has lost something: only a restore finds it again.
const UNIONS_FAILED_MAX: u32 = 3;

/// A stop whose checkpoint never resolves ends after this many checkpoint timeouts.
const STOP_TIMEOUTS_N: u64 = 3;

/// The attempt in flight.
#[derive(Debug)]
pub(crate) struct InFlight {
    pub id: CheckpointId,
    pub kind: CheckpointKind,
    pub since_ms: u64,
    acks: BTreeMap<TaskId, TaskSnapshot>,
    /// Built when the last acknowledgement was in.
    manifest: Option<Manifest>,
}

/// A manifest that a swap under way will name, or has named.
#[derive(Debug)]
pub(crate) struct Committing {
    manifest: Manifest,
    key: String,
    bytes_n: u64,
    freeze_us: u64,
    /// It is the first one after a recovery, which is no progress (attack 47).
    after_recovery: bool,
    /// Who held which split.
    holders: BTreeMap<OperatorUid, BTreeMap<SplitId, SubtaskIdx>>,
}

impl Coordinator {
    /// Begins a checkpoint when one is due and none is in flight.
    pub(crate) fn trigger_if_due(&mut self) {
        if !matches!(
            self.phase,
            Phase::Running | Phase::Stopping | Phase::Finishing
        ) || self.in_flight.is_some()
            || self.is_handing_over()
            || self.committing.is_some()
            || !self.store.is_free()
        {
            return;
        }
        let Some(attempt) = &self.attempt else { return };
        let all_ended = attempt.ended == attempt.tasks;
        let has_last = self.committed.as_ref().is_some_and(|manifest| {
            manifest.epoch == attempt.stamp.epoch
                && matches!(manifest.kind, CheckpointKind::Stop | CheckpointKind::Final)
        });
        let kind = match self.phase {
            _ if has_last => return,
            _ if all_ended => CheckpointKind::Final,
            Phase::Stopping => CheckpointKind::Stop,
            _ if self.savepoints.are_due() => CheckpointKind::Savepoint,
            _ => CheckpointKind::Ordinary,
        };
        // What is asked for waits for no interval, only for a moment after one that failed.
        let due_ms = if is_asked(kind) {
            self.retry_at_ms
        } else {
            self.checkpoint_at_ms
        };
        // Output that a slow publisher is behind with waits shorter in few large intervals.
        let is_behind =
            self.publisher.intervals_n() >= BEHIND_N && kind == CheckpointKind::Ordinary;
        let due_ms = due_ms + if is_behind { HELD_BACK_MS_MAX } else { 0 };
        if due_ms <= self.now_ms {
            self.trigger(kind);
        }
    }

    fn trigger(&mut self, kind: CheckpointKind) {
        let Some(id) = self.reserved_id() else {
            return self.swap(Change::Reserve);
        };
        if kind == CheckpointKind::Final {
            self.phase = Phase::Finishing;
            if self.stop_since_ms.is_some() {
                let until_ms = self.now_ms + self.config.checkpoint.timeout_ms;
                self.publish_until_ms.get_or_insert(until_ms);
            }
        }
        if matches!(kind, CheckpointKind::Savepoint | CheckpointKind::Stop) {
            self.savepoints.on_triggered(id);
        }
        self.begin(id, kind);
        self.send(Command::Checkpoint { id, kind });
    }

    /// Manifest 0: no row is read and no barrier sent, so there is nobody to wait for (C10).
    pub(crate) fn commit_initial(&mut self) {
        // The swap of this attempt has just moved the range on.
        let Some(id) = self.reserved_id() else { return };
        self.begin(id, CheckpointKind::Initial);
        self.put_manifest();
    }

    pub(crate) fn is_handing_over(&self) -> bool {
        let attempt = self.attempt.as_ref();
        attempt.is_some_and(|attempt| attempt.hand_over.is_some())
    }

    pub(crate) fn begin(&mut self, id: CheckpointId, kind: CheckpointKind) {
        let (acks, manifest) = (BTreeMap::new(), None);
        self.just_committed = false;
        self.in_flight = Some(InFlight {
            id,
            kind,
            since_ms: self.now_ms,
            acks,
            manifest,
        });
    }

    /// The next id, if it is within the range that the head reserves (C4).
    pub(crate) fn reserved_id(&mut self) -> Option<CheckpointId> {
        let reserved_to = self.head.head()?.ids_reserved_to;
        let id = self.next_id;
        (id <= reserved_to).then(|| {
            self.next_id = id.next();
            id
        })
    }

    pub(crate) fn on_ack(&mut self, snapshot: TaskSnapshot) {
        let (Some(attempt), Some(in_flight)) = (&self.attempt, &mut self.in_flight) else {
            return;
        };
        let expected = attempt.expected(in_flight.kind, &self.config.graph);
        if snapshot.id != in_flight.id
            || in_flight.manifest.is_some()
            || !expected.contains(&snapshot.task)
        {
            return; // of an attempt that was given up
        }
        in_flight.acks.insert(snapshot.task, snapshot);
        if in_flight.acks.len() == expected.len() {
            self.put_manifest();
        }
    }

    pub(crate) fn on_declined(&mut self, task: TaskId, id: CheckpointId, reason: &str) {
        let waits = |in_flight: &InFlight| in_flight.id == id && in_flight.manifest.is_none();
        if self.in_flight.as_ref().is_some_and(waits) {
            self.abort(&format!("task {task} declined it: {reason}"));
        }
    }

    pub(crate) fn on_ended(&mut self, task: TaskId) {
        if let Some(attempt) = &mut self.attempt {
            attempt.ended.insert(task);
        }
    }

    /// All expected acknowledgements are in: what they say becomes a manifest.
    fn put_manifest(&mut self) {
        let (Some(attempt), Some(in_flight)) = (&self.attempt, &self.in_flight) else {
            return;
        };
        let Some(head) = self.head.head() else { return };
        let header = build::Header {
            head,
            id: in_flight.id,
            kind: in_flight.kind,
            max_parallelism: self.config.graph.max_parallelism,
            is_endless: !self.config.graph.bounded
                || attempt.restored.as_ref().is_some_and(|it| it.ran_endless),
            time_ms: self.now_ms,
            duration_ms: self.now_ms - in_flight.since_ms,
        };
        let built = match in_flight.kind {
            CheckpointKind::Initial => Ok(build::initial(&header, attempt, &self.publisher)),
            CheckpointKind::Ordinary
            | CheckpointKind::HandOver
            | CheckpointKind::Savepoint
            | CheckpointKind::Stop
            | CheckpointKind::Final => {
                build::union(&header, attempt, &in_flight.acks, &self.publisher)
            }
        };
        match built {
            Err(reason) => self.on_union_failed(&reason),
            Ok(manifest) => {
                if let Some(attempt) = &mut self.attempt {
                    attempt.unions_failed_n = 0;
                }
                let key = manifest_key(&manifest);
                let bytes = manifest::encode(frame::MANIFEST, &manifest);
                if manifest.kind == CheckpointKind::HandOver {
                    self.let_receive(&manifest);
                }
                if let Some(in_flight) = &mut self.in_flight {
                    in_flight.manifest = Some(manifest);
                }
                let condition = PutCondition::CreateIfAbsent;
                self.ask(
                    Purpose::PutManifest,
                    StoreRequest::Put {
                        key,
                        bytes,
                        condition,
                    },
                );
            }
        }
    }

    /// What the tasks say does not make a whole.
    fn on_union_failed(&mut self, reason: &str) {
        let Some(attempt) = &mut self.attempt else {
            return;
        };
        attempt.unions_failed_n += 1;
        let is_hopeless = attempt.unions_failed_n >= UNIONS_FAILED_MAX;
        self.abort(reason);
        if is_hopeless {
            // Nothing is done by this if the abort has ended the attempt already.
            self.on_failed(None, &format!("no checkpoint can be made: {reason}"), true);
        }
    }

    /// The manifest's put, or the reading back after it, was answered.
    pub(crate) fn on_manifest_answer(&mut self, answered: Answered<Purpose>) {
        let taken = self.in_flight.as_ref().and_then(|it| it.manifest.as_ref());
        let Some(manifest) = taken.or(self.recording.manifest()).cloned() else {
            return;
        };
        let key = manifest_key(&manifest);
        match &answered.answer {
            StoreAnswer::Put(_) => self.commit(manifest),
            StoreAnswer::Got(Some((found, _))) => {
                // The name carries our generation, so only an earlier put of ours can have made it.
                if *found == manifest::encode(frame::MANIFEST, &manifest) {
                    self.commit(manifest);
                } else {
                    self.fail(Error::NameTaken { key });
                }
            }
            StoreAnswer::ConditionFailed => {
                let read_back = StoreRequest::Get { key };
                let decision = self.store.ask_on(&mut self.requests, answered, read_back);
                self.out.push(decision);
            }
            StoreAnswer::Got(None)
            | StoreAnswer::Listed(_)
            | StoreAnswer::Checked(_)
            | StoreAnswer::Deleted
            | StoreAnswer::Refused { .. }
            | StoreAnswer::Unknown { .. } => {
                let bytes = manifest::encode(frame::MANIFEST, &manifest);
                let condition = PutCondition::CreateIfAbsent;
                let again = StoreRequest::Put {
                    key,
                    bytes,
                    condition,
                };
                self.store.ask_later(self.now_ms, answered, again);
            }
        }
    }

    /// The manifest is durable. From here on only the head decides (C2).
    fn commit(&mut self, manifest: Manifest) {
        let key = manifest_key(&manifest);
        let reference = ManifestRef {
            key: key.clone(),
            id: manifest.id,
        };
        let Some(in_flight) = self.in_flight.take() else {
            return self.name_record(reference);
        };
        let after_recovery = self.attempt.as_mut().is_some_and(|attempt| {
            let goes_on = matches!(
                in_flight.kind,
                CheckpointKind::Ordinary | CheckpointKind::Savepoint
            );
            goes_on && std::mem::take(&mut attempt.recovering)
        });
        self.committing = Some(Committing {
            manifest,
            key,
            bytes_n: in_flight.acks.values().map(|ack| ack.bytes).sum(),
            freeze_us: in_flight
                .acks
                .values()
                .map(|ack| ack.freeze_us)
                .max()
                .unwrap_or(0),
            after_recovery,
            holders: holders(in_flight.acks.values()),
        });
        let retain_n = self.config.checkpoint.retain_n;
        let manifest = reference;
        let task_managers = self.run_by(in_flight.kind);
        self.swap(match in_flight.kind {
            CheckpointKind::HandOver => Change::CommitHandOver {
                manifest,
                retain_n,
                task_managers,
            },
            CheckpointKind::Initial
            | CheckpointKind::Ordinary
            | CheckpointKind::Savepoint
            | CheckpointKind::Stop
            | CheckpointKind::Final => Change::Commit {
                manifest,
                retain_n,
                task_managers,
            },
        });
    }

    /// Names of those that run the attempt once this checkpoint is committed.
    fn run_by(&self, kind: CheckpointKind) -> BTreeSet<String> {
        let Some(attempt) = &self.attempt else {
            return BTreeSet::new();
        };
        let places = match (kind, &attempt.hand_over) {
            (CheckpointKind::HandOver, Some(hand_over)) => &hand_over.places,
            _ => &attempt.places,
        };
        places.values().map(|it| it.name.clone()).collect()
    }

    /// A swap of ours has succeeded: now it is known whether the manifest under way is named (C2).
    pub(crate) fn resolve_commit(&mut self, head: &Head) {
        let Some(committing) = self.committing.take() else {
            return;
        };
        if head
            .newest
            .as_ref()
            .is_some_and(|newest| newest.id == committing.manifest.id)
        {
            self.on_committed(committing, head);
        } else {
            self.note_failed(
                committing.manifest.id,
                "the attempt ended before it was committed",
            );
        }
    }

    fn on_committed(&mut self, committing: Committing, head: &Head) {
        let Committing {
            manifest,
            key,
            bytes_n,
            freeze_us,
            after_recovery,
            holders,
        } = committing;
        if let Some(attempt) = &mut self.attempt {
            attempt.holders = holders;
        }
        let (id, kind, duration_ms) = (manifest.id, manifest.kind, manifest.duration_ms);
        self.retention.learn(&key, &manifest);
        self.retention.on_head(head);
        self.publisher.on_committed(&manifest);
        self.failures_in_a_row_n = 0;
        self.status.checkpoint.stale = None;
        self.status.checkpoint.completed_n += 1;
        self.status.checkpoint.last_completed = Some(CompletedCheckpoint {
            id,
            kind,
            time_ms: manifest.time_ms,
            duration_ms,
            bytes_n,
            freeze_us,
        });
        if is_last(kind) {
            // The tasks report no more; before that their own reports are newer.
            self.status.ledger = manifest.ledger.clone();
        }
        if kind == CheckpointKind::HandOver {
            self.on_hand_over_committed(&manifest);
        }
        self.on_savepoint_committed(&manifest);
        self.committed = Some(manifest);
        if kind != CheckpointKind::Initial && !after_recovery {
            self.budget.on_progress();
        }
        self.send(Command::Committed { id });
        self.report(Report::CheckpointCompleted {
            id,
            kind,
            duration_ms,
            bytes_n,
            freeze_us,
        });
        self.schedule_next(duration_ms);
        self.just_committed = kind == CheckpointKind::Ordinary && !after_recovery;
        match kind {
            CheckpointKind::Initial => self.let_rows_flow(),
            CheckpointKind::Stop => {
                self.publish_until_ms = Some(self.now_ms + self.config.checkpoint.timeout_ms);
            }
            CheckpointKind::Ordinary
            | CheckpointKind::HandOver
            | CheckpointKind::Savepoint
            | CheckpointKind::Final => {}
        }
        self.clean();
    }

    fn schedule_next(&mut self, duration_ms: u64) {
        let policy = &self.config.checkpoint;
        let by_interval_ms = self.now_ms + policy.interval_ms.saturating_sub(duration_ms);
        self.checkpoint_at_ms = by_interval_ms.max(self.now_ms + policy.min_pause_ms);
    }

    /// Gives up what has taken too long.
    pub(crate) fn check_timeouts(&mut self) {
        self.check_loading();
        let timeout_ms = self.config.checkpoint.timeout_ms;
        let now_ms = self.now_ms;
        if self.in_flight.as_ref().is_some_and(|in_flight| {
            in_flight.kind != CheckpointKind::Initial && in_flight.since_ms + timeout_ms <= now_ms
        }) {
            let missing = self.missing_acks();
            self.abort(&format!("not complete after {timeout_ms} ms; {missing}"));
        }
        let give_up_ms = timeout_ms.saturating_mul(STOP_TIMEOUTS_N);
        if self.phase == Phase::Stopping
            && self
                .stop_since_ms
                .is_some_and(|since_ms| since_ms + give_up_ms <= now_ms)
            && self.publish_until_ms.is_none()
        {
            self.stopped(Some(
                "its last checkpoint could not be completed".to_owned(),
            ));
        }
    }

    pub(crate) fn missing_acks(&self) -> String {
        let (Some(attempt), Some(in_flight)) = (&self.attempt, &self.in_flight) else {
            return String::new();
        };
        if in_flight.manifest.is_some() {
            return "the store has not taken its manifest".to_owned();
        }
        let expected = attempt.expected(in_flight.kind, &self.config.graph);
        let missing = expected
            .iter()
            .filter(|task| !in_flight.acks.contains_key(task));
        let missing: Vec<String> = missing.map(ToString::to_string).collect();
        format!("no acknowledgement from task {}", missing.join(", "))
    }

    /// Gives the attempt in flight up (A2). No head names it, so it does not exist.
    fn abort(&mut self, reason: &str) {
        let Some(in_flight) = self.in_flight.take() else {
            return;
        };
        // Its manifest may be on its way: an object that nobody will ever name.
        self.store.clear();
        self.send(Command::Abort { id: in_flight.id });
        self.note_failed(in_flight.id, reason);
        if in_flight.kind == CheckpointKind::HandOver {
            // Some send by the new table already (K3).
            return self.on_failed(None, &format!("the hand-over failed: {reason}"), true);
        }
        let policy = &self.config.checkpoint;
        let wait_ms = policy
            .interval_ms
            .min(policy.timeout_ms)
            .max(policy.min_pause_ms);
        self.checkpoint_at_ms = self.now_ms + wait_ms;
        if is_asked(in_flight.kind) {
            self.retry_at_ms = self.now_ms + RETRY_MS;
        }
        if self.phase == Phase::Stopping
            && self.failures_in_a_row_n > self.config.checkpoint.tolerate_failures_n
        {
            self.stopped(Some(format!(
                "its last checkpoint could not be completed: {reason}"
            )));
        }
    }

    /// The attempt of the job is over, and what was in flight with it. A swap stays under way.
    pub(crate) fn forget_in_flight(&mut self, reason: &str) {
        if let Some(in_flight) = self.in_flight.take() {
            self.store.clear();
            self.note_failed(in_flight.id, reason);
        }
    }

    fn note_failed(&mut self, id: CheckpointId, reason: &str) {
        self.savepoints.on_checkpoint_failed(id, reason);
        self.failures_in_a_row_n += 1;
        let (in_a_row, reason) = (self.failures_in_a_row_n, reason.to_owned());
        self.status.checkpoint.failed_n += 1;
        if in_a_row > self.config.checkpoint.tolerate_failures_n {
            let stale = format!("{in_a_row} checkpoints in a row failed; the last: {reason}");
            self.status.checkpoint.stale = Some(stale);
        }
        let failed = FailedCheckpoint {
            id,
            time_ms: self.now_ms,
            reason: reason.clone(),
        };
        self.status.checkpoint.last_failed = Some(failed);
        self.report(Report::CheckpointFailed {
            id,
            reason,
            in_a_row,
        });
    }
}

fn holders<'a>(
    acks: impl Iterator<Item = &'a TaskSnapshot>,
) -> BTreeMap<OperatorUid, BTreeMap<SplitId, SubtaskIdx>> {
    let mut holders: BTreeMap<OperatorUid, BTreeMap<SplitId, SubtaskIdx>> = BTreeMap::new();
    for ack in acks {
        for (source, splits) in &ack.splits {
            let of_source = holders.entry(source.clone()).or_default();
            let ids = splits.iter().map(|split| split.split.clone());
            of_source.extend(ids.map(|id| (id, ack.task.subtask)));
        }
    }
    holders
}

/// Not one that the interval brings.
fn is_asked(kind: CheckpointKind) -> bool {
    is_last(kind) || kind == CheckpointKind::Savepoint
}

fn is_last(kind: CheckpointKind) -> bool {
    matches!(kind, CheckpointKind::Stop | CheckpointKind::Final)
}

pub(crate) fn manifest_key(manifest: &Manifest) -> String {
    let Manifest {
        generation,
        epoch,
        id: checkpoint,
        ..
    } = *manifest;
    Writer {
        generation,
        epoch,
        checkpoint,
    }
    .key(MANIFESTS)
}
