//! What every process shows Prometheus: described names, and the HTTP server that shows them.
//!
//! Owns: turning values into what the `prometheus` crate writes. Which values, is the business of
//! each process. A name or labels that were not described are left out and logged, never a panic:
//! metrics must not end a job.

pub mod http;

use std::collections::HashMap;

use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{CounterVec, GaugeVec, Opts};

/// Whether a value only grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Only grows, until the process or the attempt begins anew.
    Counter,
    /// Goes up and down.
    Gauge,
}

impl Kind {
    /// Word in the page of names.
    pub fn text(self) -> &'static str {
        match self {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
        }
    }
}

/// Lines of the page of names, one for each metric, in order.
pub fn page_lines(described: &[Described]) -> impl Iterator<Item = String> + '_ {
    described.iter().map(|metric| {
        let labels: Vec<String> = metric.labels.iter().map(|l| format!("`{l}`")).collect();
        let Described {
            name, kind, help, ..
        } = metric;
        format!(
            "| `{name}` | {} | {} | {help} |",
            kind.text(),
            labels.join(", ")
        )
    })
}

/// A metric's name and meaning.
#[derive(Clone, Copy, Debug)]
pub struct Described {
    /// With unit, as Prometheus wants it.
    pub name: &'static str,
    /// Counter or gauge.
    pub kind: Kind,
    /// Names of its labels, in order.
    pub labels: &'static [&'static str],
    /// One sentence.
    pub help: &'static str,
}

enum Family {
    Counter(CounterVec),
    Gauge(GaugeVec),
}

impl Described {
    /// A number that only grows.
    pub const fn counter(
        name: &'static str,
        labels: &'static [&'static str],
        help: &'static str,
    ) -> Self {
        let kind = Kind::Counter;
        Self {
            name,
            kind,
            labels,
            help,
        }
    }

    /// A number that goes up and down.
    pub const fn gauge(
        name: &'static str,
        labels: &'static [&'static str],
        help: &'static str,
    ) -> Self {
        let kind = Kind::Gauge;
        Self {
            name,
            kind,
            labels,
            help,
        }
    }
}

/// Values of described metrics at one moment.
pub struct Sheet {
    families: HashMap<&'static str, Family>,
}

impl Sheet {
    /// Without values.
    pub fn new(described: &[Described]) -> Self {
        let family = |metric: &Described| {
            let opts = Opts::new(metric.name, metric.help);
            let family = match metric.kind {
                Kind::Counter => CounterVec::new(opts, metric.labels).map(Family::Counter),
                Kind::Gauge => GaugeVec::new(opts, metric.labels).map(Family::Gauge),
            };
            match family {
                Ok(family) => Some((metric.name, family)),
                Err(error) => {
                    tracing::error!(name = metric.name, %error, "a metric is described wrongly");
                    None
                }
            }
        };
        Self {
            families: described.iter().filter_map(family).collect(),
        }
    }

    /// Notes a value. Values of the same labels are added up.
    pub fn set(&mut self, name: &str, labels: &[&str], value: f64) {
        let noted = match self.families.get(name) {
            Some(Family::Counter(family)) => family
                .get_metric_with_label_values(labels)
                .map(|counter| counter.inc_by(value.max(0.0))),
            Some(Family::Gauge(family)) => family
                .get_metric_with_label_values(labels)
                .map(|gauge| gauge.add(value)),
            None => {
                tracing::error!(name, "a metric is not described");
                return;
            }
        };
        if let Err(error) = noted {
            tracing::error!(name, %error, "a metric has other labels than described");
        }
    }

    /// For the registry; without those that have no value.
    pub fn into_families(self) -> Vec<MetricFamily> {
        let families = self.families.into_values();
        let families = families.flat_map(|family| match family {
            Family::Counter(family) => family.collect(),
            Family::Gauge(family) => family.collect(),
        });
        families
            .filter(|family| !family.get_metric().is_empty())
            .collect()
    }
}

/// What a collector says of itself when it is registered. The registry uses it only to find two
/// collectors of one name.
pub fn descriptions(described: &[Described]) -> Vec<Desc> {
    let desc = |metric: &Described| {
        let labels = metric.labels.iter().map(|label| (*label).to_owned());
        Desc::new(
            metric.name.to_owned(),
            metric.help.to_owned(),
            labels.collect(),
            HashMap::new(),
        )
        .ok()
    };
    described.iter().filter_map(desc).collect()
}

#[cfg(test)]
mod tests {
    use prometheus::TextEncoder;

    use super::*;

    const DESCRIBED: &[Described] = &[
        Described::counter("rows_total", &["operator"], "Rows."),
        Described::gauge("lag_seconds", &[], "Lag."),
    ];

    #[test]
    fn only_described_names_and_labels_are_written() {
        let mut sheet = Sheet::new(DESCRIBED);

        sheet.set("rows_total", &["a"], 3.0);
        sheet.set("rows_total", &["a"], 4.0);
        sheet.set("lag_seconds", &[], -1.5);
        sheet.set("rows_total", &["a", "b"], 1.0);
        sheet.set("unknown", &[], 1.0);

        let text = TextEncoder::new()
            .encode_to_string(&sheet.into_families())
            .unwrap();
        let mut values: Vec<&str> = text.lines().filter(|l| !l.starts_with('#')).collect();
        values.sort_unstable();
        assert_eq!(values, ["lag_seconds -1.5", "rows_total{operator=\"a\"} 7"]);
    }
}
