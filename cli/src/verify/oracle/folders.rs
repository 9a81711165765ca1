//! Rows of a file sink with `partitionBy` that no folder can be named after.
//!
//! Owns: how long the name of a folder would be. File systems take 255 bytes; a longer one is the sink's to divert.

use std::collections::BTreeSet;

use arrow::array::Array as _;
use arrow::record_batch::RecordBatch;
use streamforge_taskmanager::connectors::formats::write::plain_text;

/// What a NULL is called.
const NULL_NAME: &str = "__HIVE_DEFAULT_PARTITION__";

/// Bytes of the longest name.
const NAME_BYTES_MAX: usize = 255;

/// The rows for which one of these columns is too long to be `column=value`.
pub fn without_folder(rows: &RecordBatch, columns: &[String]) -> BTreeSet<usize> {
    let mut without = BTreeSet::new();
    for name in columns {
        let Some(array) = rows.column_by_name(name) else {
            continue;
        };
        let left = NAME_BYTES_MAX.saturating_sub(written_bytes(name) + "=".len());
        let is_too_long = |row: &usize| {
            let bytes = match array.is_null(*row) {
                true => NULL_NAME.len(),
                false => written_bytes(&plain_text(array, *row)),
            };
            bytes > left
        };
        without.extend((0..rows.num_rows()).filter(is_too_long));
    }
    without
}

/// Letters, digits, `-`, `_` and `.` are written as they are, every other byte as `%` and two digits; a name of only
/// dots would be another folder.
fn written_bytes(text: &str) -> usize {
    let is_dots = text.chars().all(|letter| letter == '.');
    let bytes_n = |letter: char| match letter {
        '-' | '_' => 1,
        '.' if !is_dots => 1,
        letter if letter.is_ascii_alphanumeric() => 1,
        letter => 3 * letter.len_utf8(),
    };
    text.chars().map(bytes_n).sum()
}
