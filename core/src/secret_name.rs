//! Names of secrets.
//!
//! Owns: what such a name may be, the same on a laptop, where it is a folder, as in a cluster. A name
//! never leads out of the folder of secrets.

/// Longest name (RFC 1123, as Kubernetes has it).
const BYTES_MAX: usize = 253;

/// Whether this can name a secret: lower-case letters, digits, `-` and `.`, beginning and ending with a
/// letter or digit.
pub fn is_secret_name(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let ends = [name.bytes().next(), name.bytes().next_back()];
    name.len() <= BYTES_MAX
        && ends.into_iter().all(|end| end.is_some_and(plain))
        && name
            .bytes()
            .all(|byte| plain(byte) || matches!(byte, b'-' | b'.'))
}

/// What is wrong with another name, for people.
pub const SECRET_NAME_RULE: &str = "the name of a secret has lower-case letters, digits, `-` and `.`, and \
     begins and ends with a letter or digit";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_name_leads_out_of_the_folder_of_secrets() {
        for name in ["kafka", "kafka-ca", "a.b", "0"] {
            assert!(is_secret_name(name), "{name}");
        }
        let long = "a".repeat(254);
        for name in [
            "", ".", "..", "../x", "/etc", "a/b", "a b", "A", "-a", "a-", &long,
        ] {
            assert!(!is_secret_name(name), "{name}");
        }
    }
}
