use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use streamforge_core::ids::OperatorUid;
use streamforge_store::MemoryStore;

use super::*;
use crate::kafka::encode::TopicLimits;
use crate::kafka::staged::decode;
use crate::kafka::straight::StraightWriter;

fn id(n: u64) -> CheckpointId {
    CheckpointId::from_stored(n)
}

fn spec() -> KafkaSinkSpec {
    let config: SinkConfig =
        serde_json::from_str(r#"{"bootstrapServers":"a:9092","topic":"out","key":["n"]}"#).unwrap();
    let lookup = LookupPlace::new(config.access.clone(), None);
    KafkaSinkSpec {
        config,
        format: ValueFormat::Json,
        changelog: ChangelogMode::AppendOnly,
        lookup,
    }
}

/// A writer that knows its topic already.
fn writer(store: &Arc<MemoryStore>) -> KafkaWriter {
    let name = KafkaWriterName {
        slot: SlotId {
            sink: OperatorUid("out".into()),
            slot: 3,
        },
        generation: Generation::from_stored(2),
        epoch: Epoch::from_stored(5),
        first_id: id(10),
    };
    let store: Arc<dyn ObjectStore> = store.clone();
    let mut writer = KafkaWriter::new(spec(), name, store);
    let view = TopicView {
        id: Some("topic-id".to_owned()),
        limits: TopicLimits {
            partitions_n: 4,
            message_bytes_max: 1 << 20,
        },
    };
    let encoder = encoder(&writer.spec, &view, 3);
    writer.topic = Some((view, encoder));
    writer
}

fn rows(values: std::ops::Range<i64>) -> StreamBatch {
    let array: ArrayRef = Arc::new(Int64Array::from_iter_values(values));
    StreamBatch::plain(RecordBatch::try_from_iter([("n", array)]).unwrap())
}

#[tokio::test]
async fn a_staged_interval_is_in_the_store_under_names_of_the_last_barrier_seen_c4() {
    let store = Arc::new(MemoryStore::default());
    let mut writer = writer(&store);
    writer.write(rows(0..2)).await.unwrap();
    let first = writer.stage(id(11)).unwrap().await.unwrap().unwrap();
    writer.write(rows(2..3)).await.unwrap();
    let second = writer.stage(id(12)).unwrap().await.unwrap().unwrap();

    assert_eq!((first.id, second.id), (id(11), id(12)));
    assert_eq!(first.objects[0].staged, "staged/g2-e5-c10-sout.3-0");
    assert_eq!(second.objects[0].staged, "staged/g2-e5-c11-sout.3-1");
    let written_by = object_key::writer_of(&first.objects[0].staged).unwrap();
    assert_eq!(written_by.checkpoint, id(10), "C6 reads it back");
    let object = store.get(&first.objects[0].staged).await.unwrap().unwrap();
    let values: Vec<_> = decode(&object.bytes)
        .unwrap()
        .iter()
        .map(|record| String::from_utf8_lossy(record.value.unwrap()).into_owned())
        .collect();
    assert_eq!(values, [r#"{"n":0}"#, r#"{"n":1}"#]);
    let detail: Detail = serde_json::from_str(&first.objects[0].detail).unwrap();
    assert_eq!(detail.topic_id.as_deref(), Some("topic-id"));
}

#[tokio::test]
async fn an_interval_without_rows_is_not_listed_kf_x9() {
    let store = Arc::new(MemoryStore::default());
    let mut writer = writer(&store);

    assert_eq!(writer.stage(id(11)).unwrap().await.unwrap(), None);
    assert!(writer.write(rows(0..0)).await.unwrap().is_empty());
    assert_eq!(writer.stage(id(12)).unwrap().await.unwrap(), None);
    assert!(store.list("").await.unwrap().is_empty());
}

/// Attack 14: however long an interval grows, its transactions stay short.
#[tokio::test]
async fn attack_14_a_huge_interval_is_cut_into_parts_x1() {
    let store = Arc::new(MemoryStore::default());
    let mut writer = writer(&store);
    for n in 0..60 {
        writer.write(rows(n * 8192..(n + 1) * 8192)).await.unwrap();
    }

    let interval = writer.stage(id(11)).unwrap().await.unwrap().unwrap();

    assert!(interval.objects.len() > 1);
    assert_eq!(
        interval
            .objects
            .iter()
            .map(|object| object.rows)
            .sum::<u64>(),
        60 * 8192
    );
    for object in &interval.objects {
        assert!(object.bytes < 2 * PART_BYTES as u64, "{}", object.bytes);
    }
}

/// A window that fires has all its rows in one batch, and they may be wide.
#[tokio::test]
async fn a_batch_of_wide_rows_is_cut_into_parts_x1() {
    let store = Arc::new(MemoryStore::default());
    let mut writer = writer(&store);
    let wide = "x".repeat(100_000);
    let text: ArrayRef = Arc::new(StringArray::from_iter_values((0..400).map(|_| &wide)));
    let n: ArrayRef = Arc::new(Int64Array::from_iter_values(0..400));
    let batch = RecordBatch::try_from_iter([("n", n), ("text", text)]).unwrap();

    let written = writer.write(StreamBatch::plain(batch)).await;
    assert!(written.unwrap().is_empty());
    let interval = writer.stage(id(11)).unwrap().await.unwrap().unwrap();

    let rows = interval.objects.iter().map(|object| object.rows);
    assert_eq!(rows.sum::<u64>(), 400);
    for object in &interval.objects {
        assert!(object.bytes < 2 * PART_BYTES as u64, "{}", object.bytes);
    }
}

/// Both kinds of writers: a cluster that is away fails no attempt, however long.
#[tokio::test]
async fn a_writer_says_that_brokers_are_away_and_does_not_fail() {
    let properties = r#"{"bootstrapServers":"127.0.0.1:1","topic":"out","key":["n"]}"#;
    let config: SinkConfig = serde_json::from_str(properties).unwrap();
    let away = KafkaSinkSpec {
        lookup: LookupPlace::new(config.access.clone(), None),
        config,
        ..spec()
    };
    let staging = KafkaWriter {
        spec: away.clone(),
        topic: None,
        ..writer(&Arc::new(MemoryStore::default()))
    };
    let straight = StraightWriter::new(away, 0);
    let writers: [Box<dyn SinkWriter>; 2] = [Box::new(staging), Box::new(straight)];

    for mut writer in writers {
        let trouble = writer.open().await.expect("it is no failure");
        let trouble = trouble.expect("nobody answers");
        assert!(trouble.contains("127.0.0.1:1"), "{trouble}");
        let error = writer.write(rows(0..1)).await.unwrap_err();
        assert_eq!(error.recovery(), Recovery::Restart);
    }
}
