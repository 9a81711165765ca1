//! What is exported is what was said, under described names.

use std::sync::Arc;

use bytes::Bytes;
use prometheus::{Registry, TextEncoder};
use streamforge_core::ids::{Epoch, Generation, JobId, OperatorUid, StageIdx, SubtaskIdx};
use streamforge_core::manifest::Counters;
use streamforge_proto::metrics::{Kind, http};
use streamforge_store::{Condition, MemoryStore, ObjectStore};

use super::store_calls::CountedStore;
use super::*;
use crate::progress::Lag;
use streamforge_engine::task::Traffic;

fn stamp() -> Stamp {
    Stamp {
        job: JobId("clicks-1".to_owned()),
        generation: Generation::from_stored(1),
        epoch: Epoch::from_stored(4),
    }
}

fn progress() -> Progress {
    let uid = |name: &str| OperatorUid(name.to_owned());
    let counters = Counters {
        rows_in: 10,
        passed: 6,
        filtered: 1,
        late: 2,
        bad: 1,
        out: 5,
        ..Counters::default()
    };
    Progress {
        counters: [(uid("per_user"), counters)].into(),
        watermarks: [
            (uid("per_user"), Watermark(90_000_000)),
            (uid("ended"), Watermark::END),
        ]
        .into(),
        read: [(uid("events"), (7, 9))].into(),
        ..Progress::default()
    }
}

fn text(metrics: &Metrics) -> String {
    let registry = Registry::new();
    registry.register(Box::new(metrics.clone())).unwrap();
    TextEncoder::new()
        .encode_to_string(&registry.gather())
        .unwrap()
}

#[test]
fn counters_of_tasks_are_exported_as_they_are() {
    let metrics = Metrics::default();
    let task = TaskId {
        stage: StageIdx(1),
        subtask: SubtaskIdx(3),
    };
    let times = Times {
        running_us: 4_000_000,
        idle_us: 1_000_000,
        blocked_us: 500_000,
    };
    metrics.on_progress(&stamp(), progress(), vec![(task, times)]);

    let text = text(&metrics);

    for line in [
        "streamforge_task_epoch{job=\"clicks-1\"} 4",
        "streamforge_task_rows_in_total{job=\"clicks-1\",operator=\"per_user\"} 10",
        "streamforge_task_rows_out_total{job=\"clicks-1\",operator=\"per_user\"} 5",
        "streamforge_task_rows_late_total{job=\"clicks-1\",operator=\"per_user\"} 2",
        "streamforge_task_rows_bad_total{job=\"clicks-1\",operator=\"per_user\"} 1",
        "streamforge_task_watermark_seconds{job=\"clicks-1\",operator=\"per_user\"} 90",
        "streamforge_task_source_read_units_total{job=\"clicks-1\",operator=\"events\"} 7",
        "streamforge_task_blocked_seconds_total{job=\"clicks-1\",stage=\"1\",subtask=\"3\"} 0.5",
        "# TYPE streamforge_task_rows_in_total counter",
        "# TYPE streamforge_task_epoch gauge",
    ] {
        assert!(text.lines().any(|l| l == line), "{line}\n{text}");
    }
    let ended = text.lines().find(|l| l.contains("operator=\"ended\""));
    assert_eq!(ended, None, "the end of time is no time");
}

#[test]
fn lag_is_the_clock_less_the_watermark() {
    let metrics = Metrics::default();
    metrics.on_progress(&stamp(), progress(), Vec::new());
    let mut sheet = Sheet::new(DESCRIBED);

    metrics.fill(&mut sheet, 92_500_000);

    let families = sheet.into_families();
    let text = TextEncoder::new().encode_to_string(&families).unwrap();
    let line = "streamforge_task_watermark_lag_seconds{job=\"clicks-1\",operator=\"per_user\"} 2.5";
    assert!(text.lines().any(|l| l == line), "{text}");
}

#[test]
fn bytes_lag_and_credit_are_exported() {
    let metrics = Metrics::default();
    let uid = |name: &str| OperatorUid(name.to_owned());
    let traffic = Traffic {
        bytes_in: 800,
        bytes_out: 96,
    };
    let lag = |records_n, read_up_to_ms| Lag {
        records_n,
        read_up_to_ms,
    };
    let local = Local {
        traffic: [(uid("per_user"), traffic)].into(),
    };
    let progress = Progress {
        read: [(uid("events"), (7, 0)), (uid("away"), (7, 0))].into(),
        lag: [
            (uid("events"), lag(12, Some(90_000))),
            (uid("done"), lag(0, Some(90_000))),
        ]
        .into(),
        skipped_n: [(uid("events"), 4)].into(),
        unreachable: [(uid("away"), "no answer".to_owned())].into(),
        ..progress()
    };
    let channel = ChannelName {
        edge: 2,
        sender: SubtaskIdx(0),
        receiver: SubtaskIdx(1),
    };
    metrics.on_progress(&stamp(), progress, Vec::new());
    metrics.on_local(local, vec![(channel, -40)]);
    let mut sheet = Sheet::new(DESCRIBED);

    metrics.fill(&mut sheet, 92_500_000);

    let families = sheet.into_families();
    let text = TextEncoder::new().encode_to_string(&families).unwrap();
    for line in [
        "streamforge_task_bytes_in_total{job=\"clicks-1\",operator=\"per_user\"} 800",
        "streamforge_task_bytes_out_total{job=\"clicks-1\",operator=\"per_user\"} 96",
        "streamforge_task_source_lag_records{job=\"clicks-1\",operator=\"events\"} 12",
        "streamforge_task_source_lag_seconds{job=\"clicks-1\",operator=\"events\"} 2.5",
        "streamforge_task_source_lag_seconds{job=\"clicks-1\",operator=\"done\"} 0",
        "streamforge_task_source_unreachable{job=\"clicks-1\",operator=\"events\"} 0",
        "streamforge_task_source_unreachable{job=\"clicks-1\",operator=\"away\"} 1",
        "streamforge_task_source_skipped_records_total{job=\"clicks-1\",operator=\"events\"} 4",
        "streamforge_task_source_skipped_records_total{job=\"clicks-1\",operator=\"away\"} 0",
        "streamforge_exchange_credit_bytes{edge=\"2\",receiver=\"1\",sender=\"0\"} -40",
    ] {
        assert!(text.lines().any(|l| l == line), "{line}\n{text}");
    }
}

#[tokio::test]
async fn store_calls_are_counted_by_outcome() {
    let store = CountedStore::new(Arc::new(MemoryStore::default()));
    let metrics = Metrics::default();
    metrics.watch_store(store.calls());
    let bytes = Bytes::from_static(b"12345");

    for _ in 0..2 {
        let put = store.put("a", bytes.clone(), Condition::CreateIfAbsent);
        let _either = put.await.unwrap();
    }
    store.get("a").await.unwrap();
    store.get("b").await.unwrap();
    store.get_range("b", 0..1).await.unwrap_err();

    let text = text(&metrics);
    for line in [
        "streamforge_store_calls_total{call=\"put\",outcome=\"done\"} 1",
        "streamforge_store_calls_total{call=\"put\",outcome=\"condition_failed\"} 1",
        "streamforge_store_calls_total{call=\"get\",outcome=\"done\"} 1",
        "streamforge_store_calls_total{call=\"get\",outcome=\"absent\"} 1",
        "streamforge_store_calls_total{call=\"get\",outcome=\"failed\"} 1",
        "streamforge_store_bytes_total{call=\"put\"} 5",
    ] {
        assert!(text.lines().any(|l| l == line), "{line}\n{text}");
    }
}

#[tokio::test]
async fn counted_store_keeps_the_contract() {
    let store = || {
        let inner = Arc::new(MemoryStore::default());
        Arc::new(CountedStore::new(inner))
    };
    streamforge_store::contract::check_contract(store).await;
}

#[test]
fn names_follow_the_conventions_of_prometheus() {
    for metric in DESCRIBED {
        let name = metric.name;
        assert!(name.starts_with("streamforge_"), "{name}");
        assert_eq!(
            name.ends_with("_total"),
            metric.kind == Kind::Counter,
            "{name}"
        );
        assert!(
            !name.contains("_ms") && !name.contains("_us"),
            "base units: {name}"
        );
        assert!(metric.help.ends_with('.'), "{name}");
    }
}

#[tokio::test]
async fn http_answers_metrics_and_both_probes() {
    let registry = Registry::new();
    let metrics = Metrics::default();
    metrics.on_progress(&stamp(), progress(), Vec::new());
    registry.register(Box::new(metrics)).unwrap();
    let ready: http::Ready = Arc::new(|| Err("no session".to_owned()));
    let address = http::serve(([127, 0, 0, 1], 0).into(), registry, ready)
        .await
        .unwrap();

    let dead: http::Ready = Arc::new(|| Err("stands still".to_owned()));
    let judged = (dead, Arc::new(|| Ok(())) as http::Ready);
    let judged = http::serve_judged(([127, 0, 0, 1], 0).into(), Registry::new(), judged)
        .await
        .unwrap();

    let answer_of = |address: std::net::SocketAddr, path: &'static str| async move {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    };
    let answer = |path| answer_of(address, path);

    assert!(answer("/metrics").await.contains("streamforge_task_epoch"));
    assert!(answer("/livez").await.starts_with("HTTP/1.1 200"));
    let unready = answer("/readyz").await;
    assert!(unready.starts_with("HTTP/1.1 503"), "{unready}");
    assert!(unready.contains("no session"), "{unready}");
    let dead = answer_of(judged, "/livez").await;
    assert!(dead.starts_with("HTTP/1.1 503"), "{dead}");
    assert!(dead.contains("stands still"), "{dead}");
    assert!(answer_of(judged, "/readyz").await.contains("ok"));
}
