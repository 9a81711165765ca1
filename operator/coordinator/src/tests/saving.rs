//! Savepoints: what makes one whole, and what never passes for one.

use streamforge_core::frame;
use streamforge_core::ids::CheckpointId;
use streamforge_core::manifest::{self, CheckpointKind, Manifest};
use streamforge_core::messages::{Command, Event};
use streamforge_core::savepoint;

use super::rig::*;
use crate::*;

pub(super) fn ask(rig: &mut Rig, name: &str) {
    ask_for(rig, name, false);
}

pub(super) fn stop_with(rig: &mut Rig, name: &str) {
    ask_for(rig, name, true);
}

fn ask_for(rig: &mut Rig, name: &str, stops: bool) {
    assert_eq!(rig.co.check_savepoint(name, stops), Ok(()));
    let name = name.to_owned();
    rig.feed(Input::Savepoint { name, stops });
}

/// What lies under its name.
pub(super) fn stored(rig: &Rig, name: &str) -> Option<Manifest> {
    let objects = rig.objects.borrow();
    let found = objects.get(&format!("{}savepoint", savepoint::folder(name)));
    found.map(|(bytes, _)| manifest::decode(frame::MANIFEST, bytes).expect("it is whole"))
}

fn folder(rig: &Rig, name: &str) -> Vec<String> {
    let objects = rig.objects.borrow();
    let keys = objects.keys();
    let inside = keys.filter_map(|key| key.strip_prefix(&savepoint::folder(name)));
    inside.map(str::to_owned).collect()
}

/// C9: everything that its manifest names is in its folder.
pub(super) fn check_whole(rig: &Rig, name: &str) -> Manifest {
    let manifest = stored(rig, name).expect("it has a manifest");
    let inside = folder(rig, name);
    for object in expected_objects(&manifest) {
        assert!(inside.contains(&object.key), "{} is missing", object.key);
    }
    assert!(
        inside.contains(&manifest.plan),
        "{} is missing",
        manifest.plan
    );
    assert!(manifest.staged.is_empty(), "{:?}", manifest.staged);
    manifest
}

fn kinds(rig: &Rig) -> Vec<CheckpointKind> {
    let kind = |(_, command): &(_, Command)| match command {
        Command::Checkpoint { kind, .. } => Some(*kind),
        _ => None,
    };
    rig.sent.iter().filter_map(kind).collect()
}

/// The savepoint's checkpoint, which is in flight, is committed.
fn commit(rig: &mut Rig) -> CheckpointId {
    let n = rig.in_flight();
    rig.ack_all();
    assert_eq!(rig.newest().id, n);
    n
}

fn is_copy(request: &StoreRequest) -> bool {
    matches!(request, StoreRequest::Copy { .. })
}

/// The put that makes a savepoint one.
fn is_naming(request: &StoreRequest) -> bool {
    matches!(request, StoreRequest::Put { key, .. } if savepoint::name_of(key).is_some())
}

fn completed(rig: &Rig, name: &str) -> (CheckpointId, bool) {
    match rig.co.savepoint(name) {
        Some(SavepointState::Completed { id, before, .. }) => (id, before),
        other => panic!("{name} is not completed: {other:?}"),
    }
}

fn failure(rig: &Rig, name: &str) -> String {
    match rig.co.savepoint(name) {
        Some(SavepointState::Failed { reason }) => reason,
        other => panic!("{name} has not failed: {other:?}"),
    }
}

#[test]
fn savepoint_is_a_full_copy_once_all_output_up_to_it_is_published_c9() {
    let mut rig = Rig::run(config());
    rig.checkpoint_staging(1);
    ask(&mut rig, "nightly");
    assert_eq!(
        kinds(&rig),
        [CheckpointKind::Ordinary, CheckpointKind::Savepoint],
        "it waits for no interval"
    );

    let n = commit(&mut rig);
    assert_eq!(
        rig.co.savepoint("nightly"),
        Some(SavepointState::InProgress)
    );
    assert_eq!(
        folder(&rig, "nightly"),
        [""; 0],
        "its output is not visible"
    );
    rig.published(0, 1);

    assert_eq!(completed(&rig, "nightly"), (n, false));
    let manifest = check_whole(&rig, "nightly");
    assert_eq!((manifest.id, manifest.kind), (n, CheckpointKind::Savepoint));
    assert_eq!(manifest.operators, rig.newest().operators);
    assert_eq!(rig.co.status().phase, Phase::Running);
}

#[test]
fn output_after_a_savepoint_does_not_hold_it_up_c9() {
    let mut rig = Rig::run(config());
    rig.checkpoint_staging(1);
    ask(&mut rig, "a");
    commit(&mut rig);
    let later = rig.checkpoint_staging(9);
    assert!(later > id(1));

    rig.published(0, 1);

    check_whole(&rig, "a");
    assert_eq!(rig.listed(), [(0, 1), (0, 9)], "as the newest manifest was");
}

#[test]
fn savepoint_whose_output_is_not_published_in_time_fails_and_leaves_nothing_c9() {
    let mut rig = Rig::run(config());
    rig.checkpoint_staging(1);
    ask(&mut rig, "a");
    commit(&mut rig);

    rig.wait(10_000);

    let reason = failure(&rig, "a");
    assert!(reason.contains("was not published in 10000 ms"), "{reason}");
    rig.published(0, 1);
    assert_eq!(folder(&rig, "a"), [""; 0]);
}

#[test]
fn savepoints_that_are_asked_for_together_are_of_one_checkpoint() {
    let mut rig = Rig::run(config());
    rig.wait(1_000);
    let before = rig.in_flight();

    ask(&mut rig, "a");
    ask(&mut rig, "b");
    ask(&mut rig, "a");
    rig.ack_all();

    assert!(rig.in_flight() > before, "one that began earlier is not it");
    let n = commit(&mut rig);
    assert_eq!((completed(&rig, "a").0, completed(&rig, "b").0), (n, n));
    check_whole(&rig, "a");
    check_whole(&rig, "b");
    assert_eq!(
        kinds(&rig),
        [CheckpointKind::Ordinary, CheckpointKind::Savepoint]
    );
}

#[test]
fn asking_again_by_name_is_answered_with_the_one_that_is_there() {
    let mut rig = Rig::run(config());
    ask(&mut rig, "a");
    let n = commit(&mut rig);
    let taken_n = kinds(&rig).len();

    ask(&mut rig, "a");
    assert_eq!(completed(&rig, "a"), (n, true));
    assert_eq!(kinds(&rig).len(), taken_n);

    let mut next = rig.successor();
    next.resume();
    ask(&mut next, "a");
    assert_eq!(completed(&next, "a"), (n, true));
    assert!(kinds(&next).is_empty());
}

#[test]
fn checkpoint_that_fails_is_taken_again_for_the_savepoint() {
    let mut rig = Rig::run(config());
    ask(&mut rig, "a");
    let n = rig.in_flight();
    rig.say(Event::Declined {
        task: task(0, 0),
        id: n,
        reason: "busy".to_owned(),
    });
    assert_eq!(rig.co.savepoint("a"), Some(SavepointState::Pending));

    rig.wait(200);

    assert_eq!(commit(&mut rig), n.next());
    check_whole(&rig, "a");
}

#[test]
fn attempt_that_fails_in_between_is_followed_by_one_that_saves() {
    let mut rig = Rig::run(config());
    ask(&mut rig, "a");
    rig.say(Event::Failed {
        task: Some(task(1, 0)),
        cause: "disk".to_owned(),
        retry: true,
    });
    rig.wait(100);
    rig.say(Event::Prepared {
        splits: Default::default(),
    });
    rig.wait(1);

    let n = commit(&mut rig);

    assert_eq!(completed(&rig, "a").0, n);
    check_whole(&rig, "a");
}

#[test]
fn savepoint_without_a_checkpoint_is_given_up_and_says_why() {
    let mut rig = Rig::run(config());
    ask(&mut rig, "a");

    for _ in 0..4 {
        rig.wait(10_000);
    }

    let reason = failure(&rig, "a");
    assert!(
        reason.contains("no checkpoint was completed in 30000 ms")
            && reason.contains("no acknowledgement from task"),
        "{reason}"
    );
    rig.wait(1_000);
    assert_eq!(kinds(&rig).last(), Some(&CheckpointKind::Ordinary));
}

#[test]
fn what_is_copied_stays_however_many_checkpoints_follow_c6() {
    let mut rig = Rig::run(config());
    rig.fate = fates(is_copy, [Fate::Hold]);
    ask(&mut rig, "a");
    let n = commit(&mut rig);
    let part = rig.newest().operators[&uid("agg")].parts[0].key.clone();
    for _ in 0..5 {
        rig.checkpoint();
    }
    assert!(rig.head().retained[0].id > n);
    assert!(rig.objects.borrow().contains_key(&part));

    rig.release(0);

    assert_eq!(check_whole(&rig, "a").id, n);
    rig.checkpoint();
    assert!(!rig.objects.borrow().contains_key(&part), "C6 lets it go");
    check_whole(&rig, "a");
}

#[test]
fn store_that_refuses_the_copy_fails_the_savepoint_and_nothing_else() {
    let mut rig = Rig::run(config());
    rig.fate = Box::new(|request| match is_copy(request) {
        true => Fate::Refuse,
        false => Fate::Answer,
    });
    ask(&mut rig, "a");
    commit(&mut rig);

    for _ in 0..20 {
        rig.wait(5_000);
        if rig.co.status().checkpoint.in_flight.is_some() {
            rig.ack_all();
        }
    }

    let reason = failure(&rig, "a");
    assert!(reason.contains("disk full"), "{reason}");
    assert_eq!(stored(&rig, "a"), None);
    assert_eq!(rig.outcome, None);
    assert!(rig.co.status().checkpoint.completed_n > 5);
}

#[test]
fn object_that_is_gone_fails_the_savepoint_by_name() {
    let mut rig = Rig::run(config());
    rig.fate = fates(is_copy, [Fate::Hold]);
    ask(&mut rig, "a");
    commit(&mut rig);
    let part = rig.newest().operators[&uid("agg")].parts[0].key.clone();
    rig.objects.borrow_mut().remove(&part);

    rig.release(0);

    let reason = failure(&rig, "a");
    assert!(
        reason.contains(&format!("object {part} is missing")),
        "{reason}"
    );
    assert_eq!(stored(&rig, "a"), None);
}

#[test]
fn lost_answer_to_the_last_put_is_read_back() {
    let mut rig = Rig::run(config());
    rig.fate = fates(is_naming, [Fate::LoseAnswer]);
    ask(&mut rig, "a");
    let n = commit(&mut rig);

    rig.wait(100);

    assert_eq!(completed(&rig, "a"), (n, false));
    check_whole(&rig, "a");
}

#[test]
fn coordinator_that_dies_in_between_leaves_nothing_that_passes_for_a_savepoint() {
    let mut rig = Rig::run(config());
    rig.fate = fates(is_naming, [Fate::Hold]);
    ask(&mut rig, "a");
    let n = commit(&mut rig);
    assert!(!folder(&rig, "a").is_empty(), "all but its name is there");

    let mut next = rig.successor();
    next.resume();
    assert_eq!(next.co.savepoint("a"), None);
    ask(&mut next, "a");
    let later = commit(&mut next);

    assert!(later > n);
    assert_eq!(completed(&next, "a"), (later, false));
    assert_eq!(check_whole(&next, "a").id, later);
    // The dead one's put arrives all the same.
    assert_eq!(rig.land(0), StoreAnswer::ConditionFailed);
    assert_eq!(check_whole(&next, "a").id, later);
}

#[test]
fn of_two_coordinators_the_one_that_names_the_savepoint_first_has_made_it() {
    let mut rig = Rig::run(config());
    rig.fate = fates(is_naming, [Fate::Hold]);
    ask(&mut rig, "a");
    let n = commit(&mut rig);
    let mut next = rig.successor();
    next.resume();
    next.fate = fates(is_naming, [Fate::Hold]);
    ask(&mut next, "a");
    commit(&mut next);

    rig.land(0);
    next.release(0);

    assert_eq!(completed(&next, "a").0, n);
    assert_eq!(check_whole(&next, "a").id, n);
}

#[test]
fn stop_with_a_savepoint_is_one_checkpoint_and_ends_once_it_is_whole_kf_o12() {
    let mut rig = Rig::run(config());
    rig.fate = fates(is_copy, [Fate::Hold]);
    stop_with(&mut rig, "last");
    assert_eq!(
        kinds(&rig),
        [CheckpointKind::Stop],
        "nothing is done after it"
    );
    rig.say(Event::Declined {
        task: task(0, 0),
        id: rig.in_flight(),
        reason: "busy".to_owned(),
    });
    rig.wait(200);

    let n = commit(&mut rig);
    rig.wait(20_000);
    assert_eq!(rig.outcome, None, "it is being copied");
    rig.release(0);

    assert!(matches!(
        &rig.outcome,
        Some(Outcome::Stopped { checkpoint: Some(at), unpublished_n: 0, .. }) if *at == n
    ));
    let manifest = check_whole(&rig, "last");
    assert_eq!((manifest.id, manifest.kind), (n, CheckpointKind::Savepoint));
}

#[test]
fn task_manager_that_is_lost_while_the_last_savepoint_is_copied_is_not_missed() {
    let mut rig = Rig::run(config());
    rig.fate = fates(is_copy, [Fate::Hold]);
    stop_with(&mut rig, "last");
    let n = commit(&mut rig);
    rig.lose(&local());
    assert_eq!(rig.outcome, None);

    rig.release(0);

    assert_eq!(
        rig.outcome,
        Some(Outcome::Stopped {
            checkpoint: Some(n),
            unpublished_n: 0,
            note: None,
            savepoint_failed: None,
        })
    );
    check_whole(&rig, "last");
}

#[test]
fn long_copy_of_one_savepoint_does_not_hold_up_a_stop_with_another() {
    let mut rig = Rig::run(config());
    rig.fate = fates(is_copy, [Fate::Hold]);
    ask(&mut rig, "a");
    commit(&mut rig);
    assert_eq!(rig.held.len(), 1);

    stop_with(&mut rig, "last");
    assert_eq!(kinds(&rig).last(), Some(&CheckpointKind::Stop));
    commit(&mut rig);
    rig.release(0);

    check_whole(&rig, "a");
    check_whole(&rig, "last");
    assert!(matches!(rig.outcome, Some(Outcome::Stopped { .. })));
}

#[test]
fn stop_whose_output_is_not_published_ends_without_its_savepoint() {
    let mut rig = Rig::run(config());
    rig.checkpoint_staging(1);
    stop_with(&mut rig, "last");
    commit(&mut rig);

    rig.wait(10_000);

    assert!(matches!(
        &rig.outcome,
        Some(Outcome::Stopped {
            unpublished_n: 1,
            savepoint_failed: Some(reason),
            ..
        }) if reason.starts_with("savepoint last: the output of checkpoint ")
    ));
    assert_eq!(stored(&rig, "last"), None);
    let failed = |report: &Report| matches!(report, Report::SavepointFailed { .. });
    assert!(rig.reports.iter().any(failed));
}

#[test]
fn stop_in_which_a_task_fails_says_that_its_savepoint_was_not_made() {
    let mut rig = Rig::run(config());
    let before = rig.checkpoint();
    stop_with(&mut rig, "last");

    rig.say(Event::Failed {
        task: Some(task(1, 0)),
        cause: "disk full".to_owned(),
        retry: true,
    });

    let Some(Outcome::Stopped {
        checkpoint,
        note: Some(note),
        savepoint_failed: Some(failed),
        ..
    }) = &rig.outcome
    else {
        panic!("{:?}", rig.outcome)
    };
    assert_eq!(*checkpoint, Some(before));
    assert!(note.ends_with("task 1.0: disk full"), "{note}");
    assert_eq!(*failed, format!("savepoint last: {note}"));
}

#[test]
fn job_is_not_stopped_for_a_savepoint_that_is_not_of_that_place() {
    let mut rig = Rig::run(config());
    ask(&mut rig, "a");
    assert_eq!(
        rig.co.check_savepoint("a", true),
        Err("savepoint a is under way already".to_owned())
    );
    commit(&mut rig);

    stop_with(&mut rig, "a");

    let reason = failure(&rig, "a");
    assert!(
        reason.contains("there is one of this name already"),
        "{reason}"
    );
    rig.checkpoint();
    assert_eq!(rig.co.status().phase, Phase::Running);
}

#[test]
fn recovering_job_is_not_stopped_without_its_savepoint() {
    let mut rig = Rig::run(config());
    rig.say(Event::Failed {
        task: None,
        cause: "disk".to_owned(),
        retry: true,
    });

    stop_with(&mut rig, "last");

    assert!(failure(&rig, "last").contains("does not run now"));
    assert_eq!(rig.outcome, None);
}

#[test]
fn savepoint_of_a_job_at_its_end_fails_and_says_so() {
    let mut rig = Rig::run(config());
    rig.wait(1_000);
    ask(&mut rig, "a");
    for of in graph().tasks(2) {
        rig.say(Event::Ended { task: of });
    }
    rig.ack_all();
    assert_eq!(kinds(&rig).last(), Some(&CheckpointKind::Final));

    rig.wait(1);

    assert_eq!(failure(&rig, "a"), "the job has come to its end");
    assert_eq!(
        rig.co.check_savepoint("b", false),
        Err("the job ends".to_owned())
    );
}

#[test]
fn names_that_are_no_folder_are_refused() {
    let rig = Rig::run(config());

    for name in ["", "a/b", "..", "A"] {
        let refused = rig.co.check_savepoint(name, false).expect_err(name);
        assert!(refused.contains("cannot be called"), "{refused}");
    }
}

#[test]
fn savepoint_right_after_a_recovery_is_no_progress_attack_47() {
    let mut rig = Rig::run(config());
    for round in 0..3 {
        rig.say(Event::Failed {
            task: Some(task(1, 0)),
            cause: "poison".to_owned(),
            retry: true,
        });
        if rig.outcome.is_some() {
            assert_eq!(round, 2, "two failures are allowed for");
            return;
        }
        // The first checkpoint of the attempt is a savepoint.
        ask(&mut rig, &format!("s{round}"));
        rig.wait(1_000);
        rig.say(Event::Prepared {
            splits: Default::default(),
        });
        rig.wait(1);
        commit(&mut rig);
    }
    panic!("a crash loop goes on for ever: {:?}", rig.co.status());
}
