//! What the API server says of jobs' children and pods, by watches.
//!
//! Owns: the newest that was heard of each object that carries our label, and waking its job when it
//! changes. Secrets are not among them: the operator may neither list nor watch them. Little is kept of
//! each object, and metadata only is asked for where that is enough: there may be thousands. Decides
//! nothing. Start at: [`Children::follow`], [`Children::get`].

mod seen;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::Debug;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::future::BoxFuture;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Service, ServiceAccount};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::runtime::reflector::ObjectRef;
use kube::runtime::watcher::Event;
use kube::{Api, Client, Resource, ResourceExt as _};
use serde::de::DeserializeOwned;
use streamforge_crds::v1alpha1::StreamJob;
use tokio::sync::{mpsc, watch};

use crate::names::JOB_LABEL;
use crate::watch::{Metadata, Pulses, Source, Whole, follow};

pub use seen::{By, Seen, SetStatus, version_of};

/// What all objects of ours carry.
const OURS: &str = "app.kubernetes.io/managed-by=streamforge-operator";

/// A kind of child.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// The document and the record.
    ConfigMap,
    /// Of the pods.
    ServiceAccount,
    /// Of the pods.
    Service,
    /// Of the pods.
    PodDisruptionBudget,
    /// Of the pods.
    NetworkPolicy,
    /// The pods.
    StatefulSet,
}

impl Kind {
    /// As the API server calls it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::ConfigMap => "ConfigMap",
            Self::ServiceAccount => "ServiceAccount",
            Self::Service => "Service",
            Self::PodDisruptionBudget => "PodDisruptionBudget",
            Self::NetworkPolicy => "NetworkPolicy",
            Self::StatefulSet => "StatefulSet",
        }
    }
}

/// Wakes jobs.
pub type Wakes = mpsc::UnboundedSender<ObjectRef<StreamJob>>;

type Key = (Kind, String, String);

#[derive(Debug, Default)]
struct Tables {
    seen: HashMap<Key, Box<Seen>>,
    /// By namespace and [`JOB_LABEL`], then by name.
    pods: HashMap<(String, String), BTreeMap<String, Arc<Pod>>>,
    /// Names of jobs, by namespace and [`JOB_LABEL`].
    jobs: HashMap<(String, String), String>,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Children {
    tables: Mutex<Tables>,
}

impl Children {
    fn tables(&self) -> MutexGuard<'_, Tables> {
        // Every critical section leaves the tables whole.
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The newest of a child; none: it is not there, or not heard of yet.
    #[must_use]
    pub fn get(&self, kind: Kind, namespace: &str, name: &str) -> Option<Seen> {
        let key = (kind, namespace.to_owned(), name.to_owned());
        self.tables().seen.get(&key).map(|seen| Seen::clone(seen))
    }

    /// The pods of a job, by the value of its label.
    #[must_use]
    pub fn pods(&self, namespace: &str, label: &str) -> Vec<Arc<Pod>> {
        let key = (namespace.to_owned(), label.to_owned());
        let tables = self.tables();
        let pods = tables.pods.get(&key);
        pods.into_iter()
            .flat_map(BTreeMap::values)
            .cloned()
            .collect()
    }

    /// The watches of one namespace, or of all, each of which runs for ever; and what ends when each of them has
    /// heard what is there.
    #[must_use]
    pub fn follow(
        self: &Arc<Self>,
        client: &Client,
        namespace: Option<&str>,
        pulses: &Pulses,
        wakes: &Wakes,
    ) -> (Vec<BoxFuture<'static, ()>>, BoxFuture<'static, ()>) {
        let (complete, mut completed) = watch::channel(0);
        let of = Scope {
            children: Arc::clone(self),
            client: client.clone(),
            namespace: namespace.map(str::to_owned),
            pulses: pulses.clone(),
            wakes: wakes.clone(),
            complete,
        };
        let watches = vec![
            of.metadata::<ConfigMap>(Kind::ConfigMap),
            of.metadata::<ServiceAccount>(Kind::ServiceAccount),
            of.metadata::<Service>(Kind::Service),
            of.metadata::<PodDisruptionBudget>(Kind::PodDisruptionBudget),
            of.metadata::<NetworkPolicy>(Kind::NetworkPolicy),
            of.sets(),
            of.pods(),
        ];
        let watches_n = watches.len();
        let all = async move {
            // Closed: the watches are gone, and so is who waits for them.
            let _closed = completed.wait_for(|n| *n >= watches_n).await;
        };
        (watches, Box::pin(all))
    }

    pub(crate) fn put(
        &self,
        kind: Kind,
        meta: &ObjectMeta,
        seen: Seen,
    ) -> Option<ObjectRef<StreamJob>> {
        let (namespace, name) = place(meta);
        let job = seen.job.clone();
        let mut tables = self.tables();
        if let (Some(label), Some(job)) = (label(meta), &job) {
            let key = (namespace.clone(), label);
            if tables.jobs.get(&key) != Some(job) {
                tables.jobs.insert(key, job.clone());
            }
        }
        let key = (kind, namespace.clone(), name);
        tables.seen.insert(key, Box::new(seen));
        job.map(|job| reference(&namespace, &job))
    }

    fn remove(&self, kind: Kind, namespace: &str, name: &str) -> Option<ObjectRef<StreamJob>> {
        let key = (kind, namespace.to_owned(), name.to_owned());
        let mut tables = self.tables();
        let job = tables.seen.remove(&key)?.job?;
        let is_of_it = |of: &str, owner: Option<&String>| of == namespace && owner == Some(&job);
        let mut left = tables.seen.iter();
        if !left.any(|((_, of, _), seen)| is_of_it(of, seen.job.as_ref())) {
            // With the last of its children the job is gone.
            tables
                .jobs
                .retain(|(of, _), owner| !is_of_it(of, Some(owner)));
        }
        Some(reference(namespace, &job))
    }

    pub(crate) fn put_pod(&self, pod: Pod) -> Option<ObjectRef<StreamJob>> {
        let key = (pod.namespace().unwrap_or_default(), label(pod.meta())?);
        let mut tables = self.tables();
        let job = tables.jobs.get(&key).map(|job| reference(&key.0, job));
        let pods = tables.pods.entry(key).or_default();
        pods.insert(pod.name_any(), Arc::new(pod));
        job
    }

    fn remove_pod(&self, namespace: &str, label: &str, name: &str) -> Option<ObjectRef<StreamJob>> {
        let key = (namespace.to_owned(), label.to_owned());
        let mut tables = self.tables();
        if let Some(pods) = tables.pods.get_mut(&key) {
            pods.remove(name);
            if pods.is_empty() {
                tables.pods.remove(&key);
            }
        }
        tables.jobs.get(&key).map(|job| reference(namespace, job))
    }
}

/// What is watched, and by whom.
struct Scope {
    children: Arc<Children>,
    client: Client,
    namespace: Option<String>,
    pulses: Pulses,
    wakes: Wakes,
    /// Watches whose first list is complete.
    complete: watch::Sender<usize>,
}

impl Scope {
    fn api<K>(&self) -> Api<K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        match &self.namespace {
            None => Api::all(self.client.clone()),
            Some(namespace) => Api::namespaced(self.client.clone(), namespace),
        }
    }

    fn metadata<K>(&self, kind: Kind) -> BoxFuture<'static, ()>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
            + Clone
            + Debug
            + DeserializeOwned
            + Send
            + Sync
            + 'static,
    {
        self.of(kind, Metadata(self.api::<K>()), |object| {
            Seen::of(object.meta(), SetStatus::default())
        })
    }

    fn sets(&self) -> BoxFuture<'static, ()> {
        let sets = Whole(self.api::<StatefulSet>());
        self.of(Kind::StatefulSet, sets, |set| {
            Seen::of(&set.metadata, SetStatus::of(set))
        })
    }

    /// One kind of child.
    fn of<S: Source + 'static>(
        &self,
        kind: Kind,
        source: S,
        see: impl Fn(&S::Value) -> Seen + Send + 'static,
    ) -> BoxFuture<'static, ()> {
        let (children, wakes) = (Arc::clone(&self.children), self.wakes.clone());
        let (scope, complete) = (self.namespace.clone(), self.complete.clone());
        let mut is_first = true;
        let mut listed: Option<BTreeSet<(String, String)>> = None;
        let tell = move |event: Event<S::Value>| {
            let put = |object: &S::Value| children.put(kind, object.meta(), see(object));
            let woken = match event {
                Event::Init => {
                    listed = Some(BTreeSet::new());
                    None
                }
                Event::InitApply(object) => {
                    listed.get_or_insert_default().insert(place(object.meta()));
                    put(&object)
                }
                Event::Apply(object) => put(&object),
                Event::Delete(object) => {
                    let (namespace, name) = place(object.meta());
                    children.remove(kind, &namespace, &name)
                }
                Event::InitDone => {
                    let listed = listed.take().unwrap_or_default();
                    for (namespace, name) in children.known(kind, scope.as_deref(), &listed) {
                        wake(&wakes, children.remove(kind, &namespace, &name));
                    }
                    if std::mem::take(&mut is_first) {
                        complete.send_modify(|n| *n += 1);
                    }
                    None
                }
            };
            wake(&wakes, woken);
        };
        self.run(source, tell)
    }

    fn pods(&self) -> BoxFuture<'static, ()> {
        let (children, wakes) = (Arc::clone(&self.children), self.wakes.clone());
        let (scope, complete) = (self.namespace.clone(), self.complete.clone());
        let mut is_first = true;
        let mut listed: Option<BTreeSet<(String, String)>> = None;
        let tell = move |event: Event<Pod>| {
            let put = |mut pod: Pod| {
                // What it is made of is known, and who wrote it does not matter.
                pod.spec = None;
                pod.metadata.managed_fields = None;
                children.put_pod(pod)
            };
            let woken = match event {
                Event::Init => {
                    listed = Some(BTreeSet::new());
                    None
                }
                Event::InitApply(pod) => {
                    listed.get_or_insert_default().insert(place(pod.meta()));
                    put(pod)
                }
                Event::Apply(pod) => put(pod),
                Event::Delete(pod) => {
                    let (namespace, name) = place(pod.meta());
                    let label = label(pod.meta()).unwrap_or_default();
                    children.remove_pod(&namespace, &label, &name)
                }
                Event::InitDone => {
                    let listed = listed.take().unwrap_or_default();
                    for (namespace, label, name) in children.known_pods(scope.as_deref(), &listed) {
                        wake(&wakes, children.remove_pod(&namespace, &label, &name));
                    }
                    if std::mem::take(&mut is_first) {
                        complete.send_modify(|n| *n += 1);
                    }
                    None
                }
            };
            wake(&wakes, woken);
        };
        self.run(Whole(self.api::<Pod>()), tell)
    }

    fn run<S: Source + 'static>(
        &self,
        source: S,
        tell: impl FnMut(Event<S::Value>) + Send + 'static,
    ) -> BoxFuture<'static, ()> {
        let pulse = self.pulses.begin();
        Box::pin(async move { match follow(source, Some(OURS), pulse, tell).await {} })
    }
}

impl Children {
    /// What is known of a kind in a scope and is not in a list.
    fn known(
        &self,
        kind: Kind,
        scope: Option<&str>,
        listed: &BTreeSet<(String, String)>,
    ) -> Vec<(String, String)> {
        let tables = self.tables();
        let keys = tables.seen.keys().filter(|(of, ..)| *of == kind);
        let keys = keys.map(|(_, namespace, name)| (namespace.clone(), name.clone()));
        keys.filter(|(namespace, _)| scope.is_none_or(|scope| scope == namespace))
            .filter(|key| !listed.contains(key))
            .collect()
    }

    fn known_pods(
        &self,
        scope: Option<&str>,
        listed: &BTreeSet<(String, String)>,
    ) -> Vec<(String, String, String)> {
        let mut gone = Vec::new();
        for ((namespace, label), pods) in &self.tables().pods {
            if scope.is_some_and(|scope| scope != namespace) {
                continue;
            }
            for name in pods.keys() {
                if !listed.contains(&(namespace.clone(), name.clone())) {
                    gone.push((namespace.clone(), label.clone(), name.clone()));
                }
            }
        }
        gone
    }
}

fn place(meta: &ObjectMeta) -> (String, String) {
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    (text(&meta.namespace), text(&meta.name))
}

fn label(meta: &ObjectMeta) -> Option<String> {
    meta.labels.as_ref()?.get(JOB_LABEL).cloned()
}

fn reference(namespace: &str, job: &str) -> ObjectRef<StreamJob> {
    ObjectRef::new(job).within(namespace)
}

fn wake(wakes: &Wakes, job: Option<ObjectRef<StreamJob>>) {
    if let Some(job) = job {
        // Nobody listens while the operator ends.
        let _nobody = wakes.send(job);
    }
}

#[cfg(test)]
mod tests;
