//! Task managers in processes of their own, for `streamforge run`.
//!
//! Owns: starting them beside this process, starting them anew when they die, passing their logs on,
//! and ending them with the job. Each has a thread that started it: Linux ends a child when the
//! *thread* that started it is gone, so a SIGKILL of this process takes them along. Start at:
//! [`Crew::start`].

use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use streamforge_crds::v1alpha1::{LogFormat, StreamJobSpec};
use tracing_subscriber::fmt::MakeWriter as _;

use crate::screen::Screen;

/// The binary, beside this one.
const BINARY: &str = "streamforge-taskmanager";

/// How often a child is looked after.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// Pause before a dead one is started anew; doubles up to [`ANEW_MAX`].
const ANEW_INITIAL: Duration = Duration::from_millis(100);

/// Longest pause before a dead one is started anew.
const ANEW_MAX: Duration = Duration::from_secs(5);

/// One that lived so long begins with the shortest pause again.
const LIVED_LONG: Duration = Duration::from_secs(10);

/// How long they may take to end by themselves once the job is over.
const END_WITHIN: Duration = Duration::from_secs(3);

/// What every task manager of a run is told.
#[derive(Clone, Debug)]
pub struct CrewConfig {
    /// Where the coordinator listens.
    pub coordinator: SocketAddr,
    /// How many.
    pub task_managers_n: u32,
    /// Subtasks that each can run.
    pub slots: u32,
    /// Folder of secrets.
    pub secrets: Option<PathBuf>,
    /// Folder with one folder for each's copies of state.
    pub local_copies: Option<PathBuf>,
    /// Whether log lines are JSON objects.
    pub logs_json: bool,
}

/// Whether log lines are JSON objects, here and in the task managers that this process starts.
#[must_use]
pub fn logs_json(spec: &StreamJobSpec) -> bool {
    spec.logging.format == Some(LogFormat::Json)
}

/// Running task managers. Dropping it ends them.
#[derive(Debug)]
pub struct Crew {
    over: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Crew {
    /// Starts them.
    ///
    /// # Errors
    /// When the binary is not there.
    pub fn start(config: &CrewConfig, screen: &Screen) -> Result<Self> {
        let binary = binary()?;
        let over = Arc::new(AtomicBool::new(false));
        let keeper = |n: u32| {
            let keeper = Keeper {
                binary: binary.clone(),
                name: format!("tm-{n}"),
                config: config.clone(),
                screen: screen.clone(),
                over: Arc::clone(&over),
            };
            let thread = std::thread::Builder::new().name(format!("keeper-{n}"));
            thread.spawn(move || keeper.keep())
        };
        let threads = (1..=config.task_managers_n).map(keeper);
        let threads = threads.collect::<std::io::Result<Vec<_>>>();
        Ok(Self {
            threads: threads.context("start a thread")?,
            over,
        })
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // A keeper does not panic; if it did, there is nothing left to end.
            let _ended = thread.join();
        }
    }
}

/// Where the task manager's binary is.
fn binary() -> Result<PathBuf> {
    let own = std::env::current_exe().context("find this program's own file")?;
    let beside = own.with_file_name(BINARY);
    if !beside.is_file() {
        bail!(
            "--task-managers needs {BINARY} beside this program, and {} is not there",
            beside.display()
        );
    }
    Ok(beside)
}

/// Keeps one task manager running.
struct Keeper {
    binary: PathBuf,
    name: String,
    config: CrewConfig,
    screen: Screen,
    over: Arc<AtomicBool>,
}

impl Keeper {
    fn keep(&self) {
        let mut pause = ANEW_INITIAL;
        while !self.is_over() {
            let born = Instant::now();
            match self.start() {
                Ok(child) => self.look_after(child),
                Err(error) => tracing::error!(name = self.name, %error, "task manager not started"),
            }
            if born.elapsed() > LIVED_LONG {
                pause = ANEW_INITIAL;
            }
            let until = Instant::now() + pause;
            while !self.is_over() && Instant::now() < until {
                std::thread::sleep(LOOK_EVERY);
            }
            pause = (pause * 2).min(ANEW_MAX);
        }
    }

    fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    fn start(&self) -> std::io::Result<Child> {
        let mut command = Command::new(&self.binary);
        command
            .args(["--name", &self.name])
            .args(["--coordinator", &self.config.coordinator.to_string()])
            .args(["--slots", &self.config.slots.to_string()])
            .args(["--with-parent", &std::process::id().to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::inherit())
            .stderr(Stdio::piped())
            // Ctrl-C reaches a terminal's whole process group: the stop needs them alive.
            .process_group(0);
        if let Some(secrets) = &self.config.secrets {
            command.arg("--secrets").arg(secrets);
        }
        if self.config.logs_json {
            command.args(["--log-format", "json"]);
        }
        if let Some(folder) = &self.config.local_copies {
            command.arg("--local-copies").arg(folder.join(&self.name));
        }
        command.spawn()
    }

    /// Until it has ended; ends it when the job is over and it does not do so by itself.
    fn look_after(&self, mut child: Child) {
        tracing::debug!(name = self.name, pid = child.id(), "task manager started");
        let logs = child.stderr.take().map(|stderr| {
            let (name, screen) = (self.name.clone(), self.screen.clone());
            std::thread::spawn(move || pass_on(&name, stderr, &screen))
        });
        let mut over_since = None;
        let status = loop {
            match child.try_wait() {
                Ok(Some(status)) => break Some(status),
                Ok(None) => {}
                Err(_) => break None,
            }
            if self.is_over() {
                let since = *over_since.get_or_insert_with(Instant::now);
                if since.elapsed() > END_WITHIN {
                    // It may have ended just now.
                    let _ended = child.kill();
                    break child.wait().ok();
                }
            }
            std::thread::sleep(LOOK_EVERY);
        };
        if let Some(logs) = logs {
            let _ended = logs.join();
        }
        if let Some(status) = status.filter(|_| !self.is_over()) {
            tracing::warn!(name = self.name, %status, "task manager ended, starting it anew");
        }
    }
}

/// Shows each line of a task manager's log, with its name.
fn pass_on(name: &str, stderr: impl std::io::Read, screen: &Screen) {
    let mut lines = BufReader::new(stderr);
    let mut line = Vec::new();
    loop {
        line.clear();
        match lines.read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => return,
            Ok(_) => {
                // A terminal that went away is no reason to stop a job.
                let _gone = screen.make_writer().write_all(&named(name, &line));
            }
        }
    }
}

/// A line of a log with the name of the task manager, in the form that the line has.
fn named(name: &str, line: &[u8]) -> Vec<u8> {
    let (begin, rest) = match line.strip_prefix(b"{") {
        Some(fields) => (format!(r#"{{"taskManager":"{name}","#), fields),
        None => (format!("[{name}] "), line),
    };
    [begin.as_bytes(), rest].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_of_a_log_says_whose_it_is_in_its_own_form() {
        let shown = |line: &str| String::from_utf8(named("tm-1", line.as_bytes())).unwrap();

        assert_eq!(shown("INFO metrics\n"), "[tm-1] INFO metrics\n");
        assert_eq!(
            shown("{\"level\":\"INFO\"}\n"),
            "{\"taskManager\":\"tm-1\",\"level\":\"INFO\"}\n"
        );
    }
}
