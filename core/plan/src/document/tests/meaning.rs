//! Tests: names and expressions that do not fit.
#![expect(clippy::too_many_lines, reason = "tables of cases")]

use super::{Case, GOOD, check, problems};

#[test]
fn type_that_a_comma_between_braces_cut_is_told_to_be_quoted() {
    for data_type in ["DECIMAL(10,2)", "STRUCT(a INT, b TEXT)"] {
        let text = super::with(
            "{name: n, type: INT}",
            &format!("{{name: n, type: {data_type}}}"),
        );
        let found = problems(&text);
        let hint = found[0].hint.as_deref().unwrap_or_default();
        assert!(hint.contains("`type: \"DECIMAL(10,2)\"`"), "{found:?}");
    }
}

#[test]
fn mistakes_of_names_are_told() {
    check(&[
        Case(
            "from: clicks, filter",
            "from: cliks, filter",
            19,
            "spec.transforms[0].from",
            "no node is named `cliks`",
            "did you mean `clicks`?",
        ),
        Case(
            "from: clicks, filter",
            "from: clicks.lat, filter",
            19,
            "spec.transforms[0].from",
            "`clicks.lat`: no output is called `.lat`",
            "did you mean `late`?",
        ),
        Case(
            "from: clicks, filter",
            "from: clicks.late, filter",
            19,
            "spec.transforms[0].from",
            "`clicks` has no late rows",
            "only a windowed aggregate has a `.late` output",
        ),
        Case(
            "from: slim,",
            "from: out,",
            30,
            "spec.sinks[1].from",
            "`out` is a sink and has no output",
            "`out.bad` are the rows it could not write",
        ),
        Case(
            "name: words_out,",
            "name: slim_out,",
            31,
            "spec.sinks[2].name",
            "two nodes are named `slim_out`, the first in line 30",
            "",
        ),
        Case(
            "name: slim_out,",
            "name: slim_out, uid: out,",
            30,
            "spec.sinks[1].uid",
            "two nodes have the uid `out`, the first in line 29; their state would mix",
            "",
        ),
        Case(
            "from: clicks, filter",
            "from: slim, filter",
            19,
            "spec.transforms[0].from",
            "rows would go in a circle: valid -> slim -> valid",
            "",
        ),
        Case(
            "{name: n, type: INT}",
            "{name: page, type: INT}",
            14,
            "spec.sources[0].schema[3].name",
            "two columns are named `page`",
            "",
        ),
        Case(
            "{name: n, type: INT}",
            "{name: _n, type: INT}",
            14,
            "spec.sources[0].schema[3].name",
            "a column cannot be named `_n`",
            "names beginning with `_` are the system's; use `path` for such a field",
        ),
        Case(
            "{name: n, type: INT}",
            "{name: n, type: FLOAT8}",
            14,
            "spec.sources[0].schema[3].type",
            "`FLOAT8` is not a type",
            "write `DOUBLE`",
        ),
        Case(
            "path: /meta/time",
            "path: meta.time",
            16,
            "spec.sources[0].schema[5].path",
            "`meta.time` is not a JSON pointer",
            "a JSON pointer (RFC 6901) begins with `/`: `/meta/time`; ~ is ~0 and / is ~1",
        ),
        Case(
            "parse: EpochMillis",
            "parse: EpochMilli",
            16,
            "spec.sources[0].schema[5].parse",
            "`EpochMilli` is no way to read a time",
            "did you mean `EpochMillis`?",
        ),
        Case(
            "eventTime: {column: ts",
            "eventTime: {column: tz",
            17,
            "spec.sources[0].eventTime.column",
            "no column is named `tz` (in `tz`)",
            "did you mean `ts`?",
        ),
        Case(
            "eventTime: {column: ts",
            "eventTime: {column: n",
            17,
            "spec.sources[0].eventTime.column",
            "the result is INT, not TIMESTAMP or TIMESTAMPTZ (in `n`)",
            "",
        ),
    ]);
}

#[test]
fn mistakes_of_expressions_show_the_expression() {
    check(&[
        Case(
            "amount > 0",
            "amout > 0",
            19,
            "spec.transforms[0].filter",
            "no column is named `amout` (in `amout > 0`)",
            "did you mean `amount`?",
        ),
        Case(
            "amount > 0",
            "amount + 1",
            19,
            "spec.transforms[0].filter",
            "the result is DECIMAL(23,2), not BOOLEAN (in `amount + 1`)",
            "",
        ),
        Case(
            "amount > 0",
            "ts > now()",
            19,
            "spec.transforms[0].filter",
            "`now` does not always give the same answer, so a replay would differ (in `ts > now()`)",
            "only immutable functions are allowed; take times from the data",
        ),
        Case(
            "amount > 0",
            "random() > 0.5",
            19,
            "spec.transforms[0].filter",
            "`random` does not always give the same answer, so a replay would differ (in `random() > 0.5`)",
            "only immutable functions are allowed; take times from the data",
        ),
        Case(
            "amount > 0",
            "amount > 0 AS x",
            19,
            "spec.transforms[0].filter",
            "a filter has no name; leave `AS` out (in `amount > 0 AS x`)",
            "",
        ),
        Case(
            "\"amount * 100 AS cents\"",
            "\"amount * 100\"",
            20,
            "spec.transforms[1].select[1]",
            "the item needs a name (in `amount * 100`)",
            "write `amount * 100 AS amount_100`",
        ),
        Case(
            "\"amount * 100 AS cents\"",
            "\"amount * 100 AS ts\"",
            20,
            "spec.transforms[1].select[2]",
            "two columns of the output are named `ts` (in `ts`)",
            "give one of them another name with `AS`",
        ),
        Case(
            "AS cents",
            "AS _cents",
            20,
            "spec.transforms[1].select[1]",
            "`_cents`: names beginning with `_` are the system's (in `amount * 100 AS _cents`)",
            "write `AS cents`",
        ),
        Case(
            "\"tags AS tag\"",
            "\"page AS tag\"",
            21,
            "spec.transforms[2].unnest",
            "unnest needs a list (T[]), not TEXT (in `page AS tag`)",
            "",
        ),
        Case(
            "\"tags AS tag\"",
            "tags",
            21,
            "spec.transforms[2].unnest",
            "the item needs a name of its own (in `tags`)",
            "write `tags AS tags_item`",
        ),
        Case(
            "sum(amount) AS spend",
            "sum(page) AS spend",
            27,
            "spec.transforms[3].aggregate.select[1]",
            "sum needs a number, not TEXT (in `sum(page) AS spend`)",
            "",
        ),
        Case(
            "sum(amount) AS spend",
            "sum(amount)",
            27,
            "spec.transforms[3].aggregate.select[1]",
            "the item needs a name (in `sum(amount)`)",
            "write `sum(amount) AS sum_amount`",
        ),
        Case(
            "sum(amount) AS spend",
            "page",
            27,
            "spec.transforms[3].aggregate.select[1]",
            "`page` is neither in groupBy nor inside an aggregate (in `page`)",
            "the keys are `user_id`; or write for example `max(page)`",
        ),
        Case(
            "groupBy: [user_id]",
            "groupBy: [\"upper(user_id)\"]",
            25,
            "spec.transforms[3].aggregate.groupBy[0]",
            "the item needs a name (in `upper(user_id)`)",
            "write `upper(user_id) AS upper_user_id`",
        ),
        Case(
            "count(*) AS clicks",
            "count(*) AS window_end",
            27,
            "spec.transforms[3].aggregate.select[0]",
            "two columns of the output are named `window_end` (in `count(*) AS window_end`)",
            "give one of them another name with `AS`",
        ),
        Case(
            "groupBy: [user_id]",
            "groupBy: [\"n AS window_start\"]",
            25,
            "spec.transforms[3].aggregate.groupBy",
            "`window_start` is a column of every window's output",
            "give the key another name with `AS`",
        ),
    ]);
}

#[test]
fn output_that_would_be_read_back_or_mixed_is_refused() {
    check(&[
        Case(
            "path: /data/out}",
            "path: /data/}",
            29,
            "spec.sinks[0].file.path",
            "the job would read its own output: the source `clicks` reads `/data/*.ndjson`",
            "write to a folder that no source reads",
        ),
        Case(
            "from: slim, blackhole: {}}",
            "from: slim, file: {path: /data/./out/}, format: {csv: {}}}",
            30,
            "spec.sinks[1].file.path",
            "`/data/./out/` is the folder of the sink `out`, too; nobody could tell their rows apart",
            "give each sink a folder of its own, as in `/data/./out/slim_out/`",
        ),
    ]);
}

#[test]
fn a_column_called_like_a_word_of_sql_is_told_wherever_it_is_named() {
    let text = GOOD.replace("user_id", "user");

    let found = problems(&text);

    let paths: Vec<&str> = found.iter().map(|problem| problem.path.as_str()).collect();
    let (select, key) = (
        "spec.transforms[1].select[0]",
        "spec.transforms[3].aggregate.groupBy[0]",
    );
    assert_eq!(paths, [select, key]);
    for problem in found {
        assert!(problem.message.starts_with("`user` is a word of SQL here"));
        assert_eq!(
            problem.hint.as_deref(),
            Some("write the column in quotes: `\"user\"`")
        );
    }
}
