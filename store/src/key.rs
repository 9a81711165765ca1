//! Which keys every store can hold.
//!
//! Owns: the rule for object keys. The narrowest store decides: a folder on a case-preserving
//! file system, so segments are short and plain, and none begins with a dot (a store keeps its
//! own files under such names).

use crate::Error;

/// Longest key, well under the 1,024 bytes of S3 and `PATH_MAX` with a deep root.
pub const KEY_BYTES_MAX: usize = 900;

/// Longest segment: file systems stop at 255 bytes.
pub const SEGMENT_BYTES_MAX: usize = 240;

/// Refuses keys that some store could not hold, or that would leave the store's folder.
///
/// # Errors
/// [`Error::InvalidKey`] with the rule that is broken.
pub fn check_key(key: &str) -> Result<(), Error> {
    let reason = if key.is_empty() {
        "it is empty"
    } else if key.len() > KEY_BYTES_MAX {
        "it is longer than 900 bytes"
    } else {
        match key.split('/').find_map(segment_fault) {
            None => return Ok(()),
            Some(reason) => reason,
        }
    };
    Err(Error::InvalidKey {
        key: key.to_owned(),
        reason,
    })
}

/// Checks the fixed text that a listing starts with: a key, or the beginning of one.
///
/// # Errors
/// [`Error::InvalidKey`] when no key can begin with it.
pub fn check_prefix(prefix: &str) -> Result<(), Error> {
    let whole = prefix.rsplit_once('/').map_or("", |(folder, _)| folder);
    if whole.is_empty() {
        Ok(())
    } else {
        check_key(whole)
    }
}

fn segment_fault(segment: &str) -> Option<&'static str> {
    if segment.is_empty() {
        Some("it has an empty segment (a slash at an end, or two in a row)")
    } else if segment.len() > SEGMENT_BYTES_MAX {
        Some("a segment is longer than 240 bytes")
    } else if segment.starts_with('.') {
        Some("a segment begins with a dot")
    } else if !segment.bytes().all(is_plain) {
        Some("only letters, digits and . _ - = + are allowed in a segment")
    } else {
        None
    }
}

fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-' | b'=' | b'+')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_paths_are_keys() {
        for key in ["head", "a/b/c", "g1/e2/c3-op_0.part", "day=2026-01-01/x+y"] {
            assert!(check_key(key).is_ok(), "{key}");
        }
    }

    #[test]
    fn keys_that_leave_the_folder_are_refused() {
        for key in [
            "",
            "/etc/passwd",
            "../up",
            "a/../b",
            "a//b",
            "a/",
            "a/.hidden",
            "a\\b",
            "ä",
        ] {
            assert!(check_key(key).is_err(), "{key:?}");
        }
    }

    #[test]
    fn keys_longer_than_any_store_holds_are_refused() {
        assert!(check_key(&"a".repeat(241)).is_err());
        assert!(check_key(&"a".repeat(240)).is_ok());
        assert!(check_key(&vec!["a".repeat(200); 5].join("/")).is_err());
    }
}
