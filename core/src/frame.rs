//! The envelope of every stored object: magic, format version, length, payload, checksum.
//!
//! Owns: telling a whole object from a cut, foreign or newer one before anything of it is used (C8).
//! Layout, little endian: `magic[4] version:u16 reserved:u16 length:u64 payload[length] xxh3_64:u64`;
//! the checksum covers everything before it.

use xxhash_rust::xxh3::xxh3_64;

const HEADER_BYTES: usize = 16;
const CHECKSUM_BYTES: usize = 8;

/// What kind of object it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kind {
    /// First four bytes.
    pub magic: [u8; 4],
    /// Newest version that this program writes, and the newest it can read.
    pub version: u16,
    /// Word for error messages.
    pub name: &'static str,
}

/// The head of a job.
pub const HEAD: Kind = Kind {
    magic: *b"SFHD",
    version: 2,
    name: "head",
};
/// A manifest.
pub const MANIFEST: Kind = Kind {
    magic: *b"SFMF",
    version: 3,
    name: "manifest",
};
/// A deployed plan.
pub const PLAN: Kind = Kind {
    magic: *b"SFPL",
    version: 1,
    name: "plan",
};
/// A part of keyed state.
pub const PART: Kind = Kind {
    magic: *b"SFPT",
    version: 1,
    name: "state part",
};
/// A piece of the late log.
pub const LATE_LOG: Kind = Kind {
    magic: *b"SFLL",
    version: 1,
    name: "late log",
};

/// Records that are staged for a Kafka topic.
pub const KAFKA_STAGED: Kind = Kind {
    magic: *b"SFKS",
    version: 1,
    name: "staged Kafka records",
};

/// Why bytes are not the object they should be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Fewer bytes than the header or its length says: a torn write or a cut copy.
    #[error("decode {name}: {have} bytes, expected {want}")]
    Short {
        /// Kind of object.
        name: &'static str,
        /// Bytes there.
        have: usize,
        /// Bytes that should be there.
        want: usize,
    },
    /// The first bytes are another kind's.
    #[error("decode {name}: wrong magic {found:?}")]
    Magic {
        /// Kind of object.
        name: &'static str,
        /// Bytes found.
        found: [u8; 4],
    },
    /// Written by a newer program.
    #[error(
        "decode {name}: format version {found} is newer than {known}, the newest this program reads"
    )]
    Version {
        /// Kind of object.
        name: &'static str,
        /// Version found.
        found: u16,
        /// Newest version known.
        known: u16,
    },
    /// The bytes changed after they were written.
    #[error("decode {name}: checksum does not match, the object is corrupt")]
    Checksum {
        /// Kind of object.
        name: &'static str,
    },
}

/// Wraps `payload`, as of the kind's version: who writes what an older version has too says so.
pub fn encode(kind: Kind, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(HEADER_BYTES + payload.len() + CHECKSUM_BYTES);
    out.extend_from_slice(&kind.magic);
    out.extend_from_slice(&kind.version.to_le_bytes());
    out.extend_from_slice(&[0, 0]);
    out.extend_from_slice(&(payload.len() as u64).to_le_bytes());
    out.extend_from_slice(payload);
    let checksum = xxh3_64(&out);
    out.extend_from_slice(&checksum.to_le_bytes());
    out
}

/// Unwraps and checks; returns the version and the payload.
pub fn decode(kind: Kind, bytes: &[u8]) -> Result<(u16, &[u8]), Error> {
    let name = kind.name;
    let short = |want: usize| Error::Short {
        name,
        have: bytes.len(),
        want,
    };
    let header = bytes
        .get(..HEADER_BYTES)
        .ok_or(short(HEADER_BYTES + CHECKSUM_BYTES))?;
    let (magic, rest) = header.split_first_chunk::<4>().ok_or(short(HEADER_BYTES))?;
    let (version, rest) = rest.split_first_chunk::<2>().ok_or(short(HEADER_BYTES))?;
    let length = rest.last_chunk::<8>().ok_or(short(HEADER_BYTES))?;
    if *magic != kind.magic {
        return Err(Error::Magic {
            name,
            found: *magic,
        });
    }
    let version = u16::from_le_bytes(*version);
    let length = usize::try_from(u64::from_le_bytes(*length)).unwrap_or(usize::MAX);
    let want = length.saturating_add(HEADER_BYTES + CHECKSUM_BYTES);
    if bytes.len() != want {
        return Err(short(want));
    }
    let (body, checksum) = bytes
        .split_last_chunk::<CHECKSUM_BYTES>()
        .ok_or(short(want))?;
    if xxh3_64(body) != u64::from_le_bytes(*checksum) {
        return Err(Error::Checksum { name });
    }
    if version == 0 || version > kind.version {
        return Err(Error::Version {
            name,
            found: version,
            known: kind.version,
        });
    }
    let payload = body.get(HEADER_BYTES..).ok_or(short(want))?;
    Ok((version, payload))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_flipped_bit_is_noticed_c8() {
        let good = encode(HEAD, b"abc");
        assert_eq!(decode(HEAD, &good), Ok((2, &b"abc"[..])));

        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 1;
            assert!(decode(HEAD, &bad).is_err(), "byte {at}");
        }
        for cut in 0..good.len() {
            assert!(decode(HEAD, &good[..cut]).is_err(), "cut at {cut}");
        }
    }

    #[test]
    fn newer_version_is_refused_by_name() {
        let newer = encode(Kind { version: 3, ..HEAD }, b"");

        assert_eq!(
            decode(HEAD, &newer),
            Err(Error::Version {
                name: "head",
                found: 3,
                known: 2
            })
        );
    }
}
