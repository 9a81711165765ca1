//! What a task manager tells Prometheus.
//!
//! Owns: the names, read when somebody asks: nothing is counted a second time, and no row pays for
//! it. The page docs/metrics.md lists the names; a test compares. Start at: [`Metrics`]; calls to the
//! store are counted by [`store_calls`].

pub mod store_calls;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use streamforge_core::event_time::Watermark;
use streamforge_core::ids::TaskId;
use streamforge_core::messages::{Progress, Stamp};
use streamforge_proto::metrics::{self, Described, Sheet};
use streamforge_state::local::LocalCopies;

use crate::exchange::{ChannelName, Totals};
use crate::progress::{Local, Times};
use store_calls::StoreCalls;

const JOB_OPERATOR: &[&str] = &["job", "operator"];

/// Every name that a task manager exports.
pub const DESCRIBED: &[Described] = &[
    Described::gauge(
        "streamforge_task_epoch",
        &["job"],
        "Attempt that this task manager runs.",
    ),
    Described::counter(
        "streamforge_task_rows_in_total",
        JOB_OPERATOR,
        "Rows that came in, since this attempt began here.",
    ),
    Described::counter(
        "streamforge_task_rows_out_total",
        JOB_OPERATOR,
        "Rows of the main output.",
    ),
    Described::counter(
        "streamforge_task_rows_filtered_total",
        JOB_OPERATOR,
        "Rows rejected by a predicate, or lists without elements.",
    ),
    Described::counter(
        "streamforge_task_rows_late_total",
        JOB_OPERATOR,
        "Rows that had no open window.",
    ),
    Described::counter(
        "streamforge_task_rows_bad_total",
        JOB_OPERATOR,
        "Rows that went to .bad.",
    ),
    Described::counter(
        "streamforge_task_bytes_in_total",
        JOB_OPERATOR,
        "Bytes of the columns of rows that came in; of a source nothing, it reads.",
    ),
    Described::counter(
        "streamforge_task_bytes_out_total",
        JOB_OPERATOR,
        "Bytes of the columns of the main output.",
    ),
    Described::gauge(
        "streamforge_task_watermark_seconds",
        JOB_OPERATOR,
        "Lowest watermark of the operator's tasks here, in seconds since 1970.",
    ),
    Described::gauge(
        "streamforge_task_watermark_lag_seconds",
        JOB_OPERATOR,
        "How far the watermark is behind this machine's clock.",
    ),
    Described::counter(
        "streamforge_task_source_read_units_total",
        JOB_OPERATOR,
        "What a source has read, in its connector's unit.",
    ),
    Described::gauge(
        "streamforge_task_source_known_units",
        JOB_OPERATOR,
        "What a bounded source has to read in all, in its connector's unit.",
    ),
    Described::gauge(
        "streamforge_task_source_lag_records",
        JOB_OPERATOR,
        "Records of a Kafka source that are there and not read.",
    ),
    Described::gauge(
        "streamforge_task_source_lag_seconds",
        JOB_OPERATOR,
        "How long ago the last record read was written, where there are more; else 0.",
    ),
    Described::gauge(
        "streamforge_task_source_unreachable",
        JOB_OPERATOR,
        "1 while a source has partitions here that it gets no answer about; its lag is not shown then.",
    ),
    Described::counter(
        "streamforge_task_source_skipped_records_total",
        JOB_OPERATOR,
        "Offsets that were deleted before they were read and passed over (onOffsetOutOfRange: Earliest).",
    ),
    Described::counter(
        "streamforge_task_idle_seconds_total",
        &["job", "stage", "subtask"],
        "Time that a task waited for input.",
    ),
    Described::counter(
        "streamforge_task_blocked_seconds_total",
        &["job", "stage", "subtask"],
        "Time that a task waited for receivers: back-pressure.",
    ),
    Described::counter(
        "streamforge_task_running_seconds_total",
        &["job", "stage", "subtask"],
        "Time since a task began; less idle and blocked it is busy.",
    ),
    Described::gauge(
        "streamforge_task_restore_seconds",
        &["job"],
        "How long loading the last attempt took here.",
    ),
    Described::counter(
        "streamforge_exchange_rows_total",
        &["direction"],
        "Rows sent to and received from other task managers.",
    ),
    Described::counter(
        "streamforge_exchange_bytes_total",
        &["direction"],
        "Bytes of the frames that they were in.",
    ),
    Described::counter(
        "streamforge_exchange_frames_total",
        &["direction"],
        "These frames.",
    ),
    Described::counter(
        "streamforge_exchange_blocked_seconds_total",
        &[],
        "Time that tasks waited for room in channels to other task managers.",
    ),
    Described::gauge(
        "streamforge_exchange_credit_bytes",
        &["edge", "sender", "receiver"],
        "What a channel to another task manager may still send before its receiver takes more.",
    ),
    Described::counter(
        "streamforge_exchange_out_of_credit_total",
        &[],
        "Times that a channel had rows and no credit.",
    ),
    Described::counter(
        "streamforge_exchange_refused_total",
        &[],
        "Channels that were refused, or told to wait, when they were opened.",
    ),
    Described::counter(
        "streamforge_exchange_broken_total",
        &[],
        "Ends of channels that broke.",
    ),
    Described::counter(
        "streamforge_store_calls_total",
        &["call", "outcome"],
        "Calls to the checkpoint store by how they ended.",
    ),
    Described::counter(
        "streamforge_store_seconds_total",
        &["call"],
        "Time that calls to the checkpoint store took.",
    ),
    Described::counter(
        "streamforge_store_bytes_total",
        &["call"],
        "Bytes written to and read from the checkpoint store.",
    ),
    Described::counter(
        "streamforge_restored_parts_total",
        &["from"],
        "Parts of state that a task manager with `--local-copies` restored from its copies, or from the store.",
    ),
    Described::counter(
        "streamforge_restored_bytes_total",
        &["from"],
        "Bytes of those parts.",
    ),
];

#[derive(Debug, Default)]
struct Latest {
    stamp: Option<Stamp>,
    progress: Progress,
    times: Vec<(TaskId, Times)>,
    local: Local,
    credits: Vec<(ChannelName, i64)>,
}

#[derive(Debug, Default)]
struct Inner {
    descriptions: OnceLock<Vec<Desc>>,
    latest: Mutex<Latest>,
    restore_us: AtomicU64,
    welcome: AtomicBool,
    exchange: OnceLock<Arc<Totals>>,
    store: OnceLock<Arc<StoreCalls>>,
    copies: OnceLock<Arc<LocalCopies>>,
}

/// One task manager's. Clones are the same.
#[derive(Clone, Debug, Default)]
pub struct Metrics(Arc<Inner>);

impl Metrics {
    /// How the attempt's tasks do; called a few times a second.
    pub fn on_progress(&self, stamp: &Stamp, progress: Progress, times: Vec<(TaskId, Times)>) {
        let mut latest = self.0.latest.lock().unwrap_or_else(PoisonError::into_inner);
        latest.stamp = Some(stamp.clone());
        latest.progress = progress;
        latest.times = times;
    }

    /// What the coordinator is not told; called with [`Metrics::on_progress`].
    pub fn on_local(&self, local: Local, credits: Vec<(ChannelName, i64)>) {
        let mut latest = self.0.latest.lock().unwrap_or_else(PoisonError::into_inner);
        latest.local = local;
        latest.credits = credits;
    }

    /// An attempt was loaded in so long.
    pub fn on_restored(&self, took: Duration) {
        let restore_us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        self.0.restore_us.store(restore_us, Ordering::Relaxed);
    }

    /// A coordinator has told what this task manager needs to know: it is ready for tasks.
    pub fn on_welcome(&self) {
        self.0.welcome.store(true, Ordering::Relaxed);
    }

    /// Whether the process can do its work; if not, why, for people.
    ///
    /// # Errors
    /// The reason.
    pub fn readiness(&self) -> Result<(), String> {
        if self.0.welcome.load(Ordering::Relaxed) {
            Ok(())
        } else {
            Err("no coordinator has been reached yet".to_owned())
        }
    }

    /// The exchange, once.
    pub fn watch_exchange(&self, totals: Arc<Totals>) {
        let _first = self.0.exchange.set(totals);
    }

    /// The store's calls, once.
    pub fn watch_store(&self, calls: Arc<StoreCalls>) {
        let _first = self.0.store.set(calls);
    }

    /// The local copies, once.
    pub fn watch_copies(&self, copies: Arc<LocalCopies>) {
        let _first = self.0.copies.set(copies);
    }

    fn fill(&self, sheet: &mut Sheet, now_us: i64) {
        let latest = self.0.latest.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(stamp) = &latest.stamp {
            let job = stamp.job.0.as_str();
            sheet.set("streamforge_task_epoch", &[job], stamp.epoch.get() as f64);
            let restore_s = seconds(self.0.restore_us.load(Ordering::Relaxed));
            sheet.set("streamforge_task_restore_seconds", &[job], restore_s);
            operators(sheet, job, &latest.progress, now_us);
            tasks(sheet, job, &latest.times);
            sources(sheet, job, &latest.progress, now_us);
            local(sheet, job, &latest.local);
            credits(sheet, &latest.credits);
        }
        drop(latest);
        if let Some(totals) = self.0.exchange.get() {
            exchange(sheet, totals);
        }
        if let Some(calls) = self.0.store.get() {
            calls.fill(sheet);
        }
        if let Some(copies) = self.0.copies.get() {
            let reads = copies.reads();
            let (parts, bytes) = (
                "streamforge_restored_parts_total",
                "streamforge_restored_bytes_total",
            );
            sheet.set(parts, &["local"], reads.here_n as f64);
            sheet.set(bytes, &["local"], reads.here_bytes as f64);
            sheet.set(parts, &["store"], reads.store_n as f64);
            sheet.set(bytes, &["store"], reads.store_bytes as f64);
        }
    }
}

fn seconds(micros: u64) -> f64 {
    micros as f64 / 1e6
}

fn operators(sheet: &mut Sheet, job: &str, progress: &Progress, now_us: i64) {
    for (uid, counters) in &progress.counters {
        let labels = [job, uid.0.as_str()];
        for (name, value) in [
            ("streamforge_task_rows_in_total", counters.rows_in),
            ("streamforge_task_rows_out_total", counters.out),
            ("streamforge_task_rows_filtered_total", counters.filtered),
            ("streamforge_task_rows_late_total", counters.late),
            ("streamforge_task_rows_bad_total", counters.bad),
        ] {
            sheet.set(name, &labels, value as f64);
        }
    }
    for (uid, watermark) in &progress.watermarks {
        // The ends of time are no times: such a watermark has no lag.
        if *watermark == Watermark::NONE || *watermark == Watermark::END {
            continue;
        }
        let labels = [job, uid.0.as_str()];
        let at_s = watermark.0 as f64 / 1e6;
        sheet.set("streamforge_task_watermark_seconds", &labels, at_s);
        let lag_s = now_us as f64 / 1e6 - at_s;
        sheet.set("streamforge_task_watermark_lag_seconds", &labels, lag_s);
    }
    for (uid, (read, known)) in &progress.read {
        let labels = [job, uid.0.as_str()];
        let read = *read as f64;
        sheet.set("streamforge_task_source_read_units_total", &labels, read);
        if *known > 0 {
            let known = *known as f64;
            sheet.set("streamforge_task_source_known_units", &labels, known);
        }
    }
}

fn local(sheet: &mut Sheet, job: &str, local: &Local) {
    for (uid, traffic) in &local.traffic {
        let labels = [job, uid.0.as_str()];
        let (bytes_in, bytes_out) = (traffic.bytes_in as f64, traffic.bytes_out as f64);
        sheet.set("streamforge_task_bytes_in_total", &labels, bytes_in);
        sheet.set("streamforge_task_bytes_out_total", &labels, bytes_out);
    }
}

fn sources(sheet: &mut Sheet, job: &str, progress: &Progress, now_us: i64) {
    for (uid, lag) in &progress.lag {
        let labels = [job, uid.0.as_str()];
        let records_n = lag.records_n as f64;
        sheet.set("streamforge_task_source_lag_records", &labels, records_n);
        let behind_s = match lag.read_up_to_ms {
            Some(at_ms) if lag.records_n > 0 => (now_us as f64 / 1e6 - at_ms as f64 / 1e3).max(0.0),
            _ => 0.0,
        };
        sheet.set("streamforge_task_source_lag_seconds", &labels, behind_s);
    }
    for uid in progress.read.keys() {
        let is_unreachable = f64::from(u8::from(progress.unreachable.contains_key(uid)));
        let labels = [job, uid.0.as_str()];
        sheet.set(
            "streamforge_task_source_unreachable",
            &labels,
            is_unreachable,
        );
        let skipped_n = progress.skipped_n.get(uid).copied().unwrap_or_default() as f64;
        let name = "streamforge_task_source_skipped_records_total";
        sheet.set(name, &labels, skipped_n);
    }
}

fn credits(sheet: &mut Sheet, credits: &[(ChannelName, i64)]) {
    for (channel, bytes) in credits {
        let labels = [
            channel.edge.to_string(),
            channel.sender.0.to_string(),
            channel.receiver.0.to_string(),
        ];
        let labels = labels.each_ref().map(String::as_str);
        sheet.set("streamforge_exchange_credit_bytes", &labels, *bytes as f64);
    }
}

fn tasks(sheet: &mut Sheet, job: &str, times: &[(TaskId, Times)]) {
    for (task, times) in times {
        let (stage, subtask) = (task.stage.0.to_string(), task.subtask.0.to_string());
        let labels = [job, stage.as_str(), subtask.as_str()];
        for (name, micros) in [
            ("streamforge_task_idle_seconds_total", times.idle_us),
            ("streamforge_task_blocked_seconds_total", times.blocked_us),
            ("streamforge_task_running_seconds_total", times.running_us),
        ] {
            sheet.set(name, &labels, seconds(micros));
        }
    }
}

fn exchange(sheet: &mut Sheet, totals: &Totals) {
    let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed) as f64;
    for (name, sent, received) in [
        (
            "streamforge_exchange_rows_total",
            &totals.rows_sent,
            &totals.rows_received,
        ),
        (
            "streamforge_exchange_bytes_total",
            &totals.bytes_sent,
            &totals.bytes_received,
        ),
        (
            "streamforge_exchange_frames_total",
            &totals.frames_sent,
            &totals.frames_received,
        ),
    ] {
        sheet.set(name, &["sent"], read(sent));
        sheet.set(name, &["received"], read(received));
    }
    let blocked_s = read(&totals.blocked_us) / 1e6;
    sheet.set("streamforge_exchange_blocked_seconds_total", &[], blocked_s);
    for (name, counter) in [
        (
            "streamforge_exchange_out_of_credit_total",
            &totals.out_of_credit,
        ),
        ("streamforge_exchange_refused_total", &totals.refused),
        ("streamforge_exchange_broken_total", &totals.broken),
    ] {
        sheet.set(name, &[], read(counter));
    }
}

impl Collector for Metrics {
    fn desc(&self) -> Vec<&Desc> {
        let descriptions = &self.0.descriptions;
        let all = descriptions.get_or_init(|| metrics::descriptions(DESCRIBED));
        all.iter().collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let now_us = now.map_or(0, |now| i64::try_from(now.as_micros()).unwrap_or(i64::MAX));
        let mut sheet = Sheet::new(DESCRIBED);
        self.fill(&mut sheet, now_us);
        sheet.into_families()
    }
}

#[cfg(test)]
mod tests;
