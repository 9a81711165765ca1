//! What is ordered of a job that runs, or does not: to go back, to stop, to run in more or fewer subtasks.

use super::*;

fn rewind(generation: i64, document: &Value, id: &str) -> Wish {
    let id = id.to_owned();
    wish_with(generation, document, move |wanted| {
        wanted.rewind_to = Some(id.clone());
    })
}

fn suspend(generation: i64, document: &Value) -> Wish {
    wish_with(generation, document, |wanted| wanted.suspend = true)
}

fn record(world: &World) -> &Record {
    world.record.as_ref().expect("there is one")
}

#[test]
fn order_to_rewind_is_done_once() {
    let one = document("a", 1);
    let rewind = || {
        wish_with(1, &document("a", 1), |wanted| {
            wanted.rewind_to = Some("7".to_owned());
        })
    };
    let mut world = World::new();
    world.settle(&*wish(1, &one), &mut None);

    assert!(world.pass(&*rewind()));
    let record = world.record.as_ref().expect("there is one");
    assert_eq!(record.rewind.as_deref(), Some("7"));
    world.settle(&*rewind(), &mut None);

    let record = world.record.as_ref().expect("there is one");
    assert_eq!(
        (record.rewind.as_deref(), record.done.rewind_to.as_deref()),
        (None, Some("7"))
    );
    assert!(!world.pass(&*rewind()));
}

#[test]
fn rewind_to_what_is_not_kept_ends_no_healthy_job_and_is_not_tried_again() {
    let one = document("a", 1);
    let mut world = World::new();
    world.gone.push("9".to_owned());
    let life: Vec<Wish> = vec![wish(1, &one), rewind(1, &one, "9")];
    let end = play(&life, &world);

    assert_eq!((state(&end), &end.runs), (&State::Active, &Some(one)));
    assert!(matches!(end.run, Run::Alive(_)), "{:?}", end.run);
    let (to, done) = (&record(&end).rewind, &record(&end).done.rewind_to);
    assert_eq!((to.as_deref(), done.as_deref()), (None, Some("9")));
}

#[test]
fn failed_job_goes_back_to_a_checkpoint_when_that_alone_is_asked_for() {
    let one = document("a", 1);
    let mut world = World::new();
    world.broken.push(one.clone());
    world.settle(&*wish(1, &one), &mut None);
    assert!(matches!(state(&world), State::Failed { .. }));
    world.broken.clear();

    assert!(world.pass(&*rewind(1, &one, "7")));

    assert_eq!(
        (state(&world), record(&world).rewind.as_deref()),
        (&State::Active, Some("7"))
    );
    world.settle(&*rewind(1, &one, "7"), &mut None);
    assert!(matches!(world.run, Run::Alive(_)));
    assert_eq!(record(&world).rewind, None);

    // To take the annotation away asks for nothing.
    world.run = ended(Ended::Failed("a poison row".to_owned()));
    world.settle(&*rewind(1, &one, "7"), &mut None);
    assert!(!world.pass(&*wish(1, &one)));
}

#[test]
fn failed_job_is_tried_again_once_when_a_lost_marker_is_accepted_x3() {
    let one = document("a", 1);
    let accepting = |sinks: &'static str| {
        wish_with(1, &one, move |wanted| {
            wanted.accept_lost_marker = Some(sinks.to_owned());
        })
    };
    let mut world = World::new();
    world.settle(&*wish(1, &one), &mut None);
    world.run = ended(Ended::Failed("its marker is gone".to_owned()));
    world.settle(&*wish(1, &one), &mut None);
    assert!(matches!(state(&world), State::Failed { .. }));

    assert!(world.pass(&*accepting("out")));
    assert_eq!(state(&world), &State::Active);
    world.settle(&*accepting("out"), &mut None);
    assert!(matches!(world.run, Run::Alive(_)));

    // It fails again, for another reason: the same value brings it back no second time, and to take it away asks for
    // nothing.
    world.run = ended(Ended::Failed("a poison row".to_owned()));
    world.settle(&*accepting("out"), &mut None);
    assert!(matches!(state(&world), State::Failed { .. }));
    assert!(!world.pass(&*accepting("out")));
    assert!(!world.pass(&*wish(1, &one)));
    assert!(world.pass(&*accepting("out,other")));

    // What the coordinator was started with is known when it fails.
    let mut world = World::new();
    world.settle(&*wish(1, &one), &mut None);
    world.settle(&*accepting("out"), &mut None);
    world.run = ended(Ended::Failed("a poison row".to_owned()));
    world.settle(&*accepting("out"), &mut None);
    assert!(matches!(state(&world), State::Failed { .. }));

    // Even if it failed before anybody looked at it.
    let mut world = World::new();
    world.settle(&*wish(1, &one), &mut None);
    world.run = ended(Ended::Failed("a poison row".to_owned()));
    world.settle(&*accepting("out"), &mut None);
    assert!(matches!(state(&world), State::Failed { .. }));
}

#[test]
fn failed_job_is_not_tried_again_for_a_value_that_an_earlier_operator_did_not_note() {
    let one = document("a", 1);
    let accepting = |sinks: &'static str| {
        wish_with(1, &one, move |wanted| {
            wanted.accept_lost_marker = Some(sinks.to_owned());
        })
    };
    for standing in [true, false] {
        let mut world = World::new();
        world.settle(&*wish(1, &one), &mut None);
        world.run = ended(Ended::Failed("a poison row".to_owned()));
        world.settle(&*wish(1, &one), &mut None);
        let record = world.record.as_mut().expect("there is one");
        record.done.accept_lost_marker = Used::Unknown;
        let before = if standing {
            accepting("out")
        } else {
            wish(1, &one)
        };

        world.settle(&*before, &mut None);

        assert!(matches!(state(&world), State::Failed { .. }));
        assert!(world.pass(&*accepting("out,other")), "that is new");
        assert_eq!(state(&world), &State::Active);
    }
}

#[test]
fn suspended_job_is_resumed_at_the_checkpoint_that_is_asked_for() {
    let one = document("a", 1);
    let mut world = World::new();
    world.settle(&*wish(1, &one), &mut None);
    world.settle(&*suspend(2, &one), &mut None);
    // An attempt before at another one, which never ran.
    if let Some(record) = &mut world.record {
        (record.rewind, record.before_rewind) = (Some("3".to_owned()), Some(Default::default()));
    }

    assert!(world.pass(&*rewind(3, &one, "7")));

    let Record {
        rewind,
        before_rewind,
        ..
    } = record(&world);
    assert_eq!((rewind.as_deref(), *before_rewind), (Some("7"), None));
}

#[test]
fn parallelism_that_is_taken_back_before_it_is_on_record_is_taken_back_indeed() {
    let (one, three) = (document("a", 1), document("a", 3));
    let mut world = World::new();
    world.settle(&*wish(1, &one), &mut None);
    assert!(world.pass(&*wish(2, &three)));
    assert_eq!((world.parallelism, record(&world).generation), (3, 1));

    let mut upgraded = world.clone();
    world.settle(&*wish(3, &one), &mut None);
    assert_eq!((world.parallelism, record(&world).generation), (1, 3));

    // The same by a document that is rolled back.
    let bad = document("bad", 1);
    upgraded.broken.push(bad.clone());
    upgraded.settle(&*wish(3, &bad), &mut None);
    assert_eq!((&upgraded.runs, upgraded.parallelism), (&Some(one), 1));
}

#[test]
fn stop_whose_savepoint_fails_is_none_and_is_tried_again_in_its_time() {
    let (one, two) = (document("a", 1), document("b", 1));
    for (stop, end) in [
        (suspend(2, &one), (State::Suspended, &one)),
        (wish(2, &two), (State::Active, &two)),
    ] {
        let mut world = World::new();
        world.settle(&*wish(1, &one), &mut None);
        world.no_savepoints = Some("the store is full".to_owned());

        world.settle(&*stop, &mut None);
        assert_eq!(
            (state(&world), &world.runs),
            (&State::Active, &Some(one.clone()))
        );
        assert!(matches!(world.run, Run::Alive(_)), "it runs on as it was");
        // Not even while it does not run is it upgraded or suspended without one before its time.
        if let Run::Alive(alive) = &mut world.run {
            alive.is_running = false;
        }
        assert!(!world.pass(&*stop));
        if let Run::Alive(alive) = &mut world.run {
            alive.is_running = true;
        }

        (world.no_savepoints, world.stop_failed) = (None, false);
        world.settle(&*stop, &mut None);
        assert_eq!((state(&world), &record(&world).document), (&end.0, end.1));
        assert_eq!(world.savepoints.len(), 1);
    }
}

/// A sink whose cluster is gone for good acknowledges no barrier: no savepoint is ever made.
#[test]
fn job_that_cannot_make_a_savepoint_is_suspended_or_mended_from_its_newest_checkpoint() {
    let (one, two) = (document("a", 1), document("b", 1));
    for (stop, end) in [
        (suspend(2, &one), (State::Suspended, &one)),
        (wish(2, &two), (State::Active, &two)),
    ] {
        let mut world = World::new();
        world.settle(&*wish(1, &one), &mut None);
        world.no_savepoints = Some("no acknowledgement from task 1.0".to_owned());
        world.settle(&*stop, &mut None);
        assert_eq!(record(&world).document, one, "it runs on at first");

        // Its time has come once more.
        world.stop_failed = false;
        world.settle(&*stop, &mut None);

        assert_eq!((state(&world), &record(&world).document), (&end.0, end.1));
        let Record {
            incarnation, ran, ..
        } = record(&world);
        assert_eq!((*incarnation, *ran), (0, true), "with all its state");
        assert!(world.savepoints.is_empty());
    }
}

#[test]
fn stops_are_counted_only_while_somebody_wants_the_job_to_stop() {
    let one = document("a", 1);
    let mut world = World::new();
    world.settle(&*wish(1, &one), &mut None);
    world.no_savepoints = Some("no acknowledgement from task 1.0".to_owned());
    world.settle(&*suspend(2, &one), &mut None);
    world.settle(&*wish(3, &one), &mut None);

    world.settle(&*suspend(4, &one), &mut None);

    assert_eq!(*state(&world), State::Active, "that was the first again");
}

#[test]
fn stop_without_its_savepoint_is_told_when_the_job_does_without() {
    let before = Record::new("uid-1", document("a", 1), 1);
    let unsaved = Unsaved {
        reason: "no acknowledgement from task 1.0".to_owned(),
        checkpoint: Some(7),
        unpublished_n: 0,
    };
    let stopped = |failed: Option<&Unsaved>| {
        ended(Ended::Stopped {
            failed: failed.cloned(),
        })
    };
    let suspended = Record {
        state: State::Suspended,
        ..before.clone()
    };
    let upgraded = Record {
        plan: "b".to_owned(),
        ..before.clone()
    };
    let begun_anew = Record {
        incarnation: 1,
        ..upgraded.clone()
    };
    let failed = stopped(Some(&unsaved));
    let told = |next: &Record| without_savepoint(&failed, &before, next);
    assert_eq!(told(&suspended), Some(Without::Stopped(&unsaved)));
    assert_eq!(told(&upgraded), Some(Without::Stopped(&unsaved)));
    assert_eq!(told(&before), None, "it runs on");
    assert_eq!(told(&begun_anew), None, "nothing is kept");
    let saved = stopped(None);
    assert_eq!(without_savepoint(&saved, &before, &suspended), None);

    // The same if there is no coordinator to make one, of a job that has state.
    let broken = ended(Ended::Broken("the store is away".to_owned()));
    let told = |next: &Record| {
        let ran = Record {
            ran: true,
            ..before.clone()
        };
        without_savepoint(&broken, &ran, next)
    };
    let without = Some(Without::Broken("the store is away"));
    assert_eq!(without_savepoint(&broken, &before, &suspended), None);
    assert_eq!((told(&suspended), told(&upgraded)), (without, without));
    assert_eq!((told(&before), told(&begun_anew)), (None, None));
    let rolled_back = Record {
        refused: Some(Refused {
            generation: 1,
            plan: before.plan.clone(),
            reason: "it was not healthy in time".to_owned(),
        }),
        ..upgraded
    };
    assert_eq!(told(&rolled_back), None, "nobody asked for a stop");
}

/// One error of the store ends a coordinator, and no task.
#[test]
fn job_whose_coordinator_broke_is_stopped_with_a_savepoint_by_the_next_one() {
    let (one, two) = (document("a", 1), document("b", 1));
    for (stop, end) in [
        (suspend(2, &one), (State::Suspended, &one, "suspend-2-2")),
        (wish(2, &two), (State::Active, &two, "upgrade-2-2")),
    ] {
        let mut world = World::new();
        world.settle(&*wish(1, &one), &mut None);
        world.run = ended(Ended::Broken("another coordinator took over".to_owned()));

        world.settle(&*stop, &mut None);

        assert_eq!((state(&world), &record(&world).document), (&end.0, end.1));
        assert_eq!(world.savepoints, [end.2]);
    }
}

#[test]
fn job_that_has_no_coordinator_for_long_is_suspended_or_mended_from_its_newest_checkpoint() {
    let (one, two) = (document("a", 1), document("b", 1));
    for (stop, end) in [
        (suspend(2, &one), (State::Suspended, &one)),
        (wish(2, &two), (State::Active, &two)),
    ] {
        let mut world = World::new();
        world.settle(&*wish(1, &one), &mut None);
        for (stops_failed_n, goes_over) in [(0, false), (1, false), (2, true)] {
            let broken = Run::Ended {
                how: Ended::Broken("the store does not answer".to_owned()),
                is_current: true,
                tried: SignedDuration::from_secs(1),
                stops_failed_n,
            };
            let wanted = stop(world.record.as_ref());
            let record = world.record.as_ref();
            match next(world.now, wanted.as_ref(), record, &broken) {
                Step::Start => assert!(!goes_over, "{stops_failed_n}"),
                Step::Write(record) => {
                    assert!(goes_over, "{stops_failed_n}");
                    assert_eq!((&record.state, &record.document), (&end.0, end.1));
                }
                other => panic!("{other:?}"),
            }
        }
    }
}

/// What an operator finds that has just begun to lead: tasks that run, and have not called yet.
#[test]
fn new_coordinator_has_a_while_to_find_tasks_before_a_stop_goes_without_a_savepoint() {
    let (one, two) = (document("a", 1), document("b", 1));
    let mut world = World::new();
    world.settle(&*wish(1, &one), &mut None);
    for stop in [suspend(2, &one), wish(2, &two)] {
        let wanted = stop(world.record.as_ref());
        let step = |seconds, ran| {
            let run = Run::Alive(Alive {
                is_running: false,
                age: SignedDuration::from_secs(seconds),
                ..alive()
            });
            let record = world.record.clone().map(|record| Record { ran, ..record });
            next(world.now, wanted.as_ref(), record.as_ref(), &run)
        };

        assert_eq!(step(9, true), Step::Wait);
        assert_ne!(step(10, true), Step::Wait);
        assert_ne!(step(9, false), Step::Wait, "there is nothing to be saved");
    }
}

#[test]
fn upgrade_without_the_state_goes_without_a_savepoint_that_fails() {
    let two = document("b", 1);
    let mut world = World::new();
    world.settle(&*wish(1, &document("a", 1)), &mut None);
    world.no_savepoints = Some("the store is full".to_owned());

    world.settle(&*stateless(2, &two), &mut None);

    assert_eq!((&world.runs, record(&world).incarnation), (&Some(two), 1));
}

/// An upgrade begins without the state.
fn stateless(generation: i64, document: &Value) -> Wish {
    wish_with(generation, document, |wanted| {
        wanted.edit.stateless = wanted.edit.upgrade;
    })
}

#[test]
fn suspended_or_failed_job_begins_anew_without_its_state() {
    let (one, two) = (document("a", 1), document("b", 1));
    let mut suspended = World::new();
    suspended.settle(&*wish(1, &one), &mut None);
    let mut failed = suspended.clone();
    suspended.settle(&*suspend(2, &one), &mut None);
    failed.run = ended(Ended::Failed("a poison row".to_owned()));
    failed.settle(&*wish(1, &one), &mut None);
    assert!(matches!(state(&failed), State::Failed { .. }));

    for mut world in [suspended, failed] {
        if let Some(record) = &mut world.record {
            record.rewind = Some("7".to_owned());
        }
        world.settle(&*stateless(3, &two), &mut None);

        assert_eq!(
            (&world.runs, record(&world).incarnation),
            (&Some(two.clone()), 1)
        );
        assert!(matches!(world.run, Run::Alive(_)), "{:?}", world.run);
    }
}

/// What is wanted, where what is on record cannot be read as long as it is this.
fn mending(unreadable: &Value, wish: Wish) -> Wish {
    let unreadable = unreadable.clone();
    Box::new(move |record: Option<&Record>| {
        let mut wanted = wish(record)?;
        wanted.mends = record.is_some_and(|record| record.document == unreadable);
        Some(wanted)
    })
}

#[test]
fn valid_document_takes_the_place_of_one_that_this_operator_cannot_read() {
    let (one, two) = (document("a", 1), document("b", 1));
    let mut world = World::new();
    world.settle(&*wish(1, &one), &mut None);
    world.run = Run::None;

    let mut suspended = world.clone();
    let mended = mending(&one, wish(2, &two));
    let end = play(&[mended], &world);
    assert_eq!(
        (&end.runs, &record(&end).previous),
        (&Some(two.clone()), &None)
    );

    suspended.settle(&*mending(&one, suspend(2, &two)), &mut None);
    let Record {
        state, document, ..
    } = record(&suspended);
    assert_eq!((state, document), (&State::Suspended, &two));

    // One that was rolled back stays out: somebody has to edit it.
    let refused = Refused {
        generation: 2,
        plan: two["plan"].to_string(),
        reason: "a poison row".to_owned(),
    };
    let record = Record {
        refused: Some(refused),
        ..world.record.clone().expect("there is one")
    };
    let wanted = mending(&one, wish(2, &two))(Some(&record));
    let step = next(world.now, wanted.as_ref(), Some(&record), &Run::None);
    assert_eq!(step, Step::Start);
}
