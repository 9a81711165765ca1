//! A task manager of its own process: its session with the coordinator.
//!
//! Owns: finding the coordinator, registering, heartbeats both ways, and what happens without a
//! session. Runs on the control runtime; tasks, uploads and loading run on another one, so a busy
//! expression never delays a heartbeat. Decides nothing about a job. Start at: [`run`].
//!
//! Invariant F1: when the session breaks, tasks go on; nothing is kept for the coordinator meanwhile,
//! because the next one asks what runs. Invariant F4: without a session the head is read a few times soon,
//! then at least once per heartbeat timeout; a newer epoch there ends the tasks, and a newer coordinator is called
//! at the address it names and at the one that was given, in turn. Alone for longer than the job allows, the process ends itself.

mod alone;
mod conversation;
mod counted;
mod store;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use streamforge_connectors::kafka::keep::Keeper;
use streamforge_core::messages::{Event, Registration, Stamp, TaskManagerId};
use streamforge_proto::convert::coordinator::to_register;
use streamforge_proto::tls::Tls;
use streamforge_proto::v1;
use streamforge_state::local::LocalCopies;
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;

use crate::exchange::Exchange;
use crate::manager::{Context, Manager, Request};
use crate::metrics::Metrics;
use crate::metrics::store_calls::CountedStore;
use crate::terms::Terms;
use alone::{Addresses, Loneliness};
use conversation::{Conversation, Over};

/// Commands waiting for the manager, which takes them at once.
const REQUESTS_MAX: usize = 256;

/// Events waiting to be sent; tasks wait when it is full.
const EVENTS_MAX: usize = 256;

/// Pause before the coordinator is called again; doubles up to [`CALL_AGAIN_MAX`].
const CALL_AGAIN_INITIAL: Duration = Duration::from_millis(20);

/// Longest pause before the coordinator is called again: a new one is found soon.
const CALL_AGAIN_MAX: Duration = Duration::from_millis(250);

/// The same after the answer of an operator that does not coordinate the job: the next call may reach the
/// one that does.
const CALL_ANOTHER: Duration = Duration::from_millis(20);

/// How long the first call may take to be connected; doubles up to [`CONNECT_MAX`].
const CONNECT_INITIAL: Duration = Duration::from_millis(250);

/// How long any call may take to be connected.
const CONNECT_MAX: Duration = Duration::from_secs(2);

/// So many such answers in a row are chance; after more of them nobody coordinates it.
const OTHERS_MAX: u32 = 8;

/// How long a coordinator that was never reached is called for.
const NEVER_REACHED_MAX: Duration = Duration::from_secs(600);

/// What a task manager's process is told when it starts.
#[derive(Clone, Debug)]
pub struct SessionConfig {
    /// Address of the coordinator, `host:port`.
    pub coordinator: String,
    /// Who this is.
    pub me: TaskManagerId,
    /// Subtasks that it can run.
    pub slots: u32,
    /// Address under which other task managers reach its exchange.
    pub exchange_address: String,
    /// Whose task manager this is, where a coordinator's listener serves many jobs; else empty.
    pub job: String,
    /// Wait for the next coordinator when the job is over, instead of ending.
    pub stay: bool,
    /// True: this process is to end. It asks to be let go, and gives its tasks to others before.
    pub leaving: watch::Receiver<bool>,
    /// Certificates for the coordinator; `None`: plaintext.
    pub tls: Option<Tls>,
    /// Folder of secrets.
    pub secrets: Option<PathBuf>,
    /// Folder for copies of parts of this process's own; `None`: none are kept.
    pub local_copies: Option<PathBuf>,
    /// Hears how tasks do.
    pub metrics: Metrics,
}

/// Why a task manager ends before its job does.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The coordinator does not want it.
    #[error("register at {address}: refused: {reason}")]
    Refused {
        /// Which coordinator.
        address: String,
        /// Its words.
        reason: String,
    },
    /// No coordinator for too long.
    #[error("no session with a coordinator for {seconds} s: ending")]
    Alone {
        /// How long.
        seconds: u64,
    },
    /// The job's store cannot be opened here.
    #[error("open the job's store {uri}: {reason}")]
    Store {
        /// Which.
        uri: String,
        /// Why.
        reason: String,
    },
    /// The folder for local copies cannot be used.
    #[error("keep local copies in {}", folder.display())]
    LocalCopies {
        /// Which folder.
        folder: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The coordinator names another store than before: it drives another job.
    #[error("the coordinator at {address} names store {theirs}, the tasks here use {ours}")]
    OtherStore {
        /// Which coordinator.
        address: String,
        /// Its store.
        theirs: String,
        /// Ours.
        ours: String,
    },
}

fn open_copies(folder: &Path) -> Result<Arc<LocalCopies>, Error> {
    let opened = LocalCopies::open(folder);
    opened.map(Arc::new).map_err(|source| Error::LocalCopies {
        folder: folder.to_owned(),
        source,
    })
}

/// The manager, once a coordinator has said where the store is.
struct Hosted {
    store_uri: String,
    context: Context,
    requests: mpsc::Sender<Request>,
    times: Times,
}

/// By the newest welcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Times {
    /// How often both ends speak, and the silence that breaks a session.
    heartbeat: Duration,
    timeout: Duration,
    alone_max: Option<Duration>,
    unseen_max: Option<Duration>,
}

impl Times {
    fn of(welcome: &v1::Welcome) -> Self {
        let limit = |limit_ms| (limit_ms > 0).then(|| ms(limit_ms));
        Self {
            heartbeat: ms(welcome.heartbeat_ms),
            timeout: ms(welcome.timeout_ms),
            alone_max: limit(welcome.alone_ms_max),
            unseen_max: limit(welcome.unseen_ms_max),
        }
    }
}

/// Works until the job is over; returns why it is, in the coordinator's words.
///
/// `data` is the runtime for everything about rows; call this on another one.
///
/// # Errors
/// See [`Error`].
pub async fn run(
    config: SessionConfig,
    exchange: Arc<Exchange>,
    data: Handle,
) -> Result<String, Error> {
    let (events_in, mut events) = mpsc::channel(EVENTS_MAX);
    let mut session = Session {
        config,
        exchange,
        data,
        events_in,
        hosted: None,
    };
    let ended = session.live(&mut events).await;
    session.end(events).await;
    ended
}

struct Session {
    config: SessionConfig,
    exchange: Arc<Exchange>,
    data: Handle,
    events_in: mpsc::Sender<(Stamp, Event)>,
    hosted: Option<Hosted>,
}

impl Session {
    async fn live(&mut self, events: &mut mpsc::Receiver<(Stamp, Event)>) -> Result<String, Error> {
        let mut addresses = Addresses::new(self.config.coordinator.clone());
        let mut lonely = Loneliness::begin(Instant::now());
        loop {
            let within = lonely.connect_within(CONNECT_INITIAL, CONNECT_MAX);
            let called = Instant::now();
            let address = addresses.next();
            match self.call(&address, within, events).await {
                Called::Goodbye(reason) if self.may_stay() => {
                    tracing::info!(reason, "waiting for the next coordinator");
                    self.hosted = None; // with it the tasks, if any are left
                    lonely = Loneliness::begin(Instant::now());
                }
                Called::Goodbye(reason) => return Ok(reason),
                Called::Refused(reason) => return Err(Error::Refused { address, reason }),
                Called::Failed(error) => return Err(error),
                Called::Broken(reason) => {
                    tracing::warn!(address, reason, "session with the coordinator is over");
                    self.ask(Request::SessionLost).await;
                    lonely = Loneliness::begin(Instant::now());
                    addresses = Addresses::new(self.config.coordinator.clone());
                    addresses.keep(address);
                }
                Called::NoAnswer(reason) => tracing::debug!(address, reason, "no session yet"),
                Called::NotNow(reason) => {
                    tracing::debug!(address, reason, "no session yet");
                    lonely.meet_another();
                }
            }
            if self.hosted.is_none() && self.is_leaving() {
                return Ok("it is to end, and runs nothing".to_owned());
            }
            self.look_around(&mut lonely, &mut addresses, events, called)
                .await?;
        }
    }

    fn is_leaving(&self) -> bool {
        *self.config.leaving.borrow()
    }

    fn may_stay(&self) -> bool {
        self.config.stay && !self.is_leaving()
    }

    async fn ask(&self, request: Request) {
        if let Some(hosted) = &self.hosted {
            // Closed: the manager is gone, which the next command will find.
            let _gone = hosted.requests.send(request).await;
        }
    }

    /// What runs here, for whoever may adopt it.
    async fn running(&self) -> Option<Box<streamforge_core::messages::RunningAttempt>> {
        let (answer, answered) = oneshot::channel();
        self.ask(Request::Describe(answer)).await;
        answered.await.ok().flatten()
    }

    /// One session, from the call to its end.
    async fn call(
        &mut self,
        address: &str,
        connect_within: Duration,
        events: &mut mpsc::Receiver<(Stamp, Event)>,
    ) -> Called {
        let registration = Registration {
            slots: self.config.slots,
            exchange: self.config.exchange_address.clone(),
            runs: self.running().await,
        };
        let register = v1::Register {
            job: self.config.job.clone(),
            ..to_register(self.config.me.clone(), registration)
        };
        let tls = self.config.tls.as_ref();
        let opened = Conversation::open(address, tls, connect_within, register);
        // While the call lasts nobody hears what tasks say.
        let opened = tokio::select! {
            opened = opened => opened,
            () = drain(events) => return Called::NoAnswer("no events any more".to_owned()),
        };
        let (mut conversation, welcome) = match opened {
            Ok(opened) => opened,
            Err(over) => return over.into(),
        };
        if let Err(error) = self.host(address, welcome).await {
            return Called::Failed(error);
        }
        let Some(hosted) = &self.hosted else {
            return Called::NoAnswer("no manager".to_owned());
        };
        hosted.context.sight.found();
        tracing::info!(address, "session with the coordinator");
        let over = conversation
            .go_on(
                &hosted.requests,
                events,
                (hosted.times.heartbeat, hosted.times.timeout),
                &mut self.config.leaving.clone(),
            )
            .await;
        match over {
            Over::Broken(reason) | Over::NoAnswer(reason) => Called::Broken(reason),
            other => other.into(),
        }
    }

    /// Starts the manager at the first welcome; later ones must be of the same job.
    async fn host(&mut self, address: &str, welcome: v1::Welcome) -> Result<(), Error> {
        let uri = &welcome.store_uri;
        if let Some(hosted) = &mut self.hosted {
            if hosted.store_uri != *uri {
                return Err(Error::OtherStore {
                    address: address.to_owned(),
                    theirs: uri.clone(),
                    ours: hosted.store_uri.clone(),
                });
            }
            // Another coordinator may have been told other ones.
            hosted.times = Times::of(&welcome);
            let terms = &hosted.context.terms;
            terms.take(welcome.state_bytes_max, welcome.accept_lost_markers);
            return Ok(());
        }
        let times = Times::of(&welcome);
        let secrets = self.config.secrets.as_deref();
        let opened = store::open(uri, &welcome.store_settings, secrets).await;
        let store = opened.map_err(|reason| Error::Store {
            uri: uri.clone(),
            reason,
        })?;
        let store = Arc::new(CountedStore::new(store));
        let metrics = self.config.metrics.clone();
        metrics.watch_store(store.calls());
        metrics.on_welcome();
        let local = self.config.local_copies.as_deref();
        let local = local.map(open_copies).transpose()?;
        if let Some(local) = &local {
            metrics.watch_copies(Arc::clone(local));
        }
        let context = Context {
            me: self.config.me.clone(),
            store,
            local,
            metrics,
            exchange: Some(Arc::clone(&self.exchange)),
            secrets: self.config.secrets.clone(),
            terminal: Some(false),
            terms: Arc::new(Terms::new(
                welcome.state_bytes_max,
                welcome.accept_lost_markers,
            )),
            kafka: Keeper::default(),
            sight: Arc::default(),
        };
        let (requests, work) = mpsc::channel(REQUESTS_MAX);
        let manager = Manager::new(context.clone(), self.events_in.clone());
        self.data.spawn(manager.run(work));
        self.hosted = Some(Hosted {
            store_uri: uri.clone(),
            context,
            requests,
            times,
        });
        Ok(())
    }

    /// Between two calls: waits a little, and looks into the head when it is time (F4).
    async fn look_around(
        &self,
        lonely: &mut Loneliness,
        addresses: &mut Addresses,
        events: &mut mpsc::Receiver<(Stamp, Event)>,
        called: Instant,
    ) -> Result<(), Error> {
        let hosted = self.hosted.as_ref();
        let never_reached_max = (!self.config.stay).then_some(NEVER_REACHED_MAX);
        let alone_max = hosted.map_or(never_reached_max, |hosted| hosted.times.alone_max);
        let alone = lonely.lasts(Instant::now());
        if alone_max.is_some_and(|max| alone >= max) {
            let seconds = alone.as_secs();
            return Err(Error::Alone { seconds });
        }
        let begun = Instant::now();
        if let Some(hosted) = hosted
            && lonely.looks_now(begun, hosted.times.timeout)
        {
            if self.look_into_head(hosted, addresses).await {
                lonely.saw_head(Instant::now());
                hosted.context.sight.found();
            }
            lonely.looked(begun, Instant::now());
        }
        if let Some(hosted) = hosted
            && hosted
                .times
                .unseen_max
                .is_some_and(|max| lonely.unseen(Instant::now()) >= max)
        {
            hosted.context.sight.lose();
        }
        let pause = if lonely.calls_another(OTHERS_MAX) {
            CALL_ANOTHER
        } else {
            // A call that took long to fail was a pause.
            let pause = lonely.next_pause(CALL_AGAIN_INITIAL, CALL_AGAIN_MAX);
            pause.saturating_sub(called.elapsed())
        };
        let _paused = tokio::time::timeout(pause, drain(events)).await;
        Ok(())
    }

    /// Whether there was one to be read.
    async fn look_into_head(&self, hosted: &Hosted, addresses: &mut Addresses) -> bool {
        let store = Arc::clone(&hosted.context.store);
        let read = self
            .data
            .spawn(async move { alone::read_head(&*store).await });
        match tokio::time::timeout(hosted.times.timeout, read).await {
            Ok(Ok(Ok(Some(head)))) => {
                let running = self.running().await;
                let is_newer = running.is_none_or(|it| it.stamp.generation < head.generation);
                if is_newer && alone::is_address(&head.coordinator) {
                    addresses.name(head.coordinator);
                }
                self.ask(Request::Superseded(Stamp {
                    job: head.job,
                    generation: head.generation,
                    epoch: head.epoch,
                }))
                .await;
                return true;
            }
            Ok(Ok(Ok(None))) => tracing::warn!("there is no head"),
            Ok(Ok(Err(reason))) => tracing::warn!(reason, "head not read"),
            Ok(Err(_)) | Err(_) => tracing::warn!("head not read in time"),
        }
        false
    }

    /// Ends the tasks and waits for them a little.
    async fn end(mut self, mut events: mpsc::Receiver<(Stamp, Event)>) {
        let Some(hosted) = self.hosted.take() else {
            return;
        };
        let timeout = hosted.times.timeout;
        drop(hosted);
        drop(self.events_in);
        // The manager's queue of events closes when its tasks have ended.
        let _in_time = tokio::time::timeout(timeout, drain(&mut events)).await;
    }
}

/// Takes events that nobody hears, until there will be none.
async fn drain(events: &mut mpsc::Receiver<(Stamp, Event)>) {
    while events.recv().await.is_some() {}
}

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms.max(1))
}

/// How a call ended.
enum Called {
    /// The job is over.
    Goodbye(String),
    /// It will not be.
    Refused(String),
    /// It cannot be, here.
    Failed(Error),
    /// There was a session.
    Broken(String),
    /// There was none.
    NoAnswer(String),
    /// There was none, with whoever answered.
    NotNow(String),
}

impl From<Over> for Called {
    fn from(over: Over) -> Self {
        match over {
            Over::Goodbye(reason) => Called::Goodbye(reason),
            Over::Refused { reason, again } if !again => Called::Refused(reason),
            Over::Refused { reason, .. } => Called::NotNow(reason),
            Over::NoAnswer(reason) => Called::NoAnswer(reason),
            Over::Broken(reason) => Called::Broken(reason),
        }
    }
}
