//! Savepoints of running jobs, and jobs that begin with them: while processes are killed, after the
//! original is gone, at another parallelism, with results worked out by hand and by a batch.
#![expect(clippy::unwrap_used, reason = "a test that cannot set up must fail")]

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Child, Output, Stdio};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};
use streamforge_process::{
    Bucket, Published, Random, Running, Workspace, every_window, free_address,
};

/// Every kind of window, and files that are open at a savepoint.
fn savable() -> String {
    let visits = "path: out/visits/";
    let open = format!("{visits}, rollover: {{every: 1h}}");
    every_window(500_000).replace(visits, &open)
}

/// As fast as it goes, which changes no result.
const FAST: [&str; 2] = [
    "--set",
    "spec.sources.clicks.rateLimit.rowsPerSecond=10000000",
];

/// A job on task managers of its own.
struct Job {
    workspace: Workspace,
    address: std::net::SocketAddr,
    coordinator: Running,
    task_managers: Vec<Running>,
    starts_n: usize,
}

impl Job {
    fn start(document: &str, task_managers_n: usize) -> Self {
        Self::start_in(Workspace::new(document), task_managers_n)
    }

    fn start_in(workspace: Workspace, task_managers_n: usize) -> Self {
        let address = free_address();
        let coordinator = coordinator(&workspace, address, 0);
        let mut job = Self {
            workspace,
            address,
            coordinator,
            task_managers: Vec::new(),
            starts_n: 1,
        };
        for n in 0..task_managers_n {
            let task_manager = job.task_manager(n);
            job.task_managers.push(task_manager);
        }
        job
    }

    fn task_manager(&self, n: usize) -> Running {
        let name = format!("tm-{n}");
        self.workspace.start_task_manager(&name, self.address, 1)
    }

    fn kill_task_manager(&mut self, n: usize) {
        self.task_managers.remove(n).kill();
        let again = self.task_manager(n);
        self.task_managers.insert(n, again);
    }

    fn kill_coordinator(&mut self) {
        self.coordinator.signal(Signal::KILL);
        while !self.coordinator.has_ended() {
            self.coordinator.let_run(Duration::from_millis(5));
        }
        self.coordinator = coordinator(&self.workspace, self.address, self.starts_n);
        self.starts_n += 1;
    }

    /// False: the job is over.
    fn wait_for_progress(&mut self) -> bool {
        let files_n = |workspace: &Workspace| Published::read(&workspace.path("out")).files_n();
        let before = files_n(&self.workspace);
        let workspace = &self.workspace;
        self.coordinator.wait_until(|| files_n(workspace) > before)
    }

    /// As [`said`]; a coordinator that was gone before it could be asked is asked when it is back.
    fn said_or_asked_again(&mut self, asked: Child, name: &str) -> (String, String) {
        let mut output = asked.wait_with_output().unwrap();
        for _again in 0..100 {
            let err = String::from_utf8_lossy(&output.stderr).into_owned();
            if output.status.success() || !err.contains("reach the coordinator") {
                break;
            }
            self.coordinator.let_run(Duration::from_millis(50));
            output = self.workspace.output("savepoint", &["--name", name]);
        }
        text_of(output)
    }

    fn begin(&self, command: &str, arguments: &[&str]) -> Child {
        let mut command = self.workspace.command(command, arguments);
        let command = command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().unwrap()
    }
}

fn coordinator(workspace: &Workspace, address: std::net::SocketAddr, n: usize) -> Running {
    let listen = address.to_string();
    let name = format!("coordinator-{n}");
    workspace.start_named(&name, &["--listen", &listen, "--progress", "lines"])
}

/// What a command that succeeded wrote to stdout and stderr.
fn said(child: Child) -> (String, String) {
    text_of(child.wait_with_output().unwrap())
}

fn text_of(output: Output) -> (String, String) {
    let out = String::from_utf8(output.stdout).unwrap();
    let err = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{out}{err}");
    (out, err)
}

/// Copies what a savepoint's folder, or an output folder, holds.
fn copy(from: &Path, to: &Path, wanted: &impl Fn(&str) -> bool) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let (name, to) = (entry.file_name(), to.join(entry.file_name()));
        if entry.path().is_dir() {
            copy(&entry.path(), &to, wanted);
        } else if wanted(name.to_str().unwrap()) {
            std::fs::copy(entry.path(), to).unwrap();
        }
    }
}

/// Attempt and checkpoint in the name of a published file: the last barrier before its rows.
fn written_after(file: &str) -> Option<(u64, u64)> {
    let mut fields = file.strip_prefix("part-")?.split('-').skip(1);
    let mut number = || fields.next()?.parse().ok();
    Some((number()?, number()?))
}

/// What the store says of its savepoints: name, epoch, checkpoint.
fn savepoints(workspace: &Workspace) -> Vec<(String, u64, u64)> {
    let list = ["checkpoints", "list", "--store", "store", "-o", "json"];
    let output = workspace.bare(&list).output().unwrap();
    let list: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
    let savepoint = |it: &Value| {
        let name = it.get("savepoint")?.as_str()?.to_owned();
        Some((name, it["epoch"].as_u64()?, it["id"].as_u64()?))
    };
    list.iter().filter_map(savepoint).collect()
}

/// Copies of the published files only those of rows before the savepoint. False: their names do not
/// tell, because its barrier was the first of its attempt.
fn output_before(out: &Path, to: &Path, (epoch, id): (u64, u64)) -> bool {
    let seen = std::cell::Cell::new(false);
    let before = |file: &str| {
        let Some(after) = written_after(file) else {
            return false;
        };
        let earlier = after.0 < epoch || (after.0 == epoch && after.1 < id);
        seen.set(seen.get() || (earlier && after.0 == epoch));
        earlier
    };
    copy(out, to, &before);
    seen.get()
}

/// `verify` reads what the job itself published: gives the first job's files names of the second's.
/// False: it published too little to show its names.
fn take_over_names(all: &Path, out: &Path) -> bool {
    for folder in std::fs::read_dir(out).unwrap() {
        let folder = folder.unwrap().path();
        let theirs = all.join(folder.file_name().unwrap());
        let files = std::fs::read_dir(&folder).unwrap();
        let names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
        let names: Vec<String> = names.filter(|name| name.starts_with("part-")).collect();
        let is_theirs = |name: &&String| theirs.join(name).exists();
        let (theirs, own): (Vec<&String>, Vec<&String>) = names.iter().partition(is_theirs);
        let Some(own) = own.first() else { return false };
        let prefix: String = own.split_inclusive('-').take(2).collect();
        for name in theirs {
            let renamed = folder.join(format!("{prefix}of-{name}"));
            std::fs::rename(folder.join(name), renamed).unwrap();
        }
    }
    true
}

#[test]
fn savepoints_under_load_and_kills_each_begin_a_job_that_ends_as_a_batch_does_c9() {
    let mut random = Random::from_environment();
    let mut job = Job::start(&savable(), 3);
    let rounds = 6;
    for round in 0..rounds {
        assert!(job.wait_for_progress() && job.wait_for_progress());
        let name = format!("s{round}");
        let asked = job.begin("savepoint", &["--name", &name]);
        job.coordinator
            .let_run(Duration::from_millis(random.below(250)));
        match round % 3 {
            0 => job.kill_task_manager(round % 2),
            1 => job.kill_coordinator(),
            _ => {}
        }
        let (out, err) = job.said_or_asked_again(asked, &name);
        assert_eq!(out, format!("store/savepoints/{name}\n"), "{err}");
    }
    job.coordinator.wait().check_code(0);
    job.workspace.verify();

    let workspace = job.workspace;
    let saved = savepoints(&workspace);
    let names: BTreeSet<String> = saved.iter().map(|it| it.0.clone()).collect();
    assert_eq!(names, (0..rounds).map(|n| format!("s{n}")).collect());
    std::fs::rename(workspace.path("store/savepoints"), workspace.path("backup")).unwrap();
    // Nothing is left of the job itself.
    std::fs::remove_dir_all(workspace.path("store")).unwrap();
    std::fs::rename(workspace.path("out"), workspace.path("all")).unwrap();
    let (mut workspace, mut begun_n) = (workspace, 0);
    for (name, epoch, id) in saved {
        let (all, out) = (workspace.path("all"), workspace.path("out"));
        drop(std::fs::remove_dir_all(&out));
        if !output_before(&all, &out, (epoch, id)) {
            continue;
        }
        let (store, from) = (format!("store-{name}"), format!("backup/{name}"));
        workspace = workspace.at(&["--store", &store]);
        let more = ["--restore-from", &from, "--parallelism", "3"];
        let ended = workspace.run(&[&more[..], &FAST].concat());
        ended.check_code(0);
        assert!(
            ended.stderr.contains("begun from a savepoint"),
            "{}",
            ended.stderr
        );
        if take_over_names(&all, &out) {
            workspace.verify();
            begun_n += 1;
        }
    }
    assert!(begun_n >= 2, "{begun_n} of {rounds}");
}

const WATCHED: &str = r#"
apiVersion: streamforge.io/v1alpha1
kind: StreamJob
metadata: {name: watched}
spec:
  parallelism: 1
  sources:
    - name: clicks
      file: {path: "in/*.ndjson", watch: 100ms}
      format: {json: {}}
      schema: [{name: who, type: TEXT}, {name: v, type: BIGINT}, {name: ts, type: TIMESTAMP}]
      eventTime: {column: ts}
  transforms:
    - name: sums
      from: clicks
      aggregate:
        groupBy: [who]
        window: {tumbling: {size: 10s}}
        select: ["count(*) AS n", "sum(v) AS v"]
    - name: visits
      from: clicks
      aggregate:
        groupBy: [who]
        window: {session: {gap: 5s}}
        select: ["count(*) AS n"]
  sinks:
    - {name: sums_out, from: sums, file: {path: out/sums/}, format: {json: {}}}
    - {name: visits_out, from: visits, file: {path: out/visits/, rollover: {every: 1h}}, format: {json: {}}}
  checkpoint: {interval: 100ms}
"#;

fn click(who: &str, v: u64, second: u64) -> String {
    let ts = format!("2026-01-01T00:00:{second:02}");
    format!("{}\n", json!({"who": who, "v": v, "ts": ts}))
}

fn sum(who: &str, window: (u64, u64), n: u64, v: u64) -> Value {
    json!({"who": who, "window_start": at(window.0), "window_end": at(window.1), "n": n, "v": v})
}

fn visit(who: &str, window: (u64, u64), n: u64) -> Value {
    json!({"who": who, "window_start": at(window.0), "window_end": at(window.1), "n": n})
}

fn at(second: u64) -> String {
    format!("2026-01-01T00:00:{second:02}")
}

/// The rows of a folder, as JSON, in a fixed order.
fn rows(workspace: &Workspace, folder: &str) -> Vec<Value> {
    let rows = Published::read(&workspace.path(folder)).rows();
    sorted(rows.iter().map(|row| serde_json::from_str(row).unwrap()))
}

fn sorted(rows: impl IntoIterator<Item = Value>) -> Vec<Value> {
    let mut rows: Vec<Value> = rows.into_iter().collect();
    rows.sort_by_key(ToString::to_string);
    rows
}

#[test]
fn windows_open_at_a_savepoint_close_in_the_job_that_begins_with_it_and_nothing_comes_again_c9() {
    let mut job = Job::start(WATCHED, 1);
    let first = [("a", 1, 1), ("a", 2, 3), ("b", 5, 4), ("a", 3, 12)];
    let text: String = first.map(|(who, v, ts)| click(who, v, ts)).concat();
    job.workspace.write("aside/1.ndjson", text);
    std::fs::create_dir_all(job.workspace.path("in")).unwrap();
    let written = job.workspace.path("aside/1.ndjson");
    std::fs::rename(written, job.workspace.path("in/1.ndjson")).unwrap();
    let workspace = &job.workspace;
    let fired = || rows(workspace, "out/sums").len() == 2;
    assert!(job.coordinator.wait_until(fired));
    assert!(rows(workspace, "out/visits").is_empty(), "its file is open");

    let (out, err) = said(job.begin("stop", &["--savepoint", "last"]));
    assert_eq!(out, "store/savepoints/last\n", "{err}");
    job.coordinator.wait().check_code(3);
    // By hand: at W = 12 s the windows of the first ten seconds are final, a's second visit is open.
    let workspace = job.workspace;
    let sums = sorted([sum("a", (0, 10), 2, 3), sum("b", (0, 10), 1, 5)]);
    assert_eq!(rows(&workspace, "out/sums"), sums);
    let visits = sorted([visit("a", (1, 8), 2), visit("b", (4, 9), 1)]);
    assert_eq!(rows(&workspace, "out/visits"), visits, "files close (X6)");

    std::fs::rename(
        workspace.path("store/savepoints/last"),
        workspace.path("backup"),
    )
    .unwrap();
    std::fs::remove_dir_all(workspace.path("store")).unwrap();
    std::fs::rename(workspace.path("out"), workspace.path("all")).unwrap();
    let second = [("a", 4, 15), ("b", 1, 21), ("c", 9, 40)];
    let text: String = second.map(|(who, v, ts)| click(who, v, ts)).concat();
    let written = workspace.write("aside/2.ndjson", text);
    let workspace = workspace.at(&["--store", "other"]);
    let from = format!("file://{}", workspace.path("backup").display());
    let setting = format!("spec.restoreFrom.uri={from}");
    let mut running = workspace.start(&["--set", &setting, "--parallelism", "3"]);
    std::fs::rename(written, workspace.path("in/2.ndjson")).unwrap();
    let fired = || rows(&workspace, "out/sums").len() >= 2;
    assert!(running.wait_until(fired), "{}", running.log());
    running.signal(Signal::TERM);
    running.wait().check_code(3);

    // By hand: a's window [10, 20) has one row of before and one of after, and so has a's visit.
    let sums = sorted([sum("a", (10, 20), 2, 7), sum("b", (20, 30), 1, 1)]);
    assert_eq!(rows(&workspace, "out/sums"), sums);
    let visits = sorted([visit("a", (12, 20), 2), visit("b", (21, 26), 1)]);
    assert_eq!(rows(&workspace, "out/visits"), visits);
}

#[test]
fn savepoint_in_a_bucket_begins_a_job_at_another_prefix_and_parallelism_c9() {
    let bucket = Bucket::up();
    let (s3, base) = (bucket.settings(), bucket.folder("savepoint"));
    let storage = format!("200ms, storage: {{uri: \"{base}/store\", s3: {s3}}}}}");
    let workspace = Workspace::new(&savable().replace("200ms}", &storage));
    let workspace = workspace.at(&["--secrets", "secrets"]);
    bucket.hand_keys_to(&workspace);
    let mut job = Job::start_in(workspace, 2);
    assert!(job.wait_for_progress() && job.wait_for_progress());

    let (out, _) = said(job.begin("stop", &["--savepoint", "last"]));
    job.coordinator.wait().check_code(3);
    let place = out.trim_end();
    assert_eq!(place, format!("{base}/store/savepoints/last"));
    let (all, visible) = (job.workspace.path("all"), job.workspace.path("out"));
    copy(&visible, &all, &|_| true);
    let other = format!("{base}/other");
    let at = ["--secrets", "secrets", "--store", &other];
    let workspace = job.workspace.at(&at);
    let more = ["--restore-from", place, "--parallelism", "3"];
    let ended = workspace.run(&[&more[..], &FAST].concat());
    ended.check_code(0);
    assert!(take_over_names(&all, &visible));
    workspace.verify();
}

#[test]
fn savepoint_that_is_damaged_or_does_not_fit_is_refused_and_a_rewind_to_it_works_c7_c9() {
    let mut job = Job::start(&savable(), 2);
    assert!(job.wait_for_progress() && job.wait_for_progress());
    said(job.begin("savepoint", &["--name", "s"]));
    let (_, again) = said(job.begin("savepoint", &["--name", "s"]));
    assert!(again.contains("was there already"), "{again}");
    let refused = job.workspace.output("savepoint", &["--name", "No Name"]);
    assert_eq!(refused.status.code(), Some(1));
    job.coordinator.wait().check_code(0);
    job.workspace.verify();
    let [(_, _, id)] = savepoints(&job.workspace)[..] else {
        panic!("there is one savepoint");
    };

    // The same job, back to it: it runs again to the same end.
    let all = job.workspace.path("all");
    std::fs::rename(job.workspace.path("out"), all).unwrap();
    let back = ["--rewind-to", &id.to_string()];
    let ended = job.workspace.run(&[&back[..], &FAST].concat());
    ended.check_code(0);
    assert!(
        ended.stderr.contains("begun from a savepoint"),
        "{}",
        ended.stderr
    );

    let workspace = job.workspace.at(&["--store", "other"]);
    let fresh = ["--restore-from", "store/savepoints/s"];
    let other_window = [
        "--set",
        "spec.transforms.visits.aggregate.window.session.gap=1s",
    ];
    let ended = workspace.run(&[fresh, other_window].concat());
    ended.check_code(1);
    assert!(
        ended
            .stderr
            .contains("window of aggregate \"visits\" changed"),
        "{}",
        ended.stderr
    );
    let part = std::fs::read_dir(workspace.path("store/savepoints/s/parts"));
    let part = part.unwrap().next().unwrap().unwrap().path();
    let mut bytes = std::fs::read(&part).unwrap();
    let end = bytes.len() - 20;
    bytes[end] ^= 1;
    std::fs::write(&part, bytes).unwrap();
    let ended = workspace.run(&fresh);
    ended.check_code(1);
    let name = part.file_name().unwrap().to_str().unwrap();
    assert!(
        ended.stderr.contains(&format!("parts/{name} is corrupt")),
        "{}",
        ended.stderr
    );
    std::fs::remove_file(workspace.path("store/savepoints/s/savepoint")).unwrap();
    let ended = workspace.run(&fresh);
    ended.check_code(1);
    assert!(ended.stderr.contains("never completed"), "{}", ended.stderr);
    assert!(!workspace.path("other/head").exists(), "nothing was begun");
}
