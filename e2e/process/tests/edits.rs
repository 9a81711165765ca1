//! Documents that were edited between two runs: what a start says of it, and what `verify` can still tell.

use rustix::process::Signal;
use streamforge_process::Workspace;

/// Counts per minute of a watched folder, with what was late or bad beside them.
const WATCHED: &str = r#"
apiVersion: streamforge.io/v1alpha1
kind: StreamJob
metadata: {name: watched}
spec:
  parallelism: 1
  sources:
    - name: rows
      file: {path: "in/*.ndjson", order: ByName, watch: 50ms}
      format: {json: {}}
      schema: [{name: id, type: BIGINT}, {name: ts, type: TIMESTAMP}]
      eventTime: {column: ts, maxOutOfOrderness: 0s}
  transforms:
    - name: counts
      from: rows
      aggregate: {window: {tumbling: {size: 1m}}, select: ["count(*) AS n"]}
  sinks:
    - {name: out, from: counts, file: {path: out/}, format: {json: {}}}
    - {name: all, from: rows, file: {path: all/}, format: {json: {}}}
    - {name: late, from: counts.late, file: {path: late/}, format: {json: {}}}
    - {name: bad, from: rows.bad, file: {path: bad/}, format: {json: {}}}
  checkpoint: {interval: 100ms}
"#;

fn row(id: u32, minute: u32) -> String {
    format!("{{\"id\":{id},\"ts\":\"2026-01-01T00:{minute:02}:00\"}}\n")
}

fn published(workspace: &Workspace, folder: &str) -> Vec<String> {
    streamforge_process::Published::read(&workspace.path(folder)).rows()
}

/// A job that was drained, the second of its files with a row that was late.
fn drained() -> Workspace {
    let workspace = Workspace::new(WATCHED);
    let bad = "{\"id\":7}\nrubbish\n";
    workspace.write(
        "in/b.ndjson",
        [&row(1, 0), &row(2, 1), &row(3, 10), bad].concat(),
    );
    let mut running = workspace.start(&[]);
    assert!(running.wait_until(|| published(&workspace, "out").len() == 2));
    workspace.write("in/a.ndjson", row(4, 2) + &row(5, 11));
    assert!(running.wait_until(|| published(&workspace, "late").len() == 1));
    running.signal(Signal::TERM);
    running.wait().check_code(3);
    workspace.write("job.yaml", WATCHED.replace(", watch: 50ms", ""));
    workspace.run(&[]).check_code(0);
    workspace
}

fn verified(workspace: &Workspace) -> (Option<i32>, String) {
    let output = workspace.output("verify", &[]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    (output.status.code(), text)
}

#[test]
fn late_rows_of_a_drained_watched_folder_are_not_judged_and_all_else_is() {
    let workspace = drained();
    let (code, said) = verified(&workspace);
    assert_eq!(code, Some(4), "{said}");
    assert!(
        said.contains("out: cannot be judged: 1 late row of `counts` depend"),
        "{said}"
    );
    assert!(
        said.ends_with("cannot be judged; all else is equal\n"),
        "{said}"
    );

    // A row too many is none that being late explains, and neither is one that is not behind the aggregate.
    for folder in ["out", "all"] {
        let workspace = drained();
        let files = std::fs::read_dir(workspace.path(folder)).unwrap().flatten();
        let mut files = files.filter(|file| file.path().is_file());
        let file = files.next().unwrap().path();
        let mut text = std::fs::read_to_string(&file).unwrap();
        text += &text.clone();
        std::fs::write(&file, text).unwrap();

        let (code, said) = verified(&workspace);
        assert_eq!(code, Some(1), "{folder}: {said}");
        assert!(said.ends_with("DIFFERENT\n"), "{said}");
    }
}

/// A copy of made rows that is stopped half-way.
fn copy(seed: u32, to: &str) -> String {
    format!(
        "apiVersion: streamforge.io/v1alpha1
kind: StreamJob
metadata: {{name: copy}}
spec:
  sources: [{{name: made, generator: {{clicks: {{rows: 3000, rowsPerSecond: 1500, seed: {seed}}}}}}}]
  sinks: [{{name: out, from: made, {to}}}]
  checkpoint: {{interval: 100ms}}
"
    )
}

#[test]
fn edits_that_mean_less_than_they_seem_are_told_and_files_of_two_layouts_verified() {
    let json = "file: {path: out/}, format: {json: {}}";
    let csv = "file: {path: out/, partitionBy: [page]}, format: {csv: {}}";
    let workspace = Workspace::new(&copy(1, json));
    let mut running = workspace.start(&[]);
    assert!(running.wait_until(|| !workspace.published().rows().is_empty()));
    running.signal(Signal::TERM);
    running.wait().check_code(3);

    workspace.write("job.yaml", copy(1, csv));
    let ended = workspace.run(&[]);
    ended.check_code(0);
    for note in ["writes CSV now", "is partitioned by `page` now"] {
        let is_told = ended.stderr.contains(&format!("note: `out` {note}"));
        assert!(is_told, "{}", ended.stderr);
    }
    let (code, said) = verified(&workspace);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("of another `partitionBy`"), "{said}");

    // What is finished is not done again.
    workspace.write("job.yaml", copy(2, csv));
    let ended = workspace.run(&[]);
    ended.check_code(0);
    assert!(
        ended.stderr.contains("not the one that ran"),
        "{}",
        ended.stderr
    );
}
