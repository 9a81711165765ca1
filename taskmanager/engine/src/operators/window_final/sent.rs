//! What `OnTime` sent and may still have to take back (G2).
//!
//! Owns: for each window that fired and is not final, the row last sent for each key, and its way
//! into checkpoints. A correction takes back exactly that row, whatever would be computed now.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;

use arrow::array::{
    ArrayRef, AsArray, DynComparator, Int8Array, RecordBatch, UInt32Array, make_comparator,
};
use arrow::compute::{
    SortOptions, interleave_record_batch, sort_to_indices, take, take_record_batch,
};
use arrow::datatypes::{DataType, Field, Int8Type, Int64Type, Schema, TimestampMicrosecondType};

use super::super::windowed::Windowed;
use crate::aggregate::Error;
use crate::batch::{RowOp, StreamBatch};
use crate::group_table::{Extents, GroupTable, TableShape, constant};
use crate::slices::LAYOUT;
use crate::slices::row_log::{LogShape, RowLog};

/// Kind of the parts that hold sent rows.
pub(super) const EMITTED: &str = "emitted";

/// What was last said about a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Said {
    /// No row holds.
    Nothing,
    /// This row of this batch.
    Row {
        /// Index of the batch.
        batch: usize,
        /// Row in it.
        row: usize,
    },
    /// That it has no result.
    Bad,
}

const SAID_ROW: i8 = 0;
const SAID_BAD: i8 = 1;
const SAID_NOTHING: i8 = 2;

/// The rows last sent for one window.
#[derive(Debug)]
pub(super) struct Sent {
    /// Numbers the keys.
    index: GroupTable,
    said: Vec<Said>,
    /// Rows of the main output, without event time.
    batches: Vec<RecordBatch>,
    /// Batches whose keys are not in the index yet; most windows are never corrected.
    unindexed: Vec<(usize, Vec<i8>)>,
    keys_n: usize,
}

/// A correction ready to be sent.
pub(super) struct Correction {
    pub(super) rows: RecordBatch,
    pub(super) ops: Int8Array,
    /// Rows of the new batch that are newly bad.
    pub(super) newly_bad: Vec<usize>,
    /// Rows of the new batch about which something else is said now.
    pub(super) changed: Vec<usize>,
}

fn comparators(
    old: &RecordBatch,
    new: &RecordBatch,
    from: usize,
) -> Result<Vec<DynComparator>, Error> {
    let pairs = old.columns().iter().zip(new.columns()).skip(from);
    let compare = |(old, new): (&ArrayRef, &ArrayRef)| {
        Ok(make_comparator(
            old.as_ref(),
            new.as_ref(),
            SortOptions::default(),
        )?)
    };
    pairs.map(compare).collect()
}

impl Sent {
    /// Nothing was sent yet.
    pub(super) fn new(windowed: &Windowed) -> Result<Self, Error> {
        let keys = windowed.output.fields().iter().take(windowed.keys_n());
        let keys = keys.map(|field| field.data_type().clone()).collect();
        let shape = Arc::new(TableShape::new(keys, Vec::new(), Extents::Ignored)?);
        Ok(Self {
            index: GroupTable::new(&shape)?,
            said: Vec::new(),
            batches: Vec::new(),
            unindexed: Vec::new(),
            keys_n: windowed.keys_n(),
        })
    }

    /// Remembers the rows that a window fired with; `bad` are those without a result.
    pub(super) fn fired(&mut self, rows: RecordBatch, bad: Vec<usize>) {
        let mut said = vec![SAID_ROW; rows.num_rows()];
        for row in bad {
            said[row] = SAID_BAD;
        }
        self.heard(rows, said);
    }

    fn heard(&mut self, rows: RecordBatch, said: Vec<i8>) {
        self.unindexed.push((self.batches.len(), said));
        self.batches.push(rows);
    }

    /// All rows that hold, and keys known to have no result.
    pub(super) fn into_rows(
        mut self,
    ) -> Result<(Vec<RecordBatch>, Vec<(usize, usize, Said)>), Error> {
        let unindexed: Vec<usize> = self.unindexed.iter().map(|(batch, _)| *batch).collect();
        self.catch_up()?;
        let mut rows = Vec::new();
        let mut seen = vec![false; self.said.len()];
        for batch in unindexed.into_iter().rev() {
            let columns = self.batches[batch].columns().iter().take(self.keys_n);
            let keys: Vec<ArrayRef> = columns.cloned().collect();
            let groups = self.index.intern(&keys, self.batches[batch].num_rows())?;
            for (row, group) in groups.iter().enumerate().rev() {
                if !std::mem::replace(&mut seen[*group], true) && self.said[*group] != Said::Nothing
                {
                    rows.push((batch, row, self.said[*group]));
                }
            }
        }
        Ok((self.batches, rows))
    }

    fn catch_up(&mut self) -> Result<(), Error> {
        for (batch, said) in std::mem::take(&mut self.unindexed) {
            let Some(rows) = self.batches.get(batch) else {
                continue;
            };
            let keys: Vec<ArrayRef> = rows.columns().iter().take(self.keys_n).cloned().collect();
            let groups = self.index.intern(&keys, rows.num_rows())?.to_vec();
            self.said.resize(self.index.len(), Said::Nothing);
            for ((row, group), said) in groups.into_iter().enumerate().zip(said) {
                self.said[group] = match said {
                    SAID_ROW => Said::Row { batch, row },
                    SAID_BAD => Said::Bad,
                    _ => Said::Nothing,
                };
            }
        }
        Ok(())
    }

    /// Says `new` instead of what was said about its keys; `bad` are its rows without a result.
    pub(super) fn correct(
        &mut self,
        new: &RecordBatch,
        bad: &[usize],
    ) -> Result<Correction, Error> {
        self.catch_up()?;
        let keys: Vec<ArrayRef> = new.columns().iter().take(self.keys_n).cloned().collect();
        let groups = self.index.intern(&keys, new.num_rows())?.to_vec();
        self.said.resize(self.index.len(), Said::Nothing);
        let at = self.batches.len();
        let mut compare: BTreeMap<usize, Vec<DynComparator>> = BTreeMap::new();
        let mut picks = Vec::new();
        let mut ops = Vec::new();
        let (mut newly_bad, mut changed) = (Vec::new(), Vec::new());
        for (row, group) in groups.into_iter().enumerate() {
            let before = self.said[group];
            let is_bad = bad.binary_search(&row).is_ok();
            let mut op_of_new = RowOp::Insert;
            if let Said::Row { batch, row: old } = before {
                if let Entry::Vacant(vacant) = compare.entry(batch) {
                    vacant.insert(comparators(&self.batches[batch], new, self.keys_n)?);
                }
                let same = compare[&batch]
                    .iter()
                    .all(|compare| compare(old, row).is_eq());
                if same && !is_bad {
                    continue;
                }
                picks.push((batch, old));
                op_of_new = RowOp::UpdateAfter;
                ops.push(if is_bad {
                    RowOp::Delete
                } else {
                    RowOp::UpdateBefore
                } as i8);
            }
            if is_bad {
                if before == Said::Bad {
                    continue;
                }
                newly_bad.push(row);
                self.said[group] = Said::Bad;
            } else {
                picks.push((at, row));
                ops.push(op_of_new as i8);
                self.said[group] = Said::Row { batch: at, row };
            }
            changed.push(row);
        }
        let batches: Vec<&RecordBatch> = self.batches.iter().chain([new]).collect();
        let rows = interleave_record_batch(&batches, &picks)?;
        if !changed.is_empty() {
            self.batches.push(new.clone());
        }
        Ok(Correction {
            rows,
            ops: Int8Array::from(ops),
            newly_bad,
            changed,
        })
    }

    /// Bytes held.
    pub(super) fn size(&self) -> usize {
        let batches = self.batches.iter().map(RecordBatch::get_array_memory_size);
        self.index.size() + self.said.capacity() * size_of::<Said>() + batches.sum::<usize>()
    }

    /// Takes over what another task said about other keys.
    pub(super) fn absorb(&mut self, mut other: Sent) -> Result<(), Error> {
        let offset = self.batches.len();
        other.catch_up()?;
        self.catch_up()?;
        let keys = other.index.take_keys()?;
        let groups = self.index.intern(&keys, other.said.len())?.to_vec();
        self.said.resize(self.index.len(), Said::Nothing);
        for (group, said) in groups.into_iter().zip(other.said) {
            self.said[group] = match said {
                Said::Row { batch, row } => Said::Row {
                    batch: batch + offset,
                    row,
                },
                said => said,
            };
        }
        self.batches.extend(other.batches);
        Ok(())
    }
}

/// More rows than can have been sent.
const SEQUENCE_MAX: i64 = 1 << 53;

/// Sent rows on their way into checkpoints.
#[derive(Debug)]
pub(super) struct SentLog {
    log: RowLog,
    next: i64,
    keys_n: usize,
    schema: Arc<Schema>,
}

impl SentLog {
    pub(super) fn new(windowed: &Windowed, groups_n: u32) -> Self {
        let keys_n = windowed.keys_n();
        let number = |name: &str| Field::new(name, DataType::Int64, false);
        let mut fields = vec![number("_seq"), number("_until")];
        fields.extend(
            windowed
                .output
                .fields()
                .iter()
                .map(|field| field.as_ref().clone()),
        );
        fields.push(Field::new("_said", DataType::Int8, false));
        // Names are the user's and may change; types may not.
        for (idx, field) in fields.iter_mut().enumerate().skip(2) {
            *field = field
                .clone()
                .with_name(format!("c{idx}"))
                .with_nullable(true);
        }
        let layout = format!("{} emitted/1", windowed.shape.layout());
        let metadata = [(LAYOUT.to_owned(), layout)];
        let schema = Arc::new(Schema::new_with_metadata(fields, metadata.into()));
        let shape = LogShape {
            kind: EMITTED,
            sequence_from: 1 << 40,
            schema: Arc::clone(&schema),
            keys_n,
            groups_n,
        };
        Self {
            log: RowLog::new(shape),
            next: 0,
            keys_n,
            schema,
        }
    }

    /// Remembers what was said: rows of the main output, which of them are bad, until when.
    pub(super) fn add(
        &mut self,
        rows: &RecordBatch,
        chosen: Option<&[usize]>,
        bad: &[usize],
        until: i64,
    ) -> Result<(), Error> {
        let mut said = vec![SAID_ROW; rows.num_rows()];
        for row in bad {
            said[*row] = SAID_BAD;
        }
        let mut columns = rows.columns().to_vec();
        columns.push(Arc::new(Int8Array::from(said)));
        if let Some(chosen) = chosen {
            let short = chosen
                .iter()
                .map(|row| u32::try_from(*row).unwrap_or(u32::MAX));
            let indices = UInt32Array::from_iter_values(short);
            for column in &mut columns {
                *column = take(column, &indices, None)?;
            }
        }
        let n = chosen.map_or(rows.num_rows(), <[usize]>::len);
        let mut all = vec![constant(self.next, n), constant(until, n)];
        self.next += 1;
        all.extend(columns);
        self.log
            .add(RecordBatch::try_new(Arc::clone(&self.schema), all)?);
        Ok(())
    }

    /// Remembers rows whose windows differ; each is needed until its window is final.
    pub(super) fn add_each(
        &mut self,
        rows: &RecordBatch,
        chosen: &[usize],
        bad: &[usize],
        lateness: i64,
    ) -> Result<(), Error> {
        let ends = rows
            .column(self.keys_n + 1)
            .as_primitive::<TimestampMicrosecondType>();
        let mut by_end: BTreeMap<i64, Vec<usize>> = BTreeMap::new();
        for row in chosen {
            by_end.entry(ends.value(*row)).or_default().push(*row);
        }
        for (end, chosen) in by_end {
            self.add(rows, Some(&chosen), bad, end.saturating_add(lateness))?;
        }
        Ok(())
    }

    /// Remembers that a row was taken back.
    pub(super) fn add_retracted(
        &mut self,
        rows: &RecordBatch,
        row: usize,
        lateness: i64,
    ) -> Result<(), Error> {
        let rows = rows.slice(row, 1);
        let ends = rows
            .column(self.keys_n + 1)
            .as_primitive::<TimestampMicrosecondType>();
        let until = ends.value(0).saturating_add(lateness);
        let mut all = vec![constant(self.next, 1), constant(until, 1)];
        self.next += 1;
        all.extend(rows.columns().iter().cloned());
        all.push(Arc::new(Int8Array::from(vec![SAID_NOTHING])));
        self.log
            .add(RecordBatch::try_new(Arc::clone(&self.schema), all)?);
        Ok(())
    }

    /// Takes over another log.
    pub(super) fn absorb(&mut self, other: SentLog) {
        self.next = self.next.max(other.next);
        self.log.absorb(other.log);
    }

    /// Bytes held.
    pub(super) fn size(&self) -> usize {
        self.log.size()
    }

    pub(super) fn log(&mut self) -> &mut RowLog {
        &mut self.log
    }

    /// What stored rows say, by window, the newest word last; rows not needed at `watermark` aside.
    pub(super) fn read(
        &mut self,
        stored: &[RecordBatch],
        windowed: &Windowed,
        watermark: i64,
    ) -> Result<BTreeMap<(i64, i64), Sent>, Error> {
        let mut windows: BTreeMap<(i64, i64), Sent> = BTreeMap::new();
        let stored = stored
            .iter()
            .map(|rows| RecordBatch::try_new(Arc::clone(&self.schema), rows.columns().to_vec()))
            .collect::<Result<Vec<_>, _>>()?;
        let all = arrow::compute::concat_batches(&self.schema, &stored)?;
        let all = take_record_batch(&all, &sort_to_indices(all.column(0), None, None)?)?;
        let sequences = all.column(0).as_primitive::<Int64Type>();
        let ends = [sequences.values().first(), sequences.values().last()];
        for number in ends.into_iter().flatten() {
            if !(0..SEQUENCE_MAX).contains(number) {
                return Err(Error::State(format!(
                    "the stored rows are damaged: no row is number {number} of what was sent"
                )));
            }
            self.next = self.next.max(number + 1);
        }
        let until = all.column(1).as_primitive::<Int64Type>();
        let time = |idx: usize| all.column(2 + self.keys_n + idx);
        let starts = time(0).as_primitive::<TimestampMicrosecondType>();
        let ends = time(1).as_primitive::<TimestampMicrosecondType>();
        let said = all.column(all.num_columns() - 1).as_primitive::<Int8Type>();
        let mut picks: BTreeMap<(i64, i64), Vec<u32>> = BTreeMap::new();
        for row in (0..all.num_rows()).filter(|row| until.value(*row) > watermark) {
            let window = (starts.value(row), ends.value(row));
            picks
                .entry(window)
                .or_default()
                .push(u32::try_from(row).unwrap_or(u32::MAX));
        }
        let output: Vec<usize> = (2..all.num_columns() - 1).collect();
        for (window, picks) in picks {
            let said = picks.iter().map(|row| said.value(*row as usize)).collect();
            let rows = take_record_batch(&all, &UInt32Array::from(picks))?.project(&output)?;
            let rows = RecordBatch::try_new(Arc::clone(&windowed.output), rows.columns().to_vec())?;
            let mut sent = Sent::new(windowed)?;
            sent.heard(rows, said);
            windows.insert(window, sent);
        }
        Ok(windows)
    }
}

/// `rows` as a batch of the main output whose event time is that of its windows (T5).
pub(super) fn timed(rows: RecordBatch, keys_n: usize) -> StreamBatch {
    let ends = rows
        .column(keys_n + 1)
        .as_primitive::<TimestampMicrosecondType>();
    let event_time = ends.unary(|end: i64| end.saturating_sub(1));
    StreamBatch {
        event_time: Some(event_time),
        ..StreamBatch::plain(rows)
    }
}
