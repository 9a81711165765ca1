//! Objects of a bucket as files, against the real server of `e2e/services/s3`.

use bytes::Bytes;
use streamforge_core::s3::S3Place;
use streamforge_store::Condition;
use streamforge_store::s3::{Bucket, Limits};

use super::*;
use crate::files::config::S3;
use crate::files::shelf::Shelf;
use crate::files::test_server::Server;

/// Keys and contents; the last names of the keys differ.
type Objects = Vec<(&'static str, Vec<u8>)>;

struct Input {
    server: Server,
    bucket: Bucket,
}

impl Input {
    async fn new(test: &str, objects: Objects) -> Self {
        let server = Server::up(&format!("test-source/{test}"));
        let place = S3Place::parse(&server.path(), S3::access(Some(&server.s3()))).unwrap();
        let secrets = server.secrets();
        let bucket = Bucket::connect(&place, secrets.as_deref(), Limits::default());
        let bucket = bucket.await.unwrap();
        let input = Self { server, bucket };
        for (key, bytes) in objects {
            input.put(key, bytes).await;
        }
        input
    }

    async fn put(&self, key: &str, bytes: Vec<u8>) {
        let put = self.bucket.put(key, Bytes::from(bytes), &Condition::None);
        let _version = put.await.unwrap();
    }

    /// A source that reads `pattern` in the folder of this test.
    fn spec(&self, pattern: &str, format: FileFormat, order: Order) -> FileSourceSpec {
        let path = format!("{}{pattern}", self.server.path());
        let mut spec = spec(&path, format, order);
        spec.config.s3 = Some(self.server.s3());
        spec.shelf = Arc::new(Shelf::of(&spec.config, self.server.secrets()).unwrap());
        spec
    }

    async fn names(&self, pattern: &str) -> Vec<String> {
        let listed = splits(&self.spec(pattern, json(), Order::Any)).await;
        let name = |split: &SplitState| {
            let name = split.split.0.strip_prefix(&self.server.path());
            name.expect("it lies in the folder").to_owned()
        };
        listed.iter().map(name).collect()
    }
}

/// The same as files of a folder, which is the independent word on what is to be read.
fn as_folder(objects: &Objects) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (key, bytes) in objects {
        let path = folder.path().join(key);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }
    folder
}

/// Reads all, stops after some batches and goes on, with one and three threads: always the same rows,
/// and those of a folder.
async fn check_as_a_folder(test: &str, objects: Objects, format: FileFormat, stops: &[usize]) {
    let folder = as_folder(&objects);
    let input = Input::new(test, objects).await;
    for order in [Order::Any, Order::ByName] {
        let local = spec(folder.path().to_str().unwrap(), format.clone(), order);
        let wanted = read(&local, 1, splits(&local).await, usize::MAX).await;
        let wanted = wanted.unwrap();
        let spec = input.spec("", format.clone(), order);
        let listed = splits(&spec).await;
        for threads in [1, 3] {
            let heard = read(&spec, threads, listed.clone(), usize::MAX).await;
            let heard = heard.unwrap();
            assert_eq!((&heard.rows, &heard.bad), (&wanted.rows, &wanted.bad));
        }
        for stop in stops {
            let before = read(&spec, 1, listed.clone(), *stop).await.unwrap();
            let mut rest = listed.clone();
            for state in &mut rest {
                let mut progress = before.progress.iter().rev();
                if before.ended.contains(&state.split) {
                    state.progress = SplitProgress::End;
                } else if let Some(last) = progress.find(|it| it.0 == state.split) {
                    state.progress = last.1.clone();
                }
            }
            let after = read(&spec, 1, rest, usize::MAX).await.unwrap();
            let joined: Vec<_> = before.rows.into_iter().chain(after.rows).collect();
            assert_eq!(joined, wanted.rows, "stopped after batch {stop}");
        }
    }
}

#[tokio::test]
async fn objects_give_the_rows_that_files_of_a_folder_give() {
    let second = format!("not json\n\n{}", lines(60_000, 9_000));
    let objects: Objects = vec![
        // 12 MB: several pieces, the last of them short.
        ("a.ndjson", lines(0, 60_000).into_bytes()),
        ("b.ndjson.gz", gzip(&second)),
        (
            "c.ndjson.zst",
            zstd::encode_all(lines(69_000, 9_000).trim_end().as_bytes(), 1).unwrap(),
        ),
        ("sub/d.ndjson", lines(78_000, 3).into_bytes()),
        ("sub/e.ndjson", Vec::new()),
    ];
    check_as_a_folder("text", objects, json(), &[1, 4, 7, 12]).await;
}

#[tokio::test]
async fn csv_of_a_bucket_is_read_by_the_names_of_its_header() {
    let rows: String = (0..20_000).map(|n| format!("q,{n},x{n}\r\n")).collect();
    let objects: Objects = vec![
        ("a.csv", format!("\u{feff}other,n,s\r\n{rows}").into_bytes()),
        ("b.csv.gz", gzip("n,s\n1,\"two\nlines\"\nx,y\n")),
    ];
    check_as_a_folder("csv", objects, csv(), &[1, 2]).await;

    let input = Input::new("csv-bad", vec![("a.csv", b"other,N,s\nq,1,x\n".to_vec())]).await;
    let spec = input.spec("", csv(), Order::Any);
    let listed = FileEnumerator::new(spec).list().await;
    let error = listed.unwrap_err().with_causes();
    assert!(error.contains("a.csv has no column `n`"), "{error}");
}

fn parquet(from: i64, n: i64, rows_per_group: usize) -> Vec<u8> {
    let texts = (from..from + n).map(|n| Some(format!("{:x}", xxh3_64(&n.to_le_bytes()))));
    let s: arrow::array::StringArray = texts.collect();
    let n: Int64Array = (from..from + n).map(Some).collect();
    let columns: [(&str, arrow::array::ArrayRef, bool); 2] =
        [("s", Arc::new(s), true), ("n", Arc::new(n), true)];
    let batch = RecordBatch::try_from_iter_with_nullable(columns).unwrap();
    let properties = parquet::file::properties::WriterProperties::builder();
    let properties = properties
        .set_max_row_group_row_count(Some(rows_per_group))
        .build();
    let mut bytes = Vec::new();
    let mut writer =
        parquet::arrow::ArrowWriter::try_new(&mut bytes, batch.schema(), Some(properties)).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
    bytes
}

#[tokio::test]
async fn parquet_of_a_bucket_is_read_by_ranges() {
    // Of 4 MB, that is of several blocks, and small.
    let large = parquet(0, 200_000, 60_000);
    assert!(large.len() > 3 << 20, "{}", large.len());
    let objects: Objects = vec![
        ("a.parquet", large),
        ("b.parquet", parquet(200_000, 10, 100)),
    ];
    check_as_a_folder("parquet", objects, FileFormat::Parquet, &[1, 9, 20]).await;
}

#[tokio::test]
async fn path_in_a_bucket_is_an_object_a_prefix_or_a_glob_and_hides_what_is_staged() {
    let line = || b"{\"n\":1}\n".to_vec();
    let keys = [
        "in/b.ndjson",
        "in/a.ndjson",
        "in/c.csv",
        "in/.hidden.ndjson",
        "in/_streamforge/x.ndjson",
        "in/sub/d.ndjson",
        "in/with space#?.ndjson",
        "input/e.ndjson",
        "_own/f.ndjson",
    ];
    let objects = keys.iter().map(|key| (*key, line())).collect();
    let input = Input::new("list", objects).await;

    let all = [
        "in/a.ndjson",
        "in/b.ndjson",
        "in/c.csv",
        "in/sub/d.ndjson",
        "in/with space#?.ndjson",
    ];
    assert_eq!(input.names("in/").await, all);
    assert_eq!(input.names("in").await, all);
    assert_eq!(input.names("in/c.csv").await, ["in/c.csv"]);
    assert_eq!(
        input.names("in/[ab].ndjson").await,
        ["in/a.ndjson", "in/b.ndjson"]
    );
    assert_eq!(input.names("*/*/*.ndjson").await, ["in/sub/d.ndjson"]);
    assert_eq!(input.names("in*/e*").await, ["input/e.ndjson"]);
    // There the user named a hidden folder.
    assert_eq!(input.names("_own/").await, ["_own/f.ndjson"]);
    let spec = input.spec("nothing/", json(), Order::Any);
    let error = FileEnumerator::new(spec).list().await.unwrap_err();
    assert!(error.with_causes().contains("no file matches"));
    let spec = input.spec("in/with*", json(), Order::Any);
    let heard = read(&spec, 1, splits(&spec).await, usize::MAX).await;
    assert_eq!(heard.unwrap().rows[0].1, "with space#?.ndjson");
}

#[tokio::test]
async fn object_that_was_replaced_or_removed_is_named_and_no_row_of_another_version_is_read() {
    let input = Input::new("changed", vec![("a.ndjson", lines(0, 10).into_bytes())]).await;
    let spec = input.spec("", json(), Order::Any);
    let listed = splits(&spec).await;

    input.put("a.ndjson", lines(1, 10).into_bytes()).await;
    let error = read(&spec, 1, listed.clone(), usize::MAX)
        .await
        .unwrap_err();
    let error = error.with_causes();
    assert!(
        error.contains("a.ndjson changed since it was listed"),
        "{error}"
    );
    input.bucket.delete(&["a.ndjson".to_owned()]).await.unwrap();
    let error = read(&spec, 1, listed, usize::MAX).await.unwrap_err();
    let error = error.with_causes();
    assert!(error.contains("a.ndjson vanished"), "{error}");
}

#[tokio::test]
async fn object_that_is_replaced_while_it_is_read_is_named() {
    for format in [json(), FileFormat::Parquet] {
        let content = |from: i64| match format {
            FileFormat::Parquet => parquet(from, 900_000, 60_000),
            FileFormat::Text(_) => lines(from, 90_000).into_bytes(),
        };
        let input = Input::new("replaced", vec![("a", content(0))]).await;
        let spec = input.spec("a", format.clone(), Order::Any);
        let listed = splits(&spec).await;
        let mut reader = FileReader::new(spec.clone(), place(1, &listed));
        reader.assign(listed).await.unwrap();
        assert!(matches!(reader.next().await, Ok(SourceEvent::Batch(_))));

        input.put("a", content(1)).await;
        let error = loop {
            match reader.next().await {
                Ok(SourceEvent::Batch(_)) => {}
                Ok(event) => panic!("{event:?}"),
                Err(error) => break error,
            }
        };

        let text = error.with_causes();
        assert!(text.contains("a changed since it was listed"), "{text}");
    }
}

#[tokio::test]
async fn watched_bucket_gives_each_new_object_once() {
    let input = Input::new("watch", vec![("0.ndjson", lines(0, 1).into_bytes())]).await;
    let mut spec = input.spec("", json(), Order::Any);
    spec.config.watch = Some("0s".parse().unwrap());
    let known = splits(&spec).await;
    let mut reader = FileReader::new(spec, place(1, &known));
    reader.assign(known).await.unwrap();
    let (mut values, mut discovered_n) = (Vec::new(), 0);
    for n in 1..4 {
        input
            .put(&format!("{n}.ndjson"), lines(n, 1).into_bytes())
            .await;
        loop {
            match reader.next().await.unwrap() {
                SourceEvent::Discovered(_) => discovered_n += 1,
                SourceEvent::Batch(batch) => {
                    let read = batch.rows.column(0).as_primitive::<Int64Type>();
                    values.extend_from_slice(read.values());
                }
                SourceEvent::SplitEnded(_) => {}
                SourceEvent::Waiting => break,
                event => panic!("{event:?}"),
            }
        }
    }

    assert_eq!((values, discovered_n), (vec![0, 1, 2, 3], 3));
}

#[tokio::test]
async fn bucket_that_is_not_there_is_an_error_that_names_it() {
    let input = Input::new("absent", Vec::new()).await;
    let mut spec = input.spec("", json(), Order::Any);
    spec.config.path = "s3://no-such-bucket-here/in/".to_owned();
    spec.shelf = Arc::new(Shelf::of(&spec.config, input.server.secrets()).unwrap());

    let error = FileEnumerator::new(spec).list().await.unwrap_err();

    let text = error.with_causes();
    assert!(text.contains("no-such-bucket-here"), "{text}");
    assert!(text.contains("there is no bucket of this name"), "{text}");
}

/// What manifests hold of an object (C8).
#[test]
fn facts_of_an_object_are_its_version_and_those_of_a_file_are_as_they_were_c8() {
    let stored = r#"{"path":"/in/a","size":3,"changed_us":5,"head":1,"tail":2}"#;
    let facts: FileFacts = serde_json::from_str(stored).unwrap();
    assert_eq!((facts.size, &facts.etag), (3, &None));
    assert_eq!(serde_json::to_string(&facts).unwrap(), stored);

    let object = FileFacts {
        etag: Some("\"1-2\"".to_owned()),
        ..facts
    };
    let json = serde_json::to_string(&object).unwrap();
    assert_eq!(serde_json::from_str::<FileFacts>(&json).unwrap(), object);
}
