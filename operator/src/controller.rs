//! The controller: watches, and one pass over one job after the other.
//!
//! Owns: what is watched, when a job is looked at again, and what all passes share. A pass itself is in
//! [`crate::stream_job`]. Start at: [`run`].

use std::collections::HashMap;
use std::fmt::Debug;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use futures::{StreamExt as _, stream};
use k8s_openapi::api::apps::v1::StatefulSet;
use kube::api::ListParams;
use kube::runtime::controller::{Action, Config as ControllerConfig};
use kube::runtime::events::{Recorder, Reporter};
use kube::runtime::{Controller, watcher};
use kube::{Api, Client};
use serde::de::DeserializeOwned;
use streamforge_crds::v1alpha1::{Savepoint, StreamJob};
use tokio::sync::broadcast::error::RecvError;

use crate::args::Args;
use crate::certificates::Authority;
use crate::fleet::Fleet;
use crate::metrics::Metrics;
use crate::names::FIELD_MANAGER;
use crate::savepoint;
use crate::settings::Settings;
use crate::stream_job::error;
use crate::stream_job::pass::{self, Memory};

/// Passes over different jobs at the same time.
const PASSES_MAX: u16 = 16;

/// Events of one job within this time lead to one pass.
const DEBOUNCE: Duration = Duration::from_millis(50);

/// Server-side limit of a watch: shorter than what load balancers forget silent connections after.
const WATCH_SECONDS: u32 = 200;

/// Longest wait after a pass that failed.
const AGAIN_MAX: Duration = Duration::from_secs(60);

/// What all passes share.
pub struct Context {
    /// The API server.
    pub client: Client,
    /// What building needs.
    pub settings: Settings,
    /// The coordinators.
    pub fleet: Fleet,
    /// For task managers' certificates.
    pub authority: Authority,
    /// For events.
    pub recorder: Recorder,
    /// For people.
    pub metrics: Metrics,
    /// Folder in memory.
    pub work_dir: PathBuf,
    /// What heads name as the coordinator's address: the Service, behind which the next one is found, too.
    pub address: String,
    /// What is remembered of each job between passes; nothing depends on it.
    memories: Mutex<HashMap<String, Memory>>,
}

impl Context {
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
        let reporter = Reporter {
            controller: FIELD_MANAGER.to_owned(),
            instance: Some(args.pod_name.clone()),
        };
        Arc::new(Self {
            recorder: Recorder::new(client.clone(), reporter),
            client,
            settings,
            fleet,
            authority,
            metrics,
            work_dir: args.work_dir.clone(),
            address: args.coordinator(),
            memories: Mutex::default(),
        })
    }

    fn memories(&self) -> MutexGuard<'_, HashMap<String, Memory>> {
        // Every critical section leaves the table whole.
        self.memories.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is remembered of a job.
    #[must_use]
    pub fn memory(&self, uid: &str) -> Memory {
        self.memories().get(uid).cloned().unwrap_or_default()
    }

    /// Remembers.
    pub fn remember(&self, uid: &str, memory: Memory) {
        self.memories().insert(uid.to_owned(), memory);
        let mut phases: HashMap<&str, i64> = HashMap::new();
        let memories = self.memories();
        for memory in memories.values() {
            *phases.entry(memory.phase.as_str()).or_default() += 1;
        }
        self.metrics.set_jobs(phases);
    }

    /// The job is gone.
    pub fn forget(&self, uid: &str) {
        self.memories().remove(uid);
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
    match all.list_metadata(&ListParams::default().limit(1)).await {
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
    let namespace = namespace.as_deref();
    let client = &context.client;
    let all = watcher::Config::default().timeout(WATCH_SECONDS);
    let ours = all
        .clone()
        .labels("app.kubernetes.io/managed-by=streamforge-operator");
    let scope = namespace.map(str::to_owned);
    let woken = stream::unfold(context.fleet.woken(), |mut woken| async move {
        loop {
            match woken.recv().await {
                Ok(job) => return Some((job, woken)),
                Err(RecvError::Lagged(_)) => {} // those are looked at in a minute
                Err(RecvError::Closed) => return None,
            }
        }
    });
    let woken = woken.filter(move |job| {
        let ours = scope.is_none() || scope == job.namespace;
        std::future::ready(ours)
    });
    let config = ControllerConfig::default()
        .concurrency(PASSES_MAX)
        .debounce(DEBOUNCE);
    let jobs = Controller::new(api::<StreamJob>(client, namespace), all.clone())
        .owns(api::<StatefulSet>(client, namespace), ours)
        .reconcile_on(woken)
        .with_config(config)
        .run(reconcile, again, Arc::clone(&context))
        .for_each(|_| {
            context.metrics.on_event();
            std::future::ready(())
        });
    let savepoints = Controller::new(api::<Savepoint>(client, namespace), all)
        .run(savepoint::reconcile, savepoint::again, Arc::clone(&context))
        .for_each(|_| std::future::ready(()));
    futures::future::join(jobs, savepoints).await;
}

async fn reconcile(job: Arc<StreamJob>, context: Arc<Context>) -> Result<Action, error::Error> {
    context.metrics.on_begin();
    let began = Instant::now();
    let passed = Box::pin(pass::over(&job, &context)).await;
    let failed = passed.as_ref().err().map(error::Error::reason);
    context.metrics.on_pass(began.elapsed(), failed);
    passed
}

fn again(job: Arc<StreamJob>, failed: &error::Error, context: Arc<Context>) -> Action {
    let uid = job.metadata.uid.clone().unwrap_or_default();
    let mut memory = context.memory(&uid);
    memory.failed_n = memory.failed_n.saturating_add(1);
    let wait = Duration::from_millis(500).saturating_mul(1 << memory.failed_n.min(8));
    let wait = wait.min(AGAIN_MAX);
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
