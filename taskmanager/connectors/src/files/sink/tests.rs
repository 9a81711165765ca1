use std::fs;
use std::path::Path;
use std::sync::Arc;

use arrow::array::{ArrayRef, Int8Array, Int64Array, RecordBatch, StringArray};
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use streamforge_core::ids::OperatorUid;
use streamforge_engine::sink::Publisher;

use super::publish::FilePublisher;
use super::*;
use crate::files::config::Rollover;
use crate::formats::write::CsvDialect;

fn id(n: u64) -> CheckpointId {
    CheckpointId::from_stored(n)
}

fn slot() -> SlotId {
    SlotId {
        sink: OperatorUid("out".into()),
        slot: 3,
    }
}

fn job() -> JobId {
    JobId("job-1".into())
}

fn config(folder: &Path) -> SinkConfig {
    SinkConfig {
        path: folder.to_str().unwrap().to_owned(),
        partition_by: Vec::new(),
        rollover: None,
        s3: None,
    }
}

fn writer_of(config: SinkConfig, format: OutputFormat, epoch: u64) -> FileWriter {
    let spec = FileSinkSpec {
        config,
        format,
        changelog: ChangelogMode::AppendOnly,
    };
    let name = WriterName {
        job: job(),
        slot: slot(),
        generation: streamforge_core::ids::Generation::from_stored(1),
        epoch: Epoch::from_stored(epoch),
        first_id: id(10 * epoch),
    };
    FileWriter::open(spec, name).unwrap()
}

fn publisher(folder: &Path) -> FilePublisher {
    publisher_of(folder, 9)
}

fn publisher_of(folder: &Path, epoch: u64) -> FilePublisher {
    let epoch = Epoch::from_stored(epoch);
    FilePublisher::open(folder.to_str().unwrap(), &job(), "out", epoch).unwrap()
}

fn rows(values: &[i64]) -> StreamBatch {
    let array: ArrayRef = Arc::new(Int64Array::from(values.to_vec()));
    StreamBatch::plain(RecordBatch::try_from_iter([("n", array)]).unwrap())
}

/// A rollover that nothing in these tests reaches.
fn far() -> Option<Rollover> {
    Some(Rollover {
        size: Some("1Gi".parse().unwrap()),
        every: None,
    })
}

/// Path below the folder and content of every visible file.
fn visible(folder: &Path) -> Vec<(String, String)> {
    let found = crate::files::listing::list(folder.to_str().unwrap()).unwrap();
    let read = |path: std::path::PathBuf| {
        let name = path
            .strip_prefix(folder)
            .unwrap()
            .to_str()
            .unwrap()
            .to_owned();
        (
            name,
            fs::read_to_string(&path).unwrap_or_else(|_| "binary".to_owned()),
        )
    };
    found.into_iter().map(read).collect()
}

fn contents(folder: &Path) -> Vec<String> {
    visible(folder)
        .into_iter()
        .map(|(_, content)| content)
        .collect()
}

/// Names of staged files, held ones included.
fn staged(folder: &Path) -> Vec<String> {
    let pattern = folder.join(STAGING).join("**/*");
    let found = glob::glob(pattern.to_str().unwrap())
        .unwrap()
        .map(Result::unwrap);
    found
        .filter(|path| path.is_file())
        .map(|path| path.display().to_string())
        .collect()
}

#[tokio::test]
async fn rows_are_visible_after_publish_and_not_before() {
    let folder = tempfile::tempdir().unwrap();
    let mut writer = writer_of(config(folder.path()), OutputFormat::Json, 1);

    writer.write(rows(&[1, 2])).await.unwrap();
    writer.write(rows(&[3])).await.unwrap();
    let interval = writer.stage(id(11)).unwrap().await.unwrap().unwrap();

    assert_eq!(visible(folder.path()), []);
    assert_eq!(interval.id, id(11));
    assert_eq!(
        (interval.objects[0].rows, interval.objects[0].bytes),
        (3, 24)
    );
    publisher(folder.path())
        .publish(&slot(), &interval)
        .await
        .unwrap();
    let [(name, content)] = visible(folder.path()).try_into().unwrap();
    assert_eq!(content, "{\"n\":1}\n{\"n\":2}\n{\"n\":3}\n");
    let prefix = name_prefix(&job(), "out");
    assert_eq!(name, format!("{prefix}1-10-3-0.ndjson"));
    assert_eq!(prefix.len(), "part-12345678-".len());
    assert!(staged(folder.path()).is_empty());
}

#[tokio::test]
async fn publishing_again_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let mut writer = writer_of(config(folder.path()), OutputFormat::Json, 1);
    writer.write(rows(&[1])).await.unwrap();
    let interval = writer.stage(id(11)).unwrap().await.unwrap().unwrap();
    let publisher = publisher(folder.path());

    for _ in 0..3 {
        publisher.publish(&slot(), &interval).await.unwrap();
        publisher
            .discard_unlisted(std::slice::from_ref(&interval))
            .await
            .unwrap();
    }

    assert_eq!(contents(folder.path()), ["{\"n\":1}\n"]);
}

#[tokio::test]
async fn a_published_file_that_a_reader_took_away_is_not_missed() {
    let folder = tempfile::tempdir().unwrap();
    let mut writer = writer_of(config(folder.path()), OutputFormat::Json, 1);
    writer.write(rows(&[1])).await.unwrap();
    let interval = writer.stage(id(11)).unwrap().await.unwrap().unwrap();
    let publisher = publisher(folder.path());
    publisher.publish(&slot(), &interval).await.unwrap();
    fs::remove_file(folder.path().join(&interval.objects[0].published)).unwrap();

    publisher.publish(&slot(), &interval).await.unwrap();

    assert_eq!(visible(folder.path()), []);
}

#[tokio::test]
async fn an_interval_without_rows_is_not_listed() {
    let folder = tempfile::tempdir().unwrap();
    let mut writer = writer_of(config(folder.path()), OutputFormat::Json, 1);

    assert_eq!(writer.stage(id(11)).unwrap().await.unwrap(), None);
    writer.write(rows(&[])).await.unwrap();
    assert_eq!(writer.stage(id(12)).unwrap().await.unwrap(), None);
    writer.write(rows(&[1])).await.unwrap();
    let interval = writer.stage(id(13)).unwrap().await.unwrap().unwrap();
    assert!(
        interval.objects[0].published.contains("-12-3-0."),
        "C4: the last barrier seen"
    );
}

#[tokio::test]
async fn what_a_dead_attempt_staged_and_nobody_listed_is_removed() {
    let folder = tempfile::tempdir().unwrap();
    let mut dead = writer_of(config(folder.path()), OutputFormat::Json, 1);
    dead.write(rows(&[1])).await.unwrap();
    let listed = dead.stage(id(11)).unwrap().await.unwrap().unwrap();
    dead.write(rows(&[2])).await.unwrap();
    dead.stage(id(12)).unwrap().await.unwrap().unwrap();
    dead.write(rows(&[3])).await.unwrap();
    drop(dead);
    let foreign = folder
        .path()
        .join(STAGING)
        .join("part-ffffffff-1-1-0-0.ndjson.0");
    fs::write(&foreign, "of another job").unwrap();

    let publisher = publisher(folder.path());
    publisher
        .discard_unlisted(std::slice::from_ref(&listed))
        .await
        .unwrap();
    publisher.publish(&slot(), &listed).await.unwrap();

    assert_eq!(contents(folder.path()), ["{\"n\":1}\n"]);
    assert_eq!(staged(folder.path()), [foreign.display().to_string()]);
}

#[tokio::test]
async fn a_frozen_attempt_that_wakes_up_removes_nothing_of_a_later_one_x4() {
    let folder = tempfile::tempdir().unwrap();
    let mut writer = writer_of(config(folder.path()), OutputFormat::Json, 4);
    writer.write(rows(&[1])).await.unwrap();
    let listed = writer.stage(id(11)).unwrap().await.unwrap().unwrap();

    // It began as attempt 3, from nothing, and got no further until now.
    let zombie = publisher_of(folder.path(), 3);
    zombie.discard_unlisted(&[]).await.unwrap();

    publisher(folder.path())
        .publish(&slot(), &listed)
        .await
        .unwrap();
    assert_eq!(contents(folder.path()), ["{\"n\":1}\n"]);
}

#[tokio::test]
async fn a_file_stays_open_across_checkpoints_until_it_is_full() {
    let folder = tempfile::tempdir().unwrap();
    let size = Some(Rollover {
        size: Some("20".parse().unwrap()),
        every: None,
    });
    let config = SinkConfig {
        rollover: size,
        ..config(folder.path())
    };
    let mut writer = writer_of(config, OutputFormat::Json, 1);
    let publisher = publisher(folder.path());

    for (n, seen) in [(1, 0), (2, 0), (3, 1), (4, 1)] {
        writer.write(rows(&[n])).await.unwrap();
        let interval = writer
            .stage(id(10 + n as u64))
            .unwrap()
            .await
            .unwrap()
            .unwrap();
        publisher.publish(&slot(), &interval).await.unwrap();
        publisher.publish(&slot(), &interval).await.unwrap();
        assert_eq!(visible(folder.path()).len(), seen, "after row {n}");
    }
    assert_eq!(
        contents(folder.path()),
        ["{\"n\":1}\n{\"n\":2}\n{\"n\":3}\n"]
    );

    writer.close_at_next_stage();
    let last = writer.stage(id(15)).unwrap().await.unwrap().unwrap();
    publisher.publish(&slot(), &last).await.unwrap();

    assert_eq!(contents(folder.path())[1], "{\"n\":4}\n");
    assert!(staged(folder.path()).is_empty());

    // After a savepoint the job goes on (C9).
    writer.write(rows(&[5])).await.unwrap();
    let next = writer.stage(id(16)).unwrap().await.unwrap().unwrap();
    publisher.publish(&slot(), &next).await.unwrap();
    assert_eq!(visible(folder.path()).len(), 2, "its file is open");
}

#[tokio::test]
async fn held_rows_that_are_gone_are_named_with_their_file_x6() {
    let folder = tempfile::tempdir().unwrap();
    let config = SinkConfig {
        rollover: far(),
        ..config(folder.path())
    };
    let mut writer = writer_of(config, OutputFormat::Json, 1);
    let publisher = publisher(folder.path());
    let mut stage = async |n| {
        writer.write(rows(&[n])).await.unwrap();
        writer.stage(id(10 + n as u64)).unwrap().await.unwrap()
    };
    let [first, second] = [stage(1).await.unwrap(), stage(2).await.unwrap()];
    publisher.publish(&slot(), &first).await.unwrap();
    fs::remove_dir_all(folder.path().join(STAGING).join("held")).unwrap();

    let listed = std::slice::from_ref(&second);
    for refused in [
        publisher.publish(&slot(), &second).await,
        publisher.discard_unlisted(listed).await,
    ] {
        let said = refused.unwrap_err().with_causes();
        let file = &second.objects[0].published;
        assert!(said.contains(file), "{said}");
        assert!(
            said.contains("00000000 until this file is full, and are gone"),
            "{said}"
        );
    }
    assert_eq!(visible(folder.path()), []);
}

#[tokio::test]
async fn a_file_closes_by_age() {
    let folder = tempfile::tempdir().unwrap();
    let every = Some(Rollover {
        size: None,
        every: Some("0s".parse().unwrap()),
    });
    let config = SinkConfig {
        rollover: every,
        ..config(folder.path())
    };
    let mut writer = writer_of(config, OutputFormat::Json, 1);

    writer.write(rows(&[1])).await.unwrap();
    let interval = writer.stage(id(11)).unwrap().await.unwrap().unwrap();
    publisher(folder.path())
        .publish(&slot(), &interval)
        .await
        .unwrap();

    assert_eq!(contents(folder.path()), ["{\"n\":1}\n"]);
}

/// X6: a restore completes what was held and what is listed as a file of its own, once.
#[tokio::test]
async fn a_restore_makes_a_file_of_the_held_and_listed_segments() {
    for published_n in 0..=3 {
        let folder = tempfile::tempdir().unwrap();
        let config = SinkConfig {
            rollover: far(),
            ..config(folder.path())
        };
        let mut dead = writer_of(config.clone(), OutputFormat::Json, 1);
        let mut intervals = Vec::new();
        for n in 1..=3 {
            dead.write(rows(&[n])).await.unwrap();
            intervals.push(
                dead.stage(id(10 + n as u64))
                    .unwrap()
                    .await
                    .unwrap()
                    .unwrap(),
            );
        }
        // Staged under a checkpoint that never committed.
        dead.write(rows(&[4])).await.unwrap();
        dead.stage(id(14)).unwrap().await.unwrap().unwrap();
        drop(dead);
        let first = publisher(folder.path());
        for interval in &intervals[..published_n] {
            first.publish(&slot(), interval).await.unwrap();
        }
        assert_eq!(visible(folder.path()), []);

        let restored = publisher(folder.path());
        let listed = &intervals[published_n.min(2)..];
        restored.discard_unlisted(listed).await.unwrap();
        let mut writer = writer_of(config, OutputFormat::Json, 2);
        writer.write(rows(&[5])).await.unwrap();
        for interval in listed {
            restored.publish(&slot(), interval).await.unwrap();
        }
        writer.close_at_next_stage();
        let last = writer.stage(id(21)).unwrap().await.unwrap().unwrap();
        restored.publish(&slot(), &last).await.unwrap();

        let expected = ["{\"n\":1}\n{\"n\":2}\n{\"n\":3}\n", "{\"n\":5}\n"];
        assert_eq!(
            contents(folder.path()),
            expected,
            "{published_n} published before the crash"
        );
        assert!(staged(folder.path()).is_empty());
    }
}

#[tokio::test]
async fn a_crash_between_the_steps_of_completing_is_mended() {
    let folder = tempfile::tempdir().unwrap();
    let config = SinkConfig {
        rollover: far(),
        ..config(folder.path())
    };
    let mut writer = writer_of(config, OutputFormat::Json, 1);
    let publisher = publisher(folder.path());
    for n in [1, 2] {
        writer.write(rows(&[n])).await.unwrap();
        let interval = writer
            .stage(id(10 + n as u64))
            .unwrap()
            .await
            .unwrap()
            .unwrap();
        publisher.publish(&slot(), &interval).await.unwrap();
    }
    drop(writer);
    let held = folder.path().join(STAGING).join("held");
    let group = fs::read_dir(&held).unwrap().next().unwrap().unwrap().path();
    // Half of a join, and after that a join that was renamed while its segments were still there.
    fs::write(group.join("draft"), "{\"n\":1}\n{\"n").unwrap();
    publisher.discard_unlisted(&[]).await.unwrap();
    assert_eq!(contents(folder.path()), ["{\"n\":1}\n{\"n\":2}\n"]);

    let name = visible(folder.path())[0].0.clone();
    let again = held.join(&name);
    fs::create_dir_all(&again).unwrap();
    fs::write(again.join("published"), &name).unwrap();
    fs::write(again.join("00000000"), "{\"n\":1}\n").unwrap();
    publisher.discard_unlisted(&[]).await.unwrap();

    assert_eq!(contents(folder.path()), ["{\"n\":1}\n{\"n\":2}\n"]);
    assert!(staged(folder.path()).is_empty());
}

fn partitioned() -> StreamBatch {
    let days = StringArray::from(vec![Some("a/b"), None, Some("a/b"), Some(""), Some("é ..")]);
    let columns: [(&str, ArrayRef); 2] = [
        ("day", Arc::new(days)),
        ("n", Arc::new(Int64Array::from(vec![1, 2, 3, 4, 5]))),
    ];
    StreamBatch::plain(
        RecordBatch::try_from_iter_with_nullable(
            columns.into_iter().map(|(name, array)| (name, array, true)),
        )
        .unwrap(),
    )
}

#[tokio::test]
async fn partitions_are_folders_with_encoded_names() {
    let folder = tempfile::tempdir().unwrap();
    let config = SinkConfig {
        partition_by: vec!["day".into()],
        ..config(folder.path())
    };
    let mut writer = writer_of(config, OutputFormat::Json, 1);

    let bad = writer.write(partitioned()).await.unwrap();
    let interval = writer.stage(id(11)).unwrap().await.unwrap().unwrap();
    publisher(folder.path())
        .publish(&slot(), &interval)
        .await
        .unwrap();

    assert!(bad.is_empty());
    let files = [
        ("day=%C3%A9%20..", "{\"n\":5}\n"),
        ("day=", "{\"n\":4}\n"),
        ("day=__HIVE_DEFAULT_PARTITION__", "{\"n\":2}\n"),
        ("day=a%2Fb", "{\"n\":1}\n{\"n\":3}\n"),
    ];
    let mut found: Vec<(String, String)> = visible(folder.path())
        .into_iter()
        .map(|(name, content)| (name.split_once('/').unwrap().0.to_owned(), content))
        .collect();
    found.sort();
    let mut expected = files.map(|(name, content)| (name.to_owned(), content.to_owned()));
    expected.sort();
    assert_eq!(found, expected);
}

#[tokio::test]
async fn a_value_too_long_for_a_folder_is_a_bad_row() {
    let folder = tempfile::tempdir().unwrap();
    let config = SinkConfig {
        partition_by: vec!["day".into()],
        ..config(folder.path())
    };
    let mut writer = writer_of(config, OutputFormat::Json, 1);
    let columns: [(&str, ArrayRef); 2] = [
        (
            "day",
            Arc::new(StringArray::from(vec!["x".repeat(300), "y".into()])),
        ),
        ("n", Arc::new(Int64Array::from(vec![1, 2]))),
    ];

    let batch = StreamBatch::plain(RecordBatch::try_from_iter(columns).unwrap());
    let bad = writer.write(batch).await.unwrap();
    let interval = writer.stage(id(11)).unwrap().await.unwrap().unwrap();

    assert_eq!(bad.len(), 1);
    assert_eq!(
        interval
            .objects
            .iter()
            .map(|object| object.rows)
            .sum::<u64>(),
        1
    );
}

#[tokio::test]
async fn more_partitions_than_open_files_lose_no_row() {
    let folder = tempfile::tempdir().unwrap();
    let config = SinkConfig {
        partition_by: vec!["day".into()],
        rollover: far(),
        ..config(folder.path())
    };
    let mut writer = writer_of(config, OutputFormat::Json, 1);
    let days = OPEN_FILES_MAX as i64 + 20;
    for round in 0..2 {
        let columns: [(&str, ArrayRef); 2] = [
            ("day", Arc::new(Int64Array::from_iter_values(0..days))),
            ("n", Arc::new(Int64Array::from(vec![round; days as usize]))),
        ];
        writer
            .write(StreamBatch::plain(
                RecordBatch::try_from_iter(columns).unwrap(),
            ))
            .await
            .unwrap();
        assert!(writer.open.len() <= OPEN_FILES_MAX);
    }
    writer.close_at_next_stage();
    let interval = writer.stage(id(11)).unwrap().await.unwrap().unwrap();
    publisher(folder.path())
        .publish(&slot(), &interval)
        .await
        .unwrap();

    let rows: usize = contents(folder.path())
        .iter()
        .map(|content| content.lines().count())
        .sum();
    assert_eq!(rows as i64, 2 * days);
}

#[tokio::test]
async fn joined_csv_has_one_header() {
    let folder = tempfile::tempdir().unwrap();
    let config = SinkConfig {
        rollover: far(),
        ..config(folder.path())
    };
    let dialect = CsvDialect {
        delimiter: b',',
        null: None,
    };
    let mut writer = writer_of(
        config,
        OutputFormat::Csv {
            dialect,
            header: true,
        },
        1,
    );
    let publisher = publisher(folder.path());
    for n in [1, 2] {
        writer.write(rows(&[n])).await.unwrap();
        if n == 2 {
            writer.close_at_next_stage();
        }
        let interval = writer
            .stage(id(10 + n as u64))
            .unwrap()
            .await
            .unwrap()
            .unwrap();
        publisher.publish(&slot(), &interval).await.unwrap();
    }

    assert_eq!(contents(folder.path()), ["n\n1\n2\n"]);
}

#[tokio::test]
async fn joined_parquet_reads_as_one_file() {
    let folder = tempfile::tempdir().unwrap();
    let config = SinkConfig {
        rollover: far(),
        ..config(folder.path())
    };
    let mut writer = writer_of(config, OutputFormat::Parquet, 1);
    let publisher = publisher(folder.path());
    for n in 1..=3 {
        writer.write(rows(&[n, n * 10])).await.unwrap();
        let interval = writer
            .stage(id(10 + n as u64))
            .unwrap()
            .await
            .unwrap()
            .unwrap();
        publisher.publish(&slot(), &interval).await.unwrap();
    }
    drop(writer);
    publisher.discard_unlisted(&[]).await.unwrap();

    let [(name, _)] = visible(folder.path()).try_into().unwrap();
    let file = fs::File::open(folder.path().join(name)).unwrap();
    let reader = ParquetRecordBatchReaderBuilder::try_new(file)
        .unwrap()
        .build()
        .unwrap();
    let batches: Vec<RecordBatch> = reader.map(Result::unwrap).collect();
    let all = arrow::compute::concat_batches(&batches[0].schema(), &batches).unwrap();
    assert_eq!(all, rows(&[1, 10, 2, 20, 3, 30]).rows);
}

#[tokio::test]
async fn retractions_show_their_op_first() {
    let folder = tempfile::tempdir().unwrap();
    let mut writer = writer_of(config(folder.path()), OutputFormat::Json, 1);
    writer.spec.changelog = ChangelogMode::Retract;
    let mut batch = rows(&[1, 1, 2, 3]);
    batch.ops = Some(Int8Array::from(vec![0, 1, 2, 3]));

    writer.write(batch).await.unwrap();
    let interval = writer.stage(id(11)).unwrap().await.unwrap().unwrap();
    publisher(folder.path())
        .publish(&slot(), &interval)
        .await
        .unwrap();

    let ops = [
        "+I\",\"n\":1",
        "-U\",\"n\":1",
        "+U\",\"n\":2",
        "-D\",\"n\":3",
    ];
    let expected: String = ops
        .iter()
        .map(|op| format!("{{\"_op\":\"{op}}}\n"))
        .collect();
    assert_eq!(contents(folder.path()), [expected]);
}

#[test]
fn a_folder_that_cannot_be_made_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, "").unwrap();

    let error = FilePublisher::open(
        file.join("out").to_str().unwrap(),
        &job(),
        "out",
        Epoch::from_stored(9),
    )
    .unwrap_err();

    assert!(
        error.with_causes().contains("make output folder"),
        "{}",
        error.with_causes()
    );
    assert_eq!(error.recovery(), streamforge_engine::error::Recovery::Stop);
}

#[tokio::test]
async fn a_large_segment_is_sent_to_the_disk_ahead_and_whole() {
    for format in [OutputFormat::Json, OutputFormat::Parquet] {
        let folder = tempfile::tempdir().unwrap();
        let mut writer = writer_of(config(folder.path()), format, 1);
        let mut seed = 7u64;
        for _ in 0..48 {
            // Bytes that do not compress.
            let mut text = String::with_capacity(1 << 20);
            while text.len() < 1 << 20 {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                text.push_str(&format!("{seed:016x}"));
            }
            let array: ArrayRef = Arc::new(StringArray::from(vec![text]));
            let batch = RecordBatch::try_from_iter([("t", array)]).unwrap();
            writer.write(StreamBatch::plain(batch)).await.unwrap();
        }
        let open = writer.open.values().next().unwrap();
        assert!(open.writer.as_ref().unwrap().sent_ahead() > 0);

        let interval = writer.stage(id(11)).unwrap().await.unwrap().unwrap();

        let staged = folder
            .path()
            .join(STAGING)
            .join(&interval.objects[0].staged);
        assert_eq!(interval.objects[0].rows, 48);
        assert_eq!(
            interval.objects[0].bytes,
            fs::metadata(staged).unwrap().len()
        );
    }
}
