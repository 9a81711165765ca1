//! Whole jobs, Kafka to Kafka, run by the real binary and killed.

use std::time::Duration;

use rustix::process::Signal;
use streamforge_e2e_kafka::Broker;
use streamforge_e2e_kafka::windows::{document, found, input, oracle, write};
use streamforge_process::{Workspace, free_address};

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

/// All rows come again: whoever began the job anew should know.
#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_begins_anew_says_that_its_topic_holds_records() {
    let broker = Broker::shared();
    let to = broker.topic("anew", 3, &[]).await;
    let (servers, topic) = (broker.servers(), &to.name);
    let job = Workspace::new(&format!(
        r#"apiVersion: streamforge.io/v1alpha1
kind: StreamJob
metadata: {{name: anew}}
spec:
  sources: [{{name: rows, generator: {{lines: {{rows: 10}}}}}}]
  sinks:
  - name: out
    from: rows
    kafka: {{bootstrapServers: "{servers}", topic: "{topic}"}}
    format: {{json: {{}}}}
"#
    ));
    let note = format!("note: topic `{topic}` holds records");

    let is_told = |job: &Workspace, arguments: &[&str]| {
        let ended = job.run(arguments);
        ended.check_code(0);
        ended.stderr.contains(&note)
    };
    assert!(!is_told(&job, &[]));
    assert!(is_told(&job, &["--fresh"]));
    assert!(!is_told(&job, &[]), "it is finished");
    let job = job.at(&["--store", "other"]);
    assert!(is_told(&job, &[]));
    assert_eq!(to.committed().len(), 30);
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

/// A cluster that is away when rows come is no failure of an attempt: the sink waits, says so, may be ended
/// meanwhile, and goes on.
#[tokio::test(flavor = "multi_thread")]
async fn a_job_waits_for_the_cluster_of_its_sink_whatever_its_delivery() {
    let broker = Broker::own(19_702, "");
    for delivery in ["AtLeastOnce", "ExactlyOnce"] {
        let to = broker.topic("late", 2, &[]).await;
        let (servers, topic) = (broker.servers(), &to.name);
        let job = Workspace::new(&format!(
            r#"apiVersion: streamforge.io/v1alpha1
kind: StreamJob
metadata: {{name: waits}}
spec:
  sources:
  - name: rows
    file: {{path: "in/*.ndjson"}}
    format: {{json: {{}}}}
    schema: [{{name: n, type: BIGINT}}]
  sinks:
  - name: out
    from: rows
    kafka: {{bootstrapServers: "{servers}", topic: "{topic}"}}
    format: {{json: {{}}}}
    delivery: {delivery}
  checkpoint: {{interval: 100ms}}
  restart: {{maxFailures: 0}}
"#
        ));
        let row = |n: usize| format!("{{\"n\":{n}}}\n");
        job.write("in/rows.ndjson", (0..300).map(row).collect::<String>());
        broker.kill();

        let mut running = job.start(&[]);
        let says = |log: &str| log.contains("sink waits") || log.contains("waiting for kafka");
        while !says(&running.log()) {
            assert!(!running.has_ended(), "{}", running.log());
            running.let_run(Duration::from_millis(50));
        }
        // Slots are taken over before the first row; a task that holds rows does not come to a checkpoint.
        let code = if delivery == "ExactlyOnce" { 3 } else { 130 };
        running.signal(Signal::TERM);
        running.let_run(Duration::from_millis(200));
        running.signal(Signal::TERM);
        running.wait().check_code(code);

        let mut running = job.start(&[]);
        running.let_run(Duration::from_secs(3));
        broker.start();
        running.wait().check_code(0);
        assert_eq!(to.committed().0.len(), 300, "{delivery}");
    }
}
