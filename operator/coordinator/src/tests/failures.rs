//! Failed attempts: what is restored, what counts, when it is enough.

use std::collections::BTreeMap;

use streamforge_core::messages::{Event, Progress};

use super::rig::*;
use crate::*;

fn fail(rig: &mut Rig) {
    rig.say(Event::Failed {
        task: Some(task(0, 1)),
        cause: "boom".to_owned(),
        retry: true,
    });
}

fn recover(rig: &mut Rig) {
    rig.wait(1_000);
    rig.say(Event::Prepared {
        splits: BTreeMap::new(),
    });
    assert_eq!(rig.co.status().phase, Phase::Running, "{:?}", rig.outcome);
}

#[test]
fn failure_restores_the_newest_checkpoint_in_a_new_epoch() {
    let mut rig = Rig::run(config());
    let n = rig.checkpoint();

    fail(&mut rig);
    assert_eq!(rig.sent_names().last(), Some(&"cancel"));
    assert_eq!(rig.co.status().phase, Phase::Recovering);
    recover(&mut rig);

    assert_eq!(rig.deployment().restore.unwrap().id, n);
    assert_eq!(rig.stamp().epoch.get(), 2);
    assert_eq!(rig.head().epoch.get(), 2);
    assert_eq!(rig.co.status().restarts_n, 1);
}

/// A sink that waits for its brokers keeps rows from flowing.
#[test]
fn what_a_start_waits_for_is_in_the_status() {
    let mut rig = Rig::run(config());
    fail(&mut rig);
    rig.wait(1_000);
    let waits = BTreeMap::from([(uid("out"), "waiting for kafka".to_owned())]);

    rig.say(Event::Progress(Box::new(Progress {
        held_back_by: waits.clone(),
        ..Progress::default()
    })));

    assert_eq!(rig.co.status().phase, Phase::Deploying);
    assert_eq!(rig.co.status().held_back_by, waits);
}

/// Whoever hangs while it loads says nothing of it, and its heartbeats go on.
#[test]
fn loading_that_does_not_get_on_ends_the_attempt_and_one_that_does_may_take_hours() {
    let mut rig = Rig::run(config());
    fail(&mut rig);
    rig.wait(1_000);
    let (phase, epoch) = (rig.co.status().phase, rig.head().epoch);
    assert_eq!(phase, Phase::Deploying);
    for _ in 0..10 {
        rig.wait(899_000);
        rig.say(Event::Progress(Box::default()));
    }
    assert_eq!((rig.co.status().phase, rig.head().epoch), (phase, epoch));

    rig.wait(899_000);
    assert_eq!((rig.co.status().phase, rig.head().epoch), (phase, epoch));
    rig.wait(1_000);
    rig.wait(1_000);

    assert_eq!(rig.head().epoch, epoch.next());
    let failure = rig
        .co
        .status()
        .last_failure
        .map_or_else(String::new, |it| it.reason);
    assert!(failure.ends_with("was loaded by local"), "{failure}");
    recover(&mut rig);
    rig.wait(1_000_000);
    assert_eq!(rig.co.status().phase, Phase::Running);
}

#[test]
fn task_manager_that_hangs_while_it_loads_ends_the_attempt_whatever_the_others_say() {
    let config = Config {
        members: MemberPolicy {
            silence_ms_max: u64::MAX,
            ..MemberPolicy::default()
        },
        ..config()
    };
    let mut rig = Rig::alone(config, Objects::default());
    let (a, b) = (task_manager("a", 1), task_manager("b", 1));
    rig.register(&a, 1);
    rig.register(&b, 1);
    rig.wait(1);
    let (stamp, epoch) = (rig.stamp(), rig.head().epoch);
    let progress = || Event::Progress(Box::default());
    rig.wait(899_000);
    rig.say_as(&b, stamp, progress());
    assert_eq!(rig.co.status().phase, Phase::Deploying);
    rig.wait(1_000);
    assert_eq!(rig.co.status().phase, Phase::Recovering, "a said nothing");
    rig.wait(1_000);
    assert_eq!(rig.head().epoch, epoch.next());

    // One that is ready has nothing more to say.
    let (stamp, epoch) = (rig.stamp(), rig.head().epoch);
    let splits = BTreeMap::new();
    rig.say_as(&b, stamp.clone(), Event::Prepared { splits });
    for _ in 0..10 {
        rig.wait(899_000);
        rig.say_as(&a, stamp.clone(), progress());
    }
    let status = rig.co.status();
    assert_eq!((status.phase, rig.head().epoch), (Phase::Deploying, epoch));
    let failure = status.last_failure.expect("a hung");
    assert_eq!(failure.task_manager.as_deref(), Some("a"));
    assert!(failure.reason.ends_with("was loaded by a"), "{failure}");
}

#[test]
fn new_epoch_is_in_the_head_before_anything_of_it_is_sent() {
    let mut rig = Rig::run(config());
    fail(&mut rig);
    let sent_n = rig.sent.len();
    rig.fate = fates(is_swap, [Fate::Hold]);

    rig.wait(100);
    assert_eq!(rig.sent.len(), sent_n);
    rig.release(0);

    assert_eq!(rig.sent_names()[sent_n..], ["deploy"]);
}

#[test]
fn checkpoint_is_taken_at_once_after_a_recovery() {
    let mut rig = Rig::run(config());
    fail(&mut rig);

    recover(&mut rig);

    assert!(rig.co.status().checkpoint.in_flight.is_some());
}

#[test]
fn crash_loop_ends_although_a_checkpoint_completes_after_each_restore() {
    // Attack 47: a poison record, a checkpoint right after each restore.
    let mut rig = Rig::run(config());
    rig.checkpoint();
    for _crash in 0..4 {
        if rig.outcome.is_some() {
            break;
        }
        fail(&mut rig);
        if rig.outcome.is_none() {
            recover(&mut rig);
            rig.ack_all();
        }
    }

    match rig.failure() {
        Error::RestartBudget { failures_n, cause } => {
            assert_eq!(*failures_n, 3);
            assert!(cause.contains("task 0.1: boom"), "{cause}");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn failures_with_progress_between_them_never_end_the_job() {
    let mut rig = Rig::run(config());
    for _crash in 0..10 {
        fail(&mut rig);
        recover(&mut rig);
        rig.ack_all();
        rig.checkpoint();
    }

    assert_eq!(rig.outcome, None);
}

#[test]
fn mistake_that_no_attempt_mends_ends_the_job_with_its_cause() {
    let mut rig = Rig::run(config());

    let cause = "file x.ndjson shrank".to_owned();
    rig.say(Event::Failed {
        task: None,
        cause,
        retry: false,
    });

    assert_eq!(rig.failure().to_string(), "file x.ndjson shrank");
    assert_eq!(rig.sent_names().last(), Some(&"cancel"));
}

#[test]
fn failure_to_load_counts_too_kf_c5() {
    let mut rig = Rig::new(config());
    for _attempt in 0..3 {
        rig.wait(1_000);
        rig.say(Event::Failed {
            task: None,
            cause: "no such file".to_owned(),
            retry: true,
        });
    }

    assert!(matches!(
        rig.failure(),
        Error::RestartBudget { failures_n: 3, .. }
    ));
}

#[test]
fn lost_task_managers_are_a_failure_of_the_attempt() {
    let mut rig = Rig::run(config());

    rig.lose(&local());

    assert_eq!(rig.co.status().phase, Phase::Recovering);
    let failure = rig.co.status().last_failure.unwrap();
    assert_eq!(failure.to_string(), "task manager local: session broke");
}

#[test]
fn checkpoint_in_flight_dies_with_its_attempt() {
    let mut rig = Rig::run(config());
    let before = rig.newest().id;
    rig.wait(1_000);
    let n = rig.in_flight();
    let acks: Vec<_> = graph().tasks(2).map(|of| rig.snapshot(of, n)).collect();
    let old = rig.stamp();
    fail(&mut rig);
    for ack in acks {
        rig.say_as(&local(), old.clone(), Event::Ack(Box::new(ack)));
    }

    assert_eq!(rig.newest().id, before);
    recover(&mut rig);
    assert_eq!(rig.deployment().restore.unwrap().id, before);
}

#[test]
fn manifest_put_of_a_dead_attempt_is_never_named_by_the_head() {
    let mut rig = Rig::run(config());
    let before = rig.newest().id;
    rig.wait(1_000);
    rig.fate = fates(is_manifest_put, [Fate::Hold]);
    rig.ack_all();
    fail(&mut rig);
    recover(&mut rig);

    rig.release(0);

    assert_eq!(rig.newest().id, before);
}

#[test]
fn crash_before_checkpoint_1_restores_manifest_0_not_a_partial_one_kf_c8() {
    // KF-C8: one of four tasks acknowledged the first checkpoint.
    let mut rig = Rig::run(config());
    let initial = rig.newest().id;
    rig.wait(1_000);
    let n = rig.in_flight();
    let ack = rig.snapshot(task(0, 0), n);
    rig.say(Event::Ack(Box::new(ack)));
    fail(&mut rig);

    recover(&mut rig);

    assert_eq!(rig.deployment().restore.unwrap().id, initial);
}

#[test]
fn status_shows_the_ledger_with_what_the_tasks_report_since() {
    let mut rig = Rig::run(config());
    rig.checkpoint();
    let mut again = rig.successor();
    again.resume();
    let counters = streamforge_core::manifest::Counters {
        rows_in: 5,
        ..Default::default()
    };
    let counters = BTreeMap::from([(uid("in"), counters)]);

    again.say(Event::Progress(Box::new(Progress {
        counters,
        ..Progress::default()
    })));

    assert_eq!(again.co.status().ledger[&uid("in")].rows_in, 45);
}
