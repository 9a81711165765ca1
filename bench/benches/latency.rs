//! From a record's scheduled time to a consumer's hands: Kafka, a filter, Kafka.
//!
//! Owns: a producer that writes each record at the time written in it (a late record keeps its time,
//! so nothing hides a pause), a `streamforge run` of its own, and a `read_committed` consumer that
//! notes how old each record is. Every record must come out once, or the figure is an error.
//! Aims: p99 250 ms exactly once with checkpoints every 100 ms at 5,000 rows/s; p99 10 ms at least once
//! without state at half of the maximal load. `--relay` puts a loop of rdkafka calls, consumer to
//! producer, in the place of the job: what the broker and this machine leave possible.
//!
//! `e2e/services/with kafka -- cargo bench --bench latency -- --rate 5000 --seconds 30 --exactly-once`

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::message::Message;
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};
use rdkafka::{Offset, TopicPartitionList};

const PARTITIONS: i32 = 4;
const PATIENCE: Duration = Duration::from_secs(60);

struct Arguments {
    rate: u64,
    seconds: u64,
    /// Seconds of the same load before: until connections, memory and the broker's compiler have settled.
    warm: u64,
    exactly_once: bool,
    relay: bool,
    checkpoint_ms: u64,
    bootstrap: String,
    binary: PathBuf,
}

fn arguments() -> Arguments {
    let mut all: HashMap<String, String> = HashMap::new();
    let mut given = std::env::args().skip(1).peekable();
    while let Some(name) = given.next() {
        let value = given.next_if(|next| !next.starts_with("--"));
        all.insert(name, value.unwrap_or_default());
    }
    let number = |name: &str, default: u64| {
        let value = all.get(name).map(|value| value.parse());
        value.map_or(default, |value| value.expect("a number"))
    };
    let folder = std::env::var("CARGO_TARGET_DIR").unwrap_or_else(|_| "target".to_owned());
    let binary = std::env::var("STREAMFORGE_BIN");
    let binary = binary.unwrap_or_else(|_| format!("{folder}/release/streamforge"));
    Arguments {
        rate: number("--rate", 5_000),
        seconds: number("--seconds", 30),
        warm: number("--warm", 30),
        exactly_once: all.contains_key("--exactly-once"),
        relay: all.contains_key("--relay"),
        checkpoint_ms: number("--checkpoint-ms", 100),
        bootstrap: std::env::var("KAFKA_BOOTSTRAP").expect("KAFKA_BOOTSTRAP names a broker"),
        binary: std::fs::canonicalize(binary).expect("a build of streamforge"),
    }
}

fn now_us() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    u64::try_from(since.expect("a clock after 1970").as_micros()).expect("before the year 500,000")
}

fn document(arguments: &Arguments, input: &str, output: &str) -> String {
    let delivery = if arguments.exactly_once {
        "ExactlyOnce"
    } else {
        "AtLeastOnce"
    };
    format!(
        r#"
apiVersion: streamforge.io/v1alpha1
kind: StreamJob
metadata: {{name: latency}}
spec:
  parallelism: 2
  sources:
    - name: events
      kafka: {{bootstrapServers: "{bootstrap}", topics: [{input}], startFrom: Earliest}}
      format: {{json: {{}}}}
      schema: [{{name: id, type: BIGINT}}, {{name: at, type: BIGINT}}, {{name: filler, type: TEXT}}]
  transforms:
    - {{name: good, from: events, filter: "id >= 0"}}
  sinks:
    - name: out
      from: good
      kafka: {{bootstrapServers: "{bootstrap}", topic: {output}}}
      format: {{json: {{}}}}
      delivery: {delivery}
  checkpoint: {{interval: {checkpoint_ms}ms}}
"#,
        bootstrap = arguments.bootstrap,
        checkpoint_ms = arguments.checkpoint_ms,
    )
}

fn create_topics(bootstrap: &str, names: [&str; 2]) {
    let admin: AdminClient<DefaultClientContext> = ClientConfig::new()
        .set("bootstrap.servers", bootstrap)
        .create()
        .expect("a client");
    let topics = names.map(|name| NewTopic::new(name, PARTITIONS, TopicReplication::Fixed(1)));
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let created = runtime.block_on(admin.create_topics(&topics, &AdminOptions::new()));
    for topic in created.expect("the broker answers") {
        topic.expect("a new topic");
    }
}

/// A job that ends with its handle.
struct Job(Child);

impl Drop for Job {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

fn start_job(arguments: &Arguments, folder: &Path, input: &str, output: &str) -> Job {
    std::fs::write(folder.join("job.yaml"), document(arguments, input, output)).expect("a file");
    let log = std::fs::File::create(folder.join("log")).expect("a file");
    let child = Command::new(&arguments.binary)
        .args(["run", "job.yaml", "--store", "store"])
        .current_dir(folder)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log)
        .spawn();
    Job(child.expect("the job starts"))
}

/// The record's way without a job: as it comes, it goes out. Ends when told, or with the process.
fn relay(bootstrap: &str, input: &str, output: &str, ended: &AtomicBool) {
    let (consumer, producer) = (consumer(bootstrap, input), producer(bootstrap));
    while !ended.load(Ordering::Relaxed) {
        producer.poll(Duration::ZERO);
        let Some(message) = consumer.poll(Duration::from_millis(20)) else {
            continue;
        };
        let message = message.expect("a record");
        let record = BaseRecord::<(), [u8]>::to(output).partition(message.partition());
        let sent = producer.send(record.payload(message.payload().expect("a value")));
        sent.map_err(|(error, _)| error).expect("queued");
    }
}

fn producer(bootstrap: &str) -> BaseProducer {
    ClientConfig::new()
        .set("bootstrap.servers", bootstrap)
        .set("linger.ms", "1")
        .set("queue.buffering.max.messages", "1000000")
        .create()
        .expect("a client")
}

fn consumer(bootstrap: &str, output: &str) -> BaseConsumer {
    let consumer: BaseConsumer = ClientConfig::new()
        .set("bootstrap.servers", bootstrap)
        .set("group.id", "latency")
        .set("isolation.level", "read_committed")
        .set("fetch.wait.max.ms", "5")
        .create()
        .expect("a client");
    let mut partitions = TopicPartitionList::new();
    for partition in 0..PARTITIONS {
        let added = partitions.add_partition_offset(output, partition, Offset::Beginning);
        added.expect("a valid offset");
    }
    consumer.assign(&partitions).expect("assigned");
    consumer
}

/// The number after `"name":`.
fn field(payload: &[u8], name: &str) -> u64 {
    let text = std::str::from_utf8(payload).expect("JSON");
    let (_, rest) = text.split_once(name).expect("the field is there");
    let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().expect("a number")
}

/// Writes records `first..`, each at its time; the schedule does not wait for the broker.
fn produce(bootstrap: &str, input: &str, first: u64, rows_n: u64, rate: u64) {
    let producer = producer(bootstrap);
    let began = now_us();
    let filler = "x".repeat(60);
    for n in 0..rows_n {
        let at = began + n * 1_000_000 / rate;
        let mut now = now_us();
        while now < at {
            producer.poll(Duration::ZERO);
            std::thread::sleep(Duration::from_micros((at - now).clamp(50, 500)));
            now = now_us();
        }
        let id = first + n;
        let payload = format!("{{\"id\":{id},\"at\":{at},\"filler\":\"{filler}\"}}");
        let partition = i32::try_from(id % PARTITIONS as u64).expect("small");
        let record = BaseRecord::<(), str>::to(input).payload(&payload);
        let sent = producer.send(record.partition(partition));
        sent.map_err(|(error, _)| error).expect("queued");
        if n % 100 == 0 {
            producer.poll(Duration::ZERO);
        }
    }
    producer.flush(PATIENCE).expect("all delivered");
}

/// How old each of the records behind the first `warm_n` is when it arrives, in microseconds.
fn consume(consumer: &BaseConsumer, warm_n: u64, rows_n: u64) -> Vec<u64> {
    let mut seen = vec![false; usize::try_from(warm_n + rows_n).expect("fits")];
    let mut seen_n = 0;
    let mut ages = Vec::with_capacity(seen.len());
    let mut heard = Instant::now();
    while seen_n < seen.len() {
        let Some(message) = consumer.poll(Duration::from_millis(100)) else {
            let quiet = heard.elapsed();
            assert!(quiet < PATIENCE, "{seen_n} of {} records came", seen.len());
            continue;
        };
        heard = Instant::now();
        let message = message.expect("a record");
        let payload = message.payload().expect("a value");
        let id = field(payload, "\"id\":");
        let first = seen.get_mut(usize::try_from(id).expect("fits"));
        let twice = std::mem::replace(first.expect("a record of ours"), true);
        assert!(!twice, "record {id} came twice");
        seen_n += 1;
        if id >= warm_n {
            ages.push(now_us().saturating_sub(field(payload, "\"at\":")));
        }
    }
    ages
}

fn main() {
    // `cargo test --benches` runs it without a broker.
    if std::env::args().any(|it| it == "--test" || it == "--list") {
        return;
    }
    let arguments = arguments();
    let run = now_us();
    let (input, output) = (format!("latency-in-{run}"), format!("latency-out-{run}"));
    create_topics(&arguments.bootstrap, [&input, &output]);
    let folder = std::env::temp_dir().join(format!("streamforge-latency-{run}"));
    std::fs::create_dir_all(&folder).expect("a folder");
    let ended = Arc::new(AtomicBool::new(false));
    let between = if arguments.relay {
        let (ended, from, to) = (Arc::clone(&ended), input.clone(), output.clone());
        let bootstrap = arguments.bootstrap.clone();
        std::thread::spawn(move || relay(&bootstrap, &from, &to, &ended));
        None
    } else {
        Some(start_job(&arguments, &folder, &input, &output))
    };
    let consumer = consumer(&arguments.bootstrap, &output);

    let warm_n = arguments.rate * arguments.warm;
    let (bootstrap, topic, rate) = (arguments.bootstrap.clone(), input, arguments.rate);
    let rows_n = rate * arguments.seconds;
    let producing = std::thread::spawn(move || {
        produce(&bootstrap, &topic, 0, warm_n, rate);
        produce(&bootstrap, &topic, warm_n, rows_n, rate);
    });
    let mut ages = consume(&consumer, warm_n, rows_n);
    producing.join().expect("the producer ends");
    ended.store(true, Ordering::Relaxed);
    drop(between);

    ages.sort_unstable();
    let at = |share: f64| {
        let idx = ((ages.len() - 1) as f64 * share) as usize;
        ages[idx] as f64 / 1_000.0
    };
    println!(
        "{} at {} rows/s for {} s, checkpoints every {} ms: p50 {:.1} ms, p90 {:.1} ms, p99 {:.1} ms, \
         p99.9 {:.1} ms, max {:.1} ms; {} records, each once",
        match (arguments.relay, arguments.exactly_once) {
            (true, _) => "relay",
            (false, true) => "exactly once",
            (false, false) => "at least once",
        },
        arguments.rate,
        arguments.seconds,
        arguments.checkpoint_ms,
        at(0.5),
        at(0.9),
        at(0.99),
        at(0.999),
        at(1.0),
        ages.len(),
    );
    drop(std::fs::remove_dir_all(&folder));
}
