//! How an attempt's threads end: tasks whose sinks and ways to each other are a test's.

use std::future::ready;
use std::time::Duration;

use async_trait::async_trait;
use streamforge_core::job_graph::JobGraph;
use streamforge_core::key_group::Assignment;
use streamforge_core::messages::Place;
use streamforge_engine::batch::{BadRows, StreamBatch};
use streamforge_engine::error::Error as EngineError;
use streamforge_engine::sink::{SinkWriter, Staging};

use super::*;
use crate::manager::tests::{context, stamp, task_manager};
use crate::pace::Pace;

/// Long enough for any machine; nothing that passes waits for it.
const LONG: Duration = Duration::from_secs(20);

const BATCH: u64 = 100;

/// Of so many rows, that are there at once.
fn graph() -> JobGraph {
    let document = format!(
        r#"
apiVersion: streamforge.io/v1alpha1
kind: StreamJob
metadata: {{name: clicks}}
spec:
  sources:
    - name: clicks
      generator: {{clicks: {{rows: {BATCH}, users: 5, seed: 1}}}}
      eventTime: {{column: ts}}
  transforms:
    - name: counts
      from: clicks
      aggregate: {{groupBy: [user_id], window: {{tumbling: {{size: 1m}}}}, select: ["count(*) AS n"]}}
  sinks:
    - {{name: rows, from: clicks, blackhole: {{}}}}
    - {{name: numbers, from: counts, blackhole: {{}}}}
"#
    );
    let loaded = streamforge_plan::load(&document, "clicks.yaml").expect("it is a job");
    streamforge_plan::plan(&loaded)
}

fn deployment() -> Deployment {
    let graph = graph();
    let place = Place {
        task_manager: task_manager("a"),
        exchange: String::new(),
    };
    Deployment {
        parallelism: 1,
        assignment: Assignment::even(graph.max_parallelism, 1),
        graph,
        restore: None,
        first_id: CheckpointId::from_stored(1),
        placement: BTreeMap::from([(SubtaskIdx(0), place)]),
        born: Generation::ZERO,
        slots: BTreeMap::new(),
    }
}

/// A loaded attempt, what its source reads, and what it says.
async fn loaded() -> (Attempt, Dealt, mpsc::Receiver<(Stamp, Event)>) {
    let (events, said) = mpsc::channel(64);
    let prepared = Attempt::prepare(&context("a"), stamp(), deployment(), events).await;
    let Prepared { attempt, splits } = prepared.expect("nothing is in its way");
    let dealt = |(source, splits)| (source, BTreeMap::from([(SubtaskIdx(0), splits)]));
    (attempt, splits.into_iter().map(dealt).collect(), said)
}

/// Tells how many rows it took.
struct Told(mpsc::UnboundedSender<usize>);

#[async_trait]
impl SinkWriter for Told {
    async fn write(&mut self, batch: StreamBatch) -> Result<BadRows, EngineError> {
        let _test_is_over = self.0.send(batch.len());
        Ok(BadRows::default())
    }

    fn stage(&mut self, _: CheckpointId) -> Result<Staging, EngineError> {
        Ok(Box::pin(ready(Ok(None))))
    }

    fn close_at_next_stage(&mut self) {}
}

#[tokio::test(flavor = "multi_thread")]
async fn attempt_ends_while_rows_wait_for_the_pace_of_their_sink() {
    let (mut attempt, dealt, _said) = loaded().await;
    let (written, mut told) = mpsc::unbounded_channel();
    let writers = attempt.shells.iter_mut();
    for writer in writers.flat_map(|it| it.writers.values_mut()) {
        writer.writer = Box::new(Told(written.clone()));
        writer.pace = Some(Pace::share(1, 1));
    }
    attempt.start(dealt);
    // The last row of the batch is due in more than a minute.
    assert_eq!(told.recv().await, Some(1));

    let ended = tokio::time::timeout(LONG, attempt.end()).await;

    ended.expect("the next attempt waits for its threads");
    let written_n = 1 + std::iter::from_fn(|| told.try_recv().ok()).sum::<usize>();
    assert!(written_n < BATCH as usize, "{written_n}");
}

/// Leads every channel to somebody who is gone.
fn cut(attempt: &mut Attempt) {
    let gone = Arc::new(Inbox::new(1));
    gone.cancel();
    let routes = attempt.shells.iter_mut();
    let routes = routes.flat_map(|it| it.routes.values_mut());
    for outlet in routes.flat_map(|route| route.values_mut()) {
        *outlet = Outlet::Local(Arc::clone(&gone), 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn task_whose_channel_is_over_does_not_end_without_a_word_b2() {
    let (mut attempt, dealt, mut said) = loaded().await;
    cut(&mut attempt);
    attempt.start(dealt);

    let failed = async {
        loop {
            match said.recv().await {
                Some((_, Event::Failed { task, cause, retry })) => break (task, cause, retry),
                Some(_) => {}
                None => panic!("it lives"),
            }
        }
    };
    let failed = tokio::time::timeout(LONG, failed).await;

    let (task, cause, retry) = failed.expect("it is told");
    assert!(task.is_some() && retry, "{cause}");
    assert!(cause.contains("the channel is over"), "{cause}");
    attempt.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn task_whose_channel_was_ended_with_the_attempt_says_nothing() {
    let (mut attempt, dealt, mut said) = loaded().await;
    cut(&mut attempt);
    attempt.start(dealt);

    attempt.end().await;

    while let Some((_, event)) = said.recv().await {
        assert!(!matches!(event, Event::Failed { .. }), "{event:?}");
    }
}
