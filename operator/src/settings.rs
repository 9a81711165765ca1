//! What the operator is told and building needs.
//!
//! Owns: the settings that come from flags, and which stores may be used with the operator's own
//! identity. Start at: [`Settings`].

use serde::Deserialize;
use streamforge_core::s3::{AddressError, S3Access, S3Place};
use streamforge_core::secret_name::is_secret_name;

use crate::seal::Seal;

/// Where a task manager listens for rows of others.
pub const EXCHANGE_PORT: i32 = 7101;

/// Where a task manager shows `/metrics`, `/livez` and `/readyz`.
pub const METRICS_PORT: i32 = 8080;

/// What the operator is told.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Host and port where task managers reach the coordinator.
    pub coordinator: String,
    /// The image of task managers for which a job names none.
    pub task_manager_image: String,
    /// Stores that jobs may use without credentials of their own.
    pub shared_stores: Vec<SharedStore>,
    /// For what is kept where others may write.
    pub seal: Seal,
}

/// A place in a bucket that the operator's own identity may be used for, by jobs of some namespaces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedStore {
    /// The place; everything below it belongs to it.
    pub place: S3Place,
    /// The namespaces.
    pub namespaces: Vec<String>,
}

/// Why the shared stores cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It is not the JSON that is wanted.
    #[error(
        "read the shared stores: write a list like [{{\"uri\":\"s3://bucket/prefix\",\"namespaces\":[\"a\"]}}]"
    )]
    Json(#[source] serde_json::Error),
    /// A place is none.
    #[error("read the shared stores")]
    Place(#[source] AddressError),
}

/// As it is written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    uri: String,
    namespaces: Vec<String>,
    endpoint: Option<String>,
}

impl Settings {
    /// Whether jobs of this namespace may use a place: with a secret of their own, or because it is
    /// shared with them.
    #[must_use]
    pub fn may_use(&self, namespace: &str, place: &S3Place) -> bool {
        let own = place.access.credentials_secret.as_deref();
        own.is_some_and(is_secret_name) || self.is_shared(namespace, place)
    }

    /// Whether jobs of this namespace may use a place as the operator.
    #[must_use]
    pub fn is_shared(&self, namespace: &str, place: &S3Place) -> bool {
        let shared = &self.shared_stores;
        shared.iter().any(|store| store.covers(namespace, place))
    }
}

impl SharedStore {
    /// Reads the JSON of `--shared-stores`; a blank text means none.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn parse_list(json: &str) -> Result<Vec<Self>, Error> {
        if json.trim().is_empty() {
            return Ok(Vec::new());
        }
        let written: Vec<Written> = serde_json::from_str(json).map_err(Error::Json)?;
        written.into_iter().map(Self::read).collect()
    }

    fn read(written: Written) -> Result<Self, Error> {
        let access = S3Access {
            endpoint: written.endpoint,
            ..S3Access::default()
        };
        Ok(Self {
            place: S3Place::parse(&written.uri, access).map_err(Error::Place)?,
            namespaces: written.namespaces,
        })
    }

    /// Whether jobs of this namespace may use this place with the operator's identity. A server of the
    /// document's choice would be sent the operator's signature, so it must be the one that is shared.
    #[must_use]
    pub fn covers(&self, namespace: &str, place: &S3Place) -> bool {
        self.namespaces.iter().any(|shared| shared == namespace)
            && self.place.bucket == place.bucket
            && self.place.access.endpoint == place.access.endpoint
            && is_below(&self.place.prefix, &place.prefix)
    }
}

fn is_below(shared: &str, prefix: &str) -> bool {
    match prefix.strip_prefix(shared) {
        Some(rest) => shared.is_empty() || rest.is_empty() || rest.starts_with('/'),
        None => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(text: &str) -> S3Place {
        S3Place::parse(text, S3Access::default()).unwrap()
    }

    #[test]
    fn attack_48_shared_store_covers_what_is_below_it_for_its_namespaces_only() {
        let json = r#"[{"uri": "s3://team/jobs", "namespaces": ["a", "b"]}]"#;
        let [store] = &SharedStore::parse_list(json).unwrap()[..] else {
            panic!("one store")
        };

        for (namespace, text, covered) in [
            ("a", "s3://team/jobs", true),
            ("b", "s3://team/jobs/x", true),
            ("c", "s3://team/jobs/x", false),
            ("a", "s3://team/jobs2", false),
            ("a", "s3://team", false),
            ("a", "s3://other/jobs", false),
        ] {
            assert_eq!(
                store.covers(namespace, &place(text)),
                covered,
                "{namespace} {text}"
            );
        }
    }

    #[test]
    fn operators_identity_is_not_shown_to_a_server_of_the_documents_choice() {
        let json = r#"[{"uri": "s3://team", "namespaces": ["a"]}]"#;
        let store = SharedStore::parse_list(json).unwrap().remove(0);
        let mut elsewhere = place("s3://team/x");
        elsewhere.access.endpoint = Some("https://attacker.example".to_owned());

        assert!(!store.covers("a", &elsewhere));
        assert!(store.covers("a", &place("s3://team/x")));
    }

    #[test]
    fn what_cannot_be_read_is_an_error_and_blank_is_none() {
        assert_eq!(SharedStore::parse_list(" ").unwrap(), []);
        assert_eq!(SharedStore::parse_list("[]").unwrap(), []);
        for json in [
            "{}",
            "[{}]",
            r#"[{"uri": "file:///x", "namespaces": []}]"#,
            r#"[{"uri": "s3://abc", "namespace": "a"}]"#,
        ] {
            assert!(SharedStore::parse_list(json).is_err(), "{json}");
        }
    }
}
