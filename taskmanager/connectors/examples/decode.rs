//! Rows per CPU second of the NDJSON decoder beside arrow-json, on bids of about 250 bytes.
//!
//! `cargo run --release -p streamforge-connectors --example decode`

use rustix::time::{ClockId, clock_gettime};
use std::hint::black_box;
use std::io::Write;
use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Schema};
use streamforge_connectors::formats::decoded::{Chunk, Column};
use streamforge_connectors::formats::json::JsonDecoder;

const CHUNK_BYTES: usize = 1 << 20;

fn bids(rows: usize) -> Vec<u8> {
    let mut out = Vec::new();
    let mut x = 1u64;
    for i in 0..rows {
        x = x
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let r = x >> 33;
        let extra = "x".repeat((70 + r % 40) as usize);
        writeln!(
            out,
            r#"{{"auction":{},"bidder":{},"price":{},"channel":"channel-{}","url":"https://www.nexmark.com/item/{}/item.htm?query=1&channel_id={}","dateTime":{},"extra":"{extra}"}}"#,
            1000 + r % 10_000, 1000 + r % 977, r % 1_000_000, r % 10_000, r, r % 100, 1_700_000_000_000u64 + i as u64 / 10
        )
        .unwrap_or_default();
    }
    out
}

fn columns(wanted: &[&str]) -> Vec<Column> {
    let types = [
        ("auction", DataType::Int64),
        ("bidder", DataType::Int64),
        ("price", DataType::Int64),
        ("channel", DataType::Utf8),
        ("url", DataType::Utf8),
        ("dateTime", DataType::Int64),
        ("extra", DataType::Utf8),
    ];
    let column = |(name, data_type): (&str, DataType)| {
        let mut column = Column::new(name, data_type);
        column.wanted = wanted.contains(&name);
        column
    };
    types.into_iter().map(column).collect()
}

fn cpu_seconds() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

fn time(name: &str, rows: usize, bytes: usize, mut run: impl FnMut()) {
    let mut best = f64::MAX;
    for _ in 0..5 {
        let start = cpu_seconds();
        run();
        best = best.min(cpu_seconds() - start);
    }
    println!(
        "{name:28} {:6.2} M rows/s  {:5.2} GB/s  {:5.0} ns/row",
        rows as f64 / best / 1e6,
        bytes as f64 / best / 1e9,
        best / rows as f64 * 1e9
    );
}

fn main() {
    let rows = 400_000;
    let data = bids(rows);
    println!("{} bytes per row", data.len() / rows);
    let mut chunks = Vec::new();
    let mut at = 0;
    while at < data.len() {
        let end = (at + CHUNK_BYTES).min(data.len());
        let end = if end == data.len() {
            end
        } else {
            at + memchr::memrchr(b'\n', &data[at..end]).unwrap_or(0) + 1
        };
        chunks.push(Chunk::new(data[at..end].to_vec(), at as u64));
        at = end;
    }
    let all = [
        "auction", "bidder", "price", "channel", "url", "dateTime", "extra",
    ];
    for (name, declared, wanted) in [
        ("all columns", columns(&all), 7),
        ("2 of 7", columns(&["auction", "price"]), 2),
        ("2 declared, 5 unknown", columns(&all)[..3].to_vec(), 3),
    ] {
        let mut decoder = JsonDecoder::new(declared).expect("the types are supported");
        time(name, rows, data.len(), || {
            let mut n = 0;
            for chunk in &chunks {
                let decoded = decoder.decode(chunk).expect("the lines are valid");
                assert_eq!(decoded.rows.num_columns(), wanted);
                n += black_box(decoded).rows.num_rows();
            }
            assert_eq!(n, rows);
        });
    }
    for names in [&all[..], &["auction", "price"]] {
        let fields = columns(names).into_iter().filter(|column| column.wanted);
        let fields: Vec<Field> = fields
            .map(|c| Field::new(c.name, c.data_type, true))
            .collect();
        let mut decoder = arrow_json::ReaderBuilder::new(Arc::new(Schema::new(fields)))
            .with_batch_size(8192)
            .build_decoder()
            .expect("the types are supported");
        time(
            &format!("arrow-json, {} columns", names.len()),
            rows,
            data.len(),
            || {
                let mut n = 0;
                for chunk in &chunks {
                    let mut rest = chunk.data();
                    while !rest.is_empty() {
                        let taken = decoder.decode(rest).expect("the lines are valid");
                        rest = &rest[taken..];
                        if let Some(batch) = decoder.flush().expect("the lines are valid") {
                            n += black_box(batch).num_rows();
                        }
                    }
                }
                assert_eq!(n, rows);
            },
        );
    }
}
