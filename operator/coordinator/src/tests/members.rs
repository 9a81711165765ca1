//! Several task managers: who runs what, and what the loss of one leads to.

use std::collections::{BTreeMap, BTreeSet};

use streamforge_core::ids::SubtaskIdx;
use streamforge_core::key_group::KeyGroup;
use streamforge_core::messages::{Command, Event, Progress, TaskManagerId};

use super::rig::*;
use crate::*;

fn three() -> Config {
    Config {
        parallelism: 3,
        members: MemberPolicy {
            silence_ms_max: 5_000,
            adopt_within_ms: Some(5_000),
            gather_ms: 1_000,
        },
        ..config()
    }
}

pub(super) fn a() -> TaskManagerId {
    task_manager("a", 1)
}

pub(super) fn b() -> TaskManagerId {
    task_manager("b", 1)
}

pub(super) fn c() -> TaskManagerId {
    task_manager("c", 1)
}

/// Task managers of the newest deployment.
fn placed(rig: &Rig) -> Vec<TaskManagerId> {
    let places = rig.deployment().placement;
    places
        .into_values()
        .map(|place| place.task_manager)
        .collect()
}

pub(super) fn prepare(rig: &mut Rig) {
    let stamp = rig.stamp();
    let first_start = rig.deployment().restore.is_none();
    for id in placed(rig).into_iter().collect::<BTreeSet<_>>() {
        let splits = if first_start && rig.deployment().is_first(&id) {
            let split = |name| split_at(name, at(0));
            BTreeMap::from([(uid("in"), vec![split("a"), split("b")])])
        } else {
            BTreeMap::new()
        };
        rig.say_as(&id, stamp.clone(), Event::Prepared { splits });
    }
}

/// All tasks acknowledge the checkpoint in flight, each by who runs it.
fn ack(rig: &mut Rig) {
    let (n, stamp, places) = (rig.in_flight(), rig.stamp(), rig.deployment().placement);
    let parallelism = rig.deployment().parallelism;
    for of in graph().tasks(parallelism) {
        let mut snapshot = rig.snapshot(of, n);
        if of.stage.0 == 0 && of.subtask.0 > 1 {
            snapshot.splits.clear();
        }
        if of.stage.0 == 0 && parallelism == 1 {
            let both = ["a", "b"].map(|name| split_at(name, at(n.get())));
            snapshot.splits.insert(uid("in"), both.to_vec());
        }
        let from = &places[&of.subtask].task_manager;
        rig.say_as(from, stamp.clone(), Event::Ack(Box::new(snapshot)));
    }
    assert_eq!(rig.newest().id, n, "committed");
}

pub(super) fn checkpoint(rig: &mut Rig) {
    rig.wait(1_000);
    ack(rig);
}

/// Three task managers with so many slots each, one subtask on each.
pub(super) fn running(slots: u32) -> Rig {
    running_with(three(), slots)
}

fn running_with(config: Config, slots: u32) -> Rig {
    let mut rig = Rig::alone(config, Objects::default());
    for id in [a(), b(), c()] {
        rig.register(&id, slots);
    }
    rig.wait(1);
    prepare(&mut rig);
    assert_eq!(rig.co.status().phase, Phase::Running, "{:?}", rig.outcome);
    assert_eq!(placed(&rig), [a(), b(), c()]);
    rig
}

#[test]
fn job_waits_until_there_are_slots_for_all_subtasks_and_says_so() {
    let mut rig = Rig::alone(three(), Objects::default());
    rig.wait(1);
    rig.register(&a(), 1);
    rig.register(&b(), 1);
    rig.wait(60_000 - 1);

    assert!(rig.sent.is_empty());
    let waits_for = rig.co.status().waits_for.expect("it waits");
    assert!(waits_for.contains("3 subtasks"), "{waits_for}");
    assert!(waits_for.contains("offer 2"), "{waits_for}");
    rig.register(&c(), 1);

    assert_eq!(rig.sent_names(), ["deploy"; 3]);
    assert_eq!(rig.sent_to, [a(), b(), c()]);
    assert_eq!(rig.co.status().waits_for, None);
}

#[test]
fn order_for_more_than_there_are_slots_keeps_no_start_waiting_that_has_not_begun() {
    let mut rig = Rig::alone(three(), Objects::default());
    rig.wait(1);
    rig.register(&a(), 1);
    rig.register(&b(), 1);
    assert!(rig.co.status().waits_for.is_some());
    rig.feed(Input::Scale(4));
    assert_eq!(rig.co.status().wanted, 4);
    rig.wait(1_001);

    assert_eq!(rig.deployment().parallelism, 2);
}

#[test]
fn rows_flow_only_when_every_task_manager_has_loaded_its_tasks() {
    let mut rig = Rig::alone(three(), Objects::default());
    for id in [a(), b(), c()] {
        rig.register(&id, 1);
    }
    rig.wait(1);
    let stamp = rig.stamp();
    let split = |name| split_at(name, at(0));
    let splits = BTreeMap::from([(uid("in"), vec![split("a"), split("b")])]);
    rig.say_as(&a(), stamp.clone(), Event::Prepared { splits });
    let nothing = || Event::Prepared {
        splits: BTreeMap::new(),
    };
    rig.say_as(&b(), stamp.clone(), nothing());
    rig.say_as(&b(), stamp.clone(), nothing());

    assert_eq!(rig.sent_names(), ["deploy"; 3], "c is missing");
    rig.say_as(&c(), stamp, nothing());

    assert_eq!(
        rig.sent_names()[3..],
        [
            "committed",
            "committed",
            "committed",
            "start",
            "start",
            "start"
        ]
    );
    assert_eq!(rig.newest().sources[&uid("in")].len(), 2);
}

#[test]
fn loss_ends_the_epoch_and_spare_slots_take_what_was_lost_at_once_k2() {
    let mut rig = running(2);
    checkpoint(&mut rig);
    let (epoch, table) = (rig.stamp().epoch, rig.head().assignment);

    rig.lose(&b());

    // No tick was needed: nothing is wrong with the job.
    assert_eq!(rig.stamp().epoch, epoch.next());
    assert_eq!(placed(&rig), [a(), a(), c()]);
    assert_eq!(
        rig.head().assignment,
        table,
        "no key group changed its subtask"
    );
    assert_eq!(rig.head().epoch, epoch.next());
    assert_eq!(rig.deployment().restore.unwrap().id, rig.newest().id);
    prepare(&mut rig);
    assert!(
        rig.co.status().checkpoint.in_flight.is_some(),
        "taken at once"
    );
}

#[test]
fn without_spare_slots_the_survivors_go_on_with_fewer_subtasks_and_keep_their_groups_k2() {
    for lost in [a(), b(), c()] {
        let mut rig = running(1);
        checkpoint(&mut rig);
        let before = rig.head().assignment;

        rig.lose(&lost);

        let (left, all) = (placed(&rig), [a(), b(), c()]);
        assert!(left.len() == 2 && !left.contains(&lost), "{left:?}");
        let head = rig.head();
        assert_eq!((head.parallelism, rig.co.status().parallelism), (2, 2));
        let of = |table: &streamforge_core::key_group::Assignment, n| -> BTreeSet<KeyGroup> {
            table.groups_of(SubtaskIdx(n)).into_iter().collect()
        };
        for (new, id) in (0..).zip(&left) {
            let old = (0..)
                .zip(&all)
                .find(|(_, it)| *it == id)
                .map_or(0, |(old, _)| old);
            let kept = of(&head.assignment, new).is_superset(&of(&before, old));
            assert!(kept, "{} keeps its groups", id.name);
        }
        prepare(&mut rig);
        ack(&mut rig);
        assert_eq!(rig.newest().parallelism, 2);
    }
}

#[test]
fn task_manager_without_a_session_is_not_heard() {
    let mut rig = running(2);
    checkpoint(&mut rig);
    let stamp = rig.stamp();
    let d = task_manager("d", 1);
    rig.register(&d, 1);
    rig.lose(&d);

    let failed = Event::Failed {
        task: None,
        cause: "a word of the dead".to_owned(),
        retry: true,
    };
    rig.say_as(&d, stamp.clone(), failed);

    assert_eq!(
        (rig.stamp(), rig.co.status().phase),
        (stamp, Phase::Running)
    );
}

#[test]
fn returning_task_manager_is_used_right_after_a_checkpoint_inside_the_epoch_k3() {
    let mut rig = running(1);
    checkpoint(&mut rig);
    rig.lose(&b());
    prepare(&mut rig);
    ack(&mut rig);
    rig.register(&task_manager("b", 2), 1);
    let (epoch, sent_n) = (rig.stamp().epoch, rig.sent.len());
    rig.wait(900);
    assert_eq!(
        rig.sent.len(),
        sent_n,
        "nothing happens before a checkpoint"
    );

    checkpoint(&mut rig);

    assert_eq!(rig.stamp().epoch, epoch);
    assert_eq!(rig.sent_names().last(), Some(&"prepare"));
    assert_eq!(rig.sent_to.last(), Some(&c()));
    assert_eq!(rig.head().proposed.expect("a table").subtasks().len(), 3);
}

#[test]
fn loss_of_all_waits_a_moment_for_the_others_and_then_begins_with_who_is_there() {
    let mut rig = running(1);
    checkpoint(&mut rig);
    for id in [a(), b(), c()] {
        rig.lose(&id);
    }
    let sent_n = rig.sent.len();
    rig.wait(60_000);
    assert_eq!(rig.sent.len(), sent_n, "nobody is there");

    rig.register(&task_manager("a", 2), 1);
    rig.wait(900);
    rig.register(&task_manager("c", 2), 1);
    assert_eq!(rig.sent.len(), sent_n, "b may come too");
    rig.wait(100);

    assert_eq!(placed(&rig), [task_manager("a", 2), task_manager("c", 2)]);
    assert!(rig.co.status().waits_for.is_none());
}

#[test]
fn loss_of_all_begins_at_once_when_all_are_back() {
    let mut rig = running(1);
    checkpoint(&mut rig);
    for id in [a(), b(), c()] {
        rig.lose(&id);
    }
    for name in ["a", "b", "c"] {
        rig.register(&task_manager(name, 2), 1);
    }

    assert_eq!(placed(&rig).len(), 3);
    assert_eq!(rig.sent_names().last(), Some(&"deploy"));
}

#[test]
fn loss_while_tasks_are_loaded_begins_anew_without_the_lost_one() {
    let mut rig = Rig::alone(three(), Objects::default());
    for id in [a(), b(), c()] {
        rig.register(&id, 3);
    }
    rig.wait(1);
    let old = rig.stamp();
    let splits = BTreeMap::from([(uid("in"), vec![split_at("a", at(0)), split_at("b", at(0))])]);
    rig.say_as(&a(), old.clone(), Event::Prepared { splits });

    rig.lose(&b());
    // What the dead epoch still says counts for nothing.
    for id in [b(), c()] {
        let splits = BTreeMap::new();
        rig.say_as(&id, old.clone(), Event::Prepared { splits });
    }

    assert_eq!(rig.co.status().phase, Phase::Deploying);
    assert_eq!(placed(&rig), [a(), a(), c()]);
    assert_eq!(
        rig.head().newest,
        None,
        "nothing was committed by the dead epoch"
    );
    prepare(&mut rig);
    assert_eq!(rig.co.status().phase, Phase::Running);
}

#[test]
fn second_process_of_a_name_ends_what_the_first_was_doing() {
    // Attack 46: a container restarts in place and registers before the loss is noticed.
    let mut rig = running(2);
    checkpoint(&mut rig);
    let (epoch, old) = (rig.stamp().epoch, rig.stamp());
    let anew = task_manager("b", 2);

    rig.register(&anew, 2);

    assert_eq!(rig.stamp().epoch, epoch.next());
    assert!(!placed(&rig).contains(&b()));
    // The first one is a zombie: whatever it says, under whatever stamp, is not heard.
    prepare(&mut rig);
    let n = rig.in_flight();
    for stamp in [old, rig.stamp()] {
        for of in graph().tasks(3) {
            let snapshot = Box::new(rig.snapshot(of, n));
            rig.say_as(&b(), stamp.clone(), Event::Ack(snapshot));
        }
    }
    assert_eq!(rig.in_flight(), n);
    assert_ne!(rig.newest().id, n);
}

#[test]
fn session_that_begins_anew_is_a_loss_because_commands_may_be_missing() {
    let mut rig = running(2);
    checkpoint(&mut rig);
    let epoch = rig.stamp().epoch;

    rig.register(&b(), 2);

    assert_eq!(rig.stamp().epoch, epoch.next());
    assert_eq!(
        rig.sent_names().last(),
        Some(&"deploy"),
        "it gets its tasks anew"
    );
}

#[test]
fn acknowledgement_of_a_task_that_another_runs_is_not_counted_c1() {
    let mut rig = running(1);
    rig.wait(1_000);
    let (n, stamp) = (rig.in_flight(), rig.stamp());

    for of in graph().tasks(3) {
        let snapshot = Box::new(rig.snapshot(of, n));
        rig.say_as(&a(), stamp.clone(), Event::Ack(snapshot));
    }

    assert_eq!(rig.in_flight(), n, "only a's own are in");
}

#[test]
fn silent_task_manager_is_lost_and_one_that_is_heard_is_not() {
    let mut rig = running(2);
    checkpoint(&mut rig);
    let epoch = rig.stamp().epoch;
    for _tick in 0..60 {
        rig.wait(100);
        for id in [a(), c()] {
            rig.feed(Input::Heard(id));
        }
    }

    assert!(rig.stamp().epoch > epoch);
    assert_eq!(placed(&rig), [a(), a(), c()]);
    let failure = rig.co.status().last_failure.unwrap();
    assert_eq!(failure.task_manager.as_deref(), Some("b"), "{failure}");
    assert_eq!(rig.disconnected, [b()], "it may live, and must come again");
}

#[test]
fn every_listed_slot_is_published_by_somebody_after_subtasks_were_lost_x4() {
    // Attack 10: slot 2's subtask is gone.
    let mut rig = running(1);
    rig.wait(1_000);
    let (n, stamp) = (rig.in_flight(), rig.stamp());
    for of in graph().tasks(3) {
        let mut snapshot = rig.snapshot(of, n);
        if of.stage.0 == 0 && of.subtask.0 > 1 {
            snapshot.splits.clear();
        }
        if of.stage.0 == 1 {
            let interval = interval(n.get());
            snapshot.staged.push((slot(of.subtask.0), interval));
        }
        let from = [a(), b(), c()][of.subtask.0 as usize].clone();
        rig.say_as(&from, stamp.clone(), Event::Ack(Box::new(snapshot)));
    }
    rig.lose(&b());
    let sent_n = rig.sent.len();
    prepare(&mut rig);

    let notices = rig.sent[sent_n..].iter().zip(&rig.sent_to[sent_n..]);
    let published: BTreeSet<(u32, TaskManagerId)> = notices
        .filter_map(|((_, command), to)| match command {
            Command::Publish { slots, .. } => Some((slots, to)),
            _ => None,
        })
        .flat_map(|(slots, to)| slots.iter().map(|(slot, _)| (slot.slot, to.clone())))
        .collect();
    // Slots 0 and 2 belong to subtask 0 of two, slot 1 to subtask 1.
    assert_eq!(published, BTreeSet::from([(0, a()), (1, c()), (2, a())]));
}

#[test]
fn broken_channel_that_is_reported_before_its_cause_costs_one_epoch_only_b2() {
    let mut rig = running(2);
    checkpoint(&mut rig);
    let stamp = rig.stamp();
    let broke = Event::Failed {
        task: None,
        cause: "channel broke".to_owned(),
        retry: true,
    };
    rig.say_as(&a(), stamp.clone(), broke);
    assert_eq!(rig.co.status().phase, Phase::Recovering);

    rig.lose(&b());

    assert_eq!(rig.stamp().epoch, stamp.epoch.next(), "and at once");
    assert_eq!(placed(&rig), [a(), a(), c()]);
}

/// Kills whoever runs subtask 0 and starts it anew.
fn kill_first(rig: &mut Rig, nonce: u64) {
    let id = placed(rig)[0].clone();
    rig.lose(&id);
    rig.register(&task_manager(&id.name, nonce), 3);
    rig.wait(2_000);
}

#[test]
fn losses_with_progress_never_end_the_job_and_a_crash_loop_does() {
    let mut rig = running(3);
    for n in 0..10 {
        checkpoint(&mut rig);
        kill_first(&mut rig, 100 + n);
        prepare(&mut rig);
        ack(&mut rig);
    }
    assert_eq!(rig.outcome, None);

    // Whoever runs the poison record dies of it, time and again.
    for n in 0..4 {
        kill_first(&mut rig, 200 + n);
        if rig.outcome.is_some() {
            break;
        }
        prepare(&mut rig);
        ack(&mut rig);
    }

    assert!(matches!(rig.failure(), Error::RestartBudget { .. }));
}

#[test]
fn several_that_are_lost_at_once_are_one_failure() {
    let mut rig = running(3);
    for n in 0..5 {
        for id in [0, 1, 2].map(|idx| task_manager(["a", "b", "c"][idx], n + 1)) {
            rig.lose(&id);
        }
        assert_eq!(rig.outcome, None, "round {n}");
        for name in ["a", "b", "c"] {
            rig.register(&task_manager(name, n + 2), 3);
        }
        rig.wait(2_000);
        prepare(&mut rig);
        ack(&mut rig);
        checkpoint(&mut rig);
    }
}

#[test]
fn progress_of_all_task_managers_adds_up() {
    let mut rig = running(1);
    let stamp = rig.stamp();
    for (id, rows_in) in [(a(), 5), (b(), 7), (a(), 6)] {
        let counters = streamforge_core::manifest::Counters {
            rows_in,
            ..Default::default()
        };
        let progress = Progress {
            counters: BTreeMap::from([(uid("in"), counters)]),
            ..Progress::default()
        };
        rig.say_as(&id, stamp.clone(), Event::Progress(Box::new(progress)));
    }

    assert_eq!(
        rig.co.status().ledger[&uid("in")].rows_in,
        13,
        "a's newest and b's"
    );
}

#[test]
fn job_whose_only_task_manager_ended_for_good_fails_and_says_why() {
    let mut rig = Rig::run(config());
    rig.lose(&local());

    rig.feed(Input::TaskManagersEnded);

    assert!(rig.failure().to_string().contains("task manager"));
}

#[test]
fn pair_that_cannot_reach_each_other_does_not_use_the_restart_budget_up_b2() {
    let mut rig = running(2);
    checkpoint(&mut rig);
    for _break in 0..2 {
        let broke = Event::ChannelBroke {
            sender: SubtaskIdx(0),
            receiver: SubtaskIdx(2),
            cause: "reset".to_owned(),
        };
        let stamp = rig.stamp();
        rig.say_as(&a(), stamp, broke);
        rig.wait(1_000);
        prepare(&mut rig);
        if rig.co.status().checkpoint.in_flight.is_some() {
            ack(&mut rig);
        }
    }

    assert!(!placed(&rig).contains(&c()), "one of the two has no place");
    assert_eq!(placed(&rig).len(), 3);
    assert_eq!(rig.outcome, None);
}

/// An older process registers after its replacement, and dies: the replacement lives and has a session
/// that counts for nothing.
#[test]
fn who_was_replaced_by_one_that_goes_must_come_again() {
    let newer = task_manager("a", 2);
    let mut rig = running(1);
    rig.register(&newer, 1);
    rig.register(&a(), 1);
    assert_eq!(rig.disconnected, []);

    rig.lose(&a());

    assert_eq!(rig.disconnected, [newer]);
    assert_eq!(rig.co.status().task_managers_n, 2);
}

#[test]
fn who_was_replaced_by_one_that_falls_silent_must_come_again() {
    let newer = task_manager("a", 2);
    let mut rig = running(1);
    rig.register(&newer, 1);
    rig.register(&a(), 1);

    for _ in 0..60 {
        rig.wait(100);
        rig.feed(Input::Heard(b()));
        rig.feed(Input::Heard(c()));
    }

    assert_eq!(rig.disconnected, [newer, a()]);
}
