//! Between wire types and the words of the domain.
//!
//! Owns: checking that a message has what it must have, once, here. A number or a mark that this
//! version does not know is an error, never a default.

pub mod coordinator;
pub mod exchange;

/// Why a message is not what it should be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A field that must be there is not.
    #[error("decode {message}: `{field}` is missing")]
    Missing {
        /// Which message.
        message: &'static str,
        /// Which field.
        field: &'static str,
    },
    /// A field has a value that this version does not know.
    #[error("decode {message}: `{field}` is {value}, which this version does not know")]
    Unknown {
        /// Which message.
        message: &'static str,
        /// Which field.
        field: &'static str,
        /// Its value.
        value: i64,
    },
    /// A payload's contents are not what this version knows.
    #[error("decode {message}: contents not understood: {reason}")]
    Payload {
        /// Which message.
        message: &'static str,
        /// What is wrong with it.
        reason: String,
    },
}
