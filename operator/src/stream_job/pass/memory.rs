//! What a pass knows of the ones before it.
//!
//! Owns: what is remembered of a job between passes, and how stops that come to nothing are counted and put off.
//! Nothing depends on it but the number of writes, and when something is tried again.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::{children, dry_run, secrets};
use crate::children::Kind;
use crate::step::{Ended, Run};
use crate::stream_job::keep::Packed;
use crate::stream_job::pods::{Leaving, Missing};
use crate::stream_job::report::{Pace, Totals, Trouble};

/// After how long a stop that came to nothing is tried again, at first and at last.
const STOP_AGAIN: Duration = Duration::from_secs(10);
const STOP_AGAIN_MAX: Duration = Duration::from_secs(300);

/// Coordinators in a row that end, or cannot be started, before one that is awaited for a stop is given up, if its time
/// is over.
const STARTS_MIN: u32 = 2;

/// What is remembered of a job between passes; nothing depends on it but the number of writes.
#[derive(Clone, Debug, Default)]
pub struct Memory {
    /// The children as they were applied.
    pub applied: BTreeMap<Kind, children::Applied>,
    /// When the certificate of the pods was looked at, and how often since pods are missing.
    pub certified: Option<(Instant, u32)>,
    /// What is kept in the ConfigMap, as it was read or written last.
    pub kept: Packed,
    /// Nothing of the children's names is somebody else's.
    pub names_are_free: bool,
    /// What the API server said of pods that are on no record.
    pub tried: Option<dry_run::Tried>,
    /// When the status was written.
    pub reported: Option<Instant>,
    /// Coordinators in a row that ended for reasons around them.
    pub broken_n: u32,
    /// Since when there were no others.
    pub broken_since: Option<Instant>,
    /// Not before this the next one is started.
    pub start_at: Option<Instant>,
    /// Passes in a row that failed.
    pub failed_n: u32,
    /// For metrics.
    pub phase: String,
    /// Since when the watermark has not moved.
    pub pace: Pace,
    /// What was counted before the coordinator of now.
    pub before: Totals,
    /// Pods that end.
    pub leaving: Leaving,
    /// Pods that are not there.
    pub missing: Missing,
    /// A pod that cannot start.
    pub sick: Option<(Trouble, String)>,
    /// What kept the last pass from going on.
    pub trouble: Option<(Trouble, String)>,
    /// Why the coordinator could not be started.
    pub start_failed: Option<(Trouble, String)>,
    /// Why the job cannot be stopped.
    pub stop_failed: Option<String>,
    /// Stops in a row that came to nothing.
    pub stops_failed_n: u32,
    /// Not before this the next one is ordered.
    pub stop_at: Option<Instant>,
    /// When the Secrets of pods were looked at, while something fails.
    pub secrets: Option<secrets::Looked>,
    /// The time of the last failure that was taken for one of old values of a Secret, and when the first in a row was.
    pub excused: Option<(u64, Instant)>,
}

impl Memory {
    /// What a job that is to stop, or is not, has come to.
    pub(super) fn on_run(&mut self, is_to_stop: bool, run: &Run) {
        if !is_to_stop {
            return self.forget_stops();
        }
        let Run::Ended { how, .. } = run else {
            return;
        };
        match how {
            Ended::Stopped {
                failed: Some(unsaved),
            } => self.on_stop_failed(&unsaved.reason),
            // What it runs may run on, and only a coordinator can save it.
            Ended::Broken(reason) => {
                self.on_stop_failed(&format!("the coordinator has ended: {reason}"));
            }
            _ => {}
        }
    }

    /// A stop came to nothing. It ends the coordinator, which is looked at until there is another one; if for all its
    /// time there is none, the next stop has come to nothing, too.
    pub(super) fn on_stop_failed(&mut self, reason: &str) {
        let has_tried = self.until_stop().is_none() && self.broken_n >= STARTS_MIN;
        if self.stop_at.is_some() && !has_tried {
            return;
        }
        let (now, wait) = (
            Instant::now(),
            STOP_AGAIN.saturating_mul(1 << self.stops_failed_n.min(8)),
        );
        self.stops_failed_n = self.stops_failed_n.saturating_add(1);
        self.stop_at = Some(now + wait.min(STOP_AGAIN_MAX));
        self.stop_failed = Some(reason.to_owned());
        // A start that was put off for long is tried for the stop.
        self.start_at = self.start_at.map(|at| at.min(now));
    }

    /// Nobody wants the job to stop.
    pub(super) fn forget_stops(&mut self) {
        (self.stop_failed, self.stop_at, self.stops_failed_n) = (None, None, 0);
    }

    /// How long the job runs on before the next stop, if the last one came to nothing.
    pub(super) fn until_stop(&self) -> Option<Duration> {
        let left = self.stop_at?.saturating_duration_since(Instant::now());
        (!left.is_zero()).then_some(left)
    }

    /// For how long coordinators end or cannot be started, with no row that flowed in between.
    pub(super) fn tried(&self) -> Duration {
        let since = self.broken_since.filter(|_| self.broken_n > 0);
        since.map_or(Duration::ZERO, |since| since.elapsed())
    }
}
