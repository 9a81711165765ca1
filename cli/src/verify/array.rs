//! Plain values back into Arrow columns, for rows that go on to further nodes.

use std::sync::Arc;

use anyhow::{Context as _, Result, bail};
use arrow::array::{
    ArrayRef, BinaryArray, BooleanArray, Date32Array, Decimal128Array, Float32Array, Float64Array,
    Int32Array, Int64Array, ListArray, StringArray, StructArray, TimestampMicrosecondArray,
};
use arrow::buffer::{NullBuffer, OffsetBuffer};
use arrow::datatypes::{DataType as ArrowType, TimeUnit};

use super::cell::Cell;

/// A column of this type.
#[expect(
    clippy::too_many_lines,
    reason = "one arm per type; splitting would hide one"
)]
pub fn array(cells: &[Cell], data_type: &ArrowType) -> Result<ArrayRef> {
    Ok(match data_type {
        ArrowType::Boolean => Arc::new(BooleanArray::from_iter(
            ints(cells)?.into_iter().map(|v| v.map(|v| v != 0)),
        )),
        ArrowType::Int32 => Arc::new(Int32Array::from(narrow::<i32>(cells)?)),
        ArrowType::Int64 => Arc::new(Int64Array::from(narrow::<i64>(cells)?)),
        ArrowType::Date32 => Arc::new(Date32Array::from(narrow::<i32>(cells)?)),
        ArrowType::Timestamp(TimeUnit::Microsecond, zone) => Arc::new(
            TimestampMicrosecondArray::from(narrow::<i64>(cells)?).with_timezone_opt(zone.clone()),
        ),
        ArrowType::Decimal128(precision, scale) => Arc::new(
            Decimal128Array::from(ints(cells)?).with_precision_and_scale(*precision, *scale)?,
        ),
        #[expect(
            clippy::cast_possible_truncation,
            reason = "the value was a REAL before"
        )]
        ArrowType::Float32 => Arc::new(Float32Array::from_iter(
            floats(cells)?
                .into_iter()
                .map(|value| value.map(|value| value as f32)),
        )),
        ArrowType::Float64 => Arc::new(Float64Array::from(floats(cells)?)),
        ArrowType::Utf8 => {
            let text = |cell: &Cell| match cell {
                Cell::Null => Ok(None),
                Cell::Text(text) => Ok(Some(text.to_string())),
                other => bail!("{other:?} is no text"),
            };
            Arc::new(StringArray::from(
                cells.iter().map(text).collect::<Result<Vec<_>>>()?,
            ))
        }
        ArrowType::Binary => {
            let bytes = |cell: &Cell| match cell {
                Cell::Null => Ok(None),
                Cell::Bytes(bytes) => Ok(Some(bytes.to_vec())),
                other => bail!("{other:?} are no bytes"),
            };
            let bytes = cells.iter().map(bytes).collect::<Result<Vec<_>>>()?;
            Arc::new(BinaryArray::from_iter(bytes))
        }
        ArrowType::List(item) => {
            let lists = many(cells)?;
            let lengths = lists.iter().map(|list| list.map_or(0, <[Cell]>::len));
            let items: Vec<Cell> = lists.iter().flatten().copied().flatten().cloned().collect();
            let values = array(&items, item.data_type())?;
            let nulls = NullBuffer::from_iter(lists.iter().map(Option::is_some));
            let offsets = OffsetBuffer::from_lengths(lengths);
            Arc::new(ListArray::try_new(
                Arc::clone(item),
                offsets,
                values,
                Some(nulls),
            )?)
        }
        ArrowType::Struct(fields) => {
            let structs = many(cells)?;
            let column = |(idx, field): (usize, &arrow::datatypes::FieldRef)| {
                let value = |value: &Option<&[Cell]>| {
                    value
                        .and_then(|cells| cells.get(idx))
                        .cloned()
                        .unwrap_or(Cell::Null)
                };
                array(
                    &structs.iter().map(value).collect::<Vec<_>>(),
                    field.data_type(),
                )
            };
            let columns = fields
                .iter()
                .enumerate()
                .map(column)
                .collect::<Result<_>>()?;
            let nulls = NullBuffer::from_iter(structs.iter().map(Option::is_some));
            Arc::new(StructArray::try_new(fields.clone(), columns, Some(nulls))?)
        }
        other => bail!("no column of the document has the type {other}"),
    })
}

fn ints(cells: &[Cell]) -> Result<Vec<Option<i128>>> {
    let int = |cell: &Cell| match cell {
        Cell::Null => Ok(None),
        Cell::Int(value) => Ok(Some(*value)),
        other => bail!("{other:?} is no whole number"),
    };
    cells.iter().map(int).collect()
}

fn narrow<T: TryFrom<i128>>(cells: &[Cell]) -> Result<Vec<Option<T>>> {
    let narrow = |value: Option<i128>| {
        value
            .map(|value| T::try_from(value).ok().context("a number out of its range"))
            .transpose()
    };
    ints(cells)?.into_iter().map(narrow).collect()
}

fn floats(cells: &[Cell]) -> Result<Vec<Option<f64>>> {
    let float = |cell: &Cell| match cell {
        Cell::Null => Ok(None),
        Cell::Float(value) => Ok(Some(*value)),
        other => bail!("{other:?} is no float"),
    };
    cells.iter().map(float).collect()
}

fn many(cells: &[Cell]) -> Result<Vec<Option<&[Cell]>>> {
    cells
        .iter()
        .map(|cell| match cell {
            Cell::Null => Ok(None),
            Cell::Many(cells) => Ok(Some(cells.as_slice())),
            other => bail!("{other:?} is neither list nor struct"),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verify::cell::cells;
    use streamforge_taskmanager::engine::types::arrow_type;

    #[test]
    fn values_survive_the_way_through_a_column() {
        let text = |s: &str| Cell::Text(s.into());
        for (data_type, values) in [
            ("BOOLEAN", vec![Cell::Int(1), Cell::Null, Cell::Int(0)]),
            ("INT", vec![Cell::Int(-7), Cell::Null]),
            ("DECIMAL(38,2)", vec![Cell::Int(10i128.pow(37)), Cell::Null]),
            ("DOUBLE", vec![Cell::Float(0.5), Cell::Null]),
            ("TIMESTAMPTZ", vec![Cell::Int(-1), Cell::Null]),
            ("BYTEA", vec![Cell::Bytes([0, 255].into()), Cell::Null]),
            (
                "TEXT[]",
                vec![
                    Cell::Many(vec![text("a"), Cell::Null]),
                    Cell::Null,
                    Cell::Many(vec![]),
                ],
            ),
            (
                "STRUCT(a INT, b TEXT)",
                vec![Cell::Many(vec![Cell::Int(1), text("x")]), Cell::Null],
            ),
        ] {
            let array = array(&values, &arrow_type(&data_type.parse().unwrap())).unwrap();

            assert_eq!(cells(&array).unwrap(), values, "{data_type}");
        }
        assert!(super::array(&[Cell::Int(1 << 40)], &ArrowType::Int32).is_err());
    }
}
