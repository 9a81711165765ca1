//! A task manager: commands in, events out.
//!
//! Owns: one attempt at a time, and publishing. Refuses a lower generation whatever its epoch, and an
//! older epoch (C5). In one process the commands come by channel ([`run`]), from another by a
//! session, whose `session` module drives [`Manager`] through [`Request`]s. Nothing here waits for a
//! store or a peer while commands come: loading and ending go on beside.

#[cfg(test)]
pub(crate) mod tests;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use streamforge_connectors::kafka::keep::Keeper;
use streamforge_connectors::registry::Surroundings;
use streamforge_core::causes::with_causes;
use streamforge_core::ids::SlotId;
use streamforge_core::manifest::StagedInterval;
use streamforge_core::messages::{
    Command, Deployment, Event, HandOver, Newest, RunningAttempt, Stamp, TaskManagerId,
};
use streamforge_engine::barrier::Barrier;
use streamforge_state::local::LocalCopies;
use streamforge_state::restore::Parts;
use streamforge_store::ObjectStore;
use tokio::sync::{mpsc, oneshot, watch};

use crate::attempt::{Attempt, Error, Opened, Prepared, caught};
use crate::exchange::Exchange;
use crate::inbox::Control;
use crate::metrics::Metrics;
use crate::sight::HeadSight;
use crate::terms::Terms;

/// How often progress is told.
const PROGRESS_EVERY: Duration = Duration::from_millis(250);

/// Loaded attempts that wait to be taken; there is one at a time.
const LOADED_MAX: usize = 4;

/// What a task manager works with.
#[derive(Clone)]
pub struct Context {
    /// Who this is.
    pub me: TaskManagerId,
    /// Checkpoints.
    pub store: Arc<dyn ObjectStore>,
    /// Copies of parts on this machine; `None`: the store is as near.
    pub local: Option<Arc<LocalCopies>>,
    /// Channels to other task managers; `None`: there are no others.
    pub exchange: Option<Arc<Exchange>>,
    /// Folder of secrets, one folder each.
    pub secrets: Option<PathBuf>,
    /// What the coordinator allows.
    pub terms: Arc<Terms>,
    /// Whether somebody looks at what `print` prints; `None`: find out.
    pub terminal: Option<bool>,
    /// Clients of Kafka that outlive an attempt.
    pub kafka: Keeper,
    /// Hears how tasks do.
    pub metrics: Metrics,
    /// Whether the head is in sight, for sinks that cannot take back (F4).
    pub sight: Arc<HeadSight>,
}

impl Context {
    /// Where state is restored from.
    pub fn parts(&self) -> Parts<'_> {
        Parts {
            store: &*self.store,
            local: self.local.as_deref(),
            read: None,
        }
    }

    /// What connectors may use of it.
    pub fn surroundings(&self) -> Surroundings {
        Surroundings {
            store: Arc::clone(&self.store),
            secrets: self.secrets.clone(),
            accept_lost_markers: self.terms.accept_lost_markers(),
            kafka: self.kafka.clone(),
        }
    }
}

/// What is asked of a task manager.
#[derive(Debug)]
pub enum Request {
    /// The coordinator says so.
    Command(Stamp, Command),
    /// What runs, for a coordinator that may adopt it.
    Describe(oneshot::Sender<Option<Box<RunningAttempt>>>),
    /// The session is over: nobody completes what tasks align for (A2).
    SessionLost,
    /// The head names another attempt: what runs is over (F4). Nothing that anybody says of older
    /// ones counts from now on.
    Superseded(Stamp),
}

/// Works until the coordinator's channel closes.
pub async fn run(
    context: Context,
    mut commands: mpsc::Receiver<(Stamp, Command)>,
    events: mpsc::Sender<(Stamp, Event)>,
) {
    let (requests, work) = mpsc::channel(1);
    let manager = tokio::spawn(Manager::new(context, events).run(work));
    while let Some((stamp, command)) = commands.recv().await {
        if requests
            .send(Request::Command(stamp, command))
            .await
            .is_err()
        {
            break;
        }
    }
    drop(requests);
    let _ended = manager.await;
}

type Loaded = (Stamp, Result<Prepared, Error>);

/// A hand-over's channels are open, and with them the attempt of a task manager that had none.
type OpenedHere = (
    u64,
    Stamp,
    Box<Result<(Option<Box<Attempt>>, Opened), Error>>,
);

/// See the module.
pub struct Manager {
    context: Context,
    events: mpsc::Sender<(Stamp, Event)>,
    newest: Newest,
    attempt: Option<Attempt>,
    /// The attempt that is being loaded.
    loading: Option<(Stamp, tokio::task::JoinHandle<()>)>,
    /// Attempts that are still ending; the next one is loaded after them.
    ending_n: watch::Sender<usize>,
    loaded_in: mpsc::Sender<Loaded>,
    loaded: mpsc::Receiver<Loaded>,
    /// The hand-over that is being opened.
    opening: Option<(u64, tokio::task::JoinHandle<()>)>,
    openings_n: u64,
    opened_in: mpsc::Sender<OpenedHere>,
    opened: mpsc::Receiver<OpenedHere>,
}

impl Manager {
    /// A task manager that runs nothing.
    pub fn new(context: Context, events: mpsc::Sender<(Stamp, Event)>) -> Self {
        let (loaded_in, loaded) = mpsc::channel(LOADED_MAX);
        let (opened_in, opened) = mpsc::channel(LOADED_MAX);
        Self {
            context,
            events,
            newest: Newest::default(),
            attempt: None,
            loading: None,
            ending_n: watch::Sender::new(0),
            loaded_in,
            loaded,
            opening: None,
            openings_n: 0,
            opened_in,
            opened,
        }
    }

    /// Works until nobody can ask for anything any more.
    pub async fn run(mut self, mut requests: mpsc::Receiver<Request>) {
        let mut ticks = tokio::time::interval(PROGRESS_EVERY);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                request = requests.recv() => match request {
                    Some(request) => self.on_request(request),
                    None => break,
                },
                Some(loaded) = self.loaded.recv() => self.on_loaded(loaded).await,
                Some(opened) = self.opened.recv() => self.on_opened(opened).await,
                _ = ticks.tick() => self.tell_progress(),
            }
        }
        self.end_all();
        none_is_ending(self.ending_n.subscribe()).await;
    }

    fn on_request(&mut self, request: Request) {
        match request {
            Request::Command(stamp, command) => {
                if self.newest.admits(&stamp) {
                    self.on_command(&stamp, command);
                } else {
                    let (generation, epoch) = (stamp.generation, stamp.epoch);
                    tracing::warn!(%generation, %epoch, "command of an older coordinator or attempt refused");
                }
            }
            Request::Describe(answer) => {
                let running = self.attempt.as_ref().map(|it| Box::new(it.running()));
                let _ = answer.send(running);
            }
            Request::SessionLost => {
                if let Some(attempt) = &self.attempt {
                    attempt.tell_all(&Control::Orphaned(attempt.stamp().generation));
                }
            }
            Request::Superseded(stamp) => {
                let loading = self.loading.as_ref().map(|(stamp, _)| stamp.clone());
                let ours = loading.or_else(|| self.attempt.as_ref().map(Attempt::stamp));
                // A higher generation alone may be a coordinator that is about to adopt it.
                if ours.is_some_and(|ours| ours.job != stamp.job || ours.epoch < stamp.epoch) {
                    tracing::warn!(epoch = %stamp.epoch, "the head names a newer attempt: ending");
                    self.end_all();
                }
                self.newest.admits(&stamp);
            }
        }
    }

    fn on_command(&mut self, stamp: &Stamp, command: Command) {
        if let Command::Deploy(deployment) = command {
            self.end_all();
            return self.load(stamp.clone(), *deployment);
        }
        if matches!(command, Command::Cancel) {
            // Whatever runs is older, or is this one.
            return self.end_all();
        }
        if let Command::Prepare(hand_over) = command {
            return self.open_hand_over(stamp.clone(), *hand_over);
        }
        if matches!(command, Command::Withdraw) {
            // Where nothing runs the attempt is still to come: with what is being opened.
            self.opening = None;
        }
        let Some(current) = &mut self.attempt else {
            return;
        };
        let ours = current.stamp();
        if let Command::Adopt { void_to } = command {
            if (&ours.job, ours.epoch) == (&stamp.job, stamp.epoch) {
                current.tell_all(&Control::Abort(void_to));
                current.adopt(stamp.generation);
            }
            return;
        }
        if ours != *stamp {
            return;
        }
        match command {
            Command::Deploy(_) | Command::Prepare(_) | Command::Adopt { .. } | Command::Cancel => {}
            Command::Start { splits } => current.start(splits),
            Command::Checkpoint { id, kind } => {
                let begun_by = stamp.generation;
                current.on_checkpoint(Barrier { id, kind, begun_by });
            }
            Command::Abort { id } => current.tell_all(&Control::Abort(id)),
            Command::Withdraw => current.withdraw(),
            Command::Receive(manifest) => current.receive(*manifest),
            Command::Publish { manifest, slots } => {
                current.publishing().on_committed(manifest);
                publish(current, slots);
            }
            Command::Committed { id } => {
                current.publishing().on_committed(id);
                current.on_committed(id);
            }
        }
    }

    /// Opens what a hand-over needs, beside. Whoever runs nothing yet begins with an attempt without
    /// tasks.
    fn open_hand_over(&mut self, stamp: Stamp, hand_over: HandOver) {
        let hand_over = Arc::new(hand_over);
        self.openings_n += 1;
        let number = self.openings_n;
        let opened_in = self.opened_in.clone();
        let current = self.attempt.as_mut().filter(|it| it.stamp() == stamp);
        let opening = if let Some(current) = current {
            let opening = current.open_hand_over(hand_over);
            tokio::spawn(async move {
                let opened = caught(opening).await.map(|opened| (None, opened));
                let _gone = opened_in.send((number, stamp, Box::new(opened))).await;
            })
        } else {
            self.end_all();
            let (context, events) = (self.context.clone(), self.events.clone());
            let ending_n = self.ending_n.subscribe();
            tokio::spawn(async move {
                none_is_ending(ending_n).await;
                let joining = Attempt::join(&context, stamp.clone(), &hand_over, events);
                let opened = match caught(joining).await {
                    Ok(mut attempt) => match caught(attempt.open_hand_over(hand_over)).await {
                        Ok(opened) => Ok((Some(Box::new(attempt)), opened)),
                        Err(error) => {
                            attempt.end().await;
                            Err(error)
                        }
                    },
                    Err(error) => Err(error),
                };
                let _gone = opened_in.send((number, stamp, Box::new(opened))).await;
            })
        };
        self.opening = Some((number, opening));
    }

    async fn on_opened(&mut self, (number, stamp, opened): OpenedHere) {
        let awaited = self.opening.as_ref().is_some_and(|(it, _)| *it == number);
        if !awaited {
            if let Ok((Some(attempt), _)) = *opened {
                attempt.end().await; // cancelled or withdrawn at the last moment
            }
            return;
        }
        self.opening = None;
        let event = match *opened {
            Ok((new, opened)) => {
                if let Some(new) = new {
                    self.attempt = Some(*new);
                }
                if let Some(attempt) = &mut self.attempt {
                    attempt.prepare_hand_over(opened);
                }
                Event::HandOverPrepared
            }
            Err(error) => Event::HandOverRefused {
                reason: with_causes(&error),
            },
        };
        let _ = self.events.send((stamp, event)).await;
    }

    /// Ends what runs and what is being loaded, beside.
    fn end_all(&mut self) {
        self.opening = None;
        if let Some((_, loading)) = self.loading.take() {
            loading.abort();
        }
        let Some(old) = self.attempt.take() else {
            return;
        };
        let ending_n = self.ending_n.clone();
        ending_n.send_modify(|n| *n += 1);
        tokio::spawn(async move {
            old.end().await;
            ending_n.send_modify(|n| *n -= 1);
        });
    }

    /// Loads an attempt, once what ran before has ended.
    fn load(&mut self, stamp: Stamp, deployment: Deployment) {
        let (context, events) = (self.context.clone(), self.events.clone());
        let (loaded, ending_n) = (self.loaded_in.clone(), self.ending_n.subscribe());
        let of = stamp.clone();
        let loading = tokio::spawn(async move {
            none_is_ending(ending_n).await;
            let began = Instant::now();
            let reads = || context.local.as_ref().map(|local| local.reads());
            let before = reads().unwrap_or_default();
            let preparing = Attempt::prepare(&context, of.clone(), deployment, events);
            let prepared = caught(preparing).await;
            let took = began.elapsed();
            context.metrics.on_restored(took);
            if let Some(now) = reads() {
                let (here, stored) = (
                    now.here_bytes - before.here_bytes,
                    now.store_bytes - before.store_bytes,
                );
                tracing::info!(
                    "ready after {} ms: {here} bytes of state from local copies, {stored} from the store",
                    took.as_millis()
                );
            }
            let _ = loaded.send((of, prepared)).await;
        });
        self.loading = Some((stamp, loading));
    }

    async fn on_loaded(&mut self, (stamp, loaded): Loaded) {
        let awaited = self.loading.as_ref().is_some_and(|(it, _)| *it == stamp);
        if !awaited {
            if let Ok(Prepared { attempt, .. }) = loaded {
                attempt.end().await; // cancelled at the last moment
            }
            return;
        }
        self.loading = None;
        let event = match loaded {
            Ok(Prepared { attempt, splits }) => {
                self.attempt = Some(attempt);
                Event::Prepared { splits }
            }
            Err(error) => error.event(),
        };
        let _ = self.events.send((stamp, event)).await;
    }

    fn tell_progress(&self) {
        if let Some(attempt) = self.attempt.as_ref().filter(|it| it.is_running()) {
            let (stamp, progress) = (attempt.stamp(), attempt.progress());
            let metrics = &self.context.metrics;
            metrics.on_progress(&stamp, progress.clone(), attempt.times());
            metrics.on_local(attempt.local(), attempt.credits());
            // A full queue means that newer progress is on its way anyway.
            let progress = Event::Progress(Box::new(progress));
            let _ = self.events.try_send((stamp, progress));
        }
    }
}

async fn none_is_ending(mut ending_n: watch::Receiver<usize>) {
    // An error means that the manager is gone, and nothing is loaded any more.
    let _ = ending_n.wait_for(|n| *n == 0).await;
}

/// Publishes off this loop, slots side by side; each answer is its own event.
fn publish(attempt: &Attempt, slots: Vec<(SlotId, StagedInterval)>) {
    for (slot, interval) in slots {
        let publishing = attempt.publishing();
        tokio::spawn(async move { publishing.publish(slot, interval).await });
    }
}
