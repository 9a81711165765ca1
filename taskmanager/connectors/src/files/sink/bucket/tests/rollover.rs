//! Files that stay open over several checkpoints.

use streamforge_store::Condition;

use super::guillotine::Guillotine;
use super::*;
use crate::files::config::Rollover;

fn rollover(size: &str) -> Option<Rollover> {
    Some(Rollover {
        size: Some(size.parse().unwrap()),
        every: None,
    })
}

/// A rollover that nothing in these tests reaches.
fn place(test: &str) -> Place {
    let mut place = Place::new(test);
    place.config.rollover = rollover("1Gi");
    place
}

fn csv() -> OutputFormat {
    OutputFormat::Csv {
        dialect: CsvDialect {
            delimiter: b',',
            null: None,
        },
        header: true,
    }
}

fn numbers(parquet: Vec<u8>) -> Vec<i64> {
    let reader = ParquetRecordBatchReaderBuilder::try_new(Bytes::from(parquet)).unwrap();
    let mut all = Vec::new();
    for batch in reader.build().unwrap() {
        let batch = batch.unwrap();
        let column = batch.column(0).as_any().downcast_ref::<Int64Array>();
        all.extend(column.unwrap().values());
    }
    all
}

fn open_detail(interval: &StagedInterval) -> detail::OpenDetail {
    match Detail::of(&interval.objects[0]).unwrap() {
        Detail::Open { open } => open,
        Detail::Whole(whole) => panic!("{whole:?}"),
    }
}

#[tokio::test]
async fn file_is_visible_when_it_is_full_and_not_before_x6() {
    let mut place = Place::new("full");
    place.config.rollover = rollover("20");
    let mut writer = place.writer(OutputFormat::Json, 1);
    let publisher = place.publisher(1);

    for (n, seen) in [(1, 0), (2, 0), (3, 1), (4, 1)] {
        let interval = staged(&mut writer, &[n], 10 + n.unsigned_abs()).await;
        for _again in 0..2 {
            publisher.publish(&slot(), &interval).await.unwrap();
            assert_eq!(place.visible().await.len(), seen, "after row {n}");
        }
        assert_eq!(interval.objects[0].rows, 1);
    }
    assert_eq!(place.texts().await, ["{\"n\":1}\n{\"n\":2}\n{\"n\":3}\n"]);
    let hidden = place.hidden().await;
    assert_eq!(
        hidden.len(),
        2,
        "a piece and a state of the open one: {hidden:?}"
    );

    // A stop, without a row since the last barrier.
    writer.close_at_next_stage();
    let last = writer.stage(id(15)).unwrap().await.unwrap().unwrap();
    publisher.publish(&slot(), &last).await.unwrap();

    assert_eq!(place.texts().await[1], "{\"n\":4}\n");
    assert_eq!(place.hidden().await, Vec::<String>::new());
    assert_eq!(writer.stage(id(16)).unwrap().await.unwrap(), None);

    // After a savepoint the job goes on (C9).
    let next = staged(&mut writer, &[5], 17).await;
    publisher.publish(&slot(), &next).await.unwrap();
    assert_eq!(place.visible().await.len(), 2, "its file is open");
}

#[tokio::test]
async fn file_closes_by_age() {
    let mut place = Place::new("age");
    place.config.rollover = Some(Rollover {
        size: None,
        every: Some("0s".parse().unwrap()),
    });
    let mut writer = place.writer(OutputFormat::Json, 1);

    let interval = staged(&mut writer, &[1], 11).await;
    place
        .publisher(1)
        .publish(&slot(), &interval)
        .await
        .unwrap();

    assert_eq!(place.texts().await, ["{\"n\":1}\n"]);
}

/// Whatever of it was confirmed, and whether the list still has it.
#[tokio::test]
async fn restore_makes_open_files_whole_as_files_of_their_own_once_x6() {
    for format in [OutputFormat::Json, csv(), OutputFormat::Parquet] {
        for published_n in 0..=3 {
            let place = place("restore");
            let mut dead = place.writer(format.clone(), 1);
            let mut intervals = Vec::new();
            for n in 1..=3 {
                intervals.push(staged(&mut dead, &[n, n], 10 + n.unsigned_abs()).await);
            }
            // Staged under a checkpoint that never committed.
            staged(&mut dead, &[4], 14).await;
            drop(dead);
            let first = place.publisher(1);
            for interval in &intervals[..published_n] {
                first.publish(&slot(), interval).await.unwrap();
            }
            assert_eq!(place.visible().await, []);

            let second = place.publisher(2);
            let listed = &intervals[published_n..];
            second.discard_unlisted(listed).await.unwrap();
            let restored = place.visible().await;
            // Told again, and begun again.
            for interval in listed {
                second.publish(&slot(), interval).await.unwrap();
            }
            place.publisher(3).discard_unlisted(listed).await.unwrap();

            assert_eq!(place.visible().await, restored);
            assert_eq!(place.hidden().await, Vec::<String>::new());
            let [(name, bytes)] = restored.try_into().unwrap();
            let content = match format {
                OutputFormat::Parquet => format!("{:?}", numbers(bytes)),
                _ => String::from_utf8(bytes).unwrap(),
            };
            let expected = match format {
                OutputFormat::Parquet => "[1, 1, 2, 2, 3, 3]",
                OutputFormat::Csv { .. } => "n\n1\n1\n2\n2\n3\n3\n",
                OutputFormat::Json => {
                    "{\"n\":1}\n{\"n\":1}\n{\"n\":2}\n{\"n\":2}\n{\"n\":3}\n{\"n\":3}\n"
                }
            };
            assert_eq!(content, expected, "{name}, {published_n} published");
        }
    }
}

/// The parts that the dead attempt sent are used, and what it staged behind them.
#[tokio::test]
async fn restore_uses_full_parts_that_were_sent_x6() {
    let place = place("parts");
    let mut dead = place.writer(OutputFormat::Json, 1);
    // 500,000 rows of 23 bytes: one part and a tail.
    let values: Vec<i64> = (0..500_000).map(|n| 1_000_000_000_000_000 + n).collect();
    let first = staged(&mut dead, &values[..499_998], 11).await;
    let second = staged(&mut dead, &values[499_998..], 12).await;
    drop(dead);
    let open = open_detail(&second);
    assert_eq!((open.upload.parts.len(), open.tail.len()), (1, 2));
    assert_eq!(open.tail[1].end, 46);

    place
        .publisher(2)
        .discard_unlisted(&[first, second])
        .await
        .unwrap();

    let expected: String = values.iter().map(|n| format!("{{\"n\":{n}}}\n")).collect();
    assert!(place.texts().await == [expected], "the content differs");
    assert_eq!(place.hidden().await, Vec::<String>::new());
}

#[tokio::test]
async fn tail_of_many_barriers_is_few_objects_and_old_ones_go_b1() {
    for format in [OutputFormat::Json, OutputFormat::Parquet] {
        let place = place("tail");
        let mut writer = place.writer(format.clone(), 1);
        let publisher = place.publisher(1);
        let mut last = None;
        for n in 0..40 {
            let interval = staged(&mut writer, &[n], 11 + n.unsigned_abs()).await;
            assert!(open_detail(&interval).tail.len() <= 17);
            publisher.publish(&slot(), &interval).await.unwrap();
            assert!(place.hidden().await.len() <= 18);
            last = Some(interval);
        }
        drop(writer);

        let listed = last.unwrap();
        let restore = place.publisher(2);
        restore.discard_unlisted(&[listed]).await.unwrap();

        let [(_, bytes)] = place.visible().await.try_into().unwrap();
        let found = match format {
            OutputFormat::Parquet => numbers(bytes),
            _ => {
                let text = String::from_utf8(bytes).unwrap();
                let lines = text.lines().map(|line| line[5..line.len() - 1].parse());
                lines.map(Result::unwrap).collect()
            }
        };
        assert_eq!(found, Vec::from_iter(0..40));
    }
}

#[tokio::test]
async fn open_file_whose_upload_is_gone_or_whose_name_is_taken_is_told_x6() {
    for is_held in [false, true] {
        let place = place("lost");
        let interval = staged(&mut place.writer(OutputFormat::Json, 1), &[1, 2], 11).await;
        let object = &interval.objects[0];
        if is_held {
            let publisher = place.publisher(1);
            publisher.publish(&slot(), &interval).await.unwrap();
        }
        let listed = if is_held {
            vec![]
        } else {
            vec![interval.clone()]
        };
        let door = place.door();
        let bucket = door.bucket().await.unwrap();
        let abandoned = bucket.abandon(&object.published, &object.staged).await;
        abandoned.unwrap();

        let error = place.publisher(2).discard_unlisted(&listed).await;
        let said = error.unwrap_err().with_causes();
        for words in [&*object.published, "2 rows", "neither upload nor file"] {
            assert!(said.contains(words), "{said}");
        }
        let theirs = Bytes::from_static(b"theirs");
        let put = bucket.put(&object.published, theirs, &Condition::None);
        assert!(put.await.is_ok());
        let error = place.publisher(2).discard_unlisted(&listed).await;
        let said = error.unwrap_err().with_causes();
        assert!(said.contains("another object has this name"), "{said}");
        assert_eq!(place.texts().await, ["theirs"]);
    }
}

/// Its last rows were staged, committed, listed, and the restore before kept what is older.
#[tokio::test]
async fn rewind_behind_the_end_of_a_file_makes_it_whole_as_it_was_x6() {
    let place = place("rewind");
    let mut writer = place.writer(OutputFormat::Json, 1);
    let open = staged(&mut writer, &[1], 11).await;
    let publisher = place.publisher(1);
    publisher.publish(&slot(), &open).await.unwrap();
    writer.close_at_next_stage();
    let whole = staged(&mut writer, &[2], 12).await;
    drop(writer);
    place.publisher(2).discard_unlisted(&[whole]).await.unwrap();
    assert_eq!(place.visible().await, [], "its owner publishes it");

    place.publisher(3).discard_unlisted(&[open]).await.unwrap();

    assert_eq!(place.texts().await, ["{\"n\":1}\n"]);
    assert_eq!(place.hidden().await, Vec::<String>::new());
}

/// A rewind may know of neither.
#[tokio::test]
async fn state_goes_only_once_the_next_one_is_there_x6() {
    let place = place("replaced");
    let mut writer = place.writer(OutputFormat::Json, 1);
    let first = staged(&mut writer, &[1], 11).await;
    let second = staged(&mut writer, &[2], 12).await;
    let publisher = place.publisher(1);
    publisher.publish(&slot(), &first).await.unwrap();
    let mut dying = place.clone();
    let s3 = dying.config.s3.as_mut().unwrap();
    let guillotine = Guillotine::new(s3.endpoint.as_ref().unwrap(), 1);
    s3.endpoint = Some(guillotine.endpoint.clone());
    let (dying, slot) = (dying.publisher(1), slot());
    tokio::select! {
        biased;
        () = guillotine.falls() => {}
        told = dying.publish(&slot, &second) => panic!("{told:?}"),
    }

    place.publisher(2).discard_unlisted(&[]).await.unwrap();

    assert_eq!(place.texts().await, ["{\"n\":1}\n{\"n\":2}\n"]);
}

/// A put that the server does long after it was given up.
#[tokio::test]
async fn late_states_replace_no_newer_one_and_bring_no_file_back_x6() {
    let place = place("late");
    let mut writer = place.writer(OutputFormat::Json, 1);
    let publisher = place.publisher(1);
    let first = staged(&mut writer, &[1], 11).await;
    let second = staged(&mut writer, &[2], 12).await;
    for interval in [&first, &second, &first] {
        publisher.publish(&slot(), interval).await.unwrap();
    }

    place.publisher(2).discard_unlisted(&[]).await.unwrap();
    assert_eq!(place.texts().await, ["{\"n\":1}\n{\"n\":2}\n"]);

    publisher.publish(&slot(), &first).await.unwrap();
    place.publisher(3).discard_unlisted(&[]).await.unwrap();
    assert_eq!(place.texts().await, ["{\"n\":1}\n{\"n\":2}\n"]);
    assert_eq!(place.hidden().await, Vec::<String>::new());
}

#[tokio::test]
async fn frozen_attempt_that_wakes_up_touches_no_open_file_of_a_later_one_x4() {
    let place = place("frozen");
    let mut writer = place.writer(OutputFormat::Json, 4);
    let interval = staged(&mut writer, &[1], 41).await;
    let publisher = place.publisher(4);
    publisher.publish(&slot(), &interval).await.unwrap();
    let before = place.hidden().await;

    place.publisher(3).discard_unlisted(&[]).await.unwrap();

    assert_eq!(place.hidden().await, before);
    assert_eq!(place.visible().await, []);
    let next = staged(&mut writer, &[2], 42).await;
    publisher.publish(&slot(), &next).await.unwrap();
    place.publisher(5).discard_unlisted(&[]).await.unwrap();
    assert_eq!(place.texts().await, ["{\"n\":1}\n{\"n\":2}\n"]);
}

#[tokio::test]
async fn partitions_have_an_open_file_each() {
    let mut place = place("open-partitions");
    place.config.partition_by = vec!["day".to_owned()];
    let batch = |day: &str, n: i64| {
        let columns: [(&str, ArrayRef); 2] = [
            ("day", Arc::new(StringArray::from(vec![day]))),
            ("n", Arc::new(Int64Array::from(vec![n]))),
        ];
        StreamBatch::plain(RecordBatch::try_from_iter(columns).unwrap())
    };
    let mut writer = place.writer(OutputFormat::Json, 1);
    let publisher = place.publisher(1);
    let mut listed = Vec::new();
    for (day, n) in [("a", 1), ("b", 2), ("a", 3)] {
        writer.write(batch(day, n)).await.unwrap();
        let staged = writer.stage(id(10 + n.unsigned_abs())).unwrap().await;
        let interval = staged.unwrap().unwrap();
        assert_eq!(
            interval.objects.len(),
            1,
            "only what has new rows is listed"
        );
        publisher.publish(&slot(), &interval).await.unwrap();
        listed = vec![interval];
    }
    drop(writer);

    // Of `b` nothing is listed.
    place.publisher(2).discard_unlisted(&listed).await.unwrap();

    let found = place.visible().await.into_iter();
    let found: Vec<(String, String)> = found
        .map(|(key, bytes)| {
            let (folder, _) = key.split_once('/').unwrap();
            (folder.to_owned(), String::from_utf8(bytes).unwrap())
        })
        .collect();
    let expected = [
        ("day=a", "{\"n\":1}\n{\"n\":3}\n"),
        ("day=b", "{\"n\":2}\n"),
    ];
    assert_eq!(
        found,
        expected.map(|(day, rows)| (day.to_owned(), rows.to_owned()))
    );
}

/// Its footer is staged at each barrier.
#[tokio::test]
async fn parquet_file_with_a_large_footer_closes_early_b1() {
    let place = place("footer");
    let mut writer = place.writer(OutputFormat::Parquet, 1);
    let names: Vec<String> = (0..40)
        .map(|n| format!("{n:02}{}", "x".repeat(1_000)))
        .collect();
    let mut visible_n = 0;
    for n in 0..40 {
        let column = || -> ArrayRef { Arc::new(Int64Array::from(vec![n])) };
        let columns = names.iter().map(|name| (name, column()));
        let batch = RecordBatch::try_from_iter(columns).unwrap();
        writer.write(StreamBatch::plain(batch)).await.unwrap();
        let staged = writer.stage(id(11 + n.unsigned_abs())).unwrap().await;
        let interval = staged.unwrap().unwrap();
        if let Detail::Open { open } = Detail::of(&interval.objects[0]).unwrap() {
            let footer = open.tail.last().unwrap();
            assert!(footer.end - footer.start < 600 << 10, "{footer:?}");
        } else {
            visible_n += 1;
        }
        place
            .publisher(1)
            .publish(&slot(), &interval)
            .await
            .unwrap();
    }

    let found = place.visible().await;
    assert!(visible_n > 1 && visible_n < 8, "{visible_n}");
    assert_eq!(found.len(), visible_n);
    assert!(found.into_iter().all(|(_, bytes)| numbers(bytes).len() > 5));
}
