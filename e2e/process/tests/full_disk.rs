//! The disk of one of several task managers is full: what that costs, what is said, and that nothing is lost.
//!
//! A limit on the size of this process's files instead of a full disk, which would need root: the same failing
//! writes, of one process of several, and it can be lifted.

use std::net::SocketAddr;

use rustix::process::{Resource, Rlimit, prlimit};
use streamforge_process::{Bucket, Running, Workspace, free_address};

/// State and sink write into folders. `WINDOW` is how long a window is.
const CLICKS: &str = r#"
apiVersion: streamforge.io/v1alpha1
kind: StreamJob
metadata: {name: clicks}
spec:
  parallelism: 3
  sources:
    - name: clicks
      generator: {clicks: {rows: 400000, users: 5000, skew: 1.1, outOfOrderness: 3s, badFraction: 0.001, seed: 7}}
      eventTime: {column: ts, maxOutOfOrderness: 3s}
      rateLimit: {rowsPerSecond: 60000}
  transforms:
    - name: per_user
      from: clicks
      aggregate:
        groupBy: [user_id]
        window: {tumbling: {size: WINDOW}}
        select: ["count(*) AS clicks", "sum(amount) AS spend"]
  sinks:
    - {name: results, from: per_user, file: {path: out/per_user/}, format: {json: {}}}
    - {name: bad, from: clicks.bad, file: {path: out/bad/}, format: {json: {}}}
  checkpoint: {interval: 100ms}
"#;

/// Less than any part of state has, or the file of a sink; more than a log before the disk is full.
const ROOM: u64 = 2_048;

/// A folder of its own for each.
const COPIES: [&str; 2] = ["--local-copies", "local/NAME"];

/// Which of them has the disk.
const FULL: usize = 1;

/// From now on this process writes no file beyond so many bytes; none: as large as it likes.
fn limit(process: &Running, bytes: Option<u64>) {
    let limit = Rlimit {
        current: bytes,
        maximum: None,
    };
    prlimit(Some(process.pid()), Resource::Fsize, limit)
        .expect("it runs, and the system knows the limit");
}

/// A job that runs on three task managers, each of which it needs.
struct Job {
    workspace: Workspace,
    address: SocketAddr,
    coordinator: Running,
    task_managers: Vec<Running>,
}

impl Job {
    /// `more` are arguments of each task manager, `NAME` in them is its name.
    fn start(workspace: Workspace, more: &[&str]) -> Self {
        let address = free_address();
        let listen = address.to_string();
        let arguments = [
            "--listen",
            &listen,
            "--parallelism",
            "3",
            "--progress",
            "lines",
        ];
        let coordinator = workspace.start(&arguments);
        let start = |n: usize| start(&workspace, n, address, more);
        let task_managers = (0..3).map(start).collect();
        Self {
            workspace,
            address,
            coordinator,
            task_managers,
        }
    }

    /// How often the coordinator has said this.
    fn said_n(&self, what: &str) -> usize {
        self.coordinator.log().matches(what).count()
    }

    /// Waits until it has said this so often.
    fn wait_for(&mut self, what: &str, times_n: usize) {
        let log = self.workspace.path("stderr.log");
        let read = || std::fs::read_to_string(&log).unwrap_or_default();
        let said = || read().matches(what).count() >= times_n;
        assert!(self.coordinator.wait_until(said), "{}", read());
    }

    /// Its end, as finished, with the result of a batch. What the coordinator said.
    fn finish(self) -> String {
        let ended = self.coordinator.wait();
        ended.check_code(0);
        for task_manager in self.task_managers {
            task_manager.wait().check_code(0);
        }
        self.workspace.verify();
        ended.stderr
    }
}

fn start(workspace: &Workspace, n: usize, address: SocketAddr, more: &[&str]) -> Running {
    let name = format!("tm-{n}");
    let mut command = workspace.task_manager(&name, address, 1);
    command.args(more.iter().map(|argument| argument.replace("NAME", &name)));
    workspace.start_as(&name, command)
}

/// Until then only state is written.
fn publishes_in_the_end() -> String {
    let lines = CLICKS.lines().filter(|line| !line.contains("{name: bad,"));
    let document: Vec<&str> = lines.collect();
    document.join("\n").replace("WINDOW", "365d")
}

#[test]
fn full_disk_under_one_task_managers_state_fails_checkpoints_and_no_attempt() {
    let mut job = Job::start(Workspace::new(&publishes_in_the_end()), &[]);
    job.wait_for("checkpoint completed", 3);

    limit(&job.task_managers[FULL], Some(ROOM));
    job.wait_for("checkpoint failed", 3);
    limit(&job.task_managers[FULL], None);
    let completed_n = job.said_n("checkpoint completed");
    job.wait_for("checkpoint completed", completed_n + 2);

    let log = job.finish();
    let failed = log
        .lines()
        .filter(|line| line.contains("checkpoint failed"));
    for line in failed {
        let why = [
            "declined it: write `parts/",
            "the disk is full: File too large",
        ];
        assert!(why.iter().all(|why| line.contains(why)), "{line}");
    }
    assert!(!log.contains("attempt failed"), "{log}");
}

#[test]
fn full_disk_under_one_task_managers_sink_ends_the_job_and_the_next_run_is_exact() {
    let workspace = Workspace::new(&CLICKS.replace("WINDOW", "1s"));
    let mut job = Job::start(workspace, &[]);
    job.wait_for("checkpoint completed", 3);

    limit(&job.task_managers[FULL], Some(ROOM));

    let ended = job.coordinator.wait();
    let said = &ended.check_code(1).stderr;
    let (_, last) = said.rsplit_once("error: ").expect("it says why it ended");
    assert!(
        last.contains(": write out/") && last.contains("File too large"),
        "{last}"
    );
    for task_manager in job.task_managers {
        // The others are told.
        task_manager.wait().check_code(0);
    }
    job.workspace.published().check_whole();

    let again = job
        .workspace
        .run(&["--task-managers", "2", "--parallelism", "2"]);
    again.check_code(0);
    job.workspace.verify();
}

/// With a store that is far, a task manager writes copies on its own disk, and what it publishes.
#[test]
fn full_disk_under_one_task_managers_local_copies_costs_the_copies_and_no_checkpoint() {
    let bucket = Bucket::up();
    let (folder, s3) = (bucket.folder("full-disk"), bucket.settings());
    let document = publishes_in_the_end().replace(
        "{interval: 100ms}",
        &format!("{{interval: 100ms, storage: {{uri: \"{folder}/store\", s3: {s3}}}}}"),
    );
    let workspace = Workspace::new(&document).at(&["--secrets", "secrets"]);
    bucket.hand_keys_to(&workspace);
    let mut job = Job::start(workspace, &COPIES);
    limit(&job.task_managers[FULL], Some(ROOM));
    let log = job.workspace.path(&format!("tm-{FULL}.log"));
    let read = || std::fs::read_to_string(&log).unwrap_or_default();
    let told_n = || read().matches("no local copy of `parts/").count();
    assert!(job.coordinator.wait_until(|| told_n() > 0));
    job.wait_for("checkpoint completed", 3);
    // The first attempt had nothing to restore.
    let is_restored = |line: &&str| line.contains(": 0 bytes of state from local copies, ");
    let is_asked = |line: &str| !line.contains(" copies, 0 from the store");
    let asked = || read().lines().filter(is_restored).any(is_asked);
    assert!(!asked(), "{}", read());

    // The next attempt restores from what each has: this one has to ask the store.
    assert!(job.task_managers.remove(2).kill());
    let next = start(&job.workspace, 3, job.address, &COPIES);
    job.task_managers.push(next);
    assert!(job.coordinator.wait_until(asked), "{}", read());
    let completed_n = job.said_n("checkpoint completed");
    job.wait_for("checkpoint completed", completed_n + 2);
    limit(&job.task_managers[FULL], None);

    // The log goes with the job's folder.
    let (full, told_n) = (read(), told_n());
    let said = job.finish();
    assert_eq!(told_n, 1, "told once: {full}");
    assert!(
        full.contains("File too large") && full.contains("; the store has it"),
        "{full}"
    );
    assert!(!said.contains("File too large"), "{said}");
}
