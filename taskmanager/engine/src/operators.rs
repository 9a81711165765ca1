//! The operators, one file each.

pub mod build;
pub mod filter;
mod late;
pub mod project;
pub mod source;
pub mod union;
pub mod unnest;
pub mod window_final;
pub mod window_partial;
pub mod windowed;

use arrow::array::ArrayRef;
use arrow::error::ArrowError;
use datafusion_common::DataFusionError;
use streamforge_core::job_graph::Port;
use streamforge_core::manifest::Counters;

use crate::batch::{BadRows, StreamBatch};
use crate::error::Error;
use crate::evaluate::{Evaluator, bad_rows, evaluate};
use crate::operator::Outputs;

/// Who an operator is, for errors and `.bad`.
#[derive(Clone, Debug)]
pub struct Named {
    /// Its uid.
    pub uid: String,
    /// The document's node.
    pub node: String,
}

impl Named {
    /// A kernel failed here.
    pub fn kernel(&self, source: ArrowError) -> Error {
        Error::Kernel {
            operator: self.uid.clone(),
            source,
        }
    }

    /// DataFusion failed here.
    pub fn aggregate(&self, source: DataFusionError) -> Error {
        Error::Aggregate {
            operator: self.uid.clone(),
            source: Box::new(source),
        }
    }

    /// An input broke a rule.
    pub fn protocol(&self, rule: impl Into<String>) -> Error {
        Error::Protocol {
            operator: self.uid.clone(),
            rule: rule.into(),
        }
    }

    /// `.bad` rows of this node.
    pub fn bad(&self, rows: BadRows) -> Result<StreamBatch, Error> {
        rows.finish(&self.node).map_err(|error| self.kernel(error))
    }

    /// Evaluates over a batch: its good rows, and their columns. The bad ones are counted and leave here.
    pub fn evaluate(
        &self,
        evaluators: &[Evaluator],
        batch: StreamBatch,
        counters: &mut Counters,
        out: &mut Outputs,
    ) -> Result<(StreamBatch, Vec<ArrayRef>), Error> {
        let evaluated = evaluate(evaluators, &batch).map_err(|error| self.kernel(error))?;
        if !evaluated.bad.is_empty() {
            counters.bad += count(evaluated.bad.len());
            if out.is_read(Port::Bad) {
                let bad = bad_rows(&batch, evaluated.bad);
                out.push(Port::Bad, self.bad(bad)?);
            }
        }
        Ok((evaluated.good.unwrap_or(batch), evaluated.columns))
    }
}

/// A number of rows as the counters want it.
pub(crate) fn count(rows_n: usize) -> u64 {
    u64::try_from(rows_n).unwrap_or(u64::MAX)
}
