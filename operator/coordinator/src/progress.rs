//! What task managers say of how their tasks do.
//!
//! Owns: putting together what all of them say, for people. Nothing is decided by it.

use std::collections::BTreeMap;

use streamforge_core::ids::OperatorUid;
use streamforge_core::messages::{Progress, TaskManagerId};

use crate::attempt::{Attempt, ledger};
use crate::coordinator::Coordinator;
use crate::decision::Report;
use crate::status::Phase;

impl Attempt {
    /// How many records a task manager's sources passed over since it spoke last.
    fn skipped_more(&self, of: &TaskManagerId, now: &Progress) -> BTreeMap<OperatorUid, u64> {
        let before = self.progress.get(of);
        let more = now.skipped_n.iter().map(|(uid, n)| {
            let before = match before {
                Some(before) => before.skipped_n.get(uid).copied().unwrap_or_default(),
                // The coordinator before has told it.
                None if self.adopted => *n,
                None => 0,
            };
            (uid.clone(), n.saturating_sub(before))
        });
        more.filter(|(_, n)| *n > 0).collect()
    }
}

impl Coordinator {
    pub(crate) fn on_progress(&mut self, from: TaskManagerId, progress: Progress) {
        let Some(attempt) = &mut self.attempt else {
            return;
        };
        if self.phase == Phase::Deploying {
            if let Some(at_ms) = attempt.unprepared.get_mut(&from) {
                *at_ms = self.now_ms;
            }
            // No row has been read; a sink may wait for its brokers.
            if !progress.held_back_by.is_empty() {
                self.status.held_back_by = progress.held_back_by;
            }
            return;
        }
        let skipped = attempt.skipped_more(&from, &progress);
        attempt.progress.insert(from, progress);
        let progress = Progress::sum(attempt.progress.values());
        let base = attempt.restored.as_ref().map(|manifest| &manifest.ledger);
        self.status.ledger = ledger(base, [&progress.counters]);
        self.status.watermarks = progress.watermarks;
        self.status.held_back_by = progress.held_back_by;
        self.status.read = progress.read;
        self.status.lag = progress.lag;
        self.status.unreachable = progress.unreachable;
        for (source, n) in skipped {
            self.report(Report::RecordsSkipped { source, n });
        }
    }
}
