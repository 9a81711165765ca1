//! The Secret with the certificates of a job's task managers.

use std::collections::BTreeMap;
use std::fmt;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;

use super::metadata;
use crate::certificates::Leaf;
use crate::stream_job::validate::Identity;

/// Key of the certificate.
pub const CERTIFICATE_KEY: &str = "tls.crt";

/// Key of its private key.
pub const PRIVATE_KEY_KEY: &str = "tls.key";

/// Key of the authority's certificate.
pub const AUTHORITY_KEY: &str = "ca.crt";

/// A Secret that `Debug` does not show.
#[derive(Clone, PartialEq)]
pub struct TlsSecret(pub Secret);

impl fmt::Debug for TlsSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.0.metadata.name.as_deref().unwrap_or_default();
        f.debug_tuple("TlsSecret").field(&name).finish()
    }
}

pub(super) fn build(identity: &Identity, leaf: &Leaf) -> TlsSecret {
    let entry = |key: &str, text: &str| (key.to_owned(), ByteString(text.as_bytes().to_vec()));
    TlsSecret(Secret {
        metadata: metadata::of(identity, &identity.names.tls()),
        type_: Some("kubernetes.io/tls".to_owned()),
        data: Some(BTreeMap::from([
            entry(CERTIFICATE_KEY, &leaf.certificate),
            entry(PRIVATE_KEY_KEY, leaf.key.reveal()),
            entry(AUTHORITY_KEY, &leaf.authority),
        ])),
        ..Secret::default()
    })
}
