//! Large messages, few at a time.
//!
//! Owns: how many messages of task managers that are much larger than usual are in memory while they arrive. Whoever
//! has a certificate may send them, of many jobs at once, and the coordinators of all are in one process.
//! And whether somebody of whom no whole message comes is silent, or sends a large one. Start at: [`Metered`].

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body_util::{BodyStream, StreamBody};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;
use tokio_stream::StreamExt as _;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::Service;
use tonic::codegen::http::Request;
use tonic::server::NamedService;

/// A message is large when it is larger than this.
const LARGE_BYTES: usize = 1 << 20;

/// Large messages that arrive at a time; others wait, and whoever sends them is told by its transport.
const LARGE_AT_ONCE: usize = 2;

/// Bytes of one message in a second at least, once it has its place: whoever sends it more slowly keeps the
/// place from others, and counts as silent. So the largest has its place for four minutes at most.
const PACE_BYTES: u64 = 256 << 10;

/// A service whose calls are metered: each finds its [`Meter`] in the extensions of its request.
#[derive(Clone, Debug)]
pub(super) struct Metered<S> {
    inner: S,
    room: Arc<Semaphore>,
}

impl<S> Metered<S> {
    pub(super) fn new(inner: S) -> Self {
        let room = Arc::new(Semaphore::new(LARGE_AT_ONCE));
        Self { inner, room }
    }
}

impl<S: NamedService> NamedService for Metered<S> {
    const NAME: &'static str = S::NAME;
}

impl<S: Service<Request<Body>>> Service<Request<Body>> for Metered<S> {
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Body>) -> S::Future {
        let meter = Meter::new(Arc::clone(&self.room));
        let (mut head, body) = request.into_parts();
        head.extensions.insert(meter.clone());
        self.inner.call(Request::from_parts(head, meter.over(body)))
    }
}

/// Of one session. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct Meter {
    room: Arc<Semaphore>,
    arriving: Arc<Mutex<Arriving>>,
}

/// Of the message that arrives.
#[derive(Debug, Default)]
struct Arriving {
    bytes_n: usize,
    place: Option<OwnedSemaphorePermit>,
    /// The rest is not read: large messages of others arrive.
    waits: bool,
    /// Bytes came since somebody asked for a sign of life.
    fresh: bool,
    /// Since when its pace counts, and the bytes since then.
    paced: Option<(Instant, u64)>,
}

impl Arriving {
    fn on_bytes(&mut self, bytes_n: usize, now: Instant) {
        self.bytes_n = self.bytes_n.saturating_add(bytes_n);
        self.fresh |= bytes_n > 0;
        let (_, paced_n) = self.paced.get_or_insert((now, 0));
        *paced_n = paced_n.saturating_add(bytes_n as u64);
    }

    fn on_place(&mut self, place: Option<OwnedSemaphorePermit>, now: Instant) {
        self.place = place;
        self.waits = false;
        self.fresh = true;
        self.paced = Some((now, 0));
    }

    fn shows_life(&mut self, now: Instant) -> bool {
        let fresh = std::mem::take(&mut self.fresh);
        self.waits || fresh && self.keeps_pace(now)
    }

    fn keeps_pace(&self, now: Instant) -> bool {
        self.paced.is_some_and(|(since, bytes_n)| {
            let seconds = now.duration_since(since).as_secs();
            bytes_n >= seconds.saturating_mul(PACE_BYTES)
        })
    }
}

impl Meter {
    fn new(room: Arc<Semaphore>) -> Self {
        let arriving = Arc::default();
        Self { room, arriving }
    }

    fn arriving(&self) -> MutexGuard<'_, Arriving> {
        // Every critical section leaves it whole.
        self.arriving.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A whole message was taken: what comes now belongs to another one.
    pub(super) fn on_message(&self) {
        *self.arriving() = Arriving::default();
    }

    /// Whether the sender has shown since the last call that it lives, though no whole message came: bytes of
    /// one did, or it is this end that does not read them.
    pub(super) fn shows_life(&self) -> bool {
        self.arriving().shows_life(Instant::now())
    }

    /// Bytes have come. Of a large message the rest is not read before it has its place.
    async fn on_bytes(&self, bytes_n: usize) {
        {
            let mut arriving = self.arriving();
            arriving.on_bytes(bytes_n, Instant::now());
            arriving.waits = arriving.bytes_n > LARGE_BYTES && arriving.place.is_none();
            if !arriving.waits {
                return;
            }
        }
        // Nobody closes it.
        let place = Arc::clone(&self.room).acquire_owned().await.ok();
        self.arriving().on_place(place, Instant::now());
    }

    fn over(&self, body: Body) -> Body {
        let meter = self.clone();
        let frames = BodyStream::new(body).then(move |frame| {
            let meter = meter.clone();
            async move {
                let frame = frame?;
                meter.on_bytes(frame.data_ref().map_or(0, Bytes::len)).await;
                Ok::<_, Status>(frame)
            }
        });
        Body::new(StreamBody::new(frames))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn bytes_that_come_fast_enough_are_signs_of_life_once() {
        let mut arriving = Arriving::default();
        let mut now = Instant::now();
        assert!(!arriving.shows_life(now), "nothing has come");
        for _ in 0..600 {
            arriving.on_bytes(300 << 10, now);
            now += Duration::from_secs(1);
            assert!(arriving.shows_life(now));
        }
        assert!(!arriving.shows_life(now), "nothing came since");
        // One that keeps its place from others by a byte now and then.
        now += Duration::from_secs(600);
        arriving.on_bytes(1, now);
        assert!(!arriving.shows_life(now));
        // With its place it begins anew: that it waited was not its own doing.
        arriving.on_place(None, now);
        assert!(arriving.shows_life(now));
        assert!(!arriving.shows_life(now));
    }

    #[tokio::test]
    async fn waiting_for_a_place_is_no_silence() {
        let room = Arc::new(Semaphore::new(0));
        let meter = Meter::new(Arc::clone(&room));
        let late = meter.clone();
        let arrives = tokio::spawn(async move { late.on_bytes(2 * LARGE_BYTES).await });
        tokio::task::yield_now().await;
        for _ in 0..3 {
            assert!(meter.shows_life(), "it is this end that does not read");
        }
        room.add_permits(1);
        arrives.await.unwrap();
        assert!(meter.shows_life());
        assert!(!meter.shows_life());
    }

    #[tokio::test]
    async fn large_messages_arrive_few_at_a_time_and_small_ones_always() {
        let room = Arc::new(Semaphore::new(LARGE_AT_ONCE));
        let session = || Meter::new(Arc::clone(&room));
        let arrives = async |meter: &Meter, bytes_n: usize| {
            let arriving = meter.on_bytes(bytes_n);
            tokio::time::timeout(Duration::from_millis(20), arriving)
                .await
                .is_ok()
        };
        let (one, other, third) = (session(), session(), session());
        for meter in [&one, &other] {
            assert!(arrives(meter, LARGE_BYTES).await);
            assert!(arrives(meter, 50 * LARGE_BYTES).await);
            assert!(arrives(meter, LARGE_BYTES).await, "it has its place");
        }

        // Many small ones make no large one.
        for _ in 0..8 {
            assert!(arrives(&third, LARGE_BYTES).await);
            third.on_message();
        }
        assert!(!arrives(&third, LARGE_BYTES + 1).await);
        // A message was taken, or a session is over.
        one.on_message();
        assert!(arrives(&third, 1).await);
        assert!(!arrives(&one, LARGE_BYTES + 1).await);
        drop(other);
        assert!(arrives(&one, 1).await);
    }
}
