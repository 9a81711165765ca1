//! The S3 store against a real server, behind a proxy that loses answers, and against servers that
//! break their conditions.

mod careless;
mod endless;
mod faults;
mod opening;
mod proxy;
mod server;
mod wire;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use futures::future::join_all;

use super::{Limits, MULTIPART_ABOVE_BYTES, S3Store};
use crate::contract::{check_contract, check_contract_of_flat_names};
use crate::{Condition, ETag, ObjectStore as _, Put};
use server::Server;

fn bytes(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn contract_holds_on_a_real_s3_server() {
    let server = Server::get();
    let base = server.connect(&server.place(), Limits::default()).await;
    let stores = AtomicU64::new(0);
    let open = || {
        let n = stores.fetch_add(1, Ordering::Relaxed);
        Arc::new(S3Store {
            bucket: base.bucket.under(&format!("store-{n}")),
            writes: true,
        })
    };

    // A server of somebody's own may keep flat names and see no conflict of keys.
    if std::env::var_os("S3_ENDPOINT").is_some() {
        check_contract_of_flat_names(open).await;
    } else {
        check_contract(open).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn object_in_parts_is_read_back_whole_and_keeps_its_condition_c2() {
    let server = Server::get();
    let store = server.connect(&server.place(), Limits::default()).await;
    let big: Bytes = (0..MULTIPART_ABOVE_BYTES + 1_000)
        .map(|at| (at / 7) as u8)
        .collect();

    let first = store
        .put("big", big.clone(), Condition::CreateIfAbsent)
        .await;
    let Ok(Put::Done(etag)) = first else {
        panic!("{first:?}")
    };
    let read = store
        .get("big")
        .await
        .expect("answered")
        .expect("it is there");
    let second = store
        .put("big", big.clone(), Condition::CreateIfAbsent)
        .await;
    let wrong = store
        .put("big", big.clone(), Condition::IfMatch(ETag::new("\"0\"")))
        .await;
    let right = store
        .put("big", big.slice(1..), Condition::IfMatch(etag.clone()))
        .await;

    assert!(read.bytes == big, "the content differs");
    assert_eq!(read.etag, etag);
    assert_eq!(second.expect("answered"), Put::ConditionFailed);
    assert_eq!(wrong.expect("answered"), Put::ConditionFailed);
    assert!(matches!(right, Ok(Put::Done(_))), "{right:?}");
    let left = store.bucket.uploads("").await.expect("answered");
    assert_eq!(left, vec![], "uploads that failed are abandoned");
}

#[tokio::test(flavor = "multi_thread")]
async fn listing_and_removing_go_beyond_a_page() {
    let server = Server::get();
    let store = server.connect(&server.place(), Limits::default()).await;
    let keys: Vec<String> = (0..1_003).map(|n| format!("many/{n:05}")).collect();
    for batch in keys.chunks(100) {
        let puts = batch
            .iter()
            .map(|key| store.put(key, bytes("x"), Condition::CreateIfAbsent));
        for put in join_all(puts).await {
            assert!(matches!(put, Ok(Put::Done(_))), "{put:?}");
        }
    }

    let listed = store.list("many/").await.expect("answered");
    store.delete(&keys).await.expect("answered");

    let listed: Vec<String> = listed.into_iter().map(|meta| meta.key).collect();
    assert_eq!(listed, keys);
    assert_eq!(store.list("many/").await.expect("answered"), vec![]);
}
