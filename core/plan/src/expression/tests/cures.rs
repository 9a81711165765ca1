//! Habits from other dialects of SQL, and what they are answered with.

use super::*;

fn hint(text: &str) -> String {
    let lists = [("xs", "DOUBLE[]"), ("st", "STRUCT(a INT)")];
    let lists = lists.into_iter().map(|(name, data_type)| Column {
        name: name.to_owned(),
        data_type: data_type.parse().unwrap(),
        nullable: true,
    });
    let columns: Vec<Column> = columns().into_iter().chain(lists).collect();
    let scope = Scope::new(&columns).unwrap();
    let refused = parse(text).and_then(|parsed| resolve_item(&parsed, &scope));
    let error = refused.expect_err(text);
    error
        .hint
        .unwrap_or_else(|| format!("no hint; it says {}", error.message))
}

#[test]
fn habits_of_other_dialects_are_answered_with_what_to_write() {
    for (written, cure) in [
        ("i > 1 && b > 1", "write `AND`"),
        ("s RLIKE 'a.*'", "`regexp_like(s, 'a.*')`"),
        ("s + 'x'", "`s || 'x'`"),
        ("ts > 1767225600", "TIMESTAMP '"),
        ("1767225600 < tz", "TIMESTAMP '"),
        ("d < 1e300", "`CAST('1e300' AS DOUBLE)`"),
        ("s = \"click\"", "single quotes: `'click'`"),
        ("i.a = 1", "`i` is INT and has no fields"),
        ("s[1]", "`substr(s, 1, 1)`"),
        ("array_has(xs, 0.0)", "CAST(0.5 AS DOUBLE)"),
        ("if(i > 1, 2, 3)", "CASE WHEN"),
        ("datediff(ts, ts)", "date_part('epoch', b - a)"),
        ("isnull(s)", "`a IS NULL`"),
    ] {
        let said = hint(written);
        assert!(said.contains(cure), "{written}: {said}");
    }
}

#[test]
fn misspelt_column_is_still_answered_with_the_nearest() {
    assert!(hint("amuont > 1").contains("did you mean `amount`?"));
    assert!(hint("\"name\" = 'x'").contains("single quotes"));
}
