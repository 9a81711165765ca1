//! Tests of [`Aligner`].

use super::*;

fn barrier(id: u64) -> Barrier {
    Barrier {
        id: CheckpointId::from_stored(id),
        kind: CheckpointKind::Ordinary,
        begun_by: Generation::ZERO,
    }
}

fn begun_by(generation: u64, id: u64) -> Barrier {
    Barrier {
        begun_by: Generation::from_stored(generation),
        ..barrier(id)
    }
}

#[test]
fn barriers_of_a_coordinator_that_is_gone_block_nothing_and_those_of_the_next_do_a2_f1() {
    let mut aligner = Aligner::new(2);
    assert_eq!(aligner.on_barrier(0, begun_by(3, 8)).0, Step::Block);
    let gone = Generation::from_stored(3);
    assert_eq!(
        aligner.on_orphaned(gone),
        Some(CheckpointId::from_stored(8))
    );

    assert_eq!(aligner.on_barrier(0, begun_by(3, 9)), (Step::Ignore, None));
    assert!(!aligner.is_blocked(0));
    // It comes before the word that its coordinator took over.
    assert_eq!(aligner.on_barrier(0, begun_by(4, 10)), (Step::Block, None));
    assert_eq!(aligner.on_abort(CheckpointId::from_stored(9)), None);
    let taken = aligner.on_barrier(1, begun_by(4, 10));
    assert_eq!(taken, (Step::Snapshot(begun_by(4, 10)), None));
}

#[test]
fn what_the_next_coordinator_began_outlives_the_news_that_the_last_one_is_gone_f1() {
    let mut aligner = Aligner::new(2);
    assert_eq!(aligner.on_barrier(0, begun_by(4, 10)).0, Step::Block);

    assert_eq!(aligner.on_orphaned(Generation::from_stored(3)), None);

    let taken = aligner.on_barrier(1, begun_by(4, 10)).0;
    assert_eq!(taken, Step::Snapshot(begun_by(4, 10)));
}

#[test]
fn coordinator_that_was_gone_for_this_task_only_is_obeyed_once_it_speaks_again() {
    let mut aligner = Aligner::new(2);
    assert_eq!(aligner.on_orphaned(Generation::from_stored(3)), None);
    assert_eq!(aligner.on_abort(CheckpointId::from_stored(8)), None);

    assert_eq!(aligner.on_barrier(0, begun_by(3, 9)).0, Step::Block);
}

#[test]
fn input_is_blocked_from_its_barrier_until_all_delivered_a1() {
    let mut aligner = Aligner::new(2);

    assert_eq!(aligner.on_barrier(0, barrier(1)), (Step::Block, None));
    assert!(aligner.is_blocked(0));
    assert!(!aligner.is_blocked(1));
    assert_eq!(
        aligner.on_barrier(1, barrier(1)),
        (Step::Snapshot(barrier(1)), None)
    );
    assert!(!aligner.is_blocked(0));
    assert!(!aligner.is_blocked(1));
}

#[test]
fn higher_barrier_gives_up_the_older_alignment_a2() {
    let mut aligner = Aligner::new(2);

    let _ = aligner.on_barrier(0, barrier(1));
    let (step, given_up) = aligner.on_barrier(1, barrier(2));

    assert_eq!(step, Step::Block);
    assert_eq!(given_up, Some(CheckpointId::from_stored(1)));
    assert!(
        !aligner.is_blocked(0),
        "the input that waited for 1 is released"
    );
    assert_eq!(aligner.on_barrier(1, barrier(1)).0, Step::Ignore);
    assert_eq!(
        aligner.on_barrier(0, barrier(2)).0,
        Step::Snapshot(barrier(2))
    );
}

#[test]
fn aborted_attempt_releases_inputs_and_its_later_barriers_are_ignored_a2() {
    let mut aligner = Aligner::new(2);

    let _ = aligner.on_barrier(0, barrier(5));
    assert_eq!(
        aligner.on_abort(CheckpointId::from_stored(5)),
        Some(CheckpointId::from_stored(5))
    );

    assert!(!aligner.is_blocked(0));
    assert_eq!(aligner.on_barrier(1, barrier(5)).0, Step::Ignore);
    assert_eq!(aligner.on_abort(CheckpointId::from_stored(6)), None);
    assert_eq!(
        aligner.on_barrier(1, barrier(6)).0,
        Step::Ignore,
        "aborted before it came"
    );
    assert_eq!(aligner.on_barrier(0, barrier(7)).0, Step::Block);
}

#[test]
fn given_up_hand_over_holds_its_inputs_until_the_epoch_ends_k3_attack_24() {
    let mut aligner = Aligner::new(2);
    let hand_over = Barrier {
        kind: CheckpointKind::HandOver,
        ..barrier(5)
    };

    assert_eq!(aligner.on_barrier(0, hand_over).0, Step::Block);
    let given_up = aligner.on_abort(CheckpointId::from_stored(5));

    assert_eq!(given_up, Some(CheckpointId::from_stored(5)));
    assert!(aligner.is_blocked(0), "rows behind it are by another table");
}

#[test]
fn input_that_joins_is_waited_for_and_one_that_retired_is_not_k3() {
    let mut aligner = Aligner::new(2);
    aligner.add_input();

    assert_eq!(aligner.on_barrier(0, barrier(1)).0, Step::Block);
    assert_eq!(aligner.on_barrier(1, barrier(1)).0, Step::Block);
    assert_eq!(
        aligner.on_barrier(2, barrier(1)).0,
        Step::Snapshot(barrier(1))
    );
    aligner.retire(1);
    assert_eq!(aligner.on_barrier(0, barrier(2)).0, Step::Block);
    assert_eq!(
        aligner.on_barrier(2, barrier(2)).0,
        Step::Snapshot(barrier(2))
    );
}

#[test]
fn repeated_barrier_of_a_completed_checkpoint_is_ignored() {
    let mut aligner = Aligner::new(1);

    assert_eq!(
        aligner.on_barrier(0, barrier(3)).0,
        Step::Snapshot(barrier(3))
    );
    assert_eq!(aligner.on_barrier(0, barrier(3)).0, Step::Ignore);
}
