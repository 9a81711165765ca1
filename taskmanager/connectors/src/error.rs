//! From a connector's own errors to the engine's.
//!
//! Owns: nothing but the shape. Start at: [`failed`].

use streamforge_engine::error::Error;

/// The engine's error for a failed action of a connector.
pub fn failed(
    action: impl Into<String>,
    retry: bool,
    source: impl std::error::Error + Send + Sync + 'static,
) -> Error {
    Error::Connector {
        action: action.into(),
        retry,
        source: Box::new(source),
    }
}

/// Tells people that an action waits: of the first try in a row only who looks for it, for the next one is
/// made at once.
pub fn tell_waiting(tries_n: u32, error: &impl std::fmt::Display, what: &str) {
    if tries_n > 1 {
        tracing::warn!(%error, "{what}");
    } else {
        tracing::info!(%error, "{what}");
    }
}

/// What the document or the deployment says cannot be done.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Refused(pub String);

/// The engine's error for something that another attempt would not mend.
pub fn refused(action: impl Into<String>, reason: impl Into<String>) -> Error {
    failed(action, false, Refused(reason.into()))
}
