//! Input files that are not what they were at the checkpoint: named, never guessed at.

use rustix::process::Signal;
use streamforge_process::{Published, Workspace};

const JOB: &str = r#"
apiVersion: streamforge.io/v1alpha1
kind: StreamJob
metadata: {name: copy}
spec:
  parallelism: 1
  sources:
    - name: lines
      file: {path: "in/*.ndjson", order: ByName}
      format: {json: {}}
      schema: [{name: id, type: BIGINT, nullable: false}]
      rateLimit: {rowsPerSecond: 20000}
  sinks:
    - {name: out, from: lines, file: {path: out/}, format: {json: {}}}
  checkpoint: {interval: 100ms}
"#;

const ROWS: usize = 60_000;

/// A job stopped somewhere inside its second file.
fn stopped_inside_a_file() -> Workspace {
    let workspace = Workspace::new(JOB);
    let row = |n: usize| format!("{{\"id\":{n}}}\n");
    workspace.write("in/a.ndjson", (0..10_000).map(row).collect::<String>());
    workspace.write("in/b.ndjson", (10_000..ROWS).map(row).collect::<String>());
    let mut running = workspace.start(&[]);
    assert!(running.wait_until(|| workspace.published().rows().len() > 12_000));
    running.signal(Signal::TERM);
    running.wait().check_code(3);
    assert!(workspace.published().rows().len() < ROWS);
    workspace
}

fn check_named(workspace: &Workspace, file: &str) {
    let before = workspace.published();

    let ended = workspace.run(&[]);

    ended.check_code(1);
    assert!(
        ended.stderr.contains(file),
        "{file} is not named: {}",
        ended.stderr
    );
    let after = workspace.published();
    after.check_keeps(&before);
    assert_eq!(
        after.files_n(),
        before.files_n(),
        "no row came after the error"
    );
}

#[test]
fn file_that_shrank_since_the_checkpoint_is_named() {
    let workspace = stopped_inside_a_file();
    let text = std::fs::read_to_string(workspace.path("in/b.ndjson")).unwrap();
    workspace.write("in/b.ndjson", &text[..text.len() / 100]);

    check_named(&workspace, "b.ndjson");
}

#[test]
fn file_that_is_gone_is_named() {
    let workspace = stopped_inside_a_file();
    std::fs::remove_file(workspace.path("in/b.ndjson")).unwrap();

    check_named(&workspace, "b.ndjson");
}

#[test]
fn file_with_other_bytes_of_the_same_length_is_named() {
    let workspace = stopped_inside_a_file();
    let text = std::fs::read_to_string(workspace.path("in/b.ndjson")).unwrap();
    // Replaced as a whole, as an export that runs again would.
    std::fs::remove_file(workspace.path("in/b.ndjson")).unwrap();
    workspace.write("in/b.ndjson", text.replace("\"id\":1", "\"id\":7"));

    check_named(&workspace, "b.ndjson");
}

#[test]
fn file_that_came_after_the_first_start_is_not_read() {
    let workspace = stopped_inside_a_file();
    workspace.write("in/c.ndjson", "{\"id\":-1}\n");

    let ended = workspace.run(&["--parallelism", "2"]);

    ended.check_code(0);
    let told = ended.stderr.contains("c.ndjson") && ended.stderr.contains("are not read");
    assert!(told, "{}", ended.stderr);
    let rows = workspace.published().rows();
    assert_eq!(rows.len(), ROWS);
    assert!(!rows.contains(&"{\"id\":-1}".to_owned()));
}

#[test]
fn file_that_was_only_touched_is_read_on() {
    let workspace = stopped_inside_a_file();
    let text = std::fs::read_to_string(workspace.path("in/b.ndjson")).unwrap();
    // The same bytes once more, as a copy back from a backup would leave them.
    workspace.write("in/b.ndjson", &text);

    workspace.run(&["--parallelism", "2"]).check_code(0);

    assert_eq!(workspace.published().rows().len(), ROWS);
    workspace.verify();
}

#[test]
fn file_that_changed_in_the_middle_of_what_was_read_is_named() {
    let workspace = stopped_inside_a_file();
    let text = std::fs::read_to_string(workspace.path("in/b.ndjson")).unwrap();
    workspace.write(
        "in/b.ndjson",
        text.replace("{\"id\":11000}", "{\"id\":11999}"),
    );

    check_named(&workspace, "b.ndjson");
}

#[test]
fn verify_names_the_file_that_changed_since_the_job_read_it() {
    let workspace = Workspace::new(JOB);
    workspace.write("in/a.ndjson", "{\"id\":1}\n");
    workspace.write("in/b.ndjson", "{\"id\":2}\n");
    workspace.run(&[]).check_code(0);
    workspace.write("in/b.ndjson", "{\"id\":3}\n");

    let output = workspace.output("verify", &[]);

    assert_eq!(output.status.code(), Some(4));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("it cannot be judged"), "{said}");
    assert!(
        said.contains("b.ndjson changed") && !said.contains("a.ndjson"),
        "{said}"
    );

    std::fs::remove_file(workspace.path("in/b.ndjson")).unwrap();
    let output = workspace.output("verify", &[]);
    assert_eq!(output.status.code(), Some(4));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("b.ndjson vanished"), "{said}");
}

#[test]
fn verify_cannot_judge_a_source_that_the_job_did_not_have() {
    let workspace = Workspace::new(JOB);
    workspace.write("in/a.ndjson", "{\"id\":1}\n");
    workspace.run(&[]).check_code(0);
    workspace.write("more/a.ndjson", "{\"id\":1}\n");
    workspace.write("job.yaml", with_one_source_more(""));

    let output = workspace.output("verify", &[]);

    assert_eq!(output.status.code(), Some(4));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("the job had no source `more`"), "{said}");
}

/// Verified, and what was said of it.
fn verified(workspace: &Workspace) -> String {
    let output = workspace.output("verify", &[]);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{said}{errors}");
    said
}

#[test]
fn verify_leaves_out_files_that_came_after_the_job_and_names_them() {
    for path in ["in/*.ndjson", "./in/"] {
        let workspace = Workspace::new(JOB);
        workspace.write("in/b.ndjson", "{\"id\":1}\n");
        workspace.run(&[]).check_code(0);
        assert!(!verified(&workspace).contains("left out"));
        for name in ["in/a.ndjson", "in/c.ndjson"] {
            workspace.write(name, "{\"id\":2}\n");
        }

        workspace.write("job.yaml", JOB.replace("in/*.ndjson", path));
        let said = verified(&workspace);

        let left_out = "note: left out of the input of `lines`";
        let (_, named) = said
            .split_once(left_out)
            .unwrap_or_else(|| panic!("{said}"));
        let is_named = |name| named.contains(&format!("in/{name}.ndjson"));
        assert_eq!(["a", "b", "c"].map(is_named), [true, false, true], "{said}");
    }
}

/// A file without the header is bad when it comes, and was taken for a mistake of the document after that.
#[test]
fn verify_of_a_drained_folder_reads_the_files_that_the_job_took_and_no_others() {
    let watched = JOB
        .replace("order: ByName", "order: ByName, watch: 50ms")
        .replace(".ndjson", ".csv")
        .replace("json: {}}\n      schema", "csv: {}}\n      schema")
        + "";
    let bad = "    - {name: bad, from: lines.bad, file: {path: bad/}, format: {json: {}}}\n";
    let watched = watched.replace("  checkpoint:", &format!("{bad}  checkpoint:"));
    let workspace = Workspace::new(&watched);
    workspace.write("in/a.csv", "id\n1\n");
    let mut running = workspace.start(&[]);
    assert!(running.wait_until(|| workspace.published().rows().len() == 1));
    workspace.write("in/b.csv", "2\n3\n");
    let bad_n = || Published::read(&workspace.path("bad")).rows().len();
    assert!(running.wait_until(|| bad_n() > 0));
    running.signal(Signal::TERM);
    running.wait().check_code(3);
    workspace.write("job.yaml", watched.replace(", watch: 50ms", ""));
    workspace.run(&[]).check_code(0);
    workspace.write("in/c.csv", "nonsense");

    let said = verified(&workspace);

    assert!(
        said.contains("the job did not read them: in/c.csv\n"),
        "{said}"
    );
}

#[test]
fn verify_reads_a_grown_file_to_the_length_the_job_read() {
    let workspace = Workspace::new(JOB);
    workspace.write("in/a.ndjson", "{\"id\":1}\n");
    workspace.run(&[]).check_code(0);
    workspace.write("in/a.ndjson", "{\"id\":1}\n{\"id\":2}\n");

    workspace.verify();
}

#[test]
fn files_that_came_to_a_watched_folder_are_verified_in_either_order() {
    for order in ["ByName", "Any"] {
        let watched = JOB.replace("order: ByName", &format!("order: {order}, watch: 50ms"));
        let workspace = Workspace::new(&watched);
        let row = |n: usize| format!("{{\"id\":{n}}}\n");
        workspace.write("in/a.ndjson", (0..100).map(row).collect::<String>());
        let mut running = workspace.start(&[]);
        for (name, rows) in [("in/c.ndjson", 100..150), ("in/b.ndjson", 150..200)] {
            let before = rows.start;
            assert!(running.wait_until(|| workspace.published().rows().len() == before));
            workspace.write(name, rows.map(row).collect::<String>());
        }
        assert!(running.wait_until(|| workspace.published().rows().len() == 200));
        running.signal(Signal::TERM);
        running.wait().check_code(3);

        // Without `watch` the job ends with the files that it knows.
        workspace.write("job.yaml", watched.replace(", watch: 50ms", ""));
        workspace.run(&[]).check_code(0);

        assert_eq!(workspace.published().rows().len(), 200);
        workspace.verify();
    }
}

/// The document with one source and one sink more.
fn with_one_source_more(settings: &str) -> String {
    let source = format!(
        "    - name: more\n      file: {{path: \"more/*.ndjson\"{settings}}}\n      format: {{json: {{}}}}\n      \
         schema: [{{name: id, type: BIGINT, nullable: false}}]\n"
    );
    let sink =
        "    - {name: copied, from: more, file: {path: copied/}, format: {json: {}}}\n".to_owned();
    JOB.replace("  sinks:\n", &format!("{source}  sinks:\n{sink}"))
}

#[test]
fn source_that_an_edit_adds_is_read_to_its_end_c10() {
    let workspace = stopped_inside_a_file();
    workspace.write("more/a.ndjson", "{\"id\":1}\n{\"id\":2}\n");
    workspace.write("more/b.ndjson", "{\"id\":3}\n");

    workspace.write("job.yaml", with_one_source_more(""));
    workspace.run(&["--parallelism", "2"]).check_code(0);

    let copied = Published::read(&workspace.path("copied"));
    assert_eq!(copied.rows().len(), 3);
    assert_eq!(workspace.published().rows().len(), ROWS);
    workspace.verify();
}

#[test]
fn watched_source_that_an_edit_adds_is_read_once_by_several_subtasks() {
    let workspace = stopped_inside_a_file();
    let row = |n: usize| format!("{{\"id\":{n}}}\n");
    for n in 0..6 {
        workspace.write(&format!("more/{n}.ndjson"), row(n));
    }

    workspace.write(
        "job.yaml",
        with_one_source_more(", order: Any, watch: 50ms"),
    );
    let mut running = workspace.start(&["--parallelism", "2"]);
    let copied = || Published::read(&workspace.path("copied")).rows().len();
    assert!(running.wait_until(|| copied() >= 6));
    // Whoever took what another reads would have published it before this one.
    workspace.write("more/last.ndjson", row(6));
    assert!(running.wait_until(|| copied() >= 7));
    running.signal(Signal::TERM);
    running.wait().check_code(3);

    assert_eq!(copied(), 7);
}
