//! A job on some task managers, whose subtasks come and go.

use std::collections::{BTreeMap, BTreeSet};

use streamforge_core::ids::{CheckpointId, SubtaskIdx};
use streamforge_core::messages::{
    Command, Event, HandOver, Registration, RunningAttempt, TaskManagerId,
};

use super::super::rig::*;
use crate::*;

pub(super) fn a() -> TaskManagerId {
    task_manager("a", 1)
}

pub(super) fn b() -> TaskManagerId {
    task_manager("b", 1)
}

pub(super) fn c() -> TaskManagerId {
    task_manager("c", 1)
}

pub(super) fn with(parallelism: u32) -> Config {
    Config {
        parallelism,
        members: MemberPolicy {
            silence_ms_max: 60_000,
            adopt_within_ms: Some(5_000),
            gather_ms: 1_000,
        },
        ..config()
    }
}

/// Who runs what, and who reads what.
pub(super) struct Job {
    pub(super) rig: Rig,
    pub(super) places: BTreeMap<u32, TaskManagerId>,
    pub(super) readers: BTreeMap<&'static str, u32>,
}

impl Job {
    /// On these, a subtask each, with splits `a` and `b` and one checkpoint.
    pub(super) fn running(config: Config, on: &[TaskManagerId]) -> Self {
        let mut rig = Rig::alone(config, Objects::default());
        for id in on {
            rig.register(id, 1);
        }
        rig.wait(1);
        let stamp = rig.stamp();
        for id in on {
            let splits = if *id == on[0] {
                let splits = vec![split_at("a", at(0)), split_at("b", at(0))];
                BTreeMap::from([(uid("in"), splits)])
            } else {
                BTreeMap::new()
            };
            rig.say_as(id, stamp.clone(), Event::Prepared { splits });
        }
        assert_eq!(rig.co.status().phase, Phase::Running, "{:?}", rig.outcome);
        let places = (0..).zip(on.iter().cloned()).collect();
        let last = u32::try_from(on.len() - 1).unwrap().min(1);
        let readers = BTreeMap::from([("a", 0), ("b", last)]);
        let mut job = Self {
            rig,
            places,
            readers,
        };
        job.checkpoint();
        job
    }

    pub(super) fn checkpoint(&mut self) -> CheckpointId {
        self.rig.wait(1_000);
        let n = self.rig.in_flight();
        self.ack_all(n);
        n
    }

    pub(super) fn ack_all(&mut self, n: CheckpointId) {
        let subtasks: Vec<u32> = self.places.keys().copied().collect();
        for subtask in subtasks {
            self.ack(subtask, n);
        }
    }

    /// Both tasks of a subtask acknowledge.
    pub(super) fn ack(&mut self, subtask: u32, n: CheckpointId) {
        let from = self.places[&subtask].clone();
        for stage in 0..2 {
            let mut snapshot = self.rig.snapshot(task(stage, subtask), n);
            if stage == 0 {
                let mine = self.readers.iter().filter(|(_, idx)| **idx == subtask);
                let mine = mine.map(|(name, _)| split_at(name, at(n.get())));
                snapshot.splits = BTreeMap::from([(uid("in"), mine.collect())]);
            }
            let stamp = self.rig.stamp();
            self.rig
                .say_as(&from, stamp, Event::Ack(Box::new(snapshot)));
        }
    }

    pub(super) fn say(&mut self, id: &TaskManagerId, event: Event) {
        let stamp = self.rig.stamp();
        self.rig.say_as(id, stamp, event);
    }

    /// The hand-over that was proposed last.
    pub(super) fn plan(&self) -> HandOver {
        let mut sent = self.rig.sent.iter().rev();
        let plan = sent.find_map(|(_, command)| match command {
            Command::Prepare(plan) => Some((**plan).clone()),
            _ => None,
        });
        plan.expect("a hand-over was proposed")
    }

    pub(super) fn workers(&self) -> BTreeSet<TaskManagerId> {
        let plan = self.plan().deployment.placement;
        let new = plan.into_values().map(|place| place.task_manager);
        self.places.values().cloned().chain(new).collect()
    }

    pub(super) fn all_prepared(&mut self) {
        for id in self.workers() {
            self.say(&id, Event::HandOverPrepared);
        }
    }

    /// From the barrier to the commit.
    pub(super) fn pass_barrier(&mut self) -> CheckpointId {
        let plan = self.plan();
        let n = self.rig.in_flight();
        for subtask in &plan.joining {
            let place = &plan.deployment.placement[subtask];
            self.places.insert(subtask.0, place.task_manager.clone());
        }
        self.ack_all(n);
        self.places
            .retain(|idx, _| !plan.leaving.contains(&SubtaskIdx(*idx)));
        for (name, reader) in &mut self.readers {
            let deal = &plan.splits[&uid("in")];
            let split = split_at(name, at(0)).split;
            *reader = deal.get(&split).map_or(*reader, |idx| idx.0);
        }
        n
    }

    pub(super) fn all_received(&mut self, n: CheckpointId) {
        for (subtask, id) in self.places.clone() {
            for stage in 0..2 {
                let task = task(stage, subtask);
                self.say(&id, Event::Received { task, id: n });
            }
        }
    }

    /// A whole hand-over, after a checkpoint that makes it due.
    pub(super) fn hand_over(&mut self) -> CheckpointId {
        self.checkpoint();
        self.all_prepared();
        let n = self.pass_barrier();
        self.all_received(n);
        n
    }

    pub(super) fn count(&self, what: &str) -> usize {
        self.rig
            .sent_names()
            .iter()
            .filter(|it| **it == what)
            .count()
    }

    pub(super) fn owners(&self) -> Vec<u32> {
        let table = self.rig.head().assignment;
        table.owners().iter().map(|idx| idx.0).collect()
    }

    /// What a task manager would register with now.
    pub(super) fn runs(&self, prepared: bool) -> Registration {
        let plan = self.plan();
        let (deployment, prepared) = if prepared {
            (self.rig.deployment(), Some(Box::new(plan)))
        } else {
            (plan.deployment, None)
        };
        Registration {
            runs: Some(Box::new(RunningAttempt {
                stamp: self.rig.stamp(),
                deployment,
                started: true,
                ended: Vec::new(),
                failed: None,
                prepared,
            })),
            ..offers(1)
        }
    }

    pub(super) fn successor(&self) -> Rig {
        let config = Config {
            nonce_seed: self.rig.co.config.nonce_seed + 1,
            ..self.rig.co.config.clone()
        };
        Rig {
            now_ms: self.rig.now_ms,
            ..Rig::alone(config, std::rc::Rc::clone(&self.rig.objects))
        }
    }
}

pub(super) fn register(rig: &mut Rig, id: &TaskManagerId, registration: Registration) {
    rig.feed(Input::Registered {
        task_manager: id.clone(),
        registration: Box::new(registration),
    });
}

/// Two subtasks on a and b, and the third is wanted on c.
pub(super) fn growing() -> Job {
    let mut job = Job::running(with(2), &[a(), b()]);
    job.rig.register(&c(), 1);
    job.rig.feed(Input::Scale(3));
    job.checkpoint();
    job
}
