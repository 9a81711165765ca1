//! From the words of a plan to connectors.
//!
//! Owns: which connector stands behind which `kind`, and reading its block of the document. Start at:
//! [`open_enumerator`], [`open_reader`], [`open_writer`], [`open_publisher`].

pub mod again;

use std::path::PathBuf;
use std::sync::Arc;

use serde::de::DeserializeOwned;
use streamforge_core::ids::{Epoch, Generation, JobId, OperatorUid};
use streamforge_core::job_graph::{
    ChangelogMode, Connector, Delivery, Format, Operator, SinkSpec, SourceSpec,
};
use streamforge_core::manifest::SplitState;
use streamforge_engine::error::Error;
use streamforge_engine::sink::{Publisher, SinkWriter};
use streamforge_engine::source::{SourceReader, SplitEnumerator};
use streamforge_store::ObjectStore;

use crate::blackhole::BlackholeWriter;
use crate::error::{failed, refused};
use crate::files::columns::Layout;
use crate::files::shelf::Shelf;
use crate::files::sink::bucket::{BucketPublisher, BucketWriter, Door, place_of};
use crate::files::sink::publish::FilePublisher;
use crate::files::sink::{FileSinkSpec, FileWriter, OutputFormat, WriterName};
use crate::files::source::{FileEnumerator, FileFormat, FileReader, FileSourceSpec, ReaderPlace};
use crate::formats::csv::Dialect;
use crate::formats::decoder::TextFormat;
use crate::formats::write::CsvDialect;
use crate::generator::{GeneratorEnumerator, GeneratorReader};
use crate::kafka;
use crate::kafka::encode::ValueFormat;
use crate::kafka::enumerator::KafkaEnumerator;
use crate::kafka::keep::Keeper;
use crate::kafka::lookup::LookupPlace;
use crate::kafka::publisher::{KafkaPublisher, KafkaPublisherSpec};
use crate::kafka::reader::{KafkaPlace, KafkaReader, KafkaSourceSpec};
use crate::kafka::split::Description;
use crate::kafka::straight::StraightWriter;
use crate::kafka::writer::{KafkaSinkSpec, KafkaWriter, KafkaWriterName};
use crate::print::{self, PrintWriter};

/// What connectors may use besides their block of the document.
#[derive(Clone, Debug)]
pub struct Surroundings {
    /// The job's store, for output that is staged there.
    pub store: Arc<dyn ObjectStore>,
    /// Folder of secrets, one folder each with a file per key.
    pub secrets: Option<PathBuf>,
    /// Sinks whose lost Kafka marker was accepted by a person (`--accept-lost-marker`).
    pub accept_lost_markers: Vec<String>,
    /// Clients of Kafka that the next attempt in this process finds connected.
    pub kafka: Keeper,
}

fn config<T: DeserializeOwned>(connector: &Connector) -> Result<T, Error> {
    serde_json::from_value(connector.config.clone()).map_err(|error| {
        refused(
            format!("read the {} block", connector.kind),
            error.to_string(),
        )
    })
}

fn unknown(connector: &Connector) -> Error {
    refused(
        format!("open {}", connector.kind),
        "no connector has this name",
    )
}

/// One byte between fields, as the plan has checked.
fn delimiter_byte(delimiter: char) -> Result<u8, Error> {
    u8::try_from(delimiter)
        .map_err(|_| refused("read the csv block", "the delimiter is not one byte"))
}

/// The format of a source whose bytes are read as text; `None`: Parquet.
fn text_format(format: Option<&Format>) -> Result<Option<TextFormat>, Error> {
    Ok(Some(match format {
        None | Some(Format::Json) => TextFormat::Json,
        Some(Format::Csv {
            header,
            delimiter,
            null,
        }) => TextFormat::Csv {
            dialect: Dialect {
                delimiter: delimiter_byte(*delimiter)?,
                null: null.as_ref().map(|null| null.clone().into_bytes()),
            },
            header: *header,
        },
        Some(Format::Parquet) => return Ok(None),
        Some(Format::Raw) => TextFormat::Raw,
    }))
}

fn file_source(
    operator: &Operator,
    spec: &SourceSpec,
    surroundings: &Surroundings,
) -> Result<FileSourceSpec, Error> {
    let format = match text_format(spec.format.as_ref())? {
        Some(format) => FileFormat::Text(format),
        None => FileFormat::Parquet,
    };
    let config = config(&spec.connector)?;
    let shelf = Arc::new(Shelf::of(&config, surroundings.secrets.clone())?);
    Ok(FileSourceSpec {
        node: operator.node.clone(),
        config,
        shelf,
        format,
        layout: Layout::new(&spec.columns, &operator.output),
        origin: spec.origin,
    })
}

/// What lists the splits of a source.
pub fn open_enumerator(
    operator: &Operator,
    spec: &SourceSpec,
    surroundings: &Surroundings,
) -> Result<Box<dyn SplitEnumerator>, Error> {
    match spec.connector.kind.as_str() {
        "file" => {
            let spec = file_source(operator, spec, surroundings)?;
            Ok(Box::new(FileEnumerator::new(spec)))
        }
        "kafka" => {
            let place = LookupPlace {
                access: config::<kafka::config::SourceConfig>(&spec.connector)?.access,
                secrets: surroundings.secrets.clone(),
                keeper: surroundings.kafka.clone(),
            };
            let config = config(&spec.connector)?;
            Ok(Box::new(KafkaEnumerator::new(
                &operator.node,
                config,
                place,
            )))
        }
        "generator" => Ok(Box::new(GeneratorEnumerator::new(
            &operator.node,
            &spec.connector.config,
        )?)),
        _ => Err(unknown(&spec.connector)),
    }
}

/// The splits that a job has read, at the positions where it began, for a source whose list cannot be
/// made again; `None`: list them anew.
pub fn rewound(spec: &SourceSpec, read: &[SplitState]) -> Result<Option<Vec<SplitState>>, Error> {
    if spec.connector.kind != "kafka" {
        return Ok(None);
    }
    let rewind = |state: &SplitState| {
        let (description, _) = Description::open(state)
            .map_err(|error| failed(format!("read {}", state.split), false, error))?;
        Ok(description.at(description.start))
    };
    read.iter().map(rewind).collect::<Result<_, _>>().map(Some)
}

/// What a reader of a Kafka source is told.
pub fn kafka_source(
    operator: &Operator,
    spec: &SourceSpec,
    secrets: Option<PathBuf>,
) -> Result<KafkaSourceSpec, Error> {
    let Some(format) = text_format(spec.format.as_ref())? else {
        let reason = "a record of Kafka is no Parquet file";
        return Err(refused("open kafka source", reason));
    };
    Ok(KafkaSourceSpec {
        node: operator.node.clone(),
        config: config(&spec.connector)?,
        format,
        layout: kafka::layout::Layout::new(&spec.columns, &operator.output),
        origin: spec.origin,
        secrets,
    })
}

fn kafka_reader(
    operator: &Operator,
    spec: &SourceSpec,
    place: ReaderPlace,
    surroundings: &Surroundings,
) -> Result<KafkaReader, Error> {
    let spec = kafka_source(operator, spec, surroundings.secrets.clone())?;
    let group = place
        .job
        .map(|job| format!("streamforge-{job}-{}", operator.uid));
    let place = KafkaPlace {
        subtask: place.subtask,
        parallelism: place.parallelism,
        known: place.known,
        group,
    };
    Ok(KafkaReader::new(spec, place))
}

/// Hands the value of every committed record of a Kafka sink's topic to `take`; `None`: it is no Kafka
/// sink, or one whose rows replace each other. Blocks.
pub fn read_topic(
    spec: &SinkSpec,
    secrets: Option<PathBuf>,
    take: &mut dyn FnMut(Option<&[u8]>),
) -> Result<Option<u64>, Error> {
    if !is_readable_topic(spec) {
        return Ok(None);
    }
    let config: kafka::config::SinkConfig = config(&spec.connector)?;
    let place = LookupPlace::new(config.access, secrets);
    kafka::output::read_committed(&place, &config.topic, take).map(Some)
}

/// Whether the topic of a Kafka sink holds records by now; `None`: it is no Kafka sink. Blocks.
///
/// # Errors
/// When brokers do not answer, or refuse.
pub fn topic_holds_records(
    spec: &SinkSpec,
    secrets: Option<PathBuf>,
) -> Result<Option<bool>, Error> {
    if spec.connector.kind != "kafka" {
        return Ok(None);
    }
    let config: kafka::config::SinkConfig = config(&spec.connector)?;
    let lookup = LookupPlace::new(config.access, secrets).open()?;
    kafka::lookup::holds_records(&lookup, &config.topic)
        .map(Some)
        .map_err(|error| {
            let action = format!("look into topic {}", config.topic);
            failed(action, error.may_pass(), error)
        })
}

/// Whether every record of the sink's topic is a row.
pub fn is_readable_topic(spec: &SinkSpec) -> bool {
    spec.connector.kind == "kafka" && spec.changelog != ChangelogMode::Upsert
}

fn csv_dialect(delimiter: char, null: Option<&String>) -> Result<CsvDialect, Error> {
    Ok(CsvDialect {
        delimiter: delimiter_byte(delimiter)?,
        null: null.map(|null| null.clone().into_bytes()),
    })
}

fn kafka_sink(spec: &SinkSpec, surroundings: &Surroundings) -> Result<KafkaSinkSpec, Error> {
    let format = match &spec.format {
        None | Some(Format::Json) => ValueFormat::Json,
        Some(Format::Csv {
            delimiter, null, ..
        }) => ValueFormat::Csv(csv_dialect(*delimiter, null.as_ref())?),
        Some(Format::Parquet | Format::Raw) => {
            let reason = "write json or csv";
            return Err(refused("open kafka sink", reason));
        }
    };
    let config: kafka::config::SinkConfig = config(&spec.connector)?;
    let lookup = LookupPlace {
        access: config.access.clone(),
        secrets: surroundings.secrets.clone(),
        keeper: surroundings.kafka.clone(),
    };
    Ok(KafkaSinkSpec {
        config,
        format,
        changelog: spec.changelog,
        lookup,
    })
}

/// Whether the readers of this source look for splits that appear while it runs, each for its share.
pub fn looks_for_splits(spec: &SourceSpec) -> bool {
    !spec.bounded && spec.connector.kind != "generator"
}

/// What reads a source in one subtask.
pub fn open_reader(
    operator: &Operator,
    spec: &SourceSpec,
    place: ReaderPlace,
    surroundings: &Surroundings,
) -> Result<Box<dyn SourceReader>, Error> {
    match spec.connector.kind.as_str() {
        "file" => {
            let spec = file_source(operator, spec, surroundings)?;
            Ok(Box::new(FileReader::new(spec, place)))
        }
        "kafka" => Ok(Box::new(kafka_reader(operator, spec, place, surroundings)?)),
        "generator" => {
            let config = &spec.connector.config;
            let reader =
                GeneratorReader::new(&operator.node, config, &operator.output, spec.origin)?;
            Ok(Box::new(reader))
        }
        _ => Err(unknown(&spec.connector)),
    }
}

/// What writes a sink in one subtask. `terminal`: whether somebody looks at what `print` prints.
pub fn open_writer(
    spec: &SinkSpec,
    name: WriterName,
    surroundings: &Surroundings,
    terminal: Option<bool>,
) -> Result<Box<dyn SinkWriter>, Error> {
    match spec.connector.kind.as_str() {
        "file" => {
            let format = match &spec.format {
                None | Some(Format::Json) => OutputFormat::Json,
                Some(Format::Csv {
                    header,
                    delimiter,
                    null,
                }) => OutputFormat::Csv {
                    dialect: CsvDialect {
                        delimiter: delimiter_byte(*delimiter)?,
                        null: null.as_ref().map(|null| null.clone().into_bytes()),
                    },
                    header: *header,
                },
                Some(Format::Parquet) => OutputFormat::Parquet,
                Some(Format::Raw) => {
                    return Err(refused("open file sink", "format raw cannot be written"));
                }
            };
            let config = config(&spec.connector)?;
            let place = place_of(&config)?;
            let spec = FileSinkSpec {
                config,
                format,
                changelog: spec.changelog,
            };
            Ok(match place {
                None => Box::new(FileWriter::open(spec, name)?),
                Some(place) => {
                    let door = Door::new(place, surroundings.secrets.clone());
                    Box::new(BucketWriter::open(spec, name, door)?)
                }
            })
        }
        "kafka" => {
            let spec_of_sink = kafka_sink(spec, surroundings)?;
            if spec.delivery == Delivery::AtLeastOnce {
                return Ok(Box::new(StraightWriter::new(spec_of_sink, name.slot.slot)));
            }
            let name = KafkaWriterName {
                slot: name.slot,
                generation: name.generation,
                epoch: name.epoch,
                first_id: name.first_id,
            };
            let store = Arc::clone(&surroundings.store);
            Ok(Box::new(KafkaWriter::new(spec_of_sink, name, store)))
        }
        "print" => {
            let config: print::Config = config(&spec.connector)?;
            Ok(Box::new(PrintWriter::new(config, spec.changelog, terminal)))
        }
        "blackhole" => Ok(Box::new(BlackholeWriter)),
        _ => Err(unknown(&spec.connector)),
    }
}

/// Who publishes.
#[derive(Clone, Debug)]
pub struct PublisherName {
    /// The job.
    pub job: JobId,
    /// The sink.
    pub sink: OperatorUid,
    /// Term of the coordinator.
    pub generation: Generation,
    /// The attempt.
    pub epoch: Epoch,
}

/// What publishes a sink's staged intervals; `None` where nothing is staged.
pub fn open_publisher(
    spec: &SinkSpec,
    name: &PublisherName,
    surroundings: &Surroundings,
) -> Result<Option<Box<dyn Publisher>>, Error> {
    match spec.connector.kind.as_str() {
        "file" => {
            let config: crate::files::config::SinkConfig = config(&spec.connector)?;
            let (job, sink) = (&name.job, &name.sink.0);
            Ok(Some(match place_of(&config)? {
                None => Box::new(FilePublisher::open(&config.path, job, sink, name.epoch)?),
                Some(place) => {
                    let door = Door::new(place, surroundings.secrets.clone());
                    Box::new(BucketPublisher::new(door, job, sink, name.epoch))
                }
            }))
        }
        "kafka" if spec.delivery == Delivery::ExactlyOnce => {
            let spec = KafkaPublisherSpec {
                config: config(&spec.connector)?,
                secrets: surroundings.secrets.clone(),
                job: name.job.clone(),
                sink: name.sink.clone(),
                generation: name.generation,
                epoch: name.epoch,
                accept_lost_marker: surroundings.accept_lost_markers.contains(&name.sink.0),
                keeper: surroundings.kafka.clone(),
            };
            let publisher = KafkaPublisher::new(spec, Arc::clone(&surroundings.store));
            publisher.refresh_in_background();
            Ok(Some(Box::new(publisher)))
        }
        "kafka" | "print" | "blackhole" => Ok(None),
        _ => Err(unknown(&spec.connector)),
    }
}
