//! Triggers, acknowledgements, manifests, give-ups and the commit point.

use streamforge_core::manifest::{CheckpointKind, Counters, SplitProgress};
use streamforge_core::messages::{Command, Event};

use super::rig::*;
use crate::*;

#[test]
fn checkpoint_needs_every_expected_task_and_lists_them_c1_kf_c8() {
    let mut rig = Rig::run(config());
    rig.wait(1_000);
    let n = rig.in_flight();
    let before = rig.newest().id;
    let tasks: Vec<_> = graph().tasks(2).collect();
    for of in &tasks[..3] {
        let ack = rig.snapshot(*of, n);
        rig.say(Event::Ack(Box::new(ack)));
        // The same task twice is still one task.
        let ack = rig.snapshot(*of, n);
        rig.say(Event::Ack(Box::new(ack)));
    }
    assert_eq!(rig.newest().id, before);

    let ack = rig.snapshot(tasks[3], n);
    rig.say(Event::Ack(Box::new(ack)));

    assert_eq!(rig.newest().id, n);
    assert_eq!(rig.newest().tasks, tasks);
}

#[test]
fn acknowledgement_of_a_task_that_is_not_expected_does_not_count_c1() {
    let mut rig = Rig::run(config());
    rig.wait(1_000);
    let n = rig.in_flight();
    let before = rig.newest().id;
    let foreign = [task(0, 0), task(0, 1), task(1, 0), task(1, 7)];

    for of in foreign {
        let ack = rig.snapshot(of, n);
        rig.say(Event::Ack(Box::new(ack)));
    }

    assert_eq!(rig.newest().id, before);
}

#[test]
fn acknowledgement_of_a_given_up_checkpoint_does_not_count_c1() {
    let mut rig = Rig::run(config());
    rig.wait(1_000);
    let first = rig.in_flight();
    rig.say(Event::Declined {
        task: task(1, 1),
        id: first,
        reason: "busy".to_owned(),
    });
    rig.wait(1_000);
    let second = rig.in_flight();
    let before = rig.newest().id;
    assert!(second > first);

    for of in graph().tasks(2) {
        let late = rig.snapshot(of, first);
        rig.say(Event::Ack(Box::new(late)));
    }

    assert_eq!(rig.newest().id, before);
}

#[test]
fn manifest_is_durable_before_the_head_names_it_c2() {
    let mut rig = Rig::run(config());
    rig.fate = fates(is_manifest_put, [Fate::Hold]);
    rig.wait(1_000);
    let before = rig.newest().id;
    rig.ack_all();
    assert_eq!(rig.newest().id, before);

    rig.release(0);

    assert!(rig.newest().id > before);
}

#[test]
fn lost_answer_of_a_swap_that_took_effect_is_found_by_its_nonce_c2() {
    let mut rig = Rig::run(config());
    rig.wait(1_000);
    let n = rig.in_flight();
    rig.fate = fates(is_swap, [Fate::LoseAnswer]);

    rig.ack_all();

    assert_eq!(rig.co.committed().unwrap().id, n);
    assert_eq!(rig.sent_names().last(), Some(&"committed"));
}

#[test]
fn swap_that_did_not_arrive_is_repeated_with_the_same_bytes_c2() {
    let mut rig = Rig::run(config());
    rig.wait(1_000);
    let n = rig.in_flight();
    let seen = std::rc::Rc::new(std::cell::RefCell::new(Vec::new()));
    let swaps = std::rc::Rc::clone(&seen);
    rig.fate = Box::new(move |request| {
        if !is_swap(request) {
            return Fate::Answer;
        }
        swaps.borrow_mut().push(request.clone());
        if swaps.borrow().len() < 4 {
            Fate::Lose
        } else {
            Fate::Answer
        }
    });

    rig.ack_all();
    for _tick in 0..20 {
        rig.wait(100);
    }

    let seen = seen.borrow();
    assert!(
        seen.len() >= 4 && seen[..4].iter().all(|it| *it == seen[0]),
        "{}",
        seen.len()
    );
    assert!(rig.sent_names().contains(&"committed"));
    assert!(rig.newest().id >= n);
}

#[test]
fn unresolved_swap_is_neither_committed_nor_failed_however_long_it_takes_c2() {
    let mut rig = Rig::run(config());
    rig.wait(1_000);
    rig.fate = Box::new(|request| {
        if is_swap(request) {
            Fate::Lose
        } else {
            Fate::Answer
        }
    });
    rig.ack_all();
    let completed_n = rig.co.status().checkpoint.completed_n;

    for _tick in 0..100 {
        rig.wait(1_000); // far beyond the checkpoint's timeout
    }

    let status = rig.co.status().checkpoint;
    assert_eq!((status.completed_n, status.failed_n), (completed_n, 0));
    assert!(!rig.sent_names().contains(&"abort"));
    rig.fate = Box::new(|_| Fate::Answer);
    rig.wait(10_000);
    rig.wait(10_000);
    assert_eq!(rig.co.status().checkpoint.completed_n, completed_n + 1);
}

#[test]
fn earlier_swap_found_by_read_back_is_adopted_and_the_new_one_redone_on_top_c2() {
    // Attack 5: the commit's put is delayed, the job fails, the next epoch's swap begins; then the
    // delayed put lands first.
    let mut rig = Rig::run(config());
    rig.wait(1_000);
    let n = rig.in_flight();
    rig.fate = fates(is_swap, [Fate::Hold, Fate::Hold]);
    rig.ack_all();
    assert_eq!(rig.held.len(), 1);
    rig.say(Event::Failed {
        task: None,
        cause: "boom".to_owned(),
        retry: true,
    });
    rig.wait(5_000);
    assert_eq!(rig.held.len(), 2, "the next epoch's swap is under way too");

    let _answer_that_nobody_hears = rig.land(0);
    rig.release(0);

    let head = rig.head();
    assert_eq!(head.epoch.get(), 2);
    assert_eq!(head.newest.unwrap().id, n, "the earlier swap is not lost");
    assert_eq!(rig.deployment().restore.unwrap().id, n);
    assert_eq!(rig.co.status().checkpoint.last_failed, None);
}

#[test]
fn checkpoint_is_failed_once_a_later_swap_succeeded_without_it_c2() {
    let mut rig = Rig::run(config());
    let before = rig.newest().id;
    rig.wait(1_000);
    let n = rig.in_flight();
    rig.fate = fates(is_swap, [Fate::Hold]);
    rig.ack_all();
    rig.say(Event::Failed {
        task: None,
        cause: "boom".to_owned(),
        retry: true,
    });
    rig.wait(5_000);

    assert_eq!(rig.deployment().restore.unwrap().id, before);
    assert_eq!(rig.co.status().checkpoint.last_failed.unwrap().id, n);
    assert_eq!(
        rig.land(0),
        StoreAnswer::ConditionFailed,
        "the late put does no harm"
    );
    assert_eq!(rig.newest().id, before);
}

#[test]
fn manifest_whose_put_lost_its_answer_is_read_back_and_used() {
    let mut rig = Rig::run(config());
    rig.wait(1_000);
    let n = rig.in_flight();
    rig.fate = fates(is_manifest_put, [Fate::LoseAnswer]);

    rig.ack_all();
    rig.wait(200);

    assert_eq!(rig.newest().id, n);
}

#[test]
fn timeout_gives_the_attempt_up_by_name_and_the_job_goes_on_a2() {
    let mut rig = Rig::run(config());
    rig.wait(1_000);
    let n = rig.in_flight();
    let ack = rig.snapshot(task(0, 0), n);
    rig.say(Event::Ack(Box::new(ack)));

    rig.wait(10_000);

    assert!(matches!(rig.sent.last(), Some((_, Command::Abort { id })) if *id == n));
    let failed = rig.co.status().checkpoint.last_failed.unwrap();
    assert!(
        failed
            .reason
            .contains("no acknowledgement from task 0.1, 1.0, 1.1"),
        "{failed:?}"
    );
    assert_eq!(rig.co.status().phase, Phase::Running);
    assert!(rig.checkpoint() > n);
}

#[test]
fn declined_attempt_is_aborted_everywhere_a2() {
    let mut rig = Rig::run(config());
    rig.wait(1_000);
    let n = rig.in_flight();

    rig.say(Event::Declined {
        task: task(1, 0),
        id: n,
        reason: "two tables".to_owned(),
    });

    assert_eq!(rig.sent_names().last(), Some(&"abort"));
    let failed = rig.co.status().checkpoint.last_failed.unwrap();
    assert!(
        failed.reason.contains("task 1.0 declined it: two tables"),
        "{failed:?}"
    );
}

#[test]
fn checkpoint_counts_as_stale_after_more_failures_than_tolerated() {
    let mut rig = Rig::run(config());
    for attempt in 1..=3 {
        rig.wait(1_000);
        let n = rig.in_flight();
        rig.say(Event::Declined {
            task: task(0, 0),
            id: n,
            reason: "busy".to_owned(),
        });
        assert_eq!(
            rig.co.status().checkpoint.stale.is_some(),
            attempt > 2,
            "attempt {attempt}"
        );
    }
    assert_eq!(
        rig.co.status().restarts_n,
        0,
        "nothing restarts for that alone"
    );

    rig.checkpoint();

    assert_eq!(rig.co.status().checkpoint.stale, None);
}

#[test]
fn at_most_one_checkpoint_is_in_flight() {
    let mut rig = Rig::run(config());

    for _tick in 0..9 {
        rig.wait(1_000);
    }

    let begun = rig
        .sent_names()
        .iter()
        .filter(|name| **name == "checkpoint")
        .count();
    assert_eq!(begun, 1);
}

#[test]
fn min_pause_is_kept_between_the_end_of_one_and_the_start_of_the_next() {
    let mut config = config();
    config.checkpoint.min_pause_ms = 5_000;
    let mut rig = Rig::run(config);
    rig.wait(1_000);
    rig.wait(4_000);
    rig.wait(1_000);
    let _first = rig.in_flight();
    rig.ack_all();

    rig.wait(4_999);
    assert_eq!(rig.co.status().checkpoint.in_flight, None);
    rig.wait(1);
    assert!(rig.co.status().checkpoint.in_flight.is_some());
}

#[test]
fn split_that_no_task_reports_fails_the_checkpoint() {
    let mut rig = Rig::run(config());
    rig.wait(1_000);
    let before = rig.newest().id;

    rig.ack_all_with(|ack| ack.splits.clear());

    assert_eq!(rig.newest().id, before);
    let failed = rig.co.status().checkpoint.last_failed.unwrap();
    assert!(
        failed.reason.contains("no task reported split a of in"),
        "{failed:?}"
    );
}

/// A restore deals the split again; waiting does not.
#[test]
fn split_that_no_task_reports_any_more_ends_the_attempt_after_three_checkpoints() {
    let mut rig = Rig::run(config());
    let n = rig.checkpoint();
    let epoch = rig.head().epoch;
    let forget = |ack: &mut streamforge_core::messages::TaskSnapshot| {
        if ack.task == task(0, 1) {
            ack.splits.clear();
        }
    };
    for failed_n in [1, 2] {
        rig.wait(1_000);
        rig.ack_all_with(forget);
        assert_eq!(rig.co.status().checkpoint.failed_n, failed_n);
        assert_eq!(rig.co.status().restarts_n, 0);
    }
    rig.wait(1_000);
    rig.ack_all_with(forget);
    rig.wait(200);

    assert_eq!(rig.head().epoch, epoch.next());
    assert_eq!(rig.deployment().restore.unwrap().id, n);
    let failure = rig
        .co
        .status()
        .last_failure
        .map_or_else(String::new, |it| it.reason);
    assert!(failure.contains("no task reported split b"), "{failure}");
}

#[test]
fn split_that_two_tasks_report_fails_the_checkpoint() {
    let mut rig = Rig::run(config());
    rig.wait(1_000);
    let before = rig.newest().id;

    rig.ack_all_with(|ack| {
        ack.splits.insert(uid("in"), vec![split_at("a", at(1))]);
    });

    assert_eq!(rig.newest().id, before);
    let failed = rig.co.status().checkpoint.last_failed.unwrap();
    assert!(
        failed.reason.contains("two tasks reported split a"),
        "{failed:?}"
    );
}

#[test]
fn restored_state_that_no_task_reports_fails_the_checkpoint() {
    let mut rig = Rig::run(config());
    let restored = rig.checkpoint();
    let mut again = rig.successor();
    again.resume();
    again.wait(1_000);

    again.ack_all_with(|ack| ack.operators.clear());

    assert_eq!(again.newest().id, restored);
}

#[test]
fn ended_split_stays_ended_in_every_later_manifest_c11() {
    let mut rig = Rig::run(config());
    rig.checkpoint_with(|ack| {
        if ack.task == task(0, 0) {
            ack.splits.get_mut(&uid("in")).unwrap()[0].progress = SplitProgress::End;
        }
    });
    let mut again = rig.successor();
    again.resume();

    again.checkpoint_with(|ack| {
        if ack.task == task(0, 0) {
            ack.splits.clear(); // it never held it in this attempt
        }
    });

    let splits = &again.newest().sources[&uid("in")];
    assert_eq!(splits.len(), 2);
    assert_eq!(splits[0].progress, SplitProgress::End);
}

#[test]
fn ledger_adds_the_counters_since_deploy_to_the_restored_one_t3() {
    let mut rig = Rig::run(config());
    rig.checkpoint();
    rig.checkpoint();
    let one_attempt = Counters {
        rows_in: 40,
        passed: 40,
        ..Counters::default()
    };
    assert_eq!(
        rig.newest().ledger[&uid("in")],
        one_attempt,
        "not added up per checkpoint"
    );

    let mut again = rig.successor();
    again.resume();
    again.checkpoint();

    let two_attempts = Counters {
        rows_in: 80,
        passed: 80,
        ..Counters::default()
    };
    assert_eq!(again.newest().ledger[&uid("in")], two_attempts);
}

#[test]
fn kinds_of_manifests_are_told_apart() {
    let mut rig = Rig::run(config());
    rig.checkpoint();
    assert_eq!(rig.newest().kind, CheckpointKind::Ordinary);
}
