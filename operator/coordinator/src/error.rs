//! Why a job cannot start or go on. Each text says what a person can do about it.

use streamforge_core::ids::{CheckpointId, Generation};

/// Why a job cannot start or go on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// C7: a job whose head is gone has a history that must not be forgotten silently.
    #[error(
        "restore: the store has {manifests_n} manifests but no head, so which one is current is not \
         known; put the head object back, or start over with --fresh"
    )]
    HeadMissing {
        /// How many there are.
        manifests_n: usize,
    },
    /// The head is there and cannot be read.
    #[error("read head: {reason}; put the head object back, or start over with --fresh")]
    HeadUnreadable {
        /// What is wrong with it.
        reason: String,
    },
    /// The head went away under a running job.
    #[error("swap head: it is gone from the store; somebody deleted it while the job ran")]
    HeadVanished,
    /// The store holds another job's history.
    #[error(
        "restore: the store belongs to job {theirs:?}, this document is job {ours:?}; give each job \
         a store of its own with --store, or start over with --fresh"
    )]
    OtherJob {
        /// Name in the stored plan.
        theirs: String,
        /// Name in the document.
        ours: String,
    },
    /// The number of key groups is fixed while state exists.
    #[error(
        "restore: maxParallelism is {stored} in the stored state and {wanted} in the document; it \
         cannot change while state exists: write maxParallelism: {stored}, or start over with --fresh"
    )]
    MaxParallelismChanged {
        /// In the manifest.
        stored: u32,
        /// In the document.
        wanted: u32,
    },
    /// More subtasks than key groups.
    #[error("start: parallelism {parallelism} is above maxParallelism {max_parallelism}")]
    ParallelismTooHigh {
        /// Asked for.
        parallelism: u32,
        /// Key groups.
        max_parallelism: u32,
    },
    /// The document cannot take the state over.
    #[error(
        "restore checkpoint {id}: the document no longer fits the stored state:{}\nundo these edits, \
         or start over with --fresh",
        list(.mismatches)
    )]
    IncompatibleDocument {
        /// Which checkpoint.
        id: CheckpointId,
        /// One sentence each.
        mismatches: Vec<String>,
    },
    /// `--rewind-to` names a checkpoint that is not kept.
    #[error("rewind to checkpoint {wanted}: the store does not keep it, nor a savepoint of it; kept are: {}", ids(.kept))]
    NotRetained {
        /// Asked for.
        wanted: CheckpointId,
        /// What there is.
        kept: Vec<CheckpointId>,
    },
    /// C7: the checkpoint to restore is damaged; an older one is never taken silently.
    #[error(
        "restore checkpoint {id}: it is damaged:{}\n{}",
        list(.damages),
        way_out(.intact.as_ref(), .history_n)
    )]
    Damaged {
        /// Which.
        id: CheckpointId,
        /// One sentence each.
        damages: Vec<String>,
        /// Newest older one that is whole.
        intact: Option<CheckpointId>,
        /// How many older ones are kept.
        history_n: usize,
    },
    /// The document cannot take a savepoint over.
    #[error(
        "restore savepoint {place}: the document does not fit its state:{}\nundo these edits, or begin \
         without the savepoint",
        list(.mismatches)
    )]
    IncompatibleSavepoint {
        /// Where it is.
        place: String,
        /// One sentence each.
        mismatches: Vec<String>,
    },
    /// C9: a savepoint is restored whole or not at all.
    #[error(
        "restore savepoint {place}: it is not whole:{}\ncopy its folder again, or name another savepoint",
        list(.damages)
    )]
    SavepointDamaged {
        /// Where it is.
        place: String,
        /// One sentence each.
        damages: Vec<String>,
    },
    /// C5: a newer coordinator has taken over.
    #[error(
        "swap head: fenced, another coordinator took this job over (generation {theirs}, ours is \
         {ours}); nothing was written after that"
    )]
    Fenced {
        /// Its term.
        theirs: Generation,
        /// Ours.
        ours: Generation,
    },
    /// The coordinator that is taken over from was faster each time.
    #[error(
        "swap head: an earlier coordinator of this job (generation {theirs}) is still at work and \
         changed the head each time before this one could take over ({times_n} times); stop it, or \
         set a longer checkpoint.interval"
    )]
    Outrun {
        /// Its term.
        theirs: Generation,
        /// How often.
        times_n: u32,
    },
    /// The store did not answer while nothing could be done without it.
    #[error("{request}: {reason} (asked {attempts_n} times)")]
    Store {
        /// What was asked.
        request: &'static str,
        /// What it said.
        reason: String,
        /// How often.
        attempts_n: u32,
    },
    /// An object of this name and other contents exists, which no other writer may have made.
    #[error("put {key}: an object of that name and other contents exists")]
    NameTaken {
        /// The key.
        key: String,
    },
    /// A mistake that no new attempt mends.
    #[error("{cause}")]
    Job {
        /// As the task said it.
        cause: String,
    },
    /// Too many failures without progress.
    #[error(
        "gave up after {failures_n} failures without a completed checkpoint; the last: {cause}"
    )]
    RestartBudget {
        /// How many counted.
        failures_n: u32,
        /// The last one.
        cause: String,
    },
}

fn list(sentences: &[String]) -> String {
    sentences
        .iter()
        .map(|sentence| format!("\n  - {sentence}"))
        .collect()
}

fn ids(ids: &[CheckpointId]) -> String {
    if ids.is_empty() {
        return "none".to_owned();
    }
    ids.iter()
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join(", ")
}

fn way_out(intact: Option<&CheckpointId>, history_n: &usize) -> String {
    match (intact, history_n) {
        (Some(id), _) => format!(
            "checkpoint {id} is older and intact; rows published after it would come again. To go on \
             from it: streamforge run job.yaml --rewind-to {id}"
        ),
        (None, 0) => "no older checkpoint is kept; start over with --fresh".to_owned(),
        (None, _) => "none of the older checkpoints is intact; start over with --fresh".to_owned(),
    }
}
