//! Tests of the oracle: results worked by hand.

use arrow::array::{Int64Array, StringArray, UInt64Array};
use arrow::record_batch::RecordBatch;
use streamforge_taskmanager::engine::batch::Origin;
use streamforge_taskmanager::engine::types;

use super::*;
use crate::verify::cell::Cell;
use crate::verify::late::Entry;
use crate::verify::window::Window;

const S: i64 = 1_000_000;

fn graph(window: &str) -> JobGraph {
    graph_of(&document(window))
}

fn document(window: &str) -> String {
    format!(
        "apiVersion: streamforge.io/v1alpha1
kind: StreamJob
metadata: {{name: job}}
spec:
  sources:
    - name: orders
      file: {{path: /in.ndjson}}
      format: {{json: {{}}}}
      schema: [{{name: item, type: TEXT}}, {{name: n, type: BIGINT}}, {{name: ts, type: TIMESTAMP}}]
      eventTime: {{column: ts, maxOutOfOrderness: 0s}}
  transforms:
    - name: per_item
      from: orders
      aggregate: {{groupBy: [item], window: {window}, select: [\"sum(n) AS n\"]}}
  sinks:
    - {{name: out, from: per_item, file: {{path: /out/}}, format: {{json: {{}}}}}}
    - {{name: late, from: per_item.late, file: {{path: /late/}}, format: {{json: {{}}}}}}
"
    )
}

fn graph_of(document: &str) -> JobGraph {
    let loaded = streamforge_plan::load(document, "job.yaml").unwrap();
    streamforge_plan::plan(&loaded)
}

/// Rows (item, n, seconds) as one split, numbered from 0.
fn rows(rows: &[(&str, i64, i64)]) -> StreamBatch {
    let times = rows.iter().map(|row| row.2 * S).collect::<Vec<_>>();
    let columns: Vec<ArrayRef> = vec![
        Arc::new(StringArray::from_iter_values(rows.iter().map(|row| row.0))),
        Arc::new(Int64Array::from_iter_values(rows.iter().map(|row| row.1))),
        Arc::new(TimestampMicrosecondArray::from(times)),
    ];
    let column = |name: &str, data_type: &str| Column {
        name: name.to_owned(),
        data_type: data_type.parse().unwrap(),
        nullable: true,
    };
    let schema = [
        column("item", "TEXT"),
        column("n", "BIGINT"),
        column("ts", "TIMESTAMP"),
    ];
    let position: UInt64Array = (0..rows.len() as u64).collect();
    let origin = Origin {
        source: "in".into(),
        row: position.clone(),
        offset: position,
    };
    let batch = RecordBatch::try_new(types::schema(&schema), columns).unwrap();
    StreamBatch {
        origin: Some(origin),
        ..StreamBatch::plain(batch)
    }
}

/// (row, window start, window end, watermark), in seconds.
fn compute(
    graph: &JobGraph,
    input: &[(&str, i64, i64)],
    log: &[(u64, i64, i64, i64)],
) -> (Vec<String>, Counters, Vec<Vec<Cell>>) {
    let mut late = LateLog::default();
    let partial = graph
        .operators()
        .find(|(_, operator)| matches!(operator.kind, OperatorKind::WindowPartial(_)));
    let uid = partial.unwrap().1.uid.0.clone();
    for (row, start, end, watermark) in log {
        let window = Window {
            start: start * S,
            end: end * S,
        };
        late.add(
            &uid,
            "in",
            (*row, *row),
            Entry {
                window,
                watermark: watermark * S,
            },
        );
    }
    let compile = |expr: &Expr, columns: &[Column]| Ok(streamforge_plan::compile(expr, columns)?);
    let mut oracle = Oracle::new(graph, &compile, late, true).unwrap();
    let source = oracle
        .nodes()
        .iter()
        .position(|node| node.operator.node == "orders")
        .unwrap();
    oracle
        .on_source_rows(source, rows(input), BadRows::default(), 0)
        .unwrap();
    let aggregate = oracle
        .nodes()
        .iter()
        .position(|node| node.operator.uid.0 == uid)
        .unwrap();
    let computed = oracle.finish().unwrap();
    let out = computed
        .sinks
        .into_iter()
        .find(|sink| sink.uid == "out")
        .unwrap();
    let difference = out.rows.unwrap().difference();
    let results = difference.samples.into_iter().map(|sample| match sample {
        super::super::multiset::Sample::Missing(cells) => cells,
        other => panic!("{other:?}"),
    });
    (
        computed.findings,
        computed.counters[aggregate],
        results.collect(),
    )
}

fn result(item: &str, start: i64, end: i64, n: i128) -> Vec<Cell> {
    let time = |seconds: i64| Cell::Int((seconds * S).into());
    vec![
        Cell::Text(item.into()),
        time(start),
        time(end),
        Cell::Int(n),
    ]
}

#[test]
fn pairs_of_the_late_log_are_left_out_and_all_others_counted_t3() {
    let graph = graph("{hopping: {size: 10s, slide: 5s}}");
    let input = [("a", 1, 7), ("b", 2, 11), ("c", 4, 9), ("c", 8, 1)];
    let log = [(2, 0, 10, 11), (3, 0, 10, 11), (3, -5, 5, 11)];

    let (findings, counters, mut results) = compute(&graph, &input, &log);

    results.sort_by(|a, b| Cell::Many(a.clone()).order(&Cell::Many(b.clone())));
    assert_eq!(findings, Vec::<String>::new());
    assert_eq!(
        (counters.passed, counters.late, counters.late_windows),
        (3, 1, 3)
    );
    let expected = [
        result("a", 0, 10, 1),
        result("a", 5, 15, 1),
        result("b", 5, 15, 2),
        result("b", 10, 20, 2),
        result("c", 5, 15, 4),
    ];
    assert_eq!(results, expected);
}

#[test]
fn a_late_log_that_cannot_be_true_is_found() {
    let graph = graph("{tumbling: {size: 10s}}");
    let input = [("a", 1, 12), ("b", 2, 9), ("c", 4, 13)];
    let found = |log: &[(u64, i64, i64, i64)]| compute(&graph, &input, log).0;

    assert_eq!(found(&[(1, 0, 10, 12)]), Vec::<String>::new());
    // The window was open at that watermark.
    assert!(found(&[(1, 0, 10, 9)])[0].contains("was open"));
    // The row before it allows no more than 12.
    assert!(found(&[(1, 0, 10, 13)])[0].contains("allow"));
    // Row 2 is not in that window; there is no row 7.
    assert!(found(&[(2, 0, 10, 12)])[0].contains("1 entries name no record"));
    assert!(found(&[(7, 0, 10, 12)])[0].contains("1 entries name no record"));
}

#[test]
fn a_record_is_counted_once_when_the_log_names_another_window_of_it() {
    let graph = graph("{tumbling: {size: 10s}}");

    let (_, counters, results) = compute(&graph, &[("a", 1, 12)], &[(0, 0, 10, 12)]);

    assert_eq!((counters.passed, counters.late), (1, 0));
    assert_eq!(results, [result("a", 10, 20, 1)]);
}

#[test]
fn a_window_that_ends_after_year_9999_is_expected_in_bad_and_not_in_the_file() {
    let graph = graph("{tumbling: {size: 1h}}");
    // 9999-12-31T22:30:00, and an hour later: that one's window ends with the year.
    let (early, last) = (253_402_295_400, 253_402_299_000);

    let (findings, _, results) = compute(&graph, &[("a", 1, early), ("b", 2, last)], &[]);

    assert_eq!(findings, Vec::<String>::new());
    assert_eq!(results, [result("a", early - 1800, early + 1800, 1)]);
}

#[test]
fn a_row_whose_folder_would_have_too_long_a_name_is_expected_in_bad_and_not_in_the_file() {
    let mut document = document("{tumbling: {size: 1h}}");
    document = document.replace("/out/}", "/out/, partitionBy: [item]}");
    document.push_str(
        "    - {name: refused, from: out.bad, file: {path: /bad/}, format: {json: {}}}\n",
    );
    let graph = graph_of(&document);
    // `item=` and 250 bytes are 255; a letter that is no ASCII is 6, a space 3.
    let longest = ["x".repeat(250), "é".repeat(41) + "xxxx", ".".repeat(83)];
    let longer = ["x".repeat(251), "é".repeat(41) + "xx  ", ".".repeat(84)];
    let all = longest.iter().chain(&longer);
    let input: Vec<_> = all.map(|item| (item.as_str(), 1, 60)).collect();

    let (findings, _, results) = compute(&graph, &input, &[]);

    assert_eq!(findings, Vec::<String>::new());
    let mut wanted = longest.map(|item| result(&item, 0, 3600, 1)).to_vec();
    wanted.sort_by_key(|row| format!("{row:?}"));
    let mut found = results;
    found.sort_by_key(|row| format!("{row:?}"));
    assert_eq!(found, wanted);
}
