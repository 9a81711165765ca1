//! How the tasks do, for people.
//!
//! Owns: a small shared record per task that its thread refreshes several times a second.

use std::sync::{Mutex, PoisonError};

use streamforge_core::ids::OperatorUid;
use streamforge_core::messages::Progress;
use streamforge_engine::task::TaskCore;

/// One task's record.
#[derive(Debug, Default)]
pub struct TaskProgress {
    latest: Mutex<Progress>,
    source: Option<OperatorUid>,
}

impl TaskProgress {
    /// For a task whose stage begins with this source, if any.
    pub fn new(source: Option<OperatorUid>) -> Self {
        Self {
            latest: Mutex::default(),
            source,
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
