//! Objects of the late log: which (record, window) pairs each operator missed.
//!
//! Layout: the envelope (kind LATE_LOG) around `uid_length:u32 uid rows`, the rows an Arrow IPC
//! stream with the columns of [`streamforge_engine::operator::late_log_schema`].

use arrow::record_batch::RecordBatch;
use bytes::Bytes;
use streamforge_core::frame;
use streamforge_core::ids::OperatorUid;
use streamforge_core::manifest::ObjectRef;
use xxhash_rust::xxh3::xxh3_64;

use crate::{Error, ipc};

/// The object and the manifest's words about it.
pub fn encode_late_log(
    key: String,
    operator: &OperatorUid,
    rows: &RecordBatch,
) -> Result<(Bytes, ObjectRef), Error> {
    let encode = |source| Error::Encode {
        key: key.clone(),
        source,
    };
    let uid_length = u32::try_from(operator.0.len()).unwrap_or(u32::MAX);
    let mut payload = uid_length.to_le_bytes().to_vec();
    payload.extend_from_slice(operator.0.as_bytes());
    ipc::write(rows, &mut payload).map_err(encode)?;
    let object = frame::encode(frame::LATE_LOG, &payload);
    let (bytes, checksum) = (object.len() as u64, xxh3_64(&object));
    Ok((
        object.into(),
        ObjectRef {
            key,
            bytes,
            checksum,
        },
    ))
}

/// Which operator missed what.
pub fn decode_late_log(key: &str, object: &[u8]) -> Result<(OperatorUid, RecordBatch), Error> {
    let (_, payload) = frame::decode(frame::LATE_LOG, object).map_err(|source| Error::Frame {
        key: key.to_owned(),
        source,
    })?;
    let fail = |reason: &str| Error::Block {
        key: key.to_owned(),
        group: 0,
        reason: reason.to_owned(),
    };
    let (length, rest) = payload
        .split_first_chunk::<4>()
        .ok_or_else(|| fail("too short"))?;
    let length = usize::try_from(u32::from_le_bytes(*length)).unwrap_or(usize::MAX);
    let (uid, rows) = rest
        .split_at_checked(length)
        .ok_or_else(|| fail("too short"))?;
    let uid = std::str::from_utf8(uid).map_err(|_| fail("operator is not UTF-8"))?;
    let rows = ipc::read(rows).map_err(|error| fail(&error.to_string()))?;
    Ok((OperatorUid(uid.to_owned()), rows))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{Int64Array, StringArray};

    use super::*;

    #[test]
    fn late_log_round_trips_and_damage_is_noticed_c8() {
        let schema = streamforge_engine::operator::late_log_schema();
        let rows = RecordBatch::try_new(
            schema,
            vec![
                Arc::new(StringArray::from(vec!["a.csv"])),
                Arc::new(StringArray::from(vec!["3:99"])),
                Arc::new(Int64Array::from(vec![0])),
                Arc::new(Int64Array::from(vec![10])),
                Arc::new(Int64Array::from(vec![11])),
            ],
        )
        .unwrap();
        let uid = OperatorUid("per_user/partial".to_owned());

        let (object, _) = encode_late_log("late/x".to_owned(), &uid, &rows).unwrap();

        assert_eq!(decode_late_log("x", &object).unwrap(), (uid, rows));
        for at in 0..object.len() {
            let mut bad = object.to_vec();
            bad[at] ^= 1;
            assert!(decode_late_log("x", &bad).is_err(), "byte {at}");
        }
    }
}
