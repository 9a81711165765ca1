//! A store whose credentials may be replaced while it is open.
//!
//! Owns: reading the job's Secret anew when its store refuses what was read before, and asking once more
//! if it says something else. Until then nobody asks the API server for a Secret: most are never replaced.
//! Decides nothing about the refusal of a Secret that is the same.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use bytes::Bytes;
use futures::future::BoxFuture;
use streamforge_store::s3::Refusal;
use streamforge_store::{
    Condition, Error, ObjectMeta, ObjectStore, ObjectWriter, Put, Result, StoredObject,
};

/// A store that is refused asks for its Secret no more often than this.
const READ_EVERY: Duration = Duration::from_secs(5);

/// One that does not answer, no more often than this: with a certificate that was replaced nobody gets an
/// answer, but mostly it is just away.
const READ_EVERY_AWAY: Duration = Duration::from_secs(60);

/// Reads the Secret, and says whether it was replaced.
pub(super) type Read = Box<dyn Fn() -> BoxFuture<'static, bool> + Send + Sync>;

/// See the module.
pub(super) struct Renewed {
    store: Arc<dyn ObjectStore>,
    secret: Arc<Secret>,
}

/// What the store is opened with.
struct Secret {
    read: Read,
    read_at: Mutex<Option<Instant>>,
    /// Of the store, for people.
    location: String,
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Secret of {}", self.location)
    }
}

impl std::fmt::Debug for Renewed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.store.fmt(f)
    }
}

impl Renewed {
    pub(super) fn new(store: Arc<dyn ObjectStore>, read: Read) -> Self {
        let secret = Arc::new(Secret {
            read,
            read_at: Mutex::default(),
            location: store.location(),
        });
        Self { store, secret }
    }

    async fn ask<T, F>(&self, call: impl Fn() -> F + Send + Sync) -> Result<T>
    where
        F: Future<Output = Result<T>> + Send,
        T: Send,
    {
        match call().await {
            Err(error) if self.secret.admits_now(&error).await => call().await,
            said => said,
        }
    }
}

impl Secret {
    /// After this error: whether to ask once more.
    async fn admits_now(&self, error: &Error) -> bool {
        let store = &self.location;
        let is_refused = is_of_credentials(error);
        let is_away = matches!(error, Error::Unavailable { .. });
        if is_refused && self.is_replaced(READ_EVERY).await {
            tracing::info!(store, "using replaced credentials");
            return true; // a refusal is definite: nothing was done
        }
        if is_away && self.is_replaced(READ_EVERY_AWAY).await {
            tracing::info!(store, "going on with a replaced secret");
        }
        false
    }

    async fn is_replaced(&self, read_every: Duration) -> bool {
        {
            // A time is whole at any time.
            let mut read_at = self.read_at.lock().unwrap_or_else(PoisonError::into_inner);
            if read_at.is_some_and(|at| at.elapsed() < read_every) {
                return false;
            }
            *read_at = Some(Instant::now());
        }
        (self.read)().await
    }
}

fn is_of_credentials(error: &Error) -> bool {
    let Error::S3 { source, .. } = error else {
        return false;
    };
    matches!(
        source,
        Refusal::Credentials { .. } | Refusal::Denied { .. } | Refusal::NoCredentials { .. }
    )
}

#[async_trait]
impl ObjectStore for Renewed {
    async fn get_within(&self, key: &str, bytes_max: u64) -> Result<Option<StoredObject>> {
        self.ask(|| self.store.get_within(key, bytes_max)).await
    }

    async fn get_range(&self, key: &str, range: Range<u64>) -> Result<Bytes> {
        self.ask(|| self.store.get_range(key, range.clone())).await
    }

    async fn put(&self, key: &str, bytes: Bytes, condition: Condition) -> Result<Put> {
        self.ask(|| self.store.put(key, bytes.clone(), condition.clone()))
            .await
    }

    async fn begin(&self, key: &str) -> Result<Box<dyn ObjectWriter>> {
        Ok(Box::new(RenewedWriter {
            inner: self.ask(|| self.store.begin(key)).await?,
            secret: Arc::clone(&self.secret),
        }))
    }

    async fn list(&self, prefix: &str) -> Result<Vec<ObjectMeta>> {
        self.ask(|| self.store.list(prefix)).await
    }

    async fn delete(&self, keys: &[String]) -> Result<()> {
        self.ask(|| self.store.delete(keys)).await
    }

    fn location(&self) -> String {
        self.store.location()
    }
}

/// An object under way: keys may be replaced between two pieces.
#[derive(Debug)]
struct RenewedWriter {
    inner: Box<dyn ObjectWriter>,
    secret: Arc<Secret>,
}

#[async_trait]
impl ObjectWriter for RenewedWriter {
    async fn add(&mut self, piece: Bytes) -> Result<()> {
        match self.inner.add(piece.clone()).await {
            Err(error) if self.secret.admits_now(&error).await => self.inner.add(piece).await,
            said => said,
        }
    }

    async fn finish(&mut self, condition: Condition) -> Result<Put> {
        match self.inner.finish(condition.clone()).await {
            Err(error) if self.secret.admits_now(&error).await => {
                self.inner.finish(condition).await
            }
            said => said,
        }
    }

    async fn abandon(&mut self) -> Result<()> {
        self.inner.abandon().await
    }
}

#[cfg(test)]
mod tests;
