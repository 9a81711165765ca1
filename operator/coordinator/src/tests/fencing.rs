//! Whoever waits learns that it has a successor (C5).
//!
//! It writes nothing meanwhile, and holds the task managers that the other one waits for.

use streamforge_core::messages::Event;

use super::rig::*;
use crate::*;

/// Another coordinator takes over; within the time of a look the first one ends.
fn check_learns(mut co1: Rig) {
    let mut co2 = co1.successor();
    co2.wait(1);

    co1.wait(5_000);

    co1.check_fenced();
}

/// Slot 0 stages something in the checkpoint in flight, and that is committed.
fn ack_staging(rig: &mut Rig) {
    rig.ack_all_with(|ack| {
        for split in ack.splits.values_mut().flatten() {
            split.progress = streamforge_core::manifest::SplitProgress::End;
        }
        if ack.task == task(1, 0) {
            ack.staged.push((slot(0), interval(ack.id.get())));
        }
    });
}

#[test]
fn coordinator_that_waits_for_slots_learns_that_it_is_fenced_c5() {
    let config = Config {
        parallelism: 3,
        ..config()
    };
    let mut co1 = Rig::alone(config, Objects::default());
    co1.register(&task_manager("a", 1), 2);
    co1.wait(1);
    assert!(co1.co.status().waits_for.is_some());

    check_learns(co1);
}

/// They know of the other and refuse its orders, while their session with it lives on.
#[test]
fn coordinator_that_waits_for_tasks_to_be_loaded_learns_that_it_is_fenced_c5() {
    let mut co1 = Rig::alone(config(), Objects::default());
    co1.register(&task_manager("a", 1), 8);
    co1.wait(1);
    assert_eq!(co1.co.status().phase, Phase::Deploying);

    check_learns(co1);
}

#[test]
fn coordinator_that_waits_for_acknowledgements_learns_that_it_is_fenced_c5() {
    let mut co1 = Rig::run(config());
    co1.wait(1_000);
    assert!(!co1.is_idle());

    check_learns(co1);
}

#[test]
fn coordinator_that_waits_for_the_acknowledgements_of_a_stop_learns_that_it_is_fenced_c5() {
    let mut co1 = Rig::run(config());
    co1.feed(Input::Stop);
    assert!(!co1.is_idle());

    check_learns(co1);
}

/// The task managers may be those of the other: they refuse to publish what this one asks for.
#[test]
fn coordinator_whose_stop_waits_for_publishes_learns_that_it_is_fenced_c5() {
    let mut co1 = Rig::run(config());
    co1.feed(Input::Stop);
    ack_staging(&mut co1);
    assert_eq!(co1.co.status().unpublished_n, 1);

    check_learns(co1);
}

#[test]
fn coordinator_whose_job_is_done_but_for_publishes_learns_that_it_is_fenced_c5() {
    let mut co1 = Rig::run(config());
    for task in graph().tasks(2) {
        co1.say(Event::Ended { task });
    }
    ack_staging(&mut co1);
    assert_eq!(co1.co.status().phase, Phase::Finishing);

    check_learns(co1);
}

#[test]
fn coordinator_that_copies_a_savepoint_before_it_stops_learns_that_it_is_fenced_c5() {
    let mut co1 = Rig::run(config());
    let (name, stops) = ("last".to_owned(), true);
    co1.fate = Box::new(|request| match request {
        StoreRequest::Copy { .. } => Fate::Hold,
        _ => Fate::Answer,
    });
    co1.feed(Input::Savepoint { name, stops });
    co1.ack_all();
    assert_eq!(co1.held.len(), 1);

    check_learns(co1);
}

#[test]
fn coordinator_that_waits_before_it_tries_again_learns_that_it_is_fenced_c5() {
    let mut slow = config();
    slow.restart.backoff_initial_ms = 60_000;
    slow.restart.backoff_max_ms = 60_000;
    let mut co1 = Rig::run(slow);
    let cause = "boom".to_owned();
    let (task, retry) = (None, true);
    co1.say(Event::Failed { task, cause, retry });
    assert_eq!(co1.co.status().phase, Phase::Recovering);

    check_learns(co1);
}

/// All is well with it, and its next checkpoint is due in an hour.
#[test]
fn coordinator_without_anything_to_do_learns_that_it_is_fenced_c5() {
    let mut hourly = config();
    hourly.checkpoint.interval_ms = 3_600_000;
    let mut co1 = Rig::run(hourly);
    let mut co2 = co1.successor();
    co2.wait(1);

    co1.wait(59_999);
    assert_eq!(co1.outcome, None, "too soon");
    co1.wait(1);

    co1.check_fenced();
}

/// A look that is under way when the last acknowledgement comes is superseded by the commit.
#[test]
fn look_costs_no_checkpoint_c2() {
    for fate in [Fate::Hold, Fate::LoseAnswer, Fate::Lose] {
        let mut rig = Rig::run(config());
        rig.wait(1_000);
        rig.fate = fates(is_swap, [fate]);
        rig.wait(5_000);
        let n = rig.in_flight();

        rig.ack_all();
        rig.wait(1_000);

        assert_eq!(rig.newest().id, n, "{fate:?}");
        assert_eq!(rig.outcome, None, "{fate:?}");
    }
}
