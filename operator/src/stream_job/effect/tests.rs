use serde_json::{Value, json};

use super::*;
use crate::record::Used;
use crate::stream_job::judge::judge;
use crate::stream_job::testing::{UID, job, settings, with, with_metadata};
use crate::stream_job::validate::validate;

/// A job that has run, with two windows over one source.
fn two_windows() -> StreamJob {
    let sessions = json!({"name": "sessions", "from": "valid", "aggregate": {
        "groupBy": ["user_id"], "window": {"session": {"gap": "1m"}}, "select": ["count(*) AS n"],
    }});
    let sink = json!({
        "name": "visits", "from": "sessions",
        "file": {"path": "s3://results/visits", "s3": {"credentialsSecret": {"name": "results"}}},
        "format": {"json": {}},
    });
    with(&with(&job(), "/transforms/2", sessions), "/sinks/1", sink)
}

fn without_sessions() -> StreamJob {
    let mut job = two_windows();
    job.spec.transforms.truncate(2);
    job.spec.sinks.truncate(1);
    job
}

fn record(of: &StreamJob) -> Record {
    Record {
        ran: true,
        ..Record::new(UID, serde_json::to_value(&of.spec).unwrap(), 3)
    }
}

fn effects_on(record: &Record, from: &StreamJob, to: &StreamJob) -> Vec<String> {
    let settings = settings();
    let desired = validate(from, &settings).unwrap_or_else(|problems| panic!("{problems:?}"));
    let kept = KeptPods::of(&desired, &settings, None);
    let judged = judge(to, Some(record), Some(&kept), &settings);
    effects(&Edit {
        job: to,
        judged: &judged,
        record,
        kept: Some(&kept),
        settings: &settings,
    })
}

fn said(from: &StreamJob, to: &StreamJob) -> Vec<String> {
    effects_on(&record(from), from, to)
}

fn edited(pointer: &str, value: Value) -> Vec<String> {
    said(&two_windows(), &with(&two_windows(), pointer, value))
}

#[test]
fn edit_that_nobody_notices_is_not_spoken_of() {
    assert_eq!(said(&two_windows(), &two_windows()), [""; 0]);
    assert_eq!(edited("/ttlAfterFinished", json!("1h")), [""; 0]);
    assert_eq!(edited("/transforms/2/uid", json!("sessions")), [""; 0]);
}

#[test]
fn upgrade_says_which_state_stays_and_which_is_dropped() {
    assert_eq!(
        edited("/transforms/0/filter", json!("amount > 1")),
        [
            "stops the job with a savepoint and starts it from there, keeps its 2 pods, \
          keeps the state of per_user, sessions"
        ]
    );
    assert_eq!(
        said(&two_windows(), &without_sessions()),
        [
            "stops the job with a savepoint and starts it from there, keeps its 2 pods, \
          keeps the state of per_user, drops the state of sessions: \
          set upgrade.droppedState: Allow"
        ]
    );
    let allowed = with(&without_sessions(), "/upgrade/droppedState", json!("Allow"));
    let allowed = with(&allowed, "/logging/level", json!("debug"));
    assert_eq!(
        said(&two_windows(), &allowed),
        [
            "stops the job with a savepoint and starts it from there, restarts 2 pods, \
          keeps the state of per_user, drops the state of sessions"
        ]
    );
}

#[test]
fn source_that_is_gone_and_another_max_parallelism_are_told() {
    let source = json!({"name": "more", "generator": {"clicks": {"rowsPerSecond": 1}}});
    let sink = json!({"name": "count", "from": "more", "blackhole": {}});
    let from = with(&with(&job(), "/sources/1", source), "/sinks/1", sink);

    assert_eq!(
        said(&from, &job()),
        [
            "stops the job with a savepoint and starts it from there, keeps its 2 pods, \
          keeps the state of per_user, never reads the rest of more: \
          set upgrade.droppedState: Allow"
        ]
    );
    assert_eq!(
        edited("/maxParallelism", json!(256)),
        [
            "stops the job with a savepoint and starts it from there, keeps its 2 pods, \
          no state fits another maxParallelism: begin without state: \
          set upgrade.mode: Stateless"
        ]
    );
}

#[test]
fn stateless_upgrade_drops_all_state() {
    let to = with(&two_windows(), "/transforms/0/filter", json!("amount > 1"));
    let to = with(&to, "/upgrade/mode", json!("Stateless"));

    assert_eq!(
        said(&two_windows(), &to),
        [
            "stops the job and begins anew, without its positions, keeps its 2 pods, \
          drops the state of per_user, sessions"
        ]
    );
}

#[test]
fn job_that_never_ran_has_no_state_to_lose() {
    let record = Record {
        ran: false,
        ..record(&two_windows())
    };

    assert_eq!(
        effects_on(&record, &two_windows(), &without_sessions()),
        ["starts the job anew with this document, keeps its 2 pods; there is no state yet"]
    );
}

#[test]
fn edits_in_place_keep_everything() {
    assert_eq!(
        edited("/parallelism", json!(8)),
        [
            "hands key groups over from 4 to 8 subtasks, in 4 pods, while rows flow; \
          all state is kept"
        ]
    );
    assert_eq!(
        edited("/taskManager/image", json!("registry/tm:2")),
        [
            "restarts 2 pods, one after the other, each hands its key groups over first; \
          all state is kept"
        ]
    );
    assert_eq!(
        edited("/checkpoint/interval", json!("1s")),
        ["another coordinator takes the running tasks over; nothing restarts"]
    );
    let annotated = with_metadata(
        &two_windows(),
        "/annotations",
        json!({"streamforge.io/restart": "1"}),
    );
    assert_eq!(
        said(&two_windows(), &annotated),
        [
            "restarts 2 pods, one after the other, each hands its key groups over first; \
          all state is kept"
        ]
    );
}

#[test]
fn suspending_and_resuming_say_what_becomes_of_pods_and_state() {
    let suspended = with(&two_windows(), "/suspend", json!(true));
    assert_eq!(
        said(&two_windows(), &suspended),
        ["stops the job with a savepoint and removes its 2 pods; its state stays"]
    );
    let record = Record {
        state: State::Suspended,
        ..record(&suspended)
    };
    assert_eq!(
        effects_on(&record, &suspended, &two_windows()),
        ["starts the job where it stopped, in 2 pods"]
    );
    let edited = with(&without_sessions(), "/suspend", json!(true));
    assert_eq!(
        effects_on(&record, &suspended, &edited),
        [
            "keeps the state of per_user, drops the state of sessions: \
             set upgrade.droppedState: Allow",
            "the job is suspended: this is taken when it is resumed"
        ]
    );
}

#[test]
fn job_that_is_over_says_whether_an_edit_still_counts() {
    let at = "2026-01-31T12:00:00Z".parse().unwrap();
    let to = with(&two_windows(), "/transforms/0/filter", json!("amount > 1"));
    let over = |state| Record {
        state,
        ..record(&two_windows())
    };

    assert_eq!(
        effects_on(&over(State::Finished { at }), &two_windows(), &to),
        ["the job has finished, and no edit runs it again: delete it and create it anew"]
    );
    let reason = "it is broken".to_owned();
    assert_eq!(
        effects_on(&over(State::Failed { at, reason }), &two_windows(), &to),
        [
            "the job has failed, and is tried again with this document",
            "keeps the state of per_user, sessions"
        ]
    );
}

#[test]
fn annotations_say_what_they_ask_for() {
    let annotated = |annotations| with_metadata(&two_windows(), "/annotations", annotations);
    let rewind = annotated(json!({"streamforge.io/rewind-to": "7"}));
    assert_eq!(
        said(&two_windows(), &rewind),
        ["goes back to checkpoint 7: rows that were published after it come again"]
    );
    let mut done = record(&two_windows());
    done.done.rewind_to = Some("7".to_owned());
    assert_eq!(effects_on(&done, &two_windows(), &rewind), [""; 0]);

    let accepted = annotated(json!({"streamforge.io/accept-lost-marker": "out"}));
    assert_eq!(
        said(&two_windows(), &accepted),
        ["if a marker of out is gone, rows are published that may be there already"]
    );
    done.done.accept_lost_marker = Used::Known(Some("out".to_owned()));
    assert_eq!(effects_on(&done, &two_windows(), &accepted), [""; 0]);

    let paused = annotated(json!({"streamforge.io/pause": ""}));
    let paused = with(&paused, "/parallelism", json!(2));
    assert_eq!(
        said(&two_windows(), &paused),
        [
            "hands key groups over from 4 to 2 subtasks, in 1 pod, while rows flow; \
             all state is kept",
            "the annotation streamforge.io/pause is set: nothing of this is done while it is"
        ]
    );
}

#[test]
fn long_lists_and_hostile_values_stay_a_short_line() {
    let names: Vec<String> = (0..9).map(|n| format!("window_{n}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    assert_eq!(
        of_names("drops the state of", &names).unwrap(),
        "drops the state of window_0, window_1, window_2, window_3, window_4, window_5, 3 more"
    );
    assert_eq!(shown("a\u{1b}[31m\nb"), "a\\u{1b}[31m\\nb");
    assert_eq!(shown(&"é".repeat(100)).chars().count(), 31);
}
