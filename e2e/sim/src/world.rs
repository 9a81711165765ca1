//! Everything there is, and who moves next.
//!
//! Owns: the chaos. Start at: [`run`].

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use streamforge_coordinator::{ELSEWHERE, Error, Input as CoordinatorInput, Outcome};
use streamforge_core::job_graph::JobGraph;
use streamforge_core::manifest::CheckpointKind;
use streamforge_store::MemoryStore;
use streamforge_store::memory::{Fault, Faults, Operation, OperationKind};

use crate::job::{Input, Shape, shapes};
use crate::oracle;
use crate::outside::Outside;
use crate::process::{Process, id_of, registered};
use crate::rng::Rng;
use crate::saved::{NAMES, SavepointWatch};
use crate::task_manager::{SeededFaults, TaskManager};
use crate::trace::Trace;
use crate::watch::HeadWatch;

/// Far more steps than a calm job needs.
const CALM_STEPS_MAX: u64 = 300_000;

/// Steps of chaos for a job that begins with a savepoint.
const CHAOS_OF_BEGUN_N: u64 = 500;

/// Steps that zombies and late puts have to spoil a finished job.
const AFTER_STEPS_N: u64 = 1_000;

/// What happened, over all seeds: the chaos must reach everything it is for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Committed checkpoints.
    pub checkpoints_n: u64,
    /// Coordinators started.
    pub coordinators_n: u64,
    /// Coordinators that found a newer one.
    pub fenced_n: u64,
    /// Stops with a checkpoint.
    pub stopped_n: u64,
    /// Puts that arrived long after they were given up, and took effect.
    pub landed_late_n: u64,
    /// New attempts after a failure.
    pub restarts_n: u64,
    /// Coordinators that died.
    pub coordinator_crashes_n: u64,
    /// Task managers that died.
    pub task_manager_crashes_n: u64,
    /// Attempts that began at another parallelism than the one before.
    pub rescales_n: u64,
    /// Late (record, window) pairs.
    pub late_n: u64,
    /// Rows published.
    pub rows_n: u64,
    /// Savepoints.
    pub savepoints_n: u64,
    /// Jobs that began with one.
    pub begun_n: u64,
}

impl Totals {
    /// Adds another seed's.
    pub fn add(&mut self, other: &Totals) {
        for (mine, others) in self.fields().into_iter().zip(other.clone().fields()) {
            *mine += *others;
        }
    }

    fn fields(&mut self) -> [&mut u64; 13] {
        [
            &mut self.checkpoints_n,
            &mut self.coordinators_n,
            &mut self.fenced_n,
            &mut self.stopped_n,
            &mut self.landed_late_n,
            &mut self.restarts_n,
            &mut self.coordinator_crashes_n,
            &mut self.task_manager_crashes_n,
            &mut self.rescales_n,
            &mut self.late_n,
            &mut self.rows_n,
            &mut self.savepoints_n,
            &mut self.begun_n,
        ]
    }

    /// Whether everything happened at least once.
    pub fn has_everything(&self) -> bool {
        self.clone().fields().iter().all(|n| **n > 0)
    }
}

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
    rng: Rng,
    shape: &'a Shape,
    graph: &'a JobGraph,
    input: Arc<Input>,
    now_ms: u64,
    steps_n: u64,
    store: MemoryStore,
    /// What sinks wrote.
    pub outside: Outside,
    /// Coordinators, oldest first.
    pub processes: Vec<Process>,
    processes_n: u64,
    /// Task managers.
    pub task_managers: Vec<TaskManager>,
    task_managers_n: u64,
    /// The newest head.
    pub watch: HeadWatch,
    saved: SavepointWatch,
    /// The job begins with a savepoint, which is there until the job has made it its own.
    restore_from: Option<String>,
    /// How the coordinators that are gone ended.
    pub outcomes: Vec<(u64, Outcome)>,
    parallelism: u32,
    totals: Totals,
    calm: Arc<AtomicBool>,
    /// One store call in so many fails.
    faults_one_in: u64,
    /// One step in so many brings a calamity.
    stir_one_in: u64,
    /// When nobody coordinates, somebody is started.
    restarts: bool,
    /// Given-up puts arrive by themselves.
    lands: bool,
    trace: Trace,
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
            let rows = |it: &crate::job::SplitRecords| it.records.len();
            let splits: Vec<usize> = input.splits.iter().map(rows).collect();
            let wild = input.wild;
            format!(
                "{}: splits of {splits:?} rows, wild: {wild}, calamity in {stir_one_in}",
                shape.name
            )
        });
        Self {
            rng,
            shape,
            graph,
            input,
            now_ms: 1,
            steps_n: 0,
            store: MemoryStore::new(),
            outside: Outside::default(),
            processes: Vec::new(),
            processes_n: 0,
            task_managers: Vec::new(),
            outcomes: Vec::new(),
            task_managers_n: 0,
            watch: HeadWatch::default(),
            saved: SavepointWatch::default(),
            restore_from: None,
            parallelism: 0,
            totals: Totals::default(),
            calm: Arc::new(AtomicBool::new(false)),
            faults_one_in,
            stir_one_in,
            restarts: true,
            lands: true,
            trace,
        }
    }

    fn run(mut self) -> (Totals, u64) {
        let chaos_steps_n = 500 + self.rng.below(6_000);
        self.play(chaos_steps_n);
        let saved = self.saved.newest.take();
        let (seed, shape, graph) = (self.rng.any(), self.shape, self.graph);
        let (input, trace) = (Arc::clone(&self.input), self.trace.clone());
        let (mut totals, hash) = self.finish();
        let Some(saved) = saved else {
            return (totals, hash);
        };
        let mut begun = World::with_input(Rng::new(seed), shape, graph, input, trace);
        let (id, store) = (saved.id, saved.elsewhere());
        begun.trace.say(|| format!("another job begins with {id}"));
        begun.restore_from = Some(format!("savepoint of {id}"));
        (begun.store, begun.outside) = (store, saved.outside);
        begun.play(CHAOS_OF_BEGUN_N);
        let (others, hash_of_begun) = begun.finish();
        totals.add(&others);
        totals.begun_n += 1;
        (totals, hash ^ hash_of_begun.rotate_left(1))
    }

    /// Some chaos, then calm until the job is finished.
    fn play(&mut self, chaos_steps_n: u64) {
        self.start_somebody();
        for _step in 0..chaos_steps_n {
            self.step();
        }
        // Calm: no more faults, no new forks; zombies stay and wake up whenever they like.
        self.calm.store(true, Ordering::Relaxed);
        self.trace.say(|| "calm".to_owned());
        if !self.watch.is_finished() {
            self.start_somebody();
        }
        let mut left = CALM_STEPS_MAX;
        while !self.watch.is_finished() {
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
        self.until("finished", |world| world.watch.is_finished());
        self.finish();
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

    /// Whether everything was read and fired.
    pub fn is_done(&self) -> bool {
        let last = self.watch.newest.as_ref();
        self.watch.is_finished() || last.is_some_and(|it| it.kind == CheckpointKind::Final)
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
                .find(|it| it.id == task_manager);
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
    }

    /// A person asks this coordinator for a stop.
    pub fn stop(&mut self, id: u64) {
        let now_ms = self.now_ms;
        self.coordinator(id).feed(now_ms, CoordinatorInput::Stop);
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
            &self.input,
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
        self.totals.late_n = self.outside.rows(crate::job::LATE).len() as u64;
        self.trace.note(&[rows_n, self.now_ms, self.steps_n]);
        (self.totals, self.trace.hash())
    }

    fn is_calm(&self) -> bool {
        self.calm.load(Ordering::Relaxed)
    }

    fn client(&mut self) -> MemoryStore {
        let one_in = self.faults_one_in;
        let rng = self.rng.split();
        self.store.connect(SeededFaults {
            rng,
            one_in,
            calm: Arc::clone(&self.calm),
        })
    }

    fn start_somebody(&mut self) {
        let task_manager = if self.task_managers.is_empty() || self.rng.one_in(3) {
            self.start_task_manager()
        } else {
            let idx = self.rng.pick(self.task_managers.len());
            self.task_managers.get(idx).map_or(0, |it| it.id)
        };
        let parallelism = 1 + u32::try_from(self.rng.below(3)).unwrap_or(0);
        self.start_coordinator(task_manager, parallelism);
    }

    /// A coordinator that speaks to this task manager; returns its id.
    pub fn start_coordinator(&mut self, task_manager: u64, parallelism: u32) -> u64 {
        self.totals.rescales_n +=
            u64::from(self.parallelism != 0 && self.parallelism != parallelism);
        self.parallelism = parallelism;
        let client = self.client();
        let mut process = Process::new(
            &mut self.rng,
            self.graph,
            client,
            task_manager,
            parallelism,
            self.restore_from.clone(),
        );
        self.processes_n += 1;
        process.id = self.processes_n;
        self.trace
            .say(|| format!("coordinator at {parallelism}, task manager {task_manager}"));
        self.processes.push(process);
        self.totals.coordinators_n += 1;
        self.processes_n
    }

    /// A task manager that runs nothing; returns its id.
    pub fn start_task_manager(&mut self) -> u64 {
        self.task_managers_n += 1;
        let (id, store) = (self.task_managers_n, self.client());
        self.task_managers.push(TaskManager::new(
            id,
            &self.input,
            self.shape.unbounded,
            store,
        ));
        id
    }

    /// One thing happens.
    pub fn step(&mut self) {
        self.steps_n += 1;
        self.now_ms += self.rng.below(6);
        if self.lands && self.store.under_way_n() > 0 && self.rng.one_in(50) {
            let idx = self.rng.pick(self.store.under_way_n());
            let landed = self.store.land(idx);
            self.trace
                .say(|| format!("{} landed late: {landed:?}", self.now_ms));
            self.totals.landed_late_n += u64::from(landed.is_some_and(|(_, took)| took));
        }
        if !self.is_calm() && self.rng.one_in(self.stir_one_in) {
            self.stir();
        }
        if self.restarts && self.processes.is_empty() && !self.watch.is_finished() {
            self.start_somebody();
        }
        self.move_somebody();
        self.look();
    }

    fn stir(&mut self) {
        let calamity = self.rng.below(8);
        self.trace.note(&[calamity, self.now_ms]);
        match calamity {
            // A fork: the old one goes on and does not know.
            0 if self.processes.len() < 3 => self.start_somebody(),
            // The newest freezes, and a second one is started.
            1 if self.processes.len() < 3 => {
                let until = self.steps_n + self.rng.below(3_000);
                self.trace
                    .say(|| format!("{} a coordinator falls asleep", self.now_ms));
                if let Some(process) = self.processes.last_mut() {
                    process.asleep_until = until;
                }
                self.start_somebody();
            }
            2 if !self.processes.is_empty() => self.crash_coordinator(),
            3 => {
                let now_ms = self.now_ms;
                self.trace.say(|| format!("{now_ms} stop"));
                if let Some(process) = self.processes.last_mut() {
                    process.feed(now_ms, CoordinatorInput::Stop);
                }
            }
            4 | 5 => self.ask_for_savepoint(),
            _ if !self.task_managers.is_empty() => self.crash_task_manager(),
            _ => {}
        }
    }

    /// A person wants a savepoint, and the job stopped there now and then.
    fn ask_for_savepoint(&mut self) {
        let (now_ms, stops) = (self.now_ms, self.rng.one_in(4));
        let name = NAMES.get(self.rng.pick(NAMES.len())).copied();
        let Some(process) = self.processes.last_mut() else {
            return;
        };
        let name = name.unwrap_or_default().to_owned();
        if process.co.check_savepoint(&name, stops).is_ok() {
            self.trace
                .say(|| format!("{now_ms} savepoint {name}, stops: {stops}"));
            process.feed(now_ms, CoordinatorInput::Savepoint { name, stops });
        }
    }

    /// A death: what it had sent may still arrive.
    fn crash_coordinator(&mut self) {
        let idx = self.rng.pick(self.processes.len());
        let mut dead = self.processes.swap_remove(idx);
        self.trace
            .say(|| format!("{} a coordinator dies", self.now_ms));
        self.totals.coordinator_crashes_n += 1;
        while !dead.requests.is_empty() && self.rng.one_in(2) {
            dead.perform(0);
        }
        while !dead.commands.is_empty() && self.rng.one_in(2) {
            self.deliver(&mut dead);
        }
    }

    fn crash_task_manager(&mut self) {
        let idx = self.rng.pick(self.task_managers.len());
        let dead = self.task_managers.get(idx).map_or(0, |it| it.id);
        self.kill_task_manager(dead);
    }

    /// This task manager dies; those connected to it hear of it, and a new one takes its place.
    pub fn kill_task_manager(&mut self, dead: u64) {
        self.task_managers.retain(|it| it.id != dead);
        self.trace
            .say(|| format!("{} task manager {dead} dies", self.now_ms));
        self.totals.task_manager_crashes_n += 1;
        let next = self.start_task_manager();
        for process in self
            .processes
            .iter_mut()
            .filter(|it| it.task_manager == dead)
        {
            process.task_manager = next;
            process.commands.clear();
            let lost = CoordinatorInput::SessionLost {
                task_manager: id_of(dead),
                cause: "the session broke".to_owned(),
            };
            process.news.extend([lost, registered(next)]);
        }
    }

    fn move_somebody(&mut self) {
        if self.processes.is_empty() || self.rng.below(10) < 6 {
            return self.move_task_manager();
        }
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
        let mut process = self.processes.remove(idx);
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
            3 | 4 if !process.commands.is_empty() => self.deliver(&mut process),
            3 | 4 => self.hear(&mut process),
            5 => self.hear(&mut process),
            _ => process.feed(now_ms, CoordinatorInput::Tick),
        }
        if process.outcome.is_some() && process.commands.is_empty() {
            return self.on_ended(process);
        }
        self.processes.insert(idx, process);
    }

    /// A command arrives at the task manager.
    fn deliver(&mut self, process: &mut Process) {
        let Some((stamp, command)) = process.commands.pop_front() else {
            return;
        };
        self.trace
            .note(&[2, stamp.epoch.get(), stamp.generation.get()]);
        self.trace.say(|| {
            let text = format!("{command:?}");
            let short: String = text.chars().take(160).collect();
            format!(
                "{} g{} e{} {short}",
                self.now_ms, stamp.generation, stamp.epoch
            )
        });
        let found = self
            .task_managers
            .iter_mut()
            .find(|it| it.id == process.task_manager);
        if let Some(task_manager) = found {
            task_manager.on_command(stamp, command, &mut self.outside);
        }
        self.spread(process.task_manager, Some(process));
    }

    /// What the task manager said arrives at the coordinator.
    fn hear(&mut self, process: &mut Process) {
        let Some(input) = process.news.pop_front() else {
            return;
        };
        self.trace.say(|| {
            let text = format!("{input:?}");
            let short: String = text.chars().take(160).collect();
            format!("{} {short}", self.now_ms)
        });
        process.feed(self.now_ms, input);
    }

    fn move_task_manager(&mut self) {
        let busy: Vec<usize> = (0..self.task_managers.len())
            .filter(|idx| {
                self.task_managers
                    .get(*idx)
                    .is_some_and(TaskManager::is_busy)
            })
            .collect();
        let Some(idx) = busy.get(self.rng.pick(busy.len())).copied() else {
            return;
        };
        let (now_ms, calm) = (self.now_ms, self.is_calm());
        let Some(task_manager) = self.task_managers.get_mut(idx) else {
            return;
        };
        self.trace.note(&[3, idx as u64, now_ms]);
        task_manager.step(&mut self.rng, now_ms, &mut self.outside, calm);
        let id = task_manager.id;
        self.spread(id, None);
    }

    /// What a task manager says is on its way to whoever is connected to it.
    fn spread(&mut self, id: u64, mut other: Option<&mut Process>) {
        let Some(task_manager) = self.task_managers.iter_mut().find(|it| it.id == id) else {
            return;
        };
        for (stamp, event) in std::mem::take(&mut task_manager.out) {
            let connected = self.processes.iter_mut().filter(|it| it.task_manager == id);
            for process in connected.chain(other.as_deref_mut()) {
                let event = CoordinatorInput::Task(id_of(id), stamp.clone(), event.clone());
                process.news.push_back(event);
            }
        }
    }

    fn look(&mut self) {
        self.totals.savepoints_n += self.saved.look(&self.store, &self.outside);
        if let Some(manifest) = self.watch.look(&self.store, self.graph, &self.input) {
            self.outside.on_named(manifest);
            self.trace.note(&[4, manifest.id.get()]);
            self.trace.say(|| {
                format!(
                    "{} the head names {} {:?}",
                    self.now_ms, manifest.id, manifest.kind
                )
            });
            if self.restore_from.is_some() {
                // The job references nothing of it any more (C9).
                let there = self.store.list_now(ELSEWHERE).unwrap_or_default();
                let keys: Vec<String> = there.into_iter().map(|it| it.key).collect();
                self.store
                    .delete_now(&keys)
                    .expect("this client never fails");
            }
        }
    }

    fn on_ended(&mut self, mut ended: Process) {
        let status = ended.co.status();
        self.totals.restarts_n += u64::from(status.restarts_n);
        self.totals.checkpoints_n += status.checkpoint.completed_n;
        self.trace
            .say(|| format!("{} coordinator ended: {:?}", self.now_ms, ended.outcome));
        match ended.outcome.as_ref() {
            Some(Outcome::Finished { .. }) | None => {}
            Some(Outcome::Stopped { .. }) => self.totals.stopped_n += 1,
            Some(Outcome::Failed(Error::Fenced { .. })) => self.totals.fenced_n += 1,
            // The savepoint was gone before this start had read it: another one has it by then.
            Some(Outcome::Failed(Error::SavepointDamaged { .. }))
                if self.restore_from.is_some() && self.watch.newest.is_some() => {}
            // A start gives a store up that does not answer.
            Some(Outcome::Failed(Error::Store { .. })) => {}
            Some(Outcome::Failed(error)) => panic!("{}: {error}", self.shape.name),
        }
        self.outcomes
            .extend(ended.outcome.take().map(|outcome| (ended.id, outcome)));
    }
}
