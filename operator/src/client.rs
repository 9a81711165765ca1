//! The way to the API server.
//!
//! Owns: the client, and that what is applied can be read: a server-side apply is YAML to the API server
//! even when it is JSON, and YAML has no place for some characters that JSON takes as they are.
//! Start at: [`connect`].

mod connection;

use anyhow::{Context as _, Result};
use futures::FutureExt as _;
use hyper::header::CONTENT_TYPE;
use hyper::{Method, Request};
use kube::client::{Body, ClientBuilder};
use kube::{Client, Config};
use tower::util::MapRequestLayer;

use crate::lease::Leadership;

/// What a server-side apply says that it is.
const APPLY: &str = "application/apply-patch+yaml";

/// A client with this pod's identity, or the user's.
///
/// # Errors
/// When it is not known where the API server is.
pub async fn connect() -> Result<Client> {
    let finding = "find the API server";
    let config = Config::infer().await.context(finding)?;
    let builder: ClientBuilder<_> = connection::builder(config).context(finding)?;
    Ok(builder.with_layer(&MapRequestLayer::new(readable)).build())
}

/// The same for one that leads: whatever it writes waits until it is known to lead still. Reads do not.
#[must_use]
pub fn of_leader(client: &Client, leadership: &Leadership) -> Client {
    let namespace = client.default_namespace().to_owned();
    let (client, leadership) = (client.clone(), leadership.clone());
    let service = tower::service_fn(move |request: Request<Body>| {
        let (client, leadership) = (client.clone(), leadership.clone());
        async move {
            if request.method() != Method::GET {
                leadership.confirmed().await;
            }
            client.send(request).await
        }
    });
    Client::new(service, namespace)
}

/// The request, as YAML reads it.
fn readable(request: Request<Body>) -> Request<Body> {
    let kind = request.headers().get(CONTENT_TYPE);
    if kind.is_none_or(|kind| kind != APPLY) {
        return request;
    }
    let (head, body) = request.into_parts();
    // It is in memory: nothing is waited for.
    let bytes = body.collect_bytes().now_or_never().and_then(Result::ok);
    let bytes = bytes.unwrap_or_default();
    let body = match std::str::from_utf8(&bytes).ok().and_then(escaped) {
        Some(text) => Body::from(text.into_bytes()),
        None => Body::from(bytes.to_vec()),
    };
    Request::from_parts(head, body)
}

/// JSON with escapes for what YAML does not read as it stands; none: it has nothing of it. In JSON such
/// characters stand within texts only.
fn escaped(json: &str) -> Option<String> {
    if !json.contains(is_unreadable) {
        return None;
    }
    let mut text = String::with_capacity(json.len() + 16);
    for c in json.chars() {
        if is_unreadable(c) {
            text.push_str(&format!("\\u{:04x}", u32::from(c)));
        } else {
            text.push(c);
        }
    }
    Some(text)
}

/// Refused by YAML, or taken for the end of a line and folded into a space.
fn is_unreadable(c: char) -> bool {
    matches!(
        c,
        '\u{7f}'..='\u{9f}' | '\u{2028}' | '\u{2029}' | '\u{feff}' | '\u{fffe}' | '\u{ffff}'
    )
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use hyper::Response;
    use serde_json::json;

    use super::*;

    fn sent(kind: &str, json: &str) -> Vec<u8> {
        let request = Request::builder()
            .header(CONTENT_TYPE, kind)
            .body(Body::from(json.as_bytes().to_vec()))
            .unwrap();
        let body = readable(request).into_body();
        let bytes = body.collect_bytes().now_or_never();
        bytes.unwrap().unwrap().to_vec()
    }

    #[test]
    fn every_character_is_applied_in_a_form_that_yaml_reads_and_means_the_same() {
        let all: String = ('\0'..='\u{ffff}').chain(['🦀', '\u{10ffff}']).collect();
        let json = json!({ "text": all }).to_string();

        let sent = String::from_utf8(sent(APPLY, &json)).unwrap();

        // YAML 1.1, section 5.1: what may stand in a text, less what ends a line.
        let reads = |c: char| {
            matches!(c, ' '..='\u{7e}' | '\u{a0}'..='\u{fffd}' | '\u{10000}'..)
                && !matches!(c, '\u{2028}' | '\u{2029}' | '\u{feff}')
        };
        assert_eq!(sent.chars().find(|c| !reads(*c)), None);
        let read: serde_json::Value = serde_json::from_str(&sent).unwrap();
        assert_eq!(read, json!({ "text": all }));
    }

    #[tokio::test]
    async fn writes_of_a_leader_wait_until_it_has_looked_and_reads_do_not() {
        let echo = tower::service_fn(|request: Request<Body>| async move {
            let said = request.method().to_string();
            Ok::<_, kube::Error>(Response::new(Body::from(said.into_bytes())))
        });
        let leadership = Leadership::begin();
        let client = of_leader(&Client::new(echo, "n"), &leadership);
        let ask = async |method: Method| {
            let request = Request::builder().method(method).uri("/api");
            let request = request.body(Vec::new()).unwrap();
            let asked = client.request_text(request);
            tokio::time::timeout(Duration::from_millis(100), asked).await
        };
        assert!(ask(Method::PATCH).await.is_ok());

        let now = tokio::time::Instant::now();
        leadership.confirm(now.checked_sub(Duration::from_secs(30)).unwrap()); // frozen since

        assert_eq!(ask(Method::GET).await.unwrap().unwrap(), "GET");
        for method in [Method::POST, Method::PUT, Method::PATCH, Method::DELETE] {
            assert!(ask(method.clone()).await.is_err(), "{method} went out");
        }
        leadership.confirm(now);
        assert_eq!(ask(Method::PATCH).await.unwrap().unwrap(), "PATCH");
    }

    #[test]
    fn what_is_plain_or_no_apply_is_sent_as_it_is() {
        let hostile = json!({"text": "\u{7f}"}).to_string();

        assert_eq!(
            sent("application/merge-patch+json", &hostile),
            hostile.as_bytes()
        );
        assert_eq!(
            sent(APPLY, r#"{"text": "é"}"#),
            r#"{"text": "é"}"#.as_bytes()
        );
    }
}
