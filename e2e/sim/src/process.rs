//! One coordinator, its client of the store, and what is under way between it and the others.
//!
//! Owns: the part of `operator/host`'s loop that a simulation can decide the order of.

use std::collections::VecDeque;

use streamforge_coordinator::{
    CheckpointPolicy, Config, Coordinator, Decision, Input, MemberPolicy, Outcome, Report,
    RequestId, RestartPolicy, StoreAnswer, StoreRequest,
};
use streamforge_core::ids::JobId;
use streamforge_core::job_graph::JobGraph;
use streamforge_core::messages::{Command, Registration, Stamp, TaskManagerId};
use streamforge_host::perform;
use streamforge_store::{MemoryStore, ObjectStore};

use crate::attempt::now;
use crate::rng::Rng;

/// How long a checkpoint may take.
const CHECKPOINT_TIMEOUT_MS: u64 = 6_000;

/// What coordinators report and a history counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reports {
    /// Attempts that went on under another coordinator (F1).
    pub adopted_n: u64,
    /// Hand-overs that came to their end (K3).
    pub handed_over_n: u64,
    /// Hand-overs that were given up before their barrier.
    pub withdrawn_n: u64,
}

impl Reports {
    fn note(&mut self, report: &Report) {
        match report {
            Report::Adopted { .. } => self.adopted_n += 1,
            Report::HandedOver { .. } => self.handed_over_n += 1,
            Report::HandOverWithdrawn { .. } => self.withdrawn_n += 1,
            _ => {}
        }
    }
}

/// Where a coordinator is called.
pub fn address_of(id: u64) -> String {
    format!("coordinator:{id}")
}

/// Who said it.
fn said_by(input: &Input) -> Option<&TaskManagerId> {
    match input {
        Input::Task(id, ..) | Input::Heard(id) => Some(id),
        Input::Registered { task_manager, .. } | Input::SessionLost { task_manager, .. } => {
            Some(task_manager)
        }
        _ => None,
    }
}

/// One coordinator's process.
pub struct Process {
    /// Which.
    pub id: u64,
    /// The decisions.
    pub co: Coordinator,
    client: MemoryStore,
    /// What task managers said; of each in order.
    pub news: VecDeque<Input>,
    /// Not arrived at the store yet.
    pub requests: Vec<(RequestId, StoreRequest)>,
    /// Not arrived here yet.
    pub answers: Vec<(RequestId, StoreAnswer)>,
    /// Not arrived at their task managers yet; to each in order.
    pub commands: VecDeque<(TaskManagerId, Stamp, Command)>,
    /// What it told people, as far as it is counted.
    pub reports: Reports,
    /// It has ended.
    pub outcome: Option<Outcome>,
    /// Frozen until this step.
    pub asleep_until: u64,
}

impl Process {
    /// A coordinator that has done nothing.
    pub fn new(
        id: u64,
        rng: &mut Rng,
        graph: &JobGraph,
        client: MemoryStore,
        (parallelism, members): (u32, MemberPolicy),
        restore_from: Option<String>,
    ) -> Self {
        let co = Coordinator::new(Config {
            new_job: JobId(format!("job-{}", rng.any())),
            address: address_of(id),
            nonce_seed: rng.any(),
            graph: graph.clone().into(),
            document: format!("parallelism {parallelism}").into(),
            parallelism,
            rewind_to: None,
            restore_from,
            drop_state: false,
            checkpoint: CheckpointPolicy {
                interval_ms: 200 + rng.below(800),
                timeout_ms: CHECKPOINT_TIMEOUT_MS,
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
            members,
        });
        Self {
            id,
            co,
            client,
            news: VecDeque::new(),
            requests: Vec::new(),
            answers: Vec::new(),
            commands: VecDeque::new(),
            reports: Reports::default(),
            outcome: None,
            asleep_until: 0,
        }
    }

    /// A session with a task manager began.
    pub fn on_registered(&mut self, task_manager: TaskManagerId, registration: Registration) {
        self.news.push_back(Input::Registered {
            task_manager,
            registration: Box::new(registration),
        });
    }

    /// A session with a task manager is over.
    pub fn on_session_lost(&mut self, task_manager: &TaskManagerId, cause: &str) {
        self.news.push_back(Input::SessionLost {
            task_manager: task_manager.clone(),
            cause: cause.to_owned(),
        });
    }

    /// The next thing that some task manager said; of each in order.
    pub fn hear(&mut self, rng: &mut Rng) -> Option<Input> {
        let at = if rng.one_in(3) {
            rng.pick(self.news.len())
        } else {
            0
        };
        let of = said_by(self.news.get(at)?)?.clone();
        let first = self.news.iter().position(|it| said_by(it) == Some(&of))?;
        self.news.remove(first)
    }

    /// The next command, to any task manager to which this may be delivered now.
    pub fn next_command(
        &mut self,
        rng: &mut Rng,
        may: impl Fn(&TaskManagerId) -> bool,
    ) -> Option<(TaskManagerId, Stamp, Command)> {
        let at = rng.pick(self.commands.len());
        let (to, ..) = self.commands.get(at).filter(|(to, ..)| may(to))?;
        let to = to.clone();
        let first = self.commands.iter().position(|(it, ..)| *it == to)?;
        self.commands.remove(first)
    }

    /// Something happened; what it decides is under way.
    pub fn feed(&mut self, now_ms: u64, input: Input) {
        for decision in self.co.on(now_ms, input) {
            match decision {
                Decision::Store(id, request) => self.requests.push((id, request)),
                Decision::Send(to, stamp, command) => {
                    self.commands.push_back((to, stamp, command));
                }
                // A task manager of a simulation leaves when it is killed, and none is silent for too long.
                Decision::Release(_) | Decision::Disconnect(_) => {}
                Decision::Report(report) => self.reports.note(&report),
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
