//! Input and surroundings that are wrong: a clear error, a non-zero exit, nothing half-visible, no
//! panic, no backtrace.

use streamforge_process::{Ended, Workspace};

const JOB: &str = r#"
apiVersion: streamforge.io/v1alpha1
kind: StreamJob
metadata: {name: copy}
spec:
  sources:
    - name: lines
      file: {path: "in/*.ndjson"}
      format: {json: {}}
      schema: [{name: id, type: BIGINT, nullable: false}, {name: text, type: TEXT}]
  transforms:
    - {name: some, from: lines, filter: "id >= 0"}
  sinks:
    - {name: out, from: some, file: {path: out/good/}, format: {json: {}}}
    - {name: bad, from: lines.bad, file: {path: out/bad/}, format: {json: {}}}
"#;

fn job_over(files: &[(&str, &[u8])]) -> Workspace {
    let workspace = Workspace::new(JOB);
    for (name, bytes) in files {
        workspace.write(&format!("in/{name}"), bytes);
    }
    workspace
}

/// The error is for people: it names `what`, and nothing is published.
fn check_refused(workspace: &Workspace, ended: &Ended, code: i32, what: &str) {
    ended.check_code(code);
    assert!(
        ended.stderr.contains(what),
        "{what} is not named: {}",
        ended.stderr
    );
    assert!(
        !ended.stderr.contains("stack backtrace"),
        "{}",
        ended.stderr
    );
    assert_eq!(workspace.published().files_n(), 0);
}

fn ids(workspace: &Workspace, folder: &str) -> usize {
    streamforge_process::Published::read(&workspace.path(folder))
        .rows()
        .len()
}

#[test]
fn broken_documents_exit_2_and_name_the_line() {
    for (from, to, named) in [
        ("sinks:", "  sinks:", "job.yaml:13"),
        ("filter: \"id >= 0\"", "filter: \"idd >= 0\"", "idd"),
        ("from: some,", "from: sum,", "sum"),
        (
            "format: {json: {}}\n      schema",
            "formatt: {json: {}}\n      schema",
            "formatt",
        ),
    ] {
        let workspace = job_over(&[("a.ndjson", b"{\"id\":1}\n")]);
        workspace.write("job.yaml", JOB.replacen(from, to, 1));

        let ended = workspace.run(&[]);

        check_refused(&workspace, &ended, 2, named);
    }
}

#[test]
fn document_that_is_no_text_or_too_long_exits_2() {
    let mut not_text = b"apiVersion: streamforge.io/v1alpha1\nkind: ".to_vec();
    not_text.extend(b"\xff\xfe");
    let too_long = vec![b'#'; (512 << 10) + 1];
    for (document, named) in [
        (not_text, "job.yaml:2:7: it is not UTF-8"),
        (
            too_long,
            "job.yaml:1:1: it is longer than a document may be",
        ),
    ] {
        let workspace = job_over(&[("a.ndjson", b"{\"id\":1}\n")]);
        workspace.write("job.yaml", document);

        let ended = workspace.run(&[]);

        check_refused(&workspace, &ended, 2, named);
        let validated = workspace.output("validate", &[]);
        assert_eq!(validated.status.code(), Some(2));
    }
}

#[test]
fn control_characters_of_a_document_do_not_reach_the_terminal() {
    let workspace = job_over(&[("a.ndjson", b"{\"id\":1}\n")]);
    let document = JOB.replacen("id >= 0", "'\\e[31m\\x9b2J' = idd", 1);
    workspace.write("job.yaml", document);

    let ended = workspace.run(&[]);

    check_refused(&workspace, &ended, 2, "\\u{1b}[31m");
    let raw = ended.stderr.chars().find(|c| c.is_control() && *c != '\n');
    assert_eq!(raw, None, "{}", ended.stderr);
}

#[test]
fn document_that_is_not_there_is_an_error() {
    let workspace = job_over(&[]);
    std::fs::remove_file(workspace.path("job.yaml")).unwrap();

    let ended = workspace.run(&[]);

    assert_ne!(ended.code, Some(0));
    assert!(ended.stderr.contains("job.yaml"), "{}", ended.stderr);
}

#[test]
fn glob_without_a_file_is_an_error() {
    let workspace = job_over(&[]);

    let ended = workspace.run(&[]);

    check_refused(&workspace, &ended, 1, "in/*.ndjson");
}

#[test]
fn output_folder_that_cannot_be_made_is_an_error() {
    let workspace = job_over(&[("a.ndjson", b"{\"id\":1}\n")]);
    workspace.write("out", "a file where the folder should be");

    let ended = workspace.run(&[]);

    ended.check_code(1);
    assert!(ended.stderr.contains("out"), "{}", ended.stderr);
}

#[test]
fn rows_that_are_not_rows_go_to_bad_and_the_others_are_published_kf_r1() {
    let mut nested = b"{\"id\":2,\"text\":".to_vec();
    nested.extend(b"[".repeat(100_000));
    let lines: &[&[u8]] = &[
        b"{\"id\":1,\"text\":\"good\"}",
        b"\xff\xfe not UTF-8",
        b"{\"id\":99999999999999999999}",
        b"{\"id\":1.5}",
        b"{\"id\":\"1\"}",
        b"{\"text\":\"no id\"}",
        b"{\"id\":1,\"id\":2}",
        b"{\"id\":3",
        &nested,
        b"{\"id\":4,\"text\":\"good\"}",
    ];
    let workspace = job_over(&[("a.ndjson", &lines.join(&b'\n'))]);

    workspace.run(&[]).check_code(0);

    assert_eq!(
        (ids(&workspace, "out/good"), ids(&workspace, "out/bad")),
        (2, 8)
    );
    workspace.verify();
}

#[test]
fn line_of_a_hundred_megabytes_does_not_end_the_job() {
    let mut line = b"{\"id\":1,\"text\":\"".to_vec();
    line.resize(100 * 1024 * 1024, b'x');
    line.extend(b"\"}\n{\"id\":2}\n");
    let workspace = job_over(&[("a.ndjson", &line)]);

    workspace.run(&[]).check_code(0);

    let (good, bad) = (ids(&workspace, "out/good"), ids(&workspace, "out/bad"));
    assert_eq!(good + bad, 2);
    assert!(good >= 1, "the short row is published");
}

#[test]
fn row_of_ten_thousand_unknown_fields_is_read() {
    let fields: Vec<String> = (0..10_000).map(|n| format!("\"c{n}\":{n}")).collect();
    let line = format!("{{{},\"id\":1}}\n", fields.join(","));
    let workspace = job_over(&[("a.ndjson", line.as_bytes())]);

    workspace.run(&[]).check_code(0);

    assert_eq!(ids(&workspace, "out/good"), 1);
}

#[test]
fn value_too_long_for_the_name_of_a_folder_is_diverted_and_verify_agrees() {
    let document = JOB.replace("out/good/}", "out/good/, partitionBy: [text]}");
    let refused =
        "    - {name: refused, from: out.bad, file: {path: out/refused/}, format: {json: {}}}\n";
    let workspace = Workspace::new(&(document + refused));
    // `text=` and 250 bytes are 255, as many as a name may have; a space is three.
    let texts = [
        "x".repeat(250),
        "x".repeat(251),
        " ".repeat(83),
        " ".repeat(84),
        "é".repeat(41),
        "é".repeat(42),
        ".".repeat(84),
    ];
    let line = |(id, text): (usize, &String)| format!("{{\"id\":{id},\"text\":\"{text}\"}}\n");
    let lines: String = texts.iter().enumerate().map(line).collect();
    workspace.write("in/a.ndjson", lines);

    workspace.run(&[]).check_code(0);

    assert_eq!(
        (ids(&workspace, "out/good"), ids(&workspace, "out/refused")),
        (3, 4)
    );
    workspace.verify();
}

#[test]
fn parallelism_above_max_parallelism_exits_2() {
    let workspace = job_over(&[("a.ndjson", b"{\"id\":1}\n")]);

    let ended = workspace.run(&["--parallelism", "8", "--set", "spec.maxParallelism=4"]);

    check_refused(&workspace, &ended, 2, "maxParallelism");
}
