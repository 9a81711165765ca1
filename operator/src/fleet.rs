//! The coordinators of this operator, one per job.
//!
//! Owns: which of them run, their listener, and waking whoever reconciles a job when something about
//! it is worth a look. Decides nothing. Start at: [`Fleet::start`].

mod metrics;
#[cfg(test)]
pub(crate) mod tests;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use k8s_openapi::api::core::v1::ObjectReference;
use kube::runtime::reflector::ObjectRef;
use prometheus::core::Collector;
use streamforge_core::ids::OperatorUid;
use streamforge_crds::v1alpha1::StreamJob;
use streamforge_host::sessions::{Listener, Terms};
use streamforge_host::{JobConfig, Orders, Outcome, Phase, Report, Status};
use streamforge_store::ObjectStore;
use tokio::sync::{broadcast, mpsc, watch};

use crate::events;
use crate::recorder::Recorder;
use crate::stream_job::pass::status;

/// Jobs that wait to be looked at; of more the oldest are forgotten, and looked at in a minute.
const WAKES_MAX: usize = 4_096;

/// How often a job is looked at because its checkpoints, lag or watermark went on: what people see of
/// these need not be newer.
const LOOK_EVERY: Duration = Duration::from_secs(5);

type Table = Arc<Mutex<BTreeMap<String, Arc<Coordinator>>>>;

/// See the module.
pub struct Fleet {
    listener: Listener,
    by_uid: Table,
    wakes: broadcast::Sender<ObjectRef<StreamJob>>,
}

/// What a coordinator is started with.
pub struct Start {
    /// The job.
    pub job: ObjectRef<StreamJob>,
    /// Its uid.
    pub uid: String,
    /// What it was made from: another revision is another coordinator's.
    pub revision: u64,
    /// The job, as the host wants it.
    pub config: JobConfig,
    /// Its store.
    pub store: Arc<dyn ObjectStore>,
    /// What its task managers are told.
    pub terms: Terms,
    /// Where its events go, and what they are about.
    pub events: (Recorder, ObjectReference),
}

/// A coordinator that was started, and perhaps has ended.
pub struct Coordinator {
    /// The job.
    pub job: ObjectRef<StreamJob>,
    /// See [`Start::revision`].
    pub revision: u64,
    /// When it was started.
    pub since: tokio::time::Instant,
    /// The way to ask it.
    pub orders: Orders,
    /// How the job does.
    pub status: watch::Receiver<Status>,
    /// How it ended; `None`: it has not.
    pub outcome: watch::Receiver<Option<Arc<Outcome>>>,
    abandon: Box<dyn Fn() + Send + Sync>,
}

impl Fleet {
    /// None yet.
    #[must_use]
    pub fn new(listener: Listener) -> Self {
        Self {
            listener,
            by_uid: Table::default(),
            wakes: broadcast::channel(WAKES_MAX).0,
        }
    }

    /// Hears of each job that wants to be looked at.
    #[must_use]
    pub fn woken(&self) -> broadcast::Receiver<ObjectRef<StreamJob>> {
        self.wakes.subscribe()
    }

    /// For whoever does something for a job beside its passes.
    #[must_use]
    pub fn waker(&self, job: ObjectRef<StreamJob>) -> Waker {
        Waker {
            job,
            wakes: self.wakes.clone(),
        }
    }

    /// What Prometheus is told of the jobs.
    #[must_use]
    pub fn metrics(&self) -> impl Collector + 'static {
        metrics::Jobs::new(Arc::clone(&self.by_uid))
    }

    fn table(&self) -> MutexGuard<'_, BTreeMap<String, Arc<Coordinator>>> {
        // Every critical section leaves the table whole.
        self.by_uid.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The coordinator of a job, if one was started and not abandoned.
    #[must_use]
    pub fn get(&self, uid: &str) -> Option<Arc<Coordinator>> {
        self.table().get(uid).cloned()
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.table().len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Ends a job's coordinator as a kill would, if there is one: its tasks go on for the next one.
    pub fn abandon(&self, uid: &str) {
        if let Some(coordinator) = self.table().remove(uid) {
            (coordinator.abandon)();
        }
    }

    /// Ends all coordinators as a kill would, and waits until they have ended: one that still works when the
    /// listener goes would take its broken sessions for the loss of all task managers, and end the attempt
    /// that the next operator is to adopt (F1).
    pub async fn end(&self) {
        let coordinators = std::mem::take(&mut *self.table());
        for coordinator in coordinators.values() {
            (coordinator.abandon)();
        }
        for coordinator in coordinators.values() {
            let mut status = coordinator.status.clone();
            // Its end drops what the status comes from.
            while status.changed().await.is_ok() {}
        }
    }

    /// Starts a job's coordinator; one that is there is abandoned before.
    pub fn start(&self, start: Start) {
        let Start {
            job,
            uid,
            revision,
            config,
            store,
            terms,
            events,
        } = start;
        self.abandon(&uid);
        let sessions = self.listener.open(&uid, terms);
        let orders = sessions.orders();
        let namespace = job.namespace.as_deref().unwrap_or_default();
        let span = tracing::info_span!("job", namespace, job = job.name);
        let mut handle = span.in_scope(|| streamforge_host::start(config, store, sessions));
        let (outcome_in, outcome) = watch::channel(None);
        let (_, closed) = mpsc::channel(1);
        let reports = std::mem::replace(&mut handle.reports, closed);
        let coordinator = Coordinator {
            job: job.clone(),
            revision,
            since: tokio::time::Instant::now(),
            orders,
            status: handle.status(),
            outcome,
            abandon: Box::new(handle.abandoner()),
        };
        let waker = self.waker(job);
        tokio::spawn(watch_status(waker.clone(), handle.status()));
        tokio::spawn(watch_reports(waker.clone(), reports, events));
        tokio::spawn(async move {
            let outcome = match tokio::spawn(handle.ended()).await {
                Ok(None) => return, // abandoned
                Ok(Some(outcome)) => outcome,
                // Its job must not look as if it ran.
                Err(panicked) => Outcome::Failed(streamforge_host::Error::Store {
                    request: "run the coordinator",
                    reason: panicked.to_string(),
                    attempts_n: 1,
                }),
            };
            outcome_in.send_replace(Some(Arc::new(outcome)));
            waker.wake();
        });
        self.table().insert(uid, Arc::new(coordinator));
    }
}

/// Makes a job be looked at.
#[derive(Clone)]
pub struct Waker {
    job: ObjectRef<StreamJob>,
    wakes: broadcast::Sender<ObjectRef<StreamJob>>,
}

impl Waker {
    /// Now.
    pub fn wake(&self) {
        // Nobody listens while the operator ends.
        let _nobody = self.wakes.send(self.job.clone());
    }
}

/// What is worth a look at once.
#[derive(PartialEq)]
struct Signature {
    phase: Phase,
    parallelism: (u32, u32),
    task_managers_n: usize,
    restarts_n: u32,
    stale: Option<String>,
    waits_for: Option<String>,
    /// Not why: the words tell for how long, too.
    unreachable: Vec<OperatorUid>,
}

fn signature(status: &Status) -> Signature {
    Signature {
        phase: status.phase,
        parallelism: (status.parallelism, status.wanted),
        task_managers_n: status.task_managers_n,
        restarts_n: status.restarts_n,
        stale: status.checkpoint.stale.clone(),
        waits_for: status.waits_for.clone(),
        unreachable: status.unreachable.keys().cloned().collect(),
    }
}

/// Wakes at once when something important changes, and now and then while the rest does.
async fn watch_status(waker: Waker, mut status: watch::Receiver<Status>) {
    let mut last = signature(&status.borrow_and_update());
    let mut looked = tokio::time::Instant::now();
    while status.changed().await.is_ok() {
        let now = signature(&status.borrow_and_update());
        if now != last || looked.elapsed() >= LOOK_EVERY {
            last = now;
            looked = tokio::time::Instant::now();
            waker.wake();
        }
    }
}

/// Reports are logged by the host; some belong into the story of the job, and savepoints are waited for.
async fn watch_reports(
    waker: Waker,
    mut reports: mpsc::Receiver<Report>,
    (recorder, regarding): (Recorder, ObjectReference),
) {
    while let Some(report) = reports.recv().await {
        if let Some(event) = events::of_report(&report) {
            // Mostly there is none, and a thousand of these wait: its place is taken while it is written.
            Box::pin(status::publish(&recorder, &regarding, event)).await;
        }
        // One that failed is asked for again in its own time.
        if matches!(report, Report::SavepointCompleted { .. }) {
            waker.wake();
        }
    }
}
