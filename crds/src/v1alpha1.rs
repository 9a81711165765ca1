//! `streamforge.io/v1alpha1`: the document's types, one file per part.
//!
//! Invariant: until v1beta1 the API changes only by optional fields.

mod choice;
mod run;
mod savepoint;
mod schema;
mod sink;
mod source;
mod status;
mod stream_job;
mod transform;

pub use choice::{CHOICES, Choice};
pub use run::{
    Backend, Backoff, Checkpoint, DroppedState, FailureDetection, LogFormat, LogLevel, Logging,
    OnDelete, PullPolicy, Restart, RestoreFrom, S3Access, SecretName, State, Storage, TaskManager,
    Upgrade, UpgradeMode,
};
pub use savepoint::{DeletionPolicy, Savepoint, SavepointSpec, SavepointStatus};
pub use schema::{
    COLUMNS_MAX, EXPRESSION_BYTES_MAX, ITEMS_MAX, NAME_CHARS_MAX, NAME_PATTERN, SINKS_MAX,
    SOURCES_MAX, TRANSFORMS_MAX, WATCH_PATTERN,
};
pub use sink::{
    BlackholeSink, Changelog, Delivery, FileSink, KafkaSink, Partitioner, PrintSink, PrintStream,
    Rollover, Sink,
};
pub use source::{
    ClicksPreset, Column, CsvFormat, EndAt, EventTimeSpec, FileOrder, FileSource, Format,
    GeneratorSource, JsonFormat, KafkaSecurity, KafkaSource, LinesPreset, OnBadRecord,
    OnOffsetOutOfRange, ParquetFormat, RateLimit, RawFormat, SaslMechanism, SecurityProtocol,
    Source, StartFrom, Watch,
};
pub use status::{CheckpointStatus, CompletedCheckpoint, Condition, FailedCheckpoint, JobStatus};
pub use status::{LagStatus, LastFailure, RolledBack, TaskManagerCount, WatermarkStatus};
pub use stream_job::{StreamJob, StreamJobSpec};
pub use transform::{
    Aggregate, Emit, HoppingWindow, SessionWindow, Transform, TumblingWindow, Window,
};
