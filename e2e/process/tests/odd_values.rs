//! Values at the edges of what doubles are, through a whole job: the results, and that `verify` agrees.

use std::fmt::Write as _;

use streamforge_process::{Published, Workspace};

const JOB: &str = r#"
apiVersion: streamforge.io/v1alpha1
kind: StreamJob
metadata: {name: odd}
spec:
  parallelism: 2
  sources:
    - name: rows
      file: {path: "in/*.ndjson"}
      format: {json: {}}
      schema: [{name: x, type: DOUBLE}, {name: k, type: INT}, {name: ts, type: TIMESTAMP}]
      eventTime: {column: ts, maxOutOfOrderness: 10s}
  transforms:
    - name: by_list
      from: rows
      aggregate:
        groupBy: ["make_array(x) AS xs"]
        window: {tumbling: {size: 10m}}
        select: ["count(*) AS n", "approx_distinct(ts) AS times"]
    - name: sums
      from: rows
      aggregate:
        groupBy: [k]
        window: {tumbling: {size: 10m}}
        select: ["var_pop(x) FILTER (WHERE abs(x) <= 1e200) AS v", "sum(x) FILTER (WHERE abs(x) < 5) AS s"]
    - {name: broken, from: sums, select: [k, v, "s * -1 AS negative", "1 / (k - k) AS y"]}
    - name: never
      from: rows
      aggregate: {groupBy: [k], window: {tumbling: {size: 10m}}, select: ["sum(k) / (count(*) - count(*)) AS q"]}
    - name: huge
      from: rows
      aggregate:
        groupBy: [k]
        window: {tumbling: {size: 10m}}
        select: ["sum(CAST(k AS DECIMAL(38,0)) + CAST('99999999999999999999999999999999999990' AS DECIMAL(38,0))) AS big"]
  sinks:
    - {name: lists, from: by_list, file: {path: out/lists/}, format: {json: {}}}
    - {name: bad, from: broken.bad, file: {path: out/bad/}, format: {json: {}}}
    - {name: never_bad, from: never.bad, file: {path: out/never/}, format: {json: {}}}
    - {name: huge_bad, from: huge.bad, file: {path: out/huge/}, format: {json: {}}}
"#;

/// Nine values 900 times over, of which both zeros are one and so are both NaN.
fn job() -> Workspace {
    let job = Workspace::new(&JOB.replace("1e200", "CAST('1e200' AS DOUBLE)"));
    let values = [
        "0.0",
        "-0.0",
        "0.1",
        "0.7",
        "3.3",
        "1e200",
        "-1e200",
        "\"NaN\"",
        "\"-Infinity\"",
    ];
    for file in 0..4 {
        let mut text = String::new();
        for row in 0..225 {
            for (idx, x) in values.iter().enumerate() {
                let (k, second) = ((row + idx) % 3, row % 60);
                writeln!(
                    text,
                    r#"{{"x":{x},"k":{k},"ts":"2026-01-01T00:0{file}:{second:02}"}}"#
                )
                .expect("a text takes more text");
            }
        }
        job.write(&format!("in/{file}.ndjson"), text);
    }
    job
}

fn published(job: &Workspace, folder: &str) -> Vec<serde_json::Value> {
    let rows = Published::read(&job.path(folder)).rows();
    let read = |row: &String| serde_json::from_str(row).expect("a row is JSON");
    rows.iter().map(read).collect()
}

#[test]
fn zeros_nan_and_infinity_are_one_value_each_and_verify_agrees() {
    let job = job();

    job.run(&[]).check_code(0);

    let mut counts: Vec<(String, u64)> = published(&job, "out/lists")
        .iter()
        .map(|row| (row["xs"].to_string(), row["n"].as_u64().expect("a count")))
        .collect();
    counts.sort();
    let by_hand = [
        ("[\"-Infinity\"]", 900),
        ("[\"NaN\"]", 900),
        ("[-1e+200]", 900),
        ("[0.0]", 1800),
        ("[0.1]", 900),
        ("[0.7]", 900),
        ("[1e+200]", 900),
        ("[3.3]", 900),
    ];
    assert_eq!(counts, by_hand.map(|(xs, n)| (xs.to_owned(), n)));
    assert_eq!(published(&job, "out/bad").len(), 3);
    // Of each of three groups the sum has more than 38 digits.
    assert_eq!(published(&job, "out/huge").len(), 3);
    job.verify();
}

#[test]
fn a_reason_shows_the_aggregates_as_they_were_written() {
    let job = job();

    job.run(&[]).check_code(0);

    let reasons = published(&job, "out/never");
    assert_eq!(reasons.len(), 3);
    for row in reasons {
        let reason = "`sum(k) / (count(*) - count(*))`: division by zero";
        assert_eq!(row["reason"], reason);
    }
}
