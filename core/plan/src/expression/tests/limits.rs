//! Lists and times at their limits.

use super::*;

#[test]
fn lists_are_made_of_at_most_10000_items() {
    // The last number of `generate_series` is in, that of `range` is not.
    for (sql, n) in [
        ("range(10000)", 10_000),
        ("range(i - i, 20000, 2)", 10_000),
        ("generate_series(1, 10000)", 10_000),
        ("generate_series(10000, 1, -1)", 10_000),
        ("range(5, 1)", 0),
        (
            "range(DATE '2020-01-01', DATE '2020-01-11', INTERVAL '1 day')",
            10,
        ),
    ] {
        assert_eq!(
            text_of(&format!("cardinality({sql})")),
            n.to_string(),
            "{sql}"
        );
    }
    for sql in [
        "range(i)",
        "range(0, 9223372036854775807)",
        "range(b, 9223372036854775807)",
        "generate_series(1, i)",
        "generate_series(0, -100000, -1)",
        "range(ts, ts + INTERVAL '1 day', INTERVAL '1 second')",
        "range(DATE '1000-01-01', day, INTERVAL '1 day')",
    ] {
        let error = evaluated(sql).unwrap_err();
        assert!(error.contains("would make a list of"), "{sql}: {error}");
    }
}

#[test]
fn long_chains_are_refused_wherever_they_stand() {
    let sum = |n: usize| vec!["b"; n].join(" + ");
    assert!(parse(&format!("abs({})", sum(400))).is_ok());
    let whens: String = (0..300)
        .map(|n| format!("WHEN b = {n} AND i = {n} THEN {n} "))
        .collect();
    assert!(parse(&format!("CASE {whens}ELSE 0 END")).is_ok());
    for text in [
        sum(2_000),
        format!("abs({})", sum(2_000)),
        format!("coalesce(1, (2 * ({})))", sum(2_000)),
        format!("CASE WHEN {} > 1 THEN 1 END", sum(2_000)),
        vec!["b > 1"; 500].join(" OR "),
    ] {
        let refused = parse(&text).unwrap_err().message;
        assert!(refused.contains("operators in a chain"), "{refused}");
    }
}

#[test]
fn times_are_compared_and_cut_in_all_years_that_they_can_have() {
    // By hand; 5000-06-15 is a Sunday, and the first of the year 1 a Monday.
    for (sql, value) in [
        ("ts < '5000-01-01'", "true"),
        ("ts BETWEEN '0001-01-01' AND '9999-12-31'", "true"),
        ("ts IN ('5000-01-01', '2026-01-01')", "true"),
        ("tz < '5000-01-01T00:00:00Z'", "true"),
        ("CASE ts WHEN '5000-01-01' THEN 1 ELSE 2 END", "2"),
        ("CAST('5000-06-15' AS TIMESTAMP) > ts", "true"),
        (
            "date_trunc('year', CAST('5000-06-15T12:34:56' AS TIMESTAMP))",
            "5000-01-01T00:00:00",
        ),
        (
            "date_trunc('quarter', CAST('5000-06-15T12:34:56' AS TIMESTAMP))",
            "5000-04-01T00:00:00",
        ),
        (
            "date_trunc('month', CAST('0001-06-15T12:34:56' AS TIMESTAMP))",
            "0001-06-01T00:00:00",
        ),
        (
            "date_trunc('week', CAST('5000-06-15T12:34:56' AS TIMESTAMP))",
            "5000-06-09T00:00:00",
        ),
        (
            "date_trunc('week', CAST('0001-01-01T12:34:56' AS TIMESTAMP))",
            "0001-01-01T00:00:00",
        ),
        (
            "date_trunc('day', CAST('1969-12-31T12:34:56' AS TIMESTAMP))",
            "1969-12-31T00:00:00",
        ),
        (
            "date_trunc('hour', CAST('1969-12-31T12:34:56.5' AS TIMESTAMP))",
            "1969-12-31T12:00:00",
        ),
        (
            "date_trunc('second', CAST('0001-01-01T12:34:56.5' AS TIMESTAMP))",
            "0001-01-01T12:34:56",
        ),
        ("date_trunc('YEAR', tz)", "2026-01-01T00:00:00Z"),
        ("date_trunc('day', NULL::TIMESTAMP)", ""),
    ] {
        assert_eq!(text_of(sql), value, "{sql}");
    }
    assert!(evaluated("date_trunc('century', ts)").is_err());
}
