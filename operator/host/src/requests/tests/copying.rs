//! Copies of savepoints: byte for byte, in pieces, within bounded memory.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use futures::future::join_all;
use streamforge_store::PIECE_BYTES;
use streamforge_store::memory::{Fault, ScriptedFaults};
use xxhash_rust::xxh3::Xxh3;

use super::*;

const PIECE: u64 = PIECE_BYTES as u64;

/// Lengths of blocks of objects that are copied at once, and in pieces.
const SMALL: [u64; 3] = [7, 20, 9];
const LARGE: [u64; 4] = [5 * MIB, 6 * MIB + 3, 0, 9 * MIB];

/// Of what was read of a store, the bytes that somebody still has.
#[derive(Debug, Default)]
struct Held {
    now_n: AtomicU64,
    most_n: AtomicU64,
    largest_n: AtomicU64,
}

struct Read {
    bytes: Vec<u8>,
    held: Arc<Held>,
}

impl AsRef<[u8]> for Read {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Read {
    fn drop(&mut self) {
        let bytes_n = self.bytes.len() as u64;
        self.held.now_n.fetch_sub(bytes_n, Ordering::Relaxed);
    }
}

/// Objects that are made when they are read and forgotten when they are written, so that all there is in memory is
/// what those who copy hold.
#[derive(Debug, Default)]
struct Meter {
    held: Arc<Held>,
    lengths: BTreeMap<String, u64>,
    /// Length and hash.
    written: Arc<Mutex<BTreeMap<String, (u64, u64)>>>,
}

impl Meter {
    fn content(range: Range<u64>) -> Vec<u8> {
        let length = usize::try_from(range.end - range.start).expect("it fits");
        let mut bytes = vec![0; length];
        for (chunk, n) in bytes.chunks_mut(64 * 1024).zip(range.start..) {
            chunk.fill((n % 251) as u8);
        }
        bytes
    }

    async fn hand_out(&self, range: Range<u64>) -> Bytes {
        let bytes_n = range.end - range.start;
        let Held {
            now_n,
            most_n,
            largest_n,
        } = &*self.held;
        let now_n = now_n.fetch_add(bytes_n, Ordering::Relaxed) + bytes_n;
        most_n.fetch_max(now_n, Ordering::Relaxed);
        largest_n.fetch_max(bytes_n, Ordering::Relaxed);
        let read = Read {
            bytes: Self::content(range),
            held: Arc::clone(&self.held),
        };
        others_have_turns().await;
        Bytes::from_owner(read)
    }
}

async fn others_have_turns() {
    for _turn in 0..16 {
        tokio::task::yield_now().await;
    }
}

#[async_trait]
impl ObjectStore for Meter {
    async fn get_within(&self, key: &str, bytes_max: u64) -> Result<Option<StoredObject>> {
        let Some(bytes_n) = self.lengths.get(key) else {
            return Ok(None);
        };
        assert!(*bytes_n <= bytes_max);
        let bytes = self.hand_out(0..*bytes_n).await;
        let etag = ETag::new("any");
        Ok(Some(StoredObject { bytes, etag }))
    }

    async fn get_range(&self, key: &str, range: Range<u64>) -> Result<Bytes> {
        let bytes_n = self.lengths.get(key).copied();
        let bytes_n = bytes_n.ok_or_else(|| Error::NotFound {
            key: key.to_owned(),
            location: self.location(),
        })?;
        if range.end > bytes_n {
            return Err(Error::OutOfRange {
                key: key.to_owned(),
                start: range.start,
                end: range.end,
                bytes_n,
            });
        }
        Ok(self.hand_out(range).await)
    }

    async fn put(&self, key: &str, bytes: Bytes, condition: Condition) -> Result<Put> {
        let mut writer = self.begin(key).await?;
        writer.add(bytes).await?;
        writer.finish(condition).await
    }

    async fn begin(&self, key: &str) -> Result<Box<dyn ObjectWriter>> {
        Ok(Box::new(MeterWriter {
            key: key.to_owned(),
            bytes_n: 0,
            hasher: Hasher(Xxh3::new()),
            written: Arc::clone(&self.written),
        }))
    }

    async fn list(&self, _prefix: &str) -> Result<Vec<ObjectMeta>> {
        Ok(Vec::new())
    }

    async fn delete(&self, _keys: &[String]) -> Result<()> {
        Ok(())
    }

    fn location(&self) -> String {
        "meter".to_owned()
    }
}

#[derive(Debug)]
struct MeterWriter {
    key: String,
    bytes_n: u64,
    hasher: Hasher,
    written: Arc<Mutex<BTreeMap<String, (u64, u64)>>>,
}

struct Hasher(Xxh3);

impl std::fmt::Debug for Hasher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Hasher")
    }
}

#[async_trait]
impl ObjectWriter for MeterWriter {
    async fn add(&mut self, piece: Bytes) -> Result<()> {
        others_have_turns().await;
        self.bytes_n += piece.len() as u64;
        self.hasher.0.update(&piece);
        Ok(())
    }

    async fn finish(&mut self, _condition: Condition) -> Result<Put> {
        let written = (self.bytes_n, self.hasher.0.digest());
        let mut all = self.written.lock().expect("no test panics in it");
        all.insert(self.key.clone(), written);
        Ok(Put::Done(ETag::new("any")))
    }

    async fn abandon(&mut self) -> Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn copies_of_all_jobs_hold_a_few_pieces_however_large_their_state_is() {
    let lengths = [9 * MIB, 20 * MIB, PIECE, 17].map(|n| (format!("parts/{n}"), n));
    let store = Meter {
        lengths: BTreeMap::from(lengths.clone()),
        ..Meter::default()
    };
    let of_job = |job: u32| -> Vec<(ExpectedObject, String)> {
        let of = |(key, bytes_n): &(String, u64)| {
            let expected = ExpectedObject {
                key: key.clone(),
                bytes_n: *bytes_n,
                pieces: Vec::new(),
            };
            (expected, format!("{job}/{key}"))
        };
        lengths.iter().map(of).collect()
    };
    let jobs: Vec<_> = (0..50).map(of_job).collect();

    let copies = jobs.iter().map(|objects| copy_objects(&store, objects));
    let damages = join_all(copies).await;

    let damages: std::result::Result<Vec<_>, _> = damages.into_iter().collect();
    let damages = damages.expect("it can be read and written").concat();
    assert_eq!(damages, [""; 0]);
    let Held {
        now_n,
        most_n,
        largest_n,
    } = &*store.held;
    assert_eq!(largest_n.load(Ordering::Relaxed), PIECE);
    let most_n = most_n.load(Ordering::Relaxed);
    // The turns of all: four quick ones, eight slow ones.
    assert!(
        (2 * PIECE..=12 * PIECE).contains(&most_n),
        "{most_n} bytes were held at once"
    );
    assert_eq!(now_n.load(Ordering::Relaxed), 0);
    let written = store.written.lock().expect("no test panics in it");
    let hash = |bytes_n| {
        let mut hasher = Xxh3::new();
        for from in (0..bytes_n).step_by(PIECE_BYTES) {
            hasher.update(&Meter::content(from..bytes_n.min(from + PIECE)));
        }
        hasher.digest()
    };
    let wanted = lengths.map(|(key, n)| (key, (n, hash(n))));
    let wanted = (0..50).flat_map(|job| {
        let of_job = |(key, it): &(String, _)| (format!("{job}/{key}"), *it);
        wanted.iter().map(of_job).collect::<Vec<_>>()
    });
    assert!(*written == wanted.collect(), "a copy differs");
}

async fn copied(store: &Watched, expected: &ExpectedObject) -> Vec<String> {
    let objects = [(expected.clone(), "copies/part".to_owned())];
    let damages = copy_objects(store, &objects).await;
    damages.expect("it can be read and written")
}

fn there(store: &Watched) -> Option<StoredObject> {
    let there = store.inner.get_now("copies/part");
    there.expect("it has no faults")
}

#[tokio::test]
async fn copy_is_the_original_and_is_made_once_c9() {
    let one_block = |bytes_n: u64| vec![bytes_n - 6]; // behind a header of 6
    for blocks in [
        SMALL.to_vec(),
        LARGE.to_vec(),
        one_block(PIECE),
        one_block(PIECE + 1),
        one_block(2 * PIECE),
    ] {
        let store = Watched::default();
        let (expected, bytes) = stored(&store, "part", &blocks).await;

        assert_eq!(copied(&store, &expected).await, [""; 0]);
        let first = there(&store).expect("it is copied");
        assert!(first.bytes == bytes, "{blocks:?}: the copy differs");

        assert_eq!(copied(&store, &expected).await, [""; 0]);
        let second = there(&store).expect("it is left alone");
        assert_eq!(second.etag, first.etag, "{blocks:?}");
    }
}

#[tokio::test]
async fn copy_whose_answer_was_lost_is_found_when_it_is_asked_for_again_c9() {
    for blocks in [&SMALL[..], &LARGE[..]] {
        let faults = [Fault::None, Fault::FailBefore, Fault::FailAfter];
        let inner = MemoryStore::with_faults(ScriptedFaults::for_puts(faults));
        let store = Watched {
            inner,
            ..Watched::default()
        };
        let (expected, bytes) = stored(&store, "part", blocks).await;
        let objects = vec![(expected, "copies/part".to_owned())];
        let ask = async || {
            let objects = objects.clone();
            perform(&store, StoreRequest::Copy { objects }).await
        };

        for is_there in [false, true] {
            let answer = ask().await;
            assert!(matches!(answer, StoreAnswer::Unknown { .. }), "{answer:?}");
            assert_eq!(there(&store).is_some(), is_there);
        }
        let answer = ask().await;

        assert_eq!(answer, StoreAnswer::Checked(Vec::new()));
        assert!(there(&store).expect("it is copied").bytes == bytes);
    }
}

#[tokio::test]
async fn what_is_not_whole_is_named_and_not_copied_c9() {
    for blocks in [&SMALL[..], &LARGE[..]] {
        let store = Watched::default();
        let (expected, bytes) = stored(&store, "part", blocks).await;
        let last = *expected.pieces.last().expect("it has blocks");
        let mut changed = bytes.clone();
        *changed.last_mut().expect("it is not empty") ^= 1;
        let (cut, longer) = (&bytes[..bytes.len() - 1], [&bytes[..], b"x"].concat());
        let (n, cut_n, at) = (bytes.len(), cut.len(), last.offset);
        for (spoiled, said) in [
            (
                changed,
                format!("object part is corrupt: the checksum of the block at byte {at} differs"),
            ),
            (
                cut.to_vec(),
                format!("object part has {cut_n} bytes instead of {n}: it is cut or not ours"),
            ),
            (
                longer,
                format!("object part has more than {n} bytes: it is not ours"),
            ),
        ] {
            put(&store, "part", spoiled).await;

            assert_eq!(copied(&store, &expected).await, [said]);
            assert_eq!(there(&store), None);
        }
        let gone = store.delete(&["part".to_owned()]).await;
        assert!(gone.is_ok());
        assert_eq!(
            copied(&store, &expected).await,
            ["object part is missing".to_owned()]
        );
        assert_eq!(there(&store), None);
        // Pieces that were sent of what turned out to be corrupt are thrown away.
        let abandoned_n = store.abandoned_n.load(Ordering::Relaxed);
        let are_sent = expected.bytes_n > PIECE;
        assert_eq!(abandoned_n, usize::from(are_sent));
    }
}

#[tokio::test]
async fn another_object_under_the_name_of_a_copy_is_named_and_left_alone_c9() {
    for blocks in [&SMALL[..], &LARGE[..]] {
        let store = Watched::default();
        let (expected, bytes) = stored(&store, "part", blocks).await;
        let mut header_differs = bytes.clone();
        header_differs[0] ^= 1; // in no block
        let (shorter, longer) = (bytes[..3].to_vec(), [&bytes[..], b"x"].concat());
        for other in [header_differs, shorter, longer] {
            put(&store, "copies/part", other.clone()).await;

            let said = "object copies/part is there already, and is no copy of part: remove it";
            assert_eq!(copied(&store, &expected).await, [said]);
            assert!(there(&store).expect("it was there").bytes == other);
        }
    }
}

#[tokio::test]
async fn blocks_that_overlap_are_not_read_over_and_over() {
    let store = Watched::default();
    for blocks in [&SMALL[..], &LARGE[..]] {
        let (mut expected, _) = stored(&store, "part", blocks).await;
        let first = expected.pieces[0];
        expected.pieces.extend([first; 1_000]);
        store.reads.lock().expect("no test panics in it").clear();
        let said = ["object part is not ours: its block at byte 6 begins within another"];

        let objects = std::slice::from_ref(&expected);
        let checked = check_objects(&store, objects).await;
        assert_eq!(checked.expect("it can be read"), said);
        assert_eq!(copied(&store, &expected).await, said);

        let reads_n = store.reads.lock().expect("no test panics in it").len();
        assert!(reads_n < 8, "{reads_n} reads");
    }
}
