//! A stop records what it has published, before it ends (X3).

use streamforge_core::ids::CheckpointId;
use streamforge_core::job_graph::{JobGraph, OperatorKind};
use streamforge_core::manifest::{CheckpointKind, Manifest};
use streamforge_core::messages::Event;

use super::rig::*;
use crate::*;

/// A stop whose checkpoint is committed; slot 0 has output in it that is not published yet.
fn stopping(rig: &mut Rig) -> CheckpointId {
    rig.feed(Input::Stop);
    let n = rig.in_flight();
    rig.ack_all_with(|ack| {
        if ack.task == task(1, 0) {
            ack.staged.push((slot(0), interval(n.get())));
        }
    });
    assert!(rig.listed().contains(&(0, n.get())));
    n
}

fn stopped(checkpoint: CheckpointId) -> Option<Outcome> {
    Some(Outcome::Stopped {
        checkpoint: Some(checkpoint),
        unpublished_n: 0,
        note: None,
        savepoint_failed: None,
    })
}

/// All but its name, its time and its list.
fn moment(manifest: &Manifest) -> Manifest {
    Manifest {
        id: CheckpointId::ZERO,
        time_ms: 0,
        staged: Vec::new(),
        ..manifest.clone()
    }
}

fn without_sink() -> JobGraph {
    let mut graph = graph();
    for stage in &mut graph.stages {
        let is_sink = |kind: &OperatorKind| matches!(kind, OperatorKind::Sink(_));
        stage.operators.retain(|it| !is_sink(&it.kind));
    }
    graph
}

#[test]
fn stop_takes_off_its_list_what_it_has_published_x3() {
    let mut rig = Rig::run(config());
    rig.checkpoint_staging(1);
    let n = stopping(&mut rig);
    let before = rig.newest();
    let retained = rig.head().retained;

    rig.published(0, 1);
    rig.published(0, n.get());

    assert_eq!(rig.listed(), []);
    let recorded = rig.newest();
    assert_eq!(moment(&recorded), moment(&before));
    assert!(recorded.id > n, "C4");
    assert_eq!(rig.outcome, stopped(recorded.id));
    // It takes the place of the other: none of those before is dropped for it.
    let head = rig.head();
    assert_eq!(head.retained.len(), retained.len());
    let older = |all: &[_]| all[..all.len() - 1].to_vec();
    assert_eq!(older(&head.retained), older(&retained));
}

#[test]
fn sink_may_be_removed_after_a_stop_that_published_all_x3() {
    let mut rig = Rig::run(config());
    let n = stopping(&mut rig);
    rig.published(0, n.get());

    let mut again = rig.successor_with(Config {
        graph: without_sink().into(),
        ..config()
    });
    again.resume();
}

#[test]
fn stop_that_published_nothing_writes_nothing_more() {
    let mut rig = Rig::run(config());
    rig.feed(Input::Stop);
    let n = rig.in_flight();
    rig.ack_all();

    assert_eq!(rig.outcome, stopped(n));
    assert_eq!(rig.newest().id, n);
}

#[test]
fn stop_whose_publish_was_not_confirmed_in_time_records_nothing_x3() {
    let mut rig = Rig::run(config());
    rig.checkpoint_staging(1);
    let n = stopping(&mut rig);
    rig.published(0, 1);

    rig.wait(10_000);

    assert!(matches!(
        rig.outcome,
        Some(Outcome::Stopped {
            unpublished_n: 1,
            ..
        })
    ));
    assert_eq!(rig.newest().id, n);
    let mut again = rig.successor_with(Config {
        graph: without_sink().into(),
        ..config()
    });
    again.wait(1);
    let error = again.failure().to_string();
    assert!(error.contains("not published yet"), "{error}");
}

/// Publishing is idempotent: the next start does it again, and nothing comes of it (X1).
#[test]
fn coordinator_that_dies_between_publish_and_record_leaves_the_list_to_the_next_x3() {
    for held in [is_manifest_put as fn(&StoreRequest) -> bool, is_swap] {
        let mut rig = Rig::run(config());
        let n = stopping(&mut rig);
        rig.fate = fates(held, [Fate::Hold]);
        rig.published(0, n.get());
        assert_eq!(rig.outcome, None, "it records");
        let waits_for = rig.co.status().stop_waits_for.expect("it stops");
        assert!(waits_for.contains("what is published"), "{waits_for}");

        let mut again = rig.successor();
        again.resume();

        assert_eq!(again.notices(), [vec![(0, n.get())]]);
        // And what was on its way is nothing to anybody.
        rig.land(0);
        again.published(0, n.get());
        again.checkpoint();
        assert_eq!(again.listed(), []);
    }
}

#[test]
fn record_survives_answers_that_are_lost_c2() {
    for lost in [is_manifest_put as fn(&StoreRequest) -> bool, is_swap] {
        for fate in [Fate::Lose, Fate::LoseAnswer, Fate::Refuse] {
            let mut rig = Rig::run(config());
            let n = stopping(&mut rig);
            rig.fate = fates(lost, [fate]);
            rig.published(0, n.get());
            rig.wait(1_000);

            assert_eq!(rig.listed(), [], "{fate:?}");
            assert_eq!(rig.outcome, stopped(rig.newest().id), "{fate:?}");
        }
    }
}

#[test]
fn store_that_is_away_keeps_no_stop_waiting_for_ever() {
    for away in [is_manifest_put as fn(&StoreRequest) -> bool, is_swap] {
        let mut rig = Rig::run(config());
        let n = stopping(&mut rig);
        rig.fate = Box::new(move |request| {
            if away(request) {
                Fate::Lose
            } else {
                Fate::Answer
            }
        });
        rig.published(0, n.get());
        for _second in 0..9 {
            rig.wait(1_000);
        }
        assert_eq!(rig.outcome, None);
        rig.wait(1_000);

        assert_eq!(rig.outcome, stopped(n));
    }
}

/// All rows are read, staged and visible: no task is needed.
#[test]
fn failure_of_a_task_costs_no_record() {
    let mut rig = Rig::run(config());
    let n = stopping(&mut rig);
    rig.fate = fates(is_manifest_put, [Fate::Hold]);
    rig.published(0, n.get());

    rig.say(Event::Failed {
        task: Some(task(1, 0)),
        cause: "boom".to_owned(),
        retry: true,
    });
    rig.release(0);

    assert_eq!(rig.listed(), []);
    assert_eq!(rig.outcome, stopped(rig.newest().id));
}

#[test]
fn fenced_coordinator_records_nothing_c5() {
    let mut rig = Rig::run(config());
    let n = stopping(&mut rig);
    let mut again = rig.successor();
    again.resume();
    let theirs = again.newest().id;

    rig.published(0, n.get());

    rig.check_fenced();
    assert_eq!(again.newest().id, theirs);
}

/// One that a start restores is not of this attempt: it takes its own checkpoint.
#[test]
fn stop_right_after_a_start_records_its_own_checkpoint() {
    let mut rig = Rig::run(config());
    let n = stopping(&mut rig);
    rig.wait(10_000);
    let mut again = rig.successor();
    again.resume();
    again.published(0, n.get());

    again.feed(Input::Stop);
    let (task, id, reason) = (task(0, 0), again.in_flight(), "busy".to_owned());
    again.say(Event::Declined { task, id, reason });
    assert_eq!(again.newest().id, n, "it has taken none yet");
    again.wait(1_000);
    again.ack_all();

    let newest = again.newest();
    assert_eq!(newest.kind, CheckpointKind::Stop);
    assert_eq!(newest.generation, again.head().generation);
    assert_eq!(again.outcome, stopped(newest.id));
}

#[test]
fn stop_with_a_savepoint_records_too_x3_c9() {
    let mut rig = Rig::run(config());
    rig.feed(Input::Savepoint {
        name: "last".to_owned(),
        stops: true,
    });
    let n = rig.in_flight();
    rig.ack_all_with(|ack| {
        if ack.task == task(1, 0) {
            ack.staged.push((slot(0), interval(n.get())));
        }
    });
    rig.published(0, n.get());

    assert_eq!(rig.listed(), []);
    assert_eq!(rig.outcome, stopped(rig.newest().id));
    let manifest = super::saving::check_whole(&rig, "last");
    assert_eq!(manifest.id, n);
}
