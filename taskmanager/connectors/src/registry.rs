//! From the words of a plan to connectors.
//!
//! Owns: which connector stands behind which `kind`, and reading its block of the document. Start at:
//! [`open_enumerator`], [`open_reader`], [`open_writer`], [`open_publisher`].

use serde::de::DeserializeOwned;
use streamforge_core::ids::{JobId, OperatorUid};
use streamforge_core::job_graph::{Connector, Format, Operator, SinkSpec, SourceSpec};
use streamforge_engine::error::Error;
use streamforge_engine::sink::{Publisher, SinkWriter};
use streamforge_engine::source::{SourceReader, SplitEnumerator};

use crate::blackhole::BlackholeWriter;
use crate::error::refused;
use crate::files::columns::Layout;
use crate::files::sink::publish::FilePublisher;
use crate::files::sink::{FileSinkSpec, FileWriter, OutputFormat, WriterName};
use crate::files::source::{FileEnumerator, FileFormat, FileReader, FileSourceSpec, ReaderPlace};
use crate::formats::csv::Dialect;
use crate::formats::decoder::TextFormat;
use crate::formats::write::CsvDialect;
use crate::generator::{GeneratorEnumerator, GeneratorReader};
use crate::print::{self, PrintWriter};

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

fn file_source(operator: &Operator, spec: &SourceSpec) -> Result<FileSourceSpec, Error> {
    let format = match &spec.format {
        None | Some(Format::Json) => FileFormat::Text(TextFormat::Json),
        Some(Format::Csv {
            header,
            delimiter,
            null,
        }) => FileFormat::Text(TextFormat::Csv {
            dialect: Dialect {
                delimiter: delimiter_byte(*delimiter)?,
                null: null.as_ref().map(|null| null.clone().into_bytes()),
            },
            header: *header,
        }),
        Some(Format::Parquet) => FileFormat::Parquet,
        Some(Format::Raw) => FileFormat::Text(TextFormat::Raw),
    };
    Ok(FileSourceSpec {
        node: operator.node.clone(),
        config: config(&spec.connector)?,
        format,
        layout: Layout::new(&spec.columns, &operator.output),
        origin: spec.origin,
    })
}

/// What lists the splits of a source.
pub fn open_enumerator(
    operator: &Operator,
    spec: &SourceSpec,
) -> Result<Box<dyn SplitEnumerator>, Error> {
    match spec.connector.kind.as_str() {
        "file" => Ok(Box::new(FileEnumerator::new(file_source(operator, spec)?))),
        "generator" => Ok(Box::new(GeneratorEnumerator::new(
            &operator.node,
            &spec.connector.config,
        )?)),
        _ => Err(unknown(&spec.connector)),
    }
}

/// What reads a source in one subtask.
pub fn open_reader(
    operator: &Operator,
    spec: &SourceSpec,
    place: ReaderPlace,
) -> Result<Box<dyn SourceReader>, Error> {
    match spec.connector.kind.as_str() {
        "file" => Ok(Box::new(FileReader::new(
            file_source(operator, spec)?,
            place,
        ))),
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
            let spec = FileSinkSpec {
                config,
                format,
                changelog: spec.changelog,
            };
            Ok(Box::new(FileWriter::open(spec, name)?))
        }
        "print" => {
            let config: print::Config = config(&spec.connector)?;
            Ok(Box::new(PrintWriter::new(config, spec.changelog, terminal)))
        }
        "blackhole" => Ok(Box::new(BlackholeWriter)),
        _ => Err(unknown(&spec.connector)),
    }
}

/// What publishes a sink's staged intervals; `None` where nothing is staged.
pub fn open_publisher(
    spec: &SinkSpec,
    sink: &OperatorUid,
    job: &JobId,
) -> Result<Option<Box<dyn Publisher>>, Error> {
    match spec.connector.kind.as_str() {
        "file" => {
            let config: crate::files::config::SinkConfig = config(&spec.connector)?;
            Ok(Some(Box::new(FilePublisher::open(
                &config.path,
                job,
                &sink.0,
            )?)))
        }
        "print" | "blackhole" => Ok(None),
        _ => Err(unknown(&spec.connector)),
    }
}
