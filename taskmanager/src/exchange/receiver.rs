//! The receiving end of a channel.
//!
//! Owns: the listener, who may open which channel (C5), checking numbers and credit, decoding, giving
//! credit back, answers. A stream is always read into its lane of the task's inbox; credit bounds
//! what can lie there (B1). Start at: [`listen`].

mod registry;
mod uplink;

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;

use futures::Stream;
use streamforge_core::causes::with_causes;
use streamforge_core::event_time::Watermark;
use streamforge_core::ids::Generation;
use streamforge_engine::barrier::Barrier;
use streamforge_engine::task::Element;
use streamforge_proto::convert;
use streamforge_proto::convert::exchange::{Opening, decode_barrier, rows_bytes};
use streamforge_proto::v1::downstream::What;
use streamforge_proto::v1::exchange_server::{Exchange as ExchangeService, ExchangeServer};
use streamforge_proto::{tls, v1};
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status, Streaming};

use super::frame::Decoder;
use super::sender::describe;
use super::{Config, Error, MESSAGE_BYTES_MAX, Shared, Totals, credit, frame};

pub use registry::{Admitted, Port, Registry};
pub use uplink::Uplink;

/// Channels on one connection: far above any pair of task managers, so that none waits for another
/// to end.
const STREAMS_PER_CONNECTION_MAX: u32 = 1 << 20;

/// Listens, and serves on the runtime this is called in. Returns the address.
pub fn listen(shared: Arc<Shared>) -> Result<SocketAddr, Error> {
    let address = shared.config.listen;
    let failed = |source| Error::Listen { address, source };
    let listener = std::net::TcpListener::bind(address).map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    let bound = listener.local_addr().map_err(failed)?;
    let listener = tokio::net::TcpListener::from_std(listener).map_err(failed)?;
    let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
    let mut server = builder(&shared.config).map_err(|source| Error::Transport {
        address: bound.to_string(),
        source,
    })?;
    let service = ExchangeServer::new(Service { shared })
        .max_decoding_message_size(MESSAGE_BYTES_MAX)
        .max_encoding_message_size(MESSAGE_BYTES_MAX);
    let serving = server.add_service(service).serve_with_incoming(incoming);
    tokio::spawn(async move {
        if let Err(error) = serving.await {
            tracing::error!(%error, "the exchange's listener stopped");
        }
    });
    Ok(bound)
}

fn builder(config: &Config) -> Result<tonic::transport::Server, tonic::transport::Error> {
    let server = tonic::transport::Server::builder()
        .max_concurrent_streams(STREAMS_PER_CONNECTION_MAX)
        .http2_keepalive_interval(Some(config.keep_alive))
        .http2_keepalive_timeout(Some(config.keep_alive));
    match &config.tls {
        Some(tls) => server.tls_config(tls.server()),
        None => Ok(server),
    }
}

struct Service {
    shared: Arc<Shared>,
}

impl Service {
    /// Task managers of one job bear one name; those of another job may have the same authority.
    fn check_caller<T>(&self, request: &Request<T>) -> Result<(), Status> {
        let Some(tls) = &self.shared.config.tls else {
            return Ok(());
        };
        let shown = request.peer_certs();
        if shown.is_some_and(|shown| tls::bears(&shown, &tls.peer_name)) {
            return Ok(());
        }
        Totals::add(&self.shared.totals.refused, 1);
        let reason = format!("the certificate does not bear the name {}", tls.peer_name);
        Err(Status::permission_denied(reason))
    }
}

type Answers = Pin<Box<dyn Stream<Item = Result<v1::Upstream, Status>> + Send>>;

#[tonic::async_trait]
impl ExchangeService for Service {
    type ChannelStream = Answers;

    async fn channel(
        &self,
        request: Request<Streaming<v1::Downstream>>,
    ) -> Result<Response<Answers>, Status> {
        self.check_caller(&request)?;
        let mut messages = request.into_inner();
        let first = tokio::time::timeout(self.shared.config.open_timeout, messages.message());
        let opening = match first.await {
            Ok(Ok(Some(v1::Downstream {
                number: 1,
                what: Some(What::Opening(opening)),
            }))) => Opening::from(opening),
            Ok(Err(status)) => return Err(status),
            Ok(Ok(_)) => return Err(Status::invalid_argument("the first message is no opening")),
            Err(_) => return Err(Status::deadline_exceeded("no opening came")),
        };
        let opened = self.shared.registry.open(&opening);
        let port = opened.inspect_err(|_| Totals::add(&self.shared.totals.refused, 1))?;
        let uplink = Arc::clone(&port.uplink);
        let reader = Reader {
            port,
            decoder: Decoder::default(),
            totals: Arc::clone(&self.shared.totals),
        };
        tokio::spawn(reader.run(messages));
        Ok(Response::new(Box::pin(uplink.into_stream())))
    }
}

/// Why a channel cannot go on.
#[derive(Debug, thiserror::Error)]
enum Break {
    #[error("{0}")]
    Stream(String),
    #[error("the sender ended it")]
    Ended,
    #[error("message {came} came where {due} was due")]
    Number { came: u64, due: u64 },
    #[error("a message of an unknown kind came")]
    Unknown,
    #[error("the channel was opened again within its own stream")]
    Opened,
    #[error(transparent)]
    Credit(#[from] credit::Error),
    #[error(transparent)]
    Frame(#[from] frame::Error),
    #[error(transparent)]
    Message(#[from] convert::Error),
}

/// Reads one channel.
struct Reader {
    port: Port,
    decoder: Decoder,
    totals: Arc<Totals>,
}

impl Reader {
    async fn run(mut self, mut messages: Streaming<v1::Downstream>) {
        // Also if this task panics: the channel must not fall silent (B2).
        let broken = BrokenAtLast(Arc::clone(&self.port.uplink));
        let uplink = Arc::clone(&self.port.uplink);
        tokio::select! {
            Err(cause) = self.read(&mut messages) => broken.0.broken(&with_causes(&cause)),
            () = uplink.closed() => {}
        }
    }

    async fn read(
        &mut self,
        messages: &mut Streaming<v1::Downstream>,
    ) -> Result<std::convert::Infallible, Break> {
        let mut due = 2;
        loop {
            let message = match messages.message().await {
                Ok(Some(message)) => message,
                Ok(None) => return Err(Break::Ended),
                Err(status) => return Err(Break::Stream(describe(&status))),
            };
            let came = message.number;
            if came != due {
                return Err(Break::Number { came, due });
            }
            due += 1;
            self.on_message(message.what.ok_or(Break::Unknown)?)?;
        }
    }

    fn on_message(&mut self, what: What) -> Result<(), Break> {
        let element = match what {
            What::Opening(_) => return Err(Break::Opened),
            What::Layout(layout) => return Ok(self.decoder.on_layout(&layout)?),
            What::Rows(rows) => {
                let bytes = rows_bytes(&rows);
                self.port.uplink.on_frame(bytes)?;
                let batch = self.decoder.decode(&rows)?;
                Totals::add(&self.totals.frames_received, 1);
                Totals::add(&self.totals.bytes_received, bytes);
                Totals::add(&self.totals.rows_received, batch.len() as u64);
                self.port
                    .inbox
                    .arrive(self.port.lane, Element::Batch(batch), bytes);
                return Ok(());
            }
            What::Watermark(watermark) => Element::Watermark(Watermark(watermark)),
            What::Idle(_) => Element::Idle,
            What::Rejoin(_) => Element::Rejoin,
            What::Barrier(mark) => {
                let (id, kind) = decode_barrier(&mark)?;
                let begun_by = Generation::from_stored(mark.generation);
                Element::Barrier(Barrier { id, kind, begun_by })
            }
        };
        self.port.inbox.arrive(self.port.lane, element, 0);
        Ok(())
    }
}

struct BrokenAtLast(Arc<Uplink>);

impl Drop for BrokenAtLast {
    fn drop(&mut self) {
        self.0.broken("its reader stopped");
    }
}
