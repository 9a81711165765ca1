//! The operator's metrics.
//!
//! Owns: names and labels; docs/metrics.md lists them.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use kube::runtime::reflector::ObjectRef;
use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{
    Gauge, Histogram, HistogramOpts, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry,
};

use streamforge_crds::v1alpha1::StreamJob;

use crate::watch::Pulses;

/// See the module. Cheap to clone.
#[derive(Clone)]
pub struct Metrics {
    reconciled: IntCounterVec,
    errors: IntCounterVec,
    seconds: Histogram,
    queue_depth: IntGauge,
    /// Jobs that were woken, and that no pass has begun for since.
    waiting: Arc<Mutex<HashSet<ObjectRef<StreamJob>>>>,
    leader: IntGauge,
    jobs: IntGaugeVec,
    pulses: Pulses,
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
                opts(
                    "reconcile_total",
                    "Passes over a job or a savepoint, by result.",
                ),
                &["result"],
            )?,
            errors: IntCounterVec::new(
                opts(
                    "reconcile_errors_total",
                    "Failed passes over a job or a savepoint, by reason.",
                ),
                &["reason"],
            )?,
            seconds: Histogram::with_opts(HistogramOpts::from(opts(
                "reconcile_seconds",
                "How long a pass over a job or a savepoint takes.",
            )))?,
            queue_depth: IntGauge::with_opts(opts("queue_depth", "Jobs that wait for a pass."))?,
            waiting: Arc::default(),
            leader: IntGauge::with_opts(opts("leader", "1: this operator leads."))?,
            jobs: IntGaugeVec::new(opts("jobs", "Jobs by phase."), &["phase"])?,
            pulses: Pulses::default(),
        };
        registry.register(Box::new(metrics.reconciled.clone()))?;
        registry.register(Box::new(metrics.errors.clone()))?;
        registry.register(Box::new(metrics.seconds.clone()))?;
        registry.register(Box::new(metrics.queue_depth.clone()))?;
        registry.register(Box::new(LastEvent {
            seconds: Gauge::with_opts(opts(
                "last_event_seconds",
                "Since the last sign of life of the most silent watch.",
            ))?,
            pulses: metrics.pulses.clone(),
        }))?;
        registry.register(Box::new(metrics.leader.clone()))?;
        registry.register(Box::new(metrics.jobs.clone()))?;
        Ok(metrics)
    }

    /// This operator leads.
    pub fn on_leading(&self) {
        self.leader.set(1);
    }

    fn waiting(&self) -> MutexGuard<'_, HashSet<ObjectRef<StreamJob>>> {
        // Every critical section leaves the set whole.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn count_waiting(&self, waiting: &HashSet<ObjectRef<StreamJob>>) {
        self.queue_depth
            .set(i64::try_from(waiting.len()).unwrap_or(i64::MAX));
    }

    /// Something happened to a job. One that is gone gets no pass; who calls [`Self::on_gone`] has made `is_there`
    /// say so before.
    pub fn on_wake(&self, job: &ObjectRef<StreamJob>, is_there: impl FnOnce() -> bool) {
        let mut waiting = self.waiting();
        if is_there() && waiting.insert(job.clone()) {
            self.count_waiting(&waiting);
        }
    }

    /// A job is gone.
    pub fn on_gone(&self, job: &ObjectRef<StreamJob>) {
        let mut waiting = self.waiting();
        if waiting.remove(job) {
            self.count_waiting(&waiting);
        }
    }

    /// A pass over a job begins.
    pub fn on_begin(&self, job: &ObjectRef<StreamJob>) {
        self.on_gone(job);
    }

    /// A pass over a job or a savepoint ended; `failed` is the reason if it did not do what it was to do.
    pub fn on_pass(&self, took: Duration, failed: Option<&str>) {
        self.pulses.turn();
        self.seconds.observe(took.as_secs_f64());
        let result = if failed.is_some() { "error" } else { "ok" };
        self.reconciled.with_label_values(&[result]).inc();
        if let Some(reason) = failed {
            self.errors.with_label_values(&[reason]).inc();
        }
    }

    /// Of the watches.
    #[must_use]
    pub fn pulses(&self) -> &Pulses {
        &self.pulses
    }

    /// How many jobs there are in each phase.
    pub fn set_jobs<'a>(&self, phases: impl IntoIterator<Item = (&'a str, i64)>) {
        self.jobs.reset();
        for (phase, n) in phases {
            self.jobs.with_label_values(&[phase]).set(n);
        }
    }
}

/// Looked at when somebody asks: a watch that is dead tells nobody.
struct LastEvent {
    seconds: Gauge,
    pulses: Pulses,
}

impl Collector for LastEvent {
    fn desc(&self) -> Vec<&Desc> {
        self.seconds.desc()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        // One that does not lead watches nothing.
        let silence = self.pulses.silence().unwrap_or_default();
        self.seconds.set(silence.as_secs_f64());
        self.seconds.collect()
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

    #[test]
    fn queue_counts_each_job_that_waits_once_until_its_pass_begins_or_it_is_gone() {
        let metrics = Metrics::new(&Registry::new()).unwrap();
        let job = |n: usize| ObjectRef::new(&format!("job-{n}")).within("team");
        let depth = || metrics.queue_depth.get();
        // More than passes that are under way at a time.
        for n in 0..200 {
            metrics.on_wake(&job(n), || true);
            metrics.on_wake(&job(n), || true);
        }
        assert_eq!(depth(), 200);

        (0..16).for_each(|n| metrics.on_begin(&job(n)));
        metrics.on_pass(Duration::ZERO, None);
        assert_eq!(depth(), 184);
        metrics.on_wake(&job(0), || true);
        assert_eq!(depth(), 185);

        metrics.on_gone(&job(199));
        metrics.on_wake(&job(199), || false);
        assert_eq!(depth(), 184);
    }
}
