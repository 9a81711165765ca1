//! Kafka to Kafka, exactly once, while pods die.

use std::process::Command;

use streamforge_e2e_cluster::{
    Namespace, TASK_MANAGERS_DIE, apply, bucket_folder, eventually, finish, kill_pods, s3_settings,
    variable, workspace,
};

const SCHEMA: &str = r#"      schema:
        - {name: user_id, type: TEXT, nullable: false}
        - {name: page, type: TEXT}
        - {name: type, type: TEXT}
        - {name: amount, type: "DECIMAL(10,2)"}
        - {name: ts, type: TIMESTAMP}
"#;

fn make_topic(name: &str, partitions: &str) {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../services/kafka");
    let broker = variable("KAFKA_BOOTSTRAP");
    let output = Command::new(script)
        .args([
            "tool",
            "org.apache.kafka.tools.TopicCommand",
            "--bootstrap-server",
        ])
        .args([
            &broker,
            "--create",
            "--topic",
            name,
            "--partitions",
            partitions,
        ])
        .output()
        .expect("the script is there");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

fn fill(topic: &str) {
    let broker = variable("KAFKA_BOOTSTRAP");
    let document = format!(
        r#"
apiVersion: streamforge.io/v1alpha1
kind: StreamJob
metadata: {{name: fill}}
spec:
  parallelism: 2
  sources:
    - name: clicks
      generator: {{clicks: {{rows: 400000, users: 500, skew: 1.1, outOfOrderness: 2s, lateFraction: 0.002, badFraction: 0.001, seed: 11}}}}
      eventTime: {{column: ts, maxOutOfOrderness: 2s}}
  sinks:
    - {{name: topic, from: clicks, kafka: {{bootstrapServers: "{broker}", topic: {topic}, key: [user_id]}}, format: {{json: {{}}}}}}
"#
    );
    workspace(&document)
        .at(&["--store", "store"])
        .run(&[])
        .check_code(0);
}

fn document(namespace: &Namespace, from: &str, to: &str, rate: u32) -> String {
    let broker = variable("POD_KAFKA_BOOTSTRAP");
    let (folder, s3) = (bucket_folder(namespace), s3_settings());
    format!(
        r#"
apiVersion: streamforge.io/v1alpha1
kind: StreamJob
metadata: {{name: spend}}
spec:
  parallelism: 4
  sources:
    - name: clicks
      kafka: {{bootstrapServers: "{broker}", topics: [{from}], startFrom: Earliest, endAt: Latest}}
      format: {{json: {{}}}}
{SCHEMA}      eventTime: {{column: ts, maxOutOfOrderness: 5m}}
      rateLimit: {{rowsPerSecond: {rate}}}
  transforms:
    - name: per_user
      from: clicks
      aggregate:
        groupBy: [user_id]
        window: {{tumbling: {{size: 1s}}}}
        select: ["count(*) AS clicks", "sum(amount) AS spend"]
  sinks:
    - {{name: out, from: per_user, kafka: {{bootstrapServers: "{broker}", topic: {to}, key: [user_id]}}, format: {{json: {{}}}}}}
    - {{name: late, from: per_user.late, file: {{path: "{folder}/late/", s3: {s3}}}, format: {{json: {{}}}}}}
  checkpoint: {{interval: 500ms, storage: {{uri: "{folder}/store", s3: {s3}}}}}
  taskManager: {{slots: 2}}
"#
    )
}

/// Kills pods of a job that reads so many rows per second, and compares what it has written with the oracle.
fn is_exact(test: &str, kills_n: usize, rate: u32) {
    let namespace = Namespace::create(test);
    namespace.announce(&TASK_MANAGERS_DIE);
    // A pod that is killed in a transaction leaves it to the next one, which the broker tells to wait.
    namespace.announce(&["publish failed", "waiting for kafka"]);
    let (from, to) = (
        format!("{}-in", namespace.name()),
        format!("{}-out", namespace.name()),
    );
    make_topic(&from, "4");
    make_topic(&to, "3");
    fill(&from);
    let document = document(&namespace, &from, &to, rate);
    apply(namespace.name(), &document).expect("the document is taken");
    eventually("the job runs", 90, || {
        (namespace.phase("spend") == "Running").then_some(())
    });

    kill_pods(&namespace, "spend", kills_n, 9);

    finish(&namespace, "spend", &document, 180);
}

#[test]
fn kafka_to_kafka_is_exact_although_pods_die() {
    is_exact("kafka", 3, 20_000);
}

/// `make e2e-slow`.
mod slow {
    use super::*;

    #[test]
    fn kafka_to_kafka_is_exact_although_twenty_pods_die() {
        is_exact("kafka-twenty", 20, 3_000);
    }
}
