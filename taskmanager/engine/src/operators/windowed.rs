//! What the two halves of a windowed aggregate agree on.
//!
//! Owns: the schemas between and behind them, and the compiled form of an [`AggregateSpec`].
//!
//! The first half sends the key columns first, in order, so the exchange's key columns are always
//! `0..keys`. Behind them: for tumbling and hopping windows `_slice`, `_first` and the states of the
//! partial groups; for sessions the arguments, the filters, then the input's columns.

use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, Int64Array, TimestampMicrosecondArray};
use arrow::buffer::BooleanBuffer;
use arrow::compute::{CastOptions, cast_with_options};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef, TimeUnit};
use arrow::error::ArrowError;
use arrow::record_batch::RecordBatch;
use streamforge_core::job_graph::{AggregateSpec, Expr, WindowSpec, late_columns};

use crate::aggregate::{Aggregate, rows_kept};
use crate::batch::StreamBatch;
use crate::error::Error;
use crate::evaluate::Evaluator;
use crate::group_table::{Extents, TableShape};
use crate::operators::Named;
use crate::operators::project::assemble;
use crate::types::{arrow_type, field, schema};
use crate::window::SlicedWindows;

/// Which windows.
#[derive(Clone, Debug)]
pub enum Kind {
    /// Tumbling or hopping.
    Sliced(SlicedWindows),
    /// Sessions.
    Session {
        /// Records of one key less than this apart belong together.
        gap_us: i64,
    },
}

/// A windowed aggregate, ready to run.
#[derive(Clone, Debug)]
pub struct Windowed {
    /// As planned.
    pub spec: AggregateSpec,
    /// Its windows.
    pub kind: Kind,
    /// Shape of its tables.
    pub shape: Arc<TableShape>,
    /// Rows between the halves.
    pub partial: SchemaRef,
    /// Rows of the main output.
    pub output: SchemaRef,
    /// Rows of `.late`.
    pub late: SchemaRef,
    /// Column of each call's argument among the expressions (or, for sessions, partial columns).
    args: Vec<Option<usize>>,
    filters: Vec<Option<usize>>,
}

/// Keys, arguments and filters over the same rows.
#[derive(Debug)]
pub struct Inputs {
    /// Key columns in grouping form.
    pub keys: Vec<ArrayRef>,
    /// Argument of each call that has one.
    pub args: Vec<Option<ArrayRef>>,
    /// Filter of each call that has one.
    pub filters: Vec<Option<ArrayRef>>,
}

impl Inputs {
    /// The same for other rows, chosen by `map`.
    pub fn map(
        &self,
        map: impl Fn(&ArrayRef) -> Result<ArrayRef, ArrowError>,
    ) -> Result<Self, ArrowError> {
        let some = |column: &Option<ArrayRef>| column.as_ref().map(&map).transpose();
        Ok(Self {
            keys: self.keys.iter().map(&map).collect::<Result<_, _>>()?,
            args: self.args.iter().map(some).collect::<Result<_, _>>()?,
            filters: self.filters.iter().map(some).collect::<Result<_, _>>()?,
        })
    }

    /// Rows that each filter keeps.
    pub fn keep(&self) -> Vec<Option<BooleanBuffer>> {
        let keep = |filter: &Option<ArrayRef>| {
            filter
                .as_ref()
                .and_then(|filter| filter.as_boolean_opt())
                .map(rows_kept)
        };
        self.filters.iter().map(keep).collect()
    }
}

impl Windowed {
    /// Checks the spec and works out the schemas.
    pub fn new(spec: AggregateSpec, named: &Named) -> Result<Self, Error> {
        let unsupported = |rule: String| named.protocol(rule);
        let kind = match &spec.window {
            WindowSpec::Session { gap_us } if *gap_us > 0 => Kind::Session { gap_us: *gap_us },
            window => match SlicedWindows::new(window) {
                Ok(Some(windows)) => Kind::Sliced(windows),
                Ok(None) => return Err(unsupported("a session gap above 0".to_owned())),
                Err(error) => return Err(unsupported(error.to_string())),
            },
        };
        let aggregates = spec
            .calls
            .iter()
            .map(|call| {
                let arg = call.arg.as_ref().map(|arg| arg.data_type.clone());
                Aggregate::new(call.function, arg)
            })
            .collect::<Result<Vec<_>, _>>()
            .map_err(|error| unsupported(error.to_string()))?;
        let keys = spec
            .keys
            .iter()
            .map(|key| arrow_type(&key.expr.data_type))
            .collect();
        let extents = match kind {
            Kind::Sliced(_) => Extents::Ignored,
            Kind::Session { .. } => Extents::Kept,
        };
        let shape = TableShape::new(keys, aggregates, extents)
            .map_err(|error| unsupported(error.to_string()))?;
        let mut next = spec.keys.len();
        let mut number = |expr: Option<&Expr>| {
            expr.map(|_| {
                next += 1;
                next - 1
            })
        };
        let args = spec
            .calls
            .iter()
            .map(|call| number(call.arg.as_ref()))
            .collect();
        let filters = spec
            .calls
            .iter()
            .map(|call| number(call.filter.as_ref()))
            .collect();
        Ok(Self {
            partial: partial_schema(&spec, &kind, &shape),
            output: output_schema(&spec),
            late: schema(&late_columns(&spec.input)),
            kind,
            shape: Arc::new(shape),
            args,
            filters,
            spec,
        })
    }

    /// The expressions that the first half evaluates, in order: keys, arguments, filters.
    pub fn expressions(&self) -> Vec<&Expr> {
        expressions(&self.spec)
    }

    /// Number of key columns.
    pub fn keys_n(&self) -> usize {
        self.spec.keys.len()
    }

    /// Makes evaluated columns have exactly the planned types.
    pub fn cast(&self, columns: Vec<ArrayRef>) -> Result<Vec<ArrayRef>, ArrowError> {
        let options = CastOptions {
            safe: false,
            ..CastOptions::default()
        };
        let cast = |(column, expr): (ArrayRef, &Expr)| {
            let wanted = arrow_type(&expr.data_type);
            if *column.data_type() == wanted {
                Ok(column)
            } else {
                cast_with_options(&column, &wanted, &options)
            }
        };
        columns
            .into_iter()
            .zip(self.expressions())
            .map(cast)
            .collect()
    }

    /// Sorts columns in the order of [`Windowed::expressions`] into keys, arguments and filters.
    pub fn inputs(&self, columns: &[ArrayRef]) -> Inputs {
        let pick = |idx: &Option<usize>| idx.and_then(|idx| columns.get(idx)).cloned();
        Inputs {
            keys: columns.iter().take(self.keys_n()).cloned().collect(),
            args: self.args.iter().map(pick).collect(),
            filters: self.filters.iter().map(pick).collect(),
        }
    }

    /// Result rows of windows, with their event time (T5).
    pub fn results(
        &self,
        keys: &[ArrayRef],
        starts: Vec<i64>,
        ends: Vec<i64>,
        values: Vec<ArrayRef>,
    ) -> Result<StreamBatch, ArrowError> {
        let n = ends.len();
        let event_time: TimestampMicrosecondArray =
            ends.iter().map(|end| Some(end.saturating_sub(1))).collect();
        let mut columns = keys.to_vec();
        columns.push(Arc::new(TimestampMicrosecondArray::from(starts)));
        columns.push(Arc::new(TimestampMicrosecondArray::from(ends)));
        columns.extend(values);
        let rows = assemble(&self.output, columns, n)?;
        Ok(StreamBatch {
            event_time: Some(event_time),
            ..StreamBatch::plain(rows)
        })
    }
}

fn expressions(spec: &AggregateSpec) -> Vec<&Expr> {
    let keys = spec.keys.iter().map(|key| &key.expr);
    let args = spec.calls.iter().filter_map(|call| call.arg.as_ref());
    let filters = spec.calls.iter().filter_map(|call| call.filter.as_ref());
    keys.chain(args).chain(filters).collect()
}

fn partial_schema(spec: &AggregateSpec, kind: &Kind, shape: &TableShape) -> SchemaRef {
    let mut fields: Vec<Field> = Vec::new();
    match kind {
        Kind::Sliced(_) => {
            for (idx, data_type) in shape.column_types().enumerate() {
                if idx == shape.keys_n() {
                    fields.extend(number_fields());
                }
                fields.push(Field::new(format!("_{idx}"), data_type.clone(), true));
            }
            if shape.states_n() == 0 {
                fields.extend(number_fields());
            }
        }
        Kind::Session { .. } => {
            for (idx, expr) in expressions(spec).into_iter().enumerate() {
                fields.push(Field::new(
                    format!("_{idx}"),
                    arrow_type(&expr.data_type),
                    true,
                ));
            }
            fields.extend(spec.input.iter().map(field));
        }
    }
    Arc::new(Schema::new(fields))
}

fn number_fields() -> [Field; 2] {
    ["_slice", "_first"].map(|name| Field::new(name, DataType::Int64, false))
}

fn output_schema(spec: &AggregateSpec) -> SchemaRef {
    let time = DataType::Timestamp(TimeUnit::Microsecond, None);
    let mut fields: Vec<Field> = Vec::new();
    for key in &spec.keys {
        fields.push(Field::new(
            &key.name,
            arrow_type(&key.expr.data_type),
            key.expr.nullable,
        ));
    }
    fields.push(Field::new("window_start", time.clone(), false));
    fields.push(Field::new("window_end", time, false));
    for call in &spec.calls {
        fields.push(Field::new(&call.name, arrow_type(&call.data_type), true));
    }
    Arc::new(Schema::new(fields))
}

/// Evaluators of an aggregate's expressions, by a compiler of SQL.
pub fn evaluators<E>(
    windowed: &Windowed,
    compile: impl Fn(&Expr) -> Result<Evaluator, E>,
) -> Result<Vec<Evaluator>, E> {
    windowed.expressions().into_iter().map(compile).collect()
}

/// A column of numbers that must be there.
pub(crate) fn numbers(rows: &RecordBatch, idx: usize) -> Option<&Int64Array> {
    rows.columns()
        .get(idx)
        .and_then(|column| column.as_any().downcast_ref())
}

impl Named {
    /// An aggregate failed here.
    pub(crate) fn aggregate_state(&self, error: crate::aggregate::Error) -> Error {
        use crate::aggregate::Error as Failure;
        match error {
            Failure::Kernel(source) => self.kernel(source),
            Failure::Groups(source) => self.aggregate(source),
            Failure::State(reason) | Failure::Unsupported(reason) => {
                self.protocol(format!("G3: {reason}"))
            }
        }
    }
}
