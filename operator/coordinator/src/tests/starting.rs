//! First starts, restores, and what is refused.

use std::collections::BTreeMap;
use std::sync::Arc;

use streamforge_core::ids::{CheckpointId, Epoch, Generation};
use streamforge_core::job_graph::{AggregateSpec, OperatorKind};
use streamforge_core::manifest::{CheckpointKind, SplitProgress};
use streamforge_core::messages::{Command, Event};

use super::rig::*;
use crate::*;

#[test]
fn nothing_is_sent_before_the_head_names_this_coordinator_c5() {
    let mut rig = Rig::new(config());
    rig.fate = fates(is_swap, [Fate::Hold]);

    rig.wait(1);

    assert!(rig.sent.is_empty());
    rig.release(0);
    assert_eq!(rig.sent_names(), ["deploy"]);
    let head = rig.head();
    assert_eq!((head.generation.get(), head.epoch.get()), (1, 1));
}

#[test]
fn manifest_0_is_committed_before_the_first_row_is_read_c10() {
    let mut rig = Rig::new(config());
    rig.wait(1);
    assert_eq!(rig.deployment().restore, None);

    rig.fate = fates(is_swap, [Fate::Hold]);
    rig.prepared(&["a", "b"]);

    assert_eq!(rig.sent_names(), ["deploy"], "no row may be read yet");
    rig.release(0);
    assert_eq!(rig.sent_names(), ["deploy", "committed", "start"]);
    let manifest = rig.newest();
    assert_eq!(manifest.kind, CheckpointKind::Initial);
    assert_eq!(manifest.sources[&uid("in")].len(), 2);
}

#[test]
fn restart_before_checkpoint_1_restores_the_resolved_splits_c10() {
    let rig = Rig::run(config());

    let mut again = rig.successor();
    again.wait(1);
    let restored = again.deployment().restore.expect("manifest 0 is restored");
    assert_eq!(restored.kind, CheckpointKind::Initial);
    again.say(Event::Prepared {
        splits: BTreeMap::new(),
    });

    assert_eq!(again.sent_names(), ["deploy", "start"]);
    assert_eq!(again.newest().id, rig.newest().id, "no second manifest 0");
}

#[test]
fn source_added_to_a_document_is_committed_before_it_is_read_c10() {
    let mut rig = Rig::run(config());
    rig.checkpoint();
    let mut again = rig.successor();
    again.wait(1);
    let new = BTreeMap::from([(uid("in2"), vec![split_at("z", at(0))])]);

    again.say(Event::Prepared { splits: new });

    let manifest = again.newest();
    assert_eq!(manifest.kind, CheckpointKind::Initial);
    assert_eq!(manifest.sources.len(), 2);
    assert_eq!(
        manifest.operators,
        rig.newest().operators,
        "state is carried"
    );
    assert_eq!(manifest.ledger, rig.newest().ledger);
}

/// A document that names one more topic.
#[test]
fn split_that_a_known_source_gained_is_committed_before_it_is_read_c10() {
    let mut rig = Rig::run(config());
    rig.checkpoint();
    let before = rig.newest();
    let mut again = rig.successor();
    again.wait(1);

    // One is known, whatever is said of it now.
    again.prepared(&["a", "z"]);

    let manifest = again.newest();
    assert_eq!(manifest.kind, CheckpointKind::Initial);
    let (known, gained) = manifest.sources[&uid("in")].split_at(2);
    assert_eq!(known, before.sources[&uid("in")]);
    assert_eq!(gained, [split_at("z", at(0))]);
    assert_eq!(again.sent_names(), ["deploy", "committed", "start"]);
}

#[test]
fn new_generation_takes_ids_above_everything_reserved_c4() {
    let mut rig = Rig::run(config());
    rig.checkpoint();
    rig.wait(1_000);
    let begun = rig.in_flight(); // its successor never learns of it (attack 4)
    let reserved_to = rig.head().ids_reserved_to;
    assert!(begun <= reserved_to);

    let mut again = rig.successor();
    again.resume();

    assert_eq!(again.deployment().first_id, reserved_to.next());
    assert!(again.checkpoint() > reserved_to);
    assert_eq!(again.head().generation, Generation::from_stored(2));
    assert_eq!(again.head().epoch, Epoch::from_stored(2));
}

#[test]
fn ids_are_taken_only_from_the_reserved_range_c4() {
    let mut rig = Rig::run(config());

    for _attempt in 0..3 * head::IDS_RESERVED_N {
        rig.wait(1_000);
        let n = rig.in_flight();
        assert!(n <= rig.head().ids_reserved_to, "{n} is not reserved");
        rig.say(Event::Declined {
            task: task(0, 0),
            id: n,
            reason: "busy".to_owned(),
        });
    }

    assert!(
        rig.newest().kind == CheckpointKind::Initial,
        "none of them completed"
    );
}

#[test]
fn head_missing_beside_manifests_is_refused_c7() {
    let rig = Rig::run(config());
    rig.objects.borrow_mut().remove("head");

    let mut again = rig.successor();
    again.wait(1);

    assert_eq!(*again.failure(), Error::HeadMissing { manifests_n: 1 });
    assert!(again.sent.is_empty());
}

#[test]
fn unreadable_head_is_refused_c7() {
    let rig = Rig::run(config());
    rig.objects
        .borrow_mut()
        .get_mut("head")
        .unwrap()
        .0
        .truncate(20);

    let mut again = rig.successor();
    again.wait(1);

    assert!(
        matches!(again.failure(), Error::HeadUnreadable { .. }),
        "{:?}",
        again.failure()
    );
}

fn three_checkpoints() -> (Rig, Vec<CheckpointId>) {
    let mut rig = Rig::run(config());
    let ids = (0..3).map(|_| rig.checkpoint()).collect();
    (rig, ids)
}

#[test]
fn damaged_newest_checkpoint_is_noticed_before_any_output_and_names_the_intact_one_c7() {
    let (rig, ids) = three_checkpoints();
    let part = rig.newest().operators[&uid("agg")].parts[0].key.clone();
    rig.objects.borrow_mut().remove(&part);
    let head = rig.head();

    let mut again = rig.successor();
    again.wait(1);

    let text = again.failure().to_string();
    assert!(
        text.contains(&format!("object {part} is missing")),
        "{text}"
    );
    let command = format!("streamforge run job.yaml --rewind-to {}", ids[1]);
    assert!(text.contains(&command), "{text}");
    assert!(again.sent.is_empty(), "nothing ran");
    assert_eq!(again.head(), head, "and nothing was taken over");
}

#[test]
fn way_out_skips_older_checkpoints_that_are_damaged_too_c7() {
    let (rig, ids) = three_checkpoints();
    let retained = rig.head().retained;
    let middle = retained.iter().find(|kept| kept.id == ids[1]).unwrap();
    let newest = retained.iter().find(|kept| kept.id == ids[2]).unwrap();
    rig.objects.borrow_mut().get_mut(&newest.key).unwrap().0[30] ^= 1;
    rig.objects.borrow_mut().remove(&middle.key);

    let mut again = rig.successor();
    again.wait(1);

    match again.failure() {
        Error::Damaged {
            id,
            damages,
            intact,
            history_n,
        } => {
            assert_eq!((*id, *intact, *history_n), (ids[2], Some(ids[0]), 2));
            assert!(
                damages[0].contains("checksum does not match"),
                "{damages:?}"
            );
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn start_that_raced_with_retention_begins_anew_from_the_newer_head_c7() {
    // Found by the simulation: a coordinator is at work and retires what the starter looks for.
    let mut rig = Rig::run(config());
    rig.checkpoint();
    let mut again = rig.successor();
    again.fate = fates(
        |request| matches!(request, StoreRequest::Check { .. }),
        [Fate::Hold],
    );
    again.wait(1);
    for _checkpoint in 0..4 {
        rig.checkpoint();
    }

    again.release(0);

    assert_eq!(again.outcome, None);
    assert_eq!(again.deployment().restore.unwrap().id, rig.newest().id);
}

#[test]
fn rewind_restores_the_named_checkpoint_and_says_so_c7() {
    let (rig, ids) = three_checkpoints();

    let mut again = rig.successor_with(Config {
        rewind_to: Some(ids[0]),
        ..config()
    });
    again.resume();

    assert_eq!(again.deployment().restore.unwrap().id, ids[0]);
    assert!(again.reports.contains(&Report::Rewound {
        from: ids[2],
        to: ids[0]
    }));
    assert_eq!(again.head().newest.unwrap().id, ids[0]);
    assert!(
        again.checkpoint() > ids[2],
        "ids begin above everything there was"
    );
    let mut third = again.successor();
    third.wait(1);
    assert!(third.deployment().restore.unwrap().id > ids[2]);
}

#[test]
fn rewind_to_a_checkpoint_that_is_not_kept_names_those_that_are_c7() {
    let (rig, ids) = three_checkpoints();

    let mut again = rig.successor_with(Config {
        rewind_to: Some(id(99)),
        ..config()
    });
    again.wait(1);

    let kept = format!("kept are: {}, {}, {}", ids[0], ids[1], ids[2]);
    assert!(
        again.failure().to_string().contains(&kept),
        "{}",
        again.failure()
    );
}

#[test]
fn rewind_of_an_empty_store_is_refused_c7() {
    let mut rig = Rig::new(Config {
        rewind_to: Some(id(3)),
        ..config()
    });

    rig.wait(1);

    assert_eq!(
        *rig.failure(),
        Error::NotRetained {
            wanted: id(3),
            kept: vec![]
        }
    );
}

#[test]
fn store_of_another_job_is_refused() {
    let rig = Rig::run(config());
    let mut other = config();
    Arc::make_mut(&mut other.graph).name = "other".to_owned();

    let mut again = rig.successor_with(other);
    again.wait(1);

    let (theirs, ours) = ("job".to_owned(), "other".to_owned());
    assert_eq!(*again.failure(), Error::OtherJob { theirs, ours });
}

#[test]
fn changed_max_parallelism_is_refused_while_state_exists() {
    let mut rig = Rig::run(config());
    rig.checkpoint();
    let mut changed = config();
    Arc::make_mut(&mut changed.graph).max_parallelism = 8;

    let mut again = rig.successor_with(changed);
    again.wait(1);

    assert_eq!(
        *again.failure(),
        Error::MaxParallelismChanged {
            stored: 4,
            wanted: 8
        }
    );
    assert!(
        again
            .failure()
            .to_string()
            .contains("write maxParallelism: 4")
    );
}

#[test]
fn document_that_changes_the_meaning_of_state_is_refused_with_every_reason() {
    let mut rig = Rig::run(config());
    rig.checkpoint_staging(2);
    let mut changed = config();
    let graph = Arc::make_mut(&mut changed.graph);
    graph.stages[1].operators[0].kind = OperatorKind::WindowFinal(aggregate(tumbling(20)));
    graph.stages[1].operators.truncate(1);
    graph.stages[0].operators.clear();

    let mut again = rig.successor_with(changed);
    again.wait(1);

    let text = again.failure().to_string();
    for part in [
        "window of aggregate \"agg\"",
        "source with uid \"in\"",
        "sink with uid \"out\"",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

/// By the watermark and another lateness, windows that fired would fire again, or none at all.
#[test]
fn another_allowed_lateness_of_an_aggregate_with_state_is_refused_t3() {
    let mut rig = Rig::run(config());
    rig.checkpoint();
    for lateness in [1, 10_000_000] {
        let mut changed = config();
        let graph = Arc::make_mut(&mut changed.graph);
        let aggregate = AggregateSpec {
            allowed_lateness_us: lateness,
            ..aggregate(tumbling(10))
        };
        graph.stages[1].operators[0].kind = OperatorKind::WindowFinal(aggregate);

        let mut again = rig.successor_with(changed);
        again.wait(1);

        let text = again.failure().to_string();
        let reason =
            "allowedLateness of aggregate \"agg\" changed, which gives its state another meaning";
        assert!(text.contains(reason), "{text}");
        assert!(again.sent.is_empty(), "nothing ran");
    }
}

/// Another window, another source, and nothing else.
fn with_another_window_and_source() -> Config {
    let mut changed = config();
    let graph = Arc::make_mut(&mut changed.graph);
    graph.stages[1].operators[0].kind = OperatorKind::WindowFinal(aggregate(tumbling(20)));
    graph.stages[0].operators[0].uid = uid("other");
    Config {
        drop_state: true,
        ..changed
    }
}

#[test]
fn state_without_a_place_is_dropped_if_that_is_allowed_and_told() {
    let mut rig = Rig::run(config());
    rig.checkpoint_staging(2);
    let before = rig.newest();

    let mut again = rig.successor_with(with_another_window_and_source());
    again.wait(1);

    let restored = again.deployment().restore.expect("the rest is restored");
    assert_eq!(restored.id, before.id);
    assert!(restored.operators.is_empty() && restored.sources.is_empty());
    assert_eq!(restored.ledger, before.ledger, "it was counted");
    assert_eq!(restored.staged, before.staged, "output is never dropped");
    let told = again.reports.iter().find_map(|report| match report {
        Report::StateDropped { what } => Some(what.clone()),
        _ => None,
    });
    assert_eq!(
        told.expect("it is told"),
        [
            "window of aggregate \"agg\" changed, which gives its state another meaning",
            "the source with uid \"in\" is gone, and the rest of its input would never be read; if \"in\" is the \
             same by another name, give that one `uid: in`",
        ]
    );

    // The next checkpoint misses nothing, and no later start tells of it again.
    let new = BTreeMap::from([(uid("other"), vec![split_at("z", at(0))])]);
    again.say(Event::Prepared { splits: new });
    let first = again.newest();
    assert_eq!(first.kind, CheckpointKind::Initial);
    assert_eq!(Vec::from_iter(first.sources.keys()), [&uid("other")]);
    let mut third = again.successor_with(with_another_window_and_source());
    third.wait(1);
    let is_told = |report: &Report| matches!(report, Report::StateDropped { .. });
    assert!(!third.reports.iter().any(is_told), "{:?}", third.reports);
}

#[test]
fn staged_output_whose_sink_is_gone_is_refused_whatever_may_be_dropped() {
    let mut rig = Rig::run(config());
    rig.checkpoint_staging(2);
    let mut changed = with_another_window_and_source();
    let graph = Arc::make_mut(&mut changed.graph);
    graph.stages[1].operators.truncate(1);

    let mut again = rig.successor_with(changed);
    again.wait(1);

    let Error::IncompatibleDocument { mismatches, .. } = again.failure() else {
        panic!("{:?}", again.outcome)
    };
    assert_eq!(mismatches.len(), 1, "{mismatches:?}");
    assert!(mismatches[0].starts_with("the sink with uid \"out\" is gone"));
}

#[test]
fn parallelism_above_max_parallelism_is_refused() {
    let mut rig = Rig::new(Config {
        parallelism: 5,
        ..config()
    });

    rig.wait(1);

    assert_eq!(
        *rig.failure(),
        Error::ParallelismTooHigh {
            parallelism: 5,
            max_parallelism: 4
        }
    );
}

#[test]
fn new_parallelism_moves_only_surplus_key_groups_k2() {
    let mut rig = Rig::run(config());
    rig.checkpoint();
    let before = rig.head().assignment;

    let mut again = rig.successor_with(Config {
        parallelism: 3,
        ..config()
    });
    again.wait(1);

    let deployment = again.deployment();
    assert_eq!(deployment.parallelism, 3);
    assert_eq!(deployment.assignment, before.rescaled(3));
    assert_eq!(
        deployment.restore.unwrap().assignment,
        before,
        "T6 needs the table of the state"
    );
}

#[test]
fn ended_splits_are_not_dealt_again_c11() {
    let mut rig = Rig::run(config());
    rig.checkpoint_with(|ack| {
        if ack.task == task(0, 0) {
            ack.splits.get_mut(&uid("in")).unwrap()[0].progress = SplitProgress::End;
        }
    });

    let mut again = rig.successor();
    again.resume();

    let dealt = again.sent.iter().find_map(|(_, command)| match command {
        Command::Start { splits } => Some(splits[&uid("in")].values().flatten().count()),
        _ => None,
    });
    assert_eq!(dealt, Some(1));
}

#[test]
fn store_that_refuses_ends_the_start_at_once_with_its_reason() {
    let mut rig = Rig::new(config());
    rig.fate = Box::new(|_| Fate::Refuse);

    rig.wait(1);

    assert!(
        rig.failure().to_string().contains("disk full"),
        "{}",
        rig.failure()
    );
}

#[test]
fn store_that_does_not_answer_is_asked_again_and_then_given_up() {
    let mut rig = Rig::new(config());
    rig.fate = fates(|_| true, [Fate::Lose, Fate::Lose]);
    for _tick in 0..10 {
        rig.wait(500);
    }
    assert_eq!(rig.sent_names(), ["deploy"]);

    let mut rig = Rig::new(config());
    rig.fate = Box::new(|_| Fate::Lose);
    for _tick in 0..20 {
        rig.wait(500);
    }
    assert!(
        matches!(rig.failure(), Error::Store { .. }),
        "{:?}",
        rig.outcome
    );
}
