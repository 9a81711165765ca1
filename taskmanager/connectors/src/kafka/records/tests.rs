use std::sync::Arc;

use arrow::array::{Array, AsArray};
use arrow::datatypes::{DataType, Int64Type};
use proptest::prelude::*;

use super::*;
use crate::formats::csv::Dialect;

fn columns() -> Vec<Column> {
    vec![
        Column::new("a", DataType::Utf8),
        Column::new("n", DataType::Int64),
    ]
}

fn csv() -> TextFormat {
    TextFormat::Csv {
        dialect: Dialect {
            delimiter: b',',
            null: None,
        },
        header: false,
    }
}

/// Good rows as (record, a, n) and bad ones as (offset, reason); the offset of record `i` is `100 + i`.
type Told = (Vec<(u32, Option<String>, Option<i64>)>, Vec<(i64, String)>);

fn decode(records: &mut Records, values: &[Option<&[u8]>]) -> Told {
    for (idx, value) in values.iter().enumerate() {
        records.push(100 + idx as i64, *value);
    }
    let DecodedRecords {
        decoded,
        records,
        bad,
    } = records.decode().unwrap();
    let text = decoded.rows.column(0).as_string::<i32>().clone();
    let numbers = decoded.rows.column(1).as_primitive::<Int64Type>().clone();
    let value = |idx: usize| (!text.is_null(idx)).then(|| text.value(idx).to_owned());
    let number = |idx: usize| (!numbers.is_null(idx)).then(|| numbers.value(idx));
    let good = records
        .iter()
        .enumerate()
        .map(|(idx, record)| (*record, value(idx), number(idx)))
        .collect();
    let bad = bad
        .into_iter()
        .map(|bad| (bad.offset, bad.reason))
        .collect();
    (good, bad)
}

fn json(values: &[Option<&[u8]>]) -> Told {
    decode(
        &mut Records::new(&TextFormat::Json, &columns()).unwrap(),
        values,
    )
}

#[test]
fn every_json_record_is_one_row_good_or_bad_t3() {
    let (good, bad) = json(&[
        Some(b"{\"a\":\"x\",\"n\":1}"),
        None,
        Some(b""),
        Some(b" \n "),
        Some(b"{\"a\":\"y\",\n \"n\":2}\n"),
        Some(b"{\"a\":\"x\"}{\"a\":\"y\"}"),
        Some(b"{\"a\":\"x\"}\n{\"a\":\"y\"}"),
        Some(b"{\"a\":\"line\nbreak\"}"),
        Some(b"[1]"),
        Some(b" {\"n\":3}"),
    ]);

    let text = |text: &str| Some(text.to_owned());
    assert_eq!(
        good,
        [
            (0, text("x"), Some(1)),
            (4, text("y"), Some(2)),
            (9, None, Some(3))
        ]
    );
    let offsets: Vec<i64> = bad.iter().map(|(offset, _)| *offset).collect();
    assert_eq!(offsets, [101, 102, 103, 105, 106, 107, 108]);
    assert_eq!(bad[0].1, TOMBSTONE);
    assert_eq!((bad[1].1.as_str(), bad[2].1.as_str()), (EMPTY, EMPTY));
}

#[test]
fn a_bad_record_keeps_its_bytes_as_they_were() {
    let mut records = Records::new(&TextFormat::Json, &columns()).unwrap();
    records.push(7, Some(b"{\"a\":\n1}"));

    let decoded = records.decode().unwrap();

    assert_eq!(decoded.bad[0].raw.as_deref(), Some(&b"{\"a\":\n1}"[..]));
    assert_eq!(decoded.bad[0].offset, 7);
}

#[test]
fn an_open_quote_of_csv_stays_within_its_record() {
    let mut records = Records::new(&csv(), &columns()).unwrap();
    let (good, bad) = decode(
        &mut records,
        &[
            Some(b"x,1"),
            Some(b"\"open,2"),
            Some(b"\"two\nlines\",3"),
            Some(b"y,4\n"),
            Some(b"p,5\nq,6"),
            Some(b"\r"),
            Some(b"z,7\r"),
            Some(b"one field"),
        ],
    );

    let text = |text: &str| Some(text.to_owned());
    assert_eq!(
        good,
        [
            (0, text("x"), Some(1)),
            (2, text("two\nlines"), Some(3)),
            (3, text("y"), Some(4)),
            (6, text("z"), Some(7))
        ]
    );
    let offsets: Vec<i64> = bad.iter().map(|(offset, _)| *offset).collect();
    assert_eq!(offsets, [101, 104, 105, 107]);
}

/// KF-R7: no value, an empty value and "0" are three things.
#[test]
fn kf_r7_raw_values_are_kept_as_they_are() {
    let column = Arc::new(vec![Column::new("v", DataType::Binary)]);
    let mut records = Records::new(&TextFormat::Raw, &column).unwrap();
    for (idx, value) in [
        None,
        Some(&b""[..]),
        Some(b"0"),
        Some(b"a\nb\r\n"),
        Some(b"\xff"),
    ]
    .into_iter()
    .enumerate()
    {
        records.push(idx as i64, value);
    }

    let decoded = records.decode().unwrap();

    let values = decoded.decoded.rows.column(0).as_binary::<i32>();
    assert!(values.is_null(0));
    assert_eq!(
        (1..5).map(|idx| values.value(idx)).collect::<Vec<_>>(),
        [&b""[..], b"0", b"a\nb\r\n", b"\xff"]
    );
    assert_eq!(decoded.records, [0, 1, 2, 3, 4]);
}

#[test]
fn a_raw_text_that_is_not_utf8_is_bad_and_alone() {
    let column = vec![Column::new("v", DataType::Utf8).not_null()];
    let mut records = Records::new(&TextFormat::Raw, &column).unwrap();
    for (idx, value) in [Some(&b"a"[..]), Some(b"\xff"), None, Some(b"b")]
        .into_iter()
        .enumerate()
    {
        records.push(10 + idx as i64, value);
    }

    let decoded = records.decode().unwrap();

    let values = decoded.decoded.rows.column(0).as_string::<i32>();
    assert_eq!((values.value(0), values.value(1)), ("a", "b"));
    assert_eq!(decoded.records, [0, 3]);
    let offsets: Vec<i64> = decoded.bad.iter().map(|bad| bad.offset).collect();
    assert_eq!(offsets, [11, 12]);
}

proptest! {
    /// Whatever the bytes, each record ends as one row or one bad record, in both formats, and what
    /// stands between two bad ones is decoded as if it were alone.
    #[test]
    fn records_are_isolated_from_each_other(
        values in prop::collection::vec("[{}\",:a1 \r\n]{0,12}", 1..20),
        is_csv in any::<bool>(),
    ) {
        let format = if is_csv { csv() } else { TextFormat::Json };
        let bytes: Vec<Option<&[u8]>> = values.iter().map(|v| Some(v.as_bytes())).collect();
        let mut together = Records::new(&format, &columns()).unwrap();
        let (good, bad) = decode(&mut together, &bytes);
        prop_assert_eq!(good.len() + bad.len(), values.len());
        for (idx, value) in bytes.iter().enumerate() {
            let mut alone = Records::new(&format, &columns()).unwrap();
            let (alone_good, _) = decode(&mut alone, &[*value]);
            let here: Vec<_> = good.iter().filter(|(record, ..)| *record as usize == idx).collect();
            prop_assert_eq!(here.len(), alone_good.len());
            for (here, alone) in here.iter().zip(&alone_good) {
                prop_assert_eq!((&here.1, &here.2), (&alone.1, &alone.2));
            }
        }
    }
}

/// A batch of long values ends by its bytes, whatever the format (B1).
#[test]
fn bytes_of_values_are_counted_in_every_format_b1() {
    let text = vec![Column::new("a", DataType::Utf8)];
    let mut raw = Records::new(&TextFormat::Raw, &text).unwrap();
    let mut json = Records::new(&TextFormat::Json, &columns()).unwrap();
    let mut csv = Records::new(&csv(), &columns()).unwrap();
    for records in [&mut raw, &mut json, &mut csv] {
        let long = vec![b'x'; 1_000];
        // One that is no row counts, too: it is kept for `.bad`.
        for value in [Some(&long[..]), Some(b"{\"a\":\"b\"}"), None] {
            records.push(0, value);
        }
        assert_eq!(records.bytes(), 1_009);

        records.decode().unwrap();
        assert_eq!(records.bytes(), 0);
    }
}
