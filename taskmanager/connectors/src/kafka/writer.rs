//! The exactly-once half that runs in the task: rows become staged objects in the job's store.
//!
//! Owns: cutting an interval into parts. The cut is a fact of the manifest: one object is one part is
//! one transaction, and publishing never cuts anew (X1). Start at: [`KafkaWriter`].

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use async_trait::async_trait;
use bytes::Bytes;
use streamforge_core::ids::{CheckpointId, Epoch, Generation, SlotId};
use streamforge_core::job_graph::ChangelogMode;
use streamforge_core::manifest::{StagedInterval, StagedObject};
use streamforge_core::object_key::{self, STAGED};
use streamforge_engine::batch::{BadRows, StreamBatch};
use streamforge_engine::error::{Error, Recovery};
use streamforge_engine::sink::{SinkWriter, Staging};
use streamforge_store::{Condition, ObjectStore, Put};

use super::config::SinkConfig;
use super::encode::{Encoder, ValueFormat, pieces};
use super::lookup::LookupPlace;
use super::staged::{Builder, Detail};
use super::topic_settings::TopicView;
use crate::error::{Refused, failed, refused};

/// A part is closed when it has so many bytes: large enough to make the cost of a transaction small,
/// small enough to be over long before a transaction times out.
const PART_BYTES: usize = 4 << 20;

/// What a Kafka sink is told.
#[derive(Clone, Debug)]
pub struct KafkaSinkSpec {
    /// `kafka:`
    pub config: SinkConfig,
    /// How values are written.
    pub format: ValueFormat,
    /// How corrections are written.
    pub changelog: ChangelogMode,
    /// Where to ask about the topic.
    pub lookup: LookupPlace,
}

/// Who writes.
#[derive(Clone, Debug)]
pub struct KafkaWriterName {
    /// The slot, which is the sink and the subtask.
    pub slot: SlotId,
    /// Term of the coordinator.
    pub generation: Generation,
    /// The attempt.
    pub epoch: Epoch,
    /// Checkpoint id that things staged before the first barrier carry (C4).
    pub first_id: CheckpointId,
}

/// What the topic is like, or why nobody tells it now: brokers that are away come back.
pub async fn look(spec: &KafkaSinkSpec) -> Result<Result<TopicView, String>, Error> {
    match TopicView::look(&spec.lookup, &spec.config.topic).await {
        Ok(view) => Ok(Ok(view)),
        Err(error) if error.recovery() == Recovery::Restart => Ok(Err(error.with_causes())),
        Err(error) => Err(error),
    }
}

/// For who writes without asking whether it may: rows without a connection.
pub fn unconnected(spec: &KafkaSinkSpec, reason: String) -> Error {
    let action = format!("write rows for {}", spec.config.topic);
    failed(action, true, Refused(reason))
}

/// The encoder for a topic like this.
pub fn encoder(spec: &KafkaSinkSpec, view: &TopicView, slot: u32) -> Encoder {
    Encoder::new(
        spec.format.clone(),
        spec.config.key.clone(),
        spec.changelog,
        view.limits,
        slot,
    )
}

/// Stages the rows of one subtask.
pub struct KafkaWriter {
    spec: KafkaSinkSpec,
    name: KafkaWriterName,
    store: Arc<dyn ObjectStore>,
    topic: Option<(TopicView, Encoder)>,
    part: Builder,
    finished: Vec<StagedObject>,
    checkpoint: CheckpointId,
    objects_n: u64,
}

impl std::fmt::Debug for KafkaWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "KafkaWriter({})", self.name.slot)
    }
}

fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| {
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    })
}

impl KafkaWriter {
    /// A writer; asks nobody yet.
    pub fn new(spec: KafkaSinkSpec, name: KafkaWriterName, store: Arc<dyn ObjectStore>) -> Self {
        KafkaWriter {
            spec,
            checkpoint: name.first_id,
            name,
            store,
            topic: None,
            part: Builder::default(),
            finished: Vec::new(),
            objects_n: 0,
        }
    }

    fn key(&mut self) -> String {
        let writer = object_key::Writer {
            generation: self.name.generation,
            epoch: self.name.epoch,
            checkpoint: self.checkpoint,
        };
        let (sink, slot) = (&self.name.slot.sink, self.name.slot.slot);
        let key = format!("{}-s{sink}.{slot}-{}", writer.key(STAGED), self.objects_n);
        self.objects_n += 1;
        key
    }

    /// Makes the part durable.
    async fn close_part(&mut self) -> Result<(), Error> {
        if let Some((object, bytes)) = self.cut_part() {
            store(&*self.store, &object.staged, bytes).await?;
            self.finished.push(object);
        }
        Ok(())
    }

    /// Ends the part: what the manifest says of it, and its bytes.
    fn cut_part(&mut self) -> Option<(StagedObject, Bytes)> {
        if self.part.records_n() == 0 {
            return None;
        }
        let rows = u64::from(self.part.records_n());
        let object = Bytes::from(self.part.finish());
        let bytes = object.len() as u64;
        let key = self.key();
        let topic_id = self.topic.as_ref().and_then(|(view, _)| view.id.clone());
        let detail = Detail {
            topic_id,
            staged_ms: now_ms(),
        };
        let staged = StagedObject {
            staged: key,
            published: self.spec.config.topic.clone(),
            bytes,
            rows,
            detail: serde_json::to_string(&detail).expect("a text and a number are JSON"),
        };
        Some((staged, object))
    }
}

async fn store(store: &dyn ObjectStore, key: &str, object: Bytes) -> Result<(), Error> {
    let action = || format!("stage {key}");
    let error = |source: streamforge_store::Error| failed(action(), true, source);
    let put = store
        .put(key, object.clone(), Condition::CreateIfAbsent)
        .await;
    match put.map_err(error)? {
        Put::Done(_) => Ok(()),
        // Our own earlier write whose answer was lost has the same bytes.
        Put::ConditionFailed => match store.get(key).await.map_err(error)? {
            Some(there) if there.bytes == object => Ok(()),
            _ => Err(refused(action(), "it exists with other contents")),
        },
    }
}

#[async_trait]
impl SinkWriter for KafkaWriter {
    async fn open(&mut self) -> Result<Option<String>, Error> {
        if self.topic.is_none() {
            let view = match look(&self.spec).await? {
                Ok(view) => view,
                Err(reason) => return Ok(Some(reason)),
            };
            let encoder = encoder(&self.spec, &view, self.name.slot.slot);
            self.topic = Some((view, encoder));
        }
        Ok(None)
    }

    async fn write(&mut self, batch: StreamBatch) -> Result<BadRows, Error> {
        let mut bad = BadRows::default();
        if batch.is_empty() {
            return Ok(bad);
        }
        if let Some(reason) = self.open().await? {
            return Err(unconnected(&self.spec, reason));
        }
        for piece in pieces(&batch) {
            let (Some((_, encoder)), part) = (&mut self.topic, &mut self.part) else {
                return Ok(bad);
            };
            let encoded = encoder.encode(&piece, &mut bad, &mut |record| part.push(record));
            encoded.map_err(|error| {
                failed(
                    format!("write rows for {}", self.spec.config.topic),
                    true,
                    error,
                )
            })?;
            if self.part.bytes() >= PART_BYTES {
                self.close_part().await?;
            }
        }
        Ok(bad)
    }

    fn stage(&mut self, id: CheckpointId) -> Result<Staging, Error> {
        let part = self.cut_part();
        self.checkpoint = id;
        let mut objects = std::mem::take(&mut self.finished);
        let place = Arc::clone(&self.store);
        Ok(Box::pin(async move {
            if let Some((object, bytes)) = part {
                store(&*place, &object.staged, bytes).await?;
                objects.push(object);
            }
            Ok((!objects.is_empty()).then_some(StagedInterval { id, objects }))
        }))
    }

    fn close_at_next_stage(&mut self) {}
}

#[cfg(test)]
mod tests;
