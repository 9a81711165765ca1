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
        failure: None,
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
    for (coordinator, wanted) in [
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

#[test]
fn newest_failure_is_the_one_the_operator_saw_else_a_new_one_of_the_coordinator() {
    let desired = desired();
    let coordinator = Status {
        last_failure: Some("task clicks failed".to_owned()),
        ..running()
    };
    let mut job = job();
    let first = report(&job, &known(&desired, &coordinator))
        .last_failure
        .unwrap();
    assert_eq!(
        (first.time.as_str(), first.reason.as_str()),
        (NOW, "task clicks failed")
    );

    // The same one a minute later keeps its time.
    job.status = Some(report(&job, &known(&desired, &coordinator)));
    let later = Known {
        now: after(60),
        ..known(&desired, &coordinator)
    };
    assert_eq!(report(&job, &later).last_failure, Some(first));

    let seen = LastFailure {
        time: NOW.to_owned(),
        task_manager: "clicks-tm-1".to_owned(),
        reason: "pod deleted".to_owned(),
    };
    let known = Known {
        failure: Some(&seen),
        ..later
    };
    assert_eq!(report(&job, &known).last_failure, Some(seen.clone()));
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
