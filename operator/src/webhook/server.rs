//! HTTPS for one path: `POST /validate`.
//!
//! Owns: what a stranger may cost. Connections, the size of a question and every wait have a limit: the
//! coordinators are in the same process. Knows nothing of what is answered.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use rustls::ServerConfig;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

/// The path.
const PATH: &str = "/validate";

/// Connections at a time: each API server keeps a few.
const CONNECTIONS_MAX: usize = 128;

/// How long a handshake may take.
const HANDSHAKE_WITHIN: Duration = Duration::from_secs(5);

/// How long a connection may be silent between two questions: others want its place. API servers connect anew, and
/// ask again where a connection went just then.
const SILENT_MAX: Duration = Duration::from_secs(20);

/// Questions that are answered at the same time: each may hold tens of mebibytes, and passes want
/// a processor, too.
const QUESTIONS_MAX: usize = 4;

/// What all questions that arrive, or wait to be answered, may take together, in KiB.
const ARRIVED_KIB_MAX: usize = 64 << 10;

/// How long a question may take to arrive.
const BODY_WITHIN: Duration = Duration::from_secs(3);

/// Largest question: an object as it is and as it would be, each as large as etcd lets it be (1.5 MiB), and
/// a mebibyte.
const BODY_BYTES_MAX: usize = 4 << 20;

/// After a listener that cannot accept: too many files are open, say.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

/// Who answers.
pub trait Answer: Send + Sync + 'static {
    /// Answers a body; an error is for whoever sent it.
    fn answer(&self, body: &[u8]) -> impl Future<Output = Result<Vec<u8>, String>> + Send;
}

/// Listens, and answers on the current runtime until it ends. Returns the address: port 0 takes a free one.
///
/// # Errors
/// When the address is taken or not this machine's.
pub async fn start<A: Answer>(
    address: SocketAddr,
    tls: Arc<ServerConfig>,
    answer: Arc<A>,
) -> Result<SocketAddr> {
    let listening = || format!("listen for admission reviews on {address}");
    let listener = TcpListener::bind(address).await.with_context(listening)?;
    let bound = listener.local_addr().with_context(listening)?;
    let shared = Arc::new(Shared {
        tls: TlsAcceptor::from(tls),
        answer,
        questions: Semaphore::new(QUESTIONS_MAX),
        room: Arc::new(Semaphore::new(ARRIVED_KIB_MAX)),
    });
    tokio::spawn(serve(listener, shared));
    Ok(bound)
}

/// What all connections share.
struct Shared<A> {
    tls: TlsAcceptor,
    answer: Arc<A>,
    questions: Semaphore,
    room: Arc<Semaphore>,
}

/// A question, and the room that it takes.
#[derive(Default)]
struct Arrived {
    bytes: Vec<u8>,
    room: Option<OwnedSemaphorePermit>,
}

impl Arrived {
    /// All of a body. Room is taken for what is here, not for what is announced: who sends slowly takes little.
    async fn read(mut body: Incoming, room: &Arc<Semaphore>) -> Result<Self, String> {
        let mut arrived = Self::default();
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| error.to_string())?;
            let Ok(data) = frame.into_data() else {
                continue; // trailers
            };
            if arrived.bytes.len() + data.len() > BODY_BYTES_MAX {
                return Err("length limit exceeded".to_owned());
            }
            let kib = u32::try_from(data.len().div_ceil(1024)).unwrap_or(u32::MAX);
            let taken = Arc::clone(room).acquire_many_owned(kib).await;
            let taken = taken.map_err(|error| error.to_string())?;
            match &mut arrived.room {
                None => arrived.room = Some(taken),
                Some(room) => room.merge(taken),
            }
            arrived.bytes.extend_from_slice(&data);
        }
        Ok(arrived)
    }
}

async fn serve<A: Answer>(listener: TcpListener, shared: Arc<Shared<A>>) {
    let mut connections = JoinSet::new();
    loop {
        // Those that have ended make room.
        while connections.try_join_next().is_some() {}
        if connections.len() >= CONNECTIONS_MAX {
            connections.join_next().await;
            continue;
        }
        match listener.accept().await {
            Ok((stream, _)) => {
                connections.spawn(converse(stream, Arc::clone(&shared)));
            }
            Err(error) => {
                tracing::debug!(%error, "connection not accepted");
                tokio::time::sleep(ACCEPT_AGAIN).await;
            }
        }
    }
}

async fn converse<A: Answer>(stream: TcpStream, shared: Arc<Shared<A>>) {
    let shaken = tokio::time::timeout(HANDSHAKE_WITHIN, shared.tls.accept(stream)).await;
    let Ok(Ok(stream)) = shaken else {
        return tracing::debug!("caller of the webhook does not speak TLS with us");
    };
    let service = service_fn(move |request| {
        let shared = Arc::clone(&shared);
        async move { Ok::<_, Infallible>(respond(request, &shared).await) }
    });
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(SILENT_MAX)
        .serve_connection(TokioIo::new(stream), service);
    if let Err(error) = served.await {
        tracing::debug!(%error, "connection of the webhook ended");
    }
}

async fn respond<A: Answer>(
    request: Request<Incoming>,
    shared: &Shared<A>,
) -> Response<Full<Bytes>> {
    if request.uri().path() != PATH {
        return text(StatusCode::NOT_FOUND, format!("there is only {PATH}\n"));
    }
    if request.method() != Method::POST {
        return text(
            StatusCode::METHOD_NOT_ALLOWED,
            "POST an AdmissionReview\n".to_owned(),
        );
    }
    let arriving = Arrived::read(request.into_body(), &shared.room);
    let arrived = match tokio::time::timeout(BODY_WITHIN, arriving).await {
        Ok(Ok(arrived)) => arrived,
        Ok(Err(error)) => {
            return text(StatusCode::BAD_REQUEST, format!("read the body: {error}\n"));
        }
        Err(_) => {
            return text(
                StatusCode::REQUEST_TIMEOUT,
                "the body is too slow\n".to_owned(),
            );
        }
    };
    let Ok(_permit) = shared.questions.acquire().await else {
        return text(
            StatusCode::SERVICE_UNAVAILABLE,
            "the webhook ends\n".to_owned(),
        );
    };
    match shared.answer.answer(&arrived.bytes).await {
        Ok(json) => {
            let mut response = Response::new(Full::new(Bytes::from(json)));
            let json = HeaderValue::from_static("application/json");
            response.headers_mut().insert(CONTENT_TYPE, json);
            response
        }
        Err(reason) => text(StatusCode::BAD_REQUEST, format!("{reason}\n")),
    }
}

fn text(status: StatusCode, text: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(text)));
    *response.status_mut() = status;
    response
}

#[cfg(test)]
mod tests;
