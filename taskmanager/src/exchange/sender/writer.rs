//! From a queue to numbered messages.
//!
//! Owns: cutting large batches, one frame at a time as credit allows, and the number of each message.
//! The stream it makes is polled by the connection, so encoding runs on the exchange's runtime.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use futures::Stream;
use streamforge_core::causes::with_causes;
use streamforge_engine::batch::StreamBatch;
use streamforge_engine::task::Element;
use streamforge_proto::convert::exchange::{Opening, encode_barrier, rows_bytes};
use streamforge_proto::v1;
use streamforge_proto::v1::downstream::What;

use super::super::frame::{self, Encoder, batch_bytes};
use super::super::{MESSAGE_BYTES_MAX, Shared, Totals};
use super::Ending;
use super::queue::{Queue, Taken};

/// Room in a message for what travels beside a frame's rows.
const MESSAGE_OVERHEAD: usize = 64 * 1024;

/// A batch of which frames are still to be made.
struct Cut {
    batch: StreamBatch,
    offset: usize,
    rows_per_frame: usize,
}

/// A message that is ready but for its number; rows also wait for credit.
struct Ready {
    what: What,
    rows_n: usize,
}

/// See the module.
pub struct Writer {
    queue: Arc<Queue>,
    shared: Arc<Shared>,
    ending: Ending,
    encoder: Encoder,
    cut: Option<Cut>,
    ready: VecDeque<Ready>,
    number: u64,
    /// From then on rows may go however few they are.
    rested: Instant,
}

#[derive(Debug, thiserror::Error)]
enum Error {
    #[error(transparent)]
    Frame(#[from] frame::Error),
    #[error("a row of {bytes} bytes is larger than a message may be ({MESSAGE_BYTES_MAX} bytes)")]
    TooLarge { bytes: u64 },
}

impl Writer {
    /// Its first message is the opening.
    pub fn new(opening: Opening, queue: Arc<Queue>, shared: Arc<Shared>, ending: Ending) -> Self {
        let opening = Ready {
            what: What::Opening(opening.into()),
            rows_n: 0,
        };
        Self {
            queue,
            shared,
            ending,
            encoder: Encoder::default(),
            cut: None,
            ready: VecDeque::from([opening]),
            number: 0,
            rested: Instant::now(),
        }
    }

    /// The messages, until the channel is over.
    pub fn into_stream(self) -> impl Stream<Item = v1::Downstream> + Send + 'static {
        futures::stream::unfold(self, |mut writer| async move {
            let message = writer.next().await?;
            Some((message, writer))
        })
    }

    async fn next(&mut self) -> Option<v1::Downstream> {
        loop {
            if let Some(what) = self.next_ready().await? {
                self.number += 1;
                return Some(v1::Downstream {
                    number: self.number,
                    what: Some(what),
                });
            }
            if let Err(error) = self.fill().await? {
                self.ending.broken(with_causes(&error));
                return None;
            }
        }
    }

    /// The first message that is ready, once there is credit for it. `None` within: there is none.
    async fn next_ready(&mut self) -> Option<Option<What>> {
        let Some(first) = self.ready.front() else {
            return Some(None);
        };
        if let What::Rows(rows) = &first.what {
            let bytes = rows_bytes(rows);
            let mut counted = false;
            while !self.queue.try_spend(bytes) {
                if self.queue.is_over() {
                    return None;
                }
                if !counted {
                    Totals::add(&self.shared.totals.out_of_credit, 1);
                    counted = true;
                }
                self.queue.changed(None).await;
            }
            let totals = &self.shared.totals;
            totals.frames_sent.fetch_add(1, Ordering::Relaxed);
            Totals::add(&totals.bytes_sent, bytes);
            Totals::add(&totals.rows_sent, first.rows_n as u64);
        }
        self.ready.pop_front().map(|first| Some(first.what))
    }

    /// Makes the next messages ready. `None`: the channel is over.
    async fn fill(&mut self) -> Option<Result<(), Error>> {
        if self.cut.is_some() {
            return Some(self.next_slice());
        }
        let config = &self.shared.config;
        match self
            .queue
            .take(config.frame_bytes, config.linger, self.rested)
        {
            Taken::Over => return None,
            Taken::Empty => self.queue.changed(None).await,
            Taken::Early(until) => self.queue.changed(Some(until)).await,
            Taken::Mark(element) => {
                if let Some(what) = mark(element) {
                    self.ready.push_back(Ready { what, rows_n: 0 });
                }
            }
            Taken::Rows(batches) => {
                self.rested = Instant::now() + config.linger;
                return Some(self.on_rows(batches));
            }
        }
        Some(Ok(()))
    }

    fn on_rows(&mut self, batches: Vec<StreamBatch>) -> Result<(), Error> {
        let Some(batch) = frame::join(&batches)? else {
            return Ok(());
        };
        drop(batches);
        let frame_bytes = self.shared.config.frame_bytes.max(1);
        let frames_n = batch_bytes(&batch).div_ceil(frame_bytes).max(1);
        let rows_per_frame = batch.len().div_ceil(frames_n).max(1);
        self.cut = Some(Cut {
            batch,
            offset: 0,
            rows_per_frame,
        });
        self.next_slice()
    }

    /// Encodes the next rows of the batch that is being cut.
    fn next_slice(&mut self) -> Result<(), Error> {
        let Some(mut cut) = self.cut.take() else {
            return Ok(());
        };
        let rows_n = cut.rows_per_frame.min(cut.batch.len() - cut.offset);
        let slice = cut.batch.slice(cut.offset, rows_n);
        let encoded = self.encoder.encode(&slice)?;
        let bytes = rows_bytes(&encoded.rows);
        if let Some(layout) = encoded.layout {
            let what = What::Layout(layout);
            self.ready.push_back(Ready { what, rows_n: 0 });
        }
        if bytes > (MESSAGE_BYTES_MAX - MESSAGE_OVERHEAD) as u64 {
            if rows_n <= 1 {
                return Err(Error::TooLarge { bytes });
            }
            // Rows of very different sizes: once more, with fewer.
            cut.rows_per_frame = rows_n / 2;
            self.cut = Some(cut);
            return Ok(());
        }
        cut.offset += rows_n;
        let done = cut.offset >= cut.batch.len();
        self.ready.push_back(Ready {
            what: What::Rows(encoded.rows),
            rows_n,
        });
        if !done {
            self.cut = Some(cut);
        }
        Ok(())
    }
}

fn mark(element: Element) -> Option<What> {
    Some(match element {
        Element::Batch(_) => return None,
        Element::Watermark(watermark) => What::Watermark(watermark.0),
        Element::Idle => What::Idle(v1::Nothing {}),
        Element::Rejoin => What::Rejoin(v1::Nothing {}),
        Element::Barrier(barrier) => {
            let mark = encode_barrier(barrier.id, barrier.kind);
            let generation = barrier.begun_by.get();
            What::Barrier(v1::BarrierMark { generation, ..mark })
        }
    })
}
