//! A seal: what an operator wrote, and nobody else.
//!
//! Owns: sealing what is kept where others may write, with a key that only operators of this authority have.
//! The key is made from the authority's and opens nothing else; it is never shown.

use std::fmt;

use aws_lc_rs::hmac::{HMAC_SHA256, Key, sign, verify};

/// What the key is for: another purpose would have another key.
const PURPOSE: &[u8] = b"streamforge seal of what is kept, 1";

/// Seals, and tells a seal of its own. Cheap to clone.
#[derive(Clone)]
pub struct Seal(Key);

impl fmt::Debug for Seal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Seal")
    }
}

impl Seal {
    /// From a secret that nobody else has.
    #[must_use]
    pub fn of(secret: &[u8]) -> Self {
        let made = sign(&Key::new(HMAC_SHA256, secret), PURPOSE);
        Self(Key::new(HMAC_SHA256, made.as_ref()))
    }

    /// The seal of a text, in hexadecimal digits.
    #[must_use]
    pub fn seal(&self, text: &str) -> String {
        let tag = sign(&self.0, text.as_bytes());
        let digits = tag.as_ref().iter().map(|byte| format!("{byte:02x}"));
        digits.collect()
    }

    /// Whether this is the seal of a text.
    #[must_use]
    pub fn is_of(&self, text: &str, seal: &str) -> bool {
        let digits = seal.as_bytes().chunks(2).map(|digits| {
            let digits = std::str::from_utf8(digits).ok()?;
            u8::from_str_radix(digits, 16).ok()
        });
        let tag: Option<Vec<u8>> = digits.collect();
        tag.is_some_and(|tag| verify(&self.0, text.as_bytes(), &tag).is_ok())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seal_is_of_one_text_and_of_one_secret() {
        let (ours, theirs) = (Seal::of(b"ours"), Seal::of(b"theirs"));
        let sealed = ours.seal("text");

        assert_eq!(sealed.len(), 64);
        assert!(ours.is_of("text", &sealed));
        assert!(!ours.is_of("texts", &sealed));
        assert!(!theirs.is_of("text", &sealed));
        for wrong in ["", "0", "zz", "é", &sealed[2..], &format!("{sealed}00")] {
            assert!(!ours.is_of("text", wrong), "{wrong}");
        }
        assert_eq!(format!("{ours:?}"), "Seal");
    }

    /// Python: `hmac.new(hmac.new(b"ours", PURPOSE, "sha256").digest(), b"text", "sha256").hexdigest()`.
    #[test]
    fn seal_stays_the_same_from_version_to_version() {
        let wanted = "60ebf9cc9dd2530947143a3d52b9b18dd183eeae274a5d34e67ea3391a7db535";
        assert_eq!(Seal::of(b"ours").seal("text"), wanted);
    }
}
