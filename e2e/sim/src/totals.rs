//! What happened, over all seeds: the chaos must reach everything it is for.

use crate::kafka::KafkaTotals;
use crate::process::Process;

/// Numbers of what happened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Committed checkpoints.
    pub checkpoints_n: u64,
    /// Coordinators started.
    pub coordinators_n: u64,
    /// Coordinators that found a newer one.
    pub fenced_n: u64,
    /// Stops with a checkpoint.
    pub stopped_n: u64,
    /// Stops that recorded what they had published.
    pub recorded_n: u64,
    /// Puts that arrived long after they were given up, and took effect.
    pub landed_late_n: u64,
    /// New attempts after a failure.
    pub restarts_n: u64,
    /// Coordinators that died.
    pub coordinator_crashes_n: u64,
    /// Task managers that died.
    pub task_manager_crashes_n: u64,
    /// Attempts that began at another parallelism than the one before.
    pub rescales_n: u64,
    /// Attempts that went on under another coordinator (F1).
    pub adopted_n: u64,
    /// Hand-overs that came to their end (K3).
    pub handed_over_n: u64,
    /// Hand-overs that were given up before their barrier.
    pub withdrawn_n: u64,
    /// Task managers that were frozen.
    pub frozen_n: u64,
    /// Channels between task managers that broke.
    pub broken_channels_n: u64,
    /// Frames of an attempt that their receiver did not run (any more).
    pub refused_frames_n: u64,
    /// Ends of transactions that a partition missed (X7).
    pub forgotten_n: u64,
    /// Late (record, window) pairs.
    pub late_n: u64,
    /// Rows published.
    pub rows_n: u64,
    /// Savepoints.
    pub savepoints_n: u64,
    /// Jobs that began with one.
    pub begun_n: u64,
    /// Partitions that appeared while a job ran.
    pub added_n: u64,
    /// Times that leaders of partitions went away.
    pub away_n: u64,
    /// Times that a partition was silent long enough to be idle.
    pub silences_n: u64,
    /// Records of aborted transactions that readers passed.
    pub aborted_n: u64,
}

impl Totals {
    /// Adds what a coordinator did in its life.
    pub fn count(&mut self, process: &Process) {
        let status = process.co.status();
        self.restarts_n += u64::from(status.restarts_n);
        self.checkpoints_n += status.checkpoint.completed_n;
        self.adopted_n += process.reports.adopted_n;
        self.handed_over_n += process.reports.handed_over_n;
        self.withdrawn_n += process.reports.withdrawn_n;
    }

    /// Adds what happened to the topics that were read.
    pub fn add_kafka(&mut self, kafka: KafkaTotals) {
        self.added_n += kafka.added_n;
        self.away_n += kafka.away_n;
        self.silences_n += kafka.silences_n;
        self.aborted_n += kafka.aborted_n;
    }

    /// Adds another seed's.
    pub fn add(&mut self, other: &Totals) {
        for (mine, others) in self.fields().into_iter().zip(other.clone().fields()) {
            *mine += *others;
        }
    }

    fn fields(&mut self) -> [&mut u64; 25] {
        [
            &mut self.checkpoints_n,
            &mut self.coordinators_n,
            &mut self.fenced_n,
            &mut self.stopped_n,
            &mut self.recorded_n,
            &mut self.landed_late_n,
            &mut self.restarts_n,
            &mut self.coordinator_crashes_n,
            &mut self.task_manager_crashes_n,
            &mut self.rescales_n,
            &mut self.adopted_n,
            &mut self.handed_over_n,
            &mut self.withdrawn_n,
            &mut self.frozen_n,
            &mut self.broken_channels_n,
            &mut self.refused_frames_n,
            &mut self.forgotten_n,
            &mut self.late_n,
            &mut self.rows_n,
            &mut self.savepoints_n,
            &mut self.begun_n,
            &mut self.added_n,
            &mut self.away_n,
            &mut self.silences_n,
            &mut self.aborted_n,
        ]
    }

    /// Whether everything happened at least once.
    pub fn has_everything(&self) -> bool {
        self.clone().fields().iter().all(|n| **n > 0)
    }
}
