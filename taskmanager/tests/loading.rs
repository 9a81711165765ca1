//! What a coordinator hears of loading and uploading: that it gets on, that it panicked, and that the store
//! is away.

#![expect(clippy::unwrap_used, reason = "a test")]

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use streamforge_core::ids::{CheckpointId, Epoch, Generation, JobId, OperatorUid, SubtaskIdx};
use streamforge_core::job_graph::JobGraph;
use streamforge_core::key_group::Assignment;
use streamforge_core::manifest::{CheckpointKind, Manifest, OperatorState, SplitState};
use streamforge_core::messages::{
    Command, Deployment, Event, Place, Stamp, TaskManagerId, TaskSnapshot,
};
use streamforge_store::{
    Condition, Error, MemoryStore, ObjectMeta, ObjectStore, ObjectWriter, Put, Result, StoredObject,
};
use streamforge_taskmanager::manager::{self, Context};
use streamforge_taskmanager::metrics::Metrics;
use tokio::sync::{Semaphore, mpsc};

/// Long enough for any machine; nothing that passes waits for it.
const LONG: Duration = Duration::from_secs(60);

const DOCUMENT: &str = r#"
apiVersion: streamforge.io/v1alpha1
kind: StreamJob
metadata: {name: loading}
spec:
  sources:
    - name: clicks
      generator: {clicks: {rowsPerSecond: 10000, users: 5, seed: 1}}
      eventTime: {column: ts}
  transforms:
    - {name: counts, from: clicks, aggregate: {groupBy: [user_id], window: {tumbling: {size: 365d}}, select: ["count(*) AS n"]}}
  sinks:
    - {name: out, from: counts, blackhole: {}}
"#;

/// A store with a bug.
#[derive(Debug, Default)]
struct Buggy {
    inner: MemoryStore,
    panics: AtomicBool,
    /// It is away: parts are not taken.
    refuses: AtomicBool,
    /// Reads of parts that are answered; `None`: all are.
    answers: Mutex<Option<Arc<Semaphore>>>,
}

impl Buggy {
    fn touch(&self, key: &str) {
        let panics = key.starts_with("parts/") && self.panics.load(Ordering::Relaxed);
        assert!(!panics, "a bug");
    }
}

#[async_trait]
impl ObjectStore for Buggy {
    async fn get_within(&self, key: &str, bytes_max: u64) -> Result<Option<StoredObject>> {
        self.inner.get_within(key, bytes_max).await
    }

    async fn get_range(&self, key: &str, range: Range<u64>) -> Result<Bytes> {
        self.touch(key);
        let answers = self.answers.lock().unwrap().clone();
        if let Some(answers) = answers {
            answers.acquire().await.unwrap().forget();
        }
        self.inner.get_range(key, range).await
    }

    async fn put(&self, key: &str, bytes: Bytes, condition: Condition) -> Result<Put> {
        self.touch(key);
        if key.starts_with("parts/") && self.refuses.load(Ordering::Relaxed) {
            return Err(Error::NotFound {
                key: key.to_owned(),
                location: self.location(),
            });
        }
        self.inner.put(key, bytes, condition).await
    }

    async fn begin(&self, key: &str) -> Result<Box<dyn ObjectWriter>> {
        self.touch(key);
        self.inner.begin(key).await
    }

    async fn list(&self, prefix: &str) -> Result<Vec<ObjectMeta>> {
        self.inner.list(prefix).await
    }

    async fn delete(&self, keys: &[String]) -> Result<()> {
        self.inner.delete(keys).await
    }

    fn location(&self) -> String {
        self.inner.location()
    }
}

/// A task manager that is told what to do by the test.
struct Rig {
    store: Arc<Buggy>,
    commands: mpsc::Sender<(Stamp, Command)>,
    events: mpsc::Receiver<(Stamp, Event)>,
    graph: JobGraph,
    epoch: u64,
    next_id: u64,
}

impl Rig {
    fn start() -> Self {
        Self::start_with(DOCUMENT)
    }

    fn start_with(document: &str) -> Self {
        let store = Arc::new(Buggy::default());
        let context = Context {
            me: me(),
            local: None,
            store: Arc::<Buggy>::clone(&store),
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
        let loaded = streamforge_plan::load(document, "loading.yaml").unwrap();
        Self {
            store,
            commands,
            events,
            graph: streamforge_plan::plan(&loaded),
            epoch: 0,
            next_id: 1,
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

    /// The next event of this attempt.
    async fn hear(&mut self) -> Event {
        loop {
            let next = tokio::time::timeout(LONG, self.events.recv()).await;
            let (stamp, event) = next.expect("it says something in time").expect("it lives");
            if stamp == self.stamp() {
                return event;
            }
        }
    }

    async fn deploy(&mut self, restore: Option<Manifest>) {
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
            first_id: CheckpointId::from_stored(self.next_id),
            placement: BTreeMap::from([(SubtaskIdx(0), place)]),
            born: Generation::ZERO,
            slots: BTreeMap::new(),
        };
        self.say(Command::Deploy(Box::new(deployment))).await;
    }

    async fn run(&mut self, splits: BTreeMap<OperatorUid, Vec<SplitState>>) {
        let dealt = |(source, splits)| (source, BTreeMap::from([(SubtaskIdx(0), splits)]));
        let splits = splits.into_iter().map(dealt).collect();
        self.say(Command::Start { splits }).await;
    }

    /// What both tasks say of a checkpoint, or the failure.
    async fn checkpoint(&mut self) -> std::result::Result<Vec<TaskSnapshot>, Event> {
        let id = CheckpointId::from_stored(self.next_id);
        let kind = CheckpointKind::Ordinary;
        self.next_id += 1;
        self.say(Command::Checkpoint { id, kind }).await;
        let mut acks: Vec<TaskSnapshot> = Vec::new();
        while acks.len() < self.graph.stages.len() {
            match self.hear().await {
                Event::Ack(ack) => acks.push(*ack),
                failed @ Event::Failed { .. } => return Err(failed),
                _ => {}
            }
        }
        Ok(acks)
    }

    /// Takes a checkpoint; why it was declined, if it was.
    async fn try_checkpoint(&mut self) -> Option<String> {
        let of = CheckpointId::from_stored(self.next_id);
        let kind = CheckpointKind::Ordinary;
        self.next_id += 1;
        self.say(Command::Checkpoint { id: of, kind }).await;
        let mut acks_n = 0;
        while acks_n < self.graph.stages.len() {
            match self.hear().await {
                Event::Ack(ack) if ack.id == of => acks_n += 1,
                Event::Declined { id, reason, .. } if id == of => {
                    self.say(Command::Abort { id }).await;
                    return Some(reason);
                }
                _ => {}
            }
        }
        None
    }

    /// Waits until so many rows are read.
    async fn read(&mut self, rows_n: u64) {
        loop {
            if let Event::Progress(progress) = self.hear().await {
                let read = progress.counters.values().map(|it| it.rows_in).max();
                if read.unwrap_or_default() >= rows_n {
                    return;
                }
            }
        }
    }

    fn manifest(&self, acks: Vec<TaskSnapshot>) -> Manifest {
        let mut manifest = Manifest {
            job: self.stamp().job,
            generation: Generation::from_stored(1),
            epoch: Epoch::from_stored(1),
            id: acks[0].id,
            kind: CheckpointKind::Ordinary,
            plan: String::new(),
            parallelism: 1,
            max_parallelism: self.graph.max_parallelism,
            assignment: Assignment::even(self.graph.max_parallelism, 1),
            time_ms: 0,
            duration_ms: 0,
            tasks: Vec::new(),
            sources: BTreeMap::new(),
            operators: BTreeMap::new(),
            staged: Vec::new(),
            ledger: BTreeMap::new(),
            late_log: Vec::new(),
            ran_endless: false,
            handed_to: None,
            departed: Default::default(),
        };
        for ack in acks {
            manifest.sources.extend(ack.splits);
            for (operator, (watermark, parts)) in ack.operators {
                let state = OperatorState {
                    watermarks: vec![(ack.task, watermark)],
                    parts,
                };
                manifest.operators.insert(operator, state);
            }
        }
        manifest
    }
}

fn me() -> TaskManagerId {
    let name = "tm-1".to_owned();
    TaskManagerId { name, nonce: 1 }
}

#[track_caller]
fn check_panicked(event: &Event) {
    match event {
        Event::Failed { cause, retry, .. } => {
            assert!(*retry && cause.contains("panicked: a bug"), "{event:?}");
        }
        _ => panic!("{event:?}"),
    }
}

/// The manifest of the first checkpoint in which an operator has so many parts.
async fn with_parts(rig: &mut Rig, parts_n: usize) -> Manifest {
    rig.deploy(None).await;
    let Event::Prepared { splits } = rig.hear().await else {
        panic!("it loads nothing");
    };
    rig.run(splits).await;
    loop {
        let acks = rig.checkpoint().await.unwrap();
        let manifest = rig.manifest(acks);
        let mut operators = manifest.operators.values();
        if operators.any(|operator| operator.parts.len() >= parts_n) {
            return manifest;
        }
    }
}

/// A restore of many hours gets on within an operator, too.
#[tokio::test(flavor = "multi_thread")]
async fn coordinator_hears_that_loading_gets_on_before_an_operator_is_loaded() {
    let mut rig = Rig::start();
    let manifest = with_parts(&mut rig, 2).await;
    let answers = Arc::new(Semaphore::new(1));
    *rig.store.answers.lock().unwrap() = Some(Arc::clone(&answers));

    rig.deploy(Some(manifest)).await;

    // One part is read, and another one is waited for.
    let said = rig.hear().await;
    assert!(matches!(said, Event::Progress(_)), "{said:?}");
    assert_eq!(answers.available_permits(), 0);
    answers.add_permits(1_000);
    while !matches!(rig.hear().await, Event::Prepared { .. }) {}
}

#[tokio::test(flavor = "multi_thread")]
async fn coordinator_hears_that_loading_gets_on_and_of_panics_beside_the_tasks() {
    let mut rig = Rig::start();
    let manifest = with_parts(&mut rig, 1).await;

    rig.deploy(Some(manifest.clone())).await;
    let (mut gets_on, mut is_loaded) = (false, false);
    while !(gets_on && is_loaded) {
        match rig.hear().await {
            Event::Progress(_) => gets_on = true,
            Event::Prepared { .. } => is_loaded = true,
            event => panic!("{event:?}"),
        }
    }

    // While it uploads.
    rig.run(manifest.sources.clone()).await;
    rig.store.panics.store(true, Ordering::Relaxed);
    let failed = loop {
        // One before which no row came has nothing to upload.
        if let Err(failed) = rig.checkpoint().await {
            break failed;
        }
    };
    check_panicked(&failed);

    // While it loads.
    rig.deploy(Some(manifest)).await;
    check_panicked(&rig.hear().await);
}

/// What was sealed meanwhile is turned into rows although it could not be written: two tables that are not
/// keep all later checkpoints from being taken, and nothing else turns them into rows before their windows
/// fire, in a year here.
#[tokio::test(flavor = "multi_thread")]
async fn checkpoints_are_taken_again_when_a_store_that_was_away_is_back() {
    let mut rig = Rig::start_with(&DOCUMENT.replace("users: 5", "users: 1000000"));
    rig.deploy(None).await;
    let Event::Prepared { splits } = rig.hear().await else {
        panic!("it loads nothing");
    };
    rig.run(splits).await;
    // So many groups that the tables of the next moments are not merged with theirs.
    rig.read(20_000).await;
    rig.store.refuses.store(true, Ordering::Relaxed);
    for n in 0..8 {
        let declined = rig.try_checkpoint().await;
        assert!(declined.is_some(), "try {n}: the store is away");
    }
    rig.store.refuses.store(false, Ordering::Relaxed);

    assert_eq!(rig.try_checkpoint().await, None);
}
