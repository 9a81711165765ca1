//! The job's outputs, computed as one batch query.
//!
//! Owns: carrying all input through the nodes of the plan in topological order. Expressions are
//! compiled by `core/plan` as the engine's are; windows, groups, sessions and lateness are the
//! oracle's own. Start at: [`Oracle::on_source_rows`], [`Oracle::finish`].

use std::collections::VecDeque;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use arrow::array::{
    Array, ArrayRef, AsArray, BooleanArray, TimestampMicrosecondArray, UInt32Array,
};
use arrow::compute::{cast, take};
use arrow::datatypes::{DataType as ArrowType, TimeUnit};
use datafusion_physical_expr::PhysicalExpr;
use streamforge_core::event_time::{EVENT_TIME_MAX, EVENT_TIME_MIN};
use streamforge_core::job_graph::{Column, Expr, JobGraph, OperatorKind, Port, SinkSpec};
use streamforge_core::manifest::Counters;
use streamforge_taskmanager::connectors::formats::write::json_row;
use streamforge_taskmanager::connectors::registry::again::RecordLimit;
use streamforge_taskmanager::engine::batch::{BadRows, StreamBatch};
use streamforge_taskmanager::engine::evaluate::{Evaluator, bad_rows, evaluate};
use streamforge_taskmanager::engine::row_json::row_as_json;

use super::bad::BadColumns;
use super::graph::{Node, nodes};
use super::group::Row;
use super::late::LateLog;
use super::multiset::Multiset;

mod folders;
mod rows;
mod work;

use folders::without_folder;
use rows::{add_rows, assemble, outside_years, result_rows};
use work::{Work, plan_work};

/// Rows handed on at once.
const BATCH_ROWS: usize = 8192;

/// Compiles an expression against columns.
pub type Compile<'a> = dyn Fn(&Expr, &[Column]) -> Result<Arc<dyn PhysicalExpr>> + 'a;

/// See the module.
pub struct Oracle<'g> {
    nodes: Vec<Node<'g>>,
    work: Vec<Work<'g>>,
    counters: Vec<Counters>,
    queue: VecDeque<(usize, StreamBatch)>,
    late: LateLog,
    one_split: bool,
    findings: Vec<String>,
}

/// What a file sink should hold.
pub struct Expected<'g> {
    /// The sink's uid.
    pub uid: &'g str,
    /// The sink.
    pub spec: &'g SinkSpec,
    /// Its rows; `None`: a sink whose output cannot be read back.
    pub rows: Option<Multiset>,
    /// Where the words of a `.bad` stand, if it reads nothing else.
    pub bad: Option<BadColumns>,
}

/// Everything the oracle has to say.
pub struct Computed<'g> {
    /// What every sink should hold.
    pub sinks: Vec<Expected<'g>>,
    /// Rows by fate, in the order of the nodes.
    pub counters: Vec<Counters>,
    /// What is wrong with the late log.
    pub findings: Vec<String>,
}

impl<'g> Oracle<'g> {
    /// For a plan and the late log of its run; `one_split` if all input is one split.
    pub fn new(
        graph: &'g JobGraph,
        compile: &Compile<'_>,
        mut late: LateLog,
        one_split: bool,
    ) -> Result<Self> {
        let nodes = nodes(graph)?;
        let mut work = Vec::with_capacity(nodes.len());
        for node in &nodes {
            work.push(plan_work(node, &nodes, compile, &mut late)?);
        }
        let findings = late
            .untaken()
            .into_iter()
            .map(|uid| format!("the late log names `{uid}`, which is no aggregate of this job"))
            .collect();
        let counters = vec![Counters::default(); nodes.len()];
        Ok(Self {
            nodes,
            work,
            counters,
            queue: VecDeque::new(),
            late,
            one_split,
            findings,
        })
    }

    /// The nodes, producers before consumers.
    pub fn nodes(&self) -> &[Node<'g>] {
        &self.nodes
    }

    /// What the topic of a sink takes; rows beyond that are expected in the sink's `.bad`.
    pub fn limit_sink(&mut self, sink: usize, found: RecordLimit) {
        if let Some(Work::Sink { limit, .. }) = self.work.get_mut(sink) {
            *limit = Some(found);
        }
    }

    /// Takes rows of a source, in the order of their split.
    pub fn on_source_rows(
        &mut self,
        source: usize,
        rows: StreamBatch,
        bad: BadRows,
        bad_n: u64,
    ) -> Result<()> {
        self.counter(source).rows_in += rows.len() as u64 + bad_n;
        self.counter(source).bad += bad_n;
        self.send_bad(source, bad)?;
        let timed = self.with_event_time(source, rows)?;
        self.counter(source).passed += timed.len() as u64;
        self.check_newest(source, &timed);
        self.send(source, Port::Main, &timed);
        self.run()
    }

    /// All input is in: reads off the results of all windows.
    pub fn finish(mut self) -> Result<Computed<'g>> {
        for idx in 0..self.nodes.len() {
            match self.work.get_mut(idx) {
                Some(Work::Partial(aggregation)) => {
                    let settled = aggregation.settle(&mut self.findings)?;
                    let session = aggregation.is_session();
                    let consumer = self.final_of(idx)?;
                    let at = if session { consumer } else { idx };
                    let counter = self.counter(at);
                    counter.passed += settled.passed;
                    counter.late += settled.late;
                    counter.late_windows += settled.late_windows;
                    if session {
                        counter.rows_in += settled.passed + settled.late;
                    }
                    for batch in settled.late_rows {
                        self.send(idx, Port::Late, &batch);
                        self.send(consumer, Port::Late, &batch);
                    }
                    self.run()?;
                }
                Some(Work::Final { partial }) => {
                    let partial = *partial;
                    self.send_results(idx, partial)?;
                    self.run()?;
                }
                _ => {}
            }
        }
        let sinks = self.nodes.iter().zip(self.work).filter_map(|(node, work)| {
            match (&node.operator.kind, work) {
                (OperatorKind::Sink(spec), Work::Sink { rows, bad, .. }) => {
                    let uid = node.operator.uid.0.as_str();
                    Some(Expected {
                        uid,
                        spec,
                        rows,
                        bad,
                    })
                }
                _ => None,
            }
        });
        let sinks = sinks.collect();
        Ok(Computed {
            sinks,
            counters: self.counters,
            findings: self.findings,
        })
    }

    fn counter(&mut self, idx: usize) -> &mut Counters {
        self.counters
            .get_mut(idx)
            .expect("every node has counters: both lists have one length")
    }

    fn final_of(&self, partial: usize) -> Result<usize> {
        let consumers = self.nodes.get(partial).map(|node| &node.consumers);
        consumers
            .and_then(|list| list.iter().find(|(port, _, _)| *port == Port::Main))
            .map(|(_, idx, _)| *idx)
            .context("a partial aggregate without its second half")
    }

    fn send(&mut self, from: usize, port: Port, batch: &StreamBatch) {
        if batch.is_empty() {
            return;
        }
        if port == Port::Main {
            self.counter(from).out += batch.len() as u64;
        }
        let consumers = self.nodes.get(from).map(|node| node.consumers.as_slice());
        for (read, to, _) in consumers.unwrap_or_default() {
            if *read == port {
                self.queue.push_back((*to, batch.clone()));
            }
        }
    }

    fn send_bad(&mut self, from: usize, bad: BadRows) -> Result<()> {
        if !bad.is_empty() {
            let node = self
                .nodes
                .get(from)
                .map_or("", |node| node.operator.node.as_str());
            let batch = bad.finish(node)?;
            self.send(from, Port::Bad, &batch);
        }
        Ok(())
    }

    fn run(&mut self) -> Result<()> {
        while let Some((idx, batch)) = self.queue.pop_front() {
            self.on_rows(idx, batch)?;
        }
        Ok(())
    }

    fn on_rows(&mut self, idx: usize, batch: StreamBatch) -> Result<()> {
        let rows_n = batch.len() as u64;
        if !matches!(self.work.get(idx), Some(Work::Final { .. })) {
            self.counter(idx).rows_in += rows_n;
        }
        match self.work.get_mut(idx).context("every node has its work")? {
            Work::Source { .. } | Work::Final { .. } => Ok(()),
            Work::Sink { .. } => self.on_sink_rows(idx, &batch),
            Work::Union => {
                self.counter(idx).passed += rows_n;
                let columns = self.output(idx);
                let by_name = |column: &Column| {
                    batch
                        .rows
                        .column_by_name(&column.name)
                        .cloned()
                        .context("union lacks a column")
                };
                let arrays = columns.iter().map(by_name).collect::<Result<Vec<_>>>()?;
                let rows = assemble(columns, &arrays, batch.len())?;
                self.send(idx, Port::Main, &batch.with_rows(rows));
                Ok(())
            }
            Work::Filter(predicate) => {
                let predicate = predicate.clone();
                self.filter(idx, &predicate, batch)
            }
            Work::Project(items) => {
                let items = items.clone();
                let (good, columns) = self.evaluate(idx, &items, batch)?;
                self.counter(idx).passed += good.len() as u64;
                let rows = assemble(self.output(idx), &columns, good.len())?;
                self.send(idx, Port::Main, &good.with_rows(rows));
                Ok(())
            }
            Work::Unnest(item) => {
                let item = item.clone();
                self.unnest(idx, item, batch)
            }
            Work::Partial(aggregation) => {
                let evaluators = aggregation.evaluators();
                let (good, columns) = self.evaluate(idx, &evaluators, batch)?;
                let is_session = match self.work.get_mut(idx) {
                    Some(Work::Partial(aggregation)) => {
                        aggregation.add(&good, &columns)?;
                        aggregation.is_session()
                    }
                    _ => false,
                };
                if is_session {
                    self.counter(idx).passed += good.len() as u64;
                }
                Ok(())
            }
        }
    }

    /// Rows that a sink cannot write are bad; the others are expected in it.
    fn on_sink_rows(&mut self, idx: usize, batch: &StreamBatch) -> Result<()> {
        let Some(Work::Sink {
            rows: Some(rows),
            limit,
            folders,
            bad,
        }) = self.work.get_mut(idx)
        else {
            self.counter(idx).passed += batch.len() as u64;
            return Ok(());
        };
        let mut refused = match limit {
            Some(limit) => limit.refused(batch)?.into_iter().collect(),
            None => outside_years(&batch.rows)?,
        };
        refused.extend(without_folder(&batch.rows, folders));
        if refused.is_empty() {
            add_rows(rows, &batch.rows, *bad)?;
            self.counter(idx).passed += batch.len() as u64;
            return Ok(());
        }
        let good = (0..batch.len()).filter(|row| !refused.contains(row));
        let good: UInt32Array = good.filter_map(|row| u32::try_from(row).ok()).collect();
        add_rows(rows, &batch.take(&good)?.rows, *bad)?;
        self.counter(idx).passed += good.len() as u64;
        self.counter(idx).bad += refused.len() as u64;
        let mut bad = BadRows::default();
        for row in refused {
            let raw = json_row(&batch.rows, row);
            let origin = batch.origin.as_ref();
            let origin = origin.map(|origin| (&origin.source, origin.position(row)));
            let time = batch.event_time.as_ref().map(|times| times.value(row));
            bad.push(Some(&raw), String::new(), origin, time);
        }
        self.send_bad(idx, bad)
    }

    fn output(&self, idx: usize) -> &'g [Column] {
        self.nodes
            .get(idx)
            .map_or(&[], |node| &node.operator.output)
    }

    /// Evaluates; rows that fail are counted and sent to `.bad`, the others come back.
    fn evaluate(
        &mut self,
        idx: usize,
        evaluators: &[Evaluator],
        batch: StreamBatch,
    ) -> Result<(StreamBatch, Vec<ArrayRef>)> {
        let evaluated = evaluate(evaluators, &batch)?;
        if !evaluated.bad.is_empty() {
            self.counter(idx).bad += evaluated.bad.len() as u64;
            self.send_bad(idx, bad_rows(&batch, evaluated.bad))?;
        }
        Ok((evaluated.good.unwrap_or(batch), evaluated.columns))
    }

    fn filter(&mut self, idx: usize, predicate: &Evaluator, batch: StreamBatch) -> Result<()> {
        let (good, columns) = self.evaluate(idx, std::slice::from_ref(predicate), batch)?;
        let Some(keep) = columns.first() else {
            return Ok(());
        };
        let kept = good.filter(keep.as_boolean())?;
        self.counter(idx).passed += kept.len() as u64;
        self.counter(idx).filtered += (good.len() - kept.len()) as u64;
        self.send(idx, Port::Main, &kept);
        Ok(())
    }

    fn unnest(&mut self, idx: usize, item: Evaluator, batch: StreamBatch) -> Result<()> {
        let (good, columns) = self.evaluate(idx, &[item], batch)?;
        let Some(lists) = columns.first().and_then(|lists| lists.as_list_opt::<i32>()) else {
            return Ok(());
        };
        let mut parents = Vec::new();
        let mut elements = Vec::new();
        for (row, bounds) in lists.value_offsets().windows(2).enumerate() {
            let [from, to] = bounds else { continue };
            let range = if lists.is_null(row) { 0..0 } else { *from..*to };
            let fate = self.counter(idx);
            let count = if range.is_empty() {
                &mut fate.filtered
            } else {
                &mut fate.passed
            };
            *count += 1;
            for element in range {
                parents.push(u32::try_from(row)?);
                elements.push(u32::try_from(element)?);
            }
        }
        let kept = good.take(&UInt32Array::from(parents))?;
        let mut columns = kept.rows.columns().to_vec();
        columns.push(take(lists.values(), &UInt32Array::from(elements), None)?);
        let rows = assemble(self.output(idx), &columns, kept.len())?;
        self.send(idx, Port::Main, &kept.with_rows(rows));
        Ok(())
    }

    fn with_event_time(&mut self, idx: usize, batch: StreamBatch) -> Result<StreamBatch> {
        let Some(Work::Source {
            event_time: Some(event_time),
            ..
        }) = self.work.get(idx)
        else {
            return Ok(batch);
        };
        let event_time = event_time.clone();
        let sql = event_time.sql.clone();
        let (good, columns) = self.evaluate(idx, &[event_time], batch)?;
        let Some(times) = columns.first() else {
            return Ok(good);
        };
        let times = cast(times, &ArrowType::Timestamp(TimeUnit::Microsecond, None))?;
        let times: &TimestampMicrosecondArray = times
            .as_primitive_opt()
            .context("event time is no TIMESTAMP")?;
        let valid = |time: Option<i64>| {
            Some(time.is_some_and(|time| (EVENT_TIME_MIN..=EVENT_TIME_MAX).contains(&time)))
        };
        let keep: BooleanArray = times.iter().map(valid).collect();
        let bad = (0..times.len()).filter(|idx| !keep.value(*idx)).map(|idx| {
            let what = if times.is_null(idx) {
                "is NULL"
            } else {
                "is outside years 0001..9999"
            };
            (idx, format!("event time `{sql}` {what}"))
        });
        let bad = bad_rows(&good, bad.collect());
        self.counter(idx).bad += bad.len() as u64;
        self.send_bad(idx, bad)?;
        let timed = StreamBatch {
            event_time: Some(times.clone()),
            ..good
        };
        Ok(timed.filter(&keep)?)
    }

    /// In a job of one split: a late row was judged under no more than the rows before it allow.
    fn check_newest(&mut self, source: usize, batch: &StreamBatch) {
        let Some(Work::Source {
            newest,
            max_out_of_orderness_us,
            ..
        }) = self.work.get_mut(source)
        else {
            return;
        };
        let (Some(times), Some(origin)) = (&batch.event_time, &batch.origin) else {
            return;
        };
        if !self.one_split || self.late.len() == 0 {
            return;
        }
        for (idx, time) in times.values().iter().enumerate() {
            let position = (origin.row.value(idx), origin.offset.value(idx));
            let allowed = newest.saturating_sub(*max_out_of_orderness_us);
            if let Some(watermark) = self.late.watermark_of(&origin.source, position)
                && watermark > allowed
            {
                self.findings.push(format!(
                    "the row at {} of {} was judged late under a watermark of {watermark}, the rows \
                     before it allow {allowed}",
                    origin.position(idx),
                    origin.source,
                ));
            }
            *newest = (*newest).max(*time);
        }
    }

    fn send_results(&mut self, idx: usize, partial: usize) -> Result<()> {
        let Some(Work::Partial(aggregation)) = self.work.get_mut(partial) else {
            return Ok(());
        };
        let results = aggregation.results();
        let columns = self.output(idx);
        let mut bad = BadRows::default();
        for chunk in results.chunks(BATCH_ROWS) {
            let (good, refused): (Vec<&Row>, Vec<&Row>) =
                chunk.iter().partition(|row| row.values.is_some());
            let rows = result_rows(columns, &good)?;
            let times: Vec<i64> = good.iter().map(|row| row.window.end - 1).collect();
            let event_time = Some(TimestampMicrosecondArray::from(times));
            self.send(
                idx,
                Port::Main,
                &StreamBatch {
                    event_time,
                    ..StreamBatch::plain(rows)
                },
            );
            let named = refused.first().map_or(0, |row| row.keys.len() + 2);
            let names = result_rows(columns.get(..named).unwrap_or_default(), &refused)?;
            for (at, row) in refused.iter().enumerate() {
                let raw = row_as_json(&names, at);
                bad.push(
                    Some(raw.as_bytes()),
                    String::new(),
                    None,
                    Some(row.window.end - 1),
                );
            }
        }
        self.counter(idx).bad_results += bad.len() as u64;
        self.send_bad(idx, bad)
    }
}

#[cfg(test)]
mod tests;
