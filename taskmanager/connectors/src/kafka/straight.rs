//! At least once: rows go straight to the topic.
//!
//! Owns: an idempotent producer, and that a checkpoint is acknowledged only when every row before its
//! barrier was delivered; the task does not stand still for that. Start at: [`StraightWriter`].

use std::collections::{BTreeMap, VecDeque};
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

/// Pause before rows that found the producer's queue full are tried again.
const ROOM_PAUSE: Duration = Duration::from_millis(1);

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

/// The rows of one piece on their way into the producer's queue.
struct Sending<'a> {
    producer: &'a BaseProducer<Told>,
    topic: &'a str,
    interval: usize,
    /// Handed over, and not counted yet.
    sent_n: i64,
    /// Those that found the queue full, and all behind them.
    waiting: VecDeque<Waiting>,
    failed: Option<KafkaError>,
}

/// A record that outlives the rows it was made of.
struct Waiting {
    partition: i32,
    key: Option<Vec<u8>>,
    value: Option<Vec<u8>>,
}

impl Waiting {
    fn of(record: Record<'_>) -> Self {
        Self {
            partition: record.partition,
            key: record.key.map(<[u8]>::to_vec),
            value: record.value.map(<[u8]>::to_vec),
        }
    }

    fn record(&self) -> Record<'_> {
        Record {
            partition: self.partition,
            key: self.key.as_deref(),
            value: self.value.as_deref(),
        }
    }
}

impl Sending<'_> {
    /// Hands a record over, or keeps it until there is room.
    fn take(&mut self, record: Record<'_>) {
        if self.failed.is_some() {
            return;
        }
        let has_room = self.waiting.is_empty()
            && (self.send(record) || {
                // Reports make room, and come only when they are asked for.
                self.producer.poll(Duration::ZERO);
                self.send(record)
            });
        if !has_room && self.failed.is_none() {
            self.waiting.push_back(Waiting::of(record));
        }
    }

    /// False: the queue is full, or it failed.
    fn send(&mut self, record: Record<'_>) -> bool {
        let mut base: BaseRecord<'_, [u8], [u8], usize> =
            BaseRecord::with_opaque_to(self.topic, self.interval).partition(record.partition);
        base.key = record.key;
        base.payload = record.value;
        match self.producer.send(base) {
            Ok(()) => {
                self.sent_n += 1;
                return true;
            }
            Err((KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull), _)) => {}
            Err((error, _)) => self.failed = Some(error),
        }
        false
    }

    /// Counts what was handed over.
    fn count(&mut self) {
        let sent_n = std::mem::take(&mut self.sent_n);
        let told = self.producer.client().context();
        told.deliveries().sent(sent_n, self.interval);
    }

    /// Until all is handed over: what is queued will be delivered or time out. May be dropped.
    async fn finish(&mut self) -> Result<(), KafkaError> {
        loop {
            while let Some(waiting) = self.waiting.pop_front() {
                if !self.send(waiting.record()) {
                    self.waiting.push_front(waiting);
                    break;
                }
            }
            self.count();
            self.producer.poll(Duration::ZERO);
            self.producer.client().context().check()?;
            if let Some(error) = self.failed.take() {
                return Err(error);
            }
            if self.waiting.is_empty() {
                return Ok(());
            }
            tokio::time::sleep(ROOM_PAUSE).await;
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
        for piece in pieces(&batch) {
            let mut sending = Sending {
                producer,
                topic: &topic,
                interval,
                sent_n: 0,
                waiting: VecDeque::new(),
                failed: None,
            };
            let encoded = encoder.encode(&piece, &mut bad, &mut |record| sending.take(record));
            let sent = sending.finish().await;
            encoded.map_err(|error| failed(action(), true, error))?;
            sent.map_err(|error| failed(action(), true, error))?;
        }
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
    use arrow::array::{ArrayRef, Int64Array, RecordBatch};
    use futures::FutureExt as _;
    use streamforge_core::job_graph::ChangelogMode;

    use super::*;
    use crate::kafka::config::SinkConfig;
    use crate::kafka::encode::{TopicLimits, ValueFormat};
    use crate::kafka::lookup::LookupPlace;
    use crate::kafka::topic_settings::TopicView;

    /// Its producer has room for one record, and no broker.
    fn full_after_one() -> StraightWriter {
        let block = r#"{"bootstrapServers":"127.0.0.1:1","topic":"out",
            "properties":{"queue.buffering.max.messages":"1"}}"#;
        let config: SinkConfig = serde_json::from_str(block).expect("it is a block");
        let access = config.access.clone();
        let spec = KafkaSinkSpec {
            config,
            format: ValueFormat::Json,
            changelog: ChangelogMode::AppendOnly,
            lookup: LookupPlace::new(access.clone(), None),
        };
        let limits = TopicLimits {
            partitions_n: 1,
            message_bytes_max: 1 << 20,
        };
        let kind = ProducerKind {
            access,
            secrets: None,
            credentials: 0,
            message_bytes_max: limits.message_bytes_max,
        };
        let producer = StraightProducer::open(&kind).expect("it asks nobody");
        let interval = producer.0.client().context().deliveries().begin();
        let lookup = spec.lookup.clone();
        let open = Open {
            kind,
            producer,
            encoder: encoder(&spec, &TopicView { id: None, limits }, 0),
            topic_id: None,
            identity: Arc::new(IdentityWatch::new(lookup, "out".to_owned())),
            interval,
        };
        StraightWriter {
            spec,
            slot: 0,
            open: Some(open),
        }
    }

    /// The end of the attempt ends the wait, and what was handed over is known to whoever writes next.
    #[tokio::test]
    async fn rows_that_find_the_queue_full_wait_without_holding_the_thread() {
        let mut writer = full_after_one();
        let open = writer.open.as_ref().expect("it is");
        let (told, interval) = (open.producer.0.client().context().clone(), open.interval);
        let array: ArrayRef = Arc::new(Int64Array::from_iter_values(0..3));
        let rows = RecordBatch::try_from_iter([("n", array)]).expect("one column");

        let written = writer.write(StreamBatch::plain(rows)).now_or_never();

        assert!(written.is_none(), "two of three have no room");
        let open_n = told
            .deliveries()
            .by_interval
            .get(&interval)
            .map(|it| it.open);
        assert_eq!(open_n, Some(1));
    }

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
