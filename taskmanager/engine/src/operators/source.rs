//! The task's side of a source: event time, bad records, splits and their watermarks.
//!
//! Owns: turning what a reader says into rows of the stream. A reader never sees a watermark.

use std::collections::BTreeSet;

use arrow::array::{Array, BooleanArray, TimestampMicrosecondArray};
use arrow::compute::cast;
use arrow::datatypes::{DataType, TimeUnit};
use streamforge_core::event_time::{EVENT_TIME_MAX, EVENT_TIME_MIN, EventTime};
use streamforge_core::ids::SplitId;
use streamforge_core::job_graph::{OnBadRecord, Port};
use streamforge_core::manifest::{Counters, SplitState};

use crate::batch::{BadRows, StreamBatch};
use crate::error::Error;
use crate::evaluate::{Evaluator, bad_rows, evaluate};
use crate::operator::Outputs;
use crate::operators::{Named, count};
use crate::source::SourceBatch;
use crate::watermark::{Holder, Promise, SplitTracker};

/// How a source's rows get their event time.
#[derive(Debug)]
pub struct EventTimeEvaluator {
    /// TIMESTAMP expression over the source's output columns.
    pub expr: Evaluator,
    /// Allowed disorder.
    pub max_out_of_orderness_us: i64,
    /// Idle after.
    pub idle_timeout_ms: Option<u64>,
}

/// See the module.
pub struct SourceOperator {
    named: Named,
    event_time: Option<EventTimeEvaluator>,
    on_bad_record: OnBadRecord,
    tracker: SplitTracker,
    counters: Counters,
}

impl SourceOperator {
    /// A source without splits yet.
    pub fn new(
        named: Named,
        event_time: Option<EventTimeEvaluator>,
        on_bad_record: OnBadRecord,
        bounded: bool,
    ) -> Self {
        let times = event_time
            .as_ref()
            .map(|t| (t.max_out_of_orderness_us, t.idle_timeout_ms));
        let tracker = SplitTracker::new(times, bounded);
        Self {
            named,
            event_time,
            on_bad_record,
            tracker,
            counters: Counters::default(),
        }
    }

    /// Takes a split at its progress.
    pub fn add_split(&mut self, state: SplitState) {
        self.tracker.add(state);
    }

    /// Reads these splits from now on.
    pub fn begin_anew(&mut self, splits: Vec<SplitState>) {
        self.tracker.begin_anew(splits);
    }

    /// Other readers go on with these splits.
    pub fn give_up(&mut self, splits: &BTreeSet<SplitId>) {
        self.tracker.give_up(splits);
    }

    /// Takes rows; the good ones go out with event time.
    pub fn on_batch(&mut self, batch: SourceBatch, out: &mut Outputs) -> Result<(), Error> {
        let SourceBatch {
            split,
            rows,
            origin,
            bad,
            bad_n,
            unknown_fields,
            progress,
        } = batch;
        self.counters.rows_in += count(rows.num_rows()) + bad_n;
        self.counters.unknown_fields += unknown_fields;
        let decoded = StreamBatch {
            rows,
            event_time: None,
            origin,
            ops: None,
        };
        let (good, timeless) = self.with_event_time(decoded)?;
        let timeless_n = count(timeless.len());
        if bad_n + timeless_n > 0 {
            self.refuse_bad(&bad)?;
            self.refuse_bad(&timeless)?;
            self.counters.bad += bad_n + timeless_n;
            for bad in [bad, timeless] {
                if !bad.is_empty() && out.is_read(Port::Bad) {
                    out.push(Port::Bad, self.named.bad(bad)?);
                }
            }
        }
        self.counters.passed += count(good.len());
        let latest = good.event_time.as_ref().and_then(arrow::compute::max);
        self.tracker.on_rows(&split, latest, progress);
        out.push(Port::Main, good);
        Ok(())
    }

    fn refuse_bad(&self, bad: &BadRows) -> Result<(), Error> {
        match (self.on_bad_record, bad.first()) {
            (OnBadRecord::Fail, Some((position, reason))) => Err(Error::BadRecord {
                node: self.named.node.clone(),
                position,
                reason: reason.to_owned(),
            }),
            _ => Ok(()),
        }
    }

    /// The rows with their times; rows without one, or with one out of range, apart.
    fn with_event_time(&self, batch: StreamBatch) -> Result<(StreamBatch, BadRows), Error> {
        let Some(spec) = &self.event_time else {
            return Ok((batch, BadRows::default()));
        };
        if batch.is_empty() {
            let event_time = Some(TimestampMicrosecondArray::from(Vec::<i64>::new()));
            return Ok((
                StreamBatch {
                    event_time,
                    ..batch
                },
                BadRows::default(),
            ));
        }
        let kernel = |error| self.named.kernel(error);
        let evaluated = evaluate(std::slice::from_ref(&spec.expr), &batch).map_err(kernel)?;
        let mut bad = bad_rows(&batch, evaluated.bad);
        let good = evaluated.good.unwrap_or(batch);
        let Some(times) = evaluated.columns.first() else {
            let event_time = Some(TimestampMicrosecondArray::from(Vec::<i64>::new()));
            return Ok((StreamBatch { event_time, ..good }, bad));
        };
        let times =
            cast(times, &DataType::Timestamp(TimeUnit::Microsecond, None)).map_err(kernel)?;
        let times = times
            .as_any()
            .downcast_ref::<TimestampMicrosecondArray>()
            .ok_or_else(|| self.named.protocol("event time is a TIMESTAMP"))?;
        let in_range = |time: EventTime| (EVENT_TIME_MIN..=EVENT_TIME_MAX).contains(&time);
        if times.null_count() == 0 && times.values().iter().all(|time| in_range(*time)) {
            let event_time = Some(times.clone());
            return Ok((StreamBatch { event_time, ..good }, bad));
        }
        let keep: BooleanArray = times
            .iter()
            .map(|time| Some(time.is_some_and(in_range)))
            .collect();
        let refused = keep
            .iter()
            .enumerate()
            .filter(|(_, keep)| *keep != Some(true));
        let refused = refused.map(|(idx, _)| {
            let reason = if times.is_null(idx) {
                format!("event time `{}` is NULL", spec.expr.sql)
            } else {
                format!("event time `{}` is outside years 0001..9999", spec.expr.sql)
            };
            (idx, reason)
        });
        bad.append(bad_rows(&good, refused.collect()));
        let timed = StreamBatch {
            event_time: Some(times.clone()),
            ..good
        };
        Ok((timed.filter(&keep).map_err(kernel)?, bad))
    }

    /// A split is read to its end.
    pub fn on_split_ended(&mut self, split: &SplitId) {
        self.tracker.on_split_ended(split);
    }

    /// A split has rows again.
    pub fn on_wake(&mut self, split: &SplitId) {
        self.tracker.on_wake(split);
    }

    /// A split was asked and had nothing.
    pub fn on_nothing_new(&mut self, split: &SplitId, now_ms: u64) {
        self.tracker.on_nothing_new(split, now_ms);
    }

    /// No split is left and none will come.
    pub fn on_ended(&mut self) {
        self.tracker.on_ended();
    }

    /// What its splits promise together.
    pub fn promise(&self) -> Promise {
        self.tracker.promise()
    }

    /// Which split holds the watermark, for people.
    pub fn held_back_by(&self, now_ms: u64) -> Option<Holder<'_>> {
        self.tracker.held_back_by(now_ms)
    }

    /// Splits as they are now.
    pub fn splits(&self) -> Vec<SplitState> {
        self.tracker.states()
    }

    /// Rows by fate.
    pub fn counters(&self) -> Counters {
        Counters {
            idle_returns: self.tracker.idle_returns(),
            ..self.counters
        }
    }

    /// Its names.
    pub fn named(&self) -> &Named {
        &self.named
    }
}
