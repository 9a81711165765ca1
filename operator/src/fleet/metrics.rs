//! What Prometheus is told of all jobs of an operator.
//!
//! Owns: putting the numbers of each coordinator together, each with the job's namespace: two namespaces
//! may have jobs of one name.

use std::collections::BTreeMap;
use std::sync::PoisonError;

use prometheus::core::{Collector, Desc};
use prometheus::proto::{LabelPair, MetricFamily};
use streamforge_host::{Status, metrics};
use tokio::sync::watch;

use super::Table;

/// See the module.
pub(super) struct Jobs {
    table: Table,
    /// Of no job: for the descriptions.
    described: metrics::Metrics,
}

impl Jobs {
    pub(super) fn new(table: Table) -> Self {
        let nobody = watch::channel(Status::default()).1;
        Self {
            table,
            described: metrics::Metrics::new(String::new(), nobody),
        }
    }
}

impl Collector for Jobs {
    fn desc(&self) -> Vec<&Desc> {
        self.described.desc()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let jobs: Vec<_> = {
            let table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
            let jobs = table.values();
            jobs.map(|it| (it.job.clone(), it.status.clone())).collect()
        };
        let mut all: BTreeMap<String, MetricFamily> = BTreeMap::new();
        for (job, status) in jobs {
            let mut label = LabelPair::default();
            label.set_name("namespace".to_owned());
            label.set_value(job.namespace.clone().unwrap_or_default());
            for mut family in metrics::Metrics::new(job.name, status).collect() {
                for metric in family.mut_metric() {
                    let mut labels = metric.take_label();
                    labels.push(label.clone());
                    metric.set_label(labels);
                }
                match all.get_mut(family.name()) {
                    Some(known) => known.mut_metric().extend(family.take_metric()),
                    None => {
                        all.insert(family.name().to_owned(), family);
                    }
                }
            }
        }
        all.into_values().collect()
    }
}
