//! The only task manager of a job is asked to end, as a pod is that is deleted or drained.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use streamforge_process::{Running, Workspace, free_address};

/// The grace period of a pod, if nothing else is written.
const GRACE: Duration = Duration::from_secs(30);

/// No checkpoint but those that are asked for.
const CLICKS: &str = r#"
apiVersion: streamforge.io/v1alpha1
kind: StreamJob
metadata: {name: clicks}
spec:
  parallelism: 2
  sources:
    - name: clicks
      generator: {clicks: {rows: 200000, users: 500, skew: 1.1, outOfOrderness: 3s, lateFraction: 0.01, badFraction: 0.001, seed: 7}}
      eventTime: {column: ts, maxOutOfOrderness: 3s}
      rateLimit: {rowsPerSecond: 40000}
  transforms:
    - name: per_user
      from: clicks
      aggregate:
        groupBy: [user_id]
        window: {tumbling: {size: 1s}}
        select: ["count(*) AS clicks", "sum(amount) AS spend"]
  sinks:
    - {name: results, from: per_user, file: {path: out/per_user/}, format: {json: {}}}
    - {name: late, from: per_user.late, file: {path: out/late/}, format: {json: {}}}
  checkpoint: {interval: 1h}
"#;

/// The newest checkpoint in the store, as `streamforge checkpoints` lists them.
fn newest(workspace: &Workspace) -> u64 {
    let mut list = workspace.bare(&["checkpoints", "list", "--store", "store", "-o", "json"]);
    let output = list.output().expect("the binary starts");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let list: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
    let ids = list.as_array().into_iter().flatten();
    ids.filter_map(|it| it["id"].as_u64()).max().unwrap_or(0)
}

#[test]
fn only_task_manager_that_is_asked_to_end_takes_a_checkpoint_and_its_successor_goes_on_from_it() {
    let workspace = Workspace::new(CLICKS);
    let address = free_address();
    let mut coordinator = workspace.start(&["--listen", &address.to_string()]);
    let log = workspace.path("stderr.log");
    let read = || std::fs::read_to_string(&log).unwrap_or_default();
    let first: Running = workspace.start_task_manager("tm-1", address, 2);
    assert!(
        coordinator.wait_until(|| read().contains("running")),
        "{}",
        read()
    );
    coordinator.let_run(Duration::from_millis(1_500));
    let begin = newest(&workspace);

    let asked = Instant::now();
    first.signal(Signal::TERM);
    let ended = first.wait();

    ended.check_code(0);
    assert!(asked.elapsed() < GRACE, "after {:?}", asked.elapsed());
    let taken = newest(&workspace);
    assert!(taken > begin, "{}", read());
    assert!(
        read().contains("task manager was let go and left"),
        "{}",
        read()
    );
    // What is visible now comes a second time, if the next one begins anything earlier.
    assert!(
        coordinator.wait_until(|| workspace.published().files_n() > 0),
        "{}",
        read()
    );
    let seen = workspace.published();

    let second = workspace.start_task_manager("tm-1", address, 2);
    coordinator.wait().check_code(0);
    second.wait().check_code(0);
    let log = read();
    assert_eq!(log.matches("task manager lost").count(), 0, "{log}");
    workspace.published().check_keeps(&seen);
    workspace.verify();
}
