//! Answers that are lost, late or wrong, through a proxy.

use std::time::{Duration, Instant};

use bytes::Bytes;

use super::proxy::{Fate, Proxy};
use super::server::Server;
use super::{Limits, bytes};
use crate::s3::{Completed, MULTIPART_ABOVE_BYTES, PART_BYTES, S3Store};
use crate::{Condition, ETag, Error, ObjectStore as _, Put, Recovery};

/// A store behind a proxy, and one beside it.
struct Rig {
    proxy: Proxy,
    store: S3Store,
    other: S3Store,
}

async fn rig_with(limits: Limits) -> Rig {
    let server = Server::get();
    let proxy = Proxy::start(&server.endpoint).await;
    let place = server.place_at(&proxy.endpoint);
    let mut beside = place.clone();
    beside.access.endpoint = Some(server.endpoint.clone());
    Rig {
        store: server.connect(&place, limits).await,
        other: server.connect(&beside, Limits::default()).await,
        proxy,
    }
}

async fn rig() -> Rig {
    rig_with(Limits::default()).await
}

/// A key's worth of a fate.
fn name(fate: Fate) -> String {
    format!("{fate:?}")
        .chars()
        .filter(char::is_ascii_alphanumeric)
        .collect()
}

async fn create(store: &S3Store, key: &str, text: &str) -> ETag {
    match store.put(key, bytes(text), Condition::CreateIfAbsent).await {
        Ok(Put::Done(etag)) => etag,
        other => panic!("{other:?}"),
    }
}

async fn text(store: &S3Store, key: &str) -> String {
    let object = store
        .get(key)
        .await
        .expect("answered")
        .expect("it is there");
    String::from_utf8(object.bytes.to_vec()).expect("tests write text")
}

#[tokio::test]
async fn create_whose_answer_was_lost_is_found_to_be_ours_c2() {
    let rig = rig().await;
    let conflict = Fate::Answer(409, "ConditionalRequestConflict");
    for (n, fates) in [
        vec![Fate::LostAfter],
        vec![Fate::AnswerAfter(503, "ServiceUnavailable")],
        vec![Fate::AnswerAfter(500, "InternalError")],
        // The first is still at work when it is repeated; then the condition fails by one's own hand.
        vec![Fate::LostAfter, conflict],
        vec![Fate::LostBefore, Fate::LostAfter, conflict, conflict],
    ]
    .into_iter()
    .enumerate()
    {
        let key = format!("k-{n}");
        let asked_n = fates.len() + 1;
        rig.proxy.spoil("PUT ", fates);

        let etag = create(&rig.store, &key, "mine").await;

        assert_eq!(rig.proxy.seen_n(), asked_n, "{n}: one more than was lost");
        let there = rig
            .other
            .get(&key)
            .await
            .expect("answered")
            .expect("it is there");
        assert_eq!((there.etag, there.bytes), (etag, bytes("mine")));
    }
}

#[tokio::test]
async fn swap_whose_answer_was_lost_is_found_to_be_ours_c2() {
    let rig = rig().await;
    let v1 = create(&rig.store, "head", "one").await;
    let conflict = Fate::Answer(409, "ConditionalRequestConflict");
    rig.proxy.spoil(
        "PUT ",
        [Fate::LostAfter, conflict, Fate::LostAfter, conflict],
    );

    let put = rig
        .store
        .put("head", bytes("two"), Condition::IfMatch(v1))
        .await;

    let there = rig
        .other
        .get("head")
        .await
        .expect("answered")
        .expect("it is there");
    assert_eq!(put.expect("answered"), Put::Done(there.etag));
    assert_eq!(there.bytes, bytes("two"));
}

#[tokio::test]
async fn request_that_never_arrived_is_repeated() {
    let rig = rig().await;
    for fate in [
        Fate::LostBefore,
        Fate::Answer(500, "InternalError"),
        Fate::Answer(503, "SlowDown"),
        Fate::Answer(409, "ConditionalRequestConflict"),
        Fate::Answer(429, "TooManyRequests"),
    ] {
        let key = format!("again-{}", name(fate));
        rig.proxy.spoil("PUT ", [fate, fate]);

        create(&rig.store, &key, "mine").await;

        assert_eq!(rig.proxy.seen_n(), 3, "{fate:?}");
        assert_eq!(text(&rig.other, &key).await, "mine");
    }
    rig.proxy.spoil(
        "GET ",
        [
            Fate::LostBefore,
            Fate::Answer(500, "InternalError"),
            Fate::LostAfter,
        ],
    );
    assert_eq!(text(&rig.store, "again-LostBefore").await, "mine");
}

#[tokio::test]
async fn condition_that_fails_at_once_is_somebody_elses_write() {
    let rig = rig().await;
    create(&rig.other, "k", "theirs").await;
    rig.proxy.spoil("PUT ", []);

    let put = rig
        .store
        .put("k", bytes("mine"), Condition::CreateIfAbsent)
        .await;

    assert_eq!(put.expect("answered"), Put::ConditionFailed);
    assert_eq!(
        rig.proxy.seen_n(),
        1,
        "a definite answer is not asked for twice"
    );
    assert_eq!(text(&rig.other, "k").await, "theirs");
}

#[tokio::test]
async fn lost_write_that_somebody_replaced_has_an_unknown_outcome_attack_2() {
    // The swap is done, its answer is lost, and before it is repeated another writer swaps on top.
    let limits = Limits {
        pause_min: Duration::from_secs(1),
        ..Limits::default()
    };
    let rig = rig_with(limits).await;
    let v1 = create(&rig.store, "head", "one").await;
    rig.proxy.spoil("PUT ", [Fate::LostAfter]);

    let swap = rig
        .store
        .put("head", bytes("two"), Condition::IfMatch(v1.clone()));
    let other = async {
        loop {
            let there = rig
                .other
                .get("head")
                .await
                .expect("answered")
                .expect("it is there");
            if there.etag != v1 {
                return rig
                    .other
                    .put("head", bytes("three"), Condition::IfMatch(there.etag))
                    .await;
            }
        }
    };
    let (swap, other) = tokio::join!(swap, other);

    assert!(matches!(other, Ok(Put::Done(_))), "{other:?}");
    let error = swap.expect_err("it is not known whether it was done");
    assert_eq!(error.recovery(), Recovery::OutcomeUnknown, "{error}");
    assert_eq!(text(&rig.other, "head").await, "three");
}

#[tokio::test]
async fn silence_ends_at_the_deadline_with_an_unknown_outcome() {
    let limits = Limits {
        attempt: Duration::from_millis(100),
        overall: Duration::from_millis(1_500),
        attempt_per_mib: Duration::ZERO,
        pause_min: Duration::from_millis(20),
        ..Limits::default()
    };
    let rig = rig_with(limits).await;
    rig.proxy.spoil("k", [Fate::Silence; 60]);
    let started = Instant::now();

    let put = rig
        .store
        .put("k", bytes("x"), Condition::CreateIfAbsent)
        .await;
    let get = rig.store.get("k").await;

    assert!(
        started.elapsed() < Duration::from_secs(20),
        "{:?}",
        started.elapsed()
    );
    assert!(
        (4..=40).contains(&rig.proxy.seen_n()),
        "{} attempts",
        rig.proxy.seen_n()
    );
    for error in [
        put.expect_err("no answer"),
        get.map(drop).expect_err("no answer"),
    ] {
        assert_eq!(error.recovery(), Recovery::OutcomeUnknown, "{error}");
        let said = error.to_string();
        assert!(
            said.contains("no answer within") && said.contains("\"k\""),
            "{said}"
        );
    }
}

#[tokio::test]
async fn parts_completed_without_an_answer_are_found_to_be_ours_c2() {
    let rig = rig().await;
    let big = Bytes::from(vec![7; MULTIPART_ABOVE_BYTES + 1]);
    // Beginning and completing are POSTs, parts are PUTs.
    for (matching, fates) in [
        ("POST ", vec![Fate::Pass, Fate::LostAfter]),
        (
            "PUT ",
            vec![
                Fate::LostBefore,
                Fate::Answer(500, "InternalError"),
                Fate::LostAfter,
            ],
        ),
    ] {
        rig.proxy.spoil(matching, fates);
        let key = format!("big{}", matching.len());

        let put = rig
            .store
            .put(&key, big.clone(), Condition::CreateIfAbsent)
            .await;

        let there = rig
            .other
            .get(&key)
            .await
            .expect("answered")
            .expect("it is there");
        assert_eq!(put.expect("answered"), Put::Done(there.etag), "{matching}");
        assert!(there.bytes == big, "{matching}: the content differs");
    }
}

#[tokio::test]
async fn pieces_reach_the_object_through_lost_answers_and_leave_nothing_behind_c2() {
    let rig = rig().await;
    let content: Bytes = (0..PART_BYTES + 1_000).map(|at| (at / 7) as u8).collect();
    let pieces = [content.slice(..PART_BYTES), content.slice(PART_BYTES..)];
    // Beginning and completing are POSTs, pieces are PUTs.
    for (matching, fates) in [
        ("POST ", vec![Fate::Pass, Fate::LostAfter]),
        ("POST ", vec![Fate::Pass, Fate::Answer(503, "SlowDown")]),
        (
            "PUT ",
            vec![
                Fate::LostBefore,
                Fate::Answer(500, "InternalError"),
                Fate::LostAfter,
            ],
        ),
    ] {
        let key = format!("pieces/{}-{}", matching.len(), name(fates[fates.len() - 1]));
        rig.proxy.spoil(matching, fates);

        let put = async {
            let mut writer = rig.store.begin(&key).await?;
            for piece in &pieces {
                writer.add(piece.clone()).await?;
            }
            writer.finish(Condition::CreateIfAbsent).await
        };
        let put = put.await;

        let there = rig.other.get(&key).await.expect("answered");
        let there = there.expect("it is there");
        assert_eq!(put.expect("answered"), Put::Done(there.etag), "{key}");
        assert!(there.bytes == content, "{key}: the content differs");
    }
    // Another one of a key that is taken, and one that is thrown away.
    let taken = "pieces/5-LostAfter";
    let mut second = rig.store.begin(taken).await.expect("answered");
    second.add(bytes("x")).await.expect("answered");
    let put = second.finish(Condition::CreateIfAbsent).await;
    let mut third = rig.store.begin(taken).await.expect("answered");
    third.add(bytes("x")).await.expect("answered");
    rig.proxy.spoil("DELETE ", [Fate::LostAfter]);
    let abandoned = third.abandon().await;

    assert_eq!(put.expect("answered"), Put::ConditionFailed);
    abandoned.expect("answered");
    let uploads = rig.other.bucket.uploads("").await.expect("answered");
    assert_eq!(uploads, vec![]);
}

#[tokio::test]
async fn upload_is_completed_once_and_found_done_ever_after_x6_attack_49() {
    let rig = rig().await;
    let bucket = &rig.store.bucket;
    let upload = bucket
        .begin("out/day=%20/f.ndjson")
        .await
        .expect("answered");
    let parts = vec![upload.send(1, bytes("row\n")).await.expect("answered")];
    assert_eq!(
        rig.other.bucket.list("out/").await.expect("answered"),
        vec![]
    );
    rig.proxy.spoil("POST ", [Fate::LostAfter]);

    let first = bucket.complete(upload.name(), &parts).await;
    let second = bucket.complete(upload.name(), &parts).await;

    assert_eq!(first.expect("answered"), Completed::Done);
    assert_eq!(second.expect("answered"), Completed::Done);
    let there = bucket.get("out/day=%20/f.ndjson").await.expect("answered");
    assert_eq!(there.map(|it| it.bytes), Some(bytes("row\n")));
    assert_eq!(bucket.uploads("out/").await.expect("answered"), vec![]);
}

#[tokio::test]
async fn upload_is_completed_with_a_rest_once_and_a_racing_process_finds_it_done_x6() {
    let rig = rig().await;
    let bucket = &rig.store.bucket;
    let upload = bucket.begin("rest").await.expect("answered");
    let name = upload.name();
    let first = Bytes::from(vec![b'a'; PART_BYTES]);
    let parts = vec![upload.send(1, first.clone()).await.expect("answered")];
    // What the dead writer sent behind what is listed is replaced.
    let _unlisted = upload.send(2, bytes("unlisted")).await.expect("answered");
    rig.proxy.spoil("PUT ", [Fate::LostAfter]);

    let complete = || bucket.complete_with(name, &parts, bytes("rest"));
    assert_eq!(complete().await.expect("answered"), Completed::Done);
    assert_eq!(complete().await.expect("answered"), Completed::Done);
    // Another process looked before it was done, and sends its part behind that.
    rig.proxy.spoil("HEAD ", [Fate::Answer(404, "NotFound")]);
    assert_eq!(complete().await.expect("answered"), Completed::Done);

    let there = bucket.get("rest").await.expect("answered");
    let there = there.expect("it is done").bytes;
    assert!(there == [first, bytes("rest")].concat(), "it differs");
    let gone = bucket.begin("gone").await.expect("answered");
    let thrown = bucket.abandon("gone", &gone.name().id).await;
    thrown.expect("answered");
    let end = bucket.complete_with(gone.name(), &[], bytes("rest")).await;
    assert_eq!(end.expect("answered"), Completed::Gone);
}

#[tokio::test]
async fn upload_that_was_thrown_away_is_told_from_one_that_is_done_x6() {
    let rig = rig().await;
    let bucket = &rig.store.bucket;
    let gone = bucket.begin("gone").await.expect("answered");
    let parts = vec![gone.send(1, bytes("x")).await.expect("answered")];
    bucket
        .abandon("gone", &gone.name().id)
        .await
        .expect("answered");
    let taken = bucket.begin("taken").await.expect("answered");
    let taken_parts = vec![taken.send(1, bytes("mine")).await.expect("answered")];
    create(&rig.other, "taken", "theirs").await;

    assert_eq!(
        bucket
            .complete(gone.name(), &parts)
            .await
            .expect("answered"),
        Completed::Gone
    );
    let end = bucket.complete(taken.name(), &taken_parts).await;
    assert_eq!(end.expect("answered"), Completed::Taken);
    assert_eq!(text(&rig.other, "taken").await, "theirs");
    bucket
        .abandon("gone", &gone.name().id)
        .await
        .expect("twice is no error");
}

#[tokio::test]
async fn range_beyond_the_end_is_told_with_the_length_through_faults() {
    let rig = rig().await;
    create(&rig.store, "k", "0123456789").await;
    rig.proxy
        .spoil("GET ", [Fate::LostAfter, Fate::Answer(503, "SlowDown")]);

    assert_eq!(
        rig.store.get_range("k", 2..5).await.expect("answered"),
        bytes("234")
    );
    let beyond = rig.store.get_range("k", 5..11).await;
    assert!(
        matches!(beyond, Err(Error::OutOfRange { bytes_n: 10, .. })),
        "{beyond:?}"
    );
}
