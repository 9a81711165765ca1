//! One zero and one NaN.
//!
//! Owns: the rule that expressions neither read nor yield -0, nor any NaN but one, also within lists
//! and structs. Arrow compares, hashes and groups floats by their bits; with one pattern per value that
//! is what IEEE 754 and SQL mean by equal, in every function and for every key. Start at:
//! [`canonical_value`].

use std::sync::Arc;

use arrow::array::{Array, ArrayData, ArrayRef, AsArray, PrimitiveArray, make_array};
use arrow::datatypes::{
    ArrowPrimitiveType, DataType as ArrowType, Float16Type, Float32Type, Float64Type,
};
use arrow::error::ArrowError;
use datafusion_common::{Result, ScalarValue};
use datafusion_expr::ColumnarValue;

/// Whether values of this type are floats or have some within.
pub(super) fn holds_floats(data_type: &ArrowType) -> bool {
    match data_type {
        ArrowType::Float16 | ArrowType::Float32 | ArrowType::Float64 => true,
        ArrowType::List(item)
        | ArrowType::LargeList(item)
        | ArrowType::FixedSizeList(item, _)
        | ArrowType::ListView(item)
        | ArrowType::LargeListView(item)
        | ArrowType::Map(item, _)
        | ArrowType::RunEndEncoded(_, item) => holds_floats(item.data_type()),
        ArrowType::Struct(fields) => fields.iter().any(|field| holds_floats(field.data_type())),
        ArrowType::Union(fields, _) => fields.iter().any(|(_, f)| holds_floats(f.data_type())),
        ArrowType::Dictionary(_, value) => holds_floats(value),
        _ => false,
    }
}

/// The same value with one zero and one NaN.
pub(super) fn canonical_value(value: ColumnarValue) -> Result<ColumnarValue> {
    Ok(match value {
        ColumnarValue::Array(array) => ColumnarValue::Array(match changed(&array)? {
            Some(array) => array,
            None => array,
        }),
        ColumnarValue::Scalar(scalar) => ColumnarValue::Scalar(canonical_scalar(scalar)?),
    })
}

/// The same for one value.
pub(super) fn canonical_scalar(scalar: ScalarValue) -> Result<ScalarValue> {
    if scalar.is_null() || !holds_floats(&scalar.data_type()) {
        return Ok(scalar);
    }
    Ok(match changed(&scalar.to_array()?)? {
        Some(array) => ScalarValue::try_from_array(&array, 0)?,
        None => scalar,
    })
}

/// The array with one zero and one NaN; `None`: it is so already.
fn changed(array: &ArrayRef) -> Result<Option<ArrayRef>, ArrowError> {
    Ok(match array.data_type() {
        ArrowType::Float64 => of_floats::<Float64Type>(
            array,
            |v| v.to_bits() == 1 << 63 || (v.is_nan() && v.to_bits() != f64::NAN.to_bits()),
            |v| if v.is_nan() { f64::NAN } else { v + 0.0 },
        ),
        ArrowType::Float32 => of_floats::<Float32Type>(
            array,
            |v| v.to_bits() == 1 << 31 || (v.is_nan() && v.to_bits() != f32::NAN.to_bits()),
            |v| if v.is_nan() { f32::NAN } else { v + 0.0 },
        ),
        ArrowType::Float16 => {
            let nan = <Float16Type as ArrowPrimitiveType>::Native::NAN;
            of_floats::<Float16Type>(
                array,
                |v| v.to_bits() == 1 << 15 || (v.is_nan() && v.to_bits() != nan.to_bits()),
                |v| if v.is_nan() { nan } else { Default::default() },
            )
        }
        _ => changed_within(&array.to_data())?.map(make_array),
    })
}

fn of_floats<T: ArrowPrimitiveType>(
    array: &ArrayRef,
    is_odd: impl Fn(T::Native) -> bool,
    even: impl Fn(T::Native) -> T::Native,
) -> Option<ArrayRef> {
    let array: &PrimitiveArray<T> = array.as_primitive();
    let odd = array.values().iter().fold(false, |odd, v| odd | is_odd(*v));
    let even = |v| if is_odd(v) { even(v) } else { v };
    odd.then(|| Arc::new(array.unary::<_, T>(even)) as ArrayRef)
}

/// The same for whatever lists, structs and dictionaries are made of.
fn changed_within(data: &ArrayData) -> Result<Option<ArrayData>, ArrowError> {
    let mut any = false;
    let mut children = Vec::with_capacity(data.child_data().len());
    for child in data.child_data() {
        let new = match child.data_type() {
            data_type if !holds_floats(data_type) => None,
            ArrowType::Float16 | ArrowType::Float32 | ArrowType::Float64 => {
                changed(&make_array(child.clone()))?.map(|array| array.to_data())
            }
            _ => changed_within(child)?,
        };
        any |= new.is_some();
        children.push(new.unwrap_or_else(|| child.clone()));
    }
    if !any {
        return Ok(None);
    }
    let data = data.clone().into_builder().child_data(children).build()?;
    Ok(Some(data))
}
