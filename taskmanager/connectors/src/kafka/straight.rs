//! At least once: rows go straight to the topic.
//!
//! Owns: an idempotent producer, and that a barrier is passed only when every row before it was
//! delivered. Start at: [`StraightWriter`].

use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};
use streamforge_core::ids::CheckpointId;
use streamforge_engine::batch::{BadRows, StreamBatch};
use streamforge_engine::error::Error;
use streamforge_engine::sink::{SinkWriter, Staging};

use super::client::{Context, Ear};
use super::config::cannot_open;
use super::encode::Encoder;
use super::staged::Record;
use super::writer::{KafkaSinkSpec, encoder, view_with_patience};
use crate::error::{failed, refused};

/// How long a row may wait for its delivery. Longer, and the attempt ends; rows since the last
/// checkpoint come again.
const DELIVERY_TIMEOUT: Duration = Duration::from_secs(120);

/// Pause between two looks at deliveries.
const STEP: Duration = Duration::from_millis(1);

/// Writes the rows of one subtask.
pub struct StraightWriter {
    spec: KafkaSinkSpec,
    slot: u32,
    open: Option<Open>,
}

struct Open {
    producer: BaseProducer<Context>,
    ear: Arc<Ear>,
    encoder: Encoder,
}

impl std::fmt::Debug for StraightWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "StraightWriter({}#{})",
            self.spec.config.topic, self.slot
        )
    }
}

impl StraightWriter {
    /// A writer; asks nobody yet.
    pub fn new(spec: KafkaSinkSpec, slot: u32) -> Self {
        StraightWriter {
            spec,
            slot,
            open: None,
        }
    }

    async fn open(&mut self) -> Result<&mut Open, Error> {
        if self.open.is_none() {
            let view = view_with_patience(&self.spec).await?;
            let context = Context::default();
            let ear = Arc::clone(&context.ear);
            let access = &self.spec.config.access;
            let secrets = self.spec.lookup.secrets.as_deref();
            let limit = view.limits.message_bytes_max;
            let mut config = access.idempotent_producer("streamforge", limit, secrets)?;
            config.set(
                "message.timeout.ms",
                DELIVERY_TIMEOUT.as_millis().to_string(),
            );
            let producer = config
                .create_with_context(context)
                .map_err(|error| cannot_open("a producer of kafka", error))?;
            self.open = Some(Open {
                producer,
                ear,
                encoder: encoder(&self.spec, &view, self.slot),
            });
        }
        self.open
            .as_mut()
            .ok_or_else(|| refused("open a producer of kafka", "it is gone"))
    }
}

/// The half of [`Open`] that does not encode.
struct Sender<'a> {
    producer: &'a BaseProducer<Context>,
    ear: &'a Ear,
}

impl Sender<'_> {
    fn send(&self, topic: &str, record: Record<'_>) -> Result<(), KafkaError> {
        let mut base: BaseRecord<'_, [u8], [u8]> =
            BaseRecord::to(topic).partition(record.partition);
        base.key = record.key;
        base.payload = record.value;
        loop {
            match self.producer.send(base) {
                Ok(()) => return Ok(()),
                // What is queued will be delivered or time out.
                Err((KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull), back)) => {
                    base = back;
                    self.producer.poll(STEP);
                    if let Some(error) = self.ear.take_failed_delivery() {
                        return Err(error);
                    }
                }
                Err((error, _)) => return Err(error),
            }
        }
    }

    fn check_deliveries(&self) -> Result<(), KafkaError> {
        self.producer.poll(Duration::ZERO);
        self.ear.take_failed_delivery().map_or(Ok(()), Err)
    }

    /// Waits for every delivery report.
    fn drain(&self) -> Result<(), KafkaError> {
        let began = Instant::now();
        while self.producer.in_flight_count() > 0 {
            self.producer.poll(STEP);
            if began.elapsed() > DELIVERY_TIMEOUT * 2 {
                return Err(KafkaError::Flush(RDKafkaErrorCode::OperationTimedOut));
            }
        }
        self.check_deliveries()
    }
}

#[async_trait]
impl SinkWriter for StraightWriter {
    async fn write(&mut self, batch: StreamBatch) -> Result<BadRows, Error> {
        let mut bad = BadRows::default();
        if batch.is_empty() {
            return Ok(bad);
        }
        let topic = self.spec.config.topic.clone();
        let action = || format!("write rows to topic {topic}");
        let Open {
            producer,
            ear,
            encoder,
        } = self.open().await?;
        let mut sending = Ok(());
        let sender = Sender { producer, ear };
        encoder
            .encode(&batch, &mut bad, &mut |record| {
                if sending.is_ok() {
                    sending = sender.send(&topic, record);
                }
            })
            .map_err(|error| failed(action(), true, error))?;
        sending
            .and_then(|()| sender.check_deliveries())
            .map_err(|error| failed(action(), true, error))?;
        Ok(bad)
    }

    fn stage(&mut self, _: CheckpointId) -> Result<Staging, Error> {
        let nothing = Box::pin(std::future::ready(Ok(None)));
        let Some(open) = &self.open else {
            return Ok(nothing);
        };
        let sender = Sender {
            producer: &open.producer,
            ear: &open.ear,
        };
        sender.drain().map_err(|error| {
            let topic = &self.spec.config.topic;
            failed(format!("deliver rows to topic {topic}"), true, error)
        })?;
        Ok(nothing)
    }

    fn close_at_next_stage(&mut self) {}
}
