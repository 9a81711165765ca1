//! Starting a job's coordinator.

use std::time::{Duration, Instant};

use kube::runtime::reflector::ObjectRef;
use kube::{Resource as _, ResourceExt as _};

use super::{ACCEPT_LOST_MARKER, LOOK_AGAIN, LOOK_AGAIN_SOON, Pass, status};
use crate::fleet;
use crate::opening::Progress;
use crate::record::Record;
use crate::step::{Ended, Run};
use crate::stream_job::checked::Outcome as Checked;
use crate::stream_job::coordinate::{self, Prepared, Starting};
use crate::stream_job::error::Error;
use crate::stream_job::report::Totals;

/// Longest wait before a coordinator that ended for reasons around it, or could not be started, is started
/// again.
const START_AGAIN_MAX: Duration = Duration::from_secs(60);

impl Pass<'_> {
    /// Starts it, or goes on starting it; says when to look again.
    pub(super) async fn start(
        &mut self,
        current: Option<Checked>,
        run: &Run,
    ) -> Result<Duration, Error> {
        let Some(Ok(current)) = current else {
            // This operator cannot read what an older one kept: an edit mends it.
            return Ok(LOOK_AGAIN);
        };
        let Some(record) = self.record.clone() else {
            return Ok(LOOK_AGAIN);
        };
        let revision = self.revision(&current);
        match self.context.openings.poll(&self.uid, revision) {
            Progress::UnderWay => return Ok(LOOK_AGAIN),
            Progress::Done(prepared) => {
                return Box::pin(self.opened(*prepared, record, revision)).await;
            }
            Progress::None => {}
        }
        let now = Instant::now();
        match self.memory.start_at {
            Some(at) if at > now => return Ok(at - now),
            Some(_) => self.memory.start_at = None,
            None => {
                if let Run::Ended {
                    how: Ended::Broken(reason),
                    is_current: true,
                    ..
                } = run
                    && self.memory.start_failed.is_none()
                {
                    let job = self.job.name_any();
                    let namespace = self.namespace();
                    tracing::warn!(
                        namespace,
                        job,
                        reason,
                        "coordinator ended, starting it again"
                    );
                    return Ok(self.start_later());
                }
            }
        }
        let place = coordinate::place(&current, &record).to_string();
        let starting = Starting {
            context: self.context.clone(),
            desired: current,
            record,
            accept_lost_markers: self.annotation(ACCEPT_LOST_MARKER),
        };
        let waker = self.context.fleet.waker(ObjectRef::from_obj(self.job));
        let prepare = starting.prepare();
        let openings = &self.context.openings;
        openings.begin(&self.uid, revision, place, prepare, move || waker.wake());
        Ok(LOOK_AGAIN)
    }

    /// The store is open, or is not.
    async fn opened(
        &mut self,
        prepared: Result<Prepared, Error>,
        mut record: Record,
        revision: u64,
    ) -> Result<Duration, Error> {
        let prepared = match prepared {
            Ok(prepared) => prepared,
            Err(error) => {
                self.memory.start_failed = status::trouble(&error);
                self.start_later();
                return Err(error);
            }
        };
        self.memory.start_failed = None;
        // Before it is done: who comes after knows by it whether it has been.
        if prepared.config.rewind_to.is_some() && record.before_rewind.is_none() {
            record.before_rewind = Some(prepared.head.unwrap_or_default());
            if !self.write(record).await? {
                return Ok(LOOK_AGAIN_SOON);
            }
        }
        self.memory.before = Totals::of(self.job.status.as_ref());
        let Prepared {
            config,
            store,
            terms,
            ..
        } = prepared;
        self.context.fleet.start(fleet::Start {
            job: ObjectRef::from_obj(self.job),
            uid: self.uid.clone(),
            revision,
            config,
            store,
            terms,
            events: (self.context.recorder.clone(), self.job.object_ref(&())),
        });
        Ok(LOOK_AGAIN_SOON)
    }

    /// Nothing is to run any more.
    pub(super) fn give_up_starting(&mut self) {
        self.context.openings.forget(&self.uid);
        self.memory.start_failed = None;
        self.memory.start_at = None;
        self.memory.broken_n = 0;
        self.memory.broken_since = None;
    }

    /// Says after how long.
    fn start_later(&mut self) -> Duration {
        if self.memory.broken_n == 0 {
            self.memory.broken_since = Some(Instant::now());
        }
        self.memory.broken_n = self.memory.broken_n.saturating_add(1);
        let wait = Duration::from_millis(500) * (1 << self.memory.broken_n.min(7));
        let wait = spread(wait.min(START_AGAIN_MAX), &self.uid);
        self.memory.start_at = Some(Instant::now() + wait);
        wait
    }
}

/// Up to a quarter more, by the uid: a thousand jobs whose store came back do not all come at once.
fn spread(wait: Duration, uid: &str) -> Duration {
    let share = xxhash_rust::xxh3::xxh3_64(uid.as_bytes()) % 256;
    wait + wait * u32::try_from(share).unwrap_or_default() / 1024
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_of_many_jobs_are_spread_over_a_quarter() {
        let wait = Duration::from_secs(60);
        let waits: Vec<Duration> = (0..100)
            .map(|n| spread(wait, &format!("job-{n}")))
            .collect();

        assert!(
            waits.iter().all(|it| (60..75).contains(&it.as_secs())),
            "{waits:?}"
        );
        let distinct: std::collections::BTreeSet<u64> =
            waits.iter().map(Duration::as_secs).collect();
        assert!(distinct.len() > 10, "{distinct:?}");
    }
}
