//! Times that no reader takes back.
//!
//! Owns: setting rows aside whose times are outside of years 0001 to 9999: their text would need a
//! sign or five digits, and no source of ours (and few of others) reads that. Such a time comes out of
//! an expression, or is the end of a window that reaches over the year 9999. Start at: [`writable`].

use arrow::array::{Array, ArrayRef, AsArray, UInt32Array};
use arrow::datatypes::{DataType, Date32Type, TimeUnit, TimestampMicrosecondType};
use arrow::error::ArrowError;
use streamforge_core::event_time::{EVENT_TIME_MAX, EVENT_TIME_MIN};
use streamforge_engine::batch::{BadRows, StreamBatch};

use crate::formats::time::DAY_MICROS;
use crate::formats::write::json_row;

fn time_is_outside(micros: i64) -> bool {
    !(EVENT_TIME_MIN..=EVENT_TIME_MAX).contains(&micros)
}

fn day_is_outside(days: i32) -> bool {
    time_is_outside(i64::from(days) * DAY_MICROS)
}

/// Whether any value is outside; what lies under a NULL counts, too, so this only saves work.
fn may_be_outside(array: &ArrayRef) -> bool {
    match array.data_type() {
        DataType::Timestamp(TimeUnit::Microsecond, _) => {
            let times = array.as_primitive::<TimestampMicrosecondType>().values();
            times.iter().any(|time| time_is_outside(*time))
        }
        DataType::Date32 => {
            let days = array.as_primitive::<Date32Type>().values();
            days.iter().any(|days| day_is_outside(*days))
        }
        DataType::List(_) => may_be_outside(array.as_list::<i32>().values()),
        DataType::Struct(_) => array.as_struct().columns().iter().any(may_be_outside),
        _ => false,
    }
}

fn is_outside(array: &ArrayRef, row: usize) -> bool {
    if array.is_null(row) {
        return false;
    }
    match array.data_type() {
        DataType::Timestamp(TimeUnit::Microsecond, _) => {
            time_is_outside(array.as_primitive::<TimestampMicrosecondType>().value(row))
        }
        DataType::Date32 => day_is_outside(array.as_primitive::<Date32Type>().value(row)),
        DataType::List(_) => {
            let items = array.as_list::<i32>().value(row);
            (0..items.len()).any(|item| is_outside(&items, item))
        }
        DataType::Struct(_) => {
            let fields = array.as_struct().columns();
            fields.iter().any(|field| is_outside(field, row))
        }
        _ => false,
    }
}

/// The rows that can be written; the others are bad. `None`: all of them can.
pub fn writable(batch: &StreamBatch, bad: &mut BadRows) -> Result<Option<StreamBatch>, ArrowError> {
    let schema = batch.rows.schema();
    let columns = batch.rows.columns().iter().zip(schema.fields());
    let suspects: Vec<(&ArrayRef, &str)> = columns
        .filter(|(array, _)| may_be_outside(array))
        .map(|(array, field)| (array, field.name().as_str()))
        .collect();
    if suspects.is_empty() {
        return Ok(None);
    }
    let mut good = Vec::with_capacity(batch.len());
    for row in 0..batch.len() {
        match suspects.iter().find(|(array, _)| is_outside(array, row)) {
            None => good.push(u32::try_from(row).unwrap_or(u32::MAX)),
            Some((_, name)) => {
                let reason = format!("column {name}: a time outside years 0001..9999");
                bad.push_row(batch, row, &json_row(&batch.rows, row), reason);
            }
        }
    }
    batch.take(&UInt32Array::from(good)).map(Some)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{Date32Array, ListArray, RecordBatch, TimestampMicrosecondArray};

    use super::*;

    fn good_n(array: ArrayRef) -> (usize, usize) {
        let rows = RecordBatch::try_from_iter_with_nullable([("t", array, true)]).unwrap();
        let batch = StreamBatch::plain(rows);
        let mut bad = BadRows::default();
        let good = writable(&batch, &mut bad).unwrap();
        (good.map_or(batch.len(), |good| good.len()), bad.len())
    }

    #[test]
    fn a_time_outside_years_1_to_9999_is_bad_and_its_neighbours_are_not() {
        let times = vec![
            Some(EVENT_TIME_MIN),
            Some(EVENT_TIME_MIN - 1),
            None,
            Some(EVENT_TIME_MAX),
            Some(EVENT_TIME_MAX + 1),
        ];
        let array = TimestampMicrosecondArray::from(times.clone());
        assert_eq!(good_n(Arc::new(array.clone())), (3, 2));
        assert_eq!(good_n(Arc::new(array.with_timezone("+00:00"))), (3, 2));
        // 0001-01-01 and 9999-12-31.
        let days = Date32Array::from(vec![-719_162, -719_163, 2_932_896, 2_932_897]);
        assert_eq!(good_n(Arc::new(days)), (2, 2));
        let lists = ListArray::from_iter_primitive::<TimestampMicrosecondType, _, _>([
            Some(times),
            Some(vec![Some(0)]),
            None,
        ]);
        assert_eq!(good_n(Arc::new(lists)), (2, 1));
        assert_eq!(good_n(Arc::new(Date32Array::from(vec![0]))), (1, 0));
    }

    #[test]
    fn rows_that_are_all_bad_make_no_file() {
        let days: ArrayRef = Arc::new(Date32Array::from(vec![2_932_897, 2_932_898]));
        let rows = RecordBatch::try_from_iter([("t", days)]).unwrap();
        for columns in [vec![], vec!["t".to_owned()]] {
            let mut bad = BadRows::default();
            let partitioner = super::super::Partitioner::new(columns);

            let parts = partitioner.split(&StreamBatch::plain(rows.clone()), &mut bad);

            assert_eq!((parts.unwrap().len(), bad.len()), (0, 2));
        }
    }
}
