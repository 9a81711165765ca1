//! What was read of a file, as one number.
//!
//! Owns: a hash of the first bytes of a stream that can be continued at any offset without reading
//! all of them again. Start at: [`Prefix`].
//!
//! The bytes are hashed in blocks of [`BLOCK_BYTES`], each hash seeded with that of the blocks before
//! it. So whoever goes on at an offset knows the chain up to the block it lies in and reads again only
//! that block's begin. A format (C8): positions in stored checkpoints carry it.

use std::io::Write;

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::{Xxh3Default, xxh3_64_with_seed};

/// Bytes of one link of the chain.
pub const BLOCK_BYTES: u64 = 1 << 20;

/// The first bytes of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fingerprint {
    /// Of all whole blocks.
    pub chain: u64,
    /// XXH3-64 of the bytes behind them.
    pub rest: u64,
}

/// Where the block that `offset` lies in begins.
pub fn block_start(offset: u64) -> u64 {
    offset - offset % BLOCK_BYTES
}

/// A fingerprint in the making.
pub struct Prefix {
    chain: u64,
    block: Xxh3Default,
    block_bytes: u64,
}

impl std::fmt::Debug for Prefix {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Prefix")
            .field("chain", &self.chain)
            .finish_non_exhaustive()
    }
}

impl Prefix {
    /// Goes on at the begin of a block; `chain` is 0 at the begin of the stream.
    pub fn at_block(chain: u64) -> Self {
        Prefix {
            chain,
            block: Xxh3Default::new(),
            block_bytes: 0,
        }
    }

    /// Appends bytes.
    pub fn update(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let room = usize::try_from(BLOCK_BYTES - self.block_bytes).unwrap_or(usize::MAX);
            let (now, later) = bytes.split_at(room.min(bytes.len()));
            self.block.update(now);
            self.block_bytes += now.len() as u64;
            if self.block_bytes == BLOCK_BYTES {
                self.chain = xxh3_64_with_seed(&self.block.digest().to_le_bytes(), self.chain);
                self.block.reset();
                self.block_bytes = 0;
            }
            bytes = later;
        }
    }

    /// Of the bytes so far.
    pub fn fingerprint(&self) -> Fingerprint {
        Fingerprint {
            chain: self.chain,
            rest: self.block.digest(),
        }
    }
}

impl Write for Prefix {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn of(bytes: &[u8]) -> Fingerprint {
        let mut prefix = Prefix::at_block(0);
        prefix.update(bytes);
        prefix.fingerprint()
    }

    proptest! {
        #[test]
        fn a_prefix_continued_in_its_block_is_the_prefix_of_all(
            len in 0_usize..3 << 20,
            cut in 0_usize..3 << 20,
        ) {
            let bytes: Vec<u8> = (0..len).map(|i| (i.wrapping_mul(31) >> 7) as u8).collect();
            let cut = cut.min(len);
            let start = usize::try_from(block_start(cut as u64)).unwrap();

            let mut again = Prefix::at_block(of(&bytes[..cut]).chain);
            again.update(&bytes[start..cut]);
            prop_assert_eq!(again.fingerprint(), of(&bytes[..cut]));
            again.update(&bytes[cut..]);
            prop_assert_eq!(again.fingerprint(), of(&bytes));
        }
    }

    #[test]
    fn one_other_byte_anywhere_is_another_fingerprint() {
        let bytes = vec![7_u8; 2 << 20];
        for at in [0, (1 << 20) - 1, 1 << 20, (2 << 20) - 1] {
            let mut other = bytes.clone();
            other[at] = 8;
            assert_ne!(of(&other), of(&bytes), "byte {at}");
        }
    }

    #[test]
    fn the_hash_is_a_format_c8() {
        // From the Python package xxhash, which wraps the reference implementation.
        let nothing = 0x2D06_8005_38D3_94C2;
        let print = |chain, rest| Fingerprint { chain, rest };
        assert_eq!(of(b""), print(0, nothing));
        assert_eq!(of(b"abc"), print(0, 0x78AF_5F94_892F_3950));
        let two = [vec![0_u8; 1 << 20], vec![1_u8; 1 << 20]].concat();
        assert_eq!(of(&two[..1 << 20]), print(0x8938_7D9C_E419_CCC1, nothing));
        assert_eq!(of(&two), print(0x7F08_7A0D_D04E_05D3, nothing));
    }
}
