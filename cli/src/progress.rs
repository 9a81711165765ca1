//! What a running job looks like, as text.
//!
//! Owns: rates and estimates from a row of statuses, and the words they are shown with. Draws
//! nothing, reads no clock. Start at: [`Meter::observe`], [`view`].

use std::collections::VecDeque;

use streamforge_core::event_time::Watermark;
use streamforge_host::{Phase, Status};

use crate::commands::bytes;
use crate::time;

/// Rates are means over this long: shorter ones jump, longer ones lag behind a change.
const RATE_WINDOW_MS: u64 = 5_000;

/// One look at a job.
#[derive(Clone, Copy, Debug)]
struct Sample {
    time_ms: u64,
    rows: u64,
    units: u64,
}

/// Rates over the last few seconds.
#[derive(Debug, Default)]
pub struct Meter {
    samples: VecDeque<Sample>,
    started_ms: Option<u64>,
}

/// What there is to say about a job.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Reading {
    /// Since this process started the job.
    pub running_s: u64,
    /// Records read since the job's first row.
    pub rows: u64,
    /// Over the last few seconds.
    pub rows_per_s: u64,
    /// Records that had no open window.
    pub late: u64,
    /// Records and results that went to a `.bad`.
    pub bad: u64,
    /// The lowest of all sources.
    pub watermark: Option<Watermark>,
    /// What holds it.
    pub held_back_by: Option<String>,
    /// Of all input, if it ends.
    pub percent: Option<u64>,
    /// Until all input is read.
    pub eta_s: Option<u64>,
    /// The newest checkpoint.
    pub checkpoint: Option<CheckpointReading>,
}

/// What there is to say about a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckpointReading {
    /// Its id.
    pub id: u64,
    /// How long ago it was committed.
    pub age_s: u64,
    /// What was uploaded for it.
    pub bytes_n: u64,
    /// From barrier to the last acknowledgement.
    pub took_ms: u64,
}

impl Meter {
    /// Takes a status; both times are milliseconds, `now_ms` on a clock that never goes back.
    pub fn observe(&mut self, now_ms: u64, wall_ms: u64, status: &Status) -> Reading {
        let started_ms = *self.started_ms.get_or_insert(now_ms);
        let sources = status.read.keys();
        let rows = sources
            .filter_map(|uid| status.ledger.get(uid))
            .map(|c| c.rows_in)
            .sum();
        let units = status.read.values().map(|(read, _)| read).sum();
        let all: u64 = status.read.values().map(|(_, all)| all).sum();
        let bounded = !status.read.is_empty() && status.read.values().all(|(_, all)| *all > 0);
        if self
            .samples
            .back()
            .is_some_and(|last| last.rows > rows || last.units > units)
        {
            // A restore went back to a checkpoint: what was counted before says nothing now.
            self.samples.clear();
        }
        self.samples.push_back(Sample {
            time_ms: now_ms,
            rows,
            units,
        });
        while self.samples.len() > 2
            && self
                .samples
                .get(1)
                .is_some_and(|s| s.time_ms + RATE_WINDOW_MS <= now_ms)
        {
            self.samples.pop_front();
        }
        let (rows_per_s, units_per_s) = self.rates();
        let left = all.saturating_sub(units);
        let lowest = status
            .read
            .keys()
            .filter_map(|uid| Some((uid, *status.watermarks.get(uid)?)))
            .min_by_key(|(_, watermark)| *watermark);
        // A sink that waits for its outside system holds everything.
        let mut sinks = status.held_back_by.iter();
        let sink = sinks.find(|(uid, _)| !status.read.contains_key(*uid));
        let source = lowest.and_then(|(uid, _)| Some((uid, status.held_back_by.get(uid)?)));
        let holder = sink.or(source);
        Reading {
            running_s: now_ms.saturating_sub(started_ms) / 1_000,
            rows,
            rows_per_s,
            late: status.ledger.values().map(|counters| counters.late).sum(),
            bad: status
                .ledger
                .values()
                .map(|counters| counters.bad + counters.bad_results)
                .sum(),
            watermark: lowest.map(|(_, watermark)| watermark),
            held_back_by: holder.map(|(uid, split)| format!("{uid}: {split}")),
            percent: bounded
                .then(|| units.saturating_mul(100) / all.max(1))
                .map(|p| p.min(100)),
            eta_s: (bounded && units_per_s > 0).then(|| left.div_ceil(units_per_s)),
            checkpoint: status
                .checkpoint
                .last_completed
                .as_ref()
                .map(|c| CheckpointReading {
                    id: c.id.get(),
                    age_s: wall_ms.saturating_sub(c.time_ms) / 1_000,
                    bytes_n: c.bytes_n,
                    took_ms: c.duration_ms,
                }),
        }
    }

    fn rates(&self) -> (u64, u64) {
        let (Some(first), Some(last)) = (self.samples.front(), self.samples.back()) else {
            return (0, 0);
        };
        let ms = last.time_ms.saturating_sub(first.time_ms).max(1);
        let per_s = |n: u64| n.saturating_mul(1_000) / ms;
        (
            per_s(last.rows - first.rows),
            per_s(last.units - first.units),
        )
    }
}

/// Word for a phase.
pub fn phase_name(phase: Phase) -> &'static str {
    match phase {
        Phase::Starting => "starting",
        Phase::Deploying => "loading",
        Phase::Running => "running",
        Phase::Recovering => "recovering",
        Phase::Stopping => "stopping",
        Phase::Finishing => "finishing",
        Phase::Ended => "ended",
    }
}

/// A number with thin groups of three: `1,234,567`.
pub fn grouped(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::new();
    for (idx, digit) in digits.chars().enumerate() {
        if idx > 0 && (digits.len() - idx).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// The live view, line by line.
pub fn view(name: &str, status: &Status, reading: &Reading) -> Vec<String> {
    let mut lines = vec![format!(
        "{name}  {}  {}  parallelism {}  epoch {}",
        phase_name(status.phase),
        time::stretch(reading.running_s),
        status.parallelism,
        status.epoch,
    )];
    if let Some(waits_for) = &status.waits_for {
        lines.push(format!("  waits for   {waits_for}"));
    }
    let mut rows = format!("  rows        {}", grouped(reading.rows));
    rows += &format!("  ({}/s)", grouped(reading.rows_per_s));
    rows += &format!(
        "   late {}   bad {}",
        grouped(reading.late),
        grouped(reading.bad)
    );
    lines.push(rows);
    if let Some(percent) = reading.percent {
        let eta = reading
            .eta_s
            .map_or_else(String::new, |s| format!("  {} left", time::stretch(s)));
        lines.push(format!("  input       {percent}%{eta}"));
    }
    if let Some(watermark) = reading.watermark {
        let holder = reading.held_back_by.as_ref();
        let holder = holder.map_or_else(String::new, |text| format!("  held back by {text}"));
        lines.push(format!(
            "  watermark   {}{holder}",
            time::watermark(watermark)
        ));
    }
    if let Some(checkpoint) = &reading.checkpoint {
        lines.push(format!(
            "  checkpoint  {}  {} ago  {}  took {} ms",
            checkpoint.id,
            time::stretch(checkpoint.age_s),
            bytes(checkpoint.bytes_n),
            checkpoint.took_ms,
        ));
    }
    if let Some(stale) = &status.checkpoint.stale {
        lines.push(format!("  stale       {stale}"));
    }
    if let Some(failure) = &status.last_failure {
        lines.push(format!("  restarts    {}  {failure}", status.restarts_n));
    }
    lines
}

/// The same in one log line.
pub fn log_line(reading: &Reading) {
    let checkpoint = reading.checkpoint;
    tracing::info!(
        rows = reading.rows,
        rows_per_s = reading.rows_per_s,
        percent = reading.percent,
        left = reading.eta_s.map(time::stretch),
        watermark = reading.watermark.map(time::watermark),
        held_back_by = reading.held_back_by,
        late = reading.late,
        bad = reading.bad,
        checkpoint = checkpoint.map(|c| c.id),
        checkpoint_age_s = checkpoint.map(|c| c.age_s),
        checkpoint_bytes = checkpoint.map(|c| c.bytes_n),
        "progress"
    );
}

#[cfg(test)]
mod tests {
    use streamforge_core::ids::OperatorUid;
    use streamforge_core::manifest::Counters;

    use super::*;

    fn status(rows_in: u64, read: u64, all: u64) -> Status {
        let uid = OperatorUid("clicks".to_owned());
        let mut status = Status {
            phase: Phase::Running,
            ..Status::default()
        };
        status.ledger.insert(
            uid.clone(),
            Counters {
                rows_in,
                bad: 2,
                ..Counters::default()
            },
        );
        status.read.insert(uid.clone(), (read, all));
        status.watermarks.insert(uid.clone(), Watermark(0));
        status.held_back_by.insert(uid, "a.ndjson".to_owned());
        status
    }

    #[test]
    fn rate_and_rest_come_from_the_last_seconds() {
        let mut meter = Meter::default();
        meter.observe(0, 0, &status(0, 0, 1_000));
        meter.observe(2_000, 0, &status(100, 100, 1_000));
        let reading = meter.observe(7_000, 0, &status(1_100, 600, 1_000));

        // From 2,000 to 7,000 ms: 1,000 rows and 500 of 1,000 units.
        assert_eq!(reading.rows_per_s, 200);
        assert_eq!((reading.percent, reading.eta_s), (Some(60), Some(4)));
        assert_eq!(reading.held_back_by.as_deref(), Some("clicks: a.ndjson"));
    }

    #[test]
    fn a_sink_that_waits_holds_everything() {
        let mut waits = status(0, 0, 0);
        let (sink, trouble) = (OperatorUid("out".to_owned()), "no answer".to_owned());
        waits.held_back_by.insert(sink, trouble);

        let reading = Meter::default().observe(0, 0, &waits);

        assert_eq!(reading.held_back_by.as_deref(), Some("out: no answer"));
    }

    #[test]
    fn a_restore_begins_the_rate_anew() {
        let mut meter = Meter::default();
        meter.observe(0, 0, &status(1_000, 500, 1_000));
        let after = meter.observe(1_000, 0, &status(200, 100, 1_000));
        let later = meter.observe(2_000, 0, &status(300, 150, 1_000));

        assert_eq!(after.rows_per_s, 0);
        assert_eq!(later.rows_per_s, 100);
    }

    #[test]
    fn unbounded_input_has_no_end_in_sight() {
        let mut meter = Meter::default();
        meter.observe(0, 0, &status(0, 0, 0));
        let reading = meter.observe(1_000, 0, &status(10, 10, 0));

        assert_eq!((reading.percent, reading.eta_s), (None, None));
    }

    #[test]
    fn the_view_says_what_holds_the_watermark() {
        let mut meter = Meter::default();
        let status = status(1_234_567, 50, 100);
        let reading = meter.observe(0, 0, &status);

        let lines = view("job", &status, &reading);

        assert_eq!(lines[1], "  rows        1,234,567  (0/s)   late 0   bad 2");
        assert_eq!(lines[2], "  input       50%");
        assert_eq!(
            lines[3],
            "  watermark   1970-01-01T00:00:00Z  held back by clicks: a.ndjson"
        );
    }
}
