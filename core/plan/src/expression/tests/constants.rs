//! Tests: mistakes that no row could make good are found without a row.

use super::*;

fn refusal(sql: &str) -> String {
    match typed(sql) {
        Ok(expr) => panic!("`{sql}` is {expr:?}"),
        Err(error) => error.message,
    }
}

#[test]
fn what_can_never_be_computed_is_refused() {
    for (sql, what) in [
        ("CAST('abc' AS INT)", "'abc'"),
        ("i + CAST('abc' AS INT)", "'abc'"),
        ("CAST('2026-02-30' AS DATE) < day", "2026-02-30"),
        ("CAST('x' AS TIMESTAMP)", "'x'"),
        ("i = 'abc'", "'abc'"),
        ("CAST(3000000000 AS INT)", "3000000000"),
        ("9223372036854775807 + 1", "verflow"),
        ("1 / 0", "divide by zero"),
        ("i / 0", "divide by zero"),
        ("b % 0", "divide by zero"),
        ("amount / 0.0", "divide by zero"),
        ("b / (1 - 1) > 2 AND i > 1", "divide by zero"),
        (
            "i > 1 AND s ~ '('",
            "regular expression is broken: unclosed",
        ),
        (
            "CASE WHEN i > 1 THEN regexp_like(s, '(') END",
            "regular expression is broken: unclosed",
        ),
        ("s ~ '('", "regular expression is broken: unclosed"),
        ("s !~* '['", "regular expression is broken: unclosed"),
        (
            "regexp_like(s, '(')",
            "regular expression is broken: unclosed",
        ),
        (
            "regexp_replace(s, '(', 'x')",
            "regular expression is broken: unclosed",
        ),
        ("date_trunc('fortnight', ts)", "fortnight"),
        ("date_part('fortnight', ts)", "fortnight"),
        ("ts AT TIME ZONE 'Europe/Nowhere'", "Europe/Nowhere"),
        ("lpad(s, 1000000000, 'x')", "at most 65536"),
        ("rpad(s, 65537)", "at most 65536"),
        ("repeat(s, 65537)", "at most 65536"),
        ("repeat('ab', 40000)", "at most 65536"),
    ] {
        let message = refusal(sql);
        assert!(
            message.to_lowercase().contains(&what.to_lowercase()),
            "{sql}: {message}"
        );
    }
}

#[test]
fn what_some_row_could_compute_is_not_refused() {
    for sql in [
        "CAST(s AS INT)",
        "i / i",
        "d / 0",
        "TRY_CAST('abc' AS INT)",
        "CASE WHEN i > 0 THEN i ELSE CAST('no' AS INT) END",
        "i <> 0 AND b / 0 > 1",
        "coalesce(s, 'x') ~ 'a+'",
        "regexp_like(s, Name)",
        "date_trunc('day', ts)",
        "repeat(s, i)",
        "repeat(s, 65536)",
        "lpad(s, 65536)",
        "decode(s, 'hex')",
        "encode(CAST(s AS BYTEA), 'base64')",
        "split_part(s, ' ', i)",
        "concat('a', NULL)",
        "nullif(1, 1)",
    ] {
        typed(sql).unwrap_or_else(|error| panic!("{sql}: {error}"));
    }
}

#[test]
fn a_computed_length_beyond_the_limit_fails_its_row_before_the_text_is_made() {
    // `i` is the largest INT: the text would have two gigabytes.
    for sql in ["repeat(s, i)", "lpad(s, i)", "rpad(s, i, Name)"] {
        let error = evaluated(sql).unwrap_err();
        assert!(error.contains("at most 65536"), "{sql}: {error}");
    }
    assert_eq!(text_of("length(lpad(s, 65536))"), "65536");
    assert_eq!(text_of("length(repeat('ab', 32768))"), "65536");
}

#[test]
fn text_is_not_compared_with_a_number() {
    for (sql, text) in [
        ("s = 5", "s"),
        ("5 < s", "s"),
        ("i > 1 OR s <> amount", "s"),
        ("s BETWEEN 1 AND 2", "s"),
        ("s IN ('a', 2)", "s"),
        ("s IS DISTINCT FROM d", "s"),
        ("upper(s) = i", "upper(s)"),
    ] {
        let wanted = format!("`{text}` is TEXT and is compared with a number");
        assert_eq!(refusal(sql), wanted, "{sql}");
    }
    let hint = typed("s = 5").unwrap_err().hint.unwrap();
    assert_eq!(
        hint,
        "write `CAST(s AS BIGINT)`, or put the number in quotes"
    );
    for sql in [
        "s = '5'",
        "i = '5'",
        "s = Name",
        "i IN ('1', 2)",
        "CAST(s AS INT) = 5",
    ] {
        typed(sql).unwrap_or_else(|error| panic!("{sql}: {error}"));
    }
}

#[test]
fn a_column_named_like_a_word_of_sql_is_to_be_quoted() {
    let column = |name: &str| Column {
        name: name.to_owned(),
        data_type: "TEXT".parse().unwrap(),
        nullable: true,
    };
    let scope = Scope::new(&[column("user")]).unwrap();
    let typed = |sql: &str| resolve_item(&parse(sql)?, &scope);

    let error = typed("user = 'ann'").unwrap_err();
    assert_eq!(
        error.message,
        "`user` is a word of SQL here, not the column"
    );
    assert_eq!(
        error.hint.unwrap(),
        "write the column in quotes: `\"user\"`"
    );
    typed("\"user\" = 'ann'").unwrap();
}
