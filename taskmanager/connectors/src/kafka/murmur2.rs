//! Which partition a key belongs to, as the Java client decides it.
//!
//! Owns: the hash, 32-bit Murmur2 with the client's seed, and the choice made of it.

const SEED: u32 = 0x9747_b28c;
const M: u32 = 0x5bd1_e995;

/// The client's Murmur2 of these bytes.
pub fn murmur2(key: &[u8]) -> u32 {
    let mut hash = SEED ^ u32::try_from(key.len()).unwrap_or(u32::MAX);
    let (words, rest) = key.as_chunks::<4>();
    for word in words {
        let mut k = u32::from_le_bytes(*word).wrapping_mul(M);
        k ^= k >> 24;
        hash = hash.wrapping_mul(M) ^ k.wrapping_mul(M);
    }
    if !rest.is_empty() {
        for (idx, byte) in rest.iter().enumerate() {
            hash ^= u32::from(*byte) << (8 * idx);
        }
        hash = hash.wrapping_mul(M);
    }
    hash ^= hash >> 13;
    hash = hash.wrapping_mul(M);
    hash ^ (hash >> 15)
}

/// The partition of a key among so many; 0 of none.
pub fn partition_of(key: &[u8], partitions_n: i32) -> i32 {
    let positive = murmur2(key) & 0x7fff_ffff;
    let n = u32::try_from(partitions_n).unwrap_or(0).max(1);
    i32::try_from(positive % n).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// From the Java client's own test, `UtilsTest.testMurmur2`.
    #[test]
    fn hash_is_the_java_clients_kf_r9() {
        let vectors: [(&[u8], i32); 6] = [
            (b"21", -973_932_308),
            (b"foobar", -790_332_482),
            (b"a-little-bit-long-string", -985_981_536),
            (b"a-little-bit-longer-string", -1_486_304_829),
            (
                b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8",
                -58_897_971,
            ),
            (b"abc", 479_470_107),
        ];
        for (key, hash) in vectors {
            assert_eq!(murmur2(key).cast_signed(), hash, "{}", key.escape_ascii());
        }
    }

    #[test]
    fn partition_is_of_the_positive_hash() {
        assert_eq!(partition_of(b"21", 6), (-973_932_308 & 0x7fff_ffff) % 6);
        assert_eq!(partition_of(b"", 1), 0);
        assert_eq!(partition_of(b"x", 0), 0);
    }
}
