//! How a job ends: by itself, or because a person wants it to stop.
//!
//! Owns: the steps of a stop, what it waits for, and when the job, or its stop, is done. What it has
//! published is recorded (`recording`).
//!
//! Invariant C11: a stop is not an end, so watermarks stay and nothing fires; finished means that the
//! final checkpoint's publish is confirmed.

use streamforge_core::manifest::CheckpointKind;
use streamforge_core::messages::Command;

use crate::coordinator::Coordinator;
use crate::decision::{Outcome, Report};
use crate::head::Change;
use crate::status::Phase;

impl Coordinator {
    /// A person wants the job to stop. Not an end: watermarks stay, nothing fires (C11).
    pub(crate) fn on_stop(&mut self) {
        if self.stop_since_ms.is_some() {
            return;
        }
        self.stop_since_ms = Some(self.now_ms);
        self.report(Report::Stopping);
        if self.adopt_until_ms.is_some() {
            return; // rows may be flowing: the attempt is adopted first, or is known to be over
        }
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

    /// What a stop still waits for, for people; `None`: none was asked for.
    pub(crate) fn stop_waits_for(&self) -> Option<String> {
        if self.stop_since_ms.is_none() || self.phase == Phase::Ended {
            return None;
        }
        if let Some(trouble) = &self.store_trouble {
            return Some(format!("the store ({trouble})"));
        }
        if let Some(in_flight) = &self.in_flight {
            let (id, missing) = (in_flight.id, self.missing_acks());
            return Some(format!("checkpoint {id}: {missing}"));
        }
        let unpublished_n = self.publisher.unpublished_n();
        if self.publish_until_ms.is_some() && unpublished_n > 0 {
            return Some(format!("{unpublished_n} staged intervals to be published"));
        }
        if self.recording.manifest().is_some() {
            return Some("the store to take what is published".to_owned());
        }
        if self.savepoints.are_in_progress() {
            return Some("its savepoint to be copied".to_owned());
        }
        let failed = self.status.checkpoint.last_failed.as_ref();
        let failed = failed.filter(|_| self.failures_in_a_row_n > 0);
        Some(match failed {
            Some(failed) => format!(
                "its last checkpoint; the try before failed: {}",
                failed.reason
            ),
            None if self.committing.is_some() => "the store to take its last checkpoint".to_owned(),
            None => "its last checkpoint".to_owned(),
        })
    }

    pub(crate) fn stopped(&mut self, note: Option<String>) {
        self.send(Command::Cancel);
        let newest = self
            .head
            .head()
            .and_then(|head| head.newest.as_ref())
            .map(|newest| newest.id);
        let unpublished_n = self.publisher.unpublished_n();
        let savepoint_failed = self.savepoints.failed_at_stop(note.as_deref());
        self.end(Outcome::Stopped {
            checkpoint: newest,
            unpublished_n,
            note,
            savepoint_failed,
        });
    }

    /// Is the job, or its stop, done?
    pub(crate) fn end_if_done(&mut self) {
        self.give_up_recording_if_late();
        if self.in_flight.is_some() || self.committing.is_some() || !self.store.is_free() {
            return;
        }
        if self.record_if_due() {
            return;
        }
        let Some(committed) = &self.committed else {
            return;
        };
        if self.savepoints.are_in_progress() {
            return; // it needs nothing but the store, and fails if its output is not published
        }
        let published = self.publisher.unpublished_n() == 0;
        match (self.phase, committed.kind) {
            (Phase::Finishing, CheckpointKind::Final) if published && self.is_of_attempt() => {
                // C11: finished = the final checkpoint's publish is confirmed.
                self.finish_begun = true;
                self.swap(Change::Finish);
            }
            (Phase::Stopping, CheckpointKind::Stop)
                if published && (self.is_of_attempt() || self.attempt.is_none()) =>
            {
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

    /// All that a stop still waits for is a savepoint, for which no task is needed any more.
    pub(crate) fn only_copies(&self) -> bool {
        self.phase == Phase::Stopping
            && self.savepoints.are_in_progress()
            && self.publisher.unpublished_n() == 0
            && self.is_of_attempt()
            && self
                .committed
                .as_ref()
                .is_some_and(|it| it.kind == CheckpointKind::Stop)
    }

    /// Is the newest manifest one that this attempt made?
    pub(crate) fn is_of_attempt(&self) -> bool {
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
