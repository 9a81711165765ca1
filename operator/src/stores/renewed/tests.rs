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
