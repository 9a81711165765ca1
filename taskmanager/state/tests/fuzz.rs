//! Fuzz targets of keyed state and of the late log: under a right checksum, too, any bytes are rows
//! or an error, and rows that are read are written so that they read the same (C8).

use arrow::record_batch::RecordBatch;
use streamforge_core::causes::with_causes;
use streamforge_core::frame;
use streamforge_core::ids::OperatorUid;
use streamforge_core::key_group::KeyGroup;
use streamforge_core::manifest::BlockRef;
use streamforge_engine::state::PartRows;
use streamforge_state::late_log::{decode_late_log, encode_late_log};
use streamforge_state::part::{block_bytes, decode_block, encode_part};
use xxhash_rust::xxh3::xxh3_64;

#[path = "../../../e2e/fuzz/harness.rs"]
mod harness;

use harness::Target;

/// A block with the right length and checksum.
fn block(bytes: &[u8], rows: u64) -> BlockRef {
    BlockRef {
        group: KeyGroup(7),
        offset: 0,
        length: bytes.len() as u64,
        checksum: xxh3_64(bytes),
        rows,
    }
}

/// The rows of a block of which nobody said how many it has: that is asked of the refusal.
fn read(bytes: &[u8]) -> Result<RecordBatch, String> {
    let refused = decode_block("parts/x", &block(bytes, u64::MAX), bytes);
    let text = with_causes(&refused.expect_err("no block has so many rows"));
    let n = text
        .split_once(": ")
        .and_then(|(_, reason)| reason.split_once(" rows, expected"));
    match n.and_then(|(n, _)| n.parse().ok()) {
        None => Err(text),
        Some(n) => {
            let rows = decode_block("parts/x", &block(bytes, n), bytes);
            Ok(rows.expect("only the number of rows was wrong"))
        }
    }
}

#[test]
fn fuzz_snapshot_block_is_rows_or_refused_c8() {
    let target = Target {
        name: "snapshot",
        words: &[],
        rounds_n: 20_000,
        bytes_max: 64 << 10,
    };
    target.run(|bytes| {
        let mut damaged = bytes.to_vec();
        damaged.push(0);
        assert!(decode_block("parts/x", &block(bytes, 0), &damaged).is_err());
        let rows = read(bytes)?;
        let n = rows.num_rows();
        let part = PartRows {
            rows: rows.clone(),
            groups: vec![(KeyGroup(7), 0..n)],
        };
        let (object, stored) = encode_part("parts/y".to_owned(), "slices", &part)
            .map_err(|error| with_causes(&error))?;
        assert!(frame::decode(frame::PART, &object).is_ok());
        let block = &stored.blocks[0];
        let again = block_bytes(&object, block).expect("the block is in its object");
        let again = decode_block("parts/y", block, again);
        assert_eq!(again.ok(), Some(rows));
        Ok(())
    });
}

#[test]
fn fuzz_late_log_is_rows_of_an_operator_or_refused_c8() {
    let target = Target {
        name: "late_log",
        words: &[],
        rounds_n: 20_000,
        bytes_max: 64 << 10,
    };
    target.run(|payload| {
        let object = frame::encode(frame::LATE_LOG, payload);
        let (uid, rows) =
            decode_late_log("late/x", &object).map_err(|error| with_causes(&error))?;
        let uid: OperatorUid = uid;
        let (object, stored) = encode_late_log("late/y".to_owned(), &uid, &rows)
            .map_err(|error| with_causes(&error))?;
        assert_eq!(stored.checksum, xxh3_64(&object));
        let again = decode_late_log("late/y", &object);
        assert_eq!(again.ok(), Some((uid, rows)));
        Ok(())
    });
}
