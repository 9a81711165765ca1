//! One pass over one job: dereference, validate, decide, build, apply, report.
//!
//! Owns: the order of these, and carrying out what [`crate::step`] decides. Start at: [`over`].

mod children;
pub(crate) mod status;

use std::time::{Duration, Instant};

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::api::{DeleteParams, Preconditions};
use kube::runtime::controller::Action;
use kube::runtime::reflector::ObjectRef;
use kube::{Api, Resource as _, ResourceExt as _};
use serde_json::json;
use streamforge_crds::v1alpha1::{StreamJob, StreamJobSpec, TaskManagerCount, UpgradeMode};
use streamforge_host::{Ask, Phase as Doing, Status};
use tokio::sync::oneshot;

use super::build::{self, Deployed, KeptPods};
use super::change::{Change, InPlace, change, coordinator_fields};
use super::error::{Error, api};
use super::keep::{self, Kept};
use super::report::{Pace, Refusal, Totals, Trouble};
use super::take_down::{has_finalizer, set_finalizer, take_down};
use super::validate::{Desired, Problem, RESTART_ANNOTATION, validate};
use super::{coordinate, ended};
use crate::apply::{apply, is_gone};
use crate::controller::Context;
use crate::fleet;
use crate::record::{Record, State};
use crate::step::{self, Alive, Edit, Ended, Run, Step, Wanted};

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

/// How long opening a job's store may take: other jobs wait for this pass.
const PREPARE_WITHIN: Duration = Duration::from_secs(8);

/// Pods that are missing are looked at so often.
const LOOK_AT_PODS: Duration = Duration::from_secs(5);

/// Longest wait before a coordinator that ended for reasons around it is started again.
const START_AGAIN_MAX: Duration = Duration::from_secs(30);

/// What is remembered of a job between passes; nothing depends on it but the number of writes.
#[derive(Clone, Debug, Default)]
pub struct Memory {
    /// Hash of the children that were applied, the set's generation then, and when.
    pub applied: Option<(String, i64, Instant)>,
    /// Nothing of the children's names is somebody else's.
    pub names_are_free: bool,
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
    if !has_finalizer(job) {
        set_finalizer(job, context, true).await?;
        return Ok(Action::requeue(LOOK_AGAIN_SOON));
    }
    Box::pin(Pass::begin(job, context).await?.go()).await
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
    /// What the coordinator said last: of one that has ended these are the final numbers.
    said: Option<Status>,
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
        let coordinator = context.fleet.get(&uid);
        let mut pass = Self {
            said: coordinator.map(|it| it.status.borrow().clone()),
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
        let ran = self.record.as_ref().is_some_and(|record| record.ran);
        let Change::Upgrade(upgrade) = self.change(&current, desired) else {
            return;
        };
        if !ran {
            return; // there is no state yet
        }
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
        let is_active = self
            .record
            .as_ref()
            .is_some_and(|it| it.state == State::Active);
        let run = self.run(None);
        if self.annotation(PAUSE).is_some() {
            // What runs goes on to be coordinated, by this operator too.
            if is_active && run == Run::None {
                let current = self.current();
                done = Box::pin(self.start(current, &run)).await.map(drop);
            }
        } else if let Err(error) = Box::pin(self.check_names()).await {
            done = Err(error);
        } else {
            let steps = Box::pin(self.take_steps()).await;
            done = match steps {
                Ok(soon) => {
                    wait = soon;
                    Box::pin(self.apply_children()).await
                }
                // Pods are made even if the store is away: they are needed when it is back.
                Err(error) => Box::pin(self.apply_children()).await.and(Err(error)),
            };
        }
        if self.pods.ready < self.pods.desired {
            wait = wait.min(LOOK_AT_PODS);
        }
        self.memory.trouble = done.as_ref().err().and_then(status::trouble);
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
            let step = step::next(
                Timestamp::now(),
                wanted.as_ref(),
                self.record.as_ref(),
                &run,
            );
            match step {
                Step::Write(record) => self.write(record).await?,
                Step::Abandon => self.context.fleet.abandon(&self.uid),
                // Opening a store may take its time, and people want to know what is going on.
                Step::Start if self.job.status.as_ref().is_none_or(|it| it.phase.is_none()) => {
                    Box::pin(self.report()).await?;
                    let started = Box::pin(self.start(current, &run)).await?;
                    return Ok(started.unwrap_or(LOOK_AGAIN_SOON));
                }
                Step::Start => match Box::pin(self.start(current, &run)).await? {
                    Some(wait) => return Ok(wait),
                    None => return Ok(LOOK_AGAIN_SOON),
                },
                Step::Stop { savepoint } => {
                    match savepoint {
                        Some(name) => {
                            self.order(|answer| Ask::Savepoint(name, true, answer))
                                .await;
                        }
                        None => self.order(Ask::Stop).await,
                    }
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
            && matches!(
                spec.upgrade.as_ref().map(|it| it.mode),
                Some(UpgradeMode::Stateless)
            );
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
            coordinator_fields(&current.document.spec),
            done,
            incarnation,
            self.annotation(ACCEPT_LOST_MARKER),
        ]);
        xxhash_rust::xxh3::xxh3_64(parts.to_string().as_bytes())
    }

    fn run(&self, current: Option<&Result<Desired, Vec<Problem>>>) -> Run {
        let Some(coordinator) = self.context.fleet.get(&self.uid) else {
            // The last pass could not start it.
            return match &self.memory.trouble {
                Some((_, reason)) => Run::Ended {
                    how: Ended::Broken(reason.clone()),
                    is_current: true,
                },
                None => Run::None,
            };
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
            is_running: status.phase == Doing::Running,
            is_stopping: matches!(
                status.phase,
                Doing::Stopping | Doing::Finishing | Doing::Ended
            ),
            age: SignedDuration::try_from(coordinator.since.elapsed())
                .unwrap_or(SignedDuration::MAX),
            generation: status.generation.get(),
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
                    tracing::warn!(
                        job = self.job.name_any(),
                        reason,
                        "coordinator ended, starting it again"
                    );
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
        let place = coordinate::place(&current, record);
        let started = coordinate::Starting {
            context: self.context,
            desired: &current,
            record,
            accept_lost_markers: self.annotation(ACCEPT_LOST_MARKER),
        };
        let prepared = tokio::time::timeout(PREPARE_WITHIN, started.prepare()).await;
        let (config, store, terms) = prepared.map_err(|_| Error::Silent {
            what: place.to_string(),
            seconds: PREPARE_WITHIN.as_secs(),
        })??;
        self.memory.before = Totals::of(self.job.status.as_ref());
        self.context.fleet.start(fleet::Start {
            job: ObjectRef::from_obj(self.job),
            uid: self.uid.clone(),
            revision,
            config,
            store,
            terms,
            events: (self.context.recorder.clone(), self.job.object_ref(&())),
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
                tracing::info!(
                    job = self.job.name_any(),
                    reason,
                    "order not taken, asking again"
                );
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
}
