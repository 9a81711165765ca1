//! Result rows on their way out: good ones to the main output, those without a result to `.bad`.

use arrow::array::{ArrayRef, BooleanArray, Int8Array};
use arrow::buffer::BooleanBuffer;
use arrow::error::ArrowError;
use streamforge_core::job_graph::Port;
use streamforge_core::manifest::Counters;

use super::super::late::Missed;
use super::super::windowed::Windowed;
use super::super::{Named, count};
use crate::aggregate;
use crate::batch::{BATCH_ROWS, BadRows, StreamBatch};
use crate::operator::Outputs;
use crate::row_json::row_as_json;

/// Where an event's results go.
pub(super) struct Results<'a> {
    named: &'a Named,
    pub(super) windowed: &'a Windowed,
    pub(super) counters: &'a mut Counters,
    out: &'a mut Outputs,
}

/// Evaluated groups of some windows.
pub(super) struct Evaluated {
    /// Key columns.
    pub(super) keys: Vec<ArrayRef>,
    /// Window of each group.
    pub(super) starts: Vec<i64>,
    /// Window of each group.
    pub(super) ends: Vec<i64>,
    /// A column per aggregate.
    pub(super) values: Vec<ArrayRef>,
    /// Groups without a result, ascending, and why.
    pub(super) bad: Vec<(usize, String)>,
}

impl<'a> Results<'a> {
    pub(super) fn new(
        named: &'a Named,
        windowed: &'a Windowed,
        counters: &'a mut Counters,
        out: &'a mut Outputs,
    ) -> Self {
        Self {
            named,
            windowed,
            counters,
            out,
        }
    }

    /// All groups as rows of the main output; those of bad ones are not to be sent.
    pub(super) fn rows(&self, evaluated: &Evaluated) -> Result<StreamBatch, ArrowError> {
        self.windowed.results(
            &evaluated.keys,
            evaluated.starts.clone(),
            evaluated.ends.clone(),
            evaluated.values.clone(),
        )
    }

    /// Sends new rows: the good ones on, a line to `.bad` for each of the others.
    pub(super) fn send_new(
        &mut self,
        batch: &StreamBatch,
        bad: &[(usize, String)],
    ) -> Result<(), aggregate::Error> {
        if bad.is_empty() {
            self.send(batch, None);
            return Ok(());
        }
        self.send_bad(batch, bad)?;
        let mut bad = bad.iter().map(|(row, _)| *row).peekable();
        let keep = BooleanBuffer::collect_bool(batch.len(), |row| {
            let is_bad = bad.peek() == Some(&row);
            if is_bad {
                bad.next();
            }
            !is_bad
        });
        let good = batch.filter(&BooleanArray::new(keep, None))?;
        self.send(&good, None);
        Ok(())
    }

    /// Sends rows of a changelog.
    pub(super) fn send(&mut self, batch: &StreamBatch, ops: Option<Int8Array>) {
        let batch = StreamBatch {
            ops,
            ..batch.clone()
        };
        let mut offset = 0;
        while offset < batch.len() {
            let n = BATCH_ROWS.min(batch.len() - offset);
            // -U and its +U stay in one batch.
            let n = pair_end(&batch, offset, n);
            self.out.push(Port::Main, batch.slice(offset, n));
            offset += n;
        }
    }

    /// Says which rows of `batch` have no result, by key and window.
    pub(super) fn send_bad(
        &mut self,
        batch: &StreamBatch,
        bad: &[(usize, String)],
    ) -> Result<(), aggregate::Error> {
        self.counters.bad_results += count(bad.len());
        if bad.is_empty() || !self.out.is_read(Port::Bad) {
            return Ok(());
        }
        let named: Vec<usize> = (0..self.windowed.keys_n() + 2).collect();
        let names = batch.rows.project(&named)?;
        let mut rows = BadRows::default();
        for (row, reason) in bad {
            let time = batch.event_time.as_ref().map(|times| times.value(*row));
            rows.push(
                Some(row_as_json(&names, *row).as_bytes()),
                reason.clone(),
                None,
                time,
            );
        }
        self.out.push(Port::Bad, rows.finish(&self.named.node)?);
        Ok(())
    }

    /// True if rows of `.late` must be made.
    pub(super) fn late_is_read(&self) -> bool {
        self.out.is_read(Port::Late)
    }

    /// Sends rows of `.late`; `batch` has the input's columns.
    pub(super) fn send_late(
        &mut self,
        missed: &Missed,
        batch: &StreamBatch,
        watermark: streamforge_core::event_time::Watermark,
    ) -> Result<(), aggregate::Error> {
        let late = missed.output(&self.windowed.late, batch, watermark)?;
        self.out.push(Port::Late, late);
        Ok(())
    }
}

fn pair_end(batch: &StreamBatch, offset: usize, n: usize) -> usize {
    use crate::batch::RowOp;
    let Some(ops) = &batch.ops else {
        return n;
    };
    let last = offset + n - 1;
    let splits = last + 1 < ops.len() && ops.value(last) == RowOp::UpdateBefore as i8;
    n + usize::from(splits)
}
