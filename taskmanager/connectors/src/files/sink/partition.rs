//! `partitionBy`: which folder a row goes to.
//!
//! Owns: folder names of the Hive form `column=value/`, and which rows have none. Start at: [`Partitioner::split`].

use std::collections::BTreeMap;

use arrow::array::{Array, RecordBatch, UInt32Array};
use arrow::error::ArrowError;
use streamforge_engine::batch::{BadRows, StreamBatch};

use crate::formats::write::{json_row, plain_text};

mod times;

/// Folder of rows whose value is NULL.
const NULL_FOLDER: &str = "__HIVE_DEFAULT_PARTITION__";

/// Longest name of a folder that file systems take.
const FOLDER_NAME_BYTES_MAX: usize = 255;

/// Rows of one folder.
#[derive(Debug)]
pub struct Part {
    /// Path below the output folder, with a slash behind it; empty without `partitionBy`.
    pub folder: String,
    /// Its rows, without the columns that name the folder.
    pub batch: StreamBatch,
}

/// Deals rows out to folders.
#[derive(Debug)]
pub struct Partitioner {
    columns: Vec<String>,
}

/// Percent-encodes all but letters, digits, `-`, `_` and `.`; names of only dots as well.
fn encode(value: &str, out: &mut String) {
    let dots = value.bytes().all(|byte| byte == b'.');
    for byte in value.bytes() {
        let plain = byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
        if plain || (byte == b'.' && !dots) {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
}

impl Partitioner {
    /// By these columns.
    pub fn new(columns: Vec<String>) -> Self {
        Partitioner { columns }
    }

    /// The rows by folder. A row whose folder would have too long a name is bad, and one with a time
    /// that cannot be read back.
    pub fn split(&self, batch: &StreamBatch, bad: &mut BadRows) -> Result<Vec<Part>, ArrowError> {
        let writable = times::writable(batch, bad)?;
        let batch = writable.as_ref().unwrap_or(batch);
        if batch.is_empty() {
            return Ok(Vec::new());
        }
        if self.columns.is_empty() {
            return Ok(vec![Part {
                folder: String::new(),
                batch: batch.clone(),
            }]);
        }
        let mut rows_of: BTreeMap<String, Vec<u32>> = BTreeMap::new();
        for row in 0..batch.len() {
            match self.folder(&batch.rows, row) {
                Ok(folder) => {
                    let row = u32::try_from(row).unwrap_or(u32::MAX);
                    rows_of.entry(folder).or_default().push(row);
                }
                Err(reason) => bad.push_row(batch, row, &json_row(&batch.rows, row), reason),
            }
        }
        let schema = batch.rows.schema();
        let kept: Vec<usize> = (0..schema.fields().len())
            .filter(|idx| !self.columns.contains(schema.field(*idx).name()))
            .collect();
        let data = batch.with_rows(batch.rows.project(&kept)?);
        let whole = rows_of.len() == 1 && bad.is_empty();
        let part = |(folder, rows): (String, Vec<u32>)| {
            let batch = if whole {
                data.clone()
            } else {
                data.take(&UInt32Array::from(rows))?
            };
            Ok(Part { folder, batch })
        };
        rows_of.into_iter().map(part).collect()
    }

    fn folder(&self, rows: &RecordBatch, row: usize) -> Result<String, String> {
        let mut folder = String::new();
        for name in &self.columns {
            let Some(array) = rows.column_by_name(name) else {
                continue;
            };
            let start = folder.len();
            encode(name, &mut folder);
            folder.push('=');
            if array.is_null(row) {
                folder.push_str(NULL_FOLDER);
            } else {
                encode(&plain_text(array, row), &mut folder);
            }
            if folder.len() - start > FOLDER_NAME_BYTES_MAX {
                return Err(format!(
                    "the value of {name} is too long for the name of a folder"
                ));
            }
            folder.push('/');
        }
        Ok(folder)
    }
}
