use std::sync::Arc;

use arrow::array::{AsArray, RecordBatch};
use arrow::datatypes::{
    DataType, Date32Type, Decimal128Type, Field, Fields, Float32Type, Float64Type, Int32Type,
    Int64Type, TimeUnit, TimestampMicrosecondType,
};

use super::*;
use crate::formats::decoded::TimeParse;

mod nested;
mod oracle;

pub(super) fn decode(columns: &[Column], text: &str) -> Decoded {
    decode_bytes(columns, text.as_bytes())
}

pub(super) fn decode_bytes(columns: &[Column], text: &[u8]) -> Decoded {
    JsonDecoder::new(columns.to_vec())
        .unwrap()
        .decode(&Chunk::new(text.to_vec(), 0))
        .unwrap()
}

fn timestamp() -> DataType {
    DataType::Timestamp(TimeUnit::Microsecond, None)
}

fn timestamptz() -> DataType {
    DataType::Timestamp(TimeUnit::Microsecond, Some("+00:00".into()))
}

fn list_of(item: DataType) -> DataType {
    DataType::List(Arc::new(Field::new("item", item, true)))
}

/// Reasons of the rows of one column `v` that are bad; `None` for the good ones.
fn reasons(column: Column, values: &[&str]) -> Vec<Option<String>> {
    let text: String = values
        .iter()
        .map(|value| format!("{{\"v\":{value}}}\n"))
        .collect();
    let decoded = decode(&[column], &text);
    let mut reasons = vec![None; values.len()];
    for bad in &decoded.bad {
        reasons[bad.row as usize] = Some(bad.reason.clone());
    }
    assert_eq!(decoded.rows.num_rows() + decoded.bad.len(), values.len());
    reasons
}

fn is_bad(data_type: DataType, value: &str, why: &str) {
    let reason = reasons(Column::new("v", data_type), &[value]).remove(0);
    let reason = reason.unwrap_or_else(|| panic!("{value} is good"));
    assert!(reason.contains(why), "{value}: {reason}");
}

fn longs(rows: &RecordBatch, name: &str) -> Vec<Option<i64>> {
    rows.column_by_name(name)
        .unwrap()
        .as_primitive::<Int64Type>()
        .iter()
        .collect()
}

#[test]
fn missing_equals_null() {
    let columns = [
        Column::new("a", DataType::Int64),
        Column::new("b", DataType::Utf8),
    ];

    let decoded = decode(
        &columns,
        "{\"a\":1}\n{\"b\":\"x\"}\n{}\n{\"b\":null,\"a\":null}\n",
    );

    assert_eq!(longs(&decoded.rows, "a"), [Some(1), None, None, None]);
    let b: Vec<Option<&str>> = decoded.rows.column(1).as_string::<i32>().iter().collect();
    assert_eq!(b, [None, Some("x"), None, None]);
    assert!(decoded.bad.is_empty());
}

#[test]
fn a_row_with_a_null_in_a_not_null_column_is_bad_alone_kf_r4() {
    let columns = [
        Column::new("a", DataType::Int64).not_null(),
        Column::new("b", DataType::Utf8),
    ];

    let decoded = decode(
        &columns,
        "{\"b\":\"x\"}\n{\"a\":1,\"b\":\"y\"}\n{\"a\":null}\n{\"a\":2}",
    );

    assert_eq!(longs(&decoded.rows, "a"), [Some(1), Some(2)]);
    assert_eq!(decoded.row_numbers, [1, 3]);
    let bad: Vec<u64> = decoded.bad.iter().map(|bad| bad.row).collect();
    assert_eq!(bad, [0, 2]);
    assert!(decoded.bad[0].reason.contains("column a: null or missing"));
    assert_eq!(decoded.bad[0].raw, b"{\"b\":\"x\"}");
}

#[test]
fn unknown_fields_are_ignored_and_counted() {
    let columns = [Column::new("a", DataType::Int64)];

    let text = "{\"x\":{\"a\":[1,{}]},\"a\":1,\"y\":null}\n{\"a\":2}\n{\"z\":\"q\",\"a\":3}\n";
    let decoded = decode(&columns, text);

    assert_eq!(longs(&decoded.rows, "a"), [Some(1), Some(2), Some(3)]);
    assert_eq!(decoded.unknown_fields, 3);
}

#[test]
fn a_duplicate_key_makes_the_row_bad() {
    let columns = [Column::new("a", DataType::Int64)];

    for text in [
        "{\"a\":1,\"a\":1}",
        "{\"a\":1,\"\\u0061\":1}",
        "{\"x\":1,\"a\":1,\"x\":1}",
        "{\"a\":1, \"a\":1}",
    ] {
        let lines = format!("{{\"a\":7}}\n{text}\n{{\"a\":8}}\n{text}\n");
        let decoded = decode(&columns, &lines);
        assert_eq!(longs(&decoded.rows, "a"), [Some(7), Some(8)], "{text}");
        assert!(
            decoded.bad.iter().all(|bad| bad.reason.contains("twice")),
            "{text}"
        );
        assert_eq!(decoded.bad.len(), 2, "{text}");
    }
}

#[test]
fn a_duplicate_key_is_seen_after_other_orders_were_learned() {
    let columns = [
        Column::new("a", DataType::Int64),
        Column::new("b", DataType::Int64),
    ];

    let text = "{\"a\":1,\"b\":2}\n{\"b\":2,\"a\":1}\n{\"a\":1,\"c\":0,\"b\":2}\n{\"b\":1,\"c\":3}\n\
                {\"c\":1,\"b\":2,\"c\":3}\n{\"a\":1,\"b\":2,\"a\":3}\n{\"b\":5,\"a\":4}\n";
    let decoded = decode(&columns, text);

    assert_eq!(
        longs(&decoded.rows, "a"),
        [Some(1), Some(1), Some(1), None, Some(4)]
    );
    assert_eq!(
        longs(&decoded.rows, "b"),
        [Some(2), Some(2), Some(2), Some(1), Some(5)]
    );
    assert_eq!(decoded.bad.len(), 2);
}

#[test]
fn spaces_may_stand_between_all_tokens() {
    let columns = [
        Column::new("a", DataType::Int64),
        Column::new("b", list_of(DataType::Int32)),
    ];

    // The compact line comes first: the spaces after it are not those it taught.
    let text =
        "{\"a\":9}\n { \"a\" :\t1 , \"b\" : [ 1 , 2 ] } \r\n{\"a\": 1, \"b\": []}\n\n  \n{ }\n";
    let decoded = decode(&columns, text);

    assert_eq!(longs(&decoded.rows, "a"), [Some(9), Some(1), Some(1), None]);
    assert_eq!(decoded.row_numbers, [0, 1, 2, 5]);
    assert_eq!(decoded.rows_n, 6);
    assert!(decoded.bad.is_empty());
}

#[test]
fn integers_take_integers_only() {
    for (value, why) in [
        ("\"1\"", "a string where a number belongs"),
        ("1.5", "a fraction"),
        ("9223372036854775808", "out of range"),
        ("-9223372036854775809", "out of range"),
        ("1e30", "out of range"),
        ("true", "another type"),
        ("[1]", "another type"),
        ("{}", "another type"),
        ("01", "not JSON"),
        ("+1", "not JSON"),
        ("-", "not JSON"),
        (".5", "not JSON"),
        ("1.", "not JSON"),
        ("NaN", "not JSON"),
    ] {
        is_bad(DataType::Int64, value, why);
    }
    is_bad(DataType::Int32, "2147483648", "out of range");
    let columns = [Column::new("v", DataType::Int64)];
    let text = "{\"v\":9223372036854775807}\n{\"v\":-9223372036854775808}\n{\"v\":-0}\n{\"v\":1.0}\n{\"v\":12e2}";
    let decoded = decode(&columns, text);
    let expected = [i64::MAX, i64::MIN, 0, 1, 1200].map(Some);
    assert_eq!(longs(&decoded.rows, "v"), expected);
    let decoded = decode(&[Column::new("v", DataType::Int32)], "{\"v\":-2147483648}");
    assert_eq!(
        decoded.rows.column(0).as_primitive::<Int32Type>().value(0),
        i32::MIN
    );
}

#[test]
fn floats_are_bit_equal_and_never_infinite_kf_r10() {
    let text =
        "{\"v\":0.1}\n{\"v\":5e-324}\n{\"v\":1.7976931348623157e308}\n{\"v\":-0.0}\n{\"v\":3}";
    let decoded = decode(&[Column::new("v", DataType::Float64)], text);
    let values = decoded
        .rows
        .column(0)
        .as_primitive::<Float64Type>()
        .values()
        .to_vec();
    let expected = [0.1, 5e-324, f64::MAX, -0.0, 3.0];
    assert!(
        values
            .iter()
            .zip(expected)
            .all(|(a, b)| a.to_bits() == b.to_bits()),
        "{values:?}"
    );

    let decoded = decode(
        &[Column::new("v", DataType::Float32)],
        "{\"v\":0.1}\n{\"v\":16777217}",
    );
    let values = decoded
        .rows
        .column(0)
        .as_primitive::<Float32Type>()
        .values()
        .to_vec();
    assert_eq!(values, [0.1f32, 16_777_216.0]);

    is_bad(DataType::Float64, "1e999", "out of range");
    is_bad(DataType::Float32, "1e39", "out of range");
    is_bad(
        DataType::Float64,
        "\"1\"",
        "a string where a number belongs",
    );
    for word in ["\"nan\"", "\"inf\"", "\"Infinity \"", "\"\""] {
        is_bad(DataType::Float64, word, "a string where a number belongs");
    }
    is_bad(
        DataType::Int64,
        "\"NaN\"",
        "a string where a number belongs",
    );
}

#[test]
fn decimals_are_exact() {
    let decimal = DataType::Decimal128(10, 2);
    let text =
        "{\"v\":1}\n{\"v\":-0.5}\n{\"v\":12.340}\n{\"v\":1e3}\n{\"v\":99999999.99}\n{\"v\":0}";
    let decoded = decode(&[Column::new("v", decimal.clone())], text);
    let values = decoded
        .rows
        .column(0)
        .as_primitive::<Decimal128Type>()
        .values()
        .to_vec();
    assert_eq!(values, [100, -50, 1234, 100_000, 9_999_999_999, 0]);

    is_bad(decimal.clone(), "0.001", "more digits");
    is_bad(decimal.clone(), "100000000", "out of range");
    is_bad(
        decimal.clone(),
        "\"1.5\"",
        "a string where a number belongs",
    );
    is_bad(decimal, "1..5", "not JSON");
    let wide = DataType::Decimal128(38, 0);
    let nines = "9".repeat(38);
    let decoded = decode(
        &[Column::new("v", wide.clone())],
        &format!("{{\"v\":{nines}}}"),
    );
    let value = decoded
        .rows
        .column(0)
        .as_primitive::<Decimal128Type>()
        .value(0);
    assert_eq!(value, 10i128.pow(38) - 1);
    is_bad(wide, &format!("1{}", "0".repeat(38)), "out of range");
}

#[test]
fn texts_are_unescaped() {
    let text = r#"{"v":""}
{"v":"a\"b\\c\/d\b\f\n\r\t"}
{"v":"\u00e9\u20AC\ud83d\ude00"}
{"v":"é€😀 and more than sixteen bytes of it"}
{"v":"plain and longer than thirty-two bytes, so that it is copied in one piece"}
{"v":"0123456789abcde\"0123456789abcdef"}
"#;
    let decoded = decode(&[Column::new("v", DataType::Utf8)], text);
    let values: Vec<&str> = decoded
        .rows
        .column(0)
        .as_string::<i32>()
        .iter()
        .flatten()
        .collect();
    assert_eq!(
        values,
        [
            "",
            "a\"b\\c/d\u{8}\u{c}\n\r\t",
            "é€😀",
            "é€😀 and more than sixteen bytes of it",
            "plain and longer than thirty-two bytes, so that it is copied in one piece",
            "0123456789abcde\"0123456789abcdef",
        ]
    );
}

#[test]
fn wrong_texts_are_bad() {
    for (value, why) in [
        ("1", "a number where a string belongs"),
        ("true", "another type"),
        ("\"\\ud800\"", "surrogate"),
        ("\"\\udc00\\ud800\"", "surrogate"),
        ("\"\\ud800x\"", "surrogate"),
        ("\"\\ud800\\u0041\"", "surrogate"),
        ("\"\\x\"", "escape"),
        ("\"\\u12g4\"", "escape"),
        ("\"\\u12\"", "escape"),
        ("\"a\tb\"", "control"),
        ("\"open", "no end"),
        ("'x'", "not JSON"),
    ] {
        is_bad(DataType::Utf8, value, why);
    }
    let columns = [Column::new("v", DataType::Utf8)];
    for wrong in [
        &b"\xff"[..],
        b"\xc3",
        b"\xed\xa0\x80",
        b"\xc0\xaf",
        b"\xf5\x80\x80\x80",
    ] {
        let text = [
            b"{\"v\":\"x\"}\n{\"v\":\"".as_slice(),
            wrong,
            b"\"}\n{\"v\":\"y\"}\n",
        ]
        .concat();
        let decoded = decode_bytes(&columns, &text);
        assert_eq!(decoded.rows.num_rows(), 2);
        assert!(decoded.bad[0].reason.contains("UTF-8"), "{wrong:?}");
    }
}

#[test]
fn wrong_texts_are_bad_in_columns_nobody_wants_and_in_unknown_fields() {
    let mut unwanted = Column::new("v", DataType::Utf8);
    unwanted.wanted = false;
    for columns in [
        vec![unwanted, Column::new("a", DataType::Int64)],
        vec![Column::new("a", DataType::Int64)],
    ] {
        for value in [
            "\"\\ud800\"",
            "\"\\q\"",
            "\"a\u{1}\"",
            "tru",
            "[1,]",
            "{\"a\"}",
            "[1}",
            "{1:2}",
            "--1",
        ] {
            let text = format!("{{\"a\":1,\"v\":{value}}}\n{{\"a\":2,\"v\":\"\"}}\n");
            let decoded = decode(&columns, &text);
            assert_eq!(longs(&decoded.rows, "a"), [Some(2)], "{value}");
            assert_eq!(decoded.bad.len(), 1, "{value}");
        }
    }
}

#[test]
fn a_column_nobody_wants_is_checked_like_any_other() {
    let mut unwanted = Column::new("v", DataType::Int64);
    unwanted.wanted = false;
    let columns = [unwanted, Column::new("a", DataType::Int64)];

    let decoded = decode(&columns, "{\"a\":1,\"v\":\"x\"}\n{\"a\":2,\"v\":3}\n");

    assert_eq!(longs(&decoded.rows, "a"), [Some(2)]);
    assert_eq!(decoded.rows.num_columns(), 1);
    assert_eq!(decoded.bad.len(), 1);
}

#[test]
fn times_follow_the_parse_rule() {
    let read = |data_type: DataType, parse: TimeParse, value: &str| {
        let mut column = Column::new("v", data_type);
        column.parse = parse;
        let decoded = decode(&[column], &format!("{{\"v\":{value}}}"));
        let array = decoded
            .rows
            .column(0)
            .as_primitive::<TimestampMicrosecondType>();
        decoded
            .bad
            .first()
            .map(|bad| bad.reason.clone())
            .ok_or(())
            .err()
            .map_or_else(
                || Err(decoded.bad[0].reason.clone()),
                |()| Ok(array.value(0)),
            )
    };
    let rfc = TimeParse::Rfc3339;
    assert_eq!(
        read(timestamp(), rfc.clone(), "\"1970-01-01T00:00:01\""),
        Ok(1_000_000)
    );
    assert_eq!(
        read(timestamp(), rfc.clone(), "\"1970-01-01T01:00:01+01:00\""),
        Ok(1_000_000)
    );
    assert!(
        read(timestamp(), rfc.clone(), "1")
            .unwrap_err()
            .contains("a number where a string")
    );
    assert_eq!(
        read(timestamptz(), rfc.clone(), "\"1970-01-01T00:00:01Z\""),
        Ok(1_000_000)
    );
    assert!(
        read(timestamptz(), rfc, "\"1970-01-01T00:00:01\"")
            .unwrap_err()
            .contains("offset")
    );
    assert_eq!(
        read(timestamp(), TimeParse::EpochMillis, "1700000000123"),
        Ok(1_700_000_000_123_000)
    );
    assert_eq!(read(timestamp(), TimeParse::EpochMillis, "-1"), Ok(-1000));
    assert_eq!(
        read(timestamp(), TimeParse::EpochSeconds, "1.5"),
        Ok(1_500_000)
    );
    assert_eq!(read(timestamptz(), TimeParse::EpochMicros, "7"), Ok(7));
    assert!(
        read(timestamp(), TimeParse::EpochMillis, "\"7\"")
            .unwrap_err()
            .contains("a string")
    );
    assert!(read(timestamp(), TimeParse::EpochMillis, "9223372036854775807").is_err());
    let pattern = TimeParse::Strftime("%d.%m.%Y %H:%M".into());
    assert_eq!(
        read(timestamp(), pattern, "\"02.01.1970 00:00\""),
        Ok(86_400_000_000)
    );
}

#[test]
fn other_types_are_read() {
    let columns = [
        Column::new("ok", DataType::Boolean),
        Column::new("day", DataType::Date32),
        Column::new("bytes", DataType::Binary),
    ];
    let text = "{\"ok\":true,\"day\":\"1970-01-03\",\"bytes\":\"Zm9v\"}\n{\"ok\":false}\n";
    let decoded = decode(&columns, text);

    let ok: Vec<Option<bool>> = decoded.rows.column(0).as_boolean().iter().collect();
    assert_eq!(ok, [Some(true), Some(false)]);
    assert_eq!(
        decoded.rows.column(1).as_primitive::<Date32Type>().value(0),
        2
    );
    assert_eq!(decoded.rows.column(2).as_binary::<i32>().value(0), b"foo");
    is_bad(DataType::Boolean, "1", "true or false");
    is_bad(DataType::Boolean, "\"true\"", "true or false");
    is_bad(DataType::Date32, "\"1970-02-30\"", "date");
    is_bad(DataType::Binary, "\"Zm9\"", "base64");
}

#[test]
fn names_are_case_sensitive_and_may_be_anything_kf_r11() {
    let names = [
        "@ts",
        "select",
        "a.b",
        "é",
        "A",
        "a",
        "",
        "with \"quote\"",
        &"x".repeat(200),
    ];
    let columns: Vec<Column> = names
        .iter()
        .map(|name| Column::new(*name, DataType::Int64))
        .collect();
    let fields: Vec<String> = names
        .iter()
        .enumerate()
        .map(|(idx, name)| format!("{}:{idx}", serde_json::to_string(name).unwrap()))
        .collect();

    let line = format!("{{{}}}\n", fields.join(","));
    let decoded = decode(&columns, &line.repeat(3));

    for (idx, _) in names.iter().enumerate() {
        let column = decoded.rows.column(idx).as_primitive::<Int64Type>();
        assert_eq!(column.values().to_vec(), [idx as i64; 3]);
    }
}

#[test]
fn positions_are_those_of_the_line() {
    let columns = [Column::new("a", DataType::Int64)];
    let mut decoder = JsonDecoder::new(columns.to_vec()).unwrap();

    let chunk = Chunk::new(b"{\"a\":1}\nbad\n\n{\"a\":2}\n".to_vec(), 100);
    let mut decoded = decoder.decode(&chunk).unwrap();
    decoded.shift_rows(10);

    assert_eq!(decoded.row_numbers, [10, 13]);
    assert_eq!(decoded.offsets, [100, 113]);
    assert_eq!((decoded.bad[0].row, decoded.bad[0].offset), (11, 108));
    assert_eq!(decoded.rows_n, 4);
}
