//! Rows as an Arrow IPC stream, and back.
//!
//! Owns: reading such a stream from bytes that may be anything. Checksums keep accidents out; who can
//! write to the store can still write what fits them. Arrow's reader takes lengths for granted: it
//! allocates what they ask for and panics where they lead outside. So they are checked before it
//! sees them, and what it asserts besides is an error here. Start at: [`read`].

use std::io::Cursor;
use std::panic::{AssertUnwindSafe, catch_unwind};

use arrow::compute::concat_batches;
use arrow::error::ArrowError;
use arrow::ipc::MessageHeader;
use arrow::ipc::reader::StreamReader;
use arrow::ipc::writer::StreamWriter;
use arrow::record_batch::RecordBatch;

/// Before the length of each message.
const CONTINUATION: [u8; 4] = [0xFF; 4];

/// Appends `rows` as one stream.
pub(crate) fn write(rows: &RecordBatch, out: &mut Vec<u8>) -> Result<(), ArrowError> {
    let mut writer = StreamWriter::try_new(out, rows.schema_ref())?;
    if rows.num_rows() > 0 {
        writer.write(rows)?;
    }
    writer.finish()
}

/// All rows of a stream.
pub(crate) fn read(bytes: &[u8]) -> Result<RecordBatch, ArrowError> {
    check_lengths(bytes)?;
    let read = || {
        let reader = StreamReader::try_new(Cursor::new(bytes), None)?;
        let schema = reader.schema();
        let batches = reader.collect::<Result<Vec<_>, _>>()?;
        concat_batches(&schema, &batches)
    };
    // Nothing that `read` touches outlives it.
    catch_unwind(AssertUnwindSafe(read)).unwrap_or_else(|_| Err(wrong("not what Arrow writes")))
}

fn wrong(what: &str) -> ArrowError {
    ArrowError::IpcError(what.to_owned())
}

/// Whether every message, its body and the buffers in it lie within the bytes.
fn check_lengths(bytes: &[u8]) -> Result<(), ArrowError> {
    let cut = || wrong("a length leads outside");
    let mut rest = bytes;
    while let Some((mut length, mut behind)) = rest.split_first_chunk::<4>() {
        if *length == CONTINUATION {
            (length, behind) = behind.split_first_chunk::<4>().ok_or_else(cut)?;
        }
        let length = usize::try_from(i32::from_le_bytes(*length)).map_err(|_| cut())?;
        if length == 0 {
            return Ok(());
        }
        let (message, behind) = behind.split_at_checked(length).ok_or_else(cut)?;
        let message = arrow::ipc::root_as_message(message)
            .map_err(|error| wrong(&format!("a message is damaged: {error}")))?;
        let body = usize::try_from(message.bodyLength()).map_err(|_| cut())?;
        rest = behind.get(body..).ok_or_else(cut)?;
        match message.header_type() {
            MessageHeader::Schema => {}
            MessageHeader::RecordBatch => {
                let batch = message.header_as_record_batch().ok_or_else(cut)?;
                if batch.compression().is_some() {
                    return Err(wrong("compressed, which is never written"));
                }
                for buffer in batch.buffers().iter().flatten() {
                    let end = usize::try_from(buffer.offset())
                        .ok()
                        .zip(usize::try_from(buffer.length()).ok())
                        .and_then(|(offset, length)| offset.checked_add(length));
                    if end.is_none_or(|end| end > body) {
                        return Err(cut());
                    }
                }
            }
            _ => return Err(wrong("neither schema nor rows")),
        }
    }
    Ok(())
}
