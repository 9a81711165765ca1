use std::sync::Arc;

use arrow::array::{
    ArrayRef, BinaryArray, BooleanArray, Date32Array, Decimal128Array, Float32Array, Float64Array,
    Int32Array, ListArray, StringArray, TimestampMicrosecondArray,
};
use arrow::datatypes::Int64Type;

use super::*;

fn batch(columns: Vec<(&str, ArrayRef)>) -> RecordBatch {
    RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(n, a)| (n, a, true)))
        .unwrap()
}

fn every_type() -> RecordBatch {
    let times = vec![Some(1_769_903_999_120_000), None];
    let list = ListArray::from_iter_primitive::<Int64Type, _, _>([Some(vec![Some(1), None]), None]);
    batch(vec![
        ("b", Arc::new(BooleanArray::from(vec![Some(true), None]))),
        ("i", Arc::new(Int32Array::from(vec![Some(-7), None]))),
        (
            "n",
            Arc::new(Int64Array::from(vec![Some(i64::MIN), Some(0)])),
        ),
        (
            "r",
            Arc::new(Float32Array::from(vec![Some(0.1), Some(f32::NAN)])),
        ),
        (
            "f",
            Arc::new(Float64Array::from(vec![
                Some(1e300),
                Some(f64::NEG_INFINITY),
            ])),
        ),
        (
            "d",
            Arc::new(
                Decimal128Array::from(vec![Some(-5), Some(123_456)])
                    .with_precision_and_scale(10, 2)
                    .unwrap(),
            ),
        ),
        (
            "t",
            Arc::new(StringArray::from(vec![Some("a\"\\\n\u{1}é"), Some("")])),
        ),
        (
            "x",
            Arc::new(BinaryArray::from_opt_vec(vec![Some(b"foo"), None])),
        ),
        ("day", Arc::new(Date32Array::from(vec![Some(2), Some(-1)]))),
        (
            "ts",
            Arc::new(TimestampMicrosecondArray::from(times.clone())),
        ),
        (
            "tz",
            Arc::new(TimestampMicrosecondArray::from(times).with_timezone("+00:00")),
        ),
        ("l", Arc::new(list)),
    ])
}

#[test]
fn json_has_the_documented_form_of_every_type() {
    let mut out = Vec::new();
    write_json_rows(&mut out, &every_type());

    let expected = concat!(
        r#"{"b":true,"i":-7,"n":-9223372036854775808,"r":0.1,"f":1e+300,"d":-0.05,"#,
        r#""t":"a\"\\\n\u0001é","x":"Zm9v","day":"1970-01-03","ts":"2026-01-31T23:59:59.12","#,
        r#""tz":"2026-01-31T23:59:59.12Z","l":[1,null]}"#,
        "\n",
        r#"{"b":null,"i":null,"n":0,"r":"NaN","f":"-Infinity","d":1234.56,"t":"","x":null,"#,
        r#""day":"1969-12-31","ts":null,"tz":null,"l":null}"#,
        "\n"
    );
    assert_eq!(
        String::from_utf8(out).unwrap().replace("1e300", "1e+300"),
        expected
    );
}

#[test]
fn csv_tells_null_from_the_empty_string() {
    let dialect = CsvDialect {
        delimiter: b';',
        null: Some(b"NA".to_vec()),
    };
    let rows = batch(vec![
        (
            "t",
            Arc::new(StringArray::from(vec![
                Some("a;b"),
                Some(""),
                None,
                Some("NA"),
                Some("q\"\n"),
            ])),
        ),
        (
            "n;",
            Arc::new(Int64Array::from(vec![
                Some(1),
                None,
                Some(3),
                None,
                Some(-5),
            ])),
        ),
    ]);
    let mut out = Vec::new();
    dialect.write_header(&mut out, ["t", "n;"].into_iter());
    dialect.write_rows(&mut out, &rows);

    let expected = "t;\"n;\"\n\"a;b\";1\n\"\";\n;3\n\"NA\";\n\"q\"\"\n\";-5\n";
    assert_eq!(String::from_utf8(out).unwrap(), expected);
}

#[test]
fn decimals_keep_their_full_scale() {
    let text = |value, scale| {
        let mut out = Vec::new();
        write_decimal(&mut out, value, scale);
        String::from_utf8(out).unwrap()
    };
    assert_eq!(text(0, 2), "0.00");
    assert_eq!(text(-5, 2), "-0.05");
    assert_eq!(text(1200, 2), "12.00");
    assert_eq!(text(7, 0), "7");
    assert_eq!(
        text(10i128.pow(38) - 1, 38),
        format!("0.{}", "9".repeat(38))
    );
    assert_eq!(
        text(-(10i128.pow(38) - 1), 0),
        format!("-{}", "9".repeat(38))
    );
}

#[test]
fn floats_of_both_widths_read_back_bit_equal_kf_r10() {
    let doubles = [0.1, 5e-324, f64::MAX, -0.0, 1.0 / 3.0, 1e21, 123_456_789.0];
    let mut out = Vec::new();
    write_json_rows(
        &mut out,
        &batch(vec![("v", Arc::new(Float64Array::from(doubles.to_vec())))]),
    );
    let text = String::from_utf8(out).unwrap();
    for (line, double) in text.lines().zip(doubles) {
        let written = line.trim_start_matches("{\"v\":").trim_end_matches('}');
        assert_eq!(
            written.parse::<f64>().unwrap().to_bits(),
            double.to_bits(),
            "{line}"
        );
    }
    let mut out = Vec::new();
    write_json_rows(
        &mut out,
        &batch(vec![("v", Arc::new(Float32Array::from(vec![0.1f32])))]),
    );
    assert_eq!(out, b"{\"v\":0.1}\n");
}

#[test]
fn floats_without_digits_are_read_back_as_they_are_written() {
    use crate::formats::csv::{CsvDecoder, Dialect};
    use crate::formats::decoded::{Chunk, Column};
    use crate::formats::json::JsonDecoder;

    let values = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 0.5];
    let singles = Float32Array::from_iter_values(values.map(|value| value as f32));
    let written = batch(vec![
        (
            "f",
            Arc::new(Float64Array::from(values.to_vec())) as ArrayRef,
        ),
        ("r", Arc::new(singles)),
    ]);
    let columns = [
        Column::new("f", DataType::Float64),
        Column::new("r", DataType::Float32),
    ];

    let mut json = Vec::new();
    write_json_rows(&mut json, &written);
    let mut decoder = JsonDecoder::new(columns.to_vec()).unwrap();
    let from_json = decoder.decode(&Chunk::new(json, 0)).unwrap();
    let mut csv = Vec::new();
    let dialect = CsvDialect {
        delimiter: b',',
        null: None,
    };
    dialect.write_rows(&mut csv, &written);
    let dialect = Dialect {
        delimiter: b',',
        null: None,
    };
    let places = vec![Some(0), Some(1)];
    let mut decoder = CsvDecoder::new(columns.to_vec(), dialect, places).unwrap();
    let from_csv = decoder.decode(&Chunk::new(csv, 0)).unwrap();

    for read in [from_json, from_csv] {
        assert_eq!(read.bad.len(), 0);
        for column in 0..2 {
            // Arrow compares floats by their bits.
            assert_eq!(read.rows.column(column), written.column(column));
        }
    }
}
