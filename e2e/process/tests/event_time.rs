//! What is late does not depend on how many subtasks read, and a late record is told whole.

use std::collections::BTreeSet;

use serde_json::Value;
use streamforge_process::{Published, Workspace};

const JOB: &str = r#"
apiVersion: streamforge.io/v1alpha1
kind: StreamJob
metadata: {name: day}
spec:
  parallelism: 1
  sources:
    - name: visits
      file: {path: "in/*.ndjson", order: ORDER}
      format: {json: {}}
      schema: [{name: id, type: BIGINT}, {name: note, type: TEXT}, {name: ts, type: TIMESTAMP}]
      eventTime: {column: ts, maxOutOfOrderness: 0s}
  transforms:
    - name: per_minute
      from: visits
      aggregate:
        groupBy: ["CAST(1 AS INT) AS one"]
        window: {tumbling: {size: 1m}}
        select: ["count(*) AS n"]
  sinks:
    - {name: results, from: per_minute, file: {path: out/}, format: {json: {}}}
    - {name: late, from: per_minute.late, file: {path: late/}, format: {json: {}}}
"#;

/// The same hour in two files: one with a visit at each full minute, one with a visit half a minute later.
fn hour_in_two_files(order: &str) -> Workspace {
    let workspace = Workspace::new(&JOB.replace("ORDER", order));
    for (file, second) in [("a", 0), ("b", 30)] {
        let row = |minute: u32| {
            let id = 100 * second + minute;
            format!(
                "{{\"id\":{id},\"note\":\"{file}{minute}\",\"ts\":\"2026-01-01T09:{minute:02}:{second:02}Z\"}}\n"
            )
        };
        let rows: String = (0..60).map(row).collect();
        workspace.write(&format!("in/{file}.ndjson"), rows);
    }
    workspace
}

fn rows(workspace: &Workspace, folder: &str) -> Vec<Value> {
    let rows = Published::read(&workspace.path(folder)).rows();
    let parsed = rows.iter().map(|row| serde_json::from_str(row));
    parsed.collect::<Result<_, _>>().expect("rows are JSON")
}

/// Sum of the counts, and the notes of what was late.
fn counted_and_late(order: &str, parallelism: &str) -> (u64, BTreeSet<String>) {
    let workspace = hour_in_two_files(order);
    workspace.run(&["--parallelism", parallelism]).check_code(0);
    workspace.verify();
    let counts = rows(&workspace, "out").into_iter();
    let counted = counts.map(|row| row["n"].as_u64().expect("a count")).sum();
    let late = rows(&workspace, "late").into_iter();
    let note = |row: Value| row["note"].as_str().expect("a text").to_owned();
    (counted, late.map(note).collect())
}

#[test]
fn two_files_of_one_hour_have_the_same_late_rows_at_any_parallelism_t2_attack_34() {
    for parallelism in ["1", "2", "3"] {
        let nothing_late = (120, BTreeSet::new());
        assert_eq!(counted_and_late("Any", parallelism), nothing_late);

        // The second file begins when the watermark is at 09:59: only its last row has an open window.
        let all_but_one = (0..59).map(|minute| format!("b{minute}")).collect();
        assert_eq!(counted_and_late("ByName", parallelism), (61, all_but_one));
    }
}

#[test]
fn late_record_is_told_whole_though_its_group_is_aggregated_before_the_shuffle_attack_35() {
    let workspace = hour_in_two_files("ByName");
    workspace.run(&["--parallelism", "2"]).check_code(0);

    let late = rows(&workspace, "late");
    let found = late.iter().find(|row| row["note"] == "b17");

    let found = found.expect("it came 41 minutes late");
    assert_eq!(found["id"], 3017);
    assert_eq!(found["ts"], "2026-01-01T09:17:30");
    assert_eq!(found["window_start"], "2026-01-01T09:17:00");
    assert_eq!(found["window_end"], "2026-01-01T09:18:00");
    assert_eq!(found["position"], "17:891");
}
