//! The connections to the API server, and what becomes of a request on them.
//!
//! Owns: an end to every wait. A machine that is gone says nothing any more, and neither does an API server that
//! stands still.

mod answer;
mod reads;

use std::time::Duration;

use anyhow::{Result, bail};
use hyper::body::Incoming;
use hyper::{Request, Response};
use hyper_util::client::legacy::Client as Http;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use kube::Config;
use kube::client::retry::RetryPolicy;
use kube::client::{Body, ClientBuilder, ConfigExt as _};
use tower::retry::RetryLayer;
use tower::util::BoxService;
use tower::{BoxError, ServiceBuilder, ServiceExt as _};

use answer::AnswerLayer;
use reads::Reads;

/// How long an answer is waited for: the API server itself gives a request up after a minute.
const ANSWER_WITHIN: Duration = Duration::from_secs(65);

/// A connection on which nothing is heard for so long is asked whether it lives, and again and so often.
const ASK_AFTER: Duration = Duration::from_secs(15);
const ASK_EVERY: Duration = Duration::from_secs(5);
const ASKED_MAX: u32 = 3;

/// One that takes no bytes for so long is dead: its machine is gone, and will not say so.
const DEAF_MAX: Duration = Duration::from_secs(30);

/// Requests, and what becomes of them.
type Connection = BoxService<Request<Body>, Response<Incoming>, BoxError>;

/// As kube makes one, with an end to every wait. Proxies are not supported.
///
/// # Errors
/// When the configuration is none that this can be done with.
pub(super) fn builder(config: Config) -> Result<ClientBuilder<Connection>> {
    if let Some(proxy) = &config.proxy_url {
        bail!("a way through the proxy {proxy} is not supported");
    }
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_connect_timeout(config.connect_timeout);
    tcp.set_keepalive(Some(ASK_AFTER));
    tcp.set_keepalive_interval(Some(ASK_EVERY));
    tcp.set_keepalive_retries(Some(ASKED_MAX));
    tcp.set_tcp_user_timeout(Some(DEAF_MAX));
    let connector = config.rustls_https_connector_with_connector(tcp)?;
    let http = Http::builder(TokioExecutor::new()).build(connector);
    let service = ServiceBuilder::new()
        .layer(AnswerLayer::within(ANSWER_WITHIN))
        .layer(config.base_uri_layer())
        .layer(RetryLayer::new(RetryPolicy::server_retry()))
        .layer(RetryLayer::new(Reads::default()))
        .option_layer(config.auth_layer()?)
        .layer(config.extra_headers_layer()?)
        .map_err(BoxError::from)
        .service(http)
        .boxed();
    Ok(ClientBuilder::new(service, config.default_namespace))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The timer of the connection to this port, as Linux shows it: 02 is that of keep-alive.
    fn timer_of(port: u16) -> Option<String> {
        let table = std::fs::read_to_string("/proc/self/net/tcp").unwrap();
        let theirs = format!("0100007F:{port:04X}");
        let rows = table
            .lines()
            .map(|row| row.split_whitespace().collect::<Vec<_>>());
        let mut ours = rows.filter(|row| row.get(2) == Some(&&*theirs));
        Some(ours.next()?.get(5)?.split(':').next()?.to_owned())
    }

    #[tokio::test]
    async fn silent_connection_to_the_api_server_is_asked_whether_it_lives() {
        let _installed_before = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let config = Config::new(format!("http://127.0.0.1:{port}").parse().unwrap());
        let client = builder(config).unwrap().build();
        let asking = tokio::spawn(async move {
            let request = Request::get("/version").body(Vec::new()).unwrap();
            client.request_text(request).await
        });

        let (mut stream, _) = listener.accept().await.unwrap();
        let mut asked = [0; 1024];
        let asked_n = tokio::io::AsyncReadExt::read(&mut stream, &mut asked).await;

        assert!(asked[..asked_n.unwrap()].starts_with(b"GET /version"));
        assert_eq!(timer_of(port).as_deref(), Some("02"));
        asking.abort();
    }
}
