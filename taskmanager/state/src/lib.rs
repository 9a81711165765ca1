//! Keyed state on its way to the store and back.
//!
//! Owns: the bytes of a part (C8): one block per key group, each with length and checksum, so that a
//! restore reads only the groups a task owns and uses nothing it has not checked. Also the late log's
//! objects. Decides nothing about what state *is*; that is the operators' word.
//! Start at: [`part::encode_part`], [`restore::load_operator`].

mod ipc;
pub mod late_log;
pub mod local;
pub mod part;
pub mod restore;

/// Why state cannot be written or read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The store failed.
    #[error("{action} `{key}`")]
    Store {
        /// `read` or `write`.
        action: &'static str,
        /// Object.
        key: String,
        /// What the store said.
        source: streamforge_store::Error,
    },
    /// An object that a manifest lists is not there.
    #[error("read `{key}`: the manifest lists it, the store does not have it")]
    Missing {
        /// Object.
        key: String,
    },
    /// The object is cut, foreign or newer.
    #[error("read `{key}`")]
    Frame {
        /// Object.
        key: String,
        /// What is wrong.
        source: streamforge_core::frame::Error,
    },
    /// A block's bytes changed after they were written.
    #[error("read key group {group} of `{key}`: {reason}")]
    Block {
        /// Object.
        key: String,
        /// Key group.
        group: u16,
        /// What is wrong.
        reason: String,
    },
    /// Rows could not be turned into bytes.
    #[error("encode state of `{key}`")]
    Encode {
        /// Object.
        key: String,
        /// What Arrow said.
        source: arrow::error::ArrowError,
    },
}
