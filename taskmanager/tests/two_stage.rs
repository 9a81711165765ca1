//! What partial aggregation before the shuffle spares the wire.
//!
//! Owns: counting the rows that a windowed aggregate's first half sends for the rows it gets.

#![expect(clippy::unwrap_used, reason = "a test")]

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, Int64Array, RecordBatch, TimestampMicrosecondArray};
use arrow::datatypes::{Field, Schema};
use streamforge_core::event_time::Watermark;
use streamforge_core::ids::{StageIdx, SubtaskIdx, TaskId};
use streamforge_core::job_graph::OperatorKind;
use streamforge_engine::batch::{BATCH_ROWS, StreamBatch};
use streamforge_engine::operator::{Operator, Outputs};
use streamforge_engine::task::Chained;
use streamforge_taskmanager::registry;

const KEYS: i64 = 1_000;

/// Event time goes on by this per row: 100,000 rows a second.
const STEP_US: i64 = 10;

fn document(window: &str) -> String {
    format!(
        r#"
apiVersion: streamforge.io/v1alpha1
kind: StreamJob
metadata: {{name: two-stage}}
spec:
  sources:
    - name: events
      file: {{path: "in/*.ndjson"}}
      format: {{json: {{}}}}
      schema: [{{name: k, type: BIGINT, nullable: false}}, {{name: v, type: BIGINT, nullable: false}}, {{name: ts, type: TIMESTAMP}}]
      eventTime: {{column: ts}}
  transforms:
    - {{name: sums, from: events, aggregate: {{groupBy: [k], window: {window}, select: ["count(*) AS n", "sum(v) AS total"]}}}}
  sinks:
    - {{name: out, from: sums, blackhole: {{}}}}
"#
    )
}

/// The first half of the document's aggregate, and the columns that it reads.
fn partial(window: &str) -> (Box<dyn Operator>, Vec<String>) {
    let loaded = streamforge_plan::load(&document(window), "two-stage.yaml").unwrap();
    let graph = streamforge_plan::plan(&loaded);
    for (idx, stage) in graph.stages.iter().enumerate() {
        for operator in &stage.operators {
            let OperatorKind::WindowPartial(spec) = &operator.kind else {
                continue;
            };
            let columns = spec
                .input
                .iter()
                .map(|column| column.name.clone())
                .collect();
            let task = TaskId {
                stage: StageIdx(idx as u32),
                subtask: SubtaskIdx(0),
            };
            if let Chained::Operator(built) = registry::build(operator, &graph, task).unwrap() {
                return (built, columns);
            }
        }
    }
    panic!("the job has no aggregate");
}

fn batch(columns: &[String], rows: std::ops::Range<i64>) -> StreamBatch {
    let times = TimestampMicrosecondArray::from_iter_values(rows.clone().map(|row| row * STEP_US));
    let column = |name: &String| -> (Field, ArrayRef) {
        let array: ArrayRef = match name.as_str() {
            "ts" => Arc::new(times.clone()),
            "k" => Arc::new(Int64Array::from_iter_values(
                rows.clone().map(|row| row * 7 % KEYS),
            )),
            _ => Arc::new(Int64Array::from_iter_values(rows.clone())),
        };
        let nullable = name == "ts";
        (Field::new(name, array.data_type().clone(), nullable), array)
    };
    let (fields, arrays): (Vec<Field>, Vec<ArrayRef>) = columns.iter().map(column).unzip();
    let rows = RecordBatch::try_new(Arc::new(Schema::new(fields)), arrays).unwrap();
    StreamBatch {
        event_time: Some(times),
        ..StreamBatch::plain(rows)
    }
}

/// Rows sent for a million rows read, with a watermark after every batch and a barrier's flush
/// after every second of events.
fn rows_sent(window: &str) -> usize {
    const ROWS: i64 = 1_000_000;
    let (mut operator, columns) = partial(window);
    let mut out = Outputs::new(false, false);
    let mut sent = 0;
    let mut flushed_to = 0;
    for first in (0..ROWS).step_by(BATCH_ROWS) {
        let last = (first + BATCH_ROWS as i64).min(ROWS);
        operator
            .on_batch(0, batch(&columns, first..last), &mut out)
            .unwrap();
        operator
            .on_watermark(Watermark(last * STEP_US), &mut out)
            .unwrap();
        if last * STEP_US >= flushed_to + 1_000_000 {
            flushed_to = last * STEP_US;
            operator.flush(&mut out).unwrap();
        }
        sent += out
            .take()
            .iter()
            .map(|(_, batch)| batch.len())
            .sum::<usize>();
    }
    operator.on_watermark(Watermark::END, &mut out).unwrap();
    sent += out
        .take()
        .iter()
        .map(|(_, batch)| batch.len())
        .sum::<usize>();
    sent
}

#[test]
fn two_stage_aggregation_sends_at_most_a_twentieth_of_the_rows_at_1k_keys() {
    // Ten seconds of events, a flush each second: about 1,000 groups each time, of a million rows.
    let tumbling = rows_sent("{tumbling: {size: 10s}}");
    assert!((10_000..=50_000).contains(&tumbling), "{tumbling} rows");
    // Five windows per row, one slice: no more than that.
    let hopping = rows_sent("{hopping: {size: 10s, slide: 2s}}");
    assert!((10_000..=50_000).contains(&hopping), "{hopping} rows");
}
