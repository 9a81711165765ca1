use streamforge_crds::v1alpha1::{CheckpointStatus, CompletedCheckpoint, LastFailure};

use super::*;

fn condition(kind: Kind, status: &str, reason: &str, message: &str) -> Condition {
    Condition {
        condition_type: kind.name().to_owned(),
        status: status.to_owned(),
        reason: reason.to_owned(),
        message: message.to_owned(),
        last_transition_time: String::new(),
        observed_generation: None,
    }
}

fn status(phase: Phase, conditions: Vec<Condition>) -> JobStatus {
    JobStatus {
        phase: Some(phase.name().to_owned()),
        parallelism: Some(4),
        checkpoint: Some(CheckpointStatus {
            last_completed: Some(CompletedCheckpoint {
                id: 12,
                epoch: 1,
                time: String::new(),
                duration: String::new(),
                size: String::new(),
                uri: String::new(),
            }),
            ..CheckpointStatus::default()
        }),
        conditions,
        ..JobStatus::default()
    }
}

/// Severity, reason and note.
fn told(old: Option<&JobStatus>, new: &JobStatus) -> Vec<(&'static str, &'static str, String)> {
    let events = of_transition(old, new).into_iter();
    events
        .map(|event| (event.severity.name(), event.reason, event.note))
        .collect()
}

#[test]
fn life_of_a_job_is_told_in_order() {
    let life = [
        (Phase::Pending, vec![]),
        (
            Phase::Starting,
            vec![("Normal", "Starting", "pods are started")],
        ),
        (
            Phase::Running,
            vec![("Normal", "Running", "rows flow, in 4 subtasks")],
        ),
        (Phase::Running, vec![]),
        (
            Phase::Recovering,
            vec![("Warning", "Recovering", "goes on from checkpoint 12")],
        ),
        (
            Phase::Running,
            vec![("Normal", "Recovered", "rows flow again, in 4 subtasks")],
        ),
        (
            Phase::Upgrading,
            vec![("Normal", "Upgrading", "goes over to another document")],
        ),
        (
            Phase::Running,
            vec![(
                "Normal",
                "Upgraded",
                "rows flow by the new document, in 4 subtasks",
            )],
        ),
        (
            Phase::Suspending,
            vec![("Normal", "Suspending", "takes its last checkpoint")],
        ),
        (
            Phase::Suspended,
            vec![("Normal", "Suspended", "has stopped with checkpoint 12")],
        ),
        (
            Phase::Starting,
            vec![("Normal", "Starting", "pods are started")],
        ),
        (
            Phase::Finished,
            vec![(
                "Normal",
                "Finished",
                "all input is read, all output published",
            )],
        ),
    ];
    let mut old: Option<JobStatus> = None;
    for (phase, wanted) in life {
        let new = status(phase, Vec::new());
        let wanted: Vec<_> = wanted
            .into_iter()
            .map(|(severity, reason, note)| (severity, reason, note.to_owned()))
            .collect();

        assert_eq!(told(old.as_ref(), &new), wanted, "{phase:?}");
        old = Some(new);
    }
}

#[test]
fn failed_job_says_why() {
    let ready = condition(
        Kind::Ready,
        "False",
        "Failed",
        "11 failures in 10m; the last: disk full",
    );
    let new = status(Phase::Failed, vec![ready]);

    let wanted = (
        "Warning",
        "Failed",
        "11 failures in 10m; the last: disk full".to_owned(),
    );
    assert_eq!(
        told(Some(&status(Phase::Running, Vec::new())), &new),
        [wanted]
    );
}

#[test]
fn failure_is_told_once_and_before_what_follows_from_it() {
    let mut new = status(Phase::Recovering, Vec::new());
    new.last_failure = Some(LastFailure {
        time: "2026-11-30T10:00:00Z".to_owned(),
        task_manager: "clicks-tm-1".to_owned(),
        reason: "its pod was deleted".to_owned(),
    });
    let told_reasons: Vec<_> = told(Some(&status(Phase::Running, Vec::new())), &new)
        .into_iter()
        .map(|(_, reason, note)| (reason, note))
        .collect();

    assert_eq!(
        told_reasons[0],
        (
            "AttemptFailed",
            "clicks-tm-1: its pod was deleted".to_owned()
        )
    );
    assert_eq!(told_reasons[1].0, "Recovering");
    assert_eq!(told(Some(&new), &new), []);
    let mut again = new.clone();
    again.last_failure.as_mut().unwrap().time = "2026-11-30T10:00:05Z".to_owned();
    assert_eq!(
        told(Some(&new), &again).len(),
        1,
        "the same again is another failure"
    );
}

#[test]
fn refused_edit_is_told_with_its_mistake_and_every_other_mistake_anew() {
    let valid = |status: &str, reason: &str, message: &str| {
        let conditions = vec![condition(Kind::Valid, status, reason, message)];
        super::tests::status(Phase::Running, conditions)
    };
    let good = valid("True", "Valid", "fine");
    let bad = valid("False", "InvalidSpec", "spec.sinks: wrong");
    let worse = valid("False", "InvalidSpec", "spec.sinks: worse");

    assert_eq!(
        told(Some(&good), &bad),
        [("Warning", "InvalidSpec", "spec.sinks: wrong".to_owned())]
    );
    assert_eq!(told(Some(&bad), &bad), []);
    assert_eq!(
        told(Some(&bad), &worse),
        [("Warning", "InvalidSpec", "spec.sinks: worse".to_owned())]
    );
    assert_eq!(
        told(Some(&worse), &good),
        [("Normal", "Valid", "fine".to_owned())]
    );
    let rolled_back = valid("False", "RolledBack", "not healthy within 5m");
    assert_eq!(told(Some(&good), &rolled_back)[0].1, "RolledBack");
}

#[test]
fn conditions_that_turn_bad_or_good_again_are_told() {
    for (kind, bad, good, warning, normal) in [
        (
            Kind::CheckpointFresh,
            "TooOld",
            "Fresh",
            "CheckpointStale",
            "CheckpointFresh",
        ),
        (
            Kind::WatermarkAdvancing,
            "HeldBack",
            "Advancing",
            "WatermarkHeldBack",
            "WatermarkAdvancing",
        ),
    ] {
        let good = status(Phase::Running, vec![condition(kind, "True", good, "good")]);
        let bad = status(Phase::Running, vec![condition(kind, "False", bad, "bad")]);

        assert_eq!(
            told(Some(&good), &bad),
            [("Warning", warning, "bad".to_owned())]
        );
        assert_eq!(
            told(Some(&bad), &good),
            [("Normal", normal, "good".to_owned())]
        );
        assert_eq!(told(Some(&bad), &bad), []);
        assert_eq!(told(None, &good).len(), 1, "only the phase");
    }
}

/// Once per trouble: the message says every second something else.
#[test]
fn kf_k10_source_that_is_away_and_back_is_told_once_each() {
    let caught_up = |status: &str, reason: &str, message: &str| {
        let conditions = vec![condition(Kind::CaughtUp, status, reason, message)];
        super::tests::status(Phase::Running, conditions)
    };
    let good = caught_up("True", "CaughtUp", "0 records and 0 s behind");
    let away = |message| caught_up("Unknown", "SourceUnreachable", message);
    let behind = caught_up("False", "Behind", "9 records and 20 s behind");
    let stopped = caught_up("Unknown", "NotRunning", "it does not run");

    let warning = ("Warning", "SourceUnreachable", "clicks: 2 s".to_owned());
    assert_eq!(told(Some(&good), &away("clicks: 2 s")), [warning]);
    let (two, three) = (away("clicks: 2 s"), away("clicks: 3 s"));
    assert_eq!(told(Some(&two), &three), []);
    let back = "9 records and 20 s behind".to_owned();
    let over = ("Normal", "SourceReachable", back);
    assert_eq!(told(Some(&three), &behind), [over]);
    assert_eq!(told(Some(&behind), &good), []);
    assert_eq!(told(Some(&three), &stopped), [], "nobody knows");
}

#[test]
fn trouble_is_told_by_its_reason_and_a_job_that_settles_is_not() {
    let progressing = |status: &str, reason: &str| {
        let conditions = vec![condition(Kind::Progressing, status, reason, "why")];
        super::tests::status(Phase::Starting, conditions)
    };
    let starting = progressing("True", "Starting");

    let missing = progressing("False", "SecretMissing");
    assert_eq!(
        told(Some(&starting), &missing),
        [("Warning", "SecretMissing", "why".to_owned())]
    );
    assert_eq!(told(Some(&starting), &progressing("False", "Settled")), []);
    assert_eq!(
        told(Some(&starting), &progressing("True", "Scaling"))[0].1,
        "Scaling"
    );
}

#[test]
fn long_note_is_cut_at_a_character() {
    let event = event(reasons::RUNNING, "Run", "ä".repeat(2_000));

    assert!(event.note.len() <= NOTE_BYTES_MAX);
    assert!(event.note.ends_with("ä…"));
}

#[test]
fn repaired_drift_names_field_and_culprit() {
    let event = drift_repaired(
        "StatefulSet",
        "clicks-tm",
        Some("kubectl-edit"),
        &["spec.replicas".to_owned()],
    );

    assert_eq!(
        event.note,
        "put spec.replicas of StatefulSet clicks-tm right that kubectl-edit had changed; change the StreamJob instead"
    );
}

#[test]
fn repaired_drift_is_told_though_nobody_knows_whose_it_was() {
    let event = drift_repaired("Service", "clicks-tm", None, &[]);
    assert_eq!(
        event.note,
        "put Service clicks-tm right; change the StreamJob instead"
    );
    let event = made_again("Service", "clicks-tm");
    assert_eq!(
        (event.reason, &*event.note),
        (
            "DriftRepaired",
            "made Service clicks-tm again, which somebody had deleted"
        )
    );
}

#[test]
fn savepoint_tells_of_each_phase_once() {
    let phase = |phase: &str| SavepointStatus {
        phase: Some(phase.to_owned()),
        uri: Some("s3://state/sp".to_owned()),
        size: Some("3Mi".to_owned()),
        reason: Some("the store is full".to_owned()),
        ..SavepointStatus::default()
    };
    let note = |old: Option<&SavepointStatus>, new: &str| {
        of_savepoint("nightly", old, &phase(new)).map(|event| event.note)
    };

    assert_eq!(note(None, "Pending"), None);
    assert_eq!(
        note(None, "InProgress").unwrap(),
        "takes the savepoint nightly"
    );
    assert_eq!(
        note(Some(&phase("InProgress")), "Completed").unwrap(),
        "the savepoint nightly is whole, 3Mi: s3://state/sp"
    );
    assert_eq!(
        note(Some(&phase("InProgress")), "Failed").unwrap(),
        "the savepoint nightly failed: the store is full"
    );
    assert_eq!(note(Some(&phase("Failed")), "Failed"), None);
}

#[test]
fn stop_without_a_savepoint_says_from_where_the_job_goes_on_and_what_comes_twice() {
    let note = |checkpoint, unpublished_n| {
        let unsaved = Unsaved {
            reason: "savepoint suspend-2-1: no acknowledgement from task 1.0".to_owned(),
            checkpoint,
            unpublished_n,
        };
        stopped_without_savepoint(&unsaved).note
    };
    let twice = "what was read after it is read again, and a sink with delivery AtLeastOnce may get rows twice";
    let why = "why: savepoint suspend-2-1: no acknowledgement from task 1.0";
    assert_eq!(
        note(Some(7), 0),
        format!("goes on from checkpoint 7: {twice}; {why}")
    );
    assert_eq!(
        note(None, 0),
        format!("goes on from the beginning: {twice}; {why}")
    );
    let staged = "2 intervals staged up to then are published when it does";
    assert_eq!(
        note(Some(7), 2),
        format!("goes on from checkpoint 7: {twice}; {staged}; {why}")
    );
    let given_up = given_up_without_savepoint("the store is away").note;
    let why = "why: the coordinator that was to make one ended, or could not be started: the store is away";
    assert_eq!(
        given_up,
        format!("goes on from its newest checkpoint: {twice}; {why}")
    );
}

#[test]
fn changed_secret_is_told_with_its_pods_and_a_second_try_with_its_cause() {
    let told = [
        ("clicks-tm-0".to_owned(), "keys=7".to_owned()),
        ("clicks-tm-1".to_owned(), "keys=7,kafka=9".to_owned()),
    ];
    assert_eq!(
        secret_changed(&told).note,
        "Secrets were changed after pods began that mount them; their kubelets are told to bring them now: \
         clicks-tm-0 (keys=7), clicks-tm-1 (keys=7,kafka=9)"
    );
    assert_eq!(
        tried_again("keys", 12, "gave up").note,
        "not given up, tried again: secret keys was changed 12 s before; why: gave up"
    );
    assert!(tried_again("keys", -3, "").note.contains("just now"));
}
