//! What breaks a channel, and that each end says so once (B2).

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};

use streamforge_proto::convert::exchange::PROTOCOL;
use streamforge_proto::v1;
use streamforge_proto::v1::downstream::What;
use streamforge_proto::v1::exchange_client::ExchangeClient;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;

use super::rig::Receiver;
use super::*;

/// Forwards connections and cuts them after so many bytes of the sender's.
struct Cable {
    address: SocketAddr,
    left: Arc<AtomicU64>,
    runtime: Option<Runtime>,
}

impl Cable {
    fn to(target: SocketAddr) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let listener = runtime
            .block_on(TcpListener::bind(("127.0.0.1", 0)))
            .unwrap();
        let address = listener.local_addr().unwrap();
        let left = Arc::new(AtomicU64::new(u64::MAX / 2));
        runtime.spawn(forward(listener, target, Arc::clone(&left)));
        Self {
            address,
            left,
            runtime: Some(runtime),
        }
    }

    /// Cuts in the middle of whatever follows.
    fn cut_after(&self, bytes: u64) {
        self.left.store(bytes, Ordering::SeqCst);
    }
}

impl Drop for Cable {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

async fn forward(listener: TcpListener, target: SocketAddr, left: Arc<AtomicU64>) {
    while let Ok((near, _)) = listener.accept().await {
        let left = Arc::clone(&left);
        tokio::spawn(async move {
            let far = TcpStream::connect(target).await.unwrap();
            let (mut near_in, mut near_out) = near.into_split();
            let (mut far_in, mut far_out) = far.into_split();
            let back = tokio::spawn(async move {
                let _ = tokio::io::copy(&mut far_in, &mut near_out).await;
            });
            let mut bytes = [0; 4096];
            while let Ok(n @ 1..) = near_in.read(&mut bytes).await {
                let before = left.load(Ordering::SeqCst);
                let kept = before.min(n as u64);
                left.store(before - kept, Ordering::SeqCst);
                far_out.write_all(&bytes[..kept as usize]).await.unwrap();
                if kept < n as u64 {
                    break;
                }
            }
            back.abort();
        });
    }
}

fn check_reported_once_at_each_end(rig: &Rig) {
    wait_until(|| {
        let (sending, receiving) = rig.broken();
        !sending.is_empty() && !receiving.is_empty()
    });
    // Whoever would report again has time until both attempts are over.
    rig.sending.close();
    rig.receiving.close();
    let (sending, receiving) = rig.broken();
    assert_eq!(
        (sending.len(), receiving.len()),
        (1, 1),
        "{sending:?} {receiving:?}"
    );
    assert_eq!(sending[0].end, End::Sending);
    assert_eq!(receiving[0].end, End::Receiving);
    assert_eq!(sending[0].channel, channel(0));
}

#[test]
fn break_in_the_middle_of_a_frame_is_reported_once_at_each_end_b2() {
    let rig = Rig::start(config());
    let receiver = rig.accept(channel(0));
    let cable = Cable::to(rig.there.address());
    let sender = rig
        .try_open_at(channel(0), &cable.address.to_string())
        .unwrap();
    assert!(sender.push(Element::Batch(batch(1, 100))));
    assert!(matches!(receiver.next(), Element::Batch(_)));

    cable.cut_after(5_000);
    // A frame of 8,000 bytes; and more than fits, so that the thread would wait for ever.
    while sender.push(Element::Batch(batch(2, 1000))) {}

    check_reported_once_at_each_end(&rig);
    assert!(rig.here.totals().broken.load(Ordering::Relaxed) == 1);
    assert_eq!(
        receiver.inbox.elements_n(0),
        0,
        "no part of the frame arrived"
    );
}

/// attack 25: the stream is reset while both sessions live.
#[test]
fn attack_25_broken_channel_is_not_opened_again_within_its_epoch_b2() {
    let rig = Rig::start(config());
    let _receiver = rig.accept(channel(0));
    let cable = Cable::to(rig.there.address());
    let sender = rig
        .try_open_at(channel(0), &cable.address.to_string())
        .unwrap();

    cable.cut_after(0);
    while sender.push(Element::Batch(batch(2, 1000))) {}
    wait_until(|| !rig.broken().0.is_empty());

    let error = rig.try_open(channel(0)).unwrap_err();
    assert!(matches!(error, Error::Refused { .. }), "{error}");
    check_reported_once_at_each_end(&rig);
}

#[test]
fn receiver_that_goes_away_frees_a_waiting_sender_b2() {
    let rig = Rig::start(config());
    let _receiver = rig.accept(channel(0));
    let sender = rig.open(channel(0));

    std::thread::scope(|scope| {
        scope.spawn(|| while sender.push(Element::Batch(batch(0, 1000))) {});
        wait_until(|| sender.queued_bytes() >= config().queue_bytes);
        rig.receiving.close();
    });

    wait_until(|| !rig.broken().0.is_empty());
    let (sending, receiving) = rig.broken();
    assert_eq!(sending.len(), 1);
    assert!(sending[0].cause.contains("over"), "{sending:?}");
    assert_eq!(receiving, vec![], "the end that closed it");
}

/// A sender made by hand, that breaks the rules.
struct ByHand {
    runtime: Runtime,
    messages: tokio::sync::mpsc::Sender<v1::Downstream>,
    answers: tonic::Streaming<v1::Upstream>,
}

impl ByHand {
    fn open(rig: &Rig) -> (Self, Receiver) {
        let receiver = rig.accept(channel(0));
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let (messages, sent) = tokio::sync::mpsc::channel(16);
        let opening = v1::Opening {
            protocol: PROTOCOL,
            job: "j".to_owned(),
            generation: 1,
            epoch: 1,
            task_manager: "here".to_owned(),
            ..v1::Opening::default()
        };
        let first = v1::Downstream {
            number: 1,
            what: Some(What::Opening(opening)),
        };
        let address = format!("http://{}", rig.address());
        let answers = runtime.block_on(async {
            messages.send(first).await.unwrap();
            let mut client = ExchangeClient::connect(address).await.unwrap();
            let stream = tokio_stream::wrappers::ReceiverStream::new(sent);
            client.channel(stream).await.unwrap().into_inner()
        });
        let by_hand = Self {
            runtime,
            messages,
            answers,
        };
        (by_hand, receiver)
    }

    fn send(&self, number: u64, what: Option<What>) {
        let message = v1::Downstream { number, what };
        self.messages.blocking_send(message).unwrap();
    }

    /// What the receiver said last.
    fn refusal(&mut self) -> String {
        self.runtime.block_on(async {
            loop {
                match self.answers.message().await {
                    Ok(Some(_)) => {}
                    Ok(None) => panic!("the receiver ended it without a word"),
                    Err(status) => return status.message().to_owned(),
                }
            }
        })
    }
}

fn idle() -> Option<What> {
    Some(What::Idle(v1::Nothing {}))
}

#[test]
fn gap_and_repeat_of_numbers_break_the_channel_b2() {
    for (number, cause) in [
        (4, "message 4 came where 3 was due"),
        (2, "message 2 came where 3 was due"),
    ] {
        let rig = Rig::start(config());
        let (mut by_hand, receiver) = ByHand::open(&rig);
        by_hand.send(2, idle());
        assert!(matches!(receiver.next(), Element::Idle));

        by_hand.send(number, idle());

        assert_eq!(by_hand.refusal(), cause);
        wait_until(|| !rig.broken().1.is_empty());
        let reported = &rig.broken().1;
        assert_eq!(reported.len(), 1);
        assert_eq!(reported[0].cause, cause);
        assert_eq!(receiver.inbox.elements_n(0), 0);
    }
}

#[test]
fn rows_without_credit_break_the_channel_b1() {
    let rig = Rig::start(config());
    let (mut by_hand, receiver) = ByHand::open(&rig);
    let mut encoder = frame::Encoder::default();
    let encoded = encoder.encode(&batch(1, 3000)).unwrap();
    by_hand.send(2, encoded.layout.map(What::Layout));

    // 24,000 bytes each: the third one has no credit of 65,536 left.
    for number in 3..6 {
        by_hand.send(number, Some(What::Rows(encoded.rows.clone())));
    }

    let refusal = by_hand.refusal();
    assert!(refusal.contains("bytes of credit left"), "{refusal}");
    assert_eq!(receiver.inbox.elements_n(0), 2);
    assert!(receiver.uplink.queued_bytes() <= config().window_bytes);
}

#[test]
fn message_of_an_unknown_kind_breaks_the_channel() {
    let rig = Rig::start(config());
    let (mut by_hand, _receiver) = ByHand::open(&rig);

    by_hand.send(2, None);

    assert_eq!(by_hand.refusal(), "a message of an unknown kind came");
}

#[test]
fn rows_that_are_none_break_the_channel() {
    let rig = Rig::start(config());
    let (mut by_hand, receiver) = ByHand::open(&rig);
    let encoded = frame::Encoder::default().encode(&batch(1, 10)).unwrap();
    by_hand.send(2, encoded.layout.map(What::Layout));
    let mut rows = encoded.rows;
    rows.body = rows.body.slice(..8);

    by_hand.send(3, Some(What::Rows(rows)));

    let refusal = by_hand.refusal();
    assert!(
        refusal.contains("a buffer outside of its body"),
        "{refusal}"
    );
    assert_eq!(receiver.inbox.elements_n(0), 0);
}
