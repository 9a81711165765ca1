//! Jobs that begin with a savepoint, and going back to one.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use streamforge_core::ids::{CheckpointId, JobId};
use streamforge_core::job_graph::OperatorKind;
use streamforge_core::manifest::{CheckpointKind, Manifest};
use streamforge_core::messages::Event;
use streamforge_core::savepoint;

use super::rig::*;
use super::saving::{ask, check_whole};
use crate::*;

/// A job with a savepoint `s` between other checkpoints, and output that is staged after it.
fn saved() -> (Rig, Manifest) {
    let mut rig = Rig::run(config());
    rig.checkpoint_staging(1);
    rig.published(0, 1);
    ask(&mut rig, "s");
    rig.ack_all();
    rig.checkpoint_staging(7);
    let savepoint = check_whole(&rig, "s");
    (rig, savepoint)
}

/// Its folder, copied to another place; nothing else is left.
fn elsewhere(rig: &Rig) -> Objects {
    let folder = savepoint::folder("s");
    let objects = rig.objects.borrow();
    let copied = objects.iter().filter_map(|(key, object)| {
        let inside = key.strip_prefix(&folder)?;
        Some((format!("{ELSEWHERE}{inside}"), object.clone()))
    });
    let copied: BTreeMap<_, _> = copied.collect();
    Objects::new(copied.into())
}

fn fork() -> Config {
    Config {
        new_job: JobId("job-2".to_owned()),
        restore_from: Some("there".to_owned()),
        nonce_seed: 99,
        ..config()
    }
}

fn own_keys(rig: &Rig) -> Vec<String> {
    let objects = rig.objects.borrow();
    let own = objects.keys().filter(|key| !key.starts_with(ELSEWHERE));
    own.cloned().collect()
}

#[test]
fn job_that_begins_with_a_savepoint_publishes_nothing_of_it_attack_19_c9() {
    let (a, savepoint) = saved();
    let mut b = Rig::on_store(fork(), elsewhere(&a));

    b.resume();

    let restored = b.deployment().restore.expect("it is restored");
    assert_eq!(restored.job, JobId("job-2".to_owned()));
    assert_eq!(restored.kind, CheckpointKind::Initial);
    assert_eq!(restored.sources, savepoint.sources);
    assert_eq!(restored.ledger, savepoint.ledger);
    assert_eq!(restored.assignment, savepoint.assignment);
    let parts = |manifest: &Manifest| manifest.operators[&uid("agg")].parts.len();
    assert_eq!(parts(&restored), parts(&savepoint));
    assert!(b.notices().is_empty());
    assert_eq!(b.head().generation.get(), 1);
    let begun = Report::Restored {
        from: "there".to_owned(),
        savepoint: savepoint.id,
        to: restored.id,
    };
    assert!(b.reports.contains(&begun), "{:?}", b.reports);
}

#[test]
fn job_that_began_with_a_savepoint_references_nothing_outside_its_store_attack_21_c9() {
    let (a, _) = saved();
    let mut b = Rig::on_store(fork(), elsewhere(&a));
    b.wait(1);
    // From the first manifest on.
    b.objects
        .borrow_mut()
        .retain(|key, _| !key.starts_with(ELSEWHERE));
    let first = b.newest();
    for object in expected_objects(&first) {
        assert!(own_keys(&b).contains(&object.key), "{}", object.key);
    }

    b.say(Event::Prepared {
        splits: BTreeMap::new(),
    });
    b.checkpoint();
    let mut again = b.successor_with(fork());
    again.resume();

    assert_eq!(again.newest().id, b.newest().id);
    let unused = |it: &Report| matches!(it, Report::RestoreFromUnused { .. });
    assert!(
        again.reports.iter().any(unused),
        "it has a state of its own"
    );
}

/// What a start says that is refused; nothing may have been written.
fn refusal(config: Config, objects: Objects) -> String {
    let mut b = Rig::on_store(config, objects);
    b.wait(1);
    assert_eq!(own_keys(&b), [""; 0]);
    assert!(b.sent.is_empty());
    b.failure().to_string()
}

#[test]
fn savepoint_that_is_not_whole_is_refused_by_the_object_that_is_missing_c9() {
    let (a, savepoint) = saved();
    let part = savepoint.operators[&uid("agg")].parts[0].key.clone();
    for missing in [&part, &savepoint.plan] {
        let objects = elsewhere(&a);
        let key = format!("{ELSEWHERE}{missing}");
        assert!(objects.borrow_mut().remove(&key).is_some());

        let text = refusal(fork(), objects);

        assert!(text.starts_with("restore savepoint there"), "{text}");
        assert!(text.contains(&format!("{missing} is missing")), "{text}");
        assert!(!text.contains(ELSEWHERE), "{text}");
    }
}

#[test]
fn folder_without_the_manifest_that_is_written_last_is_no_savepoint_c9() {
    let (a, _) = saved();
    let objects = elsewhere(&a);
    objects
        .borrow_mut()
        .remove(&format!("{ELSEWHERE}savepoint"));

    let text = refusal(fork(), objects);

    assert!(text.contains("it was never completed"), "{text}");
}

#[test]
fn savepoint_that_is_cut_is_refused_c9() {
    let (a, _) = saved();
    let objects = elsewhere(&a);
    let key = format!("{ELSEWHERE}savepoint");
    objects.borrow_mut().get_mut(&key).unwrap().0.truncate(40);

    let text = refusal(fork(), objects);

    assert!(text.contains("it is not whole"), "{text}");
}

fn with_another_window() -> Config {
    let mut other = fork();
    let stages = &mut Arc::make_mut(&mut other.graph).stages;
    for operator in stages.iter_mut().flat_map(|it| &mut it.operators) {
        if let OperatorKind::WindowFinal(spec) = &mut operator.kind {
            spec.window = tumbling(20);
        }
    }
    other
}

#[test]
fn savepoint_is_restored_without_the_state_that_may_be_dropped() {
    let (a, savepoint) = saved();
    let other = Config {
        drop_state: true,
        ..with_another_window()
    };
    let mut b = Rig::on_store(other, elsewhere(&a));

    b.resume();

    let restored = b.deployment().restore.expect("the rest is restored");
    assert_eq!(restored.sources, savepoint.sources);
    assert!(restored.operators.is_empty(), "{:?}", restored.operators);
    assert!(!own_keys(&b).iter().any(|key| key.starts_with("parts/")));
    let is_told =
        |report: &Report| matches!(report, Report::StateDropped { what } if what.len() == 1);
    assert!(b.reports.iter().any(is_told), "{:?}", b.reports);
}

#[test]
fn document_that_does_not_fit_a_savepoint_is_refused_and_told_what_instead() {
    let (a, _) = saved();

    let text = refusal(with_another_window(), elsewhere(&a));

    assert!(
        text.contains("window of aggregate \"agg\" changed"),
        "{text}"
    );
    assert!(text.contains("begin without the savepoint"), "{text}");
}

#[test]
fn another_jobs_savepoint_serves_a_job_of_another_name_c9() {
    let (a, savepoint) = saved();
    let mut other = fork();
    Arc::make_mut(&mut other.graph).name = "renamed".to_owned();
    let mut b = Rig::on_store(other, elsewhere(&a));

    b.resume();

    let restored = b.deployment().restore.expect("it is restored");
    assert_eq!(restored.sources, savepoint.sources);
}

#[test]
fn start_that_dies_in_between_begins_with_the_savepoint_again_kf_o4() {
    let (a, savepoint) = saved();
    let is_copy = |request: &StoreRequest| matches!(request, StoreRequest::Copy { .. });
    let is_second_swap = {
        let mut swaps_n = 0;
        move |request: &StoreRequest| {
            swaps_n += u32::from(is_swap(request));
            is_swap(request) && swaps_n == 2
        }
    };
    let mut second = is_second_swap;
    let hold: fn(bool) -> Fate = |yes| if yes { Fate::Hold } else { Fate::Answer };
    let deaths: [Box<dyn FnMut(&StoreRequest) -> Fate>; 3] = [
        Box::new(move |it| hold(is_copy(it))),
        Box::new(move |it| hold(is_manifest_put(it))),
        Box::new(move |it| hold(second(it))),
    ];
    for death in deaths {
        let mut b = Rig::on_store(fork(), elsewhere(&a));
        b.fate = death;
        b.wait(1);
        assert_eq!(b.held.len(), 1);
        assert!(b.sent.is_empty(), "nothing runs before it is the job's own");

        let mut again = b.successor_with(fork());
        again.resume();

        let restored = again.deployment().restore.expect("it is restored");
        assert_eq!(restored.sources, savepoint.sources);
        // The dead one's request arrives all the same.
        b.land(0);
        assert_eq!(again.newest(), restored);
    }
}

/// The one before had begun to copy the same savepoint, and went on while this one read it whole: rows that it
/// has published since must not come twice.
#[test]
fn start_that_is_outrun_by_the_copy_of_the_one_before_goes_on_from_its_state_c7_c9() {
    let (a, _) = saved();
    let mut first = Rig::on_store(fork(), elsewhere(&a));
    let is_copy = |request: &StoreRequest| matches!(request, StoreRequest::Copy { .. });
    first.fate = fates(is_copy, [Fate::Hold]);
    first.wait(1);
    assert_eq!(first.head().newest, None);
    let mut other = first.successor_with(fork());
    let is_check = |request: &StoreRequest| matches!(request, StoreRequest::Check { .. });
    other.fate = fates(is_check, [Fate::Hold]);
    other.wait(1);
    assert_eq!(other.held.len(), 1);
    first.release(0);
    first.resume();
    first.checkpoint_staging(20);
    first.published(0, 20);
    let newest = first.checkpoint();

    other.release(0);

    let restored = other.deployment().restore.expect("it is restored");
    assert_eq!(restored.id, newest);
    assert_eq!(other.newest().id, newest);
}

#[test]
fn rewind_reaches_a_savepoint_that_the_head_lists_no_more_c7() {
    let (mut a, savepoint) = saved();
    a.published(0, 7);
    for _ in 0..4 {
        a.checkpoint();
    }
    let before = a.head();
    assert!(before.retained.iter().all(|kept| kept.id > savepoint.id));

    let mut again = a.successor_with(Config {
        rewind_to: Some(savepoint.id),
        ..config()
    });
    again.resume();

    let restored = again.deployment().restore.expect("it is restored");
    assert_eq!(restored.sources, savepoint.sources);
    assert_eq!(restored.job, before.job, "it is the same history");
    assert!(restored.id > before.ids_reserved_to, "C4");
    assert!(again.notices().is_empty());
    // The savepoint may go away.
    let folder = savepoint::folder("s");
    again
        .objects
        .borrow_mut()
        .retain(|key, _| !key.starts_with(&folder));
    again.checkpoint();
    let mut third = again.successor();
    third.resume();
    assert_eq!(third.newest().id, again.newest().id);
}

#[test]
fn rewind_of_a_finished_job_to_a_savepoint_makes_it_run_again_c7() {
    let (mut a, savepoint) = saved();
    a.published(0, 7);
    for _ in 0..3 {
        a.checkpoint();
    }
    for of in graph().tasks(2) {
        a.say(Event::Ended { task: of });
    }
    a.ack_all_with(|ack| {
        for split in ack.splits.values_mut().flatten() {
            split.progress = streamforge_core::manifest::SplitProgress::End;
        }
    });
    assert!(a.head().finished);

    let mut again = a.successor_with(Config {
        rewind_to: Some(savepoint.id),
        ..config()
    });
    again.resume();

    assert!(!again.head().finished);
}

#[test]
fn rewind_to_what_is_neither_kept_nor_saved_names_both_kinds_c7() {
    let (a, savepoint) = saved();
    let retained: Vec<CheckpointId> = a.head().retained.iter().map(|it| it.id).collect();
    let mut kept = retained;
    kept.push(savepoint.id);
    kept.sort_unstable();
    kept.dedup();

    let mut again = a.successor_with(Config {
        rewind_to: Some(id(999)),
        ..config()
    });
    again.wait(1);

    let wanted = id(999);
    assert_eq!(*again.failure(), Error::NotRetained { wanted, kept });
}

#[test]
fn another_jobs_savepoint_in_the_store_is_nothing_to_go_back_to_c7() {
    let (a, savepoint) = saved();
    let mut b = Rig::on_store(fork(), elsewhere(&a));
    b.resume();
    let folder = savepoint::folder("s");
    let theirs = a.objects.borrow().clone().into_iter();
    let theirs = theirs.filter(|(key, _)| key.starts_with(&folder));
    b.objects.borrow_mut().extend(theirs);

    let mut again = b.successor_with(Config {
        rewind_to: Some(savepoint.id),
        ..config()
    });
    again.wait(1);

    let (wanted, kept) = (savepoint.id, vec![b.newest().id]);
    assert_eq!(*again.failure(), Error::NotRetained { wanted, kept });
}

#[test]
fn job_that_has_state_does_not_begin_with_a_savepoint() {
    let (a, _) = saved();
    let mut b = Rig::on_store(fork(), elsewhere(&a));
    b.resume();
    let own = b.checkpoint();
    let copy = Rc::clone(&b.objects);
    copy.borrow_mut()
        .retain(|key, _| !key.starts_with(ELSEWHERE));

    let mut again = b.successor_with(fork());
    again.resume();

    assert_eq!(again.deployment().restore.map(|it| it.id), Some(own));
}
