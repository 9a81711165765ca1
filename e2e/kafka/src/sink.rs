//! Our sink, driven alone: a writer of one column `v TEXT` that is its own key, and publishers.
//!
//! Owns: staging rows, publishers of any attempt, and one that dies at a stage.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use arrow::array::{ArrayRef, RecordBatch, StringArray};
use streamforge_connectors::files::sink::WriterName;
use streamforge_connectors::kafka::keep::Keeper;
use streamforge_connectors::kafka::publisher::{KafkaPublisher, KafkaPublisherSpec};
use streamforge_connectors::kafka::transaction::{Stage, Watch};
use streamforge_connectors::registry::{Surroundings, open_writer};
use streamforge_core::data_type::DataType;
use streamforge_core::ids::{CheckpointId, Epoch, Generation, JobId, OperatorUid, SlotId};
use streamforge_core::job_graph::{ChangelogMode, Column, Connector, Delivery, Format, SinkSpec};
use streamforge_core::manifest::StagedInterval;
use streamforge_engine::batch::StreamBatch;
use streamforge_engine::sink::{Publisher, SinkWriter, SlotTakeOver};
use streamforge_store::MemoryStore;

use crate::{Broker, Topic};

/// A job's sink.
#[derive(Clone, Debug)]
pub struct Sink {
    /// The job's store.
    pub store: Arc<MemoryStore>,
    /// Its identity.
    pub job: JobId,
    config: serde_json::Value,
    secrets: Option<PathBuf>,
    /// Clients that outlive an attempt in the same process.
    pub keeper: Keeper,
}

/// Dies, by a panic, when a stage is reached for the n-th time.
#[derive(Debug)]
pub struct DiesAt {
    stage: Stage,
    left: AtomicU32,
    dead: AtomicBool,
}

impl Watch for DiesAt {
    fn reached(&self, stage: Stage) {
        let dies = stage == self.stage && self.left.fetch_sub(1, Ordering::Relaxed) == 0;
        // Dead is dead.
        if dies || self.dead.load(Ordering::Relaxed) {
            self.dead.store(true, Ordering::Relaxed);
            panic!("killed at {stage:?} on purpose");
        }
    }
}

/// A checkpoint's number.
pub fn id(n: u64) -> CheckpointId {
    CheckpointId::from_stored(n)
}

/// The only sink's slot of this number.
pub fn slot(n: u32) -> SlotId {
    SlotId {
        sink: OperatorUid("out".to_owned()),
        slot: n,
    }
}

impl Sink {
    /// A sink of a job of its own.
    pub fn new(broker: &Broker, topic: &Topic) -> Self {
        Self::with(broker, topic, serde_json::json!({}))
    }

    /// The same with librdkafka settings.
    pub fn with(broker: &Broker, topic: &Topic, properties: serde_json::Value) -> Self {
        Self::at(broker.servers(), topic, properties)
    }

    /// The same, which reaches the brokers at another address.
    pub fn at(servers: &str, topic: &Topic, properties: serde_json::Value) -> Self {
        Sink {
            store: Arc::default(),
            job: JobId(crate::fresh_name("job")),
            config: serde_json::json!({
                "bootstrapServers": servers,
                "topic": topic.name,
                "key": ["v"],
                "properties": properties,
            }),
            secrets: None,
            keeper: Keeper::default(),
        }
    }

    /// With this `security` block, and a folder of secrets.
    #[must_use]
    pub fn secured(mut self, security: serde_json::Value, secrets: &Path) -> Self {
        self.config["security"] = security;
        self.secrets = Some(secrets.to_owned());
        self
    }

    fn spec(&self, delivery: Delivery) -> SinkSpec {
        SinkSpec {
            connector: Connector {
                kind: "kafka".to_owned(),
                config: self.config.clone(),
            },
            format: Some(Format::Json),
            input: vec![Column {
                name: "v".to_owned(),
                data_type: DataType::Text,
                nullable: true,
            }],
            delivery,
            changelog: ChangelogMode::AppendOnly,
            rate_limit: None,
        }
    }

    /// A writer of slot `n` in an attempt.
    pub fn writer(&self, n: u32, epoch: u64, delivery: Delivery) -> Box<dyn SinkWriter> {
        let name = WriterName {
            job: self.job.clone(),
            slot: slot(n),
            generation: Generation::from_stored(1),
            epoch: Epoch::from_stored(epoch),
            first_id: id(0),
        };
        let surroundings = Surroundings {
            store: self.store.clone(),
            secrets: self.secrets.clone(),
            accept_lost_markers: Vec::new(),
            kafka: self.keeper.clone(),
        };
        open_writer(&self.spec(delivery), name, &surroundings, Some(false))
            .expect("the block is right")
    }

    /// Stages one interval per list of values, with ids from `first` on.
    pub async fn stage(&self, first: u64, intervals: &[&[&str]]) -> Vec<StagedInterval> {
        let mut writer = self.writer(0, first, Delivery::ExactlyOnce);
        let mut staged = Vec::new();
        for (n, values) in intervals.iter().enumerate() {
            writer.write(rows(values)).await.expect("rows are staged");
            let staging = writer
                .stage(id(first + n as u64))
                .expect("the interval closes");
            staged.extend(staging.await.expect("the store takes it"));
        }
        staged
    }

    fn publisher_spec(&self, generation: u64, epoch: u64) -> KafkaPublisherSpec {
        KafkaPublisherSpec {
            config: serde_json::from_value(self.config.clone()).expect("the block is right"),
            secrets: self.secrets.clone(),
            job: self.job.clone(),
            sink: OperatorUid("out".to_owned()),
            generation: Generation::from_stored(generation),
            epoch: Epoch::from_stored(epoch),
            accept_lost_marker: false,
            keeper: self.keeper.clone(),
        }
    }

    /// The publisher of an attempt.
    pub fn publisher(&self, epoch: u64) -> KafkaPublisher {
        KafkaPublisher::new(self.publisher_spec(1, epoch), self.store.clone())
    }

    /// A publisher after a person accepted that rows may come twice.
    pub fn accepting_publisher(&self, epoch: u64) -> KafkaPublisher {
        let spec = KafkaPublisherSpec {
            accept_lost_marker: true,
            ..self.publisher_spec(1, epoch)
        };
        KafkaPublisher::new(spec, self.store.clone())
    }

    /// One that dies when `stage` is reached for the n-th time, from 0.
    pub fn dying_publisher(&self, epoch: u64, stage: Stage, n: u32) -> KafkaPublisher {
        let watch = DiesAt {
            stage,
            left: AtomicU32::new(n),
            dead: AtomicBool::new(false),
        };
        let spec = self.publisher_spec(1, epoch);
        KafkaPublisher::watched(spec, self.store.clone(), Box::new(watch))
    }

    /// One that tells somebody of every stage.
    pub fn watched_publisher(
        &self,
        epoch: u64,
        watch: Box<dyn Watch + Send + Sync>,
    ) -> KafkaPublisher {
        KafkaPublisher::watched(self.publisher_spec(1, epoch), self.store.clone(), watch)
    }

    /// Transactional id and group of slot `n`.
    pub fn slot_name(&self, n: u32) -> String {
        let sink = OperatorUid("out".to_owned());
        streamforge_connectors::kafka::publisher::slot_id(&self.job, &sink, n)
    }
}

/// Rows of these values.
pub fn rows(values: &[&str]) -> StreamBatch {
    let array: ArrayRef = Arc::new(StringArray::from(values.to_vec()));
    let rows = RecordBatch::try_from_iter([("v", array)]).expect("one column is a batch");
    StreamBatch::plain(rows)
}

/// What a restore hands to a publisher for slot 0.
pub fn restored(listed: &[StagedInterval], newest: u64) -> Vec<SlotTakeOver> {
    vec![SlotTakeOver {
        slot: slot(0),
        listed: listed.to_vec(),
        newest: id(newest),
    }]
}

/// Takes slot 0 over and publishes all that is listed, as a restore does.
pub async fn restore(
    publisher: &KafkaPublisher,
    listed: &[StagedInterval],
    newest: u64,
) -> Result<(), streamforge_engine::error::Error> {
    publisher.take_over(&restored(listed, newest)).await?;
    for interval in listed {
        publisher.publish(&slot(0), interval).await?;
    }
    Ok(())
}
