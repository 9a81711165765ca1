//! Sessions: records of one key less than a gap apart.
//!
//! Owns: the receiver's decision about lateness (only it knows the final sessions), and fragments.
//! Two records of a key in one gap-wide slice always belong together, so the state is a group per
//! (key, slice) with its extent: slices like those of other windows, sealed and restored alike. A
//! session is a chain of fragments less than a gap apart. Advancing the watermark *sweeps* the slices
//! that may have closed: final sessions leave, open ones of these slices are merged into one carried
//! fragment per key. Start at: `on_batch`, [`sweep`].
//!
//! Invariant T4: one key never emits two overlapping sessions. A record is late if its own window
//! `[ts, ts + gap)` is closed, or if it would touch a final session; then whole. So extents of final
//! sessions are kept until `end + gap + allowedLateness <= W`: whoever reaches below that is late by
//! itself. (Were a record with a closed window admitted because it touches an open session, a chain
//! of such records could lead back to any session ever sent.)

use std::sync::Arc;

use arrow::array::{RecordBatch, UInt32Array};
use arrow::compute::take;
use streamforge_core::event_time::Watermark;
use streamforge_core::ids::CheckpointId;
use streamforge_core::job_graph::{Emit, WindowSpec};

use super::results::Results;
use super::sent::{EMITTED, SentLog};
use super::{Absorbed, Outcome, WindowState, impossible};
use crate::aggregate::Error;
use crate::batch::StreamBatch;
use crate::group_table::TableInput;
use crate::key_hash::grouping_form;
use crate::operators::late::Missed;
use crate::operators::project::assemble;
use crate::operators::windowed::{Inputs, Windowed};
use crate::slices::{SLICES, SliceKey, SliceStore};
use crate::state::StatePart;
use crate::types::schema;
use crate::window::SlicedWindows;
use crate::window::split::{Rows, split};

mod extents;
mod sweep;

pub(super) use extents::EXTENTS;
use extents::{Finals, FinalsIndex};
use sweep::SentSessions;

/// Slice number of carried fragments.
const CARRIED: i64 = i64::MIN;

/// Fragments up to which every watermark is swept at once. With more, a watermark that advanced by
/// less than an eighth of the gap waits for the next one or for a flush.
const SWEEP_AT_ONCE_MAX: usize = 8192;

/// Fragments up to which every flush sweeps. With more, a flush sweeps only if the watermark advanced
/// by a thirty-second of the gap: a sweep looks at all open fragments, and must stay a bounded share
/// of the work that made them.
const SWEEP_AT_FLUSH_MAX: usize = 65_536;

/// See the module.
pub(super) struct SessionFinal {
    windowed: Arc<Windowed>,
    gap_us: i64,
    /// Gap-wide slices.
    grid: SlicedWindows,
    store: SliceStore,
    /// The watermark up to which sessions were swept; it decides lateness.
    watermark: Watermark,
    /// A higher one that waits.
    waiting: Watermark,
    /// Rows came that may change what was sent.
    dirty: bool,
    /// Upper bound of the number of fragments.
    fragments_n: usize,
    finals: Finals,
    /// Finals by key, made when an old row asks.
    index: Option<FinalsIndex>,
    sent: SentSessions,
    sent_log: SentLog,
    stored_log: Vec<RecordBatch>,
    late_log: Vec<RecordBatch>,
}

/// Instants that a watermark stands for. Everything compares with `<=`; NONE releases nothing.
#[derive(Clone, Copy, Debug)]
struct Border(Option<i64>);

impl Border {
    fn has_reached(self, instant: i64) -> bool {
        self.0.is_some_and(|border| instant <= border)
    }
}

impl SessionFinal {
    pub(super) fn new(
        windowed: Arc<Windowed>,
        gap_us: i64,
        groups_n: u32,
        watermark: Watermark,
    ) -> Self {
        let slices = WindowSpec::Tumbling {
            size_us: gap_us,
            offset_us: 0,
            time_zone: "UTC".to_owned(),
        };
        let grid = SlicedWindows::new(&slices)
            .ok()
            .flatten()
            .expect("a gap above 0 without offset, in UTC, makes slices: checked by Windowed");
        Self {
            store: SliceStore::new(Arc::clone(&windowed.shape), groups_n),
            finals: Finals::new(&windowed, groups_n),
            sent: SentSessions::new(&windowed),
            sent_log: SentLog::new(&windowed, groups_n),
            windowed,
            gap_us,
            grid,
            watermark,
            waiting: watermark,
            dirty: false,
            fragments_n: 0,
            index: None,
            stored_log: Vec::new(),
            late_log: Vec::new(),
        }
    }

    fn lateness(&self) -> i64 {
        self.windowed.spec.allowed_lateness_us
    }

    /// A session is final once this has reached its end.
    fn final_border(&self, watermark: Watermark) -> Border {
        Border((watermark != Watermark::NONE).then(|| watermark.held_back(self.lateness()).0))
    }

    /// A session fires once this has reached its end.
    fn firing_border(&self, watermark: Watermark) -> Border {
        match self.windowed.spec.emit {
            Emit::OnTime => Border((watermark != Watermark::NONE).then_some(watermark.0)),
            Emit::Once => self.final_border(watermark),
        }
    }

    fn corrects(&self) -> bool {
        self.windowed.spec.emit == Emit::OnTime && self.lateness() > 0
    }

    /// The last slice of which a fragment can be final at `watermark`; all up to it are swept.
    fn swept_to(&self, watermark: Watermark) -> Option<i64> {
        let border = self.final_border(watermark).0?;
        Some(self.grid.slice_of(border.saturating_sub(self.gap_us)))
    }

    /// The key that keeps rows of a swept slice apart from those that the sweep consumed.
    fn slice_key(&self, slice: i64) -> SliceKey {
        let is_swept = self
            .swept_to(self.watermark)
            .is_some_and(|swept| slice <= swept);
        SliceKey {
            slice,
            first: if is_swept { self.watermark.0 } else { i64::MIN },
        }
    }

    /// Rows that the sweep up to `watermark` consumed are dead; an error where no record can have made
    /// a slice.
    fn is_live(&self) -> impl Fn(SliceKey) -> Result<bool, Error> + use<> {
        let swept = self.swept_to(self.watermark);
        let watermark = self.watermark.0;
        let grid = self.grid.clone();
        move |key| {
            if key.slice != CARRIED && !grid.is_in_time(key.slice) {
                return Err(impossible(key));
            }
            Ok(swept.is_none_or(|swept| key.slice > swept || key.first >= watermark))
        }
    }

    /// Decides who is late; returns the rows that are not, `None` for all.
    fn judge(
        &mut self,
        batch: &StreamBatch,
        inputs: &Inputs,
        times: &[i64],
        results: &mut Results<'_>,
    ) -> Result<Option<UInt32Array>, Error> {
        let Some(border) = self.final_border(self.watermark).0 else {
            return Ok(None);
        };
        // A row at or above the border touches no final session, and its own is open.
        let old: Vec<u32> = (0u32..)
            .zip(times)
            .filter(|(_, time)| **time < border)
            .map(|(row, _)| row)
            .collect();
        if old.is_empty() {
            return Ok(None);
        }
        let picks = UInt32Array::from(old.clone());
        let keys = inputs
            .keys
            .iter()
            .map(|key| take(key, &picks, None))
            .collect::<Result<Vec<_>, _>>()?;
        let index = match &mut self.index {
            Some(index) => index,
            none => none.insert(self.finals.index()?),
        };
        let groups = index.groups_of(&keys, old.len())?;
        let mut missed = Missed::default();
        let mut late = Vec::new();
        for (row, group) in old.into_iter().zip(groups) {
            let time = times.get(row as usize).copied().unwrap_or(i64::MIN);
            if let Some((start, end)) = index.missed(group, time, self.gap_us, border) {
                missed.push(row, start, end);
                late.push(row);
            }
        }
        self.send_late(batch, &missed, late.len(), results)?;
        if late.is_empty() {
            return Ok(None);
        }
        let mut late = late.into_iter().peekable();
        let n = u32::try_from(times.len()).unwrap_or(u32::MAX);
        let kept = (0..n).filter(|row| late.next_if_eq(row).is_none());
        Ok(Some(UInt32Array::from_iter_values(kept)))
    }

    fn send_late(
        &mut self,
        batch: &StreamBatch,
        missed: &Missed,
        late_n: usize,
        results: &mut Results<'_>,
    ) -> Outcome {
        results.counters.late += super::count(late_n);
        results.counters.late_windows += super::count(late_n);
        if missed.is_empty() || !(results.late_is_read() || self.windowed.spec.late_log) {
            return Ok(());
        }
        let expressions_n = self.windowed.expressions().len();
        let columns = batch
            .rows
            .columns()
            .get(expressions_n..)
            .unwrap_or_default()
            .to_vec();
        let rows = assemble(&schema(&self.windowed.spec.input), columns, batch.len())?;
        let input = batch.with_rows(rows);
        if self.windowed.spec.late_log {
            self.late_log.push(missed.log(&input, self.watermark)?);
        }
        if results.late_is_read() {
            results.send_late(missed, &input, self.watermark)?;
        }
        Ok(())
    }

    fn add(&mut self, inputs: &Inputs, times: &[i64]) -> Outcome {
        for (slice, rows) in split(&self.grid, times) {
            let key = self.slice_key(slice);
            let table = self.store.table(key)?;
            let (chosen, chosen_times);
            let (inputs, times) = match &rows {
                Rows::All => (inputs, times),
                Rows::Run { offset, length } => {
                    chosen = inputs.map(|column| Ok(column.slice(*offset, *length)))?;
                    let run = times.get(*offset..*offset + *length);
                    (&chosen, run.unwrap_or_default())
                }
                Rows::Some(picks) => {
                    chosen = inputs.map(|column| take(column, picks, None))?;
                    let rows = picks.values().iter();
                    chosen_times = rows
                        .filter_map(|row| times.get(*row as usize).copied())
                        .collect::<Vec<i64>>();
                    (&chosen, chosen_times.as_slice())
                }
            };
            table.update(&TableInput {
                keys: &inputs.keys,
                args: &inputs.args,
                keep: &inputs.keep(),
                event_time: times,
            })?;
            self.fragments_n += times.len();
        }
        Ok(())
    }

    /// Whether the waiting watermark is swept now rather than later.
    fn is_due(&self, fragments_max: usize, share_of_gap: i64) -> bool {
        let advanced = self.waiting.0.saturating_sub(self.watermark.0);
        self.waiting == Watermark::END
            || self.fragments_n <= fragments_max
            || advanced > self.gap_us / share_of_gap
    }
}

impl WindowState for SessionFinal {
    fn watermark(&self) -> Watermark {
        self.watermark
    }

    fn on_batch(&mut self, batch: &StreamBatch, results: &mut Results<'_>) -> Outcome {
        let Some(times) = &batch.event_time else {
            return Err(Error::State(
                "T3: rows without event time in a session".to_owned(),
            ));
        };
        let mut inputs = self.windowed.inputs(batch.rows.columns());
        for key in &mut inputs.keys {
            *key = grouping_form(key)?;
        }
        // Only a row below the watermark can touch a session that was sent.
        self.dirty |= self.corrects() && times.values().iter().any(|t| *t < self.watermark.0);
        let kept = self.judge(batch, &inputs, times.values(), results)?;
        let Some(kept) = kept else {
            results.counters.passed += super::count(batch.len());
            return self.add(&inputs, times.values());
        };
        results.counters.passed += super::count(kept.len());
        let inputs = inputs.map(|column| take(column, &kept, None))?;
        let rows = kept.values().iter();
        let times: Vec<i64> = rows
            .filter_map(|row| times.values().get(*row as usize).copied())
            .collect();
        self.add(&inputs, &times)
    }

    fn advance(&mut self, watermark: Watermark, results: &mut Results<'_>) -> Outcome {
        if watermark <= self.waiting {
            return Ok(());
        }
        self.waiting.advance(watermark);
        if self.is_due(SWEEP_AT_ONCE_MAX, 8) {
            return self.sweep(self.waiting, results);
        }
        Ok(())
    }

    fn advance_now(&mut self, watermark: Watermark, results: &mut Results<'_>) -> Outcome {
        self.waiting.advance(watermark);
        self.sweep(self.waiting, results)
    }

    fn catch_up(&mut self, results: &mut Results<'_>) -> Outcome {
        let waits = self.waiting > self.watermark || self.dirty;
        if waits && self.is_due(SWEEP_AT_FLUSH_MAX, 32) {
            return self.sweep(self.waiting, results);
        }
        Ok(())
    }

    fn seal(&mut self, id: CheckpointId) -> Option<Vec<Arc<StatePart>>> {
        if self.sent_log.log().is_behind() || self.finals.log().is_behind() {
            return None;
        }
        let mut parts = self.store.seal(id)?;
        parts.extend(self.sent_log.log().seal(id, self.watermark.0));
        parts.extend(self.finals.log().seal(id, self.watermark.0));
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
            EXTENTS => self.finals.load(part, self.watermark),
            other => Err(Error::State(format!("a part of kind `{other}`"))),
        }
    }

    fn finish_load(&mut self) -> Outcome {
        let stored = std::mem::take(&mut self.stored_log);
        let windows = self
            .sent_log
            .read(&stored, &self.windowed, self.watermark.0)?;
        self.sent.restore(windows.into_values())
    }

    fn absorb(&mut self, other: Absorbed) -> Outcome {
        let Absorbed::Session(other) = other else {
            return Err(Error::State("slices among sessions".to_owned()));
        };
        let other = *other;
        self.store.absorb(other.store)?;
        self.finals.absorb(other.finals);
        self.sent.absorb(other.sent);
        self.sent_log.absorb(other.sent_log);
        self.fragments_n += other.fragments_n;
        self.late_log.extend(other.late_log);
        self.index = None;
        Ok(())
    }

    fn into_absorbed(self: Box<Self>) -> Absorbed {
        Absorbed::Session(self)
    }

    fn take_late_log(&mut self) -> Vec<RecordBatch> {
        std::mem::take(&mut self.late_log)
    }

    fn panes_n(&self) -> usize {
        self.store.keys().count()
    }

    fn size(&self) -> usize {
        let index = self.index.as_ref().map_or(0, FinalsIndex::size);
        self.store.size() + self.finals.size() + self.sent.size() + self.sent_log.size() + index
    }
}
