//! Commands, options and their help.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;

/// Stateful, exactly-once stream processing from one YAML document.
#[derive(Debug, Parser)]
#[command(
    name = "streamforge",
    version,
    after_help = "Exit codes: 0 done; 1 failed, or verify found a difference; 2 the document or the \
                  command line is wrong; 3 stopped before its end, with a checkpoint;\n\
                  4 verify cannot judge it; 130 aborted.\n\
                  Data goes to stdout, everything else to stderr. RUST_LOG sets what is logged."
)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Find every mistake in a document
    #[command(after_help = "Examples:\n  streamforge validate job.yaml\n  \
                            streamforge validate job.yaml -o json")]
    Validate(ValidateArgs),
    /// Show how a job will run: stages, exchanges, state, delivery
    #[command(after_help = "Examples:\n  streamforge explain job.yaml\n  \
                            streamforge explain job.yaml -o dot | dot -Tsvg > job.svg")]
    Explain(ExplainArgs),
    /// Run a job here; run again to resume it
    #[command(after_help = "Examples:\n  streamforge run job.yaml\n  \
        streamforge run job.yaml --parallelism 4      # resumes at another parallelism\n  \
        streamforge run job.yaml --fresh              # begins anew, the old store is kept aside\n  \
        streamforge run job.yaml --rewind-to 17       # goes back to checkpoint 17\n  \
        streamforge run job.yaml --restore-from /backup/nightly   # a new job begins from a savepoint\n  \
        streamforge run job.yaml --set spec.checkpoint.interval=1s\n\n\
        Ctrl-C stops the job with a checkpoint (exit code 3); a second Ctrl-C aborts it.")]
    Run(RunArgs),
    /// Recompute a finished job's outputs in batch and compare
    #[command(after_help = "Examples:\n  streamforge verify job.yaml\n  \
                            streamforge verify job.yaml -o json")]
    Verify(VerifyArgs),
    /// Show how a running job does
    #[command(after_help = "Examples:\n  streamforge status job.yaml\n  \
                            streamforge status job.yaml -o json")]
    Status(StatusArgs),
    /// Change the number of subtasks of a running job; nothing restarts
    #[command(
        after_help = "The job runs with --task-managers or --listen, and uses as many \
                            subtasks as its task managers have slots for.\n\n\
                            Example:\n  streamforge scale job.yaml --parallelism 4"
    )]
    Scale(ScaleArgs),
    /// Make a savepoint of a running job: a full copy of a checkpoint, which stays
    #[command(
        after_help = "It lies in savepoints/NAME of the job's store, needs nothing outside of that \
                            folder, and is never deleted by the job. Asking again by the same name \
                            is answered with the one that is there.\n\n\
                            Examples:\n  streamforge savepoint job.yaml --name before-upgrade\n  \
        streamforge run other.yaml --restore-from .streamforge/clicks/savepoints/before-upgrade"
    )]
    Savepoint(SavepointArgs),
    /// Stop a running job with a checkpoint
    #[command(after_help = "Examples:\n  streamforge stop job.yaml\n  \
        streamforge stop job.yaml --savepoint before-upgrade")]
    Stop(StopArgs),
    /// Give the subtasks of a task manager to others, so that it can be ended
    #[command(after_help = "Example:\n  streamforge drain job.yaml tm-2")]
    Drain(DrainArgs),
    /// List the checkpoints of a store, or show one
    #[command(after_help = "Examples:\n  \
        streamforge checkpoints list --store .streamforge/clicks\n  \
        streamforge checkpoints show --store .streamforge/clicks        # the newest\n  \
        streamforge checkpoints show 17 --store .streamforge/clicks -o json")]
    Checkpoints(CheckpointsArgs),
    /// Print the custom resource definitions
    #[command(after_help = "Example:\n  streamforge crd | kubectl apply --server-side -f -")]
    Crd,
    /// Print a completion script for a shell
    #[command(after_help = "Example:\n  \
        streamforge completions bash > /etc/bash_completion.d/streamforge")]
    Completions {
        /// Which shell
        shell: Shell,
    },
}

/// The document.
#[derive(Debug, Args)]
pub struct DocumentArgs {
    /// The StreamJob document
    #[arg(value_name = "FILE")]
    pub job: PathBuf,
    /// Replace a value of the document, as in spec.parallelism=4; may be given several times
    #[arg(long, value_name = "PATH=VALUE")]
    pub set: Vec<String>,
}

/// Where checkpoints and secrets are.
#[derive(Debug, Args)]
pub struct PlaceArgs {
    /// The job's store [default: checkpoint.storage, else ./.streamforge/<name>/]
    #[arg(long, value_name = "PATH")]
    pub store: Option<PathBuf>,
    /// Folder with one folder per secret and in it one file per key
    #[arg(long, value_name = "DIR")]
    pub secrets: Option<PathBuf>,
}

/// See [`Command::Validate`].
#[derive(Debug, Args)]
pub struct ValidateArgs {
    /// The document.
    #[command(flatten)]
    pub document: DocumentArgs,
    /// How mistakes are printed: text to stderr, JSON to stdout
    #[arg(short, long, value_enum, default_value_t = TextOrJson::Text)]
    pub output: TextOrJson,
}

/// See [`Command::Explain`].
#[derive(Debug, Args)]
pub struct ExplainArgs {
    /// The document.
    #[command(flatten)]
    pub document: DocumentArgs,
    /// How the plan is printed
    #[arg(short, long, value_enum, default_value_t = ExplainOutput::Text)]
    pub output: ExplainOutput,
}

/// See [`Command::Run`].
#[derive(Debug, Args)]
pub struct RunArgs {
    /// The document.
    #[command(flatten)]
    pub document: DocumentArgs,
    /// Where checkpoints and secrets are.
    #[command(flatten)]
    pub place: PlaceArgs,
    /// Subtasks, instead of spec.parallelism
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=32768))]
    pub parallelism: Option<u32>,
    /// Begin anew; the old store is kept aside
    #[arg(long, conflicts_with = "rewind_to")]
    pub fresh: bool,
    /// Go back to this checkpoint or savepoint; rows published after it are published again
    #[arg(long, value_name = "ID")]
    pub rewind_to: Option<u64>,
    /// Begin with the savepoint in this folder, instead of spec.restoreFrom, if there is no state yet
    #[arg(long, value_name = "PATH", conflicts_with = "rewind_to")]
    pub restore_from: Option<PathBuf>,
    /// Publish this sink's staged rows although its marker in Kafka is lost: rows may come twice
    #[arg(long, value_name = "SINK")]
    pub accept_lost_marker: Vec<String>,
    /// Runs the tasks in so many processes beside this one, instead of in it
    #[arg(long, value_name = "N", conflicts_with = "listen",
          value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub task_managers: Option<u32>,
    /// With --task-managers: folder in which each keeps copies of its state, for a store that is far
    #[arg(long, value_name = "DIR", requires = "task_managers")]
    pub local_copies: Option<PathBuf>,
    /// Waits here for task managers that are started by hand (streamforge-taskmanager)
    #[arg(long, value_name = "ADDR")]
    pub listen: Option<std::net::SocketAddr>,
    /// Certificates for --listen.
    #[command(flatten)]
    pub tls: TlsArgs,
    /// Shows /metrics, /livez and /readyz at this address
    #[arg(long = "metrics", alias = "metrics-listen", value_name = "ADDR")]
    pub metrics_listen: Option<std::net::SocketAddr>,
    /// How long a stop may take until the process ends without its last checkpoint
    #[arg(long, value_name = "DURATION", default_value = "30s")]
    pub stop_timeout: streamforge_core::units::HumanDuration,
    /// How progress is shown
    #[arg(long, value_enum, default_value_t = ProgressMode::Auto)]
    pub progress: ProgressMode,
}

/// Certificates of a listener: with them everything is mutual TLS, and plaintext is refused.
#[derive(Debug, Args)]
pub struct TlsArgs {
    /// With --listen: certificate of the authority that signed those of all task managers
    #[arg(long, value_name = "FILE", requires_all = ["tls_cert", "tls_key", "listen"])]
    pub tls_ca: Option<PathBuf>,
    /// This process's certificate
    #[arg(long, value_name = "FILE", requires = "tls_ca")]
    pub tls_cert: Option<PathBuf>,
    /// Its private key
    #[arg(long, value_name = "FILE", requires = "tls_ca")]
    pub tls_key: Option<PathBuf>,
}

/// See [`Command::Verify`].
#[derive(Debug, Args)]
pub struct VerifyArgs {
    /// The document.
    #[command(flatten)]
    pub document: DocumentArgs,
    /// Where checkpoints and secrets are.
    #[command(flatten)]
    pub place: PlaceArgs,
    /// How the result is printed
    #[arg(short, long, value_enum, default_value_t = TextOrJson::Text)]
    pub output: TextOrJson,
}

/// Which running job.
#[derive(Debug, Args)]
pub struct ControlArgs {
    /// The document.
    #[command(flatten)]
    pub document: DocumentArgs,
    /// Where checkpoints and secrets are.
    #[command(flatten)]
    pub place: PlaceArgs,
    /// Address of the coordinator [default: what the job's store says]
    #[arg(long, value_name = "HOST:PORT")]
    pub coordinator: Option<String>,
    /// Certificate of the authority, when the coordinator speaks mutual TLS
    #[arg(long, value_name = "FILE", requires_all = ["tls_cert", "tls_key"])]
    pub tls_ca: Option<PathBuf>,
    /// This process's certificate
    #[arg(long, value_name = "FILE", requires = "tls_ca")]
    pub tls_cert: Option<PathBuf>,
    /// Its private key
    #[arg(long, value_name = "FILE", requires = "tls_ca")]
    pub tls_key: Option<PathBuf>,
    /// Name that the coordinator's certificate bears
    #[arg(long, value_name = "NAME", default_value = "streamforge")]
    pub tls_peer_name: String,
}

/// See [`Command::Status`].
#[derive(Debug, Args)]
pub struct StatusArgs {
    /// Which job.
    #[command(flatten)]
    pub control: ControlArgs,
    /// How it is printed
    #[arg(short, long, value_enum, default_value_t = TableOrData::Table)]
    pub output: TableOrData,
}

/// See [`Command::Scale`].
#[derive(Debug, Args)]
pub struct ScaleArgs {
    /// Which job.
    #[command(flatten)]
    pub control: ControlArgs,
    /// Subtasks per stage
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=32768))]
    pub parallelism: u32,
}

/// See [`Command::Savepoint`].
#[derive(Debug, Args)]
pub struct SavepointArgs {
    /// Which job.
    #[command(flatten)]
    pub control: ControlArgs,
    /// What it is called: a-z, 0-9 and - [default: the time, as in 20260131-235959]
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
}

/// See [`Command::Stop`].
#[derive(Debug, Args)]
pub struct StopArgs {
    /// Which job.
    #[command(flatten)]
    pub control: ControlArgs,
    /// Make a savepoint of this name at the place where it stops
    #[arg(long, value_name = "NAME")]
    pub savepoint: Option<String>,
}

/// See [`Command::Drain`].
#[derive(Debug, Args)]
pub struct DrainArgs {
    /// Which job.
    #[command(flatten)]
    pub control: ControlArgs,
    /// Name of the task manager
    #[arg(value_name = "NAME")]
    pub task_manager: String,
}

/// See [`Command::Checkpoints`].
#[derive(Debug, Args)]
pub struct CheckpointsArgs {
    /// What to show [default: list]
    #[command(subcommand)]
    pub what: Option<CheckpointsCommand>,
    /// The job's store, as in .streamforge/<name>
    #[arg(long, value_name = "PATH", global = true)]
    pub store: Option<PathBuf>,
    /// How it is printed
    #[arg(short, long, value_enum, default_value_t = TableOrData::Table, global = true)]
    pub output: TableOrData,
}

/// What to show of a store.
#[derive(Debug, Subcommand)]
pub enum CheckpointsCommand {
    /// All checkpoints that are kept
    List,
    /// One of them: positions, state, staged output and ledger
    Show {
        /// Its id [default: the newest]
        id: Option<u64>,
    },
}

/// How something is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum TextOrJson {
    /// For people.
    Text,
    /// For programs.
    Json,
}

/// How a plan is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ExplainOutput {
    /// For people.
    Text,
    /// For programs.
    Json,
    /// For Graphviz.
    Dot,
}

/// How checkpoints are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum TableOrData {
    /// For people.
    Table,
    /// For programs.
    Json,
}

/// How progress is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ProgressMode {
    /// A live view on a terminal, lines elsewhere.
    Auto,
    /// A line every few seconds.
    Lines,
    /// Nothing but warnings and the end.
    None,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn arguments_are_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn metrics_are_asked_for_by_their_name_and_by_the_one_they_had() {
        for name in ["--metrics", "--metrics-listen"] {
            let given = ["streamforge", "run", "job.yaml", name, "127.0.0.1:9090"];

            let Command::Run(args) = Cli::try_parse_from(given).unwrap().command else {
                panic!("run");
            };

            assert_eq!(args.metrics_listen.unwrap().port(), 9090);
        }
    }
}
