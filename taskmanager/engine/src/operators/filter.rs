//! Keeps the rows for which a predicate is true.

use arrow::array::{Array, AsArray};
use streamforge_core::job_graph::Port;
use streamforge_core::manifest::Counters;

use crate::batch::StreamBatch;
use crate::error::Error;
use crate::evaluate::Evaluator;
use crate::operator::{Operator, Outputs};
use crate::operators::{Named, count};

/// See the module.
pub struct Filter {
    named: Named,
    predicate: [Evaluator; 1],
    counters: Counters,
}

impl Filter {
    /// `predicate` is BOOLEAN; NULL drops the row as false does.
    pub fn new(named: Named, predicate: Evaluator) -> Self {
        Self {
            named,
            predicate: [predicate],
            counters: Counters::default(),
        }
    }
}

impl Operator for Filter {
    fn on_batch(&mut self, _: usize, batch: StreamBatch, out: &mut Outputs) -> Result<(), Error> {
        self.counters.rows_in += count(batch.len());
        let (good, columns) =
            self.named
                .evaluate(&self.predicate, batch, &mut self.counters, out)?;
        let Some(keep) = columns.first() else {
            return Ok(());
        };
        let keep = keep.as_boolean();
        let kept_n = if keep.null_count() == 0 {
            keep.true_count()
        } else {
            keep.iter().filter(|keep| *keep == Some(true)).count()
        };
        self.counters.passed += count(kept_n);
        self.counters.filtered += count(good.len() - kept_n);
        if kept_n == good.len() {
            out.push(Port::Main, good);
        } else if kept_n > 0 {
            let kept = good
                .filter(keep)
                .map_err(|error| self.named.kernel(error))?;
            out.push(Port::Main, kept);
        }
        Ok(())
    }

    fn counters(&self) -> Counters {
        self.counters
    }
}
