//! Extents of final sessions, and who is late because of them (T4).

use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, Int64Array, RecordBatch};
use arrow::datatypes::{DataType, Field, Int64Type, Schema};
use streamforge_core::event_time::Watermark;

use super::super::super::windowed::Windowed;
use crate::aggregate::Error;
use crate::group_table::{Extents, GroupTable, TableShape};
use crate::slices::LAYOUT;
use crate::slices::row_log::{LogShape, RowLog};
use crate::state::StatePart;

/// Kind of the parts that hold extents.
pub(in super::super) const EXTENTS: &str = "extents";

/// Batches of extents held before they are joined.
const BATCHES_MAX: usize = 16;

/// Extents of final sessions that an old record could still touch.
#[derive(Debug)]
pub(super) struct Finals {
    /// Columns of the log: `_seq`, `_until`, keys, first and last event time.
    rows: Vec<RecordBatch>,
    log: RowLog,
    schema: Arc<Schema>,
    keys_n: usize,
}

impl Finals {
    pub(super) fn new(windowed: &Windowed, groups_n: u32) -> Self {
        let keys_n = windowed.keys_n();
        let number = |name: &str| Field::new(name, DataType::Int64, false);
        let mut fields = vec![number("_seq"), number("_until")];
        for (idx, field) in windowed.output.fields().iter().take(keys_n).enumerate() {
            fields.push(Field::new(
                format!("k{idx}"),
                field.data_type().clone(),
                true,
            ));
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
        Self {
            rows: Vec::new(),
            log: RowLog::new(shape),
            schema,
            keys_n,
        }
    }

    pub(super) fn log(&mut self) -> &mut RowLog {
        &mut self.log
    }

    /// Forgets what nothing can touch at `watermark`.
    pub(super) fn expire(&mut self, watermark: Watermark) -> Result<(), Error> {
        for rows in std::mem::take(&mut self.rows) {
            self.restore(&rows, watermark)?;
        }
        if self.rows.len() > BATCHES_MAX {
            self.rows = vec![arrow::compute::concat_batches(&self.schema, &self.rows)?];
        }
        self.log.expire(watermark.0);
        Ok(())
    }

    /// The extents by key.
    pub(super) fn index(&self) -> Result<FinalsIndex, Error> {
        let keys = self.schema.fields().iter().skip(2).take(self.keys_n);
        let keys = keys.map(|field| field.data_type().clone()).collect();
        let shape = Arc::new(TableShape::new(keys, Vec::new(), Extents::Ignored)?);
        let mut index = FinalsIndex {
            interner: GroupTable::new(&shape)?,
            by_group: Vec::new(),
        };
        for rows in &self.rows {
            let keys: Vec<ArrayRef> = rows
                .columns()
                .iter()
                .skip(2)
                .take(self.keys_n)
                .cloned()
                .collect();
            let number = |idx: usize| rows.column(idx).as_primitive::<Int64Type>().values();
            let (start, last) = (number(2 + self.keys_n), number(3 + self.keys_n));
            let groups = index.groups_of(&keys, rows.num_rows())?;
            for (group, (start, last)) in groups.into_iter().zip(start.iter().zip(last)) {
                index.by_group[group].push((*start, *last));
            }
        }
        Ok(index)
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

    fn restore(&mut self, rows: &RecordBatch, watermark: Watermark) -> Result<(), Error> {
        let until = rows.column(1).as_primitive::<Int64Type>();
        let live = until
            .values()
            .iter()
            .map(|until| Some(*until > watermark.0))
            .collect();
        let rows = arrow::compute::filter_record_batch(rows, &live)?;
        if rows.num_rows() > 0 {
            let columns = rows.columns().to_vec();
            self.rows
                .push(RecordBatch::try_new(Arc::clone(&self.schema), columns)?);
        }
        Ok(())
    }

    pub(super) fn size(&self) -> usize {
        let rows = self.rows.iter().map(RecordBatch::get_array_memory_size);
        rows.sum::<usize>() + self.log.size()
    }

    pub(super) fn absorb(&mut self, other: Finals) {
        self.rows.extend(other.rows);
        self.log.absorb(other.log);
    }
}

/// Extents of final sessions by key.
#[derive(Debug)]
pub(super) struct FinalsIndex {
    interner: GroupTable,
    /// First and last event time of each session.
    by_group: Vec<Vec<(i64, i64)>>,
}

impl FinalsIndex {
    pub(super) fn groups_of(
        &mut self,
        keys: &[ArrayRef],
        rows: usize,
    ) -> Result<Vec<usize>, Error> {
        let groups = self.interner.intern(keys, rows)?.to_vec();
        self.by_group.resize(self.interner.len(), Vec::new());
        Ok(groups)
    }

    /// The window that a row at `time` missed, if any: the final session that it would touch, else
    /// its own. `border` is what sessions must end behind to be open.
    pub(super) fn missed(
        &self,
        group: usize,
        time: i64,
        gap_us: i64,
        border: i64,
    ) -> Option<(i64, i64)> {
        let end_of = |last: i64| last.saturating_add(gap_us);
        let touched = self.by_group[group]
            .iter()
            .filter(|(start, last)| time < end_of(*last) && *start < end_of(time))
            .min();
        match touched {
            Some((start, last)) => Some((*start, end_of(*last))),
            None => (end_of(time) <= border).then(|| (time, end_of(time))),
        }
    }

    pub(super) fn size(&self) -> usize {
        let extents = self
            .by_group
            .iter()
            .map(|extents| 2 + extents.capacity())
            .sum::<usize>();
        self.interner.size() + extents * size_of::<(i64, i64)>()
    }
}
