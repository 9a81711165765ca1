//! The checksums of an object's blocks, compared while its bytes go by.
//!
//! Owns: which block comes next, and how far it is. Each byte is looked at once, whatever a manifest lists.

use streamforge_coordinator::{ExpectedObject, Piece};
use xxhash_rust::xxh3::Xxh3;

/// See the module.
pub(super) struct Blocks<'a> {
    expected: &'a ExpectedObject,
    /// Those that did not all go by, the next one last.
    left: Vec<Piece>,
    /// How many bytes went by.
    at: u64,
    /// Where the last block that all went by ends.
    compared_to: u64,
    /// Of the next block's bytes.
    hasher: Xxh3,
}

impl<'a> Blocks<'a> {
    pub(super) fn of(expected: &'a ExpectedObject) -> Self {
        let mut left = expected.pieces.clone();
        left.sort_by_key(|piece| std::cmp::Reverse((piece.offset, piece.length)));
        Self {
            expected,
            left,
            at: 0,
            compared_to: 0,
            hasher: Xxh3::new(),
        }
    }

    /// The first byte that is still wanted; `None`: all are compared.
    pub(super) fn wanted_from(&self) -> Option<u64> {
        self.left.last().map(|piece| piece.offset.max(self.at))
    }

    /// What is before this byte need not go by: no block wants it.
    pub(super) fn skip_to(&mut self, at: u64) {
        self.at = at;
    }

    /// The next bytes.
    ///
    /// # Errors
    /// What is wrong with them.
    pub(super) fn pass(&mut self, bytes: &[u8]) -> Result<(), String> {
        let end = self.at.saturating_add(bytes.len() as u64);
        let within = |at: u64, from: u64| usize::try_from(at.saturating_sub(from));
        while let Some(piece) = self.left.last() {
            if piece.offset < self.compared_to {
                return Err(overlap(self.expected, piece));
            }
            let to = piece.offset.saturating_add(piece.length);
            if to > self.expected.bytes_n {
                return Err(corrupt(self.expected, piece));
            }
            let (from, until) = (piece.offset.max(self.at), to.min(end));
            if let (Ok(from), Ok(until)) = (within(from, self.at), within(until, self.at)) {
                self.hasher
                    .update(bytes.get(from..until).unwrap_or_default());
            }
            if to > end {
                break;
            }
            if self.hasher.digest() != piece.checksum {
                return Err(corrupt(self.expected, piece));
            }
            self.hasher.reset();
            self.compared_to = to;
            self.left.pop();
        }
        self.at = end;
        Ok(())
    }
}

fn corrupt(expected: &ExpectedObject, piece: &Piece) -> String {
    let (key, at) = (&expected.key, piece.offset);
    format!("object {key} is corrupt: the checksum of the block at byte {at} differs")
}

fn overlap(expected: &ExpectedObject, piece: &Piece) -> String {
    let (key, at) = (&expected.key, piece.offset);
    format!("object {key} is not ours: its block at byte {at} begins within another")
}
