//! The checkpoint block, and whether the newest is fresh.

use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use streamforge_core::units::HumanDuration;
use streamforge_crds::v1alpha1::{CheckpointStatus, CompletedCheckpoint, FailedCheckpoint};
use streamforge_host as host;

use super::super::conditions::{self as reason, Reason};
use super::{Known, Phase, signed};

/// The block. What a new coordinator does not know yet stays as it was.
pub(super) fn status(
    known: &Known<'_>,
    before: Option<&CheckpointStatus>,
) -> Option<CheckpointStatus> {
    let Some(coordinator) = known.coordinator else {
        return before.cloned();
    };
    let now = &coordinator.checkpoint;
    let old = before.cloned().unwrap_or_default();
    let completed = now
        .last_completed
        .as_ref()
        .map(|it| completed(it, known, old.last_completed.as_ref()));
    Some(CheckpointStatus {
        last_completed: completed.or(old.last_completed),
        last_failed: now.last_failed.as_ref().map(failed).or(old.last_failed),
        completed_total: known.before.completed + signed(now.completed_n),
        failed_total: known.before.failed + signed(now.failed_n),
    })
}

fn completed(
    completed: &host::CompletedCheckpoint,
    known: &Known<'_>,
    before: Option<&CompletedCheckpoint>,
) -> CompletedCheckpoint {
    let id = signed(completed.id.get());
    // A restored one was taken by an earlier attempt, and was said then.
    let same = before.filter(|before| before.id == id);
    let epoch = known.coordinator.map_or(0, |it| signed(it.epoch.get()));
    let place = known.desired.map(|desired| {
        let store = &desired.store;
        let again = match known.lived.incarnation {
            0 => String::new(),
            n => format!("-{n}"),
        };
        format!("s3://{}/{}{again}", store.bucket, store.prefix)
    });
    CompletedCheckpoint {
        id,
        epoch: same.map_or(epoch, |same| same.epoch),
        time: time_of(completed.time_ms),
        duration: duration(completed.duration_ms),
        size: size(completed.bytes_n),
        uri: place
            .or_else(|| same.map(|same| same.uri.clone()))
            .unwrap_or_default(),
    }
}

fn failed(failed: &host::FailedCheckpoint) -> FailedCheckpoint {
    FailedCheckpoint {
        id: signed(failed.id.get()),
        time: time_of(failed.time_ms),
        reason: failed.reason.clone(),
    }
}

/// A time as Kubernetes writes it; empty: none that it could write.
pub(super) fn time_of(ms: u64) -> String {
    Timestamp::from_millisecond(signed(ms)).map_or_else(|_| String::new(), reason::time)
}

fn duration(ms: u64) -> String {
    HumanDuration::from_millis(u32::try_from(ms).unwrap_or(u32::MAX)).to_string()
}

/// A size as people read it, at most three digits and a unit.
pub(super) fn size(bytes: u64) -> String {
    let mut unit = "";
    let mut tenths = bytes.saturating_mul(10);
    for larger in ["Ki", "Mi", "Gi", "Ti"] {
        if tenths < 10_240 {
            break;
        }
        tenths = tenths.div_ceil(1_024);
        unit = larger;
    }
    match (tenths / 10, tenths % 10) {
        (whole, 1..) if whole < 10 && !unit.is_empty() => format!("{whole}.{}{unit}", tenths % 10),
        (whole, _) => format!("{whole}{unit}"),
    }
}

/// Whether the newest checkpoint is as young as it should be.
pub(super) fn fresh(known: &Known<'_>, before: Option<&CheckpointStatus>) -> (Reason, String) {
    let block = status(known, before);
    let newest = block.and_then(|block| block.last_completed);
    let stale = known.coordinator.and_then(|it| it.checkpoint.stale.clone());
    if let Some(stale) = stale.filter(|_| !known.phase.is_at_rest()) {
        return (reason::CHECKPOINT_FAILING, stale);
    }
    let Some(newest) = newest else {
        return (
            reason::CHECKPOINT_NONE,
            reason::CHECKPOINT_NONE.meaning.to_owned(),
        );
    };
    let message = format!("checkpoint {} was completed at {}", newest.id, newest.time);
    if known.phase == Phase::Failed {
        // What came after it is in no checkpoint.
        return (reason::CHECKPOINT_NOT_RUNNING, message);
    }
    if known.phase.is_at_rest() {
        return (reason::CHECKPOINT_LAST, message);
    }
    if known.desired.is_none() {
        return (
            reason::CHECKPOINT_NOT_RUNNING,
            reason::CHECKPOINT_NOT_RUNNING.meaning.to_owned(),
        );
    }
    if known.phase == Phase::Running && is_old(known, &newest.time) {
        return (reason::CHECKPOINT_OLD, message);
    }
    (reason::CHECKPOINT_FRESH, message)
}

fn is_old(known: &Known<'_>, time: &str) -> bool {
    let (Some(desired), Ok(time)) = (known.desired, time.parse::<Timestamp>()) else {
        return false;
    };
    let checkpoint = &desired.document.spec.checkpoint;
    let age_max = checkpoint.interval.to_std() * 2 + checkpoint.timeout.to_std();
    let age = Duration::try_from(known.now.duration_since(time)).unwrap_or_default();
    age > age_max
}
