//! One pass over one job: dereference, validate, decide, build, apply, report.
//!
//! Owns: the order of these, and carrying out what [`crate::step`] decides. Start at: [`over`].

mod children;
mod dry_run;
mod kept;
mod memory;
mod secrets;
mod start;
pub(crate) mod status;

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::api::{DeleteParams, Preconditions};
use kube::runtime::controller::Action;
use kube::{Api, ResourceExt as _};
use serde_json::json;
use streamforge_crds::v1alpha1::{StreamJob, TaskManagerCount, UpgradeMode};
use streamforge_host::{Ask, Phase as Doing, SavepointState, Status};
use tokio::sync::oneshot;

use super::build::KeptPods;
use super::change::{Change, InPlace, coordinator_fields};
use super::checked::Outcome as Checked;
use super::ended;
use super::error::{Error, api};
use super::judge;
use super::keep::Packed;
use super::report::{self, Refusal};
use super::take_down::{has_finalizer, set_finalizer, take_down};
use super::validate::{self, Desired, Problem, RESTART_ANNOTATION};
use crate::apply::{is_conflict, is_gone};
use crate::controller::Context;
use crate::events::{self, Event};
use crate::heard::{Heard, Unreadable};
use crate::record::{Lived, Record, State};
use crate::step::{self, Alive, Edit, Ended, Run, Step, Wanted, Without};

pub use memory::Memory;

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

/// One pass.
///
/// # Errors
/// When something around the job does not work; it is tried again.
pub async fn over(heard: &Heard<StreamJob>, context: &Arc<Context>) -> Result<Action, Error> {
    let job = &heard.object;
    if job.metadata.deletion_timestamp.is_some() {
        return take_down(job, context).await;
    }
    if !has_finalizer(job) {
        set_finalizer(job, context, true).await?;
        return Ok(Action::requeue(LOOK_AGAIN_SOON));
    }
    Box::pin(Pass::begin(heard, context).await?.go()).await
}

struct Pass<'a> {
    job: &'a StreamJob,
    /// What could not be read of it.
    unreadable: Option<&'a Unreadable>,
    context: &'a Arc<Context>,
    uid: String,
    memory: Memory,
    record: Option<Record>,
    kept: Option<KeptPods>,
    /// What the resource wants, if it can be had.
    desired: Result<Arc<Desired>, (Refusal, Vec<Problem>)>,
    /// The API server has not said yet what it makes of the pods of that.
    is_untried: bool,
    /// Pods there are to be, and ready ones.
    pods: TaskManagerCount,
    /// Pods are being replaced.
    replaces_pods: bool,
    /// The revision that pods are to have.
    update_revision: Option<String>,
    /// When it must be looked at again at the latest.
    look_within: Duration,
    /// What the coordinator said last: of one that has ended these are the final numbers.
    said: Option<Status>,
}

impl<'a> Pass<'a> {
    async fn begin(heard: &'a Heard<StreamJob>, context: &'a Arc<Context>) -> Result<Self, Error> {
        let (job, unreadable) = (&heard.object, heard.unreadable.as_deref());
        let uid = job.uid().unwrap_or_default();
        let mut memory = context.memory(&uid);
        let mut kept = memory.kept.unpacked();
        if let Some(newer) = kept::newer(job, context, &kept).await? {
            memory.kept = Packed::of(&newer);
            kept = newer;
        }
        let desired = match unreadable {
            None => context.checked.validate(job, &context.settings),
            Some(unreadable) => Err(unreadable.problems.clone()),
        };
        let asked = validate::check_annotations(job, kept.record.as_ref());
        let desired = desired.and_then(|desired| asked.map(|()| desired));
        let coordinator = context.fleet.get(&uid);
        let mut pass = Self {
            said: coordinator.map(|it| it.status.borrow().clone()),
            job,
            unreadable,
            context,
            record: kept.record,
            kept: kept.pods,
            memory,
            uid,
            desired: desired.map_err(|problems| (Refusal::Invalid, problems)),
            is_untried: false,
            pods: TaskManagerCount::default(),
            replaces_pods: false,
            update_revision: None,
            look_within: LOOK_AGAIN,
        };
        pass.refuse_what_drops_state();
        Ok(pass)
    }

    fn annotation(&self, name: &str) -> Option<String> {
        self.job.annotations().get(name).cloned()
    }

    /// What is on record, as if the resource said so.
    fn current(&self) -> Option<Checked> {
        self.record.as_ref().map(|record| self.read(record))
    }

    fn read(&self, record: &Record) -> Checked {
        let job = judge::of_record(self.job, record)?;
        self.context.checked.validate(&job, &self.context.settings)
    }

    fn change(&self, current: &Desired, desired: &Desired) -> Change {
        judge::difference(current, desired, self.kept.as_ref(), &self.context.settings)
    }

    /// An edit that would lose state is no valid edit, unless it says so.
    fn refuse_what_drops_state(&mut self) {
        let (Some(Ok(current)), Ok(desired)) = (self.current(), &self.desired) else {
            return;
        };
        let change = self.change(&current, desired);
        let problems = judge::refusal(self.job, self.record.as_ref(), &change);
        if !problems.is_empty() {
            self.desired = Err((Refusal::DropsState, problems));
        }
    }

    async fn go(mut self) -> Result<Action, Error> {
        let mut done = Ok(());
        let is_active = self
            .record
            .as_ref()
            .is_some_and(|it| it.state == State::Active);
        let run = self.run(None);
        if self.annotation(PAUSE).is_some() {
            self.recall_tried();
            if is_active {
                done = self.go_on(&run).await;
            }
            done = done.and(Box::pin(self.look_at_children()).await);
        } else if let Err(error) = Box::pin(self.check_names()).await {
            // Somebody's object is in the way of children, not of rows.
            done = Err(error);
            self.recall_tried();
            if let Some(Ok(current)) = self.current() {
                self.look_at_set(&current);
            }
            if is_active {
                done = self.go_on(&run).await.and(done);
            }
        } else {
            let tried = Box::pin(self.try_pods()).await;
            let steps = Box::pin(self.take_steps()).await;
            done = match steps {
                Ok(wait) => {
                    self.look_within = self.look_within.min(wait);
                    Box::pin(self.apply_children()).await
                }
                // Pods are made even if the store is away: they are needed when it is back.
                Err(error) => Box::pin(self.apply_children()).await.and(Err(error)),
            };
            done = done.and(tried);
        }
        if done.as_ref().is_err_and(Error::is_end_of_namespace) {
            done = Ok(());
        }
        self.memory.trouble = done.as_ref().err().and_then(status::trouble);
        let reported = self.report().await;
        if done.is_ok() && reported.is_ok() {
            self.memory.failed_n = 0;
        }
        self.context.remember(&self.uid, self.memory.clone());
        done.and(reported)?;
        Ok(Action::requeue(self.look_within))
    }

    /// What runs goes on to be coordinated, by this operator too, and again if that failed.
    async fn go_on(&mut self, run: &Run) -> Result<(), Error> {
        let wants_a_coordinator = matches!(
            run,
            Run::None
                | Run::Ended {
                    how: Ended::Broken(_),
                    ..
                }
        );
        if wants_a_coordinator {
            let current = self.current();
            let wait = Box::pin(self.start(current, run)).await?;
            self.look_within = self.look_within.min(wait);
        }
        Ok(())
    }

    /// Until there is nothing to do but wait; says how long.
    async fn take_steps(&mut self) -> Result<Duration, Error> {
        for _ in 0..STEPS_MAX {
            let current = self.current();
            let wanted = self.wanted(current.as_ref());
            let is_to_stop = step::is_to_stop(wanted.as_ref(), self.record.as_ref());
            self.memory.on_run(is_to_stop, &self.run(None));
            let run = self.run(current.as_ref());
            let run = self.excused(current.as_ref(), run).await?;
            let step = step::next(
                Timestamp::now(),
                wanted.as_ref(),
                self.record.as_ref(),
                &run,
            );
            match step {
                Step::Write(record) => {
                    let news = self.news(&run, &record);
                    if !self.write(record).await? {
                        return Ok(LOOK_AGAIN_SOON);
                    }
                    for event in news {
                        self.tell(event).await;
                    }
                }
                Step::Abandon => self.context.abandon(&self.uid),
                Step::Start => {
                    let wait = Box::pin(self.start(current, &run)).await?;
                    return Ok(self.memory.until_stop().map_or(wait, |it| it.min(wait)));
                }
                Step::Stop { savepoint } => {
                    self.memory.stop_at = None;
                    self.stop(savepoint).await;
                    return Ok(LOOK_AGAIN_SOON);
                }
                Step::Scale(n) => {
                    // A refusal is for the log, and the next pass asks again.
                    let _refused = self.order(|answer| Ask::Scale(n, answer)).await;
                    return Ok(LOOK_AGAIN_SOON);
                }
                Step::Wait => {
                    let mut wait = self.wait().await?;
                    if is_to_stop && matches!(&run, Run::Alive(alive) if !alive.is_running) {
                        wait = wait.min(LOOK_AGAIN_SOON);
                    }
                    return Ok(self.memory.until_stop().map_or(wait, |it| it.min(wait)));
                }
            }
        }
        Ok(LOOK_AGAIN_SOON)
    }

    /// What people are told of a step, once it is written.
    fn news(&self, run: &Run, next: &Record) -> Vec<Event> {
        let record = self.record.as_ref();
        let unsaved = record.and_then(|record| step::without_savepoint(run, record, next));
        let unsaved = unsaved.map(|unsaved| match unsaved {
            Without::Stopped(unsaved) => events::stopped_without_savepoint(unsaved),
            Without::Broken(reason) => events::given_up_without_savepoint(reason),
        });
        let refused = self.refused_rewind(run, next);
        refused.into_iter().chain(unsaved).collect()
    }

    /// What people are told when the checkpoint to go back to is not there, and the job goes on without.
    fn refused_rewind(&self, run: &Run, next: &Record) -> Option<Event> {
        let Run::Ended { how, .. } = run else {
            return None;
        };
        let Ended::NotRetained(reason) = how else {
            return None;
        };
        let rewinds = self.record.as_ref().is_some_and(|it| it.rewind.is_some());
        (rewinds && next.rewind.is_none()).then(|| events::rewind_refused(reason))
    }

    /// Orders a stop. A savepoint that failed is asked for again, and people are told.
    async fn stop(&mut self, savepoint: Option<String>) {
        let refused = match savepoint {
            None => self.order(Ask::Stop).await,
            Some(name) => {
                let state = self.savepoint_state(&name).await;
                if let Some(SavepointState::Failed { reason }) = state {
                    self.memory.stop_failed = Some(format!("savepoint {name}: {reason}"));
                }
                self.order(|answer| Ask::Savepoint(name, true, answer))
                    .await
            }
        };
        if let Err(reason) = refused {
            self.memory.stop_failed = Some(reason);
        }
    }

    async fn savepoint_state(&self, name: &str) -> Option<SavepointState> {
        let coordinator = self.context.fleet.get(&self.uid)?;
        let ask = |answer| Ask::SavepointState(name.to_owned(), answer);
        coordinator.orders.ask(ask).await.ok().flatten()
    }

    /// What is asked for, if it is valid and its pods need not be tried first.
    fn tried(&self) -> Option<&Arc<Desired>> {
        self.desired.as_ref().ok().filter(|_| !self.is_untried)
    }

    fn wanted(&self, current: Option<&Checked>) -> Option<Wanted> {
        let desired = self.tried()?;
        let spec = &self.job.spec;
        let plan = desired.document.attempt_hash();
        let edit = match current {
            Some(Ok(current)) => self.edit(current, desired),
            // Of what cannot be read the hash is known.
            Some(Err(_)) => Edit {
                upgrade: self.record.as_ref().is_some_and(|it| it.plan != plan),
                ..Edit::default()
            },
            None => Edit::default(),
        };
        let stateless = edit.upgrade
            && matches!(
                spec.upgrade.as_ref().map(|it| it.mode),
                Some(UpgradeMode::Stateless)
            );
        let rollback_after = spec.upgrade.clone().unwrap_or_default().rollback_after;
        // The first checkpoint is due after an interval.
        let healthy_within = rollback_after
            .micros()
            .saturating_add(spec.checkpoint.interval.micros());
        Some(Wanted {
            uid: self.uid.clone(),
            generation: self.job.metadata.generation.unwrap_or_default(),
            document: serde_json::to_value(spec).unwrap_or_default(),
            plan,
            parallelism: spec.parallelism,
            edit: Edit { stateless, ..edit },
            mends: matches!(current, Some(Err(_))),
            suspend: spec.suspend,
            healthy_within: SignedDuration::from_micros(healthy_within),
            restart: self.annotation(RESTART_ANNOTATION),
            rewind_to: self.annotation(REWIND_TO),
            accept_lost_marker: self.annotation(ACCEPT_LOST_MARKER),
            lived: report::lived(self.job.status.as_ref()),
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

    /// What must not be lost with the record.
    fn lived(&self) -> Lived {
        match &self.record {
            Some(record) => Lived::of(record),
            None => report::lived(self.job.status.as_ref()),
        }
    }

    fn run(&self, current: Option<&Checked>) -> Run {
        let tried = SignedDuration::try_from(self.memory.tried());
        let tried = tried.unwrap_or(SignedDuration::MAX);
        let stops_failed_n = self.memory.stops_failed_n;
        let Some(coordinator) = self.context.fleet.get(&self.uid) else {
            // The last pass could not start it.
            return match &self.memory.start_failed {
                Some((_, reason)) => Run::Ended {
                    how: Ended::Broken(reason.clone()),
                    is_current: true,
                    tried,
                    stops_failed_n,
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
            return Run::Ended {
                how,
                is_current,
                tried,
                stops_failed_n,
            };
        }
        let status = coordinator.status.borrow();
        Run::Alive(Alive {
            is_current,
            is_running: status.phase == Doing::Running,
            is_stopping: matches!(
                status.phase,
                Doing::Stopping | Doing::Finishing | Doing::Ended
            ),
            stop_failed: self.memory.until_stop().is_some(),
            age: SignedDuration::try_from(coordinator.since.elapsed())
                .unwrap_or(SignedDuration::MAX),
            generation: status.generation.get(),
            wanted: status.wanted,
            completed_n: status.checkpoint.completed_n,
        })
    }

    /// Orders something.
    async fn order(
        &self,
        ask: impl FnOnce(oneshot::Sender<Result<(), String>>) -> Ask,
    ) -> Result<(), String> {
        let Some(coordinator) = self.context.fleet.get(&self.uid) else {
            return Ok(());
        };
        // One that is over is looked at by the next pass.
        let taken = coordinator.orders.ask(ask).await.unwrap_or(Ok(()));
        if let Err(reason) = &taken {
            let job = self.job.name_any();
            let namespace = self.namespace();
            tracing::info!(namespace, job, reason, "order not taken, asking again");
        }
        taken
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
            // Whoever has just changed it is heard of.
            Err(error) if is_conflict(&error) => Ok(LOOK_AGAIN_SOON),
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
}

#[cfg(test)]
mod tests;
