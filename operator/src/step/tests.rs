//! Lives of jobs, played against a coordinator that does what it is told.
//!
//! Each life is played undisturbed, and once more for every step with the operator killed right behind
//! it: the end must be the same.

use serde_json::json;

use super::*;

mod orders;
mod rollbacks;

const LIMIT: usize = 40;

/// Everything that outlives an operator, and the coordinator that does not.
#[derive(Clone, Debug)]
struct World {
    now: Timestamp,
    record: Option<Record>,
    run: Run,
    /// The document that the coordinator was started with.
    runs: Option<Value>,
    /// What else of the record it was started with.
    started: (Option<String>, u32),
    /// Coordinators that were started.
    starts_n: u64,
    /// Subtasks.
    parallelism: u32,
    savepoints: Vec<String>,
    /// Documents that end as failed when they run.
    broken: Vec<Value>,
    /// Documents that run and never complete a checkpoint.
    sick: Vec<Value>,
    /// Checkpoints that are not kept.
    gone: Vec<String>,
    /// Why no savepoint can be made.
    no_savepoints: Option<String>,
    /// A stop failed a moment ago; the operator remembers it for a while.
    stop_failed: bool,
    /// Stops in a row that failed, which it remembers, too.
    stops_failed_n: u32,
    /// Folders of the store that have something, by the incarnation of the job.
    folders: Vec<u32>,
}

impl World {
    fn new() -> Self {
        Self {
            now: Timestamp::UNIX_EPOCH,
            record: None,
            run: Run::None,
            runs: None,
            started: (None, 0),
            starts_n: 0,
            parallelism: 1,
            savepoints: Vec::new(),
            broken: Vec::new(),
            sick: Vec::new(),
            gone: Vec::new(),
            no_savepoints: None,
            stop_failed: false,
            stops_failed_n: 0,
            folders: Vec::new(),
        }
    }

    /// One pass of the operator. False: there is nothing to do.
    fn pass(&mut self, wanted: &dyn Fn(Option<&Record>) -> Option<Wanted>) -> bool {
        let wanted = wanted(self.record.as_ref());
        if !is_to_stop(wanted.as_ref(), self.record.as_ref()) {
            (self.stop_failed, self.stops_failed_n) = (false, 0);
        }
        self.refresh();
        let step = next(self.now, wanted.as_ref(), self.record.as_ref(), &self.run);
        match step {
            Step::Write(record) => self.record = Some(record),
            Step::Start => self.start(),
            Step::Abandon => self.run = Run::None,
            Step::Stop { savepoint } => {
                let failed = self.no_savepoints.clone().filter(|_| savepoint.is_some());
                if let (Some(name), None) = (savepoint, &failed) {
                    assert!(!self.savepoints.contains(&name), "{name} is there already");
                    self.savepoints.push(name);
                }
                self.stop_failed = failed.is_some();
                self.stops_failed_n += u32::from(self.stop_failed);
                let failed = failed.map(|reason| Unsaved {
                    reason,
                    ..Unsaved::default()
                });
                self.run = ended(Ended::Stopped { failed });
            }
            Step::Scale(n) => {
                self.parallelism = n;
                if let Run::Alive(alive) = &mut self.run {
                    alive.wanted = n;
                }
            }
            Step::Wait => return false,
        }
        true
    }

    fn start(&mut self) {
        let record = self.record.clone().expect("what is started is on record");
        let (document, incarnation) = (record.document.clone(), record.incarnation);
        self.started = started(&record);
        self.runs = Some(document.clone());
        self.starts_n += 1;
        self.run = if record.ran && !self.folders.contains(&incarnation) {
            ended(Ended::Broken("the store is empty".to_owned()))
        } else if record.rewind.is_some_and(|id| self.gone.contains(&id)) {
            ended(Ended::NotRetained("it is not kept".to_owned()))
        } else if self.broken.contains(&document) {
            ended(Ended::Failed("a poison row".to_owned()))
        } else {
            self.folders.push(incarnation);
            Run::Alive(Alive {
                generation: self.starts_n,
                wanted: self.parallelism,
                completed_n: u64::from(!self.sick.contains(&document)),
                ..alive()
            })
        };
    }

    /// Whether the coordinator runs what is on record.
    fn refresh(&mut self) {
        let same = self.record.as_ref().is_some_and(|record| {
            Some(&record.document) == self.runs.as_ref() && started(record) == self.started
        });
        match &mut self.run {
            Run::Alive(alive) => {
                alive.is_current = same;
                alive.stop_failed = self.stop_failed;
            }
            Run::Ended {
                is_current,
                stops_failed_n,
                ..
            } => (*is_current, *stops_failed_n) = (same, self.stops_failed_n),
            Run::None => {}
        }
    }

    /// Passes until nothing is to do; the operator is killed behind pass number `dies`.
    fn settle(
        &mut self,
        wanted: &dyn Fn(Option<&Record>) -> Option<Wanted>,
        dies: &mut Option<usize>,
    ) {
        for _ in 0..LIMIT {
            let went_on = self.pass(wanted);
            if let Some(left) = dies {
                if *left == 0 {
                    self.run = Run::None;
                    *dies = None;
                    continue;
                }
                *left -= 1;
            }
            if !went_on {
                return;
            }
        }
        panic!("it never settles: {self:?}");
    }
}

/// Which coordinator it is does not matter.
fn alike(run: &Run) -> Run {
    match run {
        Run::Alive(alive) => Run::Alive(Alive {
            generation: 0,
            ..alive.clone()
        }),
        other => other.clone(),
    }
}

/// What of a record tells coordinators apart, beside the document.
fn started(record: &Record) -> (Option<String>, u32) {
    (record.done.rewind_to.clone(), record.incarnation)
}

/// A coordinator whose job runs, since long.
fn alive() -> Alive {
    Alive {
        is_current: true,
        is_running: true,
        is_stopping: false,
        stop_failed: false,
        age: SignedDuration::from_hours(1),
        generation: 9,
        wanted: 1,
        completed_n: 0,
    }
}

fn ended(how: Ended) -> Run {
    Run::Ended {
        how,
        is_current: true,
        tried: SignedDuration::from_hours(1),
        stops_failed_n: 0,
    }
}

/// What is wanted, compared with what is on record as the operator compares it.
fn wish(generation: i64, document: &Value) -> Wish {
    wish_with(generation, document, |_| {})
}

fn wish_with(generation: i64, document: &Value, change: impl Fn(&mut Wanted) + 'static) -> Wish {
    let document = document.clone();
    Box::new(move |record: Option<&Record>| {
        let before = record.map(|record| &record.document);
        let differs = |field: &str| before.is_some_and(|it| it[field] != document[field]);
        let parallelism = document["parallelism"].as_u64().unwrap_or(1);
        let mut wanted = Wanted {
            uid: "uid-1".to_owned(),
            generation,
            document: document.clone(),
            plan: document["plan"].to_string(),
            parallelism: u32::try_from(parallelism).unwrap(),
            edit: Edit {
                upgrade: differs("plan"),
                stateless: false,
                parallelism: differs("parallelism").then(|| u32::try_from(parallelism).unwrap()),
                rest: differs("pods"),
            },
            mends: false,
            suspend: false,
            healthy_within: SignedDuration::from_mins(5),
            restart: None,
            rewind_to: None,
            accept_lost_marker: None,
            lived: Lived::default(),
        };
        change(&mut wanted);
        Some(wanted)
    })
}

fn document(plan: &str, parallelism: u32) -> Value {
    json!({"plan": plan, "parallelism": parallelism, "pods": "a"})
}

type Wish = Box<dyn Fn(Option<&Record>) -> Option<Wanted>>;

/// Plays the life undisturbed, then with a kill behind each pass; returns the undisturbed end.
fn play(life: &[Wish], begin: &World) -> World {
    let mut undisturbed = begin.clone();
    for wish in life {
        undisturbed.settle(&**wish, &mut None);
    }
    for dies_at in 0..LIMIT {
        let mut world = begin.clone();
        let mut dies = Some(dies_at);
        for wish in life {
            world.settle(&**wish, &mut dies);
        }
        assert_eq!(world.record, undisturbed.record, "killed behind {dies_at}");
        let calm = (alike(&world.run), alike(&undisturbed.run));
        assert_eq!(calm.0, calm.1, "killed behind {dies_at}");
        assert_eq!(world.runs, undisturbed.runs, "killed behind {dies_at}");
    }
    undisturbed
}

fn state(world: &World) -> &State {
    &world.record.as_ref().expect("there is a record").state
}

#[test]
fn new_job_is_written_down_and_started() {
    let one = document("a", 1);
    let end = play(&[wish(1, &one)], &World::new());

    let mut record = Record {
        plan: one["plan"].to_string(),
        ..Record::new("uid-1", one.clone(), 1)
    };
    record.done.accept_lost_marker = Used::Known(None);
    assert_eq!(
        end.record,
        Some(Record {
            ran: true,
            ..record
        })
    );
    assert_eq!(end.runs, Some(one));
}

#[test]
fn suspended_job_has_a_savepoint_and_goes_on_when_it_is_resumed() {
    let one = document("a", 1);
    let stop = || wish_with(2, &document("a", 1), |wanted| wanted.suspend = true);
    let end = play(&[wish(1, &one), stop()], &World::new());

    assert_eq!(*state(&end), State::Suspended);
    assert_eq!(end.savepoints, ["suspend-2-1"]);

    // Edited while it is suspended: taken as it is.
    let two = document("b", 1);
    let life: Vec<Wish> = vec![wish(1, &one), stop(), wish(3, &two)];
    let end = play(&life, &World::new());
    assert_eq!(*state(&end), State::Active);
    assert_eq!(end.runs, Some(two));
}

#[test]
fn another_plan_is_an_upgrade_with_a_savepoint() {
    let life: Vec<Wish> = vec![wish(1, &document("a", 1)), wish(2, &document("b", 1))];
    let end = play(&life, &World::new());

    assert_eq!(end.savepoints, ["upgrade-2-1"]);
    let record = end.record.expect("there is one");
    assert_eq!((record.generation, record.previous), (2, None));
    assert_eq!(end.runs, Some(document("b", 1)));
}

#[test]
fn upgrade_that_fails_is_rolled_back_and_not_tried_again_until_it_is_edited() {
    let mut world = World::new();
    world.broken.push(document("bad", 1));
    let life: Vec<Wish> = vec![wish(1, &document("a", 1)), wish(2, &document("bad", 1))];
    let end = play(&life, &world);

    let record = end.record.as_ref().expect("there is one");
    assert_eq!(record.document, document("a", 1));
    let refused = record.refused.as_ref().expect("it was rolled back");
    assert_eq!((refused.generation, &*refused.reason), (2, "a poison row"));
    assert_eq!(end.runs, Some(document("a", 1)));

    let mut again = life;
    again.push(wish(3, &document("c", 1)));
    let end = play(&again, &world);
    assert_eq!(end.runs, Some(document("c", 1)));
    assert_eq!(end.record.expect("there is one").refused, None);
}

#[test]
fn document_that_was_rolled_back_is_not_tried_again_when_it_is_scaled() {
    let mut world = World::new();
    world.broken.push(document("bad", 1));
    let life: Vec<Wish> = vec![
        wish(1, &document("a", 1)),
        wish(2, &document("bad", 1)),
        wish(3, &document("bad", 4)),
        wish(4, &document("bad", 1)),
        wish(5, &document("bad", 3)),
    ];
    let end = play(&life, &world);

    assert_eq!((&end.runs, end.parallelism), (&Some(document("a", 3)), 3));
    let record = end.record.expect("there is one");
    assert_eq!(record.refused.expect("it was rolled back").generation, 2);
}

#[test]
fn document_that_was_rolled_back_is_not_tried_again_after_a_stop() {
    let mut world = World::new();
    world.broken.push(document("bad", 1));
    let stop = wish_with(3, &document("bad", 1), |wanted| wanted.suspend = true);
    let life: Vec<Wish> = vec![
        wish(1, &document("a", 1)),
        wish(2, &document("bad", 1)),
        stop,
        wish(4, &document("bad", 1)),
    ];
    let end = play(&life, &world);

    assert_eq!(end.runs, Some(document("a", 1)));
}

#[test]
fn job_whose_record_was_deleted_goes_on_where_its_status_says() {
    let lived = Lived {
        incarnation: 2,
        ran: true,
        refused: None,
    };
    let wish = wish_with(7, &document("a", 1), move |wanted| {
        wanted.lived = lived.clone();
    });
    let mut world = World::new();
    world.folders.push(2);
    let record = play(&[wish], &world).record.expect("there is one");
    assert_eq!((record.incarnation, record.ran), (2, true));
}

#[test]
fn document_that_was_rolled_back_is_not_begun_with_when_the_record_was_deleted() {
    let refused = |plan: &str| Refused {
        generation: 2,
        plan: json!(plan).to_string(),
        reason: "a poison row".to_owned(),
    };
    let wish = |plan| {
        wish_with(7, &document(plan, 1), move |wanted| {
            wanted.lived.refused = Some(refused("bad"));
        })
    };
    let mut world = World::new();
    assert!(!world.pass(&*wish("bad")));

    world.settle(&*wish("mended"), &mut None);
    assert_eq!(world.runs, Some(document("mended", 1)));
}

#[test]
fn upgrade_that_never_gets_healthy_is_rolled_back_in_time() {
    let mut world = World::new();
    world.settle(&*wish(1, &document("a", 1)), &mut None);
    let upgrade = wish(2, &document("b", 1));
    while world.runs != Some(document("b", 1)) {
        world.pass(&*upgrade);
    }
    let begun = world;
    // It may never load its tasks, or run and never complete a checkpoint.
    for is_running in [false, true] {
        let mut world = begun.clone();
        world.run = Run::Alive(Alive {
            is_running,
            ..alive()
        });
        assert!(!world.pass(&*upgrade), "it has time");

        world.now += SignedDuration::from_mins(6);
        world.settle(&*upgrade, &mut None);

        assert_eq!(world.runs, Some(document("a", 1)), "{is_running}");
    }
}

#[test]
fn other_parallelism_is_an_order_and_no_restart() {
    let life: Vec<Wish> = vec![wish(1, &document("a", 1)), wish(2, &document("a", 3))];
    let mut world = World::new();
    for wish in &life {
        world.settle(&**wish, &mut None);
    }

    assert_eq!(world.parallelism, 3);
    assert!(world.savepoints.is_empty());
    assert_eq!(world.record.expect("there is one").generation, 2);
}

#[test]
fn finished_job_stays_finished_and_its_coordinator_ends() {
    let one = document("a", 1);
    let mut world = World::new();
    world.settle(&*wish(1, &one), &mut None);
    world.run = ended(Ended::Finished);
    let end = play(&[wish(1, &one), wish(2, &document("b", 2))], &world);

    let finished = World {
        run: ended(Ended::Finished),
        ..world
    };
    assert_eq!(*state(&end), State::Finished { at: finished.now });
    assert_eq!(end.run, Run::None);
}

#[test]
fn failed_job_waits_for_an_edit_or_an_order_to_restart() {
    let bad = document("bad", 1);
    let mut world = World::new();
    world.broken.push(bad.clone());
    let end = play(&[wish(1, &bad)], &world);
    assert!(matches!(state(&end), State::Failed { reason, .. } if reason == "a poison row"));
    assert_eq!(end.run, Run::None);

    let mut mended = end.clone();
    mended.broken.clear();
    let restart = wish_with(1, &bad, |wanted| wanted.restart = Some("now".to_owned()));
    mended.settle(&*restart, &mut None);
    assert_eq!((state(&mended), &mended.runs), (&State::Active, &Some(bad)));

    let mut edited = end;
    edited.settle(&*wish(2, &document("a", 1)), &mut None);
    assert_eq!(edited.runs, Some(document("a", 1)));
}

#[test]
fn invalid_edit_leaves_what_runs_alone() {
    let one = document("a", 1);
    let mut world = World::new();
    world.settle(&*wish(1, &one), &mut None);

    assert!(!world.pass(&|_| None));

    assert_eq!(world.runs, Some(one));
    world.run = Run::None; // a new operator starts what is on record, not what is invalid
    assert!(world.pass(&|_| None));
    assert!(matches!(world.run, Run::Alive(_)));
}

#[test]
fn store_that_was_away_is_no_end_of_a_job() {
    let one = document("a", 1);
    let mut world = World::new();
    world.settle(&*wish(1, &one), &mut None);
    world.run = ended(Ended::Broken("the store does not answer".to_owned()));

    world.settle(&*wish(1, &one), &mut None);

    assert!(matches!(world.run, Run::Alive(_)));
}

#[test]
fn stop_that_is_under_way_is_waited_for_and_not_overtaken() {
    let mut world = World::new();
    world.settle(&*wish(1, &document("a", 1)), &mut None);
    let Run::Alive(alive) = &mut world.run else {
        panic!("it runs")
    };
    (alive.is_running, alive.is_stopping) = (false, true);

    assert!(!world.pass(&*wish(2, &document("b", 1))));
}

#[test]
fn job_that_does_not_run_is_suspended_without_a_savepoint() {
    let stop = wish_with(2, &document("a", 1), |wanted| wanted.suspend = true);
    let mut world = World::new();
    world.settle(&*wish(1, &document("a", 1)), &mut None);
    if let Run::Alive(alive) = &mut world.run {
        alive.is_running = false;
    }

    world.settle(&*stop, &mut None);

    assert_eq!(
        (state(&world), world.savepoints.len()),
        (&State::Suspended, 0)
    );
}

#[test]
fn store_that_cannot_be_opened_is_mended_by_an_edit() {
    let mut world = World::new();
    world.pass(&*wish(1, &document("typo", 1)));
    world.run = ended(Ended::Broken("no such bucket".to_owned()));
    world.runs = Some(document("typo", 1));

    world.settle(&*wish(2, &document("mended", 1)), &mut None);

    assert_eq!(world.runs, Some(document("mended", 1)));
}

#[test]
fn failed_job_that_is_suspended_does_not_run_again() {
    let bad = document("bad", 1);
    let mut world = World::new();
    world.broken.push(bad.clone());
    world.settle(&*wish(1, &bad), &mut None);

    world.settle(
        &*wish_with(2, &bad, |wanted| wanted.suspend = true),
        &mut None,
    );

    assert_eq!(*state(&world), State::Suspended);
    assert_eq!(world.starts_n, 1);
}
