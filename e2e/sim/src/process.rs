//! One coordinator, its client of the store, and what is under way between it and the others.
//!
//! Owns: the part of `operator/host`'s loop that a simulation can decide the order of.

use std::collections::VecDeque;

use streamforge_coordinator::{
    CheckpointPolicy, Config, Coordinator, Decision, Input, MemberPolicy, Outcome, RequestId,
    RestartPolicy, StoreAnswer, StoreRequest,
};
use streamforge_core::ids::JobId;
use streamforge_core::job_graph::JobGraph;
use streamforge_core::messages::{Command, Registration, Stamp, TaskManagerId};
use streamforge_host::perform;
use streamforge_store::{MemoryStore, ObjectStore};

use crate::attempt::now;
use crate::rng::Rng;

/// One coordinator's process.
pub struct Process {
    /// Which.
    pub id: u64,
    /// The decisions.
    pub co: Coordinator,
    client: MemoryStore,
    /// The task manager it is connected to.
    pub task_manager: u64,
    /// What that one said, in order.
    pub news: VecDeque<Input>,
    /// Not arrived at the store yet.
    pub requests: Vec<(RequestId, StoreRequest)>,
    /// Not arrived here yet.
    pub answers: Vec<(RequestId, StoreAnswer)>,
    /// Not arrived at the task manager yet, in order.
    pub commands: VecDeque<(Stamp, Command)>,
    /// It has ended.
    pub outcome: Option<Outcome>,
    /// Frozen until this step.
    pub asleep_until: u64,
}

impl Process {
    /// A coordinator that has done nothing.
    pub fn new(
        rng: &mut Rng,
        graph: &JobGraph,
        client: MemoryStore,
        task_manager: u64,
        parallelism: u32,
        restore_from: Option<String>,
    ) -> Self {
        let co = Coordinator::new(Config {
            new_job: JobId(format!("job-{}", rng.any())),
            address: String::new(),
            nonce_seed: rng.any(),
            graph: graph.clone(),
            document: format!("parallelism {parallelism}"),
            parallelism,
            rewind_to: None,
            restore_from,
            checkpoint: CheckpointPolicy {
                interval_ms: 200 + rng.below(800),
                timeout_ms: 3_000,
                min_pause_ms: 0,
                retain_n: 1 + rng.pick(3),
                tolerate_failures_n: 3,
            },
            restart: RestartPolicy {
                failures_n_max: 1_000_000,
                window_ms: 1_000,
                backoff_initial_ms: 10,
                backoff_max_ms: 100,
            },
            members: MemberPolicy::default(),
        });
        let mut process = Self {
            id: 0,
            co,
            client,
            task_manager,
            news: VecDeque::new(),
            requests: Vec::new(),
            answers: Vec::new(),
            commands: VecDeque::new(),
            outcome: None,
            asleep_until: 0,
        };
        process.feed(0, registered(task_manager));
        process
    }

    /// Something happened; what it decides is under way.
    pub fn feed(&mut self, now_ms: u64, input: Input) {
        for decision in self.co.on(now_ms, input) {
            match decision {
                Decision::Store(id, request) => self.requests.push((id, request)),
                // There is one; what was sent to one that is gone went with its session.
                Decision::Send(to, stamp, command) => {
                    if to == id_of(self.task_manager) {
                        self.commands.push_back((stamp, command));
                    }
                }
                Decision::Report(_) => {}
                Decision::End(outcome) => self.outcome = Some(outcome),
            }
        }
    }

    /// Lets one of the outstanding requests reach the store; says what it was, for people.
    pub fn perform(&mut self, idx: usize) -> String {
        let client = self.client.clone();
        self.perform_at(&client, idx)
    }

    /// Lets the put of a key that begins so reach the store through another client.
    pub fn perform_through(&mut self, client: &MemoryStore, key_begins: &str) {
        let idx = self
            .requests
            .iter()
            .position(|(_, request)| is_put_of(request, key_begins));
        self.perform_at(client, idx.expect("the put is under way"));
    }

    /// Whether a put of a key that begins so is under way.
    pub fn puts(&self, key_begins: &str) -> bool {
        self.requests
            .iter()
            .any(|(_, request)| is_put_of(request, key_begins))
    }

    /// Keys of puts that are under way and begin so.
    pub fn put_keys(&self, key_begins: &str) -> Vec<String> {
        let keys = self
            .requests
            .iter()
            .filter_map(|(_, request)| match request {
                StoreRequest::Put { key, .. } if key.starts_with(key_begins) => Some(key.clone()),
                _ => None,
            });
        keys.collect()
    }

    fn perform_at(&mut self, client: &MemoryStore, idx: usize) -> String {
        let (id, request) = self.requests.swap_remove(idx);
        let text = match &request {
            StoreRequest::Get { key } => format!("get {key}"),
            StoreRequest::List { prefix } => format!("list {prefix}"),
            StoreRequest::Put { key, .. } => format!("put {key}"),
            StoreRequest::Check { objects } => format!("check {} objects", objects.len()),
            StoreRequest::Copy { objects } => format!("copy {} objects", objects.len()),
            StoreRequest::Delete { keys } => format!("delete {keys:?}"),
        };
        let answer = now(perform(client as &dyn ObjectStore, request));
        let text = format!("{text}: {}", answer_name(&answer));
        self.answers.push((id, answer));
        text
    }
}

/// A task manager's process, as coordinators know it.
pub fn id_of(task_manager: u64) -> TaskManagerId {
    TaskManagerId {
        name: "task-manager".to_owned(),
        nonce: task_manager,
    }
}

/// A session with it begins.
pub fn registered(task_manager: u64) -> Input {
    Input::Registered {
        task_manager: id_of(task_manager),
        registration: Box::new(Registration {
            slots: u32::MAX,
            exchange: String::new(),
            runs: None,
        }),
    }
}

fn is_put_of(request: &StoreRequest, key_begins: &str) -> bool {
    matches!(request, StoreRequest::Put { key, .. } if key.starts_with(key_begins))
}

fn answer_name(answer: &StoreAnswer) -> &'static str {
    match answer {
        StoreAnswer::Got(Some(_)) => "got",
        StoreAnswer::Got(None) => "none",
        StoreAnswer::Listed(_) => "listed",
        StoreAnswer::Put(_) => "done",
        StoreAnswer::ConditionFailed => "condition failed",
        StoreAnswer::Checked(damages) if damages.is_empty() => "whole",
        StoreAnswer::Checked(_) => "damaged",
        StoreAnswer::Deleted => "deleted",
        StoreAnswer::Refused { .. } => "refused",
        StoreAnswer::Unknown { .. } => "no answer",
    }
}
