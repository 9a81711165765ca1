use super::*;

const JOB: &str = "apiVersion: streamforge.io/v1alpha1
kind: StreamJob
metadata: {name: job}
spec:
  sources:
    - {name: made, generator: {clicks: {rows: 10, seed: 1}}}
    - name: files
      file: {path: in/}
      format: {json: {}}
      schema: [{name: n, type: INT}, {name: unread, type: INT}, {name: ts, type: TIMESTAMP}]
      eventTime: {column: ts}
    - name: topic
      kafka: {bootstrapServers: 'a:1', topics: [t]}
      format: {json: {}}
      schema: [{name: n, type: BIGINT}]
  transforms:
    - {name: good, from: files, filter: n > 1}
    - {name: more, from: good, select: [n + 1 AS m, n]}
    - {name: counts, from: files, aggregate: {window: {tumbling: {size: 1m}}, select: [count(*) AS c]}}
  sinks:
    - {name: out, from: more, file: {path: out/}, format: {json: {}}}
    - {name: copy, from: topic, file: {path: copy/}, format: {json: {}}}
    - {name: all, from: made, blackhole: {}}
    - {name: counted, from: counts, blackhole: {}}
";

fn said(edits: &[(&str, &str)]) -> Vec<String> {
    let graph = |text: &str| {
        let loaded = streamforge_plan::load(text, "job.yaml").unwrap();
        streamforge_plan::plan(&loaded)
    };
    let mut edited = JOB.to_owned();
    for (from, to) in edits {
        assert!(edited.contains(from), "{from}");
        edited = edited.replace(from, to);
    }
    changes(&graph(JOB), &graph(&edited))
}

#[test]
fn each_edit_that_means_less_than_it_may_seem_is_told() {
    for (edit, words) in [
        (
            ("seed: 1", "seed: 2"),
            vec!["`seed` of `made` is 2 and was 1", "--fresh"],
        ),
        (
            ("path: in/", "path: other/"),
            vec!["`files` names \"other/\" now", "none of the new path"],
        ),
        (
            ("path: in/", "path: other/, watch: 1s"),
            vec!["looks for others at the new path only"],
        ),
        (
            ("topics: [t]", "topics: [t], startFrom: Latest"),
            vec!["`startFrom` of `topic`"],
        ),
        (
            ("n > 1", "n > 2"),
            vec!["`good` is another one", "as it was"],
        ),
        (("n + 1", "n + 2"), vec!["`more` is another one"]),
        (
            ("path: out/", "path: out2/"),
            vec!["`out` writes to \"out2/\" now", "\"out/\" stays"],
        ),
        (
            ("seed: 1", "seed: 1, rowsPerSecond: 5"),
            vec!["`rowsPerSecond` of `made` is 5 and was not set", "--fresh"],
        ),
        (
            ("n, type: INT", "n, type: INT, path: /a/n"),
            vec!["column `n` of `files` is read otherwise", "as it was"],
        ),
        (
            (
                "ts, type: TIMESTAMP",
                "ts, type: TIMESTAMP, parse: EpochMillis",
            ),
            vec!["column `ts` of `files` is read otherwise"],
        ),
        (
            ("path: out/}", "path: out/, partitionBy: [m]}"),
            vec!["`out` is partitioned by `m` now, and was by nothing"],
        ),
        (
            ("from: files, aggregate", "from: good, aggregate"),
            vec!["`counts` reads `good` now, and read `files`", "open, too"],
        ),
        (
            ("from: topic, file", "from: topic.bad, file"),
            vec!["`copy` reads `topic.bad` now, and read `topic`:"],
        ),
        (
            ("out/}, format: {json: {}}", "out/}, format: {csv: {}}"),
            vec!["`out` writes CSV now", "stays JSON"],
        ),
    ] {
        let said = said(&[edit]);
        assert_eq!(said.len(), 1, "{edit:?}: {said:?}");
        for word in words {
            assert!(said[0].contains(word), "{edit:?}: {said:?}");
        }
    }
}

#[test]
fn edits_that_mean_what_they_say_are_not_told() {
    assert_eq!(said(&[]), Vec::<String>::new());
    assert_eq!(said(&[("rows: 10", "rows: 20")]), Vec::<String>::new());
    let unread = ("unread, type: INT", "unread, type: INT, path: /a");
    assert_eq!(said(&[unread]), Vec::<String>::new());
    // What reads it goes on reading it.
    let renamed = [
        ("{name: good,", "{name: fine, uid: good,"),
        ("from: good", "from: fine"),
    ];
    assert_eq!(said(&renamed), Vec::<String>::new());
    let sink = "  - {name: two, from: good, blackhole: {}}\n    - {name: all";
    assert_eq!(said(&[("  - {name: all", sink)]), Vec::<String>::new());
}
