//! `date_trunc` in microseconds.
//!
//! Owns: cutting a TIMESTAMP or TIMESTAMPTZ to a unit, in UTC, for all times that the calendar has.
//! DataFusion's own goes by nanoseconds, which end in 1677 and 2262. Start at: [`in_micros`].

use std::sync::Arc;

use arrow::array::cast::AsArray;
use arrow::array::{Array, ArrayRef};
use arrow::datatypes::{DataType as ArrowType, FieldRef, TimeUnit, TimestampMicrosecondType};
use chrono::{Datelike, Days, NaiveDate};
use datafusion_common::{DataFusionError, Result, ScalarValue, exec_err};
use datafusion_expr::{
    ColumnarValue, Documentation, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl,
    Signature,
};

const DAY_US: i64 = 86_400_000_000;

/// The function, if it is `date_trunc`, computing in microseconds.
pub(super) fn in_micros(function: Arc<ScalarUDF>) -> Arc<ScalarUDF> {
    match function.name() {
        "date_trunc" => Arc::new(ScalarUDF::new_from_impl(DateTrunc { inner: function })),
        _ => function,
    }
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct DateTrunc {
    inner: Arc<ScalarUDF>,
}

/// What is cut to.
#[derive(Clone, Copy, Debug)]
enum Unit {
    /// So many microseconds.
    Micros(i64),
    Week,
    /// So many months, counted from January.
    Months(u32),
}

impl Unit {
    fn of(name: &str) -> Option<Self> {
        Some(match name.to_lowercase().as_str() {
            "microsecond" => Unit::Micros(1),
            "millisecond" => Unit::Micros(1_000),
            "second" => Unit::Micros(1_000_000),
            "minute" => Unit::Micros(60_000_000),
            "hour" => Unit::Micros(3_600_000_000),
            "day" => Unit::Micros(DAY_US),
            "week" => Unit::Week,
            "month" => Unit::Months(1),
            "quarter" => Unit::Months(3),
            "year" => Unit::Months(12),
            _ => return None,
        })
    }

    /// The latest border of this unit that is not behind `micros`; `None`: beyond the calendar.
    fn floor(self, micros: i64) -> Option<i64> {
        if let Unit::Micros(width) = self {
            return micros.checked_sub(micros.rem_euclid(width));
        }
        let epoch = NaiveDate::default();
        let days = micros.div_euclid(DAY_US);
        let date = match u64::try_from(days) {
            Ok(days) => epoch.checked_add_days(Days::new(days)),
            Err(_) => epoch.checked_sub_days(Days::new(days.unsigned_abs())),
        }?;
        let border = match self {
            Unit::Months(n) => NaiveDate::from_ymd_opt(date.year(), date.month0() / n * n + 1, 1)?,
            _ => date - Days::new(date.weekday().num_days_from_monday().into()),
        };
        let days = border.signed_duration_since(epoch).num_days();
        days.checked_mul(DAY_US)
    }
}

fn floor(unit: Unit, micros: i64) -> Result<i64> {
    match unit.floor(micros) {
        Some(floor) => Ok(floor),
        None => exec_err!("date_trunc: the time is outside of the calendar"),
    }
}

/// The unit, where one is named.
fn unit_of(arg: Option<&ColumnarValue>) -> Option<Unit> {
    match arg? {
        ColumnarValue::Scalar(
            ScalarValue::Utf8(Some(name))
            | ScalarValue::Utf8View(Some(name))
            | ScalarValue::LargeUtf8(Some(name)),
        ) => Unit::of(name),
        _ => None,
    }
}

impl ScalarUDFImpl for DateTrunc {
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
        let (unit, time) = (unit_of(args.args.first()), args.args.get(1));
        match (unit, time) {
            (
                Some(unit),
                Some(ColumnarValue::Scalar(ScalarValue::TimestampMicrosecond(value, zone))),
            ) => {
                let value = value.map(|value| floor(unit, value)).transpose()?;
                let value = ScalarValue::TimestampMicrosecond(value, zone.clone());
                Ok(ColumnarValue::Scalar(value))
            }
            (Some(unit), Some(ColumnarValue::Array(array)))
                if matches!(
                    array.data_type(),
                    ArrowType::Timestamp(TimeUnit::Microsecond, _)
                ) =>
            {
                let times = array.as_primitive::<TimestampMicrosecondType>();
                let floors =
                    times.try_unary::<_, TimestampMicrosecondType, DataFusionError>(|value| {
                        floor(unit, value)
                    })?;
                let floors: ArrayRef = Arc::new(floors.with_data_type(array.data_type().clone()));
                Ok(ColumnarValue::Array(floors))
            }
            // Another type, or a unit that it refuses.
            _ => self.inner.invoke_with_args(args),
        }
    }

    fn documentation(&self) -> Option<&Documentation> {
        self.inner.documentation()
    }
}
