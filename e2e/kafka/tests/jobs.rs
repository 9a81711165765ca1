//! Whole jobs, Kafka to Kafka, run by the real binary and killed.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use streamforge_e2e_kafka::{Broker, Records, Topic};
use streamforge_process::{Random, Workspace, free_address};

/// Seconds of one window.
const WINDOW_S: i64 = 10;

/// A row of the input: partition, key, number, time in seconds.
type Row = (i32, String, i64, i64);

/// Rows whose time rises within each partition, so that none is late at any parallelism.
fn input(rows_n: i64, partitions_n: i32, seed: u64) -> Vec<Row> {
    let mut random = Random::seeded(seed);
    (0..rows_n)
        .map(|n| {
            let partition = i32::try_from(n % i64::from(partitions_n)).expect("partitions are few");
            let key = format!("k{}", random.below(50));
            (partition, key, n % 97, n / 100)
        })
        .collect()
}

fn write(topic: &Topic, rows: &[Row]) {
    let writer = topic.writer();
    for (partition, key, n, ts) in rows {
        let value = format!(r#"{{"k":"{key}","n":{n},"ts":{ts}}}"#);
        writer.send(*partition, None, Some(&value));
    }
    writer.drain();
}

/// Count and sum by key and window start in seconds, computed row by row.
fn oracle(rows: &[Row]) -> BTreeMap<(String, i64), (i64, i64)> {
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
fn found(records: &Records) -> BTreeMap<(String, i64), (i64, i64)> {
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

fn document(broker: &Broker, input: &Topic, output: &Topic, more: &str) -> String {
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

#[tokio::test(flavor = "multi_thread")]
async fn a_bounded_job_from_kafka_to_kafka_gives_the_batch_result() {
    let broker = Broker::shared();
    let (from, to) = (
        broker.topic("in", 4, &[]).await,
        broker.topic("out", 3, &[]).await,
    );
    let rows = input(20_000, 4, 1);
    write(&from, &rows);
    let job = Workspace::new(&document(&broker, &from, &to, ""));

    job.run(&["--parallelism", "2"]).check_code(0);

    assert_eq!(found(&to.committed()), oracle(&rows));
}

/// A broker that restarts in the middle of everything fails no job and loses nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_is_killed_in_mid_publish_and_comes_back_loses_and_doubles_nothing() {
    let broker = Broker::own(19_472, "");
    let (from, to) = (
        broker.topic("in", 2, &[]).await,
        broker.topic("out", 2, &[]).await,
    );
    let rows = input(60_000, 2, 3);
    write(&from, &rows);
    let job = Workspace::new(&document(&broker, &from, &to, ""));
    let mut running = job.start(&["--parallelism", "2"]);
    for _ in 0..2 {
        running.let_run(Duration::from_millis(1_500));
        broker.kill();
        running.let_run(Duration::from_millis(500));
        broker.start();
    }

    running.wait().check_code(0);

    assert_eq!(found(&to.committed()), oracle(&rows));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_at_least_once_job_loses_nothing() {
    let broker = Broker::shared();
    let (from, to) = (
        broker.topic("in", 2, &[]).await,
        broker.topic("out", 2, &[]).await,
    );
    let rows = input(20_000, 2, 5);
    write(&from, &rows);
    let job = Workspace::new(&document(
        &broker,
        &from,
        &to,
        "    delivery: AtLeastOnce\n",
    ));

    job.run(&[]).check_code(0);

    assert_eq!(found(&to.committed()), oracle(&rows));
}

#[tokio::test(flavor = "multi_thread")]
async fn verify_expects_rows_over_the_limit_of_the_topic_in_bad() {
    let broker = Broker::shared();
    let to = broker
        .topic("small", 2, &[("max.message.bytes", "1000")])
        .await;
    let (servers, topic) = (broker.servers(), &to.name);
    let job = Workspace::new(&format!(
        r#"apiVersion: streamforge.io/v1alpha1
kind: StreamJob
metadata: {{name: over-the-limit}}
spec:
  sources:
  - name: rows
    file: {{path: "in/*.ndjson"}}
    format: {{json: {{}}}}
    schema: [{{name: n, type: BIGINT}}, {{name: text, type: TEXT}}]
  sinks:
  - name: out
    from: rows
    kafka: {{bootstrapServers: "{servers}", topic: "{topic}"}}
    format: {{json: {{}}}}
  - {{name: bad, from: out.bad, file: {{path: out/bad/}}, format: {{json: {{}}}}}}
"#
    ));
    // One of three is too long.
    let row = |n: usize| {
        let text = "x".repeat(if n.is_multiple_of(3) { 2_000 } else { 20 });
        format!("{{\"n\":{n},\"text\":\"{text}\"}}\n")
    };
    job.write("in/rows.ndjson", (0..300).map(row).collect::<String>());

    job.run(&[]).check_code(0);

    assert_eq!(to.committed().0.len(), 200);
    let bad = streamforge_process::Published::read(&job.path("out/bad"));
    assert_eq!(bad.rows().len(), 100);
    job.verify();
}

/// F4: a task manager that has no session and cannot read the head may have been replaced: what it
/// would write now would come twice.
#[tokio::test(flavor = "multi_thread")]
async fn f4_at_least_once_sinks_wait_while_nothing_tells_whose_attempt_is_the_newest_attack_43() {
    let broker = Broker::shared();
    let (from, to) = (
        broker.topic("in", 2, &[]).await,
        broker.topic("out", 2, &[]).await,
    );
    let rows = input(40_000, 2, 9);
    write(&from, &rows);
    let document = document(&broker, &from, &to, "    delivery: AtLeastOnce\n")
        .replace("rowsPerSecond: 20000", "rowsPerSecond: 4000")
        .replace("interval: 150ms}", "interval: 150ms, timeout: 1s}")
        .replace(
            "  restart:",
            "  failureDetection: {heartbeat: 100ms, timeout: 500ms}\n  restart:",
        );
    let job = Workspace::new(&document);
    let address = free_address();
    let mut coordinator = job.start(&["--listen", &address.to_string()]);
    let mut worker = job.start_task_manager("tm-1", address, 2);
    assert!(coordinator.wait_until(|| !to.written().is_empty()));

    coordinator.kill();
    let (head, aside) = (job.path("store/head"), job.path("aside"));
    std::fs::rename(&head, &aside).expect("there is a head");
    let log = job.path("tm-1.log");
    let says = |what: &str| std::fs::read_to_string(&log).is_ok_and(|text| text.contains(what));
    assert!(worker.wait_until(|| says("at-least-once sinks wait")));
    // What was handed over before is on its way for a moment.
    worker.let_run(Duration::from_millis(500));
    let before = to.written().len();
    worker.let_run(Duration::from_secs(2));
    assert_eq!(to.written().len(), before, "it writes on");

    std::fs::rename(&aside, &head).expect("the head was put aside");
    job.start(&["--listen", &address.to_string()])
        .wait()
        .check_code(0);
    let seen: std::collections::BTreeSet<String> = to.committed().values().into_iter().collect();
    assert_eq!(seen.len(), oracle(&rows).len(), "nothing is lost");
}
