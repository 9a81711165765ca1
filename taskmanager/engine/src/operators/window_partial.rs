//! First half of a windowed aggregate: who is late, and partial groups.
//!
//! Owns: the decision about lateness, made once, while a record is whole, against this task's own
//! watermark (design §3). For tumbling and hopping windows it groups what is on time by slice and
//! sends partial groups, so that a hot key costs the wire one row per flush; for sessions it only
//! evaluates, and whole records cross the shuffle.
//!
//! Invariants: T3, every record is counted, late or bad for each of its windows. Partials leave
//! before a watermark does, and between two flushes no window closes; so the receiver never sees a
//! late partial, and `_first` says from which window on a slice's rows count.

use std::collections::BTreeMap;

use arrow::array::{ArrayRef, TimestampMicrosecondArray};
use arrow::compute::take;
use arrow::record_batch::RecordBatch;
use streamforge_core::event_time::Watermark;
use streamforge_core::job_graph::Port;
use streamforge_core::manifest::Counters;

use super::late::Missed;
use super::windowed::{Inputs, Kind, Windowed};
use super::{Named, count};
use crate::aggregate;
use crate::batch::{BATCH_ROWS, StreamBatch};
use crate::error::Error;
use crate::evaluate::Evaluator;
use crate::group_table::{GroupTable, TableInput};
use crate::key_hash::grouping_form;
use crate::operator::{Operator, Outputs};
use crate::operators::project::assemble;
use crate::slices::{SliceKey, partial_columns};
use crate::window::SlicedWindows;
use crate::window::split::{Rows, split};

/// Partial groups held before they are sent; more would fall out of the cache.
pub const PARTIAL_GROUPS_MAX: usize = 65_536;

/// See the module.
pub struct WindowPartial {
    named: Named,
    windowed: Windowed,
    evaluators: Vec<Evaluator>,
    tables: BTreeMap<SliceKey, GroupTable>,
    watermark: Watermark,
    /// What was promised downstream; lags behind `watermark` while no window closes.
    promised: Watermark,
    late_log: Vec<RecordBatch>,
    counters: Counters,
}

impl WindowPartial {
    /// `evaluators` compile [`Windowed::expressions`], in order.
    pub fn new(named: Named, windowed: Windowed, evaluators: Vec<Evaluator>) -> Self {
        Self {
            named,
            windowed,
            evaluators,
            tables: BTreeMap::new(),
            watermark: Watermark::NONE,
            promised: Watermark::NONE,
            late_log: Vec::new(),
            counters: Counters::default(),
        }
    }

    fn aggregate(&self, error: aggregate::Error) -> Error {
        self.named.aggregate_state(error)
    }

    /// Evaluates keys, arguments and filters; bad rows leave here.
    fn evaluate(
        &mut self,
        batch: StreamBatch,
        out: &mut Outputs,
    ) -> Result<(StreamBatch, Vec<ArrayRef>), Error> {
        let (good, columns) =
            self.named
                .evaluate(&self.evaluators, batch, &mut self.counters, out)?;
        if good.is_empty() {
            return Ok((good, Vec::new()));
        }
        let columns = self
            .windowed
            .cast(columns)
            .map_err(|e| self.named.kernel(e))?;
        Ok((good, columns))
    }

    fn send_whole(
        &mut self,
        batch: StreamBatch,
        mut columns: Vec<ArrayRef>,
        out: &mut Outputs,
    ) -> Result<(), Error> {
        self.counters.passed += count(batch.len());
        columns.extend(batch.rows.columns().iter().cloned());
        let rows = assemble(&self.windowed.partial, columns, batch.len())
            .map_err(|e| self.named.kernel(e))?;
        out.push(Port::Main, batch.with_rows(rows));
        Ok(())
    }

    fn group(
        &mut self,
        windows: &SlicedWindows,
        batch: &StreamBatch,
        columns: &[ArrayRef],
        out: &mut Outputs,
    ) -> Result<(), Error> {
        let Some(times) = batch.event_time.clone() else {
            return Err(self
                .named
                .protocol("T3: rows without event time in a windowed aggregate"));
        };
        let mut inputs = self.windowed.inputs(columns);
        for key in &mut inputs.keys {
            *key = grouping_form(key).map_err(|e| self.named.kernel(e))?;
        }
        let mut missed = Missed::default();
        for (slice, rows) in split(windows, times.values()) {
            let n = match &rows {
                Rows::All => batch.len(),
                Rows::Run { length, .. } => *length,
                Rows::Some(rows) => rows.len(),
            };
            let (late_n, first) = self.late_windows(windows, slice);
            if late_n > 0 {
                self.counters.late_windows += late_n * count(n);
                if out.is_read(Port::Late) || self.windowed.spec.late_log {
                    miss(&mut missed, windows, slice, late_n, &rows, batch.len());
                }
            }
            match first {
                None => self.counters.late += count(n),
                Some(first) => {
                    self.counters.passed += count(n);
                    let key = SliceKey { slice, first };
                    self.add(key, &inputs, &times, &rows)
                        .map_err(|e| self.aggregate(e))?;
                }
            }
        }
        self.send_missed(&missed, batch, out)
    }

    /// How many of a slice's windows are closed, and the first that is not.
    fn late_windows(&self, windows: &SlicedWindows, slice: i64) -> (u64, Option<i64>) {
        let lateness = self.windowed.spec.allowed_lateness_us;
        let mut late_n = 0;
        for window in windows.windows_of(slice) {
            let end = windows.window_end(window).saturating_add(lateness);
            // NONE is below every end, even one that saturated.
            if self.watermark == Watermark::NONE || end > self.watermark.0 {
                return (late_n, Some(window));
            }
            late_n += 1;
        }
        (late_n, None)
    }

    fn add(
        &mut self,
        key: SliceKey,
        inputs: &Inputs,
        times: &TimestampMicrosecondArray,
        rows: &Rows,
    ) -> Result<(), aggregate::Error> {
        let table = match self.tables.entry(key) {
            std::collections::btree_map::Entry::Occupied(entry) => entry.into_mut(),
            std::collections::btree_map::Entry::Vacant(entry) => {
                entry.insert(GroupTable::new(&self.windowed.shape)?)
            }
        };
        let (chosen, times) = match rows {
            Rows::All => (None, times.clone()),
            Rows::Run { offset, length } => {
                let chosen = inputs.map(|column| Ok(column.slice(*offset, *length)))?;
                (Some(chosen), times.slice(*offset, *length))
            }
            Rows::Some(rows) => {
                let chosen = inputs.map(|column| take(column, rows, None))?;
                let values = rows.values().iter();
                let values = values.filter_map(|row| times.values().get(*row as usize).copied());
                (Some(chosen), values.collect::<Vec<_>>().into())
            }
        };
        let inputs = chosen.as_ref().unwrap_or(inputs);
        table.update(&TableInput {
            keys: &inputs.keys,
            args: &inputs.args,
            keep: &inputs.keep(),
            event_time: times.values(),
        })
    }

    fn send_missed(
        &mut self,
        missed: &Missed,
        batch: &StreamBatch,
        out: &mut Outputs,
    ) -> Result<(), Error> {
        if missed.is_empty() {
            return Ok(());
        }
        if self.windowed.spec.late_log {
            let log = missed
                .log(batch, self.watermark)
                .map_err(|e| self.named.kernel(e))?;
            self.late_log.push(log);
        }
        if out.is_read(Port::Late) {
            let late = missed
                .output(&self.windowed.late, batch, self.watermark)
                .map_err(|e| self.named.kernel(e))?;
            out.push(Port::Late, late);
        }
        Ok(())
    }

    fn send_partials(&mut self, out: &mut Outputs) -> Result<(), Error> {
        for (key, mut table) in std::mem::take(&mut self.tables) {
            if table.is_empty() {
                continue;
            }
            let rows = table.take().map_err(|e| self.aggregate(e))?;
            let n = rows.rows;
            let columns = partial_columns(key, rows, self.windowed.keys_n());
            let rows =
                assemble(&self.windowed.partial, columns, n).map_err(|e| self.named.kernel(e))?;
            let mut offset = 0;
            while offset < n {
                let length = BATCH_ROWS.min(n - offset);
                out.push(Port::Main, StreamBatch::plain(rows.slice(offset, length)));
                offset += length;
            }
        }
        Ok(())
    }

    /// Whether some window closes, or closes for late rows, between two watermarks.
    fn closes(&self, from: Watermark, to: Watermark) -> bool {
        let Kind::Sliced(windows) = &self.windowed.kind else {
            return true;
        };
        let lateness = self.windowed.spec.allowed_lateness_us;
        let differs = |a: Watermark, b: Watermark| windows.slice_of(a.0) != windows.slice_of(b.0);
        to == Watermark::END
            || differs(from, to)
            || differs(from.held_back(lateness), to.held_back(lateness))
    }
}

fn miss(
    missed: &mut Missed,
    windows: &SlicedWindows,
    slice: i64,
    late_n: u64,
    rows: &Rows,
    all: usize,
) {
    let late = usize::try_from(late_n).unwrap_or(usize::MAX);
    for window in windows.windows_of(slice).take(late) {
        let (start, end) = (windows.window_start(window), windows.window_end(window));
        let short = |row: usize| u32::try_from(row).unwrap_or(u32::MAX);
        match rows {
            Rows::All => (0..all).for_each(|row| missed.push(short(row), start, end)),
            Rows::Run { offset, length } => {
                (*offset..*offset + *length).for_each(|row| missed.push(short(row), start, end));
            }
            Rows::Some(rows) => {
                rows.values()
                    .iter()
                    .for_each(|row| missed.push(*row, start, end));
            }
        }
    }
}

impl Operator for WindowPartial {
    fn on_batch(&mut self, _: usize, batch: StreamBatch, out: &mut Outputs) -> Result<(), Error> {
        self.counters.rows_in += count(batch.len());
        let (batch, columns) = self.evaluate(batch, out)?;
        if batch.is_empty() {
            return Ok(());
        }
        match self.windowed.kind.clone() {
            Kind::Session { .. } => self.send_whole(batch, columns, out),
            Kind::Sliced(windows) => {
                self.group(&windows, &batch, &columns, out)?;
                if self.tables.values().map(GroupTable::len).sum::<usize>() > PARTIAL_GROUPS_MAX {
                    self.send_partials(out)?;
                }
                Ok(())
            }
        }
    }

    fn on_watermark(
        &mut self,
        watermark: Watermark,
        out: &mut Outputs,
    ) -> Result<Watermark, Error> {
        let closes = self.closes(self.watermark, watermark);
        if closes {
            self.send_partials(out)?;
        }
        self.watermark.advance(watermark);
        if closes || self.tables.is_empty() {
            self.promised = self.watermark;
        }
        Ok(self.promised)
    }

    fn flush(&mut self, out: &mut Outputs) -> Result<Option<Watermark>, Error> {
        self.send_partials(out)?;
        self.promised = self.watermark;
        Ok(Some(self.promised))
    }

    fn begin_anew(&mut self) {
        self.watermark = Watermark::NONE;
        self.promised = Watermark::NONE;
    }

    fn take_late_log(&mut self) -> Vec<RecordBatch> {
        std::mem::take(&mut self.late_log)
    }

    fn counters(&self) -> Counters {
        self.counters
    }
}
