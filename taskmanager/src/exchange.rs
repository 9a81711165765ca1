//! Channels between tasks of different task managers: gRPC streams of Arrow IPC frames with credit.
//!
//! Owns: the listener, the connections to other task managers, and a tokio runtime of its own for
//! both, so that rows never delay a heartbeat. Decides nothing about rows. Start at:
//! [`Exchange::start`], [`Exchange::attempt`]; then [`AttemptExchange::accept`] for every input
//! channel whose sender is elsewhere, and when all task managers have done so
//! [`AttemptExchange::open`] for every output channel whose receiver is elsewhere.
//!
//! Invariant B1: memory is bounded by construction. One channel holds at most
//! * at the sender: [`Config::queue_bytes`] and two batches of a task, as columns (one that reached
//!   that limit, one that is being cut), and one frame,
//! * at the receiver: [`Config::window_bytes`], and if a frame is larger than that, the frame,
//!
//! and one connection the HTTP/2 windows of both ends. Rows need credit; barriers, watermarks, idle
//! marks and joins need none, and of watermarks that nothing separates a queue keeps the last, so
//! that their number between two rows is bounded, too. Streams are always read into their queues:
//! a channel out of credit never holds back another one on the same connection.
//!
//! Invariant B2: messages are numbered; a gap, a repeat or a break is never healed by opening the
//! channel again, it is reported by each end once ([`Broken`]) and ends the epoch.

mod connection;
pub mod credit;
pub mod frame;
mod receiver;
mod sender;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::fmt;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use streamforge_core::event_time::Watermark;
use streamforge_core::ids::SubtaskIdx;
use streamforge_core::messages::Stamp;
use streamforge_engine::task::Element;
use streamforge_proto::tls::Tls;
use tokio::runtime::Runtime;

use crate::inbox::{Control, Inbox};
use connection::Connections;
use receiver::{Admitted, Registry};

pub use receiver::Uplink;
pub use sender::Sender;

/// How large a message may be at most: a frame of one row, with room for what travels beside it.
/// Both ends have the same limit.
pub const MESSAGE_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Settings of a task manager's exchange.
#[derive(Clone, Debug)]
pub struct Config {
    /// Address to listen on; port 0 takes a free one.
    pub listen: SocketAddr,
    /// Threads of the exchange's runtime.
    pub threads: usize,
    /// Bytes of rows that one channel's sender may be ahead of the task that receives (B1). Credit
    /// comes back half of it at a time.
    pub window_bytes: u64,
    /// Bytes of rows that wait in one channel's sender before its task must wait.
    pub queue_bytes: usize,
    /// Bytes of a frame aimed at; smaller batches are joined, larger ones cut.
    pub frame_bytes: usize,
    /// How long rows may wait for others to fill a frame. The first rows after such a time go at once.
    pub linger: Duration,
    /// How long opening a channel may take, waiting for a receiver that is not that far included.
    pub open_timeout: Duration,
    /// How often a silent connection is asked whether it lives, and how long it has to answer.
    pub keep_alive: Duration,
    /// Certificates; `None`: plaintext.
    pub tls: Option<Tls>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            threads: 2,
            window_bytes: 512 * 1024,
            queue_bytes: 128 * 1024,
            frame_bytes: 64 * 1024,
            linger: Duration::from_millis(5),
            open_timeout: Duration::from_secs(10),
            keep_alive: Duration::from_secs(10),
            tls: None,
        }
    }
}

/// Names a channel within an attempt. The edge names both stages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ChannelName {
    /// Index into the job graph's edges.
    pub edge: u32,
    /// Which subtask of the edge's first stage sends.
    pub sender: SubtaskIdx,
    /// Which subtask of its second stage receives.
    pub receiver: SubtaskIdx,
}

impl fmt::Display for ChannelName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            edge,
            sender,
            receiver,
        } = self;
        write!(f, "edge {edge} from {} to {}", sender.0, receiver.0)
    }
}

/// Which end of a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Where its rows come from.
    Sending,
    /// Where its rows go.
    Receiving,
}

/// A channel broke (B2). The attempt it belongs to cannot go on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broken {
    /// Which channel.
    pub channel: ChannelName,
    /// Which end says so.
    pub end: End,
    /// Why, for people.
    pub cause: String,
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let end = match self.end {
            End::Sending => "sender",
            End::Receiving => "receiver",
        };
        write!(f, "channel {} broke ({end}): {}", self.channel, self.cause)
    }
}

/// Hears of broken channels, each end of each at most once. Called on the exchange's runtime: it must
/// not wait.
pub type Report = Arc<dyn Fn(Broken) + Send + Sync>;

/// Why the exchange does not work.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The runtime's threads do not start.
    #[error("start the exchange's threads")]
    Threads(#[source] std::io::Error),
    /// The address is taken or not this machine's.
    #[error("listen on {address}")]
    Listen {
        /// Which.
        address: SocketAddr,
        /// Why.
        source: std::io::Error,
    },
    /// The certificates are not usable, or an address is none.
    #[error("prepare connections to {address}")]
    Transport {
        /// Whose.
        address: String,
        /// Why.
        source: tonic::transport::Error,
    },
    /// The other end refuses the channel: another attempt, or it is open already. Trying again does
    /// not help.
    #[error("open channel {channel} at {address}: refused: {reason}")]
    Refused {
        /// Which channel.
        channel: ChannelName,
        /// Where.
        address: String,
        /// Why, in the other end's words.
        reason: String,
    },
    /// The other end is not there, or not that far, for the whole `open_timeout`.
    #[error("open channel {channel} at {address}: {reason}, for {waited_ms} ms")]
    Unreachable {
        /// Which channel.
        channel: ChannelName,
        /// Where.
        address: String,
        /// The last answer.
        reason: String,
        /// How long it was tried.
        waited_ms: u64,
    },
    /// The attempt was closed meanwhile.
    #[error("open channel {channel}: the attempt is over")]
    Closed {
        /// Which channel.
        channel: ChannelName,
    },
}

/// What went through this process's channels since it started; for people. Bytes are those that
/// credit counts: Arrow IPC headers and bodies.
#[derive(Debug, Default)]
pub struct Totals {
    /// Rows in frames sent.
    pub rows_sent: AtomicU64,
    /// Bytes of frames sent.
    pub bytes_sent: AtomicU64,
    /// Frames of rows sent.
    pub frames_sent: AtomicU64,
    /// Rows in frames received.
    pub rows_received: AtomicU64,
    /// Bytes of frames received.
    pub bytes_received: AtomicU64,
    /// Frames of rows received.
    pub frames_received: AtomicU64,
    /// Microseconds that tasks waited for room in a channel: back-pressure, all tasks added up.
    pub blocked_us: AtomicU64,
    /// Times that a sender had rows and no credit.
    pub out_of_credit: AtomicU64,
    /// Openings that were refused or told to wait.
    pub refused: AtomicU64,
    /// Channels that broke, each end counted.
    pub broken: AtomicU64,
}

impl Totals {
    fn add(counter: &AtomicU64, n: u64) {
        counter.fetch_add(n, Ordering::Relaxed);
    }
}

/// Locks; every critical section of the exchange leaves its data whole, so a panic elsewhere does not
/// matter.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What all parts of an exchange share.
#[derive(Debug)]
struct Shared {
    config: Config,
    totals: Arc<Totals>,
    registry: Registry,
}

/// See the module. One per task manager; dropping it ends all channels.
#[derive(Debug)]
pub struct Exchange {
    // An Option so that Drop can end it without waiting, which a runtime's own Drop would do.
    runtime: Option<Runtime>,
    address: SocketAddr,
    shared: Arc<Shared>,
}

impl Exchange {
    /// Listens. Needs no runtime around it.
    ///
    /// # Errors
    /// [`Error::Threads`], [`Error::Listen`], and [`Error::Transport`] for unusable certificates.
    pub fn start(config: Config) -> Result<Self, Error> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(config.threads.max(1))
            .thread_name("exchange")
            .enable_all()
            .build()
            .map_err(Error::Threads)?;
        let shared = Arc::new(Shared {
            config,
            totals: Arc::new(Totals::default()),
            registry: Registry::default(),
        });
        let address = {
            let _entered = runtime.enter();
            receiver::listen(Arc::clone(&shared))?
        };
        let runtime = Some(runtime);
        Ok(Self {
            runtime,
            address,
            shared,
        })
    }

    /// Where it listens: other task managers open their channels to this one's tasks here.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What went through.
    pub fn totals(&self) -> Arc<Totals> {
        Arc::clone(&self.shared.totals)
    }

    /// Begins an attempt of a job; `task_manager` is this one's name, as others know it. From now on
    /// openings of the job's older attempts are refused (C5), those of newer ones told to wait.
    pub fn attempt(&self, stamp: Stamp, task_manager: String, report: Report) -> AttemptExchange {
        let admitted = Arc::new(Admitted::new(stamp, report));
        self.shared.registry.begin(Arc::clone(&admitted));
        let runtime = self
            .runtime
            .as_ref()
            .expect("only Drop takes the runtime out")
            .handle()
            .clone();
        AttemptExchange {
            runtime,
            task_manager,
            connections: Connections::new(&self.shared.config),
            shared: Arc::clone(&self.shared),
            senders: Mutex::default(),
            admitted,
        }
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// The channels of one attempt in this task manager. Dropping it closes them.
#[derive(Debug)]
pub struct AttemptExchange {
    runtime: tokio::runtime::Handle,
    task_manager: String,
    connections: Connections,
    shared: Arc<Shared>,
    senders: Mutex<HashMap<ChannelName, Sender>>,
    admitted: Arc<Admitted>,
}

impl AttemptExchange {
    /// Lets the task manager called `from` open this channel, once; its elements arrive in `lane` of
    /// `inbox`. What is returned answers the sender's joins.
    pub fn accept(
        &self,
        channel: ChannelName,
        from: &str,
        inbox: Arc<Inbox>,
        lane: usize,
    ) -> Arc<Uplink> {
        let window_bytes = self.shared.config.window_bytes;
        let uplink = Arc::new(Uplink::new(
            channel,
            window_bytes,
            Arc::clone(&self.admitted),
            Arc::clone(&self.shared.totals),
        ));
        inbox.attach(lane, Arc::clone(&uplink) as _);
        let port = receiver::Port {
            from: from.to_owned(),
            inbox,
            lane,
            uplink: Arc::clone(&uplink),
        };
        self.admitted.expect(channel, port);
        uplink
    }

    /// Opens a channel to the task manager at `address` (`host:port`); answers to its joins go to
    /// `own`, the sending task's inbox. Waits for a receiver that has not accepted yet. May be awaited
    /// on any runtime.
    ///
    /// # Errors
    /// [`Error::Refused`], [`Error::Unreachable`], [`Error::Transport`], [`Error::Closed`].
    pub async fn open(
        &self,
        channel: ChannelName,
        address: &str,
        own: Arc<Inbox>,
    ) -> Result<Sender, Error> {
        let opening = sender::Opener {
            channel,
            address: address.to_owned(),
            task_manager: self.task_manager.clone(),
            admitted: Arc::clone(&self.admitted),
            shared: Arc::clone(&self.shared),
            own,
        };
        let connection = {
            let _entered = self.runtime.enter();
            self.connections.to(address)?
        };
        let opened = self.runtime.spawn(opening.open(connection)).await;
        let sender = opened.unwrap_or(Err(Error::Closed { channel }))?;
        lock(&self.senders).insert(channel, sender.clone());
        if self.admitted.is_closed() {
            sender.cancel();
            return Err(Error::Closed { channel });
        }
        Ok(sender)
    }

    /// What each channel may still send, in bytes; below zero after a frame larger than the window.
    pub fn credits(&self) -> Vec<(ChannelName, i64)> {
        let senders = lock(&self.senders);
        let credit = |(name, sender): (&ChannelName, &Sender)| Some((*name, sender.credit()?));
        senders.iter().filter_map(credit).collect()
    }

    /// Ends all channels of the attempt: waiting senders return, nothing arrives or is reported any
    /// more.
    pub fn close(&self) {
        self.shared.registry.end(&self.admitted);
        self.admitted.close();
        let senders = std::mem::take(&mut *lock(&self.senders));
        senders.values().for_each(Sender::cancel);
    }
}

impl Drop for AttemptExchange {
    fn drop(&mut self) {
        self.close();
    }
}

/// Where a task's elements of one channel go.
#[derive(Clone, Debug)]
pub enum Outlet {
    /// To a task of this process: its inbox and the channel's lane there.
    Local(Arc<Inbox>, usize),
    /// To another task manager.
    Remote(Sender),
}

impl Outlet {
    /// Hands an element over; waits for room if it is rows. False: the attempt is over.
    #[must_use]
    pub fn push(&self, element: Element) -> bool {
        match self {
            Outlet::Local(inbox, lane) => inbox.push(*lane, element),
            Outlet::Remote(sender) => sender.push(element),
        }
    }
}

/// Where a task's answer to the sender of an input channel goes.
#[derive(Clone, Debug)]
pub enum Upstream {
    /// To a task of this process.
    Local(Arc<Inbox>),
    /// To another task manager.
    Remote(Arc<Uplink>),
}

impl Upstream {
    /// Answers a join of `edge` in the name of `receiver`.
    pub fn answer(&self, edge: usize, receiver: SubtaskIdx, watermark: Watermark) {
        match self {
            Upstream::Local(inbox) => inbox.control(Control::Answer {
                edge,
                receiver,
                watermark,
            }),
            Upstream::Remote(uplink) => uplink.answer(watermark),
        }
    }
}
