//! Functions that would make a text or a list of any length.
//!
//! Owns: the limits of `lpad`, `rpad`, `repeat`, `range` and `generate_series`. DataFusion's own limit is
//! two gigabytes per value or none, so one bad number in one row could take all memory; here the row is
//! bad before the value is made. Start at: [`bounded`].

use std::sync::Arc;

use arrow::array::cast::AsArray;
use arrow::array::{Array, Int64Array};
use arrow::compute::cast;
use arrow::datatypes::{
    DataType as ArrowType, FieldRef, Int64Type, IntervalMonthDayNano, IntervalMonthDayNanoType,
    IntervalUnit, TimeUnit,
};
use datafusion_common::{Result, exec_err};
use datafusion_expr::{
    ColumnarValue, Documentation, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl,
    Signature,
};

/// Longest text that these functions make: characters for `lpad` and `rpad`, bytes for `repeat`. A
/// batch of 8,192 such rows is half a gigabyte.
pub(super) const TEXT_MADE_MAX: i64 = 65_536;

/// Longest list that `range` and `generate_series` make, as `array_agg`.
const ITEMS_MADE_MAX: i128 = 10_000;

/// What the arguments count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Counts {
    /// Characters of the result.
    Length,
    /// Copies of the first argument.
    Copies,
    /// Steps from a start to a stop.
    Steps,
}

/// A function with a limit.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Bounded {
    inner: Arc<ScalarUDF>,
    counts: Counts,
}

/// The function, with its limit if it needs one.
pub(super) fn bounded(function: Arc<ScalarUDF>) -> Arc<ScalarUDF> {
    let counts = match function.name() {
        "lpad" | "rpad" => Counts::Length,
        "repeat" => Counts::Copies,
        "range" | "generate_series" => Counts::Steps,
        _ => return function,
    };
    Arc::new(ScalarUDF::new_from_impl(Bounded {
        inner: function,
        counts,
    }))
}

/// One value for all rows, or one per row.
fn values(arg: &ColumnarValue, rows_n: usize) -> Result<Arc<dyn Array>> {
    match arg {
        ColumnarValue::Array(array) => Ok(Arc::clone(array)),
        ColumnarValue::Scalar(scalar) => scalar.to_array_of_size(rows_n.min(1)),
    }
}

impl Bounded {
    fn check(&self, args: &ScalarFunctionArgs) -> Result<()> {
        if self.counts == Counts::Steps {
            return self.check_steps(args);
        }
        let [text, count, ..] = args.args.as_slice() else {
            return Ok(());
        };
        let counts = cast(&values(count, args.number_rows)?, &ArrowType::Int64)?;
        let counts: &Int64Array = counts.as_primitive::<Int64Type>();
        let longest = match self.counts {
            Counts::Length | Counts::Steps => counts.iter().flatten().max(),
            Counts::Copies => {
                let texts = cast(&values(text, args.number_rows)?, &ArrowType::Utf8)?;
                let texts = texts.as_string::<i32>();
                let rows_n = texts.len().max(counts.len());
                let at = |len: usize, row: usize| if len == 1 { 0 } else { row };
                let made = |row: usize| {
                    let (text, count) = (at(texts.len(), row), at(counts.len(), row));
                    let is_null = texts.is_null(text) || counts.is_null(count);
                    let bytes = i64::try_from(texts.value(text).len()).unwrap_or(i64::MAX);
                    (!is_null).then(|| bytes.saturating_mul(counts.value(count)))
                };
                (0..rows_n).filter_map(made).max()
            }
        };
        match longest {
            Some(longest) if longest > TEXT_MADE_MAX => exec_err!(
                "{} would make a text of {longest}; at most {TEXT_MADE_MAX} is allowed",
                self.name()
            ),
            _ => Ok(()),
        }
    }
}

impl Bounded {
    /// `(stop)`, `(start, stop)` or `(start, stop, step)`: numbers, or times and an interval.
    fn check_steps(&self, args: &ScalarFunctionArgs) -> Result<()> {
        let number = |arg: &ColumnarValue| numbers(arg, args.number_rows);
        let (starts, stops, steps) = match args.args.as_slice() {
            [stop] => (vec![Some(0)], number(stop)?, vec![Some(1)]),
            [start, stop] => (number(start)?, number(stop)?, vec![Some(1)]),
            [start, stop, step, ..] => (number(start)?, number(stop)?, number(step)?),
            [] => return Ok(()),
        };
        let at = |numbers: &[Option<i128>], row: usize| -> Option<i128> {
            numbers
                .get(if numbers.len() == 1 { 0 } else { row })
                .copied()?
        };
        let rows_n = starts.len().max(stops.len()).max(steps.len());
        let made = |row: usize| {
            let (start, stop) = (at(&starts, row)?, at(&stops, row)?);
            let step = at(&steps, row).filter(|step| *step != 0)?;
            let distance = stop - start;
            let is_last_one_in = self.name() == "generate_series" || distance % step != 0;
            (distance.signum() == step.signum())
                .then(|| distance / step + i128::from(is_last_one_in))
        };
        match (0..rows_n).filter_map(made).max() {
            Some(longest) if longest > ITEMS_MADE_MAX => exec_err!(
                "{} would make a list of {longest} items; at most {ITEMS_MADE_MAX} are allowed",
                self.name()
            ),
            _ => Ok(()),
        }
    }
}

/// Numbers as they are, times and intervals in microseconds. A month is counted with 28 days, so that
/// no step is taken for longer than it is.
fn numbers(arg: &ColumnarValue, rows_n: usize) -> Result<Vec<Option<i128>>> {
    let array = values(arg, rows_n)?;
    let micros = ArrowType::Timestamp(TimeUnit::Microsecond, None);
    Ok(match array.data_type() {
        ArrowType::Interval(_) => {
            let steps = cast(&array, &ArrowType::Interval(IntervalUnit::MonthDayNano))?;
            let steps = steps.as_primitive::<IntervalMonthDayNanoType>();
            let micros = |step: IntervalMonthDayNano| {
                let days = i128::from(step.months) * 28 + i128::from(step.days);
                days * 86_400_000_000 + i128::from(step.nanoseconds).div_euclid(1000)
            };
            steps.iter().map(|step| step.map(micros)).collect()
        }
        ArrowType::Timestamp(..) | ArrowType::Date32 | ArrowType::Date64 => {
            let times = cast(&cast(&array, &micros)?, &ArrowType::Int64)?;
            let times = times.as_primitive::<Int64Type>();
            times.iter().map(|time| time.map(i128::from)).collect()
        }
        _ => {
            let numbers = cast(&array, &ArrowType::Int64)?;
            let numbers = numbers.as_primitive::<Int64Type>();
            numbers.iter().map(|n| n.map(i128::from)).collect()
        }
    })
}

impl ScalarUDFImpl for Bounded {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn aliases(&self) -> &[String] {
        self.inner.aliases()
    }

    fn signature(&self) -> &Signature {
        self.inner.signature()
    }

    fn return_type(&self, types: &[ArrowType]) -> Result<ArrowType> {
        self.inner.return_type(types)
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs<'_>) -> Result<FieldRef> {
        self.inner.return_field_from_args(args)
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        self.check(&args)?;
        self.inner.invoke_with_args(args)
    }

    fn documentation(&self) -> Option<&Documentation> {
        self.inner.documentation()
    }
}
