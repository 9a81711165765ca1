//! A sink is edited after a crash, while files of its `rollover` are open: what is committed is seen, or the
//! edit is refused.

use rustix::process::Signal;
use streamforge_process::{Published, Workspace};

const ROWS: usize = 200_000;

const JOB: &str = r#"
apiVersion: streamforge.io/v1alpha1
kind: StreamJob
metadata: {name: clicks}
spec:
  parallelism: 2
  sources:
    - name: clicks
      generator: {clicks: {rows: 200000, users: 100, outOfOrderness: 1s, seed: 3}}
      eventTime: {column: ts, maxOutOfOrderness: 1s}
      rateLimit: {rowsPerSecond: 40000}
  sinks:
    - {name: raw, from: clicks, file: {path: out/, rollover: {every: 1h}}, format: {json: {}}}
  checkpoint: {interval: 100ms}
"#;

/// Files with committed rows that nobody sees.
fn held_n(workspace: &Workspace, folder: &str) -> usize {
    let held = workspace.path(folder).join("_streamforge/held");
    std::fs::read_dir(held).map_or(0, Iterator::count)
}

/// Starts the job and kills it once rows are held back in the folder.
fn kill_while_held(workspace: &Workspace, folder: &str) {
    let mut running = workspace.start(&[]);
    assert!(running.wait_until(|| held_n(workspace, folder) > 1));
    running.kill();
}

fn check_refused(workspace: &Workspace, edited: &str, what: &str) {
    workspace.write("job.yaml", edited);
    let ended = workspace.run(&[]);
    ended.check_code(1);
    let said = &ended.stderr;
    assert!(said.contains(what), "{what}\n{said}");
    let way_out = "put it back for one start, stop the job, then change it";
    assert!(said.contains(way_out), "{said}");
}

#[test]
fn committed_rows_that_are_held_back_are_never_left_behind_by_an_edit_x6() {
    let workspace = Workspace::new(JOB);
    kill_while_held(&workspace, "out");

    let moved = JOB.replace("path: out/", "path: out2/");
    let would = "the sink with uid \"raw\" would publish to folder \"out2\"";
    check_refused(&workspace, &moved, would);
    let renamed = JOB.replace("name: raw", "name: other");
    check_refused(&workspace, &renamed, "the sink with uid \"raw\" is gone");
    let file = "file: {path: out/, rollover: {every: 1h}}, format: {json: {}}";
    let nowhere = JOB.replace(file, "blackhole: {}");
    let would = "the sink with uid \"raw\" would no longer publish";
    check_refused(&workspace, &nowhere, would);

    // As it is told: put back, stopped, changed. And killed again, and put back once more.
    workspace.write("job.yaml", JOB);
    let mut running = workspace.start(&[]);
    // A stop before the first row would be none: it takes no checkpoint.
    let goes_on = || workspace.published().files_n() > 1 && held_n(&workspace, "out") > 1;
    assert!(running.wait_until(goes_on));
    running.signal(Signal::TERM);
    running.wait().check_code(3);
    workspace.write("job.yaml", &moved);
    kill_while_held(&workspace, "out2");
    let would = "the sink with uid \"raw\" would publish to folder \"out\"";
    check_refused(&workspace, JOB, would);

    // Without `rollover` the next start has nothing to hold back, and completes what is.
    let whole = moved.replace(", rollover: {every: 1h}", "");
    workspace.write("job.yaml", &whole);
    let at_once = ["--set", "spec.sources[0].rateLimit.rowsPerSecond=100000000"];
    workspace.run(&at_once).check_code(0);

    let [out, out2] = ["out", "out2"].map(|folder| Published::read(&workspace.path(folder)));
    assert_eq!(out.rows().len() + out2.rows().len(), ROWS);
    assert_eq!(held_n(&workspace, "out") + held_n(&workspace, "out2"), 0);
}
