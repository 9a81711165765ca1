//! The job's late log, read and judged.
//!
//! Owns: which (record, window) pairs the job left out, and whether it was right to. Which rows are
//! late depends on how splits were read side by side, so the oracle takes the log as given and checks
//! every entry: the record is there, the window is one of its own, the watermark had passed it, and in
//! a job of one split the watermark was no higher than the rows before the record allow.

use std::collections::HashMap;
use std::io::Cursor;

use anyhow::{Context as _, Result, ensure};
use arrow::array::{Array as _, AsArray as _, RecordBatch};
use arrow::datatypes::Int64Type;
use arrow::ipc::reader::StreamReader;
use streamforge_core::frame::{self, LATE_LOG};

use super::window::Window;

/// Row number and byte offset (or partition and offset) of a record within its source.
pub type Position = (u64, u64);

/// A window that a record missed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The window.
    pub window: Window,
    /// The watermark that had passed it.
    pub watermark: i64,
}

/// Entries of one operator.
#[derive(Debug, Default)]
pub struct OperatorLate {
    sources: HashMap<String, HashMap<Position, Vec<Entry>>>,
}

/// The whole log.
#[derive(Debug, Default)]
pub struct LateLog {
    operators: HashMap<String, OperatorLate>,
    /// The highest watermark under which a record was judged, by source.
    highest: HashMap<String, HashMap<Position, i64>>,
    entries_n: u64,
}

impl LateLog {
    /// Adds one stored object.
    pub fn add_object(&mut self, bytes: &[u8]) -> Result<()> {
        let (_, payload) = frame::decode(LATE_LOG, bytes)?;
        let (length, rest) = payload
            .split_first_chunk::<4>()
            .context("cut before its operator")?;
        let length = usize::try_from(u32::from_le_bytes(*length))?;
        let (uid, rows) = rest
            .split_at_checked(length)
            .context("cut within its operator")?;
        let uid = std::str::from_utf8(uid)?;
        for batch in StreamReader::try_new(Cursor::new(rows), None)? {
            self.add_rows(&batch?, uid)?;
        }
        Ok(())
    }

    fn add_rows(&mut self, rows: &RecordBatch, operator: &str) -> Result<()> {
        let column = |name: &str| {
            rows.column_by_name(name)
                .with_context(|| format!("no {name}"))
        };
        let sources = column("source")?
            .as_string_opt::<i32>()
            .context("source is not text")?;
        let positions = column("position")?
            .as_string_opt::<i32>()
            .context("position is not text")?;
        let int = |name: &str| -> Result<_> {
            column(name)?
                .as_primitive_opt::<Int64Type>()
                .with_context(|| format!("type of {name}"))
        };
        let (starts, ends) = (int("window_start")?, int("window_end")?);
        let watermarks = int("watermark")?;
        for idx in 0..rows.num_rows() {
            ensure!(
                sources.is_valid(idx) && positions.is_valid(idx),
                "an entry without a record"
            );
            let position = position(positions.value(idx))?;
            let source = sources.value(idx);
            let window = Window {
                start: starts.value(idx),
                end: ends.value(idx),
            };
            self.add(
                operator,
                source,
                position,
                Entry {
                    window,
                    watermark: watermarks.value(idx),
                },
            );
        }
        Ok(())
    }

    /// Adds one entry.
    pub fn add(&mut self, operator: &str, source: &str, position: Position, entry: Entry) {
        let of_operator = of_name(&mut self.operators, operator);
        let positions = of_name(&mut of_operator.sources, source);
        positions.entry(position).or_default().push(entry);
        let of_source = of_name(&mut self.highest, source);
        let highest = of_source.entry(position).or_insert(i64::MIN);
        *highest = entry.watermark.max(*highest);
        self.entries_n += 1;
    }

    /// Number of entries.
    pub fn len(&self) -> u64 {
        self.entries_n
    }

    /// Number of entries under this operator's name.
    pub fn len_of(&self, operator: &str) -> u64 {
        let of_operator = self.operators.get(operator);
        of_operator.map_or(0, |entries| entries.len() as u64)
    }

    /// Entries of an aggregate, under either of its operators' names.
    pub fn take(&mut self, uids: &[&str]) -> OperatorLate {
        let mut all = OperatorLate::default();
        for uid in uids {
            for (source, positions) in self.operators.remove(*uid).unwrap_or_default().sources {
                let into = all.sources.entry(source).or_default();
                for (position, entries) in positions {
                    into.entry(position).or_default().extend(entries);
                }
            }
        }
        for entries in all.sources.values_mut().flat_map(HashMap::values_mut) {
            entries.sort_by_key(|entry| entry.window);
        }
        all
    }

    /// Operators whose entries nobody took.
    pub fn untaken(&self) -> Vec<&str> {
        let mut names: Vec<&str> = self.operators.keys().map(String::as_str).collect();
        names.sort_unstable();
        names
    }

    /// The highest watermark under which this record was judged, if it was late at all.
    pub fn watermark_of(&self, source: &str, position: Position) -> Option<i64> {
        self.highest.get(source)?.get(&position).copied()
    }
}

/// The value under a name, which is copied only where it is new.
fn of_name<'m, T: Default>(map: &'m mut HashMap<String, T>, name: &str) -> &'m mut T {
    if !map.contains_key(name) {
        map.insert(name.to_owned(), T::default());
    }
    map.get_mut(name)
        .expect("it was put in if it was not there")
}

impl OperatorLate {
    /// The records of one source that missed windows, each with its entries by window.
    pub fn source(&self, source: &str) -> Option<&HashMap<Position, Vec<Entry>>> {
        self.sources.get(source)
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        self.sources
            .values()
            .flat_map(HashMap::values)
            .map(Vec::len)
            .sum()
    }
}

/// The entries of one window among those of a record. An unnest may have made many rows of it.
pub fn of_window(entries: &[Entry], window: Window) -> &[Entry] {
    let from = entries.partition_point(|entry| entry.window < window);
    let to = entries.partition_point(|entry| entry.window <= window);
    entries.get(from..to).unwrap_or_default()
}

fn position(text: &str) -> Result<Position> {
    let (row, offset) = text.split_once(':').context("a position without `:`")?;
    let position = (row.parse()?, offset.parse()?);
    ensure!(
        format!("{}:{}", position.0, position.1) == text,
        "the position `{text}`"
    );
    Ok(position)
}
