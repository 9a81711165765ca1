//! One job, several Kafka sinks: each has transactions and markers of its own.

use std::time::Duration;

use streamforge_e2e_kafka::{Broker, Topic};
use streamforge_process::Workspace;

const ROWS: usize = 30_000;

fn document(broker: &Broker, input: &Topic, outputs: &[Topic; 3]) -> String {
    let servers = broker.servers();
    let sink = |name: &str, topic: &Topic| {
        let topic = &topic.name;
        format!(
            "  - {{name: {name}, from: rows, kafka: {{bootstrapServers: \"{servers}\", topic: {topic}}}, format: {{json: {{}}}}}}\n"
        )
    };
    // Names that differ by what could be the number of a subtask.
    let [a, b, c] = outputs;
    let sinks = sink("out", a) + &sink("out_1", b) + &sink("out_1_0", c);
    format!(
        r#"apiVersion: streamforge.io/v1alpha1
kind: StreamJob
metadata: {{name: several-sinks}}
spec:
  parallelism: 2
  sources:
  - name: rows
    kafka: {{bootstrapServers: "{servers}", topics: ["{}"], endAt: Latest}}
    format: {{json: {{}}}}
    schema: [{{name: n, type: BIGINT}}]
    rateLimit: {{rowsPerSecond: 20000}}
  sinks:
{sinks}  checkpoint: {{interval: 100ms}}
  restart: {{backoff: {{initial: 50ms, max: 1s}}}}
"#,
        input.name
    )
}

fn numbers(topic: &Topic) -> Vec<usize> {
    let records = topic.committed().0.into_iter();
    let number = |value: Option<String>| {
        let value = value.expect("every row has a value");
        let value: serde_json::Value = serde_json::from_str(&value).expect("values are JSON");
        usize::try_from(value["n"].as_u64().expect("a number")).expect("numbers are small")
    };
    let mut numbers: Vec<usize> = records.map(|record| number(record.value)).collect();
    numbers.sort_unstable();
    numbers
}

#[tokio::test(flavor = "multi_thread")]
async fn sinks_of_one_job_never_fence_each_other_x4_attack_12() {
    let broker = Broker::shared();
    let input = broker.topic("in", 2, &[]).await;
    let outputs = [
        broker.topic("out-a", 2, &[]).await,
        broker.topic("out-b", 2, &[]).await,
        broker.topic("out-c", 2, &[]).await,
    ];
    let writer = input.writer();
    for n in 0..ROWS {
        let partition = i32::from(n % 2 == 1);
        writer.send(partition, None, Some(&format!("{{\"n\":{n}}}")));
    }
    writer.drain();
    let job = Workspace::new(&document(&broker, &input, &outputs));

    let mut running = job.start(&[]);
    let some = || outputs.iter().all(|topic| !topic.committed().0.is_empty());
    assert!(running.wait_until(some), "{}", running.log());
    running.let_run(Duration::from_millis(100));
    let log = running.log();
    running.kill();
    let ended = job.run(&["--parallelism", "1"]);

    ended.check_code(0);
    for said in [&log, &ended.stderr] {
        assert!(!said.contains("attempt failed"), "{said}");
    }
    for topic in &outputs {
        assert_eq!(numbers(topic), (0..ROWS).collect::<Vec<_>>());
    }
}
