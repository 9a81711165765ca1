//! Savepoints, as whoever restores one finds them (C9).
//!
//! Owns: what must hold the moment one is there, and keeping the newest for a job that begins with it.
//! Checks by panicking.

use std::collections::BTreeSet;

use bytes::Bytes;
use streamforge_coordinator::{ELSEWHERE, expected_objects};
use streamforge_core::frame;
use streamforge_core::manifest::{self, Departed, Manifest};
use streamforge_core::savepoint::{self, MANIFEST_KEY};
use streamforge_store::{Condition, MemoryStore};

use crate::outside::Outside;

/// What savepoints are asked for by. Few, so that names are asked for again.
pub const NAMES: [&str; 4] = ["s0", "s1", "s2", "s3"];

/// A savepoint's folder, and what was visible then.
#[derive(Debug)]
pub struct Saved {
    /// As it is in the savepoint.
    pub manifest: Manifest,
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

/// The job has made the savepoint its own: from now on it references nothing of it (C9).
pub fn delete_elsewhere(store: &MemoryStore) {
    let there = store
        .list_now(ELSEWHERE)
        .expect("this store always answers");
    let keys: Vec<String> = there.into_iter().map(|it| it.key).collect();
    store
        .delete_now(&keys)
        .expect("this store takes everything");
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
            if self.seen.contains(name) {
                continue;
            }
            let folder = savepoint::folder(name);
            if let Some(bytes) = read(store, &format!("{folder}{MANIFEST_KEY}")) {
                self.seen.insert(name);
                self.newest = Some(check(store, &folder, bytes, outside));
                new_n += 1;
            }
        }
        new_n
    }
}

fn read(store: &MemoryStore, key: &str) -> Option<Bytes> {
    let object = store.get_now(key).ok().flatten();
    object.map(|object| object.bytes)
}

fn check(store: &MemoryStore, folder: &str, bytes: Bytes, outside: &Outside) -> Saved {
    let manifest: Manifest = manifest::decode(frame::MANIFEST, &bytes).expect("it is whole");
    assert!(
        manifest.staged.is_empty(),
        "{folder} lists staged output (C9)"
    );
    assert_eq!(
        manifest.departed,
        Departed::default(),
        "{folder}: counters lie outside of its sums (C9)"
    );
    let unpublished = outside.unpublished_to(manifest.id);
    assert!(
        unpublished.is_empty(),
        "{folder} is whole, but {unpublished:?} are not visible (C9)"
    );
    let copied = |key: &str| {
        let there = read(store, &format!("{folder}{key}"));
        there.unwrap_or_else(|| panic!("{folder}{key} is missing (C9)"))
    };
    let mut objects = vec![
        (MANIFEST_KEY.to_owned(), bytes),
        (manifest.plan.clone(), copied(&manifest.plan)),
    ];
    for object in expected_objects(&manifest) {
        let bytes = copied(&object.key);
        assert_eq!(
            bytes.len() as u64,
            object.bytes_n,
            "{folder}{} (C9)",
            object.key
        );
        objects.push((object.key, bytes));
    }
    outside.book.check_whole(&manifest);
    Saved {
        outside: outside.up_to(manifest.id),
        objects,
        manifest,
    }
}
