use streamforge_core::job_graph::Expr;

use super::*;

fn call(function: AggregateFunction, arg: &str, result: &str) -> AggregateCall {
    AggregateCall {
        name: "x".to_owned(),
        function,
        arg: Some(Expr {
            sql: "a".to_owned(),
            data_type: arg.parse().unwrap(),
            nullable: true,
        }),
        filter: None,
        data_type: result.parse().unwrap(),
        nullable: true,
    }
}

fn result(call: &AggregateCall, rows: &[(i64, Cell)]) -> Result<Cell, BadGroup> {
    let mut acc = Acc::new(call);
    for (ts, value) in rows {
        acc.add(call, *ts, Some(value));
    }
    acc.finish(call)
}

fn ints(values: &[i128]) -> Vec<(i64, Cell)> {
    values.iter().map(|value| (0, Cell::Int(*value))).collect()
}

#[test]
fn average_of_decimals_rounds_half_away_from_zero() {
    let avg = call(AggregateFunction::Avg, "DECIMAL(10,2)", "DECIMAL(38,8)");
    // 0.01 / 3 = 0.0033333333..., 0.02 / 3 = 0.0066666666...
    assert_eq!(result(&avg, &ints(&[1, 0, 0])), Ok(Cell::Int(333_333)));
    assert_eq!(result(&avg, &ints(&[2, 0, 0])), Ok(Cell::Int(666_667)));
    assert_eq!(result(&avg, &ints(&[-2, 0, 0])), Ok(Cell::Int(-666_667)));
    // 1 / 64 = 0.015625, at scale 8: 0.01 / 64 = 0.00015625 exactly.
    assert_eq!(
        result(&avg, &ints(&[[1].as_slice(), &[0; 63]].concat())),
        Ok(Cell::Int(15_625))
    );
    // 0.01 / 128 = 0.000078125: half, away from zero.
    assert_eq!(
        result(&avg, &ints(&[[1].as_slice(), &[0; 127]].concat())),
        Ok(Cell::Int(7_813))
    );
    assert_eq!(
        result(&avg, &ints(&[[-1].as_slice(), &[0; 127]].concat())),
        Ok(Cell::Int(-7_813))
    );
}

#[test]
fn a_sum_out_of_range_makes_its_group_bad_and_an_interim_one_does_not() {
    let sum = call(AggregateFunction::Sum, "DECIMAL(38,0)", "DECIMAL(38,0)");

    assert_eq!(result(&sum, &ints(&[DECIMAL_MAX, 1])), Err(BadGroup));
    assert_eq!(
        result(&sum, &ints(&[DECIMAL_MAX, 1, -1])),
        Ok(Cell::Int(DECIMAL_MAX))
    );
    assert_eq!(result(&sum, &[]), Ok(Cell::Null));
    assert_eq!(result(&sum, &[(0, Cell::Null)]), Ok(Cell::Null));
}

#[test]
fn first_and_last_go_by_time_then_value_and_take_null_last() {
    let text = |s: &str| Cell::Text(s.into());
    let first = call(AggregateFunction::FirstValue, "TEXT", "TEXT");
    let last = call(AggregateFunction::LastValue, "TEXT", "TEXT");
    let rows = [
        (5, text("m")),
        (1, Cell::Null),
        (1, text("b")),
        (1, text("a")),
        (9, Cell::Null),
    ];

    assert_eq!(result(&first, &rows), Ok(text("a")));
    assert_eq!(result(&last, &rows), Ok(Cell::Null));
    assert_eq!(result(&last, &rows[..4]), Ok(text("m")));
    assert_eq!(result(&last, &rows[1..4]), Ok(text("b")));
}

#[test]
fn deviations_of_a_hand_worked_sample() {
    // 2 4 4 4 5 5 7 9: mean 5, squares sum to 32.
    let rows = ints(&[2, 4, 4, 4, 5, 5, 7, 9]);
    let of = |function| result(&call(function, "BIGINT", "DOUBLE"), &rows);

    assert_eq!(of(AggregateFunction::VarPop), Ok(Cell::Float(4.0)));
    assert_eq!(of(AggregateFunction::StddevPop), Ok(Cell::Float(2.0)));
    assert_eq!(of(AggregateFunction::VarSamp), Ok(Cell::Float(32.0 / 7.0)));
    let one = result(
        &call(AggregateFunction::StddevSamp, "BIGINT", "DOUBLE"),
        &ints(&[2]),
    );
    assert_eq!(one, Ok(Cell::Null));
}

#[test]
fn equal_values_deviate_by_nothing() {
    let rows = vec![(0, Cell::Float(0.1)); 3];
    let call = call(AggregateFunction::StddevSamp, "DOUBLE", "DOUBLE");

    assert_eq!(result(&call, &rows), Ok(Cell::Float(0.0)));
}

#[test]
fn counts_leave_nulls_out_and_distinct_counts_values_once() {
    let count = call(AggregateFunction::Count, "BIGINT", "BIGINT");
    let distinct = call(AggregateFunction::CountDistinct, "BIGINT", "BIGINT");
    let rows = [
        (0, Cell::Int(1)),
        (0, Cell::Null),
        (0, Cell::Int(1)),
        (0, Cell::Int(2)),
    ];

    assert_eq!(result(&count, &rows), Ok(Cell::Int(3)));
    assert_eq!(result(&distinct, &rows), Ok(Cell::Int(2)));
}

#[test]
fn array_agg_is_sorted_by_time_then_value_and_bounded() {
    let agg = call(AggregateFunction::ArrayAgg, "BIGINT", "BIGINT[]");
    let rows = [
        (2, Cell::Int(1)),
        (1, Cell::Int(9)),
        (1, Cell::Int(3)),
        (1, Cell::Null),
    ];
    let sorted = vec![Cell::Int(3), Cell::Int(9), Cell::Null, Cell::Int(1)];

    assert_eq!(result(&agg, &rows), Ok(Cell::Many(sorted)));
    assert!(result(&agg, &ints(&vec![1; 10_000])).is_ok());
    assert_eq!(result(&agg, &ints(&vec![1; 10_001])), Err(BadGroup));
}

#[test]
fn booleans_are_decided_by_one_and_null_without_any() {
    let and = call(AggregateFunction::BoolAnd, "BOOLEAN", "BOOLEAN");
    let or = call(AggregateFunction::BoolOr, "BOOLEAN", "BOOLEAN");

    assert_eq!(result(&and, &ints(&[1, 0, 1])), Ok(Cell::Int(0)));
    assert_eq!(result(&and, &ints(&[1, 1])), Ok(Cell::Int(1)));
    assert_eq!(result(&or, &ints(&[0, 1, 0])), Ok(Cell::Int(1)));
    assert_eq!(result(&or, &ints(&[0])), Ok(Cell::Int(0)));
    assert_eq!(result(&or, &[(0, Cell::Null)]), Ok(Cell::Null));
}

#[test]
fn a_variance_beyond_all_doubles_is_infinite_and_one_of_infinity_is_nan() {
    let floats = |values: &[f64]| -> Vec<(i64, Cell)> {
        values
            .iter()
            .map(|value| (0, Cell::Float(*value)))
            .collect()
    };
    for (function, values, is_nan) in [
        (AggregateFunction::VarPop, [1e200, -1e200, 3.0], false),
        (AggregateFunction::VarSamp, [1.5e308, 1.4e308, 1e308], false),
        (
            AggregateFunction::StddevPop,
            [1.5e308, 1.4e308, 1e308],
            false,
        ),
        (
            AggregateFunction::StddevSamp,
            [f64::INFINITY, 1.0, 2.0],
            true,
        ),
    ] {
        let call = call(function, "DOUBLE", "DOUBLE");
        let Ok(Cell::Float(found)) = result(&call, &floats(&values)) else {
            panic!()
        };
        assert!(
            found.is_nan() == is_nan && !found.is_finite(),
            "{function:?} {found}"
        );
    }
}
