//! A job on three brokers, each of which is killed while it publishes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::process::Signal;
use streamforge_e2e_kafka::{Broker, Topic, numbers_passed_on};
use streamforge_process::Workspace;

/// A dead node is noticed soon; a client that asks for it waits no longer.
const QUICK: &str = "broker.session.timeout.ms=3000\nbroker.heartbeat.interval.ms=500\n\
    replica.lag.time.max.ms=5000\n";

/// Writes numbered rows until it is told to stop; then says how many.
fn write_on(topic: &Topic, over: &Arc<AtomicBool>) -> std::thread::JoinHandle<u64> {
    let (writer, over) = (topic.writer(), Arc::clone(over));
    std::thread::spawn(move || {
        let mut n = 0;
        while !over.load(Ordering::Relaxed) {
            for _ in 0..10 {
                let partition = i32::try_from(n % 4).expect("partitions are few");
                writer.send(partition, None, Some(&format!(r#"{{"n":{n}}}"#)));
                n += 1;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        writer.drain();
        n
    })
}

/// With two of three replicas in sync rows are published on, whichever broker is away: the leader of
/// output partitions, the coordinator of transactions and of the markers' group, the controller.
#[tokio::test(flavor = "multi_thread")]
async fn each_of_three_brokers_killed_in_mid_publish_loses_and_doubles_nothing() {
    let broker = Broker::own_cluster(19_622, 3, QUICK);
    let from = broker.topic("in", 4, &[]).await;
    let to = broker.topic("out", 3, &[]).await;
    let over = Arc::new(AtomicBool::new(false));
    let writing = write_on(&from, &over);
    let job = Workspace::new(&numbers_passed_on(&broker, &from, &to));
    let mut running = job.start(&[]);
    let beside = to.follow();
    assert!(running.wait_until(|| beside.seen_n() > 0));
    let first = to.leader(0);

    for node in [first, first % 3 + 1, (first + 1) % 3 + 1] {
        broker.kill_node(node);
        // What was committed before the kill may still be on its way to the reader.
        let before = beside.seen_n();
        let goes_on = running.wait_until(|| beside.seen_n() > before + 2_000);
        assert!(goes_on, "without node {node}: {}", running.log());
        broker.start();
        broker.await_in_sync();
    }
    over.store(true, Ordering::Relaxed);
    let rows_n = writing.join().expect("the writer does not panic");
    let all = usize::try_from(rows_n).expect("they are few");
    let arrived = running.wait_until(|| beside.seen_n() >= all);
    assert!(arrived, "{}", running.log());
    running.signal(Signal::TERM);
    running.wait().check_code(3);

    let last = to.committed();
    assert!(beside.stop().is_continued_by(&last), "O2");
    let mut times: BTreeMap<String, u32> = BTreeMap::new();
    for value in last.values() {
        *times.entry(value).or_default() += 1;
    }
    let twice = times.values().filter(|n| **n > 1).count();
    assert_eq!((twice, times.len()), (0, all));
}
