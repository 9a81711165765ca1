//! How long a barrier stops an operator: the freeze of one million keys.
//!
//! Owns: filling a windowed operator and timing its `snapshot`. What follows the freeze (conversion,
//! upload) runs on other threads and is not in it.
//! Aim: at most 1 ms for sliced windows and 20 ms for sessions, per subtask.

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow::array::{Array, ArrayRef, Int64Array, RecordBatch, TimestampMicrosecondArray};
use arrow::datatypes::{DataType, Field, Schema};
use criterion::{Criterion, criterion_group, criterion_main};
use streamforge_core::ids::{CheckpointId, StageIdx, SubtaskIdx, TaskId};
use streamforge_core::job_graph::{JobGraph, OperatorKind, Port};
use streamforge_engine::batch::StreamBatch;
use streamforge_engine::operator::{Operator, Outputs};
use streamforge_engine::task::Chained;
use streamforge_taskmanager::registry;

const KEYS: i64 = 1_000_000;
const BATCH_ROWS: i64 = 8_192;

fn document(window: &str) -> String {
    format!(
        r#"
apiVersion: streamforge.io/v1alpha1
kind: StreamJob
metadata: {{name: freeze}}
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

/// The two halves of the job's aggregate, as a task would run them.
struct Aggregate {
    first: Box<dyn Operator>,
    second: Box<dyn Operator>,
    columns: Vec<String>,
}

impl Aggregate {
    fn new(window: &str) -> Self {
        let loaded = streamforge_plan::load(&document(window), "freeze.yaml");
        let graph = streamforge_plan::plan(&loaded.expect("the document is right"));
        let built = |wanted: fn(&OperatorKind) -> bool| built(&graph, wanted);
        let first = built(|kind| matches!(kind, OperatorKind::WindowPartial(_)));
        let second = built(|kind| matches!(kind, OperatorKind::WindowFinal(_)));
        let spec = graph
            .stages
            .iter()
            .flat_map(|s| &s.operators)
            .find_map(|o| match &o.kind {
                OperatorKind::WindowPartial(spec) => Some(spec),
                _ => None,
            });
        let columns = spec.expect("the job has an aggregate").input.iter();
        Self {
            first,
            second,
            columns: columns.map(|c| c.name.clone()).collect(),
        }
    }

    /// One row for each key, all in one window.
    fn fill(&mut self, round: i64) {
        let mut out = Outputs::new(false, false);
        for begin in (0..KEYS).step_by(BATCH_ROWS as usize) {
            let end = (begin + BATCH_ROWS).min(KEYS);
            let batch = self.batch(begin, end, round);
            self.first
                .on_batch(0, batch, &mut out)
                .expect("rows are good");
            self.first.flush(&mut out).expect("a flush succeeds");
            for (port, batch) in out.take() {
                assert_eq!(port, Port::Main);
                self.second
                    .on_batch(0, batch, &mut out)
                    .expect("partials are good");
            }
        }
    }

    fn batch(&self, begin: i64, end: i64, round: i64) -> StreamBatch {
        let times: Vec<i64> = (begin..end)
            .map(|k| 1_000_000 + round + k % 1_000)
            .collect();
        let column = |name: &String| -> (Field, ArrayRef) {
            if name == "ts" {
                let times = TimestampMicrosecondArray::from(times.clone());
                (
                    Field::new(name, times.data_type().clone(), true),
                    Arc::new(times),
                )
            } else {
                let values = Int64Array::from_iter_values(begin..end);
                (Field::new(name, DataType::Int64, false), Arc::new(values))
            }
        };
        let (fields, arrays): (Vec<Field>, Vec<ArrayRef>) = self.columns.iter().map(column).unzip();
        let rows =
            RecordBatch::try_new(Arc::new(Schema::new(fields)), arrays).expect("it is one length");
        let mut batch = StreamBatch::plain(rows);
        batch.event_time = Some(TimestampMicrosecondArray::from(times));
        batch
    }
}

fn built(graph: &JobGraph, wanted: fn(&OperatorKind) -> bool) -> Box<dyn Operator> {
    for (idx, stage) in graph.stages.iter().enumerate() {
        for operator in stage.operators.iter().filter(|o| wanted(&o.kind)) {
            let stage = StageIdx(u32::try_from(idx).expect("few stages"));
            let task = TaskId {
                stage,
                subtask: SubtaskIdx(0),
            };
            match registry::build(operator, graph, task).expect("the operator can be built") {
                Chained::Operator(operator) => return operator,
                _ => continue,
            }
        }
    }
    panic!("the job has no such operator");
}

fn freeze(c: &mut Criterion) {
    let mut group = c.benchmark_group("freeze of 1,000,000 keys");
    group
        .sample_size(10)
        .measurement_time(Duration::from_secs(5));
    for (name, window) in [
        ("tumbling", "{tumbling: {size: 1h}}"),
        ("session", "{session: {gap: 1h}}"),
    ] {
        let mut aggregate = Aggregate::new(window);
        let mut round = 0;
        group.bench_function(name, |b| {
            b.iter_custom(|iterations| {
                let mut took = Duration::ZERO;
                for _ in 0..iterations {
                    round += 1;
                    aggregate.fill(round);
                    let id = CheckpointId::from_stored(u64::try_from(round).expect("it counts up"));
                    let start = Instant::now();
                    let snapshot = aggregate.second.snapshot(id).expect("a snapshot succeeds");
                    took += start.elapsed();
                    // The uploader does this meanwhile; with two tables unconverted the next is declined.
                    for part in snapshot.expect("nothing is unconverted").parts {
                        black_box(part.rows().expect("the table is whole").rows.num_rows());
                    }
                }
                took
            });
        });
    }
    group.finish();
}

criterion_group!(benches, freeze);
criterion_main!(benches);
