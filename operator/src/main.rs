//! The `streamforge-operator` program.
//!
//! Owns: arguments, the log, the listener and the health page, waiting for the Lease, and the end of
//! the process. Everything else is in the library.

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context as _, Result, anyhow, bail};
use clap::Parser as _;
use prometheus::Registry;
use streamforge_host::sessions::Listener;
use streamforge_operator::args::Args;
use streamforge_operator::authority;
use streamforge_operator::client;
use streamforge_operator::controller::{self, Context};
use streamforge_operator::credentials;
use streamforge_operator::fleet::Fleet;
use streamforge_operator::lease::Elector;
use streamforge_operator::liveness;
use streamforge_operator::metrics::Metrics;
use streamforge_operator::settings::{Settings, SharedStore};
use streamforge_operator::webhook;
use streamforge_proto::metrics::http;
use streamforge_proto::tls::Tls;
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::EnvFilter;

/// A thousand coordinators are many small allocations of many threads.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// What is logged. The client calls every request an error that got no answer; whoever made the request says what
/// that means, and how often.
fn filter(wanted: &str) -> String {
    match wanted {
        "" => "info,kube_client=off".to_owned(),
        asked if asked.contains("kube_client") => asked.to_owned(),
        asked => format!("{asked},kube_client=off"),
    }
}

fn main() -> ExitCode {
    let args = Args::parse();
    let wanted = std::env::var(EnvFilter::DEFAULT_ENV).unwrap_or_default();
    let filter = EnvFilter::try_new(filter(&wanted)).unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt()
        .json()
        .flatten_event(true)
        .with_span_list(false)
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .init();
    // Two libraries bring one each, and the first connection would find no default.
    let installed = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let runtime = tokio::runtime::Runtime::new();
    let ended = runtime.context("start threads").and_then(|runtime| {
        if installed.is_err() {
            bail!("another provider of cryptography is installed already");
        }
        runtime.block_on(run(&args))
    });
    match ended {
        Ok(reason) => {
            tracing::info!(reason, "operator ends");
            ExitCode::SUCCESS
        }
        Err(error) => {
            tracing::error!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn run(args: &Args) -> Result<String> {
    let client = client::connect().await?;
    let shared_stores = SharedStore::parse_list(&args.shared_stores)?;
    controller::check_definitions(&client).await?;
    let authority = authority::load(&client, &args.namespace, &args.ca_secret).await?;
    let leaf = authority.issue_to_coordinator(k8s_openapi::jiff::Timestamp::now())?;
    let tls = Tls {
        ca: leaf.authority.clone().into_bytes(),
        certificate: leaf.certificate.clone().into_bytes(),
        key: leaf.key.reveal().as_bytes().to_vec(),
        // A coordinator calls nobody.
        peer_name: String::new(),
    };
    let listener = Listener::start(args.listen, Some(&tls))?;
    tracing::info!(address = %listener.address(), "listening for task managers");
    let settings = Settings {
        coordinator: args.coordinator(),
        task_manager_image: args.task_manager_image.clone(),
        shared_stores,
        seal: authority.seal(),
    };
    let registry = Registry::new();
    webhook::start(args, &client, &settings, &registry).await?;
    let metrics = Metrics::new(&registry)?;
    let elector = Elector::new(client.clone(), &args.namespace, &args.lease, &args.pod_name);
    let ready: http::Ready = Arc::new(|| Ok(()));
    let live = liveness::check(metrics.pulses(), &elector.leadership());
    http::serve_judged(args.metrics_listen, registry.clone(), (live, ready)).await?;

    let (mut terminate, mut interrupt) = (
        signal(SignalKind::terminate())?,
        signal(SignalKind::interrupt())?,
    );
    tracing::info!(lease = args.lease, "waiting to lead");
    tokio::select! {
        () = elector.lead() => {}
        _ = terminate.recv() => return Ok("asked to end".to_owned()),
        _ = interrupt.recv() => return Ok("asked to end".to_owned()),
    }
    tracing::info!("leading");
    credentials::clear(&args.work_dir).context("remove credentials of an earlier process")?;
    metrics.on_leading();
    let fleet = Fleet::new(listener);
    registry.register(Box::new(fleet.metrics()))?;
    let client = client::of_leader(&client, &elector.leadership());
    let context = Context::new(client, settings, args, fleet, authority, metrics);
    let controller = controller::run(Arc::clone(&context), args.namespaces());
    let reason = tokio::select! {
        other = elector.hold() => Ok(format!("{other} leads now")),
        () = controller => Err(anyhow!("the controller ended")),
        () = authority::due(&leaf.certificate) => Ok("its certificate is due: the next start makes another".to_owned()),
        _ = terminate.recv() => Ok("asked to end".to_owned()),
        _ = interrupt.recv() => Ok("asked to end".to_owned()),
    };
    context.fleet.end().await;
    elector.release().await;
    reason
}
