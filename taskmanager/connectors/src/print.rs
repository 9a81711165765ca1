//! Rows to the terminal.
//!
//! Owns: an aligned table where somebody looks, NDJSON where a program does. At least once: rows are
//! written when they come. Start at: [`PrintWriter`].

use std::io::{ErrorKind, IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering};

use arrow::array::{Array, RecordBatch};
use async_trait::async_trait;
use serde::Deserialize;
use streamforge_core::ids::CheckpointId;
use streamforge_core::job_graph::ChangelogMode;
use streamforge_engine::batch::{BadRows, StreamBatch};
use streamforge_engine::error::Error;
use streamforge_engine::sink::{SinkWriter, Staging};

use crate::changelog::with_ops;
use crate::error::{failed, refused};
use crate::formats::write::{plain_text, write_json_rows};

/// Widest cell of a table; longer ones are cut.
const CELL_CHARS_MAX: usize = 40;

/// Rows after which the names of the columns are shown again.
const ROWS_PER_HEADER: usize = 200;

/// Where to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub enum Stream {
    /// Standard output.
    #[default]
    Stdout,
    /// Standard error.
    Stderr,
}

/// Set when the reader of standard output has gone, as `head` does when it has enough. Standard output
/// is the process's, so this is, too.
static READER_GONE: AtomicBool = AtomicBool::new(false);

/// Whether a printed row found nobody to read it: the job's failure is then none of its own.
pub fn reader_is_gone() -> bool {
    READER_GONE.load(Ordering::Relaxed)
}

/// `print:` of the document.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
pub struct Config {
    /// Where to.
    #[serde(default)]
    pub stream: Stream,
}

/// Lays rows out as a table whose columns only grow wider.
#[derive(Debug, Default)]
pub struct Table {
    widths: Vec<usize>,
    since_header: Option<usize>,
}

fn cell(rows: &RecordBatch, column: usize, row: usize) -> String {
    let array = rows.column(column);
    if array.is_null(row) {
        return "NULL".to_owned();
    }
    let text = plain_text(array, row);
    let mut shown: String = text
        .chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect();
    if shown.chars().count() > CELL_CHARS_MAX {
        shown = shown
            .chars()
            .take(CELL_CHARS_MAX - 1)
            .chain(['…'])
            .collect();
    }
    shown
}

impl Table {
    /// Appends the rows' lines, after the names of the columns where those are due.
    pub fn write(&mut self, out: &mut Vec<u8>, rows: &RecordBatch) {
        let schema = rows.schema();
        let names: Vec<&str> = schema.fields().iter().map(|f| f.name().as_str()).collect();
        let columns_n = names.len();
        let numeric: Vec<bool> = schema
            .fields()
            .iter()
            .map(|f| f.data_type().is_numeric())
            .collect();
        let cells: Vec<Vec<String>> = (0..rows.num_rows())
            .map(|row| {
                (0..columns_n)
                    .map(|column| cell(rows, column, row))
                    .collect()
            })
            .collect();
        let before = self.widths.clone();
        self.widths.resize(columns_n, 0);
        for line in std::iter::once(&names.iter().map(|n| (*n).to_owned()).collect()).chain(&cells)
        {
            for (width, text) in self.widths.iter_mut().zip(line) {
                *width = (*width).max(text.chars().count());
            }
        }
        let wider = before != self.widths;
        for (row, line) in cells.iter().enumerate() {
            let due = self.since_header.is_none_or(|rows| rows >= ROWS_PER_HEADER);
            if due || (wider && row == 0) {
                self.write_header(out, &names, &numeric);
            }
            self.write_line(out, line.iter().map(String::as_str), &numeric);
            self.since_header = Some(self.since_header.unwrap_or(0) + 1);
        }
    }

    fn write_header(&mut self, out: &mut Vec<u8>, names: &[&str], numeric: &[bool]) {
        self.write_line(out, names.iter().copied(), numeric);
        let rules: Vec<String> = self.widths.iter().map(|width| "-".repeat(*width)).collect();
        self.write_line(out, rules.iter().map(String::as_str), numeric);
        self.since_header = Some(0);
    }

    fn write_line<'a>(
        &self,
        out: &mut Vec<u8>,
        cells: impl Iterator<Item = &'a str>,
        numeric: &[bool],
    ) {
        let mut line = String::new();
        for ((text, width), numeric) in cells.zip(&self.widths).zip(numeric) {
            let padding = " ".repeat(width.saturating_sub(text.chars().count()));
            let (left, right) = if *numeric {
                (padding.as_str(), "")
            } else {
                ("", padding.as_str())
            };
            line.push_str(left);
            line.push_str(text);
            line.push_str(right);
            line.push_str("  ");
        }
        out.extend_from_slice(line.trim_end().as_bytes());
        out.push(b'\n');
    }
}

/// Prints the rows of one subtask.
#[derive(Debug)]
pub struct PrintWriter {
    stream: Stream,
    changelog: ChangelogMode,
    table: Option<Table>,
    buffer: Vec<u8>,
}

impl PrintWriter {
    /// A writer; `terminal` says whether somebody looks, if it is known better than by asking.
    pub fn new(config: Config, changelog: ChangelogMode, terminal: Option<bool>) -> Self {
        let terminal = terminal.unwrap_or_else(|| match config.stream {
            Stream::Stdout => std::io::stdout().is_terminal(),
            Stream::Stderr => std::io::stderr().is_terminal(),
        });
        PrintWriter {
            stream: config.stream,
            changelog,
            table: terminal.then(Table::default),
            buffer: Vec::new(),
        }
    }

    fn print(&mut self) -> std::io::Result<()> {
        // One call per batch: lines of several subtasks never mix.
        match self.stream {
            Stream::Stdout => {
                let mut out = std::io::stdout().lock();
                out.write_all(&self.buffer)?;
                out.flush()
            }
            Stream::Stderr => std::io::stderr().lock().write_all(&self.buffer),
        }
    }
}

#[async_trait]
impl SinkWriter for PrintWriter {
    async fn write(&mut self, batch: StreamBatch) -> Result<BadRows, Error> {
        let rows =
            with_ops(&batch, self.changelog).map_err(|error| failed("print rows", true, error))?;
        self.buffer.clear();
        match &mut self.table {
            Some(table) => table.write(&mut self.buffer, &rows),
            None => write_json_rows(&mut self.buffer, &rows),
        }
        self.print().map_err(|error| {
            if error.kind() != ErrorKind::BrokenPipe {
                return failed("print rows", false, error);
            }
            // The rows are not printed, so no checkpoint may say so: the task ends.
            READER_GONE.store(true, Ordering::Relaxed);
            refused("print rows", "nobody reads them any more")
        })?;
        Ok(BadRows::default())
    }

    fn stage(&mut self, _id: CheckpointId) -> Result<Staging, Error> {
        Ok(Box::pin(std::future::ready(Ok(None))))
    }

    fn close_at_next_stage(&mut self) {}
}
