//! Ends of transactions that come too late: one that the network delays until the next transaction is
//! open (the case of KIP-890), and a transaction that outlives its timeout.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::json;
use streamforge_connectors::kafka::transaction::{Stage, Watch};
use streamforge_core::manifest::StagedInterval;
use streamforge_e2e_kafka::sink::{Sink, restore, slot};
use streamforge_e2e_kafka::{Broker, EndHolder, Topic};
use streamforge_engine::sink::Publisher as _;

/// A listener of which clients are told the port of a proxy.
fn broker_behind_a_proxy(port: u16) -> (Broker, EndHolder, String) {
    let (inner, outer) = (port + 5, port + 6);
    let broker = Broker::own(
        port,
        &format!(
            "listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{},PROXIED://127.0.0.1:{inner}\n\
             advertised.listeners=PLAINTEXT://127.0.0.1:{port},PROXIED://127.0.0.1:{outer}\n\
             listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,PROXIED:PLAINTEXT\n",
            port + 10
        ),
    );
    let proxy = EndHolder::start(outer, inner);
    (broker, proxy, format!("127.0.0.1:{outer}"))
}

/// Lets an end that is held back arrive when the rows of a later transaction are at the broker.
struct LetsItArriveLate {
    proxy: Arc<EndHolder>,
    topic: Topic,
    /// Holds the end of the second transaction back, and dies after it has arrived. The first
    /// transaction is the take-over's.
    dies: bool,
    ends_n: AtomicU32,
    /// What the broker said to the late end, and what a reader saw then.
    found: Arc<Mutex<Option<(i16, Vec<String>)>>>,
}

impl Watch for LetsItArriveLate {
    fn reached(&self, stage: Stage) {
        match stage {
            Stage::MarkerSent if self.ends_n.fetch_add(1, Ordering::Relaxed) == 1 && self.dies => {
                self.proxy.hold_next();
            }
            Stage::Drained if self.proxy.is_holding() => {
                let error = self.proxy.release();
                let mut found = self.found.lock().expect("nobody panics with it");
                *found = Some((error, self.topic.committed().values()));
                drop(found);
                assert!(!self.dies, "killed on purpose, before the marker is sent");
            }
            _ => {}
        }
    }
}

/// X2, KIP-890: an end that was delayed must not end the transaction after it. A client that does not
/// know the newest protocol has the same epoch in both.
#[tokio::test(flavor = "multi_thread")]
async fn attack_15_a_delayed_end_ends_the_next_transaction_of_a_naive_producer_only_x2() {
    let (broker, proxy, proxied) = broker_behind_a_proxy(19_602);
    let proxy = Arc::new(proxy);

    // A producer that goes on after its connection broke: a row is visible that it never committed.
    let topic = broker.topic("naive", 1, &[]).await;
    let naive = topic.through(&proxied).transactional_writer("naive");
    naive.begin();
    naive.send(0, None, Some("first"));
    naive.drain();
    proxy.hold_next();
    naive.commit();
    assert!(proxy.is_holding(), "the commit was asked for twice");
    naive.begin();
    naive.send(0, None, Some("second"));
    naive.drain();
    assert_eq!(topic.committed().values(), ["first"]);
    assert_eq!(proxy.release(), 0, "else this test would show nothing");
    // It is written to the partitions a moment after the answer.
    let began = Instant::now();
    while topic.committed().values() != ["first", "second"] {
        assert!(began.elapsed() < Duration::from_secs(30), "it is visible");
    }
    drop(naive);

    // The next transaction is of the next interval, or of the next part of the same one.
    for is_one_interval in [false, true] {
        let topic = broker.topic("ours", 1, &[]).await;
        let sink = Sink::at(&proxied, &topic, json!({}));
        let mut staged = sink.stage(1, &[&["a"], &["b"]]).await;
        if is_one_interval {
            let later = staged.remove(1);
            let earlier = staged.remove(0);
            staged.push(StagedInterval {
                id: later.id,
                objects: [earlier.objects, later.objects].concat(),
            });
        }
        let found = Arc::<Mutex<Option<(i16, Vec<String>)>>>::default();
        let watch = LetsItArriveLate {
            proxy: Arc::clone(&proxy),
            topic: topic.clone(),
            dies: true,
            ends_n: AtomicU32::new(0),
            found: Arc::clone(&found),
        };
        let publisher = sink.watched_publisher(1, Box::new(watch));
        restore(&publisher, &[], 0).await.unwrap();
        for interval in &staged {
            // It dies, at the latest in the last one.
            let _died = publisher.publish(&slot(0), interval).await;
        }
        let found = found.lock().unwrap().take();
        let (error, seen) = found.expect("the late end came");
        assert_ne!(
            error, 0,
            "it ended a transaction; one interval: {is_one_interval}"
        );
        assert_eq!(seen, [r#"{"v":"a"}"#]);

        restore(&sink.publisher(2), &staged, 2).await.unwrap();
        assert_eq!(
            topic.committed().values(),
            ["a", "b"].map(|v| format!(r#"{{"v":"{v}"}}"#)),
            "one interval: {is_one_interval}"
        );
    }
}

/// X2, X7: the delayed end is that of the transaction by which a predecessor's rows are aborted. It must
/// not abort the rows that follow, whose marker is committed.
#[tokio::test(flavor = "multi_thread")]
async fn attack_15_a_delayed_abort_of_orphans_loses_no_rows_of_the_commit_behind_it_x2() {
    let (broker, proxy, proxied) = broker_behind_a_proxy(19_662);
    let proxy = Arc::new(proxy);
    let topic = broker.topic("orphans", 1, &[]).await;
    // Somebody else's open transaction looks like an orphan of ours.
    let other = topic.transactional_writer("other");
    other.begin();
    other.send(0, None, Some("theirs"));
    other.drain();
    let sink = Sink::at(&proxied, &topic, json!({}));
    let found = Arc::<Mutex<Option<(i16, Vec<String>)>>>::default();
    let watch = LetsItArriveLate {
        proxy: Arc::clone(&proxy),
        topic: topic.clone(),
        dies: false,
        ends_n: AtomicU32::new(0),
        found: Arc::clone(&found),
    };
    let publisher = sink.watched_publisher(1, Box::new(watch));
    restore(&publisher, &[], 0).await.unwrap();
    let staged = sink.stage(1, &[&["a"]]).await;

    proxy.hold_next();
    let mut tries_n = 0;
    while let Err(error) = publisher.publish(&slot(0), &staged[0]).await {
        tries_n += 1;
        assert!(tries_n < 5, "{}", error.with_causes());
    }
    other.commit();

    let (error, _) = found.lock().unwrap().take().expect("the late end came");
    assert_ne!(error, 0, "it ended a transaction");
    assert_eq!(topic.committed().values(), ["theirs", r#"{"v":"a"}"#]);
}

/// Waits before the commit of the n-th transaction.
struct Dawdles {
    left: AtomicU32,
    time: Duration,
}

impl Watch for Dawdles {
    fn reached(&self, stage: Stage) {
        if stage == Stage::MarkerSent && self.left.fetch_sub(1, Ordering::Relaxed) == 0 {
            std::thread::sleep(self.time);
        }
    }
}

/// The broker ends a transaction that is open for too long, which looks like a fence. It is none: the
/// same publisher goes on.
#[tokio::test(flavor = "multi_thread")]
async fn x2_a_transaction_that_outlives_its_timeout_is_published_again_by_the_same_publisher() {
    let broker = Broker::shared();
    let topic = broker.topic("outlived", 2, &[]).await;
    let sink = Sink::with(&broker, &topic, json!({"transaction.timeout.ms": "1500"}));
    let watch = Dawdles {
        left: AtomicU32::new(1),
        // Brokers look every second.
        time: Duration::from_secs(4),
    };
    let publisher = sink.watched_publisher(1, Box::new(watch));
    restore(&publisher, &[], 0).await.unwrap();
    let staged = sink.stage(1, &[&["a", "b"], &["c"]]).await;

    let late = publisher.publish(&slot(0), &staged[0]).await;
    assert!(late.is_err(), "the broker has given it up");
    assert!(topic.committed().is_empty());
    for interval in &staged {
        publisher.publish(&slot(0), interval).await.unwrap();
    }

    let expected = ["a", "b", "c"].map(|v| format!(r#"{{"v":"{v}"}}"#));
    assert_eq!(topic.committed().values(), expected);
}

/// X2: the same when the delayed end is that of the take-over's own transaction, which has no rows, in the
/// middle of a publish.
#[tokio::test(flavor = "multi_thread")]
async fn attack_15_a_delayed_end_of_a_take_over_ends_no_transaction_of_rows_x2() {
    let (broker, proxy, proxied) = broker_behind_a_proxy(19_722);
    let proxy = Arc::new(proxy);
    let topic = broker.topic("taken", 1, &[]).await;
    let sink = Sink::at(&proxied, &topic, json!({}));
    let found = Arc::<Mutex<Option<(i16, Vec<String>)>>>::default();
    let watch = LetsItArriveLate {
        proxy: Arc::clone(&proxy),
        topic: topic.clone(),
        dies: false,
        ends_n: AtomicU32::new(0),
        found: Arc::clone(&found),
    };
    let publisher = sink.watched_publisher(1, Box::new(watch));
    restore(&publisher, &[], 0).await.unwrap();
    // Its producer is gone: publishing begins with a take-over.
    publisher.retire_others(&BTreeSet::new()).await;
    let staged = sink.stage(1, &[&["a"]]).await;

    proxy.hold_next();
    let mut tries_n = 0;
    while let Err(error) = publisher.publish(&slot(0), &staged[0]).await {
        tries_n += 1;
        assert!(tries_n < 5, "{}", error.with_causes());
    }

    let (error, _) = found.lock().unwrap().take().expect("the late end came");
    assert_ne!(error, 0, "it ended a transaction");
    assert_eq!(topic.committed().values(), [r#"{"v":"a"}"#]);
}
