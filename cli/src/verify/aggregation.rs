//! One aggregate node of the oracle: its records, and which of them missed which windows.
//!
//! Owns: matching records with the late log. Rows of one record (after an unnest) share a position; if
//! only some of them are late it is the last ones, because a watermark only rises.

use std::collections::HashMap;

use anyhow::{Context as _, Result};
use arrow::array::{ArrayRef, RecordBatch, StringArray, UInt32Array};
use streamforge_core::job_graph::{AggregateSpec, Expr, WindowSpec, late_columns};
use streamforge_taskmanager::engine::batch::StreamBatch;
use streamforge_taskmanager::engine::evaluate::Evaluator;
use streamforge_taskmanager::engine::types;

use super::array::array;
use super::cell::{Cell, cells};
use super::group::{Groups, Record, Row};
use super::late::{Entry, OperatorLate, Position};
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
    passed: u64,
}

/// A (record, window) pair at a position that the late log names.
struct Suspect {
    /// Number of the record among the suspects.
    record_n: usize,
    record: Record,
    windows_n: usize,
    row: StreamBatch,
}

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
            if !self.suspect(batch, idx, &record, &windows)? {
                self.passed += 1;
                if let Some(groups) = &mut self.groups {
                    groups.add(&record, &windows);
                }
            }
        }
        Ok(())
    }

    /// Sets a record aside if the late log names its position; its other windows count it at once.
    fn suspect(
        &mut self,
        batch: &StreamBatch,
        idx: usize,
        record: &Record,
        windows: &[Window],
    ) -> Result<bool> {
        let Some(origin) = &batch.origin else {
            return Ok(false);
        };
        let Some(positions) = self.late.source(&origin.source) else {
            return Ok(false);
        };
        let position = (origin.row.value(idx), origin.offset.value(idx));
        let Some(entries) = positions.get(&position) else {
            return Ok(false);
        };
        let record_n = self.suspects_n;
        self.suspects_n += 1;
        let row = batch.take(&UInt32Array::from(vec![u32::try_from(idx)?]))?;
        let suspect = |windows_n| Suspect {
            record_n,
            record: record.clone(),
            windows_n,
            row: row.clone(),
        };
        let source = origin.source.to_string();
        if matches!(self.spec.window, WindowSpec::Session { .. }) {
            self.suspects
                .entry((source, position, None))
                .or_default()
                .push(suspect(1));
            return Ok(true);
        }
        let (missed, open): (Vec<Window>, Vec<Window>) = windows
            .iter()
            .partition(|window| entries.iter().any(|e| e.window == **window));
        // The log speaks of other windows only: the caller counts the record, once.
        if missed.is_empty() {
            return Ok(false);
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
        Ok(true)
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
        let mut late_rows: Vec<(StreamBatch, Entry)> = Vec::new();
        for ((source, position, window), pairs) in std::mem::take(&mut self.suspects) {
            let entries: Vec<Entry> = self
                .late
                .source(&source)
                .and_then(|positions| positions.get(&position))
                .into_iter()
                .flatten()
                .filter(|entry| window.is_none_or(|window| window == entry.window))
                .copied()
                .collect();
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
                        late_rows.push((pair.row, *entry));
                    }
                }
            }
        }
        settled.late_windows = late_rows.len() as u64;
        settled.late = missed_n
            .values()
            .filter(|(missed, all)| missed == all)
            .count() as u64;
        settled.passed += missed_n.len() as u64 - settled.late;
        for (row, entry) in late_rows {
            settled.late_rows.push(self.late_row(&row, entry)?);
        }
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

    fn late_row(&self, row: &StreamBatch, entry: Entry) -> Result<StreamBatch> {
        let columns = late_columns(&self.spec.input);
        let schema = types::schema(&columns);
        let mut arrays = row.rows.columns().to_vec();
        for time in [entry.window.start, entry.window.end, entry.watermark] {
            let data_type = types::arrow_type(&streamforge_core::data_type::DataType::Timestamp);
            arrays.push(array(&[Cell::Int(time.into())], &data_type)?);
        }
        let origin = row.origin.as_ref();
        let source: StringArray = std::iter::once(origin.map(|o| o.source.to_string())).collect();
        let position: StringArray = std::iter::once(origin.map(|o| o.position(0))).collect();
        arrays.push(std::sync::Arc::new(source));
        arrays.push(std::sync::Arc::new(position));
        Ok(row.with_rows(RecordBatch::try_new(schema, arrays)?))
    }

    /// The results; there are no records after this.
    pub fn results(&mut self) -> Vec<Row> {
        self.groups.take().map(Groups::finish).unwrap_or_default()
    }
}
