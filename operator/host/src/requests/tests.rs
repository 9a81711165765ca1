use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use streamforge_coordinator::Piece;
use streamforge_store::{MemoryStore, ObjectMeta, ObjectWriter, Result, StoredObject};
use xxhash_rust::xxh3::xxh3_64;

use super::*;

mod copying;

const MIB: u64 = 1024 * 1024;

/// A store whose every read is noted: how large, and how many at once. A read lasts until a few others
/// had their turn.
#[derive(Debug, Default)]
struct Watched {
    inner: MemoryStore,
    reads: Mutex<Vec<u64>>,
    under_way_n: AtomicUsize,
    most_at_once_n: AtomicUsize,
    /// Objects in pieces that were thrown away.
    abandoned_n: Arc<AtomicUsize>,
}

impl Watched {
    async fn note<T>(
        &self,
        read: impl Future<Output = Result<T>>,
        bytes_n: impl Fn(&T) -> u64,
    ) -> Result<T> {
        let n = self.under_way_n.fetch_add(1, Ordering::Relaxed) + 1;
        self.most_at_once_n.fetch_max(n, Ordering::Relaxed);
        for _turn in 0..16 {
            tokio::task::yield_now().await;
        }
        let done = read.await;
        self.under_way_n.fetch_sub(1, Ordering::Relaxed);
        if let Ok(done) = &done {
            self.reads
                .lock()
                .expect("no test panics in it")
                .push(bytes_n(done));
        }
        done
    }
}

#[async_trait]
impl ObjectStore for Watched {
    async fn get_within(&self, key: &str, bytes_max: u64) -> Result<Option<StoredObject>> {
        let size = |it: &Option<StoredObject>| it.as_ref().map_or(0, |it| it.bytes.len() as u64);
        let read = self.inner.get_within(key, bytes_max);
        self.note(read, size).await
    }

    async fn get_range(&self, key: &str, range: Range<u64>) -> Result<Bytes> {
        let read = self.inner.get_range(key, range);
        self.note(read, |bytes| bytes.len() as u64).await
    }

    async fn put(&self, key: &str, bytes: Bytes, condition: Condition) -> Result<Put> {
        self.inner.put(key, bytes, condition).await
    }

    async fn begin(&self, key: &str) -> Result<Box<dyn ObjectWriter>> {
        Ok(Box::new(WatchedWriter {
            inner: self.inner.begin(key).await?,
            abandoned_n: Arc::clone(&self.abandoned_n),
        }))
    }

    async fn list(&self, prefix: &str) -> Result<Vec<ObjectMeta>> {
        self.inner.list(prefix).await
    }

    async fn delete(&self, keys: &[String]) -> Result<()> {
        self.inner.delete(keys).await
    }

    fn location(&self) -> String {
        self.inner.location()
    }
}

#[derive(Debug)]
struct WatchedWriter {
    inner: Box<dyn ObjectWriter>,
    abandoned_n: Arc<AtomicUsize>,
}

#[async_trait]
impl ObjectWriter for WatchedWriter {
    async fn add(&mut self, piece: Bytes) -> Result<()> {
        self.inner.add(piece).await
    }

    async fn finish(&mut self, condition: Condition) -> Result<Put> {
        self.inner.finish(condition).await
    }

    async fn abandon(&mut self) -> Result<()> {
        self.abandoned_n.fetch_add(1, Ordering::Relaxed);
        self.inner.abandon().await
    }
}

/// An object with blocks of these lengths behind a header, stored.
async fn stored(store: &Watched, key: &str, blocks: &[u64]) -> (ExpectedObject, Vec<u8>) {
    let mut bytes = b"header".to_vec();
    let mut pieces = Vec::new();
    for (n, length) in (0_u8..).zip(blocks) {
        let offset = bytes.len() as u64;
        let block = (0..*length).map(|at| (at % 251) as u8 ^ n);
        bytes.extend(block);
        let checksum = xxh3_64(&bytes[usize::try_from(offset).expect("it fits")..]);
        pieces.push(Piece {
            offset,
            length: *length,
            checksum,
        });
    }
    put(store, key, bytes.clone()).await;
    let expected = ExpectedObject {
        key: key.to_owned(),
        bytes_n: bytes.len() as u64,
        pieces,
    };
    (expected, bytes)
}

async fn put(store: &Watched, key: &str, bytes: Vec<u8>) {
    let put = store.put(key, Bytes::from(bytes), Condition::None).await;
    assert!(matches!(put, Ok(Put::Done(_))));
}

#[tokio::test]
async fn state_of_any_size_is_checked_in_ranges_and_several_at_once_c7() {
    let store = Watched::default();
    let mut objects = Vec::new();
    for n in 0..12 {
        // Blocks that lie within a range, across two, and over several.
        let blocks = [MIB, 3 * MIB + 17, 0, 9 * MIB, 5];
        objects.push(stored(&store, &format!("parts/{n}"), &blocks).await.0);
        objects.push(stored(&store, &format!("small/{n}"), &[5]).await.0);
    }
    objects.push(stored(&store, "empty", &[]).await.0);

    let damages = check_objects(&store, &objects)
        .await
        .expect("it can be read");

    assert_eq!(damages, [""; 0]);
    let reads = store.reads.lock().expect("no test panics in it");
    let largest = reads.iter().copied().max();
    assert_eq!(largest, Some(RANGE_BYTES));
    // 13 MiB and a bit: their blocks are in four ranges, and the last byte is looked at first.
    assert!(reads.len() <= 12 * 6 + 13, "{} reads", reads.len());
    let at_once_n = store.most_at_once_n.load(Ordering::Relaxed);
    assert!(
        (2..=CHECKS_AT_ONCE).contains(&at_once_n),
        "{at_once_n} at once"
    );
}

#[tokio::test]
async fn slow_buckets_keep_no_other_one_waiting() {
    let turns = Turns {
        quick: Semaphore::new(2),
        slow: Semaphore::new(3),
        quick_for: Duration::from_millis(1),
    };
    let slow = || turns.take(std::future::pending::<()>());
    let quick = async || {
        let turn = turns.take(std::future::ready(()));
        tokio::time::timeout(Duration::from_secs(10), turn).await
    };
    let mut all_slow = stream::FuturesUnordered::new();
    all_slow.extend([slow(), slow(), slow()]);

    tokio::select! {
        biased;
        _ = all_slow.next() => panic!("they never end"),
        done = quick() => done.expect("there is room"),
    }
    // However many there are, memory is for so many.
    all_slow.extend([slow(), slow(), slow()]);
    let is_full = || turns.quick.available_permits() == 0 && turns.slow.available_permits() == 0;
    let full = async {
        while !is_full() {
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        _ = all_slow.next() => panic!("they never end"),
        full = tokio::time::timeout(Duration::from_secs(10), full) => full.expect("who finds no room stays"),
    }
}

#[tokio::test]
async fn damage_of_large_and_small_objects_is_named_the_same_c7() {
    let store = Watched::default();
    for blocks in [[7, 20, 9], [5 * MIB, 6 * MIB, MIB]] {
        let (expected, bytes) = stored(&store, "part", &blocks).await;
        let damages = async || {
            let objects = std::slice::from_ref(&expected);
            check_objects(&store, objects)
                .await
                .expect("it can be read")
        };
        assert_eq!(damages().await, [""; 0]);

        for piece in &expected.pieces {
            for at in [piece.offset, piece.offset + piece.length - 1] {
                let mut changed = bytes.clone();
                changed[usize::try_from(at).expect("it fits")] ^= 1;
                put(&store, "part", changed).await;
                let at = piece.offset;
                let said = format!(
                    "object part is corrupt: the checksum of the block at byte {at} differs"
                );
                assert_eq!(damages().await, [said]);
            }
        }
        let cut_n = bytes.len() - 1;
        put(&store, "part", bytes[..cut_n].to_vec()).await;
        let whole_n = bytes.len();
        let said =
            format!("object part has {cut_n} bytes instead of {whole_n}: it is cut or not ours");
        assert_eq!(damages().await, [said]);
        let longer = [&bytes[..], b"more"].concat();
        put(&store, "part", longer).await;
        let is_read_in_ranges = whole_n as u64 > RANGE_BYTES;
        let said = format!("object part has more than {whole_n} bytes: it is not ours");
        let said = (!is_read_in_ranges).then_some(said);
        assert_eq!(damages().await, Vec::from_iter(said));
        let gone = store.delete(&["part".to_owned()]).await;
        assert!(gone.is_ok());
        assert_eq!(damages().await, ["object part is missing"]);
    }
}
