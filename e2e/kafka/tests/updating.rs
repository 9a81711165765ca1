//! Results that are corrected: upserts with tombstones, and changelogs, Kafka to Kafka, killed on the way.

use std::collections::BTreeMap;

use streamforge_e2e_kafka::windows::Row;
use streamforge_e2e_kafka::{Broker, Records, Topic};
use streamforge_process::{Random, Workspace};

/// Seconds of a window, the gap of a session, and how late a row may be.
const WINDOW_S: i64 = 10;
const GAP_S: i64 = 3;
const LATE_S: i64 = 6;

/// Count and sum by key and start in seconds.
type Windows = BTreeMap<(String, i64), (i64, i64)>;

/// Rows of which every fifth is behind by less than what is allowed: it changes windows that were given out, and
/// joins sessions. None is too late: a watermark is never ahead of any partition.
fn input(rows_n: i64, partitions_n: i32) -> Vec<Row> {
    let mut random = Random::seeded(11);
    (0..rows_n)
        .map(|n| {
            let partition = i32::try_from(n % i64::from(partitions_n)).expect("partitions are few");
            let key = format!("k{}", random.below(200));
            let behind = if n % 5 == 0 { n % LATE_S } else { 0 };
            (partition, key, n % 97, LATE_S + n / 100 - behind)
        })
        .collect()
}

fn tumbling(rows: &[Row]) -> Windows {
    let mut windows = Windows::new();
    for (_, key, n, ts) in rows {
        let window = windows
            .entry((key.clone(), ts.div_euclid(WINDOW_S) * WINDOW_S))
            .or_default();
        window.0 += 1;
        window.1 += n;
    }
    windows
}

fn sessions(rows: &[Row]) -> Windows {
    let mut of: BTreeMap<&String, Vec<(i64, i64)>> = BTreeMap::new();
    for (_, key, n, ts) in rows {
        of.entry(key).or_default().push((*ts, *n));
    }
    let mut sessions = Windows::new();
    for (key, mut rows) in of {
        rows.sort_unstable();
        let (mut start, mut last) = (rows[0].0, rows[0].0);
        for (ts, n) in rows {
            if ts - last >= GAP_S {
                start = ts;
            }
            last = ts;
            let session = sessions.entry((key.clone(), start)).or_default();
            session.0 += 1;
            session.1 += n;
        }
    }
    sessions
}

fn document(broker: &Broker, from: &Topic, [upserts, joined, log]: [&Topic; 3]) -> String {
    let servers = broker.servers();
    let sink = |name: &str, from: &str, topic: &Topic, changelog: &str| {
        let topic = &topic.name;
        format!(
            "  - {{name: {name}, from: {from}, changelog: {changelog}, format: {{json: {{}}}}, \
             kafka: {{bootstrapServers: \"{servers}\", topic: \"{topic}\", key: [k, start]}}}}\n"
        )
    };
    let sinks = sink("upserts", "shown", upserts, "Upsert")
        + &sink("joined", "shown_sessions", joined, "Upsert")
        + &sink("log", "shown_sessions", log, "Retract");
    let shown = "[k, \"CAST(extract(epoch FROM window_start) AS BIGINT) AS start\", c, s]";
    format!(
        r#"apiVersion: streamforge.io/v1alpha1
kind: StreamJob
metadata: {{name: updating}}
spec:
  parallelism: 2
  sources:
  - name: rows
    kafka: {{bootstrapServers: "{servers}", topics: ["{}"], endAt: Latest}}
    format: {{json: {{}}}}
    schema:
    - {{name: k, type: TEXT}}
    - {{name: n, type: BIGINT}}
    - {{name: ts, type: TIMESTAMP, parse: EpochSeconds}}
    eventTime: {{column: ts}}
    rateLimit: {{rowsPerSecond: 20000}}
  transforms:
  - name: windows
    from: rows
    aggregate:
      groupBy: [k]
      window: {{tumbling: {{size: {WINDOW_S}s}}}}
      select: ["count(*) AS c", "sum(n) AS s"]
      allowedLateness: {LATE_S}s
  - name: sessions
    from: rows
    aggregate:
      groupBy: [k]
      window: {{session: {{gap: {GAP_S}s}}}}
      select: ["count(*) AS c", "sum(n) AS s"]
      allowedLateness: {LATE_S}s
  - {{name: shown, from: windows, select: {shown}}}
  - {{name: shown_sessions, from: sessions, select: {shown}}}
  sinks:
{sinks}  checkpoint: {{interval: 150ms}}
  restart: {{backoff: {{initial: 50ms, max: 1s}}}}
"#,
        from.name
    )
}

/// Key, count and sum of a row, and its operation where it has one.
fn row(value: &str) -> ((String, i64), (i64, i64), Option<String>) {
    let value: serde_json::Value = serde_json::from_str(value).expect("values are JSON");
    let number = |of: &str| value[of].to_string().parse().expect("a number");
    let key = value["k"].as_str().expect("k is text").to_owned();
    let op = value["_op"].as_str().map(ToOwned::to_owned);
    ((key, number("start")), (number("c"), number("s")), op)
}

/// The newest record of each key, as a compacted topic keeps it, and how many tombstones there were.
fn newest(records: &Records) -> (Windows, usize) {
    let mut of: BTreeMap<&str, (i32, Option<&str>)> = BTreeMap::new();
    let mut tombstones_n = 0;
    for seen in &records.0 {
        let key = seen.key.as_deref().expect("an upsert has a key");
        tombstones_n += usize::from(seen.value.is_none());
        let before = of.insert(key, (seen.partition, seen.value.as_deref()));
        if let Some((partition, _)) = before {
            assert_eq!(partition, seen.partition, "{key} is in two partitions");
        }
    }
    let values = of
        .into_iter()
        .filter_map(|(key, (_, value))| Some((key, value?)));
    let windows = values.map(|(key, value)| {
        let (of, counted, _) = row(value);
        let told: serde_json::Value = serde_json::from_str(key).expect("a key of two is JSON");
        assert_eq!(
            told,
            serde_json::json!({"k": of.0, "start": of.1}),
            "the key is of the row"
        );
        (of, counted)
    });
    (windows.collect(), tombstones_n)
}

/// What a changelog comes to when each step is taken in its order, and how many steps took something back.
fn folded(records: &Records) -> (Windows, usize) {
    let mut windows = Windows::new();
    let mut retractions_n = 0;
    for seen in &records.0 {
        let (key, counted, op) = row(seen.value.as_deref().expect("a changelog has values"));
        match op.as_deref() {
            Some("+I" | "+U") => {
                let twice = windows.insert(key, counted);
                assert_eq!(twice, None, "{seen:?} is added to what is there");
            }
            Some("-U" | "-D") => {
                retractions_n += 1;
                let there = windows.remove(&key);
                assert_eq!(
                    there,
                    Some(counted),
                    "{seen:?} takes back what is not there"
                );
            }
            other => panic!("{other:?} is no operation: {seen:?}"),
        }
    }
    (windows, retractions_n)
}

#[tokio::test(flavor = "multi_thread")]
async fn corrections_are_exact_after_kills_as_upserts_with_tombstones_and_as_a_changelog() {
    let broker = Broker::shared();
    let from = broker.topic("in", 3, &[]).await;
    let compacted = [("cleanup.policy", "compact")];
    let upserts = broker.topic("upserts", 3, &compacted).await;
    let joined = broker.topic("joined", 3, &compacted).await;
    let log = broker.topic("log", 2, &[]).await;
    let rows = input(60_000, 3);
    streamforge_e2e_kafka::windows::write(&from, &rows);
    let job = Workspace::new(&document(&broker, &from, [&upserts, &joined, &log]));

    for parallelism in ["2", "3"] {
        let seen_n = log.committed().len();
        let mut running = job.start(&["--parallelism", parallelism]);
        let is_further = || log.committed().len() > seen_n;
        assert!(running.wait_until(is_further), "{}", running.log());
        running.kill();
    }
    job.run(&["--parallelism", "1"]).check_code(0);

    let (windows, _) = newest(&upserts.committed());
    assert_eq!(windows, tumbling(&rows));
    assert!(
        upserts.committed().len() > windows.len(),
        "nothing was corrected"
    );
    let expected = sessions(&rows);
    let (windows, tombstones_n) = newest(&joined.committed());
    assert_eq!(windows, expected);
    assert!(tombstones_n > 0, "no session was joined");
    let (windows, retractions_n) = folded(&log.committed());
    assert_eq!(windows, expected);
    assert!(retractions_n > 0, "nothing was taken back");
}
