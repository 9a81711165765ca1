//! What a job's coordinator tells Prometheus.
//!
//! Owns: the names, read from the job's status when somebody asks. The page docs/metrics.md lists
//! them; a test compares. Start at: [`Metrics`].

use std::sync::OnceLock;

use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use streamforge_coordinator::{Phase, Status};
use streamforge_core::event_time::Watermark;
use streamforge_proto::metrics::{self, Described, Sheet};
use tokio::sync::watch;

const JOB: &[&str] = &["job"];
const JOB_OPERATOR: &[&str] = &["job", "operator"];

/// Every name that a coordinator exports.
pub const DESCRIBED: &[Described] = &[
    Described::gauge(
        "streamforge_job_phase",
        &["job", "phase"],
        "1 for what the job is doing.",
    ),
    Described::gauge(
        "streamforge_job_generation",
        JOB,
        "Term of the coordinator.",
    ),
    Described::gauge("streamforge_job_epoch", JOB, "Attempt of the job."),
    Described::gauge("streamforge_job_parallelism", JOB, "Subtasks per stage."),
    Described::gauge(
        "streamforge_job_task_managers",
        JOB,
        "Task managers with a session.",
    ),
    Described::counter(
        "streamforge_job_restarts_total",
        JOB,
        "Attempts that failed, since the coordinator started.",
    ),
    Described::counter(
        "streamforge_job_rows_in_total",
        JOB_OPERATOR,
        "Rows that came in, since the job's first row.",
    ),
    Described::counter(
        "streamforge_job_rows_out_total",
        JOB_OPERATOR,
        "Rows of the main output, since the job's first row.",
    ),
    Described::counter(
        "streamforge_job_rows_filtered_total",
        JOB_OPERATOR,
        "Rows rejected by a predicate, since the job's first row.",
    ),
    Described::counter(
        "streamforge_job_rows_late_total",
        JOB_OPERATOR,
        "Rows that had no open window, since the job's first row.",
    ),
    Described::counter(
        "streamforge_job_rows_bad_total",
        JOB_OPERATOR,
        "Rows that went to .bad, since the job's first row.",
    ),
    Described::gauge(
        "streamforge_job_watermark_seconds",
        JOB_OPERATOR,
        "Lowest watermark of all the operator's tasks, in seconds since 1970.",
    ),
    Described::counter(
        "streamforge_job_checkpoints_total",
        &["job", "outcome"],
        "Checkpoints that were completed or given up by this coordinator.",
    ),
    Described::gauge(
        "streamforge_job_checkpoint_time_seconds",
        JOB,
        "When the newest checkpoint was committed, in seconds since 1970.",
    ),
    Described::gauge(
        "streamforge_job_checkpoint_duration_seconds",
        JOB,
        "How long the newest checkpoint took, from barrier to last acknowledgement.",
    ),
    Described::gauge(
        "streamforge_job_checkpoint_bytes",
        JOB,
        "Bytes uploaded for the newest checkpoint.",
    ),
    Described::gauge(
        "streamforge_job_checkpoint_freeze_seconds",
        JOB,
        "Longest time that a task stood still for the newest checkpoint.",
    ),
    Described::gauge(
        "streamforge_job_checkpoint_stale",
        JOB,
        "1 when more checkpoints failed in a row than are tolerated.",
    ),
    Described::gauge(
        "streamforge_job_unpublished_intervals",
        JOB,
        "Staged intervals that wait to be published.",
    ),
];

/// One job's. Register it with a `prometheus::Registry`.
#[derive(Debug)]
pub struct Metrics {
    job: String,
    status: watch::Receiver<Status>,
    descriptions: OnceLock<Vec<Desc>>,
}

impl Metrics {
    /// Of the job called `job`, with this status.
    pub fn new(job: String, status: watch::Receiver<Status>) -> Self {
        let descriptions = OnceLock::new();
        Self {
            job,
            status,
            descriptions,
        }
    }
}

fn phase_word(phase: Phase) -> &'static str {
    match phase {
        Phase::Starting => "starting",
        Phase::Deploying => "deploying",
        Phase::Running => "running",
        Phase::Recovering => "recovering",
        Phase::Stopping => "stopping",
        Phase::Finishing => "finishing",
        Phase::Ended => "ended",
    }
}

fn fill(sheet: &mut Sheet, job: &str, status: &Status) {
    let of_job = [job];
    let phase = [job, phase_word(status.phase)];
    sheet.set("streamforge_job_phase", &phase, 1.0);
    for (name, value) in [
        ("streamforge_job_generation", status.generation.get() as f64),
        ("streamforge_job_epoch", status.epoch.get() as f64),
        ("streamforge_job_parallelism", f64::from(status.parallelism)),
        (
            "streamforge_job_task_managers",
            status.task_managers_n as f64,
        ),
        (
            "streamforge_job_restarts_total",
            f64::from(status.restarts_n),
        ),
        (
            "streamforge_job_unpublished_intervals",
            status.unpublished_n as f64,
        ),
    ] {
        sheet.set(name, &of_job, value);
    }
    operators(sheet, job, status);
    checkpoints(sheet, job, status);
}

fn operators(sheet: &mut Sheet, job: &str, status: &Status) {
    for (uid, counters) in &status.ledger {
        let labels = [job, uid.0.as_str()];
        for (name, value) in [
            ("streamforge_job_rows_in_total", counters.rows_in),
            ("streamforge_job_rows_out_total", counters.out),
            ("streamforge_job_rows_filtered_total", counters.filtered),
            ("streamforge_job_rows_late_total", counters.late),
            ("streamforge_job_rows_bad_total", counters.bad),
        ] {
            sheet.set(name, &labels, value as f64);
        }
    }
    for (uid, watermark) in &status.watermarks {
        // The ends of time are no times.
        if *watermark != Watermark::NONE && *watermark != Watermark::END {
            let at_s = watermark.0 as f64 / 1e6;
            let labels = [job, uid.0.as_str()];
            sheet.set("streamforge_job_watermark_seconds", &labels, at_s);
        }
    }
}

fn checkpoints(sheet: &mut Sheet, job: &str, status: &Status) {
    let checkpoint = &status.checkpoint;
    for (outcome, n) in [
        ("completed", checkpoint.completed_n),
        ("failed", checkpoint.failed_n),
    ] {
        let labels = [job, outcome];
        sheet.set("streamforge_job_checkpoints_total", &labels, n as f64);
    }
    let stale = f64::from(u8::from(checkpoint.stale.is_some()));
    sheet.set("streamforge_job_checkpoint_stale", &[job], stale);
    let Some(last) = &checkpoint.last_completed else {
        return;
    };
    for (name, value) in [
        (
            "streamforge_job_checkpoint_time_seconds",
            last.time_ms as f64 / 1e3,
        ),
        (
            "streamforge_job_checkpoint_duration_seconds",
            last.duration_ms as f64 / 1e3,
        ),
        ("streamforge_job_checkpoint_bytes", last.bytes_n as f64),
        (
            "streamforge_job_checkpoint_freeze_seconds",
            last.freeze_us as f64 / 1e6,
        ),
    ] {
        sheet.set(name, &[job], value);
    }
}

impl Collector for Metrics {
    fn desc(&self) -> Vec<&Desc> {
        let all = self
            .descriptions
            .get_or_init(|| metrics::descriptions(DESCRIBED));
        all.iter().collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let mut sheet = Sheet::new(DESCRIBED);
        fill(&mut sheet, &self.job, &self.status.borrow());
        sheet.into_families()
    }
}

#[cfg(test)]
mod tests {
    use prometheus::{Registry, TextEncoder};
    use streamforge_coordinator::{CheckpointStatus, CompletedCheckpoint};
    use streamforge_core::ids::{CheckpointId, Epoch, OperatorUid};
    use streamforge_core::manifest::{CheckpointKind, Counters};
    use streamforge_proto::metrics::Kind;

    use super::*;

    #[test]
    fn status_is_exported_as_it_is() {
        let counters = Counters {
            rows_in: 10,
            out: 4,
            ..Counters::default()
        };
        let status = Status {
            phase: Phase::Running,
            epoch: Epoch::from_stored(3),
            restarts_n: 2,
            ledger: [(OperatorUid("per_user".to_owned()), counters)].into(),
            checkpoint: CheckpointStatus {
                completed_n: 7,
                failed_n: 1,
                last_completed: Some(CompletedCheckpoint {
                    id: CheckpointId::from_stored(8),
                    kind: CheckpointKind::Ordinary,
                    time_ms: 5_500,
                    duration_ms: 250,
                    bytes_n: 4096,
                    freeze_us: 1_500,
                }),
                ..CheckpointStatus::default()
            },
            ..Status::default()
        };
        let (_alive, status) = watch::channel(status);
        let registry = Registry::new();
        let metrics = Metrics::new("clicks".to_owned(), status);
        registry.register(Box::new(metrics)).unwrap();

        let text = TextEncoder::new()
            .encode_to_string(&registry.gather())
            .unwrap();

        for line in [
            "streamforge_job_phase{job=\"clicks\",phase=\"running\"} 1",
            "streamforge_job_epoch{job=\"clicks\"} 3",
            "streamforge_job_restarts_total{job=\"clicks\"} 2",
            "streamforge_job_rows_in_total{job=\"clicks\",operator=\"per_user\"} 10",
            "streamforge_job_rows_out_total{job=\"clicks\",operator=\"per_user\"} 4",
            "streamforge_job_checkpoints_total{job=\"clicks\",outcome=\"failed\"} 1",
            "streamforge_job_checkpoint_duration_seconds{job=\"clicks\"} 0.25",
            "streamforge_job_checkpoint_freeze_seconds{job=\"clicks\"} 0.0015",
            "streamforge_job_checkpoint_time_seconds{job=\"clicks\"} 5.5",
        ] {
            assert!(text.lines().any(|l| l == line), "{line}\n{text}");
        }
    }

    #[test]
    fn names_follow_the_conventions_of_prometheus() {
        for metric in DESCRIBED {
            let name = metric.name;
            assert!(name.starts_with("streamforge_job_"), "{name}");
            assert_eq!(
                name.ends_with("_total"),
                metric.kind == Kind::Counter,
                "{name}"
            );
            assert!(metric.help.ends_with('.'), "{name}");
        }
    }
}
