//! Everything there is, and who moves next.

use std::collections::BTreeMap;

use streamforge_coordinator::{Error, Input, Outcome};
use streamforge_core::frame;
use streamforge_core::manifest::{self, HEAD_KEY, Head};
use streamforge_core::messages::TaskManagerId;
use streamforge_store::MemoryStore;
use streamforge_store::memory::NoFaults;

use crate::process::{Process, SeededFaults};
use crate::sink::Sink;
use crate::tasks::all_rows;

pub const SPLITS_N: u64 = 4;
pub const ROWS_PER_SPLIT: u64 = 300;

/// Steps of chaos before it calms down.
const CHAOS_STEPS_N: u64 = 8_000;

/// Far more steps than a calm job needs.
const CALM_STEPS_MAX: u64 = 200_000;

/// A small generator; the whole history follows from its seed.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n.max(1)
    }

    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

/// What happened, over all seeds: the chaos must reach everything it is for.
#[derive(Debug, Default)]
pub struct Totals {
    pub checkpoints_n: u64,
    pub takeovers_n: u64,
    pub fenced_n: u64,
    pub stopped_n: u64,
    pub landed_late_n: u64,
    pub landed_in_vain_n: u64,
    pub restarts_n: u64,
    pub zombies_n: u64,
}

impl Totals {
    pub fn add(&mut self, other: &Totals) {
        self.checkpoints_n += other.checkpoints_n;
        self.takeovers_n += other.takeovers_n;
        self.fenced_n += other.fenced_n;
        self.stopped_n += other.stopped_n;
        self.landed_late_n += other.landed_late_n;
        self.landed_in_vain_n += other.landed_in_vain_n;
        self.restarts_n += other.restarts_n;
        self.zombies_n += other.zombies_n;
    }

    pub fn has_everything(&self) -> bool {
        [
            self.checkpoints_n,
            self.takeovers_n,
            self.fenced_n,
            self.stopped_n,
            self.landed_late_n,
            self.landed_in_vain_n,
            self.restarts_n,
            self.zombies_n,
        ]
        .iter()
        .all(|n| *n > 0)
    }
}

pub struct World {
    rng: Rng,
    now_ms: u64,
    store: MemoryStore,
    sink: Sink,
    processes: Vec<Process>,
    head: Option<Head>,
    totals: Totals,
    calm: bool,
}

impl World {
    pub fn new(seed: u64) -> Self {
        Self {
            rng: Rng(seed),
            now_ms: 1,
            store: MemoryStore::new(),
            sink: Sink::default(),
            processes: Vec::new(),
            head: None,
            totals: Totals::default(),
            calm: false,
        }
    }

    pub fn run(mut self) -> Totals {
        self.start_process(40);
        for _step in 0..CHAOS_STEPS_N {
            if self.is_finished() {
                break;
            }
            self.step();
        }
        // Calm: no more faults, no new forks; zombies stay and wake up whenever they like.
        self.calm = true;
        self.start_process(0);
        for _step in 0..CALM_STEPS_MAX {
            if self.is_finished() {
                self.check();
                return self.totals;
            }
            self.step();
        }
        panic!(
            "not finished after {CALM_STEPS_MAX} calm steps; head {:?}",
            self.head
        );
    }

    fn start_process(&mut self, fault_one_in: u64) {
        let faults = SeededFaults {
            rng: Rng(self.rng.next()),
            one_in: fault_one_in,
        };
        let client = self.store.connect(faults);
        let parallelism = 1 + self.rng.below(4) as u32;
        let process = Process::new(&mut self.rng, client, parallelism);
        self.processes.push(process);
        self.totals.takeovers_n += 1;
    }

    fn is_finished(&self) -> bool {
        self.head.as_ref().is_some_and(|head| head.finished)
    }

    fn step(&mut self) {
        self.now_ms += self.rng.below(12);
        if self.rng.one_in(50) && self.store.under_way_n() > 0 {
            let idx = self.rng.below(self.store.under_way_n() as u64) as usize;
            if let Some((_, took_effect)) = self.store.land(idx) {
                let n = if took_effect {
                    &mut self.totals.landed_late_n
                } else {
                    &mut self.totals.landed_in_vain_n
                };
                *n += 1;
            }
        }
        if !self.calm {
            self.stir();
        }
        if self.processes.is_empty() {
            let faults = if self.calm {
                0
            } else {
                20 + self.rng.below(200)
            };
            self.start_process(faults);
        }
        // The newest process moves most; zombies wake up now and then.
        let newest = self.processes.len() - 1;
        let idx = if self.rng.one_in(4) {
            self.rng.below(self.processes.len() as u64) as usize
        } else {
            newest
        };
        self.move_process(idx);
        self.watch_head();
    }

    fn stir(&mut self) {
        match self.rng.below(1_500) {
            // A fork: the old one goes on and does not know.
            0 | 1 if self.processes.len() < 3 => {
                let faults = 20 + self.rng.below(200);
                self.totals.zombies_n += 1;
                self.start_process(faults);
            }
            // A death: what it had sent may still arrive.
            2 | 3 if !self.processes.is_empty() => {
                let idx = self.rng.below(self.processes.len() as u64) as usize;
                let mut dead = self.processes.swap_remove(idx);
                while !dead.requests.is_empty() && self.rng.one_in(2) {
                    dead.perform(0);
                }
            }
            4 => {
                let now_ms = self.now_ms;
                if let Some(process) = self.processes.last_mut() {
                    process.feed(now_ms, Input::Stop);
                }
            }
            _ => {}
        }
    }

    fn move_process(&mut self, idx: usize) {
        let (now_ms, calm) = (self.now_ms, self.calm);
        let Some(process) = self.processes.get_mut(idx) else {
            return;
        };
        match self.rng.below(6) {
            0 => process.feed(now_ms, Input::Tick),
            1 if !process.requests.is_empty() => {
                let request = self.rng.below(process.requests.len() as u64) as usize;
                process.perform(request);
            }
            2 => {
                if let Some((id, answer)) = process.answers.pop_front() {
                    process.feed(now_ms, Input::Store(id, answer));
                }
            }
            3 => {
                if let Some((stamp, command)) = process.commands.pop_front() {
                    let store = self.store.connect(NoFaults);
                    process
                        .tasks
                        .on_command(stamp, command, &mut self.sink, &store);
                }
            }
            4 => {
                if let Some((stamp, event)) = process.tasks.out.pop_front() {
                    let local = TaskManagerId::local();
                    process.feed(now_ms, Input::Task(local, stamp, event));
                }
            }
            _ => {
                let store = self.store.connect(NoFaults);
                process
                    .tasks
                    .step(&mut self.rng, &mut self.sink, &store, calm);
            }
        }
        if process.outcome.is_some() && process.commands.is_empty() {
            let ended = self.processes.remove(idx);
            self.on_ended(&ended);
        }
    }

    fn on_ended(&mut self, ended: &Process) {
        let status = ended.co.status();
        self.totals.restarts_n += u64::from(status.restarts_n);
        self.totals.checkpoints_n += status.checkpoint.completed_n;
        match ended.outcome.as_ref() {
            Some(Outcome::Finished { .. }) | None => {}
            Some(Outcome::Stopped { .. }) => self.totals.stopped_n += 1,
            Some(Outcome::Failed(Error::Fenced { .. })) => self.totals.fenced_n += 1,
            // A start gives a store up that does not answer.
            Some(Outcome::Failed(Error::Store { .. })) => {}
            Some(Outcome::Failed(error)) => panic!("{error}"),
        }
    }

    /// C4, C5: whatever happens, the head only moves forward.
    fn watch_head(&mut self) {
        let Ok(Some(object)) = self.store.get_now(HEAD_KEY) else {
            return;
        };
        let head: Head = manifest::decode(frame::HEAD, &object.bytes).expect("the head is whole");
        if let Some(before) = &self.head {
            if before.nonce == head.nonce {
                return;
            }
            assert!(
                head.generation >= before.generation,
                "a generation went back (C5)"
            );
            assert!(head.epoch >= before.epoch, "an epoch went back (C5)");
            assert!(
                head.ids_reserved_to >= before.ids_reserved_to,
                "a reservation went back (C4)"
            );
            let id = |head: &Head| head.newest.as_ref().map(|newest| newest.id);
            assert!(
                id(&head) >= id(before),
                "the newest manifest went back (C7)"
            );
            assert!(!before.finished, "a finished job was taken up again (C11)");
        }
        self.head = Some(head);
    }

    /// Every row once. Late puts and zombies get a last chance to spoil it.
    fn check(&mut self) {
        while self.store.land(0).is_some() {}
        for _step in 0..2_000 {
            self.now_ms += 1;
            if self.processes.is_empty() {
                break;
            }
            let idx = self.rng.below(self.processes.len() as u64) as usize;
            self.move_process(idx);
            self.watch_head();
        }
        let mut seen: BTreeMap<&(String, u64), u64> = BTreeMap::new();
        for row in &self.sink.visible {
            *seen.entry(row).or_default() += 1;
        }
        let twice: Vec<_> = seen.iter().filter(|(_, n)| **n != 1).collect();
        assert!(twice.is_empty(), "visible more than once: {twice:?}");
        let missing: Vec<_> = all_rows()
            .into_iter()
            .filter(|row| !seen.contains_key(row))
            .collect();
        assert!(missing.is_empty(), "lost: {missing:?}");
    }
}
