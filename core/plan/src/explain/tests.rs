use super::*;

const JOB: &str = r#"apiVersion: streamforge.io/v1alpha1
kind: StreamJob
metadata: {name: clicks}
spec:
  parallelism: 2
  sources:
  - {name: clicks, generator: {clicks: {rows: 10}}, eventTime: {column: ts, maxOutOfOrderness: 5s}}
  transforms:
  - {name: valid, from: clicks, filter: "type = 'click'"}
  - name: per_user
    from: valid
    aggregate:
      groupBy: [user_id]
      window: {hopping: {size: 10s, slide: 4s}}
      select: ["count(*) AS n"]
      allowedLateness: 10s
  sinks:
  - {name: out, from: per_user, file: {path: /out}, format: {json: {}}, changelog: Retract}
  - {name: late, from: per_user.late, print: {}}
"#;

fn loaded() -> Loaded {
    crate::load(JOB, "job.yaml").unwrap_or_else(|problems| panic!("{problems:?}"))
}

#[test]
fn the_text_tells_stages_exchanges_state_and_delivery() {
    let expected = "\
clicks: bounded, parallelism 2, 128 key groups

Stage 0
  clicks: source generator, bounded; event time ts, at most 5s behind
      columns  user_id TEXT, page TEXT, type TEXT, amount DECIMAL(10,2), ts TIMESTAMP
  valid: filter type = 'click'
      from     clicks (append-only)
      columns  user_id TEXT, page TEXT, type TEXT, amount DECIMAL(10,2), ts TIMESTAMP
  per_user.partial: partial aggregate hopping 10s every 4s by user_id
      from     valid (append-only)
      columns  user_id TEXT
  late: sink print; append-only; at least once
      from     per_user.partial.late (append-only)
  => stage 1: per_user.partial to per_user, by key group of user_id, append-only

Stage 1
  per_user: aggregate hopping 10s every 4s by user_id: n; on time, 10s late
      columns  user_id TEXT, window_start TIMESTAMP NOT NULL, window_end TIMESTAMP NOT NULL, n BIGINT NOT NULL
      state    one group per (user_id) and slice of 2s
      bound    keys seen in the last 20s of event time
  out: sink file /out, json; retract, as `_op`; exactly once
      from     per_user (updating)
";

    assert_eq!(explain_text(&loaded()), expected);
}

#[test]
fn the_json_is_json_with_the_same_facts() {
    let json: serde_json::Value = serde_json::from_str(&explain_json(&loaded())).unwrap();

    assert_eq!(json["stages"][1]["operators"][0]["keys"][0], "user_id");
    assert_eq!(json["exchanges"][0]["by"], "key group of user_id");
    assert_eq!(
        json["stages"][1]["operators"][1]["delivery"],
        "exactly once"
    );
    assert_eq!(
        json["stages"][1]["operators"][1]["inputs"][0]["changelog"],
        "updating"
    );
}

#[test]
fn the_picture_names_every_operator_and_quotes_it() {
    let dot = explain_dot(&loaded());

    assert!(dot.starts_with("digraph \"clicks\" {\n"));
    assert!(dot.ends_with("}\n"));
    assert!(dot.contains("\"per_user.partial\" -> \"late\" [label=\"late\", style=solid];"));
    assert!(dot.contains(
        "\"per_user.partial\" -> \"per_user\" [label=\"key group of user_id\", style=bold];"
    ));
    assert!(dot.contains("\"per_user\" -> \"out\" [label=\"updating\", style=solid];"));
    assert_eq!(dot.matches('"').count() % 2, 0);
}
