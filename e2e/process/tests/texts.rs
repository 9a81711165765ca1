//! What a person reads: help, mistakes of documents, plans. Compared with files in `golden/`, which
//! `UPDATE=1` rewrites; a change of them is to be read as carefully as a change of code.
#![expect(clippy::unwrap_used, reason = "a test that cannot set up must fail")]

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use streamforge_process::Workspace;

/// A document that is right; each case breaks one thing of it.
const GOOD: &str = include_str!("../golden/good.yaml");

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("golden")
        .join(name)
}

fn check(name: &str, found: &str) {
    let path = golden(name);
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&path, found).unwrap();
        return;
    }
    let wanted = std::fs::read_to_string(&path).unwrap_or_default();
    let line = wanted.lines().zip(found.lines()).position(|(a, b)| a != b);
    let line = line.unwrap_or(wanted.lines().count().min(found.lines().count()));
    assert!(
        wanted == found,
        "{} differs from line {} on; read it, then UPDATE=1. Now:\n{found}",
        path.display(),
        line + 1
    );
}

/// What a command writes, both streams.
fn said(workspace: &Workspace, arguments: &[&str]) -> String {
    let output = workspace.bare(arguments).output().unwrap();
    let mut text = String::from_utf8(output.stdout).unwrap();
    text.push_str(&String::from_utf8(output.stderr).unwrap());
    // Help has spaces at the ends of empty lines, which no file of ours has.
    let mut text: String = text
        .lines()
        .flat_map(|line| [line.trim_end(), "\n"])
        .collect();
    writeln!(text, "(exit code {})", output.status.code().unwrap()).unwrap();
    text
}

#[test]
fn help_of_every_command_is_as_reviewed() {
    let workspace = Workspace::new(GOOD);
    let mut text = String::new();
    for command in [
        "",
        "validate",
        "explain",
        "run",
        "verify",
        "checkpoints",
        "checkpoints list",
        "checkpoints show",
        "status",
        "scale",
        "drain",
        "savepoint",
        "stop",
        "crd",
        "completions",
    ] {
        let mut arguments: Vec<&str> = command.split_whitespace().collect();
        arguments.push("--help");
        writeln!(text, "$ streamforge {}", arguments.join(" ")).unwrap();
        writeln!(text, "{}", said(&workspace, &arguments)).unwrap();
    }
    check("help.txt", &text);
}

#[test]
fn plan_is_explained_as_reviewed() {
    let workspace = Workspace::new(GOOD);
    for (output, name) in [
        ("text", "explain.txt"),
        ("json", "explain.json"),
        ("dot", "explain.dot"),
    ] {
        check(
            name,
            &said(&workspace, &["explain", "job.yaml", "-o", output]),
        );
    }
}

/// What is replaced, and by what.
const MISTAKES: &[(&str, &str)] = &[
    ("kind: StreamJob", "kind: Deployment"),
    ("apiVersion: streamforge.io/v1alpha1\n", ""),
    ("metadata: {name: shop}", "metadata: {name: My Shop}"),
    ("  parallelism: 2", "  parallelism: 2\n parallelism: 3"),
    ("  parallelism: 2", "\tparallelism: 2"),
    ("  parallelism: 2", "  paralelism: 2"),
    ("  parallelism: 2", "  parallelism: two"),
    ("  parallelism: 2", "  parallelism: 0"),
    ("  parallelism: 2", "  parallelism: 200"),
    (
        "  parallelism: 2",
        "  parallelism: 2\n  checkpoint: {interval: 10}",
    ),
    (
        "  parallelism: 2",
        "  parallelism: 2\n  state: {backend: RocksDb}",
    ),
    ("  parallelism: 2", "  parallelism: 2\n  suspend: true"),
    ("  parallelism: 2", "  parallelism: 0\n  suspend: true"),
    (
        "file: {path: in/*.ndjson}",
        "file: {path: in/*.ndjson}\n    generator: {lines: {}}",
    ),
    (
        "file: {path: in/*.ndjson}",
        "kafka: {bootstrapServers: a, topic: t, endAt: Never}",
    ),
    ("file: {path: in/*.ndjson}", "http: {}"),
    (
        "file: {path: in/*.ndjson}",
        "file: {path: \"s3://bucket/in/\"}",
    ),
    (
        "file: {path: in/*.ndjson}",
        "file: {path: in/*.ndjson, watch: sometimes}",
    ),
    (
        "    format: {json: {}}\n    schema",
        "    format: {xml: {}}\n    schema",
    ),
    (
        "    format: {json: {}}\n    schema",
        "    format: {avro: {}}\n    schema",
    ),
    ("    format: {json: {}}\n    schema", "    schema"),
    ("type: BIGINT}", "type: INTEGR}"),
    ("type: BIGINT}", "type: \"DECIMAL(50,2)\"}"),
    ("{name: n, type: BIGINT}", "{name: user, type: BIGINT}"),
    ("eventTime: {column: ts", "eventTime: {column: tss"),
    ("eventTime: {column: ts", "eventTime: {column: item"),
    ("from: orders, filter", "from: oders, filter"),
    ("from: orders, filter", "from: big, filter"),
    ("name: big,", "name: orders,"),
    ("name: big,", "name: Big,"),
    ("filter: \"n > 5\"", "filter: \"n >\""),
    ("filter: \"n > 5\"", "filter: \"nn > 5\""),
    ("filter: \"n > 5\"", "filter: \"n + 5\""),
    ("filter: \"n > 5\"", "filter: \"item > 5\""),
    ("filter: \"n > 5\"", "filter: \"n > random()\""),
    ("filter: \"n > 5\"", "filter: \"ts > now()\""),
    ("filter: \"n > 5\"", "filter: \"n > sum(n)\""),
    ("filter: \"n > 5\"", "filter: \"lenght(item) > 5\""),
    ("filter: \"n > 5\"", "filter: \"n / 0 > 5\""),
    ("filter: \"n > 5\"", "filter: \"item ~ '('\""),
    ("filter: \"n > 5\"", "filter: \"n > CAST('five' AS INT)\""),
    ("filter: \"n > 5\"", "filter: \"user = 'ann'\""),
    (
        "{name: ts, type: TIMESTAMP}\n    eventTime: {column: ts, maxOutOfOrderness: 5s}\n  transforms:\n  \
         - {name: big, from: orders, filter: \"n > 5\"}",
        "{name: ts, type: TIMESTAMP}\n    - {name: user, type: TEXT}\n    eventTime: {column: ts}\n  \
         transforms:\n  - {name: big, from: orders, filter: \"user = 'ann'\"}",
    ),
    ("filter: \"n > 5\"", "filter: \"n > (SELECT 1)\""),
    (
        "filter: \"n > 5\"",
        "filter: \"NOT NOT NOT NOT NOT NOT NOT NOT NOT NOT NOT NOT NOT n > 5\"",
    ),
    ("select: [item, n, ts]", "select: [item, n * 2, ts]"),
    ("select: [item, n, ts]", "select: [item, n AS item, ts]"),
    ("select: [item, n, ts]", "select: \"item\""),
    ("size: 1m", "size: 1 minute"),
    ("size: 1m", "size: 0s"),
    ("{tumbling: {size: 1m}}", "{hopping: {size: 1m, slide: 2m}}"),
    ("{tumbling: {size: 1m}}", "{cumulative: {size: 1m}}"),
    ("groupBy: [item]", "groupBy: [itm]"),
    ("\"sum(n) AS total\"", "\"sum(n)\""),
    ("\"sum(n) AS total\"", "\"sum(item) AS total\""),
    ("\"sum(n) AS total\"", "\"median(n) AS total\""),
    (
        "select: [\"sum(n)",
        "allowedLateness: 5s\n      select: [\"sum(n)",
    ),
    (
        "from: totals, file: {path: out/}",
        "from: totals.lat, file: {path: out/}",
    ),
    (
        "from: totals, file: {path: out/}",
        "from: rows_out, file: {path: out/}",
    ),
    (
        "file: {path: out/}, format: {json: {}}",
        "file: {path: out/}, format: {raw: {}}",
    ),
    (
        "file: {path: out/}, format: {json: {}}",
        "file: {path: out/}",
    ),
    (
        "file: {path: out/}",
        "file: {path: out/, partitionBy: [day]}",
    ),
    ("file: {path: out/}", "file: {path: in/}"),
    ("file: {path: rows/}", "file: {path: out}"),
    ("file: {path: out/}", "iceberg: {}"),
    (
        "file: {path: out/}, format: {json: {}}",
        "print: {stream: Stdin}",
    ),
];

#[test]
fn mistakes_of_documents_are_told_as_reviewed() {
    let mut text = String::new();
    for (from, to) in MISTAKES {
        assert!(GOOD.contains(from), "the good document has no `{from}`");
        let workspace = Workspace::new(&GOOD.replacen(from, to, 1));
        writeln!(text, "# {from:?} becomes {to:?}").unwrap();
        writeln!(text, "{}", said(&workspace, &["validate", "job.yaml"])).unwrap();
    }
    check("mistakes.txt", &text);
}

/// What Rust calls a value means nothing to those who read a log.
#[test]
fn log_of_a_run_is_written_in_words() {
    let workspace = Workspace::new(
        "apiVersion: streamforge.io/v1alpha1
kind: StreamJob
metadata: {name: made}
spec:
  sources: [{name: rows, generator: {lines: {rows: 10}}}]
  sinks: [{name: out, from: rows, file: {path: out/}, format: {json: {}}}]
",
    );
    for (arguments, outcome) in [
        (vec![], "outcome=finished\n"),
        (vec![], "outcome=finished before\n"),
        (vec!["--rewind-to", "99"], "outcome=failed: "),
    ] {
        let said = workspace.run(&arguments).stderr;
        assert!(said.contains(outcome), "{said}");
        for word in ["Some(", "None", " { ", "CheckpointId(", "4294967295"] {
            assert!(!said.contains(word), "{word}: {said}");
        }
    }
}

#[test]
fn file_without_an_end_is_no_document() {
    let workspace = Workspace::new(GOOD);

    let said = said(&workspace, &["validate", "/dev/zero"]);

    assert!(
        said.contains("/dev/zero") && said.contains("exit code 2"),
        "{said}"
    );
}
