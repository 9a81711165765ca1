//! A job's store, and beside it the savepoint that the job is to begin with.
//!
//! Owns: which of the two a key belongs to. Nothing is written to the savepoint. Start at:
//! [`WithSavepoint`].

use std::ops::Range;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use streamforge_coordinator::ELSEWHERE;
use streamforge_store::{
    Condition, ObjectMeta, ObjectStore, ObjectWriter, Put, Result, StoredObject,
};

/// See the module.
#[derive(Debug)]
pub(crate) struct WithSavepoint {
    pub(crate) own: Arc<dyn ObjectStore>,
    pub(crate) savepoint: Arc<dyn ObjectStore>,
}

impl WithSavepoint {
    fn of<'a>(&self, key: &'a str) -> (&dyn ObjectStore, &'a str) {
        match key.strip_prefix(ELSEWHERE) {
            None => (&*self.own, key),
            Some(key) => (&*self.savepoint, key),
        }
    }
}

#[async_trait]
impl ObjectStore for WithSavepoint {
    async fn get_within(&self, key: &str, bytes_max: u64) -> Result<Option<StoredObject>> {
        let (store, key) = self.of(key);
        store.get_within(key, bytes_max).await
    }

    async fn get_range(&self, key: &str, range: Range<u64>) -> Result<Bytes> {
        let (store, key) = self.of(key);
        store.get_range(key, range).await
    }

    async fn put(&self, key: &str, bytes: Bytes, condition: Condition) -> Result<Put> {
        self.own.put(key, bytes, condition).await
    }

    async fn begin(&self, key: &str) -> Result<Box<dyn ObjectWriter>> {
        self.own.begin(key).await
    }

    async fn list(&self, prefix: &str) -> Result<Vec<ObjectMeta>> {
        self.own.list(prefix).await
    }

    async fn delete(&self, keys: &[String]) -> Result<()> {
        self.own.delete(keys).await
    }

    fn location(&self) -> String {
        self.own.location()
    }
}
