use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::{Int8Array, Int64Array, StringArray};

use super::*;

const LIMITS: TopicLimits = TopicLimits {
    partitions_n: 6,
    message_bytes_max: 1000,
};

fn batch(users: Vec<Option<&str>>) -> StreamBatch {
    let n = i64::try_from(users.len()).unwrap();
    let columns: [(&str, ArrayRef, bool); 2] = [
        ("user", Arc::new(StringArray::from(users)), true),
        ("n", Arc::new(Int64Array::from_iter_values(0..n)), true),
    ];
    StreamBatch::plain(RecordBatch::try_from_iter_with_nullable(columns).unwrap())
}

type Told = (i32, Option<String>, Option<String>);

fn encode(encoder: &mut Encoder, batch: &StreamBatch) -> (Vec<Told>, BadRows) {
    let (mut told, mut bad) = (Vec::new(), BadRows::default());
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    encoder
        .encode(batch, &mut bad, &mut |record| {
            told.push((
                record.partition,
                record.key.map(text),
                record.value.map(text),
            ));
        })
        .unwrap();
    (told, bad)
}

fn encoder(key: &[&str], changelog: ChangelogMode) -> Encoder {
    let key = key.iter().map(|&name| name.to_owned()).collect();
    Encoder::new(ValueFormat::Json, key, changelog, LIMITS, 0)
}

#[test]
fn kf_r7_null_empty_and_zero_are_three_keys() {
    let mut encoder = encoder(&["user"], ChangelogMode::AppendOnly);

    let (told, bad) = encode(&mut encoder, &batch(vec![None, Some(""), Some("0")]));

    let keys: Vec<Option<&str>> = told.iter().map(|(_, key, _)| key.as_deref()).collect();
    assert_eq!(keys, [None, Some(""), Some("0")]);
    assert_eq!(told[1].2.as_deref(), Some(r#"{"user":"","n":1}"#));
    assert_eq!(told[2].0, partition_of(b"0", 6));
    assert!(bad.is_empty());
}

#[test]
fn kf_r9_records_without_a_key_are_spread_over_all_partitions() {
    let mut encoder = encoder(&[], ChangelogMode::AppendOnly);

    let (told, _) = encode(&mut encoder, &batch(vec![None; 10_000]));

    let mut counts: BTreeMap<i32, u32> = BTreeMap::new();
    for (partition, ..) in &told {
        *counts.entry(*partition).or_default() += 1;
    }
    assert_eq!(counts.len(), 6);
    assert!(
        counts.values().all(|n| (1_000..2_500).contains(n)),
        "{counts:?}"
    );
}

#[test]
fn a_key_of_several_columns_is_a_json_object() {
    let mut encoder = encoder(&["n", "user"], ChangelogMode::AppendOnly);

    let (told, _) = encode(&mut encoder, &batch(vec![Some("a"), None]));

    assert_eq!(told[0].1.as_deref(), Some(r#"{"n":0,"user":"a"}"#));
    assert_eq!(told[1].1.as_deref(), Some(r#"{"n":1,"user":null}"#));
}

#[test]
fn a_key_of_a_number_is_its_text() {
    let mut encoder = encoder(&["n"], ChangelogMode::AppendOnly);

    let (told, _) = encode(&mut encoder, &batch(vec![Some("a"), Some("b")]));

    assert_eq!(told[1].1.as_deref(), Some("1"));
}

#[test]
fn an_upsert_writes_the_newest_row_and_a_tombstone() {
    let mut encoder = encoder(&["user"], ChangelogMode::Upsert);
    let mut rows = batch(vec![Some("a"), Some("a"), Some("a"), Some("a"), None]);
    rows.ops = Some(Int8Array::from(vec![0, 1, 2, 3, 0]));

    let (told, bad) = encode(&mut encoder, &rows);

    let values: Vec<Option<&str>> = told.iter().map(|(_, _, v)| v.as_deref()).collect();
    assert_eq!(
        values,
        [
            Some(r#"{"user":"a","n":0}"#),
            Some(r#"{"user":"a","n":2}"#),
            None
        ]
    );
    assert_eq!(bad.len(), 1, "no key");
}

/// What a filter, another key or a failing expression keeps from being overwritten is deleted.
#[test]
fn an_upsert_deletes_what_is_taken_back_and_not_replaced() {
    let mut encoder = encoder(&["user"], ChangelogMode::Upsert);
    let mut rows = batch(vec![Some("a"), Some("b"), Some("c"), Some("c"), Some("d")]);
    rows.ops = Some(Int8Array::from(vec![1, 1, 2, 1, 0]));

    let (told, bad) = encode(&mut encoder, &rows);

    let keys: Vec<(Option<&str>, bool)> = told
        .iter()
        .map(|(_, key, value)| (key.as_deref(), value.is_some()))
        .collect();
    let (a, b, c, d) = (Some("a"), Some("b"), Some("c"), Some("d"));
    assert_eq!(
        keys,
        [(a, false), (b, false), (c, true), (c, false), (d, true)]
    );
    assert!(bad.is_empty());
}

#[test]
fn an_upsert_deletes_what_a_row_over_the_limit_would_have_replaced() {
    let mut encoder = encoder(&["n"], ChangelogMode::Upsert);
    let long = "x".repeat(1_000);
    let mut rows = batch(vec![Some(&long), Some(&long)]);
    rows.ops = Some(Int8Array::from(vec![0, 2]));

    let (told, bad) = encode(&mut encoder, &rows);

    assert_eq!(told.len(), 1);
    assert_eq!(
        (told[0].1.as_deref(), told[0].2.as_deref()),
        (Some("1"), None)
    );
    assert_eq!(bad.len(), 2);
}

#[test]
fn a_retraction_shows_its_operation() {
    let mut encoder = encoder(&["user"], ChangelogMode::Retract);
    let mut rows = batch(vec![Some("a"), Some("a")]);
    rows.ops = Some(Int8Array::from(vec![1, 2]));

    let (told, _) = encode(&mut encoder, &rows);

    assert_eq!(
        told[0].2.as_deref(),
        Some(r#"{"_op":"-U","user":"a","n":0}"#)
    );
    assert_eq!(
        told[1].2.as_deref(),
        Some(r#"{"_op":"+U","user":"a","n":1}"#)
    );
}

/// Attack 17: a row that the topic would refuse is bad when it is staged.
#[test]
fn attack_17_a_row_over_the_limit_is_bad_before_it_is_staged_x1() {
    let mut encoder = encoder(&["user"], ChangelogMode::AppendOnly);
    let long = "x".repeat(1000);

    let (told, bad) = encode(&mut encoder, &batch(vec![Some(&long), Some("b")]));

    assert_eq!(told.len(), 1);
    assert_eq!(told[0].2.as_deref(), Some(r#"{"user":"b","n":1}"#));
    let (_, reason) = bad.first().unwrap();
    assert!(reason.contains("at most 1000"), "{reason}");
}

#[test]
fn a_csv_value_is_one_record_without_a_newline() {
    let dialect = CsvDialect {
        delimiter: b',',
        null: None,
    };
    let mut encoder = Encoder::new(
        ValueFormat::Csv(dialect),
        Vec::new(),
        ChangelogMode::AppendOnly,
        LIMITS,
        0,
    );

    let (told, _) = encode(&mut encoder, &batch(vec![Some("a\nb"), None, Some("c,d")]));

    let values: Vec<&str> = told.iter().filter_map(|(_, _, v)| v.as_deref()).collect();
    assert_eq!(values, ["\"a\nb\",0", ",1", "\"c,d\",2"]);
}
