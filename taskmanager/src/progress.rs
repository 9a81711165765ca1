//! How the tasks do, for people.
//!
//! Owns: a small shared record per task that its thread refreshes several times a second.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use streamforge_core::ids::OperatorUid;
use streamforge_core::messages::Progress;
use streamforge_engine::task::TaskCore;

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

/// One task's record.
#[derive(Debug, Default)]
pub struct TaskProgress {
    latest: Mutex<Progress>,
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
        };
        *self.latest.lock().unwrap_or_else(PoisonError::into_inner) = progress;
    }
}

impl TaskProgress {
    /// What keeps the source from reading, in words: told instead of the split that holds the
    /// watermark.
    pub fn on_trouble(&self, trouble: Option<String>) {
        let (Some(source), Some(trouble)) = (&self.source, trouble) else {
            return;
        };
        let mut latest = self.latest.lock().unwrap_or_else(PoisonError::into_inner);
        latest.held_back_by.insert(source.clone(), trouble);
    }
}

/// All tasks' records together.
pub fn combine<'a>(tasks: impl Iterator<Item = &'a TaskProgress>) -> Progress {
    let mut all = Progress::default();
    let mut lowest_source = std::collections::BTreeMap::new();
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
    }
    all
}
