//! An object that is written piece by piece.
//!
//! Owns: what every store promises of one. Does no I/O itself.
//! Start at: [`crate::ObjectStore::begin`].

use async_trait::async_trait;
use bytes::Bytes;

use crate::{Condition, Put, Result};

/// Length of every piece but the last: servers take 10,000 of them, 80 GiB.
pub const PIECE_BYTES: usize = 8 * 1024 * 1024;

/// An object under way, of which only a piece is in memory.
///
/// # Contract
/// * Every piece but the last has [`PIECE_BYTES`]; a server refuses others when it is finished.
/// * Nothing is under the key before `finish`, which is a put of all pieces in their order.
/// * A store outside of this process keeps nothing of a piece in memory once `add` is answered.
/// * A call that ended with an error may be repeated, and then counts once.
/// * What is dropped without an end was never there. A server may keep its pieces until a lifecycle rule of the
///   bucket removes them: call `abandon` where that can be.
#[async_trait]
pub trait ObjectWriter: Send + std::fmt::Debug {
    /// Adds a piece at the end.
    async fn add(&mut self, piece: Bytes) -> Result<()>;

    /// Makes the pieces the object of the key, under a condition. Nothing is added after an answer.
    async fn finish(&mut self, condition: Condition) -> Result<Put>;

    /// Throws the pieces away.
    async fn abandon(&mut self) -> Result<()>;
}
