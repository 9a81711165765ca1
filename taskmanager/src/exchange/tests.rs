//! Channels between two exchanges of one process, over real sockets.

mod breaks;
mod flow;
mod rig;
mod tls;

use std::sync::Arc;
use std::time::Duration;

use streamforge_core::event_time::Watermark;
use streamforge_engine::task::Element;

use super::*;
use rig::{Rig, batch, channel, config, stamp, wait_until};

#[test]
fn channel_of_an_older_attempt_is_refused_c5() {
    let rig = Rig::with_stamps(stamp(2, 5), stamp(2, 6));
    rig.accept(channel(0));

    let error = rig.try_open(channel(0)).unwrap_err();

    assert!(matches!(&error, Error::Refused { .. }), "{error}");
    assert!(error.to_string().contains("epoch 5 is over"), "{error}");
    assert_eq!(rig.broken(), (vec![], vec![]));
}

#[test]
fn sender_waits_for_a_receiver_that_is_not_that_far() {
    let rig = Rig::start(config());

    let opened = std::thread::scope(|scope| {
        let opening = scope.spawn(|| rig.try_open(channel(0)));
        wait_until(|| rig.openings_refused() > 0);
        rig.accept(channel(0));
        opening.join().unwrap()
    });

    assert!(opened.unwrap().push(Element::Watermark(Watermark(1))));
}

#[test]
fn receiver_that_never_comes_is_reported_after_the_open_timeout() {
    let rig = Rig::start(Config {
        open_timeout: Duration::from_millis(200),
        ..config()
    });

    let error = rig.try_open(channel(0)).unwrap_err();

    assert!(matches!(error, Error::Unreachable { .. }), "{error}");
}

#[test]
fn channel_is_opened_once_b2() {
    let rig = Rig::start(config());
    rig.accept(channel(0));
    let first = rig.try_open(channel(0)).unwrap();

    let error = rig.try_open(channel(0)).unwrap_err();

    assert!(matches!(error, Error::Refused { .. }), "{error}");
    assert!(first.push(Element::Idle), "the first goes on");
    assert_eq!(rig.broken(), (vec![], vec![]));
}

#[test]
fn receivers_answer_to_a_join_reaches_the_senders_inbox_t6() {
    let rig = Rig::start(config());
    let receiver = rig.accept(channel(3));
    let sender = rig.open(channel(3));

    assert!(sender.push(Element::Rejoin));
    assert!(matches!(receiver.next(), Element::Rejoin));
    Upstream::Remote(Arc::clone(&receiver.uplink)).answer(3, SubtaskIdx(0), Watermark(95));

    let Control::Answer {
        edge,
        receiver,
        watermark,
    } = rig.own_control()
    else {
        panic!("no answer");
    };
    assert_eq!(
        (edge, receiver, watermark),
        (3, SubtaskIdx(0), Watermark(95))
    );
}

#[test]
fn closing_an_attempt_ends_a_waiting_sender_and_reports_nothing_here() {
    let rig = Rig::start(config());
    let receiver = rig.accept(channel(0));
    let sender = rig.open(channel(0));

    let taken = std::thread::scope(|scope| {
        let pushing = scope.spawn(|| while sender.push(Element::Batch(batch(0, 1000))) {});
        wait_until(|| sender.queued_bytes() >= config().queue_bytes);
        rig.sending.close();
        pushing.join()
    });

    taken.unwrap();
    assert!(!sender.push(Element::Idle));
    wait_until(|| !rig.broken().1.is_empty());
    assert_eq!(rig.broken().0, vec![], "the end that closed it");
    let at_receiver = &rig.broken().1;
    assert_eq!(at_receiver.len(), 1);
    assert_eq!(at_receiver[0].end, End::Receiving);
    drop(receiver);
}

/// The caller's runtime stands still; the exchange's own carries everything.
#[test]
fn exchange_does_not_need_the_callers_runtime() {
    let rig = Rig::start(config());
    let receiver = rig.accept(channel(0));
    let control = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let own = Arc::new(Inbox::new(0));
    let address = rig.address();

    // From here on nobody polls `control`.
    let opened = control.block_on(rig.sending.open(channel(0), &address, own));

    let sender = opened.unwrap();
    for idx in 0..50 {
        assert!(sender.push(Element::Batch(batch(idx, 100))));
        assert!(matches!(receiver.next(), Element::Batch(_)));
    }
    drop(control);
}
