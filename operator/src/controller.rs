//! The controller: watches, and one pass over one job after the other.
//!
//! Owns: what is watched, when a job is looked at again, and what all passes share. A pass itself is in
//! [`crate::stream_job`]; what is watched of a job's children is in [`crate::children`]. Start at: [`run`].

mod around;

use std::collections::{BTreeMap, HashMap};
use std::fmt::Debug;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use futures::future::BoxFuture;
use futures::{Stream, StreamExt as _, stream};
use kube::api::ListParams;
use kube::core::Request;
use kube::runtime::controller::{Action, Config as ControllerConfig};
use kube::runtime::reflector::{self, ObjectRef, Store};
use kube::runtime::watcher::Event;
use kube::runtime::{Controller, watcher};
use kube::{Api, Client, ResourceExt as _};
use serde::de::DeserializeOwned;
use streamforge_crds::v1alpha1::{Savepoint, StreamJob};
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::mpsc;

use crate::args::Args;
use crate::certificates::Authority;
use crate::children::{Children, Wakes};
use crate::credentials::Users;
use crate::ending::Endings;
use crate::fleet::Fleet;
use crate::heard::Heard;
use crate::metrics::Metrics;
use crate::opening::Openings;
use crate::recorder::Recorder;
use crate::savepoint;
use crate::settings::Settings;
use crate::stores::{Opener, Proven};
use crate::stream_job::checked::Checked;
use crate::stream_job::error;
use crate::stream_job::pass::{self, Memory};
use crate::stream_job::report::Phase;
use crate::watch::{Own, follow};

pub use around::Failures;

/// Passes over different jobs at the same time.
const PASSES_MAX: u16 = 16;

/// Events of one job within this time lead to one pass.
const DEBOUNCE: Duration = Duration::from_millis(50);

/// See [`forget_what_nobody_reads`].
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// What all passes share.
pub struct Context {
    /// The API server.
    pub client: Client,
    /// What building needs.
    pub settings: Settings,
    /// The coordinators.
    pub fleet: Fleet,
    /// Servers that keep their conditions.
    pub proven: Proven,
    /// Stores that are being opened for more of them.
    pub openings: Openings,
    /// Jobs and savepoints that are being deleted.
    pub endings: Endings,
    /// Savepoints over which passes fail.
    pub failures: Failures,
    /// Whose credentials are kept.
    pub users: Arc<Users>,
    /// Children and pods, as they are watched.
    pub children: Arc<Children>,
    /// Documents that were validated.
    pub checked: Checked,
    /// For task managers' certificates.
    pub authority: Authority,
    /// For events.
    pub recorder: Recorder,
    /// For people.
    pub metrics: Metrics,
    /// Folder in memory.
    pub work_dir: PathBuf,
    /// What heads name as the coordinator's address: this pod's. Task managers call the Service, too.
    pub address: String,
    /// What is remembered of each job between passes; nothing depends on it.
    /// Boxed: half of a table's places are empty.
    memories: Mutex<HashMap<String, Box<Memory>>>,
}

impl Context {
    /// Opens stores for whom this uid is of.
    #[must_use]
    pub fn opener<'a>(&'a self, namespace: &'a str, user: &'a str) -> Opener<'a> {
        Opener {
            client: &self.client,
            namespace,
            work_dir: &self.work_dir,
            settings: &self.settings,
            proven: &self.proven,
            users: &self.users,
            user,
        }
    }

    /// Nothing was passed over yet.
    #[must_use]
    pub fn new(
        client: Client,
        settings: Settings,
        args: &Args,
        fleet: Fleet,
        authority: Authority,
        metrics: Metrics,
    ) -> Arc<Self> {
        Arc::new(Self {
            recorder: Recorder::new(client.clone(), &args.pod_name),
            client,
            settings,
            fleet,
            proven: Proven::default(),
            openings: Openings::default(),
            endings: Endings::default(),
            failures: Failures::default(),
            users: Arc::default(),
            children: Arc::default(),
            checked: Checked::default(),
            authority,
            metrics,
            work_dir: args.work_dir.clone(),
            address: args.reached_at(),
            memories: Mutex::default(),
        })
    }

    fn memories(&self) -> MutexGuard<'_, HashMap<String, Box<Memory>>> {
        // Every critical section leaves the table whole.
        self.memories.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is remembered of a job.
    #[must_use]
    pub fn memory(&self, uid: &str) -> Memory {
        self.memories()
            .get(uid)
            .map_or_else(Memory::default, |it| Memory::clone(it))
    }

    /// Remembers.
    pub fn remember(&self, uid: &str, memory: Memory) {
        let mut memories = self.memories();
        let before = memories.insert(uid.to_owned(), Box::new(memory));
        let phase = before.map(|before| before.phase);
        if phase.as_deref() != memories.get(uid).map(|now| &*now.phase) {
            self.count(&memories);
        }
    }

    fn count(&self, memories: &HashMap<String, Box<Memory>>) {
        let mut phases: BTreeMap<&str, i64> = BTreeMap::new();
        for memory in memories.values() {
            *phases.entry(memory.phase.as_str()).or_default() += 1;
        }
        self.metrics.set_jobs(phases);
    }

    /// Ends the job's coordinator, or the way to one: its tasks go on for the next one.
    pub fn abandon(&self, uid: &str) {
        self.openings.forget(uid);
        self.fleet.abandon(uid);
    }

    /// The savepoint is gone.
    pub fn forget_savepoint(&self, uid: &str) {
        self.endings.forget(uid);
        self.failures.forget(uid);
        self.users.forget(uid);
    }

    /// The job is gone.
    pub fn forget(&self, uid: &str) {
        self.abandon(uid);
        self.endings.forget(uid);
        self.users.forget(uid);
        self.checked.forget(uid);
        let mut memories = self.memories();
        memories.remove(uid);
        self.count(&memories);
    }
}

/// Whether the cluster knows our kinds: watches of unknown kinds fail silently for ever.
///
/// # Errors
/// When it does not, or this operator may not list them.
pub async fn check_definitions(client: &Client) -> Result<()> {
    check_definition::<StreamJob>(client).await?;
    check_definition::<Savepoint>(client).await
}

async fn check_definition<K>(client: &Client) -> Result<()>
where
    K: kube::Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
{
    let kind = K::kind(&());
    let all: Api<K> = Api::all(client.clone());
    // That it is answered is enough: what is in the answer may be nothing that can be read.
    let request = Request::new(all.resource_url()).list_metadata(&ListParams::default().limit(1));
    let request = request.map_err(kube::Error::BuildRequest)?;
    match client.request_text(request).await {
        Ok(_) => Ok(()),
        // Namespaced rights: the watches will tell.
        Err(kube::Error::Api(status)) if status.code == 403 => Ok(()),
        Err(kube::Error::Api(status)) if status.code == 404 => {
            bail!(
                "the cluster does not know the kind {kind}: install the chart streamforge-crds first"
            )
        }
        Err(error) => Err(error).with_context(|| format!("list objects of kind {kind}")),
    }
}

/// Watches and passes, until the process ends.
pub async fn run(context: Arc<Context>, namespaces: Vec<String>) {
    if namespaces.is_empty() {
        return of_scope(context, None).await;
    }
    let scopes = namespaces
        .into_iter()
        .map(|namespace| of_scope(Arc::clone(&context), Some(namespace)));
    futures::future::join_all(scopes).await;
}

fn api<K>(client: &Client, namespace: Option<&str>) -> Api<K>
where
    K: kube::Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>,
{
    match namespace {
        None => Api::all(client.clone()),
        Some(namespace) => Api::namespaced(client.clone(), namespace),
    }
}

/// All namespaces, or one.
async fn of_scope(context: Arc<Context>, namespace: Option<String>) {
    let client = &context.client;
    let (wakes, woken) = mpsc::unbounded_channel();
    let scope = namespace.as_deref();
    let pulses = context.metrics.pulses();
    let (mut watches, complete) = context.children.follow(client, scope, pulses, &wakes);
    let (jobs, savepoints) = (reflector::store(), reflector::store());
    let (changed, changes) = mpsc::unbounded_channel();
    let waiting = (savepoints.0.clone(), changed.clone());
    watches.push(watch_jobs(&context, scope, jobs.1, (wakes, waiting)));
    watches.push(watch_savepoints(&context, scope, savepoints.1, changed));
    let passes = async {
        // A pass that knows nothing of children would apply them all.
        complete.await;
        let savepoints = pass_over_savepoints(&context, jobs.0.clone(), savepoints.0, changes);
        let jobs = pass_over_jobs(&context, namespace.clone(), jobs.0, woken);
        futures::future::join(jobs, savepoints).await
    };
    futures::future::join(futures::future::join_all(watches), passes).await;
}

/// The savepoints there are, and the way to make one be looked at.
type Savepoints = (
    Store<Heard<Savepoint>>,
    mpsc::UnboundedSender<ObjectRef<Savepoint>>,
);

/// The jobs themselves: each event makes one be looked at, and perhaps savepoints that wait for it.
fn watch_jobs(
    context: &Arc<Context>,
    scope: Option<&str>,
    mut store: reflector::store::Writer<Heard<StreamJob>>,
    (wakes, (savepoints, changed)): (Wakes, Savepoints),
) -> BoxFuture<'static, ()> {
    let source = Own(api::<StreamJob>(&context.client, scope));
    let pulse = context.metrics.pulses().begin();
    let context = Arc::clone(context);
    Box::pin(async move {
        let known = |store: &reflector::store::Writer<Heard<StreamJob>>| -> BTreeMap<String, _> {
            let known = store.as_reader().state();
            let of =
                |job: &Arc<Heard<StreamJob>>| Some((job.uid()?, ObjectRef::from_obj(&job.object)));
            known.iter().filter_map(of).collect()
        };
        let gone = |uid: &str, job: &ObjectRef<StreamJob>| {
            context.metrics.on_gone(job);
            context.forget(uid);
        };
        let tell = move |mut event: Event<Heard<StreamJob>>| {
            let before = match &event {
                Event::InitDone => known(&store),
                _ => BTreeMap::new(),
            };
            if let Event::Apply(job) | Event::InitApply(job) = &mut event {
                forget_what_nobody_reads(&mut job.object);
                warn(&store, job);
            }
            let news = match &event {
                Event::Apply(job) => {
                    let before = store.as_reader().get(&ObjectRef::from_obj(job));
                    let before = before.as_ref().map(|before| &before.object);
                    is_news(before, job).then(|| job.object.clone())
                }
                _ => None,
            };
            store.apply_watcher_event(&event);
            if let Some(job) = news {
                let all = savepoints.state();
                let waiting = all.iter().filter(|it| savepoint::waits_for(it, &job));
                waiting.for_each(|it| wake(&changed, &it.object));
            }
            match &event {
                // Somebody took its finalizer away.
                Event::Delete(job) => {
                    gone(
                        &job.uid().unwrap_or_default(),
                        &ObjectRef::from_obj(&job.object),
                    );
                }
                Event::Apply(job) => wake(&wakes, &job.object),
                // Only now what came before can be read.
                Event::InitDone => {
                    let now = known(&store);
                    let left = before.iter().filter(|(uid, _)| !now.contains_key(*uid));
                    left.for_each(|(uid, job)| gone(uid, job));
                    store
                        .as_reader()
                        .state()
                        .iter()
                        .for_each(|it| wake(&wakes, &it.object));
                }
                Event::Init | Event::InitApply(_) => {}
            }
        };
        match follow(source, None, pulse, tell).await {}
    })
}

/// Says in the log what cannot be read.
fn warn<K>(store: &reflector::store::Writer<Heard<K>>, heard: &Heard<K>)
where
    K: kube::Resource<DynamicType = ()> + Clone + 'static,
{
    if heard.unreadable.is_some() {
        let before = store.as_reader().get(&ObjectRef::from_obj(heard));
        heard.warn(before.as_deref());
    }
}

/// Who wrote which field, and what `kubectl apply` keeps: the whole document once more.
fn forget_what_nobody_reads(job: &mut StreamJob) {
    job.metadata.managed_fields = None;
    if let Some(annotations) = &mut job.metadata.annotations {
        annotations.remove(LAST_APPLIED);
    }
}

/// Whether what waits for this job can go on, perhaps: it was not there, or does something else now.
fn is_news(before: Option<&StreamJob>, now: &StreamJob) -> bool {
    let phase = |job: &StreamJob| Phase::of(job.status.as_ref());
    before.is_none_or(|before| before.uid() != now.uid() || phase(before) != phase(now))
}

fn watch_savepoints(
    context: &Arc<Context>,
    scope: Option<&str>,
    mut store: reflector::store::Writer<Heard<Savepoint>>,
    changed: mpsc::UnboundedSender<ObjectRef<Savepoint>>,
) -> BoxFuture<'static, ()> {
    let source = Own(api::<Savepoint>(&context.client, scope));
    let pulse = context.metrics.pulses().begin();
    let context = Arc::clone(context);
    Box::pin(async move {
        let tell = move |event: Event<Heard<Savepoint>>| {
            if let Event::Apply(savepoint) | Event::InitApply(savepoint) = &event {
                warn(&store, savepoint);
            }
            store.apply_watcher_event(&event);
            match &event {
                Event::Apply(savepoint) => wake(&changed, &savepoint.object),
                Event::InitDone => store
                    .as_reader()
                    .state()
                    .iter()
                    .for_each(|it| wake(&changed, &it.object)),
                // Somebody took its finalizer away.
                Event::Delete(savepoint) => {
                    context.forget_savepoint(&savepoint.uid().unwrap_or_default());
                }
                Event::Init | Event::InitApply(_) => {}
            }
        };
        match follow(source, None, pulse, tell).await {}
    })
}

fn wake<K>(wakes: &mpsc::UnboundedSender<ObjectRef<K>>, object: &K)
where
    K: kube::Resource<DynamicType = ()>,
{
    // Nobody listens while the operator ends.
    let _nobody = wakes.send(ObjectRef::from_obj(object));
}

fn received<T: Send + 'static>(
    receiver: mpsc::UnboundedReceiver<T>,
) -> impl Stream<Item = T> + Send + 'static {
    stream::unfold(receiver, |mut receiver| async move {
        receiver.recv().await.map(|item| (item, receiver))
    })
}

async fn pass_over_jobs(
    context: &Arc<Context>,
    scope: Option<String>,
    store: Store<Heard<StreamJob>>,
    woken: mpsc::UnboundedReceiver<ObjectRef<StreamJob>>,
) {
    let by_fleet = stream::unfold(context.fleet.woken(), |mut woken| async move {
        loop {
            match woken.recv().await {
                Ok(job) => return Some((job, woken)),
                Err(RecvError::Lagged(_)) => {} // those are looked at in a minute
                Err(RecvError::Closed) => return None,
            }
        }
    });
    let by_fleet = by_fleet.filter(move |job| {
        let ours = scope.is_none() || scope == job.namespace;
        std::future::ready(ours)
    });
    let config = ControllerConfig::default()
        .concurrency(PASSES_MAX)
        .debounce(DEBOUNCE);
    let nothing = stream::pending::<Result<Heard<StreamJob>, watcher::Error>>();
    let (metrics, known) = (context.metrics.clone(), store.clone());
    let woken = stream::select(received(woken), by_fleet).map(move |job| {
        let heard = job.clone().into_kind_unchecked(());
        metrics.on_wake(&job, || known.get(&heard).is_some());
        heard
    });
    let (known, known_after) = (store.clone(), store.clone());
    Controller::for_stream(nothing, store)
        .reconcile_on(woken)
        .with_config(config)
        .run(
            move |job, context| reconcile(job, context, known.clone()),
            move |job, failed, context| {
                let action = again(Arc::clone(&job), failed, Arc::clone(&context));
                around::forget_gone(&job, &context, &known_after);
                action
            },
            Arc::clone(context),
        )
        .for_each(|_| std::future::ready(()))
        .await;
}

async fn pass_over_savepoints(
    context: &Arc<Context>,
    jobs: Store<Heard<StreamJob>>,
    store: Store<Heard<Savepoint>>,
    changes: mpsc::UnboundedReceiver<ObjectRef<Savepoint>>,
) {
    // Before that no job is there, and each savepoint would say so.
    let _gone = jobs.wait_until_ready().await;
    let config = ControllerConfig::default()
        .concurrency(PASSES_MAX)
        .debounce(DEBOUNCE);
    let nothing = stream::pending::<Result<Heard<Savepoint>, watcher::Error>>();
    Controller::for_stream(nothing, store)
        .reconcile_on(received(changes).map(|it| it.into_kind_unchecked(())))
        .with_config(config)
        .run(
            move |savepoint, context| reconcile_savepoint(savepoint, context, jobs.clone()),
            savepoint::again,
            Arc::clone(context),
        )
        .for_each(|_| std::future::ready(()))
        .await;
}

async fn reconcile(
    job: Arc<Heard<StreamJob>>,
    context: Arc<Context>,
    known: Store<Heard<StreamJob>>,
) -> Result<Action, error::Error> {
    context.metrics.on_begin(&ObjectRef::from_obj(&job.object));
    let began = Instant::now();
    let passed = around::within_its_time(Box::pin(pass::over(&job, &context))).await;
    let failed = passed.as_ref().err().map(error::Error::reason);
    context.metrics.on_pass(began.elapsed(), failed);
    around::forget_gone(&job, &context, &known);
    passed
}

async fn reconcile_savepoint(
    savepoint: Arc<Heard<Savepoint>>,
    context: Arc<Context>,
    jobs: Store<Heard<StreamJob>>,
) -> Result<Action, error::Error> {
    let (began, uid) = (Instant::now(), savepoint.uid().unwrap_or_default());
    let pass = savepoint::reconcile(savepoint, Arc::clone(&context), jobs);
    let passed = around::within_its_time(pass).await;
    let failed = passed.as_ref().err().map(error::Error::reason);
    context.metrics.on_pass(began.elapsed(), failed);
    if failed.is_none() {
        context.failures.forget(&uid);
    }
    passed
}

/// After how long a pass that failed is made again.
pub(crate) fn again(
    job: Arc<Heard<StreamJob>>,
    failed: &error::Error,
    context: Arc<Context>,
) -> Action {
    let uid = job.metadata.uid.clone().unwrap_or_default();
    let mut memory = context.memory(&uid);
    memory.failed_n = memory.failed_n.saturating_add(1);
    let wait = around::wait_after(memory.failed_n);
    let name = job.metadata.name.clone().unwrap_or_default();
    let namespace = job.metadata.namespace.clone().unwrap_or_default();
    tracing::warn!(
        namespace,
        name,
        wait_ms = wait.as_millis(),
        "pass failed: {:#}",
        error::chain(failed)
    );
    context.remember(&uid, memory);
    Action::requeue(wait)
}

#[cfg(test)]
mod tests {
    use prometheus::Registry;
    use serde_json::json;

    use super::*;
    use crate::stream_job::testing::{api_server, context, job, with_metadata};

    #[tokio::test]
    async fn passes_over_savepoints_are_counted_and_those_that_fail_are_made_less_and_less_often() {
        let folder = tempfile::tempdir().unwrap();
        let mut context = context(api_server(|_| None).0, folder.path());
        let registry = Registry::new();
        Arc::get_mut(&mut context).unwrap().metrics = Metrics::new(&registry).unwrap();
        let resource = |phase: &str| {
            let resource = json!({
                "apiVersion": "streamforge.io/v1alpha1", "kind": "Savepoint",
                "metadata": {"name": "nightly", "namespace": "team", "uid": "5a7e"},
                "spec": {"job": "clicks"}, "status": {"phase": phase},
            });
            let resource: Savepoint = serde_json::from_value(resource).unwrap();
            Arc::new(Heard::from(resource))
        };
        let jobs = || reflector::store().0;

        let mut waits = Vec::new();
        for _ in 0..3 {
            // Its status cannot be written.
            let waits_for_job = resource("Pending");
            let pass =
                reconcile_savepoint(Arc::clone(&waits_for_job), Arc::clone(&context), jobs());
            let error = pass.await.expect_err("it is refused");
            waits.push(savepoint::again(
                waits_for_job,
                &error,
                Arc::clone(&context),
            ));
        }
        let over = reconcile_savepoint(resource("Failed"), Arc::clone(&context), jobs());
        over.await.unwrap();
        let error = error::Error::Stuck { seconds: 1 };
        waits.push(savepoint::again(
            resource("Pending"),
            &error,
            Arc::clone(&context),
        ));

        let seconds = [1, 2, 4, 1].map(|seconds| Action::requeue(Duration::from_secs(seconds)));
        assert_eq!(waits, seconds);
        let text = prometheus::TextEncoder::new();
        let text = text.encode_to_string(&registry.gather()).unwrap();
        for counted in [
            r#"reconcile_total{result="error"} 3"#,
            r#"reconcile_total{result="ok"} 1"#,
            r#"reconcile_errors_total{reason="ApiServer"} 3"#,
        ] {
            assert!(text.contains(counted), "{counted} is not in {text}");
        }
    }

    #[test]
    fn job_is_news_for_its_savepoints_when_it_comes_and_when_its_phase_is_another() {
        let in_phase = |phase: &str| {
            let mut job = job();
            job.status = serde_json::from_value(json!({"phase": phase})).unwrap();
            job
        };
        let (suspended, running) = (in_phase("Suspended"), in_phase("Running"));

        assert!(is_news(None, &running));
        assert!(is_news(Some(&suspended), &running));
        assert!(!is_news(Some(&running), &running));
        let another = with_metadata(&running, "/uid", json!("another"));
        assert!(is_news(Some(&another), &running));
    }
}
