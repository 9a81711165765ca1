//! Wire types and their conversion to the words of the domain.
//!
//! Owns: the generated messages, what they mean in `core`'s words, and the certificates that every
//! listener and client uses, and how metrics are shown. Decides nothing. Start at: [`convert`].

pub mod convert;
pub mod metrics;
pub mod tls;

/// Generated from `streamforge/v1/*.proto`.
#[expect(
    missing_docs,
    clippy::too_many_lines,
    reason = "generated; the .proto files have the comments"
)]
pub mod v1 {
    tonic::include_proto!("streamforge.v1");
}
