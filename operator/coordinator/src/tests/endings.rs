//! The end of a job, and a stop, which is not one.

use std::collections::BTreeMap;

use streamforge_core::manifest::{CheckpointKind, SplitProgress};
use streamforge_core::messages::{Command, Event, TaskSnapshot};

use super::rig::*;
use crate::*;

fn at_end(ack: &mut TaskSnapshot) {
    for split in ack.splits.values_mut().flatten() {
        split.progress = SplitProgress::End;
    }
    if ack.task == task(1, 0) {
        ack.staged.push((slot(0), interval(ack.id.get())));
    }
}

fn all_end(rig: &mut Rig) {
    for of in graph().tasks(2) {
        rig.say(Event::Ended { task: of });
    }
}

fn kinds(rig: &Rig) -> Vec<CheckpointKind> {
    let kind = |(_, command): &(_, Command)| match command {
        Command::Checkpoint { kind, .. } => Some(*kind),
        _ => None,
    };
    rig.sent.iter().filter_map(kind).collect()
}

#[test]
fn final_checkpoint_is_taken_at_once_when_all_tasks_ended_c11() {
    // Attack 29.
    let mut rig = Rig::run(config());
    for of in [task(0, 0), task(0, 1), task(1, 0)] {
        rig.say(Event::Ended { task: of });
    }
    assert!(kinds(&rig).is_empty(), "one still works");

    rig.say(Event::Ended { task: task(1, 1) });

    assert_eq!(kinds(&rig), [CheckpointKind::Final]);
    assert_eq!(rig.co.status().phase, Phase::Finishing);
}

#[test]
fn finished_means_that_the_last_publish_is_confirmed_c11() {
    let mut rig = Rig::run(config());
    all_end(&mut rig);
    let n = rig.in_flight().get();
    rig.ack_all_with(at_end);
    rig.wait(10_000);
    rig.wait(60_000);
    assert_eq!(rig.outcome, None, "however long it takes");
    assert!(!rig.head().finished);

    rig.published(0, n);

    assert_eq!(rig.outcome, Some(Outcome::Finished { before: false }));
    assert!(rig.head().finished);
    assert_eq!(rig.sent_names().last(), Some(&"cancel"));
}

#[test]
fn finished_job_does_not_run_again_c11() {
    let mut rig = Rig::run(config());
    all_end(&mut rig);
    let n = rig.in_flight().get();
    rig.ack_all_with(at_end);
    rig.published(0, n);
    let head = rig.head();

    let mut again = rig.successor();
    again.wait(1);

    assert_eq!(again.outcome, Some(Outcome::Finished { before: true }));
    assert!(again.sent.is_empty());
    assert_eq!(again.head(), head);
}

#[test]
fn finished_job_is_rewound_when_asked_c7() {
    let mut rig = Rig::run(config());
    let first = rig.checkpoint();
    all_end(&mut rig);
    let n = rig.in_flight().get();
    rig.ack_all_with(at_end);
    rig.published(0, n);

    let mut again = rig.successor_with(Config {
        rewind_to: Some(first),
        ..config()
    });
    again.resume();

    assert!(!again.head().finished);
}

#[test]
fn final_checkpoint_whose_publish_was_lost_is_published_by_the_next_start_c11() {
    let mut rig = Rig::run(config());
    all_end(&mut rig);
    let n = rig.in_flight().get();
    rig.ack_all_with(at_end);

    let mut again = rig.successor();
    again.resume();
    assert_eq!(again.notices(), [vec![(0, n)]]);
    all_end(&mut again);
    again.ack_all_with(|ack| ack.splits.clear());
    assert_eq!(again.outcome, None);
    again.published(0, n);

    assert_eq!(again.outcome, Some(Outcome::Finished { before: false }));
}

#[test]
fn final_checkpoint_with_an_open_split_is_refused_c11() {
    let mut rig = Rig::run(config());
    all_end(&mut rig);
    let before = rig.newest().id;

    rig.ack_all();

    assert_eq!(rig.newest().id, before);
    let failed = rig.co.status().checkpoint.last_failed.unwrap();
    assert!(failed.reason.contains("is not at its end"), "{failed:?}");
}

#[test]
fn failed_final_checkpoint_is_taken_again_kf_c2() {
    let mut rig = Rig::run(config());
    all_end(&mut rig);
    let n = rig.in_flight();
    rig.say(Event::Declined {
        task: task(0, 0),
        id: n,
        reason: "busy".to_owned(),
    });

    rig.wait(200);

    assert_eq!(kinds(&rig), [CheckpointKind::Final, CheckpointKind::Final]);
}

#[test]
fn ordinary_checkpoints_go_on_while_some_tasks_have_ended_c11() {
    // Attack 28.
    let mut rig = Rig::run(config());
    rig.say(Event::Ended { task: task(0, 0) });

    rig.checkpoint();

    assert_eq!(rig.newest().kind, CheckpointKind::Ordinary);
}

#[test]
fn stop_takes_one_checkpoint_of_its_own_kind_and_ends_after_the_publish_c11() {
    let mut rig = Rig::run(config());
    rig.feed(Input::Stop);
    assert_eq!(kinds(&rig), [CheckpointKind::Stop]);
    let n = rig.in_flight();
    rig.ack_all_with(|ack| {
        if ack.task == task(1, 0) {
            ack.staged.push((slot(0), interval(n.get())));
        }
    });
    assert_eq!(rig.outcome, None);

    rig.published(0, n.get());

    // What was published is recorded by a manifest more.
    let recorded = rig.newest();
    assert_eq!(
        (recorded.id, recorded.kind),
        (n.next(), CheckpointKind::Stop)
    );
    let stopped = Outcome::Stopped {
        checkpoint: Some(recorded.id),
        unpublished_n: 0,
        note: None,
        savepoint_failed: None,
    };
    assert_eq!(rig.outcome, Some(stopped));
    assert!(!rig.head().finished);
    let mut again = rig.successor();
    again.wait(1);
    assert_eq!(again.deployment().restore.unwrap().id, recorded.id);
}

#[test]
fn stop_waits_for_the_checkpoint_in_flight_instead_of_starting_a_second_kf_c1() {
    let mut rig = Rig::run(config());
    rig.wait(1_000);
    rig.feed(Input::Stop);
    rig.feed(Input::Stop);
    assert_eq!(kinds(&rig), [CheckpointKind::Ordinary]);

    rig.ack_all();

    assert_eq!(
        kinds(&rig),
        [CheckpointKind::Ordinary, CheckpointKind::Stop]
    );
    rig.ack_all();
    assert!(matches!(rig.outcome, Some(Outcome::Stopped { .. })));
}

#[test]
fn stop_does_not_wait_for_the_interval_after_a_failed_checkpoint() {
    let mut hourly = config();
    hourly.checkpoint.interval_ms = 3_600_000;
    hourly.checkpoint.timeout_ms = 3_600_000;
    let mut rig = Rig::run(hourly);
    rig.wait(3_600_000);
    let n = rig.in_flight();
    let reason = "busy".to_owned();
    rig.say(Event::Declined {
        task: task(0, 0),
        id: n,
        reason,
    });

    rig.feed(Input::Stop);

    assert_eq!(
        kinds(&rig),
        [CheckpointKind::Ordinary, CheckpointKind::Stop]
    );
}

#[test]
fn stop_whose_output_cannot_be_published_ends_and_says_what_the_next_start_will_do() {
    let mut rig = Rig::run(config());
    rig.feed(Input::Stop);
    let n = rig.in_flight();
    rig.ack_all_with(|ack| {
        if ack.task == task(1, 0) {
            ack.staged.push((slot(0), interval(n.get())));
        }
    });

    rig.wait(9_999);
    assert_eq!(rig.outcome, None);
    rig.wait(1);

    let stopped = Outcome::Stopped {
        checkpoint: Some(n),
        unpublished_n: 1,
        note: None,
        savepoint_failed: None,
    };
    assert_eq!(rig.outcome, Some(stopped));
}

#[test]
fn stop_checkpoint_that_fails_is_tried_again_then_the_older_one_is_named() {
    let mut rig = Rig::run(config());
    let older = rig.checkpoint();
    rig.feed(Input::Stop);
    for _attempt in 0..3 {
        let n = rig.in_flight();
        rig.say(Event::Declined {
            task: task(0, 0),
            id: n,
            reason: "busy".to_owned(),
        });
        rig.wait(200);
    }

    match rig.outcome {
        Some(Outcome::Stopped {
            checkpoint,
            note: Some(note),
            ..
        }) => {
            assert_eq!(checkpoint, Some(older));
            assert!(note.contains("could not be completed"), "{note}");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn failure_while_stopping_ends_at_the_older_checkpoint_and_never_as_failed() {
    let mut rig = Rig::run(config());
    let older = rig.checkpoint();
    rig.feed(Input::Stop);

    rig.say(Event::Failed {
        task: Some(task(1, 0)),
        cause: "boom".to_owned(),
        retry: true,
    });

    match &rig.outcome {
        Some(Outcome::Stopped {
            checkpoint,
            note: Some(note),
            ..
        }) => {
            assert_eq!(*checkpoint, Some(older));
            assert!(note.contains("task 1.0: boom"), "{note}");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn stop_before_rows_flow_ends_at_once() {
    let mut rig = Rig::new(config());
    rig.wait(1);
    rig.feed(Input::Stop);

    let stopped = Outcome::Stopped {
        checkpoint: None,
        unpublished_n: 0,
        note: None,
        savepoint_failed: None,
    };
    assert_eq!(rig.outcome, Some(stopped));
    assert_eq!(rig.sent_names(), ["deploy", "cancel"]);
}

#[test]
fn stop_with_a_dead_store_ends_in_the_end() {
    let mut rig = Rig::run(config());
    rig.fate = Box::new(|_| Fate::Lose);
    assert_eq!(rig.co.status().stop_waits_for, None);
    rig.feed(Input::Stop);
    let waits_for = |rig: &Rig| {
        rig.co
            .status()
            .stop_waits_for
            .expect("a stop was asked for")
    };
    assert!(waits_for(&rig).contains("no acknowledgement from task"));
    rig.ack_all();
    rig.wait(1_000);
    assert!(waits_for(&rig).contains("the store (write to the store"));

    for _tick in 0..40 {
        rig.wait(1_000);
    }

    assert!(
        matches!(rig.outcome, Some(Outcome::Stopped { .. })),
        "{:?}",
        rig.outcome
    );
}

#[test]
fn stop_of_a_job_whose_tasks_all_ended_lets_it_finish() {
    let mut rig = Rig::run(config());
    all_end(&mut rig);
    rig.feed(Input::Stop);
    rig.ack_all_with(|ack| {
        at_end(ack);
        ack.staged.clear();
    });

    assert_eq!(rig.outcome, Some(Outcome::Finished { before: false }));
}

/// The last task ended after the stop was asked for, so that its checkpoint is the final one.
#[test]
fn stop_that_becomes_the_end_waits_no_longer_for_a_publish_than_any_stop() {
    let mut rig = Rig::run(config());
    rig.wait(1_000);
    rig.feed(Input::Stop);
    all_end(&mut rig);
    rig.ack_all();
    assert_eq!(
        kinds(&rig),
        [CheckpointKind::Ordinary, CheckpointKind::Final]
    );
    let n = rig.in_flight();
    rig.ack_all_with(at_end);
    assert_eq!(rig.newest().id, n);
    assert_eq!(rig.outcome, None);

    rig.wait(10_000);
    rig.wait(10_000);

    let stopped = Outcome::Stopped {
        checkpoint: Some(n),
        unpublished_n: 1,
        note: None,
        savepoint_failed: None,
    };
    assert_eq!(rig.outcome, Some(stopped));
}

#[test]
fn failure_while_the_finished_head_is_written_starts_nothing_c11() {
    let mut rig = Rig::run(config());
    all_end(&mut rig);
    rig.fate = fates(is_swap, [Fate::Answer, Fate::Hold]);
    rig.ack_all_with(|ack| {
        at_end(ack);
        ack.staged.clear();
    });

    rig.say(Event::Failed {
        task: None,
        cause: "boom".to_owned(),
        retry: true,
    });
    rig.wait(5_000);
    rig.release(0);

    assert_eq!(rig.outcome, Some(Outcome::Finished { before: false }));
    assert_eq!(rig.head().epoch.get(), 1);
}

#[test]
fn nothing_is_decided_after_the_end() {
    let mut rig = Rig::new(config());
    rig.wait(1);
    rig.feed(Input::Stop);
    let sent_n = rig.sent.len();

    rig.feed(Input::Stop);
    rig.wait(10_000);
    let stamp = rig.stamp();
    let splits = BTreeMap::new();
    rig.say_as(&local(), stamp, Event::Prepared { splits });

    assert_eq!(rig.sent.len(), sent_n);
}
