//! What is committed becomes visible: once, in order, whatever happens.

use streamforge_core::messages::{Command, Event};

use super::rig::*;
use crate::*;

#[test]
fn nothing_is_published_before_the_head_swap_c2() {
    let mut rig = Rig::run(config());
    rig.wait(1_000);
    rig.fate = fates(is_swap, [Fate::Hold]);

    rig.ack_all_with(|ack| {
        if ack.task == task(1, 0) {
            ack.staged.push((slot(0), interval(2)));
        }
    });

    assert!(rig.notices().is_empty());
    rig.release(0);
    assert_eq!(rig.notices(), [vec![(0, 2)]]);
}

#[test]
fn notice_is_repeated_until_confirmed_c3() {
    let mut rig = Rig::run(config());
    rig.checkpoint_staging(2);
    assert_eq!(rig.notices().len(), 1);

    rig.wait(2_000);
    assert_eq!(rig.notices().len(), 2);
    rig.published(0, 2);
    rig.wait(2_000);
    rig.wait(2_000);

    assert_eq!(rig.notices().len(), 2);
}

#[test]
fn checkpoints_wait_a_moment_for_a_sink_that_is_behind_and_no_longer() {
    let mut rig = Rig::run(config());
    rig.checkpoint_staging(2);
    rig.checkpoint_staging(3);
    rig.wait(1_000);
    assert!(
        rig.is_idle(),
        "two intervals wait: the next one is held back"
    );
    rig.published(0, 2);
    rig.wait(1);
    assert!(!rig.is_idle(), "one is published: it goes on at once");
    rig.ack_all();

    rig.checkpoint_staging(5);
    rig.wait(1_000);
    assert!(rig.is_idle());
    rig.wait(999);
    assert!(rig.is_idle());
    rig.wait(1);
    assert!(
        !rig.is_idle(),
        "a sink that is away holds nothing back for ever"
    );
}

#[test]
fn failed_publish_stays_listed_and_is_tried_again_soon_c3() {
    let mut rig = Rig::run(config());
    rig.checkpoint_staging(2);

    let reason = "disk full".to_owned();
    rig.say(Event::PublishFailed {
        slot: slot(0),
        interval: id(2),
        reason,
    });
    rig.wait(500);

    assert_eq!(rig.notices(), [vec![(0, 2)], vec![(0, 2)]]);
    assert!(
        rig.reports
            .iter()
            .any(|report| matches!(report, Report::PublishFailed { .. }))
    );
    rig.checkpoint();
    assert_eq!(rig.listed(), [(0, 2)]);
}

#[test]
fn nobody_is_warned_of_one_failed_publish_that_is_made_good() {
    let mut rig = Rig::run(config());
    rig.checkpoint_staging(2);
    let fails = |rig: &mut Rig, n| {
        rig.say(Event::PublishFailed {
            slot: slot(0),
            interval: id(n),
            reason: "no answer".to_owned(),
        });
        rig.reports.last().is_some_and(Report::may_pass)
    };

    assert!(fails(&mut rig, 2));
    assert!(!fails(&mut rig, 2), "a second in a row");
    rig.say(Event::Published {
        slot: slot(0),
        interval: id(2),
    });
    rig.checkpoint_staging(3);

    assert!(fails(&mut rig, 3), "it was published meanwhile");
}

#[test]
fn interval_of_a_failed_checkpoint_is_carried_under_its_own_id_c3() {
    // Attack 7: 17 times out, the job goes on.
    let mut rig = Rig::run(config());
    rig.wait(1_000);
    let failed = rig.in_flight();
    rig.say(Event::Declined {
        task: task(0, 0),
        id: failed,
        reason: "busy".to_owned(),
    });

    let n = rig.checkpoint_with(|ack| {
        if ack.task == task(1, 0) {
            ack.staged = vec![
                (slot(0), interval(failed.get())),
                (slot(0), interval(ack.id.get())),
            ];
        }
    });

    assert_eq!(rig.listed(), [(0, failed.get()), (0, n.get())]);
    assert_eq!(rig.notices(), [vec![(0, failed.get())]], "oldest first");
    rig.published(0, failed.get());
    assert_eq!(rig.notices()[1..], [vec![(0, n.get())]]);
}

#[test]
fn confirmed_interval_is_not_listed_again_even_when_a_task_reports_it_c3() {
    // Attack 7, the other half: the barrier overtook the news that 2 is published.
    let mut rig = Rig::run(config());
    rig.checkpoint_staging(2);
    rig.wait(1_000);
    rig.published(0, 2);

    rig.ack_all_with(|ack| {
        if ack.task == task(1, 0) {
            ack.staged = vec![(slot(0), interval(2)), (slot(0), interval(3))];
        }
    });

    assert_eq!(rig.listed(), [(0, 3)]);
}

#[test]
fn interval_confirmed_while_the_manifest_is_written_is_not_published_again() {
    let mut rig = Rig::run(config());
    rig.checkpoint_staging(2);
    rig.wait(1_000);
    rig.fate = fates(is_swap, [Fate::Hold]);
    rig.ack_all();

    rig.published(0, 2);
    rig.release(0);
    rig.wait(3_000);

    assert_eq!(rig.listed(), [(0, 2)], "the manifest was built before");
    assert_eq!(rig.notices().len(), 1);
    assert_eq!(rig.co.status().unpublished_n, 0);
}

#[test]
fn interval_without_rows_is_not_listed_and_counts_as_confirmed_c3() {
    let mut rig = Rig::run(config());

    rig.checkpoint_with(|ack| {
        let mut empty = interval(ack.id.get());
        empty.objects.clear();
        ack.staged.push((slot(ack.task.subtask.0), empty));
    });

    assert!(rig.listed().is_empty());
    assert!(rig.notices().is_empty());
}

#[test]
fn new_coordinator_publishes_what_the_manifest_lists_before_rows_flow_c3_x4() {
    // Attack 8: the coordinator dies between commit and notice.
    let mut rig = Rig::run(config());
    rig.wait(1_000);
    rig.fate = fates(is_swap, [Fate::Hold]);
    rig.ack_all_with(|ack| {
        if ack.task == task(1, 0) {
            ack.staged.push((slot(0), interval(2)));
        }
    });
    let _answer_that_nobody_hears = rig.land(0);
    assert!(rig.notices().is_empty());

    let mut again = rig.successor();
    again.resume();

    assert_eq!(again.sent_names(), ["deploy", "publish", "start"]);
    assert_eq!(again.notices(), [vec![(0, 2)]]);
    again.checkpoint();
    assert_eq!(
        again.listed(),
        [(0, 2)],
        "carried, though no task of this attempt staged it"
    );
}

#[test]
fn next_attempt_is_told_again_what_waits_c3() {
    let mut rig = Rig::run(config());
    rig.checkpoint_staging(2);
    rig.say(Event::Failed {
        task: None,
        cause: "boom".to_owned(),
        retry: true,
    });

    rig.wait(100);
    assert_eq!(rig.notices().len(), 1, "nobody is there to publish");
    rig.say(Event::Prepared {
        splits: Default::default(),
    });

    assert_eq!(rig.notices().len(), 2);
}

#[test]
fn next_attempt_inherits_only_what_is_not_known_as_published_c3() {
    let mut rig = Rig::run(config());
    rig.checkpoint_staging(2);
    rig.checkpoint_staging(3);
    rig.published(0, 2);
    rig.say(Event::Failed {
        task: None,
        cause: "boom".to_owned(),
        retry: true,
    });
    rig.wait(100);

    let restored = rig.deployment().restore.expect("a checkpoint completed");
    let listed = restored.staged.iter().flat_map(|slot| &slot.intervals);
    let ids: Vec<u64> = listed.map(|interval| interval.id.get()).collect();
    assert_eq!(ids, [3], "2 is confirmed since manifest 3 listed it");
}

#[test]
fn interval_is_published_only_after_all_slots_confirmed_the_one_before_x5() {
    // Attack 11: slot 1 hangs on its interval 2 while slot 0 has 3 ready.
    let mut rig = Rig::run(config());
    let both = |ack: &mut streamforge_core::messages::TaskSnapshot| {
        if ack.task.stage.0 == 1 {
            ack.staged
                .push((slot(ack.task.subtask.0), interval(ack.id.get())));
        }
    };
    let first = rig.checkpoint_with(both).get();
    let second = rig.checkpoint_with(both).get();
    assert_eq!(rig.notices(), [vec![(0, first), (1, first)]]);

    rig.published(0, first);
    assert_eq!(rig.notices().len(), 1, "slot 1 has not confirmed");
    rig.published(1, first);

    assert_eq!(rig.notices()[1..], [vec![(0, second), (1, second)]]);
}

#[test]
fn sinks_do_not_wait_for_each_other() {
    let mut rig = Rig::run(config());
    let other = streamforge_core::ids::SlotId {
        sink: uid("other"),
        slot: 0,
    };
    let first = rig.checkpoint_with(|ack| {
        if ack.task == task(1, 0) {
            ack.staged.push((slot(0), interval(ack.id.get())));
            ack.staged.push((other.clone(), interval(ack.id.get())));
        }
    });
    let second = rig.checkpoint_with(|ack| {
        if ack.task == task(1, 0) {
            ack.staged.push((other.clone(), interval(ack.id.get())));
        }
    });

    rig.say(Event::Published {
        slot: other,
        interval: first,
    });

    assert_eq!(
        rig.notices().last().unwrap(),
        &[(0, second.get())],
        "of the other sink"
    );
}

#[test]
fn output_of_many_checkpoints_survives_a_broker_that_is_away_c3_c6() {
    // Attack 6: 17..22 commit, nothing is published, retention drops the older manifests, crash.
    let mut rig = Rig::run(config());
    for _checkpoint in 0..6 {
        rig.checkpoint_with(|ack| {
            if ack.task == task(1, 0) {
                ack.staged.push((slot(0), interval(ack.id.get())));
            }
        });
    }
    assert_eq!(rig.head().retained.len(), 3);

    let mut again = rig.successor();
    again.resume();
    let ids: Vec<u64> = again.listed().into_iter().map(|(_, of)| of).collect();
    for of in &ids {
        again.published(0, *of);
    }

    assert_eq!(ids.len(), 6);
    let told: Vec<u64> = again
        .notices()
        .into_iter()
        .flatten()
        .map(|(_, of)| of)
        .collect();
    assert_eq!(told, ids, "all six, oldest first, one at a time");
}

#[test]
fn notice_names_the_committed_manifest() {
    let mut rig = Rig::run(config());
    let n = rig.checkpoint_staging(2);

    let manifest = rig.sent.iter().find_map(|(_, command)| match command {
        Command::Publish { manifest, .. } => Some(*manifest),
        _ => None,
    });
    assert_eq!(manifest, Some(n));
}
