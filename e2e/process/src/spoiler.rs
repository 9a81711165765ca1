//! A proxy in front of an S3 server that has bad days.
//!
//! Owns: what becomes of each request: it passes, is slow, is lost before or after it was done, or is
//! answered with an error. Knows no more of S3 than HTTP/1.1 with a length.

use std::io::{self, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::Random;

/// What requests meet.
#[derive(Debug)]
pub enum Weather {
    /// All pass.
    Fair,
    /// Some are lost, refused, slow, or done and answered with an error.
    Foul(Random),
    /// All are answered with this status and code, and nothing is done.
    Refused(u16, &'static str),
}

/// The proxy. Its threads end with the process.
#[derive(Debug)]
pub struct Spoiler {
    /// Where it listens, as a URL.
    pub endpoint: String,
    shared: Arc<Mutex<Shared>>,
}

#[derive(Debug)]
struct Shared {
    weather: Weather,
    spoiled_n: usize,
}

/// What becomes of one request.
enum Fate {
    Pass,
    Slow(Duration),
    LostBefore,
    LostAfter,
    Answer(u16, &'static str),
    AnswerAfter(u16, &'static str),
}

impl Spoiler {
    /// Listens in front of `upstream`, a URL of this machine.
    pub fn start(upstream: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let address = listener.local_addr().expect("a listener has an address");
        let upstream = upstream
            .trim_start_matches("http://")
            .trim_end_matches('/')
            .to_owned();
        let shared = Arc::new(Mutex::new(Shared {
            weather: Weather::Fair,
            spoiled_n: 0,
        }));
        let of_threads = Arc::clone(&shared);
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let (upstream, shared) = (upstream.clone(), Arc::clone(&of_threads));
                // A connection that breaks is what this proxy is for.
                std::thread::spawn(move || drop(serve(client, &upstream, &shared)));
            }
        });
        Self {
            endpoint: format!("http://{address}"),
            shared,
        }
    }

    /// From now on.
    pub fn set(&self, weather: Weather) {
        self.shared.lock().expect("a proxy does not panic").weather = weather;
    }

    /// How many requests did not just pass.
    pub fn spoiled_n(&self) -> usize {
        self.shared
            .lock()
            .expect("a proxy does not panic")
            .spoiled_n
    }
}

impl Shared {
    fn fate(&mut self, method: &str) -> Fate {
        let fate = match &mut self.weather {
            Weather::Fair => Fate::Pass,
            Weather::Refused(status, code) => Fate::Answer(*status, code),
            Weather::Foul(random) => match random.below(24) {
                0 => Fate::LostBefore,
                1 => Fate::LostAfter,
                2 => Fate::Answer(500, "InternalError"),
                3 => Fate::Answer(503, "SlowDown"),
                4 => Fate::AnswerAfter(503, "ServiceUnavailable"),
                5 => Fate::AnswerAfter(500, "InternalError"),
                6 if method == "PUT" => Fate::Answer(409, "ConditionalRequestConflict"),
                7..=9 => Fate::Slow(Duration::from_millis(50 + random.below(350))),
                _ => Fate::Pass,
            },
        };
        self.spoiled_n += usize::from(!matches!(fate, Fate::Pass));
        fate
    }
}

/// One request per connection: both ends are told that it closes.
fn serve(mut client: TcpStream, upstream: &str, shared: &Mutex<Shared>) -> io::Result<()> {
    let Some((head, body)) = read(&mut client)? else {
        return Ok(());
    };
    let method = head.split(' ').next().unwrap_or_default();
    let fate = shared.lock().expect("a proxy does not panic").fate(method);
    let said = match fate {
        Fate::Pass => forward(&head, &body, upstream)?,
        Fate::Slow(time) => {
            std::thread::sleep(time);
            forward(&head, &body, upstream)?
        }
        Fate::LostBefore => Vec::new(),
        Fate::LostAfter => {
            forward(&head, &body, upstream)?;
            Vec::new()
        }
        Fate::Answer(status, code) => answer(status, code, method),
        Fate::AnswerAfter(status, code) => {
            forward(&head, &body, upstream)?;
            answer(status, code, method)
        }
    };
    client.write_all(&said)
}

/// Head and body of a request; none at the end of the connection.
fn read(client: &mut TcpStream) -> io::Result<Option<(String, Vec<u8>)>> {
    let mut bytes = Vec::new();
    let mut buffer = vec![0; 64 * 1024];
    let head_n = loop {
        if let Some(at) = bytes.windows(4).position(|it| it == b"\r\n\r\n") {
            break at;
        }
        match client.read(&mut buffer)? {
            0 => return Ok(None),
            n => bytes.extend_from_slice(&buffer[..n]),
        }
    };
    let head = String::from_utf8_lossy(&bytes[..head_n]).into_owned();
    let mut body = bytes.split_off(head_n + 4);
    let header = |name: &str| {
        head.lines().find_map(|line| {
            let (key, value) = line.split_once(':')?;
            key.eq_ignore_ascii_case(name).then(|| value.trim())
        })
    };
    if header("expect").is_some() {
        client.write_all(b"HTTP/1.1 100 Continue\r\n\r\n")?;
    }
    let body_n = header("content-length").map_or(0, |text| text.parse().unwrap_or(0));
    while body.len() < body_n {
        match client.read(&mut buffer)? {
            0 => return Ok(None),
            n => body.extend_from_slice(&buffer[..n]),
        }
    }
    Ok(Some((head, body)))
}

/// The server's answer. It closes after it: `connection` is not a signed header.
fn forward(head: &str, body: &[u8], upstream: &str) -> io::Result<Vec<u8>> {
    let mut server = TcpStream::connect(upstream)?;
    let lines: Vec<&str> = head
        .lines()
        .filter(|line| !line.to_ascii_lowercase().starts_with("connection:"))
        .collect();
    let head = format!("{}\r\nconnection: close\r\n\r\n", lines.join("\r\n"));
    server.write_all(head.as_bytes())?;
    server.write_all(body)?;
    let mut said = Vec::new();
    server.read_to_end(&mut said)?;
    Ok(said)
}

fn answer(status: u16, code: &str, method: &str) -> Vec<u8> {
    let body = match method {
        "HEAD" => String::new(),
        _ => format!("<Error><Code>{code}</Code><Message>said by the test</Message></Error>"),
    };
    let length = body.len();
    format!(
        "HTTP/1.1 {status} x\r\ncontent-type: application/xml\r\nconnection: close\r\n\
         content-length: {length}\r\n\r\n{body}"
    )
    .into_bytes()
}
