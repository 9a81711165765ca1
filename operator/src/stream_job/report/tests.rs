use std::collections::BTreeMap;

use k8s_openapi::jiff::SignedDuration;
use serde_json::{Value, json};
use streamforge_core::event_time::Watermark;
use streamforge_core::ids::{CheckpointId, Epoch, OperatorUid};
use streamforge_core::manifest::CheckpointKind;
use streamforge_core::messages::Lag;
use streamforge_host as host;

use super::*;
use crate::stream_job::testing::{UID, job, settings, with};
use crate::stream_job::validate::validate;

const NOW: &str = "2026-11-30T10:00:00Z";

fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

fn after(seconds: i64) -> Timestamp {
    at(NOW) + SignedDuration::from_secs(seconds)
}

fn desired() -> Desired {
    validate(&job(), &settings()).unwrap()
}

fn lag_of(source: &OperatorUid, records_n: u64, seconds: i64) -> BTreeMap<OperatorUid, Lag> {
    let read_up_to_ms = Some(after(-seconds).as_millisecond());
    let lag = Lag {
        records_n,
        read_up_to_ms,
    };
    BTreeMap::from([(source.clone(), lag)])
}

/// A job that runs and has completed checkpoint 12 three seconds ago.
fn running() -> Status {
    let source = OperatorUid("clicks".to_owned());
    Status {
        phase: host::Phase::Running,
        epoch: Epoch::from_stored(2),
        parallelism: 4,
        wanted: 4,
        restarts_n: 1,
        checkpoint: host::CheckpointStatus {
            last_completed: Some(host::CompletedCheckpoint {
                id: CheckpointId::from_stored(12),
                kind: CheckpointKind::Ordinary,
                time_ms: u64::try_from(after(-3).as_millisecond()).unwrap(),
                duration_ms: 1_200,
                bytes_n: 3 << 20,
                freeze_us: 50,
            }),
            completed_n: 5,
            failed_n: 1,
            ..host::CheckpointStatus::default()
        },
        watermarks: BTreeMap::from([(source.clone(), Watermark(after(-7).as_microsecond()))]),
        held_back_by: BTreeMap::from([(source.clone(), "partition 3 (idle in 22s)".to_owned())]),
        read: BTreeMap::from([(source.clone(), (1_000, 0))]),
        lag: lag_of(&source, 120, 1),
        ..Status::default()
    }
}

const YOUNG: Lived = Lived {
    incarnation: 0,
    ran: false,
    refused: None,
};

const PODS: TaskManagerCount = TaskManagerCount {
    desired: 2,
    ready: 2,
};

fn known<'a>(desired: &'a Desired, coordinator: &'a Status) -> Known<'a> {
    Known {
        phase: Phase::Running,
        doing: None,
        desired: Some(desired),
        coordinator: Some(coordinator),
        pace: Pace::default().after(coordinator, after(-1)),
        before: Totals {
            completed: 40,
            failed: 2,
            restarts: 3,
        },
        pods: &PODS,
        replaces_pods: false,
        refused: None,
        trouble: None,
        lived: &YOUNG,
        paused: false,
        now: at(NOW),
    }
}

fn value(status: &JobStatus) -> Value {
    serde_json::to_value(status).unwrap()
}

/// Status and reason of a condition.
fn condition(status: &JobStatus, kind: Kind) -> (String, String, String) {
    let found = status
        .conditions
        .iter()
        .find(|condition| condition.condition_type == kind.name());
    let found = found.unwrap_or_else(|| panic!("{kind:?}"));
    (
        found.status.clone(),
        found.reason.clone(),
        found.message.clone(),
    )
}

fn reason_of(known: &Known<'_>, kind: Kind) -> (String, String) {
    let (status, reason, _) = condition(&report(&job(), known), kind);
    (status, reason)
}

fn pair(status: &str, reason: &str) -> (String, String) {
    (status.to_owned(), reason.to_owned())
}

#[test]
fn status_of_a_running_job_is_whole() {
    let (desired, coordinator) = (desired(), running());
    let status = report(&job(), &known(&desired, &coordinator));
    let condition = |kind: &str, status: &str, reason: &str, message: &str| {
        json!({
            "type": kind, "status": status, "reason": reason, "message": message,
            "lastTransitionTime": NOW, "observedGeneration": 3,
        })
    };

    assert_eq!(
        value(&status),
        json!({
            "phase": "Running",
            "observedGeneration": 3,
            "jobId": UID,
            "epoch": 2,
            "parallelism": 4,
            "selector": "streamforge.io/job=clicks",
            "taskManagers": {"desired": 2, "ready": 2},
            "restarts": 4,
            "conditions": [
                condition("Ready", "True", "Running", "2 of 2 task managers are ready"),
                condition("Progressing", "False", "Settled", "Nothing is left to do: what is declared is so."),
                condition("Valid", "True", "Valid", "What is declared can run."),
                condition("CheckpointFresh", "True", "Fresh", "checkpoint 12 was completed at 2026-11-30T09:59:57Z"),
                condition("WatermarkAdvancing", "True", "Advancing", "every event before 2026-11-30T09:59:53Z was seen"),
                condition("CaughtUp", "True", "CaughtUp", "120 records and 1 s behind"),
            ],
            "checkpoint": {
                "lastCompleted": {
                    "id": 12, "epoch": 2, "time": "2026-11-30T09:59:57Z", "duration": "1s200ms", "size": "3Mi",
                    "uri": format!("s3://state/jobs/{UID}"),
                },
                "completedTotal": 45,
                "failedTotal": 3,
            },
            "watermark": {"value": "2026-11-30T09:59:53Z", "heldBackBy": "clicks partition 3 (idle in 22s)"},
            "lag": {"records": 120, "seconds": 1},
        })
    );
}

#[test]
fn operator_that_has_just_started_takes_nothing_back_f1() {
    let (desired, coordinator) = (desired(), running());
    let mut job = job();
    job.status = Some(report(&job, &known(&desired, &coordinator)));
    let ignorant = Known {
        coordinator: None,
        pace: Pace::default(),
        before: Totals::of(job.status.as_ref()),
        now: after(5),
        ..known(&desired, &coordinator)
    };

    assert_eq!(report(&job, &ignorant), job.status.unwrap());
}

#[test]
fn counts_go_on_over_another_coordinator() {
    let (desired, coordinator) = (desired(), running());
    let mut job = job();
    job.status = Some(report(&job, &known(&desired, &coordinator)));
    let again = Known {
        before: Totals::of(job.status.as_ref()),
        ..known(&desired, &coordinator)
    };
    let status = report(&job, &again);

    let checkpoint = status.checkpoint.unwrap();
    assert_eq!(
        (
            checkpoint.completed_total,
            checkpoint.failed_total,
            status.restarts
        ),
        (50, 4, Some(5))
    );
}

#[test]
fn restored_checkpoint_keeps_the_attempt_that_took_it() {
    let (desired, coordinator) = (desired(), running());
    let mut job = job();
    job.status = Some(report(&job, &known(&desired, &coordinator)));
    let next = Status {
        epoch: Epoch::from_stored(3),
        ..coordinator
    };
    let status = report(&job, &known(&desired, &next));

    assert_eq!(status.epoch, Some(3));
    assert_eq!(status.checkpoint.unwrap().last_completed.unwrap().epoch, 2);
}

#[test]
fn ready_and_progressing_follow_the_phase() {
    let (desired, coordinator) = (desired(), running());
    for (phase, ready, progressing) in [
        (
            Phase::Pending,
            pair("False", "Pending"),
            pair("True", "Starting"),
        ),
        (
            Phase::Starting,
            pair("False", "Starting"),
            pair("True", "Starting"),
        ),
        (
            Phase::Running,
            pair("True", "Running"),
            pair("False", "Settled"),
        ),
        (
            Phase::Recovering,
            pair("False", "Recovering"),
            pair("True", "Recovering"),
        ),
        (
            Phase::Suspending,
            pair("False", "Suspending"),
            pair("True", "Suspending"),
        ),
        (
            Phase::Suspended,
            pair("False", "Suspended"),
            pair("False", "Settled"),
        ),
        (
            Phase::Upgrading,
            pair("False", "Upgrading"),
            pair("True", "Upgrading"),
        ),
        (
            Phase::Finished,
            pair("False", "Finished"),
            pair("False", "Settled"),
        ),
        (
            Phase::Failed,
            pair("False", "Failed"),
            pair("False", "Failed"),
        ),
    ] {
        let known = Known {
            phase,
            ..known(&desired, &coordinator)
        };

        assert_eq!(reason_of(&known, Kind::Ready), ready, "{phase:?}");
        assert_eq!(
            reason_of(&known, Kind::Progressing),
            progressing,
            "{phase:?}"
        );
        assert_eq!(report(&job(), &known).phase.as_deref(), Some(phase.name()));
        assert_eq!(Phase::of(Some(&report(&job(), &known))), Some(phase));
    }
}

#[test]
fn survivors_are_ready_while_a_pod_is_missing() {
    let (desired, coordinator) = (desired(), running());
    let pods = TaskManagerCount {
        desired: 2,
        ready: 1,
    };
    let known = Known {
        pods: &pods,
        ..known(&desired, &coordinator)
    };

    assert_eq!(reason_of(&known, Kind::Ready), pair("True", "SurvivorsRun"));
    assert_eq!(
        reason_of(&known, Kind::Progressing),
        pair("True", "ReplacingPods")
    );
}

#[test]
fn hand_over_and_wanted_subtasks_are_scaling() {
    let desired = desired();
    for coordinator in [
        Status {
            hand_over: Some("hands key groups over to 8 subtasks".to_owned()),
            ..running()
        },
        Status {
            wanted: 8,
            ..running()
        },
    ] {
        assert_eq!(
            reason_of(&known(&desired, &coordinator), Kind::Progressing),
            pair("True", "Scaling")
        );
    }
}

#[test]
fn what_a_job_waits_for_is_said() {
    let desired = desired();
    let coordinator = Status {
        waits_for: Some("2 of 4 slots".to_owned()),
        ..running()
    };
    let starting = Known {
        phase: Phase::Starting,
        ..known(&desired, &coordinator)
    };
    let stopping = Status {
        stop_waits_for: Some("checkpoint 13: 1 task".to_owned()),
        ..running()
    };
    let suspending = Known {
        phase: Phase::Suspending,
        ..known(&desired, &stopping)
    };

    assert_eq!(
        condition(&report(&job(), &starting), Kind::Ready).2,
        "waits for 2 of 4 slots"
    );
    assert_eq!(
        condition(&report(&job(), &suspending), Kind::Progressing).2,
        "the stop waits for checkpoint 13: 1 task"
    );
}

#[test]
fn trouble_is_told_by_its_reason_while_rows_may_flow() {
    let (desired, coordinator) = (desired(), running());
    for (trouble, name) in [
        (Trouble::SecretMissing, "SecretMissing"),
        (Trouble::StoreUnreachable, "StoreUnreachable"),
        (Trouble::SavepointMissing, "SavepointMissing"),
        (Trouble::PodsStuck, "PodsStuck"),
        (Trouble::OutOfMemory, "OutOfMemory"),
        (Trouble::NotAllowed, "NotAllowed"),
        (Trouble::SavepointFails, "SavepointFails"),
        (Trouble::RecordUnreadable, "RecordUnreadable"),
    ] {
        let known = Known {
            trouble: Some((trouble, "what it is")),
            ..known(&desired, &coordinator)
        };
        let status = report(&job(), &known);

        assert_eq!(
            condition(&status, Kind::Progressing),
            ("False".to_owned(), name.to_owned(), "what it is".to_owned())
        );
        assert_eq!(condition(&status, Kind::Ready).0, "True");
    }
}

#[test]
fn paused_job_says_so() {
    let (desired, coordinator) = (desired(), running());
    let known = Known {
        paused: true,
        ..known(&desired, &coordinator)
    };

    assert_eq!(
        reason_of(&known, Kind::Progressing),
        pair("False", "Paused")
    );
}

#[test]
fn refused_document_is_invalid_with_path_and_cure_and_the_rest_is_counted() {
    let (desired, coordinator) = (desired(), running());
    let problem =
        |n: usize| Problem::new(&format!("spec.sinks[{n}]"), "it is wrong", "write it right");
    let problems: Vec<Problem> = (0..12).map(problem).collect();
    for (refusal, name) in [
        (Refusal::Invalid, "InvalidSpec"),
        (Refusal::DropsState, "StateWouldBeDropped"),
        (Refusal::RolledBack, "RolledBack"),
    ] {
        let known = Known {
            refused: Some((refusal, &problems)),
            ..known(&desired, &coordinator)
        };
        let (status, reason, message) = condition(&report(&job(), &known), Kind::Valid);

        assert_eq!((status.as_str(), reason.as_str()), ("False", name));
        assert!(
            message.starts_with("spec.sinks[0]: it is wrong (write it right); spec.sinks[1]: "),
            "{message}"
        );
        assert!(message.ends_with("; and 2 more"), "{message}");
    }
}

#[test]
fn job_that_was_never_valid_has_a_status_too() {
    let problems = [Problem::new(
        "spec.checkpoint.storage",
        "it is missing",
        "write it",
    )];
    let (pods, desired, coordinator) = (TaskManagerCount::default(), desired(), running());
    let known = Known {
        phase: Phase::Pending,
        desired: None,
        coordinator: None,
        pace: Pace::default(),
        before: Totals::default(),
        pods: &pods,
        refused: Some((Refusal::Invalid, &problems)),
        ..known(&desired, &coordinator)
    };
    let status = report(&job(), &known);

    assert_eq!(
        (
            status.parallelism,
            status.restarts,
            status.checkpoint.clone()
        ),
        (Some(0), Some(0), None)
    );
    assert_eq!(condition(&status, Kind::CheckpointFresh).1, "NoneYet");
    assert_eq!(condition(&status, Kind::WatermarkAdvancing).1, "NotRunning");
}

#[test]
fn checkpoint_is_fresh_until_it_is_too_old_or_too_many_failed() {
    let (desired, coordinator) = (desired(), running());
    let mut stale = running();
    stale.checkpoint.stale = Some("4 failed in a row: the store does not answer".to_owned());
    let none = Status {
        checkpoint: host::CheckpointStatus::default(),
        ..running()
    };
    // Two intervals of 10 s and a timeout of 60 s, and it was 3 s old.
    for (coordinator, now, phase, wanted) in [
        (
            &coordinator,
            after(0),
            Phase::Running,
            pair("True", "Fresh"),
        ),
        (
            &coordinator,
            after(77),
            Phase::Running,
            pair("True", "Fresh"),
        ),
        (
            &coordinator,
            after(78),
            Phase::Running,
            pair("False", "TooOld"),
        ),
        (
            &coordinator,
            after(78),
            Phase::Recovering,
            pair("True", "Fresh"),
        ),
        (
            &coordinator,
            after(9_999),
            Phase::Suspended,
            pair("True", "Last"),
        ),
        (
            &coordinator,
            after(9_999),
            Phase::Finished,
            pair("True", "Last"),
        ),
        (
            &stale,
            after(0),
            Phase::Running,
            pair("False", "TooManyFailures"),
        ),
        (&none, after(0), Phase::Running, pair("Unknown", "NoneYet")),
    ] {
        let known = Known {
            now,
            phase,
            ..known(&desired, coordinator)
        };
        assert_eq!(
            reason_of(&known, Kind::CheckpointFresh),
            wanted,
            "{now} {phase:?}"
        );
    }
}

#[test]
fn watermark_that_stands_still_for_a_minute_is_held_back_by_somebody() {
    let (desired, coordinator) = (desired(), running());
    let since = |seconds: i64| Pace::default().after(&coordinator, after(-seconds));
    let moved = running_with_watermark(Watermark(after(0).as_microsecond()));
    for (pace, wanted) in [
        (since(59), pair("True", "Advancing")),
        (since(60), pair("False", "HeldBack")),
        // A look at the same watermark moves nothing, one at a higher does.
        (
            since(60).after(&coordinator, after(-1)),
            pair("False", "HeldBack"),
        ),
        (
            since(60).after(&moved, after(-1)),
            pair("True", "Advancing"),
        ),
    ] {
        let known = Known {
            pace,
            ..known(&desired, &coordinator)
        };
        assert_eq!(reason_of(&known, Kind::WatermarkAdvancing), wanted);
    }
    let known = Known {
        pace: since(60),
        ..known(&desired, &coordinator)
    };
    let message = condition(&report(&job(), &known), Kind::WatermarkAdvancing).2;
    assert_eq!(message, "held back by clicks partition 3 (idle in 22s)");
    // A sink that waits for its outside system holds all sources.
    let mut waits = coordinator.clone();
    let (sink, trouble) = (OperatorUid("out".to_owned()), "no answer".to_owned());
    waits.held_back_by.insert(sink, trouble);
    let known = Known {
        coordinator: Some(&waits),
        ..known
    };
    let message = condition(&report(&job(), &known), Kind::WatermarkAdvancing).2;
    assert_eq!(message, "held back by out no answer");
}

fn running_with_watermark(watermark: Watermark) -> Status {
    let mut status = running();
    status
        .watermarks
        .insert(OperatorUid("clicks".to_owned()), watermark);
    status
}

#[test]
fn ends_of_time_are_no_times() {
    let desired = desired();
    for (watermark, wanted) in [
        (Watermark::NONE, pair("Unknown", "NothingReadYet")),
        (Watermark::END, pair("True", "AtEnd")),
    ] {
        let coordinator = running_with_watermark(watermark);
        let known = known(&desired, &coordinator);
        let status = report(&job(), &known);

        assert_eq!(reason_of(&known, Kind::WatermarkAdvancing), wanted);
        assert_eq!(status.watermark.unwrap().value, None);
    }
}

#[test]
fn job_without_event_time_says_so() {
    let job = with(&job(), "/sources/0/eventTime", Value::Null);
    let job = with(
        &job,
        "/transforms/1",
        json!({"name": "per_user", "from": "valid", "select": ["user_id"]}),
    );
    let desired = validate(&job, &settings()).unwrap();
    let coordinator = running();

    let (status, reason, _) = condition(
        &report(&job, &known(&desired, &coordinator)),
        Kind::WatermarkAdvancing,
    );
    assert_eq!(
        (status.as_str(), reason.as_str()),
        ("Unknown", "NoEventTime")
    );
}

#[test]
fn caught_up_is_what_there_is_to_read_is_read() {
    let desired = desired();
    let bounded = |read: u64| {
        let read = BTreeMap::from([(OperatorUid("clicks".to_owned()), (read, 1_000))]);
        Status { read, ..running() }
    };
    let clicks = OperatorUid("clicks".to_owned());
    let behind = |lag| Status { lag, ..running() };
    let mut unread = lag_of(&clicks, 500, 0);
    unread.values_mut().for_each(|lag| lag.read_up_to_ms = None);
    for (coordinator, wanted) in [
        (behind(unread), pair("False", "Behind")),
        (behind(lag_of(&clicks, 0, 99)), pair("True", "CaughtUp")),
        (behind(lag_of(&clicks, 500, 10)), pair("True", "CaughtUp")),
        (behind(lag_of(&clicks, 500, 11)), pair("False", "Behind")),
        (behind(BTreeMap::new()), pair("Unknown", "NotMeasured")),
        (bounded(1_000), pair("True", "AllInputRead")),
        (bounded(999), pair("False", "Behind")),
    ] {
        let known = known(&desired, &coordinator);
        assert_eq!(
            reason_of(&known, Kind::CaughtUp),
            wanted,
            "{:?}",
            coordinator.lag
        );
    }
    let mut mixed = bounded(1_000);
    mixed.read.insert(OperatorUid("endless".to_owned()), (5, 0));
    let measured = reason_of(&known(&desired, &mixed), Kind::CaughtUp);
    assert_eq!(
        measured,
        pair("Unknown", "NotMeasured"),
        "one of two sources never ends"
    );
    let coordinator = running();
    let finished = Known {
        phase: Phase::Finished,
        ..known(&desired, &coordinator)
    };
    assert_eq!(
        reason_of(&finished, Kind::CaughtUp),
        pair("True", "AllInputRead")
    );
}

/// KF-K10: of a broker that is away nothing newer is heard, and the lag that was heard last says nothing.
#[test]
fn kf_k10_source_that_is_unreachable_has_not_caught_up() {
    let desired = desired();
    let clicks = OperatorUid("clicks".to_owned());
    let why = "no answer from the leader of clicks/3 for 5 s";
    let away = Status {
        lag: BTreeMap::new(),
        unreachable: BTreeMap::from([(clicks.clone(), why.to_owned())]),
        held_back_by: BTreeMap::from([(clicks.clone(), why.to_owned())]),
        ..running()
    };
    let mut job = job();
    job.status = Some(report(&job, &known(&desired, &running())));
    let status = report(&job, &known(&desired, &away));

    let told = format!("clicks: {why}");
    let wanted = ("Unknown", "SourceUnreachable", &*told);
    let found = condition(&status, Kind::CaughtUp);
    assert_eq!((&*found.0, &*found.1, &*found.2), wanted);
    assert_eq!(status.lag, None);
    assert_eq!(condition(&status, Kind::Ready).0, "True", "rows may flow");
    let old = job.status.as_ref();
    assert!(is_worth_writing(old, &status, Duration::ZERO), "at once");
    let mut later = away.clone();
    let for_longer = why.replace("5 s", "6 s");
    later.unreachable.insert(clicks.clone(), for_longer.clone());
    later.held_back_by.insert(clicks.clone(), for_longer);
    let later = report(&job, &known(&desired, &later));
    let hour = Duration::from_secs(3_600);
    assert!(!is_worth_writing(Some(&status), &later, hour));

    // One of two, and whatever the other one says.
    let one = Status {
        lag: lag_of(&OperatorUid("others".to_owned()), 0, 0),
        ..away.clone()
    };
    let one = reason_of(&known(&desired, &one), Kind::CaughtUp);
    assert_eq!(one, pair("Unknown", "SourceUnreachable"));
    // A bounded job: before its end, and at its end, where nothing is wanted of the source any more.
    let bounded = |read| Status {
        read: BTreeMap::from([(clicks.clone(), (read, 1_000))]),
        ..away.clone()
    };
    let bounded = |read| reason_of(&known(&desired, &bounded(read)), Kind::CaughtUp);
    assert_eq!(bounded(999), pair("Unknown", "SourceUnreachable"));
    assert_eq!(bounded(1_000), pair("True", "AllInputRead"));
}

#[test]
fn job_at_rest_runs_no_subtask_and_has_no_lag() {
    let (desired, coordinator) = (desired(), running());
    let known = Known {
        phase: Phase::Suspended,
        ..known(&desired, &coordinator)
    };
    let status = report(&job(), &known);

    assert_eq!((status.parallelism, status.lag), (Some(0), None));
    assert_eq!(status.watermark.unwrap().held_back_by, None);
}

fn failed(task_manager: Option<&str>, at: Timestamp) -> Status {
    Status {
        last_failure: Some(host::Failure {
            time_ms: u64::try_from(at.as_millisecond()).unwrap(),
            task_manager: task_manager.map(str::to_owned),
            reason: "session broke".to_owned(),
        }),
        ..running()
    }
}

#[test]
fn reason_of_a_failure_in_the_status_has_an_end() {
    let desired = desired();
    let mut coordinator = failed(None, after(-1));
    let reason = &mut coordinator.last_failure.as_mut().unwrap().reason;
    *reason = "ü".repeat(1_025);
    let refused = Refused {
        generation: 2,
        plan: String::new(),
        reason: reason.clone(),
    };
    let lived = Lived {
        refused: Some(refused),
        ..Lived::default()
    };
    let known = Known {
        lived: &lived,
        ..known(&desired, &coordinator)
    };

    let status = report(&job(), &known);

    let wanted = format!("{}…", "ü".repeat(1_023));
    assert_eq!(status.last_failure.unwrap().reason, wanted);
    assert_eq!(status.rolled_back.unwrap().reason, wanted);
}

#[test]
fn newest_failure_says_when_and_at_which_pod_and_outlives_the_coordinator_that_saw_it() {
    let desired = desired();
    let coordinator = failed(Some("clicks-tm-1"), after(-60));
    let mut job = job();

    let status = report(&job, &known(&desired, &coordinator));

    let seen = LastFailure {
        time: "2026-11-30T09:59:00Z".to_owned(),
        task_manager: "clicks-tm-1".to_owned(),
        reason: "session broke".to_owned(),
    };
    assert_eq!(status.last_failure, Some(seen.clone()));
    job.status = Some(status);
    let next = running();
    let later = report(&job, &known(&desired, &next));
    assert_eq!(later.last_failure, Some(seen), "the next one saw none");
    let again = failed(None, after(-1));
    let again = report(&job, &known(&desired, &again)).last_failure.unwrap();
    assert_eq!(
        (again.time.as_str(), again.task_manager.as_str()),
        ("2026-11-30T09:59:59Z", ""),
        "the same again is another failure"
    );
}

#[test]
fn job_that_recovers_says_which_pod_failed() {
    let (desired, coordinator) = (desired(), failed(Some("clicks-tm-1"), at(NOW)));
    let known = Known {
        phase: Phase::Recovering,
        ..known(&desired, &coordinator)
    };

    let (_, _, message) = condition(&report(&job(), &known), Kind::Ready);

    assert_eq!(message, "task manager clicks-tm-1: session broke");
}

#[test]
fn checkpoint_of_a_job_that_nobody_can_run_is_not_called_fresh() {
    let (desired, coordinator) = (desired(), running());
    let mut job = job();
    job.status = Some(report(&job, &known(&desired, &coordinator)));
    let left = Known {
        phase: Phase::Starting,
        desired: None,
        coordinator: None,
        ..known(&desired, &coordinator)
    };
    let status = report(&job, &left);

    let fresh = condition(&status, Kind::CheckpointFresh);
    assert_eq!((&*fresh.0, &*fresh.1), ("Unknown", "NotRunning"));
    assert_eq!(condition(&status, Kind::Ready).0, "False");
    // One that has stopped has all of it in its last one.
    let stopped = Known {
        phase: Phase::Suspended,
        ..left
    };
    let fresh = condition(&report(&job, &stopped), Kind::CheckpointFresh);
    assert_eq!((&*fresh.0, &*fresh.1), ("True", "Last"));
    // One that has failed has read on behind it.
    let failed = Known {
        phase: Phase::Failed,
        ..stopped
    };
    let fresh = condition(&report(&job, &failed), Kind::CheckpointFresh);
    assert_eq!((&*fresh.0, &*fresh.1), ("Unknown", "NotRunning"));
}

/// A Stateless upgrade leaves the folder behind, with all that is in it.
#[test]
fn checkpoints_of_a_life_that_was_given_up_are_not_said_of_the_next() {
    let (desired, coordinator) = (desired(), running());
    let mut job = job();
    job.status = Some(report(&job, &known(&desired, &coordinator)));
    let lived = Lived {
        incarnation: 1,
        ..YOUNG
    };
    let nothing_yet = Status::default();
    let begun = Known {
        lived: &lived,
        ..known(&desired, &nothing_yet)
    };
    let status = report(&job, &begun);
    let block = status.checkpoint.clone().unwrap_or_default();
    assert_eq!(block.last_completed, None);
    assert!(!super::lived(Some(&status)).ran, "its folder may be empty");

    job.status = Some(status);
    let has_completed = Known {
        coordinator: Some(&coordinator),
        ..begun
    };
    let block = report(&job, &has_completed).checkpoint.unwrap_or_default();
    let uri = block.last_completed.expect("it has completed one").uri;
    assert!(uri.ends_with(&format!("{UID}-1")), "{uri}");
}

#[test]
fn sizes_are_short() {
    for (bytes, wanted) in [
        (0, "0"),
        (999, "999"),
        (1_023, "1023"),
        (1_024, "1Ki"),
        (1_536, "1.5Ki"),
        (3 << 20, "3Mi"),
        (10_800_000, "10Mi"),
        (5 << 30, "5Gi"),
        (u64::MAX / 10, "1677721Ti"),
    ] {
        assert_eq!(checkpoint::size(bytes), wanted, "{bytes}");
    }
}

fn written(change: impl Fn(&mut JobStatus), seconds: u64) -> bool {
    let (desired, coordinator) = (desired(), running());
    let old = report(&job(), &known(&desired, &coordinator));
    let mut new = old.clone();
    change(&mut new);
    is_worth_writing(Some(&old), &new, Duration::from_secs(seconds))
}

#[test]
fn status_is_written_at_once_for_what_somebody_waits_for() {
    assert!(written(
        |status| status.phase = Some("Recovering".to_owned()),
        0
    ));
    assert!(written(|status| status.observed_generation = Some(4), 0));
    assert!(written(
        |status| status.conditions[0].status = "False".to_owned(),
        0
    ));
    assert!(written(
        |status| status.conditions[0].reason = "SurvivorsRun".to_owned(),
        0
    ));
    assert!(written(|status| status.task_managers = None, 0));
    assert!(written(|status| status.restarts = Some(5), 0));
    let new = report(&job(), &known(&desired(), &running()));
    assert!(is_worth_writing(None, &new, Duration::ZERO));
}

#[test]
fn status_is_written_after_a_while_for_what_goes_on_of_itself() {
    let checkpoint =
        |status: &mut JobStatus| status.checkpoint.as_mut().unwrap().completed_total = 46;
    assert!(!written(checkpoint, 4));
    assert!(written(checkpoint, 5));
    assert!(written(
        |status| status.watermark.as_mut().unwrap().value = None,
        5
    ));
    assert!(written(
        |status| status.lag.as_mut().unwrap().records = 121,
        5
    ));
    assert!(written(
        |status| status.conditions[1].message = "something else".to_owned(),
        5
    ));
}

#[test]
fn status_is_not_written_when_only_time_went_on() {
    assert!(!written(|_| {}, 9_999));
    let idle = "clicks partition 3 (idle in 21s)";
    assert!(!written(
        |status| status.watermark.as_mut().unwrap().held_back_by = Some(idle.to_owned()),
        9_999
    ));
    assert!(!written(
        |status| status.lag.as_mut().unwrap().seconds = 2,
        9_999
    ));
    assert!(!written(
        |status| status.conditions[5].message = "120 records and 2 s behind".to_owned(),
        9_999
    ));
    assert!(!written(
        |status| status.conditions[5].last_transition_time = "2026-11-30T10:00:09Z".to_owned(),
        9_999
    ));
}

#[test]
fn what_must_not_be_lost_with_the_record_is_read_back_from_the_status() {
    let (job, coordinator) = (job(), Status::default());
    let desired = desired();
    let lived = Lived {
        incarnation: 2,
        ran: true,
        refused: Some(Refused {
            generation: 4,
            plan: "0123".to_owned(),
            reason: "a poison row".to_owned(),
        }),
    };
    let known = Known {
        lived: &lived,
        ..known(&desired, &coordinator)
    };
    let mut status = report(&job, &known);
    assert_eq!(
        super::lived(Some(&status)),
        Lived {
            ran: false,
            ..lived.clone()
        }
    );

    let completed = json!({
        "id": 1, "epoch": 1, "time": NOW, "duration": "1s", "size": "1Mi", "uri": "s3://state",
    });
    status.checkpoint.get_or_insert_default().last_completed =
        Some(serde_json::from_value(completed).unwrap());
    assert_eq!(super::lived(Some(&status)), lived);
    assert_eq!(super::lived(None), Lived::default());
}
