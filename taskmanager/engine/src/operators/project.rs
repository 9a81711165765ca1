//! Computes columns.

use std::sync::Arc;

use arrow::array::ArrayRef;
use arrow::datatypes::SchemaRef;
use arrow::record_batch::{RecordBatch, RecordBatchOptions};
use streamforge_core::job_graph::{Column, Port};
use streamforge_core::manifest::Counters;

use crate::batch::StreamBatch;
use crate::error::Error;
use crate::evaluate::Evaluator;
use crate::operator::{Operator, Outputs};
use crate::operators::{Named, count};
use crate::types::schema;

/// See the module.
pub struct Project {
    named: Named,
    items: Vec<Evaluator>,
    schema: SchemaRef,
    counters: Counters,
}

impl Project {
    /// One expression per output column, already of the column's type.
    pub fn new(named: Named, items: Vec<Evaluator>, output: &[Column]) -> Self {
        Self {
            named,
            items,
            schema: schema(output),
            counters: Counters::default(),
        }
    }
}

/// Rows with these columns; `n` counts where there are none.
pub(crate) fn assemble(
    schema: &SchemaRef,
    columns: Vec<ArrayRef>,
    n: usize,
) -> Result<RecordBatch, arrow::error::ArrowError> {
    let options = RecordBatchOptions::new().with_row_count(Some(n));
    RecordBatch::try_new_with_options(Arc::clone(schema), columns, &options)
}

impl Operator for Project {
    fn on_batch(&mut self, _: usize, batch: StreamBatch, out: &mut Outputs) -> Result<(), Error> {
        self.counters.rows_in += count(batch.len());
        let (good, columns) = self
            .named
            .evaluate(&self.items, batch, &mut self.counters, out)?;
        if good.is_empty() {
            return Ok(());
        }
        self.counters.passed += count(good.len());
        let rows = assemble(&self.schema, columns, good.len())
            .map_err(|error| self.named.kernel(error))?;
        out.push(Port::Main, good.with_rows(rows));
        Ok(())
    }

    fn counters(&self) -> Counters {
        self.counters
    }
}
