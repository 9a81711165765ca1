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
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    use streamforge_store::MemoryStore;

    use super::*;

    /// A store that refuses until it is told otherwise.
    #[derive(Debug)]
    struct Refusing {
        store: MemoryStore,
        admits: Arc<AtomicBool>,
    }

    impl Refusing {
        fn check(&self) -> Result<()> {
            if self.admits.load(Ordering::SeqCst) {
                return Ok(());
            }
            Err(Error::S3 {
                action: "read object",
                key: String::new(),
                location: self.location(),
                source: Refusal::Credentials {
                    code: "InvalidAccessKeyId".to_owned(),
                },
            })
        }
    }

    #[async_trait]
    impl ObjectStore for Refusing {
        async fn get_within(&self, key: &str, bytes_max: u64) -> Result<Option<StoredObject>> {
            self.check()?;
            self.store.get_within(key, bytes_max).await
        }

        async fn get_range(&self, key: &str, range: Range<u64>) -> Result<Bytes> {
            self.check()?;
            self.store.get_range(key, range).await
        }

        async fn put(&self, key: &str, bytes: Bytes, condition: Condition) -> Result<Put> {
            self.check()?;
            self.store.put(key, bytes, condition).await
        }

        async fn begin(&self, key: &str) -> Result<Box<dyn ObjectWriter>> {
            self.check()?;
            let inner = self.store.begin(key).await?;
            let refusing = Self {
                store: self.store.clone(),
                admits: Arc::clone(&self.admits),
            };
            Ok(Box::new(RefusingWriter { inner, refusing }))
        }

        async fn list(&self, prefix: &str) -> Result<Vec<ObjectMeta>> {
            self.check()?;
            self.store.list(prefix).await
        }

        async fn delete(&self, keys: &[String]) -> Result<()> {
            self.check()?;
            self.store.delete(keys).await
        }

        fn location(&self) -> String {
            self.store.location()
        }
    }

    #[derive(Debug)]
    struct RefusingWriter {
        inner: Box<dyn ObjectWriter>,
        refusing: Refusing,
    }

    #[async_trait]
    impl ObjectWriter for RefusingWriter {
        async fn add(&mut self, piece: Bytes) -> Result<()> {
            self.refusing.check()?;
            self.inner.add(piece).await
        }

        async fn finish(&mut self, condition: Condition) -> Result<Put> {
            self.refusing.check()?;
            self.inner.finish(condition).await
        }

        async fn abandon(&mut self) -> Result<()> {
            self.refusing.check()?;
            self.inner.abandon().await
        }
    }

    /// A store that admits once the Secret was read and says something new; reads so far.
    fn store(admits: bool, says_new: bool) -> (Renewed, Arc<AtomicUsize>) {
        let admits = Arc::new(AtomicBool::new(admits));
        let reads_n = Arc::new(AtomicUsize::new(0));
        let refusing = Refusing {
            store: MemoryStore::default(),
            admits: Arc::clone(&admits),
        };
        let counted = Arc::clone(&reads_n);
        let read: Read = Box::new(move || {
            counted.fetch_add(1, Ordering::SeqCst);
            admits.fetch_or(says_new, Ordering::SeqCst);
            Box::pin(async move { says_new })
        });
        (Renewed::new(Arc::new(refusing), read), reads_n)
    }

    #[tokio::test]
    async fn store_that_refuses_replaced_keys_is_asked_once_more_with_the_new_ones() {
        let (store, reads_n) = store(false, true);

        let put = store
            .put("a", Bytes::from_static(b"x"), Condition::CreateIfAbsent)
            .await;

        assert!(matches!(put, Ok(Put::Done(_))), "{put:?}");
        assert!(store.get("a").await.unwrap().is_some());
        assert_eq!(reads_n.load(Ordering::SeqCst), 1);
    }

    #[tokio::test]
    async fn keys_that_are_replaced_between_two_pieces_are_used() {
        for refused_call in ["begin", "add", "finish"] {
            let memory = MemoryStore::default();
            let admits = Arc::new(AtomicBool::new(true));
            let refusing = Refusing {
                store: memory.clone(),
                admits: Arc::clone(&admits),
            };
            let admitted = Arc::clone(&admits);
            let read: Read = Box::new(move || {
                admitted.store(true, Ordering::SeqCst);
                Box::pin(async { true })
            });
            let store = Renewed::new(Arc::new(refusing), read);
            let refuse_at = |call| admits.fetch_and(call != refused_call, Ordering::SeqCst);

            refuse_at("begin");
            let mut writer = store.begin("a").await.unwrap();
            refuse_at("add");
            writer.add(Bytes::from_static(b"x")).await.unwrap();
            refuse_at("finish");
            let put = writer.finish(Condition::CreateIfAbsent).await;

            assert!(matches!(put, Ok(Put::Done(_))), "{refused_call}: {put:?}");
            let there = memory.get_now("a").unwrap().map(|it| it.bytes);
            assert_eq!(there, Some(Bytes::from_static(b"x")), "{refused_call}");
        }
    }

    #[tokio::test]
    async fn wrong_keys_are_refused_and_their_secret_is_read_seldom() {
        let (store, reads_n) = store(false, false);

        for _call in 0..10 {
            assert!(store.list("").await.is_err());
        }

        assert_eq!(reads_n.load(Ordering::SeqCst), 1);
    }

    #[tokio::test]
    async fn nobody_reads_the_secret_of_a_store_that_admits() {
        let (store, reads_n) = store(true, true);

        assert!(store.list("").await.is_ok());

        assert_eq!(reads_n.load(Ordering::SeqCst), 0);
    }
}
