//! One job, driven.
//!
//! Owns: the loop that feeds the coordinator and carries out its decisions, and the handle by which
//! the rest of the program sees the job. Start at: [`start`].

use std::sync::Arc;
use std::time::Duration;

use streamforge_coordinator::{
    CheckpointPolicy, Config, Coordinator, Decision, Error, Input, MemberPolicy, Outcome, Report,
    RequestId, RestartPolicy, Status, StoreAnswer,
};
use streamforge_core::ids::{CheckpointId, JobId};
use streamforge_core::job_graph::JobGraph;
use streamforge_core::messages::Command;
use streamforge_store::ObjectStore;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tracing::Instrument as _;

use crate::clock::{self, Clock};
use crate::control::Ask;
use crate::elsewhere::WithSavepoint;
use crate::requests::perform;
use crate::task_managers::{News, TaskManagers};

/// How often the coordinator is told that time passes: the grain of intervals and timeouts.
const TICK: Duration = Duration::from_millis(10);

/// The same while it waits for task managers: an operator may have a thousand such jobs.
const TICK_WAITING: Duration = Duration::from_millis(200);

/// Reports waiting to be read; when nobody reads, later ones are dropped (they are logged anyway).
const REPORTS_MAX: usize = 256;

/// What to run.
#[derive(Clone, Debug)]
pub struct JobConfig {
    /// The id of the job if it is new; `None`: its name and a number drawn at random.
    pub new_job: Option<JobId>,
    /// The plan.
    pub graph: Arc<JobGraph>,
    /// The document it was made from, as written.
    pub document: Arc<str>,
    /// Subtasks per stage.
    pub parallelism: u32,
    /// Checkpoints.
    pub checkpoint: CheckpointPolicy,
    /// Failures.
    pub restart: RestartPolicy,
    /// Task managers.
    pub members: MemberPolicy,
    /// Where task managers reach this coordinator; for people when they are in this process.
    pub address: String,
    /// Restore this checkpoint instead of the newest (`--rewind-to`).
    pub rewind_to: Option<CheckpointId>,
    /// Begin with this savepoint, if the job has no state yet.
    pub restore_from: Option<RestoreFrom>,
    /// Drop state that the document has no place for (`upgrade.droppedState: Allow`).
    pub drop_state: bool,
}

/// A savepoint outside of the job's own store.
#[derive(Clone, Debug)]
pub struct RestoreFrom {
    /// Where it is, for people.
    pub place: String,
    /// Its folder, for reading.
    pub store: Arc<dyn ObjectStore>,
}

/// A running job.
#[derive(Debug)]
pub struct JobHandle {
    status: watch::Receiver<Status>,
    /// News, in order.
    pub reports: mpsc::Receiver<Report>,
    stop: mpsc::Sender<()>,
    outcome: tokio::task::JoinHandle<Outcome>,
}

impl JobHandle {
    /// How the job does; changes several times a second.
    pub fn status(&self) -> watch::Receiver<Status> {
        self.status.clone()
    }

    /// Asks for a stop with a checkpoint; it ends when [`JobHandle::outcome`] does.
    pub fn stop(&self) {
        // Full: it was asked before. Closed: it has ended.
        let _asked = self.stop.try_send(());
    }

    /// Something that asks for a stop and can be given away, to a signal handler for example.
    pub fn stopper(&self) -> impl Fn() + Send + Sync + Clone + 'static {
        let stop = self.stop.clone();
        move || {
            let _asked = stop.try_send(());
        }
    }

    /// Something that ends the coordinator as a kill would: nobody is told, and tasks go on for the
    /// next one (F1).
    pub fn abandoner(&self) -> impl Fn() + Send + Sync + Clone + 'static {
        let host = self.outcome.abort_handle();
        move || host.abort()
    }

    /// Waits for the end. `None`: it was abandoned.
    ///
    /// # Panics
    /// When the host itself panicked.
    pub async fn ended(self) -> Option<Outcome> {
        match self.outcome.await {
            Ok(outcome) => Some(outcome),
            Err(join) if join.is_cancelled() => None,
            Err(join) => std::panic::resume_unwind(join.into_panic()),
        }
    }

    /// Waits for the end of a job that nobody abandons.
    ///
    /// # Panics
    /// When the host itself panicked, or the job was abandoned.
    pub async fn outcome(self) -> Outcome {
        let ended = self.ended().await;
        ended.expect("nobody abandoned the job")
    }
}

/// Starts a job on the current tokio runtime.
pub fn start(
    config: JobConfig,
    store: Arc<dyn ObjectStore>,
    task_managers: impl TaskManagers,
) -> JobHandle {
    let seed = clock::seed();
    let drawn = || JobId(format!("{}-{:08x}", config.graph.name, seed >> 32));
    let coordinator = Box::new(Coordinator::new(Config {
        new_job: config.new_job.unwrap_or_else(drawn),
        address: config.address,
        nonce_seed: clock::seed(),
        graph: config.graph,
        document: config.document,
        parallelism: config.parallelism,
        rewind_to: config.rewind_to,
        restore_from: config.restore_from.as_ref().map(|it| it.place.clone()),
        drop_state: config.drop_state,
        checkpoint: config.checkpoint,
        restart: config.restart,
        members: config.members,
    }));
    let store = match config.restore_from {
        None => store,
        Some(RestoreFrom {
            store: savepoint, ..
        }) => Arc::new(WithSavepoint {
            own: store,
            savepoint,
        }),
    };
    let (status_in, status) = watch::channel(coordinator.status());
    let (reports_in, reports) = mpsc::channel(REPORTS_MAX);
    let (stop, stop_out) = mpsc::channel(1);
    let host = Host {
        coordinator,
        clock: Clock::start(),
        store,
        task_managers,
        requests: JoinSet::new(),
        status: status_in,
        reports: reports_in,
    };
    // Whoever hosts several jobs says in a span which one this is.
    let outcome = tokio::task::spawn(host.run(stop_out).in_current_span());
    JobHandle {
        status,
        reports,
        stop,
        outcome,
    }
}

struct Host<T> {
    /// In a place of its own: a task has room for each of its values wherever that may be moved to.
    coordinator: Box<Coordinator>,
    clock: Clock,
    store: Arc<dyn ObjectStore>,
    task_managers: T,
    requests: JoinSet<(RequestId, StoreAnswer)>,
    status: watch::Sender<Status>,
    reports: mpsc::Sender<Report>,
}

impl<T: TaskManagers> Host<T> {
    async fn run(mut self, mut stop: mpsc::Receiver<()>) -> Outcome {
        let mut next_tick = Instant::now();
        let mut connected = true;
        let mut stop_open = true;
        loop {
            let input = tokio::select! {
                () = tokio::time::sleep_until(next_tick) => {
                    let waits = self.coordinator.waits_for_task_managers();
                    next_tick = Instant::now() + if waits { TICK_WAITING } else { TICK };
                    Input::Tick
                }
                Some(answered) = self.requests.join_next() => match answered {
                    Ok((id, answer)) => Input::Store(id, answer),
                    Err(join) => std::panic::resume_unwind(join.into_panic()),
                },
                news = self.task_managers.recv(), if connected => match news {
                    Some(News::Asked(ask)) => match self.answer(ask) {
                        Some(input) => input,
                        None => continue,
                    },
                    Some(news) => input_of(news),
                    None => { connected = false; Input::TaskManagersEnded }
                },
                asked = stop.recv(), if stop_open => match asked {
                    Some(()) => Input::Stop,
                    None => { stop_open = false; continue; }
                },
            };
            if let Some(outcome) = self.feed(input) {
                self.tell_status();
                tracing::info!(%outcome, "job ended");
                if let Some(reason) = dismissal(&outcome) {
                    self.task_managers.dismiss(reason).await;
                }
                return outcome;
            }
            self.tell_status();
        }
    }

    /// Whoever watches is woken by what is new only: of a thousand jobs that wait each ticks five times a second.
    fn tell_status(&self) {
        let now = self.coordinator.status();
        self.status.send_if_modified(|told| {
            let is_new = *told != now;
            *told = now;
            is_new
        });
    }

    /// Answers a person; what is to be done about it, if anything.
    fn answer(&self, ask: Ask) -> Option<Input> {
        // Whoever asked may have gone away: what was asked is done all the same.
        match ask {
            Ask::Status(answer) => {
                let _gone = answer.send(Box::new(self.coordinator.status()));
                None
            }
            Ask::Scale(parallelism, answer) => {
                let may = self.coordinator.check_scale(parallelism);
                let input = may.is_ok().then_some(Input::Scale(parallelism));
                let _gone = answer.send(may);
                input
            }
            Ask::Savepoint(name, stops, answer) => {
                let may = self.coordinator.check_savepoint(&name, stops);
                let input = may.is_ok().then_some(Input::Savepoint { name, stops });
                let _gone = answer.send(may);
                input
            }
            Ask::SavepointState(name, answer) => {
                let _gone = answer.send(self.coordinator.savepoint(&name));
                None
            }
            Ask::Stop(answer) => {
                let _gone = answer.send(Ok(()));
                Some(Input::Stop)
            }
            Ask::Drain(name, answer) => match self.coordinator.check_drain(&name) {
                Ok(id) => {
                    let _gone = answer.send(Ok(()));
                    Some(Input::Leaving(id))
                }
                Err(reason) => {
                    let _gone = answer.send(Err(reason));
                    None
                }
            },
        }
    }

    /// One input, and whatever carrying out its decisions leads to.
    fn feed(&mut self, input: Input) -> Option<Outcome> {
        let mut inputs = vec![input];
        let mut ended = None;
        while let Some(input) = inputs.pop() {
            for decision in self.coordinator.on(self.clock.now_ms(), input) {
                match decision {
                    Decision::Store(id, request) => {
                        let store = Arc::clone(&self.store);
                        self.requests
                            .spawn(async move { (id, perform(&*store, request).await) });
                    }
                    Decision::Send(task_manager, stamp, command) => {
                        // Nobody left to be told to end is fine.
                        let ends = command == Command::Cancel;
                        if let Err(lost) = self.task_managers.send(&task_manager, stamp, command)
                            && !ends
                        {
                            inputs.push(Input::SessionLost {
                                task_manager,
                                cause: lost.to_string(),
                            });
                        }
                    }
                    Decision::Release(task_manager) => self.task_managers.release(&task_manager),
                    Decision::Disconnect(task_manager) => {
                        self.task_managers.disconnect(&task_manager);
                    }
                    Decision::Report(report) => self.report(report),
                    Decision::End(outcome) => ended = Some(outcome),
                }
            }
        }
        ended
    }

    fn report(&self, report: Report) {
        log(&report);
        // A reader that does not keep up misses news, never holds up the job.
        let _dropped = self.reports.try_send(report);
    }
}

fn input_of(news: News) -> Input {
    match news {
        News::Asked(_) => Input::Tick, // answered before
        News::Registered(task_manager, registration) => Input::Registered {
            task_manager,
            registration,
        },
        News::Heard(task_manager) => Input::Heard(task_manager),
        News::Said(task_manager, stamp, event) => Input::Task(task_manager, stamp, event),
        News::Leaving(task_manager) => Input::Ending(task_manager),
        News::Lost(task_manager, cause) => Input::SessionLost {
            task_manager,
            cause,
        },
    }
}

/// What task managers are told at the end; `None`: they may belong to another coordinator, or wait
/// for the next one.
fn dismissal(outcome: &Outcome) -> Option<&'static str> {
    match outcome {
        Outcome::Finished { .. } => Some("the job is finished"),
        Outcome::Stopped { .. } => Some("the job is stopped"),
        Outcome::Failed(Error::Job { .. } | Error::RestartBudget { .. }) => {
            Some("the job has failed")
        }
        Outcome::Failed(_) => None,
    }
}

fn log(report: &Report) {
    match report {
        Report::TookOver {
            generation,
            epoch,
            restored,
        } => {
            let restored = restored.as_ref().map(tracing::field::display);
            tracing::info!(%generation, %epoch, restored, "took over");
        }
        Report::Adopted { generation, epoch } => {
            tracing::info!(%generation, %epoch, "adopted the running attempt");
        }
        Report::NotAdopted { reason } => tracing::info!(reason, "no attempt was adopted"),
        Report::WaitsForSlots { slots_n, wanted_n } => {
            tracing::info!(slots_n, wanted_n, "waiting for task managers");
        }
        Report::TaskManagerCame {
            task_manager,
            slots_n,
        } => {
            // One within this process has as many as are wanted.
            let slots_n = (*slots_n < u32::MAX).then_some(*slots_n);
            tracing::info!(%task_manager, slots_n, "task manager came");
        }
        Report::TaskManagerLost {
            task_manager,
            cause,
        } => tracing::warn!(%task_manager, cause, "task manager lost"),
        Report::TaskManagerLeft { task_manager } => {
            tracing::info!(%task_manager, "task manager was let go and left");
        }
        Report::RecordsSkipped { source, n } => {
            tracing::warn!(%source, n, "records were deleted before they were read");
        }
        Report::StateDropped { what } => {
            let what = what.join("; ");
            tracing::warn!(what, "state was dropped as allowed");
        }
        Report::Rewound { from, to } => tracing::warn!(%from, %to, "rewound as asked"),
        Report::Restored { .. }
        | Report::RestoreFromUnused { .. }
        | Report::SavepointCompleted { .. }
        | Report::SavepointFailed { .. } => log_savepoint(report),
        Report::Scaling { .. }
        | Report::HandingOver { .. }
        | Report::HandedOver { .. }
        | Report::HandOverWithdrawn { .. } => log_hand_over(report),
        Report::Running { epoch } => tracing::info!(%epoch, "running"),
        Report::CheckpointCompleted { .. } | Report::CheckpointFailed { .. } => {
            log_checkpoint(report);
        }
        Report::PublishFailed { .. } | Report::StoreTrouble { .. } => log_tried_again(report),
        Report::AttemptFailed {
            epoch,
            cause,
            again_in_ms,
        } => {
            tracing::warn!(%epoch, cause, again_in_ms, "attempt failed");
        }
        Report::Stopping => tracing::info!("stopping"),
    }
}

/// What is tried again at once, and is a warning when that fails, too.
fn log_tried_again(report: &Report) {
    let may_pass = report.may_pass();
    match report {
        Report::PublishFailed { what, reason, .. } if may_pass => {
            tracing::info!(what, reason, "publish failed, trying again");
        }
        Report::PublishFailed { what, reason, .. } => {
            tracing::warn!(what, reason, "publish failed");
        }
        Report::StoreTrouble {
            request, reason, ..
        } if may_pass => tracing::info!(
            request,
            reason,
            "store did not do what it was asked, asking again"
        ),
        Report::StoreTrouble {
            request,
            reason,
            attempts_n,
        } => tracing::warn!(
            request,
            reason,
            attempts_n,
            "store does not do what it is asked"
        ),
        _ => {}
    }
}

fn log_checkpoint(report: &Report) {
    match report {
        Report::CheckpointCompleted {
            id,
            kind,
            duration_ms,
            bytes_n,
            freeze_us,
        } => {
            tracing::info!(%id, %kind, duration_ms, bytes_n, freeze_us, "checkpoint completed");
        }
        Report::CheckpointFailed {
            id,
            reason,
            in_a_row,
        } => {
            tracing::warn!(%id, reason, in_a_row, "checkpoint failed");
        }
        _ => {}
    }
}

fn log_hand_over(report: &Report) {
    match report {
        Report::Scaling { to } => tracing::info!(to, "another parallelism was asked for"),
        Report::HandingOver { from, to } => tracing::info!(from, to, "handing over key groups"),
        Report::HandedOver { to, took_ms } => tracing::info!(to, took_ms, "handed over"),
        Report::HandOverWithdrawn { reason } => tracing::warn!(reason, "hand-over withdrawn"),
        _ => {}
    }
}

fn log_savepoint(report: &Report) {
    match report {
        Report::Restored {
            from,
            savepoint,
            to,
        } => tracing::info!(from, %savepoint, %to, "begun from a savepoint"),
        Report::RestoreFromUnused { place } => {
            tracing::info!(
                place,
                "restoreFrom is not used: the job has a state of its own"
            );
        }
        Report::SavepointCompleted {
            name,
            id,
            bytes_n,
            took_ms,
        } => tracing::info!(name, %id, bytes_n, took_ms, "savepoint completed"),
        Report::SavepointFailed { name, reason } => {
            tracing::warn!(name, reason, "savepoint failed");
        }
        _ => {}
    }
}
