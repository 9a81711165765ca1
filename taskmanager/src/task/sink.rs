//! The sinks of a task.
//!
//! Owns: connecting them, and writing rows at their pace. What keeps a sink from taking rows and may pass,
//! an outside system that is away or a head that cannot be read (F4), is waited for. The end of the
//! attempt ends every wait: the next one is not loaded before.

use std::sync::Arc;
use std::time::Duration;

use streamforge_core::ids::SlotId;
use streamforge_engine::batch::{BadRows, StreamBatch};
use streamforge_engine::error::Error;
use streamforge_engine::sink::SinkWriter;

use super::{Flow, TaskShell};
use crate::clock::Clock;
use crate::pace::Pace;
use crate::sight::{self, HeadSight};

/// Pause before a sink that could not connect tries it again.
const CONNECT_PAUSE: Duration = Duration::from_millis(500);

/// A sink's writer within the task.
pub struct Writer {
    /// Which slot its intervals belong to.
    pub slot: SlotId,
    /// The connector's writer.
    pub writer: Box<dyn SinkWriter>,
    /// Whether it is connected; until then its rows wait.
    pub is_open: bool,
    /// `rateLimit`, of all subtasks.
    pub rate_limit: Option<u64>,
    /// This subtask's share.
    pub pace: Option<Pace>,
    /// Its rows are visible at once: they wait while this is lost (F4).
    pub waits_for: Option<Arc<HeadSight>>,
}

impl Writer {
    /// Connects to the outside system, or says what keeps it from that.
    pub async fn open(&mut self) -> Result<Option<String>, Error> {
        if self.is_open {
            return Ok(None);
        }
        let trouble = self.writer.open().await?;
        self.is_open = trouble.is_none();
        Ok(trouble)
    }

    /// What its next rows wait for at least: the head (F4), or their pace.
    fn pause(&mut self, now_us: u64) -> Option<Duration> {
        if self.waits_for.as_ref().is_some_and(|it| it.is_lost()) {
            return Some(sight::LOOK_EVERY);
        }
        self.pace.as_mut().and_then(|pace| pace.pause(now_us))
    }

    /// Writes rows when they may go.
    async fn write(&mut self, rows: StreamBatch, clock: Clock) -> Result<BadRows, Error> {
        while let Some(pause) = self.pause(clock.now_us()) {
            tokio::time::sleep(pause).await;
        }
        let rows_n = rows.len() as u64;
        let refused = self.writer.write(rows).await?;
        if let Some(pace) = &mut self.pace {
            pace.on_rows(rows_n);
        }
        Ok(refused)
    }
}

impl TaskShell {
    /// Waits until a sink is connected; people are told what it waits for.
    fn connect(&mut self, operator: usize) -> Result<Flow, Error> {
        let Some(writer) = self.writers.get_mut(&operator) else {
            return Ok(Flow::GoOn);
        };
        let (inbox, sink) = (&self.inbox, &writer.slot.sink.clone());
        let mut waits = false;
        while !writer.is_open {
            let opened = self.runtime.block_on(async {
                tokio::select! {
                    opened = writer.open() => Some(opened),
                    () = inbox.cancelled() => None,
                }
            });
            let trouble = match opened {
                None => return Ok(Flow::Over),
                Some(opened) => opened?,
            };
            match trouble {
                Some(trouble) => {
                    if !std::mem::replace(&mut waits, true) {
                        tracing::warn!(sink = sink.0, trouble, "sink waits");
                    }
                    self.progress.on_sink_waits(sink, trouble);
                    let _over_at_the_next_look = self.runtime.block_on(async {
                        tokio::time::timeout(CONNECT_PAUSE, inbox.cancelled()).await
                    });
                }
                None if waits => tracing::info!(sink = sink.0, "sink goes on"),
                None => {}
            }
        }
        Ok(Flow::GoOn)
    }

    pub(super) fn write(&mut self, operator: usize, batch: StreamBatch) -> Result<Flow, Error> {
        if let Flow::Over = self.connect(operator)? {
            return Ok(Flow::Over);
        }
        let Some(writer) = self.writers.get_mut(&operator) else {
            return Ok(Flow::GoOn);
        };
        let step = writer.pace.as_ref().map_or(batch.len(), Pace::step).max(1);
        let (inbox, clock) = (&self.inbox, self.clock);
        let mut bad = Vec::new();
        let mut offset = 0;
        while offset < batch.len() {
            let n = step.min(batch.len() - offset);
            let rows = batch.slice(offset, n);
            let written = self.runtime.block_on(async {
                tokio::select! {
                    biased;
                    () = inbox.cancelled() => None,
                    refused = writer.write(rows, clock) => Some(refused),
                }
            });
            let Some(refused) = written else {
                return Ok(Flow::Over);
            };
            let refused = refused?;
            if !refused.is_empty() {
                bad.push(refused);
            }
            offset += n;
        }
        for bad in bad {
            self.core.on_sink_bad(operator, bad)?;
        }
        Ok(Flow::GoOn)
    }
}

#[cfg(test)]
mod tests {
    use std::future::ready;

    use arrow::array::{ArrayRef, Int64Array, RecordBatch};
    use async_trait::async_trait;
    use futures::FutureExt as _;
    use streamforge_core::ids::{CheckpointId, OperatorUid};
    use streamforge_engine::sink::Staging;

    use super::*;

    /// Counts rows.
    struct Counting(Arc<std::sync::atomic::AtomicUsize>);

    #[async_trait]
    impl SinkWriter for Counting {
        async fn write(&mut self, batch: StreamBatch) -> Result<BadRows, Error> {
            let rows_n = batch.len();
            self.0
                .fetch_add(rows_n, std::sync::atomic::Ordering::Relaxed);
            Ok(BadRows::default())
        }

        fn stage(&mut self, _: CheckpointId) -> Result<Staging, Error> {
            Ok(Box::pin(ready(Ok(None))))
        }

        fn close_at_next_stage(&mut self) {}
    }

    fn rows() -> StreamBatch {
        let array: ArrayRef = Arc::new(Int64Array::from_iter_values(0..3));
        let batch = RecordBatch::try_from_iter([("n", array)]);
        StreamBatch::plain(batch.expect("one column"))
    }

    #[tokio::test]
    async fn every_step_of_a_batch_waits_while_the_head_is_out_of_sight_f4() {
        let (sight, written) = (Arc::new(HeadSight::default()), Arc::default());
        let mut writer = Writer {
            slot: SlotId {
                sink: OperatorUid("out".to_owned()),
                slot: 0,
            },
            writer: Box::new(Counting(Arc::clone(&written))),
            is_open: true,
            rate_limit: None,
            pace: None,
            waits_for: Some(Arc::clone(&sight)),
        };
        let clock = Clock::start();
        let written_n = || written.load(std::sync::atomic::Ordering::Relaxed);
        writer.write(rows(), clock).await.expect("it writes");
        assert_eq!(written_n(), 3);

        sight.lose();
        let waits = writer.write(rows(), clock).now_or_never();
        assert!(
            waits.is_none() && written_n() == 3,
            "{} written",
            written_n()
        );

        sight.found();
        writer.write(rows(), clock).await.expect("it writes");
        assert_eq!(written_n(), 6);
    }
}
