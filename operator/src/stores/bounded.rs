//! A store of which no object is read that is longer than one of its kind can be.
//!
//! Owns: these limits. What is in a bucket is its owner's to say, and all jobs share the operator's memory: a head
//! of a gibibyte is refused, not read. What could not be read again is not written either. Parts of state are not
//! limited here; whoever reads one knows its length.

use std::ops::Range;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use streamforge_core::manifest::HEAD_KEY;
use streamforge_core::object_key::{MANIFESTS, PLANS};
use streamforge_core::savepoint;
use streamforge_store::{
    Condition, Error, ObjectMeta, ObjectStore, ObjectWriter, Put, Result, StoredObject,
};

/// Of the head: it names checkpoints and the owners of key groups.
const HEAD_BYTES_MAX: u64 = 16 << 20;

/// Of a plan: a document of at most a mebibyte, and what is made of it.
const PLAN_BYTES_MAX: u64 = 16 << 20;

/// Of a manifest, a savepoint's too: as much as a task manager can tell at once.
const MANIFEST_BYTES_MAX: u64 = 64 << 20;

/// See the module.
#[derive(Debug)]
pub(super) struct Bounded(pub(super) Arc<dyn ObjectStore>);

/// Most bytes of an object by its key.
fn bytes_max(key: &str) -> u64 {
    let folder = key.split('/').next().unwrap_or_default();
    match folder {
        HEAD_KEY => HEAD_BYTES_MAX,
        PLANS => PLAN_BYTES_MAX,
        MANIFESTS => MANIFEST_BYTES_MAX,
        // Of a savepoint whose folder this store is, and of one within.
        savepoint::MANIFEST_KEY => MANIFEST_BYTES_MAX,
        _ if savepoint::name_of(key).is_some() => MANIFEST_BYTES_MAX,
        _ => u64::MAX,
    }
}

fn check_length(key: &str, bytes_n: u64) -> Result<()> {
    let bytes_max = bytes_max(key);
    if bytes_n > bytes_max {
        return Err(Error::TooLongToKeep {
            key: key.to_owned(),
            bytes_n,
            bytes_max,
        });
    }
    Ok(())
}

/// An object under way that may have so many bytes.
#[derive(Debug)]
struct BoundedWriter {
    inner: Box<dyn ObjectWriter>,
    key: String,
    bytes_n: u64,
}

#[async_trait]
impl ObjectWriter for BoundedWriter {
    async fn add(&mut self, piece: Bytes) -> Result<()> {
        let bytes_n = self.bytes_n.saturating_add(piece.len() as u64);
        check_length(&self.key, bytes_n)?;
        self.inner.add(piece).await?;
        self.bytes_n = bytes_n;
        Ok(())
    }

    async fn finish(&mut self, condition: Condition) -> Result<Put> {
        self.inner.finish(condition).await
    }

    async fn abandon(&mut self) -> Result<()> {
        self.inner.abandon().await
    }
}

#[async_trait]
impl ObjectStore for Bounded {
    async fn get_within(&self, key: &str, most: u64) -> Result<Option<StoredObject>> {
        self.0.get_within(key, most.min(bytes_max(key))).await
    }

    async fn get_range(&self, key: &str, range: Range<u64>) -> Result<Bytes> {
        self.0.get_range(key, range).await
    }

    async fn put(&self, key: &str, bytes: Bytes, condition: Condition) -> Result<Put> {
        check_length(key, bytes.len() as u64)?;
        self.0.put(key, bytes, condition).await
    }

    async fn begin(&self, key: &str) -> Result<Box<dyn ObjectWriter>> {
        Ok(Box::new(BoundedWriter {
            inner: self.0.begin(key).await?,
            key: key.to_owned(),
            bytes_n: 0,
        }))
    }

    async fn list(&self, prefix: &str) -> Result<Vec<ObjectMeta>> {
        self.0.list(prefix).await
    }

    async fn delete(&self, keys: &[String]) -> Result<()> {
        self.0.delete(keys).await
    }

    fn location(&self) -> String {
        self.0.location()
    }
}

#[cfg(test)]
mod tests {
    use streamforge_store::{MemoryStore, PIECE_BYTES};

    use super::*;

    const BIG: usize = (MANIFEST_BYTES_MAX + 1) as usize;

    #[tokio::test]
    async fn head_plan_or_manifest_that_is_larger_than_any_is_not_read_and_a_part_of_state_is() {
        let memory = Arc::new(MemoryStore::default());
        let store = Bounded(Arc::<MemoryStore>::clone(&memory));
        let bytes = Bytes::from(vec![b' '; BIG]);
        for (key, is_read) in [
            ("head", false),
            ("plans/1-1-1", false),
            ("manifests/1-1-1", false),
            ("savepoints/a/savepoint", false),
            ("savepoint", false),
            ("parts/1-1-1-0-0", true),
            ("savepoints/a/parts/1-1-1-0-0", true),
        ] {
            let put = memory.put_now(key, bytes.clone(), Condition::None);
            assert!(matches!(put, Ok(Put::Done(_))));

            let read = store.get(key).await;
            let put = store.put(key, bytes.clone(), Condition::None).await;

            let is_too_long = matches!(&read, Err(Error::TooLong { .. }));
            assert_eq!(is_too_long, !is_read, "{key}: {:?}", read.map(drop));
            let in_pieces = async {
                let mut writer = store.begin(key).await?;
                for from in (0..BIG).step_by(PIECE_BYTES) {
                    let to = BIG.min(from + PIECE_BYTES);
                    writer.add(bytes.slice(from..to)).await?;
                }
                writer.finish(Condition::None).await
            };
            for put in [put, in_pieces.await] {
                let is_refused = matches!(&put, Err(Error::TooLongToKeep { .. }));
                assert_eq!(is_refused, !is_read, "{key}: {put:?}");
            }
        }
    }

    #[tokio::test]
    async fn limited_store_keeps_the_contract() {
        let store = || Arc::new(Bounded(Arc::new(MemoryStore::default())));
        streamforge_store::contract::check_contract(store).await;
    }
}
