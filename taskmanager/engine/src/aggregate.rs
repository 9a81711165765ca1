//! Aggregates over groups: what they keep, how they merge, what they yield.
//!
//! Owns: the contract of an accumulator and the list of them. Their merge is commutative and
//! associative in value (G1): whatever the batches, parts and order, the result is the same; sums,
//! means and deviations of floats are the same within 1e-9 relative. Start at: [`Aggregate`].
//!
//! Invariant G3: the columns that [`Accumulator::take_state`] yields are a stored format, named by
//! [`Aggregate::layout`] and held by `testdata/aggregate_state_v1.txt`; a change needs a new number.
//!
//! Why not DataFusion's `GroupsAccumulator`: see docs/adr/0003-own-accumulators.md.

use std::fmt::Debug;

use arrow::array::{Array, ArrayRef, BooleanArray};
use arrow::buffer::{BooleanBuffer, NullBuffer};
use arrow::datatypes::{
    DataType as ArrowType, Date32Type, Decimal128Type, Float32Type, Float64Type, Int32Type,
    Int64Type, TimestampMicrosecondType,
};
use arrow::error::ArrowError;
use datafusion_common::DataFusionError;
use streamforge_core::data_type::DataType;
use streamforge_core::job_graph::AggregateFunction;

use crate::types::arrow_type;

mod array_agg;
mod avg;
mod by_time;
mod count;
mod distinct;
pub(crate) mod extent;
mod hyper_log_log;
mod min_max;
mod sum;
mod variance;

pub use array_agg::ARRAY_AGG_ITEMS_MAX;

/// Version of every state layout below; see G3.
const LAYOUT_VERSION: u32 = 1;

/// Why an aggregate cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A kernel failed.
    #[error("compute aggregate")]
    Kernel(#[from] ArrowError),
    /// DataFusion's group table failed.
    #[error("group rows")]
    Groups(#[from] DataFusionError),
    /// State is not of the layout it should be.
    #[error("read aggregate state: {0}")]
    State(String),
    /// There is no such aggregate.
    #[error("{0} is not supported")]
    Unsupported(String),
}

/// The rows of one batch, as accumulators see them.
#[derive(Clone, Copy, Debug)]
pub struct Rows<'a> {
    /// Group of each row.
    pub groups: &'a [usize],
    /// Number of groups there are now; every group in `groups` is below it.
    pub groups_n: usize,
    /// Rows that count; `None`: all.
    pub keep: Option<&'a BooleanBuffer>,
    /// Event time of each row.
    pub event_time: &'a [i64],
}

impl Rows<'_> {
    /// Calls `visit(row, group)` for the rows that count and are not null.
    #[inline]
    pub(crate) fn for_each(&self, nulls: Option<&NullBuffer>, mut visit: impl FnMut(usize, usize)) {
        let nulls = nulls.filter(|nulls| nulls.null_count() > 0);
        match (nulls, self.keep) {
            (None, None) => {
                for (row, &group) in self.groups.iter().enumerate() {
                    visit(row, group);
                }
            }
            (Some(nulls), None) => {
                for row in nulls.valid_indices() {
                    visit(row, self.groups[row]);
                }
            }
            (None, Some(keep)) => {
                for row in keep.set_indices() {
                    visit(row, self.groups[row]);
                }
            }
            (Some(nulls), Some(keep)) => {
                for row in (keep & nulls.inner()).set_indices() {
                    visit(row, self.groups[row]);
                }
            }
        }
    }
}

/// The rows for which a `FILTER (WHERE ...)` is true; NULL is not.
pub fn rows_kept(filter: &BooleanArray) -> BooleanBuffer {
    match filter.nulls() {
        None => filter.values().clone(),
        Some(nulls) => filter.values() & nulls.inner(),
    }
}

/// Results of some groups.
#[derive(Debug)]
pub struct Evaluated {
    /// One value per group asked for; NULL where it is bad.
    pub values: ArrayRef,
    /// Groups (as positions in what was asked for) that have no result, and why.
    pub bad: Vec<(usize, String)>,
}

impl From<ArrayRef> for Evaluated {
    fn from(values: ArrayRef) -> Self {
        Self {
            values,
            bad: Vec::new(),
        }
    }
}

/// One aggregate's values for all groups of a table.
///
/// # Contract
/// * `update` and `merge` make room for `groups_n` groups first; a new group is empty.
/// * `take_state` yields one row per group, in order, and leaves no group.
/// * `merge` of what `take_state` yielded is as if the rows had been given to `update` (G1).
/// * `evaluate` changes nothing.
pub trait Accumulator: Send + Debug {
    /// Adds the rows of a batch; `arg` is there unless the function has none.
    fn update(&mut self, arg: Option<&ArrayRef>, rows: &Rows<'_>) -> Result<(), Error>;

    /// Adds what other tables took out; `groups` says where each row goes.
    fn merge(&mut self, state: &[ArrayRef], groups: &[usize], groups_n: usize)
    -> Result<(), Error>;

    /// Moves the state of all groups out.
    fn take_state(&mut self) -> Result<Vec<ArrayRef>, Error>;

    /// Results of the groups named.
    fn evaluate(&self, groups: &[usize]) -> Result<Evaluated, Error>;

    /// Bytes it holds.
    fn size(&self) -> usize;
}

/// An aggregate function for one argument type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Aggregate {
    function: AggregateFunction,
    arg: Option<DataType>,
}

impl Aggregate {
    /// Checks that there is such an aggregate.
    pub fn new(function: AggregateFunction, arg: Option<DataType>) -> Result<Self, Error> {
        let aggregate = Self { function, arg };
        aggregate.accumulator()?;
        Ok(aggregate)
    }

    /// Names the layout of its state: function, argument type, version (G3).
    pub fn layout(&self) -> String {
        let arg = self
            .arg
            .as_ref()
            .map_or_else(|| "*".to_owned(), ToString::to_string);
        format!("{:?}({arg})/{LAYOUT_VERSION}", self.function)
    }

    /// Argument type, as Arrow has it.
    pub fn arg_type(&self) -> Option<ArrowType> {
        self.arg.as_ref().map(arrow_type)
    }

    /// Types of the columns of its state.
    pub fn state_types(&self) -> Result<Vec<ArrowType>, Error> {
        let state = self.accumulator()?.take_state()?;
        Ok(state
            .iter()
            .map(|column| column.data_type().clone())
            .collect())
    }

    /// Type of its result.
    pub fn result_type(&self) -> Result<ArrowType, Error> {
        Ok(self
            .accumulator()?
            .evaluate(&[])?
            .values
            .data_type()
            .clone())
    }

    /// An accumulator without groups.
    pub fn accumulator(&self) -> Result<Box<dyn Accumulator>, Error> {
        if let (AggregateFunction::Count, _) = (self.function, &self.arg) {
            return Ok(Box::new(count::Count::default()));
        }
        let arg = self.arg.as_ref().ok_or_else(|| self.unsupported())?;
        let data_type = arrow_type(arg);
        Ok(match self.function {
            AggregateFunction::Count => Box::new(count::Count::default()),
            AggregateFunction::CountDistinct => Box::new(distinct::CountDistinct::new(data_type)?),
            AggregateFunction::Sum => self.sum(arg)?,
            AggregateFunction::Avg => self.avg(arg)?,
            AggregateFunction::Min => self.min_max(arg, min_max::Side::Min)?,
            AggregateFunction::Max => self.min_max(arg, min_max::Side::Max)?,
            AggregateFunction::StddevPop => self.variance(arg, variance::Yields::StddevPop)?,
            AggregateFunction::StddevSamp => self.variance(arg, variance::Yields::StddevSamp)?,
            AggregateFunction::VarPop => self.variance(arg, variance::Yields::VarPop)?,
            AggregateFunction::VarSamp => self.variance(arg, variance::Yields::VarSamp)?,
            AggregateFunction::ApproxDistinct => Box::new(hyper_log_log::ApproxDistinct::default()),
            AggregateFunction::FirstValue => {
                Box::new(by_time::ByTime::new(data_type, by_time::End::First)?)
            }
            AggregateFunction::LastValue => {
                Box::new(by_time::ByTime::new(data_type, by_time::End::Last)?)
            }
            AggregateFunction::ArrayAgg => Box::new(array_agg::ArrayAgg::new(data_type)?),
            AggregateFunction::BoolAnd => self.bools(arg, min_max::Side::Min)?,
            AggregateFunction::BoolOr => self.bools(arg, min_max::Side::Max)?,
        })
    }

    fn unsupported(&self) -> Error {
        let arg = self
            .arg
            .as_ref()
            .map_or_else(String::new, ToString::to_string);
        Error::Unsupported(format!("{:?}({arg})", self.function))
    }

    fn sum(&self, arg: &DataType) -> Result<Box<dyn Accumulator>, Error> {
        Ok(match arg {
            DataType::Int => Box::new(sum::IntSum::<Int32Type>::new(sum::IntResult::BigInt)),
            DataType::BigInt => Box::new(sum::IntSum::<Int64Type>::new(sum::IntResult::Decimal)),
            DataType::Decimal(_, scale) => Box::new(sum::DecimalSum::new(scale_of(*scale))),
            DataType::Real => Box::new(sum::FloatSum::<Float32Type>::default()),
            DataType::Double => Box::new(sum::FloatSum::<Float64Type>::default()),
            _ => return Err(self.unsupported()),
        })
    }

    fn avg(&self, arg: &DataType) -> Result<Box<dyn Accumulator>, Error> {
        Ok(match arg {
            DataType::Int => Box::new(avg::Avg::new(sum::IntSum::<Int32Type>::new(
                sum::IntResult::Decimal,
            ))),
            DataType::BigInt => Box::new(avg::Avg::new(sum::IntSum::<Int64Type>::new(
                sum::IntResult::Decimal,
            ))),
            DataType::Decimal(_, scale) => {
                Box::new(avg::Avg::new(sum::DecimalSum::new(scale_of(*scale))))
            }
            DataType::Real => Box::new(avg::Avg::new(sum::FloatSum::<Float32Type>::default())),
            DataType::Double => Box::new(avg::Avg::new(sum::FloatSum::<Float64Type>::default())),
            _ => return Err(self.unsupported()),
        })
    }

    fn min_max(&self, arg: &DataType, side: min_max::Side) -> Result<Box<dyn Accumulator>, Error> {
        use min_max::{BooleanMinMax, BytesMinMax, PrimitiveMinMax};
        let data_type = arrow_type(arg);
        Ok(match arg {
            DataType::Boolean => Box::new(BooleanMinMax::new(side)),
            DataType::Int => Box::new(PrimitiveMinMax::<Int32Type>::new(data_type, side)),
            DataType::BigInt => Box::new(PrimitiveMinMax::<Int64Type>::new(data_type, side)),
            DataType::Real => Box::new(PrimitiveMinMax::<Float32Type>::new(data_type, side)),
            DataType::Double => Box::new(PrimitiveMinMax::<Float64Type>::new(data_type, side)),
            DataType::Decimal(_, _) => {
                Box::new(PrimitiveMinMax::<Decimal128Type>::new(data_type, side))
            }
            DataType::Date => Box::new(PrimitiveMinMax::<Date32Type>::new(data_type, side)),
            DataType::Timestamp | DataType::TimestampTz => {
                Box::new(PrimitiveMinMax::<TimestampMicrosecondType>::new(
                    data_type, side,
                ))
            }
            DataType::Text | DataType::Bytea => Box::new(BytesMinMax::new(data_type, side)),
            DataType::List(_) | DataType::Struct(_) => return Err(self.unsupported()),
        })
    }

    fn variance(
        &self,
        arg: &DataType,
        yields: variance::Yields,
    ) -> Result<Box<dyn Accumulator>, Error> {
        match arg {
            DataType::Int
            | DataType::BigInt
            | DataType::Real
            | DataType::Double
            | DataType::Decimal(_, _) => Ok(Box::new(variance::Variance::new(yields))),
            _ => Err(self.unsupported()),
        }
    }

    /// All are true if the least is, any is true if the greatest is.
    fn bools(&self, arg: &DataType, side: min_max::Side) -> Result<Box<dyn Accumulator>, Error> {
        match arg {
            DataType::Boolean => Ok(Box::new(min_max::BooleanMinMax::new(side))),
            _ => Err(self.unsupported()),
        }
    }
}

fn scale_of(scale: u8) -> i8 {
    i8::try_from(scale).unwrap_or(38)
}

/// The columns of a state, as many as the layout has.
fn columns<const N: usize>(state: &[ArrayRef]) -> Result<[&ArrayRef; N], Error> {
    let found = state.len();
    let columns: Vec<&ArrayRef> = state.iter().collect();
    columns
        .try_into()
        .map_err(|_| Error::State(format!("{found} columns instead of {N}")))
}

/// The argument of an aggregate that has one.
fn argument(arg: Option<&ArrayRef>) -> Result<&ArrayRef, Error> {
    arg.ok_or_else(|| Error::State("the argument's column is missing".to_owned()))
}

/// More values than a group can have had.
const COUNT_MAX: i64 = 1 << 53;

/// Adds a stored number of values; one that no rows can have made is damaged.
fn add_count(count: &mut i64, stored: i64) -> Result<(), Error> {
    let both = count.checked_add(stored);
    *count = both
        .filter(|both| stored >= 0 && *both <= COUNT_MAX)
        .ok_or_else(|| Error::State(format!("the stored rows are damaged: {stored} values")))?;
    Ok(())
}

/// A state column as the array type it must have.
fn typed<T: Array + 'static>(column: &ArrayRef) -> Result<&T, Error> {
    column
        .as_any()
        .downcast_ref::<T>()
        .ok_or_else(|| Error::State(format!("a column is {}", column.data_type())))
}

#[cfg(test)]
mod tests;
