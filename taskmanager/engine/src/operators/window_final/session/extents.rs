//! Extents of final sessions, and who is late because of them (T4).

use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, Int64Array, RecordBatch};
use arrow::compute::interleave_record_batch;
use arrow::datatypes::{DataType, Field, Int64Type, Schema};
use streamforge_core::event_time::Watermark;

use super::super::super::windowed::Windowed;
use crate::aggregate::Error;
use crate::group_table::GroupTable;
use crate::slices::LAYOUT;
use crate::slices::row_log::{LogShape, RowLog};
use crate::state::StatePart;

/// Kind of the parts that hold extents.
pub(in super::super) const EXTENTS: &str = "extents";

/// Extents of final sessions that an old record could still touch.
#[derive(Debug)]
pub(super) struct Finals {
    /// Columns of the log: `_seq`, `_until`, keys, first and last event time.
    rows: Vec<RecordBatch>,
    log: RowLog,
    schema: Arc<Schema>,
    keys_n: usize,
}

/// One final session in [`Finals`].
#[derive(Clone, Copy, Debug)]
pub(super) struct Final {
    /// Where its row is.
    pub(super) batch: usize,
    pub(super) row: usize,
    /// First event time.
    pub(super) start: i64,
    /// Last event time.
    pub(super) last: i64,
    /// Watermark at which it is not needed any more.
    pub(super) until: i64,
}

impl Finals {
    pub(super) fn new(windowed: &Windowed, groups_n: u32) -> Self {
        let keys_n = windowed.keys_n();
        let number = |name: &str| Field::new(name, DataType::Int64, false);
        let mut fields = vec![number("_seq"), number("_until")];
        for (idx, field) in windowed.output.fields().iter().take(keys_n).enumerate() {
            fields.push(Field::new(format!("k{idx}"), field.data_type().clone(), true));
        }
        fields.extend([number("_start"), number("_last")]);
        let layout = format!("{} extents/1", windowed.shape.layout());
        let metadata = [(LAYOUT.to_owned(), layout)];
        let schema = Arc::new(Schema::new_with_metadata(fields, metadata.into()));
        let shape = LogShape {
            kind: EXTENTS,
            sequence_from: 2 << 40,
            schema: Arc::clone(&schema),
            keys_n,
            groups_n,
        };
        Self { rows: Vec::new(), log: RowLog::new(shape), schema, keys_n }
    }

    pub(super) fn log(&mut self) -> &mut RowLog {
        &mut self.log
    }

    /// Key columns of each batch, with its number of rows.
    pub(super) fn keys(&self) -> impl Iterator<Item = (Vec<ArrayRef>, usize)> + '_ {
        self.rows.iter().map(|rows| {
            let keys = rows.columns().iter().skip(2).take(self.keys_n).cloned().collect();
            (keys, rows.num_rows())
        })
    }

    /// All extents, in the order of [`Finals::keys`].
    pub(super) fn all(&self) -> Vec<Final> {
        let mut all = Vec::new();
        for (batch, rows) in self.rows.iter().enumerate() {
            let number = |idx: usize| rows.column(idx).as_primitive::<Int64Type>().values();
            let (until, start, last) =
                (number(1), number(2 + self.keys_n), number(3 + self.keys_n));
            all.extend((0..rows.num_rows()).map(|row| Final {
                batch,
                row,
                start: start[row],
                last: last[row],
                until: until[row],
            }));
        }
        all
    }

    /// Keeps these, with new ends of their lives; those that live longer are logged again.
    pub(super) fn keep(&mut self, kept: &[Final], before: &[Final]) -> Result<(), Error> {
        if kept.len() == before.len() && self.rows.len() <= 1 {
            let changed = kept.iter().zip(before).any(|(kept, before)| kept.until != before.until);
            if !changed {
                return Ok(());
            }
        }
        if kept.is_empty() {
            self.rows.clear();
            return Ok(());
        }
        let picks: Vec<(usize, usize)> = kept.iter().map(|one| (one.batch, one.row)).collect();
        let batches: Vec<&RecordBatch> = self.rows.iter().collect();
        let rows = interleave_record_batch(&batches, &picks)?;
        let mut columns = rows.columns().to_vec();
        columns[1] = Arc::new(Int64Array::from_iter_values(kept.iter().map(|one| one.until)));
        let rows = RecordBatch::try_new(Arc::clone(&self.schema), columns)?;
        let until = before.iter().map(|one| ((one.batch, one.row), one.until));
        let until: std::collections::BTreeMap<_, _> = until.collect();
        let longer = kept.iter().map(|one| until.get(&(one.batch, one.row)) != Some(&one.until));
        let longer: arrow::array::BooleanArray = longer.map(Some).collect();
        self.log.add(arrow::compute::filter_record_batch(&rows, &longer)?);
        self.rows = vec![rows];
        Ok(())
    }

    /// Adds sessions that became final.
    pub(super) fn add(
        &mut self,
        keys: Vec<ArrayRef>,
        start: Vec<i64>,
        last: Vec<i64>,
        until: Vec<i64>,
    ) -> Result<(), Error> {
        let number = |values: Vec<i64>| -> ArrayRef { Arc::new(Int64Array::from(values)) };
        let mut columns = vec![number(vec![0; until.len()]), number(until)];
        columns.extend(keys);
        columns.extend([number(start), number(last)]);
        let rows = RecordBatch::try_new(Arc::clone(&self.schema), columns)?;
        self.log.add(rows.clone());
        self.rows.push(rows);
        Ok(())
    }

    pub(super) fn load(&mut self, part: StatePart, watermark: Watermark) -> Result<(), Error> {
        let rows = self.log.load(part)?;
        self.restore(&rows, watermark)
    }

    pub(super) fn load_rows(&mut self, rows: RecordBatch, watermark: Watermark) -> Result<(), Error> {
        self.log.load_rows(rows.clone())?;
        self.restore(&rows, watermark)
    }

    fn restore(&mut self, rows: &RecordBatch, watermark: Watermark) -> Result<(), Error> {
        let until = rows.column(1).as_primitive::<Int64Type>();
        let live = until.values().iter().map(|until| Some(*until > watermark.0)).collect();
        let rows = arrow::compute::filter_record_batch(rows, &live)?;
        if rows.num_rows() > 0 {
            let columns = rows.columns().to_vec();
            self.rows.push(RecordBatch::try_new(Arc::clone(&self.schema), columns)?);
        }
        Ok(())
    }

    pub(super) fn absorb(&mut self, other: Finals) {
        self.rows.extend(other.rows);
        self.log.absorb(other.log);
    }
}

/// A session as far as it is known below the border.
#[derive(Clone, Copy, Debug)]
pub(super) struct Interval {
    pub(super) start: i64,
    pub(super) last: i64,
    pub(super) is_final: bool,
}

/// Sessions that reach below the border, by key.
#[derive(Debug)]
pub(super) struct Known {
    interner: GroupTable,
    /// As the sweep found them, not indexed until an old row asks.
    found: Vec<(usize, Interval)>,
    by_group: Vec<Vec<Interval>>,
}

/// What becomes of an old row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It belongs to an open session, maybe its own.
    OnTime,
    /// It is late for this window.
    Late {
        /// The final session hit, else its own: first instant.
        start: i64,
        /// First instant after it.
        end: i64,
    },
}

impl Known {
    pub(super) fn new(interner: GroupTable, found: Vec<(usize, Interval)>) -> Self {
        Self { interner, found, by_group: Vec::new() }
    }

    pub(super) fn intern(&mut self, keys: &[ArrayRef], rows: usize) -> Result<Vec<usize>, Error> {
        let groups = self.interner.intern(keys, rows)?.to_vec();
        self.by_group.resize(self.interner.len(), Vec::new());
        for (group, interval) in std::mem::take(&mut self.found) {
            self.by_group[group].push(interval);
        }
        Ok(groups)
    }

    /// Judges a row below the border, and remembers it if it is on time.
    pub(super) fn judge(&mut self, group: usize, time: i64, gap_us: i64, border: i64) -> Verdict {
        let end_of = |last: i64| last.saturating_add(gap_us);
        let touches = |one: &Interval| time < end_of(one.last) && one.start < end_of(time);
        let intervals = &mut self.by_group[group];
        let hit = intervals.iter().filter(|one| one.is_final && touches(one));
        if let Some(hit) = hit.min_by_key(|one| one.start) {
            return Verdict::Late { start: hit.start, end: end_of(hit.last) };
        }
        let own_is_open = end_of(time) > border;
        if !own_is_open && !intervals.iter().any(touches) {
            return Verdict::Late { start: time, end: end_of(time) };
        }
        let mut joined = Interval { start: time, last: time, is_final: false };
        intervals.retain(|one| {
            let joins = touches(one);
            if joins {
                joined.start = joined.start.min(one.start);
                joined.last = joined.last.max(one.last);
            }
            !joins
        });
        intervals.push(joined);
        Verdict::OnTime
    }
}
