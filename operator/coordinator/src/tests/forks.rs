//! Two coordinators of one job: at most one of them gets anything done.

use streamforge_core::manifest::SplitProgress;
use streamforge_core::messages::{Event, Stamp};

use super::rig::*;
use crate::*;

fn staging(rig: &mut Rig, n: u64) {
    rig.ack_all_with(|ack| {
        if ack.task == task(1, 0) {
            ack.staged.push((slot(0), interval(n)));
        }
    });
}

#[test]
fn frozen_coordinator_with_all_acks_commits_nothing_after_a_takeover_c2_c5() {
    // Attack 1.
    let mut co1 = Rig::run(config());
    co1.checkpoint();
    co1.wait(1_000);
    let n = co1.in_flight();
    co1.fate = fates(is_manifest_put, [Fate::Hold]);
    staging(&mut co1, n.get());
    let mut co2 = co1.successor();
    co2.resume();
    let theirs = co2.checkpoint();

    co1.release(0); // its manifest's put succeeds

    let (theirs_generation, ours) = (co2.head().generation, co1.stamp().generation);
    assert_eq!(
        *co1.failure(),
        Error::Fenced {
            theirs: theirs_generation,
            ours
        }
    );
    assert!(co1.notices().is_empty(), "it published");
    assert_eq!(co2.newest().id, theirs);
}

#[test]
fn late_manifest_of_a_stale_coordinator_is_a_name_nobody_knows_c2_c6() {
    // Attack 2.
    let mut co1 = Rig::run(config());
    co1.wait(1_000);
    let n = co1.in_flight();
    co1.fate = fates(is_manifest_put, [Fate::Hold]);
    staging(&mut co1, n.get());
    let mut co2 = co1.successor();
    co2.resume();
    for _checkpoint in 0..6 {
        assert!(co2.checkpoint() > n);
    }

    assert!(matches!(co1.land(0), StoreAnswer::Put(_)));
    let mut third = co2.successor();
    third.resume();

    assert!(third.deployment().restore.unwrap().id > n);
    for _checkpoint in 0..4 {
        third.checkpoint();
    }
    let stale = third
        .objects
        .borrow()
        .keys()
        .any(|key| key.ends_with(&format!("-c{n}")));
    assert!(!stale, "and it is cleaned away");
}

#[test]
fn woken_coordinator_deploys_nothing_new_c5() {
    // Attack 3: it "loses" its tasks and would begin the same epoch number as its successor.
    let mut co1 = Rig::run(config());
    co1.checkpoint();
    let mut co2 = co1.successor();
    co2.resume();
    let sent_n = co1.sent.len();

    co1.say(Event::Failed {
        task: None,
        cause: "gone".to_owned(),
        retry: true,
    });
    co1.wait(5_000);

    co1.check_fenced();
    assert!(!co1.sent_names()[sent_n..].contains(&"deploy"));
}

#[test]
fn coordinator_whose_publisher_is_the_zombie_reads_the_head_and_ends_x2_c5() {
    // Frozen after its final checkpoint: there is no swap left that would tell it.
    let mut co1 = Rig::run(config());
    co1.checkpoint_staging(2);
    let notices_n = co1.notices().len();
    let mut co2 = co1.successor();
    co2.resume();

    co1.say(Event::TakenOver {
        reason: "another attempt has taken over".to_owned(),
    });

    let (theirs, ours) = (co2.head().generation, co1.stamp().generation);
    assert_eq!(*co1.failure(), Error::Fenced { theirs, ours });
    co1.wait(5_000);
    assert_eq!(
        co1.notices().len(),
        notices_n,
        "nothing is asked of it again"
    );
}

#[test]
fn marker_that_is_ahead_of_the_head_ends_the_job_and_says_so_x2() {
    // A store that was put back from a backup: nobody has fenced this coordinator.
    let mut rig = Rig::run(config());
    rig.checkpoint_staging(2);

    rig.say(Event::TakenOver {
        reason: "another attempt has taken over".to_owned(),
    });

    let failure = rig.failure().to_string();
    assert!(failure.contains("another attempt"), "{failure}");
    assert!(failure.contains("knows of no newer attempt"), "{failure}");
}

#[test]
fn coordinator_whose_swap_loses_publishes_nothing_c5() {
    let mut co1 = Rig::run(config());
    co1.wait(1_000);
    let n = co1.in_flight();
    let mut co2 = co1.successor();
    co2.wait(1);

    staging(&mut co1, n.get());

    co1.check_fenced();
    assert!(co1.notices().is_empty());
    assert_eq!(
        co1.sent_names().last(),
        Some(&"cancel"),
        "and its own tasks end"
    );
}

#[test]
fn of_two_that_take_over_at_once_one_is_fenced_c5() {
    let rig = Rig::run(config());
    let mut co2 = rig.successor();
    co2.fate = fates(is_swap, [Fate::Hold]);
    co2.wait(1);
    let mut co3 = rig.successor_with(Config {
        document: "other".into(),
        ..config()
    });
    co3.co = Coordinator::new(Config {
        nonce_seed: 99,
        ..config()
    });
    co3.register(&local(), 9);
    co3.wait(1);
    assert_eq!(co3.sent_names(), ["deploy"]);

    co2.release(0);

    co2.check_fenced();
    assert!(co2.sent.is_empty());
}

#[test]
fn take_over_that_a_commit_of_the_earlier_one_outruns_starts_from_that_commit_c2_c5() {
    let mut co1 = Rig::run(config());
    co1.checkpoint();
    let mut co2 = co1.successor();
    // The first swap waits, the second is answered.
    co2.fate = fates(is_swap, [Fate::Hold]);
    co2.wait(1);
    let newest = co1.checkpoint();

    co2.release(0);

    assert_eq!(co2.outcome, None);
    assert_eq!(co2.head().generation, co1.stamp().generation.next());
    assert_eq!(
        co2.deployment().restore.map(|it| it.id),
        Some(newest),
        "not the one that was the newest when it began to read"
    );
    co2.say(Event::Prepared {
        splits: Default::default(),
    });
    assert!(co2.checkpoint() > newest);
    co1.wait(1_000);
    co1.ack_all();
    co1.check_fenced();
}

#[test]
fn take_over_that_is_outrun_by_the_end_of_the_job_finds_it_finished_c5() {
    let mut co1 = Rig::run(config());
    let mut co2 = co1.successor();
    co2.fate = fates(is_swap, [Fate::Hold]);
    co2.wait(1);
    for of in graph().tasks(2) {
        co1.say(Event::Ended { task: of });
    }
    co1.ack_all_with(|ack| {
        for split in ack.splits.values_mut().flatten() {
            split.progress = SplitProgress::End;
        }
    });
    assert!(co1.head().finished, "{:?}", co1.outcome);

    co2.release(0);

    assert_eq!(co2.outcome, Some(Outcome::Finished { before: true }));
    assert!(co2.sent.is_empty());
}

#[test]
fn take_over_that_is_outrun_each_time_is_given_up_and_says_who_is_at_work_c5() {
    let mut co1 = Rig::run(config());
    co1.checkpoint();
    let mut co2 = co1.successor();
    co2.fate = Box::new(|request| {
        if is_swap(request) {
            Fate::Hold
        } else {
            Fate::Answer
        }
    });
    co2.wait(1);

    let mut times_n = 0;
    while co2.outcome.is_none() {
        co1.checkpoint();
        co2.release(0);
        times_n += 1;
        assert!(times_n < 100, "it never gives up");
    }

    let theirs = co1.stamp().generation;
    assert_eq!(*co2.failure(), Error::Outrun { theirs, times_n });
    assert!(co2.sent.is_empty());
    co1.checkpoint();
}

#[test]
fn events_of_older_generations_and_epochs_are_ignored_c5() {
    let mut rig = Rig::run(config());
    rig.say(Event::Failed {
        task: None,
        cause: "boom".to_owned(),
        retry: true,
    });
    rig.wait(100);
    rig.say(Event::Prepared {
        splits: Default::default(),
    });
    rig.wait(1_000);
    let n = rig.in_flight();
    let ours = rig.stamp();
    let older_epoch = Stamp {
        epoch: streamforge_core::ids::Epoch::from_stored(1),
        ..ours.clone()
    };
    let other_job = Stamp {
        job: streamforge_core::ids::JobId("x".to_owned()),
        ..ours
    };
    let before = rig.newest().id;

    for stamp in [older_epoch, other_job] {
        for of in graph().tasks(2) {
            let ack = Event::Ack(Box::new(rig.snapshot(of, n)));
            rig.say_as(&local(), stamp.clone(), ack);
        }
        let failed = Event::Failed {
            task: None,
            cause: "late".to_owned(),
            retry: false,
        };
        rig.say_as(&local(), stamp, failed);
    }

    assert_eq!(rig.newest().id, before);
    assert_eq!(rig.outcome, None);
}

#[test]
fn event_of_a_higher_generation_means_fenced_c5() {
    let mut rig = Rig::run(config());
    let ours = rig.stamp();
    let theirs = Stamp {
        generation: ours.generation.next(),
        ..ours
    };

    rig.say_as(&local(), theirs, Event::Ended { task: task(0, 0) });

    rig.check_fenced();
}
