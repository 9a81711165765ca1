//! Tests of the generator.

use arrow::array::{Array, AsArray};
use streamforge_core::data_type::DataType;

use super::draw::Alias;
use super::*;

fn columns() -> Vec<Column> {
    ["user_id TEXT", "amount DECIMAL(10,2)", "ts TIMESTAMP"]
        .into_iter()
        .map(|text| {
            let (name, data_type) = text.split_once(' ').unwrap();
            let data_type: DataType = data_type.parse().unwrap();
            Column {
                name: name.to_owned(),
                data_type,
                nullable: true,
            }
        })
        .collect()
}

fn config(rows: u64) -> serde_json::Value {
    serde_json::json!({"clicks": {
        "rows": rows, "users": 50, "skew": 1.2, "outOfOrderness": "3s", "lateFraction": 0.01,
        "badFraction": 0.02, "seed": 7
    }})
}

/// Every (split, position, user) and the number of bad rows, read from these splits.
async fn read(
    config: &serde_json::Value,
    splits: Vec<SplitState>,
) -> (Vec<(u64, u64, String)>, u64) {
    let mut reader = GeneratorReader::new("clicks", config, &columns(), true).unwrap();
    reader.assign(splits).await.unwrap();
    let (mut rows, mut bad_n) = (Vec::new(), 0);
    loop {
        match reader.next().await.unwrap() {
            SourceEvent::Batch(batch) => {
                let origin = batch.origin.unwrap();
                let users = batch.rows.column(0).as_string::<i32>().clone();
                for idx in 0..users.len() {
                    let user = users.value(idx).to_owned();
                    rows.push((origin.row.value(idx), origin.offset.value(idx), user));
                }
                bad_n += batch.bad_n;
            }
            SourceEvent::Ended => break,
            _ => {}
        }
    }
    rows.sort();
    (rows, bad_n)
}

#[tokio::test]
async fn same_seed_gives_the_same_rows_however_the_splits_are_dealt() {
    let config = config(20_003);
    let all = GeneratorEnumerator::new("clicks", &config)
        .unwrap()
        .list()
        .await
        .unwrap();
    assert_eq!(all.len(), 8);
    assert_eq!(all.iter().map(|split| split.weight).sum::<u64>(), 20_003);

    let (together, bad_n) = read(&config, all.clone()).await;
    let (mut apart, other_bad_n) = read(&config, all[..3].to_vec()).await;
    let (rest, rest_bad_n) = read(&config, all[3..].to_vec()).await;
    apart.extend(rest);
    apart.sort();

    assert_eq!(together, apart);
    assert_eq!(bad_n, other_bad_n + rest_bad_n);
    assert_eq!(together.len() as u64 + bad_n, 20_003);
    assert!((300..500).contains(&bad_n), "2 % of 20,003: {bad_n}");
}

#[tokio::test]
async fn reader_opened_at_a_progress_goes_on_right_after_it() {
    let config = config(20_000);
    let all = GeneratorEnumerator::new("clicks", &config)
        .unwrap()
        .list()
        .await
        .unwrap();
    let (whole, _) = read(&config, all.clone()).await;

    let at = |mut split: SplitState| {
        split.progress = SplitProgress::At("1234".to_owned());
        split
    };
    let (tail, _) = read(&config, all.into_iter().map(at).collect()).await;

    let expected: Vec<_> = whole.into_iter().filter(|(_, k, _)| *k >= 1234).collect();
    assert_eq!(tail, expected);
}

#[test]
fn zipf_draws_come_close_to_their_weights() {
    let alias = Alias::zipf(10, 1.0);
    let draws = 100_000u32;
    let mut counts = [0u32; 10];
    for number in 0..draws {
        counts[alias.pick(super::draw::mix(u64::from(number))) as usize] += 1;
    }

    let harmonic: f64 = (1..=10).map(|i| 1.0 / f64::from(i)).sum();
    for (idx, count) in (1u32..).zip(counts) {
        let expected = f64::from(draws) / f64::from(idx) / harmonic;
        assert!(
            (f64::from(count) - expected).abs() < expected * 0.1,
            "{idx}: {count} {expected}"
        );
    }
}

#[tokio::test]
async fn batches_are_as_small_as_they_are_wanted() {
    let mut enumerator = GeneratorEnumerator::new("clicks", &config(1_000)).unwrap();
    let splits = enumerator.list().await.unwrap();
    let mut reader = GeneratorReader::new("clicks", &config(1_000), &columns(), true).unwrap();
    reader.assign(splits).await.unwrap();
    reader.prefer_rows(30);

    let mut rows_n = 0;
    loop {
        match reader.next().await.unwrap() {
            SourceEvent::Batch(batch) => {
                let n = batch.rows.num_rows() as u64 + batch.bad_n;
                assert!(n <= 30, "{n}");
                rows_n += n;
            }
            SourceEvent::Ended => break,
            _ => {}
        }
    }

    assert_eq!(rows_n, 1_000);
}

/// What a future answers that never waits.
fn at_once<T>(mut future: std::pin::Pin<Box<dyn Future<Output = T> + Send + '_>>) -> T {
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    match future.as_mut().poll(&mut context) {
        std::task::Poll::Ready(value) => value,
        std::task::Poll::Pending => panic!("it waits"),
    }
}

#[tokio::test]
async fn at_full_speed_the_same_rows_come_without_waiting() {
    // At one row a second a paced reader waits.
    let config = serde_json::json!({"lines": {"rows": 20, "rowsPerSecond": 1}});
    let column = Column {
        name: "ts".to_owned(),
        data_type: DataType::Timestamp,
        nullable: true,
    };
    let mut enumerator = GeneratorEnumerator::new("lines", &config).unwrap();
    let splits = enumerator.list().await.unwrap();
    let reader = GeneratorReader::new("lines", &config, &[column], false).unwrap();
    let mut reader = reader.at_full_speed();
    reader.assign(splits).await.unwrap();

    let mut times = Vec::new();
    loop {
        match at_once(reader.next()).unwrap() {
            SourceEvent::Batch(batch) => {
                let column = batch.rows.column(0);
                let column = column.as_primitive::<arrow::datatypes::TimestampMicrosecondType>();
                times.extend_from_slice(column.values());
            }
            SourceEvent::Ended => break,
            _ => {}
        }
    }

    times.sort_unstable();
    let expected: Vec<i64> = (0..20).map(|row| TIME_ZERO_US + row * 1_000_000).collect();
    assert_eq!(times, expected);
}
