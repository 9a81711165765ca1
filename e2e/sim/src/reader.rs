//! What reads a source in one subtask.
//!
//! Owns: a reader of rows that are simply there, and the opening of the real reader of Kafka as
//! `taskmanager/src/task.rs` does it. Decides nothing about rows.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::{
    ArrayRef, Int64Array, RecordBatch, StringArray, TimestampMicrosecondArray, UInt64Array,
};
use streamforge_connectors::kafka::reader::{KafkaPlace, KafkaReader, KafkaSourceSpec};
use streamforge_connectors::kafka::split::Description;
use streamforge_connectors::registry;
use streamforge_core::ids::{Epoch, SplitId, SubtaskIdx};
use streamforge_core::job_graph::{Column, Operator, SourceSpec};
use streamforge_core::manifest::{SplitProgress, SplitState};
use streamforge_engine::batch::{BadRows, Origin};
use streamforge_engine::error::Error;
use streamforge_engine::source::{SourceBatch, SourceEvent, SourceReader};
use streamforge_engine::types::schema;

use crate::attempt::now;
use crate::input::{Input, Record};
use crate::kafka::Kafka;
use crate::kafka::edge::SimEdge;
use crate::rng::Rng;

/// Rows of one batch of a reader.
const READ_ROWS_MAX: usize = 8;

/// What there is to be read.
#[derive(Clone)]
pub struct Sources {
    /// All of it.
    pub input: Arc<Input>,
    /// Sources pause and may be idle.
    pub unbounded: bool,
    /// Who holds it, if that is not simply there.
    pub kafka: Option<Kafka>,
}

/// See the module.
pub struct Reader {
    /// Index of the source within the stage.
    pub operator: usize,
    kind: Kind,
}

enum Kind {
    Rows(RowReader),
    Kafka(Box<KafkaSource>),
}

impl Reader {
    /// A reader that is not open, of this subtask of this epoch.
    pub fn new(
        idx: usize,
        operator: &Operator,
        source: &SourceSpec,
        sources: &Sources,
        owner: (Epoch, SubtaskIdx),
    ) -> Self {
        let kind = match &sources.kafka {
            Some(kafka) => {
                let spec = registry::kafka_source(operator, source, None);
                let time = source.event_time.as_ref();
                Kind::Kafka(Box::new(KafkaSource {
                    spec: spec.expect("every shape's source has a block that is understood"),
                    idle_timeout_ms: time.and_then(|time| time.idle_timeout_ms),
                    looks: registry::looks_for_splits(source),
                    kafka: kafka.clone(),
                    owner,
                    open: None,
                }))
            }
            None => Kind::Rows(RowReader {
                columns: operator.output.clone(),
                input: Arc::clone(&sources.input),
                unbounded: sources.unbounded,
                open: None,
                paused_until_ms: BTreeMap::new(),
            }),
        };
        Self {
            operator: idx,
            kind,
        }
    }

    /// Whether readers of this source find new splits by themselves.
    pub fn looks_for_splits(&self) -> bool {
        match &self.kind {
            Kind::Rows(_) => false,
            Kind::Kafka(kafka) => kafka.looks,
        }
    }

    /// Opens it anew for these splits, at their progress; `known`: all there are, those of others
    /// included. It is the reader of this place among so many.
    pub fn open(&mut self, place: (u32, u32), known: Vec<SplitState>, mine: Vec<SplitState>) {
        match &mut self.kind {
            Kind::Rows(rows) => rows.open(mine),
            Kind::Kafka(kafka) => kafka.open(place, known, mine),
        }
    }

    /// Closes it: others read on.
    pub fn close(&mut self) {
        match &mut self.kind {
            Kind::Rows(rows) => rows.open = None,
            Kind::Kafka(kafka) => kafka.open = None,
        }
    }

    /// The next thing to say.
    pub fn next(&mut self, rng: &mut Rng, now_ms: u64) -> Result<SourceEvent, Error> {
        match &mut self.kind {
            Kind::Rows(rows) => Ok(rows.next(rng, now_ms)),
            Kind::Kafka(kafka) => kafka.next(now_ms),
        }
    }

    /// Its task takes these rows.
    pub fn on_taken(&mut self, batch: &SourceBatch) {
        if let Kind::Kafka(kafka) = &mut self.kind {
            kafka.on_taken(batch);
        }
    }
}

/// Opens the real reader, and notes what it says.
struct KafkaSource {
    spec: KafkaSourceSpec,
    idle_timeout_ms: Option<u64>,
    looks: bool,
    kafka: Kafka,
    owner: (Epoch, SubtaskIdx),
    open: Option<OpenKafka>,
}

struct OpenKafka {
    reader: KafkaReader<SimEdge>,
    id: u64,
    /// Offset up to which each split is taken.
    at: BTreeMap<SplitId, i64>,
    /// Since when a split has nothing, and when it was said last.
    nothing_ms: BTreeMap<SplitId, (u64, u64)>,
}

fn position(progress: &SplitProgress) -> i64 {
    match progress {
        SplitProgress::At(position) => position.parse().expect("an offset"),
        SplitProgress::End => i64::MAX,
    }
}

impl KafkaSource {
    fn open(
        &mut self,
        (subtask, parallelism): (u32, u32),
        known: Vec<SplitState>,
        mine: Vec<SplitState>,
    ) {
        // The one before is closed first.
        self.open = None;
        let edge = self.kafka.edge(self.owner);
        let place = KafkaPlace {
            subtask,
            parallelism,
            known,
            group: None,
        };
        let id = edge.id;
        let at = mine
            .iter()
            .map(|it| (it.split.clone(), position(&it.progress)));
        let at = at.collect();
        let mut reader = KafkaReader::at(edge, self.spec.clone(), place);
        now(reader.assign(mine)).expect("splits that were stored are understood");
        reader.prefer_rows(READ_ROWS_MAX);
        self.open = Some(OpenKafka {
            reader,
            id,
            at,
            nothing_ms: BTreeMap::new(),
        });
    }

    fn next(&mut self, now_ms: u64) -> Result<SourceEvent, Error> {
        let Some(open) = &mut self.open else {
            return Ok(SourceEvent::Quiet);
        };
        let event = now(open.reader.next())?;
        match &event {
            SourceEvent::NothingNew(split) => {
                let offset = open.at.get(split).copied().unwrap_or(-1);
                self.kafka.check_nothing(open.id, split, offset);
                if let Some(timeout_ms) = self.idle_timeout_ms {
                    // Where nothing was said for so long, nobody knows.
                    let known = open.nothing_ms.get(split).copied();
                    let known = known.filter(|(_, last_ms)| now_ms - last_ms <= timeout_ms);
                    let since_ms = known.map_or(now_ms, |(since_ms, _)| since_ms);
                    open.nothing_ms.insert(split.clone(), (since_ms, now_ms));
                    if now_ms - since_ms >= timeout_ms {
                        self.kafka.on_silence(split, offset);
                    }
                }
            }
            SourceEvent::Discovered(state) => {
                let (_, offset) = Description::open(state).expect("it was just described");
                open.at.insert(state.split.clone(), offset.unwrap_or(-1));
            }
            SourceEvent::Batch(_)
            | SourceEvent::Quiet
            | SourceEvent::SplitEnded(_)
            | SourceEvent::Waiting
            | SourceEvent::Ended => {}
        }
        Ok(event)
    }

    fn on_taken(&mut self, batch: &SourceBatch) {
        let Some(open) = &mut self.open else {
            return;
        };
        let to = position(&batch.progress);
        let from = open.at.insert(batch.split.clone(), to).unwrap_or(to);
        open.nothing_ms.remove(&batch.split);
        self.kafka.on_taken(&batch.split, from);
    }
}

/// Reads rows that are simply there.
struct RowReader {
    columns: Vec<Column>,
    input: Arc<Input>,
    unbounded: bool,
    /// Open splits and the next row of each; `None`: which these are is not known yet.
    open: Option<Vec<(SplitId, usize)>>,
    paused_until_ms: BTreeMap<SplitId, u64>,
}

impl RowReader {
    fn open(&mut self, splits: Vec<SplitState>) {
        let open = self.open.insert(Vec::new());
        for SplitState {
            split, progress, ..
        } in splits
        {
            let SplitProgress::At(position) = progress else {
                panic!("split {split} was read to its end and is dealt again (C11)");
            };
            open.push((split, position.parse().expect("positions are row numbers")));
        }
    }

    fn next(&mut self, rng: &mut Rng, now_ms: u64) -> SourceEvent {
        let Some(open) = &mut self.open else {
            return SourceEvent::Quiet;
        };
        if open.is_empty() {
            return SourceEvent::Ended;
        }
        let idx = rng.pick(open.len());
        let Some((split, from)) = open.get(idx).cloned() else {
            return SourceEvent::Waiting;
        };
        if self.unbounded {
            let until_ms = self.paused_until_ms.entry(split.clone()).or_default();
            if now_ms >= *until_ms && rng.one_in(8) {
                *until_ms = now_ms + rng.below(400);
            }
            if now_ms < *until_ms {
                return SourceEvent::NothingNew(split);
            }
        }
        let input = Arc::clone(&self.input);
        let all = input.records(&split);
        if from >= all.len() {
            open.remove(idx);
            return SourceEvent::SplitEnded(split);
        }
        let n = 1 + rng.pick(READ_ROWS_MAX);
        let to = (from + n).min(all.len());
        if let Some((_, next)) = open.get_mut(idx) {
            *next = to;
        }
        SourceEvent::Batch(self.batch(split, from, all.get(from..to).unwrap_or_default()))
    }

    fn batch(&self, split: SplitId, from: usize, records: &[Record]) -> SourceBatch {
        let name: Arc<str> = split.0.as_str().into();
        let numbered = || (from as u64..).zip(records);
        let good: Vec<(u64, &Record)> = numbered().filter(|(_, record)| !record.broken).collect();
        let mut bad = BadRows::default();
        for (n, _) in numbered().filter(|(_, record)| record.broken) {
            bad.push(
                Some(b"?"),
                "not a row".to_owned(),
                Some((&name, format!("{n}:{n}"))),
                None,
            );
        }
        let values = good.iter().map(|(_, record)| *record);
        let column = |column: &Column| -> ArrayRef {
            match column.name.as_str() {
                "k" => Arc::new(
                    values
                        .clone()
                        .map(|row| row.k.clone())
                        .collect::<StringArray>(),
                ),
                "v" => Arc::new(Int64Array::from_iter_values(
                    values.clone().map(|row| row.v),
                )),
                _ => Arc::new(
                    values
                        .clone()
                        .map(|row| row.ts)
                        .collect::<TimestampMicrosecondArray>(),
                ),
            }
        };
        let columns = self.columns.iter().map(column).collect();
        let rows = RecordBatch::try_new(schema(&self.columns), columns)
            .expect("every shape's source has the columns k, v and ts");
        let number = UInt64Array::from_iter_values(good.iter().map(|(n, _)| *n));
        SourceBatch {
            split,
            rows,
            origin: Some(Origin {
                source: name,
                row: number.clone(),
                offset: number,
            }),
            bad_n: bad.len() as u64,
            bad,
            unknown_fields: 0,
            progress: SplitProgress::At((from + records.len()).to_string()),
        }
    }
}
