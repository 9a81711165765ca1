//! Where in which S3 something lies, and how to get there.
//!
//! Owns: the `s3://bucket/prefix` address and the way to its server, as a document says them. Names a
//! secret, never holds one. Start at: [`S3Place`].

use std::fmt;

use serde::{Deserialize, Serialize};

/// What every S3 address begins with.
pub const SCHEME: &str = "s3://";

/// Longest prefix: with the longest key of ours it stays below the 1,024 bytes of S3.
pub const PREFIX_BYTES_MAX: usize = 120;

/// A bucket and a prefix, and how to reach them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct S3Place {
    /// The bucket.
    pub bucket: String,
    /// Keys begin with this and a slash; empty = the whole bucket. No slash at either end.
    pub prefix: String,
    /// The way there.
    #[serde(default)]
    pub access: S3Access,
}

/// How to reach a server, and as whom.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct S3Access {
    /// URL of the server; none = what the environment says, else AWS.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<String>,
    /// The region; none = what the environment says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub region: Option<String>,
    /// Whether the bucket is part of the path rather than of the host name.
    pub path_style: bool,
    /// Name of the secret with the keys; none = who the environment says we are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credentials_secret: Option<String>,
}

impl Default for S3Access {
    fn default() -> Self {
        Self {
            endpoint: None,
            region: None,
            path_style: true,
            credentials_secret: None,
        }
    }
}

/// Why a text is no S3 address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is no address of a bucket: {reason}")]
pub struct AddressError {
    /// What was written.
    pub text: String,
    /// What is wrong.
    pub reason: &'static str,
}

impl S3Place {
    /// Reads `s3://bucket/prefix`; slashes at the end mean nothing.
    ///
    /// # Errors
    /// [`AddressError`] with the rule that is broken.
    pub fn parse(text: &str, access: S3Access) -> Result<Self, AddressError> {
        let failed = |reason| AddressError {
            text: text.to_owned(),
            reason,
        };
        let Some(rest) = text.strip_prefix(SCHEME) else {
            return Err(failed("it does not begin with s3://"));
        };
        let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        let prefix = prefix.trim_end_matches('/');
        if let Some(reason) = bucket_fault(bucket).or_else(|| prefix_fault(prefix)) {
            return Err(failed(reason));
        }
        Ok(Self {
            bucket: bucket.to_owned(),
            prefix: prefix.to_owned(),
            access,
        })
    }
}

impl fmt::Display for S3Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{SCHEME}{}", self.bucket)?;
        if !self.prefix.is_empty() {
            write!(f, "/{}", self.prefix)?;
        }
        match &self.access.endpoint {
            Some(endpoint) => write!(f, " at {endpoint}"),
            None => Ok(()),
        }
    }
}

/// What is wrong with the name of a bucket.
fn bucket_fault(bucket: &str) -> Option<&'static str> {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    if !(3..=63).contains(&bucket.len()) {
        Some("the name of a bucket has 3 to 63 characters")
    } else if !bucket.chars().all(|c| plain(c) || c == '-' || c == '.') {
        Some("the name of a bucket has only lower-case letters, digits, - and .")
    } else if !bucket.starts_with(plain) || !bucket.ends_with(plain) {
        Some("the name of a bucket begins and ends with a letter or a digit")
    } else {
        None
    }
}

/// What is wrong with a prefix: it becomes the beginning of every key.
fn prefix_fault(prefix: &str) -> Option<&'static str> {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-' | '=' | '+');
    if prefix.is_empty() {
        None
    } else if prefix.len() > PREFIX_BYTES_MAX {
        Some("the prefix is longer than 120 bytes")
    } else if prefix.split('/').any(str::is_empty) {
        Some("the prefix has two slashes in a row")
    } else if prefix.split('/').any(|segment| segment.starts_with('.')) {
        Some("a part of the prefix begins with a dot")
    } else if !prefix.chars().all(|c| plain(c) || c == '/') {
        Some("the prefix has other characters than letters, digits and . _ - = + /")
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> (String, String) {
        let place = S3Place::parse(text, S3Access::default()).expect("the address is right");
        (place.bucket, place.prefix)
    }

    #[test]
    fn bucket_and_prefix_are_told_apart_and_slashes_at_the_end_mean_nothing() {
        for (text, bucket, prefix) in [
            ("s3://bucket", "bucket", ""),
            ("s3://bucket/", "bucket", ""),
            ("s3://a-b.c/x", "a-b.c", "x"),
            ("s3://bucket/jobs/day=1//", "bucket", "jobs/day=1"),
        ] {
            assert_eq!(
                parsed(text),
                (bucket.to_owned(), prefix.to_owned()),
                "{text}"
            );
        }
    }

    #[test]
    fn addresses_that_no_server_takes_are_refused_with_the_rule() {
        for (text, rule) in [
            ("file:///x", "does not begin with s3://"),
            ("s3://", "3 to 63"),
            ("s3://ab/x", "3 to 63"),
            ("s3://Bucket/x", "lower-case"),
            ("s3://bucket-/x", "begins and ends"),
            ("s3://bucket//x", "two slashes"),
            ("s3://bucket/a/../b", "begins with a dot"),
            ("s3://bucket/a b", "other characters"),
        ] {
            let error = S3Place::parse(text, S3Access::default()).expect_err(text);
            assert!(error.reason.contains(rule), "{text}: {error}");
        }
    }

    #[test]
    fn a_place_is_shown_with_its_server_and_without_any_secret() {
        let access = S3Access {
            endpoint: Some("http://127.0.0.1:9".to_owned()),
            credentials_secret: Some("store-keys".to_owned()),
            ..S3Access::default()
        };
        let place = S3Place::parse("s3://bucket/a/b/", access).expect("the address is right");

        assert_eq!(place.to_string(), "s3://bucket/a/b at http://127.0.0.1:9");
    }
}
