//! Credentials that are kept as files, and for whom.
//!
//! Owns: who uses which folder of them, so that one that nobody uses any more is removed; and how much those of
//! one namespace may take: the folder is in memory, and everybody's. Start at: [`Users`].

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// What the Secrets of one namespace may take in any case: some three hundred usual ones.
const NAMESPACE_BYTES: u64 = 4 << 20;

/// They may take more while all that is kept takes no more than this, half of what the chart gives the folder: so a
/// thousand jobs of one namespace may have a Secret each, and no namespace takes what is others'.
const SHARED_BYTES: u64 = 32 << 20;

/// All that is kept, whoever's it is: the kubelet ends a pod whose folder in memory outgrows its limit.
const ALL_BYTES: u64 = 56 << 20;

/// What a file takes at least: the folder's memory is given out in pages.
const PAGE_BYTES: u64 = 4 << 10;

/// Folders by their users: jobs and savepoints, by uid. What is on no record here is on no disk.
#[derive(Debug, Default)]
pub struct Users(Mutex<BTreeMap<PathBuf, Kept>>);

#[derive(Debug, Default)]
struct Kept {
    users: BTreeSet<String>,
    bytes: u64,
}

/// Where the Secrets of a namespace are kept.
#[must_use]
pub fn folder_of(work_dir: &Path, namespace: &str) -> PathBuf {
    root(work_dir).join(namespace)
}

fn root(work_dir: &Path) -> PathBuf {
    work_dir.join("secrets")
}

/// Removes what an earlier process kept there: nobody knows who uses it.
///
/// # Errors
/// When something is there and cannot be removed.
pub fn clear(work_dir: &Path) -> io::Result<()> {
    remove(&root(work_dir))
}

fn remove(folder: &Path) -> io::Result<()> {
    match std::fs::remove_dir_all(folder) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

impl Users {
    /// A user is about to read a Secret into a folder, and uses no other one from now on.
    pub fn note(&self, user: &str, folder: PathBuf) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let_go(&mut all, user, Some(&folder));
        all.entry(folder).or_default().users.insert(user.to_owned());
    }

    /// A user is gone, and with it what nobody else uses.
    pub fn forget(&self, user: &str) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let_go(&mut all, user, None);
    }

    /// Puts files of these sizes into a folder that somebody uses, in place of what is there; `write` does it.
    ///
    /// # Errors
    /// When they would be too much beside what else is kept, nobody uses the folder, or they cannot be written.
    pub fn put<T>(
        &self,
        folder: &Path,
        sizes: impl Iterator<Item = u64>,
        write: impl FnOnce() -> io::Result<T>,
    ) -> io::Result<T> {
        // Until it is written: nobody takes the folder away meanwhile.
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !all.contains_key(folder) {
            let reason = "nobody uses this secret any more";
            return Err(io::Error::new(ErrorKind::NotFound, reason));
        }
        let bytes: u64 = sizes.map(taken).sum();
        let (mut beside, mut everywhere) = (bytes, bytes);
        for (other, kept) in all.iter().filter(|(other, _)| **other != *folder) {
            everywhere += kept.bytes;
            if other.parent() == folder.parent() {
                beside += kept.bytes;
            }
        }
        if everywhere > ALL_BYTES || beside > NAMESPACE_BYTES && everywhere > SHARED_BYTES {
            let reason = "the secrets that are used in this namespace are too large together";
            return Err(io::Error::new(ErrorKind::QuotaExceeded, reason));
        }
        if let Some(kept) = all.get_mut(folder) {
            kept.bytes = bytes;
        }
        write()
    }
}

/// The user does without all folders but that one.
fn let_go(all: &mut BTreeMap<PathBuf, Kept>, user: &str, but: Option<&Path>) {
    all.retain(|folder, kept| {
        if but == Some(folder) || !kept.users.remove(user) || !kept.users.is_empty() {
            return true;
        }
        // Nobody can begin to use it meanwhile: the table is locked.
        if let Err(error) = remove(folder) {
            tracing::warn!(folder = %folder.display(), %error, "credentials not removed");
        }
        false
    });
}

/// What a file of this size takes.
fn taken(size: u64) -> u64 {
    size.max(1).next_multiple_of(PAGE_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(users: &Users, root: &Path, (user, name): (&str, &str)) -> PathBuf {
        let folder = root.join(name);
        users.note(user, folder.clone());
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("accessKeyId"), "key").unwrap();
        folder
    }

    #[test]
    fn credentials_go_with_the_last_one_who_uses_them() {
        let root = tempfile::tempdir().unwrap();
        let users = Users::default();
        let a = put(&users, root.path(), ("job-1", "team/a"));
        put(&users, root.path(), ("job-2", "team/a"));
        let b = put(&users, root.path(), ("job-3", "team/b"));

        users.forget("job-1");
        assert!(a.is_dir() && b.is_dir());
        users.forget("job-2");
        assert!(!a.exists() && b.is_dir());
        // Neither is it wrong to be forgotten twice, nor to have had nothing.
        users.note("job-4", root.path().join("team/c"));
        users.forget("job-4");
        users.forget("job-4");
    }

    #[test]
    fn credentials_that_a_job_names_no_more_go() {
        let root = tempfile::tempdir().unwrap();
        let users = Users::default();
        let old = put(&users, root.path(), ("job-1", "team/old"));
        let new = put(&users, root.path(), ("job-1", "team/new"));

        assert!(!old.exists() && new.is_dir());
        // Whoever renews them for a coordinator of before keeps nothing that nobody knows of.
        let write = || std::fs::create_dir_all(&old);
        let kept = users.put(&old, std::iter::once(1), write).unwrap_err();
        assert_eq!(kept.kind(), ErrorKind::NotFound);
        assert!(!old.exists());
    }

    #[test]
    fn credentials_of_an_earlier_process_are_removed() {
        let work_dir = tempfile::tempdir().unwrap();
        let folder = folder_of(work_dir.path(), "team").join("s3");
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("accessKeyId"), "key").unwrap();

        clear(work_dir.path()).unwrap();

        assert_eq!(std::fs::read_dir(work_dir.path()).unwrap().count(), 0);
        clear(work_dir.path()).unwrap();
    }

    /// How many Secrets with files of these sizes a namespace may keep, each a job's own.
    fn kept_n(users: &Users, namespace: &str, sizes: &[u64]) -> usize {
        let fits = |n: &usize| {
            let folder = Path::new(namespace).join(n.to_string());
            users.note(&format!("{namespace}-{n}"), folder.clone());
            let sizes = sizes.iter().copied();
            users.put(&folder, sizes, || Ok(())).is_ok()
        };
        (0..10_000).take_while(fits).count()
    }

    #[test]
    fn thousand_jobs_of_a_namespace_may_have_a_secret_each() {
        // Three keys take three pages of 4 KiB, and 32 MiB have 8,192 of them.
        assert_eq!(kept_n(&Users::default(), "team", &[20, 40, 1_200]), 2_730);
    }

    #[test]
    fn secrets_of_one_namespace_leave_room_for_those_of_others() {
        let (users, mib) = (Users::default(), 1 << 20);
        assert_eq!(kept_n(&users, "greedy", &[mib]), 32);

        // Each of the others has its 4 MiB.
        for namespace in ["other", "another"] {
            assert_eq!(kept_n(&users, namespace, &[mib]), 4);
        }
        // What takes the place of itself needs no more room.
        let folder = Path::new("other").join("0");
        let put = |size| users.put(&folder, std::iter::once(size), || Ok(()));
        put(mib).unwrap();
        let larger = put(mib + 1);
        assert_eq!(larger.unwrap_err().kind(), ErrorKind::QuotaExceeded);
        // Until the folder is nearly full: 56 MiB of its 64.
        let more = (0..5).map(|n| kept_n(&users, &format!("more-{n}"), &[mib]));
        assert_eq!(more.collect::<Vec<_>>(), [4, 4, 4, 4, 0]);
    }
}
