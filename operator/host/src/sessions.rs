//! Sessions with task managers in other processes: the coordinator's side of the wire.
//!
//! Owns: the listener, on a small runtime of its own so that nothing delays a heartbeat; who has a
//! session; and what each is told first. Never decides about a job. Start at: [`Sessions::listen`];
//! one session's life is in `session`.
//!
//! A task manager's session is numbered. When it begins anew, what the earlier one still has to say
//! is dropped here, so the coordinator hears of each process from one session at a time.

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
use streamforge_proto::v1::control_server::ControlServer;
use streamforge_proto::v1::coordinator_server::CoordinatorServer;
use streamforge_proto::v1::to_task_manager::What;
use tokio::runtime::Runtime;
use tokio::sync::mpsc;
use tonic::transport::server::TcpIncoming;

use crate::control;
use crate::task_managers::{EVENTS_MAX, Lost, News, TaskManagers};
use session::Service;

/// Largest message: a deployment or a snapshot with the positions and parts of a large job.
pub const MESSAGE_BYTES_MAX: usize = 256 * 1024 * 1024;

/// How long the last words of a session may take to leave.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// Settings of the listener.
#[derive(Clone, Debug)]
pub struct SessionsConfig {
    /// Address to listen on; port 0 takes a free one.
    pub listen: SocketAddr,
    /// Certificates; `None`: plaintext.
    pub tls: Option<Tls>,
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
    config: SessionsConfig,
    links: Mutex<Links>,
    news: mpsc::Sender<(u64, News)>,
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

/// See the module. Dropping it ends all sessions.
#[derive(Debug)]
pub struct Sessions {
    // An Option so that Drop can end it without waiting, which a runtime's own Drop would do.
    runtime: Option<Runtime>,
    address: SocketAddr,
    shared: Arc<Shared>,
    news: mpsc::Receiver<(u64, News)>,
    /// The session of each that the host knows of.
    known: BTreeMap<TaskManagerId, u64>,
}

impl Sessions {
    /// Listens. Needs no runtime around it.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn listen(config: SessionsConfig) -> Result<Self, Error> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("control")
            .enable_all()
            .build()
            .map_err(Error::Threads)?;
        let (news_in, news) = mpsc::channel(EVENTS_MAX);
        let shared = Arc::new(Shared {
            config,
            links: Mutex::default(),
            news: news_in,
        });
        let address = {
            let _entered = runtime.enter();
            serve(Arc::clone(&shared))?
        };
        Ok(Self {
            runtime: Some(runtime),
            address,
            shared,
            news,
            known: BTreeMap::new(),
        })
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
            News::Heard(id) | News::Said(id, ..) => self.known.get(id) == Some(&session),
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

/// Serves on the runtime this is called in. Returns the address.
fn serve(shared: Arc<Shared>) -> Result<SocketAddr, Error> {
    let address = shared.config.listen;
    let failed = |source| Error::Listen { address, source };
    let listener = std::net::TcpListener::bind(address).map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    let bound = listener.local_addr().map_err(failed)?;
    let listener = tokio::net::TcpListener::from_std(listener).map_err(failed)?;
    let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
    let mut server = tonic::transport::Server::builder();
    if let Some(tls) = &shared.config.tls {
        server = server.tls_config(tls.server()).map_err(Error::Tls)?;
    }
    let control = ControlServer::new(control::Service {
        news: shared.news.clone(),
    });
    let service = CoordinatorServer::new(Service { shared })
        .max_decoding_message_size(MESSAGE_BYTES_MAX)
        .max_encoding_message_size(MESSAGE_BYTES_MAX);
    let serving = server
        .add_service(service)
        .add_service(control)
        .serve_with_incoming(incoming);
    tokio::spawn(async move {
        if let Err(error) = serving.await {
            tracing::error!(%error, "the coordinator's listener stopped");
        }
    });
    Ok(bound)
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
        link.out.try_send(message).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => lost("it does not take its commands"),
            mpsc::error::TrySendError::Closed(_) => lost("its session broke"),
        })
    }

    async fn recv(&mut self) -> Option<News> {
        loop {
            let (session, news) = self.news.recv().await?;
            if self.is_current(session, &news) {
                return Some(news);
            }
        }
    }

    async fn dismiss(&mut self, reason: &str) {
        let waiting = {
            let mut links = self.shared.links();
            links.dismissed = Some(reason.to_owned());
            let goodbye = What::Goodbye(v1::Goodbye {
                reason: reason.to_owned(),
            });
            let last = v1::ToTaskManager {
                what: Some(goodbye),
            };
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

impl Drop for Sessions {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}
