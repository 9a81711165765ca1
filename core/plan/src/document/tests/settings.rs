//! Tests: windows, sinks and numbers that do not fit.
#![expect(clippy::too_many_lines, reason = "tables of cases")]

use super::{Case, check};

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
            "write `file:///absolute/path` or `s3://bucket/prefix`",
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
