//! A proxy between the store and a real server, which spoils requests as the test tells it.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use super::wire::{Request, answer, error_body};

/// What happens to one request.
#[derive(Clone, Copy, Debug)]
pub enum Fate {
    /// It passes.
    Pass,
    /// It is not forwarded, and the connection ends.
    LostBefore,
    /// It is forwarded and done, and the connection ends instead of an answer.
    LostAfter,
    /// It is not forwarded; this is answered.
    Answer(u16, &'static str),
    /// It is forwarded and done; this is answered.
    AnswerAfter(u16, &'static str),
    /// It is not forwarded, and nothing is ever answered.
    Silence,
}

/// Fates of the next requests whose request line contains the text; all others pass.
#[derive(Debug)]
struct Script {
    matching: &'static str,
    fates: VecDeque<Fate>,
    seen_n: usize,
}

/// The proxy, until it is dropped.
#[derive(Debug)]
pub struct Proxy {
    /// Where it listens, as a URL.
    pub endpoint: String,
    script: Arc<Mutex<Script>>,
    accepting: JoinHandle<()>,
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

impl Proxy {
    /// Listens in front of `upstream`, a URL of this machine.
    pub async fn start(upstream: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let port = listener.local_addr().expect("it is bound").port();
        let upstream = upstream
            .trim_start_matches("http://")
            .trim_end_matches('/')
            .to_owned();
        let script = Arc::new(Mutex::new(Script {
            matching: "",
            fates: VecDeque::new(),
            seen_n: 0,
        }));
        let shared = Arc::clone(&script);
        let accepting = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let (upstream, script) = (upstream.clone(), Arc::clone(&shared));
                // A connection that breaks is what this proxy is for.
                tokio::spawn(async move { drop(serve(client, &upstream, &script).await) });
            }
        });
        Self {
            endpoint: format!("http://127.0.0.1:{port}"),
            script,
            accepting,
        }
    }

    /// From now on: the next requests like this one have these fates.
    pub fn spoil(&self, matching: &'static str, fates: impl IntoIterator<Item = Fate>) {
        let mut script = self.script.lock().expect("no test thread panicked");
        script.matching = matching;
        script.fates = fates.into_iter().collect();
        script.seen_n = 0;
    }

    /// How many requests like the spoiled ones came since.
    pub fn seen_n(&self) -> usize {
        self.script.lock().expect("no test thread panicked").seen_n
    }
}

async fn serve(mut client: TcpStream, upstream: &str, script: &Mutex<Script>) -> io::Result<()> {
    let Some(request) = Request::read(&mut client).await? else {
        return Ok(());
    };
    let fate = {
        let mut script = script.lock().expect("no test thread panicked");
        let line = format!("{} {}", request.method, request.target);
        if !script.matching.is_empty() && line.contains(script.matching) {
            script.seen_n += 1;
            script.fates.pop_front().unwrap_or(Fate::Pass)
        } else {
            Fate::Pass
        }
    };
    match fate {
        Fate::Pass => {
            let said = forward(&request, upstream).await?;
            client.write_all(&said).await?;
        }
        Fate::LostBefore => {}
        Fate::LostAfter => drop(forward(&request, upstream).await?),
        Fate::Answer(status, code) => {
            client
                .write_all(&answer(status, "", &error_body(code)))
                .await?;
        }
        Fate::AnswerAfter(status, code) => {
            let _done = forward(&request, upstream).await?;
            client
                .write_all(&answer(status, "", &error_body(code)))
                .await?;
        }
        Fate::Silence => {
            // Until the client gives up and closes.
            let mut rest = Vec::new();
            client.read_to_end(&mut rest).await?;
        }
    }
    client.shutdown().await
}

/// The server's answer. It closes after it: `connection` is not a signed header.
async fn forward(request: &Request, upstream: &str) -> io::Result<Vec<u8>> {
    let mut server = TcpStream::connect(upstream).await?;
    let head: Vec<&str> = request
        .head
        .lines()
        .filter(|line| !line.to_ascii_lowercase().starts_with("connection:"))
        .collect();
    let head = format!("{}\r\nconnection: close\r\n\r\n", head.join("\r\n"));
    server.write_all(head.as_bytes()).await?;
    server.write_all(&request.body).await?;
    let mut said = Vec::new();
    server.read_to_end(&mut said).await?;
    Ok(said)
}
