//! Connectors for those who compute a job a second time.
//!
//! Owns: readers that read as fast as they can, which files are there now, and which rows a sink refuses for
//! the sake of the place that it writes to, as that place is now. Start at: [`reader`], [`RecordLimit`].

use std::path::PathBuf;

use streamforge_core::job_graph::{Operator, SinkSpec, SourceSpec};
use streamforge_engine::batch::{BadRows, StreamBatch};
use streamforge_engine::error::Error;
use streamforge_engine::source::SourceReader;

use super::{Surroundings, file_source, is_readable_topic, kafka_sink, open_reader};
use crate::error::failed;
use crate::files::source::{ReaderPlace, listed};
use crate::generator::GeneratorReader;
use crate::kafka::encode::Encoder;
use crate::kafka::topic_settings::TopicView;
use crate::kafka::writer::encoder;

/// What reads a source without its rate.
pub fn reader(
    operator: &Operator,
    spec: &SourceSpec,
    place: ReaderPlace,
    surroundings: &Surroundings,
) -> Result<Box<dyn SourceReader>, Error> {
    if spec.connector.kind != "generator" {
        return open_reader(operator, spec, place, surroundings);
    }
    let config = &spec.connector.config;
    let reader = GeneratorReader::new(&operator.node, config, &operator.output, spec.origin)?;
    Ok(Box::new(reader.at_full_speed()))
}

/// The files that the path of a source names now; nothing is known of a source of another kind.
///
/// # Errors
/// When they cannot be listed.
pub fn files_now(
    operator: &Operator,
    spec: &SourceSpec,
    surroundings: &Surroundings,
) -> Result<Option<Vec<PathBuf>>, Error> {
    if spec.connector.kind != "file" {
        return Ok(None);
    }
    let found = listed(&file_source(operator, spec, surroundings)?)?;
    Ok(Some(found.into_iter().map(|file| file.path).collect()))
}

/// The longest record that a sink's topic takes.
#[derive(Debug)]
pub struct RecordLimit {
    topic: String,
    encoder: Encoder,
}

impl RecordLimit {
    /// Asks the brokers; `None`: a sink without such a limit.
    pub async fn of(spec: &SinkSpec, surroundings: &Surroundings) -> Result<Option<Self>, Error> {
        if !is_readable_topic(spec) {
            return Ok(None);
        }
        let sink = kafka_sink(spec, surroundings)?;
        let view = TopicView::look(&sink.lookup, &sink.config.topic).await?;
        Ok(Some(Self {
            encoder: encoder(&sink, &view, 0),
            topic: sink.config.topic,
        }))
    }

    /// The rows that are refused, by number.
    pub fn refused(&mut self, batch: &StreamBatch) -> Result<Vec<usize>, Error> {
        if self.all_fit(batch)? {
            return Ok(Vec::new());
        }
        let mut refused = Vec::new();
        for row in 0..batch.len() {
            if !self.all_fit(&batch.slice(row, 1))? {
                refused.push(row);
            }
        }
        Ok(refused)
    }

    fn all_fit(&mut self, batch: &StreamBatch) -> Result<bool, Error> {
        let mut bad = BadRows::default();
        let encoded = self.encoder.encode(batch, &mut bad, &mut |_| {});
        encoded.map_err(|error| failed(format!("write rows for {}", self.topic), false, error))?;
        Ok(bad.is_empty())
    }
}
