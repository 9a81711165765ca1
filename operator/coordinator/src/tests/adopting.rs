//! A coordinator that dies, and its successor that finds the attempt running (F1).

use std::collections::BTreeMap;

use streamforge_core::ids::{CheckpointId, TaskId};
use streamforge_core::messages::{
    Command, Event, Progress, Registration, RunningAttempt, Stamp, TaskManagerId,
};

use super::rig::*;
use crate::*;

fn two() -> Config {
    Config {
        members: MemberPolicy {
            silence_ms_max: 5_000,
            adopt_within_ms: Some(5_000),
            gather_ms: 1_000,
        },
        ..config()
    }
}

fn a() -> TaskManagerId {
    task_manager("a", 1)
}

fn b() -> TaskManagerId {
    task_manager("b", 1)
}

/// Subtask 0 on a, 1 on b, with manifest 0 and one checkpoint.
fn running() -> Rig {
    let mut rig = Rig::alone(two(), Objects::default());
    rig.register(&a(), 1);
    rig.register(&b(), 1);
    rig.wait(1);
    let splits = vec![split_at("a", at(0)), split_at("b", at(0))];
    let splits = BTreeMap::from([(uid("in"), splits)]);
    let stamp = rig.stamp();
    rig.say_as(&a(), stamp.clone(), Event::Prepared { splits });
    let splits = BTreeMap::new();
    rig.say_as(&b(), stamp, Event::Prepared { splits });
    checkpoint(&mut rig);
    rig
}

fn checkpoint(rig: &mut Rig) -> CheckpointId {
    rig.wait(1_000);
    let (n, stamp) = (rig.in_flight(), rig.stamp());
    for of in graph().tasks(2) {
        ack(rig, &stamp, of, n);
    }
    assert_eq!(rig.newest().id, n, "committed");
    n
}

fn ack(rig: &mut Rig, stamp: &Stamp, of: TaskId, n: CheckpointId) {
    let snapshot = Box::new(rig.snapshot(of, n));
    let from = if of.subtask.0 == 0 { a() } else { b() };
    rig.say_as(&from, stamp.clone(), Event::Ack(snapshot));
}

/// What a task manager says that still runs what this coordinator gave it.
fn runs(rig: &Rig) -> Registration {
    Registration {
        runs: Some(Box::new(RunningAttempt {
            stamp: rig.stamp(),
            deployment: rig.deployment(),
            started: true,
            ended: Vec::new(),
            failed: None,
            prepared: None,
        })),
        ..offers(1)
    }
}

fn register(rig: &mut Rig, id: &TaskManagerId, registration: Registration) {
    rig.feed(Input::Registered {
        task_manager: id.clone(),
        registration: Box::new(registration),
    });
}

fn successor(rig: &Rig) -> Rig {
    let nonce_seed = rig.co.config.nonce_seed + 1;
    let config = Config {
        nonce_seed,
        ..two()
    };
    Rig {
        now_ms: rig.now_ms,
        ..Rig::alone(config, std::rc::Rc::clone(&rig.objects))
    }
}

#[test]
fn running_attempt_is_adopted_and_no_task_restarts_f1() {
    let mut old = running();
    let (epoch, generation) = (old.stamp().epoch, old.stamp().generation);
    let mut new = successor(&old);
    new.wait(1);
    assert_eq!(
        new.head().generation,
        generation.next(),
        "fenced before anything is sent"
    );
    assert_eq!(new.head().epoch, epoch, "and the epoch goes on");
    register(&mut new, &a(), runs(&old));
    assert!(new.sent.is_empty(), "b is missing");

    register(&mut new, &b(), runs(&old));

    assert_eq!(new.sent_names()[..2], ["adopt", "adopt"]);
    assert!(!new.sent_names().contains(&"deploy"));
    assert_eq!(new.stamp().epoch, epoch);
    assert_eq!(new.co.status().phase, Phase::Running);
    assert_eq!(new.co.status().restarts_n, 0);
    // Checkpoints go on, with one at once.
    let n = checkpoint(&mut new);
    let manifest = new.newest();
    assert_eq!(
        (manifest.epoch, manifest.generation),
        (epoch, generation.next())
    );
    assert!(n > old.newest().id || n == manifest.id);
    // C5: the old one gets nothing done any more.
    old.wait(1_000);
    let (late, stamp) = (old.in_flight(), old.stamp());
    for of in graph().tasks(2) {
        ack(&mut old, &stamp, of, late);
    }
    assert!(matches!(old.failure(), Error::Fenced { .. }));
    assert_eq!(new.newest().id, n);
    assert!(
        !old.sent_names().contains(&"cancel"),
        "the tasks are another's now"
    );
}

/// An older program hashed the plan in its own words: a field that it did not know has a default here.
#[test]
fn attempt_of_the_same_plan_in_an_older_programs_words_is_adopted_f1() {
    let old = running();
    let mut head = old.head();
    head.plan_hash ^= 1;
    let written = streamforge_core::manifest::encode(streamforge_core::frame::HEAD, &head);
    let key = streamforge_core::manifest::HEAD_KEY;
    old.objects.borrow_mut().get_mut(key).unwrap().0 = written;
    let mut new = successor(&old);
    new.wait(1);

    register(&mut new, &a(), runs(&old));
    register(&mut new, &b(), runs(&old));

    assert_eq!(new.sent_names()[..2], ["adopt", "adopt"]);
    assert_eq!(new.stamp().epoch, old.stamp().epoch);
}

#[test]
fn checkpoints_of_the_dead_coordinator_are_void_for_the_adopted_tasks_a2() {
    // Attack 26: it died after one source, not the other, had heard of the checkpoint.
    let mut old = running();
    old.wait(1_000);
    let begun = old.in_flight();
    let mut new = successor(&old);
    new.wait(1);
    register(&mut new, &a(), runs(&old));
    register(&mut new, &b(), runs(&old));

    let voided: Vec<CheckpointId> = new
        .sent
        .iter()
        .filter_map(|(_, command)| match command {
            Command::Adopt { void_to } => Some(*void_to),
            _ => None,
        })
        .collect();
    assert_eq!(voided.len(), 2);
    assert!(voided.iter().all(|to| *to >= begun));
    assert!(
        new.in_flight() > voided[0],
        "and a new one has a higher id (C4)"
    );
}

#[test]
fn counters_of_the_adopted_attempt_count_from_what_it_was_deployed_from() {
    let old = running();
    // From a restore: the tasks count from there, not from the newest manifest.
    let mut second = successor(&old);
    second.wait(1);
    second.register(&task_manager("a", 2), 1);
    second.register(&task_manager("b", 2), 1);
    assert_eq!(
        second.sent_names(),
        ["deploy", "deploy"],
        "nobody runs the old epoch"
    );
    let base = second.deployment().restore.unwrap().ledger[&uid("in")].rows_in;
    let stamp = second.stamp();
    for id in [task_manager("a", 2), task_manager("b", 2)] {
        let splits = BTreeMap::new();
        second.say_as(&id, stamp.clone(), Event::Prepared { splits });
    }
    let mut third = successor(&second);
    third.co.config.nonce_seed = 77;
    third.wait(1);
    for id in [task_manager("a", 2), task_manager("b", 2)] {
        register(&mut third, &id, runs(&second));
    }
    let (n, stamp) = (third.in_flight(), third.stamp());
    for of in graph().tasks(2) {
        let snapshot = Box::new(third.snapshot(of, n));
        let from = if of.subtask.0 == 0 { "a" } else { "b" };
        third.say_as(&task_manager(from, 2), stamp.clone(), Event::Ack(snapshot));
    }

    assert_eq!(third.newest().id, n);
    // Four tasks report ten rows each since the restore.
    assert_eq!(third.newest().ledger[&uid("in")].rows_in, base + 40);
}

#[test]
fn notices_of_the_dead_coordinator_are_repeated_by_the_adopter_c3() {
    // Attack 8: it died between commit and notice.
    let mut old = running();
    old.wait(1_000);
    let (n, stamp) = (old.in_flight(), old.stamp());
    for of in graph().tasks(2) {
        let mut snapshot = old.snapshot(of, n);
        if of == task(1, 1) {
            snapshot.staged.push((slot(1), interval(n.get())));
        }
        let from = if of.subtask.0 == 0 { a() } else { b() };
        old.say_as(&from, stamp.clone(), Event::Ack(Box::new(snapshot)));
    }
    let mut new = successor(&old);
    new.wait(1);
    register(&mut new, &a(), runs(&old));
    register(&mut new, &b(), runs(&old));

    assert_eq!(new.notices(), [vec![(1, n.get())]]);
    let to = new.sent.iter().zip(&new.sent_to);
    let mut to = to.filter(|((_, command), _)| matches!(command, Command::Publish { .. }));
    assert_eq!(
        to.next().map(|(_, to)| to.clone()),
        Some(b()),
        "by who owns the slot"
    );
}

#[test]
fn tasks_that_ended_before_are_ended_for_the_adopter_too_c11() {
    let old = running();
    let mut new = successor(&old);
    new.wait(1);
    for id in [a(), b()] {
        let mut registration = runs(&old);
        let subtask = u32::from(id == b());
        if let Some(runs) = &mut registration.runs {
            runs.ended = vec![task(0, subtask), task(1, subtask)];
        }
        register(&mut new, &id, registration);
    }

    let finals = new.sent.iter().filter(|(_, command)| {
        let kind = streamforge_core::manifest::CheckpointKind::Final;
        matches!(command, Command::Checkpoint { kind: it, .. } if *it == kind)
    });
    assert_eq!(finals.count(), 2, "the final checkpoint is next");
}

/// A task manager remembers for its successors which of its tasks ended, those of subtasks that a hand-over
/// made leave, too: nobody waits for them any more.
#[test]
fn job_comes_to_its_end_although_tasks_that_left_had_ended_before_c11_f1() {
    let old = running();
    let mut new = successor(&old);
    new.wait(1);
    for id in [a(), b()] {
        let mut registration = runs(&old);
        let subtask = u32::from(id == b());
        if let Some(runs) = &mut registration.runs {
            runs.ended = vec![task(0, subtask), task(1, subtask), task(0, 7)];
        }
        register(&mut new, &id, registration);
    }

    let kinds = new.sent.iter().filter_map(|(_, command)| match command {
        Command::Checkpoint { kind, .. } => Some(*kind),
        _ => None,
    });
    let last = streamforge_core::manifest::CheckpointKind::Final;
    assert_eq!(kinds.collect::<Vec<_>>(), [last; 2]);
}

/// The adoption is given up, and the epoch ends.
fn not_adopted(new: &mut Rig, epoch: u64) {
    assert!(
        !new.sent_names().contains(&"adopt"),
        "{:?}",
        new.sent_names()
    );
    assert!(new.head().epoch.get() > epoch);
}

/// They are told once, by whoever hears of them first.
#[test]
fn kf_k2_records_passed_over_are_told_once_and_not_again_by_an_adopter() {
    let skipped = |rig: &mut Rig, from: &TaskManagerId, n: u64| {
        let skipped_n = BTreeMap::from([(uid("in"), n)]);
        let progress = Progress {
            skipped_n,
            ..Progress::default()
        };
        let stamp = rig.stamp();
        rig.say_as(from, stamp, Event::Progress(Box::new(progress)));
    };
    let told = |rig: &Rig| -> Vec<u64> {
        let reports = rig.reports.iter().filter_map(|report| match report {
            Report::RecordsSkipped { n, .. } => Some(*n),
            _ => None,
        });
        reports.collect()
    };
    let mut old = running();
    skipped(&mut old, &a(), 23);
    skipped(&mut old, &b(), 4);
    skipped(&mut old, &a(), 23);
    skipped(&mut old, &a(), 30);
    assert_eq!(told(&old), [23, 4, 7]);

    let mut new = successor(&old);
    new.wait(1);
    register(&mut new, &a(), runs(&old));
    register(&mut new, &b(), runs(&old));
    skipped(&mut new, &a(), 30);
    skipped(&mut new, &a(), 31);
    assert_eq!(told(&new), [1]);
}

#[test]
fn attempt_is_over_when_one_of_its_task_managers_does_not_come_back_in_time() {
    let old = running();
    let epoch = old.stamp().epoch.get();
    let mut new = successor(&old);
    new.wait(1);
    register(&mut new, &a(), runs(&old));
    for _tick in 0..49 {
        new.wait(100);
        new.feed(Input::Heard(a()));
    }
    assert!(new.sent.is_empty());
    new.wait(200);
    new.feed(Input::Heard(a()));

    not_adopted(&mut new, epoch);
    assert_eq!(new.sent_names().last(), Some(&"deploy"), "a goes on alone");
    assert_eq!(new.deployment().parallelism, 1);
    assert_eq!(new.deployment().restore.unwrap().id, old.newest().id);
}

#[test]
fn attempt_is_over_when_one_of_its_task_managers_was_started_anew() {
    let old = running();
    let epoch = old.stamp().epoch.get();
    let mut new = successor(&old);
    new.wait(1);
    register(&mut new, &a(), runs(&old));
    new.register(&task_manager("b", 2), 1);

    not_adopted(&mut new, epoch);
    assert_eq!(new.sent_names(), ["deploy", "deploy"]);
}

#[test]
fn attempt_that_failed_has_not_begun_to_read_or_is_another_is_not_adopted() {
    type Change = fn(&mut RunningAttempt);
    let changes: [Change; 4] = [
        |runs| runs.failed = Some("boom".to_owned()),
        |runs| runs.started = false,
        |runs| runs.deployment.graph.stages.clear(),
        |runs| runs.deployment.assignment = runs.deployment.assignment.rescaled(2),
    ];
    for change in changes {
        let old = running();
        let epoch = old.stamp().epoch.get();
        let mut new = successor(&old);
        new.wait(1);
        let mut registration = runs(&old);
        change(registration.runs.as_mut().expect("it runs"));
        register(&mut new, &a(), registration);
        register(&mut new, &b(), runs(&old));

        not_adopted(&mut new, epoch);
    }
}

/// Requests that read all that the newest checkpoint names.
fn checks(rig: &mut Rig, fate: Fate) -> std::rc::Rc<std::cell::Cell<usize>> {
    let asked = std::rc::Rc::new(std::cell::Cell::new(0));
    let count = std::rc::Rc::clone(&asked);
    rig.fate = Box::new(move |request| {
        if matches!(request, StoreRequest::Check { .. }) {
            count.set(count.get() + 1);
            return fate;
        }
        Fate::Answer
    });
    asked
}

#[test]
fn adoption_reads_none_of_the_state_that_goes_on_without_it_f1() {
    let old = running();
    let mut new = successor(&old);
    let asked = checks(&mut new, Fate::Hold);
    new.wait(1);
    register(&mut new, &a(), runs(&old));
    register(&mut new, &b(), runs(&old));

    assert_eq!(new.sent_names()[..2], ["adopt", "adopt"]);
    assert_eq!(asked.get(), 0);
    checkpoint_in_flight(&mut new);
}

#[test]
fn attempt_that_is_not_adopted_has_its_state_checked_before_the_next_epoch_c7() {
    for is_damaged in [false, true] {
        let mut old = running();
        let before = old.newest().id;
        checkpoint(&mut old);
        let epoch = old.stamp().epoch;
        let mut new = successor(&old);
        let asked = checks(&mut new, Fate::Hold);
        new.wait(1);
        new.register(&task_manager("a", 2), 1);
        new.register(&task_manager("b", 2), 1);
        assert_eq!(asked.get(), 1);
        assert_eq!(new.head().epoch, epoch, "nothing begins before it is known");
        assert!(new.sent.is_empty());

        let parts = &old.newest().operators[&uid("agg")].parts;
        let part = parts[0].key.clone();
        if is_damaged {
            old.objects.borrow_mut().remove(&part);
        }
        new.fate = Box::new(|_| Fate::Answer);
        new.release(0);

        if !is_damaged {
            assert_eq!(new.sent_names(), ["deploy", "deploy"]);
            continue;
        }
        assert!(new.sent.is_empty());
        match new.failure() {
            Error::Damaged {
                id,
                damages,
                intact,
                ..
            } => {
                assert_eq!((*id, *intact), (old.newest().id, Some(before)));
                assert_eq!(*damages, [format!("object {part} is missing")]);
            }
            other => panic!("{other:?}"),
        }
    }
}

/// The successor's retention removes what is being read here: that is no damage.
#[test]
fn coordinator_superseded_while_it_checks_the_state_is_fenced_c5() {
    let mut old = running();
    checkpoint(&mut old);
    let mut new = successor(&old);
    let _asked = checks(&mut new, Fate::Hold);
    new.wait(1);
    new.register(&task_manager("a", 2), 1);
    new.register(&task_manager("b", 2), 1);
    let generation = new.head().generation;
    let mut newest = successor(&new);
    newest.wait(1);
    assert!(newest.head().generation > generation);

    let part = old.newest().operators[&uid("agg")].parts[0].key.clone();
    old.objects.borrow_mut().remove(&part);
    new.fate = Box::new(|_| Fate::Answer);
    new.release(0);

    assert!(matches!(new.failure(), Error::Fenced { .. }));
}

#[test]
fn attempt_of_an_older_epoch_is_only_free_slots() {
    let mut old = running();
    let stale = runs(&old);
    old.lose(&b());
    old.register(&task_manager("b", 5), 1);
    let epoch = old.head().epoch.get();
    let mut new = successor(&old);
    new.wait(1);

    register(&mut new, &a(), stale.clone());
    register(&mut new, &b(), stale);

    not_adopted(&mut new, epoch);
    assert_eq!(new.sent_names(), ["deploy", "deploy"]);
}

#[test]
fn stop_during_an_adoption_takes_its_checkpoint_first() {
    let old = running();
    let mut new = successor(&old);
    new.wait(1);
    new.feed(Input::Stop);
    assert_eq!(new.outcome, None, "rows are flowing");
    register(&mut new, &a(), runs(&old));
    register(&mut new, &b(), runs(&old));

    let stop = streamforge_core::manifest::CheckpointKind::Stop;
    let asked = new
        .sent
        .iter()
        .any(|(_, command)| matches!(command, Command::Checkpoint { kind, .. } if *kind == stop));
    assert!(asked, "{:?}", new.sent_names());
}

#[test]
fn adopter_of_an_adopter_goes_on_too_f1() {
    let old = running();
    let mut second = successor(&old);
    second.wait(1);
    register(&mut second, &a(), runs(&old));
    register(&mut second, &b(), runs(&old));
    checkpoint_in_flight(&mut second);
    let mut third = successor(&second);
    third.wait(1);
    let mut registration = runs(&old);
    if let Some(runs) = &mut registration.runs {
        runs.stamp = second.stamp();
    }
    register(&mut third, &a(), registration.clone());
    register(&mut third, &b(), registration);

    assert_eq!(third.sent_names()[..2], ["adopt", "adopt"]);
    assert_eq!(third.stamp().epoch, old.stamp().epoch);
    assert_eq!(
        third.stamp().generation,
        old.stamp().generation.next().next()
    );
}

fn checkpoint_in_flight(rig: &mut Rig) {
    let (n, stamp) = (rig.in_flight(), rig.stamp());
    for of in graph().tasks(2) {
        ack(rig, &stamp, of, n);
    }
    assert_eq!(rig.newest().id, n);
}

#[test]
fn task_manager_of_a_newer_coordinator_tells_an_older_one_that_it_is_fenced_c5() {
    let mut old = running();
    let mut registration = runs(&old);
    if let Some(runs) = &mut registration.runs {
        runs.stamp.generation = runs.stamp.generation.next();
    }

    register(&mut old, &task_manager("c", 1), registration);

    assert!(matches!(old.failure(), Error::Fenced { .. }));
    assert_ne!(old.sent_names().last(), Some(&"cancel"));
}
