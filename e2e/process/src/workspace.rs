//! A folder with a document, and processes of the binary in it.
//!
//! Owns: the temporary folder, the child processes (none outlives its handle), their output.
//! Never looks into the store beyond asking whether something is there.

use std::fs::File;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::Published;

/// Longest any step may take before the test gives up. Generous: machines are slow and busy.
const STEP_MAX: Duration = Duration::from_secs(90);
/// How often a condition is looked at while waiting for it.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// A folder of its own for one test, with `job.yaml`, `store/` and `out/`.
#[derive(Debug)]
pub struct Workspace {
    folder: TempDir,
    /// Where the store is.
    place: Vec<String>,
}

impl Workspace {
    /// A fresh folder that holds `document` as `job.yaml`.
    pub fn new(document: &str) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder can be made");
        let place = vec!["--store".to_owned(), "store".to_owned()];
        let workspace = Self { folder, place };
        workspace.write("job.yaml", document);
        workspace
    }

    /// The same with these arguments instead of `--store store`.
    pub fn at(self, place: &[&str]) -> Self {
        let place = place.iter().map(|argument| (*argument).to_owned());
        Self {
            folder: self.folder,
            place: place.collect(),
        }
    }

    /// A path inside.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Writes a file inside, with the folders above it.
    pub fn write(&self, name: &str, text: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        let folder = path.parent().expect("a file in the folder has a parent");
        std::fs::create_dir_all(folder).expect("a folder can be made");
        std::fs::write(&path, text).expect("a file can be written");
        path
    }

    /// What is visible in `out/`.
    pub fn published(&self) -> Published {
        Published::read(&self.path("out"))
    }

    /// `streamforge COMMAND job.yaml --store store ARGUMENTS`, not yet started; see [`Self::at`].
    pub fn command(&self, command: &str, arguments: &[&str]) -> Command {
        let mut c = Command::new(binary());
        c.current_dir(self.folder.path())
            .arg(command)
            .arg("job.yaml")
            .args(&self.place)
            .args(arguments)
            .stdin(Stdio::null());
        c
    }

    /// `streamforge ARGUMENTS` in this folder, not yet started.
    pub fn bare(&self, arguments: &[&str]) -> Command {
        let mut c = Command::new(binary());
        c.current_dir(self.folder.path())
            .args(arguments)
            .stdin(Stdio::null());
        c
    }

    /// Starts `run` with `arguments`; its stderr goes to a file that [`Running::wait`] returns.
    pub fn start(&self, arguments: &[&str]) -> Running {
        self.start_named("stderr", arguments)
    }

    /// As [`Self::start`], with a file of this name for stderr: for a second process beside the first.
    pub fn start_named(&self, name: &str, arguments: &[&str]) -> Running {
        let log = self.path(&format!("{name}.log"));
        let file = File::create(&log).expect("the log can be created");
        let child = self
            .command("run", arguments)
            .stdout(Stdio::null())
            .stderr(file)
            .spawn()
            .expect("the binary starts");
        Running { child, log }
    }

    /// Starts a task manager by hand; its stderr goes to a file of its name.
    pub fn start_task_manager(&self, name: &str, coordinator: SocketAddr, slots: u32) -> Running {
        self.start_task_manager_with(name, coordinator, slots, &[])
    }

    /// As [`Self::start_task_manager`], with more variables.
    pub fn start_task_manager_with(
        &self,
        name: &str,
        coordinator: SocketAddr,
        slots: u32,
        variables: &[(&str, &str)],
    ) -> Running {
        let mut command = self.task_manager(name, coordinator, slots);
        command.envs(variables.iter().copied());
        self.start_as(name, command)
    }

    /// A task manager, not yet started; see [`Self::start_as`].
    pub fn task_manager(&self, name: &str, coordinator: SocketAddr, slots: u32) -> Command {
        let mut command = Command::new(binary().with_file_name("streamforge-taskmanager"));
        if self.path("secrets").is_dir() {
            command.args(["--secrets", "secrets"]);
        }
        command
            .current_dir(self.folder.path())
            .args(["--name", name, "--slots", &slots.to_string()])
            .args(["--coordinator", &coordinator.to_string()])
            .stdin(Stdio::null());
        command
    }

    /// Starts a command; its stderr goes to a file of this name, behind what is there already.
    pub fn start_as(&self, name: &str, mut command: Command) -> Running {
        let log = self.path(&format!("{name}.log"));
        let file = File::options().create(true).append(true).open(&log);
        let child = command
            .stdout(Stdio::null())
            .stderr(file.expect("the log can be opened"))
            .spawn()
            .expect("the binary starts");
        Running { child, log }
    }

    /// Runs `run` to its end.
    pub fn run(&self, arguments: &[&str]) -> Ended {
        self.start(arguments).wait()
    }

    /// Runs `verify`, and asserts that it finds no difference.
    pub fn verify(&self) {
        let output = self.output("verify", &[]);
        assert!(output.status.success(), "verify: {}", text_of(&output));
    }

    /// Runs any command that takes a document to its end.
    pub fn output(&self, command: &str, arguments: &[&str]) -> Output {
        self.command(command, arguments)
            .output()
            .expect("the binary starts")
    }
}

/// An address of this machine that nobody listens on just now.
pub fn free_address() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    listener.local_addr().expect("a listener has an address")
}

fn text_of(output: &Output) -> String {
    let (out, err) = (&output.stdout, &output.stderr);
    format!(
        "{}{}",
        String::from_utf8_lossy(out),
        String::from_utf8_lossy(err)
    )
}

/// The binary: `STREAMFORGE_BIN`, else beside the folder of the test's own executable.
fn binary() -> PathBuf {
    if let Some(given) = std::env::var_os("STREAMFORGE_BIN") {
        return PathBuf::from(given);
    }
    let own = std::env::current_exe().expect("a process knows its executable");
    let folder = own
        .parent()
        .and_then(Path::parent)
        .expect("tests are built in deps/");
    let binary = folder.join("streamforge");
    assert!(
        binary.is_file(),
        "{} is missing: make build",
        binary.display()
    );
    binary
}

/// How a process ended.
#[derive(Debug)]
pub struct Ended {
    /// Its exit code; none when a signal ended it.
    pub code: Option<i32>,
    /// What it wrote to stderr.
    pub stderr: String,
}

impl Ended {
    /// Asserts the code, showing stderr otherwise; also that nothing panicked.
    pub fn check_code(&self, code: i32) -> &Self {
        assert!(!self.stderr.contains("panicked at"), "{}", self.stderr);
        assert_eq!(self.code, Some(code), "{}", self.stderr);
        self
    }
}

/// A running job. Dropping it kills it.
#[derive(Debug)]
pub struct Running {
    child: Child,
    log: PathBuf,
}

impl Running {
    /// Waits until `condition` holds; false when the process ended before.
    pub fn wait_until(&mut self, condition: impl Fn() -> bool) -> bool {
        let start = Instant::now();
        loop {
            if condition() {
                return true;
            }
            if self.has_ended() {
                return condition();
            }
            assert!(
                start.elapsed() < STEP_MAX,
                "it never happened: {}",
                self.stderr()
            );
            std::thread::sleep(LOOK_EVERY);
        }
    }

    /// Lets the process run for a while, or until it ends by itself.
    pub fn let_run(&mut self, time: Duration) {
        let start = Instant::now();
        while start.elapsed() < time && !self.has_ended() {
            std::thread::sleep(LOOK_EVERY.min(time));
        }
    }

    /// Whether the process is gone.
    pub fn has_ended(&mut self) -> bool {
        self.child
            .try_wait()
            .expect("a child can be waited for")
            .is_some()
    }

    /// Its number.
    pub fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// Processes that it started and that still run.
    pub fn children(&self) -> Vec<Pid> {
        let pid = self.child.id();
        let threads = std::fs::read_dir(format!("/proc/{pid}/task"));
        let threads = threads.into_iter().flatten().flatten();
        let lists = threads.map(|thread| std::fs::read_to_string(thread.path().join("children")));
        let lists: Vec<String> = lists.filter_map(Result::ok).collect();
        let numbers = lists.iter().flat_map(|list| list.split_whitespace());
        let pids = numbers.filter_map(|number| number.parse().ok());
        pids.filter_map(Pid::from_raw).collect()
    }

    /// What it wrote to stderr so far.
    pub fn log(&self) -> String {
        self.stderr()
    }

    /// Sends a signal.
    pub fn signal(&self, signal: Signal) {
        let sent: io::Result<()> = kill_process(self.pid(), signal).map_err(io::Error::from);
        // A process that has just ended is as good as one that got the signal.
        drop(sent);
    }

    /// SIGKILL, and waits until the process is gone. Whether it was still running.
    pub fn kill(mut self) -> bool {
        let was_running = !self.has_ended();
        self.child.kill().expect("a child can be killed");
        self.child.wait().expect("a child can be waited for");
        was_running
    }

    /// Waits for the end.
    pub fn wait(mut self) -> Ended {
        let ended = self.wait_until(|| false);
        assert!(!ended, "the condition is never true");
        let status = self.child.wait().expect("a child can be waited for");
        Ended {
            code: status.code(),
            stderr: self.stderr(),
        }
    }

    fn stderr(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Gone already in most tests; a failing one must leave nothing behind.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}
