//! The memory store keeps the contract, and its faults do what their names say.

use std::sync::Arc;

use super::*;
use crate::contract::check_contract;

fn bytes(text: &'static str) -> Bytes {
    Bytes::from_static(text.as_bytes())
}

fn text(store: &MemoryStore, key: &str) -> Option<String> {
    let object = store.get_now(key).unwrap();
    object.map(|object| String::from_utf8(object.bytes.to_vec()).unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn memory_store_keeps_the_contract() {
    check_contract(|| Arc::new(MemoryStore::new())).await;
}

#[test]
fn put_that_fails_before_wrote_nothing() {
    let store = MemoryStore::with_faults(ScriptedFaults::for_puts([Fault::FailBefore]));

    assert!(store.put_now("a", bytes("1"), Condition::None).is_err());

    assert_eq!(text(&store, "a"), None);
}

#[test]
fn put_with_a_lost_answer_took_effect() {
    let store = MemoryStore::with_faults(ScriptedFaults::for_puts([Fault::FailAfter]));

    assert!(store.put_now("a", bytes("1"), Condition::None).is_err());

    assert_eq!(text(&store, "a").as_deref(), Some("1"));
}

#[test]
fn late_put_lands_under_the_condition_it_was_sent_with() {
    let store = MemoryStore::new();
    let Put::Done(first) = store
        .put_now("head", bytes("1"), Condition::CreateIfAbsent)
        .unwrap()
    else {
        panic!("the store was empty");
    };
    let slow = store.connect(ScriptedFaults::for_puts([
        Fault::LandLater,
        Fault::LandLater,
    ]));
    assert!(
        slow.put_now("head", bytes("2"), Condition::IfMatch(first.clone()))
            .is_err()
    );
    assert!(
        slow.put_now("head", bytes("3"), Condition::IfMatch(first))
            .is_err()
    );
    assert_eq!(text(&store, "head").as_deref(), Some("1"));

    assert_eq!(store.land(1), Some(("head".to_owned(), true)));
    assert_eq!(store.land(0), Some(("head".to_owned(), false)));

    assert_eq!(text(&store, "head").as_deref(), Some("3"));
    assert_eq!(store.land(0), None);
}

#[test]
fn dead_client_changes_nothing_and_others_live() {
    #[derive(Debug)]
    struct AllDead;
    impl Faults for AllDead {
        fn on_operation(&mut self, _operation: Operation<'_>) -> Fault {
            Fault::Dead
        }
    }
    let store = MemoryStore::new();
    let dead = store.connect(AllDead);

    assert!(dead.put_now("a", bytes("1"), Condition::None).is_err());
    assert!(dead.get_now("a").is_err());
    assert!(dead.delete_now(&["a".to_owned()]).is_err());

    assert_eq!(text(&store, "a"), None);
}

#[test]
fn tampered_object_keeps_its_version() {
    let store = MemoryStore::new();
    let Put::Done(etag) = store.put_now("a", bytes("12"), Condition::None).unwrap() else {
        panic!("an unconditional put has no condition to fail");
    };

    assert!(store.tamper("a", |mut bytes| {
        bytes.truncate(1);
        bytes
    }));

    let object = store.get_now("a").unwrap().unwrap();
    assert_eq!((object.bytes, object.etag), (bytes("1"), etag));
}
