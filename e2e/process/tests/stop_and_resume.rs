//! Signals that ask for an end, and what the next start does.

use std::io::{BufRead as _, BufReader};
use std::process::Stdio;
use std::time::Duration;

use rustix::process::Signal;
use streamforge_process::{Published, Running, Workspace};

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
      rateLimit: {rowsPerSecond: 100000}
  transforms:
    - name: per_user
      from: clicks
      aggregate:
        groupBy: [user_id]
        window: {tumbling: {size: 1s}}
        select: ["count(*) AS clicks"]
  sinks:
    - {name: results, from: per_user, file: {path: out/}, format: {json: {}}}
  checkpoint: {interval: 100ms}
"#;

/// As fast as it can.
fn unlimited() -> String {
    JOB.replace("      rateLimit: {rowsPerSecond: 100000}\n", "")
}

/// Never ends by itself: no `rows`.
fn endless() -> String {
    JOB.replace("rows: 200000, ", "")
}

/// Starts the job and waits until it has published something.
fn start_until_published(workspace: &Workspace) -> Running {
    let mut running = workspace.start(&[]);
    assert!(running.wait_until(|| workspace.published().files_n() > 0));
    running
}

fn events_published(workspace: &Workspace) -> u64 {
    let rows = workspace.published().rows();
    let clicks = |row: &String| {
        let row: serde_json::Value = serde_json::from_str(row).expect("published rows are JSON");
        row["clicks"].as_u64().expect("clicks is a count")
    };
    rows.iter().map(clicks).sum()
}

#[test]
fn sigterm_stops_with_a_checkpoint_and_exit_code_3() {
    for signal in [Signal::TERM, Signal::INT] {
        let workspace = Workspace::new(&endless());
        let running = start_until_published(&workspace);

        running.signal(signal);
        let ended = running.wait();

        ended.check_code(3);
    }
}

#[test]
fn stopped_job_fires_no_open_window_and_its_resumption_ends_right_c11() {
    let workspace = Workspace::new(JOB);
    let running = start_until_published(&workspace);

    running.signal(Signal::TERM);
    running.wait().check_code(3);
    let at_stop = workspace.published();
    let counted_at_stop = events_published(&workspace);
    workspace.run(&["--parallelism", "3"]).check_code(0);

    // Firing at the stop would have published all of it, and again the rest of each open window.
    assert!(counted_at_stop < 200_000, "{counted_at_stop}");
    assert_eq!(events_published(&workspace), 200_000);
    workspace.published().check_keeps(&at_stop);
    workspace.verify();
}

#[test]
fn second_signal_aborts_with_exit_code_130_and_the_job_can_be_resumed() {
    let workspace = Workspace::new(JOB);
    let mut running = start_until_published(&workspace);

    // Signals close together are one wish, so it is repeated until somebody listens.
    running.signal(Signal::TERM);
    while !running.has_ended() {
        running.signal(Signal::INT);
        running.let_run(Duration::from_millis(100));
    }
    let code = running.wait().code;
    workspace.run(&[]).check_code(0);

    // The stop may have been quicker than the second signal.
    assert!(code == Some(130) || code == Some(3), "{code:?}");
    assert_eq!(events_published(&workspace), 200_000);
    workspace.verify();
}

#[test]
fn finished_job_run_again_does_nothing_and_says_so() {
    let workspace = Workspace::new(&unlimited());
    workspace.run(&[]).check_code(0);
    let first = workspace.published();

    let again = workspace.run(&["--parallelism", "4"]);

    again.check_code(0);
    assert!(
        again.stderr.to_lowercase().contains("finished"),
        "{}",
        again.stderr
    );
    let second = workspace.published();
    second.check_keeps(&first);
    assert_eq!(second.files_n(), first.files_n());
}

#[test]
fn store_in_use_by_a_live_process_is_refused_and_the_live_one_goes_on() {
    let workspace = Workspace::new(JOB);
    let first = start_until_published(&workspace);
    let log = workspace.path("second.log");

    let second = workspace
        .command("run", &[])
        .stderr(std::fs::File::create(&log).unwrap())
        .status()
        .unwrap();
    first.wait().check_code(0);

    let said = std::fs::read_to_string(log).unwrap();
    assert_eq!(second.code(), Some(1), "{said}");
    assert!(said.contains("use") && !said.contains("panicked"), "{said}");
    assert_eq!(events_published(&workspace), 200_000);
    workspace.verify();
}

#[test]
fn store_of_another_job_is_refused() {
    let workspace = Workspace::new(&unlimited());
    workspace.run(&[]).check_code(0);
    workspace.write("job.yaml", JOB.replace("{name: clicks}", "{name: visits}"));

    let ended = workspace.run(&[]);

    assert_ne!(ended.code, Some(0), "{}", ended.stderr);
    assert!(
        ended.stderr.contains("clicks"),
        "names the other job: {}",
        ended.stderr
    );
}

#[test]
fn fresh_start_keeps_the_old_store_aside_and_begins_anew() {
    let workspace = Workspace::new(&unlimited());
    workspace.run(&[]).check_code(0);
    let first = workspace.published();

    let ended = workspace.run(&["--fresh"]);

    ended.check_code(0);
    let left = format!("out/ holds {} file", first.files_n());
    assert!(ended.stderr.contains(&left), "{}", ended.stderr);
    let beside = std::fs::read_dir(workspace.path("")).unwrap();
    let stores = beside.filter(|e| {
        e.as_ref()
            .unwrap()
            .file_name()
            .to_string_lossy()
            .starts_with("store")
    });
    assert_eq!(stores.count(), 2, "the old one and the new one");
    let second = workspace.published();
    second.check_keeps(&first);
    assert_eq!(
        second.rows().len(),
        2 * first.rows().len(),
        "asked for by name: it publishes again"
    );
}

#[test]
fn max_parallelism_that_changes_while_state_exists_is_refused() {
    let workspace = Workspace::new(JOB);
    let running = start_until_published(&workspace);
    running.signal(Signal::TERM);
    running.wait().check_code(3);

    let ended = workspace.run(&["--set", "spec.maxParallelism=64"]);

    ended.check_code(1);
    assert!(ended.stderr.contains("maxParallelism"), "{}", ended.stderr);
}

#[test]
fn print_into_a_pipe_that_nobody_reads_any_more_ends_quietly() {
    let sink = "{name: results, from: per_user, file: {path: out/}, format: {json: {}}}";
    assert!(JOB.contains(sink));
    let workspace =
        Workspace::new(&endless().replace(sink, "{name: out, from: clicks, print: {}}"));
    let mut child = workspace
        .command("run", &[])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let first = lines.next().unwrap().unwrap();
    assert!(first.starts_with("{\"user_id\":"), "{first}");

    drop(lines);

    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert!(
        !said.contains("Broken pipe") && !said.contains("error:"),
        "{said}"
    );
    assert!(said.contains("run clicks again to go on"), "{said}");
}

/// X3: what the stop published is recorded, so nothing of the sink is left to do.
#[test]
fn sink_may_be_removed_after_a_stop_x3() {
    let raw =
        "    - {name: raw, from: clicks, file: {path: raw/}, format: {json: {}}}\n  checkpoint:";
    let job = JOB.replace("  checkpoint:", raw).replace("100ms", "600ms");
    let workspace = Workspace::new(&job);
    let mut running = start_until_published(&workspace);
    // A batch or two lie behind the last barrier.
    running.let_run(Duration::from_millis(300));
    running.signal(Signal::TERM);
    running.wait().check_code(3);

    workspace.write("job.yaml", JOB);
    workspace.run(&[]).check_code(0);

    assert_eq!(events_published(&workspace), 200_000);
    workspace.verify();
}

/// C10: no manifest knows a source that the document has gained. It is listed, and read from its begin.
#[test]
fn source_added_after_a_stop_is_read_whole_c10() {
    let workspace = Workspace::new(JOB);
    let running = start_until_published(&workspace);
    running.signal(Signal::TERM);
    running.wait().check_code(3);
    let at_stop = workspace.published();
    let row = |n: u32| format!("{{\"n\":{n}}}\n");
    workspace.write("more/a.ndjson", (0..600).map(row).collect::<String>());
    workspace.write("more/b.ndjson", (600..1_000).map(row).collect::<String>());
    let source = "  sources:
    - name: more
      file: {path: \"more/*.ndjson\"}
      format: {json: {}}
      schema: [{name: n, type: BIGINT}]
";
    let sink = "  sinks:
    - {name: numbers, from: more, file: {path: numbers/}, format: {json: {}}}
";
    let more = JOB.replace("  sources:\n", source);
    workspace.write("job.yaml", more.replace("  sinks:\n", sink));

    workspace.run(&[]).check_code(0);

    let numbers = Published::read(&workspace.path("numbers"));
    assert_eq!(numbers.rows().len(), 1_000);
    assert_eq!(events_published(&workspace), 200_000);
    workspace.published().check_keeps(&at_stop);
    workspace.verify();
}
