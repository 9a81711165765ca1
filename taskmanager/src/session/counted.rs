//! Whether anything came, when no whole message did.
//!
//! Owns: counting the bytes of the answers to a call: of a large message, such as the deployment of a large
//! job, they come for a while before it does. Decides nothing.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use http_body_util::BodyExt as _;
use tonic::body::Body;
use tonic::codegen::Service;
use tonic::codegen::http::{Request, Response};

/// Bytes of one call's answers. Clones are of the same call.
#[derive(Clone, Debug, Default)]
pub(super) struct Bytes(Arc<AtomicBool>);

impl Bytes {
    /// Whether some came since the last call of this.
    pub(super) fn came(&self) -> bool {
        self.0.swap(false, Ordering::Relaxed)
    }
}

/// A connection of which the answers are counted.
#[derive(Clone, Debug)]
pub(super) struct Counted<S> {
    inner: S,
    bytes: Bytes,
}

impl<S> Counted<S> {
    pub(super) fn new(inner: S, bytes: Bytes) -> Self {
        Self { inner, bytes }
    }
}

impl<S> Service<Request<Body>> for Counted<S>
where
    S: Service<Request<Body>, Response = Response<Body>>,
    S::Future: Send + 'static,
{
    type Response = Response<Body>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, S::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let (answer, bytes) = (self.inner.call(request), self.bytes.clone());
        Box::pin(async move {
            let count = move |body: Body| {
                Body::new(body.map_frame(move |frame| {
                    bytes.0.store(true, Ordering::Relaxed);
                    frame
                }))
            };
            answer.await.map(|answer| answer.map(count))
        })
    }
}
