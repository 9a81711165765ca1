//! What subtasks that leave must not take along: splits that they found last, output that is not published.

use std::collections::{BTreeMap, BTreeSet};

use streamforge_core::frame;
use streamforge_core::ids::{CheckpointId, SubtaskIdx};
use streamforge_core::manifest::{self, HEAD_KEY, Head, SplitProgress};
use streamforge_core::messages::{Command, Event};

use super::super::rig::*;
use super::job::*;
use crate::*;

/// A topic got a partition, or a watched folder a file, between the checkpoint whose splits were dealt
/// and the barrier: nobody else would ever read it.
#[test]
fn split_found_by_a_subtask_that_leaves_ends_the_epoch_and_is_dealt_by_the_restore_k3() {
    let mut job = Job::running(with(2), &[a(), b()]);
    job.rig.feed(Input::Scale(1));
    let newest = job.checkpoint();
    job.all_prepared();
    assert_eq!(job.plan().leaving, BTreeSet::from([SubtaskIdx(1)]));
    let epoch = job.rig.head().epoch;
    job.readers.insert("found", 1);
    let n = job.rig.in_flight();
    job.ack_all(n);
    job.rig.wait(200);

    assert_eq!(job.count("receive"), 0);
    let head = job.rig.head();
    assert_eq!(head.epoch, epoch.next());
    assert_eq!(head.newest.map(|it| it.id), Some(newest));
    let failure = job
        .rig
        .co
        .status()
        .last_failure
        .map_or_else(String::new, |it| it.reason);
    assert!(failure.contains("split found of in"), "{failure}");
}

/// One that a subtask that stays has found is its own, and one that was read to its end is nobody's.
#[test]
fn split_found_by_a_subtask_that_stays_or_read_to_its_end_hands_over_k3_c11() {
    let mut job = Job::running(with(2), &[a(), b()]);
    job.rig.feed(Input::Scale(1));
    job.checkpoint();
    job.all_prepared();
    job.readers.insert("found", 0);
    let n = job.rig.in_flight();
    for of in [task(0, 0), task(1, 0), task(0, 1), task(1, 1)] {
        let mut snapshot = job.rig.snapshot(of, n);
        if of.stage.0 == 0 {
            let splits = match of.subtask.0 {
                0 => vec![split_at("a", at(1)), split_at("found", at(0))],
                _ => vec![split_at("b", at(1)), split_at("read", SplitProgress::End)],
            };
            snapshot.splits = BTreeMap::from([(uid("in"), splits)]);
        }
        let from = job.places[&of.subtask.0].clone();
        job.say(&from, Event::Ack(Box::new(snapshot)));
    }

    assert_eq!(job.rig.newest().id, n);
    assert_eq!(job.rig.newest().sources[&uid("in")].len(), 4);
}

/// What b staged before it left is published by nobody else in this epoch.
#[test]
fn task_manager_that_left_output_and_dies_as_a_joiner_ends_the_epoch_x4_x5() {
    // Before the head names the table, and while channels are opened.
    for is_proposed in [false, true] {
        let (mut job, n) = left_with_output();
        let epoch = job.rig.head().epoch;
        job.rig.feed(Input::Scale(2));
        if !is_proposed {
            job.rig.fate = Box::new(|request| {
                if proposes(request) {
                    Fate::Lose
                } else {
                    Fate::Answer
                }
            });
        }
        job.checkpoint();
        let step = job.rig.co.status().hand_over.unwrap_or_default();
        assert_eq!(step.contains("opening channels"), is_proposed, "{step}");
        assert_eq!(job.rig.listed(), [(1, n.get())]);

        job.rig.lose(&b());
        job.rig.wait(200);

        assert_eq!(job.rig.head().epoch, epoch.next());
        let slots = job.rig.deployment().slots;
        assert_eq!(slots.get(&1), Some(&a()), "somebody publishes it");
    }
}

/// A swap that puts a table into the head that is to hold.
fn proposes(request: &StoreRequest) -> bool {
    let StoreRequest::Put { key, bytes, .. } = request else {
        return false;
    };
    let head = (key == HEAD_KEY).then(|| manifest::decode::<Head>(frame::HEAD, bytes));
    head.is_some_and(|head| head.is_ok_and(|head| head.proposed.is_some()))
}

/// b left with an interval that is not published: how the job is then, and which interval.
pub(super) fn left_with_output() -> (Job, CheckpointId) {
    let mut job = Job::running(with(2), &[a(), b()]);
    job.rig.feed(Input::Scale(1));
    job.checkpoint();
    job.all_prepared();
    let n = job.rig.in_flight();
    for of in [task(0, 0), task(1, 0), task(0, 1), task(1, 1)] {
        let mut snapshot = job.rig.snapshot(of, n);
        if of == task(1, 1) {
            snapshot.staged.push((slot(1), interval(n.get())));
        }
        let from = job.places[&of.subtask.0].clone();
        job.say(&from, Event::Ack(Box::new(snapshot)));
    }
    job.places.remove(&1);
    job.readers = BTreeMap::from([("a", 0), ("b", 0)]);
    job.all_received(n);
    job.rig.wait(1);
    let next = job.rig.in_flight();
    job.ack_all(next);
    (job, n)
}

#[test]
fn output_of_a_subtask_that_left_is_published_by_who_staged_it_x4() {
    let mut job = Job::running(with(2), &[a(), b()]);
    job.rig.feed(Input::Scale(1));
    job.checkpoint();
    job.all_prepared();
    let n = job.rig.in_flight();
    let plan = job.plan();
    assert_eq!(plan.leaving, BTreeSet::from([SubtaskIdx(1)]));
    for of in [task(0, 0), task(1, 0), task(0, 1), task(1, 1)] {
        let mut snapshot = job.rig.snapshot(of, n);
        if of == task(1, 1) {
            snapshot.staged.push((slot(1), interval(n.get())));
        }
        let from = job.places[&of.subtask.0].clone();
        job.say(&from, Event::Ack(Box::new(snapshot)));
    }

    let publish = job.rig.sent.iter().zip(&job.rig.sent_to);
    let mut publish = publish.filter(|((_, it), _)| matches!(it, Command::Publish { .. }));
    assert_eq!(publish.next().map(|(_, to)| to), Some(&b()));
    // b is needed until that is done.
    let epoch = job.rig.head().epoch;
    job.rig.lose(&b());
    job.rig.wait(200);
    assert_eq!(job.rig.head().epoch, epoch.next());
}

/// Slots are facts of the manifest: one that no subtask writes is in it until all of it is visible.
#[test]
fn slot_of_a_subtask_that_left_retires_once_its_last_interval_is_confirmed_x4() {
    let (mut job, n) = left_with_output();
    assert_eq!(job.rig.listed(), [(1, n.get())]);

    let (slot, interval) = (slot(1), n);
    job.say(&b(), Event::Published { slot, interval });
    job.checkpoint();

    assert_eq!(job.rig.newest().staged, []);
}
