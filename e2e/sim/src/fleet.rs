//! Task managers and coordinators that find each other, lose each other and come back.
//!
//! Owns: sessions, of which a task manager has one at most, and what travels by them and between task
//! managers. Checks O4 by panicking: of an epoch each subtask runs in one process, ever.

use std::sync::Arc;

use streamforge_coordinator::MemberPolicy;
use streamforge_core::frame;
use streamforge_core::manifest::{self, HEAD_KEY, Head};
use streamforge_core::messages::TaskManagerId;

use crate::broker::Broker;
use crate::net::Wire;
use crate::process::{Process, address_of};
use crate::reader::Sources;
use crate::task_manager::TaskManager;
use crate::world::World;

impl World<'_> {
    /// A coordinator that this task manager has a session with; returns its id.
    pub fn start_coordinator(&mut self, task_manager: u64, parallelism: u32) -> u64 {
        let id = self.start_alone(parallelism);
        self.connect(task_manager, id);
        id
    }

    /// A coordinator that nobody has called yet; returns its id.
    pub fn start_alone(&mut self, parallelism: u32) -> u64 {
        self.totals.rescales_n +=
            u64::from(self.parallelism != 0 && self.parallelism != parallelism);
        self.parallelism = parallelism;
        let client = self.client();
        self.processes_n += 1;
        let id = self.processes_n;
        let wants = (parallelism, self.members.clone());
        let restore_from = self
            .begun_with
            .as_ref()
            .map(|id| format!("savepoint of {id}"));
        let rng = &mut self.rng;
        let process = Process::new(id, rng, self.graph, client, wants, restore_from);
        self.trace
            .say(|| format!("{} coordinator {id} at {parallelism}", self.now_ms));
        self.processes.push(process);
        self.totals.coordinators_n += 1;
        id
    }

    /// A task manager that runs nothing, with any number of slots; returns its id.
    pub fn start_task_manager(&mut self) -> u64 {
        let name = format!("task-manager-{}", self.task_managers_n + 1);
        self.start_named(name, u32::MAX)
    }

    /// A process of this name; returns its id.
    pub fn start_named(&mut self, name: String, slots: u32) -> u64 {
        self.task_managers_n += 1;
        let nonce = self.task_managers_n;
        let store = self.client();
        let id = TaskManagerId { name, nonce };
        let sources = Sources {
            input: Arc::clone(&self.input),
            unbounded: self.shape.unbounded,
            kafka: self.kafka.clone(),
        };
        let started = TaskManager::new(id, slots, sources, store);
        self.task_managers.push(started);
        nonce
    }

    /// Task managers with so many slots each, that outlive their coordinator; returns their ids.
    pub fn start_fleet(&mut self, slots: &[u32]) -> Vec<u64> {
        self.members = MemberPolicy {
            silence_ms_max: u64::MAX,
            adopt_within_ms: Some(5_000),
            gather_ms: 500,
        };
        let names = slots.iter().enumerate();
        self.fleet = names
            .map(|(n, slots)| (format!("tm-{n}"), *slots))
            .collect();
        let fleet = self.fleet.clone().into_iter();
        fleet
            .map(|(name, slots)| self.start_named(name, slots))
            .collect()
    }

    /// The main output goes to a topic.
    pub fn publish_to_topic(&mut self) {
        let broker = Broker::new(self.rng.split(), Arc::clone(&self.calm));
        self.outside.broker = Some(broker);
    }

    /// The broker forgets every marker (X3).
    pub fn forget_markers(&mut self) {
        self.may_fail = true;
        if let Some(broker) = &mut self.outside.broker {
            broker.forget_markers();
        }
    }

    /// Whether nothing travels between task managers.
    pub fn is_net_quiet(&self) -> bool {
        self.net.is_quiet()
    }

    /// It stands still until it is woken, and counts as lost.
    pub fn freeze_task_manager(&mut self, nonce: u64) {
        if let Some(task_manager) = self.task_manager(nonce) {
            task_manager.asleep_until = u64::MAX;
        }
        self.end_session(nonce, "it is silent");
    }

    /// It goes on.
    pub fn wake_task_manager(&mut self, nonce: u64) {
        if let Some(task_manager) = self.task_manager(nonce) {
            task_manager.asleep_until = 0;
        }
    }

    pub(crate) fn task_manager(&mut self, nonce: u64) -> Option<&mut TaskManager> {
        let mut all = self.task_managers.iter_mut();
        all.find(|it| it.id.nonce == nonce)
    }

    /// How coordinators know it.
    pub fn id_of(&self, nonce: u64) -> TaskManagerId {
        let mut all = self.task_managers.iter();
        let found = all.find(|it| it.id.nonce == nonce);
        let found = found.unwrap_or_else(|| panic!("task manager {nonce} is gone"));
        found.id.clone()
    }

    /// A task manager calls a coordinator; an older session of it is over.
    pub fn connect(&mut self, task_manager: u64, process: u64) {
        self.end_session(task_manager, "it called another coordinator");
        let Some(task_manager) = self.task_manager(task_manager) else {
            return;
        };
        let (id, registration) = (task_manager.id.clone(), task_manager.registration());
        task_manager.session = Some(process);
        // Nobody heard these: the registration says what must be known of them.
        task_manager.out.clear();
        if let Some(process) = self.processes.iter_mut().find(|it| it.id == process) {
            process.on_registered(id, registration);
        }
    }

    /// A session breaks, if there is one. One who is frozen finds later what was under way to it.
    pub fn end_session(&mut self, task_manager: u64, cause: &str) {
        let steps_n = self.steps_n;
        let Some(task_manager) = self.task_manager(task_manager) else {
            return;
        };
        let Some(session) = task_manager.session else {
            return;
        };
        let (id, asleep) = (task_manager.id.clone(), task_manager.asleep_until > steps_n);
        task_manager.on_session_lost();
        let mut mail = Vec::new();
        if let Some(process) = self.processes.iter_mut().find(|it| it.id == session) {
            let (theirs, others): (Vec<_>, Vec<_>) = std::mem::take(&mut process.commands)
                .into_iter()
                .partition(|(to, ..)| *to == id);
            process.commands.extend(others);
            mail.extend(
                theirs
                    .into_iter()
                    .map(|(_, stamp, command)| (stamp, command)),
            );
            process.on_session_lost(&id, cause);
        }
        if asleep && let Some(task_manager) = self.task_manager(id.nonce) {
            task_manager.mail.extend(mail);
        }
    }

    /// This coordinator is gone.
    pub(crate) fn end_sessions_of(&mut self, process: u64) {
        let theirs = self.task_managers.iter();
        let theirs: Vec<u64> = theirs
            .filter(|it| it.session == Some(process))
            .map(|it| it.id.nonce)
            .collect();
        for task_manager in theirs {
            self.end_session(task_manager, "the coordinator is gone");
        }
    }

    /// This task manager dies, and a new process takes its place at once.
    pub fn kill_task_manager(&mut self, dead: u64) {
        let Some(found) = self.task_manager(dead) else {
            return;
        };
        let (name, slots, session) = (found.id.name.clone(), found.slots, found.session);
        self.lose_task_manager(dead);
        let next = self.start_named(name, slots);
        if let Some(session) = session {
            self.connect(next, session);
        }
    }

    /// This task manager dies; whoever it has a session with hears of it.
    pub fn lose_task_manager(&mut self, dead: u64) {
        self.end_session(dead, "the session broke");
        self.task_managers.retain(|it| it.id.nonce != dead);
        self.trace
            .say(|| format!("{} task manager {dead} dies", self.now_ms));
        self.totals.task_manager_crashes_n += 1;
    }

    /// A command arrives at a task manager.
    pub(crate) fn deliver(&mut self, idx: usize) {
        let (steps_n, now_ms) = (self.steps_n, self.now_ms);
        let Some(process) = self.processes.get_mut(idx) else {
            return;
        };
        let (session, over) = (process.id, process.outcome.is_some());
        let awake = |id: &TaskManagerId| {
            let found = self.task_managers.iter().find(|it| it.id == *id);
            // What nobody will read is dropped.
            found.is_none_or(|it| it.asleep_until <= steps_n || it.session != Some(session) || over)
        };
        let next = process.next_command(&mut self.rng, awake);
        let Some((to, stamp, command)) = next else {
            return;
        };
        let found = self.task_managers.iter_mut().find(|it| it.id == to);
        let Some(found) = found.filter(|it| it.session == Some(session)) else {
            return;
        };
        self.trace
            .note(&[2, to.nonce, stamp.epoch.get(), stamp.generation.get()]);
        self.trace.say(|| {
            let text = format!("{command:?}");
            let short: String = text.chars().take(160).collect();
            let (g, e) = (stamp.generation, stamp.epoch);
            format!("{now_ms} co{session} to {to} g{g} e{e} {short}")
        });
        if found.asleep_until > steps_n {
            found.mail.push_back((stamp, command));
        } else {
            found.on_command(stamp, command, &mut self.outside);
            self.spread(to.nonce);
        }
    }

    /// Some task manager does something by itself.
    pub(crate) fn move_task_manager(&mut self) {
        let steps_n = self.steps_n;
        let busy = |it: &TaskManager| it.is_busy() && it.asleep_until <= steps_n;
        let busy: Vec<u64> = self
            .task_managers
            .iter()
            .filter(|it| busy(it))
            .map(|it| it.id.nonce)
            .collect();
        let Some(nonce) = busy.get(self.rng.pick(busy.len())).copied() else {
            return;
        };
        self.look_around(nonce);
        let (now_ms, calm) = (self.now_ms, self.is_calm());
        self.trace.note(&[3, nonce, now_ms]);
        let found = self
            .task_managers
            .iter_mut()
            .find(|it| it.id.nonce == nonce);
        if let Some(task_manager) = found {
            task_manager.step(&mut self.rng, now_ms, &mut self.outside, calm);
        }
        self.spread(nonce);
    }

    /// Without a session it looks into the head (F4) and calls.
    fn look_around(&mut self, nonce: u64) {
        let session = self.task_manager(nonce).and_then(|it| it.session);
        if let Some(session) = session {
            let silent = self.processes.iter().find(|it| it.id == session);
            if silent.is_some_and(|it| it.asleep_until > self.steps_n) && self.rng.one_in(300) {
                self.end_session(nonce, "the coordinator is silent");
            }
            return;
        }
        if self.rng.one_in(8)
            && let Some(head) = self.read_head(nonce)
        {
            let address = head.coordinator.clone();
            if let Some(task_manager) = self.task_manager(nonce) {
                task_manager.on_head(&head);
            }
            self.call(nonce, &address);
        } else if self.rng.one_in(30) {
            let idx = self.rng.pick(self.processes.len());
            if let Some(process) = self.processes.get(idx) {
                let address = address_of(process.id);
                self.call(nonce, &address);
            }
        }
    }

    fn read_head(&mut self, nonce: u64) -> Option<Head> {
        let store = self.task_manager(nonce)?.store.clone();
        let object = store.get_now(HEAD_KEY).ok().flatten()?;
        manifest::decode(frame::HEAD, &object.bytes).ok()
    }

    fn call(&mut self, nonce: u64, address: &str) {
        let steps_n = self.steps_n;
        let answers = |it: &&Process| {
            address_of(it.id) == address && it.asleep_until <= steps_n && it.outcome.is_none()
        };
        if let Some(process) = self.processes.iter().find(answers).map(|it| it.id) {
            self.trace
                .say(|| format!("{} task manager {nonce} calls co{process}", self.now_ms));
            self.connect(nonce, process);
        }
    }

    /// What a task manager said is on its way.
    pub(crate) fn spread(&mut self, nonce: u64) {
        let found = self
            .task_managers
            .iter_mut()
            .find(|it| it.id.nonce == nonce);
        let Some(task_manager) = found else {
            return;
        };
        let id = task_manager.id.clone();
        for (wire, what) in std::mem::take(&mut task_manager.frames) {
            self.net.send(wire, what);
        }
        let (session, said) = (task_manager.session, std::mem::take(&mut task_manager.out));
        let mut processes = self.processes.iter_mut();
        if let Some(process) = processes.find(|it| Some(it.id) == session) {
            let said = said.into_iter();
            process.news.extend(said.map(|(stamp, event)| {
                streamforge_coordinator::Input::Task(id.clone(), stamp, event)
            }));
        }
        let Some((epoch, subtasks)) = task_manager.runs() else {
            return;
        };
        for subtask in subtasks {
            let owner = self.owners.entry((epoch, subtask));
            let owner = owner.or_insert_with(|| id.clone());
            assert_eq!(
                *owner, id,
                "subtask {} of epoch {epoch} runs twice (O4)",
                subtask.0
            );
        }
    }

    /// A frame arrives; of an attempt that its receiver does not run it is refused, and the channel is
    /// no more (B2).
    pub(crate) fn move_frame(&mut self) {
        let steps_n = self.steps_n;
        let all = &self.task_managers;
        let awake = |nonce: u64| {
            let found = all.iter().find(|it| it.id.nonce == nonce);
            found.is_none_or(|it| it.asleep_until <= steps_n)
        };
        let Some((wire, what)) = self.net.next(&mut self.rng, awake) else {
            return;
        };
        self.trace.note(&[5, wire.from, wire.to]);
        let accepted = self
            .task_manager(wire.to)
            .is_some_and(|it| it.on_frame(&wire, what));
        if accepted {
            self.spread(wire.to);
        } else {
            self.totals.refused_frames_n += 1;
            self.net.cut(&wire);
            self.notice_break(&wire, wire.from);
        }
    }

    /// One end notices that a channel is no more.
    pub(crate) fn notice_break(&mut self, wire: &Wire, nonce: u64) {
        if let Some(task_manager) = self.task_manager(nonce) {
            task_manager.on_broken(wire);
        }
        self.spread(nonce);
    }
}
