//! Counts and sums by key and window, from one topic to another.
//!
//! Owns: the rows, the job, and its result worked out row by row.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use streamforge_process::Random;

use crate::{Broker, Records, Topic};

/// Seconds of one window.
const WINDOW_S: i64 = 10;

/// A row of the input: partition, key, number, time in seconds.
pub type Row = (i32, String, i64, i64);

/// Rows whose time rises within each partition, so that none is late at any parallelism.
pub fn input(rows_n: i64, partitions_n: i32, seed: u64) -> Vec<Row> {
    let mut random = Random::seeded(seed);
    (0..rows_n)
        .map(|n| {
            let partition = i32::try_from(n % i64::from(partitions_n)).expect("partitions are few");
            let key = format!("k{}", random.below(50));
            (partition, key, n % 97, n / 100)
        })
        .collect()
}

/// Writes them to a topic.
pub fn write(topic: &Topic, rows: &[Row]) {
    let writer = topic.writer();
    for (partition, key, n, ts) in rows {
        let value = format!(r#"{{"k":"{key}","n":{n},"ts":{ts}}}"#);
        writer.send(*partition, None, Some(&value));
    }
    writer.drain();
}

/// Count and sum by key and window start in seconds, computed row by row.
pub fn oracle(rows: &[Row]) -> BTreeMap<(String, i64), (i64, i64)> {
    let mut windows: BTreeMap<(String, i64), (i64, i64)> = BTreeMap::new();
    for (_, key, n, ts) in rows {
        let start = ts.div_euclid(WINDOW_S) * WINDOW_S;
        let window = windows.entry((key.clone(), start)).or_default();
        window.0 += 1;
        window.1 += n;
    }
    windows
}

/// What a reader found, with how often each window was there.
pub fn found(records: &Records) -> BTreeMap<(String, i64), (i64, i64)> {
    let mut windows = BTreeMap::new();
    for record in &records.0 {
        let value: serde_json::Value =
            serde_json::from_str(record.value.as_deref().expect("every row has a value"))
                .expect("every value is JSON");
        let key = value["k"].as_str().expect("k is text").to_owned();
        assert_eq!(
            record.key.as_deref(),
            Some(key.as_str()),
            "the key is the column"
        );
        let start = value["start"].as_i64().expect("start is a number");
        let window = (
            value["c"].as_i64().expect("c is a number"),
            value["s"].to_string().parse().expect("s is a number"),
        );
        let twice = windows.insert((key.clone(), start), window);
        assert_eq!(twice, None, "{key} {start} is there twice");
    }
    windows
}

/// The job; `more` is put behind its sink.
pub fn document(broker: &Broker, input: &Topic, output: &Topic, more: &str) -> String {
    let mut text = String::new();
    let servers = broker.servers();
    write!(
        text,
        r#"apiVersion: streamforge.io/v1alpha1
kind: StreamJob
metadata: {{name: kafka-windows}}
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
  - name: shown
    from: windows
    select: [k, "CAST(extract(epoch FROM window_start) AS BIGINT) AS start", c, s]
  sinks:
  - name: out
    from: shown
    kafka: {{bootstrapServers: "{servers}", topic: "{}", key: [k]}}
    format: {{json: {{}}}}
{more}  checkpoint: {{interval: 150ms}}
  restart: {{backoff: {{initial: 50ms, max: 1s}}}}
"#,
        input.name, output.name
    )
    .expect("a text takes more text");
    text
}
