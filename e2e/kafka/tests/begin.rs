//! How soon a sink's first row can be read: an attempt that follows a failure waits for nothing that takes
//! a fixed time.

use std::time::{Duration, Instant};

use streamforge_core::job_graph::Delivery;
use streamforge_e2e_kafka::Broker;
use streamforge_e2e_kafka::sink::{Sink, id, restored, rows};
use streamforge_engine::sink::Publisher as _;

/// librdkafka looks for a broker again after this time; a busy machine takes a part of it, too.
const FIXED: Duration = Duration::from_millis(500);

/// A machine that is busy for a moment proves nothing: the best of some.
const TRIES: u64 = 5;

#[tokio::test(flavor = "multi_thread")]
async fn publisher_takes_its_slot_over_without_waiting_for_a_timer() {
    let broker = Broker::shared();
    let topic = broker.topic("begin", 3, &[]).await;
    let sink = Sink::new(&broker, &topic);
    // The first transaction of a broker makes topics of its own.
    let first = sink.publisher(1);
    first.take_over(&restored(&[], 0)).await.unwrap();
    let mut best = Duration::MAX;

    for n in 2..2 + TRIES {
        let publisher = sink.publisher(n);
        let began = Instant::now();
        publisher.take_over(&restored(&[], 0)).await.unwrap();
        best = best.min(began.elapsed());
    }

    assert!(best < FIXED, "{best:?}");
}

/// From a writer that is opened to the delivery of its row.
async fn write_one(sink: &Sink, n: u64) -> Duration {
    let mut writer = sink.writer(0, n, Delivery::AtLeastOnce);
    let began = Instant::now();
    writer.open().await.expect("the broker answers");
    let written = writer.write(rows(&["a"])).await;
    written.expect("the row is taken");
    let staging = writer.stage(id(n)).expect("the interval closes");
    assert_eq!(staging.await.expect("it is delivered"), None);
    began.elapsed()
}

#[tokio::test(flavor = "multi_thread")]
async fn writer_of_the_next_attempt_finds_the_producer_of_the_last_one_connected() {
    let broker = Broker::shared();
    let topic = broker.topic("again", 3, &[]).await;
    let sink = Sink::new(&broker, &topic);
    write_one(&sink, 1).await;
    let mut best = Duration::MAX;

    for n in 2..2 + TRIES {
        best = best.min(write_one(&sink, n).await);
    }

    assert!(best < FIXED / 2, "{best:?}");
    let written = topic.written().len() as u64;
    assert_eq!(written, 1 + TRIES, "each row once");
}

/// An answer that a checkpoint waits for is of its own rows, whoever writes by then.
#[tokio::test(flavor = "multi_thread")]
async fn interval_of_a_writer_that_left_is_delivered_though_another_one_has_its_producer() {
    let broker = Broker::shared();
    let topic = broker.topic("left", 1, &[]).await;
    let sink = Sink::new(&broker, &topic);
    let mut first = sink.writer(0, 1, Delivery::AtLeastOnce);
    first.write(rows(&["a", "b"])).await.unwrap();
    let staging = first.stage(id(1)).unwrap();
    drop(first);
    let mut second = sink.writer(1, 1, Delivery::AtLeastOnce);
    second.write(rows(&["c"])).await.unwrap();

    staging.await.unwrap();
    assert!(topic.written().len() >= 2);
    second.stage(id(2)).unwrap().await.unwrap();

    assert_eq!(topic.written().len(), 3);
}
