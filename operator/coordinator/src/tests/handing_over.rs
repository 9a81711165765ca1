//! Hand-overs of key groups inside an epoch, step by step, and what ends them (K3).

mod adopted;
mod job;
mod leaving;

use std::collections::{BTreeMap, BTreeSet};

use streamforge_core::ids::{SubtaskIdx, TaskId};
use streamforge_core::manifest::{CheckpointKind, Counters};
use streamforge_core::messages::{Command, Event};

use super::rig::*;
use crate::*;
use job::*;

#[test]
fn new_subtask_comes_inside_the_epoch_and_takes_only_its_share_k2_k3() {
    let mut job = growing();
    let epoch = job.rig.stamp().epoch;

    let plan = job.plan();
    assert_eq!(
        job.rig.head().proposed,
        Some(plan.deployment.assignment.clone())
    );
    assert_eq!(job.owners(), [0, 0, 1, 1], "nothing has changed yet");
    assert_eq!(plan.joining, BTreeSet::from([SubtaskIdx(2)]));
    assert!(plan.leaving.is_empty());
    assert_eq!(plan.deployment.placement[&SubtaskIdx(2)].task_manager, c());
    assert_eq!(job.count("prepare"), 3);
    job.all_prepared();
    let n = job.pass_barrier();

    let (head, manifest) = (job.rig.head(), job.rig.newest());
    assert_eq!((manifest.id, manifest.kind), (n, CheckpointKind::HandOver));
    assert_eq!(manifest.handed_to, Some(plan.deployment.assignment));
    assert_eq!(head.proposed, None);
    assert_eq!((head.epoch, head.parallelism), (epoch, 3));
    assert_eq!(job.owners(), [0, 0, 1, 2]);
    assert_eq!(job.count("receive"), 3);
    job.all_received(n);
    job.checkpoint();
    assert_eq!(job.rig.newest().tasks.len(), 6);
    assert_eq!(job.count("deploy"), 2, "nobody was started anew");
    assert_eq!(job.rig.co.status().restarts_n, 0);
}

#[test]
fn no_other_barrier_is_sent_while_a_table_is_proposed_or_groups_are_awaited_k3() {
    let mut job = growing();
    let before = job.count("checkpoint");
    job.rig.wait(5_000);
    assert_eq!(job.count("checkpoint"), before, "while it is prepared");
    job.all_prepared();
    assert_eq!(job.count("checkpoint"), before + 3);
    let n = job.pass_barrier();
    job.rig.wait(5_000);

    assert_eq!(
        job.count("checkpoint"),
        before + 3,
        "while groups are awaited"
    );
    job.all_received(n);
    job.rig.wait(1);
    assert_eq!(job.count("checkpoint"), before + 6);
}

#[test]
fn refused_hand_over_is_withdrawn_and_nothing_ends_k3() {
    let mut job = growing();
    let epoch = job.rig.stamp().epoch;
    let reason = "no way to a".to_owned();
    job.say(&c(), Event::HandOverRefused { reason });

    assert_eq!(job.count("withdraw"), 3);
    assert_eq!(job.rig.head().proposed, None);
    assert_eq!(job.rig.head().epoch, epoch);
    let before = job.count("prepare");
    // It is tried again, under another number, after a checkpoint and a while.
    job.checkpoint();
    assert_eq!(job.count("prepare"), before + 3);
    assert_eq!(job.plan().joining, BTreeSet::from([SubtaskIdx(3)]));
    assert_eq!(job.count("cancel"), 0);
}

/// A new coordinator would undo it: it never reached the store, and the swap that begins the next epoch took
/// the place of its own.
#[test]
fn scale_that_the_head_has_not_taken_is_saved_after_the_next_epoch_began() {
    let mut job = Job::running(with(2), &[a(), b()]);
    job.rig.fate = fates(is_swap, [Fate::Lose]);
    job.rig.feed(Input::Scale(1));
    assert_eq!(job.rig.head().scaled, None, "it was lost");

    job.rig.lose(&b());
    job.rig.wait(200);
    job.rig.wait(200);

    let scaled = job.rig.head().scaled.map(|it| it.to);
    assert_eq!(scaled, Some(1));
}

#[test]
fn hand_over_waits_longer_after_each_that_came_to_nothing() {
    let mut job = growing();
    let mut tries = Vec::new();
    for _ in 0..6 {
        let reason = "no".to_owned();
        job.say(&c(), Event::HandOverRefused { reason });
        let (before, mut n) = (job.count("prepare"), 0);
        while job.count("prepare") == before && n < 10 {
            job.checkpoint();
            n += 1;
        }
        tries.push(n);
    }

    // 100, 200, 400, 800, 1,000, 1,000 ms, and a checkpoint a second.
    assert!(tries.iter().all(|n| (1..=2).contains(n)), "{tries:?}");
}

#[test]
fn loss_of_who_would_join_only_withdraws_and_of_an_owner_ends_the_epoch_k3() {
    let mut job = growing();
    job.rig.lose(&c());
    assert_eq!(job.rig.head().proposed, None);
    assert_eq!(job.count("cancel"), 0);

    let mut job = growing();
    let epoch = job.rig.stamp().epoch;
    job.rig.lose(&b());

    assert_eq!(job.rig.head().proposed, None);
    assert_eq!(job.rig.head().epoch, epoch.next());
}

#[test]
fn hand_over_not_prepared_in_time_is_withdrawn() {
    let mut job = growing();
    job.rig.wait(10_000);

    assert_eq!(job.rig.head().proposed, None);
    assert_eq!(job.count("cancel"), 0);
}

/// Ends the epoch, and what is begun is the newest manifest before the hand-over.
fn ends(what: impl Fn(&mut Job)) {
    let mut job = growing();
    let (newest, epoch) = (job.rig.newest(), job.rig.head().epoch);
    job.all_prepared();
    what(&mut job);

    job.rig.wait(200);
    let head = job.rig.head();
    assert_eq!(head.epoch, epoch.next());
    assert_eq!(head.proposed, None);
    assert_eq!(head.newest.map(|it| it.id), Some(newest.id));
    let deployment = job.rig.deployment();
    assert_eq!(deployment.restore.map(|it| it.id), Some(newest.id));
    assert_eq!(head.assignment.subtasks().len(), head.parallelism as usize);
}

#[test]
fn hand_over_that_does_not_commit_ends_the_epoch_k3() {
    ends(|job| {
        let (n, task) = (job.rig.in_flight(), task(1, 0));
        let reason = "two unconverted tables".to_owned();
        job.say(
            &a(),
            Event::Declined {
                task,
                id: n,
                reason,
            },
        );
    });
    ends(|job| job.rig.wait(10_000));
    for id in [a(), b(), c()] {
        ends(|job| job.rig.lose(&id));
    }
    // All but one have acknowledged.
    ends(|job| {
        let n = job.rig.in_flight();
        job.ack(0, n);
        job.ack(1, n);
        job.rig.lose(&c());
    });
}

#[test]
fn loss_while_groups_are_awaited_restores_the_hand_over_itself_k3() {
    let mut job = growing();
    job.all_prepared();
    let n = job.pass_barrier();
    job.rig.lose(&c());
    job.rig.wait(200);

    let restore = job.rig.deployment().restore.expect("it was running");
    assert_eq!(restore.id, n);
    assert_eq!(
        restore.assignment.subtasks().len(),
        2,
        "whose watermarks these are (T6)"
    );
    assert_eq!(job.rig.head().assignment.subtasks().len(), 2, "c is gone");
}

#[test]
fn new_coordinator_that_finds_a_proposed_table_ends_the_epoch_attack_24() {
    for sent in [false, true] {
        let mut job = growing();
        if sent {
            job.all_prepared();
        }
        let epoch = job.rig.head().epoch;
        let mut new = job.successor();
        new.wait(1);
        for id in [a(), b(), c()] {
            register(&mut new, &id, job.runs(true));
        }
        new.wait(1);

        assert_eq!(new.head().epoch, epoch.next(), "barrier sent: {sent}");
        assert_eq!(new.head().proposed, None);
        assert!(!new.sent_names().contains(&"adopt"));
    }
}

#[test]
fn new_coordinator_adopts_what_was_handed_over_and_says_it_once_more_f1_k3() {
    // c never heard of the commit.
    let mut job = growing();
    job.all_prepared();
    let n = job.pass_barrier();
    let epoch = job.rig.head().epoch;
    let mut new = job.successor();
    new.wait(1);
    register(&mut new, &a(), job.runs(false));
    register(&mut new, &b(), job.runs(false));
    register(&mut new, &c(), job.runs(true));

    assert_eq!(new.head().epoch, epoch);
    let names = new.sent_names();
    assert_eq!(
        names,
        [["adopt"; 3], ["committed"; 3], ["receive"; 3]].concat()
    );
    new.wait(2_000);
    assert!(
        !new.sent_names().contains(&"checkpoint"),
        "it waits for them"
    );
    let places = job.places.clone();
    let mut new = Job {
        rig: new,
        places,
        readers: job.readers.clone(),
    };
    new.all_received(n);
    new.rig.wait(1);
    let next = new.rig.in_flight();
    new.ack_all(next);
    assert_eq!(new.rig.newest().id, next);
    assert_eq!(new.rig.newest().tasks.len(), 6);
}

#[test]
fn fewer_subtasks_leave_their_groups_splits_and_counts_behind_k3_t3() {
    let mut job = Job::running(with(2), &[a(), b()]);
    job.rig.feed(Input::Scale(1));
    let n = job.hand_over();

    assert_eq!(job.owners(), [0, 0, 0, 0]);
    let ledger = |job: &Job| job.rig.newest().ledger[&uid("in")];
    // Each of four tasks counts ten rows since its deployment.
    assert_eq!(ledger(&job).rows_in, 40);
    let departed = job.rig.newest().departed.counters[&uid("in")];
    assert_eq!(departed.rows_in, 20);
    job.rig.wait(1);
    let next = job.rig.in_flight();
    assert!(next > n);
    job.ack_all(next);
    assert_eq!(
        ledger(&job),
        Counters {
            rows_in: 40,
            passed: 40,
            ..Counters::default()
        }
    );
    assert_eq!(job.rig.newest().sources[&uid("in")].len(), 2);
    assert_eq!(job.rig.newest().tasks, [task(0, 0), task(1, 0)]);
}

/// The epoch after a hand-over begins from its manifest: whom that one made leave is in its ledger.
#[test]
fn adopter_of_the_epoch_after_a_hand_over_counts_nobody_twice_and_hands_nothing_over_t3_k3() {
    let mut job = Job::running(with(2), &[a(), b()]);
    job.rig.feed(Input::Scale(1));
    job.hand_over();
    let worker = job.places[&0].clone();
    let failed = Event::Failed {
        task: None,
        cause: "boom".to_owned(),
        retry: true,
    };
    job.say(&worker, failed);
    job.rig.wait(1_000);
    let splits = BTreeMap::new();
    job.say(&worker, Event::Prepared { splits });
    assert_eq!(job.rig.co.status().phase, Phase::Running);

    let mut new = job.successor();
    new.wait(1);
    let mut runs = job.runs(false);
    if let Some(runs) = &mut runs.runs {
        runs.deployment = job.rig.deployment();
    }
    register(&mut new, &worker, runs);

    assert_eq!(new.sent_names(), ["adopt", "checkpoint"]);
    new.wait(1);
    let mut new = Job {
        rig: new,
        places: job.places.clone(),
        readers: job.readers.clone(),
    };
    let n = new.rig.in_flight();
    new.ack_all(n);
    // 40 rows up to the hand-over, and ten of each of two tasks since.
    assert_eq!(new.rig.newest().ledger[&uid("in")].rows_in, 60);
}

#[test]
fn numbers_of_subtasks_that_left_are_not_used_again_in_the_epoch_b2_c4() {
    let mut job = Job::running(with(2), &[a(), b()]);
    for (parallelism, left) in [(1, vec![0]), (2, vec![0, 2]), (1, vec![0]), (2, vec![0, 3])] {
        job.rig.feed(Input::Scale(parallelism));
        job.hand_over();
        let subtasks: Vec<u32> = job.places.keys().copied().collect();
        assert_eq!(subtasks, left);
        job.rig.wait(1);
        let n = job.rig.in_flight();
        job.ack_all(n);
    }
    let epoch = job.rig.head().epoch;
    // The next epoch counts from 0 again, and who stays keeps what it has (K2).
    let before = job.rig.head().assignment;
    job.rig.register(&c(), 1);
    job.rig.lose(&a());
    job.rig.wait(1);

    let head = job.rig.head();
    assert_eq!(head.epoch, epoch.next());
    let numbers: Vec<u32> = head.assignment.subtasks().iter().map(|it| it.0).collect();
    assert_eq!(numbers, [0, 1]);
    let b_now = job.rig.deployment().subtasks_of(&b())[0];
    let kept = before.groups_of(SubtaskIdx(3));
    assert_eq!(head.assignment.groups_of(b_now), kept);
}

#[test]
fn task_manager_without_tasks_and_output_may_go_and_nothing_ends() {
    let mut job = Job::running(with(2), &[a(), b()]);
    job.rig.feed(Input::Scale(1));
    job.hand_over();
    let epoch = job.rig.head().epoch;
    job.rig.lose(&b());
    job.rig.wait(1);

    let n = job.rig.in_flight();
    job.ack_all(n);
    assert_eq!(job.rig.newest().id, n);
    assert_eq!(job.rig.head().epoch, epoch);
    assert_eq!(job.rig.co.status().restarts_n, 0);
}

#[test]
fn channel_to_a_subtask_that_left_may_break_b2() {
    let mut job = Job::running(with(2), &[a(), b()]);
    job.rig.feed(Input::Scale(1));
    job.hand_over();
    let epoch = job.rig.head().epoch;
    let broke = |sender, receiver| Event::ChannelBroke {
        sender: SubtaskIdx(sender),
        receiver: SubtaskIdx(receiver),
        cause: "reset".to_owned(),
    };
    job.say(&a(), broke(0, 1));
    job.rig.wait(1_000);

    assert_eq!(job.rig.head().epoch, epoch);
    job.say(&a(), broke(0, 0));
    job.rig.wait(1_000);
    assert_eq!(job.rig.head().epoch, epoch.next());
}

#[test]
fn task_manager_that_leaves_gives_its_subtasks_away_attack_45() {
    let mut job = Job::running(with(2), &[a(), b()]);
    job.rig.register(&c(), 1);
    let epoch = job.rig.head().epoch;
    job.rig.feed(Input::Ending(a()));
    assert!(job.rig.released.is_empty());
    job.hand_over();

    assert_eq!(job.places, BTreeMap::from([(1, b()), (2, c())]));
    assert_eq!(job.owners(), [2, 2, 1, 1]);
    assert_eq!(job.rig.head().epoch, epoch);
    job.rig.wait(1);
    assert_eq!(job.rig.released, [a()]);
    // Nobody can take b's: it goes on with one subtask.
    let n = job.rig.in_flight();
    job.ack_all(n);
    job.rig.feed(Input::Ending(b()));
    job.hand_over();
    assert_eq!(job.places, BTreeMap::from([(2, c())]));
}

#[test]
fn when_all_leave_they_may_go_after_one_more_checkpoint() {
    let mut job = Job::running(with(2), &[a(), b()]);
    job.rig.feed(Input::Ending(a()));
    job.rig.feed(Input::Ending(b()));
    job.rig.wait(1);
    assert!(job.rig.released.is_empty());

    let n = job.rig.in_flight();
    job.ack_all(n);

    assert_eq!(job.rig.released, [a(), b()]);
}

#[test]
fn task_manager_that_a_person_drained_stays_and_has_nothing_to_do() {
    let mut job = Job::running(with(2), &[a(), b()]);
    job.rig.register(&c(), 1);
    job.rig.feed(Input::Leaving(a()));
    job.hand_over();
    job.rig.wait(1);

    assert_eq!(job.places, BTreeMap::from([(1, b()), (2, c())]));
    assert!(job.rig.released.is_empty());
}

#[test]
fn drain_of_the_last_task_manager_that_stays_is_refused_with_what_to_do() {
    let mut job = Job::running(with(2), &[a(), b()]);
    assert_eq!(job.rig.co.check_drain("a"), Ok(a()));
    job.rig.feed(Input::Leaving(a()));

    assert_eq!(job.rig.co.check_drain("a"), Ok(a()), "asked once more");
    let refused = job.rig.co.check_drain("b").unwrap_err();

    assert!(refused.contains("start another task manager"), "{refused}");
    job.rig.register(&c(), 1);
    assert_eq!(job.rig.co.check_drain("b"), Ok(b()));
}

#[test]
fn what_was_asked_for_holds_for_the_next_coordinator_unless_it_is_started_with_another_number() {
    let mut job = Job::running(with(2), &[a(), b()]);
    job.rig.feed(Input::Scale(1));
    job.hand_over();
    job.rig.wait(1);
    let n = job.rig.in_flight();
    job.ack_all(n);
    assert_eq!(job.rig.head().scaled.map(|it| it.to), Some(1));

    assert_eq!(begun_anew(&job, 2).deployment().parallelism, 1);
}

/// Another coordinator, and two new task managers of one slot each.
fn begun_anew(job: &Job, started_with: u32) -> Rig {
    let mut new = job.successor();
    new.co = Coordinator::new(Config {
        nonce_seed: 99 + u64::from(started_with),
        ..with(started_with)
    });
    new.wait(1);
    new.wait(5_001);
    new.register(&a(), 1);
    new.register(&b(), 1);
    new.wait(1_000);
    new
}

#[test]
fn order_for_more_than_there_are_slots_does_not_keep_the_next_start_waiting() {
    let mut job = Job::running(with(2), &[a(), b()]);
    job.rig.feed(Input::Scale(4));
    job.checkpoint();
    assert_eq!(job.rig.head().scaled.map(|it| it.to), Some(4));

    assert_eq!(begun_anew(&job, 2).deployment().parallelism, 2);
    // Another number in the document is another wish.
    assert_eq!(begun_anew(&job, 1).deployment().parallelism, 1);
}

#[test]
fn parallelism_out_of_range_is_refused_in_words() {
    let job = Job::running(with(2), &[a(), b()]);

    for wrong in [0, 5] {
        let reason = job.rig.co.check_scale(wrong).unwrap_err();
        assert!(reason.contains("between 1 and 4"), "{reason}");
    }
    assert_eq!(job.rig.co.check_scale(4), Ok(()));
}

#[test]
fn stop_while_a_hand_over_is_prepared_withdraws_it_first() {
    let mut job = growing();
    job.rig.feed(Input::Stop);
    job.rig.wait(1);
    job.rig.wait(1);

    assert_eq!(job.rig.head().proposed, None);
    let n = job.rig.in_flight();
    job.ack_all(n);
    assert_eq!(job.rig.newest().kind, CheckpointKind::Stop);
}

#[test]
fn lost_answer_of_the_commit_is_read_back_and_the_table_holds_c2() {
    let mut job = growing();
    job.all_prepared();
    job.rig.fate = fates(is_swap, [Fate::LoseAnswer]);
    let n = job.pass_barrier();
    for _ in 0..20 {
        job.rig.wait(100);
    }

    assert_eq!(job.rig.newest().id, n);
    assert_eq!(job.owners(), [0, 0, 1, 2]);
    assert_eq!(job.count("cancel"), 0);
    assert!(job.count("committed") >= 3);
}

#[test]
fn gaining_reader_that_had_ended_is_not_ended_any_more_c11() {
    // Subtask 1 reads `b` to its end and says so; then subtask 0 leaves, and its split comes here.
    let mut job = Job::running(with(2), &[a(), b()]);
    let ended: Vec<TaskId> = vec![task(0, 1)];
    for task in &ended {
        job.say(&b(), Event::Ended { task: *task });
    }
    job.rig.feed(Input::Leaving(a()));
    job.hand_over();
    for subtask in job.places.clone().into_keys() {
        assert_eq!(subtask, 1);
    }
    job.rig.wait(1);
    let n = job.rig.in_flight();
    job.ack_all(n);

    job.say(&b(), Event::Ended { task: task(1, 1) });
    job.rig.wait(1_000);
    let mut sent = job.rig.sent.iter().rev();
    let kind = sent.find_map(|(_, command)| match command {
        Command::Checkpoint { kind, .. } => Some(*kind),
        _ => None,
    });
    assert_eq!(kind, Some(CheckpointKind::Ordinary), "the reader reads");
}
