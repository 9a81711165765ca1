mod bucket;

use std::fs;
use std::io::Write;

use arrow::array::{AsArray, Int64Array, RecordBatch};
use arrow::datatypes::Int64Type;
use streamforge_core::job_graph::{Column, SourceColumn, TimeParse};

use super::*;
use crate::formats::csv::Dialect;

/// What a reader said: values of `n` with file and row, bad rows, and the progress after each batch.
#[derive(Debug, Default, PartialEq)]
struct Heard {
    rows: Vec<(i64, String, i64)>,
    bad: Vec<String>,
    progress: Vec<(SplitId, SplitProgress, usize)>,
    ended: Vec<SplitId>,
}

fn column(text: &str) -> Column {
    let (name, data_type) = text.split_once(' ').unwrap();
    Column {
        name: name.to_owned(),
        data_type: data_type.parse().unwrap(),
        nullable: true,
    }
}

fn spec(pattern: &str, format: FileFormat, order: Order) -> FileSourceSpec {
    let declared: Vec<SourceColumn> = ["s TEXT", "n BIGINT"]
        .map(|text| SourceColumn {
            column: column(text),
            path: None,
            parse: TimeParse::Rfc3339,
        })
        .to_vec();
    let output = [
        column("n BIGINT"),
        column("_file TEXT"),
        column("_row BIGINT"),
    ];
    FileSourceSpec {
        node: "in".to_owned(),
        config: SourceConfig {
            path: pattern.to_owned(),
            order,
            watch: None,
            s3: None,
        },
        format,
        layout: Layout::new(&declared, &output),
        origin: true,
        shelf: Arc::default(),
    }
}

fn json() -> FileFormat {
    FileFormat::Text(TextFormat::Json)
}

fn csv() -> FileFormat {
    FileFormat::Text(TextFormat::Csv {
        dialect: Dialect {
            delimiter: b',',
            null: None,
        },
        header: true,
    })
}

async fn splits(spec: &FileSourceSpec) -> Vec<SplitState> {
    FileEnumerator::new(spec.clone()).list().await.unwrap()
}

fn place(parallelism: u32, known: &[SplitState]) -> ReaderPlace {
    ReaderPlace {
        subtask: 0,
        parallelism,
        known: known.to_vec(),
        job: None,
    }
}

/// Reads to the end, or until `batches_max` batches.
async fn read(
    spec: &FileSourceSpec,
    parallelism: u32,
    splits: Vec<SplitState>,
    batches_max: usize,
) -> Result<Heard, Error> {
    let mut reader = FileReader::new(spec.clone(), place(parallelism, &splits));
    reader.assign(splits).await?;
    let mut heard = Heard::default();
    while heard.progress.len() < batches_max {
        match reader.next().await? {
            SourceEvent::Batch(batch) => {
                let values = batch.rows.column(0).as_primitive::<Int64Type>();
                let files = batch.rows.column(1).as_string::<i32>();
                let rows = batch.rows.column(2).as_primitive::<Int64Type>();
                let origin = batch.origin.unwrap();
                for idx in 0..values.len() {
                    assert_eq!(origin.row.value(idx) as i64, rows.value(idx));
                    assert_eq!(&*origin.source, files.value(idx));
                    let file = files.value(idx).rsplit('/').next().unwrap().to_owned();
                    heard.rows.push((values.value(idx), file, rows.value(idx)));
                }
                assert_eq!(batch.bad_n, batch.bad.len() as u64);
                if !batch.bad.is_empty() {
                    let bad = batch.bad.finish("in").unwrap();
                    let positions = bad.rows.column_by_name("position").unwrap();
                    let positions = positions.as_string::<i32>().iter().flatten();
                    heard.bad.extend(positions.map(str::to_owned));
                }
                heard
                    .progress
                    .push((batch.split, batch.progress, heard.rows.len()));
            }
            SourceEvent::SplitEnded(split) => heard.ended.push(split),
            SourceEvent::Ended => break,
            event => panic!("{event:?}"),
        }
    }
    Ok(heard)
}

fn lines(from: i64, n: i64) -> String {
    (from..from + n)
        .map(|n| format!("{{\"n\":{n},\"s\":\"{}\"}}\n", "x".repeat(200)))
        .collect()
}

fn gzip(text: &str) -> Vec<u8> {
    let mut out = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    out.write_all(text.as_bytes()).unwrap();
    out.finish().unwrap()
}

/// Values `0..n` in three files of three codecs; a bad and a blank line in the second.
fn folder(n: i64) -> (tempfile::TempDir, String) {
    let folder = tempfile::tempdir().unwrap();
    let part = n / 3;
    fs::write(folder.path().join("a.ndjson"), lines(0, part)).unwrap();
    let second = format!("not json\n\n{}", lines(part, part));
    fs::write(folder.path().join("b.ndjson.gz"), gzip(&second)).unwrap();
    let third = zstd::encode_all(lines(2 * part, n - 2 * part).trim_end().as_bytes(), 1).unwrap();
    fs::write(folder.path().join("c.ndjson.zst"), third).unwrap();
    let pattern = folder.path().join("*").to_str().unwrap().to_owned();
    (folder, pattern)
}

#[tokio::test]
async fn every_row_comes_once_in_order_whatever_the_threads() {
    let n = 30_000;
    let (_folder, pattern) = folder(n);
    for order in [Order::Any, Order::ByName] {
        let spec = spec(&pattern, json(), order);
        let listed = splits(&spec).await;
        assert_eq!(listed.len(), if order == Order::Any { 3 } else { 1 });
        let one = read(&spec, 1, listed.clone(), usize::MAX).await.unwrap();

        let values: Vec<i64> = one.rows.iter().map(|row| row.0).collect();
        assert_eq!(values, (0..n).collect::<Vec<_>>());
        assert_eq!(one.bad, ["0:0"]);
        assert_eq!(one.ended.len(), listed.len());
        let second = one.rows.iter().find(|row| row.1 == "b.ndjson.gz").unwrap();
        assert_eq!(second.2, 2, "the bad and the blank line have numbers");
        for threads in [2, 5] {
            let many = read(&spec, threads, listed.clone(), usize::MAX)
                .await
                .unwrap();
            assert_eq!(many.rows, one.rows);
            assert_eq!(many.bad, one.bad);
        }
    }
}

#[tokio::test]
async fn a_reader_goes_on_right_after_any_progress() {
    let n = 30_000;
    let (_folder, pattern) = folder(n);
    for (order, threads) in [(Order::ByName, 1), (Order::ByName, 3), (Order::Any, 1)] {
        let spec = spec(&pattern, json(), order);
        let listed = splits(&spec).await;
        let all = read(&spec, threads, listed.clone(), usize::MAX)
            .await
            .unwrap();
        for stop in 1..=all.progress.len() {
            let before = read(&spec, threads, listed.clone(), stop).await.unwrap();
            let mut rest = listed.clone();
            for state in &mut rest {
                if before.ended.contains(&state.split) {
                    state.progress = SplitProgress::End;
                }
                let last = before.progress.iter().rev().find(|p| p.0 == state.split);
                if let Some((_, progress, _)) =
                    last.filter(|_| state.progress != SplitProgress::End)
                {
                    state.progress = progress.clone();
                }
            }
            let after = read(&spec, 1, rest, usize::MAX).await.unwrap();
            let joined: Vec<_> = before.rows.into_iter().chain(after.rows).collect();
            assert_eq!(joined, all.rows, "stopped after batch {stop}");
        }
    }
}

#[tokio::test]
async fn csv_is_read_by_the_names_of_its_header() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.csv");
    fs::write(
        &path,
        "\u{feff}other,n,s\r\nq,1,\"two\nlines\"\r\nq,2,\nq,x,y\nq,4,z",
    )
    .unwrap();
    let spec = spec(path.to_str().unwrap(), csv(), Order::Any);

    let listed = splits(&spec).await;
    let heard = read(&spec, 1, listed.clone(), usize::MAX).await.unwrap();

    let values: Vec<(i64, i64)> = heard.rows.iter().map(|row| (row.0, row.2)).collect();
    assert_eq!(values, [(1, 0), (2, 1), (4, 3)]);
    assert_eq!(heard.bad, ["2:36"]);

    fs::write(&path, "other,N,s\n").unwrap();
    let listed = FileEnumerator::new(spec.clone()).list().await;
    let error = listed.unwrap_err().with_causes();
    assert!(
        error.contains("a.csv has no column `n`") && error.contains("other, N, s"),
        "{error}"
    );
}

#[tokio::test]
async fn a_file_that_comes_later_without_a_declared_column_is_bad_and_ends_no_job() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.csv");
    fs::write(&path, "other,N,s\nq,1,x\nq,2,y\n").unwrap();
    let spec = spec(path.to_str().unwrap(), csv(), Order::Any);
    let found = split::splits_of(vec![FileFacts::of(&path).unwrap()], Order::Any);

    let heard = read(&spec, 1, found, usize::MAX).await.unwrap();

    assert_eq!(
        (heard.rows, heard.bad),
        (vec![], vec!["0:10".to_owned(), "1:16".to_owned()])
    );
}

#[tokio::test]
async fn parquet_is_read_by_name_and_from_a_row_on() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.parquet");
    let n: Int64Array = (0..20_000).map(|n| (n != 7).then_some(n)).collect();
    let other: Int64Array = (0..20_000).map(Some).collect();
    let batch = RecordBatch::try_from_iter_with_nullable([
        (
            "other",
            std::sync::Arc::new(other) as arrow::array::ArrayRef,
            true,
        ),
        ("n", std::sync::Arc::new(n), true),
    ])
    .unwrap();
    let file = fs::File::create(&path).unwrap();
    let properties = parquet::file::properties::WriterProperties::builder();
    let properties = properties.set_max_row_group_row_count(Some(6000)).build();
    let mut writer =
        parquet::arrow::ArrowWriter::try_new(file, batch.schema(), Some(properties)).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
    let mut spec = spec(path.to_str().unwrap(), FileFormat::Parquet, Order::Any);
    // NULL is not allowed, so row 7 is bad.
    let mut declared = column("n BIGINT");
    declared.nullable = false;
    let declared = [SourceColumn {
        column: declared,
        path: None,
        parse: TimeParse::Rfc3339,
    }];
    let output = [
        column("n BIGINT"),
        column("_file TEXT"),
        column("_row BIGINT"),
    ];
    spec.layout = Layout::new(&declared, &output);

    let listed = splits(&spec).await;
    let all = read(&spec, 1, listed.clone(), usize::MAX).await.unwrap();

    assert_eq!(all.rows.len(), 19_999);
    assert_eq!(all.bad, ["7:0"]);
    assert_eq!(
        all.rows.last().unwrap(),
        &(19_999, "a.parquet".to_owned(), 19_999)
    );
    let first = read(&spec, 1, listed.clone(), 1).await.unwrap();
    let mut rest = listed;
    rest[0].progress = first.progress[0].1.clone();
    let after = read(&spec, 1, rest, usize::MAX).await.unwrap();
    let joined: Vec<_> = first.rows.into_iter().chain(after.rows).collect();
    assert_eq!(joined, all.rows);
}

#[tokio::test]
async fn a_file_that_changed_since_the_checkpoint_is_named_before_any_row() {
    let (folder, pattern) = folder(9_000);
    let spec = spec(&pattern, json(), Order::ByName);
    let listed = splits(&spec).await;
    let first = read(&spec, 1, listed.clone(), 1).await.unwrap();
    let mut rest = listed;
    rest[0].progress = first.progress[0].1.clone();

    // A file further on in the sequence counts as well.
    let later = folder.path().join("c.ndjson.zst");
    let content = fs::read(&later).unwrap();
    fs::remove_file(&later).unwrap();
    let error = read(&spec, 1, rest.clone(), usize::MAX).await.unwrap_err();
    assert!(
        error.with_causes().contains("c.ndjson.zst vanished"),
        "{}",
        error.with_causes()
    );
    fs::write(&later, [content.as_slice(), b"more"].concat()).unwrap();

    fs::write(folder.path().join("a.ndjson"), lines(0, 5)).unwrap();
    let error = read(&spec, 1, rest.clone(), usize::MAX).await.unwrap_err();
    assert!(
        error.with_causes().contains("a.ndjson shrank"),
        "{}",
        error.with_causes()
    );
    assert_eq!(error.recovery(), streamforge_engine::error::Recovery::Stop);

    fs::remove_file(folder.path().join("a.ndjson")).unwrap();
    let error = read(&spec, 2, rest, usize::MAX)
        .await
        .unwrap_err()
        .with_causes();
    assert!(error.contains("a.ndjson vanished"), "{error}");
}

#[tokio::test]
async fn a_broken_file_is_named_once_with_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    for (name, format) in [
        ("a.ndjson.gz", json()),
        ("a.ndjson.zst", json()),
        ("a.parquet", FileFormat::Parquet),
    ] {
        let path = folder.path().join(name);
        fs::write(&path, "no such thing").unwrap();
        let spec = spec(path.to_str().unwrap(), format, Order::Any);

        let broken = read(&spec, 1, splits(&spec).await, usize::MAX).await;

        let error = broken.unwrap_err();
        let said = error.with_causes();
        assert_eq!(said.matches(name).count(), 1, "{said}");
        for words in [
            "read files of in: ",
            "is no whole ",
            "start anew with --fresh",
        ] {
            assert!(said.contains(words), "{said}");
        }
        assert_eq!(error.recovery(), streamforge_engine::error::Recovery::Stop);
    }
}

#[tokio::test]
async fn a_pattern_that_matches_nothing_is_an_error_unless_watched() {
    let folder = tempfile::tempdir().unwrap();
    let pattern = folder.path().join("*.ndjson").to_str().unwrap().to_owned();
    let mut spec = spec(&pattern, json(), Order::Any);

    let error = FileEnumerator::new(spec.clone())
        .list()
        .await
        .unwrap_err()
        .with_causes();
    assert!(error.contains("no file matches"), "{error}");
    spec.config.watch = Some("1ms".parse().unwrap());
    assert_eq!(splits(&spec).await, []);
}

#[tokio::test]
async fn a_watched_folder_gives_each_new_file_to_one_reader_once() {
    for order in [Order::Any, Order::ByName] {
        watch(order).await;
    }
}

async fn watch(order: Order) {
    let folder = tempfile::tempdir().unwrap();
    let mut spec = spec(folder.path().to_str().unwrap(), json(), order);
    spec.config.watch = Some("0s".parse().unwrap());
    fs::write(folder.path().join("0.ndjson"), lines(0, 1)).unwrap();
    let known = splits(&spec).await;
    let mut ended = known.clone();
    ended[0].progress = SplitProgress::End;
    for n in 1..6 {
        fs::write(folder.path().join(format!("{n}.ndjson")), lines(n, 1)).unwrap();
    }

    let mut values: Vec<i64> = Vec::new();
    for subtask in 0..2 {
        let place = ReaderPlace {
            subtask,
            parallelism: 2,
            known: ended.clone(),
            job: None,
        };
        let mut reader = FileReader::new(spec.clone(), place);
        reader.assign(Vec::new()).await.unwrap();
        let mut discovered = 0;
        loop {
            match reader.next().await.unwrap() {
                SourceEvent::Discovered(_) => discovered += 1,
                SourceEvent::Batch(batch) => {
                    values.extend(
                        batch
                            .rows
                            .column(0)
                            .as_primitive::<Int64Type>()
                            .values()
                            .iter(),
                    );
                }
                SourceEvent::SplitEnded(_) => discovered -= 1,
                SourceEvent::Waiting => break,
                event => panic!("{event:?}"),
            }
        }
        assert_eq!(discovered, 0);
        assert!(matches!(reader.next().await.unwrap(), SourceEvent::Waiting));
    }

    values.sort_unstable();
    assert_eq!(values, [1, 2, 3, 4, 5]);
}
