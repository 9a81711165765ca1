//! Second half of a windowed aggregate: keyed state, and when windows fire.
//!
//! Owns: what its two kinds have in common: restore, snapshot, counters. `sliced` holds tumbling and
//! hopping windows, `session` sessions, `sent` what `OnTime` sent and may have to take back.
//!
//! Invariants: a window fires when `end <= W` (`Once`: `end + allowedLateness <= W`), and the
//! watermark that goes on is `W - allowedLateness`, after the rows it released (T5). Key groups whose
//! keeper was behind are restored at their own watermark and caught up before anything else, so that
//! no window fires twice and none is left out (T6).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use arrow::compute::concat_batches;
use arrow::error::ArrowError;
use arrow::record_batch::RecordBatch;
use streamforge_core::event_time::Watermark;
use streamforge_core::ids::CheckpointId;
use streamforge_core::key_group::KeyGroup;
use streamforge_core::manifest::Counters;

use super::windowed::{Kind, Windowed};
use super::{Named, count};
use crate::aggregate;
use crate::batch::StreamBatch;
use crate::error::Error;
use crate::operator::{Operator, OperatorSnapshot, Outputs, RestoredState};
use crate::slices::SliceKey;
use crate::state::{PartRows, RestoredPart, StatePart};

mod results;
mod sent;
mod session;
mod sliced;

use results::Results;
use session::SessionFinal;
use sliced::SlicedFinal;

/// What a kind of window does with the second half's events.
trait WindowState: Send {
    fn watermark(&self) -> Watermark;
    fn on_batch(&mut self, batch: &StreamBatch, results: &mut Results<'_>) -> Outcome;
    fn advance(&mut self, watermark: Watermark, results: &mut Results<'_>) -> Outcome;
    /// Advances at once, whatever that costs.
    fn advance_now(&mut self, watermark: Watermark, results: &mut Results<'_>) -> Outcome;
    /// Advances to a watermark that was held back for efficiency.
    fn catch_up(&mut self, results: &mut Results<'_>) -> Outcome;
    fn seal(&mut self, id: CheckpointId) -> Option<Vec<Arc<StatePart>>>;
    fn load(&mut self, part: StatePart) -> Outcome;
    /// Called once all parts are loaded.
    fn finish_load(&mut self) -> Outcome;
    /// Takes over state that is at the same watermark.
    fn absorb(&mut self, other: Absorbed) -> Outcome;
    fn into_absorbed(self: Box<Self>) -> Absorbed;
    fn take_late_log(&mut self) -> Vec<RecordBatch>;
    /// Bytes held.
    fn size(&self) -> usize;
    /// Slices held.
    fn panes_n(&self) -> usize;
}

type Outcome = Result<(), aggregate::Error>;

/// State to be taken over.
enum Absorbed {
    Sliced(Box<SlicedFinal>),
    Session(Box<SessionFinal>),
}

/// See the module.
pub struct WindowFinal {
    named: Named,
    windowed: Arc<Windowed>,
    groups_n: u32,
    state: Box<dyn WindowState>,
    /// Restored groups whose keeper was behind; empty once caught up.
    behind: Vec<Box<dyn WindowState>>,
    counters: Counters,
}

fn new_state(
    windowed: &Arc<Windowed>,
    groups_n: u32,
    watermark: Watermark,
) -> Box<dyn WindowState> {
    match &windowed.kind {
        Kind::Sliced(windows) => Box::new(SlicedFinal::new(
            Arc::clone(windowed),
            windows.clone(),
            groups_n,
            watermark,
        )),
        Kind::Session { gap_us } => Box::new(SessionFinal::new(
            Arc::clone(windowed),
            *gap_us,
            groups_n,
            watermark,
        )),
    }
}

/// Stored rows of a slice that the windows here cannot have made, whatever their checksum says.
fn impossible(key: SliceKey) -> aggregate::Error {
    aggregate::Error::State(format!(
        "the stored rows are damaged: no record can be in slice {} from window {} on",
        key.slice, key.first
    ))
}

/// Kinds of parts, as the store names them.
fn known_kind(kind: &str) -> Option<&'static str> {
    [crate::slices::SLICES, sent::EMITTED, session::EXTENTS]
        .into_iter()
        .find(|known| *known == kind)
}

impl WindowFinal {
    /// `groups_n` is the number of key groups.
    pub fn new(named: Named, windowed: Windowed, groups_n: u32) -> Self {
        let windowed = Arc::new(windowed);
        let state = new_state(&windowed, groups_n, Watermark::NONE);
        let counters = Counters::default();
        Self {
            named,
            windowed,
            groups_n,
            state,
            behind: Vec::new(),
            counters,
        }
    }

    fn with_results(
        &mut self,
        out: &mut Outputs,
        act: impl FnOnce(&mut dyn WindowState, &mut Results<'_>) -> Outcome,
    ) -> Result<(), Error> {
        let mut results = Results::new(&self.named, &self.windowed, &mut self.counters, out);
        for mut behind in std::mem::take(&mut self.behind) {
            behind
                .advance(self.state.watermark(), &mut results)
                .and_then(|()| self.state.absorb(behind.into_absorbed()))
                .map_err(|error| self.named.aggregate_state(error))?;
        }
        act(self.state.as_mut(), &mut results).map_err(|error| self.named.aggregate_state(error))
    }

    /// Slices of state held.
    pub fn state_panes(&self) -> usize {
        self.state.panes_n()
    }

    fn promised(&self) -> Watermark {
        self.state
            .watermark()
            .held_back(self.windowed.spec.allowed_lateness_us)
    }

    fn refuse(&self, reason: String) -> Error {
        Error::Restore {
            operator: self.named.uid.clone(),
            reason,
        }
    }

    /// Gives each part's blocks to the states of their key groups.
    fn load_part(
        &mut self,
        part: &RestoredPart,
        watermarks: &BTreeMap<KeyGroup, Watermark>,
        top: Watermark,
    ) -> Result<(), Error> {
        for (watermark, part) in self.cut_part(part, watermarks)? {
            let loaded = if watermark == top {
                self.state.load(part)
            } else {
                let mut behind = self.behind.iter_mut();
                match behind.find(|state| state.watermark() == watermark) {
                    Some(state) => state.load(part),
                    None => Ok(()),
                }
            };
            loaded.map_err(|error| self.refuse(error.to_string()))?;
        }
        Ok(())
    }

    /// A part's blocks by the watermarks of their key groups.
    fn cut_part(
        &self,
        part: &RestoredPart,
        watermarks: &BTreeMap<KeyGroup, Watermark>,
    ) -> Result<Vec<(Watermark, StatePart)>, Error> {
        let kind = known_kind(&part.kind)
            .ok_or_else(|| self.refuse(format!("a part of unknown kind `{}`", part.kind)))?;
        let mut classes: BTreeMap<Watermark, Vec<&(KeyGroup, RecordBatch)>> = BTreeMap::new();
        for block in &part.blocks {
            let watermark = watermarks.get(&block.0).ok_or_else(|| {
                self.refuse(format!("key group {} is not this task's", block.0.0))
            })?;
            classes.entry(*watermark).or_default().push(block);
        }
        let mut cut = Vec::with_capacity(classes.len());
        for (watermark, blocks) in classes {
            let (rows, groups) = join_blocks(&blocks).map_err(|e| self.named.kernel(e))?;
            let mut stored = part.stored.clone();
            stored
                .blocks
                .retain(|block| groups.iter().any(|(group, _)| *group == block.group));
            let rows = PartRows { rows, groups };
            let part = StatePart::restored(kind, rows, stored, CheckpointId::ZERO);
            cut.push((watermark, part));
        }
        Ok(cut)
    }
}

type Blocks = (RecordBatch, Vec<(KeyGroup, std::ops::Range<usize>)>);

fn join_blocks(blocks: &[&(KeyGroup, RecordBatch)]) -> Result<Blocks, ArrowError> {
    let schema = match blocks.first() {
        Some((_, rows)) => rows.schema(),
        None => Arc::new(arrow::datatypes::Schema::empty()),
    };
    let mut groups = Vec::with_capacity(blocks.len());
    let mut start = 0;
    for (group, rows) in blocks {
        // Joining them takes it for granted.
        if rows.num_columns() != schema.fields().len() {
            let what = format!("the rows of key group {} have other columns", group.0);
            return Err(ArrowError::SchemaError(what));
        }
        groups.push((*group, start..start + rows.num_rows()));
        start += rows.num_rows();
    }
    let rows = concat_batches(&schema, blocks.iter().map(|(_, rows)| rows))?;
    Ok((rows, groups))
}

impl Operator for WindowFinal {
    fn state_size(&self) -> usize {
        self.state.size()
    }

    fn on_batch(&mut self, _: usize, batch: StreamBatch, out: &mut Outputs) -> Result<(), Error> {
        self.counters.rows_in += count(batch.len());
        self.with_results(out, |state, results| state.on_batch(&batch, results))
    }

    fn on_watermark(
        &mut self,
        watermark: Watermark,
        out: &mut Outputs,
    ) -> Result<Watermark, Error> {
        self.with_results(out, |state, results| state.advance(watermark, results))?;
        Ok(self.promised())
    }

    fn flush(&mut self, out: &mut Outputs) -> Result<Option<Watermark>, Error> {
        self.with_results(out, |state, results| state.catch_up(results))?;
        Ok(Some(self.promised()))
    }

    fn snapshot(&mut self, id: CheckpointId) -> Result<Option<OperatorSnapshot>, Error> {
        if !self.behind.is_empty() {
            return Err(self
                .named
                .protocol("T6: a barrier before the restored watermark"));
        }
        let watermark = self.state.watermark();
        let parts = self.state.seal(id);
        Ok(parts.map(|parts| OperatorSnapshot {
            keyed: true,
            watermark,
            parts,
        }))
    }

    fn restore(&mut self, state: RestoredState) -> Result<(), Error> {
        let watermarks: BTreeMap<KeyGroup, Watermark> = state.groups.iter().copied().collect();
        let top = watermarks
            .values()
            .copied()
            .max()
            .unwrap_or(state.watermark);
        self.state = new_state(&self.windowed, self.groups_n, top);
        self.behind.clear();
        for watermark in watermarks.values() {
            let known = self
                .behind
                .iter()
                .any(|state| state.watermark() == *watermark);
            if *watermark != top && !known {
                self.behind
                    .push(new_state(&self.windowed, self.groups_n, *watermark));
            }
        }
        for part in &state.parts {
            self.load_part(part, &watermarks, top)?;
        }
        for state in self.behind.iter_mut().chain([&mut self.state]) {
            state
                .finish_load()
                .map_err(|error| self.named.aggregate_state(error))?;
        }
        Ok(())
    }

    fn release(
        &mut self,
        kept: &BTreeSet<KeyGroup>,
        parts: &[Arc<StatePart>],
    ) -> Result<(), Error> {
        // Right after the barrier all there is is in its parts: what stays is read back from them.
        let watermark = self.state.watermark();
        let mut state = new_state(&self.windowed, self.groups_n, watermark);
        for part in parts {
            let kept = StatePart::kept(part, kept).map_err(|reason| self.refuse(reason))?;
            if let Some(part) = kept {
                let loaded = state.load(part);
                loaded.map_err(|error| self.refuse(error.to_string()))?;
            }
        }
        let loaded = state.finish_load();
        loaded.map_err(|error| self.named.aggregate_state(error))?;
        self.state = state;
        Ok(())
    }

    fn receive(&mut self, state: RestoredState, out: &mut Outputs) -> Result<(), Error> {
        let watermarks: BTreeMap<KeyGroup, Watermark> = state.groups.iter().copied().collect();
        let mut classes: BTreeMap<Watermark, Box<dyn WindowState>> = BTreeMap::new();
        for watermark in watermarks.values() {
            classes
                .entry(*watermark)
                .or_insert_with(|| new_state(&self.windowed, self.groups_n, *watermark));
        }
        for part in &state.parts {
            for (watermark, part) in self.cut_part(part, &watermarks)? {
                if let Some(state) = classes.get_mut(&watermark) {
                    let loaded = state.load(part);
                    loaded.map_err(|error| self.refuse(error.to_string()))?;
                }
            }
        }
        for state in classes.values_mut() {
            let loaded = state.finish_load();
            loaded.map_err(|error| self.named.aggregate_state(error))?;
        }
        let top = classes.keys().next_back().copied().unwrap_or_default();
        if top > self.state.watermark() {
            self.with_results(out, |state, results| state.advance_now(top, results))?;
        }
        self.behind = classes.into_values().collect();
        self.with_results(out, |_, _| Ok(()))
    }

    fn take_late_log(&mut self) -> Vec<RecordBatch> {
        self.state.take_late_log()
    }

    fn counters(&self) -> Counters {
        self.counters
    }
}

#[cfg(test)]
mod fuzz_tests;
#[cfg(test)]
mod random_tests;
#[cfg(test)]
mod session_tests;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
