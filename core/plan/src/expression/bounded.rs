//! Functions that would make a text of any length.
//!
//! Owns: the limit of `lpad`, `rpad` and `repeat`. DataFusion's own limit is two gigabytes per value,
//! so one bad number in one row could take all memory; here the row is bad before the text is made.
//! Start at: [`bounded`].

use std::sync::Arc;

use arrow::array::cast::AsArray;
use arrow::array::{Array, Int64Array};
use arrow::compute::cast;
use arrow::datatypes::{DataType as ArrowType, FieldRef, Int64Type};
use datafusion_common::{Result, exec_err};
use datafusion_expr::{
    ColumnarValue, Documentation, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl,
    Signature,
};

/// Longest text that these functions make: characters for `lpad` and `rpad`, bytes for `repeat`. A
/// batch of 8,192 such rows is half a gigabyte.
pub(super) const TEXT_MADE_MAX: i64 = 65_536;

/// What the second argument counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Counts {
    /// Characters of the result.
    Length,
    /// Copies of the first argument.
    Copies,
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
        _ => return function,
    };
    Arc::new(ScalarUDF::new_from_impl(Bounded {
        inner: function,
        counts,
    }))
}

/// One value for all rows, or one per row.
fn values(arg: &ColumnarValue, rows_n: usize, data_type: &ArrowType) -> Result<Arc<dyn Array>> {
    let array = match arg {
        ColumnarValue::Array(array) => Arc::clone(array),
        ColumnarValue::Scalar(scalar) => scalar.to_array_of_size(rows_n.min(1))?,
    };
    Ok(cast(&array, data_type)?)
}

impl Bounded {
    fn check(&self, args: &ScalarFunctionArgs) -> Result<()> {
        let [text, count, ..] = args.args.as_slice() else {
            return Ok(());
        };
        let counts = values(count, args.number_rows, &ArrowType::Int64)?;
        let counts: &Int64Array = counts.as_primitive::<Int64Type>();
        let longest = match self.counts {
            Counts::Length => counts.iter().flatten().max(),
            Counts::Copies => {
                let texts = values(text, args.number_rows, &ArrowType::Utf8)?;
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
