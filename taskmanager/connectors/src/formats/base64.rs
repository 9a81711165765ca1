//! Base64 of RFC 4648 with padding, as BYTEA travels in JSON and CSV.
//!
//! Owns: both directions. Start at: [`decode`], [`encode`].

use crate::formats::builder::Runs;
use crate::formats::fault::Fault;

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Value of each letter; 255 for what is none.
const VALUES: [u8; 256] = {
    let mut values = [255; 256];
    let mut i = 0;
    while i < 64 {
        values[ALPHABET[i] as usize] = i as u8;
        i += 1;
    }
    values
};

/// Appends the bytes that `text` stands for; the caller ends the value. Bits behind the last byte
/// must be zero, so that each value has one text.
pub fn decode(text: &[u8], out: &mut Runs) -> Result<(), Fault> {
    let (groups, rest) = text.as_chunks::<4>();
    if !rest.is_empty() {
        return Err(Fault::NotBase64);
    }
    let last = groups.len();
    for (idx, group) in groups.iter().enumerate() {
        let padding = match group {
            [_, _, b'=', b'='] => 2,
            [_, _, _, b'='] => 1,
            _ => 0,
        };
        let mut bits = 0u32;
        for letter in group.iter().take(4 - padding) {
            let value = VALUES.get(usize::from(*letter)).copied().unwrap_or(255);
            if value > 63 {
                return Err(Fault::NotBase64);
            }
            bits = bits << 6 | u32::from(value);
        }
        bits <<= 6 * padding;
        let [_, a, b, c] = bits.to_be_bytes();
        let clean = match padding {
            0 => true,
            1 => c == 0,
            _ => b == 0 && c == 0,
        };
        if !clean || (padding > 0 && idx + 1 != last) {
            return Err(Fault::NotBase64);
        }
        out.extend([a, b, c].get(..3 - padding).unwrap_or_default());
    }
    Ok(())
}

/// Appends the text of `bytes`.
pub fn encode(bytes: &[u8], out: &mut Vec<u8>) {
    let letter = |bits: u32| ALPHABET[(bits & 63) as usize];
    let (groups, rest) = bytes.as_chunks::<3>();
    for [a, b, c] in groups {
        let bits = u32::from_be_bytes([0, *a, *b, *c]);
        out.extend([
            letter(bits >> 18),
            letter(bits >> 12),
            letter(bits >> 6),
            letter(bits),
        ]);
    }
    match rest {
        [a] => {
            let bits = u32::from(*a) << 16;
            out.extend([letter(bits >> 18), letter(bits >> 12), b'=', b'=']);
        }
        [a, b] => {
            let bits = u32::from(*a) << 16 | u32::from(*b) << 8;
            out.extend([
                letter(bits >> 18),
                letter(bits >> 12),
                letter(bits >> 6),
                b'=',
            ]);
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vectors_of_rfc_4648_read_and_write() {
        for (bytes, text) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("fooba", "Zm9vYmE="),
            ("foobar", "Zm9vYmFy"),
        ] {
            let mut out = Vec::new();
            encode(bytes.as_bytes(), &mut out);
            assert_eq!(out, text.as_bytes());
            let mut runs = Runs::default();
            assert_eq!(decode(text.as_bytes(), &mut runs), Ok(()));
            assert_eq!(runs.open(), bytes.as_bytes());
        }
    }

    #[test]
    fn what_is_not_base64_is_refused() {
        for text in [
            "Z", "Zg=", "Zg==Zg==", "Zh==", "Zm9=", "Z*==", "====", "=g==",
        ] {
            assert_eq!(
                decode(text.as_bytes(), &mut Runs::default()),
                Err(Fault::NotBase64),
                "{text}"
            );
        }
    }
}
