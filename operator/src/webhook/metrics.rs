//! The webhook's metrics.
//!
//! Owns: names and labels; docs/metrics.md lists them.

use std::time::Duration;

use prometheus::{Histogram, HistogramOpts, IntCounterVec, Opts, Registry};

/// See the module.
pub struct Metrics {
    answers: IntCounterVec,
    seconds: Histogram,
}

impl Metrics {
    /// Registers them.
    ///
    /// # Errors
    /// When a name is taken.
    pub fn new(registry: &Registry) -> Result<Self, prometheus::Error> {
        let metrics = Self {
            answers: IntCounterVec::new(
                Opts::new(
                    "streamforge_admission_reviews_total",
                    "Questions of the API server, by kind and verdict.",
                ),
                &["kind", "verdict"],
            )?,
            seconds: Histogram::with_opts(HistogramOpts::new(
                "streamforge_admission_seconds",
                "How long answering took.",
            ))?,
        };
        registry.register(Box::new(metrics.answers.clone()))?;
        registry.register(Box::new(metrics.seconds.clone()))?;
        Ok(metrics)
    }

    /// A question was answered, or could not be.
    pub fn on_answer(&self, kind: &str, verdict: &str, took: Duration) {
        self.answers.with_label_values(&[kind, verdict]).inc();
        self.seconds.observe(took.as_secs_f64());
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn page_of_metrics_lists_exactly_the_webhooks_names() {
        let registry = Registry::new();
        let metrics = Metrics::new(&registry).unwrap();
        metrics.on_answer("StreamJob", "allowed", Duration::ZERO);
        let families = registry.gather();
        let exported: BTreeSet<&str> = families.iter().map(|family| family.name()).collect();

        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/metrics.md");
        let page = std::fs::read_to_string(path).unwrap();
        let rows = page.lines().filter_map(|line| line.strip_prefix("| `"));
        let names = rows.filter_map(|row| row.split('`').next());
        let listed: BTreeSet<&str> = names
            .filter(|name| name.starts_with("streamforge_admission_"))
            .collect();

        assert_eq!(listed, exported);
    }
}
