//! One pass over one job: dereference, validate, decide, build, apply, report.
//!
//! Owns: the order of these, and carrying out what [`crate::step`] decides. Start at: [`over`].

use std::fmt;
use std::time::{Duration, Instant};

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{Pod, Secret};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, Preconditions};
use kube::runtime::controller::Action;
use kube::runtime::events::{Event, EventType};
use kube::runtime::reflector::ObjectRef;
use kube::{Api, Resource as _, ResourceExt as _};
use serde_json::json;
use streamforge_crds::v1alpha1::{
    OnDelete, StreamJob, StreamJobSpec, TaskManagerCount, UpgradeMode,
};
use streamforge_host::{Ask, Phase as Doing};
use tokio::sync::oneshot;

use super::build::{self, Deployed, KeptPods};
use super::change::{Change, InPlace, change};
use super::keep::{self, Kept};
use super::report::{self, Known, Pace, Phase, Refusal, Totals, Trouble};
use super::validate::{Desired, Problem, RESTART_ANNOTATION, validate};
use super::{coordinate, ended, pods};
use crate::apply::{STATUS_MANAGER, apply, apply_set, is_gone};
use crate::certificates::Leaf;
use crate::controller::Context;
use crate::{events, fleet};
use crate::names::Names;
use crate::record::{Record, State};
use crate::step::{self, Alive, Edit, Ended, Run, Step, Wanted};
use crate::stores::{self, Opener};

/// The finalizer: a job's coordinator ends, and its checkpoints are deleted, before it is gone.
pub const FINALIZER: &str = "streamforge.io/checkpoints";

/// The checkpoint to go back to; done once per value.
pub const REWIND_TO: &str = "streamforge.io/rewind-to";

/// Sinks whose lost Kafka marker is accepted, with commas between.
pub const ACCEPT_LOST_MARKER: &str = "streamforge.io/accept-lost-marker";

/// Any value: nothing of the job is changed, only its status.
pub const PAUSE: &str = "streamforge.io/pause";

/// Steps of one pass; more are for the next one.
const STEPS_MAX: usize = 8;

/// When a job is looked at again though nothing happened.
const LOOK_AGAIN: Duration = Duration::from_secs(60);

/// The same while a change of its life is under way.
const LOOK_AGAIN_SOON: Duration = Duration::from_secs(1);

/// Children are applied again after this, whatever is remembered: somebody may have changed them.
const APPLY_AGAIN: Duration = Duration::from_secs(300);

/// Longest wait before a coordinator that ended for reasons around it is started again.
const START_AGAIN_MAX: Duration = Duration::from_secs(30);

/// How long a deleted job may take to stop.
const STOP_WITHIN: Duration = Duration::from_secs(10);

/// How long its pods may take to end.
const PODS_WITHIN: Duration = Duration::from_secs(120);

/// When a job that is being stopped is looked at again.
const LOOK_AT_ENDING: Duration = Duration::from_millis(200);

/// How long a deleted job's store may take to be cleared before the job goes without.
const CLEAR_WITHIN: Duration = Duration::from_secs(60);

/// Why a pass did not come to its end.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The API server refused something, or did not answer.
    #[error("{what}")]
    Api {
        /// What was asked for.
        what: &'static str,
        /// Its answer.
        source: kube::Error,
    },
    /// The job's store.
    #[error("use the job's store")]
    Store(#[from] stores::Error),
    /// Certificates.
    #[error("issue a certificate")]
    Certificate(#[from] crate::certificates::Error),
    /// What was kept of the job cannot be read.
    #[error("read what was kept of the job in ConfigMap {name}: {reason}")]
    Record {
        /// Its name.
        name: String,
        /// Why.
        reason: String,
    },
    /// A savepoint that the job is to begin with is not there, or not whole.
    #[error("begin with savepoint {name}: {reason}")]
    Savepoint {
        /// Its name.
        name: String,
        /// Why.
        reason: String,
    },
}

impl Error {
    /// One word, for metrics and conditions.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Api { .. } => "ApiServer",
            Self::Store(_) => "Store",
            Self::Certificate(_) => "Certificate",
            Self::Record { .. } => "Record",
            Self::Savepoint { .. } => "Savepoint",
        }
    }
}

fn api(what: &'static str) -> impl Fn(kube::Error) -> Error {
    move |source| Error::Api { what, source }
}

/// An error with its causes in one line.
pub fn chain<'a>(error: &'a (dyn std::error::Error + 'static)) -> impl fmt::Display + 'a {
    fmt::from_fn(move |f| {
        write!(f, "{error}")?;
        let mut source = error.source();
        while let Some(cause) = source {
            write!(f, ": {cause}")?;
            source = cause.source();
        }
        Ok(())
    })
}

/// What is remembered of a job between passes; nothing depends on it but the number of writes.
#[derive(Clone, Debug, Default)]
pub struct Memory {
    /// Hash of the children that were applied, the set's generation then, and when.
    pub applied: Option<(String, i64, Instant)>,
    /// When the status was written.
    pub reported: Option<Instant>,
    /// Coordinators in a row that ended for reasons around them.
    pub broken_n: u32,
    /// Not before this the next one is started.
    pub start_at: Option<Instant>,
    /// Passes in a row that failed.
    pub failed_n: u32,
    /// For metrics.
    pub phase: String,
    /// Since when the watermark has not moved.
    pub pace: Pace,
    /// What was counted before the coordinator of now.
    pub before: Totals,
    /// A pod that cannot start.
    pub sick: Option<(Trouble, String)>,
    /// What kept the last pass from going on.
    pub trouble: Option<(Trouble, String)>,
}

/// One pass.
///
/// # Errors
/// When something around the job does not work; it is tried again.
pub async fn over(job: &StreamJob, context: &Context) -> Result<Action, Error> {
    if job.metadata.deletion_timestamp.is_some() {
        return take_down(job, context).await;
    }
    if !job.finalizers().iter().any(|it| it == FINALIZER) {
        set_finalizer(job, context, true).await?;
        return Ok(Action::requeue(LOOK_AGAIN_SOON));
    }
    Pass::begin(job, context).await?.go().await
}

struct Pass<'a> {
    job: &'a StreamJob,
    context: &'a Context,
    uid: String,
    memory: Memory,
    record: Option<Record>,
    kept: Option<KeptPods>,
    /// What the resource wants, if it can be had.
    desired: Result<Desired, (Refusal, Vec<Problem>)>,
    /// Pods there are to be, and ready ones.
    pods: TaskManagerCount,
    /// Pods are being replaced.
    replaces_pods: bool,
}

impl<'a> Pass<'a> {
    async fn begin(job: &'a StreamJob, context: &'a Context) -> Result<Self, Error> {
        let uid = job.uid().unwrap_or_default();
        let desired = validate(job, &context.settings);
        let kept = keep::read(&context.client, job).await?;
        let kept = kept.filter(|kept| kept.record.uid == uid);
        let memory = context.memory(&uid);
        let (record, kept) = match kept {
            Some(Kept { record, pods }) => (Some(record), pods),
            None => (None, None),
        };
        let mut pass = Self {
            job,
            context,
            memory,
            record,
            uid,
            kept,
            desired: desired.map_err(|problems| (Refusal::Invalid, problems)),
            pods: TaskManagerCount::default(),
            replaces_pods: false,
        };
        pass.refuse_what_drops_state();
        Ok(pass)
    }

    fn annotation(&self, name: &str) -> Option<String> {
        self.job.annotations().get(name).cloned()
    }

    /// What is on record, as if the resource said so.
    fn current(&self) -> Option<Result<Desired, Vec<Problem>>> {
        self.record.as_ref().map(|record| self.read(record))
    }

    fn read(&self, record: &Record) -> Result<Desired, Vec<Problem>> {
        let spec: StreamJobSpec = serde_json::from_value(record.document.clone())
            .map_err(|error| vec![Problem::new("", error.to_string(), "edit the job")])?;
        let mut job = self.job.clone();
        job.spec = spec;
        validate(&job, &self.context.settings)
    }

    fn change(&self, current: &Desired, desired: &Desired) -> Change {
        let deployed = Deployed {
            document: current.document.clone(),
            pods: self.kept.clone(),
        };
        change(&deployed, desired, &self.context.settings)
    }

    /// An edit that would lose state is no valid edit, unless it says so.
    fn refuse_what_drops_state(&mut self) {
        let (Some(Ok(current)), Ok(desired)) = (self.current(), &self.desired) else {
            return;
        };
        let Change::Upgrade(upgrade) = self.change(&current, desired) else {
            return;
        };
        let policy = self.job.spec.upgrade.clone().unwrap_or_default();
        let mut problems = upgrade.refusal(&policy);
        if upgrade.moves_store && policy.mode == UpgradeMode::Stateful {
            problems.push(Problem::new(
                "spec.checkpoint.storage",
                "the checkpoints of a job stay where they are",
                "take a Savepoint, and begin a new job with it (restoreFrom)",
            ));
        }
        if !problems.is_empty() {
            self.desired = Err((Refusal::DropsState, problems));
        }
    }

    async fn go(mut self) -> Result<Action, Error> {
        let mut wait = LOOK_AGAIN;
        let mut done = Ok(());
        if self.annotation(PAUSE).is_none() {
            let steps = self.take_steps().await;
            done = match steps {
                Ok(soon) => {
                    wait = soon;
                    self.apply_children().await
                }
                // Pods are made even if the store is away: they are needed when it is back.
                Err(error) => self.apply_children().await.and(Err(error)),
            };
        }
        self.memory.trouble = done.as_ref().err().and_then(trouble);
        if done.is_ok() {
            self.memory.failed_n = 0;
        }
        let reported = self.report().await;
        self.context.remember(&self.uid, self.memory.clone());
        done.and(reported)?;
        Ok(Action::requeue(wait))
    }

    /// Until there is nothing to do but wait; says how long.
    async fn take_steps(&mut self) -> Result<Duration, Error> {
        for _ in 0..STEPS_MAX {
            let current = self.current();
            let wanted = self.wanted(current.as_ref());
            let run = self.run(current.as_ref());
            let step = step::next(Timestamp::now(), wanted.as_ref(), self.record.as_ref(), &run);
            match step {
                Step::Write(record) => self.write(record).await?,
                Step::Abandon => self.context.fleet.abandon(&self.uid),
                Step::Start => match self.start(current, &run).await? {
                    Some(wait) => return Ok(wait),
                    None => return Ok(LOOK_AGAIN_SOON),
                },
                Step::Stop { savepoint } => {
                    self.order(|answer| Ask::Savepoint(savepoint, true, answer)).await;
                    return Ok(LOOK_AGAIN_SOON);
                }
                Step::Scale(n) => {
                    self.order(|answer| Ask::Scale(n, answer)).await;
                    return Ok(LOOK_AGAIN_SOON);
                }
                Step::Wait => return self.wait().await,
            }
        }
        Ok(LOOK_AGAIN_SOON)
    }

    fn wanted(&self, current: Option<&Result<Desired, Vec<Problem>>>) -> Option<Wanted> {
        let desired = self.desired.as_ref().ok()?;
        let spec = &self.job.spec;
        let current = current.and_then(|current| current.as_ref().ok());
        let edit = current.map_or_else(Edit::default, |current| self.edit(current, desired));
        let stateless = edit.upgrade
            && matches!(spec.upgrade.as_ref().map(|it| it.mode), Some(UpgradeMode::Stateless));
        let rollback_after = spec.upgrade.clone().unwrap_or_default().rollback_after;
        Some(Wanted {
            uid: self.uid.clone(),
            generation: self.job.metadata.generation.unwrap_or_default(),
            document: serde_json::to_value(spec).unwrap_or_default(),
            edit: Edit { stateless, ..edit },
            suspend: spec.suspend,
            rollback_after: SignedDuration::from_micros(rollback_after.micros()),
            restart: self.annotation(RESTART_ANNOTATION),
            rewind_to: self.annotation(REWIND_TO),
        })
    }

    /// What identifies the coordinator that belongs to the record.
    fn revision(&self, current: &Desired) -> u64 {
        let done = self.record.as_ref().map(|record| &record.done.rewind_to);
        let incarnation = self.record.as_ref().map(|record| record.incarnation);
        let parts = json!([
            current.document.attempt_hash(),
            policies(&current.document.spec),
            done,
            incarnation,
            self.annotation(ACCEPT_LOST_MARKER),
        ]);
        xxhash_rust::xxh3::xxh3_64(parts.to_string().as_bytes())
    }

    fn run(&self, current: Option<&Result<Desired, Vec<Problem>>>) -> Run {
        let Some(coordinator) = self.context.fleet.get(&self.uid) else {
            return Run::None;
        };
        let revision = current
            .and_then(|current| current.as_ref().ok())
            .map(|current| self.revision(current));
        // What cannot be read any more runs on as it is.
        let is_current = revision.is_none_or(|revision| revision == coordinator.revision);
        let outcome = coordinator.outcome.borrow().clone();
        if let Some(outcome) = outcome {
            let how = ended::how(&outcome);
            return Run::Ended { how, is_current };
        }
        let status = coordinator.status.borrow();
        Run::Alive(Alive {
            is_current,
            is_running: status.phase == streamforge_host::Phase::Running,
            wanted: status.wanted,
            completed_n: status.checkpoint.completed_n,
        })
    }

    async fn start(
        &mut self,
        current: Option<Result<Desired, Vec<Problem>>>,
        run: &Run,
    ) -> Result<Option<Duration>, Error> {
        let Some(Ok(current)) = current else {
            // This operator cannot read what an older one kept: an edit mends it.
            return Ok(Some(LOOK_AGAIN));
        };
        if let Run::Ended {
            how: Ended::Broken(reason),
            is_current: true,
        } = run
        {
            let now = Instant::now();
            match self.memory.start_at {
                None => {
                    self.memory.broken_n += 1;
                    let wait = Duration::from_millis(500) * (1 << self.memory.broken_n.min(7));
                    let wait = wait.min(START_AGAIN_MAX);
                    tracing::warn!(job = self.job.name_any(), reason, "coordinator ended, starting it again");
                    self.memory.start_at = Some(now + wait);
                    return Ok(Some(wait));
                }
                Some(at) if at > now => return Ok(Some(at - now)),
                Some(_) => self.memory.start_at = None,
            }
        }
        let revision = self.revision(&current);
        let Some(record) = &self.record else {
            return Ok(None);
        };
        let started = coordinate::Starting {
            context: self.context,
            job: self.job,
            desired: &current,
            record,
            accept_lost_markers: self.annotation(ACCEPT_LOST_MARKER),
        };
        let (config, store, terms) = started.prepare().await?;
        self.memory.before = Totals::of(self.job.status.as_ref());
        self.context.fleet.start(fleet::Start {
            job: ObjectRef::from_obj(self.job),
            uid: self.uid.clone(),
            revision,
            config,
            store,
            terms,
        });
        Ok(None)
    }

    /// Orders something; a refusal is for the log, and the next pass asks again.
    async fn order(&self, ask: impl FnOnce(oneshot::Sender<Result<(), String>>) -> Ask) {
        let Some(coordinator) = self.context.fleet.get(&self.uid) else {
            return;
        };
        match coordinator.orders.ask(ask).await {
            Ok(Ok(())) | Err(_) => {}
            Ok(Err(reason)) => {
                tracing::info!(job = self.job.name_any(), reason, "order not taken, asking again");
            }
        }
    }

    /// Nothing to do: when is the next look, and is the job's time over?
    async fn wait(&self) -> Result<Duration, Error> {
        let Some(record) = &self.record else {
            return Ok(LOOK_AGAIN);
        };
        if record.previous.is_some() || record.rewind.is_some() {
            return Ok(LOOK_AGAIN_SOON);
        }
        let (State::Finished { at } | State::Failed { at, .. }) = &record.state else {
            return Ok(LOOK_AGAIN);
        };
        let Some(ttl) = self.job.spec.ttl_after_finished else {
            return Ok(LOOK_AGAIN);
        };
        let left = SignedDuration::from_micros(ttl.micros()) - Timestamp::now().duration_since(*at);
        if left.is_positive() {
            let left = left.unsigned_abs().min(LOOK_AGAIN);
            return Ok(left.max(Duration::from_millis(100)));
        }
        let jobs: Api<StreamJob> = Api::namespaced(self.context.client.clone(), &self.namespace());
        let preconditions = Preconditions {
            uid: Some(self.uid.clone()),
            resource_version: self.job.resource_version(),
        };
        let params = DeleteParams::default().preconditions(preconditions);
        match jobs.delete(&self.job.name_any(), &params).await {
            Err(error) if !is_gone(&error) => Err(api("delete the job after its time")(error)),
            _ => Ok(LOOK_AGAIN),
        }
    }

    fn namespace(&self) -> String {
        self.job.namespace().unwrap_or_default()
    }

    /// Pods that the job needs now.
    fn replicas(&self, current: &Desired) -> i32 {
        let is_active = self.record.as_ref().is_some_and(|record| record.state == State::Active);
        if !is_active {
            return 0;
        }
        // Pods go when nothing runs there any more.
        let runs = self.context.fleet.get(&self.uid);
        let runs = runs.map_or(0, |coordinator| coordinator.status.borrow().parallelism);
        let runs = i32::try_from(runs.div_ceil(current.pods.slots.max(1))).unwrap_or(i32::MAX);
        // And come before they are needed.
        let wanted = self.desired.as_ref().map_or(0, Desired::replicas);
        current.replicas().max(wanted).max(runs)
    }

    fn edit(&self, current: &Desired, desired: &Desired) -> Edit {
        match self.change(current, desired) {
            Change::None => Edit {
                // What concerns neither pods nor tasks: it is written down all the same.
                rest: current.document.text != desired.document.text,
                ..Edit::default()
            },
            Change::InPlace(InPlace {
                scale,
                policies,
                pods,
            }) => Edit {
                parallelism: scale.map(|scale| scale.to),
                rest: pods || !policies.is_empty(),
                ..Edit::default()
            },
            Change::Upgrade(_) => Edit {
                upgrade: true,
                ..Edit::default()
            },
        }
    }

    /// Writes a record down, with the document and the pods of it.
    async fn write(&mut self, record: Record) -> Result<(), Error> {
        let current = self.read(&record).ok();
        let Some(current) = current.or_else(|| self.desired.as_ref().ok().cloned()) else {
            return Ok(()); // nothing that this operator can read was ever valid
        };
        let mut children = build::build(&build::Request {
            desired: &current,
            settings: &self.context.settings,
            kept: self.kept.as_ref(),
            replicas: 0,
            certificate: None,
        });
        keep::add(&mut children.document, &record);
        apply(&self.context.client, &children.document)
            .await
            .map_err(api("write the ConfigMap"))?;
        let data = children.document.data.as_ref();
        let pods = data.and_then(|data| data.get(build::PODS_KEY));
        self.kept = pods.and_then(|text| KeptPods::read(text));
        self.record = Some(record);
        Ok(())
    }

    /// Best effort: an event that is not taken is no reason to do less.
    async fn tell(&self, event: events::Event) {
        let reason = event.reason;
        let event = Event {
            type_: match event.severity {
                events::Severity::Normal => EventType::Normal,
                events::Severity::Warning => EventType::Warning,
            },
            reason: reason.to_owned(),
            note: Some(event.note),
            action: event.action.to_owned(),
            secondary: None,
        };
        let regarding = self.job.object_ref(&());
        let published = self.context.recorder.publish(&event, &regarding).await;
        if let Err(error) = published {
            tracing::debug!(%error, reason, "event not taken");
        }
    }

    async fn apply_children(&mut self) -> Result<(), Error> {
        let (Some(Ok(current)), Some(record)) = (self.current(), &self.record) else {
            return Ok(());
        };
        let client = &self.context.client;
        let certificate = self.certificate(&current).await?;
        let mut children = build::build(&build::Request {
            desired: &current,
            settings: &self.context.settings,
            kept: self.kept.as_ref(),
            replicas: self.replicas(&current),
            certificate: certificate.as_ref(),
        });
        keep::add(&mut children.document, record);
        let hash = hash_of(&children);
        self.pods.desired = self.replicas(&current);
        let set_name = children.stateful_set.name_any();
        let sets: Api<StatefulSet> = Api::namespaced(client.clone(), &self.namespace());
        let set = sets.get_opt(&set_name).await;
        let set = set.map_err(api("read the StatefulSet"))?;
        let generation = set.as_ref().and_then(|set| set.metadata.generation);
        let status = set.as_ref().and_then(|set| set.status.as_ref());
        self.pods.ready = status.and_then(|status| status.ready_replicas).unwrap_or(0);
        self.replaces_pods = status.is_some_and(|it| it.update_revision != it.current_revision);
        let applied = self.memory.applied.take().filter(|(applied, ..)| *applied == hash);
        let drifted = applied.as_ref().is_some_and(|(_, of, _)| generation != Some(*of));
        if let Some((applied, of, at)) = applied
            && !drifted
            && at.elapsed() < APPLY_AGAIN
        {
            self.memory.applied = Some((applied, of, at));
            return self.look_at_pods(set.as_ref(), &current).await;
        }
        apply(client, &children.document).await.map_err(api("apply the ConfigMap"))?;
        apply(client, &children.service_account).await.map_err(api("apply the ServiceAccount"))?;
        apply(client, &children.service).await.map_err(api("apply the Service"))?;
        apply(client, &children.network_policy).await.map_err(api("apply the NetworkPolicy"))?;
        apply(client, &children.disruption_budget).await.map_err(api("apply the PodDisruptionBudget"))?;
        if let Some(tls) = &children.tls {
            apply(client, &tls.0).await.map_err(api("apply the Secret"))?;
        }
        let set = apply_set(client, &children.stateful_set).await;
        let set = set.map_err(api("apply the StatefulSet"))?;
        let generation_now = set.metadata.generation.unwrap_or_default();
        if drifted && generation != Some(generation_now) {
            let name = set.name_any();
            let repaired = events::drift_repaired("StatefulSet", &name, None, &["spec".to_owned()]);
            self.tell(repaired).await;
        }
        self.memory.applied = Some((hash, generation_now, Instant::now()));
        self.look_at_pods(Some(&set), &current).await
    }

    /// Finds pods that cannot start; those that are in the way of better ones are deleted.
    async fn look_at_pods(&mut self, set: Option<&StatefulSet>, current: &Desired) -> Result<(), Error> {
        let status = set.and_then(|set| set.status.as_ref());
        self.memory.sick = None;
        if self.pods.ready >= self.pods.desired {
            return Ok(());
        }
        let revision = status.and_then(|status| status.update_revision.as_deref());
        let pods: Api<Pod> = Api::namespaced(self.context.client.clone(), &self.namespace());
        let ours = ListParams::default().labels(&current.identity.names.selector_text());
        let listed = pods.list(&ours).await.map_err(api("list pods"))?;
        for sick in listed.iter().filter_map(|pod| pods::sick(pod, revision)) {
            if sick.is_in_the_way {
                let deleted = pods.delete(&sick.name, &DeleteParams::default()).await;
                match deleted {
                    Err(error) if !is_gone(&error) => return Err(api("delete a stuck pod")(error)),
                    _ => {}
                }
                self.tell(events::stuck_pod_deleted(&sick.name, &sick.reason)).await;
                continue;
            }
            let trouble = if sick.out_of_memory { Trouble::OutOfMemory } else { Trouble::PodsStuck };
            self.memory.sick = Some((trouble, format!("pod {}: {}", sick.name, sick.reason)));
        }
        Ok(())
    }

    /// A new certificate for the pods, if the one that they have is due.
    async fn certificate(&self, current: &Desired) -> Result<Option<Leaf>, Error> {
        let identity = &current.identity;
        let secrets: Api<Secret> = Api::namespaced(self.context.client.clone(), &identity.namespace);
        let secret = secrets.get_opt(identity.names.tls().as_str()).await;
        let secret = secret.map_err(api("read the Secret of certificates"))?;
        let data = secret.and_then(|secret| secret.data).unwrap_or_default();
        let text = |key: &str| {
            let value = data.get(key).map(|value| value.0.clone());
            String::from_utf8(value.unwrap_or_default()).unwrap_or_default()
        };
        let (certificate, authority) = (text(build::CERTIFICATE_KEY), text(build::AUTHORITY_KEY));
        let now = Timestamp::now();
        let has_key = data.contains_key(build::PRIVATE_KEY_KEY);
        let is_due = self.context.authority.is_due(&identity.uid, &certificate, &authority, now);
        if has_key && !is_due {
            return Ok(None);
        }
        Ok(Some(self.context.authority.issue_to_job(&identity.uid, now)?))
    }

    async fn report(&mut self) -> Result<(), Error> {
        let current = self.current().and_then(Result::ok);
        let coordinator = self.context.fleet.get(&self.uid);
        let status = coordinator.map(|it| it.status.borrow().clone());
        let now = Timestamp::now();
        if let Some(status) = &status {
            self.memory.pace = self.memory.pace.after(status, now);
            if status.phase == Doing::Running {
                self.memory.broken_n = 0;
            }
        }
        let (phase, doing) = self.phase(current.as_ref(), status.as_ref().map(|it| it.phase));
        phase.name().clone_into(&mut self.memory.phase);
        let rolled_back = self.rolled_back();
        let refused = match &self.desired {
            Err((refusal, problems)) => Some((*refusal, &problems[..])),
            Ok(_) => rolled_back.as_ref().map(|problem| (Refusal::RolledBack, std::slice::from_ref(problem))),
        };
        let trouble = self.memory.trouble.as_ref().or(self.memory.sick.as_ref());
        let new = report::report(self.job, &Known {
            phase,
            doing: doing.as_deref(),
            desired: current.as_ref(),
            coordinator: status.as_ref(),
            pace: self.memory.pace,
            before: self.memory.before,
            lag: None,
            pods: &self.pods,
            replaces_pods: self.replaces_pods,
            refused,
            trouble: trouble.map(|(trouble, message)| (*trouble, &message[..])),
            failure: None,
            paused: self.annotation(PAUSE).is_some(),
            now,
        });
        let since = self.memory.reported.map_or(Duration::MAX, |at| at.elapsed());
        if !report::is_worth_writing(self.job.status.as_ref(), &new, since) {
            return Ok(());
        }
        let api_version = StreamJob::api_version(&());
        let kind = StreamJob::kind(&());
        let patch = json!({
            "apiVersion": api_version, "kind": kind,
            "metadata": {"name": self.job.name_any(), "uid": self.uid},
            "status": new,
        });
        let jobs: Api<StreamJob> = Api::namespaced(self.context.client.clone(), &self.namespace());
        let params = PatchParams::apply(STATUS_MANAGER).force();
        let written = jobs.patch_status(&self.job.name_any(), &params, &Patch::Apply(&patch)).await;
        written.map_err(api("write the status"))?;
        self.memory.reported = Some(Instant::now());
        for event in events::of_transition(self.job.status.as_ref(), &new) {
            self.tell(event).await;
        }
        Ok(())
    }

    fn rolled_back(&self) -> Option<Problem> {
        let refused = self.record.as_ref()?.refused.as_ref()?;
        let is_newest = Some(refused.generation) == self.job.metadata.generation;
        is_newest.then(|| Problem::new("spec", refused.reason.clone(), "edit it, or go back to what runs"))
    }

    fn phase(&self, current: Option<&Desired>, doing: Option<Doing>) -> (Phase, Option<String>) {
        let Some(record) = &self.record else {
            return (Phase::Pending, None);
        };
        match &record.state {
            State::Suspended { .. } => return (Phase::Suspended, None),
            State::Finished { .. } => return (Phase::Finished, None),
            State::Failed { reason, .. } => return (Phase::Failed, Some(reason.clone())),
            State::Active => {}
        }
        let upgrades = match (current, &self.desired) {
            (Some(current), Ok(desired)) => self.edit(current, desired).upgrade && self.rolled_back().is_none(),
            _ => false,
        };
        let phase = match doing {
            _ if self.desired.is_ok() && self.job.spec.suspend => Phase::Suspending,
            _ if upgrades => Phase::Upgrading,
            Some(Doing::Running | Doing::Finishing) => Phase::Running,
            Some(Doing::Recovering) => Phase::Recovering,
            _ if record.previous.is_some() => Phase::Upgrading,
            // Rows flow while a new coordinator looks for its task managers (F1).
            _ => match Phase::of(self.job.status.as_ref()) {
                Some(before @ (Phase::Running | Phase::Recovering)) => before,
                _ => Phase::Starting,
            },
        };
        (phase, None)
    }
}

/// What only another coordinator can follow.
fn policies(spec: &StreamJobSpec) -> serde_json::Value {
    let checkpoint = &spec.checkpoint;
    json!([
        checkpoint.interval,
        checkpoint.timeout,
        checkpoint.min_pause,
        checkpoint.retain,
        checkpoint.tolerate_failures,
        spec.state.memory_limit,
        spec.restart,
        spec.failure_detection,
    ])
}

/// All that is applied, as one number.
fn hash_of(children: &build::Children) -> String {
    let build::Children {
        document,
        service_account,
        tls,
        service,
        disruption_budget,
        network_policy,
        stateful_set,
    } = children;
    crate::hash::of(&json!([
        document,
        service_account,
        tls.as_ref().map(|tls| &tls.0),
        service,
        disruption_budget,
        network_policy,
        stateful_set,
    ]))
}

/// What keeps a job from going on, if it is not the API server.
fn trouble(error: &Error) -> Option<(Trouble, String)> {
    let kind = match error {
        Error::Store(stores::Error::Secret { .. }) => Trouble::SecretMissing,
        Error::Store(_) => Trouble::StoreUnreachable,
        Error::Savepoint { .. } => Trouble::SavepointMissing,
        Error::Api { source: kube::Error::Api(status), .. } if status.code == 403 => Trouble::NotAllowed,
        Error::Api { .. } | Error::Certificate(_) | Error::Record { .. } => return None,
    };
    Some((kind, chain(error).to_string()))
}

async fn set_finalizer(job: &StreamJob, context: &Context, there: bool) -> Result<(), Error> {
    let mut finalizers: Vec<&str> = job.finalizers().iter().map(String::as_str).collect();
    finalizers.retain(|it| *it != FINALIZER);
    if there {
        finalizers.push(FINALIZER);
    }
    // The resource version makes sure that no other finalizer is lost.
    let patch = json!({"metadata": {
        "finalizers": finalizers,
        "resourceVersion": job.resource_version(),
        "uid": job.uid(),
    }});
    let namespace = job.namespace().unwrap_or_default();
    let jobs: Api<StreamJob> = Api::namespaced(context.client.clone(), &namespace);
    let patched = jobs
        .patch(&job.name_any(), &PatchParams::default(), &Patch::Merge(&patch))
        .await;
    match patched {
        Err(error) if !is_gone(&error) => Err(api("set the finalizer")(error)),
        _ => Ok(()),
    }
}

/// A job that is being deleted: it is stopped, its pods end, its checkpoints go or stay, and so may it.
async fn take_down(job: &StreamJob, context: &Context) -> Result<Action, Error> {
    let uid = job.uid().unwrap_or_default();
    if !job.finalizers().iter().any(|it| it == FINALIZER) {
        context.fleet.abandon(&uid);
        context.forget(&uid);
        return Ok(Action::await_change());
    }
    let asked = job.metadata.deletion_timestamp.as_ref().map(|it| it.0);
    let since = asked.map_or(Duration::MAX, |at| {
        let since = Timestamp::now().duration_since(at);
        since.unsigned_abs()
    });
    if since < STOP_WITHIN && is_stopping(&uid, context).await {
        return Ok(Action::requeue(LOOK_AT_ENDING));
    }
    if since < PODS_WITHIN && has_pods(job, context).await? {
        return Ok(Action::requeue(LOOK_AGAIN_SOON));
    }
    context.fleet.abandon(&uid);
    if job.spec.checkpoint.on_delete == OnDelete::Delete {
        let cleared = tokio::time::timeout(CLEAR_WITHIN, clear(job, context)).await;
        // A store that is gone for good must not keep the resource for ever.
        let name = job.name_any();
        match cleared {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(name, "checkpoints are left: {}", chain(&error)),
            Err(_) => tracing::warn!(name, "checkpoints are left: the store did not answer"),
        }
    }
    set_finalizer(job, context, false).await?;
    context.forget(&uid);
    Ok(Action::await_change())
}

/// Whether its coordinator is told to stop, and has not yet.
async fn is_stopping(uid: &str, context: &Context) -> bool {
    let Some(coordinator) = context.fleet.get(uid) else {
        return false;
    };
    let has_ended = coordinator.outcome.borrow().is_some();
    !has_ended && coordinator.orders.ask(Ask::Stop).await.is_ok()
}

/// Whether pods of it are left; they are told to end. A pod that writes to a store that is being cleared
/// would leave something behind.
async fn has_pods(job: &StreamJob, context: &Context) -> Result<bool, Error> {
    let Ok(names) = Names::of(&job.name_any()) else {
        return Ok(false);
    };
    let namespace = job.namespace().unwrap_or_default();
    let sets: Api<StatefulSet> = Api::namespaced(context.client.clone(), &namespace);
    let params = DeleteParams::background();
    match sets.delete(names.task_managers().as_str(), &params).await {
        Err(error) if !is_gone(&error) => return Err(api("delete the StatefulSet")(error)),
        _ => {}
    }
    let pods: Api<Pod> = Api::namespaced(context.client.clone(), &namespace);
    let ours = ListParams::default().labels(&names.selector_text());
    let pods = pods.list_metadata(&ours).await.map_err(api("list pods"))?;
    Ok(!pods.items.is_empty())
}

async fn clear(job: &StreamJob, context: &Context) -> Result<(), Error> {
    let Some(Kept { record, .. }) = keep::read(&context.client, job).await? else {
        return Ok(()); // it never ran
    };
    let uid = job.uid().unwrap_or_default();
    if record.uid != uid {
        return Ok(());
    }
    let spec: StreamJobSpec = serde_json::from_value(record.document).unwrap_or_else(|_| job.spec.clone());
    let namespace = job.namespace().unwrap_or_default();
    let opener = Opener {
        client: &context.client,
        namespace: &namespace,
        work_dir: &context.work_dir,
    };
    for incarnation in 0..=record.incarnation {
        let place = stores::place(&spec, &uid, incarnation)?;
        opener.clear(&place).await?;
    }
    Ok(())
}
