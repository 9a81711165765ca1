//! Sweeping: which sessions closed, set by set.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, Int8Array, RecordBatch, UInt32Array, make_comparator,
};
use arrow::compute::{SortOptions, interleave, interleave_record_batch, take};
use arrow::datatypes::{Int64Type, TimestampMicrosecondType};
use streamforge_core::event_time::Watermark;

use super::super::results::{Evaluated, Results};
use super::super::sent::{Said, Sent, timed};
use super::super::{Outcome, Windowed};
use super::{Border, CARRIED, SessionFinal, SliceKey};
use crate::aggregate::Error;
use crate::batch::RowOp;
use crate::group_table::{Extents, GroupTable, TableRows, TableShape};

/// One group of one slice.
#[derive(Clone, Copy, Debug)]
struct Fragment {
    group: usize,
    start: i64,
    last: i64,
    piece: usize,
    row: usize,
}

/// Fragments less than a gap apart: a session, as far as it is known.
#[derive(Clone, Copy, Debug)]
struct Chain {
    group: usize,
    start: i64,
    last: i64,
    /// Its first fragment and their number.
    at: usize,
    n: usize,
}

/// All fragments that a sweep looks at.
struct Gathered {
    keys: Vec<SliceKey>,
    pieces: Vec<(SliceKey, TableRows)>,
    fragments: Vec<Fragment>,
    chains: Vec<Chain>,
    interner: GroupTable,
}

/// Rows sent for sessions that are not final.
#[derive(Debug)]
pub(super) struct SentSessions {
    batches: Vec<RecordBatch>,
    rows: Vec<SentRow>,
    keys_n: usize,
}

#[derive(Clone, Copy, Debug)]
struct SentRow {
    batch: usize,
    row: usize,
    said: Said,
}

impl SentSessions {
    pub(super) fn new(windowed: &Windowed) -> Self {
        Self {
            batches: Vec::new(),
            rows: Vec::new(),
            keys_n: windowed.keys_n(),
        }
    }

    pub(super) fn restore(&mut self, windows: impl Iterator<Item = Sent>) -> Outcome {
        for sent in windows {
            let (batches, said) = sent.into_rows()?;
            let offset = self.batches.len();
            self.batches.extend(batches);
            let rows = said.into_iter().map(|(batch, row, said)| SentRow {
                batch: batch + offset,
                row,
                said,
            });
            self.rows.extend(rows);
        }
        Ok(())
    }

    pub(super) fn size(&self) -> usize {
        let batches = self.batches.iter().map(RecordBatch::get_array_memory_size);
        batches.sum::<usize>() + self.rows.capacity() * size_of::<SentRow>()
    }

    pub(super) fn absorb(&mut self, other: SentSessions) {
        let offset = self.batches.len();
        self.batches.extend(other.batches);
        let moved = other.rows.into_iter().map(|row| SentRow {
            batch: row.batch + offset,
            ..row
        });
        self.rows.extend(moved);
    }

    /// Group and window of each row.
    fn located(&self, interner: &mut GroupTable) -> Result<Vec<(usize, i64, i64)>, Error> {
        let mut groups = Vec::with_capacity(self.batches.len());
        for batch in &self.batches {
            let keys: Vec<ArrayRef> = batch.columns().iter().take(self.keys_n).cloned().collect();
            groups.push(interner.intern(&keys, batch.num_rows())?.to_vec());
        }
        let time = |one: &SentRow, idx: usize| {
            let column = self.batches[one.batch].column(self.keys_n + idx);
            column
                .as_primitive::<TimestampMicrosecondType>()
                .value(one.row)
        };
        let locate = |one: &SentRow| (groups[one.batch][one.row], time(one, 0), time(one, 1));
        Ok(self.rows.iter().map(locate).collect())
    }

    fn compact(&mut self) -> Outcome {
        let live: usize = self.rows.len();
        let held: usize = self.batches.iter().map(RecordBatch::num_rows).sum();
        if live == 0 {
            self.batches.clear();
        } else if self.batches.len() > 8 || held > 2 * live {
            let picks: Vec<(usize, usize)> = self.rows.iter().map(|r| (r.batch, r.row)).collect();
            let batches: Vec<&RecordBatch> = self.batches.iter().collect();
            self.batches = vec![interleave_record_batch(&batches, &picks)?];
            for (row, sent) in self.rows.iter_mut().enumerate() {
                (sent.batch, sent.row) = (0, row);
            }
        }
        Ok(())
    }
}

impl SessionFinal {
    /// Advances to `watermark`: fires what closed, forgets what became final.
    pub(super) fn sweep(&mut self, watermark: Watermark, results: &mut Results<'_>) -> Outcome {
        let final_border = self.final_border(watermark);
        let firing_border = self.firing_border(watermark);
        let swept_to = self.swept_to(watermark);
        let mut gathered = self.gather(firing_border)?;
        let closed: Vec<usize> = (0..gathered.chains.len())
            .filter(|idx| firing_border.has_reached(self.end_of(gathered.chains[*idx].last)))
            .collect();
        self.fire(&mut gathered, &closed, final_border, results)?;
        self.fragments_n = gathered.pieces.iter().map(|(_, rows)| rows.rows).sum();
        // Sweeping again at the same watermark consumes nothing: what a sweep consumed is told from
        // what came after it by the watermark alone, also by a restore.
        if watermark > self.watermark {
            self.settle_finals(&gathered, watermark, final_border)?;
            let carried = self.carry(&gathered, final_border, swept_to)?;
            for key in &gathered.keys {
                if swept_to.is_some_and(|swept| key.slice <= swept) {
                    self.store.remove(*key);
                }
            }
            if let Some(rows) = carried {
                self.store.add(
                    SliceKey {
                        slice: CARRIED,
                        first: watermark.0,
                    },
                    rows,
                );
            }
        }
        self.watermark = watermark;
        self.waiting.advance(watermark);
        self.dirty = false;
        self.sent_log.log().expire(watermark.0);
        Ok(())
    }

    fn end_of(&self, last: i64) -> i64 {
        last.saturating_add(self.gap_us)
    }

    /// All fragments of slices that can hold a closed session, and of the one behind them, chained.
    fn gather(&mut self, firing: Border) -> Result<Gathered, Error> {
        let keys_only = self
            .windowed
            .shape
            .column_types()
            .take(self.windowed.keys_n());
        let shape = TableShape::new(keys_only.cloned().collect(), Vec::new(), Extents::Ignored)?;
        let mut interner = GroupTable::new(&Arc::new(shape))?;
        let keys: Vec<SliceKey> = match firing.0 {
            None => Vec::new(),
            Some(i64::MAX) => self.store.keys().collect(),
            Some(border) => {
                let last = self.grid.slice_of(border.saturating_sub(self.gap_us));
                self.store.keys_between(i64::MIN, last.saturating_add(2))
            }
        };
        let keys_n = self.windowed.keys_n();
        let mut pieces = Vec::new();
        let mut fragments = Vec::new();
        for key in &keys {
            for rows in self.store.pieces(*key)? {
                let groups = interner.intern(&rows.columns[..keys_n], rows.rows)?;
                let starts = rows.columns[keys_n].as_primitive::<Int64Type>().values();
                let lasts = rows.columns[keys_n + 1]
                    .as_primitive::<Int64Type>()
                    .values();
                let piece = pieces.len();
                fragments.extend(groups.iter().enumerate().map(|(row, group)| Fragment {
                    group: *group,
                    start: starts[row],
                    last: lasts[row],
                    piece,
                    row,
                }));
                pieces.push((*key, rows));
            }
        }
        fragments.sort_unstable_by_key(|f| (f.group, f.start, f.last, f.piece, f.row));
        let chains = self.chain(&fragments);
        Ok(Gathered {
            keys,
            pieces,
            fragments,
            chains,
            interner,
        })
    }

    fn chain(&self, fragments: &[Fragment]) -> Vec<Chain> {
        let mut chains: Vec<Chain> = Vec::new();
        for (at, one) in fragments.iter().enumerate() {
            match chains.last_mut() {
                Some(chain) if chain.group == one.group && one.start < self.end_of(chain.last) => {
                    chain.last = chain.last.max(one.last);
                    chain.n += 1;
                }
                _ => chains.push(Chain {
                    group: one.group,
                    start: one.start,
                    last: one.last,
                    at,
                    n: 1,
                }),
            }
        }
        chains
    }

    /// State of the chosen chains, numbered in their order; `part` says which fragments count.
    fn merged(
        &self,
        gathered: &Gathered,
        chosen: &[usize],
        part: impl Fn(&SliceKey) -> bool,
    ) -> Result<GroupTable, Error> {
        let mut rows_of: Vec<(Vec<u32>, Vec<usize>)> =
            vec![Default::default(); gathered.pieces.len()];
        for (number, chain) in chosen.iter().map(|idx| &gathered.chains[*idx]).enumerate() {
            for one in &gathered.fragments[chain.at..chain.at + chain.n] {
                if part(&gathered.pieces[one.piece].0) {
                    let (rows, numbers) = &mut rows_of[one.piece];
                    rows.push(u32::try_from(one.row).unwrap_or(u32::MAX));
                    numbers.push(number);
                }
            }
        }
        let mut table = GroupTable::new(&self.windowed.shape)?;
        // Even if no piece has rows, the table has room for every chain.
        for ((rows, numbers), (_, piece)) in rows_of.into_iter().zip(&gathered.pieces) {
            if rows.is_empty() {
                continue;
            }
            let picks = UInt32Array::from(rows);
            let states = piece.columns.iter().skip(self.windowed.keys_n());
            let states = states
                .map(|c| take(c, &picks, None))
                .collect::<Result<Vec<_>, _>>()?;
            table.merge_numbered(&states, &numbers, chosen.len())?;
        }
        Ok(table)
    }

    /// Key columns of the chosen chains, in their order.
    fn keys_of(&self, gathered: &Gathered, chosen: &[usize]) -> Result<Vec<ArrayRef>, Error> {
        let picks: Vec<(usize, usize)> = chosen
            .iter()
            .map(|idx| gathered.fragments[gathered.chains[*idx].at])
            .map(|one| (one.piece, one.row))
            .collect();
        let column = |idx: usize| {
            let arrays: Vec<&dyn Array> = gathered
                .pieces
                .iter()
                .map(|(_, rows)| rows.columns[idx].as_ref())
                .collect();
            Ok(interleave(&arrays, &picks)?)
        };
        (0..self.windowed.keys_n()).map(column).collect()
    }

    fn fire(
        &mut self,
        gathered: &mut Gathered,
        closed: &[usize],
        final_border: Border,
        results: &mut Results<'_>,
    ) -> Outcome {
        if closed.is_empty() && self.sent.rows.is_empty() {
            return Ok(());
        }
        let table = self.merged(gathered, closed, |_| true)?;
        let groups: Vec<usize> = (0..closed.len()).collect();
        let (values, bad) = table.evaluate(&groups)?;
        let chains = closed.iter().map(|idx| gathered.chains[*idx]);
        let keys = if closed.is_empty() {
            Vec::new()
        } else {
            self.keys_of(gathered, closed)?
        };
        let evaluated = Evaluated {
            keys,
            starts: chains.clone().map(|chain| chain.start).collect(),
            ends: chains
                .clone()
                .map(|chain| self.end_of(chain.last))
                .collect(),
            values,
            bad,
        };
        if self.corrects() {
            let chains: Vec<Chain> = chains.collect();
            return self.correct(gathered, &chains, &evaluated, final_border, results);
        }
        let batch = results.rows(&evaluated)?;
        results.send_new(&batch, &evaluated.bad)
    }

    /// Sends the difference between what was sent and what holds now (G2).
    fn correct(
        &mut self,
        gathered: &mut Gathered,
        chains: &[Chain],
        evaluated: &Evaluated,
        final_border: Border,
        results: &mut Results<'_>,
    ) -> Outcome {
        let new = if chains.is_empty() {
            RecordBatch::new_empty(Arc::clone(&self.windowed.output))
        } else {
            results.rows(evaluated)?.rows
        };
        let located = self.sent.located(&mut gathered.interner)?;
        let mut before: BTreeMap<(usize, i64, i64), SentRow> = located
            .into_iter()
            .zip(self.sent.rows.iter().copied())
            .collect();
        let at = self.sent.batches.len();
        let mut difference = Difference::default();
        let mut kept = Vec::new();
        let bad: BTreeMap<usize, &String> = evaluated
            .bad
            .iter()
            .map(|(row, reason)| (*row, reason))
            .collect();
        for (row, chain) in chains.iter().enumerate() {
            let end = self.end_of(chain.last);
            let old = before.remove(&(chain.group, chain.start, end));
            let is_bad = bad.contains_key(&row);
            let stays = match old {
                Some(old) => self.same(&old, &new, row, is_bad)?,
                None => false,
            };
            let now = match old {
                Some(old) if stays => old,
                _ => SentRow {
                    batch: at,
                    row,
                    said: if is_bad {
                        Said::Bad
                    } else {
                        Said::Row { batch: at, row }
                    },
                },
            };
            if !stays {
                difference.replace(old, now);
            }
            if !final_border.has_reached(end) {
                kept.push(now);
            }
        }
        // What is left was sent for sessions that do not exist any more.
        let gone: Vec<SentRow> = before.into_values().collect();
        self.log_difference(&gone, &difference, &new, &evaluated.bad)?;
        let newly_bad: Vec<(usize, String)> = difference
            .newly_bad
            .iter()
            .filter_map(|row| bad.get(row).map(|reason| (*row, (*reason).clone())))
            .collect();
        if !newly_bad.is_empty() {
            results.send_bad(&timed(new.clone(), self.windowed.keys_n()), &newly_bad)?;
        }
        for old in gone.iter().rev().filter(|old| old.said != Said::Bad) {
            difference.picks.insert(0, (old.batch, old.row));
            difference.ops.insert(0, RowOp::Delete as i8);
        }
        self.sent.batches.push(new);
        let batches: Vec<&RecordBatch> = self.sent.batches.iter().collect();
        let rows = interleave_record_batch(&batches, &difference.picks)?;
        let rows = timed(rows, self.windowed.keys_n());
        results.send(&rows, Some(Int8Array::from(difference.ops)));
        self.sent.rows = kept;
        self.sent.compact()
    }

    fn same(
        &self,
        old: &SentRow,
        new: &RecordBatch,
        row: usize,
        is_bad: bool,
    ) -> Result<bool, Error> {
        if (old.said == Said::Bad) || is_bad {
            return Ok((old.said == Said::Bad) == is_bad);
        }
        let columns = self.sent.batches[old.batch]
            .columns()
            .iter()
            .zip(new.columns());
        for (old_column, new_column) in columns.skip(self.windowed.keys_n() + 2) {
            let compare = make_comparator(old_column, new_column, SortOptions::default())?;
            if !compare(old.row, row).is_eq() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn log_difference(
        &mut self,
        gone: &[SentRow],
        difference: &Difference,
        new: &RecordBatch,
        bad: &[(usize, String)],
    ) -> Outcome {
        let lateness = self.lateness();
        for old in gone {
            let rows = &self.sent.batches[old.batch];
            self.sent_log.add_retracted(rows, old.row, lateness)?;
        }
        let bad: Vec<usize> = bad.iter().map(|(row, _)| *row).collect();
        self.sent_log
            .add_each(new, &difference.changed, &bad, lateness)
    }

    /// Remembers sessions that became final, and forgets those that nothing can touch any more.
    fn settle_finals(
        &mut self,
        gathered: &Gathered,
        watermark: Watermark,
        final_border: Border,
    ) -> Outcome {
        self.index = None;
        self.finals.expire(watermark)?;
        let newly: Vec<usize> = (0..gathered.chains.len())
            .filter(|idx| final_border.has_reached(self.end_of(gathered.chains[*idx].last)))
            .filter(|idx| self.forgotten_at(gathered.chains[*idx].last) > watermark.0)
            .collect();
        if newly.is_empty() {
            return Ok(());
        }
        let keys = self.keys_of(gathered, &newly)?;
        let chains = newly.iter().map(|idx| gathered.chains[*idx]);
        self.finals.add(
            keys,
            chains.clone().map(|chain| chain.start).collect(),
            chains.clone().map(|chain| chain.last).collect(),
            chains.map(|chain| self.forgotten_at(chain.last)).collect(),
        )
    }

    /// `end + gap + allowedLateness` (T4).
    fn forgotten_at(&self, last: i64) -> i64 {
        self.end_of(self.end_of(last))
            .saturating_add(self.lateness())
    }

    /// One fragment per open session of the slices that are swept.
    fn carry(
        &self,
        gathered: &Gathered,
        final_border: Border,
        swept_to: Option<i64>,
    ) -> Result<Option<TableRows>, Error> {
        let Some(swept_to) = swept_to else {
            return Ok(None);
        };
        let is_swept = |key: &SliceKey| key.slice <= swept_to;
        let open: Vec<usize> = (0..gathered.chains.len())
            .filter(|idx| {
                let chain = &gathered.chains[*idx];
                let fragments = &gathered.fragments[chain.at..chain.at + chain.n];
                !final_border.has_reached(self.end_of(chain.last))
                    && fragments
                        .iter()
                        .any(|one| is_swept(&gathered.pieces[one.piece].0))
            })
            .collect();
        if open.is_empty() {
            return Ok(None);
        }
        let mut columns = self.keys_of(gathered, &open)?;
        columns.extend(self.merged(gathered, &open, is_swept)?.take_states()?);
        Ok(Some(TableRows {
            columns,
            rows: open.len(),
        }))
    }
}

/// What changes in what was sent.
#[derive(Debug, Default)]
struct Difference {
    picks: Vec<(usize, usize)>,
    ops: Vec<i8>,
    newly_bad: Vec<usize>,
    /// Rows of the new batch about which something else is said now.
    changed: Vec<usize>,
}

impl Difference {
    fn replace(&mut self, old: Option<SentRow>, now: SentRow) {
        self.changed.push(now.row);
        let is_bad = now.said == Said::Bad;
        let old = old.filter(|old| old.said != Said::Bad);
        if let Some(old) = old {
            self.picks.push((old.batch, old.row));
            self.ops.push(if is_bad {
                RowOp::Delete
            } else {
                RowOp::UpdateBefore
            } as i8);
        }
        if is_bad {
            self.newly_bad.push(now.row);
            return;
        }
        self.picks.push((now.batch, now.row));
        self.ops.push(if old.is_some() {
            RowOp::UpdateAfter
        } else {
            RowOp::Insert
        } as i8);
    }
}
