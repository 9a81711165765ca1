//! One aggregate node of the oracle: its records, and which of them missed which windows.
//!
//! Owns: matching records with the late log. Rows of one record (after an unnest) share a position; if
//! only some of them are late it is the last ones, because a watermark only rises.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use anyhow::{Context as _, Result};
use arrow::array::{ArrayRef, RecordBatch, StringArray, UInt32Array};
use streamforge_core::job_graph::{AggregateSpec, Expr, WindowSpec, late_columns};
use streamforge_taskmanager::engine::batch::StreamBatch;
use streamforge_taskmanager::engine::evaluate::Evaluator;
use streamforge_taskmanager::engine::types;

use super::array::array;
use super::cell::{Cell, cells};
use super::group::{Groups, Record, Row};
use super::late::{Entry, OperatorLate, Position, of_window};
use super::window::Window;

/// Defects of the late log told in full.
const FINDINGS_MAX: usize = 5;

/// See the module.
pub struct Aggregation<'g> {
    spec: &'g AggregateSpec,
    node: &'g str,
    groups: Option<Groups<'g>>,
    keys: Vec<Evaluator>,
    args: Vec<Option<Evaluator>>,
    filters: Vec<Option<Evaluator>>,
    late: OperatorLate,
    /// Pairs that the late log may mean. No window: a session, found later.
    suspects: HashMap<(String, Position, Option<Window>), Vec<Suspect>>,
    suspects_n: usize,
    /// Rows of the suspects, a batch for each batch that had some.
    rows: Vec<StreamBatch>,
    passed: u64,
}

/// A (record, window) pair at a position that the late log names.
struct Suspect {
    /// Number of the record among the suspects.
    record_n: usize,
    record: Record,
    windows_n: usize,
    row: KeptRow,
}

/// Number of a batch in [`Aggregation::rows`], and of a row in it.
type KeptRow = (usize, u32);

/// What became of all records.
#[derive(Default)]
pub struct Settled {
    /// Records that were counted somewhere.
    pub passed: u64,
    /// Records that were counted nowhere.
    pub late: u64,
    /// Pairs missed.
    pub late_windows: u64,
    /// Rows of `.late`.
    pub late_rows: Vec<StreamBatch>,
}

impl<'g> Aggregation<'g> {
    /// Compiles the expressions of an aggregate.
    pub fn new(
        spec: &'g AggregateSpec,
        node: &'g str,
        late: OperatorLate,
        evaluator: &dyn Fn(&Expr) -> Result<Evaluator>,
    ) -> Result<Self> {
        let optional = |expr: &Option<Expr>| expr.as_ref().map(evaluator).transpose();
        Ok(Self {
            spec,
            node,
            groups: Some(Groups::new(spec)?),
            keys: spec
                .keys
                .iter()
                .map(|key| evaluator(&key.expr))
                .collect::<Result<_>>()?,
            args: spec
                .calls
                .iter()
                .map(|call| optional(&call.arg))
                .collect::<Result<_>>()?,
            filters: spec
                .calls
                .iter()
                .map(|call| optional(&call.filter))
                .collect::<Result<_>>()?,
            late,
            suspects: HashMap::new(),
            suspects_n: 0,
            rows: Vec::new(),
            passed: 0,
        })
    }

    /// Whether its windows are sessions.
    pub fn is_session(&self) -> bool {
        matches!(self.spec.window, WindowSpec::Session { .. })
    }

    /// Everything it evaluates per record: keys, filters, arguments.
    pub fn evaluators(&self) -> Vec<Evaluator> {
        let filters = self.filters.iter().flatten();
        self.keys
            .iter()
            .chain(filters)
            .chain(self.args.iter().flatten())
            .cloned()
            .collect()
    }

    /// Takes records; `columns` are the values of [`Aggregation::evaluators`].
    pub fn add(&mut self, batch: &StreamBatch, columns: &[ArrayRef]) -> Result<()> {
        if batch.is_empty() {
            return Ok(());
        }
        let times = batch
            .event_time
            .as_ref()
            .context("records without event time")?;
        let columns: Vec<Vec<Cell>> = columns.iter().map(cells).collect::<Result<_>>()?;
        let cell = |column: usize, idx: usize| {
            columns
                .get(column)
                .and_then(|column| column.get(idx))
                .cloned()
                .unwrap_or(Cell::Null)
        };
        let (keys_n, filters_n) = (self.keys.len(), self.filters.iter().flatten().count());
        let mut windows = Vec::new();
        let mut suspected: Vec<u32> = Vec::new();
        for (idx, ts) in times.values().iter().enumerate() {
            let (mut filter, mut arg) = (keys_n, keys_n + filters_n);
            let next = |at: &mut usize| {
                let value = cell(*at, idx);
                *at += 1;
                value
            };
            let mut args = Vec::with_capacity(self.args.len());
            for (has_filter, has_arg) in self.filters.iter().zip(&self.args) {
                let passes = has_filter.is_none() || next(&mut filter) == Cell::Int(1);
                let value = has_arg.as_ref().map_or(Cell::Null, |_| next(&mut arg));
                args.push(passes.then_some(value));
            }
            let keys = (0..keys_n).map(|column| cell(column, idx)).collect();
            let record = Record {
                ts: *ts,
                keys,
                args,
            };
            let groups = self
                .groups
                .as_mut()
                .context("no record comes after the results")?;
            groups.windows_of(*ts, &mut windows);
            let row = (self.rows.len(), u32::try_from(suspected.len())?);
            if self.suspect(batch, idx, row, &record, &windows) {
                suspected.push(u32::try_from(idx)?);
            } else {
                self.passed += 1;
                if let Some(groups) = &mut self.groups {
                    groups.add(&record, &windows);
                }
            }
        }
        if !suspected.is_empty() {
            self.rows.push(batch.take(&UInt32Array::from(suspected))?);
        }
        Ok(())
    }

    /// Sets a record aside if the late log names its position; its other windows count it at once.
    fn suspect(
        &mut self,
        batch: &StreamBatch,
        idx: usize,
        row: KeptRow,
        record: &Record,
        windows: &[Window],
    ) -> bool {
        let Some(origin) = &batch.origin else {
            return false;
        };
        let position = (origin.row.value(idx), origin.offset.value(idx));
        let positions = self.late.source(&origin.source);
        let Some(entries) = positions.and_then(|positions| positions.get(&position)) else {
            return false;
        };
        let record_n = self.suspects_n;
        self.suspects_n += 1;
        let suspect = |windows_n| Suspect {
            record_n,
            record: record.clone(),
            windows_n,
            row,
        };
        let source = origin.source.to_string();
        if matches!(self.spec.window, WindowSpec::Session { .. }) {
            self.suspects
                .entry((source, position, None))
                .or_default()
                .push(suspect(1));
            return true;
        }
        let (missed, open): (Vec<Window>, Vec<Window>) = windows
            .iter()
            .partition(|window| !of_window(entries, **window).is_empty());
        // The log speaks of other windows only: the caller counts the record, once.
        if missed.is_empty() {
            return false;
        }
        for window in &missed {
            let key = (source.clone(), position, Some(*window));
            self.suspects
                .entry(key)
                .or_default()
                .push(suspect(windows.len()));
        }
        if let Some(groups) = &mut self.groups {
            groups.add(record, &open);
        }
        true
    }

    /// All records are in: decides the pairs set aside.
    pub fn settle(&mut self, findings: &mut Vec<String>) -> Result<Settled> {
        let mut settled = Settled {
            passed: self.passed,
            ..Settled::default()
        };
        let mut missed_n: HashMap<usize, (usize, usize)> = HashMap::new();
        let mut wrong: Vec<String> = Vec::new();
        let mut explained = 0;
        let mut late_rows: BTreeMap<usize, Vec<(u32, Entry)>> = BTreeMap::new();
        for ((source, position, window), pairs) in std::mem::take(&mut self.suspects) {
            let positions = self.late.source(&source);
            let entries = positions.and_then(|positions| positions.get(&position));
            let entries = entries.map(Vec::as_slice).unwrap_or_default();
            let entries = window.map_or(entries, |window| of_window(entries, window));
            explained += entries.len().min(pairs.len());
            let counted_n = pairs.len().saturating_sub(entries.len());
            for (idx, pair) in pairs.into_iter().enumerate() {
                let fate = missed_n.entry(pair.record_n).or_insert((0, pair.windows_n));
                match idx.checked_sub(counted_n).and_then(|at| entries.get(at)) {
                    None => {
                        if let Some(groups) = &mut self.groups {
                            groups.add(&pair.record, window.as_slice());
                        }
                    }
                    Some(entry) => {
                        fate.0 += 1;
                        wrong.extend(self.fault(&pair.record, entry));
                        settled.late_windows += 1;
                        let (batch, row) = pair.row;
                        late_rows.entry(batch).or_default().push((row, *entry));
                    }
                }
            }
        }
        settled.late = missed_n
            .values()
            .filter(|(missed, all)| missed == all)
            .count() as u64;
        settled.passed += missed_n.len() as u64 - settled.late;
        for (batch, missed) in late_rows {
            let rows = self.rows.get(batch).context("kept with its suspects")?;
            settled.late_rows.push(self.late_rows(rows, &missed)?);
        }
        self.rows.clear();
        if explained < self.late.len() {
            wrong.push(format!(
                "{} entries name no record of its input in a window it belongs to",
                self.late.len() - explained
            ));
        }
        let more = wrong.len().saturating_sub(FINDINGS_MAX);
        wrong.truncate(FINDINGS_MAX);
        findings.extend(
            wrong
                .into_iter()
                .map(|text| format!("late log of `{}`: {text}", self.node)),
        );
        if more > 0 {
            findings.push(format!(
                "late log of `{}`: {more} more such entries",
                self.node
            ));
        }
        Ok(settled)
    }

    /// What is wrong with calling this record late for this window.
    fn fault(&self, record: &Record, entry: &Entry) -> Option<String> {
        let Entry { window, watermark } = entry;
        if window.end.saturating_add(self.spec.allowed_lateness_us) > *watermark {
            return Some(format!(
                "the window ending at {} was open at watermark {watermark}",
                window.end
            ));
        }
        let gap = match self.spec.window {
            WindowSpec::Session { gap_us } => gap_us,
            WindowSpec::Tumbling { .. } | WindowSpec::Hopping { .. } => return None,
        };
        let touches = window.start < record.ts.saturating_add(gap) && record.ts < window.end;
        (!touches).then(|| format!("a record at {} does not touch that session", record.ts))
    }

    fn late_rows(&self, kept: &StreamBatch, missed: &[(u32, Entry)]) -> Result<StreamBatch> {
        let picks: UInt32Array = missed.iter().map(|(row, _)| *row).collect();
        let rows = kept.take(&picks)?;
        let mut arrays = rows.rows.columns().to_vec();
        let times: [fn(&Entry) -> i64; 3] = [|e| e.window.start, |e| e.window.end, |e| e.watermark];
        for time in times {
            let data_type = types::arrow_type(&streamforge_core::data_type::DataType::Timestamp);
            let times = missed
                .iter()
                .map(|(_, entry)| Cell::Int(time(entry).into()));
            arrays.push(array(&times.collect::<Vec<_>>(), &data_type)?);
        }
        let origin = rows.origin.as_ref();
        let source = |_| origin.map(|origin| origin.source.to_string());
        let position = |row| origin.map(|origin| origin.position(row));
        let sources: StringArray = (0..rows.len()).map(source).collect();
        let positions: StringArray = (0..rows.len()).map(position).collect();
        arrays.push(Arc::new(sources));
        arrays.push(Arc::new(positions));
        let schema = types::schema(&late_columns(&self.spec.input));
        Ok(rows.with_rows(RecordBatch::try_new(schema, arrays)?))
    }

    /// The results; there are no records after this.
    pub fn results(&mut self) -> Vec<Row> {
        self.groups.take().map(Groups::finish).unwrap_or_default()
    }
}
