//! One row per element of a list; the other columns are kept.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, UInt32Array};
use arrow::compute::take;
use arrow::datatypes::SchemaRef;
use streamforge_core::job_graph::{Column, Port};
use streamforge_core::manifest::Counters;

use crate::batch::{BATCH_ROWS, StreamBatch};
use crate::error::Error;
use crate::evaluate::Evaluator;
use crate::operator::{Operator, Outputs};
use crate::operators::project::assemble;
use crate::operators::{Named, count};
use crate::types::schema;

/// See the module.
pub struct Unnest {
    named: Named,
    item: [Evaluator; 1],
    schema: SchemaRef,
    counters: Counters,
}

impl Unnest {
    /// `item` is a list; `output` is the input's columns and the element, last.
    pub fn new(named: Named, item: Evaluator, output: &[Column]) -> Self {
        Self {
            named,
            item: [item],
            schema: schema(output),
            counters: Counters::default(),
        }
    }

    /// Sends the rows `parents`, each with the element of the same index.
    fn send(
        &self,
        batch: &StreamBatch,
        elements: &ArrayRef,
        (parents, indices): (Vec<u32>, Vec<u32>),
        out: &mut Outputs,
    ) -> Result<(), Error> {
        let kernel = |error| self.named.kernel(error);
        let kept = batch.take(&UInt32Array::from(parents)).map_err(kernel)?;
        let element = take(elements, &UInt32Array::from(indices), None).map_err(kernel)?;
        let mut columns = kept.rows.columns().to_vec();
        columns.push(element);
        let rows = assemble(&self.schema, columns, kept.len()).map_err(kernel)?;
        out.push(Port::Main, kept.with_rows(rows));
        Ok(())
    }
}

impl Operator for Unnest {
    fn on_batch(&mut self, _: usize, batch: StreamBatch, out: &mut Outputs) -> Result<(), Error> {
        self.counters.rows_in += count(batch.len());
        let (good, columns) = self
            .named
            .evaluate(&self.item, batch, &mut self.counters, out)?;
        let Some(lists) = columns.first() else {
            return Ok(());
        };
        let lists = lists.as_list::<i32>();
        let elements = Arc::clone(lists.values());
        let mut pending = (Vec::new(), Vec::new());
        for (parent, bounds) in lists.value_offsets().windows(2).enumerate() {
            let &[from, to] = bounds else { continue };
            if lists.is_null(parent) || from == to {
                self.counters.filtered += 1;
                continue;
            }
            self.counters.passed += 1;
            for idx in from..to {
                pending.0.push(u32::try_from(parent).unwrap_or(u32::MAX));
                pending.1.push(u32::try_from(idx).unwrap_or(u32::MAX));
                // A row may hold a list of any length: what is sent at once stays bounded (B1).
                if pending.0.len() == BATCH_ROWS {
                    self.send(&good, &elements, std::mem::take(&mut pending), out)?;
                }
            }
        }
        if !pending.0.is_empty() {
            self.send(&good, &elements, pending, out)?;
        }
        Ok(())
    }

    fn counters(&self) -> Counters {
        self.counters
    }
}
