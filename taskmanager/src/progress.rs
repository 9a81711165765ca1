//! How the tasks do, for people.
//!
//! Owns: a small shared record per task that its thread refreshes several times a second.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use streamforge_core::ids::{OperatorUid, SplitId};
pub use streamforge_core::messages::Lag;
use streamforge_core::messages::Progress;
use streamforge_engine::source::{Health, SourceReader};
use streamforge_engine::task::{TaskCore, Traffic};
use streamforge_engine::watermark::Until;

/// Where a task's time went, in microseconds since it began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Times {
    /// All of it.
    pub running_us: u64,
    /// Waiting for input.
    pub idle_us: u64,
    /// Waiting for receivers.
    pub blocked_us: u64,
}

/// What only this process's metrics tell.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Local {
    /// Bytes through each operator.
    pub traffic: BTreeMap<OperatorUid, Traffic>,
}

/// One task's record.
#[derive(Debug, Default)]
pub struct TaskProgress {
    latest: Mutex<Progress>,
    local: Mutex<Local>,
    source: Option<OperatorUid>,
    running_us: AtomicU64,
    idle_us: AtomicU64,
    blocked_us: AtomicU64,
}

impl TaskProgress {
    /// For a task whose stage begins with this source, if any.
    pub fn new(source: Option<OperatorUid>) -> Self {
        Self {
            source,
            ..Self::default()
        }
    }

    /// The task waited for input.
    pub fn on_idle(&self, us: u64) {
        self.idle_us.fetch_add(us, Ordering::Relaxed);
    }

    /// The task waited for receivers.
    pub fn on_blocked(&self, us: u64) {
        self.blocked_us.fetch_add(us, Ordering::Relaxed);
    }

    /// The task runs since so long.
    pub fn on_running(&self, us: u64) {
        self.running_us.store(us, Ordering::Relaxed);
    }

    /// Where its time went.
    pub fn times(&self) -> Times {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Times {
            running_us: read(&self.running_us),
            idle_us: read(&self.idle_us),
            blocked_us: read(&self.blocked_us),
        }
    }

    /// The source that its stage begins with.
    pub fn source(&self) -> Option<&OperatorUid> {
        self.source.as_ref()
    }

    /// Refreshes it.
    pub fn update(&self, core: &TaskCore, reader: Option<&dyn SourceReader>) {
        let watermarks = core.watermarks().map(|(uid, w)| (uid.clone(), w)).collect();
        let name = |split: &SplitId| match reader {
            Some(reader) => reader.name_of(split),
            None => split.to_string(),
        };
        let held_back_by = core
            .held_back_by()
            .map(|(uid, holder)| (uid.clone(), told(&name(holder.split), holder.until)))
            .collect();
        let mut progress = Progress {
            counters: core.counters(),
            watermarks,
            held_back_by,
            ..Progress::default()
        };
        let local = Local {
            traffic: core.traffic(),
        };
        if let (Some(source), Some(reader)) = (&self.source, reader) {
            progress.read.insert(source.clone(), reader.read_units());
            put_health(&mut progress, source, reader.health());
        }
        *self.latest.lock().unwrap_or_else(PoisonError::into_inner) = progress;
        *self.local.lock().unwrap_or_else(PoisonError::into_inner) = local;
    }

    /// A sink's rows wait for its outside system; told until the task goes on.
    pub fn on_sink_waits(&self, sink: &OperatorUid, trouble: String) {
        let mut latest = self.latest.lock().unwrap_or_else(PoisonError::into_inner);
        latest.held_back_by.insert(sink.clone(), trouble);
    }
}

/// How the outside system of a source does.
fn put_health(progress: &mut Progress, source: &OperatorUid, health: Health) {
    if let Some(records_n) = health.lag_records {
        let read_up_to_ms = health.read_up_to_ms;
        let lag = Lag {
            records_n,
            read_up_to_ms,
        };
        progress.lag.insert(source.clone(), lag);
    }
    if health.skipped_n > 0 {
        progress.skipped_n.insert(source.clone(), health.skipped_n);
    }
    let Some(trouble) = health.trouble else {
        return;
    };
    if health.is_unreachable {
        progress.unreachable.insert(source.clone(), trouble.clone());
    }
    // Told instead of the split that holds the watermark.
    progress.held_back_by.insert(source.clone(), trouble);
}

/// The split that holds the watermark, for people.
fn told(name: &str, until: Until) -> String {
    match until {
        Until::ItsRows => name.to_owned(),
        Until::Idle { in_ms } => format!("{name} (idle in {}s)", in_ms.div_ceil(1_000)),
        Until::SomethingComes => format!("{name} (no idleTimeout)"),
    }
}

/// All tasks' local numbers together.
pub fn combine_local<'a>(tasks: impl Iterator<Item = &'a TaskProgress>) -> Local {
    let mut all = Local::default();
    for task in tasks {
        let one = task.local.lock().unwrap_or_else(PoisonError::into_inner);
        for (uid, traffic) in &one.traffic {
            let sum = all.traffic.entry(uid.clone()).or_default();
            sum.bytes_in += traffic.bytes_in;
            sum.bytes_out += traffic.bytes_out;
        }
    }
    all
}

/// All tasks' records together.
pub fn combine<'a>(tasks: impl Iterator<Item = &'a TaskProgress>) -> Progress {
    let latest = tasks.map(|task| {
        let latest = task.latest.lock().unwrap_or_else(PoisonError::into_inner);
        latest.clone()
    });
    let latest: Vec<Progress> = latest.collect();
    Progress::sum(latest.iter())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uid() -> OperatorUid {
        OperatorUid("in".to_owned())
    }

    /// A task whose reader says this.
    fn task(health: Health) -> TaskProgress {
        let task = TaskProgress::new(Some(uid()));
        let mut progress = Progress::default();
        progress.read.insert(uid(), (0, 0));
        put_health(&mut progress, &uid(), health);
        *task.latest.lock().unwrap() = progress;
        task
    }

    fn reads(lag_records: u64, read_up_to_ms: Option<i64>) -> TaskProgress {
        task(Health {
            lag_records: Some(lag_records),
            read_up_to_ms,
            ..Health::default()
        })
    }

    #[test]
    fn coordinator_is_told_the_lag_of_all_tasks_of_a_source() {
        let tasks = [reads(3, Some(20)), reads(0, None), reads(4, Some(10))];

        let lag = combine(tasks.iter()).lag[&uid()];
        assert_eq!((lag.records_n, lag.read_up_to_ms), (7, Some(10)));
    }

    /// An open transaction is trouble, too, but what waits behind it is known.
    #[test]
    fn kf_k10_source_of_which_one_task_is_cut_off_is_unreachable_and_has_no_lag() {
        let told = |is_unreachable, lag_records| {
            let silent = task(Health {
                trouble: Some("no answer".to_owned()),
                is_unreachable,
                lag_records,
                ..Health::default()
            });
            let all = combine([reads(3, None), silent, reads(4, None)].iter());
            assert_eq!(all.held_back_by[&uid()], "no answer");
            (
                all.lag.get(&uid()).map(|lag| lag.records_n),
                all.unreachable,
            )
        };

        let unreachable = BTreeMap::from([(uid(), "no answer".to_owned())]);
        assert_eq!(told(true, None), (None, unreachable));
        assert_eq!(told(false, Some(5)), (Some(12), BTreeMap::new()));
    }

    #[test]
    fn holder_of_a_watermark_is_told_with_what_it_waits_for() {
        let name = "partition 3";
        assert_eq!(told(name, Until::ItsRows), "partition 3");
        let idle = |in_ms| told(name, Until::Idle { in_ms });
        assert_eq!(idle(22_000), "partition 3 (idle in 22s)");
        assert_eq!(idle(1), "partition 3 (idle in 1s)");
        let silent = told(name, Until::SomethingComes);
        assert_eq!(silent, "partition 3 (no idleTimeout)");
    }
}
