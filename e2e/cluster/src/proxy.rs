//! A proxy of ours between an operator and the API server: what happens to each request is a test's to say.
//!
//! Owns: passing requests on, and what may become of them ([`Fate`]); a protocol of what was asked. The way to
//! the API server is `kubectl proxy`; the operator shows its own token. Start at: [`Proxy::start`].

use std::io::{self, BufReader, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{sleep, spawn};
use std::time::{Duration, Instant};

use serde_json::json;

use crate::http::{self, Answer, Head};
use crate::request::Request;

/// What becomes of a request.
pub enum Fate {
    /// It is passed on, and so is its answer.
    Pass,
    /// The proxy answers, and the API server hears nothing of it.
    Answer(Answer),
    /// The connection breaks before it is passed on.
    Lose,
    /// It is passed on; then this is done, and the connection breaks before the answer.
    LoseAnswer(Box<dyn FnOnce() + Send>),
    /// A watch whose events come late.
    Late(Duration),
    /// A watch whose connection breaks after this time.
    Cut(Duration),
    /// A watch that ends after this time because its version is too old.
    Expire(Duration),
}

/// Decides. It may take its time: only this request waits.
pub type Rule = dyn Fn(&Request) -> Fate + Send + Sync;

/// One line of the protocol.
#[derive(Clone, Debug)]
pub struct Line {
    /// What was asked; without its body.
    pub request: Request,
    /// The code of the answer; 0: there was none.
    pub status: u16,
    /// Whether the answer was the API server's.
    pub is_real: bool,
}

#[derive(Default)]
struct Shared {
    rule: Mutex<Option<Arc<Rule>>>,
    lines: Mutex<Vec<Line>>,
}

/// See the module.
pub struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
}

/// What the API server would say.
pub fn refusal(code: u16, reason: &str, message: &str) -> Answer {
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": message, "reason": reason, "code": code,
    });
    Answer {
        status: code,
        headers: vec![("content-type".to_owned(), "application/json".to_owned())],
        body: status.to_string().into_bytes(),
    }
}

impl Proxy {
    /// Passes everything on to `upstream`, at first.
    pub fn start(upstream: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let address = listener.local_addr().expect("it is bound");
        let shared = Arc::new(Shared::default());
        let (theirs, upstream) = (Arc::clone(&shared), upstream.to_owned());
        // It ends with the process.
        spawn(move || {
            for stream in listener.incoming().flatten() {
                let (shared, upstream) = (Arc::clone(&theirs), upstream.clone());
                spawn(move || {
                    // A peer that is gone is what the tests are about.
                    let _gone = serve(stream, &shared, &upstream);
                });
            }
        });
        Self { address, shared }
    }

    /// Where it listens.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// What becomes of requests from now on.
    pub fn set(&self, rule: impl Fn(&Request) -> Fate + Send + Sync + 'static) {
        *lock(&self.shared.rule) = Some(Arc::new(rule));
    }

    /// All are passed on from now on.
    pub fn clear(&self) {
        *lock(&self.shared.rule) = None;
    }

    /// What was asked until now.
    pub fn lines(&self) -> Vec<Line> {
        lock(&self.shared.lines).clone()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn serve(stream: TcpStream, shared: &Shared, upstream: &str) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut writer = stream;
    while let Some(head) = Head::read(&mut reader)? {
        let body = head.read_body(&mut reader)?;
        let mut words = head.first.split(' ');
        let (method, target) = (words.next(), words.next());
        let request = Request::new(method.unwrap_or_default(), target.unwrap_or_default(), body);
        let rule = lock(&shared.rule).clone();
        let fate = rule.map_or(Fate::Pass, |rule| rule(&request));
        let goes_on = one(&mut writer, &head, &request, fate, shared, upstream);
        if !matches!(goes_on, Ok(true)) {
            let _gone = writer.shutdown(Shutdown::Both);
            return goes_on.map(drop);
        }
    }
    Ok(())
}

/// One request; whether the connection can be used for another one.
fn one(
    writer: &mut TcpStream,
    head: &Head,
    request: &Request,
    fate: Fate,
    shared: &Shared,
    upstream: &str,
) -> io::Result<bool> {
    let note = |status, is_real| {
        let request = Request {
            body: Vec::new(),
            ..request.clone()
        };
        lock(&shared.lines).push(Line {
            request,
            status,
            is_real,
        });
    };
    let Request {
        method,
        target,
        body,
        verb,
        ..
    } = request;
    let send = || http::send(upstream, method, target, &head.to_pass_on(), body);
    match fate {
        Fate::Lose => {
            note(0, false);
            return Ok(false);
        }
        Fate::Answer(answer) => {
            note(answer.status, false);
            give(writer, &answer)?;
            return Ok(true);
        }
        Fate::LoseAnswer(then) => {
            let (head, mut reader) = send()?;
            head.read_body(&mut reader)?;
            note(head.status(), true);
            then();
            return Ok(false);
        }
        Fate::Pass | Fate::Late(_) | Fate::Cut(_) | Fate::Expire(_) => {}
    }
    let (head, mut reader) = send()?;
    note(head.status(), true);
    if *verb == "watch" && head.is_chunked() {
        pass_watch(writer, &head, reader, &fate)?;
        return Ok(!matches!(fate, Fate::Cut(_)));
    }
    let answer = Answer {
        status: head.status(),
        body: head.read_body(&mut reader)?,
        headers: head.to_pass_on(),
    };
    give(writer, &answer)?;
    Ok(true)
}

fn give(writer: &mut TcpStream, answer: &Answer) -> io::Result<()> {
    let length = answer.body.len().to_string();
    let first = format!("HTTP/1.1 {} Told", answer.status);
    let own = [("content-length", &*length)];
    http::write_head(writer, &first, &answer.headers, &own)?;
    writer.write_all(&answer.body)
}

/// Events as they come, or late, until the watch ends by itself or by its fate.
fn pass_watch(
    writer: &mut TcpStream,
    head: &Head,
    mut reader: BufReader<TcpStream>,
    fate: &Fate,
) -> io::Result<()> {
    let own = [("transfer-encoding", "chunked")];
    http::write_head(writer, "HTTP/1.1 200 OK", &head.to_pass_on(), &own)?;
    let upstream = reader.get_ref().try_clone()?;
    let (sender, chunks) = channel();
    spawn(move || {
        while let Ok(Some(chunk)) = http::read_chunk(&mut reader) {
            if sender.send((Instant::now(), chunk)).is_err() {
                return;
            }
        }
    });
    let began = Instant::now();
    let (late, limit) = match fate {
        Fate::Late(late) => (*late, Duration::MAX),
        Fate::Cut(limit) | Fate::Expire(limit) => (Duration::ZERO, *limit),
        Fate::Pass | Fate::Answer(_) | Fate::Lose | Fate::LoseAnswer(_) => {
            (Duration::ZERO, Duration::MAX)
        }
    };
    let passed = loop {
        match chunks.recv_timeout(limit.saturating_sub(began.elapsed())) {
            Ok((came, chunk)) => {
                sleep(late.saturating_sub(came.elapsed()));
                if let Err(gone) = http::write_chunk(writer, &chunk) {
                    break Err(gone);
                }
            }
            Err(RecvTimeoutError::Timeout) if matches!(fate, Fate::Cut(_)) => break Ok(()),
            Err(RecvTimeoutError::Timeout) => {
                let gone = refusal(410, "Expired", "too old resource version: 1 (2)");
                let object: serde_json::Value =
                    serde_json::from_slice(&gone.body).map_err(io::Error::other)?;
                let event = json!({"type": "ERROR", "object": object});
                let line = format!("{event}\n");
                http::write_chunk(writer, line.as_bytes())?;
                break http::write_chunk(writer, b"");
            }
            Err(RecvTimeoutError::Disconnected) => break http::write_chunk(writer, b""),
        }
    };
    let _gone = upstream.shutdown(Shutdown::Both);
    passed
}
