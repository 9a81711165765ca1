use streamforge_core::job_graph::{Delivery, OperatorKind};

use super::*;

mod kafka;
mod meaning;
mod s3;
mod settings;
mod shape;

/// A document that is right; tests break one thing of it.
pub(crate) const GOOD: &str = r#"apiVersion: streamforge.io/v1alpha1
kind: StreamJob
metadata: {name: clicks-per-user}
spec:
  parallelism: 4
  sources:
  - name: clicks
    file: {path: "/data/*.ndjson"}
    format: {json: {}}
    schema:
    - {name: user_id, type: TEXT}
    - {name: page, type: TEXT}
    - {name: amount, type: "DECIMAL(10,2)"}
    - {name: n, type: INT}
    - {name: tags, type: "TEXT[]"}
    - {name: ts, type: TIMESTAMP, path: /meta/time, parse: EpochMillis}
    eventTime: {column: ts, maxOutOfOrderness: 5s, idleTimeout: 1m}
  transforms:
  - {name: valid, from: clicks, filter: "amount > 0"}
  - {name: slim, from: valid, select: [user_id, "amount * 100 AS cents", ts]}
  - {name: words, from: clicks, unnest: "tags AS tag"}
  - name: per_user
    from: valid
    aggregate:
      groupBy: [user_id]
      window: {tumbling: {size: 1m}}
      select: ["count(*) AS clicks", "sum(amount) AS spend"]
  sinks:
  - {name: out, from: per_user, file: {path: /data/out}, format: {json: {}}}
  - {name: slim_out, from: slim, blackhole: {}}
  - {name: words_out, from: words, print: {}}
  - {name: late, from: per_user.late, blackhole: {}}
"#;

fn with(from: &str, to: &str) -> String {
    assert!(GOOD.contains(from), "the good document has no `{from}`");
    GOOD.replacen(from, to, 1)
}

fn problems(text: &str) -> Vec<Problem> {
    load(text, "job.yaml").err().unwrap_or_default()
}

/// Line, path and message of each problem.
fn told(text: &str) -> Vec<(usize, String, String)> {
    problems(text)
        .into_iter()
        .map(|p| (p.line, p.path, p.message))
        .collect()
}

#[test]
fn the_good_document_is_good() {
    let loaded = load(GOOD, "job.yaml").unwrap_or_else(|problems| panic!("{problems:#?}"));

    assert_eq!(loaded.name, "clicks-per-user");
    assert_eq!(loaded.spec.max_parallelism, 128);
    assert!(loaded.notes.is_empty());
}

/// One mistake each: what is replaced, by what, and the line, path, message and hint that tell it.
struct Case(
    &'static str,
    &'static str,
    usize,
    &'static str,
    &'static str,
    &'static str,
);

fn check(cases: &[Case]) {
    for Case(from, to, line, path, message, hint) in cases {
        let text = with(from, to);
        let found = problems(&text);
        let [problem] = found.as_slice() else {
            panic!("{from:?} -> {to:?}: expected one problem, found {found:#?}");
        };
        assert_eq!(problem.message, *message, "{from:?} -> {to:?}");
        assert_eq!(
            (problem.line, problem.path.as_str()),
            (*line, *path),
            "{from:?} -> {to:?}"
        );
        assert_eq!(
            problem.hint.as_deref().unwrap_or_default(),
            *hint,
            "{from:?} -> {to:?}"
        );
    }
}

#[test]
fn all_mistakes_are_told_at_once_and_in_order() {
    let text = GOOD
        .replace("parallelism: 4", "paralelism: 4")
        .replace("amount > 0", "amout > 0")
        .replace("tags AS tag", "tag AS tag")
        .replace("size: 1m", "size: 1x")
        .replace("path: /data/out", "pth: /data/out");

    let paths: Vec<String> = told(&text).into_iter().map(|(_, path, _)| path).collect();

    assert_eq!(
        paths,
        [
            "spec.paralelism",
            "spec.transforms[0].filter",
            "spec.transforms[2].unnest",
            "spec.transforms[3].aggregate.window.tumbling.size",
            "spec.sinks[0].file.pth",
        ]
    );
}

#[test]
fn a_mistake_upstream_is_told_once() {
    // `valid` is read by `slim` and `per_user`, which are right themselves.
    assert_eq!(told(&with("amount > 0", "amout > 0")).len(), 1);
    assert_eq!(
        told(&with("name: valid, from: clicks", "name: valid, from: 5")).len(),
        1
    );
}

#[test]
fn what_fell_back_to_its_default_causes_no_second_mistake() {
    let late = with(
        "      select",
        "      allowedLateness: 10s\n      emit: Onec\n      select",
    );
    for text in [
        late,
        with("eventTime: {column: ts", "eventTime: {column: 5"),
        with("groupBy: [user_id]", "groupBy: [5]"),
        with("\"amount * 100 AS cents\"", "5"),
        with("{name: amount, type: \"DECIMAL(10,2)\"}", "{name: amount}"),
        with(
            "{name: amount, type: \"DECIMAL(10,2)\"}",
            "{name: amount, type: DECIMAL}",
        ),
        with("window: {tumbling: {size: 1m}}", "window: {tumbling: {}}"),
    ] {
        assert_eq!(told(&text).len(), 1, "{:#?}", told(&text));
    }
}

#[test]
fn an_aggregate_cannot_read_corrected_rows() {
    let text = with("      select", "      allowedLateness: 10s\n      select").replace(
        "  sinks:",
        "  - name: total\n    from: per_user\n    aggregate: {window: {tumbling: {size: 1h}}, select: [\"sum(clicks) AS n\"]}\n  sinks:",
    );

    let found = told(&text);

    assert!(
        found
            .iter()
            .any(|(_, path, message)| path == "spec.transforms[4].from"
                && message == "an aggregate cannot read an output that is corrected by retraction")
    );
}

#[test]
fn unions_want_the_same_columns() {
    let union = "  - {name: all, union: [clicks, valid, words]}\n  sinks:";

    let found = told(&with("  sinks:", union));

    assert_eq!(
        found,
        [(
            28,
            "spec.transforms[4].union[2]".to_owned(),
            "`words` has a column `tag`, but `clicks` has not".to_owned()
        )]
    );
}

#[test]
fn fields_of_clusters_are_checked_and_noted() {
    let text = with(
        "parallelism: 4",
        "parallelism: 4\n  suspend: true\n  taskManager: {slots: 4}",
    );

    let loaded = load(&text, "job.yaml").unwrap();

    let messages: Vec<&str> = loaded
        .notes
        .iter()
        .map(|note| note.message.as_str())
        .collect();
    assert_eq!(
        messages,
        ["`suspend`, `taskManager` mean nothing outside a cluster"]
    );
}

#[test]
fn notes_are_told_beside_mistakes() {
    let text = with("parallelism: 4", "parallelism: 4000\n  suspend: true");

    let mistaken = load_with_notes(&text, "job.yaml").unwrap_err();

    let paths = |found: &[Problem]| -> Vec<String> {
        found.iter().map(|problem| problem.path.clone()).collect()
    };
    assert_eq!(paths(&mistaken.problems), ["spec.parallelism"]);
    assert_eq!(paths(&mistaken.notes), ["spec.suspend"]);
}

#[test]
fn file_sink_is_exactly_once_whatever_is_written() {
    let text = with(
        "file: {path: /data/out}",
        "delivery: AtLeastOnce, file: {path: /data/out}",
    );

    let loaded = load(&text, "job.yaml").unwrap();

    let notes: Vec<(&str, &str)> = loaded
        .notes
        .iter()
        .map(|note| (note.path.as_str(), note.message.as_str()))
        .collect();
    assert_eq!(
        notes,
        [(
            "spec.sinks[0].delivery",
            "files are written exactly once all the same"
        )]
    );
    let graph = crate::plan(&loaded);
    let delivery = graph
        .operators()
        .find_map(|(_, operator)| match &operator.kind {
            OperatorKind::Sink(spec) if spec.connector.kind == "file" => Some(spec.kept_delivery()),
            _ => None,
        });
    assert_eq!(delivery, Some(Delivery::ExactlyOnce));
}

#[test]
fn generators_have_fixed_columns() {
    let generator = |rest: &str| {
        format!(
            "apiVersion: streamforge.io/v1alpha1\nkind: StreamJob\nmetadata: {{name: j}}\nspec:\n  sources:\n  - {{name: c, generator: {{clicks: {{rows: 10}}}}{rest}}}\n  sinks:\n  - {{name: o, from: c, blackhole: {{}}}}\n"
        )
    };

    assert_eq!(told(&generator("")), []);
    let found = told(&generator(
        ", format: {json: {}}, schema: [{name: a, type: INT}]",
    ));
    let messages: Vec<&str> = found
        .iter()
        .map(|(_, _, message)| message.as_str())
        .collect();
    assert_eq!(
        messages,
        [
            "a generator's rows are not encoded",
            "a generator's columns are fixed"
        ]
    );
}

#[test]
fn no_text_makes_the_loader_panic() {
    let mut broken = 0;
    // Every prefix, and every document with one line taken out or one character replaced.
    for end in GOOD.char_indices().map(|(at, _)| at).step_by(7) {
        broken += usize::from(load(&GOOD[..end], "f").is_err());
    }
    for skipped in 0..GOOD.lines().count() {
        let text: Vec<&str> = GOOD
            .lines()
            .enumerate()
            .filter(|(idx, _)| *idx != skipped)
            .map(|(_, line)| line)
            .collect();
        broken += usize::from(load(&text.join("\n"), "f").is_err());
    }
    for (at, _) in GOOD.char_indices().step_by(11) {
        for with in ["{", "é", "\0", "'", "-", "&", "*"] {
            let text = format!("{}{with}{}", &GOOD[..at], &GOOD[at + 1..]);
            broken += usize::from(load(&text, "f").is_err());
        }
    }
    assert!(broken > 200, "{broken}");
}
