//! The source against a real broker.

use std::time::Duration;

use serde_json::{Value, json};
use streamforge_core::data_type::DataType;
use streamforge_core::manifest::SplitProgress;
use streamforge_e2e_kafka::source::{Said, Source, read_until};
use streamforge_e2e_kafka::{Broker, Topic};

fn config(broker: &Broker, topic: &Topic, more: Value) -> Value {
    let mut config = json!({"bootstrapServers": broker.servers(), "topics": [topic.name]});
    let (Value::Object(config_map), Value::Object(more)) = (&mut config, more) else {
        panic!("blocks are objects");
    };
    config_map.extend(more);
    config
}

fn bounded(broker: &Broker, topic: &Topic) -> Source {
    Source::new(config(broker, topic, json!({"endAt": "Latest"})), &[])
}

fn unbounded(broker: &Broker, topic: &Topic) -> Source {
    Source::new(config(broker, topic, json!({})), &[])
}

fn sorted(rows: &[String]) -> Vec<String> {
    let mut rows = rows.to_vec();
    rows.sort();
    rows
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bounded_read_ends_at_the_offsets_seen_at_the_start() {
    let broker = Broker::shared();
    let topic = broker.topic("bounded", 3, &[]).await;
    topic.write(0, ["a", "b"]);
    topic.write(2, ["c"]);
    let source = bounded(&broker, &topic);
    let splits = source.list().await.unwrap();
    topic.write(0, ["after the start"]);

    let mut reader = source.open(&splits).await.unwrap();
    let said = read_until(&mut *reader, |said| said.done).await.unwrap();

    assert_eq!(sorted(&said.rows), ["a", "b", "c"]);
    assert_eq!(said.ended.len(), 3);
    assert_eq!(reader.read_units(), (3, 3));
    assert_eq!(reader.name_of(&splits[2].split), "partition 2");
}

/// KF-K8: nothing, one and two records.
#[tokio::test(flavor = "multi_thread")]
async fn kf_k8_short_topics_are_read_whole() {
    let broker = Broker::shared();
    for n in 0..3 {
        let topic = broker.topic("short", 1, &[]).await;
        topic.write(0, ["x"; 3].into_iter().take(n));

        let said = bounded(&broker, &topic).read_all().await.unwrap();

        assert_eq!(said.rows.len(), n);
    }
}

/// KF-K5: the tail is an aborted transaction and control records; only committed rows are read.
#[tokio::test(flavor = "multi_thread")]
async fn kf_k5_a_bounded_read_ends_behind_aborted_records() {
    let broker = Broker::shared();
    let topic = broker.topic("aborted", 1, &[]).await;
    let writer = topic.transactional_writer(&topic.name);
    writer.begin();
    writer.send(0, None, Some("committed"));
    writer.commit();
    writer.begin();
    writer.send(0, None, Some("aborted"));
    writer.abort();

    let said = bounded(&broker, &topic).read_all().await.unwrap();

    assert_eq!(said.rows, ["committed"]);
}

/// KF-K13, attack 33: an open transaction hides what is behind it; the read waits, says why, and
/// goes on.
#[tokio::test(flavor = "multi_thread")]
async fn kf_k13_a_bounded_read_waits_for_an_open_transaction_and_names_it() {
    let broker = Broker::shared();
    let topic = broker.topic("open", 1, &[]).await;
    let writer = topic.transactional_writer(&topic.name);
    writer.begin();
    writer.send(0, None, Some("open"));
    writer.drain();
    topic.write(0, ["behind"]);
    let source = bounded(&broker, &topic);
    let splits = source.list().await.unwrap();
    let mut reader = source.open(&splits).await.unwrap();
    loop {
        let event = reader.next().await.unwrap();
        assert!(!matches!(
            event,
            streamforge_engine::source::SourceEvent::Ended
        ));
        let trouble = reader.health().trouble.unwrap_or_default();
        if trouble.contains("waits for an open transaction") {
            break;
        }
    }

    writer.commit();
    let said = read_until(&mut *reader, |said| said.done).await.unwrap();

    assert_eq!(said.rows, ["open", "behind"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn hidden_columns_show_where_a_record_came_from() {
    let broker = Broker::shared();
    let topic = broker.topic("hidden", 2, &[]).await;
    let writer = topic.writer();
    writer.send(1, Some("k"), Some("x"));
    writer.send(1, None, Some("y"));
    writer.drain();
    let hidden = [
        ("_key", DataType::Bytea),
        ("_topic", DataType::Text),
        ("_partition", DataType::Int),
        ("_offset", DataType::BigInt),
    ];
    let source = Source::new(config(&broker, &topic, json!({"endAt": "Latest"})), &hidden);

    let said = source.read_all().await.unwrap();

    let name = &topic.name;
    assert_eq!(
        said.rows,
        [format!("x|6b|{name}|1|0"), format!("y|NULL|{name}|1|1")]
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bad_record_names_its_topic_partition_and_offset() {
    let broker = Broker::shared();
    let topic = broker.topic("bad", 2, &[]).await;
    topic.write(1, [r#"{"v":"a"}"#, "not json", r#"{"v":"b"}"#]);
    let source = bounded(&broker, &topic).with_format(streamforge_core::job_graph::Format::Json);

    let said = source.read_all().await.unwrap();

    assert_eq!(said.rows, ["a", "b"]);
    assert_eq!(said.bad, [format!("{} 1:1", topic.name)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_at_a_time_and_at_the_end_is_where_it_says() {
    let broker = Broker::shared();
    let topic = broker.topic("start", 1, &[]).await;
    topic.write(0, ["old"]);
    let latest = Source::new(config(&broker, &topic, json!({"startFrom": "Latest"})), &[]);
    let future = json!({"startFrom": "Timestamp", "startTimestamp": "2100-01-01T00:00:00Z"});
    let future = Source::new(config(&broker, &topic, future), &[]);
    let past = json!({"startFrom": "Timestamp", "startTimestamp": "2000-01-01T00:00:00Z"});
    let past = Source::new(config(&broker, &topic, past), &[]);

    let at = |splits: Vec<streamforge_core::manifest::SplitState>| splits[0].progress.clone();
    let offset = |n: u32| SplitProgress::At(n.to_string());
    assert_eq!(at(latest.list().await.unwrap()), offset(1));
    assert_eq!(at(future.list().await.unwrap()), offset(1));
    assert_eq!(at(past.list().await.unwrap()), offset(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_goes_on_right_behind_its_progress() {
    let broker = Broker::shared();
    let topic = broker.topic("resume", 1, &[]).await;
    topic.write(0, ["a", "b"]);
    let source = unbounded(&broker, &topic);
    let mut splits = source.list().await.unwrap();
    let mut first = source.open(&splits).await.unwrap();
    let said = read_until(&mut *first, |said| said.rows.len() == 2)
        .await
        .unwrap();
    drop(first);
    topic.write(0, ["c"]);
    splits[0].progress = said.progress[&splits[0].split.0].clone();

    let mut second = source.open(&splits).await.unwrap();
    let said = read_until(&mut *second, |said| !said.rows.is_empty())
        .await
        .unwrap();

    assert_eq!(said.rows, ["c"]);
}

/// T2, attack 33: in a topic whose last offset is a control record there is nothing, and it is told.
#[tokio::test(flavor = "multi_thread")]
async fn attack_33_a_topic_written_with_transactions_is_told_as_idle_t2() {
    let broker = Broker::shared();
    let topic = broker.topic("idle", 1, &[]).await;
    let writer = topic.transactional_writer(&topic.name);
    writer.begin();
    writer.send(0, None, Some("x"));
    writer.commit();

    let said = unbounded(&broker, &topic)
        .read(|said| !said.nothing_new.is_empty())
        .await
        .unwrap();

    assert_eq!(said.rows, ["x"]);
    let position = said.progress.values().next().unwrap();
    assert_eq!(
        *position,
        SplitProgress::At("2".to_owned()),
        "behind the control record"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_topic_is_refused_by_name() {
    let broker = Broker::shared();
    let topic = json!({"bootstrapServers": broker.servers(), "topics": ["no-such-topic"]});

    let error = Source::new(topic, &[]).list().await.unwrap_err();

    let text = error.with_causes();
    assert!(
        text.contains("topic `no-such-topic` does not exist"),
        "{text}"
    );
}

/// KF-K1.
#[tokio::test(flavor = "multi_thread")]
async fn kf_k1_a_topic_deleted_and_made_anew_is_refused_with_both_identities() {
    let broker = Broker::shared();
    let topic = broker.topic("recreated", 1, &[]).await;
    topic.write(0, ["old"; 100]);
    let source = unbounded(&broker, &topic);
    let mut splits = source.list().await.unwrap();
    assert!(
        splits[0].description.contains("topic_id\":\""),
        "{}",
        splits[0].description
    );
    splits[0].progress = SplitProgress::At("100".to_owned());
    broker.delete_topic(&topic.name).await;
    broker.make_topic(&topic.name, 1, &[]).await;
    topic.write(0, ["new"; 200]);

    let mut reader = source.open(&splits).await.unwrap();
    let error = read_until(&mut *reader, |said| !said.rows.is_empty())
        .await
        .unwrap_err();

    let text = error.with_causes();
    assert!(text.contains("deleted and re-created"), "{text}");
    assert!(text.contains("offset 100"), "{text}");
}

/// KF-K2.
#[tokio::test(flavor = "multi_thread")]
async fn kf_k2_records_deleted_before_they_were_read_fail_loudly_or_are_passed_over_when_allowed() {
    let broker = Broker::shared();
    let topic = broker.topic("retention", 1, &[]).await;
    let values: Vec<String> = (0..100).map(|n| n.to_string()).collect();
    topic.write(0, values.iter().map(String::as_str));
    broker.delete_records(&topic.name, 0, 40).await;
    let source = unbounded(&broker, &topic);
    let mut splits = source.list().await.unwrap();
    assert_eq!(splits[0].progress, SplitProgress::At("40".to_owned()));
    splits[0].progress = SplitProgress::At("17".to_owned());

    let mut reader = source.open(&splits).await.unwrap();
    let error = read_until(&mut *reader, |said| !said.rows.is_empty())
        .await
        .unwrap_err();
    let text = error.with_causes();
    assert!(
        text.contains("offset 17") && text.contains("is 40"),
        "{text}"
    );

    let allowed = json!({"onOffsetOutOfRange": "Earliest"});
    let allowed = Source::new(config(&broker, &topic, allowed), &[]);
    let mut reader = allowed.open(&splits).await.unwrap();
    let said = read_until(&mut *reader, |said| said.rows.len() == 60)
        .await
        .unwrap();
    assert_eq!(said.rows.first().map(String::as_str), Some("40"));
    assert_eq!(reader.health().skipped_n, 23, "17 to 39");
}

/// The same while the reader is at work.
#[tokio::test(flavor = "multi_thread")]
async fn an_offset_beyond_the_end_is_refused() {
    let broker = Broker::shared();
    let topic = broker.topic("beyond", 1, &[]).await;
    topic.write(0, ["x"]);
    let source = unbounded(&broker, &topic);
    let mut splits = source.list().await.unwrap();
    splits[0].progress = SplitProgress::At("50".to_owned());

    let mut reader = source.open(&splits).await.unwrap();
    let error = read_until(&mut *reader, |said| !said.rows.is_empty())
        .await
        .unwrap_err();

    let text = error.with_causes();
    assert!(
        text.contains("offset 50") && text.contains("ends at 1"),
        "{text}"
    );
}

/// KF-K12: a pattern finds a topic that is made later, and partitions that are added.
#[tokio::test(flavor = "multi_thread")]
async fn kf_k12_new_partitions_and_topics_are_found_and_read_from_their_begin() {
    let broker = Broker::shared();
    let topic = broker.topic("found", 1, &[]).await;
    topic.write(0, ["a"]);
    let pattern = json!({
        "bootstrapServers": broker.servers(),
        "topicPattern": format!("{}(-later)?", topic.name),
    });
    let source = Source::new(pattern, &[]);
    let splits = source.list().await.unwrap();
    assert_eq!(splits.len(), 1);
    let mut reader = source.open(&splits).await.unwrap();
    let name = format!("partition 0 of {}", topic.name);
    assert_eq!(reader.name_of(&splits[0].split), name);
    read_until(&mut *reader, |said| said.rows.len() == 1)
        .await
        .unwrap();

    broker.grow_topic(&topic.name, 2).await;
    topic.write(1, ["b"]);
    let later = format!("{}-later", topic.name);
    broker.make_topic(&later, 1, &[]).await;
    let said = read_until(&mut *reader, |said| {
        said.discovered.len() == 2 && !said.rows.is_empty()
    })
    .await
    .unwrap();

    assert_eq!(said.rows, ["b"]);
    let mut found: Vec<&str> = said.discovered.iter().map(|s| s.split.0.as_str()).collect();
    found.sort_unstable();
    assert_eq!(found, [format!("{later}/0"), format!("{}/1", topic.name)]);
}

/// KF-K6: nothing is read through a group, so a slow one cannot starve the read.
#[tokio::test(flavor = "multi_thread")]
async fn kf_k6_the_reader_joins_no_group() {
    let broker = Broker::shared();
    let topic = broker.topic("nogroup", 4, &[]).await;
    for partition in 0..4 {
        topic.write(partition, ["x"]);
    }
    let source = bounded(&broker, &topic);
    let (one, two) = tokio::join!(source.read_all(), source.read_all());

    assert_eq!(one.unwrap().rows.len(), 4, "two readers do not share");
    assert_eq!(two.unwrap().rows.len(), 4);
}

/// KF-K10: a broker that is away is told, fails nothing, and is read on when it is back.
#[tokio::test(flavor = "multi_thread")]
async fn kf_k10_a_broker_that_is_away_is_trouble_and_no_failure() {
    let broker = Broker::own(19_392, "");
    let topic = broker.topic("away", 1, &[]).await;
    topic.write(0, ["a"]);
    let source = unbounded(&broker, &topic);
    let splits = source.list().await.unwrap();
    let mut reader = source.open(&splits).await.unwrap();
    read_until(&mut *reader, |said| said.rows.len() == 1)
        .await
        .unwrap();
    while reader.health().lag_records != Some(0) {
        reader.next().await.unwrap();
    }
    broker.kill();
    let mut told = false;
    let mut idle_n = 0;
    for _ in 0..2_000 {
        if matches!(
            reader.next().await.unwrap(),
            streamforge_engine::source::SourceEvent::NothingNew(_)
        ) {
            idle_n += 1;
        }
        let trouble = reader.health().trouble.unwrap_or_default();
        if trouble.contains("no answer from the leader") {
            told = true;
            idle_n = 0;
            break;
        }
    }
    assert!(told, "the silence is told");
    for _ in 0..50 {
        let event = reader.next().await.unwrap();
        idle_n += usize::from(matches!(
            event,
            streamforge_engine::source::SourceEvent::NothingNew(_)
        ));
    }
    assert_eq!(idle_n, 0, "T2: an unreachable partition is not idle");
    let health = reader.health();
    assert!(health.is_unreachable, "{health:?}");
    assert_eq!(health.lag_records, None, "what is there is not known");

    broker.start();
    topic.write(0, ["b"]);
    let said = read_until(&mut *reader, |said| !said.rows.is_empty())
        .await
        .unwrap();

    assert_eq!(said.rows, ["b"]);
    // Attack 32: what was known of it is older than the row.
    assert!(said.nothing_new.is_empty(), "T2: {said:?}");
    let began = std::time::Instant::now();
    while reader.health().lag_records != Some(0) {
        reader.next().await.unwrap();
        let health = reader.health();
        assert!(began.elapsed() < Duration::from_secs(60), "{health:?}");
    }
    assert!(!reader.health().is_unreachable, "it is over");
}

/// A restore while the broker is away waits for it: no attempt fails.
#[tokio::test(flavor = "multi_thread")]
async fn a_restore_waits_for_a_broker_that_is_away() {
    let broker = Broker::own(19_412, "");
    let topic = broker.topic("waits", 1, &[]).await;
    topic.write(0, ["a"]);
    let source = unbounded(&broker, &topic);
    let splits = source.list().await.unwrap();
    broker.kill();
    let mut reader = source.open(&splits).await.unwrap();
    let began = std::time::Instant::now();
    while !reader.health().is_unreachable {
        let lag = reader.health().lag_records;
        assert_eq!(lag, None, "nobody was asked yet");
        reader.next().await.unwrap();
        assert!(
            began.elapsed() < Duration::from_secs(60),
            "the silence is told"
        );
    }

    broker.start();
    let said = read_until(&mut *reader, |said| !said.rows.is_empty())
        .await
        .unwrap();

    assert_eq!(said.rows, ["a"]);
}

/// Server properties with a listener beside the others, for whoever has this password.
fn asks_for(password: &str, port: u16) -> String {
    let (control, sasl) = (port + 10, port + 5);
    format!(
        "listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{control},SASLP://127.0.0.1:{sasl}\n\
        advertised.listeners=PLAINTEXT://127.0.0.1:{port},SASLP://127.0.0.1:{sasl}\n\
        listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SASLP:SASL_PLAINTEXT\n\
        sasl.enabled.mechanisms=PLAIN\n\
        listener.name.saslp.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required user_tester=\"{password}\";\n"
    )
}

/// The block of a source behind that listener, with the secret `kafka`.
fn behind_sasl(topic: &Topic, port: u16) -> serde_json::Value {
    json!({
        "bootstrapServers": format!("127.0.0.1:{}", port + 5),
        "topics": [topic.name],
        "security": {
            "protocol": "SaslPlaintext",
            "mechanism": "Plain",
            "credentialsSecret": {"name": "kafka"},
        },
    })
}

/// A folder of secrets with that secret.
fn secret(password: &str) -> tempfile::TempDir {
    let secrets = tempfile::tempdir().expect("a folder");
    let folder = secrets.path().join("kafka");
    std::fs::create_dir(&folder).expect("a folder");
    std::fs::write(folder.join("username"), "tester").expect("a file");
    std::fs::write(folder.join("password"), password).expect("a file");
    secrets
}

/// Wrong credentials are told as that; right ones work.
#[tokio::test(flavor = "multi_thread")]
async fn wrong_credentials_are_told_as_such_and_right_ones_read() {
    let broker = Broker::own(19_432, &asks_for("right", 19_432));
    let topic = broker.topic("sasl", 1, &[]).await;
    topic.write(0, ["a"]);
    let secrets = secret("wrong");
    let mut block = behind_sasl(&topic, 19_432);
    block["endAt"] = json!("Latest");
    let source = Source::new(block, &[]).with_secrets(secrets.path());

    let error = source.list().await.unwrap_err();
    let text = error.with_causes();
    assert!(text.contains("refuses the credentials"), "{text}");
    assert!(!text.contains("wrong"), "a secret is never shown: {text}");
    assert_eq!(error.recovery(), streamforge_engine::error::Recovery::Stop);

    std::fs::write(secrets.path().join("kafka/password"), "right").unwrap();
    let said = source.read_all().await.unwrap();
    assert_eq!(said.rows, ["a"]);
}

/// KF-K2, while the reader is at work: what it took of a partition before its offset went out of range is
/// that partition's, and all of it is read.
#[tokio::test(flavor = "multi_thread")]
async fn kf_k2_rows_before_an_offset_that_goes_out_of_range_are_their_own_partitions() {
    let broker = Broker::shared();
    let topic = broker.topic("cut", 2, &[]).await;
    let write = |offsets: std::ops::Range<u32>| {
        let values: Vec<String> = offsets.map(|offset| format!("0/{offset}")).collect();
        topic.write(0, values.iter().map(String::as_str));
    };
    topic.write(1, ["1/0"]);
    write(0..60);
    let hidden = [("_partition", DataType::Int), ("_offset", DataType::BigInt)];
    let few = json!({
        "onOffsetOutOfRange": "Earliest",
        "properties": {"queued.min.messages": "10"},
    });
    let source = Source::new(config(&broker, &topic, few), &hidden);
    let splits = source.list().await.unwrap();
    let mut reader = source.open(&splits).await.unwrap();
    reader.prefer_rows(1);
    let of_0 = |said: &Said| said.rows.iter().filter(|row| row.starts_with("0/")).count();
    // The client has fetched all 60, and fetches no more before there are less than ten.
    let first = read_until(&mut *reader, |said| of_0(said) == 1)
        .await
        .unwrap();
    write(60..70);
    broker.delete_records(&topic.name, 0, 69).await;
    let second = read_until(&mut *reader, |said| of_0(said) == 54)
        .await
        .unwrap();
    // The answer to its next fetch lies behind five rows when it is read on. Earlier, and this test shows
    // nothing.
    tokio::time::sleep(Duration::from_secs(1)).await;

    reader.prefer_rows(1_000);
    let then = read_until(&mut *reader, |said| {
        said.rows.iter().any(|row| row.starts_with("0/69"))
    })
    .await
    .unwrap();

    let rows = [first.rows, second.rows, then.rows].concat();
    let rows: Vec<&String> = rows.iter().filter(|row| *row != "1/0|1|0").collect();
    let expected = (0..60).chain([69]).map(|n| format!("0/{n}|0|{n}"));
    assert!(
        rows.iter().copied().eq(&expected.collect::<Vec<_>>()),
        "{rows:?}"
    );
}

/// A password that is replaced under a reader: while it is refused it waits, then it goes on where it was.
#[tokio::test(flavor = "multi_thread")]
async fn replaced_credentials_are_taken_by_a_reader_that_runs() {
    let broker = Broker::own(19_742, &asks_for("old", 19_742));
    let topic = broker.topic("rotated", 1, &[]).await;
    topic.write(0, ["a"]);
    let secrets = secret("old");
    let source = Source::new(behind_sasl(&topic, 19_742), &[]).with_secrets(secrets.path());
    let splits = source.list().await.unwrap();
    let mut reader = source.open(&splits).await.unwrap();
    let said = read_until(&mut *reader, |said| !said.rows.is_empty()).await;
    assert_eq!(said.unwrap().rows, ["a"]);

    broker.kill();
    broker.set_properties(&asks_for("new", 19_742));
    broker.start();
    topic.write(0, ["b"]);
    let began = std::time::Instant::now();
    let refused = |trouble: Option<String>| trouble.is_some_and(|it| it.contains("uthentication"));
    while !refused(reader.health().trouble) {
        reader.next().await.unwrap();
        let trouble = reader.health().trouble;
        assert!(began.elapsed() < Duration::from_secs(60), "{trouble:?}");
    }
    std::fs::write(secrets.path().join("kafka/password"), "new").unwrap();

    let said = read_until(&mut *reader, |said| !said.rows.is_empty()).await;
    assert_eq!(said.unwrap().rows, ["b"]);
}
