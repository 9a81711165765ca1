//! Order, credit, linger.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use streamforge_core::ids::{CheckpointId, Generation};
use streamforge_core::manifest::CheckpointKind;
use streamforge_engine::barrier::Barrier;
use streamforge_engine::batch::StreamBatch;

use super::super::frame;
use super::super::frame::tests::{Recipe, check_equal, recipe};
use super::*;

fn barrier(id: u64) -> Element {
    Element::Barrier(Barrier {
        id: CheckpointId::from_stored(id),
        kind: CheckpointKind::Ordinary,
        begun_by: Generation::from_stored(3),
    })
}

const LAST: u64 = u64::MAX;

fn is_last(element: &Element) -> bool {
    matches!(element, Element::Barrier(barrier) if barrier.id.get() == LAST)
}

/// Rows that nothing separates are joined, of watermarks that nothing separates the last is kept:
/// what a channel may change, and all that it may.
fn normal(elements: Vec<Element>) -> Vec<Element> {
    let mut normal: Vec<Element> = Vec::new();
    for element in elements {
        match (normal.last_mut(), &element) {
            (Some(Element::Watermark(last)), Element::Watermark(newer)) => *last = *newer,
            (Some(Element::Batch(last)), Element::Batch(next)) if frame::can_join(last, next) => {
                let both: [StreamBatch; 2] = [last.clone(), next.clone()];
                *last = frame::join(&both).unwrap().unwrap();
            }
            _ => normal.push(element),
        }
    }
    normal
}

#[track_caller]
fn check_same(left: &[Element], right: &[Element]) {
    assert_eq!(left.len(), right.len(), "{left:?}\n{right:?}");
    for pair in left.iter().zip(right) {
        match pair {
            (Element::Batch(left), Element::Batch(right)) => check_equal(left, right),
            (left, right) => assert_eq!(format!("{left:?}"), format!("{right:?}")),
        }
    }
}

#[derive(Clone, Debug)]
enum Sent {
    Rows(Recipe),
    /// Many frames' worth.
    ManyRows(i64, usize),
    Watermark(i64),
    Idle,
    Rejoin,
    Barrier(u64),
}

fn sent() -> impl Strategy<Value = Sent> {
    prop_oneof![
        6 => recipe().prop_map(Sent::Rows),
        2 => (0_i64..9, 0_usize..9000).prop_map(|(value, rows_n)| Sent::ManyRows(value, rows_n)),
        3 => any::<i64>().prop_map(Sent::Watermark),
        1 => Just(Sent::Idle),
        1 => Just(Sent::Rejoin),
        1 => (0_u64..100).prop_map(Sent::Barrier),
    ]
}

fn element(sent: &Sent) -> Element {
    match sent {
        Sent::Rows(recipe) => Element::Batch(frame::tests::batch(recipe)),
        Sent::ManyRows(value, rows_n) => Element::Batch(batch(*value, *rows_n)),
        Sent::Watermark(watermark) => Element::Watermark(Watermark(*watermark)),
        Sent::Idle => Element::Idle,
        Sent::Rejoin => Element::Rejoin,
        Sent::Barrier(id) => barrier(*id),
    }
}

#[test]
fn any_interleaving_of_elements_arrives_in_order_and_equal() {
    let rig = Rig::start(config());
    let edges = AtomicU32::new(0);
    let cases = ProptestConfig {
        failure_persistence: None,
        cases: 64,
        ..ProptestConfig::default()
    };
    let elements = prop::collection::vec(sent(), 0..25);

    let outcome = TestRunner::new(cases).run(&elements, |elements| {
        let name = channel(edges.fetch_add(1, Ordering::Relaxed));
        let receiver = rig.accept(name);
        let sender = rig.open(name);
        let mut elements: Vec<Element> = elements.iter().map(element).collect();
        elements.push(barrier(LAST));
        let arrived = std::thread::scope(|scope| {
            scope.spawn(|| {
                for element in &elements {
                    assert!(sender.push(element.clone()));
                }
            });
            let mut arrived = Vec::new();
            while !arrived.last().is_some_and(is_last) {
                arrived.push(receiver.next());
            }
            arrived
        });
        check_same(&normal(arrived), &normal(elements));
        Ok(())
    });

    outcome.unwrap();
    assert_eq!(rig.broken(), (vec![], vec![]));
}

/// The receiver stands still: what waits at each end is bounded, whatever the sender has.
#[test]
fn stalled_receiver_bounds_what_both_ends_hold_b1() {
    let config = config();
    let rig = Rig::start(config.clone());
    let receiver = rig.accept(channel(0));
    let sender = rig.open(channel(0));
    const BATCHES: usize = 200;
    // 8,000 bytes each, and what is counted beside them.
    let batch_bytes = 10_000;
    let check_bounds = || {
        assert!(sender.queued_bytes() <= config.queue_bytes + batch_bytes);
        assert!(receiver.uplink.queued_bytes() <= config.window_bytes);
    };

    std::thread::scope(|scope| {
        scope.spawn(|| {
            for idx in 0..BATCHES {
                assert!(sender.push(Element::Batch(batch(idx as i64, 1000))));
            }
        });
        wait_until(|| sender.queued_bytes() >= config.queue_bytes);
        let out_of_credit = || rig.here.totals().out_of_credit.load(Ordering::Relaxed);
        wait_until(|| out_of_credit() > 0);
        check_bounds();
        let mut rows_n = 0;
        while rows_n < BATCHES * 1000 {
            let Element::Batch(batch) = receiver.next() else {
                panic!("only rows were sent");
            };
            rows_n += batch.len();
            check_bounds();
        }
        assert_eq!(rows_n, BATCHES * 1000);
    });
    let blocked_us = rig.here.totals().blocked_us.load(Ordering::Relaxed);
    assert!(blocked_us > 0, "the task waited");
}

#[test]
fn barrier_needs_no_credit_b1() {
    let rig = Rig::start(config());
    let receiver = rig.accept(channel(0));
    let sender = rig.open(channel(0));
    // Four frames of 15,200 bytes and a little leave less than a fifth would need.
    for idx in 0..4 {
        assert!(sender.push(Element::Batch(batch(idx, 1900))));
        wait_until(|| sender.queued_bytes() == 0);
    }
    wait_until(|| receiver.uplink.queued_bytes() > 60_000);

    assert!(sender.push(barrier(7)));
    wait_until(|| receiver.inbox.elements_n(0) == 5);

    assert!(sender.push(Element::Batch(batch(4, 1900))));
    assert!(sender.push(barrier(8)));
    let out_of_credit = || rig.here.totals().out_of_credit.load(Ordering::Relaxed);
    wait_until(|| out_of_credit() > 0);
    assert_eq!(
        receiver.inbox.elements_n(0),
        5,
        "rows wait, and what follows them"
    );
    for _ in 0..5 {
        receiver.next();
    }
    assert!(matches!(receiver.next(), Element::Batch(_)));
    assert!(matches!(receiver.next(), Element::Barrier(_)));
}

#[test]
fn channel_out_of_credit_holds_back_no_other_on_its_connection_b1_attack_27() {
    let rig = Rig::start(config());
    let (stalled, flowing) = (rig.accept(channel(0)), rig.accept(channel(1)));
    let (to_stalled, to_flowing) = (rig.open(channel(0)), rig.open(channel(1)));

    std::thread::scope(|scope| {
        scope.spawn(|| while to_stalled.push(Element::Batch(batch(0, 1000))) {});
        wait_until(|| to_stalled.queued_bytes() >= config().queue_bytes);
        // More than all HTTP/2 windows of a connection.
        const BATCHES: usize = 2000;
        scope.spawn(|| {
            for idx in 0..BATCHES {
                assert!(to_flowing.push(Element::Batch(batch(idx as i64, 1000))));
            }
        });
        let mut rows_n = 0;
        while rows_n < BATCHES * 1000 {
            if let Element::Batch(batch) = flowing.next() {
                rows_n += batch.len();
            }
        }
        rig.sending.close();
    });
    assert!(stalled.uplink.queued_bytes() <= config().window_bytes);
}

/// A row larger than the window goes through, alone.
#[test]
fn row_larger_than_the_window_arrives() {
    let rig = Rig::start(config());
    let receiver = rig.accept(channel(0));
    let sender = rig.open(channel(0));
    let large = "x".repeat(300 * 1024);
    let column: arrow::array::ArrayRef =
        Arc::new(arrow::array::StringArray::from(vec![large.as_str(); 3]));
    let rows = arrow::array::RecordBatch::try_from_iter([("v", column)]).unwrap();

    std::thread::scope(|scope| {
        scope.spawn(|| assert!(sender.push(Element::Batch(StreamBatch::plain(rows.clone())))));
        let mut arrived = Vec::new();
        while arrived.len() < 3 {
            let Element::Batch(batch) = receiver.next() else {
                panic!("only rows were sent");
            };
            assert_eq!(batch.len(), 1);
            arrived.push(batch);
        }
        check_equal(
            &frame::join(&arrived).unwrap().unwrap(),
            &StreamBatch::plain(rows.clone()),
        );
    });
}

#[test]
fn few_rows_leave_though_nothing_follows_and_many_small_batches_are_joined() {
    let config = Config {
        linger: Duration::from_millis(50),
        queue_bytes: 128 * 1024,
        ..config()
    };
    let rig = Rig::start(config);
    let receiver = rig.accept(channel(0));
    let sender = rig.open(channel(0));
    let began = Instant::now();

    for idx in 0..100 {
        assert!(sender.push(Element::Batch(batch(idx, 1))));
    }
    let mut rows_n = 0;
    while rows_n < 100 {
        if let Element::Batch(batch) = receiver.next() {
            rows_n += batch.len();
        }
    }

    let frames_n = rig.here.totals().frames_sent.load(Ordering::Relaxed);
    let lingers_n = began.elapsed().as_millis() as u64 / 50;
    assert!(frames_n <= 2 + lingers_n, "{frames_n} frames");
}

#[test]
fn watermarks_that_nothing_separates_take_no_room_b1() {
    let rig = Rig::start(config());
    let receiver = rig.accept(channel(0));
    let sender = rig.open(channel(0));

    for watermark in 0..10_000 {
        assert!(sender.push(Element::Watermark(Watermark(watermark))));
    }
    assert!(sender.push(barrier(1)));
    wait_until(|| receiver.inbox.elements_n(0) == 2);

    assert!(matches!(
        receiver.next(),
        Element::Watermark(Watermark(9_999))
    ));
}
