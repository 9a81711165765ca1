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

use super::client::{Context, listen};
use super::config::cannot_open;
use super::encode::{Encoder, pieces};
use super::identity::IdentityWatch;
use super::keep::{ProducerKind, close_beside};
use super::staged::Record;
use super::writer::{KafkaSinkSpec, encoder, look, unconnected};
use crate::error::{failed, refused};

/// How long a row may wait for its delivery. Longer, and the attempt ends; rows since the last
/// checkpoint come again.
const DELIVERY_TIMEOUT: Duration = Duration::from_secs(120);

/// Writes the rows of one subtask.
pub struct StraightWriter {
    spec: KafkaSinkSpec,
    slot: u32,
    open: Option<Open>,
}

struct Open {
    kind: ProducerKind,
    producer: StraightProducer,
    encoder: Encoder,
    /// The topic's identity, and who looks whether it is still that.
    topic_id: Option<String>,
    identity: Arc<IdentityWatch>,
    /// Number of the interval that rows belong to now.
    interval: usize,
}

/// An idempotent producer that goes from one writer to the next: intervals are numbered through.
pub struct StraightProducer(Arc<BaseProducer<Told>>);

impl std::fmt::Debug for StraightProducer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("StraightProducer")
    }
}

/// What became of the rows that were handed over.
#[derive(Debug, Default)]
struct Deliveries {
    by_interval: BTreeMap<usize, Interval>,
    /// The first interval of whoever writes now. A writer before may still wait for its own.
    first: usize,
    /// The number of the next interval.
    next: usize,
}

#[derive(Debug, Default)]
struct Interval {
    /// Rows without a report. Below zero for a moment: reports come on other threads, too, before a batch
    /// is counted.
    open: i64,
    /// The first that failed; the attempt is over then.
    failed: Option<KafkaError>,
}

impl Deliveries {
    fn told(&mut self, result: Result<(), KafkaError>, interval: usize) {
        let interval = self.by_interval.entry(interval).or_default();
        interval.open -= 1;
        if let Err(error) = result {
            interval.failed.get_or_insert(error);
        }
    }

    fn sent(&mut self, n: i64, interval: usize) {
        self.by_interval.entry(interval).or_default().open += n;
    }

    /// Another writer begins; returns the number of its first interval.
    fn begin(&mut self) -> usize {
        self.by_interval
            .retain(|_, it| it.open != 0 || it.failed.is_some());
        self.first = self.next;
        self.next_interval()
    }

    fn next_interval(&mut self) -> usize {
        self.next += 1;
        self.next - 1
    }

    /// Whether all that the present writer handed over may still arrive.
    fn check(&self) -> Result<(), KafkaError> {
        let mut intervals = self.by_interval.range(self.first..);
        let failed = intervals.find_map(|(_, interval)| interval.failed.clone());
        failed.map_or(Ok(()), Err)
    }

    /// Whether an interval is delivered; `None`: not all of it has a report.
    fn delivered(&mut self, interval: usize) -> Option<Result<(), KafkaError>> {
        let found = self.by_interval.get(&interval);
        if let Some(error) = found.and_then(|it| it.failed.clone()) {
            return Some(Err(error));
        }
        if found.is_some_and(|it| it.open != 0) {
            return None;
        }
        self.by_interval.remove(&interval);
        Some(Ok(()))
    }
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
        self.deliveries().check()
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
        let result = result.as_ref().map(|_| ());
        let result = result.map_err(|(error, _)| error.clone());
        self.deliveries().told(result, interval);
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
        }
    }

    /// Connects, unless it is connected already; the reason if it cannot now.
    async fn connect(&mut self) -> Result<Result<&mut Open, String>, Error> {
        if self.open.is_none() {
            let view = match look(&self.spec).await? {
                Ok(view) => view,
                Err(reason) => return Ok(Err(reason)),
            };
            let access = &self.spec.config.access;
            let kind = ProducerKind {
                access: access.clone(),
                secrets: self.spec.lookup.secrets.clone(),
                credentials: access.credentials(self.spec.lookup.secrets.as_deref()),
                message_bytes_max: view.limits.message_bytes_max,
            };
            let producer = match self.spec.lookup.keeper.take(&kind) {
                Some(producer) => producer,
                None => StraightProducer::open(&kind)?,
            };
            let interval = producer.0.client().context().deliveries().begin();
            let (place, topic) = (self.spec.lookup.clone(), self.spec.config.topic.clone());
            self.open = Some(Open {
                topic_id: view.id.clone(),
                identity: Arc::new(IdentityWatch::new(place, topic)),
                kind,
                producer,
                encoder: encoder(&self.spec, &view, self.slot),
                interval,
            });
        }
        let open = self.open.as_mut();
        open.map(Ok)
            .ok_or_else(|| refused("open a producer of kafka", "it is gone"))
    }
}

impl StraightProducer {
    fn open(kind: &ProducerKind) -> Result<Self, Error> {
        let (limit, secrets) = (kind.message_bytes_max, kind.secrets.as_deref());
        let mut config = kind
            .access
            .idempotent_producer("streamforge", limit, secrets)?;
        config.set(
            "message.timeout.ms",
            DELIVERY_TIMEOUT.as_millis().to_string(),
        );
        let producer: BaseProducer<Told> = config
            .create_with_context(Told::default())
            .map_err(|error| cannot_open("a producer of kafka", error))?;
        Ok(Self(Arc::new(producer)))
    }

    /// Whether nothing happened that another writer would suffer from.
    fn is_sound(&self) -> bool {
        let client = self.0.client();
        client.fatal_error().is_none() && client.context().check().is_ok()
    }
}

/// The next attempt's writer finds the producer connected, with an id. What this one has handed over is
/// delivered before anything of the next one's.
impl Drop for StraightWriter {
    fn drop(&mut self) {
        let Some(Open { kind, producer, .. }) = self.open.take() else {
            return;
        };
        if producer.is_sound() {
            self.spec.lookup.keeper.give_back(kind, producer);
        } else {
            close_beside(producer);
        }
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
                listen(producer);
                producer.client().context().check()?;
            }
            Err((error, _)) => return Err(error),
        }
    }
}

/// Waits until every row of an interval is delivered. Blocks.
fn drain(producer: &BaseProducer<Told>, interval: usize) -> Result<(), KafkaError> {
    let began = Instant::now();
    loop {
        let delivered = producer.client().context().deliveries().delivered(interval);
        if let Some(delivered) = delivered {
            return delivered;
        }
        listen(producer);
        if began.elapsed() > DELIVERY_TIMEOUT * 2 {
            return Err(KafkaError::Flush(RDKafkaErrorCode::OperationTimedOut));
        }
    }
}

#[async_trait]
impl SinkWriter for StraightWriter {
    async fn open(&mut self) -> Result<Option<String>, Error> {
        Ok(self.connect().await?.err())
    }

    async fn write(&mut self, batch: StreamBatch) -> Result<BadRows, Error> {
        let mut bad = BadRows::default();
        if batch.is_empty() {
            return Ok(bad);
        }
        let topic = self.spec.config.topic.clone();
        let action = || format!("write rows to topic {topic}");
        if let Some(reason) = self.open().await? {
            return Err(unconnected(&self.spec, reason));
        }
        let Some(Open {
            producer: StraightProducer(producer),
            encoder,
            interval,
            ..
        }) = &mut self.open
        else {
            return Ok(bad);
        };
        let interval = *interval;
        let mut sending = Ok(());
        let mut sent_n = 0;
        for piece in pieces(&batch) {
            let encoded = encoder.encode(&piece, &mut bad, &mut |record| {
                if sending.is_ok() {
                    sending = send(producer, &topic, record, interval);
                    sent_n += i64::from(sending.is_ok());
                }
            });
            encoded.map_err(|error| failed(action(), true, error))?;
        }
        let told = producer.client().context();
        told.deliveries().sent(sent_n, interval);
        producer.poll(Duration::ZERO);
        sending
            .and_then(|()| told.check())
            .map_err(|error| failed(action(), true, error))?;
        Ok(bad)
    }

    fn stage(&mut self, _: CheckpointId) -> Result<Staging, Error> {
        let Some(open) = &mut self.open else {
            return Ok(Box::pin(std::future::ready(Ok(None))));
        };
        let producer = Arc::clone(&open.producer.0);
        let next = producer.client().context().deliveries().next_interval();
        let interval = std::mem::replace(&mut open.interval, next);
        let action = format!("deliver rows to topic {}", self.spec.config.topic);
        let (identity, stored) = (Arc::clone(&open.identity), open.topic_id.clone());
        Ok(Box::pin(async move {
            let drained = tokio::task::spawn_blocking(move || drain(&producer, interval)).await;
            match drained {
                // Rows went there: whoever does not tell now is asked again at the next checkpoint.
                Ok(Ok(())) => match identity.check(stored.as_deref()).await {
                    Err(error @ Error::OutputReplaced { .. }) => Err(error),
                    Ok(()) | Err(_) => Ok(None),
                },
                Ok(Err(error)) => Err(failed(action, true, error)),
                Err(error) => Err(failed(action, true, error)),
            }
        }))
    }

    fn close_at_next_stage(&mut self) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lost() -> Result<(), KafkaError> {
        Err(KafkaError::Global(RDKafkaErrorCode::MessageTimedOut))
    }

    #[test]
    fn interval_is_delivered_when_each_of_its_rows_has_a_report() {
        let mut deliveries = Deliveries::default();
        let interval = deliveries.begin();
        // A report may come before the batch is counted.
        deliveries.told(Ok(()), interval);
        deliveries.sent(2, interval);
        assert_eq!(deliveries.delivered(interval), None);

        deliveries.told(Ok(()), interval);

        assert_eq!(deliveries.delivered(interval), Some(Ok(())));
        assert!(deliveries.by_interval.is_empty());
    }

    #[test]
    fn rows_that_an_earlier_writer_left_count_for_its_own_intervals_only() {
        let mut deliveries = Deliveries::default();
        let earlier = deliveries.begin();
        deliveries.sent(1, earlier);
        let now = deliveries.begin();
        deliveries.sent(1, now);
        assert_eq!(deliveries.delivered(earlier), None, "it is waited for");

        deliveries.told(lost(), earlier);
        deliveries.told(Ok(()), now);

        assert_eq!(deliveries.check(), Ok(()), "its rows come again");
        assert_eq!(deliveries.delivered(now), Some(Ok(())));
        assert!(matches!(deliveries.delivered(earlier), Some(Err(_))));
    }

    #[test]
    fn failed_delivery_fails_the_writer_and_its_interval_kf_x3() {
        let mut deliveries = Deliveries::default();
        let first = deliveries.begin();
        let second = deliveries.next_interval();
        deliveries.sent(1, first);
        deliveries.sent(1, second);

        deliveries.told(lost(), first);
        deliveries.told(Ok(()), second);

        assert!(deliveries.check().is_err());
        assert!(matches!(deliveries.delivered(first), Some(Err(_))));
        assert_eq!(deliveries.delivered(second), Some(Ok(())));
    }
}
