//! `/metrics`, `/livez` and `/readyz`.
//!
//! Owns: a small HTTP server for one process. Speaks to nobody else; answers while the process lives.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use prometheus::{Registry, TextEncoder};

/// Says whether the process is ready, or lives; if not, why, for people.
pub type Ready = Arc<dyn Fn() -> Result<(), String> + Send + Sync>;

/// Why there are no metrics.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The address is taken or not this machine's.
    #[error("listen for metrics on {address}")]
    Listen {
        /// Which.
        address: SocketAddr,
        /// Why.
        source: std::io::Error,
    },
}

/// Listens, and serves on the current runtime until it ends. Returns the address: port 0 takes a
/// free one. It lives as long as it answers.
///
/// # Errors
/// [`Error::Listen`].
pub async fn serve(
    address: SocketAddr,
    registry: Registry,
    ready: Ready,
) -> Result<SocketAddr, Error> {
    serve_judged(address, registry, (Arc::new(|| Ok(())), ready)).await
}

/// The same for one that may answer and be dead all the same, which `live` says.
///
/// # Errors
/// [`Error::Listen`].
pub async fn serve_judged(
    address: SocketAddr,
    registry: Registry,
    (live, ready): (Ready, Ready),
) -> Result<SocketAddr, Error> {
    let failed = |source| Error::Listen { address, source };
    let listener = tokio::net::TcpListener::bind(address)
        .await
        .map_err(failed)?;
    let bound = listener.local_addr().map_err(failed)?;
    let router = Router::new()
        .route("/metrics", get(move || async move { metrics(&registry) }))
        .route("/livez", get(move || async move { judged(&live) }))
        .route("/readyz", get(move || async move { judged(&ready) }));
    tokio::spawn(async move {
        if let Err(error) = axum::serve(listener, router).await {
            tracing::error!(%error, "metrics are no longer served");
        }
    });
    Ok(bound)
}

fn metrics(registry: &Registry) -> Response {
    match TextEncoder::new().encode_to_string(&registry.gather()) {
        Ok(text) => {
            let headers = [(header::CONTENT_TYPE, prometheus::TEXT_FORMAT)];
            (headers, text).into_response()
        }
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

fn judged(check: &Ready) -> Response {
    match check() {
        Ok(()) => "ok\n".into_response(),
        Err(why) => (StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")).into_response(),
    }
}
