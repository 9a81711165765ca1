//! How much the store costs over plain calls of the SDK: 8 MiB objects, four at once, both ways, in
//! turns. Needs what `e2e/services/s3 up` prints in its environment:
//! `e2e/services/with s3 -- cargo run --release --example s3_rate`

use std::time::Instant;

use aws_sdk_s3::Client;
use aws_sdk_s3::primitives::ByteStream;
use bytes::Bytes;
use futures::stream::{self, StreamExt as _, TryStreamExt as _};
use streamforge_core::s3::{S3Access, S3Place};
use streamforge_store::s3::Limits;
use streamforge_store::{Condition, ObjectStore as _, S3Store};

const OBJECTS_N: usize = 32;
const OBJECT_BYTES: usize = 8 << 20;
const AT_ONCE: usize = 4;
const ROUNDS_N: usize = 5;

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

fn variable(name: &str) -> Outcome<String> {
    std::env::var(name).map_err(|_| format!("{name} is not set").into())
}

fn mib_per_s(started: Instant) -> f64 {
    let mib = OBJECTS_N * (OBJECT_BYTES >> 20);
    f64::from(u32::try_from(mib).unwrap_or(u32::MAX)) / started.elapsed().as_secs_f64()
}

#[tokio::main]
async fn main() -> Outcome<()> {
    let place = S3Place {
        bucket: variable("S3_BUCKET")?,
        prefix: format!("rate-{}", std::process::id()),
        access: S3Access {
            endpoint: Some(variable("S3_ENDPOINT")?),
            ..S3Access::default()
        },
    };
    let store = S3Store::connect(&place, None, Limits::default()).await?;
    let environment = aws_config::from_env().region("us-east-1").load().await;
    let config = aws_sdk_s3::config::Builder::from(&environment)
        .endpoint_url(variable("S3_ENDPOINT")?)
        .force_path_style(true)
        .build();
    let client = Client::from_conf(config);
    let bytes: Bytes = (0..OBJECT_BYTES).map(|at| (at % 251) as u8).collect();
    println!("round  PUT plain   PUT store   GET plain   GET store   MiB/s");
    for round in 0..ROUNDS_N {
        let [put_plain, get_plain] = plain(&client, &place, &bytes).await?;
        let [put_store, get_store] = ours(&store, round, &bytes).await?;
        println!(
            "{round:5} {put_plain:10.0} {put_store:11.0} {get_plain:11.0} {get_store:11.0}   \
             ratio {:.2} {:.2}",
            put_store / put_plain,
            get_store / get_plain
        );
    }
    let keys: Vec<String> = store.list("").await?.into_iter().map(|it| it.key).collect();
    store.delete(&keys).await?;
    Ok(())
}

async fn plain(client: &Client, place: &S3Place, bytes: &Bytes) -> Outcome<[f64; 2]> {
    let key = |n: usize| format!("{}/plain-{n}", place.prefix);
    let started = Instant::now();
    let puts = (0..OBJECTS_N).map(|n| {
        let request = client.put_object().bucket(&place.bucket).key(key(n));
        request.body(ByteStream::from(bytes.clone())).send()
    });
    let _puts: Vec<_> = stream::iter(puts).buffered(AT_ONCE).try_collect().await?;
    let put = mib_per_s(started);
    let started = Instant::now();
    let gets = (0..OBJECTS_N).map(|n| {
        let sent = client.get_object().bucket(&place.bucket).key(key(n)).send();
        async move {
            Ok::<_, Box<dyn std::error::Error>>(
                sent.await?.body.collect().await?.into_bytes().len(),
            )
        }
    });
    let lengths: Vec<usize> = stream::iter(gets).buffered(AT_ONCE).try_collect().await?;
    assert!(lengths.iter().all(|n| *n == OBJECT_BYTES), "all were whole");
    Ok([put, mib_per_s(started)])
}

async fn ours(store: &S3Store, round: usize, bytes: &Bytes) -> Outcome<[f64; 2]> {
    let keys: Vec<String> = (0..OBJECTS_N).map(|n| format!("r{round}-{n}")).collect();
    let started = Instant::now();
    let puts = keys
        .iter()
        .map(|key| store.put(key, bytes.clone(), Condition::CreateIfAbsent));
    let _puts: Vec<_> = stream::iter(puts).buffered(AT_ONCE).try_collect().await?;
    let put = mib_per_s(started);
    let started = Instant::now();
    let gets = keys.iter().map(|key| store.get(key));
    let found: Vec<_> = stream::iter(gets).buffered(AT_ONCE).try_collect().await?;
    assert!(
        found
            .iter()
            .flatten()
            .all(|it| it.bytes.len() == OBJECT_BYTES),
        "all were whole"
    );
    Ok([put, mib_per_s(started)])
}
