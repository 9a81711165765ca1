//! The sink in a bucket, against the real server of `e2e/services/s3`.

use std::fs;
use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use bytes::Bytes;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use streamforge_core::ids::{Epoch, Generation, JobId, OperatorUid, SlotId};
use streamforge_core::job_graph::ChangelogMode;
use streamforge_engine::sink::Publisher as _;
use streamforge_store::s3::PART_BYTES;

use super::spill::{SPILL, SPILL_LOCK};
use super::*;
use crate::files::sink::{STAGING, name_prefix};
use crate::files::test_server::Server;
use crate::formats::write::CsvDialect;

mod guillotine;
mod kills;
mod rollover;

/// A place of one test's own on the server.
#[derive(Clone)]
struct Place {
    config: SinkConfig,
    server: Arc<Server>,
}

impl Place {
    /// Starts the server if need be.
    fn new(test: &str) -> Self {
        let server = Server::up(&format!("test-sink/{test}"));
        Self {
            config: SinkConfig {
                path: server.path(),
                partition_by: Vec::new(),
                rollover: None,
                s3: Some(server.s3()),
            },
            server: Arc::new(server),
        }
    }

    fn door(&self) -> Door {
        let place = place_of(&self.config).unwrap().unwrap();
        Door::new(place, self.server.secrets())
    }

    fn writer(&self, format: OutputFormat, epoch: u64) -> BucketWriter {
        let spec = FileSinkSpec {
            config: self.config.clone(),
            format,
            changelog: ChangelogMode::AppendOnly,
        };
        let name = WriterName {
            job: job(),
            slot: slot(),
            generation: Generation::from_stored(1),
            epoch: Epoch::from_stored(epoch),
            first_id: id(10 * epoch),
        };
        BucketWriter::open(spec, name, self.door()).unwrap()
    }

    fn publisher(&self, epoch: u64) -> BucketPublisher {
        BucketPublisher::new(self.door(), &job(), "out", Epoch::from_stored(epoch))
    }

    /// Keys of objects that no reader looks at.
    async fn hidden(&self) -> Vec<String> {
        let door = self.door();
        let bucket = door.bucket().await.unwrap();
        let found = bucket.list(&format!("{STAGING}/")).await.unwrap();
        found.into_iter().map(|meta| meta.key).collect()
    }

    /// Keys and contents, by key.
    async fn visible(&self) -> Vec<(String, Vec<u8>)> {
        let door = self.door();
        let bucket = door.bucket().await.unwrap();
        let mut found = Vec::new();
        for meta in bucket.list("").await.unwrap() {
            if meta.key.starts_with(STAGING) {
                continue;
            }
            let object = bucket.get(&meta.key).await.unwrap().unwrap();
            found.push((meta.key, object.bytes.to_vec()));
        }
        found.sort();
        found
    }

    async fn texts(&self) -> Vec<String> {
        let whole = self.visible().await.into_iter();
        whole
            .map(|(_, bytes)| String::from_utf8(bytes).unwrap())
            .collect()
    }
}

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

fn rows(values: &[i64]) -> StreamBatch {
    let array: ArrayRef = Arc::new(Int64Array::from(values.to_vec()));
    StreamBatch::plain(RecordBatch::try_from_iter([("n", array)]).unwrap())
}

async fn staged(writer: &mut BucketWriter, values: &[i64], n: u64) -> StagedInterval {
    let bad = writer.write(rows(values)).await.unwrap();
    assert!(bad.is_empty());
    writer.stage(id(n)).unwrap().await.unwrap().unwrap()
}

#[tokio::test]
async fn staged_rows_are_seen_by_nobody_until_published_and_then_whole_x6() {
    let place = Place::new("staged");
    let mut writer = place.writer(OutputFormat::Json, 1);

    let first = staged(&mut writer, &[1, 2], 11).await;
    let second = staged(&mut writer, &[3], 12).await;
    assert_eq!(place.visible().await, vec![]);
    assert_eq!(
        writer.stage(id(13)).unwrap().await.unwrap(),
        None,
        "no rows, no interval"
    );
    drop(writer);

    // Another process publishes, twice.
    for _again in 0..2 {
        let publisher = place.publisher(2);
        publisher.publish(&slot(), &first).await.unwrap();
        assert_eq!(place.texts().await, ["{\"n\":1}\n{\"n\":2}\n"]);
    }
    place.publisher(2).publish(&slot(), &second).await.unwrap();
    assert_eq!(
        place.texts().await,
        ["{\"n\":1}\n{\"n\":2}\n", "{\"n\":3}\n"]
    );
    let names: Vec<String> = place.visible().await.into_iter().map(|it| it.0).collect();
    let prefix = name_prefix(&job(), "out");
    assert_eq!(
        names,
        [
            format!("{prefix}1-10-3-0.ndjson"),
            format!("{prefix}1-11-3-1.ndjson")
        ]
    );
    assert_eq!((first.objects[0].rows, first.objects[0].bytes), (2, 16));
}

#[tokio::test]
async fn csv_and_parquet_are_files_of_their_own_in_a_bucket() {
    let place = Place::new("formats");
    let csv = OutputFormat::Csv {
        dialect: CsvDialect {
            delimiter: b';',
            null: None,
        },
        header: true,
    };
    for (epoch, format) in [(1, csv), (2, OutputFormat::Parquet)] {
        let mut writer = place.writer(format, epoch);
        for (n, values) in [(1, [1, 2]), (2, [3, 4])] {
            let interval = staged(&mut writer, &values, 10 * epoch + n).await;
            place
                .publisher(epoch)
                .publish(&slot(), &interval)
                .await
                .unwrap();
        }
    }

    let found = place.visible().await;
    let csv: Vec<&[u8]> = found
        .iter()
        .filter(|it| it.0.ends_with("csv"))
        .map(|it| &*it.1)
        .collect();
    assert_eq!(csv, [b"n\n1\n2\n".as_slice(), b"n\n3\n4\n"]);
    let mut sums = Vec::new();
    for (_, bytes) in found.into_iter().filter(|it| it.0.ends_with("parquet")) {
        let reader = ParquetRecordBatchReaderBuilder::try_new(Bytes::from(bytes)).unwrap();
        for batch in reader.build().unwrap() {
            let batch = batch.unwrap();
            let column = batch
                .column(0)
                .as_any()
                .downcast_ref::<Int64Array>()
                .unwrap();
            sums.push(column.values().iter().sum::<i64>());
        }
    }
    // Names do not sort by age.
    sums.sort_unstable();
    assert_eq!(sums, [3, 7]);
}

#[tokio::test]
async fn partitions_are_prefixes_with_percent_signs() {
    let mut place = Place::new("partitions");
    place.config.partition_by = vec!["day".to_owned()];
    let days: ArrayRef = Arc::new(StringArray::from(vec!["a/b", "c", "a/b"]));
    let numbers: ArrayRef = Arc::new(Int64Array::from(vec![1, 2, 3]));
    let batch = RecordBatch::try_from_iter([("day", days), ("n", numbers)]).unwrap();
    let mut writer = place.writer(OutputFormat::Json, 1);

    writer.write(StreamBatch::plain(batch)).await.unwrap();
    let interval = writer.stage(id(11)).unwrap().await.unwrap().unwrap();
    place
        .publisher(1)
        .publish(&slot(), &interval)
        .await
        .unwrap();

    let found = place.visible().await;
    let folders: Vec<&str> = found
        .iter()
        .map(|it| it.0.split('/').next().unwrap())
        .collect();
    assert_eq!(folders, ["day=a%2Fb", "day=c"]);
    assert_eq!(
        place.texts().await,
        ["{\"n\":1}\n{\"n\":3}\n", "{\"n\":2}\n"]
    );
}

#[tokio::test]
async fn file_of_several_parts_is_whole() {
    let place = Place::new("large");
    let mut writer = place.writer(OutputFormat::Json, 1);
    // 600,000 rows of 22 bytes: two parts.
    let values: Vec<i64> = (0..600_000).map(|n| 1_000_000_000_000_000 + n).collect();

    let interval = staged(&mut writer, &values, 11).await;
    place
        .publisher(1)
        .publish(&slot(), &interval)
        .await
        .unwrap();

    let expected: String = values.iter().map(|n| format!("{{\"n\":{n}}}\n")).collect();
    assert!(expected.len() > PART_BYTES);
    assert!(place.texts().await == [expected], "the content differs");
}

#[tokio::test]
async fn upload_that_is_gone_and_a_name_that_is_taken_are_told_with_the_file_x6() {
    let place = Place::new("gone");
    let mut writer = place.writer(OutputFormat::Json, 1);
    let gone = staged(&mut writer, &[1], 11).await;
    let taken = staged(&mut writer, &[2, 3], 12).await;
    let door = place.door();
    let bucket = door.bucket().await.unwrap();
    let (gone_object, taken_object) = (&gone.objects[0], &taken.objects[0]);
    bucket
        .abandon(&gone_object.published, &gone_object.staged)
        .await
        .unwrap();
    let put = bucket
        .put(
            &taken_object.published,
            Bytes::from_static(b"theirs"),
            &streamforge_store::Condition::None,
        )
        .await;
    assert!(put.is_ok(), "{put:?}");

    for (interval, rows, words) in [
        (&gone, "1 rows", "neither upload nor file"),
        (&taken, "2 rows", "another object"),
    ] {
        let error = place
            .publisher(1)
            .publish(&slot(), interval)
            .await
            .unwrap_err();
        let said = error.with_causes();
        assert!(said.contains(words) && said.contains(rows), "{said}");
        assert!(said.contains(&interval.objects[0].published), "{said}");
    }
    assert_eq!(place.texts().await, ["theirs"]);
}

#[tokio::test]
async fn uploads_of_dead_epochs_are_thrown_away_unless_listed_x6() {
    let place = Place::new("dead");
    let listed = staged(&mut place.writer(OutputFormat::Json, 1), &[1], 11).await;
    let unlisted = staged(&mut place.writer(OutputFormat::Json, 2), &[2], 21).await;
    let later = staged(&mut place.writer(OutputFormat::Json, 4), &[4], 41).await;
    let door = place.door();
    let bucket = door.bucket().await.unwrap();
    let foreign = bucket.begin("part-of-another-system").await.unwrap();

    place
        .publisher(3)
        .discard_unlisted(std::slice::from_ref(&listed))
        .await
        .unwrap();

    let mut left: Vec<String> = bucket
        .uploads("")
        .await
        .unwrap()
        .into_iter()
        .map(|it| it.1)
        .collect();
    let mut expected = vec![
        listed.objects[0].staged.clone(),
        later.objects[0].staged.clone(),
        foreign.name().id.clone(),
    ];
    left.sort();
    expected.sort();
    assert_eq!(left, expected);
    assert!(
        place
            .publisher(3)
            .publish(&slot(), &unlisted)
            .await
            .is_err()
    );
    place.publisher(3).publish(&slot(), &listed).await.unwrap();
    assert_eq!(place.texts().await, ["{\"n\":1}\n"]);
}

#[tokio::test]
async fn files_on_their_way_leave_nothing_behind() {
    let place = Place::new("spill");
    let mut writer = place.writer(OutputFormat::Json, 1);
    let root = writer.files.spill.root.clone();

    let _interval = staged(&mut writer, &[1], 11).await;
    let left: Vec<_> = fs::read_dir(root.join(STAGING)).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");

    drop(writer);
    assert!(!root.exists());
}

#[tokio::test]
async fn files_of_a_killed_process_are_removed_by_the_next_and_of_a_live_one_are_not() {
    let place = Place::new("killed");
    let alive = place.writer(OutputFormat::Json, 1);
    // As SIGKILL leaves it: the lock is there and nobody holds it.
    let killed = std::env::temp_dir().join(format!("{SPILL}killed-{}", std::process::id()));
    fs::create_dir_all(&killed).unwrap();
    fs::write(killed.join(SPILL_LOCK), "").unwrap();

    let _next = place.writer(OutputFormat::Json, 2);

    assert!(!killed.exists());
    assert!(alive.files.spill.root.exists());
}

/// Keys are rotated and policies mended: another attempt may do better.
#[test]
fn refusal_that_may_pass_ends_no_job() {
    use streamforge_engine::error::Recovery;

    let config = SinkConfig {
        path: "s3://bucket/out/".to_owned(),
        partition_by: Vec::new(),
        rollover: None,
        s3: None,
    };
    let door = Door::new(place_of(&config).unwrap().unwrap(), None);
    let denied = streamforge_store::Error::PermissionDenied {
        action: "put",
        path: "out".into(),
        source: std::io::ErrorKind::PermissionDenied.into(),
    };
    let wrong = streamforge_store::Error::InvalidKey {
        key: "/".to_owned(),
        reason: "empty",
    };

    let recovery = |error| door.failed("stage a file in", error).recovery();
    assert_eq!(recovery(denied), Recovery::Restart);
    assert_eq!(recovery(wrong), Recovery::Stop);
}
