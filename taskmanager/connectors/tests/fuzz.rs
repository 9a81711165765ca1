//! Fuzz targets of NDJSON and CSV: any bytes are rows, good or bad, each judged alone (F3). Where
//! a stream is cut into chunks and where a reader takes it up again changes nothing.

use std::io::Cursor;
use std::sync::Arc;

use arrow::array::{Array, AsArray, RecordBatch};
use arrow::compute::concat_batches;
use arrow::datatypes::{DataType, Field, Fields, Int64Type, TimeUnit};
use streamforge_connectors::files::chunker::{Chunker, Framing, Piece};
use streamforge_connectors::formats::csv::Dialect;
use streamforge_connectors::formats::decoded::{BadRow, Column, Decoded, wanted_schema};
use streamforge_connectors::formats::decoder::{Decoder, TextFormat};

#[path = "../../../e2e/fuzz/harness.rs"]
mod harness;

use harness::Target;

/// One of each way to read a value.
fn columns() -> Vec<Column> {
    let timestamp =
        |zone: Option<&str>| DataType::Timestamp(TimeUnit::Microsecond, zone.map(Into::into));
    vec![
        Column::new("n", DataType::Int64),
        Column::new("t", DataType::Utf8),
        Column::new("d", DataType::Decimal128(8, 3)),
        Column::new("f", DataType::Float64),
        Column::new("ok", DataType::Boolean),
        Column::new("day", DataType::Date32),
        Column::new("ts", timestamp(None)),
        Column::new("tz", timestamp(Some("+00:00"))),
        Column::new("b", DataType::Binary),
    ]
}

/// What JSON can hold besides.
fn nested() -> Column {
    let inner = Fields::from(vec![Field::new("n", DataType::Int64, true)]);
    let item = Field::new("item", DataType::Struct(inner), true);
    Column::new("l", DataType::List(Arc::new(item)))
}

/// A stream, read.
#[derive(Debug, PartialEq)]
struct Read {
    rows: RecordBatch,
    /// Number and offset of each good row.
    good: Vec<(u64, u64)>,
    bad: Vec<BadRow>,
    rows_n: u64,
}

/// A stream of one format and schema.
struct Stream {
    format: TextFormat,
    columns: Vec<Column>,
}

impl Stream {
    /// Reads `bytes` from `from` on, in chunks of about `target` bytes, as a file source does.
    fn read(&self, bytes: &[u8], from: usize, target: usize) -> Read {
        let framing = match &self.format {
            TextFormat::Csv { dialect, .. } => Framing::Csv {
                delimiter: dialect.delimiter,
            },
            TextFormat::Json | TextFormat::Raw => Framing::Lines,
        };
        let input = Box::new(Cursor::new(bytes[from..].to_vec()));
        let mut chunker = Chunker::new(input, framing, from as u64, None);
        chunker.set_target(target);
        let places: Vec<Option<usize>> = (0..self.columns.len()).map(Some).collect();
        let mut decoder =
            Decoder::new(&self.format, &self.columns, &places).expect("the types are supported");
        let (mut batches, mut good, mut bad, mut rows_n) = (Vec::new(), Vec::new(), Vec::new(), 0);
        while let Some(piece) = chunker.next_piece(Vec::new()).expect("memory can be read") {
            match piece {
                Piece::TooLong(row) => {
                    bad.push(BadRow { row: rows_n, ..row });
                    rows_n += 1;
                }
                Piece::Rows(chunk) => {
                    let mut decoded: Decoded =
                        decoder.decode(&chunk).expect("rows fail, not chunks");
                    decoded.shift_rows(rows_n);
                    assert_eq!(decoded.rows.num_rows(), decoded.row_numbers.len());
                    rows_n += decoded.rows_n;
                    batches.push(decoded.rows);
                    good.extend(decoded.row_numbers.into_iter().zip(decoded.offsets));
                    bad.extend(decoded.bad);
                }
            }
        }
        let schema = wanted_schema(&self.columns);
        Read {
            rows: concat_batches(&schema, &batches).expect("all have one schema"),
            good,
            bad,
            rows_n,
        }
    }

    /// Rows do not depend on chunks, nor on where reading was taken up again.
    fn check(&self, bytes: &[u8]) -> Read {
        let whole = self.read(bytes, 0, 1 << 20);
        let mut places: Vec<(u64, u64)> = whole.good.clone();
        places.extend(whole.bad.iter().map(|bad| (bad.row, bad.offset)));
        places.sort_unstable();
        assert!(
            places
                .windows(2)
                .all(|two| two[0].0 < two[1].0 && two[0].1 < two[1].1)
        );
        assert!(whole.rows_n >= places.len() as u64);
        for target in [1, 7, 64] {
            assert_eq!(self.read(bytes, 0, target), whole, "in chunks of {target}");
        }
        if let Some((row, offset)) = places.get(bytes.len() % places.len().max(1)) {
            let skipped_n = whole.good.iter().filter(|(n, _)| n < row).count();
            let mut rest = self.read(bytes, *offset as usize, 64);
            rest.good.iter_mut().for_each(|(n, _)| *n += row);
            rest.bad.iter_mut().for_each(|bad| bad.row += row);
            let left_n = whole.rows.num_rows() - skipped_n;
            let bad = whole.bad.iter().filter(|bad| bad.row >= *row).cloned();
            let expected = Read {
                rows: whole.rows.slice(skipped_n, left_n),
                good: whole.good[skipped_n..].to_vec(),
                bad: bad.collect(),
                rows_n: whole.rows_n - row,
            };
            assert_eq!(rest, expected, "taken up at row {row}");
        }
        whole
    }

    /// Which rows are bad depends on the schema alone, not on who reads which column.
    fn check_unread(&self, bytes: &[u8], whole: &Read) {
        let mut columns = self.columns.clone();
        columns
            .iter_mut()
            .step_by(2)
            .for_each(|column| column.wanted = false);
        let format = self.format.clone();
        let some = Stream { format, columns }.read(bytes, 0, 1 << 20);
        assert_eq!(
            (&some.good, &some.bad, some.rows_n),
            (&whole.good, &whole.bad, whole.rows_n)
        );
    }
}

/// Refused are streams of which no row is good; their error is that of the first row.
fn verdict(read: &Read) -> Result<(), String> {
    match read.bad.first() {
        Some(bad) if read.good.is_empty() => Err(bad.reason.clone()),
        _ => Ok(()),
    }
}

const JSON_WORDS: &[&str] = &[
    "\"",
    "\\",
    "{",
    "}",
    "[",
    "]",
    ",",
    ":",
    "null",
    "true",
    "1e9",
    "-",
    ".",
    "\\u",
    "\\ud83d",
    "\\n",
    "\u{e9}",
    "\u{1F600}",
    " ",
    "\t",
    "\r",
    "\n",
    "\"n\":",
    "\"t\":",
    "\"l\":[{\"n\":1}]",
    "0",
    "\0",
    "[[[[[[[[[[[[[[[[[[[[",
    "\"tz\":\"2026-01-31T23:59:59.5+02:00\"",
    "0.30000000000000004",
];

#[test]
fn fuzz_ndjson_judges_each_line_alone_f3() {
    let mut all = columns();
    all.push(nested());
    let stream = Stream {
        format: TextFormat::Json,
        columns: all,
    };
    let target = Target {
        name: "ndjson",
        words: JSON_WORDS,
        rounds_n: 10_000,
        bytes_max: 8 << 10,
    };
    target.run(|bytes| {
        let read = stream.check(bytes);
        stream.check_unread(bytes, &read);
        let lines: Vec<&[u8]> = bytes.split(|byte| *byte == b'\n').collect();
        let blank = |line: &&[u8]| line.iter().all(|byte| matches!(byte, b' ' | b'\t' | b'\r'));
        let full_n = lines.iter().filter(|line| !blank(line)).count();
        assert_eq!(read.good.len() + read.bad.len(), full_n);
        let numbers = read.rows.column(0).as_primitive::<Int64Type>();
        for (idx, (row, _)) in read.good.iter().enumerate() {
            // What is good is an object for another parser as well, with the same number in it.
            let line = lines[*row as usize];
            let parsed = serde_json::from_slice::<serde_json::Map<String, serde_json::Value>>(line);
            let parsed = match parsed {
                Ok(parsed) => parsed,
                // A number that nobody reads may be of any size here.
                Err(error) if error.to_string().contains("number out of range") => continue,
                Err(error) => panic!("row {row} is good, but: {error}"),
            };
            let theirs = parsed.get("n").filter(|n| !n.is_null());
            let ours = (!numbers.is_null(idx)).then(|| numbers.value(idx));
            let same = match (ours, theirs) {
                (Some(ours), Some(n)) => n
                    .as_i64()
                    .map_or(n.as_f64() == Some(ours as f64), |n| n == ours),
                (None, None) => true,
                _ => false,
            };
            assert!(same, "row {row}: {ours:?}, {theirs:?}");
        }
        for bad in &read.bad {
            let line = lines[bad.row as usize];
            assert_eq!(bad.raw, line[..bad.raw.len()], "row {}", bad.row);
        }
        verdict(&read)
    });
}

const CSV_WORDS: &[&str] = &[
    "\"",
    "\"\"",
    "\",\"",
    ",",
    "\n",
    "\r\n",
    "\r",
    "\"\n",
    "\n\"",
    "NA",
    " ",
    "\t",
    ";",
    "\u{e9}",
    "\0",
    "\"a\"b",
    "true",
    "2026-01-31",
    "2026-01-31T00:00:00Z",
    "1.250",
    "Zm9v",
    "x,\"y\nz\",",
    "\u{feff}",
];

#[test]
fn fuzz_csv_finds_the_same_records_wherever_it_begins_f3() {
    let stream = Stream {
        format: TextFormat::Csv {
            dialect: Dialect {
                delimiter: b',',
                null: Some(b"NA".to_vec()),
            },
            header: false,
        },
        columns: columns(),
    };
    let target = Target {
        name: "csv",
        words: CSV_WORDS,
        rounds_n: 10_000,
        bytes_max: 8 << 10,
    };
    target.run(|bytes| {
        let read = stream.check(bytes);
        stream.check_unread(bytes, &read);
        verdict(&read)
    });
}
