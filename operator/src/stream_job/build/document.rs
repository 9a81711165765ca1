//! The ConfigMap with what is deployed: the document that runs, and the pods as they were built.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::ConfigMap;

use super::metadata;
use super::pod::KeptPods;
use crate::stream_job::document::Document;
use crate::stream_job::validate::{Desired, Problem};

/// Key of the document.
pub const DOCUMENT_KEY: &str = "job.yaml";

/// Key of the pods.
pub const PODS_KEY: &str = "pods.json";

pub(super) fn build(desired: &Desired, pods: &KeptPods) -> ConfigMap {
    let identity = &desired.identity;
    ConfigMap {
        metadata: metadata::of(identity, &identity.names.document()),
        data: Some(BTreeMap::from([
            (DOCUMENT_KEY.to_owned(), desired.document.shown()),
            (PODS_KEY.to_owned(), pods.text()),
        ])),
        ..ConfigMap::default()
    }
}

/// What a ConfigMap says is deployed.
#[derive(Clone, Debug, PartialEq)]
pub struct Deployed {
    /// The document.
    pub document: Document,
    /// The pods; none: somebody took them out, and they are built anew.
    pub pods: Option<KeptPods>,
}

impl Deployed {
    /// Reads it back.
    ///
    /// # Errors
    /// When the document is gone or no longer one.
    pub fn read(config_map: &ConfigMap) -> Result<Self, Vec<Problem>> {
        let text = |key| config_map.data.as_ref().and_then(|data| data.get(key));
        let document = text(DOCUMENT_KEY).map_or("", String::as_str);
        Ok(Self {
            document: Document::read(document)?,
            pods: text(PODS_KEY).and_then(|text| KeptPods::read(text)),
        })
    }
}
