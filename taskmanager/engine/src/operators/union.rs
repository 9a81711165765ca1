//! All rows of all inputs. Its watermark is the minimum over them, as any operator's.

use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use streamforge_core::job_graph::{Column, Port};
use streamforge_core::manifest::Counters;

use crate::batch::StreamBatch;
use crate::error::Error;
use crate::operator::{Operator, Outputs};
use crate::operators::project::assemble;
use crate::operators::{Named, count};
use crate::types::schema;

/// See the module.
pub struct Union {
    named: Named,
    schema: SchemaRef,
    names: Vec<String>,
    counters: Counters,
}

impl Union {
    /// `output` has the columns of every input, by name and type; an input may order them otherwise.
    pub fn new(named: Named, output: &[Column]) -> Self {
        let names = output.iter().map(|column| column.name.clone()).collect();
        Self {
            named,
            schema: schema(output),
            names,
            counters: Counters::default(),
        }
    }
}

impl Operator for Union {
    fn on_batch(&mut self, _: usize, batch: StreamBatch, out: &mut Outputs) -> Result<(), Error> {
        self.counters.rows_in += count(batch.len());
        self.counters.passed += count(batch.len());
        if batch.rows.schema_ref() == &self.schema {
            out.push(Port::Main, batch);
            return Ok(());
        }
        let columns = self
            .names
            .iter()
            .map(|name| batch.rows.column_by_name(name).map(Arc::clone))
            .collect::<Option<Vec<_>>>()
            .ok_or_else(|| self.named.protocol("union: an input lacks a column"))?;
        let rows = assemble(&self.schema, columns, batch.len())
            .map_err(|error| self.named.kernel(error))?;
        out.push(Port::Main, batch.with_rows(rows));
        Ok(())
    }

    fn counters(&self) -> Counters {
        self.counters
    }
}
