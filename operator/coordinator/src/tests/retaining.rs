//! Nothing is deleted that anything may still need.

use std::collections::BTreeSet;

use streamforge_core::messages::Event;

use super::rig::*;
use crate::*;

fn is_delete(request: &StoreRequest) -> bool {
    matches!(request, StoreRequest::Delete { .. })
}

fn exists(rig: &Rig, key: &str) -> bool {
    rig.objects.borrow().contains_key(key)
}

fn part_of(rig: &Rig) -> String {
    rig.newest().operators[&uid("agg")].parts[0].key.clone()
}

#[test]
fn manifest_leaves_the_head_before_its_objects_are_deleted_c6() {
    let mut rig = Rig::run(config());
    let first = rig.checkpoint();
    let part = part_of(&rig);
    rig.checkpoint();
    rig.checkpoint();
    assert!(rig.head().retained.iter().any(|kept| kept.id == first));
    assert!(exists(&rig, &part));
    rig.fate = fates(is_swap, [Fate::Hold]);
    rig.wait(1_000);
    rig.ack_all();
    assert!(exists(&rig, &part), "its manifest is still in the list");

    rig.release(0);

    assert!(!rig.head().retained.iter().any(|kept| kept.id == first));
    assert!(!exists(&rig, &part));
}

#[test]
fn object_that_a_retained_manifest_references_is_kept_however_old_c6() {
    let mut rig = Rig::run(config());
    rig.checkpoint();
    let old = rig.newest().operators[&uid("agg")].parts[0].clone();

    for _checkpoint in 0..6 {
        rig.checkpoint_with(|ack| {
            if ack.task == task(1, 0)
                && let Some((_, parts)) = ack.operators.get_mut(&uid("agg"))
            {
                parts.push(old.clone());
            }
        });
    }
    assert!(exists(&rig, &old.key));
    for _checkpoint in 0..3 {
        rig.checkpoint();
    }

    assert!(!exists(&rig, &old.key));
}

#[test]
fn objects_in_flight_and_of_failed_attempts_that_may_be_carried_are_kept_c6() {
    // Attack 9: retention runs while 18 uploads, and 18 reuses parts sealed for the failed 17.
    let mut rig = Rig::run(config());
    rig.checkpoint();
    rig.checkpoint();
    rig.checkpoint();
    rig.wait(1_000);
    let failed = rig.in_flight();
    let sealed = rig.snapshot(task(1, 0), failed).operators[&uid("agg")].1[0].clone();
    rig.say(Event::Declined {
        task: task(0, 0),
        id: failed,
        reason: "busy".to_owned(),
    });

    rig.checkpoint_with(|ack| {
        if ack.task == task(1, 0)
            && let Some((_, parts)) = ack.operators.get_mut(&uid("agg"))
        {
            parts.push(sealed.clone());
        }
    });

    assert!(exists(&rig, &sealed.key));
    assert!(!rig.deleted.contains(&sealed.key));
}

#[test]
fn leftovers_of_dead_attempts_go_once_they_are_below_the_oldest_c6() {
    let mut rig = Rig::run(config());
    rig.wait(1_000);
    let died = rig.in_flight();
    let orphan = rig.snapshot(task(1, 0), died).operators[&uid("agg")].1[0]
        .key
        .clone();
    let mut again = rig.successor();
    again.resume();
    again.checkpoint();
    assert!(
        exists(&again, &orphan),
        "an object at or above the oldest retained id is not touched"
    );

    for _checkpoint in 0..3 {
        again.checkpoint();
    }

    assert!(!exists(&again, &orphan));
}

#[test]
fn objects_of_strangers_are_never_deleted_c6() {
    let mut rig = Rig::run(config());
    let foreign = "parts/readme.txt".to_owned();
    rig.objects
        .borrow_mut()
        .insert(foreign.clone(), (vec![1], 0));

    for _checkpoint in 0..6 {
        rig.checkpoint();
    }

    assert!(exists(&rig, &foreign));
}

#[test]
fn nothing_is_deleted_while_a_retained_manifest_cannot_be_read_c6() {
    let mut rig = Rig::run(config());
    rig.checkpoint();
    rig.checkpoint();
    rig.checkpoint();
    let broken = rig.head().retained[1].key.clone();
    rig.objects
        .borrow_mut()
        .get_mut(&broken)
        .unwrap()
        .0
        .truncate(3);
    let mut again = rig.successor();
    again.resume();

    again.checkpoint();
    assert!(again.deleted.is_empty(), "{:?}", again.deleted);
    again.checkpoint();
    again.checkpoint();

    assert!(!again.head().retained.iter().any(|kept| kept.key == broken));
}

#[test]
fn failed_delete_never_holds_up_a_checkpoint_and_is_tried_again_c6_kf_c4() {
    let mut rig = Rig::run(config());
    rig.checkpoint();
    let part = part_of(&rig);
    rig.fate = Box::new(|request| {
        if is_delete(request) {
            Fate::Refuse
        } else {
            Fate::Answer
        }
    });
    for _checkpoint in 0..4 {
        rig.checkpoint();
    }
    assert!(exists(&rig, &part));

    rig.fate = Box::new(|_| Fate::Answer);
    rig.checkpoint();

    assert!(!exists(&rig, &part));
}

#[test]
fn everything_that_is_left_is_referenced_c6() {
    let mut rig = Rig::run(config());
    for _checkpoint in 0..10 {
        rig.checkpoint();
    }

    let retained: Vec<_> = rig
        .head()
        .retained
        .iter()
        .map(|kept| rig.manifest(&kept.key))
        .collect();
    let parts = retained
        .iter()
        .flat_map(|it| it.operators.values().flat_map(|state| &state.parts));
    let mut wanted: BTreeSet<String> = parts.map(|part| part.key.clone()).collect();
    wanted.extend(rig.head().retained.into_iter().map(|kept| kept.key));
    wanted.extend(["head".to_owned(), rig.head().plan]);
    let left: BTreeSet<String> = rig.objects.borrow().keys().cloned().collect();
    assert_eq!(left, wanted);
}

#[test]
fn late_deletes_of_a_stale_coordinator_do_no_harm_c6() {
    let mut rig = Rig::run(config());
    rig.checkpoint();
    rig.checkpoint();
    rig.checkpoint();
    rig.fate = fates(is_delete, [Fate::Hold]);
    rig.checkpoint();
    assert_eq!(rig.held.len(), 1);
    let mut again = rig.successor();
    again.resume();
    again.checkpoint();

    let _deleted = rig.land(0);

    let mut third = again.successor();
    third.wait(1);
    assert_eq!(third.sent_names(), ["deploy"], "{:?}", third.outcome);
}
