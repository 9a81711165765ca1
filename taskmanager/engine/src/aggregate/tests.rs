use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::sync::Arc;

use arrow::array::{
    AsArray, BinaryArray, Decimal128Array, Float64Array, Int32Array, Int64Array, StringArray,
};
use arrow::compute::cast;
use arrow::util::display::{ArrayFormatter, FormatOptions};
use proptest::prelude::*;

use super::*;

/// One row: group, event time, value, whether a filter keeps it.
type Row = (usize, i64, Option<i64>, bool);

const GROUPS: usize = 3;

fn column(data_type: &DataType, values: impl Iterator<Item = Option<i64>>) -> ArrayRef {
    let values: Vec<Option<i64>> = values.collect();
    match data_type {
        DataType::Text => Arc::new(
            values
                .iter()
                .map(|v| v.map(|v| format!("t{v:+}")))
                .collect::<StringArray>(),
        ),
        DataType::Boolean => Arc::new(
            values
                .iter()
                .map(|v| v.map(|v| v > 0))
                .collect::<BooleanArray>(),
        ),
        DataType::Decimal(p, s) => {
            let wide = values
                .iter()
                .map(|v| v.map(i128::from))
                .collect::<Decimal128Array>();
            Arc::new(wide.with_precision_and_scale(*p, *s as i8).unwrap())
        }
        DataType::Bytea => {
            let bytes = values.iter().map(|v| v.map(i64::to_be_bytes));
            Arc::new(bytes.collect::<BinaryArray>())
        }
        DataType::Date => {
            let days = values
                .iter()
                .map(|v| v.map(|v| v as i32))
                .collect::<Int32Array>();
            cast(&days, &ArrowType::Date32).unwrap()
        }
        other => cast(&Int64Array::from(values), &arrow_type(other)).unwrap(),
    }
}

fn update(accumulator: &mut dyn Accumulator, aggregate: &Aggregate, rows: &[Row]) {
    let groups: Vec<usize> = rows.iter().map(|row| row.0).collect();
    let times: Vec<i64> = rows.iter().map(|row| row.1).collect();
    let keep: BooleanBuffer = rows.iter().map(|row| row.3).collect();
    let arg = aggregate
        .arg
        .as_ref()
        .map(|arg| column(arg, rows.iter().map(|row| row.2)));
    let rows = Rows {
        groups: &groups,
        groups_n: GROUPS,
        keep: Some(&keep),
        event_time: &times,
    };
    accumulator.update(arg.as_ref(), &rows).unwrap();
}

fn shown(evaluated: &Evaluated) -> Vec<String> {
    let options = FormatOptions::default().with_null("NULL");
    let formatter = ArrayFormatter::try_new(evaluated.values.as_ref(), &options).unwrap();
    let mut shown: Vec<String> = (0..evaluated.values.len())
        .map(|row| formatter.value(row).to_string())
        .collect();
    for (row, _) in &evaluated.bad {
        shown[*row] = "BAD".to_owned();
    }
    shown
}

/// What SQL says, for BIGINT values.
fn oracle(function: AggregateFunction, rows: &[Row], group: usize) -> String {
    let kept: Vec<(i64, Option<i64>)> = rows
        .iter()
        .filter(|r| r.0 == group && r.3)
        .map(|r| (r.1, r.2))
        .collect();
    let values: Vec<i64> = kept.iter().filter_map(|(_, value)| *value).collect();
    let number = |value: Option<i64>| value.map_or("NULL".to_owned(), |v| v.to_string());
    let sum: i64 = values.iter().sum();
    // NULL loses in both directions.
    let first = kept
        .iter()
        .min_by_key(|(time, value)| (*time, value.is_none(), *value));
    let last = kept.iter().max_by_key(|(time, value)| (*time, *value));
    match function {
        AggregateFunction::Count => values.len().to_string(),
        AggregateFunction::CountDistinct | AggregateFunction::ApproxDistinct => {
            values.iter().collect::<BTreeSet<_>>().len().to_string()
        }
        AggregateFunction::Sum => number((!values.is_empty()).then_some(sum)),
        AggregateFunction::Avg if values.is_empty() => "NULL".to_owned(),
        AggregateFunction::Avg => {
            let n = values.len() as i64;
            let scaled = sum.abs() * 1_000_000;
            let rounded = (2 * scaled + n) / (2 * n);
            let sign = if sum < 0 && rounded > 0 { "-" } else { "" };
            format!("{sign}{}.{:06}", rounded / 1_000_000, rounded % 1_000_000)
        }
        AggregateFunction::Min => number(values.iter().min().copied()),
        AggregateFunction::Max => number(values.iter().max().copied()),
        AggregateFunction::FirstValue => number(first.and_then(|one| one.1)),
        AggregateFunction::LastValue => number(last.and_then(|one| one.1)),
        AggregateFunction::ArrayAgg if kept.is_empty() => "NULL".to_owned(),
        AggregateFunction::ArrayAgg => {
            let mut kept = kept.clone();
            kept.sort_by_key(|(time, value)| (*time, value.is_none(), *value));
            let items: Vec<String> = kept.iter().map(|(_, value)| number(*value)).collect();
            format!("[{}]", items.join(", "))
        }
        other => panic!("no oracle for {other:?}"),
    }
}

const EXACT: [AggregateFunction; 10] = [
    AggregateFunction::Count,
    AggregateFunction::CountDistinct,
    AggregateFunction::ApproxDistinct,
    AggregateFunction::Sum,
    AggregateFunction::Avg,
    AggregateFunction::Min,
    AggregateFunction::Max,
    AggregateFunction::FirstValue,
    AggregateFunction::LastValue,
    AggregateFunction::ArrayAgg,
];

/// Rows dealt to tables, the tables' states merged in the order given.
fn merged(
    aggregate: &Aggregate,
    rows: &[Row],
    deal: &[usize],
    order: &[usize],
) -> Box<dyn Accumulator> {
    let mut tables: Vec<Vec<Row>> = vec![Vec::new(); 4];
    for (row, table) in rows.iter().zip(deal.iter().cycle()) {
        tables[*table].push(*row);
    }
    let mut all = aggregate.accumulator().unwrap();
    for idx in order {
        let mut one = aggregate.accumulator().unwrap();
        let (early, late) = tables[*idx].split_at(tables[*idx].len() / 2);
        update(one.as_mut(), aggregate, early);
        update(one.as_mut(), aggregate, late);
        let state = one.take_state().unwrap();
        // Sliced state, as the table merges it.
        for group in 0..GROUPS {
            let slice: Vec<ArrayRef> = state.iter().map(|column| column.slice(group, 1)).collect();
            all.merge(&slice, &[group], GROUPS).unwrap();
        }
    }
    all
}

fn any_rows() -> impl Strategy<Value = Vec<Row>> {
    let value = prop_oneof![1 => Just(None), 5 => (-6i64..12).prop_map(Some)];
    proptest::collection::vec(
        (0..GROUPS, 0i64..6, value, prop::bool::weighted(0.8)),
        0..40,
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn any_split_and_merge_order_gives_what_sql_says_g1(
        rows in any_rows(),
        deal in proptest::collection::vec(0usize..4, 1..20),
        order in Just(vec![0usize, 1, 2, 3]).prop_shuffle(),
    ) {
        for function in EXACT {
            let aggregate = Aggregate::new(function, Some(DataType::BigInt)).unwrap();
            let found = merged(&aggregate, &rows, &deal, &order);
            let found = shown(&found.evaluate(&[0, 1, 2]).unwrap());
            let expected: Vec<String> =
                (0..GROUPS).map(|group| oracle(function, &rows, group)).collect();
            prop_assert_eq!(found, expected, "{:?}", function);
        }
    }

    #[test]
    fn every_type_merges_to_what_one_table_says_g1(
        rows in any_rows(),
        deal in proptest::collection::vec(0usize..4, 1..20),
        order in Just(vec![0usize, 1, 2, 3]).prop_shuffle(),
    ) {
        for aggregate in all_aggregates() {
            let found = merged(&aggregate, &rows, &deal, &order);
            let mut straight = aggregate.accumulator().unwrap();
            update(straight.as_mut(), &aggregate, &rows);
            let found = found.evaluate(&[2, 0, 1]).unwrap();
            let expected = straight.evaluate(&[2, 0, 1]).unwrap();
            match found.values.as_primitive_opt::<Float64Type>() {
                Some(found) => {
                    let expected: &Float64Array = expected.values.as_primitive();
                    for (a, b) in found.iter().zip(expected) {
                        let near = |a: f64, b: f64| (a - b).abs() <= 1e-9 * a.abs().max(b.abs()).max(1.0);
                        prop_assert!(a.zip(b).map_or(a == b, |(a, b)| near(a, b)), "{:?}", aggregate);
                    }
                }
                None => prop_assert_eq!(shown(&found), shown(&expected), "{:?}", aggregate),
            }
        }
    }

    #[test]
    fn deviation_is_that_of_the_definition(rows in any_rows()) {
        let values: Vec<f64> = rows.iter().filter(|r| r.0 == 0 && r.3).filter_map(|r| r.2).map(|v| v as f64).collect();
        let n = values.len() as f64;
        let mean = values.iter().sum::<f64>() / n;
        let squares: f64 = values.iter().map(|v| (v - mean) * (v - mean)).sum();
        for (function, expected) in [
            (AggregateFunction::VarPop, (n > 0.0).then_some(squares / n)),
            (AggregateFunction::VarSamp, (n > 1.0).then_some(squares / (n - 1.0))),
            (AggregateFunction::StddevPop, (n > 0.0).then_some((squares / n).sqrt())),
            (AggregateFunction::StddevSamp, (n > 1.0).then_some((squares / (n - 1.0)).sqrt())),
        ] {
            let aggregate = Aggregate::new(function, Some(DataType::BigInt)).unwrap();
            let mut accumulator = aggregate.accumulator().unwrap();
            update(accumulator.as_mut(), &aggregate, &rows);
            let found = accumulator.evaluate(&[0]).unwrap().values;
            let found: &Float64Array = found.as_primitive();
            let found = found.iter().next().flatten();
            prop_assert_eq!(found.is_some(), expected.is_some());
            if let (Some(found), Some(expected)) = (found, expected) {
                prop_assert!((found - expected).abs() < 1e-9);
            }
        }
    }
}

/// Every function with every argument type it takes.
fn all_aggregates() -> Vec<Aggregate> {
    use AggregateFunction as F;
    let functions = [
        F::Count,
        F::CountDistinct,
        F::Sum,
        F::Avg,
        F::Min,
        F::Max,
        F::StddevPop,
        F::StddevSamp,
        F::VarPop,
        F::VarSamp,
        F::ApproxDistinct,
        F::FirstValue,
        F::LastValue,
        F::ArrayAgg,
        F::BoolAnd,
        F::BoolOr,
    ];
    let types = [
        DataType::Boolean,
        DataType::Int,
        DataType::BigInt,
        DataType::Real,
        DataType::Double,
        DataType::Decimal(18, 2),
        DataType::Text,
        DataType::Bytea,
        DataType::Date,
        DataType::Timestamp,
        DataType::TimestampTz,
    ];
    let mut all = vec![Aggregate::new(F::Count, None).unwrap()];
    for function in functions {
        all.extend(
            types
                .iter()
                .filter_map(|t| Aggregate::new(function, Some(t.clone())).ok()),
        );
    }
    all
}

#[test]
fn each_function_takes_the_types_it_is_made_for() {
    let mut taken: BTreeMap<String, usize> = BTreeMap::new();
    for aggregate in all_aggregates() {
        *taken
            .entry(format!("{:?}", aggregate.function))
            .or_default() += 1;
    }

    let expected = [
        ("ApproxDistinct", 11),
        ("ArrayAgg", 11),
        ("Avg", 5),
        ("BoolAnd", 1),
        ("BoolOr", 1),
        ("Count", 12),
        ("CountDistinct", 11),
        ("FirstValue", 11),
        ("LastValue", 11),
        ("Max", 11),
        ("Min", 11),
        ("StddevPop", 5),
        ("StddevSamp", 5),
        ("Sum", 5),
        ("VarPop", 5),
        ("VarSamp", 5),
    ];
    let expected = expected.map(|(name, n)| (name.to_owned(), n));
    assert_eq!(taken, expected.into());
}

#[test]
fn group_without_values_is_null_or_zero_kf_v14() {
    let rows = [(0, 1, None, true), (1, 1, Some(5), false)];
    for aggregate in all_aggregates().into_iter().skip(1) {
        let mut accumulator = aggregate.accumulator().unwrap();
        update(accumulator.as_mut(), &aggregate, &rows);

        let found = shown(&accumulator.evaluate(&[0, 1]).unwrap());

        let expected = match aggregate.function {
            AggregateFunction::Count
            | AggregateFunction::CountDistinct
            | AggregateFunction::ApproxDistinct => ["0", "0"],
            AggregateFunction::ArrayAgg => ["[NULL]", "NULL"],
            _ => ["NULL", "NULL"],
        };
        assert_eq!(found, expected, "{aggregate:?}");
    }
}

fn evaluate_all(aggregate: &Aggregate, batches: &[ArrayRef]) -> Evaluated {
    let mut accumulator = aggregate.accumulator().unwrap();
    for batch in batches {
        let groups = vec![0; batch.len()];
        let rows = Rows {
            groups: &groups,
            groups_n: 1,
            keep: None,
            event_time: &groups_times(batch),
        };
        accumulator.update(Some(batch), &rows).unwrap();
    }
    accumulator.evaluate(&[0]).unwrap()
}

fn groups_times(batch: &ArrayRef) -> Vec<i64> {
    (0..batch.len() as i64).collect()
}

#[test]
fn sum_beyond_bigint_is_exact_and_never_wraps_kf_v14() {
    let sum = Aggregate::new(AggregateFunction::Sum, Some(DataType::BigInt)).unwrap();
    let values: ArrayRef = Arc::new(Int64Array::from(vec![i64::MAX, 1, i64::MAX]));

    let found = evaluate_all(&sum, &[values]);

    assert_eq!(shown(&found), ["18446744073709551615"]);
}

#[test]
fn sum_out_of_range_is_bad_only_if_the_end_result_is_g1() {
    let sum = Aggregate::new(AggregateFunction::Sum, Some(DataType::Decimal(38, 2))).unwrap();
    let largest = 10_i128.pow(38) - 1;
    let batch = |values: Vec<i128>| -> ArrayRef {
        Arc::new(
            Decimal128Array::from(values)
                .with_precision_and_scale(38, 2)
                .unwrap(),
        )
    };

    let over = evaluate_all(&sum, &[batch(vec![largest, 1])]);
    let back = evaluate_all(&sum, &[batch(vec![largest, 1]), batch(vec![-1])]);

    assert_eq!(shown(&over), ["BAD"]);
    assert!(over.values.is_null(0));
    assert_eq!(shown(&back), ["999999999999999999999999999999999999.99"]);
}

#[test]
fn sum_of_int_over_bigint_is_bad() {
    let sum = Aggregate::new(AggregateFunction::Sum, Some(DataType::Int)).unwrap();
    let mut accumulator = sum.accumulator().unwrap();
    let state: ArrayRef = Arc::new(
        Decimal128Array::from(vec![i128::from(i64::MAX), 1])
            .with_precision_and_scale(38, 0)
            .unwrap(),
    );

    accumulator.merge(&[state], &[0, 0], 1).unwrap();

    assert_eq!(shown(&accumulator.evaluate(&[0]).unwrap()), ["BAD"]);
}

#[test]
fn average_is_exact_and_rounds_half_away_from_zero() {
    let avg = Aggregate::new(AggregateFunction::Avg, Some(DataType::Decimal(10, 2))).unwrap();
    let batch = |values: Vec<i128>| -> ArrayRef {
        Arc::new(
            Decimal128Array::from(values)
                .with_precision_and_scale(10, 2)
                .unwrap(),
        )
    };

    assert_eq!(
        shown(&evaluate_all(&avg, &[batch(vec![100, 100, 101])])),
        ["1.00333333"]
    );
    assert_eq!(
        shown(&evaluate_all(&avg, &[batch(vec![-1, 0, 0])])),
        ["-0.00333333"]
    );
    assert_eq!(
        shown(&evaluate_all(&avg, &[batch(vec![2, 0, 0])])),
        ["0.00666667"]
    );
    assert_eq!(
        shown(&evaluate_all(&avg, &[batch(vec![-2, 0, 0])])),
        ["-0.00666667"]
    );
}

#[test]
fn array_agg_over_its_limit_is_bad_and_holds_nothing() {
    let agg = Aggregate::new(AggregateFunction::ArrayAgg, Some(DataType::BigInt)).unwrap();
    let n = ARRAY_AGG_ITEMS_MAX as i64;

    let full = evaluate_all(&agg, &[Arc::new(Int64Array::from_iter_values(0..n))]);
    let over = evaluate_all(&agg, &[Arc::new(Int64Array::from_iter_values(0..=n))]);

    assert!(full.bad.is_empty());
    assert_eq!(
        full.values.as_list::<i32>().value(0).len(),
        ARRAY_AGG_ITEMS_MAX
    );
    assert_eq!(shown(&over), ["BAD"]);
}

#[test]
fn approx_distinct_is_within_its_error() {
    let aggregate =
        Aggregate::new(AggregateFunction::ApproxDistinct, Some(DataType::BigInt)).unwrap();
    for n in [100i64, 1_000, 10_000, 1_000_000] {
        let values: ArrayRef = Arc::new(Int64Array::from_iter_values(0..n));

        let found = evaluate_all(&aggregate, &[Arc::clone(&values), values]);

        let found = found.values.as_primitive::<Int64Type>().value(0);
        let error = (found - n).abs() as f64 / n as f64;
        assert!(error < 0.025, "{n}: {found}");
    }
}

#[test]
fn damaged_sketch_is_refused() {
    let aggregate =
        Aggregate::new(AggregateFunction::ApproxDistinct, Some(DataType::BigInt)).unwrap();
    for bytes in [
        &b""[..],
        b"\x02",
        b"\x00\x01",
        b"\x00\xff\xff\x01",
        b"\x00\x00\x00\x40",
        b"\x01\x00",
    ] {
        let state: ArrayRef = Arc::new(BinaryArray::from(vec![bytes]));
        let mut accumulator = aggregate.accumulator().unwrap();
        assert!(accumulator.merge(&[state], &[0], 1).is_err(), "{bytes:?}");
    }
}

#[test]
fn state_layout_is_the_stored_one_g3() {
    let rows: Vec<Row> = (0..12)
        .map(|n| {
            (
                n as usize % 2,
                n % 5,
                (n % 4 != 3).then_some(n * 7 % 11 - 3),
                n % 6 != 5,
            )
        })
        .collect();
    let mut text = String::new();
    for aggregate in all_aggregates() {
        let mut accumulator = aggregate.accumulator().unwrap();
        update(accumulator.as_mut(), &aggregate, &rows);
        writeln!(text, "{}", aggregate.layout()).unwrap();
        for column in accumulator.take_state().unwrap() {
            let options = FormatOptions::default().with_null("NULL");
            let formatter = ArrayFormatter::try_new(column.as_ref(), &options).unwrap();
            let cells: Vec<String> = (0..column.len())
                .map(|row| formatter.value(row).to_string())
                .collect();
            writeln!(text, "  {}: {}", column.data_type(), cells.join(" | ")).unwrap();
        }
    }
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/testdata/aggregate_state_v1.txt"
    );

    let stored = std::fs::read_to_string(path).unwrap_or_default();

    if stored != text {
        let new = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/aggregate_state.new");
        std::fs::write(new, &text).unwrap();
        panic!("the layout of stored state changed: compare {path} with {new}");
    }
}

#[test]
fn missing_state_columns_are_refused() {
    for aggregate in all_aggregates() {
        let mut accumulator = aggregate.accumulator().unwrap();
        assert!(accumulator.merge(&[], &[], 0).is_err(), "{aggregate:?}");
    }
}
