use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::{
    BinaryArray, BinaryViewArray, BooleanArray, Date32Array, Date64Array, Decimal128Array,
    Decimal256Array, DictionaryArray, Float32Array, Float64Array, Int8Array, Int16Array,
    Int32Array, Int64Array, LargeStringArray, ListArray, StringArray, StringViewArray, StructArray,
    TimestampMicrosecondArray, TimestampMillisecondArray, TimestampNanosecondArray,
    TimestampSecondArray, UInt64Array, new_null_array,
};
use arrow::datatypes::{Field, Fields};

use super::*;

/// Vectors of the file, by class: value as text, hash.
fn golden() -> BTreeMap<String, Vec<(String, u64)>> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/keyhash_v1.json");
    let text = std::fs::read_to_string(path).unwrap();
    let file: BTreeMap<String, Vec<(String, String)>> = serde_json::from_str(&text).unwrap();
    let number = |(value, hash): (String, String)| (value, u64::from_str_radix(&hash, 16).unwrap());
    file.into_iter()
        .map(|(name, rows)| (name, rows.into_iter().map(number).collect()))
        .collect()
}

fn values(name: &str) -> Vec<String> {
    golden()[name]
        .iter()
        .map(|(value, _)| value.clone())
        .collect()
}

#[track_caller]
fn check(name: &str, column: ArrayRef) {
    let expected: Vec<u64> = golden()[name].iter().map(|(_, hash)| *hash).collect();

    let found = hash_columns(&[Arc::clone(&column)], column.len()).unwrap();

    assert_eq!(found, expected, "{name} as {}", column.data_type());
}

fn numbers<T: std::str::FromStr>(name: &str) -> Vec<Option<T>> {
    values(name)
        .iter()
        .map(|value| value.parse().ok())
        .collect()
}

#[test]
fn hashes_are_those_of_an_independent_implementation_k1() {
    check("boolean", Arc::new(BooleanArray::from(vec![false, true])));
    check("null", new_null_array(&DataType::Int64, 1));
    check("null", new_null_array(&DataType::Utf8, 1));
    check("null", new_null_array(&DataType::Null, 1));
    let floats: Vec<f64> = vec![
        0.0,
        -0.0,
        1.5,
        -1.5,
        0.1,
        5e-324,
        f64::MAX,
        f64::INFINITY,
        f64::NEG_INFINITY,
        -f64::NAN,
    ];
    check("float", Arc::new(Float64Array::from(floats)));
    let texts = values("text");
    check("text", Arc::new(StringArray::from(texts.clone())));
    check("text", Arc::new(LargeStringArray::from(texts.clone())));
    check("text", Arc::new(StringViewArray::from(texts.clone())));
    let keys = Int32Array::from_iter_values((0..texts.len() as i32).rev());
    let reversed: Vec<String> = texts.into_iter().rev().collect();
    let dictionary = DictionaryArray::new(keys, Arc::new(StringArray::from(reversed)));
    check("text", Arc::new(dictionary));
    let bytes: Vec<&[u8]> = vec![b"", b"\x00", b"\xff\x00\xff"];
    check("bytea", Arc::new(BinaryArray::from(bytes.clone())));
    check("bytea", Arc::new(BinaryViewArray::from(bytes)));
}

#[test]
fn integers_of_every_width_hash_alike_k1() {
    let all = golden()["integer"].clone();
    let hash = |column: ArrayRef| hash_columns(&[column], 1).unwrap()[0];
    for (value, expected) in &all {
        let value: i128 = value.parse().unwrap();
        if let Ok(v) = i64::try_from(value) {
            assert_eq!(hash(Arc::new(Int64Array::from(vec![v]))), *expected);
        }
        if let Ok(v) = i32::try_from(value) {
            assert_eq!(hash(Arc::new(Int32Array::from(vec![v]))), *expected);
        }
        if let Ok(v) = i16::try_from(value) {
            assert_eq!(hash(Arc::new(Int16Array::from(vec![v]))), *expected);
        }
        if let Ok(v) = i8::try_from(value) {
            assert_eq!(hash(Arc::new(Int8Array::from(vec![v]))), *expected);
        }
        if let Ok(v) = u64::try_from(value) {
            assert_eq!(hash(Arc::new(UInt64Array::from(vec![v]))), *expected);
        }
    }
}

#[test]
fn decimals_hash_by_value_whatever_their_scale_k1() {
    let rows = golden()["decimal"].clone();
    for (value, expected) in rows {
        let (unscaled, scale) = value.split_once("e-").unwrap();
        let (unscaled, scale): (i128, i8) = (unscaled.parse().unwrap(), scale.parse().unwrap());
        let narrow = Decimal128Array::from(vec![unscaled]).with_precision_and_scale(38, scale);
        let wide = Decimal256Array::from(vec![i256::from_i128(unscaled)])
            .with_precision_and_scale(76, scale);
        for column in [
            Arc::new(narrow.unwrap()) as ArrayRef,
            Arc::new(wide.unwrap()),
        ] {
            assert_eq!(hash_columns(&[column], 1).unwrap(), [expected], "{value}");
        }
    }
    let all = golden();
    assert_eq!(all["decimal"][1].1, all["decimal"][2].1);
}

#[test]
fn times_of_every_unit_hash_alike_k1() {
    let micros: Vec<Option<i64>> = numbers("timestamp");
    check(
        "timestamp",
        Arc::new(TimestampMicrosecondArray::from(micros.clone())),
    );
    let zoned = TimestampMicrosecondArray::from(micros).with_timezone("+00:00");
    check("timestamp", Arc::new(zoned));
    let days: Vec<Option<i32>> = numbers("date");
    check("date", Arc::new(Date32Array::from(days.clone())));
    let millis = days
        .iter()
        .map(|day| day.map(|day| i64::from(day) * 86_400_000));
    check("date", Arc::new(millis.collect::<Date64Array>()));
    let hash = |column: ArrayRef| hash_columns(&[column], 1).unwrap();
    let second = hash(Arc::new(TimestampSecondArray::from(vec![-3])));
    assert_eq!(
        second,
        hash(Arc::new(TimestampMillisecondArray::from(vec![-3_000])))
    );
    assert_eq!(
        second,
        hash(Arc::new(TimestampMicrosecondArray::from(vec![-3_000_000])))
    );
    assert_eq!(
        second,
        hash(Arc::new(TimestampNanosecondArray::from(vec![
            -3_000_000_000
        ])))
    );
}

#[test]
fn reals_hash_like_doubles_and_zeros_alike_k1() {
    let hash = |column: ArrayRef| hash_columns(&[column], 2).unwrap();

    let reals = hash(Arc::new(Float32Array::from(vec![1.5, -0.0])));
    let doubles = hash(Arc::new(Float64Array::from(vec![1.5, 0.0])));

    assert_eq!(reals, doubles);
}

#[test]
fn nested_values_and_folds_are_those_of_an_independent_implementation_k1() {
    let lists = ListArray::from_iter_primitive::<Int64Type, _, _>(vec![
        Some(vec![]),
        Some(vec![Some(1), None, Some(3)]),
    ]);
    check("list_of_integers", Arc::new(lists));
    let seven: ArrayRef = Arc::new(Int32Array::from(vec![7]));
    let b: ArrayRef = Arc::new(StringArray::from(vec!["b"]));
    let fields = Fields::from(vec![
        Field::new("a", DataType::Int32, true),
        Field::new("b", DataType::Utf8, true),
    ]);
    let row = StructArray::new(fields, vec![Arc::clone(&seven), Arc::clone(&b)], None);
    check("struct_of_integer_and_text", Arc::new(row));
    let all = golden();
    let key = |columns: &[ArrayRef]| hash_columns(columns, 1).unwrap()[0];
    assert_eq!(key(&[]), all["key_of_no_column"][0].1);
    assert_eq!(
        key(&[seven, Arc::clone(&b)]),
        all["key_of_integer_7_and_text_b"][0].1
    );
    let null = new_null_array(&DataType::Int64, 1);
    let yes: ArrayRef = Arc::new(BooleanArray::from(vec![true]));
    assert_eq!(
        key(&[b, null, yes]),
        all["key_of_text_b_and_null_and_true"][0].1
    );
}

#[test]
fn null_empty_and_zero_are_three_keys_kf_r7() {
    let column: ArrayRef = Arc::new(StringArray::from(vec![None, Some(""), Some("0")]));

    let hashes = hash_columns(&[column], 3).unwrap();

    assert_eq!(
        hashes
            .iter()
            .collect::<std::collections::BTreeSet<_>>()
            .len(),
        3
    );
}

#[test]
fn grouping_form_resolves_dictionaries_zeros_and_nans() {
    let floats: ArrayRef = Arc::new(Float64Array::from(vec![Some(-0.0), Some(-f64::NAN), None]));
    let keys = Int32Array::from(vec![Some(1), None, Some(0)]);
    let words: ArrayRef = Arc::new(StringArray::from(vec!["a", "b"]));
    let words: ArrayRef = Arc::new(DictionaryArray::new(keys, words));

    let floats = grouping_form(&floats).unwrap();
    let words = grouping_form(&words).unwrap();

    let floats: &Float64Array = floats.as_primitive();
    assert_eq!(floats.value(0).to_bits(), 0);
    assert_eq!(floats.value(1).to_bits(), CANONICAL_NAN);
    assert!(floats.is_null(2));
    assert_eq!(
        words.as_string::<i32>(),
        &StringArray::from(vec![Some("b"), None, Some("a")])
    );
}
