//! The sinks of a task.
//!
//! Owns: connecting them, and writing rows at their pace. What keeps a sink from taking rows and may pass,
//! an outside system that is away or a head that cannot be read (F4), is waited for.

use std::sync::Arc;
use std::time::Duration;

use streamforge_core::ids::SlotId;
use streamforge_engine::batch::StreamBatch;
use streamforge_engine::error::Error;
use streamforge_engine::sink::SinkWriter;

use super::{Flow, TaskShell};
use crate::inbox::Next;
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
        while writer.waits_for.as_ref().is_some_and(|it| it.is_lost()) {
            if let Next::Cancelled = self.inbox.try_control(|_| false) {
                return Ok(Flow::Over);
            }
            std::thread::sleep(sight::LOOK_EVERY);
        }
        let step = writer.pace.as_ref().map_or(batch.len(), Pace::step).max(1);
        let mut bad = Vec::new();
        let mut offset = 0;
        while offset < batch.len() {
            if let Some(pause) = writer
                .pace
                .as_mut()
                .and_then(|p| p.pause(self.clock.now_us()))
            {
                std::thread::sleep(pause);
            }
            let n = step.min(batch.len() - offset);
            let refused = self
                .runtime
                .block_on(writer.writer.write(batch.slice(offset, n)))?;
            if let Some(pace) = &mut writer.pace {
                pace.on_rows(n as u64);
            }
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
