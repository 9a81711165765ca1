//! How the tasks do, for people.
//!
//! Owns: a small shared record per task that its thread refreshes several times a second.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use streamforge_core::ids::OperatorUid;
pub use streamforge_core::messages::Lag;
use streamforge_core::messages::Progress;
use streamforge_engine::source::Health;
use streamforge_engine::task::{TaskCore, Traffic};

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
    /// Per source that knows it.
    pub lag: BTreeMap<OperatorUid, Lag>,
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

    /// Refreshes it; `read` is the reader's (units read, units in all).
    pub fn update(&self, core: &TaskCore, read: Option<(u64, u64)>) {
        let watermarks = core.watermarks().map(|(uid, w)| (uid.clone(), w)).collect();
        let held_back_by = core
            .held_back_by()
            .map(|(uid, split)| (uid.clone(), split.to_string()))
            .collect();
        let read = self.source.clone().zip(read).into_iter().collect();
        let progress = Progress {
            counters: core.counters(),
            watermarks,
            held_back_by,
            read,
            ..Progress::default()
        };
        *self.latest.lock().unwrap_or_else(PoisonError::into_inner) = progress;
        self.local().traffic = core.traffic();
    }

    fn local(&self) -> MutexGuard<'_, Local> {
        self.local.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How the outside system of its source does.
    pub fn on_health(&self, health: Health) {
        if let (Some(source), Some(records_n)) = (&self.source, health.lag_records) {
            let read_up_to_ms = health.read_up_to_ms;
            let lag = Lag {
                records_n,
                read_up_to_ms,
            };
            self.local().lag.insert(source.clone(), lag);
        }
        self.on_trouble(health.trouble);
    }
}

impl TaskProgress {
    /// What keeps the source from reading, in words: told instead of the split that holds the
    /// watermark.
    fn on_trouble(&self, trouble: Option<String>) {
        let (Some(source), Some(trouble)) = (&self.source, trouble) else {
            return;
        };
        let mut latest = self.latest.lock().unwrap_or_else(PoisonError::into_inner);
        latest.held_back_by.insert(source.clone(), trouble);
    }
}

/// All tasks' local numbers together.
pub fn combine_local<'a>(tasks: impl Iterator<Item = &'a TaskProgress>) -> Local {
    let mut all = Local::default();
    for task in tasks {
        let one = task.local().clone();
        for (uid, traffic) in one.traffic {
            let sum = all.traffic.entry(uid).or_default();
            sum.bytes_in += traffic.bytes_in;
            sum.bytes_out += traffic.bytes_out;
        }
        for (uid, lag) in one.lag {
            all.lag.entry(uid).or_default().add(&lag);
        }
    }
    all
}

/// All tasks' records together.
pub fn combine<'a>(tasks: impl Iterator<Item = &'a TaskProgress>) -> Progress {
    let mut all = Progress::default();
    let mut lowest_source = BTreeMap::new();
    for task in tasks {
        let one = task
            .latest
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        for (uid, counters) in one.counters {
            all.counters.entry(uid).or_default().add(&counters);
        }
        for (uid, split) in one.held_back_by {
            let watermark = one.watermarks.get(&uid).copied().unwrap_or_default();
            let lowest = lowest_source.entry(uid.clone()).or_insert(watermark);
            if watermark <= *lowest {
                *lowest = watermark;
                all.held_back_by.insert(uid, split);
            }
        }
        for (uid, watermark) in one.watermarks {
            let lowest = all.watermarks.entry(uid).or_insert(watermark);
            *lowest = watermark.min(*lowest);
        }
        for (uid, (read, total)) in one.read {
            let sum = all.read.entry(uid).or_default();
            sum.0 += read;
            sum.1 += total;
        }
        for (uid, lag) in &task.local().lag {
            all.lag.entry(uid.clone()).or_default().add(lag);
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn coordinator_is_told_the_lag_of_all_tasks_of_a_source() {
        let uid = OperatorUid("in".to_owned());
        let task = |lag_records, read_up_to_ms| {
            let task = TaskProgress::new(Some(uid.clone()));
            task.on_health(Health {
                lag_records: Some(lag_records),
                read_up_to_ms,
                ..Health::default()
            });
            task
        };
        let tasks = [task(3, Some(20)), task(0, None), task(4, Some(10))];

        let lag = combine(tasks.iter()).lag[&uid];
        assert_eq!((lag.records_n, lag.read_up_to_ms), (7, Some(10)));
    }
}
