//! The listener: one port, for one job or for many.
//!
//! Owns: the gRPC server, on a small runtime of its own so that nothing delays a heartbeat; and which
//! job a task manager's call is for. Where many jobs share a listener with certificates, a task
//! manager must show one that bears its job's name: [`job_name`].

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use streamforge_proto::tls::{self, Tls};
use streamforge_proto::v1::control_server::ControlServer;
use streamforge_proto::v1::coordinator_server::CoordinatorServer;
use tokio::runtime::Runtime;
use tonic::transport::server::TcpIncoming;

use super::large::Metered;
use super::session::Service;
use super::{At, Error, MESSAGE_BYTES_MAX, SHARED_MESSAGE_BYTES_MAX, Sessions, Shared, Terms};
use crate::control::{self, Orders};

/// A connection of which nothing came for so long at most is asked for an answer, and has as long for it, which may
/// come behind much else: whoever waits until a large message of its own is read cannot be told from a frozen
/// process otherwise.
const KEEP_ALIVE: Duration = Duration::from_secs(10);

/// How long the task managers of many jobs have for that answer: the patience of each job is its own, and may be longer
/// than [`KEEP_ALIVE`].
const SHARED_KEEP_ALIVE: Duration = Duration::from_secs(60);

/// A listener that serves many jobs. Dropping it ends all sessions of all of them.
#[derive(Debug)]
pub struct Listener {
    served: Served,
    jobs: Arc<Jobs>,
}

impl Listener {
    /// Listens. Task managers of jobs that are not open are refused, and told to try again.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn start(listen: SocketAddr, tls: Option<&Tls>) -> Result<Self, Error> {
        let jobs = Arc::new(Jobs {
            proven: tls.is_some(),
            open: Mutex::default(),
        });
        let served = Served::start(listen, tls, Whose::Many(Arc::clone(&jobs)))?;
        Ok(Self { served, jobs })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.served.address
    }

    /// Takes task managers of this job, until what is returned is dropped. A later call for the same
    /// job takes its place.
    #[must_use]
    pub fn open(&self, job: &str, terms: Terms) -> Sessions {
        let (shared, news) = Shared::new(terms);
        let job = job.to_owned();
        self.jobs.open().insert(job.clone(), Arc::clone(&shared));
        let jobs = Arc::clone(&self.jobs);
        let at = At::Shared(Place { jobs, job });
        Sessions::of(at, self.served.address, shared, news)
    }
}

/// The name that certificates of a job's task managers bear, where many jobs share a listener.
#[must_use]
pub fn job_name(job: &str) -> String {
    format!("{job}.jobs.streamforge")
}

/// The jobs of a listener.
#[derive(Debug)]
pub(super) struct Jobs {
    /// A certificate must prove whose task manager calls.
    proven: bool,
    open: Mutex<BTreeMap<String, Arc<Shared>>>,
}

impl Jobs {
    fn open(&self) -> MutexGuard<'_, BTreeMap<String, Arc<Shared>>> {
        // Every critical section leaves the table whole.
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A job's place at a listener.
#[derive(Debug)]
pub(super) struct Place {
    jobs: Arc<Jobs>,
    job: String,
}

impl Place {
    /// Takes it away, unless a later one has it.
    pub(super) fn leave(&self, shared: &Arc<Shared>) {
        let mut open = self.jobs.open();
        if open
            .get(&self.job)
            .is_some_and(|it| Arc::ptr_eq(it, shared))
        {
            open.remove(&self.job);
        }
    }
}

/// Whom a call is for.
#[derive(Clone, Debug)]
pub(super) enum Whose {
    /// The only job, whatever the task manager says.
    One(Arc<Shared>),
    Many(Arc<Jobs>),
}

/// Why a call is for nobody.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Nobody {
    /// It will never be.
    Never(String),
    /// There is no coordinator for it now.
    NotNow(String),
}

impl Whose {
    /// The job of this name, called by whoever showed these certificates.
    pub(super) fn find(
        &self,
        job: &str,
        shown: Option<&tls::Certificates>,
    ) -> Result<Arc<Shared>, Nobody> {
        let jobs = match self {
            Self::One(shared) => return Ok(Arc::clone(shared)),
            Self::Many(jobs) => jobs,
        };
        if job.is_empty() {
            let reason =
                "this listener serves many jobs: a task manager says which one it is of (--job)";
            return Err(Nobody::Never(reason.to_owned()));
        }
        let name = job_name(job);
        if jobs.proven && !shown.is_some_and(|shown| tls::bears(shown, &name)) {
            let reason = format!("its certificate does not bear the name {name}");
            return Err(Nobody::Never(reason));
        }
        let open = jobs.open().get(job).cloned();
        open.ok_or_else(|| Nobody::NotNow(format!("job {job} has no coordinator here")))
    }
}

/// A server on a runtime of its own.
#[derive(Debug)]
pub(super) struct Served {
    // An Option so that Drop can end it without waiting, which a runtime's own Drop would do.
    runtime: Option<Runtime>,
    pub(super) address: SocketAddr,
}

impl Served {
    pub(super) fn start(
        listen: SocketAddr,
        tls: Option<&Tls>,
        whose: Whose,
    ) -> Result<Self, Error> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("control")
            .enable_all()
            .build()
            .map_err(Error::Threads)?;
        let address = {
            let _entered = runtime.enter();
            serve(listen, tls, whose)?
        };
        Ok(Self {
            runtime: Some(runtime),
            address,
        })
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// Serves on the runtime this is called in. Returns the address.
fn serve(address: SocketAddr, tls: Option<&Tls>, whose: Whose) -> Result<SocketAddr, Error> {
    let failed = |source| Error::Listen { address, source };
    let listener = std::net::TcpListener::bind(address).map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    let bound = listener.local_addr().map_err(failed)?;
    let listener = tokio::net::TcpListener::from_std(listener).map_err(failed)?;
    let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
    let (ask_after, answer_within) = match &whose {
        // No sooner: a silence is none before.
        Whose::One(shared) => {
            let timeout = shared.terms.timeout;
            (KEEP_ALIVE.min(timeout), KEEP_ALIVE.max(timeout))
        }
        Whose::Many(_) => (KEEP_ALIVE, SHARED_KEEP_ALIVE),
    };
    let mut server = tonic::transport::Server::builder()
        .http2_keepalive_interval(Some(ask_after))
        .http2_keepalive_timeout(Some(answer_within));
    if let Some(tls) = tls {
        server = server.tls_config(tls.server()).map_err(Error::Tls)?;
    }
    // A person's orders are for the only job there is; those of many jobs come from elsewhere.
    let control = match &whose {
        Whose::One(shared) => Some(ControlServer::new(control::Service {
            orders: Orders::new(shared.news.clone()),
        })),
        Whose::Many(_) => None,
    };
    let bytes_max = match &whose {
        Whose::One(_) => MESSAGE_BYTES_MAX,
        Whose::Many(_) => SHARED_MESSAGE_BYTES_MAX,
    };
    let service = CoordinatorServer::new(Service { whose })
        .max_decoding_message_size(bytes_max)
        .max_encoding_message_size(bytes_max);
    let serving = server
        .add_service(Metered::new(service))
        .add_optional_service(control)
        .serve_with_incoming(incoming);
    tokio::spawn(async move {
        if let Err(error) = serving.await {
            tracing::error!(%error, "the coordinator's listener stopped");
        }
    });
    Ok(bound)
}
