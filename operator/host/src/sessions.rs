//! Sessions with task managers in other processes: the coordinator's side of the wire.
//!
//! Owns: who has a session, and what each is told first. Never decides about a job. Start at:
//! [`Sessions::listen`] for one job, [`Listener`] for many; one session's life is in `session`.
//!
//! A task manager's session is numbered. When it begins anew, what the earlier one still has to say
//! is dropped here, so the coordinator hears of each process from one session at a time.

mod large;
mod listener;
mod session;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use streamforge_core::messages::{Command, Stamp, TaskManagerId};
use streamforge_proto::convert::coordinator::to_command;
use streamforge_proto::tls::Tls;
use streamforge_proto::v1;
use streamforge_proto::v1::to_task_manager::What;
use tokio::sync::mpsc;

use crate::control::Orders;
use crate::task_managers::{EVENTS_MAX, Lost, News, TaskManagers, Told};
pub use listener::{Listener, job_name};
use listener::{Place, Served, Whose};

/// Largest message: a deployment or a snapshot with the positions and parts of a large job.
pub const MESSAGE_BYTES_MAX: usize = 256 * 1024 * 1024;

/// The same where many jobs share a process.
const SHARED_MESSAGE_BYTES_MAX: usize = 64 * 1024 * 1024;

/// How long the last words of a session may take to leave.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// Settings of a listener for one job.
#[derive(Clone, Debug)]
pub struct SessionsConfig {
    /// Address to listen on; port 0 takes a free one.
    pub listen: SocketAddr,
    /// Certificates; `None`: plaintext.
    pub tls: Option<Tls>,
    /// What its task managers are told.
    pub terms: Terms,
}

/// What a job's task managers are told when a session begins.
#[derive(Clone, Debug)]
pub struct Terms {
    /// How often each end says that it is there.
    pub heartbeat: Duration,
    /// Silence after which a session is broken.
    pub timeout: Duration,
    /// Task managers without a session for this long end themselves; `None`: never.
    pub alone_max: Option<Duration>,
    /// At-least-once sinks wait when the head could not be read for this long without a session.
    pub unseen_max: Duration,
    /// Where the checkpoints are, for those who write them.
    pub store_uri: String,
    /// Settings of a store in the network, as JSON; empty: none.
    pub store_settings: String,
    /// Sinks whose lost Kafka marker was accepted by a person.
    pub accept_lost_markers: Vec<String>,
    /// Bytes of keyed state that the tasks of one task manager may hold together.
    pub state_bytes_max: u64,
}

/// Why there are no sessions.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The control runtime's thread does not start.
    #[error("start the control thread")]
    Threads(#[source] std::io::Error),
    /// The address is taken or not this machine's.
    #[error("listen on {address}")]
    Listen {
        /// Which.
        address: SocketAddr,
        /// Why.
        source: std::io::Error,
    },
    /// The certificates are not usable.
    #[error("use the certificates")]
    Tls(#[source] tonic::transport::Error),
}

/// One session, as commands reach it.
#[derive(Debug)]
struct Link {
    session: u64,
    out: mpsc::Sender<v1::ToTaskManager>,
}

/// What the listener's tasks and the host share.
#[derive(Debug)]
struct Shared {
    terms: Terms,
    links: Mutex<Links>,
    news: mpsc::Sender<Told>,
}

#[derive(Debug, Default)]
struct Links {
    by_id: BTreeMap<TaskManagerId, Link>,
    sessions_n: u64,
    /// Said to whoever comes now: the job is over.
    dismissed: Option<String>,
}

impl Shared {
    fn links(&self) -> MutexGuard<'_, Links> {
        // Every critical section leaves the table whole.
        self.links.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shared {
    fn new(terms: Terms) -> (Arc<Self>, mpsc::Receiver<Told>) {
        let (news_in, news) = mpsc::channel(EVENTS_MAX);
        let shared = Self {
            terms,
            links: Mutex::default(),
            news: news_in,
        };
        (Arc::new(shared), news)
    }
}

/// The sessions of one job. Dropping it ends them all.
#[derive(Debug)]
pub struct Sessions {
    /// Its own listener, or its place in one that many jobs share.
    at: At,
    address: SocketAddr,
    shared: Arc<Shared>,
    news: mpsc::Receiver<Told>,
    /// The session of each that the host knows of.
    known: BTreeMap<TaskManagerId, u64>,
}

#[derive(Debug)]
enum At {
    #[expect(dead_code, reason = "held so that it serves")]
    Own(Served),
    Shared(Place),
}

impl Sessions {
    /// Listens for one job. Needs no runtime around it.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn listen(config: SessionsConfig) -> Result<Self, Error> {
        let (shared, news) = Shared::new(config.terms);
        let whose = Whose::One(Arc::clone(&shared));
        let served = Served::start(config.listen, config.tls.as_ref(), whose)?;
        let address = served.address;
        Ok(Self::of(At::Own(served), address, shared, news))
    }

    fn of(at: At, address: SocketAddr, shared: Arc<Shared>, news: mpsc::Receiver<Told>) -> Self {
        Self {
            at,
            address,
            shared,
            news,
            known: BTreeMap::new(),
        }
    }

    /// The way to ask the coordinator that takes these sessions.
    #[must_use]
    pub fn orders(&self) -> Orders {
        Orders::new(self.shared.news.clone())
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Whether this is of the session that counts, and not of an earlier one.
    fn is_current(&mut self, session: u64, news: &News) -> bool {
        match news {
            News::Registered(id, _) => {
                let newest = self.known.get(id).is_none_or(|known| *known < session);
                if newest {
                    self.known.insert(id.clone(), session);
                }
                newest
            }
            News::Heard(id) | News::Said(id, ..) | News::Leaving(id) => {
                self.known.get(id) == Some(&session)
            }
            News::Lost(id, _) => {
                let current = self.known.get(id) == Some(&session);
                if current {
                    self.known.remove(id);
                }
                current
            }
            News::Asked(_) => true,
        }
    }
}

#[async_trait]
impl TaskManagers for Sessions {
    fn send(&mut self, to: &TaskManagerId, stamp: Stamp, command: Command) -> Result<(), Lost> {
        let lost = |reason: &str| Lost {
            reason: reason.to_owned(),
        };
        let links = self.shared.links();
        let link = links.by_id.get(to);
        let link = link.filter(|link| self.known.get(to) == Some(&link.session));
        let link = link.ok_or_else(|| lost("its session is over"))?;
        let message = v1::ToTaskManager {
            what: Some(What::Command(to_command(stamp, command))),
        };
        let sent = link.out.try_send(message);
        drop(links);
        sent.map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => {
                self.disconnect(to);
                lost("it does not take its commands")
            }
            mpsc::error::TrySendError::Closed(_) => lost("its session broke"),
        })
    }

    /// A later session, that is not known of yet, keeps its place.
    fn disconnect(&mut self, to: &TaskManagerId) {
        let known = self.known.get(to);
        let by_id = &mut self.shared.links().by_id;
        if by_id
            .get(to)
            .is_some_and(|link| known == Some(&link.session))
        {
            // Its stream ends with the queue, and it is heard of as any loss.
            by_id.remove(to);
        }
    }

    async fn recv(&mut self) -> Option<News> {
        loop {
            let (session, news) = self.news.recv().await?;
            if self.is_current(session, &news) {
                return Some(*news);
            }
        }
    }

    fn release(&mut self, to: &TaskManagerId) {
        let links = self.shared.links();
        if let Some(link) = links.by_id.get(to) {
            // Full or closed: it is gone, or will be.
            let _told = link.out.try_send(goodbye("its subtasks are others' now"));
        }
    }

    async fn dismiss(&mut self, reason: &str) {
        let waiting = {
            let mut links = self.shared.links();
            links.dismissed = Some(reason.to_owned());
            let last = goodbye(reason);
            let links = std::mem::take(&mut links.by_id).into_values();
            let told = links.filter_map(|link| {
                let sent = link.out.try_send(last.clone()).is_ok();
                sent.then_some(link.out)
            });
            told.collect::<Vec<_>>()
        };
        // They close the stream when they have heard; a frozen one is not waited for.
        let closed = all_closed(waiting);
        let _in_time = tokio::time::timeout(LAST_WORDS, closed).await;
    }
}

async fn all_closed(links: Vec<mpsc::Sender<v1::ToTaskManager>>) {
    for link in links {
        link.closed().await;
    }
}

fn goodbye(reason: &str) -> v1::ToTaskManager {
    let reason = reason.to_owned();
    v1::ToTaskManager {
        what: Some(What::Goodbye(v1::Goodbye { reason })),
    }
}

impl Drop for Sessions {
    fn drop(&mut self) {
        if let At::Shared(place) = &self.at {
            place.leave(&self.shared);
        }
        // Their streams end with the queues.
        self.shared.links().by_id.clear();
    }
}
