//! What is kept of a job in its ConfigMap.
//!
//! Owns: where the record lies, beside the document and the pods that people may look at. It is
//! compressed: with the document before an upgrade it might not fit otherwise.

mod packed;

use std::collections::BTreeMap;
use std::io::Read as _;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt as _};
use streamforge_crds::v1alpha1::StreamJob;

use super::build::{DOCUMENT_KEY, KeptPods, PODS_KEY};
use super::error::Error;
use crate::apply::is_gone;
use crate::names::{FIELD_MANAGER, Names};
use crate::record::Record;

pub use packed::Packed;

/// Key of the record: JSON, compressed by zstd.
const RECORD_KEY: &str = "record.json.zst";

/// What the API server takes of a ConfigMap.
const MAP_BYTES_MAX: usize = 1 << 20;

/// Largest record that is read: two documents, each of which may be as large as etcd lets an object be (1.5 MiB), with
/// all defaults written out.
const RECORD_BYTES_MAX: usize = 8 << 20;

/// Most values of one, which take far more memory than text: two such documents with nothing but columns in them.
const RECORD_VALUES_MAX: usize = 1 << 19;

/// How far back a compressed record may look, as a power of two: that memory is taken at once.
const WINDOW_LOG_MAX: u32 = 23;

/// Said in the place of a document.
const TOO_LONG: &str = "# This document is too long to be shown here. The record beside it has it, compressed by zstd.\n";

/// Level of compression: a record is small.
const LEVEL: i32 = 3;

/// What was kept.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Kept {
    /// The record.
    pub record: Option<Record>,
    /// The pods as they were built, if nobody took them out.
    pub pods: Option<KeptPods>,
    /// The resource version of the ConfigMap; none: it is not there. Who writes names it, so that of two
    /// operators only one that has read the newest record replaces it.
    pub version: Option<String>,
}

/// Reads what was kept of a job: nothing, if the ConfigMap is not there or is an earlier job's of that name.
///
/// # Errors
/// When the API server does not answer, or the record cannot be read.
pub async fn read(client: &Client, job: &StreamJob) -> Result<Kept, Error> {
    let uid = job.metadata.uid.as_deref().unwrap_or_default();
    let namespace = job.namespace().unwrap_or_default();
    read_of(client, &namespace, &job.name_any(), uid).await
}

/// The same of a job by its name and uid.
///
/// # Errors
/// As [`read`].
pub async fn read_of(
    client: &Client,
    namespace: &str,
    job: &str,
    uid: &str,
) -> Result<Kept, Error> {
    let Ok(names) = Names::of(job) else {
        return Ok(Kept::default()); // nothing can be kept of what has no name; validate says so
    };
    let name = names.document().to_string();
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
    let map = maps.get_opt(&name).await.map_err(|source| Error::Api {
        what: "read the ConfigMap",
        source,
    })?;
    let Some(map) = map else {
        return Ok(Kept::default());
    };
    of_map(&map, uid).map_err(|reason| Error::Record { name, reason })
}

fn of_map(map: &ConfigMap, uid: &str) -> Result<Kept, String> {
    let mut kept = Kept {
        version: map.metadata.resource_version.clone(),
        ..Kept::default()
    };
    let bytes = map.binary_data.as_ref();
    let Some(bytes) = bytes.and_then(|data| data.get(RECORD_KEY)) else {
        return Ok(kept);
    };
    let record = decode(&bytes.0)?;
    if record.uid == uid {
        let pods = map.data.as_ref().and_then(|data| data.get(PODS_KEY));
        kept.pods = pods.and_then(|text| KeptPods::read(text));
        kept.record = Some(record);
    }
    Ok(kept)
}

/// Writes the ConfigMap over the one of this version, or where there is none. `None`: somebody else has
/// written meanwhile.
///
/// # Errors
/// The server's.
pub async fn write(
    client: &Client,
    map: &ConfigMap,
    version: Option<&str>,
) -> Result<Option<ConfigMap>, kube::Error> {
    let maps: Api<ConfigMap> = Api::namespaced(
        client.clone(),
        map.metadata.namespace.as_deref().unwrap_or_default(),
    );
    let written = match version {
        // Server-side apply makes what is not there, and takes over what is.
        None => {
            let params = PostParams {
                field_manager: Some(FIELD_MANAGER.to_owned()),
                ..PostParams::default()
            };
            maps.create(&params, map).await
        }
        Some(version) => {
            let mut map = map.clone();
            map.metadata.resource_version = Some(version.to_owned());
            let params = PatchParams::apply(FIELD_MANAGER).force();
            maps.patch(&map.name_any(), &params, &Patch::Apply(&map))
                .await
        }
    };
    match written {
        Ok(written) => Ok(Some(written)),
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(None),
        Err(error) if version.is_some() && is_gone(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Whoever may edit ConfigMaps decides what is read here, so it has a limit.
fn decode(bytes: &[u8]) -> Result<Record, String> {
    let json = expanded(bytes).map_err(|error| error.to_string())?;
    // Each value but the first has one of these before it; texts may have more of them.
    let values = json
        .iter()
        .filter(|byte| matches!(byte, b',' | b'[' | b'{'));
    if json.len() > RECORD_BYTES_MAX || values.count() > RECORD_VALUES_MAX {
        return Err("it is larger than any document can make it".to_owned());
    }
    serde_json::from_slice(&json).map_err(|error| error.to_string())
}

/// A byte more than may be, where there is more.
fn expanded(bytes: &[u8]) -> std::io::Result<Vec<u8>> {
    let mut decoder = zstd::Decoder::new(bytes)?;
    decoder.window_log_max(WINDOW_LOG_MAX)?;
    let mut json = Vec::new();
    let most = RECORD_BYTES_MAX as u64 + 1;
    decoder.take(most).read_to_end(&mut json)?;
    Ok(json)
}

/// Puts the record into the ConfigMap of its document. What must be kept comes first: where both do not fit,
/// the document is not shown.
pub fn add(map: &mut ConfigMap, record: &Record) {
    let json = serde_json::to_vec(record).expect("a record has texts as keys");
    let entry = (RECORD_KEY.to_owned(), ByteString(compressed(&json)));
    map.binary_data = Some(BTreeMap::from([entry]));
    if bytes_of(map) > MAP_BYTES_MAX {
        let shown = map.data.iter_mut().flatten();
        for (_, document) in shown.filter(|(key, _)| *key == DOCUMENT_KEY) {
            TOO_LONG.clone_into(document);
        }
    }
}

/// As a record is compressed.
#[must_use]
pub fn compressed(bytes: &[u8]) -> Vec<u8> {
    // That knows how much there is: else it takes mebibytes for what might follow.
    zstd::bulk::compress(bytes, LEVEL).expect("there is room for whatever comes")
}

/// As the API server counts.
fn bytes_of(map: &ConfigMap) -> usize {
    let texts = map.data.iter().flatten().map(|(_, text)| text.len());
    let bytes = map.binary_data.iter().flatten();
    texts.sum::<usize>() + bytes.map(|(_, bytes)| bytes.0.len()).sum::<usize>()
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

    #[test]
    fn record_that_expands_without_end_is_read_no_further_than_two_documents_may_be_long() {
        let too_large = Err("it is larger than any document can make it".to_owned());
        let spaces = vec![b' '; 64 << 20];
        let packed = compressed(&spaces);
        assert!(packed.len() < 16 << 10, "{}", packed.len());

        assert_eq!(decode(&packed), too_large);
        assert_eq!(expanded(&packed).unwrap().len(), RECORD_BYTES_MAX + 1);
        // Short as text, a hundred times as large in memory.
        let zeros = vec![0; RECORD_VALUES_MAX];
        let record = Record::new("uid-1", serde_json::json!(zeros), 3);
        let json = serde_json::to_vec(&record).unwrap();
        assert!(json.len() < RECORD_BYTES_MAX);
        assert_eq!(decode(&compressed(&json)), too_large);
    }

    #[test]
    fn densest_document_that_etcd_takes_is_read_also_with_the_one_before_it() {
        let column = serde_json::json!({"name": "c", "type": "TEXT", "nullable": true});
        // As it is written, without the default.
        let columns_n = (1_536 << 10) / r#"{"name":"c","type":"TEXT"},"#.len();
        let document = serde_json::json!({"sources": [{"schema": vec![column; columns_n]}]});
        let record = Record {
            previous: Some(crate::record::Previous {
                document: document.clone(),
                generation: 2,
                plan: String::new(),
                since: k8s_openapi::jiff::Timestamp::UNIX_EPOCH,
            }),
            ..Record::new("uid-1", document, 3)
        };
        let json = serde_json::to_vec(&record).unwrap();

        assert_eq!(decode(&compressed(&json)), Ok(record));
    }

    #[test]
    fn document_is_not_shown_where_it_would_leave_no_room_for_what_must_be_kept() {
        // Nothing that a compressor would find a pattern in.
        let noise = |seed: u64| -> String {
            let words = (0..60_000_u64).map(|n| n ^ seed << 32);
            words
                .map(|n| format!("{:016x}", xxhash_rust::xxh3::xxh3_64(&n.to_le_bytes())))
                .collect()
        };
        let (one, other) = (serde_json::json!(noise(1)), serde_json::json!(noise(2)));
        let map = |shown: &str| ConfigMap {
            data: Some(BTreeMap::from([(
                DOCUMENT_KEY.to_owned(),
                shown.to_owned(),
            )])),
            ..ConfigMap::default()
        };
        let small = Record::new("uid-1", one, 3);
        let large = Record {
            document: other,
            ..small.clone()
        };

        for (record, shown, is_shown) in [
            (&small, "short".to_owned(), true),
            (&large, noise(3), false),
        ] {
            let mut map = map(&shown);
            add(&mut map, record);

            assert!(bytes_of(&map) <= MAP_BYTES_MAX);
            let data = map.data.as_ref().unwrap();
            assert_eq!(data[DOCUMENT_KEY] == shown, is_shown);
            let kept = &map.binary_data.unwrap()[RECORD_KEY];
            assert_eq!(decode(&kept.0), Ok(record.clone()));
        }
    }
}
