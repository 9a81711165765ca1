//! To what an upgrade that does not work goes back, and when.

use super::*;

const A: &str = "a";

/// A document that works was followed by one that does not and one that does not either.
fn twice_edited() -> World {
    let mut world = World::new();
    world.sick = vec![document("b", 1), document("c", 1)];
    world.settle(&*wish(1, &document(A, 1)), &mut None);
    world.settle(&*wish(2, &document("b", 1)), &mut None);
    world.now += SignedDuration::from_mins(4);
    world.settle(&*wish(3, &document("c", 1)), &mut None);
    assert_eq!(world.runs, Some(document("c", 1)));
    world
}

#[test]
fn second_edit_in_a_row_is_rolled_back_to_the_document_that_worked_and_has_its_own_time() {
    let mut world = twice_edited();
    world.now += SignedDuration::from_mins(4);
    assert!(!world.pass(&*wish(3, &document("c", 1))), "it has time");

    world.now += SignedDuration::from_mins(2);
    world.settle(&*wish(3, &document("c", 1)), &mut None);

    assert_eq!(world.runs, Some(document(A, 1)));
    let refused = world.record.expect("there is one").refused;
    assert_eq!(refused.expect("it was rolled back").generation, 3);
}

#[test]
fn edit_back_to_the_document_that_worked_has_nothing_to_go_back_to() {
    let mut world = twice_edited();
    // Not even while it has not proved itself again.
    world.sick.push(document(A, 1));
    world.settle(&*wish(4, &document(A, 1)), &mut None);

    let record = world.record.expect("there is one");
    assert_eq!((record.document, record.previous), (document(A, 1), None));
}

#[test]
fn what_was_suspended_has_nothing_to_go_back_to() {
    let stop = wish_with(4, &document("c", 1), |wanted| wanted.suspend = true);
    let mut world = twice_edited();
    let mut broken = world.clone();
    world.settle(&*stop, &mut None);
    broken.run = ended(Ended::Broken("no such bucket".to_owned()));
    broken.settle(&*stop, &mut None);

    for world in [world, broken] {
        let record = world.record.expect("there is one");
        assert_eq!((record.state, record.previous), (State::Suspended, None));
    }
}

#[test]
fn operator_that_comes_late_tries_for_itself_before_it_rolls_back() {
    let upgrade = wish(3, &document("c", 1));
    let mut world = twice_edited();
    world.now += SignedDuration::from_hours(1);
    let broken = |seconds| Run::Ended {
        how: Ended::Broken("the store does not answer".to_owned()),
        is_current: true,
        tried: SignedDuration::from_secs(seconds),
        stops_failed_n: 0,
    };

    for (seconds, rolls_back) in [(0, false), (60, false), (61, true)] {
        let wanted = upgrade(world.record.as_ref());
        let record = world.record.as_ref();
        let step = next(world.now, wanted.as_ref(), record, &broken(seconds));
        match step {
            Step::Start => assert!(!rolls_back, "{seconds}"),
            Step::Write(record) => {
                assert!(rolls_back, "{seconds}");
                assert_eq!(record.document, document(A, 1));
            }
            other => panic!("{other:?}"),
        }
    }
}

/// What was rolled back stays so whatever is asked of the job: only an edit of its plan brings it back.
#[test]
fn failed_job_that_is_asked_to_run_again_runs_what_works_and_not_what_was_rolled_back() {
    let orders: [fn(&mut Wanted); 3] = [
        |wanted| wanted.restart = Some("now".to_owned()),
        |wanted| wanted.rewind_to = Some("1".to_owned()),
        |wanted| wanted.accept_lost_marker = Some("out".to_owned()),
    ];
    for order in orders {
        let mut world = twice_edited();
        world.now += SignedDuration::from_mins(6);
        world.settle(&*wish(3, &document("c", 1)), &mut None);
        assert_eq!(world.runs, Some(document(A, 1)), "it was rolled back");
        world.run = ended(Ended::Failed("its marker is gone".to_owned()));
        world.settle(&*wish(3, &document("c", 1)), &mut None);
        assert!(matches!(state(&world), State::Failed { .. }));

        world.settle(&*wish_with(3, &document("c", 1), order), &mut None);

        assert_eq!(world.runs, Some(document(A, 1)));
        let refused = world.record.expect("there is one").refused;
        assert_eq!(refused.expect("it is remembered").generation, 3);
    }
}
