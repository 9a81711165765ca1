//! The folder store keeps the contract, survives what a disk does, and says who holds it.

use std::io;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;
use crate::Recovery;
use crate::contract::check_contract;

const ANY: Condition = Condition::None;

fn put(store: &FolderStore, key: &str, text: &'static str) -> Result<Put> {
    store.inner.put(key, text.as_bytes(), &ANY)
}

fn get(store: &FolderStore, key: &str) -> Option<Vec<u8>> {
    store
        .inner
        .get(key, u64::MAX)
        .unwrap()
        .map(|object| object.bytes.to_vec())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn folder_store_keeps_the_contract() {
    let dir = tempfile::tempdir().unwrap();
    let opened = AtomicUsize::new(0);
    check_contract(|| {
        let n = opened.fetch_add(1, Ordering::Relaxed);
        Arc::new(FolderStore::open(dir.path().join(n.to_string())).unwrap())
    })
    .await;
}

#[test]
fn second_opener_is_told_who_holds_the_store() {
    let dir = tempfile::tempdir().unwrap();
    let held = FolderStore::open(dir.path()).unwrap();

    let refused = FolderStore::open(dir.path()).unwrap_err();

    let text = refused.to_string();
    assert!(text.contains("in use by a live process"), "{text}");
    assert!(text.contains(&std::process::id().to_string()), "{text}");
    drop(held);
    FolderStore::open(dir.path()).expect("the lock went with its holder");
}

#[test]
fn reader_opens_beside_a_writer_and_writes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let writer = FolderStore::open(dir.path()).unwrap();
    assert!(matches!(put(&writer, "a/b", "1"), Ok(Put::Done(_))));

    let reader = FolderStore::open_read_only(dir.path()).unwrap();

    assert_eq!(get(&reader, "a/b").unwrap(), b"1");
    assert!(matches!(
        put(&reader, "a/c", "2"),
        Err(Error::OpenedReadOnly { .. })
    ));
    assert!(reader.inner.delete(&["a/b".to_owned()]).is_err());
    assert_eq!(get(&writer, "a/b").unwrap(), b"1");
}

#[test]
fn reading_a_store_that_is_not_there_does_not_make_it() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("typo");

    assert!(FolderStore::open_read_only(&path).is_err());

    assert!(!path.exists());
}

#[test]
fn objects_and_versions_survive_a_reopen() {
    let dir = tempfile::tempdir().unwrap();
    let store = FolderStore::open(dir.path()).unwrap();
    let Ok(Put::Done(etag)) = put(&store, "head", "one") else {
        panic!("put failed")
    };
    drop(store);

    let store = FolderStore::open(dir.path()).unwrap();
    let swap = store
        .inner
        .put("head", b"two", &Condition::IfMatch(etag))
        .unwrap();

    assert!(matches!(swap, Put::Done(_)));
    assert_eq!(get(&store, "head").unwrap(), b"two");
}

#[test]
fn half_written_object_of_a_dead_writer_is_never_seen_and_goes_at_open() {
    let dir = tempfile::tempdir().unwrap();
    drop(FolderStore::open(dir.path()).unwrap());
    let half = dir.path().join(TMP_NAME).join("0");
    fs::write(&half, "hal").unwrap();

    let store = FolderStore::open(dir.path()).unwrap();

    assert!(store.inner.list("").unwrap().is_empty());
    assert!(!half.exists());
    assert!(matches!(put(&store, "k", "whole"), Ok(Put::Done(_))));
}

#[test]
fn puts_leave_no_temporary_file_behind() {
    let dir = tempfile::tempdir().unwrap();
    let store = FolderStore::open(dir.path()).unwrap();
    let create = Condition::CreateIfAbsent;

    assert!(matches!(
        store.inner.put("k", b"1", &create),
        Ok(Put::Done(_))
    ));
    assert!(matches!(
        store.inner.put("k", b"2", &create),
        Ok(Put::ConditionFailed)
    ));
    let wrong = Condition::IfMatch(ETag::new("wrong"));
    assert!(matches!(
        store.inner.put("k", b"3", &wrong),
        Ok(Put::ConditionFailed)
    ));
    assert!(put(&store, "k/below", "4").is_err());

    assert_eq!(fs::read_dir(dir.path().join(TMP_NAME)).unwrap().count(), 0);
}

#[test]
fn emptied_folders_go_with_their_last_object() {
    let dir = tempfile::tempdir().unwrap();
    let store = FolderStore::open(dir.path()).unwrap();
    for key in ["a/b/1", "a/2"] {
        assert!(matches!(put(&store, key, "x"), Ok(Put::Done(_))));
    }

    store.inner.delete(&["a/b/1".to_owned()]).unwrap();

    assert!(!dir.path().join("a/b").exists());
    assert!(dir.path().join("a/2").exists());
}

#[test]
fn path_of_a_file_is_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    fs::write(&path, "x").unwrap();

    let refused = FolderStore::open(&path).unwrap_err();

    assert!(
        refused.to_string().contains("it is a file, not a folder"),
        "{refused}"
    );
    assert_eq!(refused.recovery(), Recovery::Fatal);
}

#[test]
fn disk_errors_are_told_apart() {
    let of = |raw: i32| Error::from_io("write object to", "/x", io::Error::from_raw_os_error(raw));

    let texts = [28, 122, 30, 13, 5].map(|raw| (of(raw).to_string(), of(raw).recovery()));

    assert_eq!(
        texts,
        [
            (
                "write object to /x: the disk is full".to_owned(),
                Recovery::Refused
            ), // ENOSPC
            (
                "write object to /x: the disk is full".to_owned(),
                Recovery::Refused
            ), // EDQUOT
            (
                "write object to /x: the file system is read-only".to_owned(),
                Recovery::Refused
            ),
            (
                "write object to /x: permission denied".to_owned(),
                Recovery::Refused
            ),
            ("write object to /x".to_owned(), Recovery::OutcomeUnknown), // EIO
        ]
    );
}

#[test]
fn full_disk_is_named_and_leaves_the_old_version() {
    // /dev/shm is a file system of its own; a limit on file size stands in for a small disk
    // where there is none that a test may fill.
    let Some(small) = SmallDisk::mount() else {
        return;
    };
    let store = FolderStore::open(small.path()).unwrap();
    assert!(matches!(put(&store, "head", "old"), Ok(Put::Done(_))));

    let big = vec![1_u8; 4 << 20];
    let refused = store.inner.put("head", &big, &ANY).unwrap_err();

    assert!(matches!(refused, Error::DiskFull { .. }), "{refused:?}");
    assert_eq!(get(&store, "head").unwrap(), b"old");
    assert!(
        matches!(put(&store, "head", "new"), Ok(Put::Done(_))),
        "room was given back"
    );
}

/// A 1 MiB tmpfs, where the machine lets us mount one.
struct SmallDisk(tempfile::TempDir);

impl SmallDisk {
    fn mount() -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=1m", "tmpfs"])
            .arg(dir.path())
            .stderr(std::process::Stdio::null())
            .status();
        matches!(mounted, Ok(status) if status.success()).then_some(Self(dir))
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("store")
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _unmounted = Command::new("umount").arg("-l").arg(self.0.path()).status();
    }
}

#[test]
fn folder_without_permission_is_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let locked = dir.path().join("locked");
    fs::create_dir(&locked).unwrap();
    fs::set_permissions(&locked, fs::Permissions::from_mode(0o555)).unwrap();

    let opened = FolderStore::open(locked.join("store"));

    fs::set_permissions(&locked, fs::Permissions::from_mode(0o755)).unwrap();
    match opened {
        Err(error) => assert!(error.to_string().contains("permission denied"), "{error}"),
        // Root may write anywhere; then there is nothing to refuse.
        Ok(_) => assert!(locked.join("store").exists()),
    }
}

fn bytes(text: &str) -> Bytes {
    Bytes::from(text.to_owned())
}

#[tokio::test]
async fn objects_created_beside_the_holder_are_whole_and_seen_by_it() {
    let folder = tempfile::tempdir().unwrap();
    let holder = FolderStore::open(folder.path()).unwrap();
    let beside = FolderStore::open_beside(folder.path()).unwrap();

    let put = beside.put("parts/a", bytes("x"), Condition::CreateIfAbsent);
    assert!(matches!(put.await.unwrap(), Put::Done(_)));

    assert_eq!(holder.get("parts/a").await.unwrap().unwrap().bytes, "x");
    assert_eq!(
        holder.list("").await.unwrap().len(),
        1,
        "nothing else shows"
    );
}

#[tokio::test]
async fn head_cannot_be_swapped_beside_the_holder_c2() {
    let folder = tempfile::tempdir().unwrap();
    let holder = FolderStore::open(folder.path()).unwrap();
    let created = holder.put("head", bytes("1"), Condition::CreateIfAbsent);
    let Put::Done(etag) = created.await.unwrap() else {
        panic!("not created");
    };
    let beside = FolderStore::open_beside(folder.path()).unwrap();

    for condition in [Condition::IfMatch(etag), Condition::None] {
        let swapped = beside.put("head", bytes("2"), condition).await;
        assert!(
            matches!(swapped, Err(Error::OpenedReadOnly { .. })),
            "{swapped:?}"
        );
    }
    assert_eq!(beside.get("head").await.unwrap().unwrap().bytes, "1");
}

#[tokio::test(flavor = "multi_thread")]
async fn of_writers_beside_each_other_one_creates_an_object_and_empty_folders_harm_nobody() {
    let folder = tempfile::tempdir().unwrap();
    let holder = FolderStore::open(folder.path()).unwrap();
    let open = |_| FolderStore::open_beside(folder.path()).unwrap();
    let writers: Vec<FolderStore> = (0..4).map(open).collect();
    for round in 0..50 {
        let key = format!("parts/r{round}/object");
        let puts = writers.iter().enumerate().map(|(n, writer)| {
            let (writer, key) = (writer.clone(), key.clone());
            tokio::spawn(async move {
                let put = writer.put(&key, bytes(&n.to_string()), Condition::CreateIfAbsent);
                (n, put.await.unwrap())
            })
        });
        let mut winners = Vec::new();
        for put in puts.collect::<Vec<_>>() {
            if let (n, Put::Done(_)) = put.await.unwrap() {
                winners.push(n);
            }
        }
        let [winner] = winners[..] else {
            panic!("{winners:?} were told that they created {key}");
        };
        let there = holder.get(&key).await.unwrap().unwrap().bytes;
        assert_eq!(there, winner.to_string());
        // Removing the last object removes its folder, while others may be making it.
        holder.delete(&[key]).await.unwrap();
    }
}

#[tokio::test]
async fn temporary_files_of_a_dead_writer_are_removed_and_those_of_a_live_one_are_not() {
    let folder = tempfile::tempdir().unwrap();
    drop(FolderStore::open(folder.path()).unwrap());
    let live = FolderStore::open_beside(folder.path()).unwrap();
    let dead = folder.path().join(".beside/1-0");
    std::fs::create_dir(&dead).unwrap();
    std::fs::write(dead.join("lock"), "").unwrap();
    std::fs::write(dead.join("7"), "half an object").unwrap();

    let _holder = FolderStore::open(folder.path()).unwrap();

    assert!(!dead.exists());
    let put = live.put("parts/a", bytes("x"), Condition::CreateIfAbsent);
    assert!(matches!(put.await.unwrap(), Put::Done(_)));
}
