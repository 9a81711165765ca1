//! The `streamforge-taskmanager` program: runs tasks of one job for a coordinator elsewhere.
//!
//! Owns: arguments, certificates, the two runtimes, the exit code. Everything else is in the library.

mod logging;

use std::hash::{BuildHasher, RandomState};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use clap::Parser;
use prometheus::Registry;
use streamforge_core::messages::TaskManagerId;
use streamforge_proto::metrics::http;
use streamforge_proto::tls::Tls;
use streamforge_taskmanager::exchange::{Config as ExchangeConfig, Exchange};
use streamforge_taskmanager::file_size::fail_writes_beyond_limit;
use streamforge_taskmanager::metrics::Metrics;
use streamforge_taskmanager::session::{self, SessionConfig};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use logging::Format;

/// Rows are many small buffers that live for milliseconds and die on another thread.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// How long a channel to another task manager may take to open: both have said that they are ready.
const OPEN_TIMEOUT: Duration = Duration::from_secs(2);

/// How long threads may take to end.
const END_WITHIN: Duration = Duration::from_secs(2);

/// Runs tasks of one job for a coordinator.
#[derive(Debug, Parser)]
#[command(name = "streamforge-taskmanager", version)]
struct Args {
    /// Where the coordinator is, as host:port
    #[arg(long, value_name = "ADDR")]
    coordinator: String,
    /// Job that it is of, where the coordinator serves many
    #[arg(long, value_name = "UID", default_value = "")]
    job: String,
    /// When the job is over wait for the next coordinator, instead of ending
    #[arg(long)]
    stay: bool,
    /// Name of this task manager; stays when it is started anew
    #[arg(long, value_name = "NAME")]
    name: String,
    /// Subtasks that it can run
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=32768))]
    slots: u32,
    /// Address to listen on for rows of other task managers; port 0 takes a free one
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// Host under which other task managers reach this one [default: that of --listen]
    #[arg(long, value_name = "HOST")]
    advertise: Option<String>,
    /// Folder with one folder per secret and in it one file per key
    #[arg(long, value_name = "DIR")]
    secrets: Option<PathBuf>,
    /// Folder of this task manager's own for copies of its state: survivors of a loss read these and
    /// not the store. For a store that is far, such as a bucket
    #[arg(long, value_name = "DIR")]
    local_copies: Option<PathBuf>,
    /// Address to show /metrics, /livez and /readyz at
    #[arg(long, value_name = "ADDR")]
    metrics_listen: Option<SocketAddr>,
    /// Certificate of the authority; with it everything is mutual TLS, and plaintext is refused
    #[arg(long, value_name = "FILE", requires_all = ["tls_cert", "tls_key"])]
    tls_ca: Option<PathBuf>,
    /// This process's certificate
    #[arg(long, value_name = "FILE", requires = "tls_ca")]
    tls_cert: Option<PathBuf>,
    /// Its private key
    #[arg(long, value_name = "FILE", requires = "tls_ca")]
    tls_key: Option<PathBuf>,
    /// Name that the certificates of the other task managers bear
    #[arg(long, value_name = "NAME", default_value = "streamforge")]
    tls_peer_name: String,
    /// Name that the coordinator's certificate bears [default: that of --tls-peer-name]
    #[arg(long, value_name = "NAME")]
    tls_coordinator_name: Option<String>,
    /// How log lines are written
    #[arg(
        long,
        env = "STREAMFORGE_LOG_FORMAT",
        value_name = "FORMAT",
        default_value = "text"
    )]
    log_format: Format,
    /// End when the process of this number, which started this one, ends
    #[arg(long, hide = true, value_name = "PID")]
    with_parent: Option<i32>,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let log_format = args.log_format;
    logging::start(log_format);
    match run(args) {
        Ok(reason) => {
            tracing::info!(reason, "task manager ends");
            ExitCode::SUCCESS
        }
        Err(error) => {
            logging::last_word(log_format, &error);
            ExitCode::FAILURE
        }
    }
}

fn run(args: Args) -> Result<String> {
    if let Some(parent) = args.with_parent
        && !end_with_parent(parent)?
    {
        return Ok("the process that started it has ended".to_owned());
    }
    fail_writes_beyond_limit().context("handle the signal of files that are too large")?;
    let tls = certificates(&args)?;
    let exchange = Exchange::start(ExchangeConfig {
        listen: args.listen,
        open_timeout: OPEN_TIMEOUT,
        tls: tls.clone(),
        ..ExchangeConfig::default()
    })?;
    let bound = exchange.address();
    let exchange_address = match &args.advertise {
        Some(host) => format!("{host}:{}", bound.port()),
        None => bound.to_string(),
    };
    let metrics = Metrics::default();
    metrics.watch_exchange(exchange.totals());
    let (to_leave, leaving) = watch::channel(false);
    // The coordinator's name, where it has another one.
    let tls = tls.map(|tls| Tls {
        peer_name: args.tls_coordinator_name.unwrap_or(tls.peer_name),
        ..tls
    });
    let certificate = args.tls_cert.filter(|_| args.stay);
    // The standard hasher's keys are the system's randomness.
    let nonce = RandomState::new().hash_one(std::process::id());
    let config = SessionConfig {
        coordinator: args.coordinator,
        job: args.job,
        stay: args.stay,
        leaving,
        me: TaskManagerId {
            name: args.name,
            nonce,
        },
        slots: args.slots,
        exchange_address,
        tls,
        secrets: args.secrets,
        local_copies: args.local_copies,
        metrics: metrics.clone(),
    };
    let data = tokio::runtime::Builder::new_multi_thread()
        .thread_name("data")
        .enable_all()
        .build()
        .context("start the data threads")?;
    let control = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .thread_name("control")
        .enable_all()
        .build()
        .context("start the control thread")?;
    if let Some(listen) = args.metrics_listen {
        control.block_on(show_metrics(listen, metrics))?;
    }
    control.block_on(async {
        if let Some(certificate) = certificate {
            tokio::spawn(leave_on_change(certificate, to_leave.clone(), nonce));
        }
        leave_on_signal(to_leave)
    })?;
    let session = session::run(config, Arc::new(exchange), data.handle().clone());
    let ended = control.block_on(async { tokio::spawn(session).await });
    data.shutdown_timeout(END_WITHIN);
    Ok(ended.context("the session's task")??)
}

/// How often the certificate is looked at. Secrets need not be: whoever is refused reads them anew.
const LOOK_EVERY: Duration = Duration::from_secs(60);

/// Task managers that see a change leave within this time, each at another moment.
const LEAVE_WITHIN: Duration = Duration::from_secs(3_600);

/// Where processes are started anew (pods), one whose certificate was replaced leaves in peace, and its
/// successor reads the new one.
async fn leave_on_change(certificate: PathBuf, to_leave: watch::Sender<bool>, nonce: u64) {
    let read = || std::fs::read(&certificate).ok();
    let began = read();
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        if read().is_some_and(|now| Some(now) != began) {
            break;
        }
    }
    let wait = Duration::from_secs(nonce % LEAVE_WITHIN.as_secs());
    tracing::info!(
        wait_s = wait.as_secs(),
        "the certificate was replaced: leaving for another process to read it"
    );
    tokio::time::sleep(wait).await;
    to_leave.send_replace(true);
}

/// Asked to end, it leaves in peace; asked once more, it ends.
fn leave_on_signal(to_leave: watch::Sender<bool>) -> Result<()> {
    let (mut terminate, mut interrupt) = (
        signal(SignalKind::terminate())?,
        signal(SignalKind::interrupt())?,
    );
    tokio::spawn(async move {
        loop {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            if to_leave.send_replace(true) {
                tracing::warn!("asked again to end: not waiting for others to take over");
                std::process::exit(1);
            }
            tracing::info!("asked to end: giving tasks to others");
        }
    });
    Ok(())
}

async fn show_metrics(listen: SocketAddr, metrics: Metrics) -> Result<()> {
    let registry = Registry::new();
    registry.register(Box::new(metrics.clone()))?;
    let ready: http::Ready = Arc::new(move || metrics.readiness());
    let address = http::serve(listen, registry, ready).await?;
    tracing::info!(%address, "metrics");
    Ok(())
}

/// The process that started this one may be killed at any time. False: it was, before the system
/// could be asked to tell; then somebody else is the parent by now, and no signal will come.
fn end_with_parent(parent: i32) -> Result<bool> {
    #[cfg(target_os = "linux")]
    {
        let kill = rustix::process::Signal::KILL;
        rustix::process::set_parent_process_death_signal(Some(kill))
            .context("ask to end with the parent process")?;
    }
    let now = rustix::process::getppid();
    Ok(now.is_some_and(|now| now.as_raw_nonzero().get() == parent))
}

fn certificates(args: &Args) -> Result<Option<Tls>> {
    let (Some(ca), Some(cert), Some(key)) = (&args.tls_ca, &args.tls_cert, &args.tls_key) else {
        return Ok(None);
    };
    let read =
        |path: &Path| std::fs::read(path).with_context(|| format!("read {}", path.display()));
    Ok(Some(Tls {
        ca: read(ca)?,
        certificate: read(cert)?,
        key: read(key)?,
        peer_name: args.tls_peer_name.clone(),
    }))
}
