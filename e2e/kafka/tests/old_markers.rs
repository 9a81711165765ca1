//! A job that was stopped for longer than brokers keep its markers.

use std::collections::BTreeSet;
use std::time::Duration;

use rustix::process::Signal;
use streamforge_e2e_kafka::sink::{Sink, restore, slot};
use streamforge_e2e_kafka::{Broker, Topic, numbers_passed_on};
use streamforge_engine::sink::Publisher as _;
use streamforge_process::Workspace;

/// The shortest that brokers know.
const RETENTION: Duration = Duration::from_secs(60);

fn write(topic: &Topic, from: u32, to: u32) {
    let writer = topic.writer();
    for n in from..to {
        writer.send(0, None, Some(&format!(r#"{{"n":{n}}}"#)));
    }
    writer.drain();
}

/// X3 with the broker's own expiry. What was stopped has published all and goes on exactly; what was
/// killed with rows listed is refused, and says what to do.
#[tokio::test(flavor = "multi_thread")]
async fn x3_a_job_that_was_away_for_longer_than_its_markers_live_is_exact_or_refused() {
    let broker = Broker::own(
        19_642,
        "offsets.retention.minutes=1\noffsets.retention.check.interval.ms=1000\n",
    );
    let (from, to) = (
        broker.topic("in", 1, &[]).await,
        broker.topic("out", 2, &[]).await,
    );
    write(&from, 0, 20_000);
    let job = Workspace::new(&numbers_passed_on(&broker, &from, &to));
    let mut running = job.start(&[]);
    assert!(running.wait_until(|| to.committed().len() > 1_000));
    running.signal(Signal::TERM);
    running.wait().check_code(3);
    let before = to.committed();
    // A sink that has published one interval, staged and listed another, and was killed.
    let topic = broker.topic("killed", 1, &[]).await;
    let sink = Sink::new(&broker, &topic);
    let publisher = sink.publisher(1);
    restore(&publisher, &[], 0).await.unwrap();
    let staged = sink.stage(1, &[&["a"], &["b"]]).await;
    publisher.publish(&slot(0), &staged[0]).await.unwrap();
    drop(publisher);

    tokio::time::sleep(RETENTION).await;
    while broker.has_offsets(&sink.slot_name(0), &topic.name) {
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    write(&from, 20_000, 21_000);

    let refused = restore(&sink.publisher(2), &staged[1..], 2).await;
    let text = refused.unwrap_err().with_causes();
    assert!(text.contains("offsets.retention.minutes = 1"), "{text}");
    assert!(text.contains("--accept-lost-marker out"), "{text}");
    assert_eq!(topic.committed().values(), [r#"{"v":"a"}"#]);

    let mut running = job.start(&[]);
    assert!(
        running.wait_until(|| to.committed().len() >= 21_000),
        "{}",
        running.log()
    );
    running.signal(Signal::TERM);
    running.wait().check_code(3);
    let last = to.committed();
    assert!(before.is_continued_by(&last), "O2");
    let distinct: BTreeSet<String> = last.values().into_iter().collect();
    assert_eq!((last.len(), distinct.len()), (21_000, 21_000));
}
