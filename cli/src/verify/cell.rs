//! One value, the way the oracle sees it.
//!
//! Owns: reading Arrow columns into plain values, their order, and the bytes under which rows are
//! compared. Shares nothing with the engine's group tables or key hashes. Start at: [`Cell`].

use std::cmp::Ordering;

use anyhow::{Context as _, Result, bail};
use arrow::array::{Array, ArrayRef, AsArray};
use arrow::compute::cast;
use arrow::datatypes::{
    DataType as ArrowType, Date32Type, Decimal128Type, Float32Type, Float64Type, Int32Type,
    Int64Type, TimeUnit, TimestampMicrosecondType,
};

/// A value of any type of the document.
#[derive(Clone, Debug, PartialEq)]
pub enum Cell {
    /// No value.
    Null,
    /// BOOLEAN (0, 1), INT, BIGINT, DECIMAL (without its point), DATE (days), times (microseconds).
    Int(i128),
    /// REAL and DOUBLE.
    Float(f64),
    /// TEXT.
    Text(Box<str>),
    /// BYTEA.
    Bytes(Box<[u8]>),
    /// `T[]` and STRUCT: the values in order.
    Many(Vec<Cell>),
}

impl Cell {
    /// Whether it is NULL.
    pub fn is_null(&self) -> bool {
        matches!(self, Cell::Null)
    }

    /// Order of values of one type: NULL last, NaN behind all other floats.
    pub fn order(&self, other: &Cell) -> Ordering {
        match (self, other) {
            (Cell::Int(a), Cell::Int(b)) => a.cmp(b),
            (Cell::Float(a), Cell::Float(b)) => a
                .partial_cmp(b)
                .unwrap_or_else(|| a.is_nan().cmp(&b.is_nan())),
            (Cell::Text(a), Cell::Text(b)) => a.cmp(b),
            (Cell::Bytes(a), Cell::Bytes(b)) => a.cmp(b),
            (Cell::Many(a), Cell::Many(b)) => a
                .iter()
                .zip(b)
                .map(|(a, b)| a.order(b))
                .find(|order| order.is_ne())
                .unwrap_or_else(|| a.len().cmp(&b.len())),
            _ => self.rank().cmp(&other.rank()),
        }
    }

    fn rank(&self) -> u8 {
        match self {
            Cell::Int(_) => 1,
            Cell::Float(_) => 2,
            Cell::Text(_) => 3,
            Cell::Bytes(_) => 4,
            Cell::Many(_) => 5,
            Cell::Null => 6,
        }
    }

    /// Appends bytes that are the same for equal values and for no others; -0 is 0, all NaN are one.
    pub fn encode(&self, out: &mut Vec<u8>) {
        self.encode_with(out, &mut |out, value| {
            let value = if value.is_nan() {
                f64::NAN
            } else {
                value + 0.0
            };
            out.extend_from_slice(&value.to_bits().to_le_bytes());
        });
    }

    /// The same, leaving the floats out of the bytes and handing them to `floats`.
    pub fn encode_apart(&self, out: &mut Vec<u8>, floats: &mut Vec<f64>) {
        self.encode_with(out, &mut |_, value| floats.push(value));
    }

    fn encode_with(&self, out: &mut Vec<u8>, float: &mut dyn FnMut(&mut Vec<u8>, f64)) {
        out.push(self.rank());
        match self {
            Cell::Null => {}
            // Most numbers are small: a length and the bytes that matter.
            Cell::Int(value) => {
                let bytes = value.to_le_bytes();
                let fill = if *value < 0 { 0xff } else { 0 };
                let n = bytes
                    .iter()
                    .rposition(|b| *b != fill)
                    .map_or(0, |at| at + 1);
                out.push(u8::try_from(n).unwrap_or(16) | (fill & 0x80));
                out.extend_from_slice(bytes.get(..n).unwrap_or(&bytes));
            }
            Cell::Float(value) => float(out, *value),
            Cell::Text(text) => {
                out.extend_from_slice(&(text.len() as u64).to_le_bytes());
                out.extend_from_slice(text.as_bytes());
            }
            Cell::Bytes(bytes) => {
                out.extend_from_slice(&(bytes.len() as u64).to_le_bytes());
                out.extend_from_slice(bytes);
            }
            Cell::Many(cells) => {
                out.extend_from_slice(&(cells.len() as u64).to_le_bytes());
                for cell in cells {
                    cell.encode_with(out, float);
                }
            }
        }
    }
}

/// Reads a column.
#[expect(
    clippy::too_many_lines,
    reason = "one arm per type; splitting would hide one"
)]
pub fn cells(array: &ArrayRef) -> Result<Vec<Cell>> {
    let n = array.len();
    let valid = |idx: usize| array.is_valid(idx);
    // One closure per type would be written out eleven times; this collects any of them.
    let collect = |value: &dyn Fn(usize) -> Cell| -> Vec<Cell> {
        (0..n)
            .map(|idx| if valid(idx) { value(idx) } else { Cell::Null })
            .collect()
    };
    Ok(match array.data_type() {
        ArrowType::Null => vec![Cell::Null; n],
        ArrowType::Boolean => {
            let array = array.as_boolean();
            collect(&|idx| Cell::Int(i128::from(array.value(idx))))
        }
        ArrowType::Int32 => {
            let array = array.as_primitive::<Int32Type>();
            collect(&|idx| Cell::Int(array.value(idx).into()))
        }
        ArrowType::Int64 => {
            let array = array.as_primitive::<Int64Type>();
            collect(&|idx| Cell::Int(array.value(idx).into()))
        }
        ArrowType::Decimal128(_, _) => {
            let array = array.as_primitive::<Decimal128Type>();
            collect(&|idx| Cell::Int(array.value(idx)))
        }
        ArrowType::Date32 => {
            let array = array.as_primitive::<Date32Type>();
            collect(&|idx| Cell::Int(array.value(idx).into()))
        }
        ArrowType::Timestamp(TimeUnit::Microsecond, _) => {
            let array = array.as_primitive::<TimestampMicrosecondType>();
            collect(&|idx| Cell::Int(array.value(idx).into()))
        }
        ArrowType::Float32 => {
            let array = array.as_primitive::<Float32Type>();
            collect(&|idx| Cell::Float(array.value(idx).into()))
        }
        ArrowType::Float64 => {
            let array = array.as_primitive::<Float64Type>();
            collect(&|idx| Cell::Float(array.value(idx)))
        }
        ArrowType::Utf8 => {
            let array = array.as_string::<i32>();
            collect(&|idx| Cell::Text(array.value(idx).into()))
        }
        ArrowType::Binary => {
            let array = array.as_binary::<i32>();
            collect(&|idx| Cell::Bytes(array.value(idx).into()))
        }
        ArrowType::List(_) => {
            let array = array.as_list::<i32>();
            let items = cells(array.values())?;
            let offsets = array.value_offsets();
            let bound = |idx: usize| {
                offsets
                    .get(idx)
                    .map_or(0, |o| usize::try_from(*o).unwrap_or(0))
            };
            collect(&|idx| {
                Cell::Many(
                    items
                        .get(bound(idx)..bound(idx + 1))
                        .unwrap_or_default()
                        .to_vec(),
                )
            })
        }
        ArrowType::Struct(_) => {
            let fields: Vec<Vec<Cell>> = array
                .as_struct()
                .columns()
                .iter()
                .map(cells)
                .collect::<Result<_>>()?;
            collect(&|idx| {
                Cell::Many(
                    fields
                        .iter()
                        .map(|f| f.get(idx).cloned().unwrap_or(Cell::Null))
                        .collect(),
                )
            })
        }
        other => {
            let plain = plain_type(other)?;
            let array = cast(array, &plain).with_context(|| format!("read a column of {other}"))?;
            return cells(&array);
        }
    })
}

/// Another encoding of a type of the document, and the one read here.
fn plain_type(data_type: &ArrowType) -> Result<ArrowType> {
    Ok(match data_type {
        ArrowType::LargeUtf8 | ArrowType::Utf8View => ArrowType::Utf8,
        ArrowType::LargeBinary | ArrowType::BinaryView | ArrowType::FixedSizeBinary(_) => {
            ArrowType::Binary
        }
        ArrowType::Int8 | ArrowType::Int16 | ArrowType::UInt8 | ArrowType::UInt16 => {
            ArrowType::Int32
        }
        ArrowType::UInt32 | ArrowType::UInt64 => ArrowType::Int64,
        ArrowType::Dictionary(_, value) => value.as_ref().clone(),
        ArrowType::LargeList(item) | ArrowType::FixedSizeList(item, _) => {
            ArrowType::List(item.clone())
        }
        ArrowType::Timestamp(_, zone) => ArrowType::Timestamp(TimeUnit::Microsecond, zone.clone()),
        other => bail!("no column of the document has the type {other}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encoded(cell: &Cell) -> Vec<u8> {
        let mut out = Vec::new();
        cell.encode(&mut out);
        out
    }

    #[test]
    fn equal_values_have_equal_bytes_and_others_do_not() {
        let different = [
            Cell::Null,
            Cell::Int(0),
            Cell::Int(-1),
            Cell::Int(1),
            Cell::Int(255),
            Cell::Int(-256),
            Cell::Int(i128::MIN),
            Cell::Int(i128::MAX),
            Cell::Float(0.0),
            Cell::Float(1.5),
            Cell::Float(f64::NAN),
            Cell::Text("".into()),
            Cell::Text("a".into()),
            Cell::Bytes(Box::new([])),
            Cell::Many(vec![]),
            Cell::Many(vec![Cell::Null]),
        ];
        for (i, a) in different.iter().enumerate() {
            for (j, b) in different.iter().enumerate() {
                assert_eq!(encoded(a) == encoded(b), i == j, "{a:?} {b:?}");
            }
        }
        assert_eq!(encoded(&Cell::Float(-0.0)), encoded(&Cell::Float(0.0)));
        assert_eq!(
            encoded(&Cell::Float(-f64::NAN)),
            encoded(&Cell::Float(f64::NAN))
        );
    }

    #[test]
    fn null_sorts_last_and_nan_behind_all_floats() {
        assert_eq!(Cell::Null.order(&Cell::Int(5)), Ordering::Greater);
        assert_eq!(
            Cell::Float(f64::NAN).order(&Cell::Float(f64::INFINITY)),
            Ordering::Greater
        );
        assert_eq!(
            Cell::Float(f64::NAN).order(&Cell::Float(f64::NAN)),
            Ordering::Equal
        );
        assert_eq!(
            Cell::Text("b".into()).order(&Cell::Text("a".into())),
            Ordering::Greater
        );
    }
}
