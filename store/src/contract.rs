//! The contract suite of [`ObjectStore`]: every implementation calls [`check_contract`] from its
//! tests, inside a tokio runtime with several worker threads (the races need them).
//!
//! Owns: the claims of the trait's `# Contract`, one function each. A claim that fails panics.

use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::Barrier;
use tokio::task::JoinSet;

use crate::{Condition, ETag, Error, ObjectStore, ObjectWriter, PIECE_BYTES, Put, StoredObject};

/// Writers that race for one key.
const RACERS_N: usize = 8;

/// Rounds of each race: some servers honour a condition one by one and break it under a race.
const RACES_N: usize = 50;

/// Fewer of those with objects in pieces, each of which takes a server several requests.
const RACES_OF_PIECES_N: usize = 20;

/// Checks every claim of the contract, each on a fresh, empty store that `open` makes, for a store
/// that keeps objects in folders.
///
/// # Panics
/// When a claim does not hold.
pub async fn check_contract<S: ObjectStore + 'static>(open: impl Fn() -> Arc<S>) {
    no_key_is_a_prefix_path_of_another(&*open()).await;
    pieces_keep_keys_that_are_no_folders(&*open()).await;
    check_contract_of_flat_names(open).await;
}

/// As [`check_contract`], for a store that cannot see when one key is the folder of another.
///
/// # Panics
/// When a claim does not hold.
pub async fn check_contract_of_flat_names<S: ObjectStore + 'static>(open: impl Fn() -> Arc<S>) {
    put_is_read_back_whole(&*open()).await;
    missing_object_is_none_and_not_an_error(&*open()).await;
    range_is_exact_and_beyond_the_end_is_an_error(&*open()).await;
    object_that_is_longer_than_it_may_be_is_an_error(&*open()).await;
    create_if_absent_writes_once(&*open()).await;
    if_match_replaces_only_the_version_it_names(&*open()).await;
    listing_is_complete_ordered_and_by_plain_prefix(&*open()).await;
    delete_is_idempotent_and_frees_the_key(&*open()).await;
    keys_outside_the_rule_are_refused(&*open()).await;
    racing_creates_have_exactly_one_winner(open()).await;
    racing_swaps_have_exactly_one_winner(open()).await;
    readers_see_whole_versions_only(open()).await;
    pieces_are_read_back_as_one_object(&*open()).await;
    pieces_become_the_object_under_a_condition(&*open()).await;
    pieces_that_are_thrown_away_were_never_there(&*open()).await;
    racing_pieces_have_exactly_one_winner(open()).await;
}

fn bytes(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}

async fn put(store: &impl ObjectStore, key: &str, text: &str, condition: Condition) -> Put {
    store
        .put(key, bytes(text), condition)
        .await
        .expect("put is answered")
}

async fn done(store: &impl ObjectStore, key: &str, text: &str) -> ETag {
    match put(store, key, text, Condition::None).await {
        Put::Done(etag) => etag,
        Put::ConditionFailed => panic!("an unconditional put failed a condition"),
    }
}

async fn object(store: &impl ObjectStore, key: &str) -> StoredObject {
    store
        .get(key)
        .await
        .expect("get is answered")
        .expect("the object exists")
}

async fn put_is_read_back_whole(store: &impl ObjectStore) {
    let big = Bytes::from(vec![7_u8; 300_000]);
    for content in [Bytes::new(), bytes("x"), big] {
        let put = store
            .put("some/key", content.clone(), Condition::None)
            .await;
        let Ok(Put::Done(etag)) = put else {
            panic!("put of {} bytes: {put:?}", content.len())
        };
        let read = object(store, "some/key").await;
        assert!(
            read.bytes == content,
            "content of {} bytes differs",
            content.len()
        );
        assert_eq!(
            read.etag, etag,
            "a read names the version that the put was told"
        );
    }
}

async fn missing_object_is_none_and_not_an_error(store: &impl ObjectStore) {
    assert_eq!(store.get("missing").await.expect("get is answered"), None);
    assert_eq!(
        store.get("deep/er/missing").await.expect("get is answered"),
        None
    );
    let range = store.get_range("missing", 0..1).await;
    assert!(matches!(range, Err(Error::NotFound { .. })), "{range:?}");
    assert!(
        store
            .list("nothing/here/")
            .await
            .expect("list is answered")
            .is_empty()
    );
}

async fn range_is_exact_and_beyond_the_end_is_an_error(store: &impl ObjectStore) {
    let _etag = done(store, "k", "0123456789").await;
    for (range, expected) in [(0..10, "0123456789"), (3..5, "34"), (10..10, "")] {
        let read = store
            .get_range("k", range.clone())
            .await
            .expect("range is inside");
        assert_eq!(read, bytes(expected), "{range:?}");
    }
    for range in [0..11, 11..12] {
        let read = store.get_range("k", range.clone()).await;
        assert!(
            matches!(read, Err(Error::OutOfRange { bytes_n: 10, .. })),
            "{range:?}: {read:?}"
        );
    }
}

async fn object_that_is_longer_than_it_may_be_is_an_error(store: &impl ObjectStore) {
    let content = Bytes::from(vec![7_u8; 300_000]);
    let put = store.put("k", content.clone(), Condition::None).await;
    assert!(matches!(put, Ok(Put::Done(_))), "{put:?}");

    let read = store.get_within("k", 300_000).await;
    let read = read.expect("it is no longer").expect("it is there");
    assert!(read.bytes == content, "the content differs");
    for bytes_max in [0, 299_999] {
        let read = store.get_within("k", bytes_max).await;
        assert!(
            matches!(&read, Err(Error::TooLong { key, bytes_max: of, .. }) if key == "k" && *of == bytes_max),
            "{bytes_max}: {read:?}"
        );
    }
    let missing = store.get_within("missing", 0).await;
    assert_eq!(missing.expect("get is answered"), None);
}

async fn create_if_absent_writes_once(store: &impl ObjectStore) {
    let first = put(store, "k", "first", Condition::CreateIfAbsent).await;
    assert!(matches!(first, Put::Done(_)));
    let second = put(store, "k", "second", Condition::CreateIfAbsent).await;
    assert_eq!(second, Put::ConditionFailed);
    assert_eq!(object(store, "k").await.bytes, bytes("first"));
}

async fn if_match_replaces_only_the_version_it_names(store: &impl ObjectStore) {
    let absent = put(store, "k", "x", Condition::IfMatch(ETag::new("any"))).await;
    assert_eq!(absent, Put::ConditionFailed, "there was nothing to match");
    assert_eq!(store.get("k").await.expect("get is answered"), None);

    let v1 = done(store, "k", "one").await;
    let Put::Done(v2) = put(store, "k", "two", Condition::IfMatch(v1.clone())).await else {
        panic!("the version named was the current one");
    };
    assert_ne!(v1, v2);
    assert_eq!(
        put(store, "k", "three", Condition::IfMatch(v1)).await,
        Put::ConditionFailed
    );
    assert_eq!(
        object(store, "k").await,
        StoredObject {
            bytes: bytes("two"),
            etag: v2
        }
    );
}

async fn listing_is_complete_ordered_and_by_plain_prefix(store: &impl ObjectStore) {
    for key in ["b", "a/2", "a/10", "a-x", "ab/c/d", "a/sub/1"] {
        let _etag = done(store, key, "12").await;
    }
    for (prefix, expected) in [
        ("", vec!["a-x", "a/10", "a/2", "a/sub/1", "ab/c/d", "b"]),
        ("a/", vec!["a/10", "a/2", "a/sub/1"]),
        ("a", vec!["a-x", "a/10", "a/2", "a/sub/1", "ab/c/d"]),
        ("a/1", vec!["a/10"]),
        ("ab/c/d", vec!["ab/c/d"]),
        ("c", vec![]),
    ] {
        let listed = store.list(prefix).await.expect("list is answered");
        let keys: Vec<&str> = listed.iter().map(|meta| meta.key.as_str()).collect();
        assert_eq!(keys, expected, "prefix {prefix:?}");
        assert!(listed.iter().all(|meta| meta.bytes_n == 2));
    }
}

async fn delete_is_idempotent_and_frees_the_key(store: &impl ObjectStore) {
    for key in ["x/1", "x/2", "y"] {
        let _etag = done(store, key, "z").await;
    }
    let keys = ["x/1".to_owned(), "never/was".to_owned(), "y".to_owned()];
    store.delete(&keys).await.expect("delete is answered");
    store
        .delete(&keys)
        .await
        .expect("a second delete is no error");
    assert_eq!(store.get("x/1").await.expect("get is answered"), None);
    assert_eq!(object(store, "x/2").await.bytes, bytes("z"));
    let again = put(store, "x/1", "new", Condition::CreateIfAbsent).await;
    assert!(matches!(again, Put::Done(_)), "a deleted key is absent");
    store
        .delete(&["x/1".to_owned(), "x/2".to_owned()])
        .await
        .expect("delete is answered");
    let _etag = done(store, "x", "an emptied folder is no object").await;
}

async fn no_key_is_a_prefix_path_of_another(store: &impl ObjectStore) {
    let _etag = done(store, "a/b/c", "1").await;
    for key in ["a", "a/b", "a/b/c/d", "a/b/c/d/e"] {
        for condition in [Condition::None, Condition::CreateIfAbsent] {
            let put = store.put(key, bytes("2"), condition).await;
            assert!(
                matches!(put, Err(Error::KeyConflict { .. })),
                "{key}: {put:?}"
            );
        }
        assert_eq!(
            store.get(key).await.expect("get is answered"),
            None,
            "{key}"
        );
    }
    assert_eq!(object(store, "a/b/c").await.bytes, bytes("1"));
}

async fn keys_outside_the_rule_are_refused(store: &impl ObjectStore) {
    for key in ["", "/abs", "../up", "a//b", "a/", ".lock", "a b"] {
        let put = store.put(key, bytes("1"), Condition::None).await;
        assert!(
            matches!(put, Err(Error::InvalidKey { .. })),
            "put {key:?}: {put:?}"
        );
        let begun = store.begin(key).await;
        assert!(
            matches!(begun, Err(Error::InvalidKey { .. })),
            "begin {key:?}: {begun:?}"
        );
        let get = store.get(key).await;
        assert!(
            matches!(get, Err(Error::InvalidKey { .. })),
            "get {key:?}: {get:?}"
        );
        let delete = store.delete(&[key.to_owned()]).await;
        assert!(
            matches!(delete, Err(Error::InvalidKey { .. })),
            "delete {key:?}: {delete:?}"
        );
    }
}

/// Lets all racers put at once; gives the texts of those that were told `Done`.
async fn race<S: ObjectStore + 'static>(
    store: &Arc<S>,
    key: &str,
    condition: Condition,
) -> Vec<String> {
    let start = Arc::new(Barrier::new(RACERS_N));
    let mut racers = JoinSet::new();
    for racer in 0..RACERS_N {
        let (store, start) = (Arc::clone(store), Arc::clone(&start));
        let (key, condition, text) = (key.to_owned(), condition.clone(), format!("racer {racer}"));
        racers.spawn(async move {
            start.wait().await;
            let put = put(&*store, &key, &text, condition).await;
            matches!(put, Put::Done(_)).then_some(text)
        });
    }
    racers.join_all().await.into_iter().flatten().collect()
}

async fn racing_creates_have_exactly_one_winner<S: ObjectStore + 'static>(store: Arc<S>) {
    for round in 0..RACES_N {
        let key = format!("race/{round}");
        let winners = race(&store, &key, Condition::CreateIfAbsent).await;
        assert_eq!(winners.len(), 1, "round {round}: {winners:?}");
        assert_eq!(object(&*store, &key).await.bytes, bytes(&winners[0]));
    }
}

async fn racing_swaps_have_exactly_one_winner<S: ObjectStore + 'static>(store: Arc<S>) {
    for round in 0..RACES_N {
        // Every round starts from a version that never was before.
        let etag = done(&*store, "head", &format!("round {round}")).await;
        let winners = race(&store, "head", Condition::IfMatch(etag)).await;
        assert_eq!(winners.len(), 1, "round {round}: {winners:?}");
        assert_eq!(object(&*store, "head").await.bytes, bytes(&winners[0]));
    }
}

async fn readers_see_whole_versions_only<S: ObjectStore + 'static>(store: Arc<S>) {
    let version = |n: u8| Bytes::from(vec![n; 20_000]);
    let first = store
        .put("k", version(0), Condition::None)
        .await
        .expect("put is answered");
    assert!(matches!(first, Put::Done(_)));
    let mut tasks = JoinSet::new();
    for _reader in 0..4 {
        let store = Arc::clone(&store);
        tasks.spawn(async move {
            let mut last = 0;
            for _read in 0..RACES_N {
                let read = object(&*store, "k").await.bytes;
                assert_eq!(read.len(), 20_000);
                assert!(
                    read.iter().all(|byte| *byte == read[0]),
                    "two versions mixed"
                );
                assert!(read[0] >= last, "a read went back in time");
                last = read[0];
            }
        });
    }
    let writer = Arc::clone(&store);
    tasks.spawn(async move {
        for n in 1..=50 {
            let put = writer
                .put("k", version(n), Condition::None)
                .await
                .expect("put is answered");
            assert!(matches!(put, Put::Done(_)));
        }
    });
    let _units: Vec<()> = tasks.join_all().await;
}

/// Begins an object and adds this content in pieces.
async fn in_pieces(store: &impl ObjectStore, key: &str, content: &Bytes) -> Box<dyn ObjectWriter> {
    let mut writer = store.begin(key).await.expect("begin is answered");
    for from in (0..content.len()).step_by(PIECE_BYTES) {
        let to = content.len().min(from + PIECE_BYTES);
        let piece = content.slice(from..to);
        writer.add(piece).await.expect("add is answered");
    }
    writer
}

async fn finish(mut writer: Box<dyn ObjectWriter>, condition: Condition) -> Put {
    let put = writer.finish(condition).await;
    put.expect("finish is answered")
}

/// No two pieces of it are the same, and no run of a few bytes comes twice near by.
fn content(bytes_n: usize) -> Bytes {
    let words = (0_u64..).flat_map(|n| n.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes());
    words.take(bytes_n).collect()
}

async fn pieces_are_read_back_as_one_object(store: &impl ObjectStore) {
    for bytes_n in [0, 1, PIECE_BYTES, 2 * PIECE_BYTES + 12_345] {
        let (key, content) = (format!("pieces/{bytes_n}"), content(bytes_n));
        let writer = in_pieces(store, &key, &content).await;
        assert_eq!(store.get(&key).await.expect("get is answered"), None);
        assert_eq!(store.list(&key).await.expect("list is answered"), vec![]);

        let put = finish(writer, Condition::CreateIfAbsent).await;

        let read = object(store, &key).await;
        assert!(
            read.bytes == content,
            "content of {bytes_n} bytes in pieces differs"
        );
        assert_eq!(put, Put::Done(read.etag));
        let listed = store.list(&key).await.expect("list is answered");
        let listed: Vec<u64> = listed.iter().map(|meta| meta.bytes_n).collect();
        assert_eq!(listed, [bytes_n as u64]);
    }
}

async fn pieces_become_the_object_under_a_condition(store: &impl ObjectStore) {
    let pieces = async |text, condition| {
        let writer = in_pieces(store, "k", &bytes(text)).await;
        finish(writer, condition).await
    };
    let absent = pieces("any", Condition::IfMatch(ETag::new("any"))).await;
    assert_eq!(absent, Put::ConditionFailed, "there was nothing to match");
    let v1 = done(store, "k", "one").await;
    let taken = pieces("two", Condition::CreateIfAbsent).await;
    assert_eq!(taken, Put::ConditionFailed);
    assert_eq!(object(store, "k").await.bytes, bytes("one"));

    let Put::Done(v2) = pieces("two", Condition::IfMatch(v1.clone())).await else {
        panic!("the version named was the current one");
    };
    let late = pieces("three", Condition::IfMatch(v1)).await;
    assert_eq!(late, Put::ConditionFailed);
    let Put::Done(v3) = pieces("four", Condition::None).await else {
        panic!("an unconditional put failed a condition");
    };

    assert_ne!(v2, v3);
    let four = StoredObject {
        bytes: bytes("four"),
        etag: v3,
    };
    assert_eq!(object(store, "k").await, four);
}

async fn pieces_that_are_thrown_away_were_never_there(store: &impl ObjectStore) {
    let mut abandoned = in_pieces(store, "k", &bytes("abandoned")).await;
    let dropped = in_pieces(store, "k", &bytes("dropped")).await;
    let other = in_pieces(store, "k", &bytes("other")).await;

    abandoned.abandon().await.expect("abandon is answered");
    drop(dropped);

    let listed = store.list("").await.expect("list is answered");
    assert_eq!(listed, vec![]);
    let put = finish(other, Condition::CreateIfAbsent).await;
    assert!(matches!(put, Put::Done(_)), "the key was free");
    assert_eq!(object(store, "k").await.bytes, bytes("other"));
}

async fn racing_pieces_have_exactly_one_winner<S: ObjectStore + 'static>(store: Arc<S>) {
    for round in 0..RACES_OF_PIECES_N {
        let (key, start) = (format!("race/{round}"), Arc::new(Barrier::new(RACERS_N)));
        let mut racers = JoinSet::new();
        for racer in 0..RACERS_N {
            let (store, start) = (Arc::clone(&store), Arc::clone(&start));
            let (key, text) = (key.clone(), format!("racer {racer}"));
            racers.spawn(async move {
                let writer = in_pieces(&*store, &key, &bytes(&text)).await;
                start.wait().await;
                // Whole puts and pieces are told apart by nobody.
                let put = if racer % 2 == 0 {
                    finish(writer, Condition::CreateIfAbsent).await
                } else {
                    put(&*store, &key, &text, Condition::CreateIfAbsent).await
                };
                matches!(put, Put::Done(_)).then_some(text)
            });
        }
        let winners: Vec<String> = racers.join_all().await.into_iter().flatten().collect();
        assert_eq!(winners.len(), 1, "round {round}: {winners:?}");
        assert_eq!(object(&*store, &key).await.bytes, bytes(&winners[0]));
    }
}

async fn pieces_keep_keys_that_are_no_folders(store: &impl ObjectStore) {
    let _etag = done(store, "a/b", "1").await;
    for key in ["a", "a/b/c"] {
        // A server may say so before anything is sent.
        let put = async {
            let mut writer = store.begin(key).await?;
            writer.add(bytes("2")).await?;
            writer.finish(Condition::CreateIfAbsent).await
        };
        let put = put.await;
        assert!(
            matches!(put, Err(Error::KeyConflict { .. })),
            "{key}: {put:?}"
        );
    }
    let listed = store.list("").await.expect("list is answered");
    assert_eq!(listed.len(), 1, "{listed:?}");
}
