//! One process: a coordinator, its client of the store, its tasks, and what is between them.

use std::collections::VecDeque;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use streamforge_coordinator::{
    CheckpointPolicy, Config, Coordinator, Decision, Input, MemberPolicy, Outcome, RequestId,
    RestartPolicy, StoreAnswer, StoreRequest,
};
use streamforge_core::ids::{JobId, OperatorUid};
use streamforge_core::job_graph::{
    ChangelogMode, Connector, Delivery, JobGraph, OnBadRecord, Operator, OperatorKind,
    PLAN_FORMAT_VERSION, SinkSpec, SourceSpec, Stage,
};
use streamforge_core::messages::{Command, Registration, Stamp, TaskManagerId};
use streamforge_host::perform;
use streamforge_store::memory::{Fault, Faults, Operation, OperationKind};
use streamforge_store::{MemoryStore, ObjectStore};

use crate::tasks::Tasks;
use crate::world::Rng;

/// A store that fails one call in so many.
#[derive(Debug)]
pub struct SeededFaults {
    pub rng: Rng,
    pub one_in: u64,
}

impl Faults for SeededFaults {
    fn on_operation(&mut self, operation: Operation<'_>) -> Fault {
        if self.one_in == 0 || !self.rng.one_in(self.one_in) {
            return Fault::None;
        }
        match (operation.kind, self.rng.below(4)) {
            (OperationKind::Put, 0) => Fault::FailBefore,
            (OperationKind::Put, 1) => Fault::FailAfter,
            (OperationKind::Put, 2 | 3) => Fault::LandLater,
            _ => Fault::FailBefore,
        }
    }
}

pub struct Process {
    pub co: Coordinator,
    client: MemoryStore,
    pub tasks: Tasks,
    pub requests: Vec<(RequestId, StoreRequest)>,
    pub answers: VecDeque<(RequestId, StoreAnswer)>,
    pub commands: VecDeque<(Stamp, Command)>,
    pub outcome: Option<Outcome>,
}

fn operator(name: &str, kind: OperatorKind) -> Operator {
    Operator {
        uid: OperatorUid(name.to_owned()),
        node: name.to_owned(),
        kind,
        inputs: Vec::new(),
        output: Vec::new(),
        updating: false,
    }
}

pub fn graph() -> JobGraph {
    let connector = || Connector {
        kind: "sim".to_owned(),
        config: Default::default(),
    };
    let source = SourceSpec {
        connector: connector(),
        format: None,
        columns: Vec::new(),
        event_time: None,
        on_bad_record: OnBadRecord::Divert,
        rate_limit: None,
        bounded: true,
        origin: false,
    };
    let sink = SinkSpec {
        connector: connector(),
        format: None,
        input: Vec::new(),
        delivery: Delivery::ExactlyOnce,
        changelog: ChangelogMode::AppendOnly,
        rate_limit: None,
    };
    let stage = Stage {
        operators: vec![
            operator("in", OperatorKind::Source(source)),
            operator("agg", OperatorKind::Union),
            operator("out", OperatorKind::Sink(sink)),
        ],
    };
    JobGraph {
        format_version: PLAN_FORMAT_VERSION,
        name: "sim".to_owned(),
        max_parallelism: 8,
        bounded: true,
        stages: vec![stage],
        edges: Vec::new(),
    }
}

impl Process {
    pub fn new(rng: &mut Rng, client: MemoryStore, parallelism: u32) -> Self {
        let co = Coordinator::new(Config {
            new_job: JobId(format!("job-{}", rng.next())),
            address: String::new(),
            nonce_seed: rng.next(),
            graph: graph().into(),
            document: format!("parallelism {parallelism}").into(),
            parallelism,
            rewind_to: None,
            restore_from: None,
            drop_state: false,
            checkpoint: CheckpointPolicy {
                interval_ms: 200,
                timeout_ms: 3_000,
                min_pause_ms: 0,
                retain_n: 1 + rng.below(3) as usize,
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
            co,
            client,
            tasks: Tasks::default(),
            requests: Vec::new(),
            answers: VecDeque::new(),
            commands: VecDeque::new(),
            outcome: None,
        };
        let everything = Registration {
            slots: u32::MAX,
            exchange: String::new(),
            runs: None,
        };
        process.feed(
            0,
            Input::Registered {
                task_manager: TaskManagerId::local(),
                registration: Box::new(everything),
            },
        );
        process
    }

    pub fn feed(&mut self, now_ms: u64, input: Input) {
        for decision in self.co.on(now_ms, input) {
            match decision {
                Decision::Store(id, request) => self.requests.push((id, request)),
                Decision::Send(_, stamp, command) => self.commands.push_back((stamp, command)),
                Decision::Report(_) | Decision::Release(_) | Decision::Disconnect(_) => {}
                Decision::End(outcome) => self.outcome = Some(outcome),
            }
        }
    }

    /// Lets one of the outstanding requests reach the store.
    pub fn perform(&mut self, idx: usize) {
        let (id, request) = self.requests.swap_remove(idx);
        self.answers
            .push_back((id, now(perform(&self.client as &dyn ObjectStore, request))));
    }
}

/// The memory store's futures are ready at once.
fn now<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("the memory store never waits"),
    }
}
