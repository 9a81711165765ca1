//! Our source, driven alone.
//!
//! Owns: a reader of one column `v TEXT` (and whatever hidden columns a test names), and what it said.

use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow::util::display::{ArrayFormatter, FormatOptions};
use streamforge_connectors::files::source::ReaderPlace;
use streamforge_connectors::registry::{Surroundings, open_enumerator, open_reader};
use streamforge_core::data_type::DataType;
use streamforge_core::ids::OperatorUid;
use streamforge_core::job_graph::{
    Column, Connector, Format, OnBadRecord, Operator, OperatorKind, SourceColumn, SourceSpec,
    TimeParse,
};
use streamforge_core::manifest::{SplitProgress, SplitState};
use streamforge_engine::error::Error;
use streamforge_engine::source::{SourceEvent, SourceReader};
use streamforge_store::MemoryStore;

/// How long anything may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// A source of the document, ready to be opened any number of times.
#[derive(Clone, Debug)]
pub struct Source {
    operator: Operator,
    spec: SourceSpec,
    surroundings: Surroundings,
}

/// What a reader said until a test had enough.
#[derive(Debug, Default)]
pub struct Said {
    /// Rows, as `value` or `value|hidden|...`.
    pub rows: Vec<String>,
    /// Bad records, as `source position`.
    pub bad: Vec<String>,
    /// Splits that ended.
    pub ended: Vec<String>,
    /// Splits that had nothing, each as often as it was said.
    pub nothing_new: Vec<String>,
    /// New splits.
    pub discovered: Vec<SplitState>,
    /// The newest progress of each split.
    pub progress: std::collections::BTreeMap<String, SplitProgress>,
    /// Whether the reader said that it is done.
    pub done: bool,
}

fn column(name: &str, data_type: DataType) -> Column {
    Column {
        name: name.to_owned(),
        data_type,
        nullable: true,
    }
}

impl Source {
    /// A source with this block, of raw values, with these hidden columns.
    pub fn new(config: serde_json::Value, hidden: &[(&str, DataType)]) -> Self {
        let value = column("v", DataType::Text);
        let mut output = vec![value.clone()];
        output.extend(
            hidden
                .iter()
                .map(|(name, data_type)| column(name, data_type.clone())),
        );
        let spec = SourceSpec {
            connector: Connector {
                kind: "kafka".to_owned(),
                config: config.clone(),
            },
            format: Some(Format::Raw),
            columns: vec![SourceColumn {
                column: value,
                path: None,
                parse: TimeParse::default(),
            }],
            event_time: None,
            on_bad_record: OnBadRecord::Divert,
            rate_limit: None,
            bounded: config.get("endAt").is_some(),
            origin: true,
        };
        let operator = Operator {
            uid: OperatorUid("in".to_owned()),
            node: "in".to_owned(),
            kind: OperatorKind::Source(spec.clone()),
            inputs: Vec::new(),
            output,
            updating: false,
        };
        let surroundings = Surroundings {
            store: Arc::new(MemoryStore::default()),
            secrets: None,
            accept_lost_markers: Vec::new(),
            kafka: Default::default(),
        };
        Source {
            operator,
            spec,
            surroundings,
        }
    }

    /// With a folder of secrets.
    #[must_use]
    pub fn with_secrets(mut self, folder: &std::path::Path) -> Self {
        self.surroundings.secrets = Some(folder.to_owned());
        self
    }

    /// With another format.
    #[must_use]
    pub fn with_format(mut self, format: Format) -> Self {
        self.spec.format = Some(format);
        self
    }

    /// All partitions, where a first start begins.
    pub async fn list(&self) -> Result<Vec<SplitState>, Error> {
        let mut splits = open_enumerator(&self.operator, &self.spec, &self.surroundings)?
            .list()
            .await?;
        splits.sort_by(|a, b| a.split.cmp(&b.split));
        Ok(splits)
    }

    /// A reader of these splits, the only one of its source.
    pub async fn open(&self, splits: &[SplitState]) -> Result<Box<dyn SourceReader>, Error> {
        let place = ReaderPlace {
            subtask: 0,
            parallelism: 1,
            known: splits.to_vec(),
            job: None,
        };
        let mut reader = open_reader(&self.operator, &self.spec, place, &self.surroundings)?;
        reader.assign(splits.to_vec()).await?;
        Ok(reader)
    }

    /// Lists and reads until `enough`.
    pub async fn read(&self, enough: impl Fn(&Said) -> bool) -> Result<Said, Error> {
        let splits = self.list().await?;
        let mut reader = self.open(&splits).await?;
        read_until(&mut *reader, enough).await
    }

    /// Lists and reads to the end.
    pub async fn read_all(&self) -> Result<Said, Error> {
        self.read(|said| said.done).await
    }
}

/// Reads until the test has enough, or panics when it takes too long.
pub async fn read_until(
    reader: &mut dyn SourceReader,
    enough: impl Fn(&Said) -> bool,
) -> Result<Said, Error> {
    let mut said = Said::default();
    let began = Instant::now();
    while !enough(&said) {
        assert!(
            began.elapsed() < PATIENCE,
            "{said:?}; {:?}",
            reader.health()
        );
        match reader.next().await? {
            SourceEvent::Batch(batch) => {
                for row in 0..batch.rows.num_rows() {
                    let cells = batch.rows.columns().iter().map(|column| {
                        let options = FormatOptions::default().with_null("NULL");
                        let formatter = ArrayFormatter::try_new(column.as_ref(), &options)
                            .expect("every type is shown");
                        formatter.value(row).to_string()
                    });
                    said.rows.push(cells.collect::<Vec<_>>().join("|"));
                }
                said.progress.insert(batch.split.0.clone(), batch.progress);
                if let Some((position, _)) = batch.bad.first() {
                    said.bad.push(position);
                }
            }
            SourceEvent::SplitEnded(split) => said.ended.push(split.0),
            SourceEvent::NothingNew(split) => said.nothing_new.push(split.0),
            SourceEvent::Discovered(split) => said.discovered.push(split),
            SourceEvent::Waiting | SourceEvent::Quiet => {}
            SourceEvent::Ended => said.done = true,
        }
    }
    Ok(said)
}
