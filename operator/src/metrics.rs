//! The operator's metrics.
//!
//! Owns: names and labels; docs/metrics.md lists them.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use prometheus::{
    Gauge, Histogram, HistogramOpts, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry,
};

/// See the module. Cheap to clone.
#[derive(Clone)]
pub struct Metrics {
    reconciled: IntCounterVec,
    errors: IntCounterVec,
    seconds: Histogram,
    queue_depth: IntGauge,
    last_event_seconds: Gauge,
    leader: IntGauge,
    jobs: IntGaugeVec,
    last_event: Arc<Mutex<Instant>>,
}

impl Metrics {
    /// Registers all of them.
    ///
    /// # Errors
    /// When a name is taken.
    pub fn new(registry: &Registry) -> Result<Self, prometheus::Error> {
        let opts = |name: &str, help: &str| Opts::new(format!("streamforge_operator_{name}"), help);
        let metrics = Self {
            reconciled: IntCounterVec::new(
                opts("reconcile_total", "Passes over a job, by result."),
                &["result"],
            )?,
            errors: IntCounterVec::new(
                opts(
                    "reconcile_errors_total",
                    "Failed passes over a job, by reason.",
                ),
                &["reason"],
            )?,
            seconds: Histogram::with_opts(HistogramOpts::from(opts(
                "reconcile_seconds",
                "How long a pass over a job takes.",
            )))?,
            queue_depth: IntGauge::with_opts(opts("queue_depth", "Passes that are under way."))?,
            last_event_seconds: Gauge::with_opts(opts(
                "last_event_seconds",
                "Since the newest event of the API server's watches.",
            ))?,
            leader: IntGauge::with_opts(opts("leader", "1: this operator leads."))?,
            jobs: IntGaugeVec::new(opts("jobs", "Jobs by phase."), &["phase"])?,
            last_event: Arc::new(Mutex::new(Instant::now())),
        };
        registry.register(Box::new(metrics.reconciled.clone()))?;
        registry.register(Box::new(metrics.errors.clone()))?;
        registry.register(Box::new(metrics.seconds.clone()))?;
        registry.register(Box::new(metrics.queue_depth.clone()))?;
        registry.register(Box::new(metrics.last_event_seconds.clone()))?;
        registry.register(Box::new(metrics.leader.clone()))?;
        registry.register(Box::new(metrics.jobs.clone()))?;
        Ok(metrics)
    }

    /// This operator leads.
    pub fn on_leading(&self) {
        self.leader.set(1);
    }

    /// A pass begins.
    pub fn on_begin(&self) {
        self.queue_depth.inc();
    }

    /// A pass ended; `failed` is the reason if it did not do what it was to do.
    pub fn on_pass(&self, took: Duration, failed: Option<&str>) {
        self.queue_depth.dec();
        self.seconds.observe(took.as_secs_f64());
        let result = if failed.is_some() { "error" } else { "ok" };
        self.reconciled.with_label_values(&[result]).inc();
        if let Some(reason) = failed {
            self.errors.with_label_values(&[reason]).inc();
        }
    }

    /// A watch brought something.
    pub fn on_event(&self) {
        *self
            .last_event
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = Instant::now();
        self.last_event_seconds.set(0.0);
    }

    /// Since the newest event.
    #[must_use]
    pub fn since_event(&self) -> Duration {
        let since = self
            .last_event
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let since = since.elapsed();
        self.last_event_seconds.set(since.as_secs_f64());
        since
    }

    /// How many jobs there are in each phase.
    pub fn set_jobs<'a>(&self, phases: impl IntoIterator<Item = (&'a str, i64)>) {
        self.jobs.reset();
        for (phase, n) in phases {
            self.jobs.with_label_values(&[phase]).set(n);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn page_of_metrics_lists_exactly_the_operators_names() {
        let registry = Registry::new();
        let metrics = Metrics::new(&registry).unwrap();
        metrics.on_begin();
        metrics.on_pass(Duration::ZERO, Some("Store"));
        metrics.set_jobs([("Running", 1)]);
        let families = registry.gather();
        let exported: BTreeSet<&str> = families.iter().map(|family| family.name()).collect();

        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/metrics.md");
        let page = std::fs::read_to_string(path).unwrap();
        let rows = page.lines().filter_map(|line| line.strip_prefix("| `"));
        let names = rows.filter_map(|row| row.split('`').next());
        let listed: BTreeSet<&str> = names
            .filter(|name| name.starts_with("streamforge_operator_"))
            .collect();

        assert_eq!(listed, exported);
    }
}
