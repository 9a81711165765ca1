//! Where savepoints are, and what they are called.
//!
//! Owns: the layout. A savepoint is a folder that is complete in itself (C9): its manifest, under
//! [`MANIFEST_KEY`] and written last, and everything that names, under the same keys as in the store
//! it was taken in. So the folder may be copied anywhere, and one without a manifest is none.

use crate::manifest::Manifest;

/// Folder of savepoints under the job's prefix.
pub const SAVEPOINTS: &str = "savepoints";

/// Key of its manifest within a savepoint's folder.
pub const MANIFEST_KEY: &str = "savepoint";

/// Longest name.
pub const NAME_MAX: usize = 63;

/// Folder of the savepoint of this name under the job's prefix, with a slash at its end.
pub fn folder(name: &str) -> String {
    format!("{SAVEPOINTS}/{name}/")
}

/// The name of the savepoint that this object of the job's store is the manifest of.
pub fn name_of(key: &str) -> Option<&str> {
    let (name, rest) = key
        .strip_prefix(SAVEPOINTS)?
        .strip_prefix('/')?
        .split_once('/')?;
    (rest == MANIFEST_KEY).then_some(name)
}

/// Why a savepoint cannot be called this.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a savepoint cannot be called {name:?}: write up to {NAME_MAX} of a-z, 0-9 and -, with none of - at \
     either end"
)]
pub struct BadName {
    /// As asked for.
    pub name: String,
}

/// The rule for names of Kubernetes, so that a resource and a folder can have the same.
///
/// # Errors
/// See [`BadName`].
pub fn check_name(name: &str) -> Result<(), BadName> {
    let allowed = |c: char| matches!(c, 'a'..='z' | '0'..='9' | '-');
    let right = (1..=NAME_MAX).contains(&name.len())
        && name.chars().all(allowed)
        && !name.starts_with('-')
        && !name.ends_with('-');
    if right {
        Ok(())
    } else {
        let name = name.to_owned();
        Err(BadName { name })
    }
}

/// The manifest with other keys for the objects that a restore reads.
#[must_use]
pub fn with_keys(manifest: &Manifest, mut key: impl FnMut(&str) -> String) -> Manifest {
    let mut changed = manifest.clone();
    for state in changed.operators.values_mut() {
        for part in &mut state.parts {
            part.key = key(&part.key);
        }
    }
    for object in &mut changed.late_log {
        object.key = key(&object.key);
    }
    changed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_is_read_back_from_a_manifests_key_and_from_no_other() {
        let key = format!("{}{MANIFEST_KEY}", folder("nightly-1"));

        assert_eq!(key, "savepoints/nightly-1/savepoint");
        assert_eq!(name_of(&key), Some("nightly-1"));
        for other in [
            "savepoints/nightly-1/parts/g1-e1-c1-t0.0-0",
            "savepoints/savepoint",
            "savepointsx/a/savepoint",
            "head",
        ] {
            assert_eq!(name_of(other), None, "{other}");
        }
    }

    #[test]
    fn names_are_those_that_a_resource_and_a_folder_may_have() {
        for name in ["a", "0", "nightly", "20261129-234530", &"x".repeat(63)] {
            assert_eq!(check_name(name), Ok(()), "{name}");
        }
        for name in [
            "",
            "-a",
            "a-",
            "A",
            "a.b",
            "a/b",
            "..",
            "a b",
            &"x".repeat(64),
        ] {
            assert!(check_name(name).is_err(), "{name}");
        }
    }
}
