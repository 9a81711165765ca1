//! Everything there is, and who moves next.
//!
//! Owns: time, the order of steps, and what a person or a test may ask for. Who has a session with whom
//! is in [`crate::fleet`], what goes wrong by itself in [`crate::calamity`]. Start at: [`run`].

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use streamforge_coordinator::{Error, Input as CoordinatorInput, MemberPolicy, Outcome};
use streamforge_core::ids::{CheckpointId, Epoch, SubtaskIdx};
use streamforge_core::job_graph::JobGraph;
use streamforge_core::manifest::{CheckpointKind, Manifest};
use streamforge_core::messages::TaskManagerId;
use streamforge_store::MemoryStore;
use streamforge_store::memory::{Fault, Faults, Operation, OperationKind};

use crate::input::Input;
use crate::job::{FAR, Shape, shapes};
use crate::kafka::Kafka;
use crate::net::Net;
use crate::oracle;
use crate::outside::Outside;
use crate::process::Process;
use crate::rng::Rng;
use crate::saved::{SavepointWatch, delete_elsewhere};
use crate::task_manager::{SeededFaults, TaskManager};
use crate::totals::Totals;
use crate::trace::Trace;
use crate::watch::HeadWatch;

/// Far more steps than a calm job needs.
const CALM_STEPS_MAX: u64 = 300_000;

/// One step in so many somebody asks for a savepoint.
const SAVEPOINT_ONE_IN: u64 = 1_500;

/// Steps of chaos for a job that begins with a savepoint.
const CHAOS_OF_BEGUN_N: u64 = 500;

/// Steps that zombies and late puts have to spoil a finished job.
const AFTER_STEPS_N: u64 = 1_000;

/// No put is answered; each arrives when it is told to.
#[derive(Debug)]
struct EveryPutIsLate;

impl Faults for EveryPutIsLate {
    fn on_operation(&mut self, operation: Operation<'_>) -> Fault {
        match operation.kind {
            OperationKind::Put => Fault::LandLater,
            _ => Fault::None,
        }
    }
}

/// One seed's history, to its end. Panics if an invariant breaks or the job does not finish.
pub fn run(seed: u64, trace: Trace) -> (Totals, u64) {
    let mut rng = Rng::new(seed);
    let all = shapes();
    let (shape, graph) = all.get(rng.pick(all.len())).expect("there are shapes");
    World::new(rng, shape, graph, trace).run()
}

/// Everything there is.
pub struct World<'a> {
    pub(crate) rng: Rng,
    pub(crate) shape: &'a Shape,
    pub(crate) graph: &'a JobGraph,
    pub(crate) input: Arc<Input>,
    /// Who holds the input, if that is not simply there.
    pub kafka: Option<Kafka>,
    pub(crate) now_ms: u64,
    pub(crate) steps_n: u64,
    pub(crate) store: MemoryStore,
    /// What sinks wrote.
    pub outside: Outside,
    /// Coordinators, oldest first.
    pub processes: Vec<Process>,
    pub(crate) processes_n: u64,
    /// Task managers.
    pub task_managers: Vec<TaskManager>,
    pub(crate) task_managers_n: u64,
    /// Task managers there should be, by name, with their slots; empty: one with any number.
    pub(crate) fleet: Vec<(String, u32)>,
    /// Who ran which subtask of which epoch (O4).
    pub(crate) owners: BTreeMap<(Epoch, SubtaskIdx), TaskManagerId>,
    pub(crate) net: Net,
    pub(crate) members: MemberPolicy,
    /// The newest head.
    pub watch: HeadWatch,
    saved: SavepointWatch,
    /// The job begins with this savepoint.
    pub(crate) begun_with: Option<CheckpointId>,
    /// The same, there until the job has made it its own.
    elsewhere: Option<Manifest>,
    /// How the coordinators that are gone ended.
    pub outcomes: Vec<(u64, Outcome)>,
    pub(crate) parallelism: u32,
    pub(crate) totals: Totals,
    pub(crate) calm: Arc<AtomicBool>,
    /// One store call in so many fails.
    pub(crate) faults_one_in: u64,
    /// One step in so many brings a calamity.
    pub(crate) stir_one_in: u64,
    /// When nobody coordinates, somebody is started.
    pub(crate) restarts: bool,
    /// The job may end for good before its end.
    pub(crate) may_fail: bool,
    /// Given-up puts arrive by themselves.
    pub(crate) lands: bool,
    pub(crate) trace: Trace,
}

impl<'a> World<'a> {
    fn new(mut rng: Rng, shape: &'a Shape, graph: &'a JobGraph, trace: Trace) -> Self {
        let input = Input::new(shape, &mut rng);
        Self::with_input(rng, shape, graph, Arc::new(input), trace)
    }

    fn with_input(
        mut rng: Rng,
        shape: &'a Shape,
        graph: &'a JobGraph,
        input: Arc<Input>,
        trace: Trace,
    ) -> Self {
        let faults_one_in = 15 + rng.below(200);
        let stir_one_in = 150 + rng.below(1_500);
        trace.say(|| {
            let rows = |it: &crate::input::SplitRecords| it.records.len();
            let splits: Vec<usize> = input.splits.iter().map(rows).collect();
            let wild = input.wild;
            format!(
                "{}: splits of {splits:?} rows, wild: {wild}, calamity in {stir_one_in}",
                shape.name
            )
        });
        let calm = Arc::new(AtomicBool::new(false));
        let kafka = shape.kafka.then(|| {
            let is_bounded = !shape.unbounded;
            Kafka::new(&input, is_bounded, rng.split(), &calm)
        });
        Self {
            rng,
            shape,
            graph,
            input,
            kafka,
            now_ms: 1,
            steps_n: 0,
            store: MemoryStore::new(),
            outside: Outside::default(),
            processes: Vec::new(),
            processes_n: 0,
            task_managers: Vec::new(),
            fleet: Vec::new(),
            owners: BTreeMap::new(),
            net: Net::default(),
            members: MemberPolicy::default(),
            outcomes: Vec::new(),
            task_managers_n: 0,
            watch: HeadWatch::default(),
            saved: SavepointWatch::default(),
            begun_with: None,
            elsewhere: None,
            parallelism: 0,
            totals: Totals::default(),
            calm,
            faults_one_in,
            stir_one_in,
            restarts: true,
            may_fail: false,
            lands: true,
            trace,
        }
    }

    fn run(mut self) -> (Totals, u64) {
        let chaos_steps_n = 500 + self.rng.below(8_000);
        self.play(chaos_steps_n);
        let saved = self.saved.newest.take();
        let (seed, shape, graph) = (self.rng.any(), self.shape, self.graph);
        let (input, trace) = (Arc::clone(&self.input), self.trace.clone());
        let kafka = self.kafka.clone();
        let (mut totals, hash) = self.finish();
        let Some(saved) = saved else {
            return (totals, hash);
        };
        let mut begun = World::with_input(Rng::new(seed), shape, graph, input, trace);
        let id = saved.manifest.id;
        begun
            .trace
            .say(|| format!("another job begins with the savepoint of {id}"));
        if let Some(kafka) = kafka {
            let rng = begun.rng.split();
            begun.kafka = Some(kafka.for_another(&saved.manifest, rng, &begun.calm));
        }
        begun.store = saved.elsewhere();
        begun.outside = saved.outside;
        (begun.begun_with, begun.elsewhere) = (Some(id), Some(saved.manifest));
        begun.play(CHAOS_OF_BEGUN_N);
        let (others, hash_of_begun) = begun.finish();
        totals.add(&others);
        totals.begun_n += 1;
        (totals, hash ^ hash_of_begun.rotate_left(1))
    }

    /// Some chaos, then calm until the job is finished.
    fn play(&mut self, chaos_steps_n: u64) {
        self.choose_fleet();
        self.start_somebody();
        for _step in 0..chaos_steps_n {
            self.step();
        }
        // Calm: no more faults, no new forks; zombies stay and wake up whenever they like.
        self.calm.store(true, Ordering::Relaxed);
        self.trace.say(|| "calm".to_owned());
        self.restore_fleet();
        if !self.is_over() {
            self.start_somebody();
        }
        let mut left = CALM_STEPS_MAX;
        while !self.is_over() {
            left -= 1;
            assert!(
                left > 0,
                "{}: not finished; head {:?}",
                self.shape.name,
                self.watch.head
            );
            self.step();
        }
    }

    /// Runs the job to its end and compares everything.
    pub fn finish_quietly(mut self) {
        self.restarts = true;
        self.until("finished", Self::is_over);
        self.finish();
    }

    /// From now on the job may end for good before its end.
    pub fn expect_failure(&mut self) {
        self.may_fail = true;
    }

    /// Goes on until `is_so`; panics if that never comes.
    pub fn until(&mut self, what: &str, is_so: impl Fn(&Self) -> bool) {
        let mut left = CALM_STEPS_MAX;
        while !is_so(self) {
            left -= 1;
            assert!(
                left > 0,
                "{}: never {what}; head {:?}",
                self.shape.name,
                self.watch.head
            );
            self.step();
        }
    }

    /// A world in which nothing fails by itself and nobody coordinates yet.
    pub fn quiet(seed: u64, shape: &'a (Shape, JobGraph), input: Option<Input>) -> Self {
        let mut rng = Rng::new(seed);
        let input = input.unwrap_or_else(|| Input::new(&shape.0, &mut rng));
        let prints = std::env::var("SEED").is_ok();
        let (input, trace) = (Arc::new(input), Trace::new(prints));
        let mut world = Self::with_input(rng, &shape.0, &shape.1, input, trace);
        world.calm.store(true, Ordering::Relaxed);
        world.restarts = false;
        world.lands = false;
        world
    }

    /// Whether the job is finished; one without an end: whether everything was read, has fired and is
    /// visible.
    pub fn is_over(&self) -> bool {
        let (Some(kafka), Some(newest)) = (&self.kafka, &self.watch.newest) else {
            return self.watch.is_finished();
        };
        let operators = newest.operators.values();
        let mut watermarks = operators.flat_map(|it| &it.watermarks);
        self.watch.is_finished()
            || kafka.is_over()
                && watermarks.all(|(_, watermark)| watermark.0 > FAR / 2)
                && self.outside.unpublished_to(newest.id).is_empty()
    }

    /// Whether everything was read and fired.
    pub fn is_done(&self) -> bool {
        let last = self.watch.newest.as_ref();
        self.is_over() || last.is_some_and(|it| it.kind == CheckpointKind::Final)
    }

    /// Nothing is published until it is called with `false`.
    pub fn hold_publishes(&mut self, hold: bool) {
        self.task_managers
            .iter_mut()
            .for_each(|it| it.holds_publishes = hold);
    }

    /// One source of this task manager never hears of the next checkpoint; false: there is none.
    pub fn drop_a_barrier(&mut self, task_manager: u64) -> bool {
        loop {
            let found = self
                .task_managers
                .iter_mut()
                .find(|it| it.id.nonce == task_manager);
            if found.is_some_and(TaskManager::drop_a_barrier) {
                return true;
            }
            if self.is_done() {
                return false;
            }
            self.step();
        }
    }

    /// A coordinator that is still there.
    pub fn coordinator(&mut self, id: u64) -> &mut Process {
        let found = self.processes.iter_mut().find(|it| it.id == id);
        found.unwrap_or_else(|| panic!("coordinator {id} is gone"))
    }

    /// Whether it is still there.
    pub fn has_coordinator(&self, id: u64) -> bool {
        self.processes.iter().any(|it| it.id == id)
    }

    /// Freezes a coordinator until it is woken.
    pub fn freeze(&mut self, id: u64) {
        self.coordinator(id).asleep_until = u64::MAX;
    }

    /// Wakes a coordinator.
    pub fn wake(&mut self, id: u64) {
        self.coordinator(id).asleep_until = 0;
    }

    /// A coordinator dies; nothing that it sent arrives any more.
    pub fn kill_coordinator(&mut self, id: u64) {
        self.processes.retain(|it| it.id != id);
        self.end_sessions_of(id);
    }

    /// A person asks this coordinator for a stop.
    pub fn stop(&mut self, id: u64) {
        let now_ms = self.now_ms;
        self.coordinator(id).feed(now_ms, CoordinatorInput::Stop);
    }

    /// A person asks this coordinator for another parallelism.
    pub fn scale_to(&mut self, id: u64, parallelism: u32) {
        let now_ms = self.now_ms;
        let process = self.coordinator(id);
        process.feed(now_ms, CoordinatorInput::Scale(parallelism));
    }

    /// One of a coordinator's requests arrives at the store, long after it gave it up: it gets no
    /// answer now, and the put waits for [`World::land`].
    pub fn delay_put(&mut self, id: u64, key_begins: &str) {
        let late = self.store.connect(EveryPutIsLate);
        self.coordinator(id).perform_through(&late, key_begins);
    }

    /// Given-up puts arrive; says which took effect.
    pub fn land(&mut self) -> Vec<(String, bool)> {
        let landed = std::iter::from_fn(|| self.store.land(0)).collect();
        self.look();
        landed
    }

    /// Keys in the store.
    pub fn keys(&self) -> Vec<String> {
        self.store.keys()
    }

    /// Late puts and zombies get a last chance to spoil it; then everything is compared.
    fn finish(mut self) -> (Totals, u64) {
        while self.store.land(0).is_some() {}
        while self.outside.land() {}
        for _step in 0..AFTER_STEPS_N {
            if self.processes.is_empty() {
                break;
            }
            self.now_ms += 1;
            self.move_somebody();
            self.look();
        }
        let manifest = self
            .watch
            .newest
            .as_ref()
            .expect("a finished job has a manifest");
        oracle::check(
            self.shape,
            (&self.input, self.kafka.as_ref()),
            manifest,
            &self.store,
            &self.outside,
        );
        let rows_n = self
            .outside
            .visible
            .values()
            .map(|rows| rows.len() as u64)
            .sum::<u64>();
        self.totals.rows_n = rows_n;
        let broker = self.outside.broker.as_ref();
        self.totals.forgotten_n = broker.map_or(0, |it| it.forgotten_n);
        if let Some(kafka) = &self.kafka {
            kafka.forget_work();
            self.totals.add_kafka(kafka.totals());
        }
        self.totals.late_n = self.outside.rows(crate::job::LATE).len() as u64;
        self.trace.note(&[rows_n, self.now_ms, self.steps_n]);
        (self.totals, self.trace.hash())
    }

    pub(crate) fn is_calm(&self) -> bool {
        self.calm.load(Ordering::Relaxed)
    }

    pub(crate) fn client(&mut self) -> MemoryStore {
        let one_in = self.faults_one_in;
        let rng = self.rng.split();
        self.store.connect(SeededFaults {
            rng,
            one_in,
            calm: Arc::clone(&self.calm),
        })
    }

    /// One thing happens.
    pub fn step(&mut self) {
        self.steps_n += 1;
        self.now_ms += self.rng.below(6);
        if let Some(kafka) = &self.kafka {
            for line in kafka.step(self.now_ms) {
                self.trace.say(|| format!("{} {line}", self.now_ms));
            }
        }
        if self.lands && self.store.under_way_n() > 0 && self.rng.one_in(50) {
            let idx = self.rng.pick(self.store.under_way_n());
            let landed = self.store.land(idx);
            self.trace
                .say(|| format!("{} landed late: {landed:?}", self.now_ms));
            self.totals.landed_late_n += u64::from(landed.is_some_and(|(_, took)| took));
        }
        if self.lands && self.rng.one_in(100) {
            self.outside.land();
        }
        if !self.is_calm() && self.rng.one_in(self.stir_one_in) {
            self.stir();
        }
        if !self.is_calm() && self.rng.one_in(SAVEPOINT_ONE_IN) {
            self.ask_for_savepoint();
        }
        if self.restarts && self.processes.is_empty() && !self.is_over() {
            self.start_somebody();
        }
        self.move_somebody();
        self.look();
    }

    fn move_somebody(&mut self) {
        match self.rng.below(12) {
            0..4 if !self.net.is_quiet() => self.move_frame(),
            4..8 if !self.processes.is_empty() => self.move_coordinator(),
            _ => self.move_task_manager(),
        }
    }

    fn move_coordinator(&mut self) {
        // The newest process moves most; zombies wake up now and then.
        let idx = if self.rng.one_in(4) {
            self.rng.pick(self.processes.len())
        } else {
            self.processes.len() - 1
        };
        let asleep_until = self.processes.get(idx).map_or(0, |it| it.asleep_until);
        if asleep_until <= self.steps_n {
            self.move_process(idx);
        }
    }

    fn move_process(&mut self, idx: usize) {
        let now_ms = self.now_ms;
        let action = self.rng.below(6);
        let Some(process) = self.processes.get_mut(idx) else {
            return;
        };
        match action {
            0 | 1 if !process.requests.is_empty() => {
                let request = self.rng.pick(process.requests.len());
                let text = process.perform(request);
                self.trace.note(&[1, text.len() as u64]);
                self.trace.say(|| format!("{now_ms} {text}"));
            }
            2 if !process.answers.is_empty() => {
                let answer = self.rng.pick(process.answers.len());
                let (id, answer) = process.answers.swap_remove(answer);
                process.feed(now_ms, CoordinatorInput::Store(id, answer));
            }
            3 | 4 if !process.commands.is_empty() => self.deliver(idx),
            3..6 => self.hear(idx),
            _ => process.feed(now_ms, CoordinatorInput::Tick),
        }
        let is_over = |it: &Process| it.outcome.is_some() && it.commands.is_empty();
        if self.processes.get(idx).is_some_and(is_over) {
            let ended = self.processes.remove(idx);
            self.on_ended(ended);
        }
    }

    /// What a task manager said arrives at the coordinator.
    fn hear(&mut self, idx: usize) {
        let Some(process) = self.processes.get_mut(idx) else {
            return;
        };
        let Some(input) = process.hear(&mut self.rng) else {
            return;
        };
        self.trace.say(|| {
            let text = format!("{input:?}");
            let short: String = text.chars().take(160).collect();
            format!("{} co{} {short}", self.now_ms, process.id)
        });
        process.feed(self.now_ms, input);
    }

    pub(crate) fn look(&mut self) {
        self.totals.savepoints_n += self.saved.look(&self.store, &self.outside);
        let named = self.watch.look(&self.store, self.graph, &self.input);
        if let Some(manifest) = named.cloned() {
            self.outside.on_named(&manifest);
            if let Some(kafka) = &self.kafka {
                kafka.on_named(&manifest);
            }
            if let Some(stop) = self.watch.recorded.take() {
                let unpublished = self.outside.unpublished_to(manifest.id);
                assert!(
                    unpublished.is_empty(),
                    "{unpublished:?} are not visible (X3)"
                );
                self.outside.book.on_recorded(&stop, manifest.id);
                self.totals.recorded_n += 1;
            }
            if let Some(savepoint) = self.elsewhere.take() {
                self.outside.book = self.outside.book.copied(&savepoint, &manifest);
                delete_elsewhere(&self.store);
            }
            self.trace.note(&[4, manifest.id.get()]);
            self.trace.say(|| {
                format!(
                    "{} the head names {} {:?}",
                    self.now_ms, manifest.id, manifest.kind
                )
            });
        }
    }

    fn on_ended(&mut self, mut ended: Process) {
        self.totals.count(&ended);
        self.trace
            .say(|| format!("{} coordinator ended: {:?}", self.now_ms, ended.outcome));
        match ended.outcome.as_ref() {
            Some(Outcome::Finished { .. }) | None => {}
            Some(Outcome::Stopped { .. }) => self.totals.stopped_n += 1,
            Some(Outcome::Failed(Error::Fenced { .. })) => self.totals.fenced_n += 1,
            // It was deleted before this start had read it: another one has made it the job's by then.
            Some(Outcome::Failed(Error::SavepointDamaged { .. }))
                if self.begun_with.is_some() && self.elsewhere.is_none() => {}
            // A start gives a store up that does not answer.
            Some(Outcome::Failed(Error::Store { .. })) => {}
            Some(Outcome::Failed(_)) if self.may_fail => {}
            Some(Outcome::Failed(error)) => panic!("{}: {error}", self.shape.name),
        }
        self.end_sessions_of(ended.id);
        self.outcomes
            .extend(ended.outcome.take().map(|outcome| (ended.id, outcome)));
    }
}
