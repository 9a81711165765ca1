//! The bytes of a part.
//!
//! Layout: the envelope of [`streamforge_core::frame`] (kind PART) around
//! `header_length:u32 header block*`; the header is an Arrow IPC stream of no rows whose schema and
//! metadata say what the columns are (G3); each block is the Arrow IPC stream of one key group's rows.
//! The manifest lists every block with its offset in the object, length and XXH3-64.

use std::ops::Range;

use arrow::record_batch::RecordBatch;
use bytes::Bytes;
use streamforge_core::frame;
use streamforge_core::manifest::{BlockRef, PartRef};
use streamforge_engine::state::PartRows;
use xxhash_rust::xxh3::xxh3_64;

use crate::{Error, ipc};

/// Bytes of the envelope before its payload.
const ENVELOPE_BYTES: u64 = 16;

/// A part's object and the manifest's words about it.
pub fn encode_part(key: String, kind: &str, part: &PartRows) -> Result<(Bytes, PartRef), Error> {
    let encode = |source| Error::Encode {
        key: key.clone(),
        source,
    };
    let mut header = Vec::new();
    ipc::write(&part.rows.slice(0, 0), &mut header).map_err(encode)?;
    let header_length = u32::try_from(header.len()).unwrap_or(u32::MAX);
    let mut payload = header_length.to_le_bytes().to_vec();
    payload.append(&mut header);
    let mut blocks = Vec::with_capacity(part.groups.len());
    for (group, Range { start, end }) in &part.groups {
        let offset = payload.len();
        ipc::write(&part.rows.slice(*start, end - start), &mut payload).map_err(encode)?;
        let bytes = payload.get(offset..).unwrap_or_default();
        blocks.push(BlockRef {
            group: *group,
            offset: ENVELOPE_BYTES + offset as u64,
            length: bytes.len() as u64,
            checksum: xxh3_64(bytes),
            rows: (end - start) as u64,
        });
    }
    let object = frame::encode(frame::PART, &payload);
    let stored = PartRef {
        key,
        bytes: object.len() as u64,
        kind: kind.to_owned(),
        blocks,
    };
    Ok((object.into(), stored))
}

/// The rows of one block, checked before anything of them is used.
pub fn decode_block(key: &str, block: &BlockRef, bytes: &[u8]) -> Result<RecordBatch, Error> {
    let fail = |reason: String| Error::Block {
        key: key.to_owned(),
        group: block.group.0,
        reason,
    };
    if bytes.len() as u64 != block.length {
        return Err(fail(format!(
            "{} bytes, expected {}",
            bytes.len(),
            block.length
        )));
    }
    if xxh3_64(bytes) != block.checksum {
        return Err(fail(
            "checksum does not match, the block is corrupt".to_owned(),
        ));
    }
    let rows = ipc::read(bytes).map_err(|error| fail(error.to_string()))?;
    if rows.num_rows() as u64 != block.rows {
        return Err(fail(format!(
            "{} rows, expected {}",
            rows.num_rows(),
            block.rows
        )));
    }
    Ok(rows)
}

/// Bytes `block` within the whole object, if it is long enough.
pub fn block_bytes<'a>(object: &'a [u8], block: &BlockRef) -> Option<&'a [u8]> {
    let start = usize::try_from(block.offset).ok()?;
    let end = start.checked_add(usize::try_from(block.length).ok()?)?;
    object.get(start..end)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::Int64Array;
    use arrow::datatypes::{DataType, Field, Schema};
    use streamforge_core::key_group::KeyGroup;

    use super::*;

    fn part() -> PartRows {
        let schema = Schema::new(vec![Field::new("k", DataType::Int64, false)])
            .with_metadata([("layout".to_owned(), "1".to_owned())].into());
        let column = Arc::new(Int64Array::from(vec![1, 2, 3, 4, 5]));
        PartRows {
            rows: RecordBatch::try_new(Arc::new(schema), vec![column]).unwrap(),
            groups: vec![(KeyGroup(2), 0..2), (KeyGroup(7), 2..5)],
        }
    }

    #[test]
    fn every_block_comes_back_with_its_schema_and_metadata() {
        let (object, stored) = encode_part("parts/x".to_owned(), "slices", &part()).unwrap();

        assert!(frame::decode(frame::PART, &object).is_ok());
        let rows = stored
            .blocks
            .iter()
            .map(|b| decode_block("x", b, block_bytes(&object, b).unwrap()).unwrap())
            .collect::<Vec<_>>();
        assert_eq!(rows[0], part().rows.slice(0, 2));
        assert_eq!(rows[1], part().rows.slice(2, 3));
        assert_eq!(rows[1].schema().metadata()["layout"], "1");
    }

    #[test]
    fn every_damaged_byte_of_a_block_is_noticed_c8() {
        let (object, stored) = encode_part("parts/x".to_owned(), "slices", &part()).unwrap();
        let block = stored.blocks[0];
        let good = block_bytes(&object, &block).unwrap();

        for at in 0..good.len() {
            let mut bad = good.to_vec();
            bad[at] ^= 0x40;
            assert!(decode_block("x", &block, &bad).is_err(), "byte {at}");
        }
        assert!(decode_block("x", &block, &good[1..]).is_err());
        assert!(block_bytes(&object[..40], &block).is_none());
    }
}
