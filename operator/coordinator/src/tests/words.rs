//! The words that tests make jobs, positions and output of.

use streamforge_core::data_type::DataType;
use streamforge_core::event_time::Watermark;
use streamforge_core::ids::*;
use streamforge_core::job_graph::*;
use streamforge_core::manifest::*;
use streamforge_core::messages::{Registration, TaskManagerId};

use crate::*;

pub(crate) fn uid(name: &str) -> OperatorUid {
    OperatorUid(name.to_owned())
}

pub(crate) fn id(n: u64) -> CheckpointId {
    CheckpointId::from_stored(n)
}

pub(crate) fn task(stage: u32, subtask: u32) -> TaskId {
    TaskId {
        stage: StageIdx(stage),
        subtask: SubtaskIdx(subtask),
    }
}

pub(crate) fn slot(n: u32) -> SlotId {
    SlotId {
        sink: uid("out"),
        slot: n,
    }
}

/// The one task manager of most tests.
pub(crate) fn local() -> TaskManagerId {
    task_manager("local", 1)
}

pub(crate) fn task_manager(name: &str, nonce: u64) -> TaskManagerId {
    let name = name.to_owned();
    TaskManagerId { name, nonce }
}

pub(crate) fn offers(slots: u32) -> Registration {
    Registration {
        slots,
        exchange: "there".to_owned(),
        runs: None,
    }
}

fn connector(kind: &str) -> Connector {
    Connector {
        kind: kind.to_owned(),
        config: Default::default(),
    }
}

pub(crate) fn aggregate(window: WindowSpec) -> AggregateSpec {
    AggregateSpec {
        input: Vec::new(),
        keys: Vec::new(),
        window,
        calls: Vec::new(),
        allowed_lateness_us: 0,
        emit: Emit::OnTime,
        late_log: false,
    }
}

pub(crate) fn tumbling(size_us: i64) -> WindowSpec {
    WindowSpec::Tumbling {
        size_us,
        offset_us: 0,
        time_zone: "UTC".to_owned(),
    }
}

fn operator(name: &str, kind: OperatorKind) -> Operator {
    Operator {
        uid: uid(name),
        node: name.to_owned(),
        kind,
        inputs: Vec::new(),
        output: vec![Column {
            name: "x".to_owned(),
            data_type: DataType::Text,
            nullable: true,
        }],
        updating: false,
    }
}

/// Source `in` in stage 0; aggregate `agg` and sink `out` in stage 1.
pub(crate) fn graph() -> JobGraph {
    let source = OperatorKind::Source(SourceSpec {
        connector: connector("file"),
        format: None,
        columns: Vec::new(),
        event_time: None,
        on_bad_record: OnBadRecord::Divert,
        rate_limit: None,
        bounded: true,
        origin: false,
    });
    let sink = OperatorKind::Sink(SinkSpec {
        connector: connector("file"),
        format: None,
        input: Vec::new(),
        delivery: Delivery::ExactlyOnce,
        changelog: ChangelogMode::AppendOnly,
        rate_limit: None,
    });
    let agg = OperatorKind::WindowFinal(aggregate(tumbling(10)));
    JobGraph {
        format_version: PLAN_FORMAT_VERSION,
        name: "job".to_owned(),
        max_parallelism: 4,
        bounded: true,
        stages: vec![
            Stage {
                operators: vec![operator("in", source)],
            },
            Stage {
                operators: vec![operator("agg", agg), operator("out", sink)],
            },
        ],
        edges: Vec::new(),
    }
}

pub(crate) fn config() -> Config {
    Config {
        new_job: JobId("job-1".to_owned()),
        address: "here".to_owned(),
        nonce_seed: 1,
        graph: graph().into(),
        document: "doc".into(),
        parallelism: 2,
        rewind_to: None,
        restore_from: None,
        drop_state: false,
        checkpoint: CheckpointPolicy {
            interval_ms: 1_000,
            timeout_ms: 10_000,
            min_pause_ms: 0,
            retain_n: 3,
            tolerate_failures_n: 2,
        },
        restart: RestartPolicy {
            failures_n_max: 2,
            window_ms: 60_000,
            backoff_initial_ms: 100,
            backoff_max_ms: 1_000,
        },
        members: MemberPolicy::default(),
    }
}

pub(crate) fn split_at(name: &str, progress: SplitProgress) -> SplitState {
    SplitState {
        split: SplitId(name.to_owned()),
        progress,
        watermark: Watermark(0),
        description: String::new(),
        weight: 1,
    }
}

pub(crate) fn at(position: u64) -> SplitProgress {
    SplitProgress::At(position.to_string())
}

pub(crate) fn interval(n: u64) -> StagedInterval {
    let object = StagedObject {
        staged: format!("staged-{n}"),
        published: format!("published-{n}"),
        bytes: 1,
        rows: 1,
        detail: String::new(),
    };
    StagedInterval {
        id: id(n),
        objects: vec![object],
    }
}
