//! Reads that are asked once more.
//!
//! Owns: that a read on a broken connection, or of a server that stumbles, fails only when it does so several times. A
//! pass makes many reads, and begins anew, later and later, when one of them fails. A write is never sent twice here:
//! it may have been done, and its sender may lead no longer.

use std::time::Duration;

use hyper::{Method, Request, Response, StatusCode};
use kube::client::Body;
use tower::BoxError;
use tower::retry::Policy;

use super::answer::is_watch;

/// Before the second and the third time.
const WAITS: [Duration; 2] = [Duration::from_millis(20), Duration::from_millis(200)];

/// One request's reads so far. What a server asks to be repeated (429, 503, 504) is not of its kind.
#[derive(Clone, Debug, Default)]
pub(super) struct Reads {
    failed_n: usize,
}

impl<B> Policy<Request<Body>, Response<B>, BoxError> for Reads {
    type Future = tokio::time::Sleep;

    fn retry(
        &mut self,
        _request: &mut Request<Body>,
        result: &mut Result<Response<B>, BoxError>,
    ) -> Option<Self::Future> {
        let has_stumbled = match result {
            Ok(response) => matches!(
                response.status(),
                StatusCode::INTERNAL_SERVER_ERROR | StatusCode::BAD_GATEWAY
            ),
            Err(_) => true,
        };
        let wait = WAITS.get(self.failed_n).filter(|_| has_stumbled)?;
        self.failed_n += 1;
        Some(tokio::time::sleep(*wait))
    }

    /// None: sent once.
    fn clone_request(&mut self, request: &Request<Body>) -> Option<Request<Body>> {
        if request.method() != Method::GET || is_watch(request) {
            return None;
        }
        let mut again = Request::new(Body::empty());
        again.method_mut().clone_from(request.method());
        again.uri_mut().clone_from(request.uri());
        again.headers_mut().clone_from(request.headers());
        again.extensions_mut().clone_from(request.extensions());
        Some(again)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tower::retry::RetryLayer;
    use tower::{Layer as _, ServiceExt as _};

    use super::*;

    /// What comes of a request to a server that fails so often, and how often it was sent.
    async fn ask(method: Method, uri: &str, fails: usize, status: u16) -> (Option<u16>, usize) {
        let sent = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&sent);
        let server = tower::service_fn(move |_: Request<Body>| {
            let before = counter.fetch_add(1, Ordering::SeqCst);
            async move {
                match (before < fails, status) {
                    (true, 0) => Err(BoxError::from("connection closed")),
                    (true, status) => Ok(Response::builder().status(status).body(()).unwrap()),
                    (false, _) => Ok(Response::new(())),
                }
            }
        });
        let service = RetryLayer::new(Reads::default()).layer(server);
        let request = Request::builder().method(method).uri(uri);
        let request = request.body(Body::empty()).unwrap();
        let answer = service.oneshot(request).await;
        let status = answer.ok().map(|answer| answer.status().as_u16());
        (status, sent.load(Ordering::SeqCst))
    }

    #[tokio::test]
    async fn read_fails_only_when_it_fails_three_times() {
        let pods = "/api/v1/pods";
        assert_eq!(ask(Method::GET, pods, 2, 0).await, (Some(200), 3));
        assert_eq!(ask(Method::GET, pods, 3, 0).await, (None, 3));
        assert_eq!(ask(Method::GET, pods, 2, 500).await, (Some(200), 3));
        assert_eq!(ask(Method::GET, pods, 3, 500).await, (Some(500), 3));
        assert_eq!(ask(Method::GET, pods, 3, 404).await, (Some(404), 1));
    }

    #[tokio::test]
    async fn write_and_watch_are_sent_once() {
        for method in [Method::POST, Method::PATCH, Method::PUT, Method::DELETE] {
            assert_eq!(ask(method, "/api/v1/pods", 1, 0).await, (None, 1));
        }
        let watch = "/api/v1/pods?watch=true";
        assert_eq!(ask(Method::GET, watch, 1, 0).await, (None, 1));
    }
}
