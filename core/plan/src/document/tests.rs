use super::*;

/// A document that is right; tests break one thing of it.
pub(crate) const GOOD: &str = r#"apiVersion: streamforge.io/v1alpha1
kind: StreamJob
metadata: {name: clicks-per-user}
spec:
  parallelism: 4
  sources:
  - name: clicks
    file: {path: "/data/*.ndjson"}
    format: {json: {}}
    schema:
    - {name: user_id, type: TEXT}
    - {name: page, type: TEXT}
    - {name: amount, type: "DECIMAL(10,2)"}
    - {name: n, type: INT}
    - {name: tags, type: "TEXT[]"}
    - {name: ts, type: TIMESTAMP, path: /meta/time, parse: EpochMillis}
    eventTime: {column: ts, maxOutOfOrderness: 5s, idleTimeout: 1m}
  transforms:
  - {name: valid, from: clicks, filter: "amount > 0"}
  - {name: slim, from: valid, select: [user_id, "amount * 100 AS cents", ts]}
  - {name: words, from: clicks, unnest: "tags AS tag"}
  - name: per_user
    from: valid
    aggregate:
      groupBy: [user_id]
      window: {tumbling: {size: 1m}}
      select: ["count(*) AS clicks", "sum(amount) AS spend"]
  sinks:
  - {name: out, from: per_user, file: {path: /data/out}, format: {json: {}}}
  - {name: slim_out, from: slim, blackhole: {}}
  - {name: words_out, from: words, print: {}}
  - {name: late, from: per_user.late, blackhole: {}}
"#;

fn with(from: &str, to: &str) -> String {
    assert!(GOOD.contains(from), "the good document has no `{from}`");
    GOOD.replacen(from, to, 1)
}

fn problems(text: &str) -> Vec<Problem> {
    load(text, "job.yaml").err().unwrap_or_default()
}

/// Line, path and message of each problem.
fn told(text: &str) -> Vec<(usize, String, String)> {
    problems(text)
        .into_iter()
        .map(|p| (p.line, p.path, p.message))
        .collect()
}

#[test]
fn the_good_document_is_good() {
    let loaded = load(GOOD, "job.yaml").unwrap_or_else(|problems| panic!("{problems:#?}"));

    assert_eq!(loaded.name, "clicks-per-user");
    assert_eq!(loaded.spec.max_parallelism, 128);
    assert!(loaded.notes.is_empty());
}

/// One mistake each: what is replaced, by what, and the line, path, message and hint that tell it.
struct Case(
    &'static str,
    &'static str,
    usize,
    &'static str,
    &'static str,
    &'static str,
);

fn check(cases: &[Case]) {
    for Case(from, to, line, path, message, hint) in cases {
        let text = with(from, to);
        let found = problems(&text);
        let [problem] = found.as_slice() else {
            panic!("{from:?} -> {to:?}: expected one problem, found {found:#?}");
        };
        assert_eq!(problem.message, *message, "{from:?} -> {to:?}");
        assert_eq!(
            (problem.line, problem.path.as_str()),
            (*line, *path),
            "{from:?} -> {to:?}"
        );
        assert_eq!(
            problem.hint.as_deref().unwrap_or_default(),
            *hint,
            "{from:?} -> {to:?}"
        );
    }
}

#[test]
fn mistakes_of_shape_are_told_with_line_and_path() {
    check(&[
        Case(
            "parallelism: 4",
            "paralelism: 4",
            5,
            "spec.paralelism",
            "unknown field `paralelism`",
            "did you mean `parallelism`?",
        ),
        Case(
            "parallelism: 4",
            "parallelism: four",
            5,
            "spec.parallelism",
            "expected a whole number, found the text `four`",
            "",
        ),
        Case(
            "parallelism: 4",
            "parallelism: 0",
            5,
            "spec.parallelism",
            "0 is out of range: it must be from 1 to 32768",
            "",
        ),
        Case(
            "parallelism: 4",
            "parallelism: 1.5",
            5,
            "spec.parallelism",
            "expected a whole number, found the number 1.5",
            "",
        ),
        Case(
            "parallelism: 4",
            "parallelism:",
            5,
            "spec.parallelism",
            "`parallelism` is empty",
            "write a value, or leave it out",
        ),
        Case(
            "parallelism: 4",
            "parallelism: 4\n  parallelism: 5",
            6,
            "spec.parallelism",
            "`parallelism` is written twice, first in line 5",
            "",
        ),
        Case(
            "blackhole: {}",
            "blackhole:",
            30,
            "spec.sinks[1].blackhole",
            "`blackhole` is empty",
            "write `{}` for all defaults, or leave it out",
        ),
        Case(
            "name: late",
            "name: Late-1",
            32,
            "spec.sinks[3].name",
            "`Late-1` is not a name",
            "a name begins with a to z and goes on with a to z, 0 to 9 and _",
        ),
        Case(
            "size: 1m",
            "size: 1 minute",
            26,
            "spec.transforms[3].aggregate.window.tumbling.size",
            "`1 minute` is not a duration",
            "it lacks a unit: write d, h, m, s, ms or us after the number",
        ),
        Case(
            "size: 1m",
            "size: 60",
            26,
            "spec.transforms[3].aggregate.window.tumbling.size",
            "expected text, found the number 60",
            "put it in quotes",
        ),
        Case(
            "    from: valid\n",
            "",
            22,
            "spec.transforms[3]",
            "`from` is missing",
            "name the output to read",
        ),
        Case(
            "file: {path: /data/out}, ",
            "",
            29,
            "spec.sinks[0]",
            "one of `kafka`, `file`, `print`, `blackhole` is missing",
            "",
        ),
        Case(
            "blackhole: {}",
            "blackhole: {}, print: {}",
            30,
            "spec.sinks[1]",
            "`print`, `blackhole` exclude each other",
            "keep one of them",
        ),
        Case(
            "file: {path: /data/out}",
            "flie: {path: /data/out}",
            29,
            "spec.sinks[0].flie",
            "unknown field `flie`",
            "did you mean `file`?",
        ),
        Case(
            "json: {}",
            "jsn: {}",
            9,
            "spec.sources[0].format.jsn",
            "unknown field `jsn`",
            "did you mean `json`?",
        ),
        Case(
            "{name: page, type: TEXT}",
            "{name: page}",
            12,
            "spec.sources[0].schema[1]",
            "`type` is missing",
            "",
        ),
        Case(
            "groupBy: [user_id]",
            "groupBy: user_id",
            25,
            "spec.transforms[3].aggregate.groupBy",
            "expected a list, found the text `user_id`",
            "write `[a, b]`, or one `- item` per line",
        ),
    ]);
}

#[test]
fn what_is_planned_for_later_is_not_supported_yet() {
    check(&[
        Case(
            "file: {path: \"/data/*.ndjson\"}",
            "nats: {}",
            8,
            "spec.sources[0].nats",
            "`nats` is not supported yet",
            "",
        ),
        Case(
            "file: {path: \"/data/*.ndjson\"}",
            "kafka: {bootstrapServers: a, topics: [t]}",
            8,
            "spec.sources[0].kafka",
            "`kafka` is not supported yet",
            "",
        ),
        Case(
            "\"/data/*.ndjson\"",
            "\"s3://bucket/x\"",
            8,
            "spec.sources[0].file.path",
            "`s3://` paths are not supported yet",
            "",
        ),
        Case(
            "/data/out}",
            "s3://bucket/out}",
            29,
            "spec.sinks[0].file.path",
            "`s3://` paths are not supported yet",
            "",
        ),
        Case(
            "json: {}",
            "avro: {}",
            9,
            "spec.sources[0].format.avro",
            "`avro` is not supported yet",
            "",
        ),
        Case(
            "tumbling: {size: 1m}",
            "cumulative: {}",
            26,
            "spec.transforms[3].aggregate.window.cumulative",
            "`cumulative` is not supported yet",
            "",
        ),
        Case(
            "      window:",
            "      emit: Early\n      window:",
            26,
            "spec.transforms[3].aggregate.emit",
            "`Early` is not supported yet",
            "",
        ),
        Case(
            "parallelism: 4",
            "state: {backend: RocksDb}",
            5,
            "spec.state.backend",
            "`RocksDb` is not supported yet",
            "",
        ),
        Case(
            "parallelism: 4",
            "state: {ttl: 1d}",
            5,
            "spec.state.ttl",
            "`ttl` is not supported yet",
            "",
        ),
        Case(
            "parallelism: 4",
            "restoreFrom: {savepoint: s}",
            5,
            "spec.restoreFrom",
            "`restoreFrom` is not supported yet",
            "",
        ),
        Case(
            "parallelism: 4",
            "checkpoint: {storage: {uri: \"s3://b/p\"}}",
            5,
            "spec.checkpoint.storage.uri",
            "`s3://` is not supported yet",
            "write `file:///absolute/path`",
        ),
        Case(
            "unnest: \"tags AS tag\"",
            "sql: \"SELECT 1\"",
            21,
            "spec.transforms[2].sql",
            "`sql` is not supported yet",
            "",
        ),
        Case(
            "kind: StreamJob",
            "kind: Savepoint",
            2,
            "kind",
            "`kind: Savepoint` is not supported yet",
            "",
        ),
    ]);
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
fn mistakes_of_windows_are_told() {
    let window = "spec.transforms[3].aggregate.window";
    let path =
        |rest: &str| -> &'static str { Box::leak(format!("{window}.{rest}").into_boxed_str()) };
    check(&[
        Case(
            "tumbling: {size: 1m}",
            "tumbling: {size: 0s}",
            26,
            path("tumbling.size"),
            "the time must be longer than zero",
            "",
        ),
        Case(
            "tumbling: {size: 1m}",
            "tumbling: {size: 1h, offset: 1h}",
            26,
            path("tumbling.offset"),
            "offset 1h is not shorter than size",
            "",
        ),
        Case(
            "tumbling: {size: 1m}",
            "tumbling: {size: 1h, offset: -90m}",
            26,
            path("tumbling.offset"),
            "offset -1h30m is not shorter than size",
            "",
        ),
        Case(
            "tumbling: {size: 1m}",
            "hopping: {size: 1m, slide: 2m}",
            26,
            path("hopping.slide"),
            "slide 2m is longer than size 1m: rows between would be lost",
            "slide must be at most size; for windows side by side write `tumbling`",
        ),
        Case(
            "tumbling: {size: 1m}",
            "hopping: {size: 1d, slide: 1ms}",
            26,
            path("hopping.slide"),
            "size 1d and slide 1ms cut time into 86400000 slices per window",
            "at most 10000 are allowed; make size a multiple of slide",
        ),
        Case(
            "tumbling: {size: 1m}",
            "tumbling: {size: 1h, timeZone: Europe/Pari}",
            26,
            path("tumbling.timeZone"),
            "`Europe/Pari` is not a time zone",
            "did you mean `Europe/Paris`?",
        ),
        Case(
            "tumbling: {size: 1m}",
            "tumbling: {size: 1h, timeZone: Europe/Paris}",
            26,
            path("tumbling.size"),
            "in the time zone Europe/Paris a window must be whole days",
            "write a length like `1d`, or leave `timeZone` out",
        ),
        Case(
            "tumbling: {size: 1m}",
            "session: {gap: 0s}",
            26,
            path("session.gap"),
            "the time must be longer than zero",
            "",
        ),
        Case(
            "    eventTime: {column: ts, maxOutOfOrderness: 5s, idleTimeout: 1m}\n",
            "",
            22,
            "spec.transforms[3].from",
            "a window needs event time, which this output does not have",
            "write `eventTime: {column: ...}` in the source; side outputs have none",
        ),
    ]);
}

#[test]
fn mistakes_of_sinks_are_told() {
    let updating = "      allowedLateness: 10s\n      select";
    check(&[
        Case(
            "      select",
            updating,
            30,
            "spec.sinks[0].from",
            "`per_user` is corrected by retraction, but this sink only appends",
            "write `emit: Once` in the aggregate, or `changelog: Retract` in the sink",
        ),
        Case(
            "file: {path: /data/out}",
            "file: {path: /data/out, partitionBy: [user]}",
            29,
            "spec.sinks[0].file.partitionBy[0]",
            "no column is named `user`",
            "did you mean `user_id`?",
        ),
        Case(
            "file: {path: /data/out}",
            "file: {path: /data/out, partitionBy: [user_id, window_start, window_end, clicks, spend]}",
            29,
            "spec.sinks[0].file.partitionBy",
            "all columns name folders, so that no data is left",
            "",
        ),
        Case(
            "file: {path: /data/out}, format: {json: {}}",
            "file: {path: /data/out}",
            29,
            "spec.sinks[0]",
            "`format` is missing",
            "write `format: {json: {}}`, csv or parquet",
        ),
        Case(
            "file: {path: /data/out}, format: {json: {}}",
            "file: {path: /data/out}, format: {raw: {}}",
            29,
            "spec.sinks[0].format.raw",
            "`raw` is a format of sources",
            "write json, csv or parquet",
        ),
        Case(
            "from: words, print: {}",
            "from: words, file: {path: /x}, format: {csv: {}}",
            31,
            "spec.sinks[2].format.csv",
            "`tags` is TEXT[], which CSV cannot hold",
            "write json or parquet, or make it text with a `select`",
        ),
        Case(
            "print: {}",
            "print: {}, delivery: ExactlyOnce",
            31,
            "spec.sinks[2].delivery",
            "print and blackhole sinks are at least once",
            "leave `delivery` out",
        ),
        Case(
            "print: {}",
            "print: {}, changelog: Upsert",
            31,
            "spec.sinks[2].changelog",
            "`Upsert` is for kafka sinks",
            "write `changelog: Retract`",
        ),
        Case(
            "/data/out}",
            "\"/data/*\"}",
            29,
            "spec.sinks[0].file.path",
            "the path of a file sink is a folder, not a glob",
            "",
        ),
    ]);
}

#[test]
fn mistakes_of_the_rest_are_told() {
    check(&[
        Case(
            "parallelism: 4",
            "parallelism: 200",
            5,
            "spec.parallelism",
            "parallelism 200 is larger than maxParallelism 128",
            "lower it, or raise maxParallelism, which cannot change while state exists",
        ),
        Case(
            "parallelism: 4",
            "checkpoint: {interval: 0s}",
            5,
            "spec.checkpoint.interval",
            "the time must be longer than zero",
            "",
        ),
        Case(
            "parallelism: 4",
            "checkpoint: {storage: {uri: /tmp/x}}",
            5,
            "spec.checkpoint.storage.uri",
            "`/tmp/x` is not a URI",
            "write `file:///absolute/path`",
        ),
        Case(
            "parallelism: 4",
            "restart: {backoff: {initial: 1m}}",
            5,
            "spec.restart.backoff",
            "initial 1m is longer than max 30s",
            "",
        ),
        Case(
            "clicks-per-user",
            "Clicks",
            3,
            "metadata.name",
            "`Clicks` is not a name of a job",
            "a job's name has a to z, 0 to 9 and -, begins and ends with a letter or digit",
        ),
        Case(
            "metadata: {name: clicks-per-user}",
            "metadata: {nmae: x}",
            3,
            "metadata.nmae",
            "unknown field `nmae`",
            "did you mean `name`?",
        ),
        Case(
            "kind: StreamJob",
            "kind: Deployment",
            2,
            "kind",
            "this is not a StreamJob: `kind` is `Deployment`",
            "write `kind: StreamJob`",
        ),
        Case(
            "streamforge.io/v1alpha1",
            "streamforge.io/v2",
            1,
            "apiVersion",
            "this is not a StreamJob: `apiVersion` is `streamforge.io/v2`",
            "write `apiVersion: streamforge.io/v1alpha1`",
        ),
        Case(
            "spec:",
            "extra: 1\nspec:",
            4,
            "extra",
            "unknown field `extra`",
            "everything about the job stands under `spec`",
        ),
    ]);
}

#[test]
fn all_mistakes_are_told_at_once_and_in_order() {
    let text = GOOD
        .replace("parallelism: 4", "paralelism: 4")
        .replace("amount > 0", "amout > 0")
        .replace("tags AS tag", "tag AS tag")
        .replace("size: 1m", "size: 1x")
        .replace("path: /data/out", "pth: /data/out");

    let paths: Vec<String> = told(&text).into_iter().map(|(_, path, _)| path).collect();

    assert_eq!(
        paths,
        [
            "spec.paralelism",
            "spec.transforms[0].filter",
            "spec.transforms[2].unnest",
            "spec.transforms[3].aggregate.window.tumbling.size",
            "spec.sinks[0].file.pth",
        ]
    );
}

#[test]
fn a_mistake_upstream_is_told_once() {
    // `valid` is read by `slim` and `per_user`, which are right themselves.
    assert_eq!(told(&with("amount > 0", "amout > 0")).len(), 1);
    assert_eq!(
        told(&with("name: valid, from: clicks", "name: valid, from: 5")).len(),
        1
    );
}

#[test]
fn what_fell_back_to_its_default_causes_no_second_mistake() {
    let late = with(
        "      select",
        "      allowedLateness: 10s\n      emit: Onec\n      select",
    );
    for text in [
        late,
        with("eventTime: {column: ts", "eventTime: {column: 5"),
        with("groupBy: [user_id]", "groupBy: [5]"),
        with("\"amount * 100 AS cents\"", "5"),
        with("{name: amount, type: \"DECIMAL(10,2)\"}", "{name: amount}"),
        with(
            "{name: amount, type: \"DECIMAL(10,2)\"}",
            "{name: amount, type: DECIMAL}",
        ),
        with("window: {tumbling: {size: 1m}}", "window: {tumbling: {}}"),
    ] {
        assert_eq!(told(&text).len(), 1, "{:#?}", told(&text));
    }
}

#[test]
fn an_aggregate_cannot_read_corrected_rows() {
    let text = with("      select", "      allowedLateness: 10s\n      select").replace(
        "  sinks:",
        "  - name: total\n    from: per_user\n    aggregate: {window: {tumbling: {size: 1h}}, select: [\"sum(clicks) AS n\"]}\n  sinks:",
    );

    let found = told(&text);

    assert!(
        found
            .iter()
            .any(|(_, path, message)| path == "spec.transforms[4].from"
                && message == "an aggregate cannot read an output that is corrected by retraction")
    );
}

#[test]
fn unions_want_the_same_columns() {
    let union = "  - {name: all, union: [clicks, valid, words]}\n  sinks:";

    let found = told(&with("  sinks:", union));

    assert_eq!(
        found,
        [(
            28,
            "spec.transforms[4].union[2]".to_owned(),
            "`words` has a column `tag`, but `clicks` has not".to_owned()
        )]
    );
}

#[test]
fn fields_of_clusters_are_checked_and_noted() {
    let text = with(
        "parallelism: 4",
        "parallelism: 4\n  suspend: true\n  taskManager: {slots: 4}",
    );

    let loaded = load(&text, "job.yaml").unwrap();

    let messages: Vec<&str> = loaded
        .notes
        .iter()
        .map(|note| note.message.as_str())
        .collect();
    assert_eq!(
        messages,
        ["`suspend`, `taskManager` mean nothing outside a cluster"]
    );
}

#[test]
fn generators_have_fixed_columns() {
    let generator = |rest: &str| {
        format!(
            "apiVersion: streamforge.io/v1alpha1\nkind: StreamJob\nmetadata: {{name: j}}\nspec:\n  sources:\n  - {{name: c, generator: {{clicks: {{rows: 10}}}}{rest}}}\n  sinks:\n  - {{name: o, from: c, blackhole: {{}}}}\n"
        )
    };

    assert_eq!(told(&generator("")), []);
    let found = told(&generator(
        ", format: {json: {}}, schema: [{name: a, type: INT}]",
    ));
    let messages: Vec<&str> = found
        .iter()
        .map(|(_, _, message)| message.as_str())
        .collect();
    assert_eq!(
        messages,
        [
            "a generator's rows are not encoded",
            "a generator's columns are fixed"
        ]
    );
}

#[test]
fn no_text_makes_the_loader_panic() {
    let mut broken = 0;
    // Every prefix, and every document with one line taken out or one character replaced.
    for end in GOOD.char_indices().map(|(at, _)| at).step_by(7) {
        broken += usize::from(load(&GOOD[..end], "f").is_err());
    }
    for skipped in 0..GOOD.lines().count() {
        let text: Vec<&str> = GOOD
            .lines()
            .enumerate()
            .filter(|(idx, _)| *idx != skipped)
            .map(|(_, line)| line)
            .collect();
        broken += usize::from(load(&text.join("\n"), "f").is_err());
    }
    for (at, _) in GOOD.char_indices().step_by(11) {
        for with in ["{", "é", "\0", "'", "-", "&", "*"] {
            let text = format!("{}{with}{}", &GOOD[..at], &GOOD[at + 1..]);
            broken += usize::from(load(&text, "f").is_err());
        }
    }
    assert!(broken > 200, "{broken}");
}
