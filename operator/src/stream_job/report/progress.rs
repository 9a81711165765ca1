//! Event time, and whether what there is to read is read.

use std::collections::BTreeSet;

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use streamforge_core::event_time::Watermark;
use streamforge_core::ids::OperatorUid;
use streamforge_core::job_graph::OperatorKind;
use streamforge_core::messages::Lag;
use streamforge_crds::v1alpha1::{LagStatus, WatermarkStatus};
use streamforge_host::Status;

use super::super::conditions::{self as reason, Reason};
use super::{Known, Phase};

/// A watermark that stands still for so long is held back by something: longer than the idle timeouts
/// that people write, and shorter than it takes them to wonder.
const STANDS_STILL: SignedDuration = SignedDuration::from_secs(60);

/// Whoever is no further behind than this has caught up: rows are on their way all the time.
const BEHIND_MAX: SignedDuration = SignedDuration::from_secs(10);

/// Since when the watermark stands where it does. Kept beside the coordinator, fed with each status.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pace {
    watermark: Option<Watermark>,
    moved_at: Option<Timestamp>,
}

impl Pace {
    /// The pace after another look.
    #[must_use]
    pub fn after(self, status: &Status, now: Timestamp) -> Self {
        let watermark = lowest(status).map(|(_, watermark)| watermark);
        if watermark == self.watermark && self.moved_at.is_some() {
            return self;
        }
        Self {
            watermark,
            moved_at: Some(now),
        }
    }

    fn stands_still(&self, now: Timestamp) -> bool {
        self.moved_at
            .is_some_and(|moved_at| now.duration_since(moved_at) >= STANDS_STILL)
    }
}

/// The source whose watermark is the lowest.
fn lowest(status: &Status) -> Option<(&OperatorUid, Watermark)> {
    let sources = status.read.keys();
    let known = sources.filter_map(|uid| Some((uid, *status.watermarks.get(uid)?)));
    known.min_by_key(|(_, watermark)| *watermark)
}

/// What holds it: a sink that waits for its outside system, or a split of the lowest source.
fn held_back_by(status: &Status) -> Option<String> {
    let mut sinks = status.held_back_by.iter();
    let sink = sinks.find(|(uid, _)| !status.read.contains_key(*uid));
    let source = || lowest(status).and_then(|(uid, _)| status.held_back_by.get_key_value(uid));
    let (uid, by) = sink.or_else(source)?;
    Some(format!("{uid} {by}"))
}

/// The block. Without a coordinator the last word stands.
pub(super) fn watermark(
    known: &Known<'_>,
    before: Option<&WatermarkStatus>,
) -> Option<WatermarkStatus> {
    let Some(status) = known.coordinator else {
        return before.cloned();
    };
    let value = lowest(status).and_then(|(_, watermark)| written(watermark));
    let held_back_by = held_back_by(status).filter(|_| !known.phase.is_at_rest());
    if value.is_none() && held_back_by.is_none() {
        return None;
    }
    Some(WatermarkStatus {
        value,
        held_back_by,
    })
}

/// The ends of time are no times.
fn written(watermark: Watermark) -> Option<String> {
    if watermark == Watermark::NONE || watermark == Watermark::END {
        return None;
    }
    let at = Timestamp::from_microsecond(watermark.0).ok()?;
    Some(at.to_string())
}

/// Whether event time goes on.
pub(super) fn advancing(known: &Known<'_>) -> (Reason, String) {
    let plain = |reason: Reason| (reason, reason.meaning.to_owned());
    if known.phase == Phase::Finished {
        return plain(reason::WATERMARK_END);
    }
    if known
        .desired
        .is_some_and(|desired| sources_with_event_time(desired).is_empty())
    {
        return plain(reason::WATERMARK_NO_EVENT_TIME);
    }
    let Some(status) = known.coordinator.filter(|_| known.phase == Phase::Running) else {
        return plain(reason::WATERMARK_NOT_RUNNING);
    };
    let lowest = lowest(status).map(|(_, watermark)| watermark);
    if lowest == Some(Watermark::END) {
        return plain(reason::WATERMARK_END);
    }
    if known.pace.stands_still(known.now) {
        let by = held_back_by(status);
        let message = by.map_or_else(
            || reason::WATERMARK_HELD_BACK.meaning.to_owned(),
            |by| format!("held back by {by}"),
        );
        return (reason::WATERMARK_HELD_BACK, message);
    }
    match lowest.and_then(written) {
        None => plain(reason::WATERMARK_NONE),
        Some(value) => (
            reason::WATERMARK_ADVANCING,
            format!("every event before {value} was seen"),
        ),
    }
}

fn sources_with_event_time(desired: &super::Desired) -> BTreeSet<&OperatorUid> {
    let operators = desired.document.graph.operators();
    operators
        .filter(|(_, operator)| match &operator.kind {
            OperatorKind::Source(source) => source.event_time.is_some(),
            _ => false,
        })
        .map(|(_, operator)| &operator.uid)
        .collect()
}

/// Whether what there is to read is read.
pub(super) fn caught_up(known: &Known<'_>) -> (Reason, String) {
    let plain = |reason: Reason| (reason, reason.meaning.to_owned());
    if known.phase == Phase::Finished {
        return plain(reason::CAUGHT_UP_ALL_READ);
    }
    let Some(status) = known.coordinator.filter(|_| known.phase == Phase::Running) else {
        return plain(reason::CAUGHT_UP_NOT_RUNNING);
    };
    let left = left_of_bounded(status);
    if left != Some(0) && !status.unreachable.is_empty() {
        // The newest that was heard says nothing of what is there now.
        let why = status.unreachable.iter();
        let why: Vec<String> = why.map(|(uid, why)| format!("{uid}: {why}")).collect();
        return (reason::CAUGHT_UP_UNREACHABLE, why.join("; "));
    }
    if let Some(left) = left {
        return match left {
            0 => plain(reason::CAUGHT_UP_ALL_READ),
            percent => (
                reason::CAUGHT_UP_BEHIND,
                format!("{percent} % of the input is still to be read"),
            ),
        };
    }
    if let Some(LagStatus { records, seconds }) = lag(status, known.now) {
        let behind = |it: &Lag| it.records_n > 0 && it.read_up_to_ms.is_none();
        if status.lag.values().any(behind) {
            // Of one that has not begun to read.
            let message = format!("{records} records behind");
            return (reason::CAUGHT_UP_BEHIND, message);
        }
        let message = format!("{records} records and {seconds} s behind");
        let within = records == 0 || SignedDuration::from_secs(seconds) <= BEHIND_MAX;
        let reason = match within {
            true => reason::CAUGHT_UP,
            false => reason::CAUGHT_UP_BEHIND,
        };
        return (reason, message);
    }
    plain(reason::CAUGHT_UP_NOT_MEASURED)
}

/// How far the sources are behind what is there, all together; none where one does not say.
pub(super) fn lag(status: &Status, now: Timestamp) -> Option<LagStatus> {
    let says = |uid| status.lag.contains_key(uid);
    if status.lag.is_empty() || !status.read.keys().all(says) {
        return None;
    }
    let records = status.lag.values().map(|lag| lag.records_n).sum();
    let behind = status.lag.values().filter(|lag| lag.records_n > 0);
    let read_up_to_ms = behind.filter_map(|lag| lag.read_up_to_ms).min();
    let behind_ms = read_up_to_ms.map_or(0, |at| now.as_millisecond().saturating_sub(at));
    Some(LagStatus {
        records: super::signed(records),
        seconds: behind_ms.max(0) / 1_000,
    })
}

/// What is left of bounded input, in percent, rounded up; none where some input never ends.
fn left_of_bounded(status: &Status) -> Option<u64> {
    let sources = status.read.values();
    let bounded = !status.read.is_empty() && sources.clone().all(|(_, all)| *all > 0);
    let read: u64 = sources.clone().map(|(read, _)| read).sum();
    let all: u64 = sources.map(|(_, all)| all).sum();
    let left = all.saturating_sub(read);
    bounded.then(|| left.saturating_mul(100).div_ceil(all.max(1)))
}
