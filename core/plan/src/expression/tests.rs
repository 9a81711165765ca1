use arrow::array::cast::AsArray;
use arrow::array::{
    ArrayRef, Date32Array, Decimal128Array, Float64Array, Int32Array, Int64Array, RecordBatch,
    StringArray, TimestampMicrosecondArray,
};
use arrow::datatypes::{Int32Type, Int64Type, TimestampMicrosecondType};
use arrow::util::display::array_value_to_string;

use super::*;
use crate::arrow_type::schema;

mod constants;
mod cures;
mod floats;
mod limits;

fn columns() -> Vec<Column> {
    [
        ("i", "INT"),
        ("b", "BIGINT"),
        ("d", "DOUBLE"),
        ("amount", "DECIMAL(10,2)"),
        ("big", "DECIMAL(38,0)"),
        ("s", "TEXT"),
        ("Name", "TEXT"),
        ("ts", "TIMESTAMP"),
        ("tz", "TIMESTAMPTZ"),
        ("day", "DATE"),
    ]
    .into_iter()
    .map(|(name, data_type)| Column {
        name: name.to_owned(),
        data_type: data_type.parse().unwrap(),
        nullable: true,
    })
    .collect()
}

/// One row.
fn row() -> RecordBatch {
    let micros = 1_767_225_600_000_000; // 2026-01-01T00:00:00Z
    let arrays: Vec<ArrayRef> = vec![
        Arc::new(Int32Array::from(vec![i32::MAX])),
        Arc::new(Int64Array::from(vec![i64::MIN])),
        Arc::new(Float64Array::from(vec![1.5])),
        Arc::new(
            Decimal128Array::from(vec![250])
                .with_precision_and_scale(10, 2)
                .unwrap(),
        ),
        Arc::new(
            Decimal128Array::from(vec![10_i128.pow(38) - 1])
                .with_precision_and_scale(38, 0)
                .unwrap(),
        ),
        Arc::new(StringArray::from(vec!["a b c"])),
        Arc::new(StringArray::from(vec!["Ann"])),
        Arc::new(TimestampMicrosecondArray::from(vec![micros])),
        Arc::new(TimestampMicrosecondArray::from(vec![micros]).with_timezone("+00:00")),
        Arc::new(Date32Array::from(vec![20_454])),
    ];
    RecordBatch::try_new(schema(&columns()), arrays).unwrap()
}

fn typed(sql: &str) -> Result<Expr, Error> {
    on_large_stack(|| resolve_item(&parse(sql)?, &Scope::new(&columns())?))
}

fn evaluated(sql: &str) -> Result<ArrayRef, String> {
    let expr = typed(sql).map_err(|error| error.to_string())?;
    let compiled = compile(&expr, &columns()).map_err(|error| error.to_string())?;
    let value = compiled
        .evaluate(&row())
        .and_then(|value| value.into_array(1));
    let array = value.map_err(|error| error.to_string())?;
    assert_eq!(array.data_type(), &arrow_type(&expr.data_type), "{sql}");
    Ok(array)
}

fn text_of(sql: &str) -> String {
    let array = evaluated(sql).unwrap_or_else(|error| panic!("{sql}: {error}"));
    array_value_to_string(&array, 0).unwrap()
}

fn type_of(sql: &str) -> String {
    typed(sql)
        .unwrap_or_else(|error| panic!("{sql}: {error}"))
        .data_type
        .to_string()
}

#[test]
fn arithmetic_fails_where_it_would_wrap() {
    for sql in [
        "i + 1",
        "i * 2",
        "CAST(-2147483648 AS INT) - CAST(1 AS INT)",
        "b - 1",
        "-b",
        "b * -1",
        "9223372036854775807 + 1",
        "big + 1",
        "big * 10",
        "-(-big - 1)",
        "abs(b)",
        "b / -1",
        "CASE WHEN true THEN b - 1 END",
        "coalesce(NULL, b - 1)",
    ] {
        // INT + BIGINT literal is BIGINT arithmetic, so these cannot overflow as INT.
        let fits = matches!(sql, "i + 1" | "i * 2");
        let sql = if fits {
            sql.replace(['1', '2'], "i")
        } else {
            sql.to_owned()
        };
        let found = evaluated(&sql);
        let array = found.as_ref().map(|a| array_value_to_string(a, 0).unwrap());
        assert!(found.is_err(), "{sql} is {array:?}");
    }
}

#[test]
fn division_by_zero_fails() {
    for sql in [
        "i / 0",
        "b % 0",
        "amount / 0",
        "amount % 0",
        "1 / (i - i)",
        "1.5 / 0",
    ] {
        let error = evaluated(sql).unwrap_err();
        assert!(
            error.to_lowercase().contains("divide by zero"),
            "{sql}: {error}"
        );
    }
}

#[test]
fn a_bad_cast_fails_and_is_not_null() {
    for sql in [
        "CAST(s AS INT)",
        "s::BIGINT",
        "CAST(b AS INT)",
        "CAST('x' AS TIMESTAMP)",
    ] {
        assert!(evaluated(sql).is_err(), "{sql}");
    }
    assert_eq!(text_of("TRY_CAST(s AS INT)"), "");
}

#[test]
fn decimal_literals_are_decimal() {
    assert_eq!(type_of("1.5"), "DECIMAL(2,1)");
    assert_eq!(type_of("amount * 1.5"), "DECIMAL(13,3)");
    assert_eq!(text_of("amount * 1.5"), "3.750");
    assert_eq!(text_of("0.1 + 0.2"), "0.3");
}

#[test]
fn a_decimal_beside_a_double_is_a_double() {
    // By hand; 0.1 + 0.2 is the sum of the two nearest doubles, as any IEEE 754 calculator shows.
    for (sql, data_type, value) in [
        ("coalesce(d, 0.0)", "DOUBLE", "1.5"),
        (
            "coalesce(NULL, CAST('1e300' AS DOUBLE), 0.0)",
            "DOUBLE",
            "1e300",
        ),
        ("d * 2.0", "DOUBLE", "3.0"),
        ("d + amount", "DOUBLE", "4.0"),
        ("CAST(0.1 AS DOUBLE) + 0.2", "DOUBLE", "0.30000000000000004"),
        ("CASE WHEN d > 0.5 THEN d ELSE -0.1 END", "DOUBLE", "1.5"),
        ("CASE WHEN d > 1.6 THEN d ELSE -0.1 END", "DOUBLE", "-0.1"),
        (
            "CASE d WHEN 1.5 THEN 1.10 ELSE 2.2 END",
            "DECIMAL(3,2)",
            "1.10",
        ),
        ("nullif(d, 1.5)", "DOUBLE", ""),
        ("greatest(d, 1.7)", "DOUBLE", "1.7"),
        ("d > 0.5", "BOOLEAN", "true"),
        ("d = 1.5", "BOOLEAN", "true"),
        ("CAST('1e300' AS DOUBLE) > 0.5", "BOOLEAN", "true"),
        ("CAST('1e-20' AS DOUBLE) > 0.0", "BOOLEAN", "true"),
        ("d BETWEEN 1.4 AND 1.6", "BOOLEAN", "true"),
        ("d IN (0.5, 1.5)", "BOOLEAN", "true"),
        ("d > amount", "BOOLEAN", "false"),
        ("CAST(d AS REAL) > 0.5", "BOOLEAN", "true"),
    ] {
        assert_eq!(
            (type_of(sql).as_str(), text_of(sql).as_str()),
            (data_type, value),
            "{sql}"
        );
    }
}

#[test]
fn names_are_never_folded() {
    assert_eq!(text_of("Name"), "Ann");
    assert_eq!(text_of("\"Name\""), "Ann");

    let error = typed("name").unwrap_err();

    assert_eq!(error.message, "no column is named `name`");
    assert_eq!(error.hint.as_deref(), Some("did you mean `Name`?"));
}

#[test]
fn function_names_ignore_case() {
    assert_eq!(text_of("UPPER(s)"), "A B C");
}

#[test]
fn functions_that_are_not_immutable_are_refused() {
    for sql in [
        "now()",
        "random()",
        "uuid()",
        "current_timestamp",
        "current_date",
        "ts < now()",
        "CASE WHEN random() > 0.5 THEN 1 END",
    ] {
        let error = typed(sql).unwrap_err();
        assert!(
            error
                .message
                .contains("does not always give the same answer"),
            "{sql}: {error}"
        );
    }
}

#[test]
fn every_registered_immutable_function_is_in_the_reference() {
    let page = function_reference();

    assert_eq!(page, function_reference());
    for name in functions::functions().names() {
        assert!(page.contains(name), "{name}");
    }
    for name in ["random", "uuid", "now"] {
        assert!(!page.contains(&format!("| `{name}(")), "{name}");
    }
}

#[test]
fn mistakes_are_told_in_our_words() {
    for (sql, message, hint) in [
        (
            "amout > 1",
            "no column is named `amout`",
            Some("did you mean `amount`?"),
        ),
        (
            "uper(s)",
            "no function is named `uper`",
            Some("did you mean `upper`?"),
        ),
        (
            "sum(i)",
            "`sum` is an aggregate; it cannot stand here",
            None,
        ),
        (
            "count(*) OVER ()",
            "window functions (OVER) are not supported",
            None,
        ),
        ("*", "`*` is not an expression", Some("name the columns")),
        (
            "NULL",
            "the result is NULL, of no type, which no column can be",
            None,
        ),
        (
            "ts - ts",
            "the result is INTERVAL, which no column can be",
            None,
        ),
        ("(SELECT 1)", "subqueries are not supported", None),
    ] {
        let error = typed(sql).unwrap_err();
        assert!(error.message.starts_with(message), "{sql}: {error}");
        if hint.is_some() {
            assert_eq!(error.hint.as_deref(), hint, "{sql}");
        }
    }
    for sql in [
        "",
        "a b",
        "1 +",
        "i; DROP",
        "s = 'x",
        "i = 'x' + 1",
        "s + 1",
        "s AND true",
    ] {
        assert!(typed(sql).is_err(), "{sql}");
    }
}

#[test]
fn nesting_bombs_are_refused_quickly() {
    let nested = |open: &str, inner: &str, close: &str, depth: usize| {
        format!("{}{inner}{}", open.repeat(depth), close.repeat(depth))
    };
    for (open, close) in [
        ("(", ")"),
        ("CAST(", " AS INT)"),
        ("NOT ", ""),
        ("NOT (", ")"),
        ("abs(", ")"),
        ("CASE WHEN true THEN ", " END"),
        ("-", ""),
        ("[", "]"),
        ("i IN (", ")"),
        ("{a: ", "}"),
        ("INTERVAL ", ""),
        ("i + ", ""),
    ] {
        for depth in [60, 700, 3000] {
            assert!(
                typed(&nested(open, "i", close, depth)).is_err() || depth == 60,
                "{open}"
            );
        }
        // A mistake deep inside must not be looked for again and again.
        for depth in 1..50 {
            assert!(typed(&nested(open, "i i", close, depth)).is_err(), "{open}");
        }
    }
    assert!(typed(&format!("'{}'", "x".repeat(20_000))).is_err());
    let reasonable = (0..300)
        .map(|n| format!("i = {n}"))
        .collect::<Vec<_>>()
        .join(" OR ");
    assert_eq!(text_of(&reasonable), "false");
    typed(&nested("CAST(", "i", " AS INT)", 12)).unwrap();
}

#[test]
fn times_are_microseconds_far_from_the_epoch() {
    assert_eq!(
        text_of("TIMESTAMP '9999-12-31T23:59:59.123456'"),
        "9999-12-31T23:59:59.123456"
    );
    assert_eq!(
        text_of("CAST('0001-01-01T00:00:00' AS TIMESTAMP)"),
        "0001-01-01T00:00:00"
    );
    assert_eq!(type_of("CAST(tz AS TIMESTAMP)"), "TIMESTAMP");
    assert_eq!(text_of("CAST(tz AS TIMESTAMP)"), "2026-01-01T00:00:00");
    assert_eq!(type_of("to_timestamp(s)"), "TIMESTAMP");
    assert_eq!(text_of("ts + INTERVAL '1 day'"), "2026-01-02T00:00:00");
    assert_eq!(text_of("date_trunc('hour', ts)"), "2026-01-01T00:00:00");
    assert_eq!(text_of("EXTRACT(YEAR FROM ts)"), "2026");
}

fn instant(sql: &str) -> i64 {
    evaluated(sql)
        .unwrap()
        .as_primitive::<TimestampMicrosecondType>()
        .value(0)
}

#[test]
fn local_times_have_one_instant_each() {
    let at = |local: &str| {
        instant(&format!(
            "TIMESTAMP '{local}' AT TIME ZONE 'America/New_York'"
        ))
    };
    let utc = |time: &str| instant(&format!("TIMESTAMP '{time}'"));

    // Standard time, UTC-5.
    assert_eq!(at("2013-01-01T05:15:00"), utc("2013-01-01T10:15:00"));
    // Ambiguous, 2013-11-03 01:30 is first UTC-4, then UTC-5: the earlier instant.
    assert_eq!(at("2013-11-03T01:30:00"), utc("2013-11-03T05:30:00"));
    // In the gap of 2013-03-10, 02:30 moves forward to 03:30 UTC-4.
    assert_eq!(at("2013-03-10T02:30:00"), utc("2013-03-10T07:30:00"));
    assert_eq!(
        text_of("tz AT TIME ZONE 'Asia/Kolkata'"),
        "2026-01-01T05:30:00",
        "an instant becomes local time"
    );
    assert_eq!(type_of("ts AT TIME ZONE 'UTC'"), "TIMESTAMPTZ");
    assert!(evaluated("ts AT TIME ZONE 'Nowhere/Land'").is_err());
}

#[test]
fn a_whole_day_can_be_skipped() {
    // Samoa had no 2011-12-30: it moves to the same time on the 31st, which is UTC+14.
    let skipped = instant("TIMESTAMP '2011-12-30T12:00:00' AT TIME ZONE 'Pacific/Apia'");

    assert_eq!(skipped, instant("TIMESTAMP '2011-12-30T22:00:00'"));
}

#[test]
fn functions_that_exist_only_as_their_rewrite_work() {
    assert_eq!(text_of("coalesce(NULL, i)"), i32::MAX.to_string());
    assert_eq!(text_of("nvl(s, 'x')"), "a b c");
    assert_eq!(text_of("nullif(i, i)"), "");
    assert_eq!(text_of("struct(i AS x)['x']"), i32::MAX.to_string());
    assert_eq!(text_of("arrow_cast(i, 'Int64')"), i32::MAX.to_string());
    assert_eq!(text_of("concat(s, '-', Name)"), "a b c-Ann");
    assert_eq!(text_of("power(2, 10)"), "1024.0");
    assert_eq!(text_of("regexp_like(s, '^a')"), "true");
}

#[test]
fn lists_and_text_have_the_types_of_the_edge() {
    assert_eq!(type_of("string_to_array(s, ' ')"), "TEXT[]");
    assert_eq!(text_of("string_to_array(s, ' ')"), "[a, b, c]");
    assert_eq!(type_of("substr(s, 1, 1)"), "TEXT");
    assert_eq!(type_of("length(s)"), "INT");
    assert_eq!(
        evaluated("i").unwrap().as_primitive::<Int32Type>().value(0),
        i32::MAX
    );
    assert_eq!(
        evaluated("b").unwrap().as_primitive::<Int64Type>().value(0),
        i64::MIN
    );
}

#[test]
fn a_guarded_division_is_only_made_where_it_is_allowed() {
    assert_eq!(text_of("CASE WHEN i = 0 THEN 0 ELSE 10 / i END"), "0");
    assert_eq!(text_of("i <> i AND 1 / 0 > 1"), "false");
}

#[test]
fn a_stored_expression_compiles_to_its_type_or_not_at_all() {
    let mut expr = typed("i").unwrap();
    expr.data_type = DataType::Text;

    let error = compile(&expr, &columns()).unwrap_err();

    assert!(error.message.contains("was planned as TEXT"), "{error}");
}

#[test]
fn a_quoted_name_is_quoted_again() {
    for (name, written) in [
        ("plain_1", "plain_1"),
        ("Name", "Name"),
        ("a b", "\"a b\""),
        ("a\"b", "\"a\"\"b\""),
        ("1st", "\"1st\""),
        ("case", "case"),
        ("größe", "\"größe\""),
        ("current_date", "\"current_date\""),
    ] {
        assert_eq!(quoted(name), written);
        let parsed = parse(&quoted(name)).unwrap();
        assert_eq!(parsed.bare_column(), Some(name));
    }
}

#[test]
fn mentioned_columns_are_found() {
    let names = columns_of("CASE WHEN i > 1 THEN upper(\"Name\") ELSE s['x'] END || a.b");

    let expected = ["Name", "a", "i", "s"];
    assert_eq!(
        names.iter().map(String::as_str).collect::<Vec<_>>(),
        expected
    );
}

fn called(sql: &str) -> Result<streamforge_core::job_graph::AggregateCall, Error> {
    let mut aggregates = Aggregates::default();
    let scope = Scope::new(&columns())?;
    match aggregates.add(&parse(sql)?, "x", &scope)? {
        AggregateItem::Call(idx) => Ok(aggregates.calls[idx].clone()),
        AggregateItem::Over(ast) => Err(Error::new(format!("over: {ast}"))),
    }
}

#[test]
fn aggregates_have_the_documented_types() {
    for (sql, wanted) in [
        ("count(*)", "BIGINT"),
        ("count(DISTINCT s)", "BIGINT"),
        ("sum(i)", "BIGINT"),
        ("sum(b)", "DECIMAL(38,0)"),
        ("sum(amount)", "DECIMAL(38,2)"),
        ("sum(d)", "DOUBLE"),
        ("avg(i)", "DECIMAL(38,6)"),
        ("avg(amount)", "DECIMAL(38,8)"),
        ("avg(d)", "DOUBLE"),
        ("min(s)", "TEXT"),
        ("MAX(ts)", "TIMESTAMP"),
        ("stddev(i)", "DOUBLE"),
        ("first_value(amount)", "DECIMAL(10,2)"),
        ("array_agg(s)", "TEXT[]"),
        ("bool_or(i > 1)", "BOOLEAN"),
        ("approx_distinct(s)", "BIGINT"),
    ] {
        assert_eq!(called(sql).unwrap().data_type.to_string(), wanted, "{sql}");
    }
}

#[test]
fn an_aggregate_keeps_argument_and_filter_as_written() {
    let call = called("sum(amount * 2) FILTER (WHERE s = 'x')").unwrap();

    assert_eq!(call.arg.unwrap().sql, "amount * 2");
    assert_eq!(call.filter.unwrap().sql, "s = 'x'");
}

#[test]
fn aggregates_that_cannot_be_are_refused() {
    for (sql, message) in [
        ("sum(s)", "sum needs a number, not TEXT"),
        ("median(i)", "the aggregate `median` is not supported"),
        ("sum(DISTINCT i)", "sum(DISTINCT ...) is not supported"),
        ("sum(*)", "sum takes one argument, not 1"),
        ("max(i, b)", "max takes one argument, not 2"),
        (
            "count(*) FILTER (WHERE i)",
            "FILTER (WHERE ...) needs a BOOLEAN, not INT",
        ),
        (
            "sum(count(*))",
            "`count` is an aggregate; it cannot stand here",
        ),
        (
            "array_agg(s ORDER BY i)",
            "array_agg takes no ORDER BY or other clause",
        ),
        ("bool_and(i)", "bool_and needs a BOOLEAN, not INT"),
        (
            "min(string_to_array(s, ' '))",
            "min needs a value that has an order, not TEXT[]",
        ),
        (
            "sum(random())",
            "`random` does not always give the same answer",
        ),
        ("count(*) OVER ()", "OVER is not supported"),
    ] {
        let error = called(sql).unwrap_err();
        assert!(error.message.starts_with(message), "{sql}: {error}");
    }
}

#[test]
fn an_expression_over_aggregates_computes_each_call_once() {
    let mut aggregates = Aggregates::default();
    let scope = Scope::new(&columns()).unwrap();
    let parsed = parse("sum(i) / count(*) + sum(i)").unwrap();

    let item = aggregates.add(&parsed, "x", &scope).unwrap();

    let AggregateItem::Over(ast) = item else {
        panic!("not over")
    };
    let text = "\"_sum(i)\" / \"_count(*)\" + \"_sum(i)\"";
    assert_eq!(ast.to_string(), text);
    assert_eq!(aggregates.calls.len(), 2);
}

#[test]
fn an_aggregate_that_is_not_there_is_told_with_what_to_write() {
    let hint = |sql: &str| called(sql).unwrap_err().hint.unwrap_or_default();

    assert!(hint("median(d)").contains("array_sort(xs)[CAST(array_length(xs) AS BIGINT) / 2 + 1]"));
    assert!(hint("regr_slope(d, d)").contains("the aggregates are `count`, `sum`"));
    // What the hint says can be written.
    let list = "array_sort(make_array(3, 1, 2))";
    assert_eq!(
        text_of(&format!(
            "{list}[CAST(array_length({list}) AS BIGINT) / 2 + 1]"
        )),
        "2"
    );
}

#[test]
fn functions_that_wrap_or_need_unbounded_memory_are_refused() {
    for sql in [
        "date_bin(INTERVAL '1 minute', ts)",
        "array_repeat(i, 1000000000)",
        "list_resize(make_array(i), 1000000000, 0)",
    ] {
        let error = typed(sql).unwrap_err();
        assert!(
            error.message.contains("is not supported: it"),
            "{sql}: {error}"
        );
    }
}
