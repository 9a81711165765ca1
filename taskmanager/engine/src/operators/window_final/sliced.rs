//! Tumbling and hopping windows: slices in, windows out.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch};
use streamforge_core::event_time::Watermark;
use streamforge_core::ids::CheckpointId;
use streamforge_core::job_graph::Emit;

use super::results::{Evaluated, Results};
use super::sent::{EMITTED, Sent, SentLog, timed};
use super::{Absorbed, Outcome, WindowState, impossible};
use crate::aggregate::Error;
use crate::batch::StreamBatch;
use crate::group_table::{GroupTable, TableRows};
use crate::operators::windowed::{Windowed, numbers};
use crate::slices::{SLICES, SliceKey, SliceStore};
use crate::state::StatePart;
use crate::window::SlicedWindows;

/// A window that fired and is not final.
struct Fired {
    sent: Sent,
    /// All its groups, once it had to be corrected.
    table: Option<GroupTable>,
}

/// See the module.
pub(super) struct SlicedFinal {
    windowed: Arc<Windowed>,
    windows: SlicedWindows,
    store: SliceStore,
    watermark: Watermark,
    /// Windows to be corrected until they are final; only with `OnTime` and lateness.
    fired: BTreeMap<i64, Fired>,
    sent_log: SentLog,
    stored_log: Vec<RecordBatch>,
    /// No window fires or ends its life below this watermark.
    next_event: i64,
}

impl SlicedFinal {
    pub(super) fn new(
        windowed: Arc<Windowed>,
        windows: SlicedWindows,
        groups_n: u32,
        watermark: Watermark,
    ) -> Self {
        Self {
            store: SliceStore::new(Arc::clone(&windowed.shape), groups_n),
            sent_log: SentLog::new(&windowed, groups_n),
            windowed,
            windows,
            watermark,
            fired: BTreeMap::new(),
            stored_log: Vec::new(),
            next_event: i64::MAX,
        }
    }

    /// The watermark from which on nothing of a window can change.
    fn final_at(&self, window: i64) -> i64 {
        self.windows
            .window_end(window)
            .saturating_add(self.windowed.spec.allowed_lateness_us)
    }

    /// The watermark at which a window fires.
    fn fires_at(&self, window: i64) -> i64 {
        match self.windowed.spec.emit {
            Emit::OnTime => self.windows.window_end(window),
            Emit::Once => self.final_at(window),
        }
    }

    fn corrects(&self) -> bool {
        self.windowed.spec.emit == Emit::OnTime && self.windowed.spec.allowed_lateness_us > 0
    }

    fn has_reached(&self, instant: i64) -> bool {
        self.watermark != Watermark::NONE && instant <= self.watermark.0
    }

    /// When something happens next with a slice's rows.
    fn next_event_of(&self, key: SliceKey) -> i64 {
        let last = *self.windows.windows_of(key.slice).end();
        let fires = (key.first..=last)
            .map(|window| self.fires_at(window))
            .find(|at| !self.has_reached(*at));
        fires.unwrap_or(i64::MAX).min(self.final_at(last))
    }

    fn find_next_event(&mut self) {
        let slices = self.store.keys().map(|key| self.next_event_of(key));
        let windows = self.fired.keys().map(|window| self.final_at(*window));
        self.next_event = slices.chain(windows).min().unwrap_or(i64::MAX);
    }

    fn add(&mut self, key: SliceKey, rows: &TableRows, results: &mut Results<'_>) -> Outcome {
        let last = *self.windows.windows_of(key.slice).end();
        if self.has_reached(self.final_at(last)) || key.first > last {
            return Err(Error::State(format!(
                "T3: rows of slice {} came behind watermark {}",
                key.slice, self.watermark
            )));
        }
        self.store.table(key)?.merge(rows)?;
        self.next_event = self.next_event.min(self.next_event_of(key));
        if self.corrects() {
            for window in key.first..=last {
                if self.has_reached(self.fires_at(window))
                    && !self.has_reached(self.final_at(window))
                {
                    self.correct(window, rows, results)?;
                }
            }
        }
        Ok(())
    }

    /// Slices of a window that have rows which count for it.
    fn slices_of(&self, window: i64) -> Vec<SliceKey> {
        let slices = self.windows.slices_of(window);
        let mut keys = self.store.keys_between(slices.start, slices.end);
        keys.retain(|key| key.first <= window);
        keys
    }

    fn whole_window(&mut self, window: i64) -> Result<GroupTable, Error> {
        let mut table = GroupTable::new(&self.windowed.shape)?;
        for key in self.slices_of(window) {
            for piece in self.store.pieces(key)? {
                table.merge(&piece)?;
            }
        }
        Ok(table)
    }

    fn fire(&mut self, window: i64, results: &mut Results<'_>) -> Outcome {
        let mut table: Option<GroupTable> = None;
        for key in self.slices_of(window) {
            // The last window of a slice takes it along; others leave it for those behind them.
            let is_last = !self.corrects() && *self.windows.windows_of(key.slice).end() == window;
            if is_last && table.is_none() {
                table = Some(self.store.consume(key)?);
                continue;
            }
            let pieces = if is_last {
                vec![self.store.consume(key)?.take()?]
            } else {
                self.store.pieces(key)?
            };
            let table = match &mut table {
                Some(table) => table,
                none => none.insert(GroupTable::new(&self.windowed.shape)?),
            };
            for piece in &pieces {
                table.merge(piece)?;
            }
        }
        let Some(mut table) = table else {
            return Ok(());
        };
        let groups: Vec<usize> = (0..table.len()).collect();
        let (values, bad) = table.evaluate(&groups)?;
        let evaluated = self.evaluated(window, table.take_keys()?, groups.len(), values, bad);
        let batch = results.rows(&evaluated)?;
        results.send_new(&batch, &evaluated.bad)?;
        if self.corrects() {
            let bad: Vec<usize> = evaluated.bad.iter().map(|(row, _)| *row).collect();
            self.sent_log
                .add(&batch.rows, None, &bad, self.final_at(window))?;
            let mut sent = Sent::new(&self.windowed)?;
            sent.fired(batch.rows, bad);
            self.fired.insert(window, Fired { sent, table: None });
        }
        Ok(())
    }

    fn evaluated(
        &self,
        window: i64,
        keys: Vec<ArrayRef>,
        n: usize,
        values: Vec<ArrayRef>,
        bad: Vec<(usize, String)>,
    ) -> Evaluated {
        let (start, end) = (
            self.windows.window_start(window),
            self.windows.window_end(window),
        );
        Evaluated {
            keys,
            starts: vec![start; n],
            ends: vec![end; n],
            values,
            bad,
        }
    }

    /// A window that fired got more rows, which are in the store already.
    fn correct(&mut self, window: i64, rows: &TableRows, results: &mut Results<'_>) -> Outcome {
        let mut fired = match self.fired.remove(&window) {
            Some(fired) => fired,
            None => Fired {
                sent: Sent::new(&self.windowed)?,
                table: None,
            },
        };
        let mut table = match fired.table.take() {
            Some(mut table) => {
                table.merge(rows)?;
                table
            }
            None => self.whole_window(window)?,
        };
        let keys = rows
            .columns
            .get(..self.windowed.keys_n())
            .unwrap_or_default();
        let groups: BTreeSet<usize> = table.intern(keys, rows.rows)?.iter().copied().collect();
        let groups: Vec<usize> = groups.into_iter().collect();
        let (values, bad) = table.evaluate(&groups)?;
        let keys = distinct_keys(&mut table, keys, rows.rows, &groups)?;
        let evaluated = self.evaluated(window, keys, groups.len(), values, bad);
        let batch = results.rows(&evaluated)?;
        let bad: Vec<usize> = evaluated.bad.iter().map(|(row, _)| *row).collect();
        let correction = fired.sent.correct(&batch.rows, &bad)?;
        let until = self.final_at(window);
        self.sent_log
            .add(&batch.rows, Some(&correction.changed), &bad, until)?;
        let newly_bad = evaluated.bad.into_iter();
        let newly_bad: Vec<(usize, String)> = newly_bad
            .filter(|(row, _)| correction.newly_bad.binary_search(row).is_ok())
            .collect();
        results.send_bad(&batch, &newly_bad)?;
        let rows = timed(correction.rows, self.windowed.keys_n());
        results.send(&rows, Some(correction.ops));
        fired.table = Some(table);
        self.next_event = self.next_event.min(until);
        self.fired.insert(window, fired);
        Ok(())
    }

    fn expire(&mut self) {
        let keys: Vec<SliceKey> = self.store.keys().collect();
        for key in keys {
            if self.has_reached(self.final_at(*self.windows.windows_of(key.slice).end())) {
                self.store.remove(key);
            }
        }
        let fired: Vec<i64> = self.fired.keys().copied().collect();
        for window in fired {
            if self.has_reached(self.final_at(window)) {
                self.fired.remove(&window);
            }
        }
        self.sent_log.log().expire(self.watermark.0);
    }

    /// Whether a stored slice still counts for a window; an error where no record can have made it.
    fn is_live(&self) -> impl Fn(SliceKey) -> Result<bool, Error> + use<> {
        let windows = self.windows.clone();
        let lateness = self.windowed.spec.allowed_lateness_us;
        let watermark = self.watermark;
        move |key| {
            let of_slice = windows.windows_of(key.slice);
            if !windows.is_in_time(key.slice) || !of_slice.contains(&key.first) {
                return Err(impossible(key));
            }
            let final_at = windows.window_end(*of_slice.end()).saturating_add(lateness);
            Ok(watermark == Watermark::NONE || final_at > watermark.0)
        }
    }
}

/// One row of `keys` for each of these group numbers, in their order.
fn distinct_keys(
    table: &mut GroupTable,
    keys: &[ArrayRef],
    rows: usize,
    groups: &[usize],
) -> Result<Vec<ArrayRef>, Error> {
    let mut row_of: BTreeMap<usize, u32> = BTreeMap::new();
    for (row, group) in table.intern(keys, rows)?.iter().enumerate() {
        row_of
            .entry(*group)
            .or_insert(u32::try_from(row).unwrap_or(u32::MAX));
    }
    let picks: Vec<u32> = groups
        .iter()
        .filter_map(|group| row_of.get(group))
        .copied()
        .collect();
    let picks = arrow::array::UInt32Array::from(picks);
    keys.iter()
        .map(|key| Ok(arrow::compute::take(key, &picks, None)?))
        .collect()
}

/// Runs of rows of one slice in a batch of partial groups.
fn slice_runs(rows: &RecordBatch, keys_n: usize) -> Result<Vec<(SliceKey, TableRows)>, Error> {
    let missing = || Error::State("partial groups without slice numbers".to_owned());
    let slices = numbers(rows, keys_n).ok_or_else(missing)?;
    let firsts = numbers(rows, keys_n + 1).ok_or_else(missing)?;
    let mut runs: Vec<(SliceKey, usize, usize)> = Vec::new();
    for (row, (slice, first)) in slices.values().iter().zip(firsts.values()).enumerate() {
        let key = SliceKey {
            slice: *slice,
            first: *first,
        };
        match runs.last_mut() {
            Some((last, _, n)) if *last == key => *n += 1,
            _ => runs.push((key, row, 1)),
        }
    }
    let columns: Vec<&ArrayRef> = rows
        .columns()
        .iter()
        .enumerate()
        .filter(|(idx, _)| *idx != keys_n && *idx != keys_n + 1)
        .map(|(_, column)| column)
        .collect();
    let run = |(key, offset, n): (SliceKey, usize, usize)| {
        let columns = columns
            .iter()
            .map(|column| column.slice(offset, n))
            .collect();
        (key, TableRows { columns, rows: n })
    };
    // Slices that alternate row by row would be merged row by row: gather them first.
    let distinct: BTreeSet<SliceKey> = runs.iter().map(|(key, _, _)| *key).collect();
    if runs.len() <= 2 * distinct.len() {
        return Ok(runs.into_iter().map(run).collect());
    }
    let mut gathered: BTreeMap<SliceKey, Vec<TableRows>> = BTreeMap::new();
    for (key, rows) in runs.into_iter().map(run) {
        gathered.entry(key).or_default().push(rows);
    }
    gathered
        .into_iter()
        .map(|(key, pieces)| Ok((key, TableRows::concat(&pieces)?)))
        .collect()
}

impl WindowState for SlicedFinal {
    fn watermark(&self) -> Watermark {
        self.watermark
    }

    fn on_batch(&mut self, batch: &StreamBatch, results: &mut Results<'_>) -> Outcome {
        results.counters.passed += super::count(batch.len());
        for (key, rows) in slice_runs(&batch.rows, self.windowed.keys_n())? {
            self.add(key, &rows, results)?;
        }
        Ok(())
    }

    fn advance(&mut self, watermark: Watermark, results: &mut Results<'_>) -> Outcome {
        if watermark <= self.watermark {
            return Ok(());
        }
        if watermark.0 < self.next_event {
            self.watermark = watermark;
            return Ok(());
        }
        let mut due = BTreeSet::new();
        for key in self.store.keys() {
            for window in key.first..=*self.windows.windows_of(key.slice).end() {
                let at = self.fires_at(window);
                if at > watermark.0 {
                    break;
                }
                if !self.has_reached(at) {
                    due.insert(window);
                }
            }
        }
        for window in due {
            self.fire(window, results)?;
        }
        self.watermark = watermark;
        self.expire();
        self.find_next_event();
        Ok(())
    }

    fn advance_now(&mut self, watermark: Watermark, results: &mut Results<'_>) -> Outcome {
        self.advance(watermark, results)
    }

    fn catch_up(&mut self, _: &mut Results<'_>) -> Outcome {
        Ok(())
    }

    fn seal(&mut self, id: CheckpointId) -> Option<Vec<Arc<StatePart>>> {
        if self.sent_log.log().is_behind() {
            return None;
        }
        let mut parts = self.store.seal(id)?;
        parts.extend(self.sent_log.log().seal(id, self.watermark.0));
        Some(parts)
    }

    fn load(&mut self, part: StatePart) -> Outcome {
        match part.kind {
            SLICES => self.store.load(part, self.is_live()),
            EMITTED => {
                let rows = self.sent_log.log().load(part)?;
                self.stored_log.push(rows);
                Ok(())
            }
            other => Err(Error::State(format!("a part of kind `{other}`"))),
        }
    }

    fn finish_load(&mut self) -> Outcome {
        let stored = std::mem::take(&mut self.stored_log);
        let windows = self
            .sent_log
            .read(&stored, &self.windowed, self.watermark.0)?;
        for ((start, _), sent) in windows {
            let window = self.windows.window_starting(start);
            self.fired.insert(window, Fired { sent, table: None });
        }
        self.sent_log.log().expire(self.watermark.0);
        self.find_next_event();
        Ok(())
    }

    fn absorb(&mut self, other: Absorbed) -> Outcome {
        let Absorbed::Sliced(other) = other else {
            return Err(Error::State("sessions among slices".to_owned()));
        };
        let other = *other;
        self.store.absorb(other.store)?;
        for (window, theirs) in other.fired {
            match self.fired.get_mut(&window) {
                Some(ours) => {
                    ours.table = None;
                    ours.sent.absorb(theirs.sent)?;
                }
                None => {
                    self.fired.insert(
                        window,
                        Fired {
                            sent: theirs.sent,
                            table: None,
                        },
                    );
                }
            }
        }
        self.sent_log.absorb(other.sent_log);
        self.find_next_event();
        Ok(())
    }

    fn into_absorbed(self: Box<Self>) -> Absorbed {
        Absorbed::Sliced(self)
    }

    fn take_late_log(&mut self) -> Vec<RecordBatch> {
        Vec::new()
    }

    fn panes_n(&self) -> usize {
        self.store.keys().count()
    }

    fn size(&self) -> usize {
        let fired = self
            .fired
            .values()
            .map(|fired| fired.sent.size() + fired.table.as_ref().map_or(0, GroupTable::size));
        self.store.size() + self.sent_log.size() + fired.sum::<usize>()
    }
}
