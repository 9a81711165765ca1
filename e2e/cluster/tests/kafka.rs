//! Kafka to Kafka, exactly once, while pods die.

use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use streamforge_e2e_cluster::{
    Namespace, TASK_MANAGERS_DIE, apply, bucket_folder, eventually, finish, s3_settings, variable,
    workspace,
};
use streamforge_process::Random;

/// Kills of one test.
const KILLS: u32 = 3;

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

fn document(namespace: &Namespace, from: &str, to: &str) -> String {
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
      rateLimit: {{rowsPerSecond: 20000}}
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

#[test]
fn kafka_to_kafka_is_exact_although_pods_die() {
    let namespace = Namespace::create("kafka");
    namespace.announce(&TASK_MANAGERS_DIE);
    let (from, to) = (
        format!("{}-in", namespace.name()),
        format!("{}-out", namespace.name()),
    );
    make_topic(&from, "4");
    make_topic(&to, "3");
    fill(&from);
    let document = document(&namespace, &from, &to);
    apply(namespace.name(), &document).expect("the document is taken");
    eventually("the job runs", 90, || {
        (namespace.phase("spend") == "Running").then_some(())
    });

    let mut random = Random::seeded(9);
    for _ in 0..KILLS {
        // Not to wait for anything: a kill may come at any moment.
        sleep(Duration::from_millis(2_000 + random.below(3_000)));
        let pod = format!("spend-tm-{}", random.below(2));
        namespace.kubectl(&["delete", "pod", &pod, "--force", "--grace-period=0"]);
    }

    finish(&namespace, "spend", &document, 180);
}
