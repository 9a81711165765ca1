//! What goes wrong by itself.
//!
//! Owns: which calamity strikes whom. Start at: [`World::stir`].

use streamforge_coordinator::{Input as CoordinatorInput, MemberPolicy};

use crate::saved::NAMES;
use crate::world::World;

/// Coordinators at once.
const COORDINATORS_MAX: usize = 3;

/// Task managers at once, those that were replaced and live on included.
const TASK_MANAGERS_MAX: usize = 7;

impl World<'_> {
    /// How many task managers there are, whether they outlive their coordinator, and where the main
    /// output goes.
    pub(crate) fn choose_fleet(&mut self) {
        if self.rng.one_in(2) {
            self.publish_to_topic();
        }
        if self.rng.one_in(5) {
            return; // the only one, in the coordinator's process
        }
        let n = 1 + self.rng.below(4);
        for idx in 0..n {
            let slots = 1 + u32::try_from(self.rng.below(3)).unwrap_or(0);
            self.fleet.push((format!("tm-{idx}"), slots));
        }
        self.members = MemberPolicy {
            silence_ms_max: u64::MAX,
            adopt_within_ms: Some(500 + self.rng.below(3_000)),
            gather_ms: self.rng.below(600),
        };
    }

    /// Every task manager that should be there is, for good.
    pub(crate) fn restore_fleet(&mut self) {
        for (name, slots) in self.fleet.clone() {
            let there = self.task_managers.iter().any(|it| it.id.name == name);
            if !there {
                self.start_named(name, slots);
            }
        }
    }

    /// A parallelism that the whole fleet has slots for.
    fn any_parallelism(&mut self) -> u32 {
        let slots: u32 = self.fleet.iter().map(|(_, slots)| slots).sum();
        let max = if self.fleet.is_empty() {
            3
        } else {
            slots.min(4)
        };
        1 + u32::try_from(self.rng.below(u64::from(max))).unwrap_or(0)
    }

    /// Somebody who coordinates, and somebody to be coordinated.
    pub(crate) fn start_somebody(&mut self) {
        if self.fleet.is_empty() {
            let n = self.task_managers.len();
            if n == 0 || (n < TASK_MANAGERS_MAX && self.rng.one_in(3)) {
                self.start_task_manager();
            }
        } else if self.task_managers.is_empty() {
            self.restore_fleet();
        }
        let parallelism = self.any_parallelism();
        self.start_alone(parallelism);
    }

    fn any_task_manager(&mut self) -> Option<u64> {
        let idx = self.rng.pick(self.task_managers.len());
        self.task_managers.get(idx).map(|it| it.id.nonce)
    }

    /// Something goes wrong.
    pub(crate) fn stir(&mut self) {
        let calamity = self.rng.below(14);
        self.trace.note(&[calamity, self.now_ms]);
        match calamity {
            // A fork: the old one goes on and does not know.
            0 if self.processes.len() < COORDINATORS_MAX => self.start_somebody(),
            // The newest freezes, and a second one is started.
            1 if self.processes.len() < COORDINATORS_MAX => {
                let until = self.steps_n + self.rng.below(3_000);
                self.trace
                    .say(|| format!("{} a coordinator falls asleep", self.now_ms));
                if let Some(process) = self.processes.last_mut() {
                    process.asleep_until = until;
                }
                self.start_somebody();
            }
            2 | 3 if !self.processes.is_empty() => self.crash_coordinator(),
            4 => self.tell_newest("stop", CoordinatorInput::Stop),
            5 | 6 => self.scale(),
            7 => self.drain(),
            8 => self.freeze_somebody(),
            9 => self.break_session(),
            10 => self.break_channel(),
            11 => self.return_task_manager(),
            _ => self.crash_task_manager(),
        }
    }

    fn tell_newest(&mut self, what: &str, input: CoordinatorInput) {
        let now_ms = self.now_ms;
        self.trace.say(|| format!("{now_ms} {what}"));
        if let Some(process) = self.processes.last_mut() {
            process.feed(now_ms, input);
        }
    }

    /// A person wants another parallelism, perhaps one there are no slots for.
    fn scale(&mut self) {
        let parallelism = 1 + u32::try_from(self.rng.below(4)).unwrap_or(0);
        let newest = self.processes.last();
        if newest.is_some_and(|it| it.co.check_scale(parallelism).is_ok()) {
            let input = CoordinatorInput::Scale(parallelism);
            self.tell_newest(&format!("scale to {parallelism}"), input);
        }
    }

    /// A person wants a savepoint, and the job stopped there now and then.
    pub(crate) fn ask_for_savepoint(&mut self) {
        let stops = self.rng.one_in(8);
        let name = NAMES.get(self.rng.pick(NAMES.len())).copied();
        let name = name.unwrap_or_default().to_owned();
        let newest = self.processes.last();
        if newest.is_some_and(|it| it.co.check_savepoint(&name, stops).is_ok()) {
            let what = format!("savepoint {name}, stops: {stops}");
            self.tell_newest(&what, CoordinatorInput::Savepoint { name, stops });
        }
    }

    fn drain(&mut self) {
        let Some(nonce) = self.any_task_manager() else {
            return;
        };
        let id = self.id_of(nonce);
        let input = CoordinatorInput::Leaving(id);
        self.tell_newest(&format!("task manager {nonce} is to leave"), input);
    }

    /// A death: what it had sent may still arrive.
    fn crash_coordinator(&mut self) {
        let idx = self.rng.pick(self.processes.len());
        self.trace
            .say(|| format!("{} a coordinator dies", self.now_ms));
        self.totals.coordinator_crashes_n += 1;
        while let Some(dead) = self.processes.get_mut(idx)
            && !dead.requests.is_empty()
            && self.rng.one_in(2)
        {
            dead.perform(0);
        }
        while self
            .processes
            .get(idx)
            .is_some_and(|it| !it.commands.is_empty())
            && self.rng.one_in(2)
        {
            self.deliver(idx);
        }
        let dead = self.processes.remove(idx);
        self.totals.count(&dead);
        self.end_sessions_of(dead.id);
    }

    /// A death. At once, later, or never, a process of the same name comes.
    fn crash_task_manager(&mut self) {
        let Some(dead) = self.any_task_manager() else {
            return;
        };
        let (name, slots) = self
            .task_manager(dead)
            .map_or_else(Default::default, |it| (it.id.name.clone(), it.slots));
        self.lose_task_manager(dead);
        if self.rng.one_in(2) {
            self.start_named(name, slots);
        }
    }

    fn return_task_manager(&mut self) {
        let missing = self.fleet.iter().find(|(name, _)| {
            let mut there = self.task_managers.iter();
            !there.any(|it| it.id.name == *name)
        });
        if let Some((name, slots)) = missing.cloned() {
            self.trace.say(|| format!("{} {name} returns", self.now_ms));
            self.start_named(name, slots);
        }
    }

    /// SIGSTOP: after a while it counts as lost, is replaced perhaps, and wakes up.
    fn freeze_somebody(&mut self) {
        let until = self.steps_n + self.rng.below(5_000);
        let Some(nonce) = self.any_task_manager() else {
            return;
        };
        self.trace
            .say(|| format!("{} task manager {nonce} freezes", self.now_ms));
        self.totals.frozen_n += 1;
        let mut slots = 1;
        if let Some(task_manager) = self.task_manager(nonce) {
            task_manager.asleep_until = until;
            slots = task_manager.slots;
        }
        if self.rng.one_in(3) {
            return; // too short to be noticed
        }
        self.end_session(nonce, "it is silent");
        if self.rng.one_in(2) && self.task_managers.len() < TASK_MANAGERS_MAX {
            let name = format!("spare-{}", self.task_managers_n);
            self.start_named(name, slots);
        }
    }

    fn break_session(&mut self) {
        if let Some(nonce) = self.any_task_manager() {
            self.trace
                .say(|| format!("{} the session of {nonce} breaks", self.now_ms));
            self.end_session(nonce, "the connection broke");
        }
    }

    /// Both ends notice, or only one.
    pub fn break_channel(&mut self) {
        let Some(wire) = self.net.pick(&mut self.rng) else {
            return;
        };
        self.trace
            .say(|| format!("{} channel {wire:?} breaks", self.now_ms));
        self.totals.broken_channels_n += 1;
        self.net.cut(&wire);
        let ends = match self.rng.below(3) {
            0 => vec![wire.from],
            1 => vec![wire.to],
            _ => vec![wire.from, wire.to],
        };
        for nonce in ends {
            self.notice_break(&wire, nonce);
        }
    }
}
