//! What a coordinator is told when it is made.

use std::sync::Arc;

use streamforge_core::ids::{CheckpointId, JobId};
use streamforge_core::job_graph::JobGraph;
use streamforge_core::manifest::Plan;

/// When checkpoints are taken and kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckpointPolicy {
    /// From the start of one to the start of the next.
    pub interval_ms: u64,
    /// An attempt that has not been acknowledged by then is given up; a stop waits as long for its
    /// output to be published.
    pub timeout_ms: u64,
    /// At least this long between the end of one and the start of the next.
    pub min_pause_ms: u64,
    /// How many committed checkpoints are kept; at least 1.
    pub retain_n: usize,
    /// After more failed attempts in a row than this, the checkpoint counts as stale.
    pub tolerate_failures_n: u32,
}

impl Default for CheckpointPolicy {
    fn default() -> Self {
        Self {
            interval_ms: 10_000,
            timeout_ms: 60_000,
            min_pause_ms: 0,
            retain_n: 3,
            tolerate_failures_n: 3,
        }
    }
}

/// When a failing job is given up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RestartPolicy {
    /// More counted failures than this within the window end the job.
    pub failures_n_max: u32,
    /// The window.
    pub window_ms: u64,
    /// Wait before the first new attempt; doubles with each counted failure.
    pub backoff_initial_ms: u64,
    /// Longest wait.
    pub backoff_max_ms: u64,
}

impl Default for RestartPolicy {
    fn default() -> Self {
        Self {
            failures_n_max: 10,
            window_ms: 600_000,
            backoff_initial_ms: 100,
            backoff_max_ms: 30_000,
        }
    }
}

/// How task managers are told apart from lost ones, and waited for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberPolicy {
    /// Who says nothing for longer than this is lost. `u64::MAX`: only a broken session counts.
    pub silence_ms_max: u64,
    /// After a takeover the running attempt is adopted if all of its task managers register within
    /// this time. `None`: task managers end with their coordinator, there is nothing to adopt.
    pub adopt_within_ms: Option<u64>,
    /// When none was left, the first one that comes is given the job after this time even if there
    /// are fewer slots than subtasks.
    pub gather_ms: u64,
}

impl Default for MemberPolicy {
    /// One task manager in the coordinator's own process.
    fn default() -> Self {
        Self {
            silence_ms_max: u64::MAX,
            adopt_within_ms: None,
            gather_ms: 0,
        }
    }
}

/// Everything a coordinator needs to know of its job.
#[derive(Clone, Debug)]
pub struct Config {
    /// Identity of the history, should this be its first start. Random; made by the shell.
    pub new_job: JobId,
    /// Where this coordinator can be reached, for the head.
    pub address: String,
    /// Random, different in every process: nonces of head swaps are drawn from it.
    pub nonce_seed: u64,
    /// What runs. Shared with whoever else keeps it: a process may have a thousand coordinators.
    pub graph: Arc<JobGraph>,
    /// The document it was made from, as written; kept with the plan.
    pub document: Arc<str>,
    /// Subtasks per stage.
    pub parallelism: u32,
    /// Restore this retained checkpoint, not the newest (C7).
    pub rewind_to: Option<CheckpointId>,
    /// Begin with this savepoint if the job has no state yet (C9): its place, for people. Its objects
    /// are under [`crate::ELSEWHERE`].
    pub restore_from: Option<String>,
    /// State, and positions of input, that the document has no place for are dropped; else they refuse the
    /// start.
    pub drop_state: bool,
    /// Checkpoints.
    pub checkpoint: CheckpointPolicy,
    /// Failures.
    pub restart: RestartPolicy,
    /// Task managers.
    pub members: MemberPolicy,
}

impl Config {
    /// What is stored beside the checkpoints.
    pub(crate) fn plan(&self) -> Plan {
        Plan {
            graph: JobGraph::clone(&self.graph),
            document: self.document.to_string(),
        }
    }
}
