//! A proxy in front of a broker that can hold back the end of a transaction.
//!
//! Owns: passing bytes on, and one `EndTxn` request that is kept while its client's connection breaks,
//! as a network may delay it: the client asks again on another connection, and the first request
//! arrives whenever the test says so.

use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

/// Kafka's number of the request that ends a transaction.
const END_TXN: i16 = 26;

/// How long the broker may take to answer the late request.
const PATIENCE: Duration = Duration::from_secs(30);

/// The proxy. Its threads end with the process.
#[derive(Debug)]
pub struct EndHolder {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    answered: Condvar,
}

#[derive(Debug, Default)]
enum State {
    #[default]
    Passing,
    /// The next end is held back.
    Armed,
    /// It is, with the connection that it is to arrive on.
    Holding(TcpStream, Vec<u8>),
    /// It is on its way.
    Released,
    /// The broker has answered it, with this error or 0.
    Answered(i16),
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("a proxy does not panic")
    }
}

impl EndHolder {
    /// Listens on `port` of this machine, in front of the broker's listener on `upstream`.
    pub fn start(port: u16, upstream: u16) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", port)).expect("the port is free");
        let shared = Arc::<Shared>::default();
        let of_threads = Arc::clone(&shared);
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                // A broker that is not there breaks the connection.
                if let Ok(server) = TcpStream::connect(("127.0.0.1", upstream)) {
                    connect(&client, &server, &of_threads);
                }
            }
        });
        Self { shared }
    }

    /// Holds the next end of a transaction back, and breaks the connection that it came on.
    pub fn hold_next(&self) {
        *self.shared.lock() = State::Armed;
    }

    /// Whether one is held back.
    pub fn is_holding(&self) -> bool {
        matches!(*self.shared.lock(), State::Holding(..))
    }

    /// Lets it arrive, and waits until the broker has answered it: the error, or 0 when the broker ends
    /// a transaction.
    pub fn release(&self) -> i16 {
        let mut state = self.shared.lock();
        let held = std::mem::replace(&mut *state, State::Released);
        let State::Holding(mut server, frame) = held else {
            panic!("nothing is held back: {held:?}");
        };
        server.write_all(&frame).expect("the broker still listens");
        let (state, waited) = self
            .shared
            .answered
            .wait_timeout_while(state, PATIENCE, |state| matches!(state, State::Released))
            .expect("a proxy does not panic");
        assert!(!waited.timed_out(), "the broker does not answer");
        match *state {
            State::Answered(error) => error,
            _ => panic!("somebody else uses this proxy: {state:?}"),
        }
    }
}

fn connect(client: &TcpStream, server: &TcpStream, shared: &Arc<Shared>) {
    let both = || Some((client.try_clone().ok()?, server.try_clone().ok()?));
    let (Some((from, to)), Some((back_to, back_from))) = (both(), both()) else {
        return;
    };
    let of_up = Arc::clone(shared);
    std::thread::spawn(move || {
        let held = pass_requests(&from, &to, &of_up);
        if !matches!(held, Ok(true)) {
            // Ends its other half, too.
            let _gone = to.shutdown(Shutdown::Both);
        }
        let _gone = from.shutdown(Shutdown::Both);
    });
    let of_down = Arc::clone(shared);
    std::thread::spawn(move || pass_answers(&back_from, &back_to, &of_down));
}

/// Until the client is gone, or until a request of it is held back: then true.
fn pass_requests(mut from: &TcpStream, mut to: &TcpStream, shared: &Shared) -> io::Result<bool> {
    loop {
        let mut frame = vec![0; 4];
        from.read_exact(&mut frame)?;
        let length = u32::from_be_bytes([frame[0], frame[1], frame[2], frame[3]]);
        frame.resize(4 + length as usize, 0);
        from.read_exact(&mut frame[4..])?;
        let kind = i16::from_be_bytes([frame[4], frame[5]]);
        let mut state = shared.lock();
        if kind == END_TXN && matches!(*state, State::Armed) {
            *state = State::Holding(to.try_clone()?, frame);
            return Ok(true);
        }
        drop(state);
        to.write_all(&frame)?;
    }
}

/// Until the broker is gone. What comes back on a connection whose client is gone is the answer to
/// what was held back.
fn pass_answers(mut from: &TcpStream, mut to: &TcpStream, shared: &Shared) {
    let mut bytes = [0; 64 * 1024];
    while let Ok(n @ 1..) = from.read(&mut bytes) {
        if to.write_all(&bytes[..n]).is_err() {
            let mut state = shared.lock();
            if matches!(*state, State::Released) {
                // Length, number of the request, throttling, error: versions that librdkafka speaks.
                *state = State::Answered(i16::from_be_bytes([bytes[12], bytes[13]]));
                shared.answered.notify_all();
            }
        }
    }
    let _gone = to.shutdown(Shutdown::Both);
}
