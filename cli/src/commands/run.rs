//! `streamforge run`: one job, here.
//!
//! Owns: the local identity of a job, hosting coordinator and task manager in this process, and showing
//! progress. Decides nothing about the job. Start at: [`run`].

use std::io::IsTerminal as _;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, bail};
use streamforge_core::ids::CheckpointId;
use streamforge_core::job_graph::JobGraph;
use streamforge_core::manifest::HEAD_KEY;
use streamforge_core::messages::TaskManagerId;
use streamforge_crds::v1alpha1::{LogLevel, StreamJobSpec};
use streamforge_host::history::History;
use streamforge_host::{
    JobConfig, JobHandle, MemberPolicy, Outcome as JobOutcome, RestoreFrom, policy,
};
use streamforge_store::ObjectStore;
use streamforge_taskmanager::connectors::print;
use streamforge_taskmanager::manager;
use streamforge_taskmanager::metrics::Metrics;
use streamforge_taskmanager::metrics::store_calls::CountedStore;
use streamforge_taskmanager::terms::Terms;

use crate::args::{ProgressMode, RunArgs};
use crate::changes::changes;
use crate::document::{self, Document};
use crate::exit::{Outcome, printable};
use crate::hosting::Hosting;
use crate::left::say_what_is_left;
use crate::metrics;
use crate::progress::{Meter, log_line, view};
use crate::screen::Screen;
use crate::stopping::Signals;
use crate::store::StorePlace;
use crate::task_managers::Crew;
use crate::unread::Unread;

/// How often the live view is drawn: often enough to look alive, seldom enough to read.
const DRAW_EVERY: Duration = Duration::from_millis(250);

/// How often a line is logged where there is no terminal.
const LINE_EVERY: Duration = Duration::from_secs(3);

/// How long tasks, and then threads, may take to end after the job has: nothing depends on them.
const END_WITHIN: Duration = Duration::from_secs(2);

/// How progress is shown.
#[derive(Clone)]
struct Shown {
    screen: Screen,
    mode: ProgressMode,
    /// The view; else lines.
    live: bool,
}

/// Runs the command.
pub fn run(args: &RunArgs) -> Result<Outcome> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    // First of all: what comes before is ended by a signal as any program is.
    let signals = {
        let _entered = runtime.enter();
        Signals::listen()?
    };
    let more: Vec<String> = args
        .parallelism
        .iter()
        .map(|n| format!("spec.parallelism={n}"))
        .collect();
    let document = document::open(&args.document, &more)?;
    let screen = Screen::default();
    let live = args.progress == ProgressMode::Auto
        && std::io::stderr().is_terminal()
        // A table on the same terminal and a view that moves the cursor do not go together.
        && !(prints(&document) && std::io::stdout().is_terminal());
    let quiet = live || args.progress == ProgressMode::None;
    start_log(&screen, &document.loaded.spec, quiet);
    document::print_notes(&document.loaded.notes);
    let shown = Shown {
        screen,
        mode: args.progress,
        live,
    };
    let outcome = runtime.block_on(run_job(args, &document, &shown, &signals));
    // A thread that hangs in a system call must not keep the process.
    runtime.shutdown_timeout(END_WITHIN);
    outcome
}

/// A document that is not the one that ran is taken as far as it can be.
async fn say_what_changed(
    store: &Arc<dyn ObjectStore>,
    document: &Document,
    graph: &JobGraph,
    rewinds: bool,
) {
    // What cannot be read is the coordinator's to report.
    let Ok(history) = History::load(Arc::clone(store)).await else {
        return;
    };
    let Ok(ran) = history.plan(&history.head.plan).await else {
        return;
    };
    // Another version may make another plan of the same document.
    if ran.graph == *graph || ran.document == document.text {
        return;
    }
    if history.head.finished && !rewinds {
        let name = &document.loaded.name;
        eprintln!(
            "note: the document is not the one that ran, and {name} is finished: it has no effect"
        );
        return;
    }
    for change in changes(&ran.graph, graph) {
        eprintln!("note: {}", printable(&change));
    }
}

/// Whether rows go to stdout.
fn prints(document: &Document) -> bool {
    document
        .loaded
        .spec
        .sinks
        .iter()
        .any(|sink| sink.print.is_some())
}

fn start_log(screen: &Screen, spec: &StreamJobSpec, quiet: bool) {
    use tracing_subscriber::EnvFilter;
    let level = match spec.logging.level {
        LogLevel::Error => "error",
        LogLevel::Warn => "warn",
        // The view shows what is said at this level, and better; `--progress none` asks for less.
        LogLevel::Info if quiet => "warn",
        LogLevel::Info => "info",
        LogLevel::Debug => "debug",
        LogLevel::Trace => "trace",
    };
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(level));
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(screen.clone());
    // A second call in one process (tests) keeps the first log.
    let _already = if crate::task_managers::logs_json(spec) {
        let json = builder.json().flatten_event(true).with_span_list(false);
        json.try_init()
    } else {
        builder.with_target(false).try_init()
    };
}

async fn run_job(
    args: &RunArgs,
    document: &Document,
    shown: &Shown,
    signals: &Signals,
) -> Result<Outcome> {
    let Document { loaded, text, .. } = document;
    let graph = streamforge_plan::plan(loaded);
    let place = StorePlace::of_job(&args.place, &loaded.spec, &loaded.name)?;
    let restore_from = restore_from(args, &loaded.spec, &place).await?;
    let store = place.open(args.fresh).await?;
    // A store that cannot be read is the coordinator's to report.
    let is_new = store.get(HEAD_KEY).await.is_ok_and(|head| head.is_none());
    if args.fresh || is_new {
        say_what_is_left(&graph, args.place.secrets.as_deref(), args.fresh).await;
    }
    if !is_new {
        say_what_changed(&store, document, &graph, args.rewind_to.is_some()).await;
    }
    let unread = Unread::of(&graph);
    let hosting = Hosting::of(args, &loaded.spec, &place, &shown.screen)?;
    let config = JobConfig {
        new_job: None,
        graph: graph.into(),
        document: text.as_str().into(),
        parallelism: loaded.spec.parallelism,
        checkpoint: policy::checkpoints(&loaded.spec),
        restart: policy::restarts(&loaded.spec),
        members: MemberPolicy::default(),
        address: format!("pid {}", std::process::id()),
        rewind_to: args.rewind_to.map(CheckpointId::from_stored),
        restore_from,
        // `upgrade` belongs to a cluster.
        drop_state: false,
    };
    let store = Arc::new(CountedStore::new(store));
    let metrics = Metrics::default();
    metrics.watch_store(store.calls());
    let (handle, tasks) = start(args, config, store, hosting, metrics.clone());
    signals.stop(&handle, &shown.screen, args.stop_timeout.to_std())?;
    if let Some(listen) = args.metrics_listen {
        let address = metrics::serve(listen, &loaded.name, handle.status(), metrics).await?;
        tracing::info!(%address, "metrics");
    }
    let view = tokio::spawn(show(handle.status(), shown.clone(), loaded.name.clone()));
    let status = handle.status();
    let outcome = handle.outcome().await;
    view.abort();
    shown.screen.wipe();
    let ledger = status.borrow().ledger.clone();
    tasks.end().await;
    if !matches!(outcome, JobOutcome::Finished { before: true }) {
        unread
            .lines(&ledger)
            .iter()
            .for_each(|line| eprintln!("{line}"));
    }
    finish(outcome, &loaded.name, &place)
}

/// The savepoint that the job is to begin with. It is opened for reading; whether it is one, the
/// coordinator finds out.
async fn restore_from(
    args: &RunArgs,
    spec: &StreamJobSpec,
    job: &StorePlace,
) -> Result<Option<RestoreFrom>> {
    let given = args.restore_from.as_deref();
    let Some(place) = StorePlace::of_savepoint(given, &args.place, spec)? else {
        return Ok(None);
    };
    if args.fresh && place.is_within(job) {
        bail!(
            "--fresh moves {job} aside, and the savepoint {place} with it; copy the savepoint to another \
             place first, or give the new job another --store"
        );
    }
    let own = super::open_history(job).await;
    if !args.fresh && own.is_ok_and(|own| !own.retained().is_empty()) {
        return Ok(None); // the job has state of its own; the savepoint may be gone by now
    }
    let store = place.open_read_only().await;
    let store = store.with_context(|| {
        format!("open savepoint {place}, which restoreFrom or --restore-from names")
    })?;
    Ok(Some(RestoreFrom {
        place: place.to_string(),
        store,
    }))
}

/// Whoever runs the tasks.
enum Tasks {
    Here(tokio::task::JoinHandle<()>),
    Elsewhere(Option<Crew>),
}

impl Tasks {
    async fn end(self) {
        match self {
            Self::Here(tasks) => drop(tokio::time::timeout(END_WITHIN, tasks).await),
            // They are told that the job is over; who does not hear is ended.
            Self::Elsewhere(crew) => drop(crew),
        }
    }
}

/// Starts coordinator and tasks.
fn start(
    args: &RunArgs,
    config: JobConfig,
    store: Arc<dyn ObjectStore>,
    hosting: Hosting,
    metrics: Metrics,
) -> (JobHandle, Tasks) {
    match hosting {
        Hosting::Here { state_bytes_max } => {
            let (ours, theirs) = streamforge_host::in_process();
            let context = manager::Context {
                local: None,
                me: TaskManagerId::local(),
                store: Arc::clone(&store),
                exchange: None,
                secrets: args.place.secrets.clone(),
                terms: Arc::new(Terms::new(state_bytes_max, args.accept_lost_marker.clone())),
                terminal: None,
                metrics,
                kafka: Default::default(),
                // With the coordinator in this process it is never out of sight.
                sight: Arc::default(),
            };
            let tasks = tokio::spawn(manager::run(context, theirs.commands, theirs.events));
            let handle = streamforge_host::start(config, store, ours);
            (handle, Tasks::Here(tasks))
        }
        Hosting::Elsewhere {
            sessions,
            crew,
            members,
        } => {
            let config = JobConfig {
                members,
                address: sessions.address().to_string(),
                ..config
            };
            let handle = streamforge_host::start(config, store, *sessions);
            (handle, Tasks::Elsewhere(crew))
        }
    }
}

async fn show(
    mut status: tokio::sync::watch::Receiver<streamforge_host::Status>,
    Shown { screen, mode, live }: Shown,
    name: String,
) {
    if mode == ProgressMode::None {
        return;
    }
    let started = Instant::now();
    let mut meter = Meter::default();
    let mut ticks = tokio::time::interval(if live { DRAW_EVERY } else { LINE_EVERY });
    loop {
        ticks.tick().await;
        let status = status.borrow_and_update().clone();
        let now_ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
        let wall = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        let wall_ms = u64::try_from(wall.as_millis()).unwrap_or(u64::MAX);
        let reading = meter.observe(now_ms, wall_ms, &status);
        if live {
            screen.draw(&view(&name, &status, &reading));
        } else if now_ms > 0 && status.phase == streamforge_host::Phase::Running {
            log_line(&reading);
        }
    }
}

fn finish(outcome: JobOutcome, name: &str, store: &StorePlace) -> Result<Outcome> {
    match outcome {
        JobOutcome::Finished { before: false } => {
            eprintln!("{name} is finished: all input is read, all output is published");
            Ok(Outcome::Done)
        }
        JobOutcome::Finished { before: true } => {
            eprintln!(
                "{name} is finished already, nothing was done (store {store}); --fresh runs it again"
            );
            Ok(Outcome::Done)
        }
        JobOutcome::Stopped {
            checkpoint,
            unpublished_n,
            note,
            savepoint_failed,
        } => {
            let place = checkpoint.map_or_else(
                || "before its first row".to_owned(),
                |id| format!("with checkpoint {id}"),
            );
            eprintln!("{name} is stopped {place}; run it again to go on");
            if unpublished_n > 0 {
                eprintln!("{unpublished_n} staged intervals will be published by the next start");
            }
            if let Some(note) = note {
                eprintln!("{note}");
            }
            if let Some(reason) = savepoint_failed {
                eprintln!("it was to stop with a savepoint and did without: {reason}");
            }
            Ok(Outcome::Stopped)
        }
        // Like any program behind a pipe: whoever reads has enough.
        JobOutcome::Failed(_) if print::reader_is_gone() => {
            eprintln!(
                "nobody reads the printed rows any more; run {name} again to go on from its newest \
                 checkpoint"
            );
            Ok(Outcome::Done)
        }
        JobOutcome::Failed(error) => Err(error.into()),
    }
}
