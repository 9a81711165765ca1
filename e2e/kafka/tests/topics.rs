//! Topics that change under a job, and documents that name others than before.

#![expect(clippy::unwrap_used, reason = "a test that cannot set up must fail")]

use std::collections::BTreeSet;
use std::io::copy;
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use streamforge_connectors::kafka::lookup::LookupPlace;
use streamforge_connectors::kafka::topic_settings::TopicView;
use streamforge_e2e_kafka::{Broker, Topic};
use streamforge_process::{Running, Workspace};

/// Rows go through as they are; `topics` and `more` are of the source and the sink.
fn document(broker: &Broker, source: &str, to: &Topic, delivery: &str) -> String {
    let (servers, topic) = (broker.servers(), &to.name);
    format!(
        r#"apiVersion: streamforge.io/v1alpha1
kind: StreamJob
metadata: {{name: topics}}
spec:
  sources:
  - name: rows
    kafka: {{bootstrapServers: "{servers}", endAt: Latest, {source}}}
    format: {{json: {{}}}}
    schema: [{{name: n, type: BIGINT}}]
    rateLimit: {{rowsPerSecond: 2000}}
  sinks:
  - name: out
    from: rows
    kafka: {{bootstrapServers: "{servers}", topic: "{topic}"}}
    format: {{json: {{}}}}
    delivery: {delivery}
  checkpoint: {{interval: 150ms}}
  restart: {{maxFailures: 2, backoff: {{initial: 50ms, max: 1s}}}}
"#
    )
}

fn write(topic: &Topic, rows: std::ops::Range<u32>) {
    let writer = topic.writer();
    for n in rows {
        writer.send(0, None, Some(&format!("{{\"n\":{n}}}")));
    }
    writer.drain();
}

/// Until rows of a few checkpoints are in the topic.
fn run_into_checkpoints(running: &mut Running) {
    while running.log().matches("checkpoint completed").count() < 6 {
        assert!(!running.has_ended(), "{}", running.log());
        running.let_run(Duration::from_millis(20));
    }
}

/// KF-K1: brokers take rows by a topic's name, and nobody else would notice.
#[tokio::test(flavor = "multi_thread")]
async fn kf_k1_an_output_topic_made_anew_under_a_running_job_ends_it_with_both_identities() {
    let broker = Broker::shared();
    let from = broker.topic("in", 1, &[]).await;
    write(&from, 0..40_000);
    for delivery in ["ExactlyOnce", "AtLeastOnce"] {
        let to = broker.topic("out", 1, &[]).await;
        let source = format!("topics: [\"{}\"]", from.name);
        let job = Workspace::new(&document(&broker, &source, &to, delivery));
        let mut running = job.start(&[]);
        run_into_checkpoints(&mut running);

        broker.delete_topic(&to.name).await;
        broker.make_topic(&to.name, 1, &[]).await;

        let ended = running.wait();
        ended.check_code(1);
        let text = &ended.stderr;
        let said = text.contains("deleted and re-created since rows were written");
        assert!(said && text.contains("its identity was"), "{text}");
        // Of 20 s of rows those of a few seconds at most.
        let lost = to.written().len();
        assert!(lost < 20_000, "{delivery}: {lost} rows in another topic");
    }
}

/// An address at which this broker's clients may begin, and how many connections were made there: a client
/// makes one, and then goes to the brokers that it is told of.
fn door(broker: &Broker) -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let (servers, came_n) = (broker.servers().to_owned(), Arc::<AtomicUsize>::default());
    let counted = Arc::clone(&came_n);
    std::thread::spawn(move || {
        for client in listener.incoming().flatten() {
            counted.fetch_add(1, Ordering::SeqCst);
            let server = TcpStream::connect(&servers).unwrap();
            let back = (server.try_clone().unwrap(), client.try_clone().unwrap());
            std::thread::spawn(move || copy(&mut &client, &mut &server));
            std::thread::spawn(move || copy(&mut &back.0, &mut &back.1));
        }
    });
    (address, came_n)
}

/// Threads of clients of Kafka in this process.
fn client_threads_n() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let names = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok());
    names.filter(|name| name.starts_with("rdk:")).count()
}

/// KF-K1: a sink looks every few seconds. Of this many partitions an answer makes more lines of a log than a
/// client is wont to take in at a time.
#[tokio::test(flavor = "multi_thread")]
async fn kf_k1_looks_at_a_topic_are_one_clients_and_it_tells_the_topic_made_anew() {
    let broker = Broker::shared();
    let topic = broker.topic("seen", 120, &[]).await;
    let (address, came_n) = door(&broker);
    let secrets = tempfile::tempdir().unwrap();
    let secret = secrets.path().join("mine");
    std::fs::create_dir(&secret).unwrap();
    std::fs::write(secret.join("username"), "me").unwrap();
    std::fs::write(secret.join("password"), "old").unwrap();
    // The broker wants no password; a client that is given another one is another client all the same.
    let access = format!(
        r#"{{"bootstrapServers":"{address}",
            "security":{{"protocol":"Plaintext","credentialsSecret":{{"name":"mine"}}}}}}"#
    );
    let access = serde_json::from_str(&access).unwrap();
    let place = LookupPlace::new(access, Some(secrets.path().to_owned()));
    let look = async || TopicView::identity(&place, &topic.name).await.unwrap();

    let first = look().await;
    assert!(first.is_some());
    let (came_first_n, threads_n) = (came_n.load(Ordering::SeqCst), client_threads_n());
    for _ in 0..20 {
        assert_eq!(look().await, first);
    }
    assert_eq!(came_n.load(Ordering::SeqCst), came_first_n);
    assert_eq!(client_threads_n(), threads_n);

    broker.delete_topic(&topic.name).await;
    broker.make_topic(&topic.name, 120, &[]).await;
    // The broker hears of both a moment after the controller; until then others are asked.
    let began = Instant::now();
    loop {
        let other = LookupPlace::new(place.access.clone(), place.secrets.clone());
        match TopicView::identity(&other, &topic.name).await {
            Ok(told) if told != first => break,
            Ok(_) | Err(_) => assert!(began.elapsed() < Duration::from_secs(60)),
        }
    }
    let came_others_n = came_n.load(Ordering::SeqCst);
    let anew = look().await;
    assert!(anew.is_some() && anew != first, "{first:?}, then {anew:?}");
    assert_eq!(came_n.load(Ordering::SeqCst), came_others_n);

    std::fs::write(secret.join("password"), "new").unwrap();
    assert_eq!(look().await, anew);
    assert!(came_n.load(Ordering::SeqCst) > came_others_n);
}

/// C10: what the document names is read, and what it does not name any more is not forgotten in silence.
#[tokio::test(flavor = "multi_thread")]
async fn topics_that_a_bounded_source_gains_are_read_and_lost_ones_are_refused_c10() {
    let broker = Broker::shared();
    let (a, b) = (
        broker.topic("ta", 1, &[]).await,
        broker.topic("tb", 2, &[]).await,
    );
    let to = broker.topic("out", 2, &[]).await;
    write(&a, 0..6_000);
    write(&b, 6_000..7_000);
    let topics = |named: &[&Topic]| {
        let names: Vec<_> = named.iter().map(|it| format!("{:?}", it.name)).collect();
        document(
            &broker,
            &format!("topics: [{}]", names.join(", ")),
            &to,
            "ExactlyOnce",
        )
    };
    let job = Workspace::new(&topics(&[&a]));
    let mut running = job.start(&[]);
    run_into_checkpoints(&mut running);
    running.signal(Signal::INT);
    running.wait().check_code(3);

    job.write("job.yaml", topics(&[&b]));
    let refused = job.run(&[]);
    let text = &refused.check_code(1).stderr;
    let sentence = format!("no longer names `{}`", a.name);
    assert!(text.contains(&sentence), "{text}");

    job.write("job.yaml", topics(&[&a, &b]));
    job.run(&["--parallelism", "2"]).check_code(0);
    let values = to.committed().values();
    assert_eq!(values.len(), 7_000);
    assert_eq!(values.iter().collect::<BTreeSet<_>>().len(), 7_000);
}

/// C10: a topic that is named and not there is nobody's topic without rows. It ends a first start, and a later one of
/// a job that has read others; once it is there, the next start reads it from its begin.
#[tokio::test(flavor = "multi_thread")]
async fn topic_that_is_missing_at_a_start_is_refused_by_name_and_read_whole_once_it_is_made_c10() {
    let broker = Broker::shared();
    let early = broker.topic_to_be("early", 2);
    let other = broker.topic("there", 1, &[]).await;
    let late = broker.topic_to_be("late", 3);
    let to = broker.topic("out", 2, &[]).await;
    write(&other, 0..6_000);
    let topics = |named: &[&Topic]| {
        let names: Vec<_> = named.iter().map(|it| format!("{:?}", it.name)).collect();
        let source = format!("topics: [{}]", names.join(", "));
        document(&broker, &source, &to, "ExactlyOnce")
    };
    let job = Workspace::new(&topics(&[&other, &early]));
    let is_refused = |missing: &Topic| {
        let ended = job.run(&[]);
        let text = &ended.check_code(1).stderr;
        let sentence = format!("topic `{}` does not exist on kafka", missing.name);
        assert!(text.contains(&sentence), "{text}");
    };
    is_refused(&early);
    assert!(to.written().is_empty(), "rows before the refusal");

    broker.make_topic(&early.name, 2, &[]).await;
    write(&early, 6_000..7_000);
    let mut running = job.start(&[]);
    run_into_checkpoints(&mut running);
    running.signal(Signal::INT);
    running.wait().check_code(3);
    let before = to.committed();
    assert!(!before.is_empty());

    job.write("job.yaml", topics(&[&other, &early, &late]));
    is_refused(&late);
    assert_eq!(to.committed(), before, "the refused start has published");

    broker.make_topic(&late.name, 3, &[]).await;
    write(&late, 7_000..8_000);
    job.run(&["--parallelism", "2"]).check_code(0);
    let after = to.committed();
    assert!(before.is_continued_by(&after));
    let values = after.values();
    let wanted: BTreeSet<_> = (0..8_000).map(|n| format!("{{\"n\":{n}}}")).collect();
    assert_eq!(values.len(), wanted.len());
    assert!(values.into_iter().collect::<BTreeSet<_>>() == wanted);
}

/// A pattern of a bounded read is resolved once; who edits it is told what that leaves out.
#[tokio::test(flavor = "multi_thread")]
async fn topics_that_a_bounded_pattern_leaves_out_are_named() {
    let broker = Broker::shared();
    let (a, b) = (
        broker.topic("pa", 1, &[]).await,
        broker.topic("pb", 1, &[]).await,
    );
    let to = broker.topic("out", 1, &[]).await;
    write(&a, 0..12_000);
    let source = format!("topics: [\"{}\"]", a.name);
    let job = Workspace::new(&document(&broker, &source, &to, "ExactlyOnce"));
    let mut running = job.start(&[]);
    run_into_checkpoints(&mut running);
    running.signal(Signal::INT);
    running.wait().check_code(3);

    let source = format!("topicPattern: \"{}|{}\"", a.name, b.name);
    job.write("job.yaml", document(&broker, &source, &to, "ExactlyOnce"));
    let ended = job.run(&[]);
    let text = &ended.check_code(0).stderr;
    assert!(text.contains("topicPattern means topics"), "{text}");
    assert!(text.contains(&b.name), "{text}");
}
