//! One attempt of a job in this task manager.
//!
//! Owns: the life of the tasks that run here, from a deployment to the end of their threads. A task
//! that fails or panics ends the attempt, and so does a channel that breaks (B2): the coordinator
//! hears of it and decides. Start at: [`Attempt::prepare`], then [`Attempt::start`].

mod building;
mod hand_over;
mod outbox;
mod panics;
mod publishing;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use futures::future::try_join_all;
use streamforge_connectors::registry as connectors;
use streamforge_core::causes::with_causes;
use streamforge_core::ids::{CheckpointId, Generation, OperatorUid, SplitId, SubtaskIdx, TaskId};
use streamforge_core::job_graph::{Operator, OperatorKind};
use streamforge_core::manifest::SplitState;
use streamforge_core::messages::{Deployment, Event, HandOver, Progress, RunningAttempt, Stamp};
use streamforge_engine::error::Recovery;
use streamforge_engine::outbox::Outbox;
use streamforge_engine::staged::Staged;
use tokio::sync::mpsc;

use crate::budget::StateBudget;
use crate::clock::Clock;
use crate::exchange::{AttemptExchange, ChannelName, Outlet, Report};
use crate::inbox::{Control, Inbox};
use crate::manager::Context;
use crate::progress::{Local, TaskProgress, Times, combine, combine_local};
use crate::task::TaskShell;
use crate::upload::failed;
use building::{Building, Uplinks, accept_channels, open_sinks, task_ids, task_plan, unopened};

pub use hand_over::Opened;
pub use panics::caught;
pub use publishing::Publishing;

/// Why an attempt cannot begin.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An expression that was planned does not compile here: another version made the plan.
    #[error("compile expressions of `{operator}`")]
    Compile {
        /// Operator.
        operator: String,
        /// Why.
        source: streamforge_plan::Error,
    },
    /// The engine refused.
    #[error(transparent)]
    Engine(#[from] streamforge_engine::error::Error),
    /// State could not be loaded.
    #[error("restore `{operator}`")]
    Restore {
        /// Operator.
        operator: String,
        /// Why.
        source: streamforge_state::Error,
    },
    /// A channel to another task manager could not be opened.
    #[error(transparent)]
    Exchange(#[from] crate::exchange::Error),
    /// Some tasks run elsewhere, and this process has no way to reach them.
    #[error("reach tasks of other task managers: this one has no exchange")]
    Alone,
    /// A bug, here or in a connector.
    #[error("it panicked: {cause}")]
    Panicked {
        /// What it said.
        cause: String,
    },
}

impl Error {
    /// Whether another attempt may do better.
    pub fn may_succeed_later(&self) -> bool {
        match self {
            Error::Compile { .. } | Error::Alone => false,
            Error::Exchange(_) | Error::Panicked { .. } => true,
            Error::Engine(error) => error.recovery() == Recovery::Restart,
            Error::Restore { source, .. } => {
                matches!(source, streamforge_state::Error::Store { .. })
            }
        }
    }

    /// What the coordinator is told of it.
    pub fn event(&self) -> Event {
        use streamforge_engine::error::Error::TakenOver;
        match self {
            Error::Engine(error @ TakenOver { .. }) => Event::TakenOver {
                reason: error.with_causes(),
            },
            error => Event::Failed {
                task: None,
                cause: with_causes(error),
                retry: error.may_succeed_later(),
            },
        }
    }
}

/// Splits of each source.
pub type Splits = BTreeMap<OperatorUid, Vec<SplitState>>;

/// A loaded attempt and what its sources listed.
pub struct Prepared {
    /// Ready to start.
    pub attempt: Attempt,
    /// Source -> splits that no manifest knows yet.
    pub splits: Splits,
}

/// Source -> subtask -> splits, as a start says it.
pub type Dealt = BTreeMap<OperatorUid, BTreeMap<SubtaskIdx, Vec<SplitState>>>;

/// See the module.
pub struct Attempt {
    context: Context,
    deployment: Arc<Deployment>,
    outbox: Arc<Outbox>,
    shells: Vec<TaskShell>,
    inboxes: BTreeMap<TaskId, Arc<Inbox>>,
    exchange: Option<Arc<AttemptExchange>>,
    source_tasks: Vec<TaskId>,
    progress: Vec<(TaskId, Arc<TaskProgress>)>,
    starting: Option<tokio::task::JoinHandle<()>>,
    threads: Arc<Mutex<Threads>>,
    publishing: Publishing,
    events: mpsc::Sender<Event>,
    clock: Clock,
    budget: Arc<StateBudget>,
    /// A hand-over of which the channels are open.
    hand_over: Option<Arc<HandOver>>,
    /// The checkpoint whose barrier that one came with.
    handed_at: Option<CheckpointId>,
    /// Of tasks that left, and still answer.
    left: Vec<Arc<Inbox>>,
    /// Tasks that left, for what they counted.
    departed: Vec<Arc<TaskProgress>>,
}

/// What an attempt works with before it has a task here.
struct Idle {
    outbox: Arc<Outbox>,
    exchange: Option<Arc<AttemptExchange>>,
    publishing: Publishing,
    events: mpsc::Sender<Event>,
    clock: Clock,
    budget: Arc<StateBudget>,
}

/// The tasks' threads, once they run.
#[derive(Default)]
struct Threads {
    running: Vec<JoinHandle<()>>,
    started: bool,
}

fn operators_of(deployment: &Deployment, id: TaskId) -> &[Operator] {
    let stage = deployment.graph.stages.get(id.stage.0 as usize);
    stage
        .map(|stage| stage.operators.as_slice())
        .unwrap_or_default()
}

impl Attempt {
    /// Builds every task that runs here and loads its state; reads nothing.
    pub async fn prepare(
        context: &Context,
        stamp: Stamp,
        deployment: Deployment,
        to_coordinator: mpsc::Sender<(Stamp, Event)>,
    ) -> Result<Prepared, Error> {
        let (outbox, events) = outbox::begin(&stamp, to_coordinator);
        let ids = task_ids(&deployment, &deployment.subtasks_of(&context.me));
        let inbox = |id: &TaskId| {
            let channels_n = task_plan(&deployment, *id).channels().len();
            (*id, Arc::new(Inbox::new(channels_n)))
        };
        let inboxes: BTreeMap<TaskId, Arc<Inbox>> = ids.iter().map(inbox).collect();
        let exchange = exchange_of(context, &stamp, &deployment, &events)?;
        let uplinks = exchange.as_ref().map_or_else(Uplinks::new, |exchange| {
            accept_channels(&deployment, &inboxes, &inboxes, exchange)
        });
        let staged = Arc::new(Staged::default());
        let clock = Clock::start();
        let budget = Arc::new(StateBudget::new(Arc::clone(&context.terms)));
        let splits = if deployment.is_first(&context.me) {
            list_new(context, &deployment).await?
        } else {
            Splits::new()
        };
        let building = Building {
            context,
            stamp: &stamp,
            deployment: &deployment,
            inboxes: &inboxes,
            added: &BTreeMap::new(),
            uplinks: &uplinks,
            staged: &staged,
            events: &events,
            clock,
            budget: Arc::clone(&budget),
            joins: None,
        };
        let publishers = publishing::open_publishers(&building).await?;
        let mut shells = Vec::with_capacity(ids.len());
        for id in &ids {
            shells.push(building.shell(*id).await?);
        }
        open_sinks(&mut shells).await?;
        let sources = shells.iter().filter(|it| it.progress.source().is_some());
        let source_tasks = sources.map(|it| it.core.id()).collect();
        let progress = |it: &TaskShell| (it.core.id(), Arc::clone(&it.progress));
        let progress = shells.iter().map(progress).collect();
        let publishing = Publishing::new(publishers, staged, events.clone());
        let idle = Idle {
            outbox,
            exchange,
            publishing,
            events,
            clock,
            budget,
        };
        let attempt = Self {
            shells,
            inboxes,
            source_tasks,
            progress,
            ..Self::idle(context, deployment, idle)
        };
        Ok(Prepared { attempt, splits })
    }

    /// An attempt without a task here.
    fn idle(context: &Context, deployment: Deployment, idle: Idle) -> Self {
        Self {
            context: context.clone(),
            deployment: Arc::new(deployment),
            outbox: idle.outbox,
            shells: Vec::new(),
            inboxes: BTreeMap::new(),
            exchange: idle.exchange,
            source_tasks: Vec::new(),
            progress: Vec::new(),
            starting: None,
            threads: Arc::default(),
            publishing: idle.publishing,
            events: idle.events,
            clock: idle.clock,
            budget: idle.budget,
            hand_over: None,
            handed_at: None,
            left: Vec::new(),
            departed: Vec::new(),
        }
    }

    /// Opens channels and readers, gives these their splits and begins; off this call, so that the
    /// attempt can be ended meanwhile.
    pub fn start(&mut self, splits: Dealt) {
        let starter = Starter {
            deployment: Arc::clone(&self.deployment),
            inboxes: self.inboxes.clone(),
            exchange: self.exchange.clone(),
            threads: Arc::clone(&self.threads),
            events: self.events.clone(),
        };
        let shells = std::mem::take(&mut self.shells);
        if shells.is_empty() {
            return; // it was started before
        }
        let starting = panics::told(starter.run(shells, splits), None, self.events.clone());
        self.starting = Some(tokio::spawn(starting));
    }

    /// By whose command it runs.
    pub fn stamp(&self) -> Stamp {
        self.outbox.stamp()
    }

    /// Whether its tasks run.
    pub fn is_running(&self) -> bool {
        threads(&self.threads).started
    }

    /// What a coordinator that comes later must know of it (F1).
    pub fn running(&self) -> RunningAttempt {
        RunningAttempt {
            stamp: self.outbox.stamp(),
            deployment: (*self.deployment).clone(),
            started: self.is_running(),
            ended: self.outbox.ended(),
            failed: self.outbox.failed(),
            prepared: self.hand_over.as_ref().map(|it| Box::new((**it).clone())),
        }
    }

    /// Goes on for a coordinator of this generation.
    pub fn adopt(&self, generation: Generation) {
        self.say(self.outbox.adopt(generation));
    }

    /// Says this to the coordinator, in order, without waiting.
    fn say(&self, said: impl IntoIterator<Item = Event>) {
        let said: Vec<Event> = said.into_iter().collect();
        let events = self.events.clone();
        tokio::spawn(async move {
            for event in said {
                let _ = events.send(event).await;
            }
        });
    }

    /// How its tasks do.
    pub fn progress(&self) -> Progress {
        let mut all = combine(self.progress.iter().map(|(_, progress)| &**progress));
        all.add(&Progress {
            counters: combine(self.departed.iter().map(|it| &**it)).counters,
            ..Progress::default()
        });
        all
    }

    /// What only metrics tell.
    pub fn local(&self) -> Local {
        combine_local(self.progress.iter().map(|(_, progress)| &**progress))
    }

    /// Credit of each channel to another task manager, in bytes.
    pub fn credits(&self) -> Vec<(ChannelName, i64)> {
        let exchange = self.exchange.as_ref();
        exchange.map_or_else(Vec::new, |exchange| exchange.credits())
    }

    /// Where its tasks' time went.
    pub fn times(&self) -> Vec<(TaskId, Times)> {
        let times = |(id, progress): &(TaskId, Arc<TaskProgress>)| (*id, progress.times());
        self.progress.iter().map(times).collect()
    }

    /// The publishing half.
    pub fn publishing(&self) -> Publishing {
        self.publishing.clone()
    }

    /// Says something to every source task.
    pub fn tell_sources(&self, control: &Control) {
        for id in &self.source_tasks {
            if let Some(inbox) = self.inboxes.get(id) {
                inbox.control(control.clone());
            }
        }
    }

    /// Says something to every task.
    pub fn tell_all(&self, control: &Control) {
        self.inboxes
            .values()
            .for_each(|inbox| inbox.control(control.clone()));
    }

    /// Ends all tasks and waits for their threads. Publishing that is under way is not waited for.
    pub async fn end(self) {
        self.publishing.stop();
        let inboxes = self.inboxes.values().chain(&self.left);
        inboxes.for_each(|inbox| inbox.cancel());
        if let Some(exchange) = &self.exchange {
            exchange.close();
        }
        if let Some(starting) = self.starting {
            starting.abort();
            let _ = starting.await;
        }
        let running = std::mem::take(&mut threads(&self.threads).running);
        drop((self.shells, self.events, self.publishing));
        let joined = tokio::task::spawn_blocking(move || {
            // A task that panicked has said so already.
            running.into_iter().for_each(|thread| drop(thread.join()));
        });
        let _ = joined.await;
    }
}

fn threads(threads: &Mutex<Threads>) -> std::sync::MutexGuard<'_, Threads> {
    // A list of handles is whole at any time.
    threads.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The channels of this attempt to and from other task managers; `None`: all tasks run here.
fn exchange_of(
    context: &Context,
    stamp: &Stamp,
    deployment: &Deployment,
    events: &mpsc::Sender<Event>,
) -> Result<Option<Arc<AttemptExchange>>, Error> {
    let mut places = deployment.placement.values();
    if places.all(|place| place.task_manager == context.me) {
        return Ok(None);
    }
    let exchange = context.exchange.as_ref().ok_or(Error::Alone)?;
    let (events, runtime) = (events.downgrade(), tokio::runtime::Handle::current());
    let report: Report = Arc::new(move |broken| {
        let Some(events) = events.upgrade() else {
            return;
        };
        let event = Event::ChannelBroke {
            sender: broken.channel.sender,
            receiver: broken.channel.receiver,
            cause: broken.to_string(),
        };
        runtime.spawn(async move { events.send(event).await });
    });
    // Channels are named by the coordinator that began the attempt, whoever has adopted it since.
    let generation = match deployment.born {
        Generation::ZERO => stamp.generation,
        born => born,
    };
    let born = Stamp {
        generation,
        ..stamp.clone()
    };
    let attempt = exchange.attempt(born, context.me.name.clone(), report);
    Ok(Some(Arc::new(attempt)))
}

/// What a start needs of an attempt.
struct Starter {
    deployment: Arc<Deployment>,
    inboxes: BTreeMap<TaskId, Arc<Inbox>>,
    exchange: Option<Arc<AttemptExchange>>,
    threads: Arc<Mutex<Threads>>,
    events: mpsc::Sender<Event>,
}

/// Starts their threads.
async fn spawn_tasks(
    shells: Vec<TaskShell>,
    threads_of: &Mutex<Threads>,
    events: &mpsc::Sender<Event>,
) {
    for shell in shells {
        match spawn_task(shell, events.clone()) {
            Ok(thread) => threads(threads_of).running.push(thread),
            Err(cause) => {
                let event = Event::Failed {
                    task: None,
                    cause: format!("start a thread: {cause}"),
                    retry: true,
                };
                let _ = events.send(event).await;
            }
        }
    }
    threads(threads_of).started = true;
}

impl Starter {
    async fn run(self, mut shells: Vec<TaskShell>, splits: Dealt) {
        for shell in &mut shells {
            let opened = match self.open_channels(shell).await {
                Ok(()) => self.open_reader(shell, &splits).await,
                Err(error) => Err(error),
            };
            if let Err(error) = opened {
                let event = Event::Failed {
                    task: Some(shell.core.id()),
                    cause: with_causes(&error),
                    retry: error.may_succeed_later(),
                };
                let _ = self.events.send(event).await;
                return;
            }
        }
        spawn_tasks(shells, &self.threads, &self.events).await;
    }

    async fn open_channels(&self, shell: &mut TaskShell) -> Result<(), Error> {
        let Some(exchange) = &self.exchange else {
            return Ok(());
        };
        let channels = unopened(&self.deployment, &self.inboxes, shell.core.id());
        let opening = channels.into_iter().map(|channel| {
            let own = Arc::clone(&shell.inbox);
            async move {
                let opened = exchange.open(channel.name, &channel.address, own).await?;
                Ok::<_, Error>((channel.edge, channel.to, opened))
            }
        });
        for (edge, to, sender) in try_join_all(opening).await? {
            let route = shell.routes.entry(edge).or_default();
            route.insert(to, Outlet::Remote(sender));
        }
        Ok(())
    }

    async fn open_reader(&self, shell: &mut TaskShell, splits: &Dealt) -> Result<(), Error> {
        let id = shell.core.id();
        let Some(reader) = &mut shell.reader else {
            return Ok(());
        };
        let uid = &reader.opening.source.uid;
        let dealt = splits.get(uid);
        // Every split that this attempt begins with, those of all readers and the ended ones: a
        // reader that looks for new splits takes none of them. Of those listed now none has ended.
        let restore = self.deployment.restore.as_ref();
        let restored = restore.and_then(|it| it.sources.get(uid));
        let mut known: Vec<SplitState> = restored.cloned().unwrap_or_default();
        let ids: BTreeSet<SplitId> = known.iter().map(|it| it.split.clone()).collect();
        let dealt_to_any = dealt.iter().flat_map(|by| by.values()).flatten();
        let listed_now = dealt_to_any.filter(|it| !ids.contains(&it.split));
        known.extend(listed_now.cloned());
        let place = self.deployment.rank_of(id.subtask);
        let mine = dealt.and_then(|by| by.get(&id.subtask));
        let mine = mine.cloned().unwrap_or_default();
        shell.core.add_splits(reader.operator, mine.clone());
        reader.reader = Some(reader.opening.open(place, known, mine).await?);
        Ok(())
    }
}

/// All sources on a first start, later what the document has gained: the coordinator commits what is
/// listed before it is read (C10).
async fn list_new(context: &Context, deployment: &Deployment) -> Result<Splits, Error> {
    let restored = deployment.restore.as_ref().map(|it| &it.sources);
    let mut splits = Splits::new();
    for (_, operator) in deployment.graph.operators() {
        let OperatorKind::Source(spec) = &operator.kind else {
            continue;
        };
        let mut enumerator = connectors::open_enumerator(operator, spec, &context.surroundings())?;
        let known = restored.and_then(|sources| sources.get(&operator.uid));
        let listed = match known {
            None => enumerator.list().await?,
            Some(known) => enumerator.list_new(known).await?,
        };
        if known.is_none() || !listed.is_empty() {
            splits.insert(operator.uid.clone(), listed);
        }
    }
    Ok(splits)
}

fn spawn_task(shell: TaskShell, events: mpsc::Sender<Event>) -> std::io::Result<JoinHandle<()>> {
    let id = shell.core.id();
    std::thread::Builder::new()
        .name(format!("task-{id}"))
        .spawn(move || {
            let outcome = std::panic::catch_unwind(AssertUnwindSafe(|| shell.run()));
            let event = match outcome {
                Ok(Ok(())) => return,
                Ok(Err(error)) => failed(Some(id), &error),
                Err(panic) => Event::Failed {
                    task: Some(id),
                    cause: format!("task {id} panicked: {}", panics::words(&*panic)),
                    retry: true,
                },
            };
            let _ = events.blocking_send(event);
        })
}
