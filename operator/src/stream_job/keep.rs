//! What is kept of a job in its ConfigMap.
//!
//! Owns: where the record lies, beside the document and the pods that people may look at. It is
//! compressed: with the document before an upgrade it might not fit otherwise.

use std::collections::BTreeMap;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, Client, ResourceExt as _};
use streamforge_crds::v1alpha1::StreamJob;

use super::build::{KeptPods, PODS_KEY};
use super::error::Error;
use crate::names::Names;
use crate::record::Record;

/// Key of the record: JSON, compressed by zstd.
const RECORD_KEY: &str = "record.json.zst";

/// Level of compression: a record is small.
const LEVEL: i32 = 3;

/// What was kept.
#[derive(Clone, Debug, PartialEq)]
pub struct Kept {
    /// The record.
    pub record: Record,
    /// The pods as they were built, if nobody took them out.
    pub pods: Option<KeptPods>,
}

/// Reads what was kept of a job; none: nothing was.
///
/// # Errors
/// When the API server does not answer, or the record cannot be read.
pub async fn read(client: &Client, job: &StreamJob) -> Result<Option<Kept>, Error> {
    let namespace = job.namespace().unwrap_or_default();
    let Ok(names) = Names::of(&job.name_any()) else {
        return Ok(None); // nothing can be kept of what has no name; validate says so
    };
    let name = names.document().to_string();
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), &namespace);
    let map = maps.get_opt(&name).await.map_err(|source| Error::Api {
        what: "read the ConfigMap",
        source,
    })?;
    let Some(map) = map else { return Ok(None) };
    let bytes = map
        .binary_data
        .as_ref()
        .and_then(|data| data.get(RECORD_KEY));
    let Some(bytes) = bytes else { return Ok(None) };
    let record = decode(&bytes.0).map_err(|reason| Error::Record { name, reason })?;
    let pods = map.data.as_ref().and_then(|data| data.get(PODS_KEY));
    let pods = pods.and_then(|text| KeptPods::read(text));
    Ok(Some(Kept { record, pods }))
}

fn decode(bytes: &[u8]) -> Result<Record, String> {
    let json = zstd::decode_all(bytes).map_err(|error| error.to_string())?;
    serde_json::from_slice(&json).map_err(|error| error.to_string())
}

/// Puts the record into the ConfigMap of its document.
pub fn add(map: &mut ConfigMap, record: &Record) {
    let json = serde_json::to_vec(record).expect("a record has texts as keys");
    let bytes = zstd::encode_all(&*json, LEVEL).expect("memory takes all that is written");
    let entry = (RECORD_KEY.to_owned(), ByteString(bytes));
    map.binary_data = Some(BTreeMap::from([entry]));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn record_is_read_as_it_was_kept_and_rubbish_is_told() {
        let record = Record::new("uid-1", serde_json::json!({"sources": []}), 3);
        let mut map = ConfigMap::default();

        add(&mut map, &record);

        let data = map.binary_data.unwrap();
        assert_eq!(decode(&data[RECORD_KEY].0), Ok(record));
        assert!(decode(b"rubbish").is_err());
    }
}
