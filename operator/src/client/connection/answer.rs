//! An end to waiting for an answer.
//!
//! Owns: how long one request may take until its answer begins. A watch is none: it is answered when there is something
//! to say, and [`crate::watch`] knows how long that may be.

use std::task::{Context, Poll};
use std::time::Duration;

use futures::future::BoxFuture;
use hyper::Request;
use tower::{BoxError, Layer, Service};

/// See the module.
#[derive(Clone, Copy, Debug)]
pub(super) struct AnswerLayer {
    within: Duration,
}

impl AnswerLayer {
    /// With this limit.
    pub(super) fn within(within: Duration) -> Self {
        Self { within }
    }
}

impl<S> Layer<S> for AnswerLayer {
    type Service = Answer<S>;

    fn layer(&self, inner: S) -> Answer<S> {
        let within = self.within;
        Answer { inner, within }
    }
}

/// A service that answers or fails.
#[derive(Clone, Debug)]
pub(super) struct Answer<S> {
    inner: S,
    within: Duration,
}

/// There was no answer.
#[derive(Debug, thiserror::Error)]
#[error("the API server does not answer within {seconds} s")]
struct Silent {
    seconds: u64,
}

impl<S, B> Service<Request<B>> for Answer<S>
where
    S: Service<Request<B>>,
    S::Future: Send + 'static,
    S::Error: Into<BoxError>,
{
    type Response = S::Response;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<S::Response, BoxError>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let (within, is_watch) = (self.within, is_watch(&request));
        let answer = self.inner.call(request);
        Box::pin(async move {
            if is_watch {
                return answer.await.map_err(Into::into);
            }
            let seconds = within.as_secs();
            let answer = tokio::time::timeout(within, answer).await;
            answer.map_err(|_| Silent { seconds })?.map_err(Into::into)
        })
    }
}

pub(super) fn is_watch<B>(request: &Request<B>) -> bool {
    let query = request.uri().query().unwrap_or_default();
    query.split('&').any(|part| part == "watch=true")
}

#[cfg(test)]
mod tests {
    use tower::ServiceExt as _;

    use super::*;

    /// Says "late", if anything.
    async fn ask(uri: &str) -> Option<String> {
        let never = tower::service_fn(|_: Request<()>| {
            std::future::pending::<Result<(), std::io::Error>>()
        });
        let service = AnswerLayer::within(Duration::from_millis(10)).layer(never);
        let request = Request::get(uri).body(()).unwrap();
        let asked = tokio::time::timeout(Duration::from_millis(200), service.oneshot(request));
        Some(asked.await.ok()?.unwrap_err().to_string())
    }

    #[tokio::test]
    async fn request_that_is_not_answered_fails_and_a_watch_waits() {
        let told = "the API server does not answer within 0 s";
        assert_eq!(
            ask("/api/v1/pods?labelSelector=watch").await.as_deref(),
            Some(told)
        );
        assert_eq!(ask("/api/v1/pods").await.as_deref(), Some(told));
        assert_eq!(
            ask("/api/v1/pods?&watch=true&timeoutSeconds=200").await,
            None
        );
    }
}
