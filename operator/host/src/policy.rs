//! What a document says about how its job is run, in the coordinator's words.
//!
//! Owns: the translation, which the command line and the operator share.

use std::time::Duration;

use streamforge_coordinator::{CheckpointPolicy, MemberPolicy, RestartPolicy};
use streamforge_core::units::HumanDuration;
use streamforge_crds::v1alpha1::StreamJobSpec;

use crate::sessions::Terms;

/// When no task manager was left: how long others may come after the first before the job is begun
/// with fewer subtasks.
const GATHER_MS: u64 = 1_000;

fn ms(duration: HumanDuration) -> u64 {
    duration.micros().unsigned_abs() / 1_000
}

/// When checkpoints are taken.
#[must_use]
pub fn checkpoints(spec: &StreamJobSpec) -> CheckpointPolicy {
    let checkpoint = &spec.checkpoint;
    CheckpointPolicy {
        interval_ms: ms(checkpoint.interval),
        timeout_ms: ms(checkpoint.timeout),
        min_pause_ms: ms(checkpoint.min_pause),
        retain_n: checkpoint.retain as usize,
        tolerate_failures_n: checkpoint.tolerate_failures,
    }
}

/// Which failures end a job.
#[must_use]
pub fn restarts(spec: &StreamJobSpec) -> RestartPolicy {
    let restart = &spec.restart;
    RestartPolicy {
        failures_n_max: restart.max_failures,
        window_ms: ms(restart.window),
        backoff_initial_ms: ms(restart.backoff.initial),
        backoff_max_ms: ms(restart.backoff.max),
    }
}

/// When a task manager of another process counts as lost, and how long others are waited for.
#[must_use]
pub fn members(spec: &StreamJobSpec) -> MemberPolicy {
    let timeout = spec.failure_detection.clone().unwrap_or_default().timeout;
    MemberPolicy {
        silence_ms_max: ms(timeout),
        adopt_within_ms: Some(ms(timeout)),
        gather_ms: GATHER_MS,
    }
}

/// Where a job's checkpoints are, as its task managers are told: a URI, and settings of a bucket as
/// JSON (empty: none).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreAddress {
    /// The place.
    pub uri: String,
    /// Its settings.
    pub settings: String,
}

/// What task managers of other processes are told. Without a session for `alone_max` they end
/// themselves; `None`: never.
#[must_use]
pub fn terms(
    spec: &StreamJobSpec,
    store: StoreAddress,
    alone_max: Option<Duration>,
    accept_lost_markers: Vec<String>,
) -> Terms {
    let detection = spec.failure_detection.clone().unwrap_or_default();
    Terms {
        heartbeat: detection.heartbeat.to_std(),
        timeout: detection.timeout.to_std(),
        alone_max,
        unseen_max: spec.checkpoint.timeout.to_std(),
        store_uri: store.uri,
        store_settings: store.settings,
        accept_lost_markers,
        state_bytes_max: spec.state.memory_limit.bytes(),
    }
}
