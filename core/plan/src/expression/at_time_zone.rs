//! `x AT TIME ZONE 'zone'`.
//!
//! Owns: both directions. A TIMESTAMP is a local time of the zone and becomes the instant
//! (TIMESTAMPTZ); a TIMESTAMPTZ becomes the local time. An ambiguous local time is the earlier of its
//! two instants; one in a gap moves forward by the gap, so every local time has an instant.

use std::sync::Arc;

use arrow::array::cast::AsArray;
use arrow::array::{Array, ArrayRef, PrimitiveArray};
use arrow::compute::cast;
use arrow::datatypes::{DataType as ArrowType, TimeUnit, TimestampMicrosecondType};
use chrono::{DateTime, MappedLocalTime, NaiveDateTime, Offset, TimeDelta, TimeZone};
use chrono_tz::Tz;
use datafusion_common::{Result, ScalarValue, exec_datafusion_err, exec_err, plan_err};
use datafusion_expr::{ColumnarValue, ScalarFunctionArgs, ScalarUDFImpl, Signature, Volatility};

use crate::arrow_type::UTC;

/// The function behind `AT TIME ZONE`.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(super) struct AtTimeZone {
    signature: Signature,
}

impl Default for AtTimeZone {
    fn default() -> Self {
        Self {
            signature: Signature::user_defined(Volatility::Immutable),
        }
    }
}

fn local() -> ArrowType {
    ArrowType::Timestamp(TimeUnit::Microsecond, None)
}

fn instant() -> ArrowType {
    ArrowType::Timestamp(TimeUnit::Microsecond, Some(UTC.into()))
}

impl ScalarUDFImpl for AtTimeZone {
    fn name(&self) -> &str {
        "at_time_zone"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn coerce_types(&self, types: &[ArrowType]) -> Result<Vec<ArrowType>> {
        match types {
            [time, zone] if zone.is_string() => match time {
                ArrowType::Timestamp(_, Some(_)) => Ok(vec![instant(), ArrowType::Utf8]),
                ArrowType::Timestamp(_, None) | ArrowType::Date32 => {
                    Ok(vec![local(), ArrowType::Utf8])
                }
                time if time.is_string() => Ok(vec![local(), ArrowType::Utf8]),
                _ => plan_err!("AT TIME ZONE needs a TIMESTAMP or a TIMESTAMPTZ before it"),
            },
            _ => plan_err!("AT TIME ZONE needs the name of a zone after it"),
        }
    }

    fn return_type(&self, types: &[ArrowType]) -> Result<ArrowType> {
        match types.first() {
            Some(ArrowType::Timestamp(_, Some(_))) => Ok(local()),
            _ => Ok(instant()),
        }
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let [time, zone] = args.args.as_slice() else {
            return exec_err!("AT TIME ZONE needs a time and a zone");
        };
        let to_local = matches!(time.data_type(), ArrowType::Timestamp(_, Some(_)));
        let convert = if to_local { local_of } else { instant_of };
        let times = time.to_array(args.number_rows)?;
        let result = match zone {
            ColumnarValue::Scalar(scalar) => match scalar.try_as_str().flatten() {
                Some(name) => {
                    let zone = zone_named(name)?;
                    convert_array(&times, |_| Some(Ok(zone)), convert)?
                }
                None => convert_array(&times, |_| None, convert)?,
            },
            ColumnarValue::Array(names) => {
                let names = cast(names, &ArrowType::Utf8)?;
                let names = names.as_string::<i32>();
                let zone_of =
                    |row: usize| names.is_valid(row).then(|| zone_named(names.value(row)));
                convert_array(&times, zone_of, convert)?
            }
        };
        let returned = if to_local { local() } else { instant() };
        let result = cast(&result, &returned)?;
        let all_scalar = args
            .args
            .iter()
            .all(|arg| matches!(arg, ColumnarValue::Scalar(_)));
        if all_scalar && args.number_rows > 0 {
            return Ok(ColumnarValue::Scalar(ScalarValue::try_from_array(
                &result, 0,
            )?));
        }
        Ok(ColumnarValue::Array(result))
    }
}

fn zone_named(name: &str) -> Result<Tz> {
    name.parse()
        .map_err(|_| exec_datafusion_err!("`{name}` is not the name of a time zone"))
}

/// Applies `convert` to each time that is not NULL and has a zone; the result has no zone yet.
fn convert_array(
    times: &ArrayRef,
    zone_of: impl Fn(usize) -> Option<Result<Tz>>,
    convert: impl Fn(NaiveDateTime, Tz) -> Option<NaiveDateTime>,
) -> Result<ArrayRef> {
    let micros = cast(times, &ArrowType::Timestamp(TimeUnit::Microsecond, None))?;
    let micros = micros.as_primitive::<TimestampMicrosecondType>();
    let converted = micros.iter().enumerate().map(|(row, micros)| {
        let (Some(micros), Some(zone)) = (micros, zone_of(row)) else {
            return Ok(None);
        };
        let zone = zone?;
        let moved = DateTime::from_timestamp_micros(micros)
            .and_then(|time| convert(time.naive_utc(), zone))
            .ok_or_else(|| exec_datafusion_err!("AT TIME ZONE: the time is out of range"))?;
        Ok(Some(moved.and_utc().timestamp_micros()))
    });
    let converted: PrimitiveArray<TimestampMicrosecondType> =
        converted.collect::<Result<Vec<_>>>()?.into();
    Ok(Arc::new(converted))
}

fn local_of(instant: NaiveDateTime, zone: Tz) -> Option<NaiveDateTime> {
    let offset = zone.offset_from_utc_datetime(&instant).fix();
    instant.checked_add_offset(offset)
}

fn instant_of(local: NaiveDateTime, zone: Tz) -> Option<NaiveDateTime> {
    let offset = match zone.offset_from_local_datetime(&local) {
        MappedLocalTime::Single(offset) => offset.fix(),
        MappedLocalTime::Ambiguous(earlier, _) => earlier.fix(),
        MappedLocalTime::None => offset_before_gap(local, zone)?,
    };
    local.checked_sub_offset(offset)
}

/// Gaps are found in steps of this; zones change by whole quarters of an hour.
const STEP_MINUTES: i64 = 15;
/// No gap is longer than a day and a quarter (Samoa skipped a day in 2011).
const STEPS_MAX: i32 = 101;

/// The offset that was in force just before the gap that `local` lies in.
fn offset_before_gap(local: NaiveDateTime, zone: Tz) -> Option<chrono::FixedOffset> {
    (1..=STEPS_MAX).find_map(|step| {
        let before =
            local.checked_sub_signed(TimeDelta::minutes(STEP_MINUTES * i64::from(step)))?;
        zone.offset_from_local_datetime(&before)
            .latest()
            .map(|offset| offset.fix())
    })
}
