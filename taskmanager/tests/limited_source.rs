//! A source with a `rateLimit` hands its rows on evenly, not a large batch now and then.

#![expect(clippy::unwrap_used, reason = "a test")]

use std::sync::Arc;

use streamforge_connectors::registry::{Surroundings, open_enumerator};
use streamforge_core::ids::JobId;
use streamforge_core::job_graph::OperatorKind;
use streamforge_engine::source::SourceEvent;
use streamforge_store::MemoryStore;
use streamforge_taskmanager::task::ReaderOpening;

/// A twentieth of the second's 5,000, of which each of the two subtasks has a half.
const STEP: u64 = 125;

fn opening(limit: &str) -> ReaderOpening {
    let document = format!(
        r#"
apiVersion: streamforge.io/v1alpha1
kind: StreamJob
metadata: {{name: limited}}
spec:
  sources:
    - name: clicks
      generator: {{clicks: {{rows: 100000, users: 5, seed: 1}}}}
      {limit}
  sinks:
    - {{name: gone, from: clicks, blackhole: {{}}}}
"#
    );
    let loaded = streamforge_plan::load(&document, "limited.yaml").unwrap();
    let graph = streamforge_plan::plan(&loaded);
    let mut operators = graph.operators();
    let found = operators.find_map(|(_, operator)| match &operator.kind {
        OperatorKind::Source(spec) => Some((operator.clone(), spec.clone())),
        _ => None,
    });
    let (source, spec) = found.unwrap();
    ReaderOpening {
        source,
        spec,
        job: JobId("limited-1".to_owned()),
        surroundings: Surroundings {
            store: Arc::new(MemoryStore::default()),
            secrets: None,
            accept_lost_markers: Vec::new(),
            kafka: Default::default(),
        },
    }
}

/// Rows of the first batch that one of two subtasks reads.
async fn first_batch(limit: &str) -> u64 {
    let opening = opening(limit);
    let enumerator = open_enumerator(&opening.source, &opening.spec, &opening.surroundings);
    let splits = enumerator.unwrap().list().await.unwrap();
    let mut reader = opening.open((0, 2), splits.clone(), splits).await.unwrap();
    match reader.next().await.unwrap() {
        SourceEvent::Batch(batch) => batch.rows.num_rows() as u64,
        other => panic!("no rows: {other:?}"),
    }
}

#[tokio::test]
async fn limited_source_hands_on_a_twentieth_of_a_second_at_a_time() {
    assert_eq!(first_batch("rateLimit: {rowsPerSecond: 5000}").await, STEP);
    assert!(first_batch("").await > 10 * STEP, "a free one does not");
}
