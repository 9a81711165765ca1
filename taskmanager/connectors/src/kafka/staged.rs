//! Records that wait in the store to be written to a topic.
//!
//! Owns: their format and what their manifest entry says. One object is one part is one transaction.
//!
//! Layout of the payload, little endian: `records:u32`, then for each record `partition:i32
//! key_length:i32 value_length:i32 key value`; a length of -1 is no key or no value. The envelope
//! (magic, version, checksum) is that of every stored object.

use serde::{Deserialize, Serialize};
use streamforge_core::frame;

const HEADER_BYTES: usize = 4;

/// What the manifest keeps beside a staged object's name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Detail {
    /// Identity of the topic that the records are meant for; none where brokers do not tell.
    pub topic_id: Option<String>,
    /// When it was staged, in milliseconds since the epoch, by this machine's clock.
    pub staged_ms: u64,
}

/// The part of a marker's life by which clocks of machines and brokers may differ.
const CLOCKS_DIFFER: u64 = 10;

impl Detail {
    /// Whether a marker that was written after this was staged must still be there (X3), by clocks that differ
    /// by less than a tenth of its life: what seems to come from further ahead says nothing.
    #[must_use]
    pub fn is_young(&self, now_ms: u64, kept_ms: u64) -> bool {
        let differ_ms = kept_ms / CLOCKS_DIFFER;
        self.staged_ms <= now_ms.saturating_add(differ_ms)
            && now_ms.saturating_sub(self.staged_ms) < kept_ms - differ_ms
    }
}

/// One record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// Where it goes; decided when it was staged.
    pub partition: i32,
    /// Its key.
    pub key: Option<&'a [u8]>,
    /// Its value; none: a delete.
    pub value: Option<&'a [u8]>,
}

/// Why staged records cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The envelope is broken.
    #[error(transparent)]
    Frame(#[from] frame::Error),
    /// The envelope is whole, its contents are not.
    #[error("decode staged records: the object is not what it says")]
    Contents,
}

/// Records under construction.
#[derive(Debug)]
pub struct Builder {
    payload: Vec<u8>,
    records_n: u32,
}

impl Default for Builder {
    fn default() -> Self {
        Builder {
            payload: vec![0; HEADER_BYTES],
            records_n: 0,
        }
    }
}

fn put_length(out: &mut Vec<u8>, bytes: Option<&[u8]>) {
    let length = bytes.map_or(-1, |bytes| i32::try_from(bytes.len()).unwrap_or(i32::MAX));
    out.extend_from_slice(&length.to_le_bytes());
}

impl Builder {
    /// Adds a record.
    pub fn push(&mut self, record: Record<'_>) {
        let Record {
            partition,
            key,
            value,
        } = record;
        self.payload.extend_from_slice(&partition.to_le_bytes());
        put_length(&mut self.payload, key);
        put_length(&mut self.payload, value);
        self.payload.extend_from_slice(key.unwrap_or_default());
        self.payload.extend_from_slice(value.unwrap_or_default());
        self.records_n += 1;
    }

    /// Bytes so far.
    pub fn bytes(&self) -> usize {
        self.payload.len()
    }

    /// Records so far.
    pub fn records_n(&self) -> u32 {
        self.records_n
    }

    /// The object; the builder is empty again.
    pub fn finish(&mut self) -> Vec<u8> {
        let Builder {
            mut payload,
            records_n,
        } = std::mem::take(self);
        if let Some(header) = payload.get_mut(..HEADER_BYTES) {
            header.copy_from_slice(&records_n.to_le_bytes());
        }
        frame::encode(frame::KAFKA_STAGED, &payload)
    }
}

fn take<'a>(rest: &mut &'a [u8], length: usize) -> Result<&'a [u8], Error> {
    let (taken, left) = rest.split_at_checked(length).ok_or(Error::Contents)?;
    *rest = left;
    Ok(taken)
}

fn take_i32(rest: &mut &[u8]) -> Result<i32, Error> {
    let bytes = take(rest, 4)?;
    let bytes = bytes.try_into().map_err(|_| Error::Contents)?;
    Ok(i32::from_le_bytes(bytes))
}

fn take_bytes<'a>(rest: &mut &'a [u8], length: i32) -> Result<Option<&'a [u8]>, Error> {
    match usize::try_from(length) {
        Ok(length) => take(rest, length).map(Some),
        Err(_) if length == -1 => Ok(None),
        Err(_) => Err(Error::Contents),
    }
}

/// The records of a staged object.
pub fn decode(object: &[u8]) -> Result<Vec<Record<'_>>, Error> {
    let (_, mut rest) = frame::decode(frame::KAFKA_STAGED, object)?;
    let records_n = usize::try_from(take_i32(&mut rest)?).map_err(|_| Error::Contents)?;
    // Twelve bytes of lengths at least: a broken count reserves no memory.
    let mut records = Vec::with_capacity(records_n.min(rest.len() / 12 + 1));
    for _ in 0..records_n {
        let partition = take_i32(&mut rest)?;
        let (key, value) = (take_i32(&mut rest)?, take_i32(&mut rest)?);
        records.push(Record {
            partition,
            key: take_bytes(&mut rest, key)?,
            value: take_bytes(&mut rest, value)?,
        });
    }
    if rest.is_empty() {
        Ok(records)
    } else {
        Err(Error::Contents)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// X3: a marker that is taken for one that never was leads to doubled rows.
    #[test]
    fn clock_that_was_set_makes_nothing_young_x3() {
        const DAY: u64 = 24 * 60 * 60 * 1_000;
        let (kept, now) = (7 * DAY, 100 * DAY);
        let staged_at = |staged_ms| Detail {
            topic_id: None,
            staged_ms,
        };
        let is_young = |staged_ms: u64| staged_at(staged_ms).is_young(now, kept);

        assert!(is_young(now) && is_young(now - 6 * DAY) && is_young(now + DAY / 2));
        // It may have been a day older by another clock; and was staged by one that was far ahead.
        assert!(!is_young(now - 13 * DAY / 2));
        assert!(!is_young(now - 8 * DAY));
        assert!(!is_young(now + DAY));
        assert!(!is_young(0));
    }

    /// KF-R7: no key, an empty key and "0" are three things, and so are values.
    #[test]
    fn kf_r7_keys_and_values_are_kept_as_they_are() {
        let records = [
            (0, None, Some(&b"v"[..])),
            (1, Some(&b""[..]), Some(b"")),
            (7, Some(b"0"), None),
            (2, Some(b"\xff\n"), Some(b"{}\n")),
        ]
        .map(|(partition, key, value)| Record {
            partition,
            key,
            value,
        });
        let mut builder = Builder::default();
        records.iter().for_each(|record| builder.push(*record));

        let object = builder.finish();

        assert_eq!(decode(&object).unwrap(), records);
        assert_eq!(builder.records_n(), 0);
    }

    proptest! {
        #[test]
        fn broken_bytes_are_an_error_and_never_a_panic(
            cut in 0usize..200,
            flip in 0usize..200,
        ) {
            let mut builder = Builder::default();
            for n in 0..5 {
                let key = [b'k'; 3];
                builder.push(Record { partition: n, key: Some(&key), value: None });
            }
            let whole = builder.finish();
            let mut broken = whole.clone();
            broken.truncate(cut.min(whole.len()));
            if let Some(byte) = broken.get_mut(flip) {
                *byte ^= 1;
            }
            prop_assert!(broken == whole || decode(&broken).is_err());
        }

        #[test]
        fn contents_that_lie_are_an_error(payload in prop::collection::vec(any::<u8>(), 0..60)) {
            let object = frame::encode(frame::KAFKA_STAGED, &payload);
            let _ = decode(&object);
        }
    }
}
