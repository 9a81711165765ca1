use arrow::array::{
    AsArray, BooleanArray, Decimal128Array, Float64Array, ListArray, StringArray,
    TimestampMicrosecondArray,
};
use arrow::datatypes::Int64Type;
use streamforge_core::data_type::DataType as SqlType;
use streamforge_core::job_graph::AggregateFunction;

use super::*;

fn shape(keys: Vec<DataType>) -> Arc<TableShape> {
    let count = Aggregate::new(AggregateFunction::Count, None).unwrap();
    let sum = Aggregate::new(AggregateFunction::Sum, Some(SqlType::BigInt)).unwrap();
    Arc::new(TableShape::new(keys, vec![count, sum], Extents::Ignored).unwrap())
}

fn update(table: &mut GroupTable, keys: &[ArrayRef], values: Vec<i64>) {
    let times = vec![0; values.len()];
    table
        .update(&TableInput {
            keys,
            args: &[None, Some(Arc::new(Int64Array::from(values)))],
            keep: &[None, None],
            event_time: &times,
        })
        .unwrap();
}

#[test]
fn keys_of_every_type_come_out_as_they_went_in() {
    let list = ListArray::from_iter_primitive::<Int64Type, _, _>(vec![
        Some(vec![Some(1), None]),
        None,
        Some(vec![]),
    ]);
    let columns: Vec<ArrayRef> = vec![
        Arc::new(Int64Array::from(vec![Some(i64::MIN), None, Some(i64::MAX)])),
        Arc::new(StringArray::from(vec![Some(""), None, Some("é")])),
        Arc::new(BooleanArray::from(vec![Some(true), None, Some(false)])),
        Arc::new(Float64Array::from(vec![Some(0.0), None, Some(f64::NAN)])),
        Arc::new(
            Decimal128Array::from(vec![Some(1), None, Some(-1)])
                .with_precision_and_scale(20, 4)
                .unwrap(),
        ),
        Arc::new(
            TimestampMicrosecondArray::from(vec![Some(-1), None, Some(1)]).with_timezone("+00:00"),
        ),
        Arc::new(list),
    ];
    let groupings: Vec<Vec<ArrayRef>> = columns
        .iter()
        .map(|column| vec![Arc::clone(column)])
        .chain([
            columns[..3].to_vec(),
            columns[..6].to_vec(),
            columns.clone(),
        ])
        .collect();
    for keys in groupings {
        let types: Vec<DataType> = keys.iter().map(|key| key.data_type().clone()).collect();
        let mut table = GroupTable::new(&shape(types)).unwrap();

        update(&mut table, &keys, vec![1, 2, 3]);
        update(&mut table, &keys, vec![10, 20, 30]);
        let mut again = GroupTable::new(&table.shape).unwrap();
        again.merge(&table.take().unwrap()).unwrap();
        let (values, bad) = again.evaluate(&[0, 1, 2]).unwrap();
        let out = again.take_keys().unwrap();

        assert_eq!(out, keys);
        assert!(bad.is_empty());
        assert_eq!(values[0].as_primitive::<Int64Type>().values(), &[2, 2, 2]);
        let sums: &Decimal128Array = values[1].as_primitive();
        assert_eq!(sums.values(), &[11, 22, 33]);
    }
}

#[test]
fn table_without_keys_has_one_group_once_it_has_a_row() {
    let mut table = GroupTable::new(&shape(vec![])).unwrap();
    assert_eq!(table.len(), 0);

    update(&mut table, &[], vec![1, 2, 3]);
    let rows = table.take().unwrap();

    assert_eq!((rows.rows, table.len()), (1, 0));
    table.merge(&rows).unwrap();
    table.merge(&rows).unwrap();
    let (values, _) = table.evaluate(&[0]).unwrap();
    assert_eq!(values[0].as_primitive::<Int64Type>().values(), &[6]);
}

#[test]
fn filter_keeps_rows_from_its_aggregate_only() {
    let mut table = GroupTable::new(&shape(vec![])).unwrap();
    let keep: BooleanBuffer = [true, false, true].into_iter().collect();
    table
        .update(&TableInput {
            keys: &[],
            args: &[None, Some(Arc::new(Int64Array::from(vec![1, 2, 4])))],
            keep: &[None, Some(keep)],
            event_time: &[0, 0, 0],
        })
        .unwrap();

    let (values, _) = table.evaluate(&[0]).unwrap();

    assert_eq!(values[0].as_primitive::<Int64Type>().values(), &[3]);
    let sums: &Decimal128Array = values[1].as_primitive();
    assert_eq!(sums.values(), &[5]);
}

#[test]
fn rows_of_another_shape_are_refused() {
    let mut table = GroupTable::new(&shape(vec![])).unwrap();
    assert!(
        table
            .merge(&TableRows {
                columns: vec![],
                rows: 1
            })
            .is_err()
    );
}
