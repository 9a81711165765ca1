//! What the whole job must have published, computed the slow and plain way.
//!
//! Owns: the batch meaning of each kind of job. Shares no window, watermark or checkpoint code with
//! the engine: windows are found by counting, sessions by sorting. Which records are late depends on
//! arrival, so the batch runs over all (record, window) pairs less the committed late log, and that
//! log is checked too. Start at: [`check`].

use std::collections::{BTreeMap, BTreeSet};

use arrow::array::AsArray;
use arrow::datatypes::Int64Type;
use streamforge_core::ids::SplitId;
use streamforge_core::manifest::Manifest;
use streamforge_state::late_log::decode_late_log;
use streamforge_store::MemoryStore;

use crate::input::{Input, Record};
use crate::job::{BAD, FAR, LATE, Meaning, OUT, Shape, Window};
use crate::kafka::Kafka;
use crate::outside::{Outside, Row};

/// A record's place: split and row number.
type Place = (String, u64);

/// One line of the late log.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Missed {
    place: Place,
    start: i64,
    end: i64,
    watermark: i64,
}

/// Compares everything published with the batch.
pub fn check(
    shape: &Shape,
    (input, kafka): (&Input, Option<&Kafka>),
    manifest: &Manifest,
    store: &MemoryStore,
    outside: &Outside,
) {
    let input = &*input.up_to_ends(shape, manifest);
    let late = read_late_log(input, manifest, store);
    check_late(shape, (input, kafka), &late, outside);
    let published = folded(outside.rows(OUT));
    let mut expected: BTreeMap<Vec<String>, i64> = BTreeMap::new();
    for row in batch(shape, input, &late) {
        *expected.entry(row).or_default() += 1;
    }
    let differs = |a: &BTreeMap<Vec<String>, i64>, b: &BTreeMap<Vec<String>, i64>| {
        let more = a.iter().filter(|(row, n)| b.get(*row) != Some(*n));
        more.map(|(row, n)| format!("{n} x {}", row.join(" ")))
            .collect::<Vec<_>>()
    };
    assert!(
        published == expected,
        "{}: not what a batch gives (O1)\nonly published: {:#?}\nonly in the batch: {:#?}",
        shape.name,
        differs(&published, &expected),
        differs(&expected, &published)
    );
    check_bad(shape, input, outside);
}

/// A changelog's rows in the end. A row is only ever taken back while it is there (G2).
fn folded(rows: &[Row]) -> BTreeMap<Vec<String>, i64> {
    let mut folded: BTreeMap<Vec<String>, i64> = BTreeMap::new();
    for Row { op, columns } in rows {
        let n = folded.entry(columns.clone()).or_default();
        *n += if matches!(*op, "+I" | "+U") { 1 } else { -1 };
        assert!(
            *n >= 0,
            "{op} {} takes back a row that is not there (G2)",
            columns.join(" ")
        );
    }
    folded.retain(|_, n| *n != 0);
    folded
}

fn read_late_log(input: &Input, manifest: &Manifest, store: &MemoryStore) -> Vec<Missed> {
    let mut all = Vec::new();
    for object in &manifest.late_log {
        let stored = store
            .get_now(&object.key)
            .ok()
            .flatten()
            .expect("a listed late log object");
        let (uid, rows) = decode_late_log(&object.key, &stored.bytes).expect("a whole late log");
        assert!(
            !uid.0.starts_with("outer"),
            "a result of a window was late for the next (T5)"
        );
        let text = |idx: usize| rows.column(idx).as_string::<i32>();
        let number = |idx: usize| rows.column(idx).as_primitive::<Int64Type>();
        for row in 0..rows.num_rows() {
            all.push(Missed {
                place: input.place(text(0).value(row), text(1).value(row)),
                start: number(2).value(row),
                end: number(3).value(row),
                watermark: number(4).value(row),
            });
        }
    }
    all
}

/// Every record that can be aggregated, with its place.
fn good(input: &Input) -> impl Iterator<Item = (Place, i64, &Record)> {
    input.splits.iter().flat_map(|split| {
        let numbered = split.numbered().filter(|(_, record)| !record.broken);
        numbered.filter_map(|(n, record)| Some(((split.split.0.clone(), n), record.ts?, record)))
    })
}

fn check_late(
    shape: &Shape,
    (input, kafka): (&Input, Option<&Kafka>),
    late: &[Missed],
    outside: &Outside,
) {
    let pairs: BTreeSet<(&Place, i64)> = late.iter().map(|it| (&it.place, it.start)).collect();
    assert_eq!(
        pairs.len(),
        late.len(),
        "a (record, window) pair is in the late log twice (T3)"
    );
    if let Some(kafka) = kafka.filter(|_| !input.wild) {
        late.iter().for_each(|it| check_excuse(kafka, it));
    } else if !input.wild && !shape.idles {
        assert!(
            late.is_empty(),
            "late although in order within the bound (T2, T6): {late:?}"
        );
    }
    let known: BTreeSet<Place> = good(input).map(|(place, ..)| place).collect();
    for it in late {
        assert!(
            known.contains(&it.place),
            "a record nobody has is late: {it:?}"
        );
        assert!(it.end <= it.watermark, "late for an open window: {it:?}");
    }
    if matches!(shape.meaning, Meaning::Quotients) {
        return;
    }
    // `.late` has the same rows as the log, each once.
    let mut logged: Vec<_> = late.to_vec();
    logged.sort();
    let mut sent: Vec<Missed> = outside
        .rows(LATE)
        .iter()
        .map(|row| missed(input, row))
        .collect();
    sent.sort();
    assert_eq!(sent, logged, "`.late` and the late log differ (T3)");
}

/// T2, T6: a row in order is late only behind a silence of its partition, and for no watermark that came
/// after that.
fn check_excuse(kafka: &Kafka, late: &Missed) {
    let (split, offset) = &late.place;
    let offset = i64::try_from(*offset).unwrap_or(i64::MAX);
    let excuse = kafka.excuse(&SplitId(split.clone()), offset);
    assert!(
        excuse.is_some_and(|highest| late.watermark <= highest),
        "late although in order within the bound, and W was at most {excuse:?} when its partition spoke \
         again (T2, T6): {late:?}"
    );
}

fn missed(input: &Input, row: &Row) -> Missed {
    let [.., start, end, watermark, source, position] = row.columns.as_slice() else {
        panic!("a late row has at least five columns: {row:?}");
    };
    let number = |text: &String| text.parse().expect("a time");
    Missed {
        place: input.place(source, position),
        start: number(start),
        end: number(end),
        watermark: number(watermark),
    }
}

/// Every broken or timeless record is in `.bad` once, and every row whose quotient has no value.
fn check_bad(shape: &Shape, input: &Input, outside: &Outside) {
    let all = input.splits.iter().flat_map(|split| {
        let numbered = split.numbered();
        numbered.map(|(n, record)| ((split.split.0.clone(), n), record))
    });
    let quotients = matches!(shape.meaning, Meaning::Quotients);
    let is_bad =
        |record: &Record| record.broken || record.ts.is_none() || (quotients && record.v == 0);
    let expected: Vec<Place> = all
        .filter(|(_, record)| is_bad(record))
        .map(|(place, _)| place)
        .collect();
    let of = |row: &Row| match row.columns.as_slice() {
        [_, _, _, source, position, _] => input.place(source, position),
        other => panic!("a bad row has six columns: {other:?}"),
    };
    let mut found: Vec<Place> = BAD
        .iter()
        .flat_map(|sink| outside.rows(sink))
        .map(of)
        .collect();
    found.sort();
    let mut expected = expected;
    expected.sort();
    assert_eq!(found, expected, "not the bad rows (F3)");
}

/// All rows of the main output.
fn batch(shape: &Shape, input: &Input, late: &[Missed]) -> Vec<Vec<String>> {
    let Meaning::Windows {
        window,
        keyed,
        outer,
    } = shape.meaning
    else {
        return good(input)
            .filter(|(_, _, record)| record.v != 0)
            .map(|(_, _, record)| vec![key(record), (100 / record.v).to_string()])
            .collect();
    };
    let mut groups: BTreeMap<(Option<String>, i64, i64), Vec<(i64, i64)>> = BTreeMap::new();
    let key_of = |record: &Record| if keyed { record.k.clone() } else { None };
    match window {
        Window::Hopping { size, slide } => {
            let missed: BTreeSet<(&Place, i64)> =
                late.iter().map(|it| (&it.place, it.start)).collect();
            for (place, ts, record) in good(input).filter(|(_, ts, _)| *ts < FAR) {
                let mut start = ts.div_euclid(slide) * slide;
                while start > ts - size {
                    if !missed.contains(&(&place, start)) {
                        let group = groups.entry((key_of(record), start, start + size));
                        group.or_default().push((ts, record.v));
                    }
                    start -= slide;
                }
            }
        }
        Window::Session { gap } => {
            let missed: BTreeSet<&Place> = late.iter().map(|it| &it.place).collect();
            let mut rows: Vec<(Option<String>, i64, i64)> = good(input)
                .filter(|(place, ts, _)| *ts < FAR && !missed.contains(place))
                .map(|(_, ts, record)| (key_of(record), ts, record.v))
                .collect();
            rows.sort();
            sessions(&rows, gap, &mut groups);
        }
    }
    let Some(size) = outer else {
        return groups
            .iter()
            .map(|(group, rows)| result(group, rows, keyed))
            .collect();
    };
    let mut outers: BTreeMap<(Option<String>, i64), (i64, i64)> = BTreeMap::new();
    for ((key, _, end), rows) in &groups {
        let start = (end - 1).div_euclid(size) * size;
        let sums = outers.entry((key.clone(), start)).or_default();
        sums.0 += rows.len() as i64;
        sums.1 += 1;
    }
    let row = |((key, start), (n, c)): (&(Option<String>, i64), &(i64, i64))| {
        let end = start + size;
        vec![
            shown(key),
            start.to_string(),
            end.to_string(),
            n.to_string(),
            c.to_string(),
        ]
    };
    outers.iter().map(row).collect()
}

type Groups = BTreeMap<(Option<String>, i64, i64), Vec<(i64, i64)>>;

/// Records sorted by key and time, cut where the next is a gap away.
fn sessions(rows: &[(Option<String>, i64, i64)], gap: i64, groups: &mut Groups) {
    let mut open: Vec<(i64, i64)> = Vec::new();
    let mut rows = rows.iter().peekable();
    while let Some((key, ts, v)) = rows.next() {
        open.push((*ts, *v));
        let goes_on = rows
            .peek()
            .is_some_and(|(next, at, _)| next == key && at - ts < gap);
        if !goes_on {
            let start = open.first().map_or(*ts, |(ts, _)| *ts);
            groups.insert((key.clone(), start, ts + gap), std::mem::take(&mut open));
        }
    }
}

fn shown(key: &Option<String>) -> String {
    key.clone().unwrap_or_else(|| "NULL".to_owned())
}

fn key(record: &Record) -> String {
    shown(&record.k)
}

fn result(group: &(Option<String>, i64, i64), rows: &[(i64, i64)], keyed: bool) -> Vec<String> {
    let (key, start, end) = group;
    let sum: i128 = rows.iter().map(|(_, v)| i128::from(*v)).sum();
    let least = rows.iter().map(|(_, v)| *v).min().unwrap_or(0);
    // Ties by the smallest value.
    let first = rows.iter().min().map_or(0, |(_, v)| *v);
    let different: BTreeSet<i64> = rows.iter().map(|(_, v)| *v).collect();
    let numbers = [
        start.to_string(),
        end.to_string(),
        rows.len().to_string(),
        sum.to_string(),
        least.to_string(),
        first.to_string(),
        different.len().to_string(),
    ];
    keyed
        .then(|| shown(key))
        .into_iter()
        .chain(numbers)
        .collect()
}
