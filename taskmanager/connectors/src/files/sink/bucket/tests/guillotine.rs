//! A proxy in front of the S3 server that lets so many requests through and then nothing more.

use std::io::{self, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::watch;

/// The proxy. Its threads end with the process.
pub struct Guillotine {
    /// Where it listens, as a URL.
    pub endpoint: String,
    fallen: watch::Receiver<bool>,
}

impl Guillotine {
    /// In front of `upstream`, a URL of this machine. The last of `requests_n` requests is done, and its
    /// answer is lost.
    pub fn new(upstream: &str, requests_n: usize) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let upstream = upstream.trim_start_matches("http://").to_owned();
        let (falls, fallen) = watch::channel(false);
        let (seen, falls) = (Arc::new(AtomicUsize::new(0)), Arc::new(falls));
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let upstream = upstream.clone();
                let (seen, falls) = (Arc::clone(&seen), Arc::clone(&falls));
                std::thread::spawn(move || {
                    let counts = || seen.fetch_add(1, Ordering::SeqCst) + 1;
                    // A connection that breaks is what this proxy is for.
                    let _broken = serve(client, &upstream, || match counts() {
                        n if n < requests_n => Fate::Pass,
                        n if n == requests_n => Fate::Falls(&falls),
                        _ => Fate::TooLate,
                    });
                });
            }
        });
        Self {
            endpoint: format!("http://{address}"),
            fallen,
        }
    }

    /// Returns when the last request is done.
    pub async fn falls(mut self) {
        self.fallen.wait_for(|fallen| *fallen).await.unwrap();
    }
}

enum Fate<'a> {
    Pass,
    Falls(&'a watch::Sender<bool>),
    TooLate,
}

/// One request per connection: both ends are told that it closes.
fn serve<'a>(
    mut client: TcpStream,
    upstream: &str,
    fate: impl FnOnce() -> Fate<'a>,
) -> io::Result<()> {
    let Some((head, body)) = read(&mut client)? else {
        return Ok(());
    };
    match fate() {
        Fate::Pass => client.write_all(&forward(&head, &body, upstream)?),
        Fate::Falls(falls) => {
            forward(&head, &body, upstream)?;
            falls.send_replace(true);
            Ok(())
        }
        Fate::TooLate => Ok(()),
    }
}

/// Head and body of a request; none at the end of the connection.
fn read(client: &mut TcpStream) -> io::Result<Option<(String, Vec<u8>)>> {
    let mut bytes = Vec::new();
    let mut buffer = vec![0; 64 << 10];
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
    let body_n = header("content-length").map_or(0, |text| text.parse().unwrap());
    while body.len() < body_n {
        match client.read(&mut buffer)? {
            0 => return Ok(None),
            n => body.extend_from_slice(&buffer[..n]),
        }
    }
    Ok(Some((head, body)))
}

fn forward(head: &str, body: &[u8], upstream: &str) -> io::Result<Vec<u8>> {
    let mut server = TcpStream::connect(upstream)?;
    // Neither is a signed header.
    let dropped = |line: &&str| {
        let line = line.to_ascii_lowercase();
        !line.starts_with("connection:") && !line.starts_with("expect:")
    };
    let lines: Vec<&str> = head.lines().filter(dropped).collect();
    let head = format!("{}\r\nconnection: close\r\n\r\n", lines.join("\r\n"));
    server.write_all(head.as_bytes())?;
    server.write_all(body)?;
    let mut said = Vec::new();
    server.read_to_end(&mut said)?;
    Ok(said)
}
