//! At least once: rows go straight to the topic.
//!
//! Owns: an idempotent producer, and that a checkpoint is acknowledged only when every row before its
//! barrier was delivered; the task does not stand still for that. Start at: [`StraightWriter`].

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use rdkafka::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::DeliveryResult;
use rdkafka::producer::{BaseProducer, BaseRecord, Producer, ProducerContext};
use streamforge_core::ids::CheckpointId;
use streamforge_engine::batch::{BadRows, StreamBatch};
use streamforge_engine::error::Error;
use streamforge_engine::sink::{SinkWriter, Staging};

use super::client::Context;
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
    /// Number of the interval that rows belong to now.
    interval: usize,
}

struct Open {
    producer: Arc<BaseProducer<Told>>,
    encoder: Encoder,
}

/// What became of the rows that were handed over.
#[derive(Debug, Default)]
struct Deliveries {
    /// Rows of each interval without a report. Below zero for a moment: reports come on other
    /// threads, too, before a batch is counted.
    open: BTreeMap<usize, i64>,
    /// The first that failed; the attempt is over then.
    failed: Option<KafkaError>,
}

/// The producer's context: every row carries the number of its interval.
#[derive(Clone, Debug, Default)]
struct Told {
    client: Context,
    deliveries: Arc<Mutex<Deliveries>>,
}

impl Told {
    fn deliveries(&self) -> MutexGuard<'_, Deliveries> {
        self.deliveries
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn check(&self) -> Result<(), KafkaError> {
        self.deliveries().failed.clone().map_or(Ok(()), Err)
    }
}

impl ClientContext for Told {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        self.client.log(level, facility, message);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        self.client.error(error, reason);
    }
}

impl ProducerContext for Told {
    type DeliveryOpaque = usize;

    fn delivery(&self, result: &DeliveryResult<'_>, interval: usize) {
        let mut deliveries = self.deliveries();
        *deliveries.open.entry(interval).or_default() -= 1;
        if let Err((error, _)) = result
            && deliveries.failed.is_none()
        {
            deliveries.failed = Some(error.clone());
        }
    }
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
            interval: 0,
        }
    }

    async fn open(&mut self) -> Result<&mut Open, Error> {
        if self.open.is_none() {
            let view = view_with_patience(&self.spec).await?;
            let access = &self.spec.config.access;
            let secrets = self.spec.lookup.secrets.as_deref();
            let limit = view.limits.message_bytes_max;
            let mut config = access.idempotent_producer("streamforge", limit, secrets)?;
            config.set(
                "message.timeout.ms",
                DELIVERY_TIMEOUT.as_millis().to_string(),
            );
            let producer: BaseProducer<Told> = config
                .create_with_context(Told::default())
                .map_err(|error| cannot_open("a producer of kafka", error))?;
            self.open = Some(Open {
                producer: Arc::new(producer),
                encoder: encoder(&self.spec, &view, self.slot),
            });
        }
        self.open
            .as_mut()
            .ok_or_else(|| refused("open a producer of kafka", "it is gone"))
    }
}

fn send(
    producer: &BaseProducer<Told>,
    topic: &str,
    record: Record<'_>,
    interval: usize,
) -> Result<(), KafkaError> {
    let mut base: BaseRecord<'_, [u8], [u8], usize> =
        BaseRecord::with_opaque_to(topic, interval).partition(record.partition);
    base.key = record.key;
    base.payload = record.value;
    loop {
        match producer.send(base) {
            Ok(()) => return Ok(()),
            // What is queued will be delivered or time out.
            Err((KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull), back)) => {
                base = back;
                producer.poll(STEP);
                producer.client().context().check()?;
            }
            Err((error, _)) => return Err(error),
        }
    }
}

/// Waits until every row of an interval is delivered. Blocks.
fn drain(producer: &BaseProducer<Told>, interval: usize) -> Result<(), KafkaError> {
    let began = Instant::now();
    let told = producer.client().context();
    let open = || told.deliveries().open.get(&interval).copied();
    while open().is_some_and(|n| n != 0) {
        producer.poll(STEP);
        told.check()?;
        if began.elapsed() > DELIVERY_TIMEOUT * 2 {
            return Err(KafkaError::Flush(RDKafkaErrorCode::OperationTimedOut));
        }
    }
    told.deliveries().open.remove(&interval);
    told.check()
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
        let interval = self.interval;
        let Open { producer, encoder } = self.open().await?;
        let mut sending = Ok(());
        let mut sent_n = 0;
        encoder
            .encode(&batch, &mut bad, &mut |record| {
                if sending.is_ok() {
                    sending = send(producer, &topic, record, interval);
                    sent_n += i64::from(sending.is_ok());
                }
            })
            .map_err(|error| failed(action(), true, error))?;
        let told = producer.client().context();
        *told.deliveries().open.entry(interval).or_default() += sent_n;
        producer.poll(Duration::ZERO);
        sending
            .and_then(|()| told.check())
            .map_err(|error| failed(action(), true, error))?;
        Ok(bad)
    }

    fn stage(&mut self, _: CheckpointId) -> Result<Staging, Error> {
        let Some(open) = &self.open else {
            return Ok(Box::pin(std::future::ready(Ok(None))));
        };
        let (producer, interval) = (Arc::clone(&open.producer), self.interval);
        self.interval += 1;
        let action = format!("deliver rows to topic {}", self.spec.config.topic);
        Ok(Box::pin(async move {
            let drained = tokio::task::spawn_blocking(move || drain(&producer, interval)).await;
            match drained {
                Ok(Ok(())) => Ok(None),
                Ok(Err(error)) => Err(failed(action, true, error)),
                Err(error) => Err(failed(action, true, error)),
            }
        }))
    }

    fn close_at_next_stage(&mut self) {}
}
