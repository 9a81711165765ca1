//! Publishing against a real broker: every step killed once, and every way to lose a marker.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use serde_json::json;
use streamforge_connectors::kafka::transaction::{Stage, Watch};
use streamforge_core::job_graph::Delivery;
use streamforge_core::manifest::StagedInterval;
use streamforge_e2e_kafka::sink::{Sink, id, restore, restored, rows, slot};
use streamforge_e2e_kafka::{Broker, Records, Topic};
use streamforge_engine::error::Error;
use streamforge_engine::sink::Publisher as _;

fn values(names: &[&str]) -> Vec<String> {
    let mut values: Vec<String> = names.iter().map(|v| format!(r#"{{"v":"{v}"}}"#)).collect();
    values.sort();
    values
}

/// An interval of several parts: those of the given intervals under one id.
fn joined(intervals: Vec<StagedInterval>, n: u64) -> StagedInterval {
    StagedInterval {
        id: id(n),
        objects: intervals.into_iter().flat_map(|it| it.objects).collect(),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_are_visible_after_publish_and_not_before_and_only_once() {
    let broker = Broker::shared();
    let topic = broker.topic("once", 3, &[]).await;
    let sink = Sink::new(&broker, &topic);
    let staged = sink.stage(1, &[&["a", "b"], &["c"]]).await;
    assert!(topic.written().is_empty());

    let publisher = sink.publisher(1);
    for _ in 0..3 {
        restore(&publisher, &staged, 2).await.unwrap();
    }

    assert_eq!(topic.committed().values(), values(&["a", "b", "c"]));
    assert_eq!(
        topic.written().len(),
        3,
        "nothing was written twice, not even aborted"
    );
}

/// X1, KF-X1, KF-V16, exhaustive: the publisher dies at every stage of every transaction, a second
/// one dies at every stage as well, a third finishes. A reader beside sees a prefix at any time (O2).
#[tokio::test(flavor = "multi_thread", worker_threads = 6)]
async fn x1_every_step_of_publishing_killed_once_loses_and_doubles_nothing() {
    let stages = [
        Stage::Fenced,
        Stage::MarkerRead,
        Stage::Begun,
        Stage::Sent,
        Stage::MarkerSent,
        Stage::Drained,
        Stage::Committed,
    ];
    let mut deaths = tokio::task::JoinSet::new();
    for stage in stages {
        // The first transaction of a publisher is the take-over's; then one per part.
        let begins = matches!(stage, Stage::Fenced | Stage::MarkerRead);
        for n in 0..if begins { 1 } else { 4 } {
            deaths.spawn(die_twice_at(stage, n));
        }
    }
    let mut rounds_n = 0;
    while let Some(round) = deaths.join_next().await {
        round.unwrap();
        rounds_n += 1;
    }

    assert_eq!(rounds_n, 22);
}

async fn die_twice_at(stage: Stage, n: u32) {
    let broker = Broker::shared();
    let topic = broker.topic("killed", 2, &[]).await;
    let sink = Sink::new(&broker, &topic);
    let began = restore(&sink.publisher(1), &[], 0).await;
    began.expect("a first start begins");
    let parts = sink.stage(2, &[&["a"], &["b", "c"]]).await;
    let mut listed = vec![joined(parts, 3)];
    listed.extend(sink.stage(4, &[&["d"]]).await);
    let mut seen = Records::default();

    let dying = sink.dying_publisher(2, stage, n);
    let died = restore(&dying, &listed, 4).await;
    assert!(died.is_err(), "it dies at {stage:?}, {n}");
    check_prefix(&mut seen, &topic);
    let dying = sink.dying_publisher(3, stage, n);
    // The second may find everything published before it comes to that stage.
    let _ = restore(&dying, &listed, 4).await;
    check_prefix(&mut seen, &topic);
    let finished = restore(&sink.publisher(4), &listed, 4).await;
    finished.expect("the third one lives");

    let expected = values(&["a", "b", "c", "d"]);
    assert_eq!(topic.committed().values(), expected, "{stage:?}, {n}");
    check_prefix(&mut seen, &topic);
}

fn check_prefix(seen: &mut Records, topic: &Topic) {
    let now = topic.committed();
    assert!(seen.is_continued_by(&now), "O2: {seen:?} then {now:?}");
    *seen = now;
}

/// Attack 6: notices come late and in full; a part published before is not published again.
#[tokio::test(flavor = "multi_thread")]
async fn attack_6_intervals_that_wait_are_published_in_order_when_the_broker_is_back() {
    let broker = Broker::own(19_452, "");
    let topic = broker.topic("back", 1, &[]).await;
    let sink = Sink::with(&broker, &topic, json!({"transaction.timeout.ms": "10000"}));
    let publisher = sink.publisher(1);
    publisher.take_over(&restored(&[], 0)).await.unwrap();
    let staged = sink.stage(1, &[&["a"], &["b"], &["c"]]).await;
    publisher.publish(&slot(0), &staged[0]).await.unwrap();
    broker.kill();
    let away = publisher.publish(&slot(0), &staged[1]).await;
    assert!(away.is_err(), "the broker is away");

    broker.start();
    for interval in &staged {
        let mut tries = 0;
        while let Err(error) = publisher.publish(&slot(0), interval).await {
            tries += 1;
            assert!(tries < 20, "{}", error.with_causes());
        }
    }

    let order: Vec<_> = topic
        .committed()
        .0
        .into_iter()
        .map(|seen| seen.value)
        .collect();
    let expected = ["a", "b", "c"].map(|v| Some(format!(r#"{{"v":"{v}"}}"#)));
    assert_eq!(order, expected);
}

/// X2, attack 13: a frozen publisher wakes up after it was replaced. Its transaction is lost, it finds
/// a newer marker and never begins again; the live one is not disturbed.
#[tokio::test(flavor = "multi_thread")]
async fn attack_13_a_zombie_publishes_nothing_and_stops_x2() {
    let broker = Broker::shared();
    let topic = broker.topic("zombie", 1, &[]).await;
    let sink = Sink::new(&broker, &topic);
    let zombie = sink.publisher(1);
    zombie.take_over(&restored(&[], 0)).await.unwrap();
    let staged = sink.stage(1, &[&["a"], &["b"], &["c"]]).await;
    zombie.publish(&slot(0), &staged[0]).await.unwrap();

    let live = sink.publisher(2);
    live.take_over(&restored(&staged[1..], 2)).await.unwrap();
    // Fenced; then it looks at the marker before it would begin anew, and finds that it is the zombie.
    for last in [false, true, true] {
        let error = zombie.publish(&slot(0), &staged[1]).await.unwrap_err();
        let is_told = matches!(error, Error::TakenOver { .. });
        assert_eq!(is_told, last, "{}", error.with_causes());
    }
    for interval in &staged[1..] {
        let published = live.publish(&slot(0), interval).await;
        published.expect("the live one was not disturbed");
    }

    assert_eq!(topic.committed().values(), values(&["a", "b", "c"]));
}

/// X3: the marker expired, which deleting the group does at once, and rows may have been published.
#[tokio::test(flavor = "multi_thread")]
async fn x3_a_vanished_marker_is_never_a_new_start() {
    // The broker keeps offsets for seven days; these rows say they were staged before that.
    let broker = Broker::shared();
    let topic = broker.topic("vanished", 1, &[]).await;
    let sink = Sink::new(&broker, &topic);
    let first = sink.publisher(1);
    let mut staged = sink.stage(1, &[&["a"]]).await;
    restore(&first, &[], 0).await.unwrap();
    first.publish(&slot(0), &staged[0]).await.unwrap();
    drop(first);
    broker.forget_group(&sink.slot_name(0)).await;

    // Younger than the broker's retention: its marker would still be there had it been published.
    // Here that is not true, because a person deleted the group; so the rows are made old.
    for object in &mut staged[0].objects {
        let detail: serde_json::Value = serde_json::from_str(&object.detail).unwrap();
        let mut detail = detail.as_object().unwrap().clone();
        detail.insert("staged_ms".to_owned(), json!(0));
        object.detail = serde_json::Value::Object(detail).to_string();
    }
    let error = restore(&sink.publisher(2), &staged, 1).await.unwrap_err();
    let text = error.with_causes();
    for word in [
        "its marker is gone",
        "offsets.retention.minutes",
        "--accept-lost-marker out",
    ] {
        assert!(text.contains(word), "{text}");
    }
    assert_eq!(
        topic.committed().values(),
        values(&["a"]),
        "nothing came twice"
    );

    restore(&sink.accepting_publisher(3), &staged, 1)
        .await
        .unwrap();
    assert_eq!(
        topic.committed().values(),
        values(&["a", "a"]),
        "a person accepted it"
    );
}

/// X3, attack 50: a crash between manifest 0 and the first marker is a healthy start.
#[tokio::test(flavor = "multi_thread")]
async fn attack_50_a_slot_without_marker_and_rows_begins_x3() {
    let broker = Broker::shared();
    let topic = broker.topic("healthy", 1, &[]).await;
    let sink = Sink::new(&broker, &topic);

    restore(&sink.publisher(1), &[], 7).await.unwrap();
    let staged = sink.stage(8, &[&["a"]]).await;
    restore(&sink.publisher(2), &staged, 8).await.unwrap();

    assert_eq!(topic.committed().values(), values(&["a"]));
}

/// X3, KF-K1: the output topic was deleted and made anew while rows waited.
#[tokio::test(flavor = "multi_thread")]
async fn x3_rows_staged_for_a_topic_that_is_gone_are_not_written_to_another_of_its_name() {
    let broker = Broker::shared();
    let topic = broker.topic("gone", 1, &[]).await;
    let sink = Sink::new(&broker, &topic);
    restore(&sink.publisher(1), &[], 0).await.unwrap();
    let staged = sink.stage(1, &[&["a"]]).await;
    broker.delete_topic(&topic.name).await;
    broker.make_topic(&topic.name, 1, &[]).await;

    let error = restore(&sink.publisher(2), &staged, 1).await.unwrap_err();

    let text = error.with_causes();
    assert!(
        text.contains("deleted and re-created since rows were written"),
        "{text}"
    );
    assert!(topic.written().is_empty());
}

/// KF-X8: two jobs of one name, with a sink of one name, on one broker and even one topic.
#[tokio::test(flavor = "multi_thread")]
async fn kf_x8_two_jobs_of_one_name_never_fence_each_other() {
    let broker = Broker::shared();
    let topic = broker.topic("shared", 1, &[]).await;
    let (one, two) = (Sink::new(&broker, &topic), Sink::new(&broker, &topic));
    let (first, second) = (one.publisher(1), two.publisher(1));
    first.take_over(&restored(&[], 0)).await.unwrap();
    second.take_over(&restored(&[], 0)).await.unwrap();

    for n in 1..4 {
        let mine = one.stage(n, &[&["one"]]).await;
        first.publish(&slot(0), &mine[0]).await.unwrap();
        let theirs = two.stage(n, &[&["two"]]).await;
        second.publish(&slot(0), &theirs[0]).await.unwrap();
    }

    let expected = values(&["one", "one", "one", "two", "two", "two"]);
    assert_eq!(topic.committed().values(), expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_timeout_above_the_brokers_is_refused_with_the_setting_to_lower() {
    let broker = Broker::shared();
    let topic = broker.topic("timeout", 1, &[]).await;
    let sink = Sink::with(&broker, &topic, json!({"transaction.timeout.ms": "960000"}));

    let error = sink
        .publisher(1)
        .take_over(&restored(&[], 0))
        .await
        .unwrap_err();

    let text = error.with_causes();
    assert!(text.contains("transaction.max.timeout.ms"), "{text}");
    assert_eq!(error.recovery(), streamforge_engine::error::Recovery::Stop);
}

/// Attack 17: the limit was lowered after the rows were staged. They stay listed, nothing is dropped,
/// and they are published once the limit is back.
#[tokio::test(flavor = "multi_thread")]
async fn attack_17_a_lowered_limit_keeps_rows_listed_until_it_is_raised_again() {
    let broker = Broker::shared();
    let topic = broker.topic("limit", 1, &[]).await;
    let sink = Sink::new(&broker, &topic);
    restore(&sink.publisher(1), &[], 0).await.unwrap();
    let long = "x".repeat(50_000);
    let staged = sink.stage(1, &[&[&long]]).await;
    broker.set(&topic.name, "max.message.bytes", "10000").await;
    let publisher = sink.publisher(2);
    let error = restore(&publisher, &staged, 1).await.unwrap_err();
    let text = error.with_causes();
    assert!(text.to_lowercase().contains("size"), "{text}");
    assert!(topic.committed().is_empty());

    broker
        .set(&topic.name, "max.message.bytes", "1048588")
        .await;
    let mut tries = 0;
    while restore(&publisher, &staged, 1).await.is_err() {
        tries += 1;
        assert!(tries < 20, "the limit is raised");
    }

    assert_eq!(topic.committed().values(), values(&[&long]));
}

/// A row over the topic's limit never reaches the store.
#[tokio::test(flavor = "multi_thread")]
async fn attack_17_a_row_over_the_limit_is_bad_when_it_is_staged() {
    let broker = Broker::shared();
    let topic = broker
        .topic("small", 1, &[("max.message.bytes", "1000")])
        .await;
    let sink = Sink::new(&broker, &topic);
    let mut writer = sink.writer(0, 1, Delivery::ExactlyOnce);

    let long = "x".repeat(2_000);
    let bad = writer.write(rows(&[&long, "short"])).await.unwrap();

    assert_eq!(bad.len(), 1);
    let interval = writer.stage(id(1)).unwrap().await.unwrap().unwrap();
    assert_eq!(interval.objects[0].rows, 1);
}

/// KF-X2: a publisher that died in a transaction leaves readers waiting; the next take-over ends that.
#[tokio::test(flavor = "multi_thread")]
async fn kf_x2_a_take_over_ends_the_transaction_that_a_dead_publisher_left_open() {
    let broker = Broker::shared();
    let topic = broker.topic("hanging", 1, &[]).await;
    let sink = Sink::new(&broker, &topic);
    restore(&sink.publisher(1), &[], 0).await.unwrap();
    // Somebody with the slot's id, who never comes back.
    let dead = topic.transactional_writer(&sink.slot_name(0));
    dead.begin();
    dead.send(0, None, Some("never committed"));
    dead.drain();
    topic.write(0, ["behind it"]);
    assert!(topic.committed().is_empty(), "readers wait");

    restore(&sink.publisher(2), &[], 0).await.unwrap();

    assert_eq!(topic.committed().values(), ["behind it"]);
    std::mem::forget(dead);
}

/// KF-X7: checkpoints without rows.
#[tokio::test(flavor = "multi_thread")]
async fn kf_x7_empty_transactions_are_taken() {
    let broker = Broker::shared();
    let topic = broker.topic("empty", 1, &[]).await;
    let sink = Sink::new(&broker, &topic);
    for epoch in 1..20 {
        restore(&sink.publisher(epoch), &[], epoch).await.unwrap();
    }

    assert!(topic.written().is_empty());
}

/// X4: slots that nobody writes any more are published by whoever restores.
#[tokio::test(flavor = "multi_thread")]
async fn attack_10_listed_slots_without_a_writer_are_published_x4() {
    let broker = Broker::shared();
    let topic = broker.topic("slots", 1, &[]).await;
    let sink = Sink::new(&broker, &topic);
    let all = |listed: &[Vec<StagedInterval>], newest| {
        let slots = listed.iter().enumerate();
        slots
            .map(|(n, listed)| streamforge_engine::sink::SlotTakeOver {
                slot: slot(u32::try_from(n).unwrap()),
                listed: listed.clone(),
                newest: id(newest),
            })
            .collect::<Vec<_>>()
    };
    let nothing = vec![Vec::new(); 4];
    sink.publisher(1)
        .take_over(&all(&nothing, 0))
        .await
        .unwrap();
    let mut listed = Vec::new();
    for n in 0..4 {
        let mut writer = sink.writer(n, 1, Delivery::ExactlyOnce);
        writer.write(rows(&[&n.to_string()])).await.unwrap();
        listed.push(vec![writer.stage(id(1)).unwrap().await.unwrap().unwrap()]);
    }

    let restored = sink.publisher(2);
    restored.take_over(&all(&listed, 1)).await.unwrap();
    for (n, listed) in listed.iter().enumerate() {
        let slot = slot(u32::try_from(n).unwrap());
        restored.publish(&slot, &listed[0]).await.unwrap();
    }

    assert_eq!(topic.committed().values(), values(&["0", "1", "2", "3"]));
}

/// At least once: a barrier is passed only when every row before it is at the broker.
#[tokio::test(flavor = "multi_thread")]
async fn at_least_once_rows_are_delivered_before_the_barrier_is_passed() {
    let broker = Broker::shared();
    let topic = broker.topic("straight", 2, &[]).await;
    let sink = Sink::new(&broker, &topic);
    let mut writer = sink.writer(0, 1, Delivery::AtLeastOnce);
    let many: Vec<String> = (0..5_000).map(|n| n.to_string()).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    writer.write(rows(&many)).await.unwrap();

    assert_eq!(writer.stage(id(1)).unwrap().await.unwrap(), None);

    assert_eq!(topic.written().len(), 5_000);
}

/// At least once: the task does not stand still at a barrier while brokers are slow or away; only the
/// acknowledgement waits.
#[tokio::test(flavor = "multi_thread")]
async fn at_least_once_barrier_waits_for_deliveries_beside_the_task() {
    let broker = Broker::own(19_552, "");
    let topic = broker.topic("beside", 2, &[]).await;
    let sink = Sink::new(&broker, &topic);
    let mut writer = sink.writer(0, 1, Delivery::AtLeastOnce);
    writer.write(rows(&["first"])).await.unwrap();
    writer.stage(id(1)).unwrap().await.unwrap();
    broker.kill();
    writer.write(rows(&["a", "b", "c"])).await.unwrap();

    let began = std::time::Instant::now();
    let mut staging = writer.stage(id(2)).unwrap();
    writer.write(rows(&["of the next interval"])).await.unwrap();
    assert!(
        began.elapsed() < Duration::from_millis(100),
        "the task goes on"
    );
    let early = tokio::time::timeout(Duration::from_millis(500), &mut staging).await;
    assert!(early.is_err(), "nothing is acknowledged that no broker has");
    broker.start();

    assert_eq!(staging.await.unwrap(), None);
    let seen = topic.written().values();
    for value in values(&["first", "a", "b", "c"]) {
        assert!(seen.contains(&value), "{value} in {seen:?}");
    }
}

/// KF-X3: a delivery that fails is never swallowed.
#[tokio::test(flavor = "multi_thread")]
async fn kf_x3_a_failed_delivery_fails_the_barrier() {
    let broker = Broker::shared();
    let topic = broker.topic("failing", 1, &[]).await;
    let sink = Sink::new(&broker, &topic);
    let mut writer = sink.writer(0, 1, Delivery::AtLeastOnce);
    writer.write(rows(&["a"])).await.unwrap();
    writer.stage(id(1)).unwrap().await.unwrap();
    broker.set(&topic.name, "max.message.bytes", "200").await;
    let long = "x".repeat(5_000);

    let written = writer.write(rows(&[&long])).await;
    let staged = match writer.stage(id(2)) {
        Ok(staging) => staging.await,
        Err(error) => Err(error),
    };

    assert!(written.is_err() || staged.is_err());
}

/// A marker's own metadata is what an operator sees with Kafka's tools.
#[tokio::test(flavor = "multi_thread")]
async fn a_foreign_commit_in_a_slots_group_is_refused() {
    let broker = Broker::shared();
    let topic = broker.topic("foreign", 1, &[]).await;
    let sink = Sink::new(&broker, &topic);
    let mut config = broker.client();
    config
        .set("group.id", sink.slot_name(0))
        .set("enable.auto.commit", "false");
    let consumer: rdkafka::consumer::BaseConsumer = config.create().unwrap();
    let mut offsets = rdkafka::TopicPartitionList::new();
    offsets
        .add_partition_offset(&topic.name, 0, rdkafka::Offset::Offset(3))
        .unwrap();
    rdkafka::consumer::Consumer::commit(&consumer, &offsets, rdkafka::consumer::CommitMode::Sync)
        .unwrap();

    let publisher = sink.publisher(1);
    let error = tokio::time::timeout(
        Duration::from_secs(120),
        publisher.take_over(&restored(&[], 0)),
    )
    .await
    .expect("it is told")
    .unwrap_err();

    let text = error.with_causes();
    assert!(text.contains("is no marker of StreamForge"), "{text}");
}

/// Counts commits, and fails once, right after a fence.
struct FailsOnce {
    commits_n: Arc<AtomicU32>,
    fails: Arc<AtomicBool>,
}

impl Watch for FailsOnce {
    fn reached(&self, stage: Stage) {
        if stage == Stage::Committed {
            self.commits_n.fetch_add(1, Ordering::Relaxed);
        }
        let fails = stage == Stage::Fenced && self.fails.swap(false, Ordering::Relaxed);
        assert!(!fails, "on purpose");
    }
}

/// X3: the marker of an idle slot is kept alive, though one look at it failed; that of a slot that nobody
/// needs is not.
#[tokio::test(flavor = "multi_thread")]
async fn x3_an_idle_slots_marker_is_written_again_after_a_refresh_that_failed() {
    let broker = Broker::shared();
    let topic = broker.topic("idle", 1, &[]).await;
    let sink = Sink::new(&broker, &topic);
    let (commits_n, fails) = (Arc::<AtomicU32>::default(), Arc::<AtomicBool>::default());
    let watch = FailsOnce {
        commits_n: Arc::clone(&commits_n),
        fails: Arc::clone(&fails),
    };
    let publisher = sink.watched_publisher(1, Box::new(watch));
    let staged = sink.stage(1, &[&["a"]]).await;
    restore(&publisher, &staged, 1).await.unwrap();
    let written = || commits_n.load(Ordering::Relaxed);
    let before = written();

    publisher.refresh_idle(Duration::from_hours(1)).await;
    assert_eq!(written(), before, "it is not idle yet");
    fails.store(true, Ordering::Relaxed);
    publisher.refresh_idle(Duration::ZERO).await;
    assert_eq!(written(), before, "it failed");
    publisher.refresh_idle(Duration::ZERO).await;
    assert_eq!(written(), before + 1, "at the next look");

    publisher.publish(&slot(0), &staged[0]).await.unwrap();
    publisher.retire_others(&BTreeSet::new()).await;
    publisher.refresh_idle(Duration::ZERO).await;
    assert_eq!(written(), before + 1);
    assert_eq!(topic.committed().values(), [r#"{"v":"a"}"#]);
}
