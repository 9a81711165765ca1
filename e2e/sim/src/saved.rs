//! Savepoints, as whoever restores one finds them (C9).
//!
//! Owns: what must hold the moment one is there, and keeping the newest for a job that begins with it.
//! Checks by panicking.

use std::collections::BTreeSet;

use bytes::Bytes;
use streamforge_coordinator::{ELSEWHERE, expected_objects};
use streamforge_core::frame;
use streamforge_core::ids::CheckpointId;
use streamforge_core::manifest::{self, Manifest};
use streamforge_core::savepoint::{self, MANIFEST_KEY};
use streamforge_store::{Condition, MemoryStore};

use crate::outside::Outside;

/// What savepoints are asked for by. Few, so that names are asked for again.
pub const NAMES: [&str; 4] = ["s0", "s1", "s2", "s3"];

/// A savepoint's folder, and what was visible then.
#[derive(Debug)]
pub struct Saved {
    /// The checkpoint that it is.
    pub id: CheckpointId,
    objects: Vec<(String, Bytes)>,
    /// Rows of before the savepoint.
    pub outside: Outside,
}

impl Saved {
    /// A store of another job, with the savepoint beside it.
    pub fn elsewhere(&self) -> MemoryStore {
        let store = MemoryStore::new();
        for (key, bytes) in &self.objects {
            let key = format!("{ELSEWHERE}{key}");
            let put = store.put_now(&key, bytes.clone(), Condition::None);
            drop(put.expect("this store takes everything"));
        }
        store
    }
}

/// The savepoints of one history.
#[derive(Debug, Default)]
pub struct SavepointWatch {
    seen: BTreeSet<&'static str>,
    /// The newest.
    pub newest: Option<Saved>,
}

impl SavepointWatch {
    /// Looks whether one has become whole; how many have.
    pub fn look(&mut self, store: &MemoryStore, outside: &Outside) -> u64 {
        let mut new_n = 0;
        for name in NAMES {
            let folder = savepoint::folder(name);
            let key = format!("{folder}{MANIFEST_KEY}");
            if self.seen.contains(name) || !is_there(store, &key) {
                continue;
            }
            self.seen.insert(name);
            self.newest = Some(check(store, &folder, outside));
            new_n += 1;
        }
        new_n
    }
}

fn is_there(store: &MemoryStore, key: &str) -> bool {
    store.get_now(key).ok().flatten().is_some()
}

fn check(store: &MemoryStore, folder: &str, outside: &Outside) -> Saved {
    let read = |key: &str| {
        let object = store.get_now(&format!("{folder}{key}")).ok().flatten();
        let object = object.unwrap_or_else(|| panic!("{folder}{key} is missing (C9)"));
        (key.to_owned(), object.bytes)
    };
    let (_, bytes) = read(MANIFEST_KEY);
    let manifest: Manifest = manifest::decode(frame::MANIFEST, &bytes).expect("it is whole");
    assert!(
        manifest.staged.is_empty(),
        "{folder} lists staged output (C9)"
    );
    let unpublished = outside.unpublished_to(manifest.id);
    assert!(
        unpublished.is_empty(),
        "{folder} is whole, but {unpublished:?} are not visible (C9)"
    );
    let expected = expected_objects(&manifest).into_iter();
    let mut objects: Vec<(String, Bytes)> = expected
        .map(|object| {
            let (key, bytes) = read(&object.key);
            assert_eq!(bytes.len() as u64, object.bytes_n, "{folder}{key} (C9)");
            (key, bytes)
        })
        .collect();
    objects.push(read(&manifest.plan));
    objects.push((MANIFEST_KEY.to_owned(), bytes));
    Saved {
        id: manifest.id,
        objects,
        outside: outside.up_to(manifest.id),
    }
}
