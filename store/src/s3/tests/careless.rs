//! A small S3 server that is careless about conditions, each in another way.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex};

use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Barrier;
use tokio::task::JoinHandle;

use super::wire::{Request, answer, error_body};

/// How careless.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Care {
    /// Conditions are not looked at.
    None,
    /// Conditions are looked at, but others may come between the look and the write.
    OneByOne,
    /// Conditions are unknown words.
    Unknown,
    /// All is right.
    Full,
}

#[derive(Debug)]
struct State {
    care: Care,
    objects: Mutex<BTreeMap<String, (Vec<u8>, u64)>>,
    versions: Mutex<u64>,
    /// Two writers meet between look and write: that is the race.
    meeting: Barrier,
}

/// The server, until it is dropped.
#[derive(Debug)]
pub struct Server {
    pub endpoint: String,
    accepting: JoinHandle<()>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

impl Server {
    pub async fn start(care: Care) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let port = listener.local_addr().expect("it is bound").port();
        let state = Arc::new(State {
            care,
            objects: Mutex::default(),
            versions: Mutex::default(),
            meeting: Barrier::new(2),
        });
        let accepting = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let state = Arc::clone(&state);
                tokio::spawn(async move { drop(serve(client, &state).await) });
            }
        });
        Self {
            endpoint: format!("http://127.0.0.1:{port}"),
            accepting,
        }
    }
}

async fn serve(mut client: TcpStream, state: &State) -> io::Result<()> {
    if let Some(request) = Request::read(&mut client).await? {
        let said = state.answer(&request).await;
        client.write_all(&said).await?;
    }
    client.shutdown().await
}

impl State {
    async fn answer(&self, request: &Request) -> Vec<u8> {
        let key = request.path().to_owned();
        match request.method.as_str() {
            "PUT" => self.put(key, request).await,
            "DELETE" => {
                self.objects.lock().expect("not poisoned").remove(&key);
                answer(204, "", "")
            }
            "POST" => answer(200, "", "<DeleteResult/>"),
            _ => match self.objects.lock().expect("not poisoned").get(&key) {
                None => answer(404, "", &error_body("NoSuchKey")),
                Some((bytes, version)) => {
                    let text = std::str::from_utf8(bytes).expect("bodies of the probe are ASCII");
                    answer(200, &format!("etag: \"v{version}\"\r\n"), text)
                }
            },
        }
    }

    async fn put(&self, key: String, request: &Request) -> Vec<u8> {
        let if_none_match = request.header("if-none-match").is_some();
        let if_match = request.header("if-match");
        let conditional = if_none_match || if_match.is_some();
        if conditional && self.care == Care::Unknown {
            return answer(501, "", &error_body("NotImplemented"));
        }
        let holds = |objects: &BTreeMap<String, (Vec<u8>, u64)>| {
            let version = objects
                .get(&key)
                .map(|(_, version)| format!("\"v{version}\""));
            match if_match {
                Some(wanted) => version.as_deref() == Some(wanted),
                None => !if_none_match || version.is_none(),
            }
        };
        if self.care == Care::OneByOne {
            if !holds(&self.objects.lock().expect("not poisoned")) {
                return answer(412, "", &error_body("PreconditionFailed"));
            }
            // Alone nobody comes, and it goes on after a while.
            let meeting = self.meeting.wait();
            let _met = tokio::time::timeout(std::time::Duration::from_millis(100), meeting).await;
        }
        let mut objects = self.objects.lock().expect("not poisoned");
        if self.care == Care::Full && !holds(&objects) {
            return answer(412, "", &error_body("PreconditionFailed"));
        }
        let mut versions = self.versions.lock().expect("not poisoned");
        *versions += 1;
        objects.insert(key, (request.body.clone(), *versions));
        answer(200, &format!("etag: \"v{versions}\"\r\n"), "")
    }
}
