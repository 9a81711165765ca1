//! A sink whose committed output cannot be published stops the rows of its stage (C3, B1).

#![expect(clippy::unwrap_used, reason = "a test")]

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use streamforge_core::ids::{
    CheckpointId, Epoch, Generation, JobId, OperatorUid, SlotId, SubtaskIdx,
};
use streamforge_core::job_graph::{JobGraph, OperatorKind};
use streamforge_core::key_group::Assignment;
use streamforge_core::manifest::{
    CheckpointKind, Manifest, SlotState, SplitState, StagedInterval, StagedObject,
};
use streamforge_core::messages::{Command, Deployment, Event, Place, Stamp, TaskManagerId};
use streamforge_engine::staged::INTERVALS_MAX;
use streamforge_store::FolderStore;
use streamforge_taskmanager::manager::{self, Context};
use streamforge_taskmanager::metrics::Metrics;
use tokio::sync::mpsc;

/// Long enough for any machine; nothing that passes waits for it.
const LONG: Duration = Duration::from_secs(60);

const ROWS: u64 = 1_000;

fn graph(out: &Path) -> JobGraph {
    let document = format!(
        r#"
apiVersion: streamforge.io/v1alpha1
kind: StreamJob
metadata: {{name: full}}
spec:
  sources:
    - name: clicks
      generator: {{clicks: {{rows: {ROWS}, users: 5, seed: 1}}}}
      eventTime: {{column: ts}}
  sinks:
    - {{name: results, from: clicks, file: {{path: "{}/"}}, format: {{json: {{}}}}}}
"#,
        out.display()
    );
    let loaded = streamforge_plan::load(&document, "full.yaml").unwrap();
    streamforge_plan::plan(&loaded)
}

/// A task manager that is told what to do by the test.
struct Rig {
    commands: mpsc::Sender<(Stamp, Command)>,
    events: mpsc::Receiver<(Stamp, Event)>,
    graph: JobGraph,
    epoch: u64,
}

impl Rig {
    fn start(folder: &Path) -> Self {
        let context = Context {
            me: me(),
            local: None,
            store: Arc::new(FolderStore::open(folder.join("store")).unwrap()),
            exchange: None,
            secrets: None,
            terms: Arc::default(),
            terminal: Some(false),
            metrics: Metrics::default(),
            kafka: Default::default(),
            sight: Arc::default(),
        };
        let (commands, to_manager) = mpsc::channel(8);
        let (from_manager, events) = mpsc::channel(64);
        tokio::spawn(manager::run(context, to_manager, from_manager));
        Self {
            commands,
            events,
            graph: graph(&folder.join("out")),
            epoch: 0,
        }
    }

    fn stamp(&self) -> Stamp {
        Stamp {
            job: JobId("j".to_owned()),
            generation: Generation::from_stored(1),
            epoch: Epoch::from_stored(self.epoch),
        }
    }

    async fn say(&self, command: Command) {
        self.commands.send((self.stamp(), command)).await.unwrap();
    }

    /// The next event of this attempt that `pick` takes.
    async fn hear<T>(&mut self, pick: impl Fn(Event) -> Option<T>) -> T {
        loop {
            let next = tokio::time::timeout(LONG, self.events.recv()).await;
            let (stamp, event) = next.expect("it says something in time").expect("it lives");
            assert!(!matches!(event, Event::Failed { .. }), "{event:?}");
            if stamp == self.stamp()
                && let Some(picked) = pick(event)
            {
                return picked;
            }
        }
    }

    async fn deploy(
        &mut self,
        restore: Option<Manifest>,
    ) -> BTreeMap<OperatorUid, Vec<SplitState>> {
        self.epoch += 1;
        let place = Place {
            task_manager: me(),
            exchange: String::new(),
        };
        let deployment = Deployment {
            graph: self.graph.clone(),
            parallelism: 1,
            assignment: Assignment::even(self.graph.max_parallelism, 1),
            restore,
            first_id: CheckpointId::from_stored(5_000),
            placement: BTreeMap::from([(SubtaskIdx(0), place)]),
            born: Generation::ZERO,
            slots: BTreeMap::new(),
        };
        self.say(Command::Deploy(Box::new(deployment))).await;
        self.hear(|event| match event {
            Event::Prepared { splits } => Some(splits),
            _ => None,
        })
        .await
    }

    /// Rows that the sink has taken when a checkpoint of this id is acknowledged.
    async fn checkpoint(&mut self, id: u64) -> u64 {
        let (id, kind) = (CheckpointId::from_stored(id), CheckpointKind::Ordinary);
        self.say(Command::Checkpoint { id, kind }).await;
        self.hear(|event| match event {
            Event::Ack(ack) => Some(ack.counters.values().map(|it| it.rows_in).max()),
            _ => None,
        })
        .await
        .unwrap()
    }
}

fn me() -> TaskManagerId {
    let name = "tm-1".to_owned();
    TaskManagerId { name, nonce: 1 }
}

fn interval(number: u64) -> StagedInterval {
    let object = StagedObject {
        staged: format!(".staging/{number}"),
        published: format!("{number}.ndjson"),
        bytes: 1,
        rows: 1,
        detail: r#"{"segment":0,"last":true}"#.to_owned(),
    };
    StagedInterval {
        id: CheckpointId::from_stored(number),
        objects: vec![object],
    }
}

/// What a checkpoint of this job is, with this output and no sources.
fn restored(rig: &Rig, staged: Vec<SlotState>) -> Manifest {
    Manifest {
        job: rig.stamp().job,
        generation: Generation::from_stored(1),
        epoch: Epoch::from_stored(1),
        id: CheckpointId::from_stored(INTERVALS_MAX as u64 + 1),
        kind: CheckpointKind::Ordinary,
        plan: String::new(),
        parallelism: 1,
        max_parallelism: rig.graph.max_parallelism,
        assignment: Assignment::even(rig.graph.max_parallelism, 1),
        time_ms: 0,
        duration_ms: 0,
        tasks: Vec::new(),
        sources: BTreeMap::new(),
        operators: BTreeMap::new(),
        staged,
        ledger: BTreeMap::new(),
        late_log: Vec::new(),
        ran_endless: false,
        handed_to: None,
        departed: Default::default(),
    }
}

fn sink(graph: &JobGraph) -> OperatorUid {
    let sinks = graph.operators();
    let mut sinks = sinks.filter(|(_, operator)| matches!(operator.kind, OperatorKind::Sink(_)));
    sinks.next().unwrap().1.uid.clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_wait_while_too_much_is_unpublished_and_checkpoints_go_on_b1_c3() {
    let folder = tempfile::tempdir().unwrap();
    let mut rig = Rig::start(folder.path());
    let splits = rig.deploy(None).await;
    let slot = SlotId {
        sink: sink(&rig.graph),
        slot: 0,
    };
    let listed_n = INTERVALS_MAX as u64 + 1;
    let staged = vec![SlotState {
        slot: slot.clone(),
        intervals: (1..=listed_n).map(interval).collect(),
    }];
    let restored = Manifest {
        sources: splits.clone(),
        ..restored(&rig, staged)
    };
    rig.deploy(Some(restored)).await;
    let dealt = |(source, splits): (OperatorUid, Vec<SplitState>)| {
        (source, BTreeMap::from([(SubtaskIdx(0), splits)]))
    };
    let splits = splits.into_iter().map(dealt).collect();
    rig.say(Command::Start { splits }).await;

    assert_eq!(
        rig.checkpoint(5_001).await,
        0,
        "the barrier passes, no row does"
    );
    assert_eq!(rig.checkpoint(5_002).await, 0);

    // Listed but missing means published: the publisher confirms it.
    let manifest = CheckpointId::from_stored(listed_n);
    let slots = vec![(slot, interval(1))];
    rig.say(Command::Publish { manifest, slots }).await;
    rig.hear(|event| matches!(event, Event::Published { .. }).then_some(()))
        .await;
    rig.hear(|event| matches!(event, Event::Ended { .. }).then_some(()))
        .await;
    assert_eq!(rig.checkpoint(5_003).await, ROWS);
}

/// C10: of the sources in the document, those are listed that no manifest knows.
#[tokio::test(flavor = "multi_thread")]
async fn sources_that_the_restored_manifest_knows_are_not_listed_again_c10() {
    let folder = tempfile::tempdir().unwrap();
    let mut rig = Rig::start(folder.path());
    let splits = rig.deploy(None).await;
    let restored = |sources| Manifest {
        sources,
        ..restored(&rig, Vec::new())
    };
    let (known, unknown) = (restored(splits.clone()), restored(BTreeMap::new()));

    assert_eq!(rig.deploy(Some(known)).await, BTreeMap::new());
    assert_eq!(rig.deploy(Some(unknown)).await, splits);
}
